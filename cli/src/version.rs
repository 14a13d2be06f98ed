//! The version of this program.

/// The answer to `--version`: version, commit, cargo profile and target.
pub const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("AMALGAM_BUILD"), ")");
