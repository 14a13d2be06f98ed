//! Levels of permission, and the acts that each permits.

use std::fmt;

/// The acts that an agent is permitted on a path, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Nothing: the path is absent from listings, lookups and every output.
    Hidden,
    /// Read.
    Read,
    /// Read, and add entries that do not exist.
    Add,
    /// Read, add and change, but not remove.
    Change,
    /// Everything.
    Full,
}

/// Something that an agent does with a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Reads the entry, or learns that it exists.
    Read,
    /// Adds an entry where none is.
    Add,
    /// Changes the contents or the attributes of an existing entry.
    Change,
    /// Removes an existing entry, or moves it away.
    Remove,
}

impl Level {
    /// All levels, from the least to the most.
    pub const ALL: [Self; 5] = [Self::Hidden, Self::Read, Self::Add, Self::Change, Self::Full];

    /// Returns the word for the level in a policy.
    pub fn word(self) -> &'static str {
        match self {
            Self::Hidden => "none",
            Self::Read => "R",
            Self::Add => "RA",
            Self::Change => "RW-",
            Self::Full => "RW",
        }
    }

    /// Returns the level of a word.
    pub fn of_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.word() == word)
    }

    /// Returns whether the level permits an act.
    pub fn permits(self, act: Act) -> bool {
        let least = match act {
            Act::Read => Self::Read,
            Act::Add => Self::Add,
            Act::Change => Self::Change,
            Act::Remove => Self::Full,
        };
        self >= least
    }
}

impl Act {
    /// All acts.
    pub const ALL: [Self; 4] = [Self::Read, Self::Add, Self::Change, Self::Remove];

    /// Returns the verb of the act.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Add => "add",
            Self::Change => "change",
            Self::Remove => "remove",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_permits_its_acts_and_those_of_lesser_levels() {
        let permitted = |level: Level| Act::ALL.into_iter().filter(|act| level.permits(*act)).collect::<Vec<_>>();
        assert_eq!(permitted(Level::Hidden), []);
        assert_eq!(permitted(Level::Read), [Act::Read]);
        assert_eq!(permitted(Level::Add), [Act::Read, Act::Add]);
        assert_eq!(permitted(Level::Change), [Act::Read, Act::Add, Act::Change]);
        assert_eq!(permitted(Level::Full), Act::ALL);
        for level in Level::ALL {
            assert_eq!(Level::of_word(level.word()), Some(level));
        }
        assert_eq!(Level::of_word("rw"), None);
    }
}
