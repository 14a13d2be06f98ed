//! Reading one name: a file's bytes, a symlink's target, what a device is.
//!
//! A file is opened beneath its directory's handle and asked afterwards what it is, so it cannot be swapped for something else in
//! between; what is no regular file is never opened. Files are read in blocks, never whole.

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

use super::{Capture, attributes};
use crate::checkout::lacks_set_id;
use crate::error::{Error, Result};
use crate::host::{is_absent, open_beneath};
use crate::index::{Held, Index, Trust};
use crate::progress::Progress;
use crate::report::Why;
use crate::stamp::Stamp;

/// How often a file is read that changes meanwhile.
const READS_MAX: u32 = 5;

/// Reads names into entries.
pub(crate) struct Reader<'a> {
    pub(crate) store: &'a Store,
    pub(crate) session: &'a WriteSession,
    pub(crate) base: Option<&'a Root>,
    pub(crate) index: &'a Index,
    pub(crate) job: &'a Capture<'a>,
    /// The root's owner, which goes without saying.
    pub(crate) owner: Owner,
    pub(crate) files_read: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
}

/// What became of a name.
pub(crate) enum Leaf {
    /// This, as of this stamp.
    Entry(Entry, Stamp, Trust),
    /// Nothing is there any more, or nothing that can be part of the tree.
    Gone,
    /// It cannot be read; what is known stays.
    Kept,
}

impl Reader<'_> {
    /// What a name in an open directory is now, and what is to be said of it.
    pub(crate) fn leaf(
        &self,
        directory: BorrowedFd<'_>,
        name: &Name,
        path: &TreePath,
        mut stamp: Stamp,
    ) -> Result<(Leaf, Option<Why>)> {
        for _ in 0..READS_MAX {
            self.job.progress.check()?;
            if stamp.kind() == FileType::RegularFile {
                if let Some(entry) = self.unread(path, &stamp)? {
                    let trust = Trust::of(&stamp, self.job.now);
                    return Ok((Leaf::Entry(entry, stamp, trust), None));
                }
                let opened =
                    with_file(directory, name, self.job.progress, |source, _| Ok(write_content(self.session, source)?));
                let opened = match opened {
                    Err(Error::Engine(amalgam_engine::Error::Unwanted { tombstone, .. })) => {
                        Opened::Failed(Why::Purged(tombstone.to_string()))
                    }
                    other => other?,
                };
                match opened {
                    Opened::File { value, stamp, xattrs, is_changing } => {
                        self.files_read.fetch_add(1, Ordering::Relaxed);
                        self.bytes_read.fetch_add(stamp.size, Ordering::Relaxed);
                        self.job.progress.did(stamp.size);
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
                        return Ok((Leaf::Entry(entry, stamp, trust), why));
                    }
                    Opened::Gone => return Ok((Leaf::Gone, None)),
                    Opened::Failed(why @ Why::OtherFileSystem) => return Ok((Leaf::Gone, Some(why))),
                    Opened::Failed(why) => return Ok((Leaf::Kept, Some(why))),
                    Opened::Other => {}
                }
            } else {
                match other(directory, name, &stamp) {
                    Ok(Some(node)) => {
                        let trust = Trust::of(&stamp, self.job.now);
                        return Ok((Leaf::Entry(self.entry(node, &stamp, Xattrs::None, None), stamp, trust), None));
                    }
                    Ok(None) => {}
                    Err(why) => return Ok((Leaf::Gone, Some(why))),
                }
            }
            // It is not what it was a moment ago.
            match rustix::fs::statat(directory, name.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stamp = Stamp::from_stat(&stat),
                Err(Errno::NOENT) => return Ok((Leaf::Gone, None)),
                Err(error) => return Ok((Leaf::Kept, Some(failed("look at", error)))),
            }
        }
        // It flips faster than it can be looked at; the change of its directory shows at the next look.
        Ok((Leaf::Gone, None))
    }

    /// The entry of a file whose bytes are known without reading it.
    fn unread(&self, path: &TreePath, stamp: &Stamp) -> Result<Option<Entry>> {
        let stored = match self.job.known.get(stamp) {
            Some(entry) => Some(entry.clone()),
            None if self.is_only_touched(path, stamp) => self.stored(path)?,
            None => None,
        };
        let stored = stored.filter(|entry| matches!(entry.node, Node::File { size, .. } if size == stamp.size));
        Ok(stored.map(|stored| {
            let mut entry = self.entry(stored.node.clone(), stamp, stored.xattrs().clone(), None);
            // Its bits were withheld, and are part of the tree all the same.
            if lacks_set_id(stamp, &stored) {
                entry.mode = stored.mode;
            }
            entry
        }))
    }

    /// What the stored tree has of a file whose set-ID bits a checkout withheld, if its mode is still as that checkout left it.
    fn withheld(&self, path: &TreePath, stamp: &Stamp) -> Result<Option<Entry>> {
        let left = self.index.stamp(path).filter(|left| left.mode == stamp.mode);
        match left {
            Some(left) => Ok(self.stored(path)?.filter(|stored| lacks_set_id(&left, stored))),
            None => Ok(None),
        }
    }

    fn is_only_touched(&self, path: &TreePath, stamp: &Stamp) -> bool {
        let Some((parent, name)) = path.split_last() else { return false };
        let held = self.index.place(&parent).and_then(|at| self.index.directory(at).get(&name));
        matches!(held, Some(Held::Leaf(leaf)) if leaf.trust == Trust::Bytes && leaf.stamp == *stamp)
    }

    /// What the stored tree has at a path.
    pub(crate) fn stored(&self, path: &TreePath) -> Result<Option<Entry>> {
        match self.base {
            Some(base) => Ok(entry_at(self.store, base, path)?),
            None => Ok(None),
        }
    }

    /// An entry with the host's attributes.
    pub(crate) fn entry(&self, node: Node, stamp: &Stamp, xattrs: Xattrs, link: Option<LinkGroup>) -> Entry {
        let owner = Owner { uid: stamp.uid, gid: stamp.gid };
        let extra = Extra { owner: (owner != self.owner).then_some(owner), xattrs, link };
        let extra = (extra != Extra::default()).then(|| Box::new(extra));
        let mode = if matches!(node, Node::Symlink(_)) { 0o777 } else { stamp.permissions() };
        Entry { node, mode, mtime: stamp.mtime, extra }
    }

    /// Attributes as part of an entry; without those that no entry can hold.
    pub(crate) fn put_xattrs(&self, xattrs: Vec<Xattr>) -> (Xattrs, Option<Why>) {
        match self.session.put_xattrs(xattrs) {
            Ok(xattrs) => (xattrs, None),
            Err(error) => (Xattrs::None, Some(Why::Unsupported(error.to_string()))),
        }
    }
}

