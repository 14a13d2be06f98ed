//! The types of reclaiming: the live rows, the progress and the result.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Family, NumberSet};

/// The object rows that must be kept.
#[derive(Clone, Debug)]
pub struct KeptRows {
    /// The numbers of all index rows below `end`, read after `end` was determined, by object family.
    pub numbers: Arc<[NumberSet; Family::OBJECTS.len()]>,
    /// The numbers of the rows that this sweep deleted, by family. Does not include rows left by earlier sweeps or crashes.
    pub gone: Arc<[NumberSet; Family::OBJECTS.len()]>,
    /// All rows from this number on are kept.
    pub end: u64,
}

impl KeptRows {
    /// Returns whether the row of a family with this number is kept.
    pub fn keeps(&self, family: Family, number: u64) -> bool {
        number >= self.end || self.of(family).contains(number)
    }

    /// Returns the live numbers of an object family.
    pub fn of(&self, family: Family) -> &NumberSet {
        &self.numbers[place(family)]
    }

    /// Returns the numbers of a family that the sweep deleted.
    pub fn gone_of(&self, family: Family) -> &NumberSet {
        &self.gone[place(family)]
    }
}

fn place(family: Family) -> usize {
    Family::OBJECTS.iter().position(|known| *known == family).expect("a family of objects")
}

/// The progress of reclaiming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimProgress {
    /// Bytes of the store that were examined, and rewritten or dropped if necessary.
    pub bytes_done: u64,
    /// Total bytes of the store.
    pub bytes_total: u64,
    /// Maximum temporary disk space of the next step, in bytes.
    pub step_bytes: u64,
}

/// Called before each step. `Break` stops reclaiming.
pub type WatchReclaim<'a> = &'a mut dyn FnMut(&ReclaimProgress) -> ControlFlow<()>;

/// The result of reclaiming.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Whether it was completed.
    pub finished: bool,
    /// Number of removed rows, as far as they were counted individually.
    pub rows: u64,
    /// Size of the store's files before, in bytes.
    pub bytes_before: u64,
    /// Size of the store's files after, in bytes.
    pub bytes_after: u64,
    /// Maximum temporary disk space of any step, in bytes.
    pub step_bytes_max: u64,
}
