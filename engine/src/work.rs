//! The working tree: a stored tree under edit.
//!
//! One structure for all edits: a base root, and what differs from it with structural sharing. So a fork is a pointer, and a
//! freeze too: writers never stop, and freezing hashes only what is dirty. Paths are never followed through symlinks here;
//! that is the business of whoever offers the tree as a file system. The tree reads no clock: [`WorkingTree::set_now`] says
//! what time edits get.

mod clean;
mod edit;
mod file;
mod freeze;
mod graft;
mod group;
mod look;
mod loose;
mod node;
mod ordmap;
mod segment;
mod settle;

pub use edit::{RenameMode, Special};
pub use freeze::Frozen;
pub(crate) use freeze::Written;
pub use look::{Listing, Stat};
pub use loose::LooseFile;
pub use segment::{FileSegments, MemorySegments, Segment, SegmentLog, SegmentRange};

use std::sync::Arc;

use bytes::Bytes;

use crate::error::Result;
use crate::id::{LinkGroup, RootId, SnapshotId};
use crate::object::{Node, Root};
use crate::store::{SessionMark, Store};
use crate::time::Time;
use clean::CleanDirectories;
use group::Group;
use node::{Dir, GroupKey, Meta};
use ordmap::OrdMap;

/// A tree that can be edited. Cheap to fork; a fork and its origin know nothing of each other.
#[derive(Clone)]
pub struct WorkingTree {
    store: Store,
    state: State,
    now: Time,
    log: Arc<dyn SegmentLog>,
}

/// All that a freeze has to hold on to.
#[derive(Clone)]
struct State {
    base: Base,
    root: Arc<Dir>,
    /// Files with several names that have been touched, or some of whose names have.
    groups: OrdMap<GroupKey, Arc<Group>>,
    next_group: u64,
    /// Ids that a freeze gave to new groups.
    assigned: OrdMap<u64, LinkGroup>,
    /// State values set, or, with `None`, removed.
    values: OrdMap<Bytes, Option<Bytes>>,
    clean: CleanDirectories,
}

/// What the tree was made from. The marks keep it in the store.
#[derive(Clone)]
struct Base {
    root: Option<Arc<Root>>,
    snapshot: Option<SnapshotId>,
    mark: Option<SessionMark>,
    /// Earlier bases that something edited during a commit still reads from.
    older: Vec<SessionMark>,
}

impl WorkingTree {
    /// An empty tree.
    pub fn new(store: &Store) -> Self {
        let base = Base { root: None, snapshot: None, mark: None, older: Vec::new() };
        let root = Arc::new(Dir::empty(Meta::new(0o755, Time::EPOCH)));
        Self::with_state(store, State::new(base, root))
    }

    /// The tree of a snapshot. Reads two small objects, whatever the size of the tree.
    pub fn open(store: &Store, snapshot: SnapshotId) -> Result<Self> {
        let mut tree = Self::open_root(store, store.snapshot(snapshot)?.root)?;
        tree.state.base.snapshot = Some(snapshot);
        Ok(tree)
    }

    /// A tree by its root, without history.
    pub fn open_root(store: &Store, root: RootId) -> Result<Self> {
        // Pinned before it is read: from here on a collection keeps all of it.
        let mark = SessionMark::stored(store.hold(root)?);
        let root = store.root(root)?;
        let state = State::clean(root, None, mark);
        Ok(Self::with_state(store, state))
    }

    fn with_state(store: &Store, state: State) -> Self {
        Self { store: store.clone(), state, now: Time::EPOCH, log: Arc::new(MemorySegments::default()) }
    }

    /// Uses other segments for what is written from now on.
    #[must_use]
    pub fn with_segments(mut self, log: Arc<dyn SegmentLog>) -> Self {
        self.log = log;
        self
    }

    /// The same tree once more, in constant time.
    #[must_use]
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Goes to a snapshot; what was not committed is given up.
    pub fn restore(&mut self, snapshot: SnapshotId) -> Result<()> {
        let other = Self::open(&self.store, snapshot)?;
        self.state = other.state;
        Ok(())
    }

    /// The time that edits get from now on. Until it is set they get 1970-01-01.
    pub fn set_now(&mut self, now: Time) {
        self.now = now;
    }

    /// That time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The store it reads from.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The snapshot it was opened at or last committed as.
    pub fn base(&self) -> Option<SnapshotId> {
        self.state.base.snapshot
    }

    /// The root directory that it was made from, as it is stored.
    pub fn base_directory(&self) -> Option<&crate::object::Entry> {
        self.state.base.root.as_ref().map(|root| &root.directory)
    }

    /// Whether nothing was changed since then. An edit that was undone by another counts as a change.
    pub fn is_clean(&self) -> bool {
        let State { groups, values, .. } = &self.state;
        self.has_stored_root() && groups.is_empty() && values.is_empty()
    }

    /// Whether the root directory is that of the base, with nothing edited in it. Being frozen does not make it so: a mode that was
    /// set is in no entry of the directory.
    fn has_stored_root(&self) -> bool {
        let State { base, root, .. } = &self.state;
        let stored = base.root.as_ref().filter(|_| base.mark.is_some());
        root.edits.is_empty() && stored.is_some_and(|stored| root.memo.holds(&stored.directory))
    }

    /// Makes written bytes that are not committed yet durable, as far as their segments can.
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

    /// A stored tree without changes.
    fn clean(root: Arc<Root>, snapshot: Option<SnapshotId>, mark: SessionMark) -> Self {
        let Node::Directory(contents) = root.directory.node else {
            unreachable!("a root whose entry is no directory cannot be decoded or made");
        };
        let dir = Dir::stored(&root.directory, contents);
        dir.memo.set(root.directory.clone(), &mark);
        let base = Base { root: Some(root), snapshot, mark: Some(mark), older: Vec::new() };
        Self::new(base, Arc::new(dir))
    }
}
