//! An edit of a tree, as the journal records and replays it. Replaying an edit on an equal tree gives an equal tree.

use std::sync::Arc;

use amalgam_engine::object::{Device, Owner};
use amalgam_engine::work::{RenameMode, SegmentRange, Special};
use amalgam_engine::workspace::take_entries;
use amalgam_engine::{Result, SnapshotId, Time, TreePath, WorkingTree};

use crate::encoding::{Reader, Writer};

/// First bytes of records that are followed by data.
const WRITE: u8 = 9;
const UNLINKED_DATA: u8 = 17;
const GROUP: u8 = 20;

/// An edit of a tree. The variants correspond to the operations of a [`WorkingTree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Edit {
    Create {
        path: TreePath,
        mode: u32,
        owner: Option<Owner>,
    },
    CreateDirectory {
        path: TreePath,
        mode: u32,
        owner: Option<Owner>,
    },
    Symlink {
        path: TreePath,
        target: Vec<u8>,
        owner: Option<Owner>,
    },
    Special {
        path: TreePath,
        special: Special,
        mode: u32,
        owner: Option<Owner>,
    },
    Link {
        existing: TreePath,
        new: TreePath,
    },
    Remove {
        path: TreePath,
    },
    RemoveDirectory {
        path: TreePath,
    },
    Rename {
        from: TreePath,
        to: TreePath,
        mode: RenameMode,
    },
    /// The data follows the record.
    Write {
        path: TreePath,
        offset: u64,
        length: u64,
    },
    Truncate {
        path: TreePath,
        size: u64,
    },
    Punch {
        path: TreePath,
        start: u64,
        end: u64,
    },
    SetMode {
        path: TreePath,
        mode: u32,
    },
    SetOwner {
        path: TreePath,
        owner: Option<Owner>,
    },
    SetMtime {
        path: TreePath,
        mtime: Time,
    },
    SetXattr {
        path: TreePath,
        name: Vec<u8>,
        value: Vec<u8>,
    },
    RemoveXattr {
        path: TreePath,
        name: Vec<u8>,
    },
    /// Data that belongs to no name: of an unlinked file, or of an upload that a later [`WriteParts`](Self::WriteParts) uses.
    UnlinkedData {
        length: u64,
    },
    /// Replaces the whole tree by that of a snapshot.
    Restore {
        snapshot: SnapshotId,
        /// The snapshot that the next commit follows.
        head: Option<SnapshotId>,
    },
    /// The tree at the beginning of a journal file was committed as this snapshot, which the next commit follows.
    Committed {
        snapshot: SnapshotId,
    },
    /// Several edits that are applied together or not at all: see [`group`](super::group).
    Group {
        /// Length of the encoded edits and their data, which follow the record.
        length: u64,
    },
    /// Writes data of earlier [`UnlinkedData`](Self::UnlinkedData) records of the same journal file, one part behind the other. Only in groups.
    WriteParts {
        path: TreePath,
        offset: u64,
        parts: Vec<JournalPart>,
    },
    /// Removes an entry of any kind, a directory with everything in it.
    RemoveAll {
        path: TreePath,
    },
    /// Sets a state value, or removes it.
    SetState {
        key: String,
        value: Option<String>,
    },
    /// Takes the entries of some paths from a snapshot: see [`take_entries`].
    TakeEntries {
        snapshot: SnapshotId,
        /// The snapshot that the next commit follows, if that changes.
        head: Option<SnapshotId>,
        paths: Vec<TreePath>,
    },
}

