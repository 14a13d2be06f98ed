//! Exports the difference between two snapshots as an upper directory of an overlay.
//!
//! The directory is written beside its target and renamed at the end, so a failed export leaves nothing. All paths are opened
//! beneath its handle, through no symlink.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use amalgam_engine::content;
use amalgam_engine::object::{Content, Device, Entry, Node, Root};
use amalgam_engine::{LinkGroup, Name, Progress, RootId, Store, TreePath, entry_at};
use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;

use super::attributes::{CAPABILITY, is_of_overlay, set_link_attributes, set_mode_and_time, set_owner};
use crate::error::{Error, Result};
use crate::layer::{LayerChange, LayerSink, write_changes};
use crate::report::Report;
use crate::tar::{NOTE_CONFLICT, NOTE_STATE};

const READ_BYTES: u64 = 4 << 20;
const OPAQUE_XATTR: &str = "user.overlay.opaque";
const WHITEOUT_XATTR: &str = "user.overlay.whiteout";

const NOTE_SOCKET: &str = "sockets were left out: programs make them";
const NOTE_DEVICE: &str = "devices were left out; ask for them to be made";
const NOTE_SET_ID: &str = "set-user-ID and set-group-ID bits and capabilities were left out; ask for them to be set";
const NOTE_OVERLAY: &str = "attributes that belong to the overlay itself were left out";

/// The form of whiteouts, which remove entries of the layers below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Whiteouts {
    /// Character devices 0/0, which every user may make since Linux 5.8. The directory serves as an upper and as a lower layer.
    #[default]
    Devices,
    /// Empty files with the attribute `user.overlay.whiteout`, for file systems and archives without devices. The directory
    /// serves as a lower layer, with `userxattr`, since Linux 6.7.
    Xattrs,
    /// Empty files whose names begin with `.wh.`, as AUFS has them.
    Aufs,
}

/// Options of an export as an upper directory.
#[derive(Clone, Debug, Default)]
pub struct OverlayExport {
    /// The tree that the lower layers hold; the empty tree when nothing is said.
    pub base: Option<RootId>,
    /// The form of whiteouts.
    pub whiteouts: Whiteouts,
    /// Sets set-user-ID and set-group-ID bits and capabilities, and makes devices. Otherwise they are withheld.
    pub set_id: bool,
    /// Counts what would be written, and writes nothing.
    pub dry_run: bool,
}

/// Writes the changes from the base to a tree into a new or empty directory.
pub fn export_overlay(
    store: &Store,
    root: RootId,
    target: &Path,
    options: &OverlayExport,
    progress: &Progress,
) -> Result<Report> {
    let _kept = (options.base.map(|base| store.hold(base)).transpose()?, store.hold(root)?);
    let base = options.base.map(|base| store.root(base)).transpose()?;
    let after = store.root(root)?;
    check_target(target)?;
    let failed = |source| Error::host(format!("write {}", target.display()), source);
    let temporary = match options.dry_run {
        true => None,
        false => {
            let path = std::path::absolute(target).map_err(failed)?;
            let parent = path.parent().unwrap_or_else(|| Path::new("/")).to_owned();
            fs::create_dir_all(&parent).map_err(failed)?;
            Some(tempfile::Builder::new().prefix(".amalgam-upper-").tempdir_in(parent).map_err(failed)?)
        }
    };
    let top = match &temporary {
        Some(temporary) => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let top = sys::open(temporary.path(), flags, Mode::empty());
            Some(top.map_err(|errno| failed(errno.into()))?)
        }
        None => None,
    };
    let mut writer = UpperWriter {
        store,
        after: &after,
        options,
        progress,
        top,
        directories: BTreeMap::new(),
        open: None,
        links: HashMap::new(),
        report: Report::default(),
    };
    if after.state.is_some() {
        writer.report.note(NOTE_STATE, b"");
    }
    // The overlay shows the attributes of the upper directory as those of its root.
    writer.directory(&TreePath::root(), &after.directory)?;
    write_changes(store, base.as_deref(), &after, &mut writer)?;
    let report = writer.finish()?;
    if let Some(temporary) = temporary {
        fs::rename(temporary.path(), target).map_err(failed)?;
        // Nothing is left to remove.
        drop(temporary.keep());
    }
    Ok(report)
}

fn check_target(target: &Path) -> Result<()> {
    let invalid = |why: String| Error::Invalid { what: "upper directory", why };
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(invalid(format!("{} is not empty; name a new directory", target.display()))),
            None => Ok(()),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(invalid(format!("{}: {error}; name a new directory", target.display()))),
    }
}

fn failed(path: &TreePath, errno: Errno) -> Error {
    Error::host(format!("write {path} of the upper directory"), errno.into())
}

fn name_of(path: &TreePath) -> (TreePath, Name) {
    path.split_last().expect("the root is written as a directory only")
}

