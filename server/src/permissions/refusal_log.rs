//! The queue of acts that the policy refused, on their way to become events.
//!
//! Requests only put a refusal into a bounded queue; a background thread writes the operations. An agent that tries the same act again and
//! again causes one event a minute, and all agents together cause a bounded number.

use std::collections::{HashMap, VecDeque};

use amalgam_engine::Time;
use amalgam_policy::{ObserveRefusals, Refusal};
use parking_lot::Mutex;

/// The most refusals that wait to be written.
const WAITING_MAX: usize = 1_024;
/// The most acts whose last event is remembered.
const REMEMBERED_MAX: usize = 4_096;
/// The time after an event during which the same act causes no other event.
const REPEAT_NANOSECONDS: i64 = 60 * 1_000_000_000;
/// The most events in [`REPEAT_NANOSECONDS`].
const EVENTS_MAX: usize = 300;
/// The number of references that the operations move in turn.
const PLACES: u64 = 64;

/// Refusals that wait to become events.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    refusals: VecDeque<Refusal>,
    /// Refusals that were dropped, because the queue was full or there were too many events.
    lost: u64,
    told: HashMap<(String, Vec<u8>, &'static str), i64>,
    /// The times of the newest events.
    times: VecDeque<i64>,
    number: u64,
}

impl ObserveRefusals for RefusalLog {
    fn refused(&self, refusal: &Refusal) {
        let mut waiting = self.0.lock();
        if waiting.refusals.len() < WAITING_MAX {
            waiting.refusals.push_back(refusal.clone());
        } else {
            waiting.lost += 1;
        }
    }
}

impl RefusalLog {
    /// Takes the refusals that become events now, with the number of those that were left out since the last one.
    pub(super) fn take(&self, now: Time) -> Vec<(Refusal, u64)> {
        let mut waiting = self.0.lock();
        let mut taken = Vec::new();
        while let Some(refusal) = waiting.refusals.pop_front() {
            let key = (refusal.agent.clone(), refusal.path.clone(), refusal.act.word());
            let is_recent = |time: &i64| now.0.saturating_sub(*time) < REPEAT_NANOSECONDS;
            while waiting.times.front().is_some_and(|time| !is_recent(time)) {
                waiting.times.pop_front();
            }
            if waiting.told.get(&key).is_some_and(is_recent) {
                continue;
            }
            if waiting.times.len() >= EVENTS_MAX {
                waiting.lost += 1;
                continue;
            }
            if waiting.told.len() >= REMEMBERED_MAX {
                waiting.told.retain(|_, time| is_recent(time));
            }
            if waiting.told.len() < REMEMBERED_MAX {
                waiting.told.insert(key, now.0);
            }
            waiting.times.push_back(now.0);
            let lost = std::mem::take(&mut waiting.lost);
            taken.push((refusal, lost));
        }
        taken
    }

    /// Advances to the next reference in turn, and returns its number.
    pub(super) fn next_place(&self) -> u64 {
        let mut waiting = self.0.lock();
        waiting.number = (waiting.number + 1) % PLACES;
        waiting.number
    }
}

#[cfg(test)]
mod tests {
    use amalgam_policy::{Act, Level};

    use super::*;

    fn refusal(path: &str) -> Refusal {
        Refusal {
            agent: "ann".to_owned(),
            path: path.as_bytes().to_vec(),
            act: Act::Change,
            level: Level::Read,
            line: Some(3),
            patterns: vec!["docs".to_owned()],
        }
    }

    #[test]
    fn an_act_that_is_repeated_is_told_once_a_minute() {
        let log = RefusalLog::default();
        for _ in 0..10 {
            log.refused(&refusal("docs/a"));
        }
        log.refused(&refusal("docs/b"));
        assert_eq!(log.take(Time(1)).len(), 2);
        log.refused(&refusal("docs/a"));
        assert_eq!(log.take(Time(REPEAT_NANOSECONDS)).len(), 0);
        log.refused(&refusal("docs/a"));
        assert_eq!(log.take(Time(REPEAT_NANOSECONDS + 1)).len(), 1);
    }

    #[test]
    fn events_are_limited_and_the_rest_is_counted() {
        let log = RefusalLog::default();
        for number in 0..EVENTS_MAX + 7 {
            log.refused(&refusal(&format!("docs/{number}")));
        }
        assert_eq!(log.take(Time(1)).len(), EVENTS_MAX);
        log.refused(&refusal("docs/later"));
        let taken = log.take(Time(REPEAT_NANOSECONDS + 1));
        assert_eq!(taken.iter().map(|(_, left_out)| *left_out).collect::<Vec<_>>(), [7]);
    }
}
