//! What a directory held when it was last looked at: the stored tree, and what the host said of each name.
//!
//! Directories lie side by side in one list and refer to each other by their place, so that a change along a few paths
//! touches only those, and nothing is ever copied as a whole. An index is a cache: without one everything is looked at.

mod file;

use std::collections::BTreeMap;
use std::fmt;

use amalgam_engine::object::DirectoryRef;
use amalgam_engine::{LinkGroup, Name, RootId, Time, TreePath};
use rustix::fs::FileType;

use crate::host::Identity;
use crate::stamp::Stamp;

/// How long before a look a change must lie for its stamp to be trusted: the kernel's clock for files ticks every 10 ms at
/// the slowest.
const GRAIN: i64 = 20_000_000;
/// The same on file systems that keep whole seconds, or every second one.
const COARSE_GRAIN: i64 = 3_000_000_000;

/// Where the root directory lies in the list.
pub(crate) const TOP: usize = 0;

/// What a directory held when it was last looked at.
pub struct Index {
    identity: Identity,
    root: Option<RootId>,
    /// By what the settings' rules were known.
    rules: [u8; 32],
    /// The first is the root; there is none as long as nothing is known.
    directories: Vec<Directory>,
    free: Vec<usize>,
    links: BTreeMap<TreePath, LinkGroup>,
    totals: Totals,
}

/// What the whole tree holds, the root not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    pub(crate) others: u64,
    pub(crate) bytes: u64,
}

/// One directory.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
    /// Whether it has extended attributes.
    pub(crate) has_attributes: bool,
    /// What it holds in the stored tree.
    pub(crate) contents: Option<DirectoryRef>,
    /// Sorted by name.
    pub(crate) names: Vec<Item>,
}

#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) name: Name,
    pub(crate) held: Held,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    Leaf(Leaf),
    /// A directory, by its place.
    Directory(u32),
}

/// All that is no directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
}

/// What an equal stamp says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing changed.
    Sure,
    /// Nothing: it was taken in the moment of a change, and another one in the same moment would not show.
    Racy,
    /// The bytes and attributes are those of the stored tree, but the tree does not have the stamp's times.
    Bytes,
}

impl Trust {
    /// For a stamp that was taken at or after `now`. Whatever happens to the file from then on gets a `ctime` of `now` less a tick
    /// or later; a `ctime` well before that will not come again. `mtime` says nothing: anybody can set it. A file system
    /// whose clock is ahead of `now` costs reads; one whose clock is behind by more than the grain is not noticed.
    pub(crate) fn of(stamp: &Stamp, now: Time) -> Self {
        let whole_seconds = stamp.ctime.0 % 1_000_000_000 == 0;
        let grain = if whole_seconds { COARSE_GRAIN } else { GRAIN };
        if stamp.ctime.0 >= now.0.saturating_sub(grain) { Self::Racy } else { Self::Sure }
    }
}

impl Totals {
    fn leaf(&mut self, stamp: &Stamp) -> &mut u64 {
        match stamp.kind() {
            FileType::RegularFile => &mut self.files,
            FileType::Symlink => &mut self.symlinks,
            _ => &mut self.others,
        }
    }

    fn add(&mut self, stamp: &Stamp) {
        *self.leaf(stamp) += 1;
        self.bytes += bytes_of(stamp);
    }

    fn take(&mut self, stamp: &Stamp) {
        *self.leaf(stamp) -= 1;
        self.bytes -= bytes_of(stamp);
    }
}

/// What a file counts in bytes.
fn bytes_of(stamp: &Stamp) -> u64 {
    if stamp.kind() == FileType::RegularFile { stamp.size } else { 0 }
}

