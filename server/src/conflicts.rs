//! Conflicts in the service: finds those of a tree, renders them as files of a directory, and reads edits of these files back.
//!
//! A directory holds the *face* of its workspace's tree: the tree with its conflicts rendered as files. Every capture is read back
//! against the faces that may be in the directory: that of the snapshot it was last in step with, and that of the tree it is being
//! made into. A tree without conflicts is its own face and only costs the lookup.

mod caption_source;
pub(crate) mod captions;
mod list;
mod owners;
pub(crate) mod resolve;
mod undecided;

use std::collections::VecDeque;
use std::sync::Arc;

use amalgam_conflicts::{RenderedTree, ResolvedConflict, StillConflicted, Style, without_draft};
use amalgam_engine::conflict::{NewResolution, PlacedConflict, conflicts, conflicts_after};
use amalgam_engine::merge::OpenDecision;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::{DiffOptions, Entry, RootId, SnapshotId, TreePath, diff_roots};
use amalgam_proto::v1;
use bytes::Bytes;
use parking_lot::Mutex;

pub(crate) use self::caption_source::CaptionSource;
use crate::context::Context;
use crate::error::Result;
use crate::merge_rules::MergeRules;

/// The most trees whose conflicts are cached, and the most faces that are cached.
const TREES_KEPT: usize = 64;
const FACES_KEPT: usize = 4;
/// The most paths of each list in a summary of conflicts.
const PATHS_TOLD: usize = 1_000;

pub(crate) type Placed = Arc<Vec<PlacedConflict>>;

/// What a face depends on besides its tree: the style, and the source of the names on marker lines.
pub(crate) type FaceKey = (Style, CaptionSource);

/// Caches of the conflicts and faces of trees.
#[derive(Default)]
pub(crate) struct Faces {
    trees: Mutex<VecDeque<(RootId, Placed)>>,
    faced: Mutex<VecDeque<(FaceKey, Arc<RenderedTree>)>>,
    /// The matters that merges before a snapshot left undecided, as their records list them.
    matters: Mutex<CachedMatters>,
    owners: owners::Owners,
}

/// The open matters in the history of snapshots, the last one looked up last.
type CachedMatters = VecDeque<(SnapshotId, Arc<Vec<OpenDecision>>)>;

/// The conflicts of the last capture of a directory.
#[derive(Clone, Default)]
pub(crate) struct CapturedConflicts {
    pub(crate) conflicts: Placed,
    pub(crate) resolved: Vec<ResolvedConflict>,
    pub(crate) still: Vec<StillConflicted>,
}

