//! One attempt of an exploration.

use std::path::PathBuf;

use amalgam_proto::v1;

/// One attempt.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) number: usize,
    pub(super) workspace: String,
    /// On the wire; empty until its files are written.
    pub(super) directory: String,
    pub(super) path: PathBuf,
    /// Mounted at its path, and not written out.
    pub(super) mounted: bool,
    pub(super) log: PathBuf,
    pub(super) code: Option<u8>,
    pub(super) score: Option<f64>,
    pub(super) result: Option<v1::CaptureResult>,
}
