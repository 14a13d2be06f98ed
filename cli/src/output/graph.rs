//! A log drawn as lanes.
//!
//! Every snapshot is a row with its lane marked; where a line leaves its lane, a second row shows how.

use amalgam_engine::SnapshotId;
use amalgam_engine::history::{GraphLayout, GraphRow};

/// The part of the graph to the left of a snapshot's lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The prefix of its first line.
    pub first: String,
    /// The prefix of its second line, or a line of its own; `None` if all lines go straight down.
    pub turns: Option<String>,
    /// The prefix of further lines.
    pub rest: String,
}

/// A drawing that grows row by row.
#[derive(Debug, Default)]
pub struct Drawing {
    layout: GraphLayout,
}

impl Drawing {
    /// Draws the row of the next snapshot. The caller passes children before their parents.
    pub fn row(&mut self, id: SnapshotId, parents: &[SnapshotId], mark: char) -> Drawn {
        let row = self.layout.row(id, parents);
        let is_above = |lane: usize| row.edges.iter().any(|edge| edge.from == lane);
        let first = |lane: usize| match lane {
            lane if lane == row.lane => mark,
            lane if is_above(lane) => '│',
            _ => ' ',
        };
        let is_below = |lane: usize| row.edges.iter().any(|edge| edge.to == lane);
        let rest = |lane: usize| if is_below(lane) { '│' } else { ' ' };
        let lanes = row.edges.iter().map(|edge| edge.from.max(edge.to) + 1).max().unwrap_or(0).max(row.lane + 1);
        let spaced = |glyph: &dyn Fn(usize) -> char| {
            let text: String = (0..lanes).flat_map(|lane| [glyph(lane), ' ']).collect();
            format!("{} ", text.trim_end())
        };
        Drawn { first: spaced(&first), turns: turns(&row, lanes), rest: spaced(&rest) }
    }
}

/// Draws the row in which lines turn from the lane of a snapshot to other lanes, or returns `None` if no line turns.
fn turns(row: &GraphRow, lanes: usize) -> Option<String> {
    let targets: Vec<_> = row.edges.iter().filter(|edge| edge.from != edge.to).map(|edge| edge.to).collect();
    let left = *targets.iter().min()?.min(&row.lane);
    let right = *targets.iter().max()?.max(&row.lane);
    let goes_straight = |lane: usize| row.edges.iter().any(|edge| edge.from == lane && edge.to == lane);
    let mut text = String::new();
    for lane in 0..lanes {
        let is_end = lane == row.lane || targets.contains(&lane);
        // The snapshot's own lane has a line from above, a target lane a line to below, and a lane that goes straight on has both.
        let up = lane == row.lane || goes_straight(lane);
        let down = targets.contains(&lane) || goes_straight(lane);
        let glyph = match (is_end, up, down, lane > left, lane < right) {
            (true, true, true, true, true) => '┼',
            (true, true, true, true, false) => '┤',
            (true, true, true, false, _) => '├',
            (true, true, false, true, true) => '┴',
            (true, true, false, true, false) => '╯',
            (true, true, false, false, _) => '╰',
            (true, false, _, true, true) => '┬',
            (true, false, _, true, false) => '╮',
            (true, false, _, false, _) => '╭',
            (false, true, ..) => '│',
            (false, false, ..) if lane > left && lane < right => '─',
            _ => ' ',
        };
        text.push(glyph);
        text.push(if lane >= left && lane < right { '─' } else { ' ' });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws `child: parents` lines, and compares the result.
    fn check(log: &[(u8, &[u8])], expected: &str) {
        let id = |letter: &u8| SnapshotId::from_bytes([*letter; 32]);
        let mut drawing = Drawing::default();
        let mut text = String::new();
        for (letter, parents) in log {
            let parents: Vec<_> = parents.iter().map(id).collect();
            let drawn = drawing.row(id(letter), &parents, '○');
            text.push_str(&format!("{}{}\n", drawn.first, char::from(*letter)));
            text.extend(drawn.turns.map(|turns| format!("{}\n", turns.trim_end())));
        }
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn one_line_is_one_lane() {
        check(&[(b'b', b"a"), (b'a', b"")], "○ b\n○ a\n");
    }

    #[test]
    fn forks_come_together_where_they_began() {
        check(
            &[(b'd', b"a"), (b'c', b"a"), (b'b', b"a"), (b'a', b"")],
            "\
○ d
│ ○ c
├─╯
│ ○ b
├─╯
○ a
",
        );
    }

    #[test]
    fn a_merge_opens_a_lane_and_the_fork_closes_it() {
        check(
            &[(b'd', b"cb"), (b'c', b"a"), (b'b', b"a"), (b'a', b"")],
            "\
○ d
├─╮
○ │ c
│ ○ b
├─╯
○ a
",
        );
    }

    #[test]
    fn a_turn_crosses_lanes_that_go_on() {
        check(
            &[(b'e', b"a"), (b'd', b"b"), (b'c', b"a"), (b'b', b""), (b'a', b"")],
            "\
○ e
│ ○ d
│ │ ○ c
├─│─╯
│ ○ b
○ a
",
        );
    }
}
