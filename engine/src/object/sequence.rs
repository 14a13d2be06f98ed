//! Merkle sequences: the data structure behind directories, ropes and maps.
//!
//! Leaf nodes hold items, inner nodes hold links to nodes one level below, up to a single top node. The items alone decide where
//! a node ends: at the first item, from the 8th on, whose hash has four low zero bits, and after 128 items at the latest. So
//! equal items produce equal nodes and an equal id regardless of the history of edits, and a change of one item rewrites O(log n)
//! nodes.

use std::fmt::Debug;

use bytes::Bytes;

use super::codec::{Reader, Writer};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;

/// Minimum number of items in a node, unless it is the last one of its level.
pub const ITEMS_MIN: usize = 8;
/// Maximum number of items in a node.
pub const ITEMS_MAX: usize = 128;
/// Between these limits, a node ends after an item whose hash has this many low zero bits.
pub const CUT_BITS: u32 = 4;
/// Maximum level of a top node.
pub const LEVEL_MAX: u32 = 32;

/// A kind of sequence: the types of its items and links, and their encoding.
pub trait Sequence: Sized + Debug + Send + Sync + 'static {
    /// The object kind of the nodes.
    const KIND: ObjectKind;
    /// The element type of a leaf.
    type Item: Clone + Debug + PartialEq + Send + Sync;
    /// The element type of an inner node, which describes one child.
    type Link: Clone + Debug + PartialEq + Send + Sync;

    /// Returns the hash that decides whether a leaf may end after this item.
    fn item_hash(item: &Self::Item) -> u64;
    /// Returns the hash that decides whether an inner node of this level may end after this link.
    fn link_hash(link: &Self::Link, level: u32) -> u64;
    /// Returns the id of the child.
    fn link_id(link: &Self::Link) -> ObjectId;
    /// Returns the number of items below the child.
    fn link_count(link: &Self::Link) -> u64;
    /// Creates the link that describes a node.
    fn describe(node: &SequenceNode<Self>, id: ObjectId) -> Result<Self::Link, Malformed>;
    /// Passes the canonical bytes of a node to `look`, which returns its id, and creates the link that describes the node.
    fn encode_and_link<E: From<Malformed>>(
        node: &SequenceNode<Self>,
        look: impl FnOnce(&[u8]) -> Result<ObjectId, E>,
    ) -> Result<Self::Link, E> {
        let id = node.look_at_bytes(look)?;
        Ok(Self::describe(node, id)?)
    }
    /// Returns whether a link describes a node, as far as this can be checked without hashing.
    fn describes(link: &Self::Link, node: &SequenceNode<Self>) -> bool;

    /// Writes an item.
    fn write_item(item: &Self::Item, out: &mut Writer);
    /// Writes a link.
    fn write_link(link: &Self::Link, out: &mut Writer);
    /// Reads an item.
    fn read_item(from: Reader) -> Result<Self::Item, Malformed>;
    /// Reads a link.
    fn read_link(from: Reader) -> Result<Self::Link, Malformed>;
    /// Checks the order of items.
    fn check_items(items: &[Self::Item]) -> Result<(), Malformed>;
    /// Checks the order of links.
    fn check_links(links: &[Self::Link]) -> Result<(), Malformed>;
    /// Appends the ids that an item refers to.
    fn item_outgoing(item: &Self::Item, into: &mut Vec<ObjectId>);
}

/// A node of a sequence.
#[derive(Debug, PartialEq)]
pub enum SequenceNode<S: Sequence> {
    /// Items, at level 0.
    Leaf(Vec<S::Item>),
    /// Links to nodes of the level below.
    Inner {
        /// The level, at least 1.
        level: u32,
        /// At least one link. The top node of a sequence has at least two.
        links: Vec<S::Link>,
    },
}

impl<S: Sequence> Clone for SequenceNode<S> {
    fn clone(&self) -> Self {
        match self {
            Self::Leaf(items) => Self::Leaf(items.clone()),
            Self::Inner { level, links } => Self::Inner { level: *level, links: links.clone() },
        }
    }
}

impl<S: Sequence> SequenceNode<S> {
    /// Returns the level; 0 for a leaf.
    pub fn level(&self) -> u32 {
        match self {
            Self::Leaf(_) => 0,
            Self::Inner { level, .. } => *level,
        }
    }

    /// Returns the number of items below this node.
    pub fn count(&self) -> u64 {
        match self {
            Self::Leaf(items) => items.len() as u64,
            Self::Inner { links, .. } => links.iter().map(S::link_count).sum(),
        }
    }

