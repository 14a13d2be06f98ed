//! The hard-link map of a tree: the sorted set of (group, member path) pairs, as a sequence.

use super::codec::{Reader, Writer};
use super::directory::ascending;
use super::sequence::{Sequence, SequenceNode, key_hash};
use crate::id::{LinkGroup, LinksId, ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::name::TreePath;

/// The sequence of a tree's hard links.
#[derive(Debug)]
pub enum Links {}

/// One name of a file that has more than one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkMember {
    /// The group that identifies the file.
    pub group: LinkGroup,
    /// One of its paths.
    pub path: TreePath,
}

/// The link of an inner node to one child.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkLink {
    /// The smallest member below the child.
    pub first: LinkMember,
    /// The id of the child.
    pub id: LinksId,
    /// The number of members below the child.
    pub count: u64,
}

fn write_member(member: &LinkMember, out: &mut Writer) {
    out.bytes(1, member.group.as_bytes());
    out.bytes(2, member.path.as_bytes());
}

fn hash(level: u32, member: &LinkMember) -> u64 {
    key_hash(level, &[member.group.as_bytes(), member.path.as_bytes()])
}

fn first(node: &SequenceNode<Links>) -> &LinkMember {
    match node {
        SequenceNode::Leaf(items) => &items[0],
        SequenceNode::Inner { links, .. } => &links[0].first,
    }
}

impl Sequence for Links {
    const KIND: ObjectKind = ObjectKind::Links;
    type Item = LinkMember;
    type Link = LinkLink;

    fn item_hash(item: &LinkMember) -> u64 {
        hash(0, item)
    }

    fn link_hash(link: &LinkLink, level: u32) -> u64 {
        hash(level, &link.first)
    }

    fn link_id(link: &LinkLink) -> ObjectId {
        link.id.object()
    }

    fn link_count(link: &LinkLink) -> u64 {
        link.count
    }

    fn describe(node: &SequenceNode<Self>, id: ObjectId) -> Result<LinkLink, Malformed> {
        Ok(LinkLink { first: first(node).clone(), id: LinksId::from_bytes(id.hash), count: node.count() })
    }

    fn describes(link: &LinkLink, node: &SequenceNode<Self>) -> bool {
        link.first == *first(node) && link.count == node.count()
    }

    fn write_item(item: &LinkMember, out: &mut Writer) {
        write_member(item, out);
    }

    fn write_link(link: &LinkLink, out: &mut Writer) {
        write_member(&link.first, out);
        out.bytes(3, link.id.as_bytes());
        out.uint(4, link.count);
    }

    fn read_item(from: Reader) -> Result<LinkMember, Malformed> {
        match read(from)? {
            (member, None, 0) => Ok(member),
            _ => Err(Malformed::Field { number: 3 }),
        }
    }

    fn read_link(from: Reader) -> Result<LinkLink, Malformed> {
        match read(from)? {
            (first, Some(id), count) => Ok(LinkLink { first, id, count }),
            _ => Err(Malformed::Rule("a link without a hash")),
        }
    }

    fn check_items(items: &[LinkMember]) -> Result<(), Malformed> {
        ascending(items.is_sorted_by(|a, b| a < b))
    }

    fn check_links(links: &[LinkLink]) -> Result<(), Malformed> {
        ascending(links.is_sorted_by(|a, b| a.first < b.first))
    }

    fn item_outgoing(_item: &LinkMember, _into: &mut Vec<ObjectId>) {}
}

fn read(mut from: Reader) -> Result<(LinkMember, Option<LinksId>, u64), Malformed> {
    let (mut group, mut path, mut id, mut count) = (None, None, None, 0);
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => group = Some(LinkGroup::from_bytes(value.hash(1)?)),
            2 => path = Some(TreePath::new(value.bytes(2)?)?),
            3 => id = Some(LinksId::from_bytes(value.hash(3)?)),
            4 => count = value.number(4)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    match (group, path) {
        (Some(group), Some(path)) if !path.is_root() => Ok((LinkMember { group, path }, id, count)),
        _ => Err(Malformed::Rule("a hard link without group or path")),
    }
}
