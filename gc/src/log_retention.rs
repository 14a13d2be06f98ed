//! Retention of the operation log.

use amalgam_engine::{LivedTime, Result, Store, Time};

use crate::retention::Span;

const PAGE: usize = 256;

/// How many operations a collection keeps in the log. Operations within the grace time are always kept: they can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRetention {
    /// Operations that are older are trimmed.
    pub keep: Span,
    /// Operations beyond this many of the newest are trimmed.
    pub operations_max: u64,
}

impl Default for LogRetention {
    /// Returns thirty days and 20,000 operations, which take about 1 MiB.
    fn default() -> Self {
        Self { keep: Span::hours(30 * 24), operations_max: 20_000 }
    }
}

/// Returns the number of the first operation that `rule` keeps at time `now`. Operations after `kept_after` are always
/// kept. Ages are counted in lived time.
pub fn first_kept_operation(
    store: &Store,
    rule: &LogRetention,
    now: Time,
    kept_after: u64,
    lived: &LivedTime,
) -> Result<u64> {
    let (first, last) = (store.first_operation()?, store.last_operation()?);
    let end = kept_after.min(last).saturating_add(1);
    let mut begin = first.max((last + 1).saturating_sub(rule.operations_max)).min(end);
    let Span::For(keep) = rule.keep else { return Ok(begin) };
    let young = Time(now.0.saturating_sub(keep));
    // Clocks may run backwards, so the search looks for the first young operation.
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
