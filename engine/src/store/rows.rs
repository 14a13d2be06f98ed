//! Raw access to the stored rows, for statistics.

use std::ops::Range;

use bytes::Bytes;

use super::{Store, verified};
use crate::backend::rows::number;
use crate::backend::{Family, IndexRow, PageEnd};
use crate::changed_paths;
use crate::error::{Error, Result};
use crate::id::ObjectId;

const ROOM_BYTES: usize = 1 << 20;

/// The rows of a store. Read-only; it fills no cache and does not block other operations. Commits and collections continue
/// meanwhile, so that a row may be gone a moment later.
pub struct Rows {
    store: Store,
    numbers_end: u64,
}

impl Rows {
    pub(super) fn of(store: Store) -> Result<Self> {
        let numbers_end = store.inner.backend.numbers_end()?;
        Ok(Self { store, numbers_end })
    }

    /// Returns an upper bound: every object that existed when this was created has a smaller number.
    pub fn numbers_end(&self) -> u64 {
        self.numbers_end
    }

    /// Returns the index rows of these objects; `None` for missing ones.
    pub fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.store.inner.backend.look_up(ids)
    }

    /// Returns the canonical bytes of an object, with a verified hash, or `None` if it does not exist.
    pub fn read(&self, id: ObjectId) -> Result<Option<Bytes>> {
        read_row(&self.store, id)
    }

    /// Calls `show` with the canonical bytes of the rows of an object family in a range of numbers, in write order. Rows that are
    /// not in the index may be included.
    pub fn show(
        &self,
        family: Family,
        range: Range<u64>,
        show: &mut dyn FnMut(u64, &Bytes) -> Result<()>,
    ) -> Result<()> {
        show_rows(&self.store, family, range, show)
    }
}

pub(super) fn read_row(store: &Store, id: ObjectId) -> Result<Option<Bytes>> {
    match store.inner.backend.get(id)? {
        None => Ok(None),
        stored => verified(id, stored).map(Some),
    }
}

pub(super) fn show_rows(
    store: &Store,
    family: Family,
    range: Range<u64>,
    show: &mut dyn FnMut(u64, &Bytes) -> Result<()>,
) -> Result<()> {
    assert!(family != Family::Chunks, "chunks are compressed, and refer to nothing");
    let until = range.end.to_be_bytes();
    let mut from = range.start;
    loop {
        let page = store.inner.backend.rows(family, &from.to_be_bytes(), Some(&until), ROOM_BYTES)?;
        for (key, stored) in &page.rows {
            let number = number(key, family.name())?;
            match family {
                Family::Snapshots => {
                    let start = changed_paths::canonical_start(stored).map_err(|why| damaged(family, number, &why))?;
                    show(number, &stored.slice(start..))?;
                }
                _ => show(number, stored)?,
            }
            from = number + 1;
        }
        match page.end {
            PageEnd::Range => return Ok(()),
            PageEnd::Room => {}
            PageEnd::Damaged { why } => return Err(damaged(family, from, &why)),
        }
    }
}

fn damaged(family: Family, number: u64, why: &dyn std::fmt::Display) -> Error {
    Error::DamagedRecord { what: format!("row {number} of {}", family.name()), why: why.to_string() }
}
