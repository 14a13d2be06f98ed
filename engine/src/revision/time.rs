//! Parses points in time as users write them: `10 minutes ago`, `yesterday 14:00`, `2026-01-31 09:30`.

use crate::time::Time;

const SECONDS_PER_DAY: i64 = 86_400;
const NANOSECONDS: i64 = 1_000_000_000;

/// The current time, which relative times refer to. The engine reads no clock and no time zone.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// The current time.
    pub time: Time,
    /// Returns the offset of local time from UTC at a time, in seconds.
    pub utc_offset: fn(Time) -> i64,
}

impl Now {
    /// Creates the current time in UTC.
    pub fn utc(time: Time) -> Self {
        Self { time, utc_offset: |_| 0 }
    }
}

/// A point in time, absolute or relative to the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// This many seconds ago.
    Ago(i64),
    /// A day and the second of that day; `None` for the end of the day.
    Day { day: Day, second: Option<i64>, utc_offset: Option<i64> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Day {
    /// This many days before today.
    Back(i64),
    /// Days since 1970-01-01.
    Date(i64),
}

impl Moment {
    /// Parses a time. Returns `None` if the text is not a time.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let lower = text.trim().to_ascii_lowercase();
        if let Some(moment) = ago(&lower) {
            return Some(moment);
        }
        let (lower, utc_offset) = split_offset(&lower)?;
        let words: Vec<&str> = lower.split([' ', 't', '.']).filter(|word| !word.is_empty()).collect();
        // The letter t separates a date from a time, but is also part of some words.
        let words = if lower.contains("day") { lower.split([' ', '.']).collect() } else { words };
        let (day, second) = match words[..] {
            ["now"] => return Some(Self::Ago(0)),
            [word] if word.contains(':') => (Day::Back(0), Some(clock(word)?)),
            [word] => (day(word)?, None),
            [word, time] => (day(word)?, Some(clock(time)?)),
            _ => return None,
        };
        Some(Self::Day { day, second, utc_offset })
    }

    /// Resolves the time.
    pub(super) fn resolve(self, now: &Now) -> Time {
        let seconds = now.time.0.div_euclid(NANOSECONDS);
        match self {
            Self::Ago(back) => Time(now.time.0.saturating_sub(back.saturating_mul(NANOSECONDS))),
            Self::Day { day, second, utc_offset } => {
                let offset_at =
                    |seconds| utc_offset.unwrap_or_else(|| (now.utc_offset)(Time::from_seconds(seconds, 0)));
                let days = match day {
                    Day::Back(back) => (seconds + offset_at(seconds)).div_euclid(SECONDS_PER_DAY) - back,
                    Day::Date(days) => days,
                };
                let local = days.saturating_mul(SECONDS_PER_DAY) + second.unwrap_or(SECONDS_PER_DAY);
                // Uses the offset at the resulting time, which may differ from that of the first guess.
                let guess = local - offset_at(local);
                Time::from_seconds(local - offset_at(guess), 999_999_999 * u32::from(second.is_some()))
            }
        }
    }
}

/// Parses `10 minutes ago`, `1h ago`, `2.days.ago`.
fn ago(text: &str) -> Option<Moment> {
    let text = text.replace('.', " ");
    let amount = text.trim().strip_suffix("ago")?.trim();
    let digits = amount.find(|c: char| !c.is_ascii_digit()).unwrap_or(amount.len());
    let (number, unit) = (&amount[..digits], amount[digits..].trim());
    let number: i64 = match number {
        "" => return None,
        number => number.parse().ok()?,
    };
    let seconds = match unit.strip_suffix('s').filter(|unit| unit.len() > 1).unwrap_or(unit) {
        "s" | "sec" | "second" => 1,
        "m" | "min" | "minute" => 60,
        "h" | "hour" => 3_600,
        "d" | "day" => SECONDS_PER_DAY,
        "w" | "week" => 7 * SECONDS_PER_DAY,
        "month" => 30 * SECONDS_PER_DAY,
        "y" | "year" => 365 * SECONDS_PER_DAY,
        _ => return None,
    };
    Some(Moment::Ago(number.checked_mul(seconds)?))
}

