//! Frees the room of deleted objects: packs without a live object are doomed, packs with few of them are rewritten together, inline
//! packs move to the bucket. A doomed pack is deleted after the grace time, so that readers elsewhere can finish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use amalgam_engine::backend::{Family, KeptRows, ReclaimProgress, Reclaimed, StoredObject, WatchReclaim};
use amalgam_engine::{Error, Result};
use sqlx::Row as _;

use crate::bucket::fault;
use crate::commit::PackColumns;
use crate::identity::{Identity, signed};
use crate::index::{Location, Pack};
use crate::node::Node;
use crate::pack::PackId;

/// A pack of which less than one byte in this many is live is rewritten.
const SPARSE_ONE_IN: u64 = 2;
/// A pack with less than one in this many bytes of a full one is joined with others.
const SMALL_ONE_IN: u64 = 4;
/// Number of packs that are deleted between two looks at the lease.
const DELETED_AT_ONCE: usize = 64;

/// A pack to rewrite, with its live slots.
struct Rewrite {
    pack: Arc<Pack>,
    live: Vec<u32>,
    live_bytes: u64,
}

impl Rewrite {
    fn new(pack: Arc<Pack>, live: Vec<u32>) -> Self {
        let live_bytes = live.iter().map(|slot| u64::from(pack.slots[*slot as usize].length)).sum();
        Self { pack, live, live_bytes }
    }
}

impl Node {
    /// Moves all inline packs to the bucket, except during a collection: an object that moves gets a new number and epoch, and a
    /// dead root among them would outlive the objects below it.
    pub(crate) fn pack_inline(&self) -> Result<()> {
        let _moving = self.moving.lock();
        if self.pulse.is_collecting.load(Ordering::SeqCst) {
            return Ok(());
        }
        let seen = self.index.read().seen();
        let packs: Vec<_> = {
            let index = self.index.read();
            index.packs_from(0).filter(|pack| pack.is_inline).map(Arc::clone).collect()
        };
        let mut live: BTreeMap<u64, Vec<u32>> = self.live_slots(&packs);
        let rewrites = packs.into_iter().map(|pack| {
            let live = live.remove(&pack.first).unwrap_or_default();
            Rewrite::new(pack, live)
        });
        for group in self.grouped(rewrites.collect()) {
            self.rewrite(&group, 0, seen)?;
        }
        Ok(())
    }

    pub(crate) fn reclaim_packs(&self, named: &KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.refresh()?;
        let (packs, seen, bytes_total) = {
            let index = self.index.read();
            let below = |pack: &&Arc<Pack>| pack.first + pack.slots.len() as u64 <= named.end;
            let packs: Vec<_> = index.packs_from(0).filter(below).map(Arc::clone).collect();
            (packs, index.seen(), index.bytes())
        };
        let mut progress = ReclaimProgress { bytes_total, ..Default::default() };
        let mut reclaimed = Reclaimed { bytes_before: bytes_total, ..Default::default() };
        for group in self.grouped(self.chosen(packs, named)) {
            progress.step_bytes = group.iter().map(|rewrite| rewrite.live_bytes).sum();
            reclaimed.step_bytes_max = reclaimed.step_bytes_max.max(progress.step_bytes);
            if watch(&progress).is_break() {
                reclaimed.bytes_after = self.index.read().bytes();
                return Ok(reclaimed);
            }
            if self.rewrite(&group, self.token(), seen)? {
                let dead = |rewrite: &Rewrite| (rewrite.pack.slots.len() - rewrite.live.len()) as u64;
                reclaimed.rows += group.iter().map(dead).sum::<u64>();
            }
            progress.bytes_done += group.iter().map(|rewrite| rewrite.pack.bytes).sum::<u64>();
        }
        reclaimed.finished = !watch(&ReclaimProgress { bytes_done: bytes_total, step_bytes: 0, ..progress }).is_break();
        if reclaimed.finished {
            self.delete_doomed(self.token(), self.options.grace)?;
            self.delete_orphans()?;
            self.finish_collection()?;
        }
        reclaimed.bytes_after = self.index.read().bytes();
        Ok(reclaimed)
    }