/// A range of bytes in a journal file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPart {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Edit {
    /// Returns the number of data bytes that follow the record.
    pub(crate) fn data_bytes(&self) -> u64 {
        match self {
            Self::Write { length, .. } | Self::UnlinkedData { length } | Self::Group { length } => *length,
            _ => 0,
        }
    }

    /// Returns the path of an existing entry that the edit changes in place.
    pub(crate) fn changed_path(&self) -> Option<&TreePath> {
        match self {
            Self::Write { path, .. } | Self::Truncate { path, .. } | Self::Punch { path, .. } => Some(path),
            Self::SetMode { path, .. } | Self::SetOwner { path, .. } | Self::SetMtime { path, .. } => Some(path),
            Self::SetXattr { path, .. } | Self::RemoveXattr { path, .. } | Self::Link { existing: path, .. } => {
                Some(path)
            }
            _ => None,
        }
    }

    /// Applies the edit. `range` is the location of its data; for parts, the beginning of the file that has them.
    pub(crate) fn apply(&self, tree: &mut WorkingTree, now: Time, range: Option<SegmentRange>) -> Result<()> {
        tree.set_now(now);
        match self {
            Self::Create { path, mode, owner } => {
                tree.create(path, *mode)?;
                set_new_owner(tree, path, *owner)
            }
            Self::CreateDirectory { path, mode, owner } => {
                tree.create_directory(path, *mode)?;
                set_new_owner(tree, path, *owner)
            }
            Self::Symlink { path, target, owner } => {
                tree.symlink(path, target)?;
                set_new_owner(tree, path, *owner)
            }
            Self::Special { path, special, mode, owner } => {
                tree.create_special(path, *special, *mode)?;
                set_new_owner(tree, path, *owner)
            }
            Self::Link { existing, new } => tree.link(existing, new),
            Self::Remove { path } => tree.remove(path),
            Self::RemoveDirectory { path } => tree.remove_directory(path),
            Self::Rename { from, to, mode } => tree.rename(from, to, *mode),
            Self::Write { path, offset, length } => match range {
                Some(range) => tree.write_range(path, *offset, range, *length),
                // Earlier versions recorded empty writes.
                None => Ok(()),
            },
            Self::Truncate { path, size } => tree.truncate(path, *size),
            Self::Punch { path, start, end } => tree.punch_hole(path, *start..*end),
            Self::SetMode { path, mode } => tree.set_mode(path, *mode),
            Self::SetOwner { path, owner } => tree.set_owner(path, *owner),
            Self::SetMtime { path, mtime } => tree.set_mtime(path, *mtime),
            Self::SetXattr { path, name, value } => tree.set_xattr(path, name, value),
            Self::RemoveXattr { path, name } => tree.remove_xattr(path, name).map(drop),
            Self::UnlinkedData { .. } => Ok(()),
            // Its edits are applied one by one.
            Self::Group { .. } => Ok(()),
            Self::WriteParts { path, offset, parts } => match range {
                Some(range) => write_parts(tree, path, *offset, parts, &range),
                None => Ok(()),
            },
            Self::RemoveAll { path } => tree.remove_all(path),
            Self::SetState { key, value: Some(value) } => tree.set_state(key, value),
            Self::SetState { key, value: None } => tree.remove_state(key).map(drop),
            Self::TakeEntries { snapshot, head, paths } => {
                let root = tree.store().snapshot(*snapshot)?.root;
                take_entries(tree, root, paths)?;
                if head.is_some() {
                    tree.rebase(*head);
                }
                Ok(())
            }
            Self::Committed { snapshot } => {
                // A power cut may lose a commit that was not synced; then its edits are uncommitted again.
                if tree.store().snapshot(*snapshot).is_ok() {
                    tree.rebase(Some(*snapshot));
                }
                Ok(())
            }
            Self::Restore { snapshot, head } => {
                tree.restore(*snapshot)?;
                tree.rebase(*head);
                Ok(())
            }
        }
    }

    /// Appends the encoded edit.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        match self {
            Self::Create { path, mode, owner } => out.u8(1).path(path).u32(*mode).owner(*owner),
            Self::CreateDirectory { path, mode, owner } => out.u8(2).path(path).u32(*mode).owner(*owner),
            Self::Symlink { path, target, owner } => out.u8(3).path(path).bytes(target).owner(*owner),
            Self::Special { path, special, mode, owner } => {
                let (kind, Device { major, minor }) = match special {
                    Special::Fifo => (1, Device { major: 0, minor: 0 }),
                    Special::Socket => (2, Device { major: 0, minor: 0 }),
                    Special::CharDevice(device) => (3, *device),
                    Special::BlockDevice(device) => (4, *device),
                };
                out.u8(4).path(path).u8(kind).u32(major).u32(minor).u32(*mode).owner(*owner)
            }
            Self::Link { existing, new } => out.u8(5).path(existing).path(new),
            Self::Remove { path } => out.u8(6).path(path),
            Self::RemoveDirectory { path } => out.u8(7).path(path),
            Self::Rename { from, to, mode } => {
                let mode = match mode {
                    RenameMode::Replace => 0,
                    RenameMode::NoReplace => 1,
                    RenameMode::Exchange => 2,
                };
                out.u8(8).path(from).path(to).u8(mode)
            }
            Self::Write { path, offset, length } => out.u8(WRITE).path(path).u64(*offset).u64(*length),
            Self::Truncate { path, size } => out.u8(10).path(path).u64(*size),
            Self::Punch { path, start, end } => out.u8(11).path(path).u64(*start).u64(*end),
            Self::SetMode { path, mode } => out.u8(12).path(path).u32(*mode),
            Self::SetOwner { path, owner } => out.u8(13).path(path).owner(*owner),
            Self::SetMtime { path, mtime } => out.u8(14).path(path).u64(mtime.0 as u64),
            Self::SetXattr { path, name, value } => out.u8(15).path(path).bytes(name).bytes(value),
            Self::RemoveXattr { path, name } => out.u8(16).path(path).bytes(name),
            Self::UnlinkedData { length } => out.u8(UNLINKED_DATA).u64(*length),
            Self::Committed { snapshot } => out.u8(19).bytes(snapshot.as_bytes()),
            Self::Group { length } => out.u8(GROUP).u64(*length),
            Self::WriteParts { path, offset, parts } => {
                out.u8(21).path(path).u64(*offset).u32(parts.len() as u32);
                for part in parts {
                    out.u64(part.offset).u64(part.length);
                }
                &mut out
            }
            Self::RemoveAll { path } => out.u8(22).path(path),
            Self::SetState { key, value: None } => out.u8(23).bytes(key.as_bytes()).u8(0),
            Self::SetState { key, value: Some(value) } => {
                out.u8(23).bytes(key.as_bytes()).u8(1).bytes(value.as_bytes())
            }
            Self::TakeEntries { snapshot, head, paths } => {
                let head = head.as_ref().map_or(&[][..], |head| head.as_bytes());
                out.u8(24).bytes(snapshot.as_bytes()).bytes(head).u32(paths.len() as u32);
                for path in paths {
                    out.path(path);
                }
                &mut out
            }
            Self::Restore { snapshot, head } => {
                let head = head.as_ref().map_or(&[][..], |head| head.as_bytes());
                out.u8(18).bytes(snapshot.as_bytes()).bytes(head)
            }
        };
    }

    /// Returns whether an encoded edit can begin with this byte.
    pub(super) fn is_kind(byte: u8) -> bool {
        (1..=24).contains(&byte)
    }

    /// Decodes an edit. Returns `None` for invalid bytes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let edit = match from.u8()? {
            1 => Self::Create { path: from.path()?, mode: from.u32()?, owner: from.owner()? },
            2 => Self::CreateDirectory { path: from.path()?, mode: from.u32()?, owner: from.owner()? },
            3 => Self::Symlink { path: from.path()?, target: from.bytes()?.to_vec(), owner: from.owner()? },
            4 => {
                let path = from.path()?;
                let kind = from.u8()?;
                let device = Device { major: from.u32()?, minor: from.u32()? };
                let special = match kind {
                    1 => Special::Fifo,
                    2 => Special::Socket,
                    3 => Special::CharDevice(device),
                    4 => Special::BlockDevice(device),
                    _ => return None,
                };
                Self::Special { path, special, mode: from.u32()?, owner: from.owner()? }
            }
            5 => Self::Link { existing: from.path()?, new: from.path()? },
            6 => Self::Remove { path: from.path()? },
            7 => Self::RemoveDirectory { path: from.path()? },
            8 => Self::Rename {
                from: from.path()?,
                to: from.path()?,
                mode: match from.u8()? {
                    0 => RenameMode::Replace,
                    1 => RenameMode::NoReplace,
                    2 => RenameMode::Exchange,
                    _ => return None,
                },
            },
            9 => Self::Write { path: from.path()?, offset: from.u64()?, length: from.u64()? },
            10 => Self::Truncate { path: from.path()?, size: from.u64()? },
            11 => Self::Punch { path: from.path()?, start: from.u64()?, end: from.u64()? },
            12 => Self::SetMode { path: from.path()?, mode: from.u32()? },
            13 => Self::SetOwner { path: from.path()?, owner: from.owner()? },
            14 => Self::SetMtime { path: from.path()?, mtime: Time(from.u64()? as i64) },
            15 => Self::SetXattr { path: from.path()?, name: from.bytes()?.to_vec(), value: from.bytes()?.to_vec() },
            16 => Self::RemoveXattr { path: from.path()?, name: from.bytes()?.to_vec() },
            17 => Self::UnlinkedData { length: from.u64()? },
            19 => Self::Committed { snapshot: SnapshotId::from_bytes(from.bytes()?.try_into().ok()?) },
            18 => Self::Restore {
                snapshot: SnapshotId::from_bytes(from.bytes()?.try_into().ok()?),
                head: decode_head(&mut from)?,
            },
            GROUP => Self::Group { length: from.u64()? },
            21 => {
                let (path, offset, count) = (from.path()?, from.u64()?, from.u32()?);
                let part = |_| Some(JournalPart { offset: from.u64()?, length: from.u64()? });
                Self::WriteParts { path, offset, parts: (0..count).map(part).collect::<Option<_>>()? }
            }
            22 => Self::RemoveAll { path: from.path()? },
            23 => Self::SetState {
                key: String::from_utf8(from.bytes()?.to_vec()).ok()?,
                value: match from.u8()? {
                    0 => None,
                    1 => Some(String::from_utf8(from.bytes()?.to_vec()).ok()?),
                    _ => return None,
                },
            },
            24 => {
                let snapshot = SnapshotId::from_bytes(from.bytes()?.try_into().ok()?);
                let (head, count) = (decode_head(&mut from)?, from.u32()?);
                let paths = (0..count).map(|_| from.path()).collect::<Option<_>>()?;
                Self::TakeEntries { snapshot, head, paths }
            }
            _ => return None,
        };
        from.0.is_empty().then_some(edit)
    }
}

