//! A directory entry: all POSIX metadata of a file except ctime, atime and inode number.

use std::sync::Arc;

use bytes::Bytes;

use super::codec::{Reader, Writer};
use super::conflict::{self, Conflict};
use super::rope::{FILE_BYTES_MAX, HOLE_BYTES_MIN, SINGLE_CHUNK_BYTES_MAX};
use super::xattrs::{self, XATTRS_INLINE_BYTES_MAX, Xattrs};
use crate::id::{Bare, ChunkId, DirectoryId, LinkGroup, ObjectId, RopeId};
use crate::malformed::Malformed;
use crate::time::Time;

/// Maximum length of a symlink target, in bytes.
pub const SYMLINK_TARGET_BYTES_MAX: usize = 4_095;

/// The metadata and content that a name in a directory refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The kind of the entry with its kind-specific data.
    pub node: Node,
    /// Permission bits, at most `0o7777`; `0o777` for symlinks and 0 for conflicts.
    pub mode: u32,
    /// The modification time of the contents.
    pub mtime: Time,
    /// Optional parts that few entries have.
    pub extra: Option<Box<Extra>>,
}

/// The kind of an entry with its data.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// A regular file.
    File {
        /// Length in bytes.
        size: u64,
        /// The bytes.
        content: Content,
    },
    /// A directory; `None` when it is empty.
    Directory(Option<DirectoryRef>),
    /// A symbolic link and its target.
    Symlink(Bytes),
    /// A named pipe.
    Fifo,
    /// A Unix domain socket.
    Socket,
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// Versions that could not be merged.
    Conflict(Arc<Conflict>),
}

/// The content of a file. Equal bytes always have an equal `Content`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Content {
    /// No bytes.
    Empty,
    /// One chunk.
    Chunk(ChunkId),
    /// A rope of chunks and holes.
    Rope(RopeId),
    /// All bytes are zero.
    Hole,
}

/// A reference to a directory's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryRef {
    /// The id of the top node.
    pub id: DirectoryId,
    /// The hash of the directory without times.
    pub bare: Bare,
    /// The number of hard links in or below the directory.
    pub linked: u64,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// User and group, for entries whose owner differs from the workspace's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Optional parts of an entry, stored only if at least one is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Extra {
    /// The owner, if it differs from the workspace's.
    pub owner: Option<Owner>,
    /// Extended attributes.
    pub xattrs: Xattrs,
    /// The hard-link group, for a file with more than one name.
    pub link: Option<LinkGroup>,
}

/// The kind of an entry, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are those of `Node`")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
    Conflict,
}

impl EntryKind {
    /// Returns the name of the kind with its article, for messages. For example "a symlink".
    pub fn word(self) -> &'static str {
        match self {
            Self::File => "a file",
            Self::Directory => "a directory",
            Self::Symlink => "a symlink",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::CharDevice => "a character device",
            Self::BlockDevice => "a block device",
            Self::Conflict => "a conflict",
        }
    }
}

impl Entry {
    /// Creates an entry without optional parts.
    pub fn new(node: Node, mode: u32, mtime: Time) -> Self {
        Self { node, mode, mtime, extra: None }
    }

    /// Creates an entry for an empty directory.
    pub fn empty_directory(mode: u32, mtime: Time) -> Self {
        Self::new(Node::Directory(None), mode, mtime)
    }

    /// Returns the kind of this entry.
    pub fn kind(&self) -> EntryKind {
        match self.node {
            Node::File { .. } => EntryKind::File,
            Node::Directory(_) => EntryKind::Directory,
            Node::Symlink(_) => EntryKind::Symlink,
            Node::Fifo => EntryKind::Fifo,
            Node::Socket => EntryKind::Socket,
            Node::CharDevice(_) => EntryKind::CharDevice,
            Node::BlockDevice(_) => EntryKind::BlockDevice,
            Node::Conflict(_) => EntryKind::Conflict,
        }
    }

    /// Returns the hard-link group that this entry belongs to.
    pub fn link(&self) -> Option<LinkGroup> {
        self.extra.as_ref().and_then(|extra| extra.link)
    }

    /// Returns the extended attributes.
    pub fn xattrs(&self) -> &Xattrs {
        self.extra.as_ref().map_or(&Xattrs::None, |extra| &extra.xattrs)
    }

    /// Returns the owner if it differs from the workspace's.
    pub fn owner(&self) -> Option<Owner> {
        self.extra.as_ref().and_then(|extra| extra.owner)
    }

    /// Returns the number of hard links in this entry: 1 or 0 for a file, the total below it for a directory.
    pub fn linked(&self) -> u64 {
        match &self.node {
            Node::Directory(below) => below.map_or(0, |below| below.linked),
            _ => u64::from(self.link().is_some()),
        }
    }

    /// Returns whether the two entries are equal except for times, both their own and those below them.
    pub fn equal_but_for_times(&self, other: &Self) -> bool {
        let same_node = match (&self.node, &other.node) {
            (Node::Directory(ours), Node::Directory(theirs)) => {
                ours.map(|below| below.bare) == theirs.map(|below| below.bare)
            }
            (Node::Conflict(ours), Node::Conflict(theirs)) => ours.equal_but_for_times(theirs),
            (ours, theirs) => ours == theirs,
        };
        same_node && self.mode == other.mode && self.extra == other.extra
    }