impl Faces {
    fn tree(&self, root: RootId) -> Option<Placed> {
        let mut trees = self.trees.lock();
        let found = trees.iter().position(|(known, _)| *known == root)?;
        let (known, placed) = trees.remove(found).expect("it was found there");
        // The last ones are those that were used last.
        trees.push_back((known, Arc::clone(&placed)));
        Some(placed)
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

/// Finds and shows the conflicts of trees, and resolves them.
#[derive(Clone)]
pub(crate) struct Conflicts {
    context: Arc<Context>,
    rules: MergeRules,
    pub(crate) faces: Arc<Faces>,
}

impl Conflicts {
    pub(crate) fn new(context: &Arc<Context>, rules: &MergeRules) -> Self {
        Self { context: Arc::clone(context), rules: rules.clone(), faces: Arc::default() }
    }

    /// Returns the conflicts of a tree: from the cache, by a comparison with `near` if its conflicts are cached, or by a walk.
    pub(crate) fn conflicts_of(&self, root: RootId, near: Option<RootId>) -> Result<Placed> {
        let faces = &self.faces;
        if let Some(placed) = faces.tree(root) {
            return Ok(placed);
        }
        let store = &self.context.store;
        let neighbour = near.and_then(|near| Some((faces.tree(near)?, self.context.held(Some(near))?)));
        let found = match neighbour {
            Some((placed, (near, _pin))) => conflicts_after(store, near, &placed, root),
            None => conflicts(store, root),
        };
        let placed = Arc::new(found?);
        faces.learn(root, &placed);
        Ok(placed)
    }

    /// Returns whether the conflicts of a tree are in the cache.
    pub(crate) fn are_cached(&self, root: RootId) -> bool {
        self.faces.tree(root).is_some()
    }

    /// Returns a tree with its face: its conflicts rendered in a style, with names from a history. Only faces of trees with conflicts
    /// are cached.
    pub(crate) fn faced(
        &self,
        root: RootId,
        (style, source): (Style, CaptionSource),
        near: Option<RootId>,
    ) -> Result<Arc<RenderedTree>> {
        let placed = self.conflicts_of(root, near)?;
        let faces = &self.faces;
        let key = (style, source);
        let is_it = |(known, faced): &&(FaceKey, Arc<RenderedTree>)| *known == key && faced.tree == root;
        if let Some((_, faced)) = faces.faced.lock().iter().find(is_it) {
            return Ok(Arc::clone(faced));
        }
        let faced = self.captioned(root, &placed, style, key.1.clone())?;
        let faced = Arc::new(faced);
        if !placed.is_empty() {
            let mut kept = faces.faced.lock();
            kept.push_back((key, Arc::clone(&faced)));
            if kept.len() > FACES_KEPT {
                kept.pop_front();
            }
        }
        Ok(faced)
    }

    /// Renders the face of a tree with these conflicts, with the names of workspaces on the marker lines.
    fn captioned(
        &self,
        root: RootId,
        placed: &[PlacedConflict],
        style: Style,
        source: CaptionSource,
    ) -> Result<RenderedTree> {
        let captioner = self.captioner(source);
        let captions = |path: &TreePath, conflict: &Conflict| captioner.caption(path, conflict);
        Ok(RenderedTree::captioned(&self.context.store, root, placed, style, &captions)?)
    }

    /// Renders the faces of two trees where these differ, each with names from a history. Conflicts that both trees have stay as they
    /// are, and cost nothing.
    pub(crate) fn faces_of_difference(
        &self,
        before: (Option<RootId>, CaptionSource),
        after: (Option<RootId>, CaptionSource),
    ) -> Result<[Option<RenderedTree>; 2]> {
        let store = &self.context.store;
        let mut placed = [Vec::new(), Vec::new()];
        for change in diff_roots(store, before.0, after.0, DiffOptions::default())? {
            let change = change?;
            for (placed, entry) in placed.iter_mut().zip([&change.before, &change.after]) {
                if let Some(Entry { node: Node::Conflict(conflict), .. }) = entry {
                    let (path, conflict) = (change.path.clone(), Arc::clone(conflict));
                    placed.push(PlacedConflict { path, conflict });
                }
            }
        }
        let faced = |(root, source): (Option<RootId>, CaptionSource), placed: &[PlacedConflict]| {
            root.map(|root| self.captioned(root, placed, Style::Markers, source)).transpose()
        };
        Ok([faced(before, &placed[0])?, faced(after, &placed[1])?])
    }

    /// Clears the caches, which pin objects.
    pub(crate) fn clear_caches(&self) {
        self.faces.trees.lock().clear();
        self.faces.faced.lock().clear();
        self.faces.matters.lock().clear();
        self.faces.owners.clear();
    }

    /// Returns the resolutions that edits made, to be remembered with their commit. A removal is not remembered: it may have had
    /// other reasons.
    pub(crate) fn resolutions_of(&self, resolved: &[ResolvedConflict], root: RootId) -> Result<Vec<NewResolution>> {
        let store = &self.context.store;
        let mut new = Vec::new();
        for ResolvedConflict { path, conflict, entry } in resolved {
            let Some(entry) = entry else { continue };
            let conflict = without_draft(store, conflict)?;
            new.extend(NewResolution::new(store, &conflict, path, Some(entry), root)?);
        }
        Ok(new)
    }
}

impl CapturedConflicts {
    /// Returns the summary, for the wire.
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

/// Returns the style in which a directory shows conflicts; the default for an unknown word.
pub(crate) fn style_of(word: &str) -> Style {
    Style::from_word(word).unwrap_or_default()
}
