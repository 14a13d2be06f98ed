//! Merge bases (best common ancestors) of two snapshots.

use super::graph::Walk;
use super::{History, yield_lock};
use crate::error::Result;
use crate::id::SnapshotId;

const LEFT: u8 = 1;
const RIGHT: u8 = 2;
/// An ancestor of a result: common, but not a best one.
const STALE: u8 = 4;

impl History {
    /// Returns the best common ancestors of two snapshots: those which are not ancestors of another common one. There is one for
    /// most pairs, several after criss-cross merges, and none for unrelated histories.
    pub fn common_ancestors(&self, left: SnapshotId, right: SnapshotId) -> Result<Vec<SnapshotId>> {
        self.common(left, right, |_| Ok(true))
    }

    /// Returns the merge bases of two snapshots: the best common ancestors that still have their tree. If retention dropped the
    /// tree of one, its ancestors count instead.
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
            yield_lock(&mut graph);
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
