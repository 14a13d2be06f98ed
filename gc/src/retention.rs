//! Retention policy: which snapshots of a history keep their trees, by age. A pure function of ages; reads no store and no
//! clock.
//!
//! Snapshots taken by people and automatic ones have a [`Rule`] each. The newest snapshot of an hour, a day or a week is
//! kept. The newest of a day is the newest of its hour, so a narrower part never drops a snapshot that a wider part keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use amalgam_engine::Time;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// Offset of Monday: 1970-01-01 was a Thursday.
const MONDAY: i64 = 3 * DAY;

/// Metadata key that marks a snapshot as taken automatically.
pub const AUTOMATIC_KEY: &str = "automatic";

/// A time span of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// This many nanoseconds; 0 is no time at all.
    For(i64),
    /// No end.
    Forever,
}

impl Span {
    /// No time at all.
    pub const NONE: Self = Self::For(0);

    /// Returns a span of `hours` hours.
    pub const fn hours(hours: i64) -> Self {
        Self::For(hours * HOUR)
    }

    /// Returns the end of a span that begins at `time`; `None` for [`Forever`](Self::Forever).
    fn end(self, time: Time) -> Option<Time> {
        match self {
            Self::For(span) => Some(Time(time.0.saturating_add(span))),
            Self::Forever => None,
        }
    }

    /// Returns the span as a duration; `None` for [`Forever`](Self::Forever).
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::For(span) => Some(Duration::from_nanos(span.unsigned_abs())),
            Self::Forever => None,
        }
    }
}

/// Parses `90s`, `30m`, `24h`, `30d`, `8w`, `none` and `forever`.
impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a time; write 90s, 30m, 24h, 30d, 8w, none or forever");
        match text {
            "none" | "0" => return Ok(Self::NONE),
            "forever" => return Ok(Self::Forever),
            _ => {}
        }
        let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let unit = match &text[digits..] {
            "s" => SECOND,
            "m" => 60 * SECOND,
            "h" => HOUR,
            "d" => DAY,
            "w" => WEEK,
            _ => return Err(wrong()),
        };
        let number: i64 = text[..digits].parse().map_err(|_| wrong())?;
        number.checked_mul(unit).map(Self::For).ok_or_else(wrong)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Forever => f.write_str("forever"),
            Self::NONE => f.write_str("none"),
            Self::For(span) if span % DAY == 0 => write!(f, "{}d", span / DAY),
            Self::For(span) if span % HOUR == 0 => write!(f, "{}h", span / HOUR),
            Self::For(span) if span % (60 * SECOND) == 0 => write!(f, "{}m", span / (60 * SECOND)),
            Self::For(span) => write!(f, "{}s", span / SECOND),
        }
    }
}

/// Which snapshots of one class (automatic, or taken by people) keep their trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// How many of the newest are kept regardless of their age.
    pub last: u64,
    /// For how long all snapshots are kept.
    pub all: Span,
    /// For how long the newest snapshot of each hour is kept.
    pub hourly: Span,
    /// For how long the newest snapshot of each day (UTC) is kept.
    pub daily: Span,
    /// For how long the newest snapshot of each week is kept.
    pub weekly: Span,
}

impl Rule {
    /// Keeps everything forever.
    pub const EVERYTHING: Self =
        Self { last: 0, all: Span::Forever, hourly: Span::NONE, daily: Span::NONE, weekly: Span::NONE };

    /// Keeps all snapshots for an hour, hourly ones for a day, daily ones for 30 days.
    pub const THINNING: Self =
        Self { last: 0, all: Span::hours(1), hourly: Span::hours(24), daily: Span::hours(30 * 24), weekly: Span::NONE };
}

impl Rule {
    /// Returns the parts that keep the newest of a bucket: kept time, bucket length and bucket offset; finest first.
    fn parts(&self) -> [(RulePart, Span, i64, i64); 3] {
        [
            (RulePart::Hourly, self.hourly, HOUR, 0),
            (RulePart::Daily, self.daily, DAY, 0),
            (RulePart::Weekly, self.weekly, WEEK, MONDAY),
        ]
    }
}

/// Retention of a workspace's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rule for automatic snapshots.
    pub automatic: Rule,
    /// Rule for snapshots taken by people.
    pub people: Rule,
}

