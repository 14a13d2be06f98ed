//! Each request of the kernel, translated.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use amalgam_view::{Attributes, Caller, Ino, Notice, Reading, RenameMode, Result, Seek, Set, View, WatchId, XattrSet};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use crate::again::Again;
use crate::aside::Aside;
use crate::attention::Attention;
use crate::convert::{attr, caller, errno, kind, special, time_set};
use crate::mount::Told;
use crate::relist::Relist;

/// How long the kernel may remember what it was told. Whatever changes otherwise is invalidated.
const REMEMBERED: Duration = Duration::from_secs(86_400);
const GENERATION: Generation = Generation(0);
/// The largest write and the farthest the kernel reads ahead, in one message.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;

const ROOT_USER: u32 = 0;
/// A place in a file that stands for none of its pages.
pub(crate) const ATTRIBUTES_ALONE: i64 = -1;
const APPEND: i32 = OFlags::APPEND.bits() as i32;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const XATTR_SPACES: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;

pub(crate) struct Door {
    pub(crate) view: View,
    pub(crate) id: WatchId,
    pub(crate) writeback: bool,
    pub(crate) attention: Attention,
    pub(crate) aside: Aside,
    pub(crate) again: Again,
    pub(crate) relist: Relist,
    pub(crate) notices: Sender<Told>,
    /// To tell the kernel something at once. There before the first request is answered.
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
}

impl Door {
    fn entry(&self, found: Result<Attributes>, reply: ReplyEntry) {
        match found {
            Ok(attributes) => reply.entry(&REMEMBERED, &attr(&attributes), GENERATION),
            Err(error) => reply.error(errno(&error)),
        }
    }

    /// Somebody begins to read a file.
    fn was_read(&self, ino: Ino) {
        // A kernel that may not write does not keep such times.
        if !self.view.is_read_only()
            && let Some(directory) = self.view.directory_of(ino)
            && let Some(passed) = self.relist.read(directory)
        {
            // Nobody listens any more once the mount has ended.
            self.notices.send(Told::Notice(Notice::Contents(passed))).ok();
        }
    }
}

/// Takes away what lets a file act for its owner, after somebody else has changed it. The kernel leaves that to us and believes the mode
/// that it knows, so it is told to ask anew before it gets its answer: at once, and not in line behind notices of contents, which wait
/// for pages that a write holds until it is answered.
fn drop_privilege(view: &View, notifier: &OnceLock<Notifier>, caller: &Caller, ino: Ino) -> Result<()> {
    if view.drop_privilege(caller, ino)?
        && let Some(notifier) = notifier.get()
    {
        // It may have forgotten the file by itself.
        notifier.inval_inode(INodeNo(ino), ATTRIBUTES_ALONE, 0).ok();
    }
    Ok(())
}

/// The same, if whoever changed it is not root.
fn changed_by(view: &View, notifier: &OnceLock<Notifier>, caller: &Caller, ino: Ino) -> Result<()> {
    if caller.uid == ROOT_USER { Ok(()) } else { drop_privilege(view, notifier, caller, ino) }
}

fn empty(done: Result<()>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

fn xattr(value: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(errno(&error)),
    }
}

/// Names that are the kernel's own business, or need more than bytes.
fn is_refused(name: &[u8]) -> bool {
    name.starts_with(b"system.") && !ACCESS_LISTS.contains(&name)
}

/// Whether a file system elsewhere would take the name: what a tree has is to be checked out again.
fn is_known(name: &[u8]) -> bool {
    ACCESS_LISTS.contains(&name) || XATTR_SPACES.iter().any(|space| name.starts_with(space))
}