    /// Returns the canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        self.look_at_bytes(<[u8]>::to_vec)
    }

    /// Passes the canonical bytes to `look` without allocating a copy.
    pub(crate) fn look_at_bytes<T>(&self, look: impl FnOnce(&[u8]) -> T) -> T {
        Writer::look_at_object(S::KIND, |out| self.write_with(out, S::write_item, S::write_link), look)
    }

    pub(super) fn write_with(
        &self,
        out: &mut Writer,
        write_item: impl Fn(&S::Item, &mut Writer),
        write_link: impl Fn(&S::Link, &mut Writer),
    ) {
        match self {
            Self::Leaf(items) => items.iter().for_each(|item| out.message(2, |out| write_item(item, out))),
            Self::Inner { level, links } => {
                out.uint(1, u64::from(*level));
                links.iter().for_each(|link| out.message(3, |out| write_link(link, out)));
            }
        }
    }

    /// Returns the ids that this node refers to.
    pub(crate) fn outgoing(&self) -> Vec<ObjectId> {
        let mut ids = Vec::new();
        match self {
            Self::Leaf(items) => items.iter().for_each(|item| S::item_outgoing(item, &mut ids)),
            Self::Inner { links, .. } => ids.extend(links.iter().map(S::link_id)),
        }
        ids
    }
}

/// Returns whether a node ends after its `count`th item, given the hash of that item.
pub(crate) fn ends_node(count: usize, hash: u64) -> bool {
    count >= ITEMS_MAX || (count >= ITEMS_MIN && hash.trailing_zeros() >= CUT_BITS)
}

/// Returns the cut hash of a name or key at a level: FNV-1a over the level byte and the key, then the murmur3 finaliser.
pub(crate) fn key_hash(level: u32, parts: &[&[u8]]) -> u64 {
    parts.iter().fold(KeyHash::new(level), |hash, part| hash.add(part)).finish()
}

/// An intermediate state of [`key_hash`], so that keys with a common prefix hash that prefix only once.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

impl KeyHash {
    const PRIME: u64 = 0x0000_0100_0000_01b3;

    pub(crate) fn new(level: u32) -> Self {
        Self((0xcbf2_9ce4_8422_2325 ^ u64::from(level)).wrapping_mul(Self::PRIME))
    }

    pub(crate) fn add(self, part: &[u8]) -> Self {
        Self(part.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(Self::PRIME)))
    }

    pub(crate) fn finish(self) -> u64 {
        let mut hash = self.0;
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^ (hash >> 33)
    }
}

/// Returns the cut hash of an id: its first eight bytes.
pub(crate) fn id_hash(hash: &[u8; 32]) -> u64 {
    u64::from_le_bytes(hash[..8].try_into().expect("eight of 32 bytes"))
}

/// Decodes a node and checks every rule that can be checked without reading its children.
pub(crate) fn decode<S: Sequence>(bytes: &Bytes) -> Result<SequenceNode<S>, Malformed> {
    let mut from = Reader::object(S::KIND, bytes)?;
    let mut level = 0;
    let mut items = Vec::new();
    let mut links = Vec::new();
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => level = value.small(1)?,
            2 => items.push(S::read_item(value.message(2)?)?),
            3 => links.push(S::read_link(value.message(3)?)?),
            number => return Err(Malformed::Field { number }),
        }
        if items.len() > ITEMS_MAX || links.len() > ITEMS_MAX {
            return Err(Malformed::TooMuch { what: "a node's items" });
        }
    }
    if level == 0 {
        if !links.is_empty() {
            return Err(Malformed::Field { number: 3 });
        }
        if items.is_empty() {
            return Err(Malformed::TooFew);
        }
        S::check_items(&items)?;
        check_cuts(items.iter().map(S::item_hash))?;
        return Ok(SequenceNode::Leaf(items));
    }
    if level > LEVEL_MAX {
        return Err(Malformed::TooMuch { what: "a node's level" });
    }
    if !items.is_empty() {
        return Err(Malformed::Field { number: 2 });
    }
    if links.is_empty() {
        return Err(Malformed::TooFew);
    }
    S::check_links(&links)?;
    check_cuts(links.iter().map(|link| S::link_hash(link, level)))?;
    let total = links.iter().try_fold(0_u64, |sum, link| match S::link_count(link) {
        0 => None,
        count => sum.checked_add(count),
    });
    total.ok_or(Malformed::Overflow)?;
    Ok(SequenceNode::Inner { level, links })
}

/// Checks that no item but the last one ends the node. (Only the parent can tell whether the node ends too early.)
fn check_cuts(hashes: impl ExactSizeIterator<Item = u64>) -> Result<(), Malformed> {
    let last = hashes.len();
    for (index, hash) in hashes.enumerate() {
        if index + 1 < last && ends_node(index + 1, hash) {
            return Err(Malformed::Boundary);
        }
    }
    Ok(())
}
