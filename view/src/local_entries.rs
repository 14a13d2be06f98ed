//! Local entries: symlinks and directories that a view shows but that are not in its tree, and so in no snapshot.
//!
//! A local entry covers the entry that the tree has at its path, as a mount point does: the covered entry stays in the tree and in the
//! snapshots, and cannot be reached meanwhile. A local entry cannot be moved or removed, nor can a directory above it.

use std::collections::BTreeMap;

use amalgam_engine::object::{Entry, Node, Owner};
use amalgam_engine::{Name, Time, TreePath, WorkingTree};
use bytes::Bytes;

use crate::attributes::{Attributes, Ino, Kind};
use crate::error::{Error, Result};

/// An entry that a view shows at a path and that is not in its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalEntry {
    /// A symlink to this path of the host.
    Link(Bytes),
    /// An empty directory, as a mount point for others.
    Directory,
}

/// The local entries of a view.
#[derive(Default)]
pub(crate) struct LocalEntries {
    entries: BTreeMap<TreePath, LocalEntry>,
    /// Time at which they were set, shown as their modification time.
    since: Time,
}

impl LocalEntries {
    /// Refuses the root, and entries below each other.
    pub(crate) fn new(entries: BTreeMap<TreePath, LocalEntry>, since: Time) -> Result<Self> {
        for path in entries.keys() {
            if path.is_root() {
                return Err(refusal(path, "everything would be kept out of snapshots"));
            }
            if let Some(above) = entries.keys().find(|other| *other != path && path.below(other).is_some()) {
                return Err(refusal(path, &format!("it lies in {above}, which is kept out already")));
            }
        }
        Ok(Self { entries, since })
    }

    pub(crate) fn all(&self) -> &BTreeMap<TreePath, LocalEntry> {
        &self.entries
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether a local entry is exactly at a path.
    pub(crate) fn contains(&self, path: &TreePath) -> bool {
        self.entries.contains_key(path)
    }

    /// Returns whether a local entry is at a path or above it.
    pub(crate) fn covers(&self, path: &TreePath) -> bool {
        self.entries.keys().any(|local| path.below(local).is_some())
    }

    /// Returns the names of the local entries in a directory, sorted.
    pub(crate) fn names_in(&self, directory: &TreePath) -> Vec<Name> {
        let all = self.entries.keys().filter_map(TreePath::split_last);
        all.filter(|(above, _)| above == directory).map(|(_, name)| name).collect()
    }

    /// Returns the paths at which this set and another one differ.
    pub(crate) fn changed_paths(&self, other: &Self) -> Vec<TreePath> {
        let both = self.entries.keys().chain(other.entries.keys());
        both.filter(|path| self.entries.get(*path) != other.entries.get(*path)).cloned().collect()
    }

    /// Refuses a path whose move or removal would move or remove a local entry.
    pub(crate) fn ensure_none_below(&self, path: &TreePath, tree: &WorkingTree) -> Result<()> {
        for local in self.entries.keys().filter(|local| local.below(path).is_some()) {
            let above = local.split_last().map(|(above, _)| above).unwrap_or_default();
            let is_shown = above.is_root() || tree.stat(&above)?.is_some_and(|stat| stat.kind == Kind::Directory);
            if is_shown {
                return Err(Error::Local { path: local.clone() });
            }
        }
        Ok(())
    }

    /// Refuses a path at which no local entry can be: its directory must exist, and it may cover nothing but a directory.
    pub(crate) fn ensure_possible(path: &TreePath, tree: &WorkingTree) -> Result<()> {
        let Some((above, _)) = path.split_last() else {
            return Err(refusal(path, "everything would be kept out of snapshots"));
        };
        let kind = |path: &TreePath| Ok::<_, Error>(tree.stat(path)?.map(|stat| stat.kind));
        if !above.is_root() && kind(&above)? != Some(Kind::Directory) {
            return Err(refusal(path, &format!("there is no directory {above}; make it first")));
        }
        match kind(path)? {
            None | Some(Kind::Directory) => Ok(()),
            Some(_) => Err(refusal(path, "there is a file of this name, and only a directory can be kept out")),
        }
    }

    /// Returns the file type of the local entry at a path.
    pub(crate) fn kind(&self, path: &TreePath) -> Option<Kind> {
        Some(match self.entries.get(path)? {
            LocalEntry::Link(_) => Kind::Symlink,
            LocalEntry::Directory => Kind::Directory,
        })
    }

    /// Returns the local symlink at a path.
    pub(crate) fn symlink(&self, path: &TreePath) -> Option<Entry> {
        match self.entries.get(path)? {
            LocalEntry::Link(target) => {
                Some(Entry { node: Node::Symlink(target.clone()), mode: 0o777, mtime: self.since, extra: None })
            }
            LocalEntry::Directory => None,
        }
    }

    /// Returns the attributes of the local entry at a path.
    pub(crate) fn attributes(&self, path: &TreePath, ino: Ino, owner: Owner) -> Option<Attributes> {
        let (kind, mode, links, size) = match self.entries.get(path)? {
            LocalEntry::Link(target) => (Kind::Symlink, 0o777, 1, target.len() as u64),
            LocalEntry::Directory => (Kind::Directory, 0o755, 2, 4096),
        };
        let time = self.since;
        Some(Attributes {
            ino,
            kind,
            mode,
            links,
            uid: owner.uid,
            gid: owner.gid,
            size,
            blocks: 0,
            device: None,
            atime: time,
            mtime: time,
            ctime: time,
        })
    }
}

fn refusal(path: &TreePath, why: &str) -> Error {
    Error::Unplaceable { path: path.clone(), why: why.to_owned() }
}
