//! Index of a directory: the stored tree of its last capture, and the stamp of each name.
//!
//! Directories are stored in one vector and refer to each other by position, so that a change along a few paths touches only
//! those, and the index is never copied as a whole. An index is a cache: without it everything is scanned.

mod file;

use std::collections::BTreeMap;
use std::fmt;

use amalgam_engine::object::DirectoryRef;
use amalgam_engine::{LinkGroup, Name, RootId, Time, TreePath};
use rustix::fs::FileType;

use crate::host::Identity;
use crate::stamp::Stamp;

/// Minimum age of a change, in nanoseconds, for a stamp to be trusted: the kernel's clock for files ticks at least every 10 ms.
const TIME_GRANULARITY: i64 = 20_000_000;
/// Minimum age on file systems that store times in seconds, or in units of two seconds.
const COARSE_TIME_GRANULARITY: i64 = 3_000_000_000;

/// Position of the root directory.
pub(crate) const ROOT: usize = 0;

/// Index of a directory.
pub struct Index {
    identity: Identity,
    root: Option<RootId>,
    /// Fingerprint of the ignore rules in the settings.
    rules: [u8; 32],
    /// The first is the root; empty as long as nothing is known.
    directories: Vec<Directory>,
    free: Vec<usize>,
    links: BTreeMap<TreePath, LinkGroup>,
    totals: Totals,
}

/// Contents of the whole tree; the root is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) symlinks: u64,
    pub(crate) others: u64,
    pub(crate) bytes: u64,
}

/// A directory of the index.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
    /// Whether it has extended attributes.
    pub(crate) has_attributes: bool,
    /// Its contents in the stored tree.
    pub(crate) contents: Option<DirectoryRef>,
    /// Its names, sorted.
    pub(crate) names: Vec<NamedEntry>,
}

#[derive(Clone, Debug)]
pub(crate) struct NamedEntry {
    pub(crate) name: Name,
    pub(crate) held: IndexEntry,
}

/// Entry of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IndexEntry {
    Leaf(Leaf),
    /// A directory, by its position.
    Directory(u32),
}

/// A file, symlink, FIFO, socket or device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    pub(crate) stamp: Stamp,
    pub(crate) trust: Trust,
}

/// The conclusion that an equal stamp allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing changed.
    Clean,
    /// None: the stamp was taken so soon after a change that another change could have the same time.
    Racy,
    /// Bytes and attributes are those of the stored tree, but times differ.
    BytesOnly,
}

