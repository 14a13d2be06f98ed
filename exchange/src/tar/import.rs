//! Imports a tar archive as a tree.

use std::io::Read;
use std::sync::atomic::Ordering;

use amalgam_engine::object::{Node, Owner, SYMLINK_TARGET_BYTES_MAX};
use amalgam_engine::{Progress, SnapshotId, Store, TreePath};
use bytes::Bytes;

use super::reader::{Member, MemberKind, TarReader};
use crate::build::{BuildOptions, Owners, SMALL_FILE_BYTES_MAX, TreeBuilder};
use crate::compress::{Compression, decoder};
use crate::counting::CountingStream;
use crate::error::{Error, Result};
use crate::imported::{self, Imported, SnapshotInfo};
use crate::member::{Attributes, Body, Edit, checked_xattrs, time, tree_path};
use crate::source::{DataRange, MemberSource};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that AUFS keeps for itself.
const AUFS: &[u8] = b".wh..wh.";

const NOTE_NAMED_ACL: &str = "ACLs that name users or groups without numbers were left out";
const NOTE_TYPE: &str = "members of unknown types were left out";
const NOTE_LABEL: &str = "volume labels were left out";
const NOTE_OWNER: &str = "owners with numbers over 32 bits were left out";

/// Resource limits, against archives made to exhaust a machine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Members of one archive.
    pub members_max: u64,
    /// Bytes of all files together, without holes.
    pub bytes_max: u64,
    /// Maximum expansion of the compressed input, once the plain archive exceeds `ratio_from_bytes`.
    pub ratio_max: u64,
    /// Archives up to this size may have any ratio.
    pub ratio_from_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { members_max: 100_000_000, bytes_max: 4 << 40, ratio_max: 2_000, ratio_from_bytes: 4 << 30 }
    }
}

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct TarImport {
    /// Compression of the archive; detected by its first bytes if `None`.
    pub compression: Option<Compression>,
    /// Which owners are recorded.
    pub owners: Owners,
    /// Extracts over the tree of this snapshot, which becomes the parent.
    pub onto: Option<SnapshotId>,
    /// Reads and checks everything, stores no file, and makes a snapshot of empty files that is to be dropped.
    pub dry_run: bool,
    /// Resource limits.
    pub limits: Limits,
    /// Author, time and message of the snapshot.
    pub words: SnapshotInfo,
}

/// Imports an archive from a stream.
pub fn import_tar(store: &Store, input: impl Read + Send, options: TarImport, progress: &Progress) -> Result<Imported> {
    let base = options.onto.map(|snapshot| store.snapshot(snapshot)).transpose()?.map(|snapshot| snapshot.root);
    let build = BuildOptions { layer: false, dry_run: options.dry_run };
    let mut builder = TreeBuilder::new(store, base, build)?;
    let read_before = progress.bytes.load(Ordering::Relaxed);
    let input = CountingStream { inner: input, progress };
    let mut reader = TarReader::new(decoder(input, options.compression)?);
    let members = MemberOptions { owners: options.owners, is_layer: false, limits: options.limits, read_before };
    add_members(&mut builder, &mut reader, members, progress)?;
    let (tree, report) = builder.finish()?;
    imported::import_single(store, tree, report, options.onto, options.words)
}

/// Options for adding the members of an archive to a tree.
#[derive(Clone, Copy)]
pub(crate) struct MemberOptions {
    pub(crate) owners: Owners,
    /// Whether whiteouts are interpreted.
    pub(crate) is_layer: bool,
    pub(crate) limits: Limits,
    /// Bytes of the input that were counted before this archive.
    pub(crate) read_before: u64,
}

/// Adds all members of an archive to a tree.
pub(crate) fn add_members<R: Read + Send>(
    builder: &mut TreeBuilder,
    reader: &mut TarReader<R>,
    members: MemberOptions,
    progress: &Progress,
) -> Result<()> {
    let MemberOptions { mut owners, is_layer, limits, read_before } = members;
    let (mut members, mut bytes) = (0, 0_u64);
    while let Some(member) = reader.next_member()? {
        progress.add_items(1);
        progress.check()?;
        members += 1;
        bytes = bytes.saturating_add(reader.body().1);
        let read = progress.bytes.load(Ordering::Relaxed) - read_before;
        check_limits(&limits, members, bytes, read)?;
        add_member(builder, reader, member, &mut owners, is_layer)?;
    }
    Ok(())
}

