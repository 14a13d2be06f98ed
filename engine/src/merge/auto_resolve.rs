//! Resolves conflicts before a merge is committed: applies remembered resolutions, and regenerates files that a command produces.
//! All other conflicts stay.

use std::sync::Arc;

use super::base::write;
use super::{FileMerged, FileResult, PathConflict};
use crate::conflict::{CONFLICTS_KEY, resolution};
use crate::diff::{DiffOptions, diff_roots};
use crate::directory::entry_at;
use crate::error::Result;
use crate::id::{Bare, RootId, SnapshotId};
use crate::name::TreePath;
use crate::object::{Conflict, Entry, Node};
use crate::store::{Pin, Store};
use crate::time::Time;
use crate::work::WorkingTree;

/// The strategy name for a file that a command regenerated.
const REGENERATE: &str = "regenerate";
/// The strategy name for a path that a remembered resolution decided.
const REMEMBERED: &str = "remembered";

/// Regenerates files from a merged tree. Implemented by the layer that runs commands.
pub trait Regenerate {
    /// Returns whether a rule states that a command generates this file.
    fn is_regenerated(&self, path: &TreePath) -> bool;

    /// Regenerates these conflicting files. The inner error is the reason if that is not possible.
    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> Result<Regenerated>;
}

/// The files with their bytes, or the reason for the failure.
pub type Regenerated = std::result::Result<Vec<(TreePath, Vec<u8>)>, String>;

/// A merged tree that is not committed yet.
pub(crate) struct UncommittedMerge<'a> {
    pub(crate) tree: &'a mut WorkingTree,
    pub(crate) conflicts: &'a mut Vec<PathConflict>,
    pub(crate) files: &'a mut Vec<FileMerged>,
    /// Pins of trees that were written ahead, until the merge is committed.
    pub(crate) pins: &'a mut Vec<Pin>,
}

impl UncommittedMerge<'_> {
    /// Applies remembered resolutions.
    pub(crate) fn replay(&mut self, store: &Store, time: Time) -> Result<()> {
        for conflict in std::mem::take(self.conflicts) {
            let entries = conflict_entries(self.tree, &conflict)?;
            if entries.is_empty() {
                self.conflicts.push(conflict);
                continue;
            }
            for (path, met) in entries {
                if self.resolve(store, &path, &met, time)? {
                    self.decided(path, REMEMBERED, Some(met.bare()));
                }
            }
            self.keep_open(conflict)?;
        }
        Ok(())
    }

    /// Keeps a conflict that had conflict entries, if the tree still has one of them.
    fn keep_open(&mut self, conflict: PathConflict) -> Result<()> {
        if let Some((path, _)) = conflict_entries(self.tree, &conflict)?.into_iter().next() {
            self.conflicts.push(conflict.at_entry(path));
        }
        Ok(())
    }

    /// Replaces a conflict with its remembered resolution. Returns false if there is none.
    fn resolve(&mut self, store: &Store, path: &TreePath, conflict: &Conflict, time: Time) -> Result<bool> {
        let Some(known) = resolution(store, conflict.bare())? else { return Ok(false) };
        self.tree.keep(known.root)?;
        self.tree.remove_all(path.as_bytes())?;
        match &known.entry {
            None => {}
            Some(entry @ Entry { node: Node::Directory(_), .. }) => self.tree.put_tree(path, entry)?,
            Some(entry) => self.tree.put_entry(path, entry, time)?,
        }
        Ok(true)
    }

    /// Regenerates the conflicting files that a command generates. They keep the mode of ours. Returns the reason if that fails;
    /// empty otherwise.
    pub(crate) fn regenerate_conflicts(
        &mut self,
        store: &Store,
        ours: RootId,
        maker: &dyn Regenerate,
    ) -> Result<String> {
        let (mut paths, mut had_entries) = (Vec::new(), Vec::new());
        for conflict in self.conflicts.iter() {
            let entries = conflict_entries(self.tree, conflict)?;
            had_entries.push(!entries.is_empty());
            paths.extend(entries.into_iter().map(|(path, _)| path).filter(|path| maker.is_regenerated(path)));
        }
        if paths.is_empty() {
            return Ok(String::new());
        }
        let (tree, pin) = write(store, self.tree)?;
        self.pins.push(pin);
        let files = match maker.regenerate(tree, &paths)? {
            Ok(files) => files,
            Err(reason) => return Ok(reason),
        };
        let ours = store.root(ours)?;
        for (path, bytes) in files {
            let mode = entry_at(store, &ours, &path)?.map_or(0o644, |entry| entry.mode);
            self.tree.remove_all(path.as_bytes())?;
            self.tree.write(path.as_bytes(), &bytes)?;
            self.tree.set_mode(path.as_bytes(), mode)?;
            self.decided(path, REGENERATE, None);
        }
        for (conflict, had_entries) in std::mem::take(self.conflicts).into_iter().zip(had_entries) {
            match had_entries {
                true => self.keep_open(conflict)?,
                false => self.conflicts.push(conflict),
            }
        }
        Ok(String::new())
    }

    fn decided(&mut self, path: TreePath, strategy: &str, remembered: Option<Bare>) {
        self.files.retain(|file| file.path != path);
        self.files.push(FileMerged { path, strategy: strategy.to_owned(), result: FileResult::Merged, remembered });
    }
}

/// Returns the conflict entries that a tree has at the paths of a conflict.
pub(super) fn conflict_entries(tree: &WorkingTree, conflict: &PathConflict) -> Result<Vec<(TreePath, Arc<Conflict>)>> {
    let mut entries = Vec::new();
    for path in conflict.entry_paths() {
        let entry = tree.stat(path.as_bytes())?.and_then(|stat| stat.entry);
        if let Some(Entry { node: Node::Conflict(met), .. }) = entry {
            entries.push((path.clone(), met));
        }
    }
    Ok(entries)
}

/// Returns the number of conflicts that the metadata of a snapshot states.
fn counted(store: &Store, id: SnapshotId) -> Result<u64> {
    let snapshot = store.snapshot(id)?;
    Ok(snapshot.metadata.get(CONFLICTS_KEY).and_then(|count| count.parse().ok()).unwrap_or(0))
}

/// Returns whether the metadata of any of these snapshots states conflicts.
pub(crate) fn have_conflicts(store: &Store, snapshots: &[SnapshotId]) -> Result<bool> {
    for id in snapshots {
        if counted(store, *id)? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the number of conflicts in a tree derived from a head: the number stated for the head, adjusted by the difference.
pub(crate) fn count_conflicts(store: &Store, head: SnapshotId, tree: RootId) -> Result<u64> {
    let ours = store.snapshot(head)?.root;
    let is_one = |entry: &Option<Entry>| matches!(entry, Some(Entry { node: Node::Conflict(_), .. }));
    let (mut came, mut went) = (counted(store, head)?, 0);
    for change in diff_roots(store, Some(ours), Some(tree), DiffOptions::default())? {
        let change = change?;
        came += u64::from(is_one(&change.after));
        went += u64::from(is_one(&change.before));
    }
    Ok(came.saturating_sub(went))
}
