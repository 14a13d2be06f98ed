//! The nodes of a working tree. A node that is shared with a fork or a freeze is never modified, only copied.

use std::sync::Arc;

use parking_lot::Mutex;

use super::file::FileData;
use super::ordmap::OrdMap;
use crate::id::LinkGroup;
use crate::name::Name;
use crate::name::TreePath;
use crate::object::{DirectoryRef, Entry, EntryKind, Node, Owner, Xattr, Xattrs};
use crate::store::SessionPin;
use crate::time::Time;

/// An edited directory: the stored one and the edits since.
#[derive(Clone)]
pub(super) struct Dir {
    pub(super) meta: Meta,
    pub(super) base: Option<DirectoryRef>,
    /// Names that were set or, with `None`, removed.
    pub(super) edits: OrdMap<Name, Option<Child>>,
    pub(super) memo: Memo,
}

/// The new value of an edited name.
#[derive(Clone)]
pub(super) enum Child {
    /// A stored entry, unchanged. For example one that was moved.
    Clean(Entry),
    Dir(Arc<Dir>),
    Leaf(Arc<Leaf>),
    /// One of several names of a file. The file is in the tree's table of groups.
    Linked(GroupKey),
}

/// An edited entry that is not a directory.
#[derive(Clone)]
pub(super) struct Leaf {
    pub(super) meta: Meta,
    pub(super) body: Body,
    pub(super) memo: Memo,
}

#[derive(Clone)]
pub(super) enum Body {
    File(FileData),
    Other(Node),
}

#[derive(Clone)]
pub(super) struct Meta {
    pub(super) mode: u32,
    pub(super) mtime: Time,
    pub(super) owner: Option<Owner>,
    pub(super) xattrs: XattrsNow,
}

#[derive(Clone)]
pub(super) enum XattrsNow {
    Stored(Xattrs),
    Edited(Arc<Vec<Xattr>>),
}

/// The entry that a freeze made from a node, and the pin of the session that put its objects. Valid until the node is
/// edited.
#[derive(Default)]
pub(super) struct Memo(Mutex<Option<(Entry, SessionPin)>>);

/// The key of a file with several names: either stored as such, or linked since then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    Known(LinkGroup),
    New(u64),
}

impl Memo {
    /// Returns the entry if its objects are in the store or were put by this session.
    pub(super) fn get(&self, session: &SessionPin) -> Option<Entry> {
        let memo = self.0.lock();
        let (entry, pin) = memo.as_ref()?;
        (pin.is_committed() || pin.is_same(session)).then(|| entry.clone())
    }

    /// Returns whether the last freeze of the node produced this entry. False if the node was edited since.
    pub(super) fn holds(&self, stored: &Entry) -> bool {
        self.0.lock().as_ref().is_some_and(|(entry, _)| entry == stored)
    }

    /// Returns the entry if its objects are in the store.
    pub(super) fn stored(&self) -> Option<Entry> {
        self.0.lock().as_ref().filter(|(_, pin)| pin.is_committed()).map(|(entry, _)| entry.clone())
    }

    pub(super) fn set(&self, entry: Entry, session: &SessionPin) {
        *self.0.lock() = Some((entry, session.clone()));
    }
}

impl Clone for Memo {
    fn clone(&self) -> Self {
        Self(Mutex::new(self.0.lock().clone()))
    }
}

impl Meta {
    pub(super) fn new(mode: u32, mtime: Time) -> Self {
        Self { mode, mtime, owner: None, xattrs: XattrsNow::Stored(Xattrs::None) }
    }

    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            mode: entry.mode,
            mtime: entry.mtime,
            owner: entry.owner(),
            xattrs: XattrsNow::Stored(entry.xattrs().clone()),
        }
    }
}

impl Dir {
    pub(super) fn empty(meta: Meta) -> Self {
        Self { meta, base: None, edits: OrdMap::default(), memo: Memo::default() }
    }

    /// Creates an editable copy of a stored directory.
    pub(super) fn stored(entry: &Entry, base: Option<DirectoryRef>) -> Self {
        Self { meta: Meta::of(entry), base, edits: OrdMap::default(), memo: Memo::default() }
    }

    pub(super) fn set(&mut self, name: Name, child: Child) {
        self.edits.insert(name, Some(child));
    }
}

impl Drop for Dir {
    /// Drops nested directories iteratively: recursive drops could overflow the stack.
    fn drop(&mut self) {
        let mut open = vec![std::mem::take(&mut self.edits)];
        while let Some(edits) = open.pop() {
            edits.take_apart(|child| {
                if let Some(Child::Dir(mut dir)) = child
                    && let Some(dir) = Arc::get_mut(&mut dir)
                {
                    open.push(std::mem::take(&mut dir.edits));
                }
            });
        }
    }
}

impl Leaf {
    pub(super) fn new(body: Body, meta: Meta) -> Self {
        Self { meta, body, memo: Memo::default() }
    }

    /// Creates an editable copy of a stored entry that is not a directory. The table of groups tracks its link group.
    pub(super) fn stored(entry: &Entry) -> Self {
        let body = match &entry.node {
            Node::File { size, content } => Body::File(FileData::stored(*content, *size)),
            other => Body::Other(other.clone()),
        };
        Self::new(body, Meta::of(entry))
    }

    pub(super) fn kind(&self) -> EntryKind {
        match &self.body {
            Body::File(_) => EntryKind::File,
            Body::Other(node) => Entry::new(node.clone(), 0, Time::EPOCH).kind(),
        }
    }
}

impl Child {
    /// Returns whether the two are the same node in memory, or equal stored entries.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Clean(ours), Self::Clean(theirs)) => ours == theirs,
            (Self::Dir(ours), Self::Dir(theirs)) => Arc::ptr_eq(ours, theirs),
            (Self::Leaf(ours), Self::Leaf(theirs)) => Arc::ptr_eq(ours, theirs),
            (Self::Linked(ours), Self::Linked(theirs)) => ours == theirs,
            _ => false,
        }
    }
}

/// Returns the directory for editing. Copies it first if it is shared, and discards the memo of the last freeze.
pub(super) fn dir_mut(dir: &mut Arc<Dir>) -> &mut Dir {
    let dir = Arc::make_mut(dir);
    dir.memo = Memo::default();
    dir
}

/// Returns the leaf for editing. Copies it first if it is shared, and discards the memo of the last freeze.
pub(super) fn leaf_mut(leaf: &mut Arc<Leaf>) -> &mut Leaf {
    let leaf = Arc::make_mut(leaf);
    leaf.memo = Memo::default();
    leaf
}

/// A file with several names.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) leaf: Arc<Leaf>,
    pub(super) members: OrdMap<TreePath, ()>,
}
