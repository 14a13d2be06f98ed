//! The schedule by which the uncommitted bytes of a live tree are measured for its quota.

use std::time::{Duration, Instant};

use amalgam_view::{Quota, StateVersion};

/// A tree is measured once 1 / `MEASURE_ONE_IN` of its quota was written since the last measurement.
const MEASURE_ONE_IN: u64 = 8;
/// The shortest interval between two measurements of a tree, which take at most 1 / `MEASURE_TIME_ONE_IN` of the time.
const MEASURE_INTERVAL_MIN: Duration = Duration::from_millis(500);
const MEASURE_TIME_ONE_IN: u32 = 10;

/// A measurement of a live tree for its quota.
#[derive(Clone, Copy, Debug)]
pub(super) struct QuotaMeasurement {
    pub(super) ended: Instant,
    pub(super) took: Duration,
    /// The state that was measured.
    pub(super) version: Option<StateVersion>,
    /// The bytes that counted against the quota after the measurement.
    pub(super) used_bytes: u64,
}

/// Returns whether a tree should be measured now. `is_changed` tells whether it changed since the last measurement.
pub(super) fn is_due(quota: Quota, is_changed: bool, last: Option<&QuotaMeasurement>, now: Instant) -> bool {
    let Quota { max_bytes, used_bytes } = quota;
    if used_bytes < max_bytes / 2 {
        return false;
    }
    let Some(last) = last else { return true };
    let interval = MEASURE_INTERVAL_MIN.max(last.took * MEASURE_TIME_ONE_IN);
    let step_bytes = max_bytes / MEASURE_ONE_IN;
    // A full tree is not written any more, but files are removed from it.
    let is_nearly_full = max_bytes.saturating_sub(used_bytes) < step_bytes;
    let is_wanted = is_changed && (is_nearly_full || used_bytes >= last.used_bytes + step_bytes);
    is_wanted && now.saturating_duration_since(last.ended) >= interval
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_measured_past_half_of_its_quota_and_not_too_often() {
        let (began, second) = (Instant::now(), Duration::from_secs(1));
        let quota = |used_bytes| Quota { max_bytes: 1_000, used_bytes };
        let last = |used_bytes, took| QuotaMeasurement { ended: began, took, version: None, used_bytes };
        assert!(!is_due(quota(499), true, None, began));
        assert!(is_due(quota(500), true, None, began));
        let quick = last(500, Duration::ZERO);
        assert!(!is_due(quota(600), true, Some(&quick), began + second), "too little was written since");
        assert!(is_due(quota(625), true, Some(&quick), began + second));
        assert!(!is_due(quota(625), true, Some(&quick), began), "too soon");
        let full = last(990, Duration::ZERO);
        assert!(is_due(quota(991), true, Some(&full), began + second), "something was removed");
        assert!(!is_due(quota(990), false, Some(&full), began + second));
        assert!(!is_due(quota(991), true, Some(&last(990, second)), began + second * 9), "a tenth of the time");
        assert!(is_due(quota(991), true, Some(&last(990, second)), began + second * 10));
    }
}
