//! The values of a set of rules.

use std::fmt;

use super::pattern::Pattern;
use crate::job::is_binary;
use crate::sides::Sides;
use crate::strategy::MergeStrategy;

/// Rules and groups of paths.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) rules: Vec<Rule>,
    pub(super) groups: Vec<Group>,
}

/// A rule: the files that it matches, and their strategy.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) location: RuleLocation,
    pub(super) paths: Vec<Pattern>,
    pub(super) only_type: Option<Content>,
    pub(super) strategy: MergeStrategy,
}

/// The location of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLocation {
    /// The name of its layer: a file, or the name that the reader passed.
    pub source: String,
    /// The line of its header, counted from 1.
    pub line: usize,
}

impl fmt::Display for RuleLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.source, self.line)
    }
}

/// Paths that merge as a unit. The tree merge applies groups.
#[derive(Clone, Debug)]
pub struct Group {
    /// The location.
    pub location: RuleLocation,
    /// The name.
    pub name: String,
    pub(super) paths: Vec<Pattern>,
}

impl Group {
    /// Returns whether a path belongs to the group.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.paths.iter().any(|pattern| pattern.matches(path))
    }
}

/// The type of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// No NUL among the first 8 KiB of any version.
    Text,
    /// A NUL among the first 8 KiB of at least one version.
    Binary,
}

impl Content {
    /// Returns the content type of three versions.
    pub fn of(sides: &Sides<'_>) -> Self {
        match [sides.base_or_empty(), sides.ours, sides.theirs].into_iter().any(is_binary) {
            true => Self::Binary,
            false => Self::Text,
        }
    }
}
