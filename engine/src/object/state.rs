//! The state map of a tree: small JSON values stored beside the files, as a sequence sorted by key.

use bytes::Bytes;

use super::codec::{Reader, Writer};
use super::directory::ascending;
use super::sequence::{Sequence, SequenceNode, key_hash};
use crate::id::{ObjectId, ObjectKind, StateId};
use crate::malformed::Malformed;

/// Maximum length of a key, in bytes.
pub const STATE_KEY_BYTES_MAX: usize = 255;
/// Maximum length of a value, in bytes.
pub const STATE_VALUE_BYTES_MAX: usize = 65_536;

/// The sequence of a tree's state values.
#[derive(Debug)]
pub enum States {}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateItem {
    /// The key, as UTF-8.
    pub key: Bytes,
    /// The value, as JSON text.
    pub value: Bytes,
}

/// The link of an inner node to one child.
#[derive(Clone, Debug, PartialEq)]
pub struct StateLink {
    /// The smallest key below the child.
    pub first: Bytes,
    /// The id of the child.
    pub id: StateId,
    /// The number of values below the child.
    pub count: u64,
}

impl StateItem {
    /// Creates an item after checking its key and value.
    pub fn new(key: &str, json: &str) -> Result<Self, Malformed> {
        let item = Self { key: Bytes::copy_from_slice(key.as_bytes()), value: Bytes::copy_from_slice(json.as_bytes()) };
        check_key(&item.key)?;
        check_value(&item.value)?;
        Ok(item)
    }
}

fn check_key(key: &[u8]) -> Result<(), Malformed> {
    match key.len() {
        1..=STATE_KEY_BYTES_MAX if std::str::from_utf8(key).is_ok() => Ok(()),
        0..=STATE_KEY_BYTES_MAX => Err(Malformed::Rule("a state key that is empty or not UTF-8")),
        _ => Err(Malformed::TooMuch { what: "a state key" }),
    }
}

fn check_value(value: &[u8]) -> Result<(), Malformed> {
    if value.len() > STATE_VALUE_BYTES_MAX {
        return Err(Malformed::TooMuch { what: "a state value" });
    }
    match serde_json::from_slice::<serde_json::Value>(value) {
        Ok(_) => Ok(()),
        Err(_) => Err(Malformed::Rule("a state value that is not JSON")),
    }
}

fn first(node: &SequenceNode<States>) -> &Bytes {
    match node {
        SequenceNode::Leaf(items) => &items[0].key,
        SequenceNode::Inner { links, .. } => &links[0].first,
    }
}

impl Sequence for States {
    const KIND: ObjectKind = ObjectKind::State;
    type Item = StateItem;
    type Link = StateLink;

    fn item_hash(item: &StateItem) -> u64 {
        key_hash(0, &[&item.key])
    }

    fn link_hash(link: &StateLink, level: u32) -> u64 {
        key_hash(level, &[&link.first])
    }

    fn link_id(link: &StateLink) -> ObjectId {
        link.id.object()
    }

    fn link_count(link: &StateLink) -> u64 {
        link.count
    }

    fn describe(node: &SequenceNode<Self>, id: ObjectId) -> Result<StateLink, Malformed> {
        Ok(StateLink { first: first(node).clone(), id: StateId::from_bytes(id.hash), count: node.count() })
    }

    fn describes(link: &StateLink, node: &SequenceNode<Self>) -> bool {
        link.first == *first(node) && link.count == node.count()
    }

    fn write_item(item: &StateItem, out: &mut Writer) {
        out.bytes(1, &item.key);
        out.bytes(2, &item.value);
    }

    fn write_link(link: &StateLink, out: &mut Writer) {
        out.bytes(1, &link.first);
        out.bytes(3, link.id.as_bytes());
        out.uint(4, link.count);
    }

    fn read_item(mut from: Reader) -> Result<StateItem, Malformed> {
        let mut item = StateItem { key: Bytes::new(), value: Bytes::new() };
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => item.key = value.bytes(1)?,
                2 => item.value = value.bytes(2)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        check_key(&item.key)?;
        check_value(&item.value)?;
        Ok(item)
    }

    fn read_link(mut from: Reader) -> Result<StateLink, Malformed> {
        let (mut first, mut id, mut count) = (Bytes::new(), None, 0);
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => first = value.bytes(1)?,
                3 => id = Some(StateId::from_bytes(value.hash(3)?)),
                4 => count = value.number(4)?,
                number => return Err(Malformed::Field { number }),
            }
        }
        check_key(&first)?;
        let id = id.ok_or(Malformed::Rule("a link without a hash"))?;
        Ok(StateLink { first, id, count })
    }

    fn check_items(items: &[StateItem]) -> Result<(), Malformed> {
        ascending(items.is_sorted_by(|a, b| a.key < b.key))
    }

    fn check_links(links: &[StateLink]) -> Result<(), Malformed> {
        ascending(links.is_sorted_by(|a, b| a.first < b.first))
    }

    fn item_outgoing(_item: &StateItem, _into: &mut Vec<ObjectId>) {}
}