impl Index {
    /// Of a directory of which nothing is known yet.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            root: None,
            rules: [0; 32],
            directories: Vec::new(),
            free: Vec::new(),
            links: BTreeMap::new(),
            totals: Totals::default(),
        }
    }

    /// The directory it is about.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The stored tree it describes.
    pub fn root(&self) -> Option<RootId> {
        self.root
    }

    /// What the host said of a path.
    pub fn stamp(&self, path: &TreePath) -> Option<Stamp> {
        self.look(path).map(|(stamp, _)| stamp)
    }

    /// What the host said of a path, and what that says.
    pub(crate) fn look(&self, path: &TreePath) -> Option<(Stamp, Trust)> {
        let Some((parent, name)) = path.split_last() else {
            return self.directories.first().map(|top| (top.stamp, top.trust));
        };
        match self.directory(self.place(&parent)?).get(&name)? {
            Held::Leaf(leaf) => Some((leaf.stamp, leaf.trust)),
            Held::Directory(at) => {
                let Directory { stamp, trust, .. } = self.directory(*at as usize);
                Some((*stamp, *trust))
            }
        }
    }

    /// How many names it holds.
    pub fn names(&self) -> u64 {
        let Totals { files, directories, symlinks, others, .. } = self.totals;
        files + directories + symlinks + others
    }

    pub(crate) fn totals(&self) -> Totals {
        self.totals
    }

    pub(crate) fn rules(&self) -> [u8; 32] {
        self.rules
    }

    pub(crate) fn is_known(&self) -> bool {
        !self.directories.is_empty()
    }

    pub(crate) fn directory(&self, at: usize) -> &Directory {
        &self.directories[at]
    }

    pub(crate) fn directory_mut(&mut self, at: usize) -> &mut Directory {
        &mut self.directories[at]
    }

    /// Where a directory lies.
    pub(crate) fn place(&self, path: &TreePath) -> Option<usize> {
        let mut at = self.is_known().then_some(TOP)?;
        for name in path.names() {
            match self.directories[at].get(&name)? {
                Held::Directory(below) => at = *below as usize,
                Held::Leaf(_) => return None,
            }
        }
        Some(at)
    }

    /// The group of each name that has one.
    pub(crate) fn links(&self) -> &BTreeMap<TreePath, LinkGroup> {
        &self.links
    }

    pub(crate) fn links_mut(&mut self) -> &mut BTreeMap<TreePath, LinkGroup> {
        &mut self.links
    }

    /// Says which tree it describes now.
    pub(crate) fn describe(&mut self, root: RootId, rules: [u8; 32]) {
        self.root = Some(root);
        self.rules = rules;
    }

    /// Takes in a directory that is new; the caller refers to it.
    pub(crate) fn add(&mut self, directory: Directory) -> usize {
        if self.is_known() {
            self.totals.directories += 1;
        }
        for item in &directory.names {
            let Held::Leaf(leaf) = &item.held else { unreachable!("a directory below comes later") };
            self.totals.add(&leaf.stamp);
        }
        if let Some(at) = self.free.pop() {
            self.directories[at] = directory;
            return at;
        }
        self.directories.push(directory);
        self.directories.len() - 1
    }

    /// Sets or removes names, which ascend, in a directory.
    pub(crate) fn change(&mut self, at: usize, changes: Vec<(Name, Option<Held>)>) {
        let before = std::mem::take(&mut self.directories[at].names);
        let mut gone = Vec::new();
        let mut names = Vec::with_capacity(before.len() + changes.len());
        let mut before = before.into_iter().peekable();
        for (name, held) in changes {
            while let Some(item) = before.next_if(|item| item.name < name) {
                names.push(item);
            }
            match (before.next_if(|item| item.name == name).map(|item| item.held), held) {
                (Some(Held::Directory(old)), Some(Held::Directory(new))) if old == new => {}
                (Some(Held::Directory(old)), _) => gone.push(old as usize),
                (Some(Held::Leaf(old)), _) => self.totals.take(&old.stamp),
                (None, _) => {}
            }
            if let Some(held) = held {
                if let Held::Leaf(leaf) = &held {
                    self.totals.add(&leaf.stamp);
                }
                names.push(Item { name, held });
            }
        }
        names.extend(before);
        names.shrink_to_fit();
        self.directories[at].names = names;
        self.forget(gone);
    }

    /// Gives up directories with all below them.
    fn forget(&mut self, mut gone: Vec<usize>) {
        while let Some(at) = gone.pop() {
            self.totals.directories -= 1;
            for item in std::mem::take(&mut self.directories[at].names) {
                match item.held {
                    Held::Leaf(leaf) => self.totals.take(&leaf.stamp),
                    Held::Directory(below) => gone.push(below as usize),
                }
            }
            self.free.push(at);
        }
    }

    /// All leaves below a directory, with their paths, in no order.
    pub(crate) fn each_leaf(&self, at: usize, path: &TreePath, mut see: impl FnMut(&TreePath, &Name, &Leaf)) {
        let mut open = vec![(at, path.clone())];
        while let Some((at, path)) = open.pop() {
            for item in &self.directories[at].names {
                match &item.held {
                    Held::Leaf(leaf) => see(&path, &item.name, leaf),
                    Held::Directory(below) => open.push((*below as usize, path.join(&item.name))),
                }
            }
        }
    }
}

impl Directory {
    pub(crate) fn get(&self, name: &Name) -> Option<&Held> {
        let at = self.names.binary_search_by(|item| item.name.cmp(name)).ok()?;
        Some(&self.names[at].held)
    }

    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut Held> {
        let at = self.names.binary_search_by(|item| item.name.cmp(name)).ok()?;
        Some(&mut self.names[at].held)
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { identity, root, totals, .. } = self;
        f.debug_struct("Index")
            .field("identity", identity)
            .field("root", root)
            .field("totals", totals)
            .finish_non_exhaustive()
    }
}
