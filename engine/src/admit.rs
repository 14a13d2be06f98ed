//! Admits objects from outside the store. No claim of such an object is trusted without a check.
//!
//! An object is admitted if its bytes are the canonical encoding of a valid value and everything it states about its children is
//! true. Children come first: they are in the store or were put in the same session. Two things are not checked: the cuts inside
//! a file, which would require reading all its bytes again, and the existence of a snapshot's parents, which may have been
//! thinned.
//!
//! Objects that were already in the store are trusted. Still, everything below a referenced object is walked once per session: it
//! gets the epoch of the session, so that no collection deletes it, and its depth is counted. Trees that the session rests on
//! ([`WriteSession::rest_on`]) are exempt: they are pinned as a whole, and objects known to be in them are not walked.

mod boundary;
mod buried;
mod check;
mod reach;
mod resting;
mod stored;

pub use stored::{HashedObject, NotAdmitted};

use bytes::Bytes;

use crate::compress;
use crate::directory;
use crate::error::{Error, Result};
use crate::id::{ChunkId, LinksId, ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::merkle::Items;
use crate::object::{
    self, Content, Directories, DirectoryRef, Entry, GENERATION_MAX, Links, Node, Root, Ropes, Segment, SegmentSource,
    SequenceNode, Snapshot, States,
};
use crate::store::{CachedSequence, CheckedObject, WriteSession};
use check::AdmissionCheck;
use reach::Edges;

impl WriteSession {
    /// Admits an object from outside by its canonical bytes. Children must be admitted before their parents. An object that
    /// breaks a rule of the format or makes a false claim about a child is refused, and nothing of it is kept.
    pub fn admit(&self, kind: ObjectKind, bytes: impl Into<Bytes>) -> Result<ObjectId> {
        let bytes = bytes.into();
        let gate = AdmissionCheck { session: self, kind };
        object::check(kind, &bytes).map_err(|source| gate.refusal(source))?;
        let offered = DecodedObject::decode(kind, &bytes).map_err(|source| gate.refusal(source))?;
        let depth = gate.depth_or_exact(&offered.edges())?;
        gate.check(&offered)?;
        let length = bytes.len();
        let known = CheckedObject { depth, bytes: if kind == ObjectKind::Chunk { length as u64 } else { 0 } };
        let id = match kind {
            ObjectKind::Chunk => self.put_chunk(&bytes)?.object(),
            _ => self.put(kind, bytes.into())?,
        };
        self.checked_objects().lock().insert(id, known);
        offered.remember(self, id, length);
        if kind == ObjectKind::Snapshot {
            self.limit_checked_objects();
        }
        Ok(id)
    }
}

/// A decoded object with its claims about its children.
enum DecodedObject {
    /// Bytes without claims: a chunk or extended attributes.
    Bytes,
    Rope(SequenceNode<Ropes>),
    Directory(SequenceNode<Directories>),
    Links(SequenceNode<Links>),
    State(SequenceNode<States>),
    Root(Root),
    Snapshot(Snapshot),
}

impl DecodedObject {
    fn decode(kind: ObjectKind, bytes: &Bytes) -> Result<Self, Malformed> {
        Ok(match kind {
            ObjectKind::Chunk | ObjectKind::Xattrs => Self::Bytes,
            ObjectKind::Rope => Self::Rope(object::decode_node(bytes)?),
            ObjectKind::Directory => Self::Directory(object::decode_node(bytes)?),
            ObjectKind::Links => Self::Links(object::decode_node(bytes)?),
            ObjectKind::State => Self::State(object::decode_node(bytes)?),
            ObjectKind::Root => Self::Root(Root::decode(bytes)?),
            ObjectKind::Snapshot => Self::Snapshot(Snapshot::decode(bytes)?),
        })
    }

    /// Caches the object, because its parents are about to read it.
    fn remember(self, session: &WriteSession, id: ObjectId, length: usize) {
        match self {
            Self::Bytes => {}
            Self::Rope(node) => session.remember(id, node, length),
            Self::Directory(node) => session.remember(id, node, length),
            Self::Links(node) => session.remember(id, node, length),
            Self::State(node) => session.remember(id, node, length),
            Self::Root(root) => session.remember_root(id, root, length),
            Self::Snapshot(snapshot) => session.remember_snapshot(id, snapshot, length),
        }
    }

    fn edges(&self) -> Edges {
        match self {
            Self::Bytes => Edges::default(),
            Self::Rope(node) => Edges::of_node(node),
            Self::Directory(node) => Edges::of_directory(node),
            Self::Links(node) => Edges::of_node(node),
            Self::State(node) => Edges::of_node(node),
            Self::Root(root) => Edges::of_root(root),
            Self::Snapshot(snapshot) => Edges::of_snapshot(snapshot),
        }
    }
}

impl AdmissionCheck<'_> {
    fn check(&self, offered: &DecodedObject) -> Result<()> {
        match offered {
            DecodedObject::Bytes => Ok(()),
            DecodedObject::Rope(SequenceNode::Leaf(segments)) => {
                segments.iter().try_for_each(|item| self.segment(item))
            }
            DecodedObject::Rope(node) => self.seams(node),
            DecodedObject::Directory(SequenceNode::Leaf(items)) => {
                items.iter().try_for_each(|item| self.entry(&item.entry))
            }
            DecodedObject::Directory(node) => self.inner_directory(node),
            DecodedObject::Links(node) => self.seams(node),
            DecodedObject::State(node) => self.seams(node),
            DecodedObject::Root(root) => self.root(root),
            DecodedObject::Snapshot(snapshot) => self.history(snapshot),
        }
    }

    /// Checks the history, which is weak: a parent may be missing. An existing parent is kept.
    fn history(&self, snapshot: &Snapshot) -> Result<()> {
        if snapshot.generation > GENERATION_MAX {
            return Err(self.refusal(Malformed::TooMuch { what: "a snapshot's generation" }));
        }
        for parent in &snapshot.parents {
            if self.session.has(parent.object())? {
                let parent = self.session.reading(|store| store.snapshot(*parent))?;
                self.claim(parent.generation < snapshot.generation)?;
            }
        }
        Ok(())
    }

    fn inner_directory(&self, node: &SequenceNode<Directories>) -> Result<()> {
        if let SequenceNode::Inner { links, .. } = node {
            for link in links {
                self.claim(self.session.node::<Directories>(link.id.object())?.bare() == link.bare)?;
            }
        }
        self.seams(node)
    }

    fn segment(&self, segment: &Segment) -> Result<()> {
        match segment.source {
            SegmentSource::Chunk(id) => self.chunk(id, segment.length),
            SegmentSource::Hole => Ok(()),
        }
    }

    fn chunk(&self, id: ChunkId, length: u64) -> Result<()> {
        let id = id.object();
        if let Some(known) = self.session.checked_objects().lock().get(&id).filter(|known| known.bytes > 0) {
            return self.claim(known.bytes == length);
        }
        let stored = match self.session.reading(|store| store.stored(id)) {
            // The length of a purged chunk is unknown.
            Err(Error::Purged { .. } | Error::Missing { .. }) if self.session.is_buried(id)? => return Ok(()),
            stored => stored?,
        };
        let found = compress::chunk_bytes(&stored).map_err(|source| Error::Malformed { id, source })?;
        self.claim(found == length)
    }

    fn entry(&self, entry: &Entry) -> Result<()> {
        match &entry.node {
            Node::File { size, content: Content::Chunk(id) } => self.chunk(*id, *size),
            Node::File { size, content: Content::Rope(id) } => {
                let top = self.session.node::<Ropes>(id.object())?;
                self.top(&top)?;
                if top.count() < 2 {
                    return Err(self.refusal(Malformed::TooFew));
                }
                self.claim(top.length() == *size)
            }
            Node::Directory(Some(contents)) => self.directory(contents),
            Node::Conflict(conflict) => conflict.terms().iter().flatten().try_for_each(|term| self.entry(term)),
            _ => Ok(()),
        }
    }

    fn directory(&self, contents: &DirectoryRef) -> Result<()> {
        let top = self.session.node::<Directories>(contents.id.object())?;
        self.top(&top)?;
        self.claim(top.linked() == Ok(contents.linked) && top.bare() == contents.bare)
    }

    /// Checks a top node: a sequence of one node is a leaf, and an inner node at the top has at least two links.
    fn top<S: CachedSequence>(&self, top: &SequenceNode<S>) -> Result<()> {
        match top {
            SequenceNode::Inner { links, .. } if links.len() < 2 => Err(self.refusal(Malformed::TooFew)),
            _ => Ok(()),
        }
    }

    fn root(&self, root: &Root) -> Result<()> {
        self.entry(&root.directory)?;
        if let Some(state) = root.state {
            self.top(&*self.session.node::<States>(state.object())?)?;
        }
        match root.links {
            Some(links) => self.members(root, links),
            None => Ok(()),
        }
    }

    /// Checks that every listed name exists and is in its group, and that all names of a group have equal entries. The list has as
    /// many names as the tree has hard links, so none is missing.
    fn members(&self, root: &Root, links: LinksId) -> Result<()> {
        let top = self.session.node::<Links>(links.object())?;
        self.top(&top)?;
        self.claim(top.count() == root.directory.linked())?;
        let (mut first, mut names): (Option<Entry>, u64) = (None, 2);
        // Writes pending objects first, so that they can be read from the store: a list of links is too long to hold in memory.
        self.session.write_all_ahead()?;
        let store = self.session.store();
        for member in Items::<Links>::all(store, Some(links.object()))? {
            let member = member?;
            let entry = directory::entry_at(store, root, &member.path)?;
            let entry = entry.filter(|entry| entry.link() == Some(member.group));
            let entry = entry.ok_or_else(|| self.refusal(Malformed::Link))?;
            match &first {
                Some(first) if first.link() == entry.link() => {
                    if *first != entry {
                        return Err(self.refusal(Malformed::Rule("names of one file that differ")));
                    }
                    names += 1;
                }
                _ => {
                    self.several(names)?;
                    (first, names) = (Some(entry), 1);
                }
            }
        }
        self.several(names)
    }

    fn several(&self, names: u64) -> Result<()> {
        if names < 2 { Err(self.refusal(Malformed::Rule("a hard link with a single name"))) } else { Ok(()) }
    }
}