impl Trust {
    /// Returns the trust in a stamp that was taken at or after `now`. Later changes get a `ctime` of at least `now` minus one
    /// clock tick, so a `ctime` well before that is unique. Programs can set `mtime`, so it proves nothing. A file system whose
    /// clock is ahead of `now` costs extra reads; one whose clock is behind by more than the granularity is not noticed.
    pub(crate) fn of(stamp: &Stamp, now: Time) -> Self {
        let whole_seconds = stamp.ctime.0 % 1_000_000_000 == 0;
        let grain = if whole_seconds { COARSE_TIME_GRANULARITY } else { TIME_GRANULARITY };
        if stamp.ctime.0 >= now.0.saturating_sub(grain) { Self::Racy } else { Self::Clean }
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

/// Returns the number of bytes that a file counts.
fn bytes_of(stamp: &Stamp) -> u64 {
    if stamp.kind() == FileType::RegularFile { stamp.size } else { 0 }
}

impl Index {
    /// Creates the index of a directory with unknown contents.
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

    /// Returns the identity of the directory.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the stored tree that it describes.
    pub fn root(&self) -> Option<RootId> {
        self.root
    }

    /// Returns the stamp of a path.
    pub fn stamp(&self, path: &TreePath) -> Option<Stamp> {
        self.stamp_and_trust(path).map(|(stamp, _)| stamp)
    }

    /// Returns the stamp of a path, and the trust in it.
    pub(crate) fn stamp_and_trust(&self, path: &TreePath) -> Option<(Stamp, Trust)> {
        let Some((parent, name)) = path.split_last() else {
            return self.directories.first().map(|top| (top.stamp, top.trust));
        };
        match self.directory(self.position(&parent)?).get(&name)? {
            IndexEntry::Leaf(leaf) => Some((leaf.stamp, leaf.trust)),
            IndexEntry::Directory(at) => {
                let Directory { stamp, trust, .. } = self.directory(*at as usize);
                Some((*stamp, *trust))
            }
        }
    }

    /// Returns the number of names.
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

    /// Returns the position of a directory.
    pub(crate) fn position(&self, path: &TreePath) -> Option<usize> {
        let mut at = self.is_known().then_some(ROOT)?;
        for name in path.names() {
            match self.directories[at].get(&name)? {
                IndexEntry::Directory(below) => at = *below as usize,
                IndexEntry::Leaf(_) => return None,
            }
        }
        Some(at)
    }

    /// Returns the link group of each path that has one.
    pub(crate) fn links(&self) -> &BTreeMap<TreePath, LinkGroup> {
        &self.links
    }

    pub(crate) fn links_mut(&mut self) -> &mut BTreeMap<TreePath, LinkGroup> {
        &mut self.links
    }

    /// Sets the tree that it describes.
    pub(crate) fn set_root(&mut self, root: RootId, rules: [u8; 32]) {
        self.root = Some(root);
        self.rules = rules;
    }

    /// Adds a new directory and returns its position; the caller links it to its parent.
    pub(crate) fn add(&mut self, directory: Directory) -> usize {
        if self.is_known() {
            self.totals.directories += 1;
        }
        for item in &directory.names {
            let IndexEntry::Leaf(leaf) = &item.held else { unreachable!("a directory below comes later") };
            self.totals.add(&leaf.stamp);
        }
        if let Some(at) = self.free.pop() {
            self.directories[at] = directory;
            return at;
        }
        self.directories.push(directory);
        self.directories.len() - 1
    }

    /// Sets or removes names of a directory; `changes` are sorted.
    pub(crate) fn change(&mut self, at: usize, changes: Vec<(Name, Option<IndexEntry>)>) {
        let before = std::mem::take(&mut self.directories[at].names);
        let mut gone = Vec::new();
        let mut names = Vec::with_capacity(before.len() + changes.len());
        let mut before = before.into_iter().peekable();
        for (name, held) in changes {
            while let Some(item) = before.next_if(|item| item.name < name) {
                names.push(item);
            }
            match (before.next_if(|item| item.name == name).map(|item| item.held), held) {
                (Some(IndexEntry::Directory(old)), Some(IndexEntry::Directory(new))) if old == new => {}
                (Some(IndexEntry::Directory(old)), _) => gone.push(old as usize),
                (Some(IndexEntry::Leaf(old)), _) => self.totals.take(&old.stamp),
                (None, _) => {}
            }
            if let Some(held) = held {
                if let IndexEntry::Leaf(leaf) = &held {
                    self.totals.add(&leaf.stamp);
                }
                names.push(NamedEntry { name, held });
            }
        }
        names.extend(before);
        names.shrink_to_fit();
        self.directories[at].names = names;
        self.free_directories(gone);
    }

    /// Frees directories with all below them.
    fn free_directories(&mut self, mut gone: Vec<usize>) {
        while let Some(at) = gone.pop() {
            self.totals.directories -= 1;
            for item in std::mem::take(&mut self.directories[at].names) {
                match item.held {
                    IndexEntry::Leaf(leaf) => self.totals.take(&leaf.stamp),
                    IndexEntry::Directory(below) => gone.push(below as usize),
                }
            }
            self.free.push(at);
        }
    }

    /// Calls `see` with all leaves below a directory, in no order.
    pub(crate) fn each_leaf(&self, at: usize, path: &TreePath, mut see: impl FnMut(&TreePath, &Name, &Leaf)) {
        let mut open = vec![(at, path.clone())];
        while let Some((at, path)) = open.pop() {
            for item in &self.directories[at].names {
                match &item.held {
                    IndexEntry::Leaf(leaf) => see(&path, &item.name, leaf),
                    IndexEntry::Directory(below) => open.push((*below as usize, path.join(&item.name))),
                }
            }
        }
    }
}

impl Directory {
    pub(crate) fn get(&self, name: &Name) -> Option<&IndexEntry> {
        let at = self.names.binary_search_by(|item| item.name.cmp(name)).ok()?;
        Some(&self.names[at].held)
    }

    pub(crate) fn get_mut(&mut self, name: &Name) -> Option<&mut IndexEntry> {
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
