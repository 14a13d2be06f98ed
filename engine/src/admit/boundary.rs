//! Checks the boundaries between nodes of a sequence, which a single node cannot verify.

use std::sync::Arc;

use super::AdmissionCheck;
use crate::error::Result;
use crate::malformed::Malformed;
use crate::merkle::{Keyed, load_new_child};
use crate::object::{Directories, Links, Ropes, Segment, SegmentSource, SequenceNode, States, ends_node};
use crate::store::CachedSequence;

/// A sequence with a rule for adjacent items in different nodes.
pub(super) trait BoundaryRule: CachedSequence {
    fn check_boundary(before: &Self::Item, after: &Self::Item) -> Result<(), Malformed>;
}

impl BoundaryRule for Ropes {
    fn check_boundary(before: &Segment, after: &Segment) -> Result<(), Malformed> {
        match (before.source, after.source) {
            (SegmentSource::Hole, SegmentSource::Hole) => Err(Malformed::Rule("two holes side by side")),
            _ => Ok(()),
        }
    }
}

macro_rules! ascending {
    ($($sequence:ty),*) => {$(
        impl BoundaryRule for $sequence {
            fn check_boundary(before: &Self::Item, after: &Self::Item) -> Result<(), Malformed> {
                if Self::item_key(before) < Self::item_key(after) { Ok(()) } else { Err(Malformed::Order) }
            }
        }
    )*};
}

ascending!(Directories, Links, States);

impl AdmissionCheck<'_> {
    /// Checks the claims of an inner node about its children, that all children but the last end at a cut, down to the leaf, and
    /// that their items are in order.
    pub(super) fn seams<S: BoundaryRule>(&self, node: &SequenceNode<S>) -> Result<()> {
        let SequenceNode::Inner { level, links } = node else { return Ok(()) };
        let mut before: Option<S::Item> = None;
        for (index, link) in links.iter().enumerate() {
            let child = self.session.node::<S>(S::link_id(link))?;
            self.claim(child.level() + 1 == *level && S::describes(link, &child))?;
            if let Some(before) = before {
                S::check_boundary(&before, &self.first_item(&child)?).map_err(|source| self.refusal(source))?;
            }
            before = Some(self.last_item(child, index + 1 < links.len())?);
        }
        Ok(())
    }

    fn first_item<S: BoundaryRule>(&self, node: &Arc<SequenceNode<S>>) -> Result<S::Item> {
        let mut node = Arc::clone(node);
        loop {
            node = match &*node {
                SequenceNode::Leaf(items) => return Ok(items[0].clone()),
                SequenceNode::Inner { level, links } => load_new_child(self.session, *level, &links[0])?,
            };
        }
    }

    /// Returns the last item below a node. If `goes_on` is true, more items follow, so that every node on the path must end at a
    /// cut.
    fn last_item<S: BoundaryRule>(&self, mut node: Arc<SequenceNode<S>>, goes_on: bool) -> Result<S::Item> {
        loop {
            let (count, hash) = match &*node {
                SequenceNode::Leaf(items) => (items.len(), items.last().map(S::item_hash)),
                SequenceNode::Inner { level, links } => {
                    (links.len(), links.last().map(|link| S::link_hash(link, *level)))
                }
            };
            if goes_on && !hash.is_some_and(|hash| ends_node(count, hash)) {
                return Err(self.refusal(Malformed::Boundary));
            }
            node = match &*node {
                SequenceNode::Leaf(items) => return Ok(items[items.len() - 1].clone()),
                SequenceNode::Inner { level, links } => load_new_child(self.session, *level, &links[links.len() - 1])?,
            };
        }
    }
}
