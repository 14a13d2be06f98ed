//! Reads one name: a file's bytes, a symlink's target, a device's number.
//!
//! A file is opened beneath its directory's handle and checked with `fstat`, so it cannot be swapped in between. Only regular
//! files are opened. Large files are read in blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::content::{ByteSource, write_content};
use amalgam_engine::object::{
    Device, Extra, Node, Owner, Root, SINGLE_CHUNK_BYTES_MAX, SYMLINK_TARGET_BYTES_MAX, Xattr, Xattrs,
};
use amalgam_engine::{Entry, LinkGroup, Name, Store, TreePath, WriteSession, entry_at};
use bytes::Bytes;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, OFlags, SeekFrom};
use rustix::io::Errno;

use super::xattrs;
use crate::capture_options::CaptureOptions;
use crate::error::{Error, Result};
use crate::host::{is_absent, open_beneath};
use crate::index::{Index, IndexEntry, Trust};
use crate::progress::Progress;
use crate::report::Why;
use crate::rights::lacks_set_id;
use crate::stamp::Stamp;

/// Attempts to read a file that changes meanwhile.
const READ_ATTEMPTS_MAX: u32 = 5;

/// Reads names into entries.
pub(crate) struct Reader<'a> {
    pub(crate) store: &'a Store,
    pub(crate) session: &'a WriteSession,
    pub(crate) base: Option<&'a Root>,
    pub(crate) index: &'a Index,
    pub(crate) job: &'a CaptureOptions<'a>,
    /// The root's owner; entries with this owner do not name it.
    pub(crate) owner: Owner,
    pub(crate) files_read: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
}

/// Result of reading a name.
pub(crate) enum LeafRead {
    /// An entry, as of this stamp.
    Entry(Entry, Stamp, Trust),
    /// The name is gone, or has something that cannot be part of a tree.
    Gone,
    /// It cannot be read; the stored entry stays.
    Unreadable,
}

