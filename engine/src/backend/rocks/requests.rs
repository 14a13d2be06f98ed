//! Requests that were done, and the operations that they made.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rocksdb::{Direction, IteratorMode};

use super::Rocks;
use super::home::damaged;
use super::settings::{OPERATIONS, REQUESTS, fault};
use crate::backend::rows::number;
use crate::error::{Error, Result};
use crate::reference::{Operation, RequestId};

impl Rocks {
    /// Returns the operation that a request made; `None` if the request is new or its operation is no longer in the log. Fails if
    /// its id was used with other arguments.
    pub(super) fn operation_of(&self, request: &RequestId) -> Result<Option<Operation>> {
        let Some((row, key)) = self.request_row(request)? else {
            return Ok(None);
        };
        let sequence = number(&key, REQUESTS)?;
        if row != request.as_bytes() {
            return match sequence < self.first_operation.load(Ordering::SeqCst) {
                true => Ok(None),
                false => Err(Error::RequestReused { operation: sequence }),
            };
        }
        let Some(bytes) = self.read(OPERATIONS, &key)? else {
            if sequence < self.first_operation.load(Ordering::SeqCst) {
                // The log was shortened between the two reads.
                return Ok(None);
            }
            return Err(damaged("operation log", &format!("operation {sequence} is missing")));
        };
        Operation::decode(sequence, bytes).map(Some).map_err(|why| damaged("operation", &why))
    }

    /// Returns the row of a request, or that of another request of its scope, as key and value.
    fn request_row(&self, request: &RequestId) -> Result<Option<(Bytes, Bytes)>> {
        let scope = request.scope();
        if !request.is_scoped() {
            return Ok(self.read(REQUESTS, scope)?.map(|row| (Bytes::copy_from_slice(scope), row)));
        }
        let from = IteratorMode::From(scope, Direction::Forward);
        let row = self.database.iterator_cf(self.family(REQUESTS), from).next().transpose();
        let (key, row) = match row.map_err(|source| fault("read", &source))? {
            Some((key, row)) if key.starts_with(scope) => (key, row),
            _ => return Ok(None),
        };
        Ok(Some((Bytes::from(key), Bytes::from(row))))
    }
}
