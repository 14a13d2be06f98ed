//! Globs over paths.

use amalgam_engine::TreePath;
use amalgam_proto::Reason;
use globset::{Candidate, GlobBuilder, GlobMatcher};

use crate::error::{Error, Result};

/// A glob that paths are compared with: without a slash their names, with one the whole paths.
pub(crate) struct Glob {
    matcher: GlobMatcher,
    has_slash: bool,
}

impl Glob {
    /// Reads a glob.
    pub(crate) fn new(text: &str) -> Result<Self> {
        let wrong = |error: globset::Error| Error::new(Reason::Invalid, format!("`{text}`: {}", error.kind()));
        let plain = text.strip_prefix("./").unwrap_or(text).trim_end_matches('/');
        let mut glob = GlobBuilder::new(plain.trim_start_matches('/'));
        let matcher = glob.literal_separator(true).backslash_escape(true).build().map_err(wrong)?.compile_matcher();
        Ok(Self { matcher, has_slash: plain.contains('/') })
    }

    /// Returns whether a path matches.
    pub(crate) fn matches(&self, path: &TreePath) -> bool {
        let bytes = path.as_bytes();
        let compared = if self.has_slash { bytes } else { bytes.rsplit(|byte| *byte == b'/').next().unwrap_or(bytes) };
        self.matcher.is_match_candidate(&Candidate::from_bytes(compared))
    }
}
