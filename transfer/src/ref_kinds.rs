//! Kinds of references that pass from one store to another. The kind is the part of a name before its first slash.
//!
//! A stream may set only references that describe snapshots and run nothing. All others belong to the store that made them: a
//! queue entry may name a command, a lean tree replaces a snapshot's own, a resolution decides conflicts of later merges, a
//! policy decides what agents may do, a view's checkpoint belongs to a mount.

use amalgam_engine::reference::RefName;

/// Kinds that a stream may set.
const STREAM_KINDS: [&str; 6] = ["episode", "label", "note", "reward", "step", "workspace"];
/// Kinds that the restore of a backup sets, too. Queue entries are restored as held: none is merged, and no test runs, before a
/// user releases it.
const BACKUP_KINDS: [&str; 7] = ["deleted", "foreign", "lean", "policy", "queue", "resolution", "review"];
/// Checkpoints of live views. Their journals are not part of a backup, and each store assigns their numbers anew.
const VIEW_KIND: &str = "view";

/// Origin of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A stream from any sender.
    Stream,
    /// A backup that is restored into a new store.
    Backup,
}

impl Origin {
    /// Returns whether a name of this origin may be set.
    pub(crate) fn admits(self, name: &RefName) -> bool {
        let kind = kind(name);
        STREAM_KINDS.contains(&kind) || (self == Self::Backup && BACKUP_KINDS.contains(&kind))
    }
}

/// Returns whether a reference goes into a stream that holds everything.
pub(crate) fn is_sent(name: &RefName) -> bool {
    Origin::Stream.admits(name)
}

/// Returns whether a reference goes into a backup.
pub(crate) fn is_backed_up(name: &RefName) -> bool {
    kind(name) != VIEW_KIND
}

fn kind(name: &RefName) -> &str {
    name.as_str().split_once('/').map_or("", |(kind, _)| kind)
}
