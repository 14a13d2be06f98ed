//! The FUSE file system: each request of the kernel, translated into a call of the view.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use amalgam_view::{
    Attributes, Caller, Ino, Invalidation, ReadOutcome, RenameMode, Result, Seek, SetAttributes, SizeChange, View,
    WatchId, XattrSet,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::busy_poll::BusyPoll;
use crate::convert::{OwnerMap, attr, caller, errno, kind, special, time_set};
use crate::relist::RecentReads;
use crate::stale_retries::StaleRetries;
use crate::worker_pool::WorkerPool;

/// How long the kernel may cache entries and attributes. Other changes are invalidated.
const CACHE_TIMEOUT: Duration = Duration::from_secs(86_400);
const GENERATION: Generation = Generation(0);
/// Limit of a write and of the kernel's read-ahead, in one message.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;

const ROOT_USER: u32 = 0;
/// Offset with which an invalidation drops attributes, but no pages.
pub(crate) const ATTRIBUTES_ONLY: i64 = -1;
const APPEND: i32 = OFlags::APPEND.bits() as i32;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const XATTR_NAMESPACES: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
const ACL_XATTRS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

/// A message for the thread that sends invalidations to the kernel.
pub(crate) enum KernelMessage {
    Invalidate(Invalidation),
    /// Answered once all messages before it were sent.
    Flush(Sender<()>),
    End,
}

/// The FUSE file system of a mounted view.
pub(crate) struct AmalgamFs {
    pub(crate) view: View,
    pub(crate) id: WatchId,
    pub(crate) owners: OwnerMap,
    pub(crate) writeback: bool,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) workers: WorkerPool,
    pub(crate) stale_retries: StaleRetries,
    pub(crate) recent_reads: RecentReads,
    pub(crate) messages: Sender<KernelMessage>,
    /// Sends an invalidation directly. Set before the first request is answered.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
}

