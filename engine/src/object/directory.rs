//! A directory: a sorted map from names to entries. Only names decide where nodes are cut, so a change of times or contents never
//! changes the shape of the sequence.

use std::cmp::Ordering;

use bytes::Bytes;

use super::codec::{Reader, Value, Writer};
use super::entry::{Entry, Node};
use super::sequence::{Sequence, SequenceNode, key_hash};
use crate::id::{Bare, DirectoryId, ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::name::Name;

/// The sequence of a directory's entries.
#[derive(Debug)]
pub enum Directories {}

/// A node of a directory.
pub type DirectoryNode = SequenceNode<Directories>;

/// A name with its entry.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryItem {
    /// The name.
    pub name: Name,
    /// The entry.
    pub entry: Entry,
}

/// The link of an inner node to one child.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectoryLink {
    /// The smallest name below the child.
    pub first: Name,
    /// The id of the child.
    pub id: DirectoryId,
    /// The hash of the child without times.
    pub bare: Bare,
    /// The number of entries below the child.
    pub count: u64,
    /// The number of hard links below the child, including those in sub-directories.
    pub linked: u64,
}

impl DirectoryNode {
    /// Returns the hash of this node without times. Children contribute their `bare` hash.
    pub fn bare(&self) -> Bare {
        let item = |item: &DirectoryItem, out: &mut Writer| {
            write_name(item, out);
            item.entry.write_rest(out, true);
        };
        let link = |link: &DirectoryLink, out: &mut Writer| {
            write_first(link, out);
            write_child(link, out);
        };
        Writer::look_at_object(Directories::KIND, |out| self.write_with(out, item, link), Bare::of)
    }

    /// Writes the node without times into `bare` and complete into `whole`. The two differ in only a few bytes.
    fn write_both(&self, bare: &mut Writer, whole: &mut Writer) {
        match self {
            Self::Leaf(items) => {
                for item in items {
                    if let Node::Conflict(_) = item.entry.node {
                        // The terms of a conflict have times of their own.
                        bare.message(2, |out| {
                            write_name(item, out);
                            item.entry.write_rest(out, true);
                        });
                        whole.message(2, |out| Directories::write_item(item, out));
                        continue;
                    }
                    let shared: [fn(&DirectoryItem, &mut Writer); 2] =
                        [write_name, |item, out| item.entry.write_rest(out, true)];
                    bare.message_in_two_forms(whole, 2, item, shared, |item, out| item.entry.write_times(out));
                }
            }
            Self::Inner { level, links } => {
                bare.uint(1, u64::from(*level));
                whole.uint(1, u64::from(*level));
                for link in links {
                    bare.message_in_two_forms(whole, 3, link, [write_first, write_child], write_id);
                }
            }
        }
    }

    /// Returns the number of hard links below this node.
    pub(crate) fn linked(&self) -> Result<u64, Malformed> {
        match self {
            Self::Leaf(items) => items.iter().try_fold(0_u64, |sum, item| sum.checked_add(item.entry.linked())),
            Self::Inner { links, .. } => links.iter().try_fold(0_u64, |sum, link| sum.checked_add(link.linked)),
        }
        .ok_or(Malformed::Overflow)
    }

    fn link(&self, id: ObjectId, bare: Bare) -> Result<DirectoryLink, Malformed> {
        Ok(DirectoryLink {
            first: self.first().clone(),
            id: DirectoryId::from_bytes(id.hash),
            bare,
            count: self.count(),
            linked: self.linked()?,
        })
    }

    fn first(&self) -> &Name {
        match self {
            Self::Leaf(items) => &items[0].name,
            Self::Inner { links, .. } => &links[0].first,
        }
    }
}

impl Sequence for Directories {
    const KIND: ObjectKind = ObjectKind::Directory;
    type Item = DirectoryItem;
    type Link = DirectoryLink;

    fn item_hash(item: &DirectoryItem) -> u64 {
        key_hash(0, &[item.name.as_bytes()])
    }

    fn link_hash(link: &DirectoryLink, level: u32) -> u64 {
        key_hash(level, &[link.first.as_bytes()])
    }

    fn link_id(link: &DirectoryLink) -> ObjectId {
        link.id.object()
    }

    fn link_count(link: &DirectoryLink) -> u64 {
        link.count
    }

    fn describe(node: &DirectoryNode, id: ObjectId) -> Result<DirectoryLink, Malformed> {
        node.link(id, node.bare())
    }

    fn encode_and_link<E: From<Malformed>>(
        node: &DirectoryNode,
        look: impl FnOnce(&[u8]) -> Result<ObjectId, E>,
    ) -> Result<DirectoryLink, E> {
        Writer::look_at_two(
            Self::KIND,
            |bare, whole| node.write_both(bare, whole),
            |bare, whole| {
                let id = look(whole)?;
                Ok(node.link(id, Bare::of(bare))?)
            },
        )
    }

    fn describes(link: &DirectoryLink, node: &DirectoryNode) -> bool {
        link.first == *node.first() && link.count == node.count() && Ok(link.linked) == node.linked()
    }

    fn write_item(item: &DirectoryItem, out: &mut Writer) {
        write_name(item, out);
        item.entry.write_times(out);
        item.entry.write_rest(out, false);
    }

