//! The work of a group commit's leader: compares, numbers, and gathers the rows of all transactions in one write batch.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use rocksdb::WriteBatch;

use super::settings::{OPERATIONS, REFS, REQUESTS};
use super::{PreparedTransaction, Rocks};
use crate::backend::rows::RefRow;
use crate::backend::{Backend, Committed, Durability, Epoch};
use crate::error::{Error, Result};
use crate::reference::{Operation, RefChange, RefName, RefValue, RequestId};

/// The state that a leader gathers for one write.
struct GroupCommit<'a> {
    rocks: &'a Rocks,
    epoch: Epoch,
    batch: WriteBatch,
    moved: HashMap<RefName, (Option<RefValue>, u64)>,
    /// By their scopes.
    requests: HashMap<Vec<u8>, Operation>,
    next_operation: u64,
}

impl Rocks {
    /// Leads a group: compares, numbers, writes once, and returns each result.
    pub(super) fn commit_group(&self, group: Vec<PreparedTransaction>) -> Vec<Result<Committed>> {
        let epoch = self.epoch.read();
        let _stripes = self.lock_stripes(group.iter().flat_map(|prepared| &prepared.objects).map(|object| object.id));
        let mut commit = GroupCommit {
            rocks: self,
            epoch: *epoch,
            batch: WriteBatch::default(),
            moved: HashMap::new(),
            requests: HashMap::new(),
            next_operation: self.next_operation.load(Ordering::SeqCst),
        };
        let durable = group.iter().any(|prepared| prepared.durability == Durability::Durable);
        let mut results: Vec<_> = group.into_iter().map(|prepared| commit.add(prepared)).collect();
        let GroupCommit { mut batch, next_operation, .. } = commit;
        if next_operation != self.next_operation.load(Ordering::SeqCst) {
            self.note_indexed(&mut batch, next_operation - 1);
        }
        if let Err(error) = self.write(batch, durable) {
            for result in &mut results {
                if result.is_ok() {
                    *result = Err(error.clone());
                }
            }
            return results;
        }
        self.next_operation.store(next_operation, Ordering::SeqCst);
        results
    }
}

impl GroupCommit<'_> {
    fn add(&mut self, mut prepared: PreparedTransaction) -> Result<Committed> {
        let request = prepared.operation.as_ref().and_then(|draft| draft.request.clone());
        if let Some(request) = &request
            && let Some(operation) = self.find_request(request)?
        {
            return Ok(Committed { operation: Some(operation), replayed: true });
        }
        let mut before = HashMap::with_capacity(prepared.expect.len());
        let mut stale = Vec::new();
        for (name, expected) in prepared.expect {
            let (current, previous) = self.current(&name)?;
            if current == expected {
                before.insert(name, (current, previous));
            } else {
                stale.push((name, current));
            }
        }
        if !stale.is_empty() {
            return Err(Error::Stale { moved: stale });
        }
        for object in &mut prepared.objects {
            self.rocks.add_object(&mut self.batch, object);
            self.rocks.add_index(&mut self.batch, object, self.epoch);
        }
        let mut changes = Vec::with_capacity(prepared.set.len());
        for (name, after) in prepared.set {
            let refs = self.rocks.family(REFS);
            match &after {
                Some(value) => self.batch.put_cf(refs, name.as_str(), RefRow::encode(self.next_operation, value)),
                None => self.batch.delete_cf(refs, name.as_str()),
            }
            self.moved.insert(name.clone(), (after.clone(), self.next_operation));
            let (before, previous) = before.remove(&name).unwrap_or_default();
            self.rocks.index_move(&mut self.batch, &name, before.as_ref(), after.as_ref());
            let previous = if before.is_some() { previous } else { 0 };
            changes.push(RefChange { name, before, after, previous });
        }
        let operation = prepared.operation.map(|draft| Operation { sequence: self.next_operation, draft, changes });
        if let Some(operation) = &operation {
            self.next_operation += 1;
            let key = operation.sequence.to_be_bytes();
            self.batch.put_cf(self.rocks.family(OPERATIONS), key, operation.encode());
            if let Some(request) = request {
                self.batch.put_cf(self.rocks.family(REQUESTS), request.as_bytes(), key);
                self.requests.insert(request.scope().to_vec(), operation.clone());
            }
        }
        Ok(Committed { operation, replayed: false })
    }

    /// Returns the value of a reference in this round, and the operation that set it.
    fn current(&self, name: &RefName) -> Result<(Option<RefValue>, u64)> {
        if let Some(moved) = self.moved.get(name) {
            return Ok(moved.clone());
        }
        Ok(self.rocks.ref_row(name)?.map_or((None, 0), |row| (Some(row.value), row.operation)))
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        match self.requests.get(request.scope()) {
            Some(operation) if operation.draft.request.as_ref() == Some(request) => Ok(Some(operation.clone())),
            Some(operation) => Err(Error::RequestReused { operation: operation.sequence }),
            None => self.rocks.find_request(request),
        }
    }
}