    /// Returns the entry with its optional parts changed. If no optional part is left, none is stored.
    pub fn with_extra(mut self, change: impl FnOnce(&mut Extra)) -> Self {
        let mut extra = self.extra.take().map_or_else(Extra::default, |extra| *extra);
        change(&mut extra);
        self.extra = (extra != Extra::default()).then(|| Box::new(extra));
        self
    }

    pub(super) fn collect_outgoing(&self, into: &mut Vec<ObjectId>) {
        match &self.node {
            Node::File { content: Content::Chunk(id), .. } => into.push(id.object()),
            Node::File { content: Content::Rope(id), .. } => into.push(id.object()),
            Node::Directory(Some(below)) => into.push(below.id.object()),
            Node::Conflict(conflict) => {
                conflict.terms().iter().flatten().for_each(|term| term.collect_outgoing(into));
            }
            _ => {}
        }
        if let Xattrs::Apart(id) = self.xattrs() {
            into.push(id.object());
        }
    }

    /// Writes the fields from number 2 on. Field 1 is the name, which only directory items have.
    pub(super) fn write(&self, out: &mut Writer, timeless: bool) {
        self.write_kind(out);
        if !timeless {
            self.write_times(out);
        }
        self.write_rest(out, timeless);
    }

    pub(super) fn write_kind(&self, out: &mut Writer) {
        out.uint(2, self.kind_number());
        out.uint(3, u64::from(self.mode));
    }

    /// Writes the fields that the form without times omits: the mtime, and a directory's id, which covers the times below it.
    pub(super) fn write_times(&self, out: &mut Writer) {
        out.sint(4, self.mtime.0);
        if let Node::Directory(Some(below)) = self.node {
            out.bytes(7, below.id.as_bytes());
        }
    }

    /// Writes the fields after the times. `timeless` only affects conflicts.
    pub(super) fn write_rest(&self, out: &mut Writer, timeless: bool) {
        match &self.node {
            Node::File { size, content } => {
                out.uint(5, *size);
                match content {
                    Content::Empty => {}
                    Content::Chunk(id) => {
                        out.uint(6, 1);
                        out.bytes(7, id.as_bytes());
                    }
                    Content::Rope(id) => {
                        out.uint(6, 2);
                        out.bytes(7, id.as_bytes());
                    }
                    Content::Hole => out.uint(6, 3),
                }
            }
            Node::Directory(Some(below)) => {
                out.bytes(8, below.bare.as_bytes());
                out.uint(9, below.linked);
            }
            Node::Symlink(target) => out.bytes(10, target),
            Node::CharDevice(device) | Node::BlockDevice(device) => {
                out.uint(11, u64::from(device.major) << 32 | u64::from(device.minor));
            }
            Node::Conflict(conflict) => conflict::write(conflict, out, timeless),
            Node::Directory(None) | Node::Fifo | Node::Socket => {}
        }
        let Some(extra) = &self.extra else { return };
        if let Some(owner) = extra.owner {
            out.message(13, |out| {
                out.uint(1, u64::from(owner.uid));
                out.uint(2, u64::from(owner.gid));
            });
        }
        match &extra.xattrs {
            Xattrs::None => {}
            Xattrs::Inline(list) => {
                list.iter().for_each(|xattr| out.message(14, |out| xattrs::write_one(xattr, out)));
            }
            Xattrs::Apart(id) => out.bytes(15, id.as_bytes()),
        }
        if let Some(link) = extra.link {
            out.bytes(16, link.as_bytes());
        }
    }

    /// Reads an entry and the bytes of its name, if it has one. `nested` is true inside a conflict.
    pub(super) fn read(mut from: Reader, nested: bool) -> Result<(Bytes, Self), Malformed> {
        let mut parts = Parts::default();
        while let Some((field, value)) = from.next_field()? {
            match field {
                1 => parts.name = value.bytes(1)?,
                2 => parts.kind = value.number(2)?,
                3 => parts.mode = value.small(3)?,
                4 => parts.mtime = Time(value.signed(4)?),
                5 => parts.size = value.number(5)?,
                6 => parts.form = value.number(6)?,
                7 => parts.id = Some(value.hash(7)?),
                8 => parts.bare = Some(Bare::from_bytes(value.hash(8)?)),
                9 => parts.linked = value.number(9)?,
                10 => parts.target = value.bytes(10)?,
                11 => parts.device = value.number(11)?,
                12 if !nested => conflict::push_term(&mut parts.terms, value.message(12)?)?,
                13 => parts.extra.owner = Some(read_owner(value.message(13)?)?),
                14 => xattrs::push(&mut parts.xattrs, value.message(14)?)?,
                15 => parts.extra.xattrs = Xattrs::Apart(crate::id::XattrsId::from_bytes(value.hash(15)?)),
                16 => parts.extra.link = Some(LinkGroup::from_bytes(value.hash(16)?)),
                number => return Err(Malformed::Field { number }),
            }
        }
        parts.into_entry()
    }