/// What opening a file came to.
pub(crate) enum Opened<T> {
    /// What was made of its bytes, which are those of this stamp unless it kept changing.
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

/// Opens a file and makes something of its bytes, again for as long as they change meanwhile.
pub(crate) fn with_file<T>(
    directory: BorrowedFd<'_>,
    name: &Name,
    progress: &Progress,
    take: impl Fn(&Source<'_>, &Stamp) -> Result<T>,
) -> Result<Opened<T>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match open_beneath(directory, name.as_bytes(), flags) {
        Ok(file) => file,
        Err(error) => {
            let code = error.raw_os_error();
            let is = |errno: Errno| code == Some(errno.raw_os_error());
            return Ok(match () {
                () if is(Errno::NOENT) => Opened::Gone,
                () if is(Errno::XDEV) => Opened::Failed(Why::OtherFileSystem),
                // A symlink; a socket or a pipe without reader.
                () if is(Errno::NXIO) || is(Errno::NODEV) || is_absent(&error) => Opened::Other,
                () => Opened::Failed(Why::Failed { action: "open", error: error.to_string() }),
            });
        }
    };
    let mut stat = match rustix::fs::fstat(&file) {
        Ok(stat) => stat,
        Err(error) => return Ok(Opened::Failed(failed("look at", error))),
    };
    let mut read = 0;
    loop {
        let stamp = Stamp::from_stat(&stat);
        if stamp.kind() != FileType::RegularFile {
            return Ok(Opened::Other);
        }
        let is_sparse = (stat.st_blocks as u64).saturating_mul(512) < stamp.size;
        let value = match take_once(&file, &stamp, is_sparse, progress, &take)? {
            Ok(value) => value,
            Err(why) => return Ok(Opened::Failed(why)),
        };
        let xattrs = match attributes::read(file.as_fd()) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                let why = Why::Failed { action: "read the attributes of", error: error.to_string() };
                return Ok(Opened::Failed(why));
            }
        };
        stat = match rustix::fs::fstat(&file) {
            Ok(stat) => stat,
            Err(error) => return Ok(Opened::Failed(failed("look at", error))),
        };
        read += 1;
        let is_changing = Stamp::from_stat(&stat) != stamp;
        if !is_changing || read == READS_MAX {
            return Ok(Opened::File { value, stamp, xattrs, is_changing });
        }
    }
}

