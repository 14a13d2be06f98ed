//! Checks a single object: that its bytes are the canonical encoding of a valid value, its claims about other objects, and the
//! facts that others must state about it. A claim is stored as a short hash, so that claim and fact are compared in one step.

use bytes::Bytes;

use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object::codec::Writer;
use crate::object::{
    self, Content, Directories, DirectoryRef, Entry, Links, Node, OBJECT_BYTES_MAX, Root, Ropes, Segment,
    SegmentSource, Sequence, SequenceNode, Snapshot, States, Xattrs, ends_node,
};

/// The last item ends a node by the cut rule.
pub(super) const CUT: u8 = 1;
/// May be the top of a sequence: a leaf, or at least two links.
pub(super) const TOP: u8 = 2;
/// At least two items.
pub(super) const SEVERAL: u8 = 4;
/// The first item of a leaf is a hole.
pub(super) const HOLE_FIRST: u8 = 8;
/// The last item of a leaf is a hole.
pub(super) const HOLE_LAST: u8 = 16;

/// The facts about an object that other objects refer to.
pub(super) struct Facts {
    pub(super) level: u8,
    pub(super) marks: u8,
    /// The claim that a link of an inner node must make.
    pub(super) as_child: u64,
    /// The claim that an entry or a root must make: a directory's bare hash and hard links, a rope's length, a map's number of
    /// members; for a snapshot, its generation.
    pub(super) as_top: u64,
    /// The keys of a leaf's first and last item, in byte order.
    pub(super) ends: [Box<[u8]>; 2],
}

/// The way in which one object refers to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceKind {
    /// As a child in a sequence.
    Child,
    Directory,
    File,
    Chunk,
    Attributes,
    Root,
    Links,
    State,
    /// As history, which may have been deleted.
    Parent,
}

/// A claim of an object about another one.
pub(super) struct Claim {
    pub(super) id: ObjectId,
    pub(super) how: ReferenceKind,
    pub(super) says: u64,
}

/// Reads an object whose hash has been verified.
pub(super) fn read(id: ObjectId, bytes: &Bytes, claims: &mut Vec<Claim>) -> Result<Facts, Malformed> {
    if bytes.len() > OBJECT_BYTES_MAX {
        return Err(Malformed::TooMuch { what: "an object" });
    }
    match id.kind {
        ObjectKind::Directory => read_node::<Directories>(id, bytes, claims),
        ObjectKind::Rope => read_node::<Ropes>(id, bytes, claims),
        ObjectKind::Links => read_node::<Links>(id, bytes, claims),
        ObjectKind::State => read_node::<States>(id, bytes, claims),
        ObjectKind::Root => {
            let root = Root::decode(bytes)?;
            canonical(root.encode() == bytes[..])?;
            claim_entry(&root.directory, claims);
            let linked = root.directory.linked();
            claims.extend(root.links.map(|id| Claim { id: id.object(), how: ReferenceKind::Links, says: linked }));
            claims.extend(root.state.map(|id| Claim { id: id.object(), how: ReferenceKind::State, says: 0 }));
            Ok(plain(0))
        }
        ObjectKind::Snapshot => {
            let snapshot = Snapshot::decode(bytes)?;
            canonical(snapshot.encode() == bytes[..])?;
            claims.push(Claim { id: snapshot.root.object(), how: ReferenceKind::Root, says: 0 });
            let says = snapshot.generation;
            claims.extend(snapshot.parents.iter().map(|id| Claim {
                id: id.object(),
                how: ReferenceKind::Parent,
                says,
            }));
            Ok(plain(snapshot.generation))
        }
        ObjectKind::Xattrs | ObjectKind::Chunk => {
            object::check(id.kind, bytes)?;
            Ok(plain(0))
        }
    }
}

fn plain(as_top: u64) -> Facts {
    Facts { level: 0, marks: TOP, as_child: 0, as_top, ends: Default::default() }
}

fn canonical(is: bool) -> Result<(), Malformed> {
    if is { Ok(()) } else { Err(Malformed::NotCanonical) }
}

/// The additional interface of a sequence for verification.
trait VerifiedSequence: Sequence {
    /// Returns the sort key of an item as bytes; empty if items have no order.
    fn key(item: &Self::Item) -> Box<[u8]>;
    fn claim_item(item: &Self::Item, claims: &mut Vec<Claim>);
    fn as_top(node: &SequenceNode<Self>, link: &Self::Link) -> u64;
    fn is_hole(_item: &Self::Item) -> bool {
        false
    }
}

