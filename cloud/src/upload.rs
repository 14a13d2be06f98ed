//! Writes packs to the bucket, under names that were reserved in PostgreSQL before: a pack that no transaction names can be found by
//! its reservation, without a listing.

use amalgam_engine::backend::StoredObject;
use amalgam_engine::{ObjectKind, Result};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;

use crate::bucket::{Bucket, fault};
use crate::database::Database;
use crate::identity::{Identity, random_name};
use crate::pack::{NewPack, PackId, build};

/// Number of names that one call reserves.
const RESERVED_NAMES: usize = 64;
/// Number of packs that are written concurrently.
const PUTS_MAX: usize = 4;
/// Maximum number of objects in a pack.
pub(crate) const PACK_OBJECTS_MAX: usize = 1 << 16;

/// A pack with its name.
pub(crate) struct NamedPack {
    pub(crate) id: PackId,
    pub(crate) pack: NewPack,
    /// Whether its bytes travel with the transaction instead of through the bucket.
    pub(crate) is_inline: bool,
}

impl NamedPack {
    pub(crate) fn inline(objects: &[StoredObject]) -> Result<Self> {
        let id = random_name()?;
        Ok(Self { id, pack: build(&id, objects), is_inline: true })
    }

    pub(crate) fn bytes(&self) -> u64 {
        (self.pack.body.len() + self.pack.footer.len()) as u64
    }
}

pub(crate) struct Uploader {
    database: Database,
    bucket: Bucket,
    identity: Identity,
    reserved: Mutex<Vec<PackId>>,
    /// Names of packs that were not registered, for the next call.
    given_up: Mutex<Vec<Vec<u8>>>,
    pack_bytes: usize,
}

impl Uploader {
    pub(crate) fn new(database: Database, bucket: Bucket, identity: Identity, pack_bytes: usize) -> Self {
        Self { database, bucket, identity, reserved: Mutex::default(), given_up: Mutex::default(), pack_bytes }
    }

    /// Writes objects to the bucket and returns their packs, which nothing names yet.
    pub(crate) fn put(&self, objects: Vec<StoredObject>) -> Result<Vec<NamedPack>> {
        let groups = split(objects, self.pack_bytes);
        let ids = self.take_names(groups.len())?;
        let packs: Vec<_> = ids.into_iter().zip(&groups).map(|(id, objects)| (id, build(&id, objects))).collect();
        drop(groups);
        let put = |(id, pack): (PackId, NewPack)| async move {
            self.bucket.put(&id, [pack.body.clone(), pack.footer.clone()]).await?;
            Ok(NamedPack { id, pack, is_inline: false })
        };
        let names: Vec<_> = packs.iter().map(|(id, _)| id.to_vec()).collect();
        let puts = stream::iter(packs).map(put).buffered(PUTS_MAX).try_collect();
        self.database.wait(puts).map_err(|source| {
            self.given_up.lock().extend(names);
            fault("write a pack", &source)
        })
    }

    /// Gives up packs that were not registered, or may not have been: PostgreSQL decides with the next reservation of names. A
    /// registration that arrives after that is refused, and a collection deletes the packs.
    pub(crate) fn give_up(&self, packs: &[NamedPack]) {
        let stored = packs.iter().filter(|pack| !pack.is_inline);
        self.given_up.lock().extend(stored.map(|pack| pack.id.to_vec()));
    }

    fn take_names(&self, count: usize) -> Result<Vec<PackId>> {
        let mut reserved = self.reserved.lock();
        if reserved.len() < count {
            self.release_given_up()?;
            let names: Vec<_> = (0..RESERVED_NAMES.max(count)).map(|_| random_name()).collect::<Result<_>>()?;
            self.reserve(&names)?;
            reserved.extend(names);
        }
        let at = reserved.len() - count;
        Ok(reserved.split_off(at))
    }

    fn release_given_up(&self) -> Result<()> {
        let names = std::mem::take(&mut *self.given_up.lock());
        if names.is_empty() {
            return Ok(());
        }
        let released = self.database.call("give up names of packs", async |connection| {
            let query = sqlx::query(
                "UPDATE uploads SET orphaned_at = clock_timestamp()
                 WHERE project = $1 AND id = ANY ($2) AND orphaned_at IS NULL",
            );
            query.bind(self.identity.project).bind(&names[..]).execute(connection).await.map(drop)
        });
        released.inspect_err(|_| self.given_up.lock().extend(names))
    }

    fn reserve(&self, names: &[PackId]) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        let names: Vec<_> = names.iter().map(|name| name.to_vec()).collect();
        self.database.call("reserve names of packs", async |connection| {
            let query = sqlx::query(
                "INSERT INTO uploads (project, id, node, generation)
                 SELECT $1, e.id, $2, $3 FROM unnest($4::bytea[]) e(id) ON CONFLICT DO NOTHING",
            );
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(&names[..]);
            query.execute(connection).await.map(drop)
        })
    }
}

/// Splits the new objects of a transaction: those that are put into the bucket, and those that travel with the call because they are few.
///
/// A transaction with more bytes than travel with the call needs a put. If its chunks or its other objects are few by themselves, as the
/// directories of a large file are, they travel with the call nevertheless: they would be a second put, being a pack of their own.
pub(crate) fn divide(objects: Vec<StoredObject>, inline_bytes_max: usize) -> (Vec<StoredObject>, Vec<StoredObject>) {
    let bytes = |objects: &[StoredObject]| objects.iter().map(|object| object.bytes.len()).sum::<usize>();
    if bytes(&objects) <= inline_bytes_max {
        return (Vec::new(), objects);
    }
    let (chunks, others): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object.id.kind == ObjectKind::Chunk);
    let (larger, smaller) = if bytes(&chunks) < bytes(&others) { (others, chunks) } else { (chunks, others) };
    if bytes(&smaller) <= inline_bytes_max {
        return (larger, smaller);
    }
    (larger.into_iter().chain(smaller).collect(), Vec::new())
}

/// Groups objects into packs, in their order; chunks apart from the others, so that marking reads no chunks.
fn split(objects: Vec<StoredObject>, pack_bytes: usize) -> Vec<Vec<StoredObject>> {
    let (chunks, others): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object.id.kind == ObjectKind::Chunk);
    let mut groups = Vec::new();
    for family in [chunks, others] {
        let (mut group, mut bytes) = (Vec::new(), 0);
        for object in family {
            bytes += object.bytes.len();
            group.push(object);
            if bytes >= pack_bytes || group.len() == PACK_OBJECTS_MAX {
                groups.push(std::mem::take(&mut group));
                bytes = 0;
            }
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    groups
}
