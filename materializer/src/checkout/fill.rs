//! Making one thing that is no directory: its bytes, its attributes, its place.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use amalgam_engine::object::{Content, Device, Node};
use amalgam_engine::{Entry, EntryKind, Name, TreePath, content};
use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::Handle;
use super::place::{hold, unlink};
use super::source::Came;
use super::walk::Open;
use super::{Placed, Run};
use crate::error::{Error, Result};
use crate::host::c_name;
use crate::report::Why;
use crate::stamp::Stamp;

/// How much of a large file is read and written at once.
const BLOCK_BYTES: u64 = 1 << 20;
/// Holes begin and end at pages, as far as file systems are concerned.
const PAGE_BYTES: usize = 4_096;

/// Something to be made.
pub(super) struct Wanted {
    pub(super) path: TreePath,
    pub(super) name: Name,
    /// What is in its place.
    pub(super) before: Option<Entry>,
    pub(super) entry: Entry,
}

impl Run<'_> {
    /// Makes something and puts it in its place. Nothing where what is there was left alone, which is reported.
    pub(super) fn put(&self, at: &Open, wanted: &Wanted, bytes: Option<&Bytes>) -> Result<Option<Stamp>> {
        let Wanted { path, name, before, entry } = wanted;
        let entry = &self.as_shown(entry);
        if self.job.withholds && matches!(entry.node, Node::CharDevice(_) | Node::BlockDevice(_)) {
            self.notice(path, Why::Withheld);
            return Ok(None);
        }
        // Where no other program looks for anything yet no step between is needed.
        let is_direct = at.is_fresh && before.is_none();
        let made_as = if is_direct { name.clone() } else { self.temporary() };
        let made = match self.make(at, &made_as, path, entry, bytes) {
            Err(Error::Host { source, .. })
                if is_direct && source.raw_os_error() == Some(Errno::EXIST.raw_os_error()) =>
            {
                self.notice(path, Why::ChangedSince);
                return Ok(None);
            }
            other => other?,
        };
        if !is_direct {
            let ours = made.handle.stamp().map_err(|source| Error::host("look at", path, source))?;
            let placed = self.place(at, &made_as, name, path, before.as_ref());
            if !matches!(placed, Ok(Placed::There)) {
                self.discard(at, &made_as, ours.inode);
            }
            if let Placed::Left(why) = placed? {
                self.notice(path, why);
                return Ok(None);
            }
        }
        let stamp = made.handle.stamp().map_err(|source| Error::host("look at", path, source))?;
        self.account(at, stamp, entry, made.came);
        Ok(Some(stamp))
    }

    fn account(&self, at: &Open, stamp: Stamp, entry: &Entry, came: Came) {
        at.is_touched.store(true, Ordering::Relaxed);
        let bytes = match entry.node {
            Node::File { size, .. } => size,
            _ => 0,
        };
        self.job.progress.did(bytes);
        let entry = Entry { mtime: self.time_of(entry), ..entry.clone() };
        let mut done = self.done.lock();
        done.written += 1;
        done.bytes += bytes;
        done.reflinked += u64::from(came == Came::Cloned);
        done.copied += u64::from(came == Came::Copied);
        done.linked += u64::from(came == Came::Linked);
        done.known.insert(stamp, entry);
    }

    /// Makes something under a name that is free. What could not be finished is not there.
    fn make(&self, at: &Open, name: &Name, path: &TreePath, entry: &Entry, bytes: Option<&Bytes>) -> Result<Made> {
        if let Node::File { size, content } = &entry.node {
            if let Some(made) = self.link_shared(at, name, path, entry, bytes)? {
                return Ok(made);
            }
            return self.make_file(at, name, path, entry, (*size, content), bytes);
        }
        self.make_other(at, name, entry).map_err(|errno| Error::host("make", path, errno))?;
        let made = (|| {
            let handle = hold(at, name).map_err(|errno| Error::host("look at", path, errno))?;
            if at.lends_rules && entry.kind() != EntryKind::Symlink {
                self.remove_lent_rules(Handle::Place(handle.as_fd()), path)?;
            }
            self.dress(Handle::Place(handle.as_fd()), path, None, entry, Some(self.time_of(entry)))?;
            Ok(Made { handle: MadeHandle::Place(handle), came: Came::FromStore })
        })();
        if made.is_err() {
            unlink(at, name).ok();
        }
        made
    }

    fn make_other(&self, at: &Open, name: &Name, entry: &Entry) -> rustix::io::Result<()> {
        let name = c_name(name);
        let mode = Mode::from_raw_mode(entry.mode & 0o777);
        let special = |kind: FileType, Device { major, minor }: Device| {
            rustix::fs::mknodat(&at.handle, &name, kind, mode, rustix::fs::makedev(major, minor))
        };
        match &entry.node {
            Node::Symlink(target) => rustix::fs::symlinkat(&target[..], &at.handle, &name),
            Node::Fifo => special(FileType::Fifo, Device::default()),
            Node::Socket => special(FileType::Socket, Device::default()),
            Node::CharDevice(device) => special(FileType::CharacterDevice, *device),
            Node::BlockDevice(device) => special(FileType::BlockDevice, *device),
            Node::File { .. } | Node::Directory(_) | Node::Conflict(_) => {
                unreachable!("files and directories have ways of their own, conflicts are shown by a version")
            }
        }
    }

    fn make_file(
        &self,
        at: &Open,
        name: &Name,
        path: &TreePath,
        entry: &Entry,
        (size, content): (u64, &Content),
        bytes: Option<&Bytes>,
    ) -> Result<Made> {
        let is_plain = entry.extra.is_none() && entry.mode <= 0o777;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Before a file gets its owner no other user may read it.
        let mode = if is_plain { entry.mode } else { 0o600 };
        let file = rustix::fs::openat(&at.handle, c_name(name), flags, Mode::from_raw_mode(mode));
        let file = File::from(file.map_err(|errno| Error::host("make", path, errno))?);
        let filled = (|| {
            let came = self.take_from_source(&file, path, size, content)?;
            if came == Came::FromStore {
                self.fill(&file, path, size, content, bytes)?;
            }
            let handle = Handle::Open(file.as_fd());
            let mtime = self.time_of(entry);
            if at.lends_rules {
                self.remove_lent_rules(handle, path)?;
            } else if is_plain && entry.mode & self.process.umask == 0 {
                handle.set_time(mtime).map_err(|errno| Error::host("set the time of", path, errno))?;
                let present = handle.stamp().map_err(|source| Error::host("look at", path, source))?;
                let owner = self.process.owner;
                if present.permissions() == entry.mode && (present.uid, present.gid) == (owner.uid, owner.gid) {
                    return Ok((came, at.is_fresh.then_some(present)));
                }
            }
            self.dress(handle, path, None, entry, Some(mtime))?;
            Ok((came, None))
        })();
        match filled {
            Ok((came, Some(stamp))) => Ok(Made { handle: MadeHandle::Stamped(stamp), came }),
            Ok((came, None)) => Ok(Made { handle: MadeHandle::File(file), came }),
            Err(error) => {
                unlink(at, name).ok();
                Err(error)
            }
        }
    }

    /// Writes a file's bytes; holes stay holes.
    pub(super) fn fill(
        &self,
        file: &File,
        path: &TreePath,
        size: u64,
        content: &Content,
        bytes: Option<&Bytes>,
    ) -> Result<()> {
        let failed = |source: std::io::Error| Error::host("write", path, source);
        let write = |bytes: &[u8], offset: u64| file.write_all_at(bytes, offset).map_err(failed);
        match (content, bytes) {
            (Content::Empty, _) => return Ok(()),
            (Content::Chunk(_), Some(bytes)) => return write(bytes, 0),
            (Content::Chunk(id), None) => return write(&self.store.chunk(*id, size)?, 0),
            (Content::Hole, _) => return file.set_len(size).map_err(failed),
            (Content::Rope(_), _) => {}
        }
        let mut buffer = vec![0; BLOCK_BYTES.min(size) as usize];
        let mut offset = 0;
        while offset < size {
            self.check()?;
            let hole = content::hole_at(self.store, content, size, offset)?;
            if hole > 0 {
                offset += hole;
                continue;
            }
            let block = &mut buffer[..BLOCK_BYTES.min(size - offset) as usize];
            content::read_at(self.store, content, size, offset, block)?;
            let data = self.data_before_hole(block, content, size, offset)?;
            write(&block[..data], offset)?;
            offset += data as u64;
        }
        let written = file.metadata().map_err(failed)?.len();
        // The last part was a hole.
        if written < size { file.set_len(size).map_err(failed) } else { Ok(()) }
    }

    /// How much of a block, which begins with data, lies before the next hole.
    fn data_before_hole(&self, block: &[u8], content: &Content, size: u64, offset: u64) -> Result<usize> {
        let mut at = 0;
        while at < block.len() {
            let page = &block[at..block.len().min(at + PAGE_BYTES)];
            let is_zero = page[0] == 0 && page.iter().all(|byte| *byte == 0);
            if at > 0 && is_zero && content::hole_at(self.store, content, size, offset + at as u64)? > 0 {
                return Ok(at);
            }
            at += PAGE_BYTES;
        }
        Ok(block.len())
    }
}

/// Something that was made, held until it is in its place: moving it changes its stamp.
pub(super) struct Made {
    pub(super) handle: MadeHandle,
    pub(super) came: Came,
}

pub(super) enum MadeHandle {
    File(File),
    Place(OwnedFd),
    /// In its place already.
    Stamped(Stamp),
}

impl MadeHandle {
    fn stamp(&self) -> std::io::Result<Stamp> {
        match self {
            Self::File(file) => Stamp::of(file.as_fd()),
            Self::Place(handle) => Stamp::of(handle.as_fd()),
            Self::Stamped(stamp) => Ok(*stamp),
        }
    }
}
