//! Where two lines of work were last one.

use super::graph::Walk;
use super::{History, let_others_in};
use crate::error::Result;
use crate::id::SnapshotId;

const LEFT: u8 = 1;
const RIGHT: u8 = 2;
/// An ancestor of a result: common, but not a best one.
const STALE: u8 = 4;

impl History {
    /// The best common ancestors of two snapshots: those that are an ancestor of no other common one. One for most pairs,
    /// several after criss-cross merges, none for histories that have nothing in common.
    pub fn common_ancestors(&self, left: SnapshotId, right: SnapshotId) -> Result<Vec<SnapshotId>> {
        self.common(left, right, |_| Ok(true))
    }

    /// The same, but each with its tree: behind one whose tree was dropped by retention, those that came before it count.
    pub fn merge_bases(&self, left: SnapshotId, right: SnapshotId) -> Result<Vec<SnapshotId>> {
        self.common(left, right, |id| self.is_thinned(id).map(|thinned| !thinned))
    }

    fn common(
        &self,
        left: SnapshotId,
        right: SnapshotId,
        is_usable: impl Fn(SnapshotId) -> Result<bool>,
    ) -> Result<Vec<SnapshotId>> {
        let mut graph = self.graph.lock();
        let mut walk = Walk::default();
        for (side, flag) in [(left, LEFT), (right, RIGHT)] {
            let place = graph.need(&self.store, side)?;
            walk.start(&graph, place, flag);
        }
        let mut found = Vec::new();
        while walk.open_without(STALE) > 0 {
            let_others_in(&mut graph);
            let Some((here, mut flags)) = walk.next() else { break };
            if flags == LEFT | RIGHT && is_usable(graph.id(here))? {
                found.push(graph.id(here));
                flags |= STALE;
            }
            for parent in graph.parents(&self.store, here)? {
                walk.start(&graph, parent, flags);
            }
        }
        Ok(found)
    }
}
