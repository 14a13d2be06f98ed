//! Replaces items with others that have the same keys. Only keys decide where nodes end, so no node is cut differently: the
//! function copies the path to each item and nothing else.

use std::vec::IntoIter;

use super::search::Keyed;
use super::{load_child, load_top};
use crate::error::Result;
use crate::id::ObjectId;
use crate::object::SequenceNode;
use crate::store::{Presence, WriteSession};

/// Replaces items of a sequence. `items` is sorted by key, and each key already exists in the sequence.
pub(crate) fn replace<S: Keyed>(session: &WriteSession, top: ObjectId, items: Vec<S::Item>) -> Result<S::Link> {
    let node = load_top::<S>(session.store(), top)?;
    replace_below(session, &node, &mut items.into_iter(), None)
}

/// Replaces the items that belong below this node: those before `end`, the first key of the next node.
fn replace_below<S: Keyed>(
    session: &WriteSession,
    node: &SequenceNode<S>,
    items: &mut IntoIter<S::Item>,
    end: Option<&S::Key>,
) -> Result<S::Link> {
    let mut node = node.clone();
    let mut presence = Presence::Unknown;
    let mut below_it = Vec::new();
    while let Some(item) = items.as_slice().first()
        && end.is_none_or(|end| S::item_key(item) < end)
    {
        let key = S::item_key(item);
        match &mut node {
            SequenceNode::Leaf(kept) => {
                let at = kept.binary_search_by(|kept| S::item_key(kept).cmp(key)).expect("the key is there");
                S::item_outgoing(item, &mut below_it);
                kept[at] = items.next().expect("it was looked at");
            }
            SequenceNode::Inner { level, links } => {
                let at = links.partition_point(|link| S::link_key(link) <= key).saturating_sub(1);
                let below = load_child::<S>(session.store(), *level, &links[at])?;
                let end = links.get(at + 1).map(S::link_key).or(end);
                links[at] = replace_below(session, &below, items, end)?;
                below_it.push(S::link_id(&links[at]));
            }
        }
        if presence == Presence::Unknown && below_it.drain(..).any(|id| session.is_new(id)) {
            presence = Presence::New;
        }
    }
    session.put_node_with_presence(presence, node)
}