impl Reader<'_> {
    /// Reads a name in an open directory. Returns the result, and a reason for a notice if there is one.
    pub(crate) fn leaf(
        &self,
        directory: BorrowedFd<'_>,
        name: &Name,
        path: &TreePath,
        mut stamp: Stamp,
    ) -> Result<(LeafRead, Option<Why>)> {
        for _ in 0..READ_ATTEMPTS_MAX {
            self.job.progress.check()?;
            if stamp.kind() == FileType::RegularFile {
                if let Some(entry) = self.unread(path, &stamp)? {
                    let trust = Trust::of(&stamp, self.job.now);
                    return Ok((LeafRead::Entry(entry, stamp, trust), None));
                }
                let opened =
                    read_file(directory, name, self.job.progress, |source, _| Ok(write_content(self.session, source)?));
                let opened = match opened {
                    Err(Error::Engine(amalgam_engine::Error::Unwanted { tombstone, .. })) => {
                        FileRead::Failed(Why::Purged(tombstone.to_string()))
                    }
                    other => other?,
                };
                match opened {
                    FileRead::File { value, stamp, xattrs, is_changing } => {
                        self.files_read.fetch_add(1, Ordering::Relaxed);
                        self.bytes_read.fetch_add(stamp.size, Ordering::Relaxed);
                        self.job.progress.count_file(stamp.size);
                        let node = Node::File { size: stamp.size, content: value };
                        let trust = if is_changing { Trust::Racy } else { Trust::of(&stamp, self.job.now) };
                        let (xattrs, why) = self.put_xattrs(xattrs);
                        let why = if is_changing { Some(Why::Changing) } else { why };
                        let mut entry = self.entry(node, &stamp, xattrs, None);
                        if let Some(stored) = self.withheld(path, &stamp)?
                            && stored.node == entry.node
                        {
                            entry.mode = stored.mode;
                        }
                        return Ok((LeafRead::Entry(entry, stamp, trust), why));
                    }
                    FileRead::Gone => return Ok((LeafRead::Gone, None)),
                    FileRead::Failed(why @ Why::OtherFileSystem) => return Ok((LeafRead::Gone, Some(why))),
                    FileRead::Failed(why) => return Ok((LeafRead::Unreadable, Some(why))),
                    FileRead::Other => {}
                }
            } else {
                match read_special(directory, name, &stamp) {
                    Ok(Some(node)) => {
                        let trust = Trust::of(&stamp, self.job.now);
                        return Ok((LeafRead::Entry(self.entry(node, &stamp, Xattrs::None, None), stamp, trust), None));
                    }
                    Ok(None) => {}
                    Err(why) => return Ok((LeafRead::Gone, Some(why))),
                }
            }
            // It changed its kind since the stamp was taken.
            match rustix::fs::statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stamp = Stamp::from_stat(&stat),
                Err(Errno::NOENT) => return Ok((LeafRead::Gone, None)),
                Err(error) => return Ok((LeafRead::Unreadable, Some(failed("look at", error)))),
            }
        }
        // It changes faster than it can be read; the next scan sees the change of its directory.
        Ok((LeafRead::Gone, None))
    }

    /// Returns the entry of a file whose bytes are known without reading it.
    fn unread(&self, path: &TreePath, stamp: &Stamp) -> Result<Option<Entry>> {
        let stored = match self.job.known.get(stamp) {
            Some(entry) => Some(entry.clone()),
            None if self.has_known_bytes(path, stamp) => self.stored(path)?,
            None => None,
        };
        let stored = stored.filter(|entry| matches!(entry.node, Node::File { size, .. } if size == stamp.size));
        Ok(stored.map(|stored| {
            let mut entry = self.entry(stored.node.clone(), stamp, stored.xattrs().clone(), None);
            // Withheld bits are still part of the tree.
            if lacks_set_id(stamp, &stored) {
                entry.mode = stored.mode;
            }
            entry
        }))
    }

    /// Returns the stored entry of a file whose set-ID bits a checkout withheld, if its mode is unchanged since.
    fn withheld(&self, path: &TreePath, stamp: &Stamp) -> Result<Option<Entry>> {
        let left = self.index.stamp(path).filter(|left| left.mode == stamp.mode);
        match left {
            Some(left) => Ok(self.stored(path)?.filter(|stored| lacks_set_id(&left, stored))),
            None => Ok(None),
        }
    }

    fn has_known_bytes(&self, path: &TreePath, stamp: &Stamp) -> bool {
        let Some((parent, name)) = path.split_last() else { return false };
        let held = self.index.position(&parent).and_then(|at| self.index.directory(at).get(&name));
        matches!(held, Some(IndexEntry::Leaf(leaf)) if leaf.trust == Trust::BytesOnly && leaf.stamp == *stamp)
    }

    /// Returns the stored entry of a path.
    pub(crate) fn stored(&self, path: &TreePath) -> Result<Option<Entry>> {
        match self.base {
            Some(base) => Ok(entry_at(self.store, base, path)?),
            None => Ok(None),
        }
    }

    /// Makes an entry with the host's attributes.
    pub(crate) fn entry(&self, node: Node, stamp: &Stamp, xattrs: Xattrs, link: Option<LinkGroup>) -> Entry {
        let owner = Owner { uid: stamp.uid, gid: stamp.gid };
        let extra = Extra { owner: (owner != self.owner).then_some(owner), xattrs, link };
        let extra = (extra != Extra::default()).then(|| Box::new(extra));
        let mode = if matches!(node, Node::Symlink(_)) { 0o777 } else { stamp.permissions() };
        Entry { node, mode, mtime: stamp.mtime, extra }
    }

    /// Stores extended attributes. Returns none of them, with a reason, if no entry can hold them.
    pub(crate) fn put_xattrs(&self, xattrs: Vec<Xattr>) -> (Xattrs, Option<Why>) {
        match self.session.put_xattrs(xattrs) {
            Ok(xattrs) => (xattrs, None),
            Err(error) => (Xattrs::None, Some(Why::Unsupported(error.to_string()))),
        }
    }
}

