//! File format of an index: a header with a checksum, then the directories in pre-order.
//!
//! The format may change between versions: a file of another version counts as absent.

use std::fs;
use std::io;
use std::path::Path;

use amalgam_engine::object::DirectoryRef;
use amalgam_engine::{Bare, DirectoryId, LinkGroup, Name, RootId, Time, TreePath};

use super::{Directory, Index, IndexEntry, Leaf, NamedEntry, ROOT, Trust};
use crate::error::{Error, Result};
use crate::host::Identity;
use crate::stamp::Stamp;

/// First bytes of a file, with the format version.
const MAGIC: &[u8; 16] = b"amalgam index 2\n";
const HASH_BYTES: usize = 32;

/// Flags of an entry.
const IS_DIRECTORY: u8 = 1;
const IS_RACY: u8 = 2;
const IS_BYTES: u8 = 4;
/// Owner or link count differ from the common case.
const IS_SPECIAL: u8 = 8;
const HAS_ATTRIBUTES: u8 = 16;
const HAS_CONTENTS: u8 = 32;
const CTIME_IS_MTIME: u8 = 64;

impl Index {
    /// Writes the index to a file, atomically.
    pub fn save(&self, file: &Path) -> Result<()> {
        let mut apart = file.as_os_str().to_owned();
        apart.push(".new");
        let failed = |source: io::Error| Error::Host { action: "write", path: file.display().to_string(), source };
        let written = fs::write(&apart, self.encode()).and_then(|()| fs::rename(&apart, file));
        if written.is_err() {
            // A partial file would take space on a disk that may be full.
            fs::remove_file(&apart).ok();
        }
        written.map_err(failed)
    }

    /// Reads an index from a file. Returns `None` if the file is missing, damaged or of another version.
    pub fn load(file: &Path) -> Result<Option<Self>> {
        Ok(fs::read(file).ok().and_then(|bytes| Self::decode(&bytes)))
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer { out: Vec::with_capacity(64 + self.names() as usize * 48), mode: 0, inode: 0, time: 0 };
        out.out.extend_from_slice(MAGIC);
        out.out.extend_from_slice(&[0; HASH_BYTES]);
        out.number(self.identity.device);
        out.number(self.identity.inode);
        out.signed(self.identity.birth);
        out.out.extend_from_slice(&self.rules);
        if let (Some(root), true) = (self.root, self.is_known()) {
            out.out.push(1);
            out.out.extend_from_slice(root.as_bytes());
            out.number(self.links.len() as u64);
            for (path, group) in &self.links {
                out.number(path.as_bytes().len() as u64);
                out.out.extend_from_slice(path.as_bytes());
                out.out.extend_from_slice(group.as_bytes());
            }
            let top = self.directory(ROOT).stamp;
            let mut open = vec![(ROOT, None)];
            while let Some((at, name)) = open.pop() {
                let directory = self.directory(at);
                out.directory(name, directory, &top);
                for NamedEntry { name, held } in directory.names.iter().rev() {
                    if let IndexEntry::Directory(below) = held {
                        open.push((*below as usize, Some(name)));
                    }
                }
            }
        } else {
            out.out.push(0);
        }
        let hash = blake3::hash(&out.out[MAGIC.len() + HASH_BYTES..]);
        out.out[MAGIC.len()..MAGIC.len() + HASH_BYTES].copy_from_slice(hash.as_bytes());
        out.out
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (hash, body) = bytes.strip_prefix(MAGIC)?.split_at_checked(HASH_BYTES)?;
        if blake3::hash(body).as_bytes() != hash {
            return None;
        }
        let mut from = Reader { rest: body, mode: 0, inode: 0, time: 0 };
        let identity = Identity { device: from.number()?, inode: from.number()?, birth: from.signed()? };
        let mut index = Self::new(identity);
        index.rules = from.hash()?;
        if from.byte()? == 0 {
            return Some(index);
        }
        index.root = Some(RootId::from_bytes(from.hash()?));
        for _ in 0..from.number()? {
            let length = from.number()? as usize;
            let path = TreePath::new(from.bytes(length)?).ok()?;
            index.links.insert(path, LinkGroup::from_bytes(from.hash()?));
        }
        let (top, below) = from.directory(None)?;
        let owner = top.1.stamp;
        let mut open = vec![(index.add(top.1), below, Vec::new())];
        // A directory is followed by its sub-directories, so the next one belongs to the last one that is open.
        while let Some((at, below, done)) = open.last_mut() {
            if *below > 0 {
                *below -= 1;
                let ((name, directory), count) = from.directory(Some(&owner))?;
                let new = index.add(directory);
                done.push((name?, Some(IndexEntry::Directory(u32::try_from(new).ok()?))));
                open.push((new, count, Vec::new()));
            } else {
                let (at, done) = (*at, std::mem::take(done));
                if !done.is_empty() {
                    index.change(at, done);
                }
                open.pop();
            }
        }
        from.rest.is_empty().then_some(index)
    }
}

