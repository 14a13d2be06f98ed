//! The source that a workspace follows: part of the record of the workspace, so that it moves by operations and can be undone.

use super::name::WorkspaceName;
use crate::error::{Error, Result};
use crate::malformed::Malformed;
use crate::object::codec::{Reader, Writer};

/// The longest interval between two updates: a year.
const EVERY_SECONDS_MAX: u32 = 366 * 24 * 3_600;
/// The longest origin.
const ORIGIN_BYTES_MAX: usize = 8 << 10;
/// The interval of `lazy` is spread over these seconds by the name of the workspace.
const LAZY_SECONDS: std::ops::RangeInclusive<u32> = 30..=60;
/// The interval of `regular` is spread over these seconds by the name of the workspace.
const REGULAR_SECONDS: std::ops::RangeInclusive<u32> = 5..=10;

/// The source that a workspace is kept up to date with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Follow {
    /// The workspace whose head is merged into the follower.
    pub source: WorkspaceName,
    /// When the follower is updated.
    pub mode: FollowMode,
    /// Where the files of the source come from, such as `git:/srv/app.git#main`; empty if agents commit to the source.
    pub origin: String,
}

/// When a follower is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowMode {
    /// As soon as the head of the source moves.
    Event,
    /// Every 30 to 60 seconds.
    Lazy,
    /// Every 5 to 10 seconds.
    Regular,
    /// At this interval in seconds.
    Every(u32),
}

impl FollowMode {
    /// Parses `event`, `lazy`, `regular` or `every N`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "event" => Some(Self::Event),
            "lazy" => Some(Self::Lazy),
            "regular" => Some(Self::Regular),
            _ => {
                let seconds = text.strip_prefix("every ")?.parse().ok()?;
                (1..=EVERY_SECONDS_MAX).contains(&seconds).then_some(Self::Every(seconds))
            }
        }
    }

    /// Returns the interval of a follower in seconds; `None` if an event updates it. Followers of one mode are spread over its range, so
    /// that they do not all update at once.
    pub fn interval_seconds(self, follower: &WorkspaceName) -> Option<u32> {
        let spread = |range: std::ops::RangeInclusive<u32>| {
            let sum = follower.as_str().bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
            range.start() + sum % (range.end() - range.start() + 1)
        };
        match self {
            Self::Event => None,
            Self::Lazy => Some(spread(LAZY_SECONDS)),
            Self::Regular => Some(spread(REGULAR_SECONDS)),
            Self::Every(seconds) => Some(seconds),
        }
    }
}

impl std::fmt::Display for FollowMode {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Event => out.write_str("event"),
            Self::Lazy => out.write_str("lazy"),
            Self::Regular => out.write_str("regular"),
            Self::Every(seconds) => write!(out, "every {seconds}"),
        }
    }
}

impl Follow {
    pub(super) fn check(&self) -> Result<()> {
        let invalid = |why: String| Error::Invalid { what: "follow", why };
        if FollowMode::parse(&self.mode.to_string()) != Some(self.mode) {
            return Err(invalid(format!("the interval is 1 to {EVERY_SECONDS_MAX} seconds")));
        }
        if self.origin.len() > ORIGIN_BYTES_MAX || self.origin.chars().any(char::is_control) {
            return Err(invalid(format!("an origin has at most {ORIGIN_BYTES_MAX} bytes of printable text")));
        }
        Ok(())
    }

    pub(super) fn write(&self, note: &mut Writer) {
        note.bytes(1, self.source.as_str().as_bytes());
        note.bytes(2, self.mode.to_string().as_bytes());
        note.bytes(3, self.origin.as_bytes());
    }

    pub(super) fn read(mut from: Reader) -> std::result::Result<Self, Malformed> {
        let (mut source, mut mode, mut origin) = (None, None, String::new());
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => source = WorkspaceName::new(value.text(1)?).ok(),
                2 => mode = FollowMode::parse(&value.text(2)?),
                3 => origin = value.text(3)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        match (source, mode) {
            (Some(source), Some(mode)) => Ok(Self { source, mode, origin }),
            _ => Err(Malformed::Rule("a workspace follows a workspace in a known mode")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_parsed_as_they_are_written() {
        for mode in [FollowMode::Event, FollowMode::Lazy, FollowMode::Regular, FollowMode::Every(30)] {
            assert_eq!(FollowMode::parse(&mode.to_string()), Some(mode));
        }
        for wrong in ["", "every", "every 0", "every -1", "every 99999999", "Lazy", "every 1 "] {
            assert_eq!(FollowMode::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn intervals_stay_in_the_range_of_their_mode() {
        for name in ["a", "b", "agents/ann", "try-17"] {
            let name = WorkspaceName::new(name).expect("a name");
            let interval = |mode: FollowMode| mode.interval_seconds(&name);
            assert!(interval(FollowMode::Lazy).is_some_and(|seconds| LAZY_SECONDS.contains(&seconds)));
            assert!(interval(FollowMode::Regular).is_some_and(|seconds| REGULAR_SECONDS.contains(&seconds)));
            assert_eq!((interval(FollowMode::Event), interval(FollowMode::Every(7))), (None, Some(7)));
        }
    }
}
