//! Conflicts that are not entries of a tree: the place of an entry, an attribute, a state value. The records of merges list them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use amalgam_engine::merge::{Attribute, ConflictSubject, Decision, OpenDecision, undecided_after, undecided_before};
use amalgam_engine::object::Owner;
use amalgam_engine::{Error as EngineError, RootId, SnapshotId, TreePath, WorkingTree, entry_at};
use amalgam_proto::{Reason, v1};
use bytes::Bytes;

use super::{CachedMatters, CapturedConflicts, Conflicts, PATHS_TOLD};
use crate::error::{Error, Result};

/// The most heads whose matters are cached. Most heads have none.
const HEADS_KEPT: usize = 1024;
/// The most snapshots that are read to find a cached ancestor.
const LATER_MAX: usize = 256;
const OURS: &str = "ours";
const THEIRS: &str = "theirs";
/// The version that keeps both names of an entry that both sides moved.
const UNION: &str = "union";

fn keep_matters(matters: &mut CachedMatters, head: SnapshotId, found: Arc<Vec<OpenDecision>>) {
    matters.push_back((head, found));
    if matters.len() > HEADS_KEPT {
        matters.pop_front();
    }
}

impl Conflicts {
    /// Returns the matters that merges before a snapshot left undecided and that are still open in a tree made from it.
    pub(crate) fn matters_of(&self, head: Option<SnapshotId>, root: RootId) -> Result<Vec<OpenDecision>> {
        let Some(head) = head else { return Ok(Vec::new()) };
        let recorded = self.recorded_matters(head)?;
        if recorded.is_empty() {
            return Ok(Vec::new());
        }
        let store = &self.context.store;
        let tree = WorkingTree::open_root(store, root)?;
        let mut merged: BTreeMap<SnapshotId, Option<WorkingTree>> = BTreeMap::new();
        let mut open = Vec::new();
        for matter in recorded.iter() {
            let merged = merged.entry(matter.merge).or_insert_with(|| WorkingTree::open(store, matter.merge).ok());
            // Retention may have dropped the tree of the merge.
            let Some(merged) = merged else { continue };
            if matter.undecided.is_as(merged, &tree)? {
                open.push(matter.clone());
            }
        }
        open.sort_by(|a, b| a.undecided.path.cmp(&b.undecided.path));
        Ok(open)
    }

    /// Returns the conflicts of a directory or a mount for its user: those in files, and the matters that no file shows. A path with
    /// several of them counts once, as in the result of a merge. `root` is the tree of its files, made from `head`.
    pub(crate) fn summary(
        &self,
        seen: &CapturedConflicts,
        head: Option<SnapshotId>,
        root: RootId,
    ) -> Result<v1::ConflictSummary> {
        let mut summary = seen.message();
        let matters = self.matters_of(head, root)?;
        let mut paths: BTreeSet<_> = matters.iter().map(|matter| &matter.undecided.path).collect();
        for placed in seen.conflicts.iter() {
            paths.remove(&placed.path);
        }
        summary.count += paths.len() as u64;
        let room = PATHS_TOLD.saturating_sub(summary.paths.len());
        summary.paths.extend(paths.into_iter().take(room).map(|path| Bytes::copy_from_slice(path.as_bytes())));
        Ok(summary)
    }

    /// Returns whether merges before a snapshot left matters open, decided in the meantime by edits or not.
    pub(crate) fn has_matters(&self, head: Option<SnapshotId>) -> Result<bool> {
        Ok(head.map(|head| self.recorded_matters(head)).transpose()?.is_some_and(|matters| !matters.is_empty()))
    }

    /// Caches that the history of a snapshot has no open matter.
    pub(crate) fn note_settled(&self, snapshot: SnapshotId) {
        let mut matters = self.faces.matters.lock();
        if !matters.iter().any(|(known, _)| *known == snapshot) {
            keep_matters(&mut matters, snapshot, Arc::default());
        }
    }

    /// Returns whether the history of a snapshot has no open matter, if that is cached.
    pub(crate) fn is_settled(&self, snapshot: SnapshotId) -> bool {
        let matters = self.faces.matters.lock();
        matters.iter().any(|(known, open)| *known == snapshot && open.is_empty())
    }

    fn recorded_matters(&self, head: SnapshotId) -> Result<Arc<Vec<OpenDecision>>> {
        let matters = &self.faces.matters;
        let cached = |head| {
            let matters = matters.lock();
            matters.iter().find(|(known, _)| *known == head).map(|(_, known)| Arc::clone(known))
        };
        if let Some(known) = cached(head) {
            return Ok(known);
        }
        // From a cached ancestor on, only the snapshots since then are read.
        let is_settled = |mut at: SnapshotId| {
            for _ in 0..LATER_MAX {
                if let Some(known) = cached(at) {
                    return known.is_empty();
                }
                match self.context.store.snapshot(at) {
                    Ok(snapshot) if snapshot.parents.len() == 1 && undecided_after(&[], at, &snapshot).is_empty() => {
                        at = snapshot.parents[0];
                    }
                    _ => return false,
                }
            }
            false
        };
        let mut later = Vec::new();
        let mut at = head;
        let mut found = loop {
            if let Some(known) = cached(at) {
                break known.to_vec();
            }
            match self.context.store.snapshot(at) {
                Ok(snapshot) if snapshot.parents.len() == 1 && later.len() < LATER_MAX => {
                    let parent = snapshot.parents[0];
                    later.push((at, snapshot));
                    at = parent;
                    continue;
                }
                Ok(snapshot) if snapshot.parents.len() > 1 && snapshot.parents.iter().all(|one| is_settled(*one)) => {
                    break undecided_after(&[], at, &snapshot);
                }
                _ => {}
            }
            break match undecided_before(&self.context.history, at) {
                // Its record was collected: the history ends here.
                Err(EngineError::Absent { .. }) if at != head => Vec::new(),
                found => found?,
            };
        };
        for (id, snapshot) in later.iter().rev() {
            found = undecided_after(&found, *id, snapshot);
        }
        let found = Arc::new(found);
        keep_matters(&mut matters.lock(), head, Arc::clone(&found));
        Ok(found)
    }