impl Default for Policy {
    fn default() -> Self {
        Self { automatic: Rule::THINNING, people: Rule::EVERYTHING }
    }
}

impl Policy {
    /// Sets one part by its name in the settings, for example `automatic.daily` or `people.last`.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), String> {
        let wrong = || {
            format!(
                "`{name}` is no part of a policy: write automatic or people, a dot, and last, all, hourly, daily or weekly"
            )
        };
        let (sort, part) = name.split_once('.').ok_or_else(wrong)?;
        let rule = match sort {
            "automatic" => &mut self.automatic,
            "people" => &mut self.people,
            _ => return Err(wrong()),
        };
        match part {
            "last" => rule.last = text.parse().map_err(|_| format!("`{text}` is not a whole number"))?,
            "all" => rule.all = text.parse()?,
            "hourly" => rule.hourly = text.parse()?,
            "daily" => rule.daily = text.parse()?,
            "weekly" => rule.weekly = text.parse()?,
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

/// The policies of a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// Policy of workspaces without one of their own.
    pub default: Policy,
    /// Policies of single workspaces, by name.
    pub workspaces: BTreeMap<String, Policy>,
}

impl Policies {
    /// Returns the policy of a workspace.
    pub fn of(&self, workspace: &str) -> &Policy {
        self.workspaces.get(workspace).unwrap_or(&self.default)
    }
}

/// The age of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotAge {
    /// Its own time, which determines its hour, day and week.
    pub time: Time,
    /// Its time in lived time, which determines its age.
    pub placed: Time,
    /// Whether it was taken automatically.
    pub automatic: bool,
}

/// The part of a rule that keeps a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePart {
    /// One of the newest.
    Last,
    /// Young enough.
    All,
    /// The newest of its hour.
    Hourly,
    /// The newest of its day.
    Daily,
    /// The newest of its week.
    Weekly,
}

/// Decision of a policy about a snapshot's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Drop the tree.
    Drop,
    /// Keep the tree.
    Keep {
        /// The part that keeps it longest.
        part: RulePart,
        /// The time at which the part ends; `None` if it has no end.
        until: Option<Time>,
    },
}

impl Verdict {
    /// Returns the verdict that keeps the tree longer.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Drop, other) | (other, Self::Drop) => other,
            (Self::Keep { until: None, .. }, _) => self,
            (_, Self::Keep { until: None, .. }) => other,
            (Self::Keep { until: ours, .. }, Self::Keep { until: theirs, .. }) => {
                if ours >= theirs {
                    self
                } else {
                    other
                }
            }
        }
    }
}

/// Evaluates a policy for the snapshots of one history, in any order. Returns one verdict for each, in the same order.
pub fn evaluate(policy: &Policy, history: &[SnapshotAge], at: Time) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Drop; history.len()];
    let mut newest_first: Vec<usize> = (0..history.len()).collect();
    newest_first.sort_by_key(|place| (std::cmp::Reverse(history[*place].placed), *place));
    let mut evaluator = PolicyEvaluator::new(policy, at);
    for place in newest_first {
        verdicts[place] = evaluator.evaluate(&history[place]);
    }
    verdicts
}

/// Evaluates a policy for the snapshots of one history one by one, newest first.
pub struct PolicyEvaluator<'a> {
    policy: &'a Policy,
    at: Time,
    passed: EvaluatorState,
}

/// State of an evaluator. Evaluators of one policy with equal states give equal verdicts from then on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvaluatorState([ClassState; 2]);

/// State for one class of snapshots: the finest bucket of the last one, and how many there were, up to `last`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ClassState {
    bucket: Option<i64>,
    number: u64,
}

impl<'a> PolicyEvaluator<'a> {
    /// Creates an evaluator in its initial state.
    pub fn new(policy: &'a Policy, at: Time) -> Self {
        Self { policy, at, passed: EvaluatorState::default() }
    }

