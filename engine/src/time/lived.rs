//! Lived time: the age of a record by the time for which the store has existed, independent of jumps of the wall clock.
//!
//! Plain data: it reads no clock and no file. Its owner passes the clocks' times to it ([`LivedTime::start`],
//! [`LivedTime::observe`]) and stores its bytes. See `docs/design/0014-lived-time.md`.

use std::fmt::Write as _;

use super::Time;

const SECOND: i64 = 1_000_000_000;
/// Limit on the part of a gap between two starts that counts until the gap is confirmed, in nanoseconds. A start this much later
/// confirms the gap.
pub const GAP_MAX: i64 = 24 * 3_600 * SECOND;
/// Difference from the expected time up to which the clock did not jump: it was slewed, or a leap second passed.
const TOLERANCE: i64 = 60 * SECOND;
/// How long a jump is reported, in nanoseconds of lived time.
const TELL_FOR: i64 = 7 * GAP_MAX;
/// Limit on remembered stretches.
const STRETCHES_MAX: usize = 128;
const HEADER: &str = "amalgam lived time 1";

/// A stretch of time in which the wall clock did not jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// Wall clock time at its beginning and at the last observation.
    start: Time,
    end: Time,
    /// The wall clock minus the lived time, in nanoseconds.
    ahead: i64,
    /// The part of the jump before it that is not counted, in nanoseconds.
    missing: i64,
    /// Whether a later start confirms the missing time; otherwise only a person does.
    by_start: bool,
}

/// Two clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    wall: Time,
    uptime: i64,
}

/// A jump of the wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// Wall clock time after the jump.
    pub at: Time,
    /// By how many nanoseconds; negative for backwards.
    pub by: i64,
    /// The part of the jump that retention does not count until it is confirmed, in nanoseconds.
    pub missing: i64,
    /// Whether it happened while a process had the store open.
    pub while_running: bool,
}

impl Jump {
    /// Describes the jump as text, with advice for the operator.
    pub fn words(&self) -> String {
        let (way, date) = (if self.by < 0 { "back" } else { "ahead" }, self.at.date());
        let mut words = match self.while_running {
            true => format!("the clock jumped {way} by {} (to {date}) while the store was open", span(self.by)),
            false if self.by < 0 => {
                format!("the clock is {} behind the last use of the store (it says {date})", span(self.by))
            }
            false => format!("by the clock (it says {date}) the store was not used for {}", span(self.by)),
        };
        if self.missing > 0 {
            words += &format!(", of which retention and grace do not count {}", span(self.missing));
            if !self.while_running {
                words += " until a start a day later";
            }
            words += "; if that time did pass, `amalgam gc --confirm-clock` counts it now";
        } else {
            words += "; retention and grace count only the time that the store lived through";
        }
        words
    }
}