    /// Returns a matter of a tree, for the wire.
    pub(crate) fn matter_message(&self, matter: &OpenDecision, root: RootId) -> Result<v1::Conflict> {
        let undecided = &matter.undecided;
        let versions = self.matter_versions(matter, root)?;
        let about = match &undecided.subject {
            ConflictSubject::Place { .. } => String::new(),
            ConflictSubject::State { key, .. } => key.clone(),
            ConflictSubject::Attribute(Attribute::Owner(_)) => "owner".to_owned(),
            ConflictSubject::Attribute(Attribute::Extended { name, .. }) => name.escape_ascii().to_string(),
        };
        Ok(v1::Conflict {
            path: Bytes::copy_from_slice(undecided.path.as_bytes()),
            kind: undecided.kind.clone(),
            id: matter.id(),
            versions,
            undecided: true,
            about,
            ..v1::Conflict::default()
        })
    }

    fn matter_versions(&self, matter: &OpenDecision, root: RootId) -> Result<Vec<v1::ConflictVersion>> {
        let store = &self.context.store;
        let tree = WorkingTree::open_root(store, root)?;
        let of_value = |name: &str, value: Option<Vec<u8>>| v1::ConflictVersion {
            name: name.to_owned(),
            entry: None,
            value: value.map(Bytes::from),
            workspace: String::new(),
        };
        let undecided = &matter.undecided;
        match &undecided.subject {
            ConflictSubject::Place { ours, theirs } => {
                let root = store.root(root)?;
                let version = |name: &str, place: &Option<TreePath>| {
                    let found = place.as_ref().map(|place| entry_at(store, &root, place)).transpose();
                    let entry = found?.flatten().zip(place.as_ref());
                    let entry = entry.map(|(entry, place)| amalgam_proto::entry(place, &entry));
                    Ok::<_, Error>(v1::ConflictVersion {
                        name: name.to_owned(),
                        entry,
                        value: None,
                        workspace: String::new(),
                    })
                };
                Ok(vec![version(OURS, ours)?, version(THEIRS, theirs)?])
            }
            ConflictSubject::State { key, theirs } => {
                let ours = tree.state(key)?;
                let bytes = |text: Option<String>| text.map(String::into_bytes);
                Ok(vec![of_value(OURS, bytes(ours)), of_value(THEIRS, bytes(theirs.clone()))])
            }
            ConflictSubject::Attribute(theirs) => {
                let ours = theirs.in_tree(&tree, &undecided.path)?;
                Ok(vec![of_value(OURS, value_of(ours)), of_value(THEIRS, value_of(theirs.clone()))])
            }
        }
    }

    /// Returns the snapshot from which a state comes: the snapshot itself, or the head of a directory's workspace.
    pub(crate) fn head_behind(
        &self,
        state: Option<&v1::State>,
        snapshot: Option<SnapshotId>,
        here: Option<&amalgam_engine::workspace::WorkspaceName>,
    ) -> Result<Option<SnapshotId>> {
        let Some(v1::state::State::Directory(name)) = state.and_then(|state| state.state.as_ref()) else {
            return Ok(snapshot);
        };
        let records = self.context.registry.all();
        let record = records.iter().find(|record| amalgam_proto::directory_name(&record.id) == *name);
        match (record, here) {
            (Some(record), _) => self.context.here(&format!("workspaces/{}", record.workspace)),
            (None, here) => Ok(here.cloned()),
        }?
        .map_or(Ok(None), |workspace| self.context.head(&workspace))
    }
}

/// Returns the decision that a version stands for. Refuses a version that the matter does not have, and lists those that it has.
pub(super) fn decision(matter: &OpenDecision, word: &str) -> Result<Decision> {
    let is_place = matches!(&matter.undecided.subject, ConflictSubject::Place { ours: Some(_), theirs: Some(_) });
    match word {
        OURS => Ok(Decision::Ours),
        THEIRS => Ok(Decision::Theirs),
        UNION if is_place => Ok(Decision::Both),
        _ => {
            let there_are = if is_place { "ours, theirs, and union for both names" } else { "ours and theirs" };
            let message = format!("{} has no version {word}; it has {there_are}", matter.undecided.path);
            Err(Error::new(Reason::Invalid, message))
        }
    }
}

fn value_of(attribute: Attribute) -> Option<Vec<u8>> {
    match attribute {
        Attribute::Owner(owner) => owner.map(|Owner { uid, gid }| format!("{uid}:{gid}").into_bytes()),
        Attribute::Extended { value, .. } => value,
    }
}