    /// Returns the part of the state that matters for snapshots of this time and older: buckets that ended later are left out.
    pub fn state_at(&self, time: Time) -> EvaluatorState {
        let mut passed = self.passed;
        for (sort, rule) in passed.0.iter_mut().zip([&self.policy.people, &self.policy.automatic]) {
            let parts = rule.parts();
            let Some((_, _, finest, offset)) = parts.iter().copied().find(|(_, span, ..)| *span != Span::NONE) else {
                continue;
            };
            let is_behind = |bucket: &i64| {
                let last = bucket.saturating_mul(finest).saturating_sub(offset);
                let asked = parts.iter().filter(|(_, span, ..)| *span != Span::NONE);
                asked.into_iter().all(|(_, _, length, offset)| {
                    bucket_of(last, *length, *offset) > bucket_of(time.0, *length, *offset)
                })
            };
            sort.bucket = sort.bucket.filter(|bucket| !is_behind(bucket));
        }
        passed
    }

    /// Evaluates the next snapshot.
    pub fn evaluate(&mut self, aged: &SnapshotAge) -> Verdict {
        let rule = if aged.automatic { &self.policy.automatic } else { &self.policy.people };
        let passed = &mut self.passed.0[usize::from(aged.automatic)];
        let mut verdict = stays(RulePart::All, rule.all, aged.placed, self.at);
        if passed.number < rule.last {
            verdict = verdict.or(Verdict::Keep { part: RulePart::Last, until: None });
            passed.number += 1;
        }
        let parts = rule.parts();
        // An hour lies within one day and one week, so the finest bucket determines the wider ones.
        let finest =
            parts.iter().find(|(_, span, ..)| *span != Span::NONE).map(|(_, _, length, offset)| (*length, *offset));
        let Some((finest, offset)) = finest else { return verdict };
        let before = passed.bucket.map(|bucket| bucket.saturating_mul(finest).saturating_sub(offset));
        for (part, span, length, offset) in parts {
            if before.map(|time| bucket_of(time, length, offset)) != Some(bucket_of(aged.time.0, length, offset)) {
                verdict = verdict.or(stays(part, span, aged.placed, self.at));
            }
        }
        passed.bucket = Some(bucket_of(aged.time.0, finest, offset));
        verdict
    }
}

/// Returns the number of the hour, day or week that a time belongs to.
fn bucket_of(time: i64, length: i64, offset: i64) -> i64 {
    time.saturating_add(offset).div_euclid(length)
}

