//! The engine's backend: objects by hash, transactions, references.

use std::sync::Arc;

use amalgam_engine::backend::rows::{read_tombstone, tombstone_key};
use amalgam_engine::backend::{Backend, Committed, Epoch, Holder, StoredObject, Transaction};
use amalgam_engine::reference::{Operation, RefName, RefValue, RequestId};
use amalgam_engine::{ObjectId, Result, Tombstone};
use bytes::Bytes;

use crate::fetch::missing;
use crate::identity::{Identity, signed};
use crate::index::Location;
use crate::node::{Cloud, Node};

/// Number of times that an object is looked up again because its pack was replaced meanwhile.
const LOOKUPS_MAX: usize = 4;

impl Node {
    /// Returns the stored bytes of objects. Looks again where a pack is gone: a collection on another node may have replaced it.
    fn objects(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let mut found = vec![None; ids.len()];
        let mut open: Vec<usize> = (0..ids.len()).collect();
        let mut is_refreshed = false;
        for _ in 0..LOOKUPS_MAX {
            let (located, unknown) = self.locate(ids, &open);
            let locations: Vec<Location> = located.iter().map(|(_, location)| location.clone()).collect();
            let mut gone = Vec::new();
            for ((place, location), fetched) in located.into_iter().zip(self.fetcher.fetch(&locations)) {
                match fetched? {
                    Some(bytes) => found[place] = Some(bytes),
                    None => gone.push((place, location)),
                }
            }
            if gone.is_empty() && (unknown.is_empty() || is_refreshed) {
                return match self.index.read().broken() {
                    Some(error) if !unknown.is_empty() => Err(error),
                    _ => Ok(found),
                };
            }
            if is_refreshed && let Some((place, location)) = gone.first() {
                let now = self.index.read().find(ids[*place]);
                if now.is_some_and(|now| now.pack.id == location.pack.id) {
                    return Err(missing(&self.bucket, location));
                }
            }
            self.refresh()?;
            is_refreshed = true;
            open = gone.into_iter().map(|(place, _)| place).chain(unknown).collect();
        }
        Ok(found)
    }

    /// Finds objects in the index. Returns those that are there, and those that are not.
    fn locate(&self, ids: &[ObjectId], places: &[usize]) -> (Vec<(usize, Location)>, Vec<usize>) {
        let index = self.index.read();
        let (mut located, mut unknown) = (Vec::with_capacity(places.len()), Vec::new());
        for place in places {
            match index.find(ids[*place]) {
                Some(location) => located.push((*place, location)),
                None => unknown.push(*place),
            }
        }
        (located, unknown)
    }

    /// Records in PostgreSQL that a session needs objects. Returns which of them exist.
    fn stamp(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        let Identity { project, node, generation } = self.identity;
        self.refuse_if_expelled("check for objects")?;
        loop {
            let (seen, places): (u64, Vec<_>) = {
                let index = self.index.read();
                let old = |id: &&ObjectId| index.epoch_of(**id).is_some_and(|epoch| epoch < at_least);
                (index.seen(), ids.iter().filter(old).filter_map(|id| index.find(*id)).collect())
            };
            let packs: Vec<_> = places.iter().map(|location| signed(location.pack.first)).collect();
            let slots: Vec<_> = places.iter().map(|location| location.slot as i32).collect();
            let epoch: Option<i64> = match places.is_empty() {
                true => Some(0),
                false => self.database.call("check for objects", async |connection| {
                    let query = sqlx::query_scalar("SELECT stamp_objects($1, $2, $3, $4, $5, $6)");
                    let query = query.bind(project).bind(&node[..]).bind(generation).bind(signed(seen));
                    query.bind(&packs[..]).bind(&slots[..]).fetch_one(connection).await
                })?,
            };
            let Some(epoch) = epoch else {
                // Another node changed something since: the objects may be elsewhere now, or gone.
                self.refresh()?;
                continue;
            };
            self.note_epoch(epoch);
            let mut index = self.index.write();
            for location in &places {
                index.stamp(location.slot().id, epoch.unsigned_abs());
            }
            return Ok(ids.iter().map(|id| index.epoch_of(*id).is_some()).collect());
        }
    }
}

impl Backend for Cloud {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        Ok(self.objects(&[id])?.remove(0))
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        self.objects(ids)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        let look = || -> Vec<Option<Epoch>> {
            let index = self.index.read();
            ids.iter().map(|id| index.epoch_of(*id)).collect()
        };
        let mut found = look();
        // A session that does not find an object puts it: a stale answer costs a copy. Any other caller wants to know.
        if at_least == 0 && found.contains(&None) {
            self.refresh()?;
            found = look();
        }
        let old: Vec<_> = (0..ids.len()).filter(|at| found[*at].is_some_and(|epoch| epoch < at_least)).collect();
        let mut present: Vec<_> = found.iter().map(Option::is_some).collect();
        if !old.is_empty() {
            let wanted: Vec<_> = old.iter().map(|at| ids[*at]).collect();
            for (at, is_there) in old.into_iter().zip(self.stamp(&wanted, at_least)?) {
                present[at] = is_there;
            }
        }
        Ok(present)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        self.put_objects(objects)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        let committed = self.commit(transaction);
        Node::pack_inline_later(self.shared());
        committed
    }

    fn sync(&self) -> Result<()> {
        self.write_through()
    }

    /// Moves inline packs to the bucket.
    fn empty_log(&self) -> Result<()> {
        self.pack_inline()
    }

    fn release_memory(&self) -> Result<()> {
        self.fetcher.clear();
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.epoch_now()
    }

    fn share_holds(&self, holder: Arc<dyn Holder>) {
        self.rounds.add(holder);
    }

    fn announce_pin(&self, id: ObjectId) -> Result<()> {
        self.announce(id)
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        Ok(self.ref_row(name)?.map(|row| row.value))
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        Ok(self.ref_row(name)?.map_or(0, |row| row.operation))
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let rows = self.refs(prefix, after.map(RefName::as_str), limit)?;
        Ok(rows.into_iter().map(|(name, row)| (name, row.value)).collect())
    }

    fn names_of(&self, target: ObjectId) -> Result<Vec<RefName>> {
        self.names_pointing_at(target)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        self.operations(after, limit)
    }

    fn last_operation(&self) -> Result<u64> {
        Ok(self.log_range()?.1)
    }

    fn first_operation(&self) -> Result<u64> {
        Ok(self.log_range()?.0)
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.tombstone_row(&tombstone_key(id)).map(read_tombstone).transpose()
    }
}

impl Node {
    /// Moves inline packs to the bucket in another thread, if they take much room.
    fn pack_inline_later(node: &Arc<Self>) {
        if node.index.read().inline_bytes() <= node.options.inline_total_bytes_max {
            return;
        }
        let mut packing = node.packing.lock();
        if packing.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let shared = Arc::clone(node);
        *packing = Some(std::thread::spawn(move || {
            if let Err(error) = shared.pack_inline() {
                tracing::warn!(%error, "inline packs stay in PostgreSQL for now");
            }
        }));
    }
}
