//! The input of a merge strategy: versions, settings and the options of its rule.

use crate::outcome::{MergeSettings, UnableReason, Version};
use crate::sides::Sides;

/// The input of a strategy.
pub(crate) struct Job<'a> {
    pub(crate) sides: Sides<'a>,
    pub(crate) setting: &'a MergeSettings,
    pub(crate) options: &'a Options,
}

/// How a list without keys handles insertions of both sides at one position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// As a conflict, because their order is unknown.
    #[default]
    Conflict,
    /// Keeps both, the smaller one first.
    Both,
}

/// The options of a strategy in a rule. Each strategy uses some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// The fields that identify elements of a list; the first field that all elements have is used. If empty: `id`, `key`,
    /// `name`.
    pub keys: Vec<String>,
    /// How to handle a list without keys.
    pub lists: Lists,
    /// Paths of texts that merge by characters, for example `/body`; `*` matches any name.
    pub texts: Vec<String>,
    /// Agents in order of precedence.
    pub agents: Vec<String>,
    /// The command that generates the file.
    pub command: String,
    /// The files that the command reads.
    pub inputs: Vec<String>,
    /// Maximum size of a version in bytes, if it differs from the setting.
    pub bytes_max: Option<u64>,
}

impl Job<'_> {
    /// Rejects versions that are too large for a strategy that compares lines, or binary.
    pub(crate) fn check_text(&self) -> Result<(), UnableReason> {
        self.check_size(self.setting.limits.text_bytes_max)?;
        let versions = [(Version::Base, self.sides.base_or_empty()), (Version::Ours, self.sides.ours)];
        for (version, bytes) in versions.into_iter().chain([(Version::Theirs, self.sides.theirs)]) {
            if is_binary(bytes) {
                return Err(UnableReason::Binary { version });
            }
        }
        Ok(())
    }

    /// Rejects versions that are too large for a strategy that parses the structure.
    pub(crate) fn check_structure(&self) -> Result<(), UnableReason> {
        self.check_size(self.setting.limits.structure_bytes_max)
    }

    fn check_size(&self, limit: u64) -> Result<(), UnableReason> {
        // Positions are stored in 32 bits.
        let bytes_max = self.options.bytes_max.unwrap_or(limit).min(u64::from(u32::MAX / 2));
        match self.sides.bytes_max() {
            bytes if bytes > bytes_max => Err(UnableReason::TooLarge { bytes, bytes_max }),
            _ => Ok(()),
        }
    }
}

/// Returns whether bytes are binary: they have a NUL among the first 8 KiB.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(8 << 10)]).is_some()
}
