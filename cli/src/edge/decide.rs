//! Chooses the next step for a workspace from the heads on both sides. Makes no calls.
//!
//! Each step brings both sides nearer to one head, and is chosen from stored heads, so a process that was killed between two
//! steps goes on with the next one.

/// The heads of a workspace. A workspace that does not exist has none; one without a snapshot has an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// The head in the local store.
    pub local: Option<String>,
    /// The head on the server.
    pub remote: Option<String>,
    /// The last known head on the server, which the tracking workspace holds.
    pub tracked: Option<String>,
    /// The last head that both sides had in common; empty before the first sync.
    pub synced: String,
}

/// How the local head relates to a different head of the server, by the history of the local store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// The local store does not have the server's head.
    Unknown,
    /// The local head is a descendant of the server's head.
    Ahead,
    /// The server's head is a descendant of the local head.
    Behind,
    /// Each side has snapshots that the other one does not have.
    Diverged,
}

/// The next step for a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Both sides have the same head, and the tracking workspace has it, too.
    Done,
    /// Neither side has a snapshot.
    Empty,
    /// Get the workspace from the server.
    Create,
    /// Get the server's head into the tracking workspace.
    Fetch,
    /// Merge the tracking workspace into the local one, or move it forward.
    Merge,
    /// Send the local head to the server.
    Push,
    /// Forget a workspace that neither side has any more.
    Forget,
    /// The workspace was deleted in the local store.
    DeletedHere,
    /// The workspace was deleted on the server.
    DeletedThere,
    /// A synced snapshot was undone in the local store.
    UndoneHere,
    /// A synced snapshot was undone on the server.
    UndoneThere,
}

/// Returns the next step. The order counts only for two heads that differ.
pub fn next_step(heads: &Heads, order: HeadOrder) -> Step {
    let (local, remote) = match (&heads.local, &heads.remote) {
        (None, None) => return Step::Forget,
        // A workspace that was never seen on the server is new; one that was seen there has been deleted.
        (Some(_), None) if heads.tracked.is_some() => return Step::DeletedThere,
        (None, Some(_)) if heads.tracked.is_some() => return Step::DeletedHere,
        (Some(head), None) => return if head.is_empty() { Step::Empty } else { Step::Push },
        (None, Some(head)) => return if head.is_empty() { Step::Empty } else { Step::Create },
        (Some(local), Some(remote)) => (local, remote),
    };
    let is_tracked = heads.tracked.as_ref() == Some(remote);
    let merge = if is_tracked { Step::Merge } else { Step::Fetch };
    match (local.as_str(), remote.as_str()) {
        ("", "") => Step::Empty,
        (_, "") => Step::Push,
        ("", _) => merge,
        (local, remote) if local == remote => {
            if is_tracked {
                Step::Done
            } else {
                Step::Fetch
            }
        }
        _ => match order {
            HeadOrder::Unknown => Step::Fetch,
            HeadOrder::Ahead if heads.synced == *local => Step::UndoneThere,
            HeadOrder::Ahead => Step::Push,
            HeadOrder::Behind if heads.synced == *remote => Step::UndoneHere,
            HeadOrder::Behind | HeadOrder::Diverged => merge,
        },
    }
}

/// The next step for a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelStep {
    /// The label names the same snapshot on both sides.
    Done,
    /// Move the server's label to the snapshot of the local label.
    Push,
    /// Move the local label to the snapshot of the server's label.
    Pull,
    /// Forget a label that neither side has any more.
    Forget,
    /// The label was deleted in the local store.
    DeletedHere,
    /// The label was deleted on the server.
    DeletedThere,
    /// Both sides moved the label.
    Diverged,
}

