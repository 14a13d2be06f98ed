//! Between the engine's words and those of the wire.

use amalgam_engine::object::Node;
use amalgam_engine::{Entry, EntryKind, Time, TreePath, What};

use crate::v1;

const NANOS: i64 = 1_000_000_000;

/// Converts a time to its message.
pub fn timestamp(time: Time) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: time.0.div_euclid(NANOS), nanos: time.0.rem_euclid(NANOS) as i32 }
}

/// Converts a message to a time. A time out of range becomes the nearest one in range.
pub fn instant(time: &prost_types::Timestamp) -> Time {
    Time(time.seconds.saturating_mul(NANOS).saturating_add(i64::from(time.nanos)))
}

/// Converts the kind of an entry to its message.
pub fn entry_kind(kind: EntryKind) -> v1::EntryKind {
    match kind {
        EntryKind::File => v1::EntryKind::File,
        EntryKind::Directory => v1::EntryKind::Directory,
        EntryKind::Symlink => v1::EntryKind::Symlink,
        EntryKind::Fifo => v1::EntryKind::Fifo,
        EntryKind::Socket => v1::EntryKind::Socket,
        EntryKind::CharDevice => v1::EntryKind::CharDevice,
        EntryKind::BlockDevice => v1::EntryKind::BlockDevice,
        EntryKind::Conflict => v1::EntryKind::Conflict,
    }
}

/// Converts an entry and its path to a message.
pub fn entry(path: &TreePath, entry: &Entry) -> v1::Entry {
    let (size, symlink_target) = match &entry.node {
        Node::File { size, .. } => (*size, prost::bytes::Bytes::new()),
        Node::Symlink(target) => (target.len() as u64, target.clone()),
        _ => (0, prost::bytes::Bytes::new()),
    };
    v1::Entry {
        path: prost::bytes::Bytes::copy_from_slice(path.as_bytes()),
        kind: entry_kind(entry.kind()).into(),
        mode: entry.mode,
        modify_time: Some(timestamp(entry.mtime)),
        size,
        symlink_target,
    }
}

/// Converts the kind of a change to its message.
pub fn change_kind(what: &What) -> v1::ChangeKind {
    match what {
        What::Added => v1::ChangeKind::Added,
        What::Removed => v1::ChangeKind::Removed,
        What::Modified => v1::ChangeKind::Modified,
        What::KindChanged => v1::ChangeKind::KindChanged,
        What::Metadata => v1::ChangeKind::Metadata,
        What::Renamed { .. } => v1::ChangeKind::Renamed,
    }
}
