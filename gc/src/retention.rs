//! Which snapshots of a history keep their trees, by their age. A pure function: it reads no store and no clock.
//!
//! Snapshots that people make and those that are made automatically have a [`Rule`] each. Of an hour, a day or a week the newest one
//! stays; it is the newest of its hour if it is the newest of its day, so what a wider rule keeps was never dropped by a narrower one.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use amalgam_engine::Time;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3_600 * SECOND;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// 1970-01-01 was a Thursday; weeks begin on Mondays.
const MONDAY: i64 = 3 * DAY;

/// The key in a snapshot's metadata that says that no person asked for it.
pub const AUTOMATIC: &str = "automatic";

/// For how long something holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Span {
    /// For so many nanoseconds; not at all for 0.
    For(i64),
    /// Without an end.
    Forever,
}

impl Span {
    /// Not at all.
    pub const NONE: Self = Self::For(0);

    /// So many hours.
    pub const fn hours(hours: i64) -> Self {
        Self::For(hours * HOUR)
    }

    /// When it ends for something of this time; nothing for never.
    fn end(self, time: Time) -> Option<Time> {
        match self {
            Self::For(span) => Some(Time(time.0.saturating_add(span))),
            Self::Forever => None,
        }
    }

    /// The same as a duration; nothing for forever.
    pub fn duration(self) -> Option<Duration> {
        match self {
            Self::For(span) => Some(Duration::from_nanos(span.unsigned_abs())),
            Self::Forever => None,
        }
    }
}

/// `90s`, `30m`, `24h`, `30d`, `8w`, `none`, `forever`.
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

/// What is kept of one sort of snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The newest so many.
    pub last: u64,
    /// All that are younger than this.
    pub all: Span,
    /// The newest of each hour.
    pub hourly: Span,
    /// The newest of each day (UTC).
    pub daily: Span,
    /// The newest of each week.
    pub weekly: Span,
}

impl Rule {
    /// Everything without an end.
    pub const EVERYTHING: Self =
        Self { last: 0, all: Span::Forever, hourly: Span::NONE, daily: Span::NONE, weekly: Span::NONE };

    /// All for an hour, one an hour for a day, one a day for a month.
    pub const THINNING: Self =
        Self { last: 0, all: Span::hours(1), hourly: Span::hours(24), daily: Span::hours(30 * 24), weekly: Span::NONE };
}

impl Rule {
    /// The parts that keep the newest of a time: for how long, how long that time is, and where it begins; the finest first.
    fn parts(&self) -> [(Part, Span, i64, i64); 3] {
        [
            (Part::Hourly, self.hourly, HOUR, 0),
            (Part::Daily, self.daily, DAY, 0),
            (Part::Weekly, self.weekly, WEEK, MONDAY),
        ]
    }
}

/// What is kept of a workspace's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Of automatic snapshots.
    pub automatic: Rule,
    /// Of snapshots that people took.
    pub people: Rule,
}

impl Default for Policy {
    fn default() -> Self {
        Self { automatic: Rule::THINNING, people: Rule::EVERYTHING }
    }
}

impl Policy {
    /// Sets a part of it as settings name them: `automatic.daily`, `people.last`.
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
    /// What holds where nothing else is said.
    pub default: Policy,
    /// What holds for some workspaces, by name.
    pub workspaces: BTreeMap<String, Policy>,
}

impl Policies {
    /// That of a workspace.
    pub fn of(&self, workspace: &str) -> &Policy {
        self.workspaces.get(workspace).unwrap_or(&self.default)
    }
}

/// A snapshot, as far as a policy looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aged {
    /// When it was made, as it says: which hour, day and week it belongs to.
    pub time: Time,
    /// The same by the time that the store lived through since: how old it is.
    pub placed: Time,
    /// Whether it was taken automatically.
    pub automatic: bool,
}

/// Which part of a rule keeps a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It is one of the newest.
    Last,
    /// It is young.
    All,
    /// It is the newest of its hour.
    Hourly,
    /// It is the newest of its day.
    Daily,
    /// It is the newest of its week.
    Weekly,
}

/// What a policy says of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Its tree goes.
    Goes,
    /// It stays.
    Stays {
        /// Why; the reason that holds longest.
        part: Part,
        /// Until when; nothing if no time ends it.
        until: Option<Time>,
    },
}

impl Verdict {
    /// The more lasting of two.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Goes, other) | (other, Self::Goes) => other,
            (Self::Stays { until: None, .. }, _) => self,
            (_, Self::Stays { until: None, .. }) => other,
            (Self::Stays { until: ours, .. }, Self::Stays { until: theirs, .. }) => {
                if ours >= theirs {
                    self
                } else {
                    other
                }
            }
        }
    }
}

/// Judges the snapshots of one history at a time: a verdict for each, in their order, which may be any.
pub fn judge(policy: &Policy, history: &[Aged], at: Time) -> Vec<Verdict> {
    let mut verdicts = vec![Verdict::Goes; history.len()];
    let mut newest_first: Vec<usize> = (0..history.len()).collect();
    newest_first.sort_by_key(|place| (std::cmp::Reverse(history[*place].placed), *place));
    let mut judge = Judge::new(policy, at);
    for place in newest_first {
        verdicts[place] = judge.judge(&history[place]);
    }
    verdicts
}

