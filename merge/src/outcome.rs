//! The words of a merge: what goes in, and what comes out.

use std::fmt;

use crate::markers::{Labels, Rendered};

/// Three versions of one file. Without a base, both sides added it.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a> {
    /// What both were made from.
    pub base: Option<&'a [u8]>,
    /// The version of the side that is merged into.
    pub ours: &'a [u8],
    /// The version of the side that is merged.
    pub theirs: &'a [u8],
}

impl<'a> Sides<'a> {
    /// The base, or nothing where there is none.
    pub fn base_or_empty(&self) -> &'a [u8] {
        self.base.unwrap_or_default()
    }

    /// The same with the sides exchanged.
    pub fn swapped(&self) -> Self {
        Self { base: self.base, ours: self.theirs, theirs: self.ours }
    }

    /// The length of the longest version.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.base_or_empty().len().max(self.ours.len()).max(self.theirs.len()) as u64
    }
}

/// Who made a version, and when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The agent's name.
    pub agent: String,
    /// When it was written, in whatever unit both sides share.
    pub time: i64,
}

/// Where both versions come from.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Who made ours.
    pub ours: Origin,
    /// Who made theirs.
    pub theirs: Origin,
}

/// Above these sizes a way is unable, so that no file takes minutes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For ways that look at lines.
    pub text_bytes_max: u64,
    /// For ways that look at structure.
    pub structure_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { text_bytes_max: 16 << 20, structure_bytes_max: 8 << 20 }
    }
}

/// What a merge needs to know besides the versions.
#[derive(Clone, Debug, Default)]
pub struct Setting {
    /// How the versions are called in conflicts.
    pub labels: Labels,
    /// Where they come from.
    pub context: Context,
    /// How large they may be.
    pub limits: Limits,
}

/// What came of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// One version for both.
    Merged(Vec<u8>),
    /// Both sides changed the same; the versions stay what they are.
    Conflicted(Conflicted),
    /// This way does not know what to do with such a file. Another may, or it becomes a conflict as a whole.
    Unable(Why),
}

/// Where the sides disagree, and how that looks in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicted {
    /// The places: one for each region of lines, or for each path of a structure.
    pub clashes: Vec<Clash>,
    /// What was merged, with markers around what was not.
    pub rendered: Rendered,
}

/// One place where the sides disagree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clash {
    /// Lines, as they are counted from 0 in each version: first and number.
    Lines {
        /// In the base.
        base: (usize, usize),
        /// In ours.
        ours: (usize, usize),
        /// In theirs.
        theirs: (usize, usize),
    },
    /// A path into the structure, as in `/scripts/build` or `/jobs/2`; the root is empty. A `/` in a name is written `~1`, a
    /// `~` is `~0`.
    Path(String),
}

/// Why a way was unable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// A version is larger than the limit.
    #[error("{bytes} bytes are more than the limit of {bytes_max}")]
    TooLarge {
        /// The longest version.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// A version has a NUL among its first bytes.
    #[error("{version} is binary")]
    Binary {
        /// Which version.
        version: Version,
    },
    /// A version is not what its format wants.
    #[error("{version} is not valid {format}: line {line}, column {column}: {what}")]
    Malformed {
        /// Which version.
        version: Version,
        /// Which format.
        format: &'static str,
        /// Where, counted from 1.
        line: usize,
        /// Where in the line, in bytes, counted from 1.
        column: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// A version uses something that its format has and the merge does not handle.
    #[error("{version}, line {line}: {what} is not merged by structure")]
    Unhandled {
        /// Which version.
        version: Version,
        /// Where, counted from 1.
        line: usize,
        /// What it uses.
        what: &'static str,
    },
    /// What came out would not mean what was intended, so that it was not used.
    #[error("a merge by structure was not safe: {what}")]
    Doubt {
        /// What was found.
        what: &'static str,
    },
    /// The rule does not say what the way needs.
    #[error("the rule needs `{option}`")]
    Missing {
        /// Which option.
        option: &'static str,
    },
    /// The file is made by a command from others; running it is the caller's business.
    #[error("to be regenerated by `{command}`")]
    Regenerate {
        /// The command.
        command: String,
        /// What it reads.
        inputs: Vec<String>,
    },
    /// A person has to look at it.
    #[error("kept for review")]
    Review,
}

/// One of three versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// What both were made from.
    Base,
    /// The one merged into.
    Ours,
    /// The one merged.
    Theirs,
    /// What came out.
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

/// One way that was tried and was unable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The way.
    pub way: &'static str,
    /// Why it was not it.
    pub why: Why,
}

/// What came of a merge that may fall from one way to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// What came of it.
    pub outcome: Outcome,
    /// The way that brought it.
    pub way: &'static str,
    /// The ways before it, and why each was unable.
    pub before: Vec<Step>,
}
