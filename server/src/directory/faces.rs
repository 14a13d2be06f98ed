//! The face of a workspace's tree in its directory: conflicts rendered as files, and the edits of these files.

use std::sync::Arc;

use amalgam_conflicts::{KnownRendering, RenderedTree, read_back};
use amalgam_engine::{RootId, SnapshotId, TreePath};
use amalgam_materializer::Captured;
use amalgam_proto::v1;

use super::{Directories, LockedDirectory};
use crate::conflicts::{CaptionSource, CapturedConflicts, FaceKey, Placed, style_of};
use crate::error::Result;

/// A tree whose face may be in a directory.
struct Candidate {
    faced: Arc<RenderedTree>,
    is_written: bool,
    paths: Option<Vec<TreePath>>,
}

/// Returns the style in which a directory shows conflicts, and the history that names come from.
fn face_of(locked: &LockedDirectory) -> FaceKey {
    (style_of(&locked.record.conflicts), CaptionSource::Workspace(locked.workspace.clone()))
}

impl Directories {
    /// Returns the face of a tree in the style of a directory.
    pub(crate) fn faced_in(&self, locked: &LockedDirectory, root: RootId) -> Result<Arc<RenderedTree>> {
        let near = self.context.known_root(locked.record.snapshot())?;
        self.note_whole(locked, near);
        self.conflicts.faced(root, face_of(locked), near)
    }

    /// Caches that a tree has no conflicts, if the record of the directory says so, which saves a walk.
    fn note_whole(&self, locked: &LockedDirectory, root: Option<RootId>) {
        if let Some(root) = root.filter(|root| locked.record.whole == Some(*root)) {
            self.conflicts.faces.learn(root, &Placed::default());
        }
    }

    /// Records the tree that a directory is being made into, so that every capture can read its conflicts back.
    pub(crate) fn aim_at(&self, locked: &mut LockedDirectory, root: RootId, paths: Option<&[TreePath]>) -> Result<()> {
        let now = self.context.known_root(locked.record.snapshot())?;
        self.note_whole(locked, now);
        let before = now.map(|now| self.conflicts.conflicts_of(now, None)).transpose()?.unwrap_or_default();
        locked.record.aim = Some(root);
        locked.aim_paths = paths.map(<[TreePath]>::to_vec);
        if !(before.is_empty() && self.conflicts.conflicts_of(root, now)?.is_empty()) {
            self.context.registry.put(locked.record.clone())?;
        }
        Ok(())
    }

    /// Returns the conflicts of the last capture for the user, with the matters that no file shows. `root` is the tree of the capture,
    /// made from `head`.
    pub(super) fn conflict_summary(
        &self,
        locked: &mut LockedDirectory,
        head: Option<SnapshotId>,
        root: RootId,
    ) -> Result<v1::ConflictSummary> {
        // A new process need not walk the whole history.
        if let Some(settled) = locked.record.settled {
            self.conflicts.note_settled(settled);
        }
        let summary = self.conflicts.summary(&locked.seen, head, root)?;
        locked.record.settled = head.filter(|head| self.conflicts.is_settled(*head)).or(locked.record.settled);
        Ok(summary)
    }

    fn candidates(&self, locked: &mut LockedDirectory) -> Result<Vec<Candidate>> {
        let face = face_of(locked);
        let now = self.context.known_root(locked.record.snapshot())?;
        self.note_whole(locked, now);
        let mut candidates = Vec::new();
        let before = match self.context.held(now) {
            Some((root, _pin)) => Some(self.conflicts.faced(root, face.clone(), None)?),
            None => None,
        };
        let aim = locked.record.aim;
        if let Some((aim, _pin)) = self.context.held(aim) {
            let faced = self.conflicts.faced(aim, face.clone(), now)?;
            candidates.push(Candidate { faced, is_written: true, paths: locked.aim_paths.clone() });
        }
        // The directory may also have the state that an undo or a restore of some paths left.
        let working = self.context.workspaces.find(&locked.workspace)?.and_then(|found| found.working);
        if let Some((root, _pin)) = self.context.held(self.context.known_root(working)?) {
            candidates.push(Candidate { faced: self.conflicts.faced(root, face, now)?, is_written: true, paths: None });
        }
        candidates.extend(before.map(|faced| Candidate { faced, is_written: false, paths: None }));
        if candidates.iter().all(|candidate| candidate.faced.paths().next().is_none()) {
            candidates.clear();
        }
        Ok(candidates)
    }

    /// Converts a capture into the tree that it stands for, conflicts included.
    pub(crate) fn with_conflicts(&self, locked: &mut LockedDirectory, mut captured: Captured) -> Result<Captured> {
        let candidates = self.candidates(locked)?;
        locked.seen = CapturedConflicts::default();
        if candidates.is_empty() {
            self.conflicts.faces.learn(captured.root, &locked.seen.conflicts);
            return Ok(captured);
        }
        let known: Vec<_> = candidates
            .iter()
            .map(|candidate| KnownRendering {
                rendered: &candidate.faced,
                is_written: candidate.is_written,
                paths: candidate.paths.as_deref(),
            })
            .collect();
        let back = read_back(&self.context.store, captured.root, &known)?;
        // The index describes the face, which no snapshot keeps.
        let face = locked.index().root().unwrap_or(captured.root);
        locked.keep_face(self.context.store.hold(face)?);
        locked.seen =
            CapturedConflicts { conflicts: Arc::new(back.conflicts), resolved: back.resolved, still: back.still };
        self.conflicts.faces.learn(back.root, &locked.seen.conflicts);
        (captured.tree, captured.root) = (back.tree, back.root);
        Ok(captured)
    }
}
