//! Conflicts in the service: which a tree has, what a directory shows of them, and what came back from there.
//!
//! A directory holds the *face* of its workspace's tree. Every look at it is read back against the faces that may be in it: that
//! of the snapshot it was last in step with, and that of the tree it is being made into. Trees without conflicts are their
//! own faces, and cost nothing but the knowledge that they have none.

mod captions;
mod list;
mod resolve;
mod undecided;

use std::collections::VecDeque;
use std::sync::Arc;

use amalgam_conflicts::{Faced, Known, Resolved, Still, Style, read_back, without_draft};
use amalgam_engine::conflict::{CONFLICTS_KEY, NewResolution, PlacedConflict, conflicts, conflicts_after};
use amalgam_engine::merge::OpenMatter;
use amalgam_engine::object::{Conflict, Node, Snapshot};
use amalgam_engine::{DiffOptions, Entry, RootId, SnapshotId, TreePath, diff_roots};
use amalgam_materializer::Captured;
use amalgam_proto::v1;
use bytes::Bytes;
use parking_lot::Mutex;

use crate::directory::Grasp;
use crate::error::Result;
use crate::service::Service;

/// Of so many trees the conflicts are remembered, and of so many of those the face.
const TREES_KEPT: usize = 64;
const FACES_KEPT: usize = 4;
/// So many paths of conflicts are told with a summary.
const PATHS_TOLD: usize = 1_000;

type Placed = Arc<Vec<PlacedConflict>>;

/// What is known of trees.
#[derive(Default)]
pub(crate) struct Faces {
    trees: Mutex<VecDeque<(RootId, Placed)>>,
    faced: Mutex<VecDeque<(Style, Arc<Faced>)>>,
    /// What merges before a snapshot left undecided, as their records say it.
    matters: Mutex<VecDeque<(SnapshotId, Arc<Vec<OpenMatter>>)>>,
    owners: captions::Owners,
}

/// What the last look at a directory came to.
#[derive(Clone, Default)]
pub(crate) struct Seen {
    pub(crate) conflicts: Placed,
    pub(crate) resolved: Vec<Resolved>,
    pub(crate) still: Vec<Still>,
}

/// A tree whose face may be in a directory.
struct Candidate {
    faced: Arc<Faced>,
    is_written: bool,
    paths: Option<Vec<TreePath>>,
}

impl Faces {
    fn tree(&self, root: RootId) -> Option<Placed> {
        self.trees.lock().iter().find(|(known, _)| *known == root).map(|(_, placed)| Arc::clone(placed))
    }

    pub(crate) fn learn(&self, root: RootId, placed: &Placed) {
        let mut trees = self.trees.lock();
        trees.retain(|(known, _)| *known != root);
        trees.push_back((root, Arc::clone(placed)));
        if trees.len() > TREES_KEPT {
            trees.pop_front();
        }
    }
}

impl Service {
    /// The conflicts of a tree: known, found beside a tree whose conflicts are known, or by a walk.
    pub(crate) fn conflicts_of(&self, root: RootId, near: Option<RootId>) -> Result<Placed> {
        let faces = &self.inner.faces;
        if let Some(placed) = faces.tree(root) {
            return Ok(placed);
        }
        let store = &self.inner.store;
        let neighbour = near.and_then(|near| Some((near, faces.tree(near)?)));
        let found = match neighbour.filter(|(near, _)| store.hold(*near).is_ok()) {
            Some((near, placed)) => conflicts_after(store, near, &placed, root),
            None => conflicts(store, root),
        };
        let placed = Arc::new(found?);
        faces.learn(root, &placed);
        Ok(placed)
    }

