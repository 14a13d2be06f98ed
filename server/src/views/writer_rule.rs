//! The rule for processes that write into a mount while it is brought to another tree.

/// The treatment of processes that write into a mount faster than a merge can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriterRule {
    /// The mount shows the merged tree; later writes are recorded, and an undo brings them back.
    Overrule,
    /// The mount stays behind the head until the writers pause. The next commit, merge or update brings it along.
    LetWrite,
}