/// Returns the next step for a label that is on these snapshots. `synced` is the snapshot that both sides last had at once, or
/// empty.
pub fn next_label_step(local: Option<&str>, remote: Option<&str>, synced: &str) -> LabelStep {
    match (local, remote) {
        (None, None) => LabelStep::Forget,
        // A label that one side moved after the other side deleted it counts as new.
        (Some(local), None) => {
            if local == synced {
                LabelStep::DeletedThere
            } else {
                LabelStep::Push
            }
        }
        (None, Some(remote)) => {
            if remote == synced {
                LabelStep::DeletedHere
            } else {
                LabelStep::Pull
            }
        }
        (Some(local), Some(remote)) if local == remote => LabelStep::Done,
        (Some(_), Some(remote)) if remote == synced => LabelStep::Push,
        (Some(local), Some(_)) if local == synced => LabelStep::Pull,
        (Some(_), Some(_)) => LabelStep::Diverged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_of_a_label_has_a_step() {
        for (local, remote, synced, expected) in [
            ("", "", "", LabelStep::Forget),
            ("", "", "a", LabelStep::Forget),
            ("a", "", "", LabelStep::Push),
            ("", "a", "", LabelStep::Pull),
            ("a", "", "a", LabelStep::DeletedThere),
            ("", "a", "a", LabelStep::DeletedHere),
            ("b", "", "a", LabelStep::Push),
            ("", "b", "a", LabelStep::Pull),
            ("a", "a", "", LabelStep::Done),
            ("b", "b", "a", LabelStep::Done),
            ("b", "a", "a", LabelStep::Push),
            ("a", "b", "a", LabelStep::Pull),
            ("b", "c", "a", LabelStep::Diverged),
            ("b", "c", "", LabelStep::Diverged),
        ] {
            let snapshot = |word: &'static str| (!word.is_empty()).then_some(word);
            assert_eq!(
                next_label_step(snapshot(local), snapshot(remote), synced),
                expected,
                "{local} {remote} {synced}"
            );
        }
    }

    /// Returns the step for `local remote tracked synced`, where `-` is no workspace and `0` is a workspace without a snapshot.
    fn step(heads: &str, order: HeadOrder) -> Step {
        let head = |word: &str| match word {
            "-" => None,
            "0" => Some(String::new()),
            word => Some(word.to_owned()),
        };
        let words: Vec<_> = heads.split(' ').collect();
        let heads = Heads {
            local: head(words[0]),
            remote: head(words[1]),
            tracked: head(words[2]),
            synced: head(words[3]).unwrap_or_default(),
        };
        next_step(&heads, order)
    }

    #[test]
    fn each_state_of_both_sides_has_a_step() {
        use HeadOrder::{Ahead, Behind, Diverged, Unknown};
        for (heads, order, expected) in [
            ("- - - -", Unknown, Step::Forget),
            ("- - a a", Unknown, Step::Forget),
            ("a - - -", Unknown, Step::Push),
            ("0 - - -", Unknown, Step::Empty),
            ("- a - -", Unknown, Step::Create),
            ("- 0 - -", Unknown, Step::Empty),
            ("a - a a", Unknown, Step::DeletedThere),
            ("- a a a", Unknown, Step::DeletedHere),
            ("a a - -", Unknown, Step::Fetch),
            ("a a a -", Unknown, Step::Done),
            ("0 0 - -", Unknown, Step::Empty),
            ("0 a - -", Unknown, Step::Fetch),
            ("0 a a -", Unknown, Step::Merge),
            ("a 0 - -", Unknown, Step::Push),
            ("b c a a", Unknown, Step::Fetch),
            ("b a a a", Ahead, Step::Push),
            ("a b a a", Behind, Step::Fetch),
            ("a b b a", Behind, Step::Merge),
            ("c b b a", Diverged, Step::Merge),
            ("c b a a", Diverged, Step::Fetch),
        ] {
            assert_eq!(step(heads, order), expected, "{heads} {order:?}");
        }
    }

    #[test]
    fn an_undo_on_one_side_stays_until_the_other_side_moves_on() {
        assert_eq!(step("a b b b", HeadOrder::Behind), Step::UndoneHere);
        assert_eq!(step("b a b b", HeadOrder::Ahead), Step::UndoneThere);
        assert_eq!(step("a c c b", HeadOrder::Behind), Step::Merge, "the server moved on");
        assert_eq!(step("c a b b", HeadOrder::Ahead), Step::Push, "this side moved on");
    }
}