/// Encodes numbers as variable-length differences from the previous one of their kind.
struct Writer {
    out: Vec<u8>,
    mode: u32,
    inode: u64,
    time: i64,
}

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63) as u64);
    }

    fn name(&mut self, name: &Name) {
        self.out.push(name.as_bytes().len() as u8);
        self.out.extend_from_slice(name.as_bytes());
    }

    fn directory(&mut self, name: Option<&Name>, directory: &Directory, top: &Stamp) {
        if let Some(name) = name {
            self.name(name);
        }
        let mut flags = IS_DIRECTORY;
        if directory.has_attributes {
            flags |= HAS_ATTRIBUTES;
        }
        if directory.contents.is_some() {
            flags |= HAS_CONTENTS;
        }
        // A directory's link count depends on its contents, so it is always written.
        self.stamp(flags | IS_SPECIAL, directory.trust, &directory.stamp, top);
        if let Some(contents) = directory.contents {
            self.out.extend_from_slice(contents.id.as_bytes());
            self.out.extend_from_slice(contents.bare.as_bytes());
            self.number(contents.linked);
        }
        let leaves = || directory.names.iter().filter(|item| matches!(item.held, IndexEntry::Leaf(_)));
        self.number(leaves().count() as u64);
        self.number((directory.names.len() - leaves().count()) as u64);
        for NamedEntry { name, held } in &directory.names {
            if let IndexEntry::Leaf(leaf) = held {
                self.name(name);
                self.stamp(0, leaf.trust, &leaf.stamp, top);
            }
        }
    }

    fn stamp(&mut self, mut flags: u8, trust: Trust, stamp: &Stamp, top: &Stamp) {
        flags |= match trust {
            Trust::Clean => 0,
            Trust::Racy => IS_RACY,
            Trust::BytesOnly => IS_BYTES,
        };
        if (stamp.links, stamp.uid, stamp.gid) != (1, top.uid, top.gid) {
            flags |= IS_SPECIAL;
        }
        if stamp.ctime == stamp.mtime {
            flags |= CTIME_IS_MTIME;
        }
        self.out.push(flags);
        if flags & IS_SPECIAL != 0 {
            self.number(u64::from(stamp.links));
            self.number(u64::from(stamp.uid));
            self.number(u64::from(stamp.gid));
        }
        self.number(u64::from(stamp.mode ^ self.mode));
        self.signed(stamp.inode.wrapping_sub(self.inode) as i64);
        self.number(stamp.size);
        self.signed(stamp.mtime.0.wrapping_sub(self.time));
        if flags & CTIME_IS_MTIME == 0 {
            self.signed(stamp.ctime.0.wrapping_sub(stamp.mtime.0));
        }
        (self.mode, self.inode, self.time) = (stamp.mode, stamp.inode, stamp.mtime.0);
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    mode: u32,
    inode: u64,
    time: i64,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    fn hash(&mut self) -> Option<[u8; 32]> {
        self.bytes(32)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.number()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn name(&mut self) -> Option<Name> {
        let length = self.byte()?;
        Name::new(self.bytes(usize::from(length))?).ok()
    }

    /// Reads a directory with its leaves, its name unless it is the root, and the number of its sub-directories.
    fn directory(&mut self, top: Option<&Stamp>) -> Option<((Option<Name>, Directory), u64)> {
        let name = match top {
            Some(_) => Some(self.name()?),
            None => None,
        };
        let (flags, stamp, trust) = self.stamp(top)?;
        let contents = match flags & HAS_CONTENTS {
            0 => None,
            _ => Some(DirectoryRef {
                id: DirectoryId::from_bytes(self.hash()?),
                bare: Bare::from_bytes(self.hash()?),
                linked: self.number()?,
            }),
        };
        let (leaves, below) = (self.number()?, self.number()?);
        let mut names = Vec::with_capacity(usize::try_from(leaves).ok()?.min(self.rest.len()));
        let top = top.copied().unwrap_or(stamp);
        for _ in 0..leaves {
            let name = self.name()?;
            let (_, stamp, trust) = self.stamp(Some(&top))?;
            names.push(NamedEntry { name, held: IndexEntry::Leaf(Leaf { stamp, trust }) });
        }
        let has_attributes = flags & HAS_ATTRIBUTES != 0;
        Some(((name, Directory { stamp, trust, has_attributes, contents, names }), below))
    }

    fn stamp(&mut self, top: Option<&Stamp>) -> Option<(u8, Stamp, Trust)> {
        let flags = self.byte()?;
        let trust = match (flags & IS_RACY, flags & IS_BYTES) {
            (0, 0) => Trust::Clean,
            (0, _) => Trust::BytesOnly,
            _ => Trust::Racy,
        };
        let (links, uid, gid) = match flags & IS_SPECIAL {
            0 => (1, top?.uid, top?.gid),
            _ => (self.small()?, self.small()?, self.small()?),
        };
        let mode = self.small()? ^ self.mode;
        let inode = self.inode.wrapping_add(self.signed()? as u64);
        let size = self.number()?;
        let mtime = self.time.wrapping_add(self.signed()?);
        let ctime = match flags & CTIME_IS_MTIME {
            0 => mtime.wrapping_add(self.signed()?),
            _ => mtime,
        };
        (self.mode, self.inode, self.time) = (mode, inode, mtime);
        let stamp = Stamp { mode, links, uid, gid, inode, size, mtime: Time(mtime), ctime: Time(ctime) };
        Some((flags, stamp, trust))
    }
}