fn read_node<S: VerifiedSequence>(id: ObjectId, bytes: &Bytes, claims: &mut Vec<Claim>) -> Result<Facts, Malformed> {
    let node = object::decode_node::<S>(bytes)?;
    let mut is_canonical = false;
    let link = S::encode_and_link(&node, |whole| {
        is_canonical = whole == &bytes[..];
        Ok::<_, Malformed>(id)
    })?;
    canonical(is_canonical)?;
    let level = node.level();
    let mut facts = plain(S::as_top(&node, &link));
    facts.level = u8::try_from(level).map_err(|_| Malformed::Overflow)?;
    facts.as_child = said_of_child::<S>(level, &link);
    let (count, last) = match &node {
        SequenceNode::Leaf(items) => {
            items.iter().for_each(|item| S::claim_item(item, claims));
            facts.ends = [&items[0], &items[items.len() - 1]].map(S::key);
            facts.marks |= if S::is_hole(&items[0]) { HOLE_FIRST } else { 0 };
            facts.marks |= if S::is_hole(&items[items.len() - 1]) { HOLE_LAST } else { 0 };
            (items.len(), items.last().map(S::item_hash))
        }
        SequenceNode::Inner { level, links } => {
            let claim = |link: &S::Link| Claim {
                id: S::link_id(link),
                how: ReferenceKind::Child,
                says: said_of_child::<S>(level - 1, link),
            };
            claims.extend(links.iter().map(claim));
            if links.len() < 2 {
                facts.marks &= !TOP;
            }
            (links.len(), links.last().map(|link| S::link_hash(link, *level)))
        }
    };
    facts.marks |= if last.is_some_and(|hash| ends_node(count, hash)) { CUT } else { 0 };
    facts.marks |= if node.count() >= 2 { SEVERAL } else { 0 };
    Ok(facts)
}

fn short(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(bytes).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn said_of_child<S: Sequence>(level: u32, link: &S::Link) -> u64 {
    let write = |out: &mut Writer| {
        out.uint(15, u64::from(level));
        S::write_link(link, out);
    };
    Writer::look_at_object(S::KIND, write, short)
}

fn said_of_directory(below: &DirectoryRef) -> u64 {
    let mut bytes = [0; 40];
    bytes[..32].copy_from_slice(below.bare.as_bytes());
    bytes[32..].copy_from_slice(&below.linked.to_le_bytes());
    short(&bytes)
}

pub(super) fn claim_entry(entry: &Entry, claims: &mut Vec<Claim>) {
    match &entry.node {
        Node::File { size, content: Content::Chunk(id) } => {
            claims.push(Claim { id: id.object(), how: ReferenceKind::Chunk, says: *size });
        }
        Node::File { size, content: Content::Rope(id) } => {
            claims.push(Claim { id: id.object(), how: ReferenceKind::File, says: *size });
        }
        Node::Directory(Some(below)) => {
            claims.push(Claim { id: below.id.object(), how: ReferenceKind::Directory, says: said_of_directory(below) });
        }
        Node::Conflict(conflict) => conflict.terms().iter().flatten().for_each(|term| claim_entry(term, claims)),
        _ => {}
    }
    if let Xattrs::Apart(id) = entry.xattrs() {
        claims.push(Claim { id: id.object(), how: ReferenceKind::Attributes, says: 0 });
    }
}

impl VerifiedSequence for Directories {
    fn key(item: &Self::Item) -> Box<[u8]> {
        item.name.as_bytes().into()
    }

    fn claim_item(item: &Self::Item, claims: &mut Vec<Claim>) {
        claim_entry(&item.entry, claims);
    }

    fn as_top(_node: &SequenceNode<Self>, link: &Self::Link) -> u64 {
        said_of_directory(&DirectoryRef { id: link.id, bare: link.bare, linked: link.linked })
    }
}

impl VerifiedSequence for Ropes {
    fn key(_item: &Segment) -> Box<[u8]> {
        Box::default()
    }

    fn claim_item(item: &Segment, claims: &mut Vec<Claim>) {
        if let SegmentSource::Chunk(id) = item.source {
            claims.push(Claim { id: id.object(), how: ReferenceKind::Chunk, says: item.length });
        }
    }

    fn as_top(node: &SequenceNode<Self>, _link: &Self::Link) -> u64 {
        node.length()
    }

    fn is_hole(item: &Segment) -> bool {
        item.source == SegmentSource::Hole
    }
}

impl VerifiedSequence for Links {
    /// Paths are ordered name by name, that is as bytes with the slash as the smallest. Paths contain no NUL.
    fn key(item: &Self::Item) -> Box<[u8]> {
        let path = item.path.as_bytes().iter().map(|byte| if *byte == b'/' { 0 } else { *byte });
        item.group.as_bytes().iter().copied().chain(path).collect()
    }

    fn claim_item(_item: &Self::Item, _claims: &mut Vec<Claim>) {}

    fn as_top(node: &SequenceNode<Self>, _link: &Self::Link) -> u64 {
        node.count()
    }
}

impl VerifiedSequence for States {
    fn key(item: &Self::Item) -> Box<[u8]> {
        item.key[..].into()
    }

    fn claim_item(_item: &Self::Item, _claims: &mut Vec<Claim>) {}

    fn as_top(_node: &SequenceNode<Self>, _link: &Self::Link) -> u64 {
        0
    }
}
