//! The cache of the last measured usage of a store.

use std::sync::Arc;

use amalgam_gc::StoreUsage;

/// The cache of the last measured usage of workspaces. A collection clears it.
#[derive(Default)]
pub(super) struct MeasuredUsage {
    /// The number of collections that have cleared the cache.
    pub(super) collections: u64,
    /// The last operation before the measurement, and the result.
    pub(super) last: Option<(u64, Arc<StoreUsage>)>,
}

impl MeasuredUsage {
    /// Clears the cache after a collection.
    pub(super) fn clear(&mut self) {
        self.collections += 1;
        self.last = None;
    }

    /// Keeps the result of a measurement that began after this number of collections, unless another one has ended since.
    pub(super) fn keep(&mut self, collections: u64, operation: u64, usage: &Arc<StoreUsage>) {
        if self.collections == collections {
            self.last = Some((operation, Arc::clone(usage)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_beside_a_collection_is_not_cached() {
        let (mut known, usage) = (MeasuredUsage::default(), Arc::new(StoreUsage::default()));
        let before = known.collections;
        known.clear();
        known.keep(before, 7, &usage);
        assert!(known.last.is_none(), "it may count objects that were collected");
        known.keep(known.collections, 7, &usage);
        assert_eq!(known.last.as_ref().map(|(operation, _)| *operation), Some(7));
        known.clear();
        assert!(known.last.is_none());
    }
}
