//! Places in lists that are sorted by time of creation, as page tokens.

use std::fmt;
use std::str::FromStr;

use amalgam_engine::Time;

use super::microseconds;

/// Maximum length of an id in a token, in bytes.
const ID_BYTES_MAX: usize = 64;

/// A place behind an item of a list by time of creation. It stays valid when the item is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// Microseconds since 1970.
    pub(super) created: i64,
    pub(super) id: String,
}

impl ListPlace {
    /// Returns the place before the first item of a list.
    pub fn first() -> Self {
        Self { created: i64::MIN, id: String::new() }
    }

    /// Returns the place directly behind an item.
    pub fn behind(created: Time, id: impl fmt::Display) -> Self {
        Self { created: microseconds(created), id: id.to_string() }
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.created, self.id)
    }
}

impl FromStr for ListPlace {
    type Err = String;

    /// Parses a page token; an empty one is the beginning of the list.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::first());
        }
        let is_id =
            |id: &str| !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(|b| b.is_ascii_alphanumeric());
        let place = text.split_once('.').filter(|(_, id)| is_id(id));
        let place = place.and_then(|(created, id)| Some(Self { created: created.parse().ok()?, id: id.to_owned() }));
        place.ok_or_else(|| "it is no token of this list".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_nonsense_is_refused() {
        let place = ListPlace::behind(Time(1_700_000_000_123_456_000), "abc234");
        assert_eq!(place.to_string().parse(), Ok(place));
        assert_eq!("".parse(), Ok(ListPlace::first()));
        for text in ["nothing", "1.", ".a", "1.a b", "x.abc", "1.2.3"] {
            assert!(text.parse::<ListPlace>().is_err(), "{text}");
        }
    }
}
