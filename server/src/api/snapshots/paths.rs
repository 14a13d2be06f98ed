//! The paths of a request: parsing, and the selection of entries by path.

use amalgam_engine::TreePath;
use bytes::Bytes;

use crate::error::Result;

/// Parses a path of a request.
pub(super) fn tree_path(bytes: &[u8]) -> Result<TreePath> {
    Ok(TreePath::new(bytes)?)
}

/// Parses the paths of a request.
pub(super) fn tree_paths(paths: &[Bytes]) -> Result<Vec<TreePath>> {
    paths.iter().map(|path| tree_path(path)).collect()
}

/// Returns whether a path is one of `wanted` or below one. An empty `wanted` accepts every path.
pub(super) fn is_wanted(path: &TreePath, wanted: &[TreePath]) -> bool {
    wanted.is_empty() || wanted.iter().any(|wanted| path == wanted || path.below(wanted).is_some())
}
