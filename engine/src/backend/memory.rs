//! A backend in memory: the reference implementation, and the store of a search without a disk. It keeps the same rows as the
//! store on disk, so that verification and repair work on it too.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use parking_lot::RwLock;

use super::inspect::{Family, Inspect, Page, PageEnd, RowEdit};
use super::reclaim::{KeptRows, ReclaimProgress, Reclaimed, WatchReclaim};
use super::rows::{IndexValue, RefRow, damaged, number, read_tombstone, tombstone_key};
use super::{Backend, Committed, Deletion, Epoch, IndexRow, StoredObject, Sweep, Transaction};
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::reference::{Operation, RefChange, RefName, RefValue, RequestId};
use crate::time::Time;
use crate::tombstone::Tombstone;

/// A backend that loses all data when it is dropped.
#[derive(Default)]
pub struct Memory {
    state: RwLock<State>,
}

type Rows = BTreeMap<Vec<u8>, Bytes>;

#[derive(Default)]
struct State {
    families: [Rows; Family::ALL.len()],
    epoch: Epoch,
    /// The key of the next object in any family.
    next_object: u64,
    last_operation: u64,
    /// Number of operations that were trimmed from the log.
    trimmed: u64,
}

impl State {
    fn family(&self, family: Family) -> &Rows {
        &self.families[family as usize]
    }

    fn set(&mut self, family: Family, key: impl Into<Vec<u8>>, value: impl Into<Bytes>) {
        self.families[family as usize].insert(key.into(), value.into());
    }

    fn index(&self, id: ObjectId) -> Result<Option<IndexValue>> {
        let row = self.family(Family::Index).get(&id.hash[..]);
        let value = row.map(|row| IndexValue::decode(row)).transpose()?;
        Ok(value.filter(|value| value.kind == id.kind))
    }

    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        let Some(value) = self.index(id)? else { return Ok(None) };
        Ok(self.family(Family::of(id.kind)).get(&value.number.to_be_bytes()[..]).cloned())
    }

    fn object_bytes(&self) -> u64 {
        let bytes = |family| self.family(family).values().map(|value| value.len() as u64).sum::<u64>();
        Family::OBJECTS.into_iter().map(bytes).sum()
    }

    fn stamp(&mut self, id: ObjectId, mut value: IndexValue) {
        value.epoch = self.epoch;
        self.set(Family::Index, id.hash, value.encode());
    }

    fn put(&mut self, StoredObject { id, bytes }: StoredObject) -> Result<()> {
        if let Some(value) = self.index(id)? {
            self.stamp(id, value);
            return Ok(());
        }
        let number = self.next_object;
        self.next_object += 1;
        let value = IndexValue { kind: id.kind, epoch: self.epoch, stored_bytes: bytes.len() as u64, number };
        self.set(Family::of(id.kind), number.to_be_bytes(), bytes);
        self.set(Family::Index, id.hash, value.encode());
        Ok(())
    }

    fn ref_row(&self, name: &RefName) -> Result<Option<RefRow>> {
        self.family(Family::Refs).get(name.as_str().as_bytes()).cloned().map(RefRow::decode).transpose()
    }

    /// Fails if the requested range starts before the beginning of a trimmed log.
    fn check_reach(&self, after: u64) -> Result<()> {
        if after >= self.trimmed {
            return Ok(());
        }
        let first = self.trimmed + 1;
        let row = self.family(Family::Operations).get(&first.to_be_bytes()[..]);
        let since = row.map_or(Ok(Time::EPOCH), |row| read_operation(first, row).map(|found| found.draft.time))?;
        Err(Error::Trimmed { operation: after + 1, first, since })
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        let scope = request.scope();
        let found = match request.is_scoped() {
            true => self.family(Family::Requests).range(scope.to_vec()..).next(),
            false => self.family(Family::Requests).get_key_value(scope),
        };
        let Some((row, key)) = found.filter(|(row, _)| row.starts_with(scope)) else { return Ok(None) };
        let sequence = number(key, "request")?;
        if row[..] != *request.as_bytes() {
            return Err(Error::RequestReused { operation: sequence });
        }
        let missing = || damaged("operation log", &format!("operation {sequence} is missing"));
        let row = self.family(Family::Operations).get(&key[..]).ok_or_else(missing)?;
        read_operation(sequence, row).map(Some)
    }
}