/// Judges the snapshots of one history as they come, newest first.
pub struct Judge<'a> {
    policy: &'a Policy,
    at: Time,
    passed: Passed,
}

/// All that a judge remembers of the snapshots before: two judges of one policy that remember the same say the same of what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed([PassedSort; 2]);

/// Of one sort of snapshots: the hour, the day or the week of the last one, whichever the rule asks for first, and how many there were,
/// as far as the rule counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PassedSort {
    bucket: Option<i64>,
    number: u64,
}

impl<'a> Judge<'a> {
    /// One that has seen nothing yet.
    pub fn new(policy: &'a Policy, at: Time) -> Self {
        Self { policy, at, passed: Passed::default() }
    }

    /// What it remembers that matters for snapshots of this time and older ones: an hour, a day and a week that lie behind do not.
    pub fn passed(&self, time: Time) -> Passed {
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

    /// Judges the next one.
    pub fn judge(&mut self, aged: &Aged) -> Verdict {
        let rule = if aged.automatic { &self.policy.automatic } else { &self.policy.people };
        let passed = &mut self.passed.0[usize::from(aged.automatic)];
        let mut verdict = stays(Part::All, rule.all, aged.placed, self.at);
        if passed.number < rule.last {
            verdict = verdict.or(Verdict::Stays { part: Part::Last, until: None });
            passed.number += 1;
        }
        let parts = rule.parts();
        // A day and a week are whole hours, and a week whole days: the finest that the rule asks for says which the others are.
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

/// Which hour, day or week a time belongs to.
fn bucket_of(time: i64, length: i64, offset: i64) -> i64 {
    time.saturating_add(offset).div_euclid(length)
}

fn stays(part: Part, span: Span, time: Time, at: Time) -> Verdict {
    match span.end(time) {
        Some(end) if end <= at => Verdict::Goes,
        until => Verdict::Stays { part, until },
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

    /// One that a clock made that never jumped.
    fn aged(time: Time, automatic: bool) -> Aged {
        Aged { time, placed: time, automatic }
    }

    /// Ages in minutes before `now` (in minutes since a Thursday's midnight), newest first, and which of them stay, by a letter:
    /// `l`ast, `a`ll, `h`ourly, `d`aily, `w`eekly, `-` for none.
    #[track_caller]
    fn check(rules: &str, now: i64, ages: &[i64], expected: &str) {
        let policy = Policy { automatic: rule(rules), people: Rule::EVERYTHING };
        let history: Vec<_> = ages.iter().map(|age| aged(minutes(now - age), true)).collect();
        let letter = |verdict: &Verdict| match verdict {
            Verdict::Goes => '-',
            Verdict::Stays { part: Part::Last, .. } => 'l',
            Verdict::Stays { part: Part::All, .. } => 'a',
            Verdict::Stays { part: Part::Hourly, .. } => 'h',
            Verdict::Stays { part: Part::Daily, .. } => 'd',
            Verdict::Stays { part: Part::Weekly, .. } => 'w',
        };
        let found: String = judge(&policy, &history, minutes(now)).iter().map(letter).collect();
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
        // Of a day the newest, and the day begins at midnight.
        check("daily=30d", NOON, &[1, 60 * 12, 60 * 12 + 1, 60 * 36, 60 * 36 + 1], "d-d-d");
        check("daily=1d", NOON, &[1, 60 * 12 + 1, 60 * 36 + 1], "dd-");
        // Now is a Sunday; the week began on Monday, six and a half days ago.
        check("weekly=8w", NOON, &[1, 60 * 156, 60 * 156 + 1, 60 * 300], "w-w-");
        check("last=1 all=1h daily=7d weekly=forever", NOON, &[1, 2, 60 * 24, 60 * 24 + 5], "lad-");
        // What is of the future is young.
        check("", NOON, &[-5, 5], "a-");
    }

    #[test]
    fn sorts_are_judged_apart_and_people_keep_theirs() {
        let aged = |minutes_ago: i64, automatic| aged(minutes(10_000 - minutes_ago), automatic);
        let history = [aged(5_000, false), aged(5_001, true), aged(5_002, true), aged(5_003, false)];
        let verdicts = judge(&Policy::default(), &history, minutes(10_000));
        let forever = Verdict::Stays { part: Part::All, until: None };
        assert_eq!(verdicts[0], forever);
        assert!(matches!(verdicts[1], Verdict::Stays { part: Part::Daily, until: Some(_) }));
        assert_eq!(verdicts[2], Verdict::Goes);
        assert_eq!(verdicts[3], forever);
    }

    /// Whatever the moments of thinning were, what stays at the end is what one thinning at the end would have left.
    #[test]
    fn thinning_often_is_thinning_once() {
        let times: Vec<_> = (0..4_000_i64).map(|n| n * 13 + (n * n) % 11).collect();
        let left = |times: &[i64], now: i64| -> Vec<i64> {
            let aged: Vec<_> = times.iter().map(|time| aged(minutes(*time), true)).collect();
            let verdicts = judge(&Policy::default(), &aged, minutes(now));
            times.iter().zip(verdicts).filter(|(_, verdict)| *verdict != Verdict::Goes).map(|(time, _)| *time).collect()
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
