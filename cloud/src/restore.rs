//! Restores objects whose packs are damaged or missing, from the cache on the node's disk.

use std::sync::Arc;

use amalgam_engine::backend::StoredObject;
use amalgam_engine::{Error, ObjectId, Result};

use crate::bucket::fault;
use crate::identity::signed;
use crate::index::{Location, Pack};
use crate::node::Node;
use crate::pack::read_footer;

impl Node {
    /// Reads every pack. One that is damaged is replaced by a new one, if the cache has all the bytes that are wrong; otherwise those that
    /// it has are stored once more, and the pack stays. Returns the restored objects.
    pub(crate) fn restore_packs(&self) -> Result<Vec<ObjectId>> {
        self.refresh()?;
        let packs: Vec<_> = self.index.read().packs_from(0).filter(|pack| !pack.is_inline).map(Arc::clone).collect();
        let mut restored = Vec::new();
        for pack in packs {
            restored.extend(self.restore_pack(&pack)?);
        }
        Ok(restored)
    }

    fn restore_pack(&self, pack: &Arc<Pack>) -> Result<Vec<ObjectId>> {
        let seen = self.index.read().seen();
        let live = self.live_slots(std::slice::from_ref(pack)).remove(&pack.first).unwrap_or_default();
        let locations: Vec<_> = live.into_iter().map(|slot| Location { pack: Arc::clone(pack), slot }).collect();
        let (mut objects, mut damaged) = (Vec::new(), Vec::new());
        for (location, read) in locations.iter().zip(self.fetcher.fetch_raw(&locations)) {
            let slot = location.slot();
            match read? {
                Some(bytes) if slot.matches(&bytes) => objects.push(StoredObject { id: slot.id, bytes }),
                _ => damaged.push(location.clone()),
            }
        }
        if damaged.is_empty() && self.has_right_footer(pack)? {
            return Ok(Vec::new());
        }
        let found = self.fetcher.read_disk(&damaged);
        let is_whole = found.iter().all(Option::is_some);
        let found: Vec<_> = damaged
            .iter()
            .zip(found)
            .filter_map(|(location, bytes)| Some(StoredObject { id: location.slot().id, bytes: bytes? }))
            .collect();
        let restored = found.iter().map(|object| object.id).collect();
        if !is_whole {
            tracing::warn!(pack = self.bucket.name(&pack.id), "the cache does not have all objects of a damaged pack");
            self.put_objects(found)?;
            return Ok(restored);
        }
        objects.extend(found);
        if !self.replace(&[signed(pack.first)], objects, 0, seen)? {
            let why = "a pack changed meanwhile, or another node collects; try again".to_owned();
            return Err(Error::Fault { action: "restore a pack", why });
        }
        Ok(restored)
    }

    /// Returns whether the footer in the bucket is the one that the index was read from.
    fn has_right_footer(&self, pack: &Pack) -> Result<bool> {
        let body = pack.slots.last().map_or(0, |slot| slot.end());
        let footer = self.database.wait(self.bucket.get(&pack.id, body..pack.bytes));
        let footer = footer.map_err(|source| fault("read a pack", &source))?;
        let slots = footer.and_then(|footer| read_footer(&self.bucket.name(&pack.id), &pack.id, &footer).ok());
        Ok(slots.is_some_and(|slots| slots == pack.slots))
    }
}