/// Refuses an archive that exceeds the limits: the members and the bytes of files so far, and the bytes of input that they came
/// from.
pub(crate) fn check_limits(limits: &Limits, members: u64, bytes: u64, read: u64) -> Result<()> {
    let hint = "if the archive is to be trusted, import it with a higher limit";
    if members > limits.members_max {
        return Err(Error::TooLarge { what: "the number of members".to_owned(), max: limits.members_max, hint });
    }
    if bytes > limits.bytes_max {
        return Err(Error::TooLarge { what: "the size of the files together".to_owned(), max: limits.bytes_max, hint });
    }
    // The size that a header claims counts before its bytes were read: a bomb is refused at its beginning.
    if bytes > limits.ratio_from_bytes && bytes / read.max(1) > limits.ratio_max && read > 0 {
        let what = format!("the files are {} times larger than the compressed archive, which", bytes / read.max(1));
        return Err(Error::TooLarge { what, max: limits.ratio_max, hint });
    }
    Ok(())
}

fn add_member<R: Read + Send>(
    builder: &mut TreeBuilder,
    reader: &mut TarReader<R>,
    member: Member,
    owners: &mut Owners,
    is_layer: bool,
) -> Result<()> {
    let path = tree_path(&member.name, &mut builder.report)?;
    if is_layer && let Some((above, name)) = path.split_last() {
        let name = name.as_bytes();
        if name == OPAQUE {
            return builder.add(above, Edit::Opaque);
        }
        if name.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            let hidden = amalgam_engine::Name::new(hidden);
            let hidden = hidden.map_err(|why| Error::refused(&member.name, format!("a whiteout of nothing: {why}")))?;
            return builder.add(above.join(&hidden), Edit::Whiteout);
        }
    }
    let attributes = attributes(builder, &member, owners);
    let other = |attributes, node| Edit::Other { attributes, node };
    let edit = match member.kind {
        MemberKind::File { size, ranges } => {
            let body = file_body(builder, reader, size, ranges)?;
            Edit::File { attributes, body }
        }
        MemberKind::Directory if path.is_root() => return builder.set_root(attributes),
        MemberKind::Directory => Edit::Directory { attributes },
        MemberKind::Symlink(target) => {
            if target.is_empty() || target.contains(&0) || target.len() > SYMLINK_TARGET_BYTES_MAX {
                let why = "it is a symlink whose target is empty, too long or holds a NUL byte";
                return Err(Error::refused(&member.name, why));
            }
            other(attributes, Node::Symlink(Bytes::from(target)))
        }
        MemberKind::HardLink(target) => Edit::Link { existing: link_target(&member.name, &target, builder)? },
        MemberKind::CharDevice(device) => other(attributes, Node::CharDevice(device)),
        MemberKind::BlockDevice(device) => other(attributes, Node::BlockDevice(device)),
        MemberKind::Fifo => other(attributes, Node::Fifo),
        MemberKind::Other(kind) => {
            builder.report.note(if kind == b'V' { NOTE_LABEL } else { NOTE_TYPE }, &member.name);
            return Ok(());
        }
    };
    builder.add(path, edit)
}

fn link_target(name: &[u8], target: &[u8], builder: &mut TreeBuilder) -> Result<TreePath> {
    tree_path(target, &mut builder.report).map_err(|error| match error {
        Error::Refused { why, .. } => Error::refused(name, format!("it is a hard link, and of the linked file: {why}")),
        other => other,
    })
}

fn attributes(builder: &mut TreeBuilder, member: &Member, owners: &mut Owners) -> Attributes {
    let report = &mut builder.report;
    if member.has_named_acl {
        report.note(NOTE_NAMED_ACL, &member.name);
    }
    let owner = match (u32::try_from(member.uid), u32::try_from(member.gid)) {
        (Ok(uid), Ok(gid)) => owners.record(Owner { uid, gid }),
        _ => {
            report.note(NOTE_OWNER, &member.name);
            None
        }
    };
    Attributes {
        mode: member.mode,
        mtime: time(member.mtime, &member.name, report),
        owner,
        xattrs: checked_xattrs(member.xattrs.clone(), &member.name, report),
    }
}

fn file_body<R: Read + Send>(
    builder: &TreeBuilder,
    reader: &mut TarReader<R>,
    size: u64,
    ranges: Option<Vec<DataRange>>,
) -> Result<Body> {
    if size <= SMALL_FILE_BYTES_MAX && ranges.is_none() {
        return reader.read_body().map(Body::Bytes);
    }
    let (input, _) = reader.body();
    let source = match ranges {
        Some(ranges) => MemberSource::sparse(input, size, ranges),
        None => MemberSource::plain(input, size),
    };
    let stored = builder.store(&source);
    let (consumed, failed) = source.finish();
    reader.consumed(consumed);
    match (failed, stored) {
        (Some(error), _) => Err(reader.failed(error)),
        (None, stored) => Ok(stored?),
    }
}
