//! The working tree: an editable copy of a stored tree.
//!
//! It consists of a base root and the edits since then, in persistent data structures with structural sharing. So a fork and a
//! freeze copy a pointer: writers never stop, and a freeze hashes only the dirty nodes. This module does not follow symlinks; the
//! layer that exposes the tree as a file system does. The tree reads no clock: [`WorkingTree::set_now`] sets the time that edits
//! get.

mod clean;
mod edit;
mod file;
mod freeze;
mod graft;
mod group;
mod identify;
mod lookup;
mod loose;
mod node;
mod ordmap;
mod segment;
mod settle;

pub use edit::{RenameMode, Special};
pub use freeze::Frozen;
pub(crate) use freeze::WrittenTree;
pub use lookup::{Listing, Stat};
pub use loose::LooseFile;
pub use segment::{FileSegments, MemorySegments, Segment, SegmentLog, SegmentRange};

use std::sync::Arc;

use bytes::Bytes;

use crate::error::Result;
use crate::id::{LinkGroup, RootId, SnapshotId};
use crate::object::{Node, Root};
use crate::store::{SessionPin, Store};
use crate::time::Time;
use clean::CleanDirectories;
use node::{Dir, Group, GroupKey, Meta};
use ordmap::OrdMap;

/// An editable tree. Forks are cheap; a fork and its origin are independent of each other.
#[derive(Clone)]
pub struct WorkingTree {
    store: Store,
    state: State,
    now: Time,
    log: Arc<dyn SegmentLog>,
}

/// The part of the tree that a freeze keeps.
#[derive(Clone)]
struct State {
    base: Base,
    root: Arc<Dir>,
    /// Files with several names, of which the file or at least one name was edited.
    groups: OrdMap<GroupKey, Arc<Group>>,
    next_group: u64,
    /// Ids that a freeze has assigned to new groups.
    assigned: OrdMap<u64, LinkGroup>,
    /// State values that were set or, with `None`, removed.
    values: OrdMap<Bytes, Option<Bytes>>,
    clean: CleanDirectories,
}

/// The stored tree that the edits are relative to. The pins protect it from garbage collection.
#[derive(Clone)]
struct Base {
    root: Option<Arc<Root>>,
    snapshot: Option<SnapshotId>,
    pin: Option<SessionPin>,
    /// Earlier bases that a node edited during a commit still reads from.
    older: Vec<SessionPin>,
}

impl WorkingTree {
    /// Creates an empty tree.
    pub fn new(store: &Store) -> Self {
        let base = Base { root: None, snapshot: None, pin: None, older: Vec::new() };
        let root = Arc::new(Dir::empty(Meta::new(0o755, Time::EPOCH)));
        Self::with_state(store, State::new(base, root))
    }

    /// Opens the tree of a snapshot. Reads two small objects, regardless of the size of the tree.
    pub fn open(store: &Store, snapshot: SnapshotId) -> Result<Self> {
        let mut tree = Self::open_root(store, store.snapshot(snapshot)?.root)?;
        tree.state.base.snapshot = Some(snapshot);
        Ok(tree)
    }

    /// Opens a tree by its root, without history.
    pub fn open_root(store: &Store, root: RootId) -> Result<Self> {
        // Pin before reading: from here on a collection keeps the whole tree.
        let pin = SessionPin::stored(store.hold(root)?);
        let root = store.root(root)?;
        let state = State::clean(root, None, pin);
        Ok(Self::with_state(store, state))
    }

    fn with_state(store: &Store, state: State) -> Self {
        Self { store: store.clone(), state, now: Time::EPOCH, log: Arc::new(MemorySegments::default()) }
    }

    /// Uses this segment log for all later writes.
    #[must_use]
    pub fn with_segments(mut self, log: Arc<dyn SegmentLog>) -> Self {
        self.log = log;
        self
    }

    /// Returns an independent copy of the tree, in constant time.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Resets the tree to a snapshot. Discards uncommitted edits.
    pub fn restore(&mut self, snapshot: SnapshotId) -> Result<()> {
        let other = Self::open(&self.store, snapshot)?;
        self.state = other.state;
        Ok(())
    }

    /// Sets the time that later edits get. The default is 1970-01-01.
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// Returns the time that edits get.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the store that the tree reads from.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the snapshot that the next commit follows: the one that the tree was opened at or last committed as, or that
    /// [`rebase`](WorkingTree::rebase) set.
    pub fn base(&self) -> Option<SnapshotId> {
        self.state.base.snapshot
    }

    /// Returns the stored root directory of the base.
    pub fn base_directory(&self) -> Option<&crate::object::Entry> {
        self.state.base.root.as_ref().map(|root| &root.directory)
    }

    /// Returns whether a file of the tree may have several names.
    pub fn has_hard_links(&self) -> bool {
        let State { groups, base, .. } = &self.state;
        !groups.is_empty() || base.root.as_ref().is_some_and(|root| root.links.is_some())
    }

    /// Returns whether the tree has no edits since its base. An edit that a later edit reverted still counts as an edit.
    pub fn is_clean(&self) -> bool {
        let State { groups, values, .. } = &self.state;
        self.has_stored_root() && groups.is_empty() && values.is_empty()
    }

    /// Returns whether the root directory is that of the base, without edits. A freeze alone does not make it so: a changed mode
    /// of the root directory is not part of any directory entry.
    fn has_stored_root(&self) -> bool {
        let State { base, root, .. } = &self.state;
        let stored = base.root.as_ref().filter(|_| base.pin.is_some());
        root.edits.is_empty() && stored.is_some_and(|stored| root.memo.holds(&stored.directory))
    }

    /// Makes uncommitted writes durable, as far as the segment log supports it.
    pub fn sync_segments(&self) -> Result<()> {
        self.log.sync()
    }
}

impl State {
    fn new(base: Base, root: Arc<Dir>) -> Self {
        Self {
            base,
            root,
            groups: OrdMap::default(),
            next_group: 0,
            assigned: OrdMap::default(),
            values: OrdMap::default(),
            clean: CleanDirectories::default(),
        }
    }

    /// Creates the state of a stored tree without edits.
    fn clean(root: Arc<Root>, snapshot: Option<SnapshotId>, pin: SessionPin) -> Self {
        let Node::Directory(contents) = root.directory.node else {
            unreachable!("a root whose entry is no directory cannot be decoded or made");
        };
        let dir = Dir::stored(&root.directory, contents);
        dir.memo.set(root.directory.clone(), &pin);
        let base = Base { root: Some(root), snapshot, pin: Some(pin), older: Vec::new() };
        Self::new(base, Arc::new(dir))
    }
}
