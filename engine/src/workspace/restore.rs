//! Restores an old tree, or some of its paths, as a new snapshot on top of the head. No snapshot is discarded.

use std::collections::{BTreeMap, BTreeSet};

use super::commit::Committed;
use super::{Change, WorkspaceName, Workspaces};
use crate::diff::{DiffOptions, What, diff_entries};
use crate::directory::{entry_at, linked_paths};
use crate::error::{Error, Result};
use crate::id::{LinkGroup, RootId, SnapshotId};
use crate::lean::hold_tree;
use crate::name::TreePath;
use crate::object::{EntryKind, Root};
use crate::operation::{OperationContext, retry_while};
use crate::store::Store;
use crate::time::Time;
use crate::work::WorkingTree;

impl Workspaces {
    /// Makes the tree of a snapshot the newest one of the workspace, including times. The current head becomes the parent. For a
    /// snapshot without its caches, the lean tree is restored ([`lean`](crate::lean)).
    pub fn restore(&self, name: &WorkspaceName, to: SnapshotId, context: &OperationContext) -> Result<Committed> {
        let held = hold_tree(&self.store, to)?;
        self.restore_with(name, context, format!("restore {}", to.short()), |head| {
            let mut tree = WorkingTree::open_root(&self.store, held.root)?;
            tree.rebase(head);
            Ok(tree)
        })
    }

    /// Restores some paths from a snapshot, with everything below them. Paths that the snapshot does not have are removed. Files
    /// whose bytes change get the time of this operation, so that build tools rebuild their dependents.
    ///
    /// Names of one file that are restored together are one file again. A name that is restored without the others becomes a
    /// separate file, so that the other paths stay as they are.
    pub fn restore_paths(
        &self,
        name: &WorkspaceName,
        from: SnapshotId,
        paths: &[TreePath],
        context: &OperationContext,
    ) -> Result<Committed> {
        let held = hold_tree(&self.store, from)?;
        let root = held.root;
        let words = paths.iter().map(TreePath::to_string).collect::<Vec<_>>().join(", ");
        self.restore_with(name, context, format!("restore {words} from {}", from.short()), |head| {
            let mut tree = match head {
                Some(head) => WorkingTree::open(&self.store, head)?,
                None => WorkingTree::new(&self.store),
            };
            tree.set_now(context.time);
            tree.keep(root)?;
            let before = head.map(|head| self.store.root(self.store.snapshot(head)?.root)).transpose()?;
            let after = self.store.root(root)?;
            let paths = outermost(paths);
            let mut linked = LinkedNames::default();
            for path in &paths {
                take(&mut tree, before.as_deref(), &after, path, Taken::At(context.time), &mut linked)?;
            }
            link_again(&mut tree, &after, &paths, linked)?;
            Ok(tree)
        })
    }

    /// Commits a tree that `make` builds from the head. Retries with the new head if another writer was faster.
    fn restore_with(
        &self,
        name: &WorkspaceName,
        context: &OperationContext,
        message: String,
        make: impl Fn(Option<SnapshotId>) -> Result<WorkingTree>,
    ) -> Result<Committed> {
        let change = Change::new(message);
        let is_stale = |error: &Error| matches!(error, Error::StaleHead { .. });
        retry_while(is_stale, || {
            let mut tree = make(self.get(name)?.head)?;
            self.commit_as(name, &mut tree, &change, context, "restore")
        })
    }
}

