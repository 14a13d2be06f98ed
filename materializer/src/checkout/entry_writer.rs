//! Writes one entry that is no directory: bytes, attributes, final name.

use std::fs::File;
use std::os::fd::AsFd;

use amalgam_engine::object::{Content, Device, Node};
use amalgam_engine::{ChunkId, Entry, EntryKind, Name, TreePath};
use bytes::Bytes;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{Handle, apply_attributes, remove_inherited_acls};
use super::content_writer::ContentWriter;
use super::context::Context;
use super::install::{Installed, Installer};
use super::new_entry::{NewEntry, NewHandle};
use super::open_directory::OpenDirectory;
use super::pooled::{link_from_pool, without_write_permission};
use super::recorder::Origin;
use super::unchanged::Proof;
use crate::error::{Error, Result};
use crate::host::c_name;
use crate::report::Why;
use crate::stamp::Stamp;

/// An entry to be written.
pub(super) struct WantedEntry {
    pub(super) path: TreePath,
    pub(super) name: Name,
    /// The entry that it replaces.
    pub(super) before: Option<Entry>,
    pub(super) entry: Entry,
}

impl WantedEntry {
    /// Returns the chunk that holds all of its bytes, if there is only one.
    pub(super) fn single_chunk(&self) -> Option<(ChunkId, u64)> {
        match self.entry.node {
            Node::File { size, content: Content::Chunk(id) } => Some((id, size)),
            _ => None,
        }
    }
}

/// Writes entries.
pub(super) struct EntryWriter<'c> {
    cx: &'c Context<'c>,
    pub(super) installer: Installer<'c>,
    pub(super) contents: ContentWriter<'c>,
}

impl<'c> EntryWriter<'c> {
    pub(super) fn new(cx: &'c Context<'c>) -> Result<Self> {
        Ok(Self { cx, installer: Installer::new(cx), contents: ContentWriter::new(cx)? })
    }

    /// Writes an entry under its final name. Returns `None`, after a notice, if the name was left as it is.
    pub(super) fn write(
        &self,
        at: &OpenDirectory,
        wanted: &WantedEntry,
        bytes: Option<&Bytes>,
    ) -> Result<Option<Stamp>> {
        let WantedEntry { path, name, before, entry } = wanted;
        let entry = &without_write_permission(self.cx, entry);
        if self.cx.options.withholds && matches!(entry.node, Node::CharDevice(_) | Node::BlockDevice(_)) {
            self.cx.notice(path, Why::Withheld);
            return Ok(None);
        }
        // In a fresh directory no other program looks for the name yet, so no temporary name is needed.
        let is_direct = at.is_fresh && before.is_none();
        let made_as = if is_direct { name.clone() } else { self.cx.temporary_name() };
        let made = match self.make(at, &made_as, path, entry, bytes) {
            Err(Error::Host { source, .. })
                if is_direct && source.raw_os_error() == Some(Errno::EXIST.raw_os_error()) =>
            {
                self.cx.notice(path, Why::ChangedSince);
                return Ok(None);
            }
            other => other?,
        };
        if !is_direct {
            let ours = made.stamp().map_err(|source| Error::host("look at", path, source))?;
            let installed = self.installer.install(at, &made_as, name, path, before.as_ref());
            if !matches!(installed, Ok(Installed::Done)) {
                self.installer.discard(at, &made_as, ours.inode);
            }
            if let Installed::Skipped(why) = installed? {
                self.cx.notice(path, why);
                return Ok(None);
            }
        }
        let stamp = made.stamp().map_err(|source| Error::host("look at", path, source))?;
        self.record(at, stamp, entry, made.origin);
        Ok(Some(stamp))
    }

    /// Sets the attributes of a file whose bytes stay. Returns `None`, after a notice, if the file changed.
    pub(super) fn update_attributes(&self, at: &OpenDirectory, wanted: &WantedEntry) -> Result<Option<Stamp>> {
        let cx = self.cx;
        let WantedEntry { path, name, before, entry } = wanted;
        let act = |proof: &Proof| {
            let failed = |source: std::io::Error| Error::host("look at", path, source);
            let handle = at.hold(name).map_err(|errno| failed(errno.into()))?;
            if Stamp::of(handle.as_fd()).map_err(failed)? != proof.stamp {
                return Ok(None);
            }
            let mtime = cx.scope.is_exact().then_some(entry.mtime);
            apply_attributes(cx, Handle::PathOnly(handle.as_fd()), path, before.as_ref(), entry, mtime)?;
            Stamp::of(handle.as_fd()).map(Some).map_err(failed)
        };
        let updated = self.installer.guard.while_unchanged(at, name, path, entry, act);
        match cx.tolerate(path, updated)? {
            None => Ok(None),
            Some(None) => {
                cx.notice(path, Why::ChangedSince);
                Ok(None)
            }
            Some(Some(stamp)) => {
                let kept_time =
                    before.as_ref().filter(|_| !cx.scope.is_exact()).map_or(entry.mtime, |entry| entry.mtime);
                cx.recorder.known(stamp, Entry { mtime: kept_time, ..entry.clone() });
                cx.touch(&at.path);
                Ok(Some(stamp))
            }
        }
    }

