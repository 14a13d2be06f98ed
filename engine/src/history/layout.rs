//! Lays out a log in lanes, for drawing the graph.

use crate::id::SnapshotId;

/// The position of a snapshot in the drawing, and the edges from its row to the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphRow {
    /// The snapshot.
    pub id: SnapshotId,
    /// The lane, from 0.
    pub lane: usize,
    /// Number of lanes in this row.
    pub width: usize,
    /// The edges down to the next row.
    pub edges: Vec<GraphEdge>,
}

/// An edge from a lane of one row to a lane of the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GraphEdge {
    /// The lane above.
    pub from: usize,
    /// The lane below.
    pub to: usize,
}

/// Lays out a log row by row. Needs only ids, so that it works on a page as well as on the whole log.
#[derive(Clone, Debug, Default)]
pub struct GraphLayout {
    /// The next snapshot of each lane.
    lanes: Vec<Option<SnapshotId>>,
}

impl GraphLayout {
    /// Creates an empty layout.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the row of the next snapshot. Children must come before their parents.
    pub fn row(&mut self, id: SnapshotId, parents: &[SnapshotId]) -> GraphRow {
        let lane = match self.lanes.iter().position(|lane| *lane == Some(id)) {
            Some(lane) => lane,
            None => self.free_lane(id),
        };
        let above = self.lanes.clone();
        // The lanes of its other children end here.
        for other in &mut self.lanes {
            if *other == Some(id) {
                *other = None;
            }
        }
        let mut below = Vec::with_capacity(parents.len());
        for (number, parent) in parents.iter().enumerate() {
            let place = match self.lanes.iter().position(|lane| *lane == Some(*parent)) {
                Some(place) => place,
                None if number == 0 => {
                    self.lanes[lane] = Some(*parent);
                    lane
                }
                None => self.free_lane(*parent),
            };
            below.push(place);
        }
        while self.lanes.last() == Some(&None) {
            self.lanes.pop();
        }
        let mut edges: Vec<_> = below.into_iter().map(|to| GraphEdge { from: lane, to }).collect();
        for (from, leads_to) in above.iter().enumerate() {
            if leads_to.is_some() && *leads_to != Some(id) {
                edges.push(GraphEdge { from, to: from });
            }
        }
        edges.sort_unstable();
        edges.dedup();
        // A lane from another column that leads to this snapshot joins its lane in the row itself.
        let joins = above.iter().enumerate().filter(|(from, leads_to)| **leads_to == Some(id) && *from != lane);
        let width = above.len().max(self.lanes.len()).max(joins.map(|(from, _)| from + 1).max().unwrap_or(0));
        GraphRow { id, lane, width, edges }
    }

    fn free_lane(&mut self, id: SnapshotId) -> usize {
        if let Some(place) = self.lanes.iter().position(Option::is_none) {
            self.lanes[place] = Some(id);
            return place;
        }
        self.lanes.push(Some(id));
        self.lanes.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(letter: u8) -> SnapshotId {
        SnapshotId::from_bytes([letter; 32])
    }

    #[test]
    fn a_merge_opens_a_lane_and_the_fork_closes_it() {
        // d is the merge of c and b, both made from a.
        let mut layout = GraphLayout::new();
        let rows = [(b'd', vec![b'c', b'b']), (b'c', vec![b'a']), (b'b', vec![b'a']), (b'a', vec![])]
            .map(|(letter, parents)| layout.row(id(letter), &parents.into_iter().map(id).collect::<Vec<_>>()));
        let lanes: Vec<_> = rows.iter().map(|row| row.lane).collect();
        assert_eq!(lanes, [0, 0, 1, 0]);
        assert_eq!(rows[0].edges, [GraphEdge { from: 0, to: 0 }, GraphEdge { from: 0, to: 1 }]);
        assert_eq!(rows[1].edges, [GraphEdge { from: 0, to: 0 }, GraphEdge { from: 1, to: 1 }]);
        assert_eq!(rows[2].edges, [GraphEdge { from: 0, to: 0 }, GraphEdge { from: 1, to: 0 }]);
        assert_eq!(rows[3].edges, []);
        assert_eq!(rows.map(|row| row.width), [2, 2, 2, 1]);
    }

    #[test]
    fn lines_that_have_nothing_in_common_stand_side_by_side() {
        let mut layout = GraphLayout::new();
        assert_eq!(layout.row(id(b'x'), &[id(b'w')]).lane, 0);
        assert_eq!(layout.row(id(b'm'), &[id(b'l')]).lane, 1);
        assert_eq!(layout.row(id(b'w'), &[]).lane, 0);
        let last = layout.row(id(b'l'), &[]);
        assert_eq!((last.lane, last.edges), (1, Vec::new()));
        assert!(layout.lanes.is_empty());
    }
}