struct UpperWriter<'a> {
    store: &'a Store,
    after: &'a Root,
    options: &'a OverlayExport,
    progress: &'a Progress,
    /// The directory that is written; `None` in a dry run.
    top: Option<OwnedFd>,
    /// Directories that were made. Their modes and times are set at the end, when nothing changes in them any more.
    directories: BTreeMap<TreePath, Entry>,
    /// The directory that was written to last.
    open: Option<(TreePath, OwnedFd)>,
    /// The first name of each hard-linked file.
    links: HashMap<LinkGroup, TreePath>,
    report: Report,
}

impl LayerSink for UpperWriter<'_> {
    fn change(&mut self, path: &TreePath, change: LayerChange) -> Result<()> {
        self.progress.add_items(1);
        self.progress.check()?;
        match change {
            LayerChange::Whiteout => self.whiteout(path),
            LayerChange::Set { entry, is_in_base } => match self.set(path, &entry)? {
                None => Ok(()),
                Some(why) => {
                    self.report.note(why, path.as_bytes());
                    if is_in_base { self.whiteout(path) } else { Ok(()) }
                }
            },
        }
    }

    fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    fn has_whiteout_names(&self) -> bool {
        self.options.whiteouts == Whiteouts::Aufs
    }
}

impl UpperWriter<'_> {
    /// Writes an entry, or returns why it was left out.
    fn set(&mut self, path: &TreePath, entry: &Entry) -> Result<Option<&'static str>> {
        match &entry.node {
            Node::Directory(_) => {
                self.directory(path, entry)?;
                return Ok(None);
            }
            Node::Socket => return Ok(Some(NOTE_SOCKET)),
            Node::Conflict(_) => return Ok(Some(NOTE_CONFLICT)),
            Node::CharDevice(_) | Node::BlockDevice(_) if !self.options.set_id => return Ok(Some(NOTE_DEVICE)),
            _ => {}
        }
        if let Some(link) = entry.link() {
            if let Some(first) = self.links.get(&link).cloned() {
                self.report.hard_links += 1;
                self.link(&first, path)?;
                return Ok(None);
            }
            self.links.insert(link, path.clone());
        }
        match &entry.node {
            Node::File { size, content } => self.file(path, entry, *size, content)?,
            Node::Symlink(target) => {
                self.report.symlinks += 1;
                self.make(path, entry, |above, name| sys::symlinkat(&target[..], above, name))?;
            }
            Node::Fifo => self.special(path, entry, FileType::Fifo, Device { major: 0, minor: 0 })?,
            Node::CharDevice(device) => self.special(path, entry, FileType::CharacterDevice, *device)?,
            Node::BlockDevice(device) => self.special(path, entry, FileType::BlockDevice, *device)?,
            Node::Directory(_) | Node::Socket | Node::Conflict(_) => unreachable!("handled above"),
        }
        Ok(None)
    }

    /// Makes a directory, with those above it.
    fn directory(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        if self.directories.contains_key(path) {
            return Ok(());
        }
        self.report.directories += 1;
        if !path.is_root() {
            let (above, name) = name_of(path);
            if let Some(above) = self.parent(&above)? {
                let made = sys::mkdirat(above, name.as_bytes(), Mode::RWXU);
                made.map_err(|errno| failed(path, errno))?;
            }
        }
        self.directories.insert(path.clone(), entry.clone());
        Ok(())
    }

    /// Opens a directory to write into it; makes it, as the snapshot has it, where the walk has not come to it yet.
    fn parent(&mut self, path: &TreePath) -> Result<Option<OwnedFd>> {
        if !self.directories.contains_key(path) {
            let entry = entry_at(self.store, self.after, path)?;
            let entry = entry.ok_or_else(|| amalgam_engine::Error::NotFound { path: path.clone() })?;
            self.directory(path, &entry)?;
        }
        let Some(top) = &self.top else { return Ok(None) };
        let clone = |handle: &OwnedFd| handle.try_clone().map_err(|source| Error::host("open a directory", source));
        if let Some((open, handle)) = &self.open
            && open == path
        {
            return clone(handle).map(Some);
        }
        let handle = open_directory(top, path)?;
        self.open = Some((path.clone(), clone(&handle)?));
        Ok(Some(handle))
    }

    /// Makes a symlink, a FIFO or a device.
    fn make(
        &mut self,
        path: &TreePath,
        entry: &Entry,
        make: impl FnOnce(&OwnedFd, &[u8]) -> Result<(), Errno>,
    ) -> Result<()> {
        let (above, name) = name_of(path);
        let Some(above) = self.parent(&above)? else { return Ok(()) };
        make(&above, name.as_bytes()).map_err(|errno| failed(path, errno))?;
        set_link_attributes(above.as_fd(), &name, path, entry, &mut self.report)
    }

    fn special(&mut self, path: &TreePath, entry: &Entry, kind: FileType, device: Device) -> Result<()> {
        self.report.specials += 1;
        let number = sys::makedev(device.major, device.minor);
        self.make(path, entry, |above, name| sys::mknodat(above, name, kind, Mode::RUSR | Mode::WUSR, number))
    }

    fn link(&mut self, first: &TreePath, path: &TreePath) -> Result<()> {
        let ((old_above, old), (new_above, new)) = (name_of(first), name_of(path));
        let Some(old_above) = self.parent(&old_above)? else { return Ok(()) };
        let Some(new_above) = self.parent(&new_above)? else { return Ok(()) };
        let linked = sys::linkat(old_above, old.as_bytes(), new_above, new.as_bytes(), AtFlags::empty());
        linked.map_err(|errno| failed(path, errno))
    }

    fn file(&mut self, path: &TreePath, entry: &Entry, size: u64, content: &Content) -> Result<()> {
        self.report.files += 1;
        self.report.bytes += size;
        let (above, name) = name_of(path);
        let mode = self.mode(path, entry);
        let Some(above) = self.parent(&above)? else { return Ok(()) };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = sys::openat(above, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|errno| failed(path, errno))?);
        let writing = |source| Error::host(format!("write {path} of the upper directory"), source);
        let mut at = 0;
        while at < size {
            self.progress.check()?;
            let hole = content::hole_at(self.store, content, size, at)?;
            if hole > 0 {
                at += hole;
                continue;
            }
            let length = content::data_at(self.store, content, size, at)?.clamp(1, READ_BYTES).min(size - at);
            file.write_all_at(&content::read(self.store, content, size, at, length)?, at).map_err(writing)?;
            self.progress.bytes.fetch_add(length, Ordering::Relaxed);
            at += length;
        }
        file.set_len(size).map_err(writing)?;
        set_owner(file.as_fd(), path, entry, &mut self.report)?;
        self.set_xattrs(file.as_fd(), path, entry)?;
        set_mode_and_time(file.as_fd(), path, entry, mode)
    }

    /// Returns the mode that an entry gets.
    fn mode(&mut self, path: &TreePath, entry: &Entry) -> u32 {
        const SET_ID: u32 = 0o6000;
        if entry.mode & SET_ID != 0 && !self.options.set_id {
            self.report.note(NOTE_SET_ID, path.as_bytes());
            return entry.mode & !SET_ID;
        }
        entry.mode
    }

    fn set_xattrs(&mut self, handle: impl AsFd, path: &TreePath, entry: &Entry) -> Result<()> {
        for xattr in self.store.xattrs(entry.xattrs())?.iter() {
            if is_of_overlay(&xattr.name) {
                self.report.note(NOTE_OVERLAY, path.as_bytes());
            } else if &xattr.name[..] == CAPABILITY && !self.options.set_id {
                self.report.note(NOTE_SET_ID, path.as_bytes());
            } else {
                super::attributes::set_xattr(handle.as_fd(), path, xattr, &mut self.report)?;
            }
        }
        Ok(())
    }

    fn whiteout(&mut self, path: &TreePath) -> Result<()> {
        self.report.removed += 1;
        let (above, name) = name_of(path);
        let Some(above) = self.parent(&above)? else { return Ok(()) };
        let empty = |name: &[u8]| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            sys::openat(&above, name, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH)
        };
        match self.options.whiteouts {
            Whiteouts::Devices => {
                let made = sys::mknodat(&above, name.as_bytes(), FileType::CharacterDevice, Mode::empty(), 0);
                made.map_err(|errno| match errno {
                    Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL => Error::Unsupported {
                        what: format!("no whiteout device can be made for {path}: {errno}"),
                        hint: "choose another form of whiteouts: `xattr` or `aufs`",
                    },
                    errno => failed(path, errno),
                })
            }
            Whiteouts::Xattrs => empty(name.as_bytes())
                .and_then(|file| sys::fsetxattr(file, WHITEOUT_XATTR, b"y", XattrFlags::empty()))
                // The kernel looks for such whiteouts only in directories that say so.
                .and_then(|()| sys::fsetxattr(&above, OPAQUE_XATTR, b"x", XattrFlags::empty()))
                .map_err(|errno| failed(path, errno)),
            Whiteouts::Aufs => {
                empty(&[b".wh.", name.as_bytes()].concat()).map(drop).map_err(|errno| failed(path, errno))
            }
        }
    }

    /// Sets the attributes of the directories, the deepest first.
    fn finish(mut self) -> Result<Report> {
        for (path, entry) in std::mem::take(&mut self.directories).into_iter().rev() {
            let mode = self.mode(&path, &entry);
            let Some(top) = &self.top else { continue };
            let handle = open_directory(top, &path)?;
            set_owner(handle.as_fd(), &path, &entry, &mut self.report)?;
            self.set_xattrs(&handle, &path, &entry)?;
            set_mode_and_time(handle.as_fd(), &path, &entry, mode)?;
        }
        Ok(self.report)
    }
}

/// Opens a directory beneath the top, through no symlink.
fn open_directory(top: &OwnedFd, path: &TreePath) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let name: &[u8] = if path.is_root() { b"." } else { path.as_bytes() };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    sys::openat2(top, name, flags, Mode::empty(), resolve).map_err(|errno| failed(path, errno))
}