    fn write_link(link: &DirectoryLink, out: &mut Writer) {
        write_first(link, out);
        write_id(link, out);
        write_child(link, out);
    }

    fn read_item(from: Reader) -> Result<DirectoryItem, Malformed> {
        let (name, entry) = Entry::read(from, false)?;
        Ok(DirectoryItem { name: Name::new(&name)?, entry })
    }

    fn read_link(mut from: Reader) -> Result<DirectoryLink, Malformed> {
        let (mut first, mut id, mut bare, mut count, mut linked) = (None, None, None, 0, 0);
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => first = Some(Name::new(value.slice(1)?)?),
                2 => id = Some(DirectoryId::from_bytes(value.hash(2)?)),
                3 => bare = Some(Bare::from_bytes(value.hash(3)?)),
                4 => count = value.number(4)?,
                5 => linked = value.number(5)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        match (first, id, bare) {
            (Some(first), Some(id), Some(bare)) => Ok(DirectoryLink { first, id, bare, count, linked }),
            _ => Err(Malformed::Rule("a directory link without name or hash")),
        }
    }

    fn check_items(items: &[DirectoryItem]) -> Result<(), Malformed> {
        ascending(items.is_sorted_by(|a, b| a.name < b.name))
    }

    fn check_links(links: &[DirectoryLink]) -> Result<(), Malformed> {
        ascending(links.is_sorted_by(|a, b| a.first < b.first))
    }

    fn item_outgoing(item: &DirectoryItem, into: &mut Vec<ObjectId>) {
        item.entry.collect_outgoing(into);
    }
}

/// The result of looking up a name in one node.
#[derive(Debug, PartialEq)]
pub(crate) enum NodeLookup {
    /// The node is a leaf: the entry, or `None` if the name does not exist.
    Entry(Option<Entry>),
    /// The node is an inner node: its level and the link to the child to continue in.
    Below(u32, DirectoryLink),
}

impl DirectoryNode {
    /// Looks up a name in this node.
    pub(crate) fn say(&self, name: &Name) -> NodeLookup {
        match self {
            Self::Leaf(items) => {
                let found = items.binary_search_by(|item| item.name.cmp(name));
                NodeLookup::Entry(found.ok().map(|at| items[at].entry.clone()))
            }
            Self::Inner { level, links } => {
                let at = links.partition_point(|link| link.first <= *name).saturating_sub(1);
                NodeLookup::Below(*level, links[at].clone())
            }
        }
    }
}

/// Looks up a name in the canonical bytes of a node, without decoding the whole node. The bytes are already verified.
pub(crate) fn say(bytes: &Bytes, name: &Name) -> Result<NodeLookup, Malformed> {
    let mut from = Reader::object(ObjectKind::Directory, bytes)?;
    let (mut level, mut below) = (0, None);
    while let Some((field, value)) = from.next_field()? {
        match (field, value) {
            (1, value) => level = value.small(1)?,
            (field @ (2 | 3), Value::Bytes(buffer, range)) => {
                let first = first_bytes(&buffer[range.clone()])?;
                match (field, first.cmp(name.as_bytes())) {
                    (2, Ordering::Equal) => {
                        let item = Directories::read_item(Value::Bytes(buffer, range).message(2)?)?;
                        return Ok(NodeLookup::Entry(Some(item.entry)));
                    }
                    (3, Ordering::Less | Ordering::Equal) => below = Some(range),
                    (3, Ordering::Greater) if below.is_none() => below = Some(range),
                    (_, Ordering::Greater) => break,
                    (_, _) => {}
                }
            }
            (number, _) => return Err(Malformed::Field { number }),
        }
    }
    match below {
        None => Ok(NodeLookup::Entry(None)),
        Some(range) => {
            Directories::read_link(Reader::record(bytes.slice(range))).map(|link| NodeLookup::Below(level, link))
        }
    }
}

/// Returns the bytes of a message's first field, which is the name of an item or of a link.
fn first_bytes(message: &[u8]) -> Result<&[u8], Malformed> {
    const KEY: u8 = 1 << 3 | 2;
    match message {
        [KEY, length @ ..0x80, rest @ ..] => rest.get(..usize::from(*length)).ok_or(Malformed::Truncated),
        [KEY, low, high @ ..0x80, rest @ ..] => {
            let length = usize::from(low & 0x7f) | usize::from(*high) << 7;
            rest.get(..length).ok_or(Malformed::Truncated)
        }
        _ => Err(Malformed::Rule("an item without a name")),
    }
}

fn write_name(item: &DirectoryItem, out: &mut Writer) {
    out.bytes(1, item.name.as_bytes());
    item.entry.write_kind(out);
}

fn write_first(link: &DirectoryLink, out: &mut Writer) {
    out.bytes(1, link.first.as_bytes());
}

fn write_id(link: &DirectoryLink, out: &mut Writer) {
    out.bytes(2, link.id.as_bytes());
}

fn write_child(link: &DirectoryLink, out: &mut Writer) {
    out.bytes(3, link.bare.as_bytes());
    out.uint(4, link.count);
    out.uint(5, link.linked);
}

pub(super) fn ascending(sorted: bool) -> Result<(), Malformed> {
    if sorted { Ok(()) } else { Err(Malformed::Order) }
}