/// Result of opening and reading a file.
pub(crate) enum FileRead<T> {
    /// The value made of its bytes. They belong to this stamp unless the file kept changing.
    File {
        value: T,
        stamp: Stamp,
        xattrs: Vec<Xattr>,
        is_changing: bool,
    },
    /// It is no regular file any more.
    Other,
    Gone,
    Failed(Why),
}

/// Opens a file and calls `take` with its bytes, repeatedly while they change meanwhile.
pub(crate) fn read_file<T>(
    directory: BorrowedFd<'_>,
    name: &Name,
    progress: &Progress,
    take: impl Fn(&FileBytes<'_>, &Stamp) -> Result<T>,
) -> Result<FileRead<T>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match open_beneath(directory, name.as_bytes(), flags) {
        Ok(file) => file,
        Err(error) => {
            let code = error.raw_os_error();
            let is = |errno: Errno| code == Some(errno.raw_os_error());
            return Ok(match () {
                () if is(Errno::NOENT) => FileRead::Gone,
                () if is(Errno::XDEV) => FileRead::Failed(Why::OtherFileSystem),
                // A symlink; a socket, or a FIFO without a reader.
                () if is(Errno::NXIO) || is(Errno::NODEV) || is_absent(&error) => FileRead::Other,
                () => FileRead::Failed(Why::Failed { action: "open", error: error.to_string() }),
            });
        }
    };
    let mut stat = match rustix::fs::fstat(&file) {
        Ok(stat) => stat,
        Err(error) => return Ok(FileRead::Failed(failed("look at", error))),
    };
    let mut read = 0;
    loop {
        let stamp = Stamp::from_stat(&stat);
        if stamp.kind() != FileType::RegularFile {
            return Ok(FileRead::Other);
        }
        let is_sparse = (stat.st_blocks as u64).saturating_mul(512) < stamp.size;
        let value = match read_once(&file, &stamp, is_sparse, progress, &take)? {
            Ok(value) => value,
            Err(why) => return Ok(FileRead::Failed(why)),
        };
        let xattrs = match xattrs::read_xattrs(file.as_fd()) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                let why = Why::Failed { action: "read the attributes of", error: error.to_string() };
                return Ok(FileRead::Failed(why));
            }
        };
        stat = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return Ok(FileRead::Failed(failed("look at", error))),
        };
        read += 1;
        let is_changing = Stamp::from_stat(&stat) != stamp;
        if !is_changing || read == READ_ATTEMPTS_MAX {
            return Ok(FileRead::File { value, stamp, xattrs, is_changing });
        }
    }
}

