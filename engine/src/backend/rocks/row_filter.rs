//! The compaction filter that drops dead rows while space is reclaimed.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use rocksdb::compaction_filter::{CompactionFilter, Decision};
use rocksdb::compaction_filter_factory::{CompactionFilterContext, CompactionFilterFactory};

use crate::backend::rows::number;
use crate::backend::{Family, KeptRows};

/// The filter that tells compactions which rows to drop; inactive unless reclaiming is in progress.
#[derive(Clone, Default)]
pub(super) struct SharedRowFilter(Arc<RwLock<Option<Arc<ActiveRowFilter>>>>);

/// The rows that the filter keeps, and the number of rows that it dropped.
pub(super) struct ActiveRowFilter {
    pub(super) named: KeptRows,
    pub(super) rows: AtomicU64,
}

impl SharedRowFilter {
    /// Returns the compaction filter factory of a family.
    pub(super) fn for_family(&self, family: Family) -> FilterFactory {
        FilterFactory { row_filter: self.clone(), family }
    }

    /// Deactivates the filter, before rows of objects or of the index are written directly.
    pub(super) fn clear(&self) {
        *self.0.write() = None;
    }
}

pub(super) struct FilterFactory {
    row_filter: SharedRowFilter,
    family: Family,
}

pub(super) struct Filter {
    active: Option<Arc<ActiveRowFilter>>,
    family: Family,
}

const FILTER_NAME: &CStr = c"amalgam.named";

impl CompactionFilterFactory for FilterFactory {
    type Filter = Filter;

    fn create(&mut self, _context: CompactionFilterContext) -> Filter {
        Filter { active: self.row_filter.0.read().clone(), family: self.family }
    }

    fn name(&self) -> &CStr {
        FILTER_NAME
    }
}

impl CompactionFilter for Filter {
    fn filter(&mut self, _level: u32, key: &[u8], _value: &[u8]) -> Decision {
        let Some(active) = &self.active else { return Decision::Keep };
        match number(key, "objects") {
            Ok(number) if !active.named.keeps(self.family, number) => {
                active.rows.fetch_add(1, Ordering::Relaxed);
                Decision::Remove
            }
            _ => Decision::Keep,
        }
    }

    fn name(&self) -> &CStr {
        FILTER_NAME
    }
}

/// Activates the compaction filter while it exists.
pub(super) struct Installed<'a>(&'a SharedRowFilter);

impl<'a> Installed<'a> {
    pub(super) fn new(row_filter: &'a SharedRowFilter, active: &Arc<ActiveRowFilter>) -> Self {
        *row_filter.0.write() = Some(Arc::clone(active));
        Self(row_filter)
    }
}

impl Drop for Installed<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}