/// Returns a tree with some paths, and everything below them, taken from another tree. A path that the other tree does not have
/// is removed; one that neither has is skipped. Names of one file that are taken together are one file again; a name that is taken
/// without the others becomes a separate file.
pub fn with_paths_of(
    store: &Store,
    tree: RootId,
    other: RootId,
    paths: &[TreePath],
    times: Taken,
) -> Result<WorkingTree> {
    let mut made = WorkingTree::open_root(store, tree)?;
    if let Taken::At(now) = times {
        made.set_now(now);
    }
    made.keep(other)?;
    let (before, after) = (store.root(tree)?, store.root(other)?);
    let paths = outermost(paths);
    let mut linked = LinkedNames::default();
    for path in &paths {
        match take(&mut made, Some(&before), &after, path, times, &mut linked) {
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    link_again(&mut made, &after, &paths, linked)?;
    Ok(made)
}

/// The changed names of files with several names, by the groups of the tree that they are taken from.
type LinkedNames = BTreeMap<LinkGroup, BTreeSet<TreePath>>;

/// Links names that were taken as separate files with the other taken names of their file. `taken` are the paths that were taken, with
/// everything below them. The file gets the newest time of its names; directories keep their times.
fn link_again(tree: &mut WorkingTree, after: &Root, taken: &[TreePath], linked: LinkedNames) -> Result<()> {
    let store = tree.store().clone();
    // The taken paths are sorted, and none is below another one.
    let is_taken = |path: &TreePath| {
        let last = taken.partition_point(|taken| taken <= path).checked_sub(1);
        last.is_some_and(|last| taken[last] == *path || path.below(&taken[last]).is_some())
    };
    for (group, changed) in linked {
        let mut names = linked_paths(&store, after, group)?;
        names.retain(is_taken);
        // A name that did not change is still one of the file's names.
        let Some(first) = names.iter().find(|name| !changed.contains(name)).or(names.first()).cloned() else {
            continue;
        };
        let mut newest = Time(i64::MIN);
        for name in &names {
            newest = newest.max(tree.stat(name.as_bytes())?.map_or(newest, |found| found.mtime));
        }
        for name in changed.iter().filter(|name| **name != first) {
            let parent = name.split_last().map(|(parent, _)| parent).unwrap_or_default();
            let time = tree.stat(parent.as_bytes())?.map(|found| found.mtime);
            tree.remove(name.as_bytes())?;
            tree.link(first.as_bytes(), name.as_bytes())?;
            if let Some(time) = time {
                tree.set_mtime(parent.as_bytes(), time)?;
            }
        }
        tree.set_mtime(first.as_bytes(), newest)?;
    }
    Ok(())
}

/// Returns these paths, sorted, without those at or below another one of them.
fn outermost(paths: &[TreePath]) -> Vec<TreePath> {
    let mut sorted = paths.to_vec();
    sorted.sort_unstable();
    // In this order a path is immediately followed by those below it.
    sorted.dedup_by(|path, last| path.below(last).is_some());
    sorted
}

/// Returns a tree with the entries of some paths taken from another tree, but not the entries below them: a directory that both have
/// keeps its contents and gets the attributes of the other one. A path that the other tree does not have is removed. Directories
/// keep their times. A path whose directory is missing is skipped. The paths are sorted. A file with several names becomes a
/// separate file.
pub fn with_entries_of(store: &Store, tree: RootId, other: RootId, paths: &[TreePath]) -> Result<WorkingTree> {
    let mut made = WorkingTree::open_root(store, tree)?;
    take_entries(&mut made, other, paths)?;
    Ok(made)
}

/// Takes the entries of some paths from another tree, as [`with_entries_of`] does, into a tree that may have edits.
pub fn take_entries(tree: &mut WorkingTree, other: RootId, paths: &[TreePath]) -> Result<()> {
    let store = tree.store().clone();
    tree.keep(other)?;
    let after = store.root(other)?;
    for path in paths {
        let parent = path.split_last().map(|(parent, _)| parent).unwrap_or_default();
        let time = match tree.stat(parent.as_bytes()) {
            Ok(Some(found)) if found.kind == EntryKind::Directory => found.mtime,
            Ok(_) | Err(Error::NotADirectory { .. }) => continue,
            Err(error) => return Err(error),
        };
        match entry_at(&store, &after, path)? {
            Some(entry) => tree.put_entry(path, &entry, entry.mtime)?,
            None if tree.exists(path.as_bytes())? => tree.remove_all(path.as_bytes())?,
            None => continue,
        }
        tree.set_mtime(parent.as_bytes(), time)?;
    }
    Ok(())
}

/// The times of paths that are taken from another tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// This time for every file whose bytes change, so that build tools rebuild its dependents.
    At(Time),
    /// The times of the other tree.
    AsItWas,
}

/// Replaces a path of a tree, and everything below it, with that of another tree. `before` is the tree as stored. With
/// [`Taken::AsItWas`], existing directories above the path keep their times. Each name of a file with several names becomes a separate
/// file, and is added to `linked`.
fn take(
    tree: &mut WorkingTree,
    before: Option<&Root>,
    after: &Root,
    path: &TreePath,
    times: Taken,
    linked: &mut LinkedNames,
) -> Result<()> {
    let store = tree.store().clone();
    let old = before.map(|root| entry_at(&store, root, path)).transpose()?.flatten();
    let new = entry_at(&store, after, path)?;
    if old.is_none() && new.is_none() {
        return Err(Error::NotFound { path: path.clone() });
    }
    let now = tree.now();
    let above = make_parents(tree, after, path, times)?;
    let mut removed: Option<TreePath> = None;
    let exact = times == Taken::AsItWas;
    // Directories at or below the path that get the times of the other tree: every edit sets the time of its directory.
    let mut directories = BTreeSet::new();
    for change in diff_entries(&store, path.clone(), old, new, DiffOptions { times: exact, ..DiffOptions::default() })?
    {
        let change = change?;
        if removed.as_ref().is_some_and(|removed| change.path.below(removed).is_some()) {
            continue;
        }
        if change.path != *path {
            directories.extend(change.path.split_last().map(|(parent, _)| parent));
        }
        let was_directory = change.before.as_ref().is_some_and(|entry| entry.kind() == EntryKind::Directory);
        match &change.after {
            None => {
                tree.remove_all(change.path.as_bytes())?;
                removed = Some(change.path);
            }
            Some(entry) => {
                let mtime = match (&change.what, &change.before) {
                    _ if exact => entry.mtime,
                    (What::Metadata, Some(before)) => before.mtime,
                    _ => now,
                };
                tree.put_entry(&change.path, entry, mtime)?;
                if let Some(group) = entry.link() {
                    linked.entry(group).or_default().insert(change.path.clone());
                }
                if entry.kind() == EntryKind::Directory {
                    directories.insert(change.path);
                } else if was_directory {
                    removed = Some(change.path);
                }
            }
        }
    }
    if exact {
        for directory in directories {
            if let Some(entry) = entry_at(&store, after, &directory)? {
                tree.set_mtime(directory.as_bytes(), entry.mtime)?;
            }
        }
        for (directory, mtime) in above {
            tree.set_mtime(directory.as_bytes(), mtime)?;
        }
    }
    Ok(())
}

/// Creates the missing directories above a path as another tree has them. Returns every directory above the path with its time,
/// as it was before this call or, for a new one, as it was created.
fn make_parents(tree: &mut WorkingTree, after: &Root, path: &TreePath, times: Taken) -> Result<Vec<(TreePath, Time)>> {
    let store = tree.store().clone();
    let mut made = Vec::new();
    let Some((parent, _)) = path.split_last() else { return Ok(made) };
    let (mut above, mut names) = (TreePath::root(), parent.names());
    loop {
        let mtime = match tree.stat(above.as_bytes())? {
            Some(found) => Some(found.mtime),
            None => match entry_at(&store, after, &above)? {
                Some(entry) => {
                    let mtime = match times {
                        Taken::At(now) => now,
                        Taken::AsItWas => entry.mtime,
                    };
                    tree.put_entry(&above, &entry, mtime)?;
                    Some(mtime)
                }
                None => None,
            },
        };
        made.extend(mtime.map(|mtime| (above.clone(), mtime)));
        let Some(name) = names.next() else { return Ok(made) };
        above = above.join(&name);
    }
}