/// Decodes a snapshot id that may be absent.
fn decode_head(from: &mut Reader<'_>) -> Option<Option<SnapshotId>> {
    Some(match from.bytes()? {
        [] => None,
        bytes => Some(SnapshotId::from_bytes(bytes.try_into().ok()?)),
    })
}

fn set_new_owner(tree: &mut WorkingTree, path: &TreePath, owner: Option<Owner>) -> Result<()> {
    match owner {
        Some(_) => tree.set_owner(path, owner),
        None => Ok(()),
    }
}

/// Writes parts of a journal file one behind the other.
fn write_parts(
    tree: &mut WorkingTree,
    path: &TreePath,
    offset: u64,
    parts: &[JournalPart],
    file: &SegmentRange,
) -> Result<()> {
    let mut at = offset;
    for part in parts {
        let range = SegmentRange { segment: Arc::clone(&file.segment), offset: part.offset };
        tree.write_range(path, at, range, part.length)?;
        at += part.length;
    }
    Ok(())
}

/// Returns the number of data bytes that follow a complete record that cannot be decoded. A record with data ends with its length.
pub(super) fn unread_data_bytes(edit: &[u8]) -> u64 {
    match edit {
        [WRITE | UNLINKED_DATA | GROUP, .., a, b, c, d, e, f, g, h] => {
            u64::from_le_bytes([*a, *b, *c, *d, *e, *f, *g, *h])
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edit_reads_back_and_a_cut_one_does_not() {
        let path = || TreePath::new("a/b").expect("a path");
        let owner = Some(Owner { uid: 3, gid: 4 });
        let device = Device { major: 8, minor: 1 };
        let edits = [
            Edit::Create { path: path(), mode: 0o644, owner },
            Edit::CreateDirectory { path: path(), mode: 0o755, owner: None },
            Edit::Symlink { path: path(), target: b"../x".to_vec(), owner },
            Edit::Special { path: path(), special: Special::BlockDevice(device), mode: 0o600, owner },
            Edit::Link { existing: path(), new: path() },
            Edit::Remove { path: path() },
            Edit::RemoveDirectory { path: path() },
            Edit::Rename { from: path(), to: path(), mode: RenameMode::Exchange },
            Edit::Write { path: path(), offset: 7, length: 9 },
            Edit::Truncate { path: path(), size: 1 },
            Edit::Punch { path: path(), start: 1, end: 2 },
            Edit::SetMode { path: path(), mode: 0 },
            Edit::SetOwner { path: path(), owner: None },
            Edit::SetMtime { path: path(), mtime: Time(-5) },
            Edit::SetXattr { path: path(), name: b"user.a".to_vec(), value: vec![0; 70_000] },
            Edit::RemoveXattr { path: path(), name: b"user.a".to_vec() },
            Edit::UnlinkedData { length: 4 },
            Edit::Committed { snapshot: SnapshotId::from_bytes([9; 32]) },
            Edit::Group { length: 5 },
            Edit::WriteParts { path: path(), offset: 3, parts: vec![JournalPart { offset: 1, length: 2 }; 2] },
            Edit::RemoveAll { path: path() },
            Edit::SetState { key: "k".to_owned(), value: None },
            Edit::SetState { key: "k".to_owned(), value: Some("[1]".to_owned()) },
            Edit::TakeEntries {
                snapshot: SnapshotId::from_bytes([7; 32]),
                head: Some(SnapshotId::from_bytes([8; 32])),
                paths: vec![path(), path()],
            },
            Edit::Restore { snapshot: SnapshotId::from_bytes([7; 32]), head: None },
            Edit::Restore { snapshot: SnapshotId::from_bytes([7; 32]), head: Some(SnapshotId::from_bytes([8; 32])) },
        ];
        for edit in edits {
            let mut bytes = Vec::new();
            edit.encode(&mut bytes);
            assert_eq!(Edit::decode(&bytes).as_ref(), Some(&edit));
            for cut in 0..bytes.len() {
                assert_ne!(Edit::decode(&bytes[..cut]).as_ref(), Some(&edit), "cut at {cut}");
            }
        }
    }
}
