//! One attempt of an exploration.

use std::path::PathBuf;

use amalgam_proto::v1;

/// One attempt.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) number: usize,
    pub(super) workspace: String,
    /// The resource name of its directory; empty until the fork is mounted or written, and in a sandbox.
    pub(super) directory: String,
    pub(super) path: PathBuf,
    /// Whether the files are mounted at `path` instead of written to the disk.
    pub(super) mounted: bool,
    pub(super) log: PathBuf,
    pub(super) code: Option<u8>,
    pub(super) score: Option<f64>,
    /// The exit code of the `--score` command, if it ran.
    pub(super) score_code: Option<u8>,
    pub(super) result: Option<v1::CaptureResult>,
}
