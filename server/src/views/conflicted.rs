//! Conflicts in the tree of a live view: reads edits of their files back, and counts them for `status` and commits.

use amalgam_conflicts::{KnownRendering, ReadBack, read_back};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{RootId, SnapshotId, TreePath, WorkingTree};
use amalgam_proto::v1;

use super::{LockedView, Views};
use crate::call_log::warn_failure;
use crate::conflicts::{CaptionSource, CapturedConflicts};
use crate::context::HeldTree;
use crate::error::Result;

/// The conflicts in which a tree differs from the snapshot that it follows.
pub(super) struct EditedConflicts {
    /// The snapshot's conflicts that were edited in the tree, read back; `None` if none was edited.
    pub(super) back: Option<ReadBack>,
    /// Whether the tree has conflicts that the snapshot does not have: a restore of a path took them from another one.
    has_new: bool,
    /// The root of the tree, with the files that show conflicts.
    root: RootId,
    _held: HeldTree,
}

impl EditedConflicts {
    /// Returns how many of the expected conflicts a commit will store. It leaves a file with several names as a file.
    pub(super) fn count_to_commit(&self, seen: &WorkingTree, expected: &CapturedConflicts) -> usize {
        let has_names = |path: &[u8]| seen.stat(path).is_ok_and(|found| found.is_some_and(|found| found.links > 1));
        let files = self.back.iter().flat_map(|back| &back.conflicts);
        let left = files.filter(|placed| has_names(placed.path.as_bytes())).count();
        expected.conflicts.len().saturating_sub(left)
    }
}

impl Views {
    /// Reads back the conflicts that were edited in a tree since the snapshot that it follows, or returns `None` if none was
    /// edited.
    pub(super) fn conflicts_in(&self, workspace: &WorkspaceName, tree: &WorkingTree) -> Result<Option<ReadBack>> {
        Ok(self.edited_conflicts(workspace, tree)?.back)
    }

    /// Compares the conflicts of a tree with those of the snapshot that it follows.
    pub(super) fn edited_conflicts(&self, workspace: &WorkspaceName, tree: &WorkingTree) -> Result<EditedConflicts> {
        let before = self.context.known_root(tree.base())?;
        let held = self.hold_tree(tree)?;
        let root = held.root.expect("a live tree has a root");
        let source = CaptionSource::Workspace(workspace.clone());
        let [edited, new] = self.conflicts.faces_of_difference((before, source.clone()), (Some(root), source))?;
        let has_new = new.is_some_and(|new| new.paths().next().is_some());
        let back = match edited.filter(|edited| edited.paths().next().is_some()) {
            Some(edited) => {
                let known = KnownRendering { rendered: &edited, is_written: false, paths: None };
                Some(read_back(&self.context.store, root, &[known])?)
            }
            None => None,
        };
        Ok(EditedConflicts { back, has_new, root, _held: held })
    }

    /// Returns all conflicts of a view's tree, and which ones edits resolved or left since the snapshot that it follows. Walks the
    /// tree of that snapshot if its conflicts are not in the cache.
    pub(super) fn conflicts_of_view(&self, workspace: &WorkspaceName, tree: &WorkingTree) -> Result<CapturedConflicts> {
        let before = self.context.known_root(tree.base())?;
        self.all_conflicts(before, &self.edited_conflicts(workspace, tree)?)
    }

    fn all_conflicts(&self, before: Option<RootId>, edited: &EditedConflicts) -> Result<CapturedConflicts> {
        let of_snapshot = before.map(|before| self.conflicts.conflicts_of(before, None)).transpose()?;
        if let Some(back) = &edited.back {
            return Ok(CapturedConflicts {
                conflicts: self.conflicts.conflicts_of(back.root, before)?,
                resolved: back.resolved.clone(),
                still: back.still.clone(),
            });
        }
        let conflicts = match of_snapshot.filter(|_| !edited.has_new) {
            Some(same) => {
                self.conflicts.faces.learn(edited.root, &same);
                same
            }
            None => self.conflicts.conflicts_of(edited.root, before)?,
        };
        Ok(CapturedConflicts { conflicts, ..CapturedConflicts::default() })
    }

    /// Returns the conflicts of a mount after a restore, an undo or a redo, for its user. Like a commit, it does not walk a tree of
    /// which nothing says that it has conflicts, and does not fail if they cannot be counted.
    pub(super) fn shown_conflicts(&self, locked: &LockedView) -> Option<v1::ConflictSummary> {
        let count = || -> Result<_> {
            let tree = locked.live.view.fork();
            let edited = self.edited_conflicts(&locked.workspace, &tree)?;
            let found = self.expected_conflicts(tree.base(), &edited).unwrap_or_default();
            self.conflicts.summary(&found, self.context.head(&locked.workspace)?, edited.root)
        };
        count().map_err(|failure| warn_failure(&failure, "could not count the conflicts of a mount")).ok()
    }

    /// Returns the conflicts of a tree that is about to be committed. Returns `None` instead of a walk of the whole tree if nothing
    /// says that it has conflicts, and if they cannot be counted: a commit does not fail for that.
    pub(super) fn expected_conflicts(
        &self,
        before: Option<SnapshotId>,
        edited: &EditedConflicts,
    ) -> Option<CapturedConflicts> {
        let count = || -> Result<_> {
            let Some(root) = self.context.known_root(before)? else { return Ok(None) };
            let is_recorded = before.is_some_and(|before| self.context.recorded_conflicts(before) > 0);
            let has_edited = edited.back.is_some() || edited.has_new;
            match has_edited || is_recorded || self.conflicts.are_cached(root) {
                true => self.all_conflicts(Some(root), edited).map(Some),
                false => Ok(None),
            }
        };
        count().unwrap_or_else(|failure| {
            warn_failure(&failure, "could not count the conflicts of a commit");
            None
        })
    }

    /// Returns the conflicts of a snapshot that was just committed, which concurrent writes can have changed. `before` is the snapshot
    /// below it.
    pub(super) fn committed_conflicts(
        &self,
        before: Option<SnapshotId>,
        snapshot: SnapshotId,
        expected: CapturedConflicts,
    ) -> Option<CapturedConflicts> {
        let count = || -> Result<_> {
            let root = self.context.store.snapshot(snapshot)?.root;
            self.conflicts.conflicts_of(root, self.context.known_root(before)?)
        };
        match count() {
            Ok(conflicts) => {
                let is_left = |path: &TreePath| conflicts.binary_search_by(|placed| placed.path.cmp(path)).is_ok();
                let CapturedConflicts { resolved, mut still, .. } = expected;
                still.retain(|still| is_left(&still.path));
                Some(CapturedConflicts { conflicts, resolved, still })
            }
            Err(failure) => {
                warn_failure(&failure, "could not count the conflicts of a commit");
                None
            }
        }
    }
}
