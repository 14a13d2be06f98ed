//! How far back the log of operations reaches.

use amalgam_engine::{LivedTime, Result, Store, Time};

use crate::retention::Span;

const PAGE: usize = 256;

/// What a collection leaves of the log. What is within the grace time stays whatever this says: it can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRule {
    /// Operations that are older go.
    pub keep: Span,
    /// Beyond so many of the newest they go, too.
    pub most: u64,
}

impl Default for LogRule {
    /// A month, and some twenty thousand: about a MiB.
    fn default() -> Self {
        Self { keep: Span::hours(30 * 24), most: 20_000 }
    }
}

/// The oldest operation that a rule keeps at a time. Those after `kept_after` stay in any case. Operations are as old as the time that the
/// store lived through since.
pub fn log_begins(store: &Store, rule: &LogRule, now: Time, kept_after: u64, lived: &LivedTime) -> Result<u64> {
    let (first, last) = (store.first_operation()?, store.last_operation()?);
    let end = kept_after.min(last).saturating_add(1);
    let mut begin = first.max((last + 1).saturating_sub(rule.most)).min(end);
    let Span::For(keep) = rule.keep else { return Ok(begin) };
    let young = Time(now.0.saturating_sub(keep));
    // Clocks may run backwards: the oldest young one counts.
    while begin < end {
        let page = store.list_operations(begin - 1, PAGE.min(usize::try_from(end - begin).unwrap_or(PAGE)))?;
        if let Some(found) = page.iter().find(|operation| lived.place(operation.draft.time) >= young) {
            return Ok(found.sequence);
        }
        let Some(last) = page.last() else { break };
        begin = last.sequence + 1;
    }
    Ok(begin)
}