    /// A tree and its face. Only faces that differ from their trees are kept.
    pub(crate) fn faced(&self, root: RootId, style: Style, near: Option<RootId>) -> Result<Arc<Faced>> {
        let placed = self.conflicts_of(root, near)?;
        let faces = &self.inner.faces;
        let is_it = |(known, faced): &&(Style, Arc<Faced>)| *known == style && faced.tree == root;
        if let Some((_, faced)) = faces.faced.lock().iter().find(is_it) {
            return Ok(Arc::clone(faced));
        }
        let faced = self.captioned(root, &placed, style)?;
        let faced = Arc::new(faced);
        if !placed.is_empty() {
            let mut kept = faces.faced.lock();
            kept.push_back((style, Arc::clone(&faced)));
            if kept.len() > FACES_KEPT {
                kept.pop_front();
            }
        }
        Ok(faced)
    }

    /// The face of a tree whose conflicts are these, with names on the marker lines.
    fn captioned(&self, root: RootId, placed: &[PlacedConflict], style: Style) -> Result<Faced> {
        let captioner = self.captioner();
        let captions = |path: &TreePath, conflict: &Conflict| captioner.caption(path, conflict);
        Ok(Faced::captioned(&self.inner.store, root, placed, style, &captions)?)
    }

    /// The faces of two trees as far as they differ: conflicts that both have are left as they are, and cost nothing.
    pub(crate) fn faces_of_difference(
        &self,
        before: Option<RootId>,
        after: Option<RootId>,
    ) -> Result<[Option<Faced>; 2]> {
        let store = &self.inner.store;
        let mut placed = [Vec::new(), Vec::new()];
        for change in diff_roots(store, before, after, DiffOptions::default())? {
            let change = change?;
            for (placed, entry) in placed.iter_mut().zip([&change.before, &change.after]) {
                if let Some(Entry { node: Node::Conflict(conflict), .. }) = entry {
                    let (path, conflict) = (change.path.clone(), Arc::clone(conflict));
                    placed.push(PlacedConflict { path, conflict });
                }
            }
        }
        let faced = |root: Option<RootId>, placed: &[PlacedConflict]| {
            root.map(|root| self.captioned(root, placed, Style::Markers)).transpose()
        };
        Ok([faced(before, &placed[0])?, faced(after, &placed[1])?])
    }

    /// The face of a tree in a directory.
    pub(crate) fn faced_in(&self, grasp: &Grasp, root: RootId) -> Result<Arc<Faced>> {
        let near = self.known_root(grasp.record.snapshot())?;
        self.note_whole(grasp, near);
        self.faced(root, style_of(&grasp.record.conflicts), near)
    }

    /// What the registry knows to be without conflicts need not be walked over.
    fn note_whole(&self, grasp: &Grasp, root: Option<RootId>) {
        if let Some(root) = root.filter(|root| grasp.record.whole.as_deref() == Some(root.to_string().as_str())) {
            self.inner.faces.learn(root, &Placed::default());
        }
    }

    /// Says which tree a directory is being made into, so that what is then in it is known for what it is, whoever looks.
    pub(crate) fn aim_at(&self, grasp: &mut Grasp, root: RootId, paths: Option<&[TreePath]>) -> Result<()> {
        let now = self.known_root(grasp.record.snapshot())?;
        self.note_whole(grasp, now);
        let before = now.map(|now| self.conflicts_of(now, None)).transpose()?.unwrap_or_default();
        grasp.record.aim = Some(root.to_string());
        grasp.aim_paths = paths.map(<[TreePath]>::to_vec);
        if !(before.is_empty() && self.conflicts_of(root, now)?.is_empty()) {
            self.inner.registry.put(grasp.record.clone())?;
        }
        Ok(())
    }