impl Filesystem for Door {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA
            // The kernel enforces access control lists; then it leaves the umask to us, which such a list takes the place of.
            | InitFlags::FUSE_POSIX_ACL
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2;
        if self.writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        for flag in wanted.iter() {
            // What an older kernel does not have it does without.
            config.add_capabilities(flag).ok();
        }
        config.set_max_write(MESSAGE_BYTES_MAX).ok();
        if let Err(most) = config.set_max_readahead(MESSAGE_BYTES_MAX) {
            config.set_max_readahead(most).ok();
        }
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.attention.came();
        let found = self.view.lookup(&caller(request, self.id), parent.0, name.as_bytes());
        match found {
            Err(error) if errno(&error) == Errno::ENOENT => {
                // An entry without an inode: the kernel remembers that there is none.
                let mut nothing = attr(&absent());
                nothing.ino = INodeNo(0);
                reply.entry(&REMEMBERED, &nothing, GENERATION);
            }
            found => {
                self.again.found(request.pid());
                self.entry(found, reply);
            }
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, lookups: u64) {
        self.view.forget([(ino.0, lookups)]);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.attention.came();
        match self.view.attributes(ino.0) {
            Ok(attributes) => reply.attr(&REMEMBERED, &attr(&attributes)),
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
        self.attention.came();
        let set = Set { mode, uid, gid, size, atime: atime.map(time_set), mtime: mtime.map(time_set) };
        match self.view.set_attributes(&caller(request, self.id), ino.0, &set) {
            Ok(attributes) => reply.attr(&REMEMBERED, &attr(&attributes)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        self.attention.came();
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
        self.attention.came();
        let caller = Caller { umask, ..caller(request, self.id) };
        let made = match special(mode, number) {
            Ok(None) => match self.view.create(&caller, parent.0, name.as_bytes(), mode) {
                // The kernel may open a file that it takes for a new one, while another mount has made it. Told that what it knows
                // is old, it looks again, and says itself that there is one where a new one was demanded.
                Err(error)
                    if errno(&error) == Errno::EEXIST
                        && self.again.may_look(request.pid(), parent.0, name.as_bytes()) =>
                {
                    return reply.error(Errno::ESTALE);
                }
                made => made,
            },
            Ok(Some(special)) => self.view.create_special(&caller, parent.0, name.as_bytes(), special, mode),
            Err(error) => return reply.error(error),
        };
        self.entry(made, reply);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.attention.came();
        let caller = Caller { umask, ..caller(request, self.id) };
        let made = self.view.create_directory(&caller, parent.0, name.as_bytes(), mode);
        self.entry(made, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.attention.came();
        empty(self.view.unlink(&caller(request, self.id), parent.0, name.as_bytes()), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.attention.came();
        empty(self.view.remove_directory(&caller(request, self.id), parent.0, name.as_bytes()), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        self.attention.came();
        let target = target.as_os_str().as_bytes();
        self.entry(self.view.create_symlink(&caller(request, self.id), parent.0, name.as_bytes(), target), reply);
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
        self.attention.came();
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
        empty(self.view.rename(&caller(request, self.id), from, to, mode), reply);
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.attention.came();
        self.entry(self.view.link(&caller(request, self.id), ino.0, parent.0, name.as_bytes()), reply);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Not needed: there is no state to an open file, and the kernel stops asking.
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
        self.attention.came();
        if offset == 0 {
            self.was_read(ino.0);
        }
        match self.view.begin_read(ino.0, offset, size as usize) {
            Ok(Reading::AtHand(bytes)) => reply.data(&bytes),
            Ok(Reading::Later(rest)) => {
                let is_short = rest.is_short() && !self.attention.do_others_wait();
                let finish = move || match rest.finish() {
                    Ok(bytes) => reply.data(&bytes),
                    Err(error) => reply.error(errno(&error)),
                };
                // Waking somebody takes as long as a short read, and nobody else waits.
                if is_short { finish() } else { self.aside.take_over(finish) }
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
        self.attention.came();
        let caller = caller(request, self.id);
        // The kernel takes the end to be where it last saw it, and another mount may have gone on since. What it held back is for
        // the offset that it says, whatever the file that it was written through.
        let append = flags.0 & APPEND != 0 && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mut written = self.view.write(&caller, ino.0, offset, data, append).map(drop);
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
        self.aside.take_over(move || empty(view.sync(), reply));
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let view = self.view.clone();
        self.aside.take_over(move || empty(view.sync(), reply));
    }

    fn readdir(&self, request: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.attention.came();
        let caller = caller(request, self.id);
        let read = self.view.read_directory(&caller, ino.0, offset, false, |listed| {
            let name = OsStr::from_bytes(listed.name);
            !reply.add(INodeNo(listed.attributes.ino), listed.cookie, kind(listed.attributes.kind), name)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, request: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.attention.came();
        let caller = caller(request, self.id);
        let read = self.view.read_directory(&caller, ino.0, offset, true, |listed| {
            let name = OsStr::from_bytes(listed.name);
            let attr = attr(&listed.attributes);
            !reply.add(attr.ino, listed.cookie, name, &REMEMBERED, &attr, GENERATION)
        });
        match read {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let room = self.view.room();
        let blocks = |bytes: u64| bytes / BLOCK_BYTES;
        let (all, free, usable) = (blocks(room.total_bytes), blocks(room.free_bytes), blocks(room.usable_bytes()));
        // As many files as there is room for.
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
        if !is_known(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let how = match flags & (XATTR_CREATE | XATTR_REPLACE) {
            0 => XattrSet::Either,
            XATTR_CREATE => XattrSet::Create,
            XATTR_REPLACE => XattrSet::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        empty(self.view.set_xattr(&caller(request, self.id), ino.0, name.as_bytes(), value, how), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.attention.came();
        if is_refused(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        xattr(self.view.xattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self
            .view
            .xattr_names(ino.0)
            .map(|names| names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect::<Vec<u8>>());
        xattr(names, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        if is_refused(name.as_bytes()) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        empty(self.view.remove_xattr(&caller(request, self.id), ino.0, name.as_bytes()), reply);
    }

    /// None: the kernel makes a file as it makes a node, and opens it without asking. There is nothing to release then.
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
        let caller = caller(request, self.id);
        let keep_size = mode & KEEP_SIZE != 0;
        let done = match mode & !KEEP_SIZE {
            0 => self.view.allocate(&caller, ino.0, offset, length, keep_size),
            PUNCH_HOLE if keep_size => self.view.punch(&caller, ino.0, offset, length, true),
            ZERO_RANGE => self.view.punch(&caller, ino.0, offset, length, keep_size),
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        // Of a write the kernel says whether privilege goes with it, of this not.
        empty(done.and_then(|()| changed_by(&self.view, &self.notifier, &caller, ino.0)), reply);
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        match self.view.seek(ino.0, offset, what) {
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
        let (caller, view, notifier) = (caller(request, self.id), self.view.clone(), Arc::clone(&self.notifier));
        self.aside.take_over(move || {
            let copied = view.copy_range(&caller, (from.0, from_offset), (to.0, to_offset), length);
            match copied.and_then(|copied| changed_by(&view, &notifier, &caller, to.0).map(|()| copied)) {
                Ok(copied) => reply.written(copied as u32),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }
}

fn absent() -> Attributes {
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
