//! What is stored, row by row, for whoever counts it.

use std::ops::Range;

use bytes::Bytes;

use super::{Store, verified};
use crate::backend::rows::number;
use crate::backend::{Family, IndexRow, PageEnd};
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::touched;

const ROOM_BYTES: usize = 1 << 20;

/// The rows of a store. Reads, fills no cache, and keeps nobody from anything: commits and collections go on meanwhile, so what
/// was there a moment ago may be gone.
pub struct Rows {
    store: Store,
    numbers_end: u64,
}

impl Rows {
    pub(super) fn of(store: Store) -> Result<Self> {
        let numbers_end = store.inner.backend.numbers_end()?;
        Ok(Self { store, numbers_end })
    }

    /// Every object that was there when this was made has a smaller number than this.
    pub fn numbers_end(&self) -> u64 {
        self.numbers_end
    }

    /// The rows of these objects in the index; nothing for those that are not there.
    pub fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.store.inner.backend.look_up(ids)
    }

    /// The canonical bytes of an object, hashed; nothing if it is not there.
    pub fn read(&self, id: ObjectId) -> Result<Option<Bytes>> {
        read_row(&self.store, id)
    }

    /// Shows the rows of a family of objects with numbers in a range, in the order of writing, in their canonical bytes. A row
    /// may be shown that no row of the index names.
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
                    let start = touched::canonical_start(stored).map_err(|why| damaged(family, number, &why))?;
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