fn read_operation(sequence: u64, row: &Bytes) -> Result<Operation> {
    Operation::decode(sequence, row.clone()).map_err(|why| damaged("operation", &why))
}

fn read_name(key: &[u8]) -> Result<RefName> {
    let name = String::from_utf8(key.to_vec()).map_err(|why| damaged("reference", &why))?;
    RefName::new(name).map_err(|why| damaged("reference", &why))
}

impl Backend for Memory {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        self.state.read().get(id)
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let state = self.state.read();
        ids.iter().map(|id| state.get(*id)).collect()
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        let state = self.state.read();
        let mut old = Vec::new();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let value = state.index(*id)?;
            if value.as_ref().is_some_and(|value| value.epoch < at_least) {
                old.push(found.len());
            }
            found.push(value.is_some());
        }
        drop(state);
        if !old.is_empty() {
            let mut state = self.state.write();
            for place in old {
                // A sweep may have deleted it in the meantime.
                let value = state.index(ids[place])?;
                found[place] = value.is_some();
                value.into_iter().for_each(|value| state.stamp(ids[place], value));
            }
        }
        Ok(found)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        let mut state = self.state.write();
        objects.into_iter().try_for_each(|object| state.put(object))
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        transaction.check()?;
        let mut state = self.state.write();
        if let Some(request) = transaction.operation.as_ref().and_then(|draft| draft.request.as_ref())
            && let Some(operation) = state.find_request(request)?
        {
            return Ok(Committed { operation: Some(operation), replayed: true });
        }
        let mut before = BTreeMap::new();
        let mut moved = Vec::new();
        for (name, expected) in transaction.expect {
            let row = state.ref_row(&name)?;
            let (current, previous) = row.map_or((None, 0), |row| (Some(row.value), row.operation));
            if current == expected {
                before.insert(name, (current, previous));
            } else {
                moved.push((name, current));
            }
        }
        if !moved.is_empty() {
            return Err(Error::Stale { moved });
        }
        transaction.objects.into_iter().try_for_each(|object| state.put(object))?;
        let sequence = state.last_operation + 1;
        let mut changes = Vec::with_capacity(transaction.set.len());
        for (name, after) in transaction.set {
            match &after {
                Some(value) => state.set(Family::Refs, name.as_str(), RefRow::encode(sequence, value)),
                None => drop(state.families[Family::Refs as usize].remove(name.as_str().as_bytes())),
            }
            let (before, previous) = before.remove(&name).unwrap_or_default();
            changes.push(RefChange { name, before, after, previous });
        }
        let operation = transaction.operation.map(|draft| Operation { sequence, draft, changes });
        if let Some(operation) = &operation {
            if let Some(request) = &operation.draft.request {
                state.set(Family::Requests, request.as_bytes(), sequence.to_be_bytes().to_vec());
            }
            state.set(Family::Operations, sequence.to_be_bytes(), operation.encode());
            state.last_operation = sequence;
        }
        Ok(Committed { operation, replayed: false })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn empty_log(&self) -> Result<()> {
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.state.read().epoch
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        Ok(self.state.read().ref_row(name)?.map(|row| row.value))
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        Ok(self.state.read().ref_row(name)?.map_or(0, |row| row.operation))
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let state = self.state.read();
        let start = match after.map(RefName::as_str).filter(|after| *after >= prefix) {
            Some(after) => Bound::Excluded(after.as_bytes()),
            None => Bound::Included(prefix.as_bytes()),
        };
        let range = state.family(Family::Refs).range::<[u8], _>((start, Bound::Unbounded));
        let wanted = range.take_while(|(name, _)| name.starts_with(prefix.as_bytes())).take(limit);
        wanted.map(|(name, row)| Ok((read_name(name)?, RefRow::decode(row.clone())?.value))).collect()
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        let state = self.state.read();
        state.check_reach(after)?;
        let start = Bound::Excluded(&after.to_be_bytes()[..]);
        let rows = state.family(Family::Operations).range::<[u8], _>((start, Bound::Unbounded)).take(limit);
        rows.map(|(key, row)| read_operation(number(key, "operations")?, row)).collect()
    }

    fn last_operation(&self) -> Result<u64> {
        Ok(self.state.read().last_operation)
    }

    fn first_operation(&self) -> Result<u64> {
        Ok(self.state.read().trimmed + 1)
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.state.read().find_request(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        let state = self.state.read();
        state.family(Family::Tombstones).get(&tombstone_key(id)[..]).cloned().map(read_tombstone).transpose()
    }
}

