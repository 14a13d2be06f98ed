//! The words of reclaiming: which rows stay, how far it is, what came back.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{Family, Numbers};

/// The rows of objects that must stay.
#[derive(Clone, Debug)]
pub struct Named {
    /// The number of every row of the index below the end, read after the end was asked for, by family of objects.
    pub numbers: Arc<[Numbers; Family::OBJECTS.len()]>,
    /// The numbers of what the sweep took, by family. Says nothing of what earlier ones took and crashes left.
    pub gone: Arc<[Numbers; Family::OBJECTS.len()]>,
    /// From this number on every row stays.
    pub end: u64,
}

impl Named {
    /// Whether the row of a family with this number stays.
    pub fn keeps(&self, family: Family, number: u64) -> bool {
        number >= self.end || self.of(family).contains(number)
    }

    /// The numbers of a family of objects.
    pub fn of(&self, family: Family) -> &Numbers {
        &self.numbers[place(family)]
    }

    /// What the sweep took of a family.
    pub fn gone_of(&self, family: Family) -> &Numbers {
        &self.gone[place(family)]
    }
}

fn place(family: Family) -> usize {
    Family::OBJECTS.iter().position(|known| *known == family).expect("a family of objects")
}

/// How far a reclaiming is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimProgress {
    /// Bytes of the store that were looked at, and were rewritten or dropped where there was reason to.
    pub bytes_done: u64,
    /// Bytes of the store in all.
    pub bytes_total: u64,
    /// The most bytes that the next step may need for a while beside the store.
    pub step_bytes: u64,
}

/// Asked before each step; a break ends the reclaiming there.
pub type WatchReclaim<'a> = &'a mut dyn FnMut(&ReclaimProgress) -> ControlFlow<()>;

/// What a reclaiming came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Whether it came to its end.
    pub finished: bool,
    /// Rows that are gone, as far as they were counted one by one.
    pub rows: u64,
    /// The bytes of the store's files before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// The most bytes that any step needed beside the store.
    pub step_bytes_max: u64,
}
