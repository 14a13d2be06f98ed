//! Which workspaces follow which, and when each is due. Kept in memory; the records of the workspaces are authoritative.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use amalgam_engine::Time;
use amalgam_engine::workspace::{Follow, WorkspaceName};

const SECOND_NANOSECONDS: i64 = 1_000_000_000;
/// Delay before a failed update is retried.
const RETRY_DELAY_NANOSECONDS: i64 = 60 * SECOND_NANOSECONDS;

/// All followers of a store.
#[derive(Default)]
pub(super) struct Table {
    followers: BTreeMap<WorkspaceName, Follower>,
    by_source: HashMap<WorkspaceName, BTreeSet<WorkspaceName>>,
}

struct Follower {
    follow: Follow,
    /// When the follower was last checked, in nanoseconds; `None` before the first check.
    looked: Option<i64>,
    /// Whether the source moved since the last check.
    is_stale: bool,
    /// No update is tried before this time, in nanoseconds: it is set after a failed update.
    not_before: i64,
}

/// Times in the future come from a clock that was set back since. They do not count, or else a follower would wait until the clock is
/// there again.
impl Follower {
    /// Returns when the follower was last checked, or `None` if it is to be checked anyway.
    fn looked(&self, now: Time) -> Option<i64> {
        self.looked.filter(|looked| *looked <= now.0)
    }

    /// Returns the time before which no update is tried.
    fn not_before(&self, now: Time) -> i64 {
        let latest = now.0.saturating_add(RETRY_DELAY_NANOSECONDS);
        if self.not_before <= latest { self.not_before } else { 0 }
    }
}

impl Table {
    pub(super) fn is_empty(&self) -> bool {
        self.followers.is_empty()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns whether a follower has an interval, which needs a running process.
    pub(super) fn has_intervals(&self) -> bool {
        self.followers.iter().any(|(name, follower)| follower.follow.mode.interval_seconds(name).is_some())
    }

    /// Sets the source of a workspace. A follower with the same source and mode keeps its interval.
    pub(super) fn set(&mut self, name: &WorkspaceName, follow: Option<Follow>) {
        let known = self.followers.get(name).map(|follower| &follower.follow);
        if known == follow.as_ref() {
            return;
        }
        if let Some(before) = self.followers.remove(name)
            && let Some(of_source) = self.by_source.get_mut(&before.follow.source)
        {
            of_source.remove(name);
            if of_source.is_empty() {
                self.by_source.remove(&before.follow.source);
            }
        }
        let Some(follow) = follow else { return };
        self.by_source.entry(follow.source.clone()).or_default().insert(name.clone());
        self.followers.insert(name.clone(), Follower { follow, looked: None, is_stale: true, not_before: 0 });
    }

    /// Marks the followers of a workspace that moved.
    pub(super) fn source_moved(&mut self, source: &WorkspaceName) {
        let Some(names) = self.by_source.get(source) else { return };
        for name in names {
            if let Some(follower) = self.followers.get_mut(name) {
                follower.is_stale = true;
            }
        }
    }

    /// Returns the followers to be updated now, except those that are being updated.
    pub(super) fn due(&self, now: Time, busy: &BTreeSet<WorkspaceName>) -> Vec<WorkspaceName> {
        let is_due = |(name, follower): &(&WorkspaceName, &Follower)| {
            if now.0 < follower.not_before(now) || busy.contains(*name) {
                return false;
            }
            let Some(looked) = follower.looked(now) else { return true };
            match follower.follow.mode.interval_seconds(name) {
                Some(seconds) => now.0.saturating_sub(looked) >= i64::from(seconds) * SECOND_NANOSECONDS,
                None => follower.is_stale,
            }
        };
        self.followers.iter().filter(is_due).map(|(name, _)| name.clone()).collect()
    }

    /// Returns when the next follower is due, or `None` if all wait for a change of their source.
    pub(super) fn next_due(&self, now: Time) -> Option<Time> {
        let next = |(name, follower): (&WorkspaceName, &Follower)| {
            let at = match (follower.looked(now), follower.follow.mode.interval_seconds(name)) {
                (None, _) => 0,
                (Some(looked), Some(seconds)) => looked.saturating_add(i64::from(seconds) * SECOND_NANOSECONDS),
                (Some(_), None) if follower.is_stale => 0,
                (Some(_), None) => return None,
            };
            Some(Time(at.max(follower.not_before(now))))
        };
        self.followers.iter().filter_map(next).min()
    }

    /// Records that an update of a follower begins.
    pub(super) fn begin(&mut self, name: &WorkspaceName, now: Time) {
        if let Some(follower) = self.followers.get_mut(name) {
            (follower.looked, follower.is_stale) = (Some(now.0), false);
        }
    }

    /// Delays the next update of a follower whose update failed.
    pub(super) fn delay(&mut self, name: &WorkspaceName, now: Time) {
        if let Some(follower) = self.followers.get_mut(name) {
            (follower.not_before, follower.is_stale) = (now.0.saturating_add(RETRY_DELAY_NANOSECONDS), true);
        }
    }
}