/// Reads a file once: at one go if it is small.
fn take_once<T>(
    file: &OwnedFd,
    stamp: &Stamp,
    is_sparse: bool,
    progress: &Progress,
    take: impl Fn(&Source<'_>, &Stamp) -> Result<T>,
) -> Result<Result<T, Why>> {
    if stamp.size <= SINGLE_CHUNK_BYTES_MAX {
        thread_local! {
            static BUFFER: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
        }
        return BUFFER.with_borrow_mut(|buffer| {
            // What is in it from the file before is read over.
            if buffer.len() < stamp.size as usize {
                buffer.resize(SINGLE_CHUNK_BYTES_MAX as usize, 0);
            }
            let buffer = &mut buffer[..stamp.size as usize];
            match fill(file, 0, buffer) {
                Ok(()) => take(&Source::Small(buffer), stamp).map(Ok),
                Err(error) => Ok(Err(failed("read", error))),
            }
        });
    }
    let large =
        Large { file, length: stamp.size, is_sparse, data: Mutex::new((0, 0)), progress, failed: Mutex::new(None) };
    let source = Source::Large(large);
    match take(&source, stamp) {
        Ok(value) => Ok(Ok(value)),
        Err(error) => {
            progress.check()?;
            let Source::Large(large) = source else { unreachable!("it was made above") };
            match large.failed.into_inner() {
                Some(why) => Ok(Err(why)),
                None => Err(error),
            }
        }
    }
}

/// Fills a buffer; what lies behind the end of a file that shrinks is zero, and found out afterwards.
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

/// A file's bytes.
pub(crate) enum Source<'a> {
    Small(&'a [u8]),
    Large(Large<'a>),
}

pub(crate) struct Large<'a> {
    file: &'a OwnedFd,
    length: u64,
    is_sparse: bool,
    /// A stretch that is known to hold data.
    data: Mutex<(u64, u64)>,
    progress: &'a Progress,
    failed: Mutex<Option<Why>>,
}

impl ByteSource for Source<'_> {
    fn length(&self) -> u64 {
        match self {
            Self::Small(bytes) => bytes.len() as u64,
            Self::Large(large) => large.length,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        match self {
            Self::Small(bytes) => bytes.read_at(offset, buffer),
            Self::Large(large) => large.read_at(offset, buffer),
        }
    }

    fn whole(&self) -> Option<&[u8]> {
        match self {
            Self::Small(bytes) => Some(bytes),
            Self::Large(_) => None,
        }
    }

    fn known_zeros(&self, offset: u64) -> amalgam_engine::Result<u64> {
        match self {
            Self::Large(large) if large.is_sparse => Ok(large.zeros(offset)),
            _ => Ok(0),
        }
    }
}

impl Large<'_> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let stop = |error: std::io::Error| amalgam_engine::Error::from_io("read a file", &error);
        // The caller that gets this error asks again whether to stop.
        self.progress.check().map_err(|_| stop(std::io::ErrorKind::Interrupted.into()))?;
        fill(self.file, offset, buffer).map_err(|error| {
            *self.failed.lock() = Some(failed("read", error));
            stop(error.into())
        })
    }

    /// The kernel knows where a sparse file has no blocks.
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

/// What is no file and no directory. Nothing if it changed its kind; why, if no tree can hold it.
pub(crate) fn other(directory: BorrowedFd<'_>, name: &Name, stamp: &Stamp) -> Result<Option<Node>, Why> {
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
        // It became a directory, which is looked at the next time.
        _ => None,
    })
}

fn failed(action: &'static str, error: Errno) -> Why {
    Why::Failed { action, error: std::io::Error::from(error).to_string() }
}
