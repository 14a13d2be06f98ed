//! When an automatic collection is due, by growth, by time and by space: decisions on values alone.

use std::time::Duration;

use amalgam_engine::{LivedTime, Time};
use amalgam_gc::retention::Span;
use serde::{Deserialize, Serialize};

use crate::disk_quota::{Disk, Shortage, shortage};

/// The time without calls that a collection by time waits for, unless it is overdue.
pub(super) const IDLE: Duration = Duration::from_secs(30);
/// How long a daily collection waits for [`IDLE`]. After that it runs beside calls, throttled by their load.
const OVERDUE_NANOSECONDS: i64 = 2 * HOUR_NANOSECONDS;
const DAY_NANOSECONDS: i64 = 24 * 3_600 * 1_000_000_000;
const HOUR_NANOSECONDS: i64 = 3_600 * 1_000_000_000;

/// When automatic collections run.
pub(crate) struct AutoGcPolicy {
    pub(crate) check_every: Duration,
    /// The least growth that is worth a collection. Growth below a quarter of the store is not worth one either.
    pub(crate) growth_bytes_min: u64,
    /// The growth after which a collection is retried while space is short; without it, after an hour.
    pub(crate) growth_bytes_short: u64,
}

impl Default for AutoGcPolicy {
    fn default() -> Self {
        Self { check_every: Duration::from_secs(30), growth_bytes_min: 256_000_000, growth_bytes_short: 16_000_000 }
    }
}

/// The result of the last collection, as `collection.json` keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct LastCollection {
    pub(super) time: i64,
    pub(super) why: String,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    pub(super) thinned: u64,
    pub(super) disk_bytes_before: u64,
    pub(super) disk_bytes_after: u64,
}

/// Why a collection runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CollectionReason {
    /// A caller asked for it.
    Asked,
    /// The store has grown since the last collection.
    Growth,
    /// The last collection was a day ago.
    Time,
    /// The disk is nearly full, or a workspace is near its quota.
    Space,
}

impl CollectionReason {
    /// Returns the reason as `collection.json` and the API give it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Growth => "growth",
            Self::Time => "time",
            Self::Space => "room",
        }
    }
}

/// The parameters of a collection.
pub(crate) struct CollectionRequest<'a> {
    pub(crate) actor: &'a str,
    pub(crate) dry_run: bool,
    pub(crate) grace: Option<Span>,
    pub(crate) why: CollectionReason,
}

/// Returns why an automatic collection is due, if one is.
pub(super) fn due(
    policy: &AutoGcPolicy,
    last: Option<&LastCollection>,
    disk: &Disk,
    budget: Option<u64>,
    now: Time,
    idle: Duration,
) -> Option<CollectionReason> {
    let base = last.map_or(0, |last| last.disk_bytes_after);
    let since = since(last, now);
    let grown = disk.store_bytes.saturating_sub(base);
    if shortage(disk, budget) != Shortage::None && (grown > policy.growth_bytes_short || since >= HOUR_NANOSECONDS) {
        return Some(CollectionReason::Space);
    }
    if disk.store_bytes > next(policy, last, &LivedTime::default()).1 {
        return Some(CollectionReason::Growth);
    }
    let is_quiet = idle >= IDLE || since >= DAY_NANOSECONDS + OVERDUE_NANOSECONDS;
    (since >= DAY_NANOSECONDS && is_quiet).then_some(CollectionReason::Time)
}

/// Returns why a collection is due where a workspace is near its quota. Retention works in hours: sooner it would find nothing new.
pub(super) fn due_for_quota(is_near: bool, last: Option<&LastCollection>, now: Time) -> Option<CollectionReason> {
    (is_near && since(last, now) >= HOUR_NANOSECONDS).then_some(CollectionReason::Space)
}

/// Returns the nanoseconds since the last collection.
fn since(last: Option<&LastCollection>, now: Time) -> i64 {
    last.map_or(i64::MAX, |last| now.0.saturating_sub(last.time))
}

/// Returns the time and the size of the store from which on an automatic collection is due; no time before the first
/// collection.
pub(super) fn next(policy: &AutoGcPolicy, last: Option<&LastCollection>, lived: &LivedTime) -> (Option<Time>, u64) {
    let base = last.map_or(0, |last| last.disk_bytes_after);
    let time = last.map(|last| Time(lived.place(Time(last.time)).0.saturating_add(DAY_NANOSECONDS)));
    (time, base.saturating_add(policy.growth_bytes_min.max(base / 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_by_growth_by_time_and_by_room() {
        const MB: u64 = 1_000_000;
        let check = |base: u64, hours_ago: i64, store: u64, free: u64, budget: Option<u64>, idle: u64| {
            let last = LastCollection {
                time: -hours_ago * HOUR_NANOSECONDS,
                disk_bytes_after: base,
                ..LastCollection::default()
            };
            let disk = Disk { store_bytes: store, free_bytes: free, floor_bytes: 1_000 * MB, ..Disk::default() };
            due(&AutoGcPolicy::default(), Some(&last), &disk, budget, Time(0), Duration::from_secs(idle))
        };
        let plenty = 100_000 * MB;
        assert_eq!(check(100 * MB, 1, 300 * MB, plenty, None, 0), None);
        assert_eq!(check(100 * MB, 1, 357 * MB, plenty, None, 0), Some(CollectionReason::Growth));
        assert_eq!(check(4_000 * MB, 1, 4_900 * MB, plenty, None, 0), None);
        assert_eq!(check(4_000 * MB, 1, 5_001 * MB, plenty, None, 0), Some(CollectionReason::Growth));
        assert_eq!(check(100 * MB, 23, 100 * MB, plenty, None, 60), None);
        assert_eq!(check(100 * MB, 24, 100 * MB, plenty, None, 60), Some(CollectionReason::Time));
        assert_eq!(check(100 * MB, 24, 100 * MB, plenty, None, 0), None, "somebody is at work");
        assert_eq!(check(100 * MB, 26, 100 * MB, plenty, None, 0), Some(CollectionReason::Time), "somebody always is");
        assert_eq!(check(100 * MB, 0, 120 * MB, 500 * MB, None, 0), Some(CollectionReason::Space));
        assert_eq!(check(100 * MB, 0, 110 * MB, 500 * MB, None, 0), None, "it was tried just now");
        assert_eq!(check(100 * MB, 1, 100 * MB, 500 * MB, None, 0), Some(CollectionReason::Space));
        assert_eq!(check(100 * MB, 2, 100 * MB, plenty, Some(105 * MB), 0), Some(CollectionReason::Space));
        let new = Disk { store_bytes: MB, free_bytes: plenty, ..Disk::default() };
        assert_eq!(
            due(&AutoGcPolicy::default(), None, &new, None, Time(0), Duration::from_secs(60)),
            Some(CollectionReason::Time)
        );
    }

    #[test]
    fn a_quota_that_is_near_asks_for_a_collection_once_an_hour() {
        let ago = |nanoseconds: i64| LastCollection { time: -nanoseconds, ..LastCollection::default() };
        assert_eq!(due_for_quota(true, None, Time(0)), Some(CollectionReason::Space));
        assert_eq!(due_for_quota(true, Some(&ago(HOUR_NANOSECONDS)), Time(0)), Some(CollectionReason::Space));
        assert_eq!(due_for_quota(true, Some(&ago(HOUR_NANOSECONDS - 1)), Time(0)), None);
        assert_eq!(due_for_quota(false, None, Time(0)), None);
    }
}
