//! Restores of a view whose tree was captured before.

use amalgam_engine::{SnapshotId, WorkingTree};

use crate::error::Result;
use crate::tree_switch::{self, Captured, Restored};
use crate::view::View;

impl View {
    /// Restores a snapshot like [`restore`](Self::restore). If the view was not changed since the capture, files with uncommitted edits
    /// whose data is that of the snapshot keep their inodes, so that programs that have them open go on.
    pub fn restore_captured(
        &self,
        captured: Captured,
        state: SnapshotId,
        head: Option<SnapshotId>,
    ) -> Result<(WorkingTree, Restored)> {
        tree_switch::restore(&mut self.shared.fs.write(), state, head, Some(captured))
    }

    /// Restores like [`restore_captured`](Self::restore_captured), or returns `None` if the view was changed since the capture.
    pub fn restore_if_unchanged(
        &self,
        captured: Captured,
        state: SnapshotId,
        head: Option<SnapshotId>,
    ) -> Result<Option<(WorkingTree, Restored)>> {
        let mut fs = self.shared.fs.write();
        let is_unchanged = fs.version() == captured.version;
        is_unchanged.then(|| tree_switch::restore(&mut fs, state, head, Some(captured))).transpose()
    }
}
