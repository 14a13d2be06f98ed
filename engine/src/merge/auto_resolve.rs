//! Resolves conflicts before a merge is committed: applies remembered resolutions, and regenerates files that a command produces.
//! All other conflicts stay.

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
            let stat = self.tree.stat(conflict.path.as_bytes())?.filter(|_| conflict.is_entry);
            let Some(Node::Conflict(met)) = stat.and_then(|stat| stat.entry).map(|entry| entry.node) else {
                self.conflicts.push(conflict);
                continue;
            };
            match self.resolve(store, &conflict.path, &met, time)? {
                true => self.decided(conflict.path, REMEMBERED, Some(met.bare())),
                false => self.conflicts.push(conflict),
            }
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
        let is_made = |conflict: &&PathConflict| conflict.is_entry && maker.is_regenerated(&conflict.path);
        let paths: Vec<_> = self.conflicts.iter().filter(is_made).map(|conflict| conflict.path.clone()).collect();
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
            self.conflicts.retain(|conflict| conflict.path != path);
            self.decided(path, REGENERATE, None);
        }
        Ok(String::new())
    }

    fn decided(&mut self, path: TreePath, strategy: &str, remembered: Option<Bare>) {
        self.files.retain(|file| file.path != path);
        self.files.push(FileMerged { path, strategy: strategy.to_owned(), result: FileResult::Merged, remembered });
    }
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
