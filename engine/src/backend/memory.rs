//! Everything in memory: the reference implementation, and the store of a search that needs no disk.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use bytes::Bytes;
use parking_lot::RwLock;

use super::check::check;
use super::{Backend, Committed, Epoch, IndexRow, StoredObject, Sweep, Transaction};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::{Operation, RefChange, RefName, RefValue, RequestId};

/// A backend that forgets everything when it is dropped.
#[derive(Default)]
pub struct Memory {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<[u8; 32], Object>,
    refs: BTreeMap<RefName, (RefValue, u64)>,
    operations: Vec<Operation>,
    requests: HashMap<RequestId, u64>,
    epoch: Epoch,
}

struct Object {
    kind: ObjectKind,
    bytes: Bytes,
    epoch: Epoch,
}

impl State {
    fn put(&mut self, object: StoredObject) {
        let epoch = self.epoch;
        let place = self.objects.entry(object.id.hash);
        let kept = place.or_insert(Object { kind: object.id.kind, bytes: object.bytes, epoch });
        kept.epoch = epoch;
    }

    fn object(&self, id: ObjectId) -> Option<&Object> {
        self.objects.get(&id.hash).filter(|object| object.kind == id.kind)
    }
}

impl Backend for Memory {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        Ok(self.state.read().object(id).map(|object| object.bytes.clone()))
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let state = self.state.read();
        Ok(ids.iter().map(|id| state.object(*id).map(|object| object.bytes.clone())).collect())
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        let state = self.state.read();
        if ids.iter().all(|id| state.object(*id).is_none_or(|object| object.epoch >= at_least)) {
            return Ok(ids.iter().map(|id| state.object(*id).is_some()).collect());
        }
        drop(state);
        let mut state = self.state.write();
        let epoch = state.epoch;
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let object = state.objects.get_mut(&id.hash).filter(|object| object.kind == id.kind);
            found.push(object.is_some());
            if let Some(object) = object {
                object.epoch = epoch;
            }
        }
        Ok(found)
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        let mut state = self.state.write();
        objects.into_iter().for_each(|object| state.put(object));
        Ok(())
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        check(&transaction)?;
        let mut state = self.state.write();
        if let Some(request) = transaction.operation.as_ref().and_then(|draft| draft.request.as_ref())
            && let Some(sequence) = state.requests.get(request)
        {
            let index = usize::try_from(*sequence - 1).expect("a log in memory fits it");
            return Ok(Committed { operation: Some(state.operations[index].clone()), replayed: true });
        }
        let moved: Vec<_> = transaction
            .expect
            .iter()
            .map(|(name, expected)| (name, expected, state.refs.get(name).map(|(value, _)| value)))
            .filter(|(_, expected, current)| expected.as_ref() != *current)
            .map(|(name, _, current)| (name.clone(), current.cloned()))
            .collect();
        if !moved.is_empty() {
            return Err(Error::Stale { moved });
        }
        transaction.objects.into_iter().for_each(|object| state.put(object));
        let sequence = state.operations.len() as u64 + 1;
        let mut changes = Vec::with_capacity(transaction.set.len());
        for (name, after) in transaction.set {
            let before = match &after {
                Some(value) => state.refs.insert(name.clone(), (value.clone(), sequence)),
                None => state.refs.remove(&name),
            };
            let (before, previous) = before.map_or((None, 0), |(value, previous)| (Some(value), previous));
            changes.push(RefChange { name, before, after, previous });
        }
        let operation = transaction.operation.map(|draft| {
            if let Some(request) = &draft.request {
                state.requests.insert(request.clone(), sequence);
            }
            Operation { sequence, draft, changes }
        });
        state.operations.extend(operation.clone());
        Ok(Committed { operation, replayed: false })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.state.read().epoch
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        Ok(self.state.read().refs.get(name).map(|(value, _)| value.clone()))
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        Ok(self.state.read().refs.get(name).map_or(0, |(_, operation)| *operation))
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let state = self.state.read();
        let after = after.map_or(Bound::Unbounded, |name| Bound::Excluded(name.clone()));
        let range = state.refs.range((after, Bound::Unbounded));
        let wanted = range.filter(|(name, _)| name.as_str().starts_with(prefix)).take(limit);
        Ok(wanted.map(|(name, (value, _))| (name.clone(), value.clone())).collect())
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        let state = self.state.read();
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        Ok(state.operations.iter().skip(skipped).take(limit).cloned().collect())
    }

    fn last_operation(&self) -> Result<u64> {
        Ok(self.state.read().operations.len() as u64)
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        let state = self.state.read();
        let index = state.requests.get(request).map(|sequence| usize::try_from(*sequence - 1).expect("as above"));
        Ok(index.map(|index| state.operations[index].clone()))
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
        let after = after.map_or(Bound::Unbounded, |id| Bound::Excluded(id.hash));
        let rows = state.objects.range((after, Bound::Unbounded)).take(limit);
        Ok(rows
            .map(|(hash, object)| IndexRow {
                id: ObjectId { kind: object.kind, hash: *hash },
                stored_bytes: object.bytes.len() as u64,
                epoch: object.epoch,
            })
            .collect())
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<u64> {
        let mut state = self.state.write();
        let before = state.objects.len();
        for id in ids {
            if state.object(*id).is_some_and(|object| object.epoch < older_than) {
                state.objects.remove(&id.hash);
            }
        }
        Ok((before - state.objects.len()) as u64)
    }
}