fn stays(part: RulePart, span: Span, time: Time, at: Time) -> Verdict {
    match span.end(time) {
        Some(end) if end <= at => Verdict::Drop,
        until => Verdict::Keep { part, until },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        let mut rule = Rule { last: 0, all: Span::NONE, hourly: Span::NONE, daily: Span::NONE, weekly: Span::NONE };
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').expect("key=value");
            let span = || value.parse().expect("a span");
            match key {
                "last" => rule.last = value.parse().expect("a number"),
                "all" => rule.all = span(),
                "hourly" => rule.hourly = span(),
                "daily" => rule.daily = span(),
                "weekly" => rule.weekly = span(),
                _ => panic!("{key}"),
            }
        }
        rule
    }

    fn minutes(minutes: i64) -> Time {
        Time(minutes * 60 * SECOND)
    }

    /// Returns the age of a snapshot by a clock that never jumped.
    fn aged(time: Time, automatic: bool) -> SnapshotAge {
        SnapshotAge { time, placed: time, automatic }
    }

    /// Checks which snapshots rules keep. `ages` are minutes before `now` (in minutes since a Thursday's midnight), newest first.
    /// `expected` has a letter for each: `l`ast, `a`ll, `h`ourly, `d`aily, `w`eekly, `-` for dropped.
    #[track_caller]
    fn check(rules: &str, now: i64, ages: &[i64], expected: &str) {
        let policy = Policy { automatic: rule(rules), people: Rule::EVERYTHING };
        let history: Vec<_> = ages.iter().map(|age| aged(minutes(now - age), true)).collect();
        let letter = |verdict: &Verdict| match verdict {
            Verdict::Drop => '-',
            Verdict::Keep { part: RulePart::Last, .. } => 'l',
            Verdict::Keep { part: RulePart::All, .. } => 'a',
            Verdict::Keep { part: RulePart::Hourly, .. } => 'h',
            Verdict::Keep { part: RulePart::Daily, .. } => 'd',
            Verdict::Keep { part: RulePart::Weekly, .. } => 'w',
        };
        let found: String = evaluate(&policy, &history, minutes(now)).iter().map(letter).collect();
        assert_eq!(found, expected, "{rules}");
    }

    #[test]
    fn a_table_of_rules() {
        const NOON: i64 = 60 * (24 * 10 + 12);
        check("", NOON, &[1, 2, 3], "---");
        check("last=2", NOON, &[1, 2, 3], "ll-");
        check("all=1h", NOON, &[0, 1, 59, 60, 61], "aaa--");
        check("all=forever", NOON, &[1, 60 * 24 * 900], "aa");
        // 11:59, 11:58, 11:00, 10:59, 10:00, 09:30
        check("hourly=2h", NOON, &[1, 2, 60, 61, 120, 150], "h--h--");
        check("hourly=1d", NOON, &[1, 2, 60, 61, 120, 150], "h--h-h");
        check("all=1h hourly=1d", NOON, &[1, 2, 59, 60, 61, 70], "haa-h-");
        // The newest of a day, which begins at midnight.
        check("daily=30d", NOON, &[1, 60 * 12, 60 * 12 + 1, 60 * 36, 60 * 36 + 1], "d-d-d");
        check("daily=1d", NOON, &[1, 60 * 12 + 1, 60 * 36 + 1], "dd-");
        // Now is a Sunday; the week began on Monday, six and a half days ago.
        check("weekly=8w", NOON, &[1, 60 * 156, 60 * 156 + 1, 60 * 300], "w-w-");
        check("last=1 all=1h daily=7d weekly=forever", NOON, &[1, 2, 60 * 24, 60 * 24 + 5], "lad-");
        // Snapshots from the future are young.
        check("", NOON, &[-5, 5], "a-");
    }

    #[test]
    fn sorts_are_judged_apart_and_people_keep_theirs() {
        let aged = |minutes_ago: i64, automatic| aged(minutes(10_000 - minutes_ago), automatic);
        let history = [aged(5_000, false), aged(5_001, true), aged(5_002, true), aged(5_003, false)];
        let verdicts = evaluate(&Policy::default(), &history, minutes(10_000));
        let forever = Verdict::Keep { part: RulePart::All, until: None };
        assert_eq!(verdicts[0], forever);
        assert!(matches!(verdicts[1], Verdict::Keep { part: RulePart::Daily, until: Some(_) }));
        assert_eq!(verdicts[2], Verdict::Drop);
        assert_eq!(verdicts[3], forever);
    }

    /// Thinning at many moments leaves the snapshots that one thinning at the end leaves.
    #[test]
    fn thinning_often_is_thinning_once() {
        let times: Vec<_> = (0..4_000_i64).map(|n| n * 13 + (n * n) % 11).collect();
        let left = |times: &[i64], now: i64| -> Vec<i64> {
            let aged: Vec<_> = times.iter().map(|time| aged(minutes(*time), true)).collect();
            let verdicts = evaluate(&Policy::default(), &aged, minutes(now));
            times.iter().zip(verdicts).filter(|(_, verdict)| *verdict != Verdict::Drop).map(|(time, _)| *time).collect()
        };
        let end = 60_000;
        let mut often: Vec<i64> = Vec::new();
        let mut rest = times.iter().copied().peekable();
        for now in (0..=end).step_by(97) {
            while let Some(next) = rest.next_if(|time| *time <= now) {
                often.push(next);
            }
            often = left(&often, now);
        }
        let once = left(&times, end);
        assert_eq!(left(&often, end), once);
        assert!(once.len() > 20 && once.len() < times.len() / 20, "{}", once.len());
    }

    #[test]
    fn parts_of_a_policy_are_set_by_name() {
        let mut policy = Policy::default();
        policy.set("automatic.daily", "90d").expect("a time");
        policy.set("people.last", "7").expect("a number");
        assert_eq!((policy.automatic.daily, policy.people.last), (Span::hours(90 * 24), 7));
        for (name, text) in [("automatic", "1h"), ("robots.all", "1h"), ("people.yearly", "1h"), ("people.all", "soon")]
        {
            assert!(policy.set(name, text).is_err(), "{name}");
        }
    }

    #[test]
    fn spans_are_read_and_written() {
        for text in ["none", "forever", "90s", "30m", "5h", "30d"] {
            assert_eq!(text.parse::<Span>().expect(text).to_string(), text);
        }
        assert_eq!("8w".parse::<Span>().expect("weeks").to_string(), "56d");
        for text in ["", "h", "5", "-1h", "5 h", "5y", "99999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