    fn record(&self, at: &OpenDirectory, stamp: Stamp, entry: &Entry, origin: Origin) {
        at.touch();
        let bytes = match entry.node {
            Node::File { size, .. } => size,
            _ => 0,
        };
        self.cx.options.progress.count_file(bytes);
        let entry = Entry { mtime: self.cx.time_of(entry), ..entry.clone() };
        self.cx.recorder.written(stamp, entry, bytes, origin);
    }

    /// Makes an entry under a name that is free. Leaves nothing behind after a failure.
    fn make(
        &self,
        at: &OpenDirectory,
        name: &Name,
        path: &TreePath,
        entry: &Entry,
        bytes: Option<&Bytes>,
    ) -> Result<NewEntry> {
        let cx = self.cx;
        if let Node::File { size, content } = &entry.node {
            if let Some(made) = link_from_pool(cx, &self.contents, at, name, path, entry, bytes)? {
                return Ok(made);
            }
            return self.make_file(at, name, path, entry, (*size, content), bytes);
        }
        make_special(at, name, entry).map_err(|errno| Error::host("make", path, errno))?;
        let made = (|| {
            let handle = at.hold(name).map_err(|errno| Error::host("look at", path, errno))?;
            if at.has_default_acl && entry.kind() != EntryKind::Symlink {
                remove_inherited_acls(cx, Handle::PathOnly(handle.as_fd()), path)?;
            }
            apply_attributes(cx, Handle::PathOnly(handle.as_fd()), path, None, entry, Some(cx.time_of(entry)))?;
            Ok(NewEntry { handle: NewHandle::PathOnly(handle), origin: Origin::Store })
        })();
        if made.is_err() {
            at.unlink(name).ok();
        }
        made
    }

    fn make_file(
        &self,
        at: &OpenDirectory,
        name: &Name,
        path: &TreePath,
        entry: &Entry,
        (size, content): (u64, &Content),
        bytes: Option<&Bytes>,
    ) -> Result<NewEntry> {
        let cx = self.cx;
        let is_plain = entry.extra.is_none() && entry.mode <= 0o777;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // No other user may read a file before it has its owner.
        let mode = if is_plain { entry.mode } else { 0o600 };
        let file = rustix::fs::openat(&at.handle, c_name(name), flags, Mode::from_raw_mode(mode));
        let file = File::from(file.map_err(|errno| Error::host("make", path, errno))?);
        let filled = (|| {
            let origin = self.contents.write(&file, path, size, content, bytes)?;
            let handle = Handle::Open(file.as_fd());
            let mtime = cx.time_of(entry);
            if at.has_default_acl {
                remove_inherited_acls(cx, handle, path)?;
            } else if is_plain && entry.mode & cx.process.umask == 0 {
                handle.set_time(mtime).map_err(|errno| Error::host("set the time of", path, errno))?;
                let present = handle.stamp().map_err(|source| Error::host("look at", path, source))?;
                let owner = cx.process.owner;
                if present.permissions() == entry.mode && (present.uid, present.gid) == (owner.uid, owner.gid) {
                    return Ok((origin, at.is_fresh.then_some(present)));
                }
            }
            apply_attributes(cx, handle, path, None, entry, Some(mtime))?;
            Ok((origin, None))
        })();
        match filled {
            Ok((origin, Some(stamp))) => Ok(NewEntry { handle: NewHandle::Installed(stamp), origin }),
            Ok((origin, None)) => Ok(NewEntry { handle: NewHandle::File(file), origin }),
            Err(error) => {
                at.unlink(name).ok();
                Err(error)
            }
        }
    }
}

/// Makes a symlink, FIFO, socket or device.
fn make_special(at: &OpenDirectory, name: &Name, entry: &Entry) -> rustix::io::Result<()> {
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
            unreachable!("files and directories are made elsewhere, conflicts are displayed as one of their versions")
        }
    }
}
