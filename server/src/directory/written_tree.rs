//! The tree that an operation has just written into a directory.

use amalgam_engine::{RootId, TreePath};
use amalgam_materializer::Notice;

/// The tree that was written into a directory just before a capture of it.
pub(super) struct WrittenTree<'a> {
    /// The tree with its conflicts rendered as files.
    pub(super) rendered: RootId,
    /// The paths that were to be written; `None` for the whole tree, which is the workspace's state afterwards.
    pub(super) paths: Option<&'a [TreePath]>,
    pub(super) notices: &'a [Notice],
}
