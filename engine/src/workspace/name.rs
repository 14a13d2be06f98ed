//! Names of workspaces.

use std::fmt;

use crate::error::{Error, Result};
use crate::reference::RefName;
pub(super) use crate::reference::{DELETED_WORKSPACES as DELETED_PREFIX, WORKSPACES as PREFIX};

const ASIDE_PREFIX: &str = "aside/";
/// Maximum number of a deleted workspace.
pub(super) const DELETED_NUMBER_MAX: u64 = 1 << 53;
const NAME_BYTES_MAX: usize = 200;
/// Names of hidden workspaces start with it.
const HIDDEN: char = '.';
/// Characters with a meaning in revisions.
const RESERVED: &[char] = &['@', '~', '^', ':', '?', '*', '[', ']', '{', '}', '\\', '"', '\''];

/// The name of a workspace: 1 to 200 bytes of printable text without spaces and without `@ ~ ^ : ? * [ ] { } \ " '`. Slashes
/// group, as in `agent/7`; it neither starts nor ends with one, has no two in a row, and does not start with `-`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkspaceName(String);

impl WorkspaceName {
    /// Creates a name after checking it.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        match check(&name) {
            None => Ok(Self(name)),
            Some(why) => Err(Error::Invalid { what: "workspace name", why: format!("`{name}` {why}") }),
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the workspace is hidden: its name starts with a dot. Lists leave it out unless their prefix starts with one.
    pub fn is_hidden(&self) -> bool {
        self.0.starts_with(HIDDEN)
    }

    /// Returns the reference of its head.
    pub fn reference(&self) -> RefName {
        RefName::new(format!("{PREFIX}{}", self.0)).expect("a workspace's name is a part of a reference's")
    }

    /// Returns the workspace whose head a reference is.
    pub fn of_reference(name: &RefName) -> Result<Self> {
        let text = name.as_str().strip_prefix(PREFIX).unwrap_or_default();
        Self::new(text).map_err(|why| Error::DamagedRecord { what: format!("reference {name}"), why: why.to_string() })
    }

    /// Returns the reference that keeps files while they are being replaced.
    pub fn aside_reference(&self) -> RefName {
        RefName::new(format!("{ASIDE_PREFIX}{}", self.0)).expect("as above")
    }

    /// Returns the name of the workspace that a reference belongs to, whether the workspace is deleted or not.
    pub(crate) fn in_reference(name: &RefName) -> Option<&str> {
        let text = name.as_str();
        let deleted = || text.strip_prefix(DELETED_PREFIX)?.rsplit_once('@').map(|(name, _)| name);
        text.strip_prefix(PREFIX).or_else(deleted)
    }

    pub(super) fn deleted_prefix(&self) -> String {
        format!("{DELETED_PREFIX}{}@", self.0)
    }

    pub(super) fn deleted_reference(&self, number: u64) -> RefName {
        RefName::new(format!("{}{number}", self.deleted_prefix())).expect("as above")
    }
}

/// Returns the reason why a name is invalid.
pub(super) fn check(name: &str) -> Option<&'static str> {
    let odd = |c: char| c.is_control() || c.is_whitespace() || RESERVED.contains(&c);
    match name {
        "" => Some("is empty"),
        _ if name.len() > NAME_BYTES_MAX => Some("is longer than 200 bytes"),
        _ if name.contains(odd) => Some("holds a space or one of @ ~ ^ : ? * [ ] { } \\ \" '"),
        _ if name.starts_with('-') => Some("starts with a dash"),
        _ if name.split('/').any(|part| part.is_empty() || part == "." || part == "..") => {
            Some("has an empty part, or one of dots, between slashes")
        }
        _ => None,
    }
}

/// Returns the Levenshtein distance of two texts, limited to their first 64 characters.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().take(64).collect(), other.chars().take(64).collect());
    let mut row: Vec<_> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let kept = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = kept.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// Returns the names nearest to the given one, for an error message, or `None` if there are none.
pub(crate) fn nearest(mut names: Vec<String>, text: &str) -> Option<String> {
    const LISTED: usize = 5;
    names.sort_by_cached_key(|name| (distance(name, text), name.clone()));
    names.truncate(LISTED);
    (!names.is_empty()).then(|| format!("nearest by name: {}", names.join(", ")))
}

impl fmt::Display for WorkspaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkspaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_something_else_are_refused() {
        for name in ["", "a b", "a@", "~", "-x", "a//b", "/a", "a/", "a/../b", "x:y", &"x".repeat(201)] {
            assert!(WorkspaceName::new(name).is_err(), "{name}");
        }
        for name in ["main", "agent/7", "näme", "a.b-c_d", &"x".repeat(200)] {
            assert!(WorkspaceName::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_name_that_starts_with_a_dot_is_hidden() {
        for (name, is_hidden) in [(".homes/main", true), (".x", true), ("main", false), ("a/.b", false)] {
            assert_eq!(WorkspaceName::new(name).expect("a name").is_hidden(), is_hidden, "{name}");
        }
    }

    #[test]
    fn distance_counts_letters() {
        assert_eq!(distance("main", "main"), 0);
        assert_eq!(distance("main", "mian"), 2);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