    /// Returns the packs that are worth rewriting.
    fn chosen(&self, packs: Vec<Arc<Pack>>, named: &KeptRows) -> Vec<Rewrite> {
        let small_bytes = self.options.pack_bytes as u64 / SMALL_ONE_IN;
        let rewrites = packs.into_iter().map(|pack| {
            let is_live = |(at, number): (u32, u64)| {
                named.keeps(Family::of(pack.slots[at as usize].id.kind), number).then_some(at)
            };
            let live = (0..pack.slots.len() as u32).zip(pack.first..).filter_map(is_live).collect();
            Rewrite::new(pack, live)
        });
        let (sparse, rest): (Vec<_>, Vec<_>) = rewrites.partition(|rewrite| {
            rewrite.pack.is_inline || rewrite.live.is_empty() || rewrite.live_bytes * SPARSE_ONE_IN < rewrite.pack.bytes
        });
        let small: Vec<_> = rest.into_iter().filter(|rewrite| rewrite.pack.bytes < small_bytes).collect();
        let mut chosen = sparse;
        if small.len() > 1 {
            chosen.extend(small);
        }
        chosen.sort_unstable_by_key(|rewrite| rewrite.pack.first);
        chosen
    }

    /// Groups packs so that each group makes about one new pack.
    fn grouped(&self, rewrites: Vec<Rewrite>) -> Vec<Vec<Rewrite>> {
        let mut groups: Vec<Vec<Rewrite>> = Vec::new();
        let mut bytes = 0;
        for rewrite in rewrites {
            bytes += rewrite.live_bytes;
            match groups.last_mut() {
                Some(group) if bytes <= self.options.pack_bytes as u64 => group.push(rewrite),
                _ => {
                    bytes = rewrite.live_bytes;
                    groups.push(vec![rewrite]);
                }
            }
        }
        groups
    }

    /// Writes the live objects of packs to new ones, and dooms the old ones. Returns false if they changed meanwhile, or if one of
    /// them cannot be read: then they stay. `token` is that of this node's collection, or 0.
    fn rewrite(&self, group: &[Rewrite], token: i64, seen: u64) -> Result<bool> {
        let locations: Vec<_> = group
            .iter()
            .flat_map(|rewrite| {
                rewrite.live.iter().map(|slot| Location { pack: Arc::clone(&rewrite.pack), slot: *slot })
            })
            .collect();
        let mut objects = Vec::with_capacity(locations.len());
        for (location, fetched) in locations.iter().zip(self.fetcher.fetch_to_move(&locations)) {
            match fetched {
                Ok(Some(bytes)) => objects.push(StoredObject { id: location.slot().id, bytes }),
                Ok(None) => return Ok(false),
                Err(error) => {
                    tracing::warn!(%error, "a pack is not rewritten");
                    return Ok(false);
                }
            }
        }
        let doomed: Vec<_> = group.iter().map(|rewrite| signed(rewrite.pack.first)).collect();
        self.replace(&doomed, objects, token, seen)
    }