impl AmalgamFs {
    fn reply_entry(&self, found: Result<Attributes>, reply: ReplyEntry) {
        match found {
            Ok(attributes) => reply.entry(&CACHE_TIMEOUT, &attr(self.owners, &attributes), GENERATION),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn changing_user(&self, request: &Request) -> ChangingUser {
        ChangingUser { caller: caller(request, self.id, self.owners), is_root: request.uid() == ROOT_USER }
    }

    /// Records that a process begins to read a file.
    fn read_started(&self, ino: Ino) {
        // On a read-only mount the kernel does not update access times.
        if !self.view.is_read_only()
            && let Some(directory) = self.view.directory_of(ino)
            && let Some(passed) = self.recent_reads.record(directory)
        {
            // The receiver is gone once the mount has ended.
            self.messages.send(KernelMessage::Invalidate(Invalidation::Contents(passed))).ok();
        }
    }
}

/// Removes the set-ID bits of a file that another user has changed. The kernel leaves that to the server and caches the old mode, so the
/// mode is invalidated before the answer. Sent directly, not behind invalidations of contents: those wait for pages that a write locks
/// until it is answered.
fn drop_privilege(view: &View, notifier: &OnceLock<Notifier>, caller: &Caller, ino: Ino) -> Result<()> {
    if view.drop_privilege(caller, ino)?
        && let Some(notifier) = notifier.get()
    {
        // The kernel may have dropped the inode by itself.
        notifier.inval_inode(INodeNo(ino), ATTRIBUTES_ONLY, 0).ok();
    }
    Ok(())
}

/// A caller, and whether it is root on the host. The view may know a user of a mount as the server's own, which can be root.
struct ChangingUser {
    caller: Caller,
    is_root: bool,
}

/// Removes the set-ID bits of a changed file, unless root changed it.
fn drop_privilege_unless_root(view: &View, notifier: &OnceLock<Notifier>, user: &ChangingUser, ino: Ino) -> Result<()> {
    if user.is_root { Ok(()) } else { drop_privilege(view, notifier, &user.caller, ino) }
}

fn reply_empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn reply_xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Returns whether an extended attribute belongs to the kernel.
fn is_system_xattr(name: &[u8]) -> bool {
    name.starts_with(b"system.") && !ACL_XATTRS.contains(&name)
}

/// Returns whether other file systems accept the name of an extended attribute, so that a checkout can set it.
fn is_portable_xattr(name: &[u8]) -> bool {
    ACL_XATTRS.contains(&name) || XATTR_NAMESPACES.iter().any(|prefix| name.starts_with(prefix))
}

impl Filesystem for AmalgamFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            // The kernel enforces access control lists, and leaves the umask to the server, which a default list replaces.
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if self.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        for flag in wanted.iter() {
            // An older kernel works without it.
            config.add_capabilities(flag).ok();
        }
        config.set_max_write(MESSAGE_BYTES_MAX).ok();
        if let Err(most) = config.set_max_readahead(MESSAGE_BYTES_MAX) {
            config.set_max_readahead(most).ok();
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.busy_poll.request_arrived();
        let found = self.view.lookup(&caller(request, self.id, self.owners), parent.0, name.as_bytes());
        match found {
            Err(error) if errno(&error) == Errno::ENOENT => {
                // An entry with inode 0: the kernel caches that the name does not exist.
                let mut negative = attr(self.owners, &negative_entry());
                negative.ino = INodeNo(0);
                reply.entry(&CACHE_TIMEOUT, &negative, GENERATION);
            }
            found => {
                self.stale_retries.lookup_succeeded(request.pid());
                self.reply_entry(found, reply);
            }
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.view.forget([(ino.0, lookups)]);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.busy_poll.request_arrived();
        match self.view.attributes(ino.0) {
            Ok(attributes) => reply.attr(&CACHE_TIMEOUT, &attr(self.owners, &attributes)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.busy_poll.request_arrived();
        let (uid, gid) = (uid.map(|uid| self.owners.uid(uid)), gid.map(|gid| self.owners.gid(gid)));
        let set = SetAttributes { mode, uid, gid, size, atime: atime.map(time_set), mtime: mtime.map(time_set) };
        match self.view.set_attributes(&caller(request, self.id, self.owners), ino.0, &set) {
            Ok(attributes) => reply.attr(&CACHE_TIMEOUT, &attr(self.owners, &attributes)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.busy_poll.request_arrived();
        match self.view.read_link(ino.0) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        number: u32,
        reply: ReplyEntry,
    ) {
        self.busy_poll.request_arrived();
        let caller = Caller { umask, ..caller(request, self.id, self.owners) };
        let made = match special(mode, number) {
            Ok(None) => match self.view.create(&caller, parent.0, name.as_bytes(), mode) {
                // The kernel may create a file that another mount has just created, because it has cached that the name does not exist.
                // With ESTALE it looks the name up again, and reports EEXIST itself if the application demanded a new file.
                Err(error)
                    if errno(&error) == Errno::EEXIST
                        && self.stale_retries.may_retry(request.pid(), parent.0, name.as_bytes()) =>
                {
                    return reply.error(Errno::ESTALE);
                }
                made => made,
            },
            Ok(Some(special)) => self.view.create_special(&caller, parent.0, name.as_bytes(), special, mode),
            Err(error) => return reply.error(error),
        };
        self.reply_entry(made, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.busy_poll.request_arrived();
        let caller = Caller { umask, ..caller(request, self.id, self.owners) };
        let made = self.view.create_directory(&caller, parent.0, name.as_bytes(), mode);
        self.reply_entry(made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.busy_poll.request_arrived();
        reply_empty(self.view.unlink(&caller(request, self.id, self.owners), parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.busy_poll.request_arrived();
        reply_empty(
            self.view.remove_directory(&caller(request, self.id, self.owners), parent.0, name.as_bytes()),
            reply,
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.busy_poll.request_arrived();
        let target = target.as_os_str().as_bytes();
        self.reply_entry(
            self.view.create_symlink(&caller(request, self.id, self.owners), parent.0, name.as_bytes(), target),
            reply,
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.busy_poll.request_arrived();
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        reply_empty(self.view.rename(&caller(request, self.id, self.owners), from, to, mode), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.busy_poll.request_arrived();
        self.reply_entry(
            self.view.link(&caller(request, self.id, self.owners), ino.0, parent.0, name.as_bytes()),
            reply,
        );
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Open files have no state: with ENOSYS the kernel stops sending OPEN.
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.busy_poll.request_arrived();
        if offset == 0 {
            self.read_started(ino.0);
        }
        match self.view.begin_read(ino.0, offset, size as usize) {
            Ok(ReadOutcome::Ready(bytes)) => reply.data(&bytes),
            Ok(ReadOutcome::Pending(read)) => {
                let is_short = read.is_short() && !self.busy_poll.has_waiting_request();
                let finish = move || match read.finish() {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => reply.error(errno(&error)),
                };
                // Waking a worker takes as long as a short read.
                if is_short { finish() } else { self.workers.spawn(finish) }
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.busy_poll.request_arrived();
        let caller = caller(request, self.id, self.owners);
        // The kernel appends at the end that it has cached, and another mount may have appended since. Delayed writes are for their
        // offset, independent of the flags of the open file.
        let is_append = flags.0 & APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mut written = match is_append {
            true => self.view.append(&caller, ino.0, offset, data).map(drop),
            false => self.view.write(&caller, ino.0, offset, data),
        };
        if written.is_ok() && write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
            written = drop_privilege(&self.view, &self.notifier, &caller, ino.0);
        }
        match written {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let view = self.view.clone();
        self.workers.spawn(move || reply_empty(view.sync(), reply));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let view = self.view.clone();
        self.workers.spawn(move || reply_empty(view.sync(), reply));
    }

    fn readdir(&self, request: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.busy_poll.request_arrived();
        let caller = caller(request, self.id, self.owners);
        let read = self.view.read_directory(&caller, ino.0, offset, |listed| {
            let name = OsStr::from_bytes(listed.name);
            !reply.add(INodeNo(listed.attributes.ino), listed.cookie, kind(listed.attributes.kind), name)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, request: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.busy_poll.request_arrived();
        let caller = caller(request, self.id, self.owners);
        let read = self.view.read_directory_plus(&caller, ino.0, offset, |listed| {
            let name = OsStr::from_bytes(listed.name);
            let attr = attr(self.owners, &listed.attributes);
            !reply.add(attr.ino, listed.cookie, name, &CACHE_TIMEOUT, &attr, GENERATION)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let space = self.view.file_space();
        let blocks = |bytes: u64| bytes / BLOCK_BYTES;
        let (all, free, usable) = (blocks(space.total_bytes), blocks(space.free_bytes), blocks(space.usable_bytes()));
        // The number of files is limited by the space alone.
        reply.statfs(all, free, usable, all, usable, BLOCK_BYTES as u32, 255, BLOCK_BYTES as u32);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        if !is_portable_xattr(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let mode = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            0 => XattrSet::Either,
            XATTR_CREATE => XattrSet::Create,
            XATTR_REPLACE => XattrSet::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        reply_empty(
            self.view.set_xattr(&caller(request, self.id, self.owners), ino.0, name.as_bytes(), value, mode),
            reply,
        );
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.busy_poll.request_arrived();
        if is_system_xattr(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        reply_xattr(self.view.xattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self
            .view
            .xattr_names(ino.0)
            .map(|names| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect::<Vec<u8>>());
        reply_xattr(names, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if is_system_xattr(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        reply_empty(self.view.remove_xattr(&caller(request, self.id, self.owners), ino.0, name.as_bytes()), reply);
    }

    /// Answers ENOSYS: the kernel then creates files with MKNOD and opens them without a message.
    fn create(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let user = self.changing_user(request);
        let caller = &user.caller;
        let size_change = if mode & KEEP_SIZE != 0 { SizeChange::Keep } else { SizeChange::Extend };
        let done = match mode & !KEEP_SIZE {
            0 => self.view.allocate(caller, ino.0, offset, length, size_change),
            PUNCH_HOLE if size_change == SizeChange::Keep => {
                self.view.punch(caller, ino.0, offset, length, SizeChange::Keep)
            }
            ZERO_RANGE => self.view.punch(caller, ino.0, offset, length, size_change),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        // Unlike for a write, the kernel does not say whether set-ID bits must be removed.
        reply_empty(done.and_then(|()| drop_privilege_unless_root(&self.view, &self.notifier, &user, ino.0)), reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let target = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.view.seek(ino.0, offset, target) {
            Ok(found) => reply.offset(found as i64),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: INodeNo,
        _: FileHandle,
        from_offset: u64,
        to: INodeNo,
        _: FileHandle,
        to_offset: u64,
        length: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (user, view, notifier) = (self.changing_user(request), self.view.clone(), Arc::clone(&self.notifier));
        self.workers.spawn(move || {
            let copied = view.copy_range(&user.caller, (from.0, from_offset), (to.0, to_offset), length);
            match copied.and_then(|copied| drop_privilege_unless_root(&view, &notifier, &user, to.0).map(|()| copied)) {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

/// Attributes of an entry that does not exist; the kernel ignores them.
fn negative_entry() -> Attributes {
    let time = amalgam_engine::Time::EPOCH;
    Attributes {
        ino: 0,
        kind: amalgam_view::Kind::File,
        mode: 0,
        links: 0,
        uid: 0,
        gid: 0,
        size: 0,
        blocks: 0,
        device: None,
        atime: time,
        mtime: time,
        ctime: time,
    }
}