    fn candidates(&self, grasp: &mut Grasp) -> Result<Vec<Candidate>> {
        let style = style_of(&grasp.record.conflicts);
        let now = self.known_root(grasp.record.snapshot())?;
        self.note_whole(grasp, now);
        let mut candidates = Vec::new();
        let before = match now.filter(|root| self.inner.store.hold(*root).is_ok()) {
            Some(root) => Some(self.faced(root, style, None)?),
            None => None,
        };
        let aim = grasp.record.aim.as_deref().and_then(RootId::from_hex);
        if let Some(aim) = aim.filter(|root| self.inner.store.hold(*root).is_ok()) {
            let faced = self.faced(aim, style, now)?;
            candidates.push(Candidate { faced, is_written: true, paths: grasp.aim_paths.clone() });
        }
        // What a restore of some paths or an undo left is in the directory, too.
        let working = self.inner.workspaces.find(&grasp.workspace)?.and_then(|found| found.working);
        if let Some(root) = self.known_root(working)?.filter(|root| self.inner.store.hold(*root).is_ok()) {
            candidates.push(Candidate { faced: self.faced(root, style, now)?, is_written: true, paths: None });
        }
        candidates.extend(before.map(|faced| Candidate { faced, is_written: false, paths: None }));
        if candidates.iter().all(|candidate| candidate.faced.paths().next().is_none()) {
            candidates.clear();
        }
        Ok(candidates)
    }

    /// Makes what was captured into the tree that it stands for, conflicts included.
    pub(crate) fn with_conflicts(&self, grasp: &mut Grasp, mut captured: Captured) -> Result<Captured> {
        let candidates = self.candidates(grasp)?;
        grasp.seen = Seen::default();
        if candidates.is_empty() {
            self.inner.faces.learn(captured.root, &grasp.seen.conflicts);
            return Ok(captured);
        }
        let known: Vec<_> = candidates
            .iter()
            .map(|candidate| Known {
                faced: &candidate.faced,
                is_written: candidate.is_written,
                paths: candidate.paths.as_deref(),
            })
            .collect();
        let back = read_back(&self.inner.store, captured.root, &known)?;
        // The index speaks of the face, which no snapshot keeps.
        grasp.keep_face(self.inner.store.hold(captured.root)?);
        grasp.seen = Seen { conflicts: Arc::new(back.conflicts), resolved: back.resolved, still: back.still };
        self.inner.faces.learn(back.root, &grasp.seen.conflicts);
        (captured.tree, captured.root) = (back.tree, back.root);
        Ok(captured)
    }

    /// Gives up what is kept only to be quick.
    pub(crate) fn let_go_of_faces(&self) {
        self.inner.faces.trees.lock().clear();
        self.inner.faces.faced.lock().clear();
        self.inner.faces.matters.lock().clear();
        self.inner.faces.owners.clear();
        let live: Vec<_> = self.inner.live.lock().values().cloned().collect();
        live.iter().filter_map(|live| live.try_lock()).for_each(|mut live| live.let_go_of_face());
    }

    /// What edits made of conflicts, to be remembered with the commit that has them. What was removed is not remembered: that may have
    /// been for other reasons.
    pub(crate) fn resolutions_of(&self, resolved: &[Resolved], root: RootId) -> Result<Vec<NewResolution>> {
        let store = &self.inner.store;
        let mut new = Vec::new();
        for Resolved { path, conflict, entry } in resolved {
            let Some(entry) = entry else { continue };
            let conflict = without_draft(store, conflict)?;
            new.extend(NewResolution::new(store, &conflict, path, Some(entry), root)?);
        }
        Ok(new)
    }
}

impl Seen {
    /// For the wire.
    pub(crate) fn message(&self) -> v1::ConflictSummary {
        let bytes = |path: &TreePath| Bytes::copy_from_slice(path.as_bytes());
        v1::ConflictSummary {
            count: self.conflicts.len() as u64,
            paths: self.conflicts.iter().take(PATHS_TOLD).map(|placed| bytes(&placed.path)).collect(),
            resolved: self.resolved.iter().take(PATHS_TOLD).map(|resolved| bytes(&resolved.path)).collect(),
            edited: self
                .still
                .iter()
                .take(PATHS_TOLD)
                .map(|still| v1::EditedConflict { path: bytes(&still.path), regions: still.regions as u32 })
                .collect(),
        }
    }
}

/// How many conflicts a snapshot has, as far as somebody counted.
pub(crate) fn counted(snapshot: &Snapshot) -> u64 {
    snapshot.metadata.get(CONFLICTS_KEY).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// How a directory shows conflicts.
pub(crate) fn style_of(word: &str) -> Style {
    Style::from_word(word).unwrap_or_default()
}
