//! Calls to the kernel, on a mount in this process. Paths go through no symlink, as in a tree.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use amalgam_engine::WorkingTree;
use amalgam_engine::work::{RenameMode, Special};
use amalgam_fuse::{Mount, MountOptions};
use amalgam_policy::Guard;
use amalgam_tests::model::{Op, Raw};
use rustix::fs::{
    AtFlags, Dev, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::{Errno, Result};

use crate::door::Door;
use crate::host::Host;

pub(crate) struct FuseDoor {
    host: Host,
    root: Option<OwnedFd>,
    mount: Option<Mount>,
}

impl FuseDoor {
    pub(crate) fn new() -> Self {
        let host = Host::new();
        let path: PathBuf = host.scratch.path().join("mount");
        std::fs::create_dir(&path).expect("a new directory");
        let options = MountOptions { allow_other: true, privileged: true, ..MountOptions::default() };
        let mount = Mount::at(&host.view, &path, &options).expect("mount");
        let root = rustix::fs::open(&path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("open");
        Self { host, root: Some(root), mount: Some(mount) }
    }

    fn open(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd> {
        let root = self.root.as_ref().expect("the door is open");
        let path = if path.is_empty() { &b"."[..] } else { path };
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// The directory of a path's last name, and that name.
    fn parent<'a>(&self, path: &'a Raw) -> Result<(OwnedFd, &'a [u8])> {
        let cut = path.0.iter().rposition(|byte| *byte == b'/');
        let (above, name) = cut.map_or((&b""[..], &path.0[..]), |cut| (&path.0[..cut], &path.0[cut + 1..]));
        Ok((self.open(above, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }

    fn kind(&self, path: &Raw) -> Result<FileType> {
        let (parent, name) = self.parent(path)?;
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    /// A plain file, open for writing. Others are not opened: a FIFO would wait.
    fn file(&self, path: &Raw, flags: OFlags) -> Result<OwnedFd> {
        if self.kind(path)? != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        self.open(&path.0, OFlags::WRONLY | flags)
    }

    fn chmod(&self, path: &Raw, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::chmodat(&parent, name, Mode::from_raw_mode(mode), AtFlags::empty())
    }

    /// A path for the calls that take no directory handle.
    fn path(&self, path: &Raw) -> PathBuf {
        self.host.scratch.path().join("mount").join(std::ffi::OsStr::from_bytes(&path.0))
    }

    fn create_directories(&self, path: &Raw) -> Result<()> {
        let mut end = 0;
        while end < path.0.len() {
            end = path.0[end + 1..].iter().position(|byte| *byte == b'/').map_or(path.0.len(), |at| end + 1 + at);
            let here = Raw(path.0[..end].to_vec());
            match self.kind(&here) {
                Err(Errno::NOENT) => self.make_directory(&here, 0o755)?,
                Ok(FileType::Directory) => {}
                Ok(_) => return Err(Errno::NOTDIR),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn make_directory(&self, path: &Raw, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode))?;
        // The umask, and set-group-ID bits that are taken over, are unknown to a tree.
        self.chmod(path, mode)
    }

    fn make_node(&self, path: &Raw, special: Special, mode: u32) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        let (kind, device) = match special {
            Special::Fifo => (FileType::Fifo, None),
            Special::Socket => (FileType::Socket, None),
            Special::CharDevice(device) => (FileType::CharacterDevice, Some(device)),
            Special::BlockDevice(device) => (FileType::BlockDevice, Some(device)),
        };
        let number: Dev = device.map_or(0, |device| rustix::fs::makedev(device.major, device.minor));
        rustix::fs::mknodat(&parent, name, kind, Mode::from_raw_mode(mode), number)?;
        self.chmod(path, mode)
    }

    fn remove_all(&self, path: &Raw) -> Result<()> {
        let (parent, name) = self.parent(path)?;
        if self.kind(path)? != FileType::Directory {
            return rustix::fs::unlinkat(&parent, name, AtFlags::empty());
        }
        std::fs::remove_dir_all(self.path(path)).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    fn rename(&self, from: &Raw, to: &Raw, mode: RenameMode) -> Result<()> {
        let ((from, name), (to, new)) = (self.parent(from)?, self.parent(to)?);
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        rustix::fs::renameat_with(&from, name, &to, new, flags)
    }

    fn done(&self, op: &Op) -> Result<()> {
        match op {
            Op::Create { path, mode } => {
                let (parent, name) = self.parent(path)?;
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(*mode))?;
                self.chmod(path, *mode)
            }
            Op::Write { path, fill } => {
                if self.kind(path) == Err(Errno::NOENT) {
                    self.done(&Op::Create { path: path.clone(), mode: 0o644 })?;
                }
                write_all(&self.file(path, OFlags::TRUNC)?, 0, &fill.bytes())
            }
            Op::WriteAt { path, offset, fill } => write_all(&self.file(path, OFlags::empty())?, *offset, &fill.bytes()),
            Op::Append { path, fill } => {
                let file = self.file(path, OFlags::APPEND)?;
                let bytes = fill.bytes();
                let mut done = 0;
                while done < bytes.len() {
                    done += rustix::io::write(&file, &bytes[done..])?;
                }
                Ok(())
            }
            Op::Truncate { path, size } => rustix::fs::ftruncate(self.file(path, OFlags::empty())?, *size),
            Op::PunchHole { path, start, end } => {
                let file = self.file(path, OFlags::empty())?;
                let end = (*end).min(rustix::fs::fstat(&file)?.st_size as u64);
                if *start >= end {
                    return Ok(());
                }
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, flags, *start, end - start)
            }
            Op::CreateDirectory { path, mode } => self.make_directory(path, *mode),
            Op::CreateDirectories { path } => self.create_directories(path),
            Op::Symlink { path, target } => {
                let (parent, name) = self.parent(path)?;
                rustix::fs::symlinkat(&target.0[..], &parent, name)
            }
            Op::CreateSpecial { path, special, mode } => self.make_node(path, *special, *mode),
            Op::Link { existing, new } => {
                let ((old, name), (parent, new)) = (self.parent(existing)?, self.parent(new)?);
                rustix::fs::linkat(&old, name, &parent, new, AtFlags::empty())
            }
            Op::Remove { path } => {
                let (parent, name) = self.parent(path)?;
                rustix::fs::unlinkat(&parent, name, AtFlags::empty())
            }
            Op::RemoveDirectory { path } => {
                let (parent, name) = self.parent(path)?;
                rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)
            }
            Op::RemoveAll { path } => self.remove_all(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::SetMode { path, mode } => self.chmod(path, *mode),
            Op::SetMtime { path, mtime } => {
                let (parent, name) = self.parent(path)?;
                let (seconds, nanoseconds) = (mtime.0.div_euclid(1_000_000_000), mtime.0.rem_euclid(1_000_000_000));
                let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
                let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
                let times = Timestamps { last_access: omit, last_modification: time };
                rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetOwner { path, owner } => {
                let (parent, name) = self.parent(path)?;
                let before = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
                let (uid, gid) = owner.map_or((0, 0), |owner| (owner.uid, owner.gid));
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(&parent, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
                // A file that changes hands loses bits, which a tree does not know.
                match FileType::from_raw_mode(before.st_mode) {
                    FileType::Symlink => Ok(()),
                    _ => self.chmod(path, before.st_mode & 0o7777),
                }
            }
            Op::SetXattr { path, name, value } => {
                self.kind(path)?;
                rustix::fs::lsetxattr(self.path(path), &name.0[..], &value.bytes(), XattrFlags::empty())
            }
            Op::RemoveXattr { path, name } => {
                self.kind(path)?;
                match rustix::fs::lremovexattr(self.path(path), &name.0[..]) {
                    Err(Errno::NODATA) => Ok(()),
                    done => done,
                }
            }
            Op::SetState { .. } | Op::RemoveState { .. } | Op::SetNow { .. } => unreachable!("not for all doors"),
        }
    }
}

fn write_all(file: &OwnedFd, offset: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += rustix::io::pwrite(file, &bytes[done..], offset + done as u64)?;
    }
    Ok(())
}

impl Door for FuseDoor {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn perform(&mut self, op: &Op) -> std::result::Result<(), String> {
        self.done(op).map_err(|error| error.to_string())
    }

    fn commit(&mut self) {
        self.host.commit();
    }

    fn tree(&mut self) -> WorkingTree {
        self.host.view.fork()
    }

    fn set_guard(&mut self, guard: Arc<Guard>) {
        self.host.view.set_guard(guard).expect("guarded");
        let told = self.mount.as_ref().map(Mount::flush_invalidations);
        told.into_iter().for_each(|told| told.recv().expect("the kernel was told"));
    }

    fn end(&mut self) {
        self.root = None;
        if let Some(mount) = self.mount.take() {
            mount.unmount().expect("unmount");
        }
    }
}

impl Drop for FuseDoor {
    fn drop(&mut self) {
        self.root = None;
        if let Some(mount) = self.mount.take() {
            // After a failure: whatever still stands in it, nothing stays mounted.
            let path = mount.path().to_owned();
            mount.unmount().ok();
            std::process::Command::new("umount")
                .arg("--lazy")
                .arg(path)
                .stderr(std::process::Stdio::null())
                .status()
                .ok();
        }
    }
}
