//! What is done about conflicts before a merge lands: a conflict that was resolved before is resolved in the same way, and a file
//! that a command makes is made anew. The rest stays as it is.

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

/// How a file was decided that a command made.
const REGENERATE: &str = "regenerate";
/// How a path was decided by what somebody decided before.
const REMEMBERED: &str = "remembered";

/// Makes files anew from a merged tree: a seam for those who run commands.
pub trait Regenerate {
    /// Whether a rule says that a command makes this file.
    fn is_regenerated(&self, path: &TreePath) -> bool;

    /// Makes such files, which conflict; why not, if they cannot be.
    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> Result<Regenerated>;
}

/// Files with their bytes, or why there are none.
pub type Regenerated = std::result::Result<Vec<(TreePath, Vec<u8>)>, String>;

/// A merged tree that has not landed.
pub(crate) struct Unlanded<'a> {
    pub(crate) tree: &'a mut WorkingTree,
    pub(crate) conflicts: &'a mut Vec<PathConflict>,
    pub(crate) files: &'a mut Vec<FileMerged>,
    /// What keeps the parts that were written ahead until it lands.
    pub(crate) pins: &'a mut Vec<Pin>,
}

impl Unlanded<'_> {
    /// Resolves conflicts as the same ones were resolved before.
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

    /// Puts what a conflict became before in its place; false if nobody has resolved it.
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

    /// Lets files be made anew that conflict and that a command makes; says why, if they could not be. They get the mode that
    /// ours has.
    pub(crate) fn make_anew(&mut self, store: &Store, ours: RootId, maker: &dyn Regenerate) -> Result<String> {
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

    fn decided(&mut self, path: TreePath, way: &str, remembered: Option<Bare>) {
        self.files.retain(|file| file.path != path);
        self.files.push(FileMerged { path, way: way.to_owned(), result: FileResult::Merged, remembered });
    }
}

/// How many conflicts a snapshot was counted to have.
fn counted(store: &Store, id: SnapshotId) -> Result<u64> {
    let snapshot = store.snapshot(id)?;
    Ok(snapshot.metadata.get(CONFLICTS_KEY).and_then(|count| count.parse().ok()).unwrap_or(0))
}

/// Whether one of some snapshots was counted to have conflicts.
pub(crate) fn have_conflicts(store: &Store, snapshots: &[SnapshotId]) -> Result<bool> {
    for id in snapshots {
        if counted(store, *id)? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// How many conflicts a tree has that came of a head: those that the head was counted to have, and the difference.
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