impl Sweep for Memory {
    fn advance_epoch(&self) -> Result<Epoch> {
        let mut state = self.state.write();
        state.epoch += 1;
        Ok(state.epoch)
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        let state = self.state.read();
        let after = after.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.hash[..]));
        let rows = state.family(Family::Index).range::<[u8], _>((after, Bound::Unbounded)).take(limit);
        rows.map(|(hash, row)| {
            let hash = hash[..].try_into().map_err(|why| damaged("object index", &why))?;
            Ok(IndexValue::decode(row)?.row(hash))
        })
        .collect()
    }

    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        let state = self.state.read();
        ids.iter().map(|id| Ok(state.index(*id)?.map(|value| value.row(id.hash)))).collect()
    }

    fn objects_estimate(&self) -> Result<u64> {
        Ok(self.state.read().family(Family::Index).len() as u64)
    }

    fn numbers_end(&self) -> Result<u64> {
        Ok(self.state.read().next_object)
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion> {
        let mut state = self.state.write();
        let mut delete = |id: &ObjectId| {
            let goes = state.index(*id)?.is_some_and(|value| value.epoch < older_than);
            if goes {
                state.families[Family::Index as usize].remove(&id.hash[..]);
            }
            Ok(goes)
        };
        ids.iter().map(&mut delete).collect::<Result<_>>().map(Deletion::Done)
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        let mut state = self.state.write();
        let first = state.trimmed + 1;
        let end = before.min(state.last_operation).min(first.saturating_add(limit as u64)).max(first);
        for sequence in first..end {
            let key = sequence.to_be_bytes();
            let Some(row) = state.families[Family::Operations as usize].remove(&key[..]) else { continue };
            if let Some(request) = read_operation(sequence, &row)?.draft.request {
                let requests = &mut state.families[Family::Requests as usize];
                if requests.get(request.as_bytes()).is_some_and(|row| row[..] == key) {
                    requests.remove(request.as_bytes());
                }
            }
        }
        state.trimmed = end - 1;
        Ok(end)
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        let mut done = ReclaimProgress { bytes_total: self.state.read().object_bytes(), ..Default::default() };
        let mut reclaimed = Reclaimed { bytes_before: done.bytes_total, ..Default::default() };
        for family in Family::OBJECTS {
            if watch(&done).is_break() {
                reclaimed.bytes_after = self.state.read().object_bytes();
                return Ok(reclaimed);
            }
            let mut state = self.state.write();
            let rows = &mut state.families[family as usize];
            let before = rows.len();
            done.bytes_done += rows.values().map(|value| value.len() as u64).sum::<u64>();
            rows.retain(|key, _| number(key, "objects").is_ok_and(|number| named.keeps(family, number)));
            reclaimed.rows += (before - rows.len()) as u64;
        }
        reclaimed.finished = true;
        reclaimed.bytes_after = self.state.read().object_bytes();
        Ok(reclaimed)
    }
}

impl Inspect for Memory {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        let state = self.state.read();
        let mut page = Page { rows: Vec::new(), end: PageEnd::Range };
        let mut taken = 0;
        for (key, value) in state.family(family).range::<[u8], _>((Bound::Included(from), Bound::Unbounded)) {
            if until.is_some_and(|until| &key[..] >= until) {
                break;
            }
            if taken >= room_bytes {
                page.end = PageEnd::Room;
                break;
            }
            taken += key.len() + value.len();
            page.rows.push((Bytes::copy_from_slice(key), value.clone()));
        }
        Ok(page)
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        let mut state = self.state.write();
        for RowEdit { family, key, value } in edits {
            let Some(value) = value else {
                state.families[family as usize].remove(&key[..]);
                continue;
            };
            match family {
                Family::Operations => state.last_operation = state.last_operation.max(number(&key, "operations")?),
                _ if Family::OBJECTS.contains(&family) => {
                    state.next_object = state.next_object.max(number(&key, "objects")? + 1);
                }
                _ => {}
            }
            state.set(family, &key[..], value);
        }
        Ok(())
    }

    /// Does nothing: removed rows are gone from memory already.
    fn scrub(&self, _removed: &[(Family, Bytes)]) -> Result<()> {
        Ok(())
    }
}
