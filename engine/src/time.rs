//! Time as a value. The engine reads no clock: whoever calls it says what time it is.

use std::fmt;

/// Nanoseconds since 1970-01-01T00:00Z; before it, negative. Reaches from 1677 to 2262.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    /// 1970-01-01T00:00Z.
    pub const EPOCH: Self = Self(0);

    /// From seconds and nanoseconds, as `stat` has them; out of range becomes the nearest time in range.
    pub fn from_seconds(seconds: i64, nanoseconds: u32) -> Self {
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(nanoseconds)))
    }
}

impl From<std::time::SystemTime> for Time {
    fn from(time: std::time::SystemTime) -> Self {
        match time.duration_since(std::time::UNIX_EPOCH) {
            Ok(after) => Self(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX)),
            Err(before) => Self(i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |n| -n)),
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0.div_euclid(1_000_000_000), self.0.rem_euclid(1_000_000_000))
    }
}