    fn kind_number(&self) -> u64 {
        match self.kind() {
            EntryKind::File => 1,
            EntryKind::Directory => 2,
            EntryKind::Symlink => 3,
            EntryKind::Fifo => 4,
            EntryKind::Socket => 5,
            EntryKind::CharDevice => 6,
            EntryKind::BlockDevice => 7,
            EntryKind::Conflict => 8,
        }
    }
}

fn read_owner(mut from: Reader) -> Result<Owner, Malformed> {
    let mut owner = Owner { uid: 0, gid: 0 };
    while let Some((field, value)) = from.next_field()? {
        match field {
            1 => owner.uid = value.small(1)?,
            2 => owner.gid = value.small(2)?,
            number => return Err(Malformed::Field { number }),
        }
    }
    Ok(owner)
}

#[derive(Default)]
struct Parts {
    name: Bytes,
    kind: u64,
    mode: u32,
    mtime: Time,
    size: u64,
    form: u64,
    id: Option<[u8; 32]>,
    bare: Option<Bare>,
    linked: u64,
    target: Bytes,
    device: u64,
    terms: Vec<Option<Entry>>,
    xattrs: Vec<xattrs::Xattr>,
    extra: Extra,
}

impl Parts {
    /// Does not check for fields that do not belong to the kind: the comparison with the canonical encoding finds them.
    fn into_entry(mut self) -> Result<(Bytes, Entry), Malformed> {
        let device = Device { major: (self.device >> 32) as u32, minor: self.device as u32 };
        let node = match self.kind {
            1 => Node::File { size: self.size, content: self.content()? },
            2 => Node::Directory(self.directory()?),
            3 => Node::Symlink(self.symlink()?),
            4 => Node::Fifo,
            5 => Node::Socket,
            6 => Node::CharDevice(device),
            7 => Node::BlockDevice(device),
            8 => Node::Conflict(Arc::new(Conflict::from_canonical(std::mem::take(&mut self.terms))?)),
            _ => return Err(Malformed::Rule("an entry of no known kind")),
        };
        let mode_allowed = match node {
            Node::Symlink(_) => self.mode == 0o777,
            Node::Conflict(_) => self.mode == 0 && self.mtime == Time::EPOCH,
            _ => self.mode <= 0o7777,
        };
        if !mode_allowed {
            return Err(Malformed::Rule("a mode that its kind does not have"));
        }
        if !self.xattrs.is_empty() {
            xattrs::check(&self.xattrs)?;
            if xattrs::total_bytes(&self.xattrs) > XATTRS_INLINE_BYTES_MAX {
                return Err(Malformed::TooMuch { what: "attributes inside an entry" });
            }
            self.extra.xattrs = Xattrs::Inline(self.xattrs);
        }
        if matches!(node, Node::Directory(_)) && self.extra.link.is_some() {
            return Err(Malformed::Rule("a hard link to a directory"));
        }
        if matches!(node, Node::Conflict(_)) && self.extra != Extra::default() {
            return Err(Malformed::Rule("a conflict with attributes of its own"));
        }
        let extra = (self.extra != Extra::default()).then(|| Box::new(self.extra));
        Ok((self.name, Entry { node, mode: self.mode, mtime: self.mtime, extra }))
    }

    fn content(&self) -> Result<Content, Malformed> {
        if self.size > FILE_BYTES_MAX {
            return Err(Malformed::TooMuch { what: "a file's size" });
        }
        match (self.form, self.id) {
            (0, None) if self.size == 0 => Ok(Content::Empty),
            (1, Some(id)) if (1..=SINGLE_CHUNK_BYTES_MAX).contains(&self.size) => {
                Ok(Content::Chunk(ChunkId::from_bytes(id)))
            }
            (2, Some(id)) if self.size > SINGLE_CHUNK_BYTES_MAX => Ok(Content::Rope(RopeId::from_bytes(id))),
            (3, None) if self.size >= HOLE_BYTES_MIN => Ok(Content::Hole),
            _ => Err(Malformed::Rule("a content that does not fit its size")),
        }
    }

    fn directory(&self) -> Result<Option<DirectoryRef>, Malformed> {
        match (self.id, self.bare) {
            (None, None) => Ok(None),
            (Some(id), Some(bare)) => {
                Ok(Some(DirectoryRef { id: DirectoryId::from_bytes(id), bare, linked: self.linked }))
            }
            _ => Err(Malformed::Rule("a directory with one hash instead of two")),
        }
    }

    fn symlink(&self) -> Result<Bytes, Malformed> {
        match self.target.len() {
            1..=SYMLINK_TARGET_BYTES_MAX if !self.target.contains(&0) => Ok(self.target.clone()),
            0..=SYMLINK_TARGET_BYTES_MAX => Err(Malformed::Rule("a symlink target that is empty or holds a NUL")),
            _ => Err(Malformed::TooMuch { what: "a symlink target" }),
        }
    }
}