/// Formats a duration, rounded down, for example `3 days`.
fn span(nanoseconds: i64) -> String {
    let seconds = nanoseconds.unsigned_abs() / SECOND.unsigned_abs();
    let (number, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7_200 => (seconds / 60, "minute"),
        7_200..172_800 => (seconds / 3_600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{number} {unit}{}", if number == 1 { "" } else { "s" })
}

/// The course of the wall clock while the store was in use. The default is a clock that never jumped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LivedTime {
    stretches: Vec<Stretch>,
    /// Times of both clocks when this process opened the store, or after the last jump since.
    anchor: Option<Anchor>,
    jump: Option<Jump>,
}

impl LivedTime {
    /// Returns the lived time of a store of which only the time of its newest record is known. A time in the future is ignored,
    /// since it does not show the age of the record.
    pub fn since(newest: Option<Time>, wall: Time) -> Self {
        let mut lived = Self::default();
        lived.stretches.extend(newest.filter(|time| *time <= wall).map(|time| Stretch::new(time, 0)));
        lived
    }

    /// Records that a process opens the store. Returns whether the clock jumped since the last observation.
    pub fn start(&mut self, wall: Time, uptime: i64) -> bool {
        self.anchor = Some(Anchor { wall, uptime });
        let Some(last) = self.stretches.last_mut() else {
            self.stretches.push(Stretch::new(wall, 0));
            return false;
        };
        let gap = wall.0.saturating_sub(last.end.0);
        if (-TOLERANCE..=GAP_MAX).contains(&gap) {
            last.end = last.end.max(wall);
            self.confirm_by_start(wall);
            return false;
        }
        let ahead = last.ahead;
        if gap < 0 {
            self.step(wall, ahead.saturating_add(gap), Jump { at: wall, by: gap, missing: 0, while_running: false });
            return true;
        }
        self.confirm_by_start(wall);
        let (ahead, missing) = (self.stretches.last().map_or(ahead, |last| last.ahead), gap - GAP_MAX);
        let jump = Jump { at: wall, by: gap, missing, while_running: false };
        self.step(wall, ahead.saturating_add(missing), jump);
        true
    }

    /// Records the clocks while a process has the store open. Returns whether the wall clock jumped since the last observation.
    pub fn observe(&mut self, wall: Time, uptime: i64) -> bool {
        let (Some(anchor), Some(last)) = (self.anchor, self.stretches.last_mut()) else {
            return self.start(wall, uptime);
        };
        let expected = anchor.wall.0.saturating_add(uptime.saturating_sub(anchor.uptime).max(0));
        let by = wall.0.saturating_sub(expected);
        if by.abs() <= TOLERANCE {
            last.end = last.end.max(wall);
            return false;
        }
        self.anchor = Some(Anchor { wall, uptime });
        // The time before the jump belongs to the stretch that ends with it.
        last.end = last.end.max(Time(expected));
        let ahead = last.ahead.saturating_add(by);
        self.step(wall, ahead, Jump { at: wall, by, missing: by.max(0), while_running: true });
        true
    }

    /// Counts all time that the clock shows, after a person has confirmed that the clock is right.
    pub fn confirm(&mut self) {
        self.count(|_| true);
        self.jump = None;
    }

    /// Converts the time of a record to the present clock, so that its age is the time that the store has lived through since. If
    /// several moments had this time, the latest counts.
    pub fn place(&self, time: Time) -> Time {
        let Some(present) = self.stretches.last() else { return time };
        let shift = |stretch: &Stretch| present.ahead.saturating_sub(stretch.ahead);
        let moved = |time: Time, stretch: &Stretch| Time(time.0.saturating_add(shift(stretch)));
        let earlier = &self.stretches[..self.stretches.len() - 1];
        let held = earlier.iter().filter(|stretch| stretch.start <= time && time <= stretch.end);
        let held = held.map(|stretch| moved(time, stretch)).max();
        if time >= present.start && (held.is_none() || time <= present.end) {
            return held.map_or(time, |held| held.max(time));
        }
        if let Some(held) = held {
            return held;
        }
        // A record of another store, or from before this one: its time lies between two stretches, or before all.
        let next = self.stretches.iter().filter(|stretch| stretch.start > time).min_by_key(|stretch| stretch.start);
        let before = earlier.iter().filter(|stretch| stretch.end < time).max_by_key(|stretch| stretch.end);
        match (before, next) {
            (Some(before), Some(next)) => moved(time, before).min(moved(next.start, next)).max(moved(time, next)),
            (None, Some(next)) => moved(time, next),
            _ => time,
        }
    }

    /// Returns the last jump if it should be reported: a later start can still confirm it, or the store has not lived through a
    /// week since.
    pub fn jump(&self) -> Option<Jump> {
        let missing = self.stretches.iter().fold(0_i64, |sum, stretch| sum.saturating_add(stretch.missing));
        let present = self.stretches.last()?;
        let jump = self.jump?;
        let is_recent = present.end.0.saturating_sub(self.place(jump.at).0) < TELL_FOR;
        let waits = self.stretches.iter().any(|stretch| stretch.missing > 0 && stretch.by_start);
        (waits || is_recent).then_some(Jump { missing, ..jump })
    }

    /// Returns the wall clock time of the last observation.
    pub fn seen(&self) -> Option<Time> {
        self.stretches.last().map(|stretch| stretch.end)
    }

    fn step(&mut self, wall: Time, ahead: i64, jump: Jump) {
        if jump.by < 0 {
            // The clock that ran ahead was wrong: a later start does not confirm its gaps any more.
            for stretch in &mut self.stretches {
                (stretch.missing, stretch.by_start) = (0, false);
            }
        }
        let stretch = Stretch { missing: jump.missing, by_start: !jump.while_running, ..Stretch::new(wall, ahead) };
        self.stretches.push(stretch);
        self.jump = Some(jump);
        self.shorten();
    }

    /// Counts gaps that this start confirms: at least a day has passed by the same clock since the start after the gap.
    fn confirm_by_start(&mut self, wall: Time) {
        let counted = self.count(|stretch| stretch.by_start && wall.0.saturating_sub(stretch.start.0) >= GAP_MAX);
        if counted && self.stretches.iter().all(|stretch| stretch.missing == 0) {
            self.jump = None;
        }
    }

    fn count(&mut self, which: impl Fn(&Stretch) -> bool) -> bool {
        let mut counted = 0_i64;
        for stretch in &mut self.stretches {
            if stretch.missing > 0 && which(stretch) {
                counted = counted.saturating_add(stretch.missing);
                (stretch.missing, stretch.by_start) = (0, false);
            }
            stretch.ahead = stretch.ahead.saturating_sub(counted);
        }
        self.stretches.dedup_by(|next, before| {
            let is_one = next.missing == 0 && next.start >= before.end && next.ahead.abs_diff(before.ahead) == 0;
            if is_one {
                before.end = next.end;
            }
            is_one
        });
        counted > 0
    }

    /// Merges the two adjacent stretches that differ least while there are too many. Records in them then count as young as in the
    /// younger one.
    fn shorten(&mut self) {
        while self.stretches.len() > STRETCHES_MAX {
            let differ = |pair: &[Stretch]| pair[1].ahead.abs_diff(pair[0].ahead);
            let pairs = self.stretches[..STRETCHES_MAX].windows(2).enumerate();
            let Some((at, _)) = pairs.min_by_key(|(_, pair)| differ(pair)) else { return };
            let next = self.stretches.remove(at + 1);
            let kept = &mut self.stretches[at];
            kept.start = kept.start.min(next.start);
            kept.end = kept.end.max(next.end);
            kept.ahead = kept.ahead.min(next.ahead);
            kept.missing = kept.missing.saturating_add(next.missing);
            kept.by_start &= next.by_start;
        }
    }

    /// Encodes the lived time as text, with a checksum: a flipped digit must not change the age of a store.
    pub fn encode(&self) -> Vec<u8> {
        let mut text = format!("{HEADER}\n");
        if let Some(Jump { at, by, while_running, .. }) = self.jump {
            let _ = writeln!(text, "jump {} {by} {}", at.0, u8::from(while_running));
        }
        for Stretch { start, end, ahead, missing, by_start } in &self.stretches {
            let _ = writeln!(text, "stretch {} {} {ahead} {missing} {}", start.0, end.0, u8::from(*by_start));
        }
        let _ = writeln!(text, "hash {}", blake3::hash(text.as_bytes()).to_hex());
        text.into_bytes()
    }

    /// Decodes the lived time. Returns `None` if the bytes are damaged.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, hash) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let body_bytes = &bytes[..body.len() + 1];
        if hash.strip_prefix("hash ")? != blake3::hash(body_bytes).to_hex().as_str() {
            return None;
        }
        let mut lines = body.lines();
        if lines.next() != Some(HEADER) {
            return None;
        }
        let mut lived = Self::default();
        for line in lines {
            let mut words = line.split(' ');
            let what = words.next()?;
            let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<i64>>>()?;
            match (what, numbers[..].as_ref()) {
                ("jump", [at, by, while_running]) => {
                    lived.jump = Some(Jump { at: Time(*at), by: *by, missing: 0, while_running: *while_running != 0 });
                }
                ("stretch", [start, end, ahead, missing, by_start]) => lived.stretches.push(Stretch {
                    start: Time(*start),
                    end: Time(*end),
                    ahead: *ahead,
                    missing: *missing,
                    by_start: *by_start != 0,
                }),
                _ => return None,
            }
        }
        Some(lived)
    }
}

impl Stretch {
    fn new(wall: Time, ahead: i64) -> Self {
        Self { start: wall, end: wall, ahead, missing: 0, by_start: false }
    }
}

#[cfg(test)]
mod tests;
