//! Trims the operation log. Each batch deletes the oldest operations with their request ids and updates the start of the log,
//! atomically. Their space is reclaimed together with that of the objects.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rocksdb::WriteBatch;

use super::Rocks;
use super::settings::{FIRST_OPERATION_KEY, META, OPERATIONS, REFS, REQUESTS, fault};
use crate::backend::home::damaged;
use crate::backend::rows::number;
use crate::error::{Error, Result};
use crate::reference::Operation;
use crate::time::Time;

const ACTION: &str = "give room back";
/// Rewriting is worthwhile if at least one in this many rows is dead.
const DEAD_ONE_IN: u64 = 20;

impl Rocks {
    /// Loads the start of the log when the store is opened.
    pub(super) fn load_first_operation(&self, last: u64) -> Result<()> {
        let first = match self.read(META, FIRST_OPERATION_KEY)? {
            Some(bytes) => number(&bytes, "operation log")?,
            None => return Ok(()),
        };
        if !(1..=last).contains(&first) {
            return Err(damaged("operation log", &format!("it begins at {first} and ends at {last}")));
        }
        self.first_operation.store(first, Ordering::SeqCst);
        Ok(())
    }

    /// Fails if the log was trimmed beyond this number, because rows read after it may be incomplete.
    pub(super) fn check_reach(&self, after: u64) -> Result<()> {
        let first = self.first_operation.load(Ordering::SeqCst);
        if after.saturating_add(1) >= first {
            return Ok(());
        }
        let row = self.read(OPERATIONS, &first.to_be_bytes())?;
        let since = row.map_or(Ok(Time::EPOCH), |row| read(first, row).map(|found| found.draft.time))?;
        Err(Error::Trimmed { operation: after + 1, first, since })
    }

    pub(super) fn trim_log(&self, before: u64, limit: usize) -> Result<u64> {
        let first = self.first_operation.load(Ordering::SeqCst);
        let last = self.next_operation.load(Ordering::SeqCst) - 1;
        let end = before.min(last).min(first.saturating_add(limit as u64));
        if end <= first {
            return Ok(first);
        }
        let mut batch = WriteBatch::default();
        for sequence in first..end {
            let key = sequence.to_be_bytes();
            let Some(row) = self.read(OPERATIONS, &key)? else {
                return Err(damaged("operation log", &format!("operation {sequence} is missing")));
            };
            if let Some(request) = read(sequence, row)?.draft.request
                && self.read(REQUESTS, request.as_bytes())?.is_some_and(|row| row[..] == key)
            {
                batch.delete_cf(self.family(REQUESTS), request.as_bytes());
            }
        }
        batch.delete_range_cf(self.family(OPERATIONS), first.to_be_bytes(), end.to_be_bytes());
        batch.put_cf(self.family(META), FIRST_OPERATION_KEY, end.to_be_bytes());
        // Set before the write, so that a reader that finds fewer operations also finds this number.
        self.first_operation.store(end, Ordering::SeqCst);
        self.write(batch, false).inspect_err(|_| self.first_operation.store(first, Ordering::SeqCst))?;
        Ok(end)
    }

    /// Returns the size of the log's files in bytes, if enough of their operations were deleted.
    pub(super) fn log_worth_it(&self) -> Result<Option<u64>> {
        let first = self.first_operation.load(Ordering::SeqCst);
        if first > 1 {
            self.database.flush_cf(self.family(OPERATIONS)).map_err(|source| fault(ACTION, &source))?;
        }
        let files = self.database.live_files().map_err(|source| fault(ACTION, &source))?;
        let (mut bytes, mut dead, mut last) = (0, 0, first);
        for file in files.iter().filter(|file| file.column_family_name == OPERATIONS) {
            let (Some(start), Some(end)) = (&file.start_key, &file.end_key) else { continue };
            let (start, end) = (number(start, OPERATIONS)?, number(end, OPERATIONS)?);
            bytes += file.size as u64;
            dead = dead.max(first.saturating_sub(start.max(1)));
            last = last.max(end);
        }
        Ok((dead > 0 && dead * DEAD_ONE_IN >= last - first).then_some(bytes))
    }

    /// Rewrites the log's files that contain deleted operations.
    pub(super) fn rewrite_log(&self) -> Result<()> {
        let first = self.first_operation.load(Ordering::SeqCst);
        // Both ends are deleted operations.
        let (from, until) = (0_u64.to_be_bytes(), (first - 1).to_be_bytes());
        self.database
            .delete_file_in_range_cf(self.family(OPERATIONS), from, until)
            .map_err(|source| fault(ACTION, &source))?;
        self.compact(OPERATIONS, Some(&from), Some(&until));
        Ok(())
    }

    /// Returns the families with small rows of which enough are tombstones, with their sizes in bytes.
    pub(super) fn small_worth_it(&self) -> Result<Vec<(&'static str, u64)>> {
        let mut worth_it = Vec::new();
        for family in [REFS, REQUESTS] {
            self.database.flush_cf(self.family(family)).map_err(|source| fault(ACTION, &source))?;
            worth_it.extend(self.tombstones_worth_it(family)?.map(|bytes| (family, bytes)));
        }
        Ok(worth_it)
    }
}

fn read(sequence: u64, row: Bytes) -> Result<Operation> {
    Operation::decode(sequence, row).map_err(|why| damaged("operation", &why))
}
