//! Imports an upper directory of OverlayFS, or a directory with AUFS-style `.wh.` files, as changes of a base.
//!
//! The directory is read beneath a handle, through no symlink. What belongs to the overlay itself is not imported; a renamed
//! directory (`redirect`) or a file whose bytes lie in a lower layer (`metacopy`) is refused, because the upper directory
//! alone does not have their contents.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use amalgam_engine::object::{Device, Node, Owner};
use amalgam_engine::{Name, Progress, SnapshotId, Store, TreePath};
use bytes::Bytes;
use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::OVERLAY_PREFIXES;
use crate::build::{BuildOptions, Owners, SMALL_FILE_BYTES_MAX, TreeBuilder};
use crate::error::{Error, Result};
use crate::imported::{self, Imported, SnapshotInfo};
use crate::member::{Attributes, Body, Edit, checked_xattrs, time};
use crate::source::MemberSource;

const NOTE_SOCKET: &str = "sockets were left out";
const NOTE_WHITEOUT_SIZE: &str = "files whose names begin with `.wh.` and that hold bytes were taken as files";
/// The longest list of attribute names that Linux gives.
const XATTR_LIST_BYTES_MAX: usize = 65_536;

/// Options of an import of an upper directory.
#[derive(Clone, Debug, Default)]
pub struct OverlayImport {
    /// The snapshot that the lower layers were made from; the empty tree when nothing is said.
    pub base: Option<SnapshotId>,
    /// Which owners are recorded.
    pub owners: Owners,
    /// Takes empty files that begin with `.wh.` as whiteouts too, as AUFS has them.
    pub aufs: bool,
    /// Reads and checks everything, and stores no file.
    pub dry_run: bool,
    /// Author, time and message of the snapshot.
    pub words: SnapshotInfo,
}

/// Imports an upper directory as a snapshot on its base.
pub fn import_overlay(store: &Store, upper: &Path, options: OverlayImport, progress: &Progress) -> Result<Imported> {
    let base = options.base.map(|base| store.snapshot(base)).transpose()?.map(|snapshot| snapshot.root);
    let builder = TreeBuilder::new(store, base, BuildOptions { layer: true, dry_run: options.dry_run })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = sys::open(upper, flags, Mode::empty()).map_err(|errno| failed(&TreePath::root(), errno))?;
    let (owners, aufs) = (options.owners, options.aufs);
    let mut walker = Walker { builder, owners, aufs, links: HashMap::new(), progress };
    walker.walk(top)?;
    let (tree, report) = walker.builder.finish()?;
    imported::import_single(store, tree, report, options.base, options.words)
}

fn failed(path: &TreePath, errno: Errno) -> Error {
    Error::host(format!("read {path} of the upper directory"), errno.into())
}

struct Walker<'a> {
    builder: TreeBuilder,
    owners: Owners,
    aufs: bool,
    /// The first name of each file that has several: its device and inode.
    links: HashMap<(u64, u64), TreePath>,
    progress: &'a Progress,
}

/// A directory that is being walked: its handle, and the names that are left.
struct OpenDirectory {
    path: TreePath,
    handle: OwnedFd,
    names: Vec<CString>,
}

/// Marks of the overlay file system in the attributes of an entry.
#[derive(Default)]
struct OverlayMarks {
    is_opaque: bool,
    is_whiteout: bool,
}