/// Splits the UTC offset (`z`, `+02:00`) from the end of a text and returns it in seconds.
fn split_offset(text: &str) -> Option<(&str, Option<i64>)> {
    if let Some(rest) = text.strip_suffix('z') {
        return Some((rest, Some(0)));
    }
    // A dash in the date does not start an offset, which follows a time.
    let Some(colon) = text.find(':') else { return Some((text, None)) };
    let Some(sign) = text[colon..].find(['+', '-']).map(|at| colon + at) else { return Some((text, None)) };
    let (hours, minutes) = match text[sign + 1..].split_once(':') {
        Some((hours, minutes)) => (hours, minutes),
        None => (&text[sign + 1..], "0"),
    };
    let seconds = number(hours, 0..=14)? * 3_600 + number(minutes, 0..=59)? * 60;
    Some((&text[..sign], Some(if text[sign..].starts_with('-') { -seconds } else { seconds })))
}

fn day(word: &str) -> Option<Day> {
    match word {
        "today" => return Some(Day::Back(0)),
        "yesterday" => return Some(Day::Back(1)),
        _ => {}
    }
    let mut parts = word.split('-');
    let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
    let (year, month) = (number(year, 1970..=2261)?, number(month, 1..=12)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let day = number(day, 1..=last)?;
    parts.next().is_none().then(|| Day::Date(days_since_1970(year, month, day)))
}

/// Years start in March, so that the leap day is the last day of a year.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

/// Parses `14:00` or `14:00:30` as the second of the day.
fn clock(word: &str) -> Option<i64> {
    let mut parts = word.split(':');
    let (hours, minutes) = (number(parts.next()?, 0..=23)?, number(parts.next()?, 0..=59)?);
    let seconds = parts.next().map_or(Some(0), |seconds| number(seconds, 0..=59))?;
    parts.next().is_none().then_some(hours * 3_600 + minutes * 60 + seconds)
}

fn number(text: &str, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    let is_number = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && range.contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2023-11-14T22:13:20Z.
    const NOW: i64 = 1_700_000_000;

    fn seconds(text: &str, utc_offset: fn(Time) -> i64) -> Option<i64> {
        let now = Now { time: Time::from_seconds(NOW, 0), utc_offset };
        Some(Moment::parse(text)?.resolve(&now).0.div_euclid(NANOSECONDS))
    }

    #[test]
    fn times_are_read_against_the_present() {
        let midnight = 1_699_920_000;
        for (text, expected) in [
            ("now", NOW),
            ("10 minutes ago", NOW - 600),
            ("1 hour ago", NOW - 3_600),
            ("90s ago", NOW - 90),
            ("2.days.ago", NOW - 2 * 86_400),
            ("3 weeks ago", NOW - 21 * 86_400),
            ("14:00", midnight + 14 * 3_600),
            ("today 14:00:30", midnight + 14 * 3_600 + 30),
            ("yesterday 14:00", midnight - 10 * 3_600),
            ("yesterday", midnight),
            ("2023-11-14", midnight + 86_400),
            ("2023-11-14 09:30", midnight + 9 * 3_600 + 1_800),
            ("2023-11-14T09:30:00Z", midnight + 9 * 3_600 + 1_800),
            ("2023-11-14 09:30+02:00", midnight + 7 * 3_600 + 1_800),
            ("2024-02-29 00:00", 1_709_164_800),
        ] {
            assert_eq!(seconds(text, |_| 0), Some(expected), "{text}");
        }
        for text in
            ["", "soon", "ago", "minutes ago", "10 parsecs ago", "25:00", "2023-02-29", "2023-11", "yesterday x"]
        {
            assert_eq!(seconds(text, |_| 0), None, "{text}");
        }
    }

    #[test]
    fn days_and_clocks_are_those_of_the_time_zone() {
        // One hour ahead of UTC, two before the beginning of November.
        let zone = |time: Time| if time < Time::from_seconds(1_698_800_000, 0) { 7_200 } else { 3_600 };
        assert_eq!(seconds("14:00", zone), Some(1_699_920_000 + 13 * 3_600));
        assert_eq!(seconds("2023-10-10 14:00", zone), Some(1_696_939_200), "the offset of that day");
        assert_eq!(seconds("2023-10-10 14:00Z", zone), Some(1_696_946_400));
    }
}
