//! The children of an object with their keys, so that two versions of the object can be compared child by child.

use bytes::Bytes;

use super::sequence;
use super::{Directories, Links, Root, Ropes, Sequence, SequenceNode, Snapshot, States};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;

/// The children of an object, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// The height of a sequence node above the leaves; 0 for any other object.
    pub level: u32,
    /// The children. Parents of a snapshot (its history) are not included.
    pub list: Vec<Child>,
}

/// An object that another one refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The position: the name or key of an item, the smallest key below a node, or an offset in a file. Keys ascend.
    pub key: Vec<u8>,
    /// The id of the child.
    pub id: ObjectId,
}

/// Returns the children of an object with their keys. Safe on untrusted bytes.
pub fn children(kind: ObjectKind, canonical: &Bytes) -> Result<Children, Malformed> {
    match kind {
        ObjectKind::Chunk | ObjectKind::Xattrs => Ok(Children::default()),
        ObjectKind::Directory => of_node::<Directories>(
            canonical,
            |item| item.name.as_bytes().to_vec(),
            |link| link.first.as_bytes().to_vec(),
        ),
        ObjectKind::Rope => of_rope(canonical),
        ObjectKind::Links => {
            let key = |link: &super::LinkLink| [link.first.group.as_bytes(), link.first.path.as_bytes()].concat();
            of_node::<Links>(canonical, |_| Vec::new(), key)
        }
        ObjectKind::State => of_node::<States>(canonical, |_| Vec::new(), |link| link.first.to_vec()),
        ObjectKind::Root => {
            let root = Root::decode(canonical)?;
            let child = |id: ObjectId| Child { key: vec![id.kind as u8], id };
            Ok(Children { level: 0, list: root.outgoing().into_iter().map(child).collect() })
        }
        ObjectKind::Snapshot => {
            let id = Snapshot::decode(canonical)?.root.object();
            Ok(Children { level: 0, list: vec![Child { key: Vec::new(), id }] })
        }
    }
}

fn of_node<S: Sequence>(
    canonical: &Bytes,
    item_key: impl Fn(&S::Item) -> Vec<u8>,
    link_key: impl Fn(&S::Link) -> Vec<u8>,
) -> Result<Children, Malformed> {
    let node = sequence::decode::<S>(canonical)?;
    let mut list = Vec::new();
    match &node {
        SequenceNode::Leaf(items) => {
            let mut ids = Vec::new();
            for item in items {
                S::item_outgoing(item, &mut ids);
                list.extend(ids.drain(..).map(|id| Child { key: item_key(item), id }));
            }
        }
        SequenceNode::Inner { links, .. } => {
            list.extend(links.iter().map(|link| Child { key: link_key(link), id: S::link_id(link) }));
        }
    }
    Ok(Children { level: node.level(), list })
}

fn of_rope(canonical: &Bytes) -> Result<Children, Malformed> {
    let node = sequence::decode::<Ropes>(canonical)?;
    let (mut list, mut offset, mut ids) = (Vec::new(), 0_u64, Vec::new());
    let mut add = |length: u64, ids: &mut Vec<ObjectId>| {
        list.extend(ids.drain(..).map(|id| Child { key: offset.to_be_bytes().to_vec(), id }));
        offset = offset.saturating_add(length);
    };
    match &node {
        SequenceNode::Leaf(items) => items.iter().for_each(|item| {
            Ropes::item_outgoing(item, &mut ids);
            add(item.length, &mut ids);
        }),
        SequenceNode::Inner { links, .. } => links.iter().for_each(|link| {
            ids.push(Ropes::link_id(link));
            add(link.length, &mut ids);
        }),
    }
    Ok(Children { level: node.level(), list })
}