impl Walker<'_> {
    fn walk(&mut self, top: OwnedFd) -> Result<()> {
        let path = TreePath::root();
        let stat = sys::fstat(&top).map_err(|errno| failed(&path, errno))?;
        let (attributes, marks) = self.attributes(&path, &stat, Some(&top))?;
        self.builder.set_root(attributes)?;
        let mut open = vec![self.open(path, top, &marks)?];
        while let Some(here) = open.last_mut() {
            let Some(name) = here.names.pop() else {
                open.pop();
                continue;
            };
            self.progress.add_items(1);
            self.progress.check()?;
            let path = here.path.join(&Name::new(name.to_bytes()).map_err(amalgam_engine::Error::from)?);
            let handle = here.handle.as_fd();
            let stat = sys::statat(handle, &*name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| failed(&path, errno))?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = sys::openat(handle, &*name, flags, Mode::empty()).map_err(|errno| failed(&path, errno))?;
                let (attributes, marks) = self.attributes(&path, &stat, Some(&below))?;
                self.builder.add(path.clone(), Edit::Directory { attributes })?;
                let below = self.open(path, below, &marks)?;
                open.push(below);
            } else {
                let handle = handle.try_clone_to_owned().map_err(|source| Error::host("read a directory", source))?;
                self.leaf(&path, &handle, &name, &stat)?;
            }
        }
        Ok(())
    }

    fn open(&mut self, path: TreePath, handle: OwnedFd, marks: &OverlayMarks) -> Result<OpenDirectory> {
        if marks.is_opaque {
            self.builder.add(path.clone(), Edit::Opaque)?;
        }
        let listing = sys::Dir::read_from(&handle).map_err(|errno| failed(&path, errno))?;
        let mut names = Vec::new();
        for item in listing {
            let item = item.map_err(|errno| failed(&path, errno))?;
            if !matches!(item.file_name().to_bytes(), b"." | b"..") {
                names.push(item.file_name().to_owned());
            }
        }
        names.sort_by(|a, b| b.cmp(a));
        Ok(OpenDirectory { path, handle, names })
    }

    fn leaf(&mut self, path: &TreePath, above: &OwnedFd, name: &CStr, stat: &Stat) -> Result<()> {
        let kind = FileType::from_raw_mode(stat.st_mode);
        let device = Device { major: sys::major(stat.st_rdev), minor: sys::minor(stat.st_rdev) };
        if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
            return self.builder.add(path.clone(), Edit::Whiteout);
        }
        if self.aufs
            && kind == FileType::RegularFile
            && let Some(hidden) = name.to_bytes().strip_prefix(b".wh.")
        {
            if stat.st_size == 0 {
                return self.aufs_mark(path, hidden);
            }
            self.builder.report.note(NOTE_WHITEOUT_SIZE, path.as_bytes());
        }
        // A regular file may be a whiteout that shares its inode with others; that is known when it is open.
        if kind != FileType::RegularFile
            && let Some(existing) = self.first_name(path, stat)
        {
            return self.builder.add(path.clone(), Edit::Link { existing });
        }
        let edit = match kind {
            FileType::RegularFile => {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let file = sys::openat(above, name, flags, Mode::empty()).map_err(|errno| failed(path, errno))?;
                let (attributes, marks) = self.attributes(path, stat, Some(&file))?;
                if marks.is_whiteout {
                    return self.builder.add(path.clone(), Edit::Whiteout);
                }
                if let Some(existing) = self.first_name(path, stat) {
                    return self.builder.add(path.clone(), Edit::Link { existing });
                }
                let body = self.body(path, file)?;
                Edit::File { attributes, body }
            }
            FileType::Symlink => {
                let target = sys::readlinkat(above, name, Vec::new()).map_err(|errno| failed(path, errno))?;
                let (attributes, _) = self.attributes(path, stat, None)?;
                Edit::Other { attributes, node: Node::Symlink(Bytes::from(target.into_bytes())) }
            }
            FileType::Fifo => Edit::Other { attributes: self.attributes(path, stat, None)?.0, node: Node::Fifo },
            FileType::CharacterDevice => {
                Edit::Other { attributes: self.attributes(path, stat, None)?.0, node: Node::CharDevice(device) }
            }
            FileType::BlockDevice => {
                Edit::Other { attributes: self.attributes(path, stat, None)?.0, node: Node::BlockDevice(device) }
            }
            _ => {
                self.builder.report.note(NOTE_SOCKET, path.as_bytes());
                return Ok(());
            }
        };
        self.builder.add(path.clone(), edit)
    }

    /// Returns the path under which a hard-linked file was imported before; `None` for its first name and for files with one name.
    fn first_name(&mut self, path: &TreePath, stat: &Stat) -> Option<TreePath> {
        if stat.st_nlink < 2 {
            return None;
        }
        let first = self.links.entry((stat.st_dev, stat.st_ino)).or_insert_with(|| path.clone());
        (first != path).then(|| first.clone())
    }

    fn aufs_mark(&mut self, path: &TreePath, hidden: &[u8]) -> Result<()> {
        let (above, _) = path.split_last().expect("it has a name");
        match hidden {
            b".wh..opq" => self.builder.add(above, Edit::Opaque),
            hidden if hidden.starts_with(b".wh.") => Ok(()),
            hidden => {
                let hidden = Name::new(hidden).map_err(|why| Error::refused(path.as_bytes(), why.to_string()))?;
                self.builder.add(above.join(&hidden), Edit::Whiteout)
            }
        }
    }

    fn body(&self, path: &TreePath, file: OwnedFd) -> Result<Body> {
        let mut file = File::from(file);
        let reading = |source| Error::host(format!("read {path} of the upper directory"), source);
        let size = file.metadata().map_err(reading)?.len();
        if size <= SMALL_FILE_BYTES_MAX {
            let mut bytes = Vec::with_capacity(size as usize);
            (&mut file).take(SMALL_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(reading)?;
            return Ok(Body::Bytes(bytes));
        }
        let source = MemberSource::plain(&mut file, size);
        let stored = self.builder.store(&source);
        match source.finish().1 {
            Some(error) => Err(reading(error)),
            None => Ok(stored?),
        }
    }

    fn attributes(
        &mut self,
        path: &TreePath,
        stat: &Stat,
        file: Option<&OwnedFd>,
    ) -> Result<(Attributes, OverlayMarks)> {
        let mut marks = OverlayMarks::default();
        let mut xattrs = Vec::new();
        for (name, value) in file.map(|file| host_xattrs(path, file)).transpose()?.unwrap_or_default() {
            let overlay = OVERLAY_PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix));
            match overlay {
                None => xattrs.push((name, value)),
                Some(b"opaque") => marks.is_opaque |= value == b"y",
                Some(b"whiteout") => marks.is_whiteout = true,
                Some(word @ (b"redirect" | b"metacopy")) => {
                    let word = String::from_utf8_lossy(word);
                    let why = format!(
                        "it has the overlay attribute `{word}`, so its content is in a lower layer; \
                         import the merged directory instead, or mount the overlay with redirect_dir=off,metacopy=off"
                    );
                    return Err(Error::refused(path.as_bytes(), why));
                }
                Some(_) => {}
            }
        }
        let nanoseconds = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        let report = &mut self.builder.report;
        let attributes = Attributes {
            mode: stat.st_mode & 0o7777,
            mtime: time(nanoseconds, path.as_bytes(), report),
            owner: self.owners.record(Owner { uid: stat.st_uid, gid: stat.st_gid }),
            xattrs: checked_xattrs(xattrs, path.as_bytes(), report),
        };
        Ok((attributes, marks))
    }
}

/// Reads the extended attributes of an open file.
fn host_xattrs(path: &TreePath, file: &OwnedFd) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; XATTR_LIST_BYTES_MAX];
    let length = match sys::flistxattr(file, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(errno) => return Err(failed(path, errno)),
    };
    let mut xattrs = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; XATTR_LIST_BYTES_MAX];
        match sys::fgetxattr(file, name, &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                xattrs.push((name.to_vec(), value));
            }
            Err(Errno::NODATA) => {}
            Err(errno) => return Err(failed(path, errno)),
        }
    }
    Ok(xattrs)
}
