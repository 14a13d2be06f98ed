//! A repeated problem of background work: reported once, then with a growing delay.

use std::time::{Duration, Instant};

/// Delay before the same problem is reported again; it doubles each time.
const REPEAT_DELAY_MIN: Duration = Duration::from_secs(60);
const REPEAT_DELAY_MAX: Duration = Duration::from_secs(6 * 3_600);
/// Delay before failed work is retried; it doubles each time.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(200);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);

/// The state of a repeated problem: its delays, and when it was reported.
#[derive(Default)]
pub(crate) struct RepeatedProblem {
    problem: String,
    /// How often the problem occurred since it was last reported.
    untold: u64,
    tell_at: Option<Instant>,
    repeat_delay: Duration,
    retry_at: Option<Instant>,
    retry_delay: Duration,
}

impl RepeatedProblem {
    /// Returns whether the work may be tried now.
    pub(crate) fn may_retry(&self, now: Instant) -> bool {
        self.retry_at.is_none_or(|retry_at| now >= retry_at)
    }

    /// Resets the state after the work succeeded.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Records a failure. Returns the message to log, if one is due.
    pub(crate) fn add(&mut self, problem: &str, now: Instant) -> Option<String> {
        self.retry_delay = (self.retry_delay * 2).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        self.retry_at = now.checked_add(self.retry_delay);
        let is_new = self.problem != problem;
        if is_new {
            problem.clone_into(&mut self.problem);
            (self.untold, self.repeat_delay) = (0, Duration::ZERO);
        } else if self.tell_at.is_some_and(|tell_at| now < tell_at) {
            self.untold += 1;
            return None;
        }
        self.repeat_delay = (self.repeat_delay * 2).clamp(REPEAT_DELAY_MIN, REPEAT_DELAY_MAX);
        self.tell_at = now.checked_add(self.repeat_delay);
        match std::mem::take(&mut self.untold) {
            0 => Some(problem.to_owned()),
            times => Some(format!("{problem} ({times} more times since this was told)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_that_stays_is_told_seldom_and_its_work_tried_seldom() {
        let (mut complaints, begin) = (RepeatedProblem::default(), Instant::now());
        let (mut told, mut tries) = (Vec::new(), 0);
        // A day of looks, five in a second.
        let mut now = begin;
        while now < begin + Duration::from_secs(24 * 3_600) {
            if complaints.may_retry(now) {
                tries += 1;
                told.extend(complaints.add("the disk is gone", now));
            }
            now += Duration::from_millis(200);
        }
        assert!(told.len() < 15, "{}", told.len());
        assert!(tries < 2_000, "{tries}");
        assert!(told[1].contains("more times"), "{}", told[1]);
        assert!(complaints.add("another one", now).is_some());
        complaints.clear();
        assert!(complaints.may_retry(now) && complaints.add("another one", now).is_some());
    }
}