    /// Writes objects to new packs, and dooms the packs with these numbers. Returns false if those changed meanwhile.
    pub(crate) fn replace(&self, doomed: &[i64], objects: Vec<StoredObject>, token: i64, seen: u64) -> Result<bool> {
        let packs = if objects.is_empty() { Vec::new() } else { self.uploader.put(objects)? };
        let columns = PackColumns::of(&packs);
        let Identity { project, node, generation } = self.identity;
        let reply: Result<Option<String>> = self.database.call("replace packs", async |connection| {
            let query = sqlx::query_scalar("SELECT replace_packs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(token);
            let query = query.bind(signed(seen)).bind(doomed);
            let query = query.bind(&columns.id[..]).bind(&columns.objects[..]).bind(&columns.bytes[..]);
            query.bind(&columns.footer_bytes[..]).fetch_one(connection).await
        });
        let reply = reply.inspect_err(|_| self.uploader.give_up(&packs))?;
        let Some(reply) = reply else {
            self.uploader.give_up(&packs);
            self.refresh()?;
            return Ok(false);
        };
        self.note_registered(&packs, &reply)?;
        self.refresh()?;
        Ok(true)
    }

    /// Rewrites every pack with a removed object, and deletes all doomed packs at once.
    pub(crate) fn scrub_packs(&self) -> Result<()> {
        self.fetcher.clear();
        let (packs, seen): (Vec<_>, u64) = {
            let index = self.index.read();
            (index.packs_from(0).map(Arc::clone).collect(), index.seen())
        };
        let mut live = self.live_slots(&packs);
        let rewrites = packs.into_iter().filter_map(|pack| {
            let live = live.remove(&pack.first).filter(|live| live.len() < pack.slots.len())?;
            Some(Rewrite::new(pack, live))
        });
        for group in self.grouped(rewrites.collect()) {
            if !self.rewrite(&group, 0, seen)? {
                let why = "a pack changed meanwhile or cannot be read; try again, or verify the store".to_owned();
                return Err(Error::Fault { action: "scrub packs", why });
            }
        }
        self.fetcher.clear();
        self.delete_doomed(0, Duration::ZERO)
    }

    /// Deletes packs that were doomed longer ago than the grace time. A deletion that comes late does no harm: a doomed pack never
    /// becomes live again, and its name is never used again.
    fn delete_doomed(&self, token: i64, grace: Duration) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        let grace = grace.as_secs_f64();
        let rows = self.database.call("list doomed packs", async |connection| {
            let query = sqlx::query("SELECT id, first_number, is_stored FROM doomed_packs($1, $2, $3, $4, $5)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(token).bind(grace);
            query.fetch_all(connection).await
        })?;
        for some in rows.chunks(DELETED_AT_ONCE) {
            let ids: Vec<Vec<u8>> = some.iter().map(|row| row.get(0)).collect();
            let numbers: Vec<i64> = some.iter().map(|row| row.get(1)).collect();
            for (row, id) in some.iter().zip(&ids) {
                if row.get(2) {
                    self.delete_stored(id)?;
                }
            }
            self.database.call("forget packs", async |connection| {
                let query = sqlx::query("SELECT forget_packs($1, $2, $3, $4, $5, $6)");
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(token);
                query.bind(&ids[..]).bind(&numbers[..]).execute(connection).await.map(drop)
            })?;
        }
        Ok(())
    }

    /// Deletes packs that were written, or may have been, and never registered: those of expelled nodes, and those whose names were
    /// given up.
    fn delete_orphans(&self) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        let grace = self.options.grace.as_secs_f64();
        let ids: Vec<Vec<u8>> = self.database.call("list orphaned packs", async |connection| {
            let query = sqlx::query_scalar("SELECT orphaned_uploads($1, $2, $3, $4, $5)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(self.token()).bind(grace);
            query.fetch_all(connection).await
        })?;
        for some in ids.chunks(DELETED_AT_ONCE) {
            some.iter().try_for_each(|id| self.delete_stored(id))?;
            self.database.call("forget orphaned packs", async |connection| {
                let query = sqlx::query("SELECT forget_uploads($1, $2, $3, $4, $5)");
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(self.token());
                query.bind(some).execute(connection).await.map(drop)
            })?;
        }
        Ok(())
    }

    /// Records the end of a complete collection.
    fn finish_collection(&self) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        self.database.call("record a collection", async |connection| {
            let query = sqlx::query("SELECT finish_collection($1, $2, $3, $4)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(self.token());
            query.execute(connection).await.map(drop)
        })
    }

    fn delete_stored(&self, id: &[u8]) -> Result<()> {
        let Ok(id) = PackId::try_from(id) else { return Ok(()) };
        self.database.wait(self.bucket.delete(&id)).map_err(|source| fault("delete a pack", &source))
    }
}