/// Reads a file once; a small file with one call.
fn read_once<T>(
    file: &OwnedFd,
    stamp: &Stamp,
    is_sparse: bool,
    progress: &Progress,
    take: impl Fn(&FileBytes<'_>, &Stamp) -> Result<T>,
) -> Result<Result<T, Why>> {
    if stamp.size <= SINGLE_CHUNK_BYTES_MAX {
        thread_local! {
            static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        return BUFFER.with_borrow_mut(|buffer| {
            // Bytes of the previous file are overwritten.
            if buffer.len() < stamp.size as usize {
                buffer.resize(SINGLE_CHUNK_BYTES_MAX as usize, 0);
            }
            let buffer = &mut buffer[..stamp.size as usize];
            match fill(file, 0, buffer) {
                Ok(()) => take(&FileBytes::Small(buffer), stamp).map(Ok),
                Err(error) => Ok(Err(failed("read", error))),
            }
        });
    }
    let large =
        LargeFile { file, length: stamp.size, is_sparse, data: Mutex::new((0, 0)), progress, failed: Mutex::new(None) };
    let source = FileBytes::LargeFile(large);
    match take(&source, stamp) {
        Ok(value) => Ok(Ok(value)),
        Err(error) => {
            progress.check()?;
            let FileBytes::LargeFile(large) = source else { unreachable!("it was made above") };
            match large.failed.into_inner() {
                Some(why) => Ok(Err(why)),
                None => Err(error),
            }
        }
    }
}

/// Fills a buffer. Bytes beyond the end of a shrinking file are zero; the caller's second `fstat` notices that.
fn fill(file: &OwnedFd, mut offset: u64, mut buffer: &mut [u8]) -> rustix::io::Result<()> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, offset) {
            Ok(0) => {
                buffer.fill(0);
                return Ok(());
            }
            Ok(count) => {
                offset += count as u64;
                buffer = &mut buffer[count..];
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The bytes of a file.
pub(crate) enum FileBytes<'a> {
    Small(&'a [u8]),
    LargeFile(LargeFile<'a>),
}

pub(crate) struct LargeFile<'a> {
    file: &'a OwnedFd,
    length: u64,
    is_sparse: bool,
    /// A range that is known to hold data.
    data: Mutex<(u64, u64)>,
    progress: &'a Progress,
    failed: Mutex<Option<Why>>,
}

impl ByteSource for FileBytes<'_> {
    fn length(&self) -> u64 {
        match self {
            Self::Small(bytes) => bytes.len() as u64,
            Self::LargeFile(large) => large.length,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        match self {
            Self::Small(bytes) => bytes.read_at(offset, buffer),
            Self::LargeFile(large) => large.read_at(offset, buffer),
        }
    }

    fn whole(&self) -> Option<&[u8]> {
        match self {
            Self::Small(bytes) => Some(bytes),
            Self::LargeFile(_) => None,
        }
    }

    fn known_zeros(&self, offset: u64) -> amalgam_engine::Result<u64> {
        match self {
            Self::LargeFile(large) if large.is_sparse => Ok(large.zeros(offset)),
            _ => Ok(0),
        }
    }
}

impl LargeFile<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let stop = |error: std::io::Error| amalgam_engine::Error::from_io("read a file", &error);
        // The caller of this error calls `check` again.
        self.progress.check().map_err(|_| stop(std::io::ErrorKind::Interrupted.into()))?;
        fill(self.file, offset, buffer).map_err(|error| {
            *self.failed.lock() = Some(failed("read", error));
            stop(error.into())
        })
    }

    /// Returns the number of zero bytes from an offset on, according to the kernel's block map.
    fn zeros(&self, offset: u64) -> u64 {
        let mut data = self.data.lock();
        if (data.0..data.1).contains(&offset) {
            return 0;
        }
        match rustix::fs::seek(self.file, SeekFrom::Data(offset)) {
            Ok(start) if start > offset => start.min(self.length) - offset,
            Ok(start) => {
                let end = rustix::fs::seek(self.file, SeekFrom::Hole(start)).unwrap_or(start);
                *data = (start, end);
                0
            }
            // No data from here on.
            Err(Errno::NXIO) => self.length.saturating_sub(offset),
            Err(_) => 0,
        }
    }
}

/// Reads a symlink, FIFO, socket or device. Returns `None` if its kind changed, and a reason if no tree can hold it.
pub(crate) fn read_special(directory: BorrowedFd<'_>, name: &Name, stamp: &Stamp) -> Result<Option<Node>, Why> {
    let device = || Device { major: rustix::fs::major(stamp.size), minor: rustix::fs::minor(stamp.size) };
    Ok(match stamp.kind() {
        FileType::Symlink => match rustix::fs::readlinkat(directory, name.as_bytes(), Vec::with_capacity(256)) {
            Ok(target) if target.as_bytes().len() > SYMLINK_TARGET_BYTES_MAX => {
                return Err(Why::Unsupported(format!("a symlink target of {} bytes", target.as_bytes().len())));
            }
            Ok(target) => Some(Node::Symlink(Bytes::from(target.into_bytes()))),
            Err(_) => None,
        },
        FileType::Fifo => Some(Node::Fifo),
        FileType::Socket => Some(Node::Socket),
        FileType::CharacterDevice => Some(Node::CharDevice(device())),
        FileType::BlockDevice => Some(Node::BlockDevice(device())),
        // It became a directory; the next scan visits it.
        _ => None,
    })
}

fn failed(action: &'static str, error: Errno) -> Why {
    Why::Failed { action, error: std::io::Error::from(error).to_string() }
}
