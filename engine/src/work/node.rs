//! The nodes of a tree under edit. A node that is shared with a fork or a freeze is never changed, only copied.

use std::sync::Arc;

use parking_lot::Mutex;

use super::file::FileData;
use super::ordmap::OrdMap;
use crate::id::LinkGroup;
use crate::name::Name;
use crate::object::{DirectoryRef, Entry, EntryKind, Node, Owner, Xattr, Xattrs};
use crate::store::SessionMark;
use crate::time::Time;

/// A directory with changes: the stored one, and what differs from it.
#[derive(Clone)]
pub(super) struct Dir {
    pub(super) meta: Meta,
    pub(super) base: Option<DirectoryRef>,
    /// Names set, or, with `None`, removed.
    pub(super) edits: OrdMap<Name, Option<Child>>,
    pub(super) memo: Memo,
}

/// What a changed name stands for.
#[derive(Clone)]
pub(super) enum Child {
    /// Something stored, as it is: a moved entry, say.
    Clean(Entry),
    Dir(Arc<Dir>),
    Leaf(Arc<Leaf>),
    /// One of several names of a file; the file is in the tree's table of groups.
    Linked(GroupKey),
}

/// Anything but a directory, with changes.
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

/// The entry that a freeze made of a node, and the session that has its objects. Lives as long as the node is unchanged.
#[derive(Default)]
pub(super) struct Memo(Mutex<Option<(Entry, SessionMark)>>);

/// A file with several names: stored as such, or linked since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupKey {
    Known(LinkGroup),
    New(u64),
}

impl Memo {
    /// The entry, if its objects are in the store or on their way there in this session.
    pub(super) fn get(&self, session: &SessionMark) -> Option<Entry> {
        let memo = self.0.lock();
        let (entry, mark) = memo.as_ref()?;
        (mark.is_committed() || mark.is_same(session)).then(|| entry.clone())
    }

    /// Whether the node is this entry. False of a node that was edited since it was last frozen.
    pub(super) fn holds(&self, stored: &Entry) -> bool {
        self.0.lock().as_ref().is_some_and(|(entry, _)| entry == stored)
    }

    /// The entry, if its objects are in the store.
    pub(super) fn stored(&self) -> Option<Entry> {
        self.0.lock().as_ref().filter(|(_, mark)| mark.is_committed()).map(|(entry, _)| entry.clone())
    }

    pub(super) fn set(&self, entry: Entry, session: &SessionMark) {
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

    /// A stored directory, to be changed.
    pub(super) fn stored(entry: &Entry, base: Option<DirectoryRef>) -> Self {
        Self { meta: Meta::of(entry), base, edits: OrdMap::default(), memo: Memo::default() }
    }

    pub(super) fn set(&mut self, name: Name, child: Child) {
        self.edits.insert(name, Some(child));
    }
}

impl Drop for Dir {
    /// Takes nested directories apart one by one: dropping them inside each other would need a deep stack.
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

    /// A stored entry that is not a directory, to be changed. Its link group is the table's business.
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
    /// Whether the two are one and the same in memory, or equal stored entries.
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

/// The node to change: its own copy if it is shared, and no longer what a freeze made of it.
pub(super) fn dir_mut(dir: &mut Arc<Dir>) -> &mut Dir {
    let dir = Arc::make_mut(dir);
    dir.memo = Memo::default();
    dir
}

/// The same for a leaf.
pub(super) fn leaf_mut(leaf: &mut Arc<Leaf>) -> &mut Leaf {
    let leaf = Arc::make_mut(leaf);
    leaf.memo = Memo::default();
    leaf
}
