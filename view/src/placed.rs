//! Entries that a view shows and its tree does not have: paths that are kept out of every snapshot.
//!
//! Such an entry stands in front of whatever the tree has at its path, as a mount point does: that stays in the tree and in the
//! snapshots, and cannot be reached meanwhile. It is there wherever its directory is, and cannot be moved or removed, nor can a
//! directory above it.

use std::collections::BTreeMap;

use amalgam_engine::object::{Entry, Node};
use amalgam_engine::{Name, Time, TreePath};
use bytes::Bytes;

use crate::attributes::{Attributes, Kind};
use crate::error::{Error, Result};
use crate::exchange::Parting;
use crate::inodes::{Ino, Place};
use crate::notice::Notice;
use crate::view::{Live, View};

/// What stands at a path that is kept out of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// A symlink to this place of the host.
    Link(Bytes),
    /// An empty directory, for others to mount on.
    Directory,
}

/// All of them, and since when they are there.
#[derive(Default)]
pub(crate) struct PlacedPaths {
    at: BTreeMap<TreePath, Placed>,
    since: Time,
}

impl View {
    /// Shows these, and no others that were shown before. Whoever holds what they cover goes on with it apart from the tree.
    pub fn place(&self, placed: BTreeMap<TreePath, Placed>) -> Result<()> {
        for path in placed.keys() {
            demand_apart(path, &placed)?;
        }
        let live = &mut *self.shared.live.write();
        live.demand_writable()?;
        let before = live.placed.at.clone();
        let both = before.keys().chain(placed.keys());
        let changed: Vec<_> = both.filter(|path| before.get(*path) != placed.get(*path)).collect();
        let mut parting = Parting::default();
        for ino in changed.iter().filter_map(|path| live.known(path)) {
            parting.prepare(self, live, ino, None)?;
        }
        for path in changed {
            if let Some(ino) = live.known(path) {
                parting.cut_off(self, live, ino);
            }
            let (above, name) = path.split_last().expect("the root is never placed");
            if let Some(parent) = live.known(&above) {
                self.shared.watchers.tell(None, || Notice::Entry { parent, name: name.clone() });
                self.shared.watchers.tell(None, || Notice::Contents(parent));
            }
        }
        live.placed = PlacedPaths { at: placed, since: self.now() };
        Ok(())
    }

    /// What is shown and not in the tree.
    pub fn placed(&self) -> BTreeMap<TreePath, Placed> {
        self.shared.live.read().placed.at.clone()
    }

    /// Refuses a path at which nothing can be placed: its directory must be there, and nothing but a directory may be covered.
    pub fn demand_placeable(&self, path: &TreePath) -> Result<()> {
        let Some((above, _)) = path.split_last() else {
            return Err(unplaceable(path, "everything would be kept out of snapshots"));
        };
        let live = self.shared.live.read();
        let kind = |path: &TreePath| Ok::<_, Error>(live.tree.stat(path)?.map(|stat| stat.kind));
        if !above.is_root() && kind(&above)? != Some(Kind::Directory) {
            return Err(unplaceable(path, &format!("there is no directory {above}; make it first")));
        }
        match kind(path)? {
            None | Some(Kind::Directory) => Ok(()),
            Some(_) => Err(unplaceable(path, "there is a file of this name, and only a directory can be kept out")),
        }
    }
}

fn unplaceable(path: &TreePath, why: &str) -> Error {
    Error::Unplaceable { path: path.clone(), why: why.to_owned() }
}

/// Refuses the root, and a path that lies below another one.
fn demand_apart(path: &TreePath, all: &BTreeMap<TreePath, Placed>) -> Result<()> {
    if path.is_root() {
        return Err(unplaceable(path, "everything would be kept out of snapshots"));
    }
    match all.keys().find(|other| *other != path && path.below(other).is_some()) {
        Some(above) => Err(unplaceable(path, &format!("it lies in {above}, which is kept out already"))),
        None => Ok(()),
    }
}

impl Live {
    /// Whether something is placed anywhere.
    pub(crate) fn has_placed(&self) -> bool {
        !self.placed.at.is_empty()
    }

    /// Whether something is placed exactly here.
    pub(crate) fn is_placed(&self, path: &TreePath) -> bool {
        self.placed.at.contains_key(path)
    }

    /// Whether something is placed here or above.
    pub(crate) fn is_hidden(&self, path: &TreePath) -> bool {
        self.placed.at.keys().any(|placed| path.below(placed).is_some())
    }

    /// The names that are placed in a directory, in their order.
    pub(crate) fn placed_in(&self, directory: &TreePath) -> Vec<Name> {
        let all = self.placed.at.keys().filter_map(TreePath::split_last);
        all.filter(|(above, _)| above == directory).map(|(_, name)| name).collect()
    }

    /// Refuses what would move or remove something placed, by itself or with a directory above it.
    pub(crate) fn demand_free(&self, path: &TreePath) -> Result<()> {
        for placed in self.placed.at.keys().filter(|placed| placed.below(path).is_some()) {
            let above = placed.split_last().map(|(above, _)| above).unwrap_or_default();
            let is_shown = above.is_root() || self.tree.stat(&above)?.is_some_and(|stat| stat.kind == Kind::Directory);
            if is_shown {
                return Err(Error::Local { path: placed.clone() });
            }
        }
        Ok(())
    }

    /// Refuses a change of something placed itself.
    pub(crate) fn demand_in_tree(&self, ino: Ino) -> Result<()> {
        if self.placed.at.is_empty() {
            return Ok(());
        }
        match self.path(ino)? {
            Some(path) if self.is_placed(&path) => Err(Error::Local { path }),
            _ => Ok(()),
        }
    }

    /// What is placed here, as a file apart; nothing for a directory.
    pub(crate) fn placed_file(&self, path: &TreePath) -> Option<Entry> {
        match self.placed.at.get(path)? {
            Placed::Link(target) => {
                Some(Entry { node: Node::Symlink(target.clone()), mode: 0o777, mtime: self.placed.since, extra: None })
            }
            Placed::Directory => None,
        }
    }

    /// The inode of what is placed here, made if need be.
    pub(crate) fn placed_inode(&mut self, place: Place, path: &TreePath) -> Option<Ino> {
        let kind = match self.placed.at.get(path)? {
            Placed::Link(_) => Kind::Symlink,
            Placed::Directory => Kind::Directory,
        };
        Some(self.inodes.at(&place).unwrap_or_else(|| self.inodes.insert(place, kind)))
    }

    /// The attributes of what is placed here.
    pub(crate) fn placed_attributes(&self, view: &View, ino: Ino, path: &TreePath) -> Option<Attributes> {
        let owner = view.shared.options.owner;
        let (kind, mode, links, size) = match self.placed.at.get(path)? {
            Placed::Link(target) => (Kind::Symlink, 0o777, 1, target.len() as u64),
            Placed::Directory => (Kind::Directory, 0o755, 2, 4096),
        };
        let time = self.placed.since;
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
