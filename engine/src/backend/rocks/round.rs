//! The work of a group commit's leader: compares, numbers, and gathers the rows of all transactions in one write batch.

use std::collections::HashMap;

use rocksdb::WriteBatch;

use super::settings::{OPERATIONS, REFS, REQUESTS};
use super::{Prepared, Rocks};
use crate::backend::rows::RefRow;
use crate::backend::{Backend, Committed, Epoch};
use crate::error::{Error, Result};
use crate::reference::{Operation, RefChange, RefName, RefValue, RequestId};

/// The state that a leader gathers for one write.
pub(super) struct Round<'a> {
    pub(super) rocks: &'a Rocks,
    pub(super) epoch: Epoch,
    pub(super) batch: WriteBatch,
    pub(super) moved: HashMap<RefName, (Option<RefValue>, u64)>,
    pub(super) requests: HashMap<RequestId, Operation>,
    pub(super) next_operation: u64,
}

impl Round<'_> {
    pub(super) fn add(&mut self, mut prepared: Prepared) -> Result<Committed> {
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
                self.requests.insert(request, operation.clone());
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
        match self.requests.get(request) {
            Some(operation) => Ok(Some(operation.clone())),
            None => self.rocks.find_request(request),
        }
    }
}
