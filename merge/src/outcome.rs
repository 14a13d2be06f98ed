//! The input and output types of a merge.

use std::fmt;

use crate::markers::{Labels, Rendered};

/// Three versions of one file. Without a base, both sides added it.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// The common ancestor.
    pub base: Option<&'a [u8]>,
    /// The version of the target.
    pub ours: &'a [u8],
    /// The version of the source.
    pub theirs: &'a [u8],
}

impl<'a> Sides<'a> {
    /// Returns the base, or empty bytes if there is none.
    pub fn base_or_empty(&self) -> &'a [u8] {
        self.base.unwrap_or_default()
    }

    /// Returns the versions with the sides exchanged.
    pub fn swapped(&self) -> Self {
        Self { base: self.base, ours: self.theirs, theirs: self.ours }
    }

    /// Returns the length of the longest version.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.base_or_empty().len().max(self.ours.len()).max(self.theirs.len()) as u64
    }
}

/// The agent and the time of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The agent's name.
    pub agent: String,
    /// The time of the version, in a unit common to both sides.
    pub time: i64,
}

/// The origins of both versions.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The origin of ours.
    pub ours: Origin,
    /// The origin of theirs.
    pub theirs: Origin,
}

/// Size limits in bytes, above which a strategy is unable, so that no file takes minutes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For strategies that compare lines.
    pub text_bytes_max: u64,
    /// For strategies that parse the structure.
    pub structure_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { text_bytes_max: 16 << 20, structure_bytes_max: 8 << 20 }
    }
}

/// The parameters of a merge besides the versions.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// The labels of the versions in conflicts.
    pub labels: Labels,
    /// The origins of the versions.
    pub context: Context,
    /// The size limits.
    pub limits: Limits,
}

/// The result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The merged version.
    Merged(Vec<u8>),
    /// Both sides changed the same part; the versions stay as they are.
    Conflicted(Conflicted),
    /// The strategy cannot merge this file. Another may, or the whole file becomes a conflict.
    Unable(Why),
}

/// The disagreements of the sides, and their rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicted {
    /// One clash for each region of lines, or for each path of a structure.
    pub clashes: Vec<Clash>,
    /// The merged file with markers around the conflicts.
    pub rendered: Rendered,
}

/// A disagreement of the sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clash {
    /// Lines in each version: the index of the first one, counted from 0, and their number.
    Lines {
        /// In the base.
        base: (usize, usize),
        /// In ours.
        ours: (usize, usize),
        /// In theirs.
        theirs: (usize, usize),
    },
    /// A path in the structure, for example `/scripts/build` or `/jobs/2`; empty for the root. In names `/` is written as `~1`
    /// and `~` as `~0`.
    Path(String),
}

/// The reason why a strategy was unable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A version exceeds the size limit.
    #[error("{bytes} bytes are more than the limit of {bytes_max}")]
    TooLarge {
        /// The size of the longest version.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A version has a NUL among its first bytes.
    #[error("{version} is binary")]
    Binary {
        /// The version.
        version: Version,
    },
    /// A version is not valid in its format.
    #[error("{version} is not valid {format}: line {line}, column {column}: {what}")]
    Malformed {
        /// The version.
        version: Version,
        /// The format.
        format: &'static str,
        /// The line, counted from 1.
        line: usize,
        /// The byte in the line, counted from 1.
        column: usize,
        /// The problem.
        what: &'static str,
    },
    /// A version uses a feature of its format that the merge does not support.
    #[error("{version}, line {line}: {what} is not merged by structure")]
    Unhandled {
        /// The version.
        version: Version,
        /// The line, counted from 1.
        line: usize,
        /// The feature.
        what: &'static str,
    },
    /// The result would not have the intended meaning, so it was discarded.
    #[error("a merge by structure was not safe: {what}")]
    Doubt {
        /// The problem.
        what: &'static str,
    },
    /// The rule lacks an option that the strategy needs.
    #[error("the rule needs `{option}`")]
    Missing {
        /// The option.
        option: &'static str,
    },
    /// A command generates the file from others. The caller runs it.
    #[error("to be regenerated by `{command}`")]
    Regenerate {
        /// The command.
        command: String,
        /// The files that it reads.
        inputs: Vec<String>,
    },
    /// A user has to review it.
    #[error("kept for review")]
    Review,
}

/// One of the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The common ancestor.
    Base,
    /// The version of the target.
    Ours,
    /// The version of the source.
    Theirs,
    /// The result of the merge.
    Result,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Base => "the base",
            Self::Ours => "ours",
            Self::Theirs => "theirs",
            Self::Result => "the result",
        })
    }
}

/// A strategy that was tried and was unable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The strategy.
    pub way: &'static str,
    /// The reason.
    pub why: Why,
}

/// The result of a merge with fallbacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The result.
    pub outcome: Outcome,
    /// The strategy that produced it.
    pub way: &'static str,
    /// The strategies tried before it, and why each was unable.
    pub before: Vec<Step>,
}
