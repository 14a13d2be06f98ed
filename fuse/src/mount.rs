//! A mounted view: its session, and the thread that sends invalidations to the kernel.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use amalgam_view::{Invalidation, View, WatchId};
use fuser::{BackgroundSession, Config, INodeNo, Notifier, Session, SessionACL};
use tracing::{debug, warn};

use crate::amalgam_fs::{ATTRIBUTES_ONLY, AmalgamFs, KernelMessage};
use crate::busy_poll::BusyPoll;
use crate::convert::OwnerMap;
pub use crate::mount_device::MountOptions;
use crate::mount_device::{self, MountAccess};
use crate::relist::RecentReads;
use crate::stale_retries::StaleRetries;
use crate::worker_pool::WorkerPool;

/// Why a view could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or `fusermount3` refused.
    #[error("could not mount at {}: {source}", .path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The error of the kernel or of the helper.
        source: io::Error,
    },
    /// The mount is in use, or could not be unmounted for another reason.
    #[error("could not unmount {}: {source}", .path.display())]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// The error of the kernel or of the helper.
        source: io::Error,
    },
}

/// A mount that could not be unmounted, and is unchanged.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct StillMounted {
    /// The mount.
    pub mount: Box<Mount>,
    /// Why it could not be unmounted.
    #[source]
    pub error: MountError,
}

impl std::fmt::Debug for StillMounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StillMounted").field("error", &self.error).finish_non_exhaustive()
    }
}

/// A mounted view. Ends with [`unmount`](Self::unmount), or when another process unmounts it. Dropping it unmounts lazily.
pub struct Mount {
    path: PathBuf,
    view: View,
    id: WatchId,
    owner: MountOwner,
    messages: Sender<KernelMessage>,
    /// `None` once it was unmounted.
    session: Option<BackgroundSession>,
    /// The thread that sends invalidations.
    notifier: Option<JoinHandle<()>>,
}

/// Which process unmounts a mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MountOwner {
    /// This one, which has mounted it.
    ThisProcess,
    /// The one that has mounted it, and passed the device to this process.
    AnotherProcess,
}

impl Mount {
    /// Mounts a view at an empty directory, by a system call or with `fusermount3`.
    pub fn at(view: &View, path: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let refused = |source| MountError::Refused { path: path.to_owned(), source };
        let access = if view.is_read_only() { MountAccess::ReadOnly } else { MountAccess::ReadWrite };
        // Not by the library, which unmounts the path once more when it is dropped: a mount below would go with it.
        let device = mount_device::mount(path, options, access).map_err(refused)?;
        Self::start(view, path, options, MountOwner::ThisProcess, device)
            .inspect_err(|_| drop(mount_device::unmount_lazily(path)))
    }

    /// Serves a device that another process has mounted, for example in another namespace.
    pub fn on(view: &View, path: &Path, device: OwnedFd, options: &MountOptions) -> Result<Self, MountError> {
        Self::start(view, path, options, MountOwner::AnotherProcess, device)
    }

    fn start(
        view: &View,
        path: &Path,
        options: &MountOptions,
        owner: MountOwner,
        device: OwnedFd,
    ) -> Result<Self, MountError> {
        let refused = |source| MountError::Refused { path: path.to_owned(), source };
        let (messages, received) = channel();
        let watcher = messages.clone();
        let id = view.watch(Arc::new(move |invalidation| {
            // The receiver is gone once the mount has ended.
            watcher.send(KernelMessage::Invalidate(invalidation)).ok();
        }));
        let direct_notifier = Arc::default();
        let file_system = AmalgamFs {
            view: view.clone(),
            id,
            owners: OwnerMap::new(options.shown_owner),
            writeback: options.writeback,
            busy_poll: BusyPoll::new(device.try_clone().ok()),
            workers: WorkerPool::new(options.threads),
            stale_retries: StaleRetries::default(),
            recent_reads: RecentReads::default(),
            messages: messages.clone(),
            notifier: Arc::clone(&direct_notifier),
        };
        let config = config(options);
        let started = Session::from_fd(file_system, device, config.acl, config).and_then(|session| {
            direct_notifier.get_or_init(|| session.notifier());
            session.spawn()
        });
        let session = started.map_err(refused).inspect_err(|_| view.unwatch(id))?;
        let kernel = session.notifier();
        let (path, view, session) = (path.to_owned(), view.clone(), Some(session));
        let mut mount = Self { path, view, id, owner, messages, session, notifier: None };
        let notifier = std::thread::Builder::new()
            .name("amalgam-notifier".to_owned())
            .spawn(move || send_messages(&received, &kernel));
        mount.notifier = Some(notifier.map_err(refused)?);
        debug!(path = %mount.path.display(), read_only = mount.view.is_read_only(), "answering FUSE requests");
        Ok(mount)
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns whether another process has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Returns a receiver that gets a message once the kernel has all invalidations of changes until now: then processes see these changes.
    /// A thread that waits for it must not hold a lock that an answer to the kernel needs.
    pub fn flush_invalidations(&self) -> Receiver<()> {
        let (sender, receiver) = channel();
        // After the end the sender is dropped, and the receiver gets an error at once.
        self.messages.send(KernelMessage::Flush(sender)).ok();
        receiver
    }

    /// Unmounts and waits until the last request is answered. Returns the mount if it is in use.
    pub fn unmount(mut self) -> Result<(), StillMounted> {
        if self.owner == MountOwner::ThisProcess
            && !self.has_ended()
            && let Err(source) = mount_device::unmount(&self.path)
            && !mount_device::is_not_mounted(&source)
        {
            let error = MountError::Busy { path: self.path.clone(), source };
            return Err(StillMounted { mount: Box::new(self), error });
        }
        let ended = self.session.take().map_or(Ok(()), BackgroundSession::join);
        match &ended {
            Ok(()) => debug!(path = %self.path.display(), "FUSE session ended"),
            Err(error) => warn!(%error, "FUSE session ended with an error"),
        }
        self.stop_notifier();
        ended.map_err(|source| {
            let error = MountError::Busy { path: self.path.clone(), source };
            StillMounted { mount: Box::new(self), error }
        })
    }

    fn stop_notifier(&mut self) {
        self.view.unwatch(self.id);
        self.messages.send(KernelMessage::End).ok();
        if let Some(notifier) = self.notifier.take() {
            notifier.join().ok();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let has_ended = self.has_ended();
        if self.session.take().is_none() {
            return;
        }
        if self.owner == MountOwner::ThisProcess && !has_ended {
            // Processes that still use the mount are served until they leave it.
            mount_device::unmount_lazily(&self.path).ok();
        }
        self.view.unwatch(self.id);
        self.messages.send(KernelMessage::End).ok();
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(1);
    config
}

fn send_messages(received: &Receiver<KernelMessage>, kernel: &Notifier) {
    loop {
        match received.recv() {
            Ok(KernelMessage::Invalidate(invalidation)) => invalidate(invalidation, kernel),
            Ok(KernelMessage::Flush(sender)) => drop(sender.send(())),
            Ok(KernelMessage::End) | Err(_) => return,
        }
    }
}

/// Sends an invalidation. An error means that the kernel has dropped the data by itself, or the mount has ended.
fn invalidate(invalidation: Invalidation, kernel: &Notifier) {
    match invalidation {
        Invalidation::Entry { parent, name } => {
            kernel.inval_entry(INodeNo(parent), OsStr::from_bytes(name.as_bytes())).ok();
        }
        Invalidation::Contents(ino) => {
            kernel.inval_inode(INodeNo(ino), 0, 0).ok();
        }
        Invalidation::Attributes(ino) => {
            kernel.inval_inode(INodeNo(ino), ATTRIBUTES_ONLY, 0).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::object::Owner;
    use amalgam_engine::{Store, Time, WorkingTree};
    use amalgam_view::{Caller, ROOT, ViewOptions};
    use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
    use rustix::io::Errno;

    use super::*;

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that cannot be run here says so")]
    fn a_name_that_the_kernel_takes_for_free_is_opened_or_refused() {
        let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        if !rustix::process::geteuid().is_root() || device.is_err() {
            eprintln!("not run: mounting needs root and /dev/fuse here");
            return;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let (journal, at) = (scratch.path().join("journal"), scratch.path().join("mount"));
        std::fs::create_dir(&at).expect("made");
        let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, || Time(1_700_000_000_000_000_000));
        let (view, _) = View::open(WorkingTree::new(&Store::in_memory()), &journal, options).expect("a view");
        let mount = Mount::at(&view, &at, &MountOptions::default()).expect("mounted");
        // As another mount does it, before the kernel gets the invalidation.
        let elsewhere = Caller { origin: Some(mount.id), ..Caller::owner(0, 0) };
        let make = |name: &str| {
            let path = at.join(name);
            assert!(std::fs::metadata(&path).is_err(), "the kernel caches that there is none");
            let ino = view.create(&elsewhere, ROOT, name.as_bytes(), 0o644).expect("made").ino;
            view.write(&elsewhere, ino, 0, name.as_bytes()).expect("written");
            path
        };
        let create = OFlags::CREATE | OFlags::RDWR;
        let mode = Mode::from_raw_mode(0o600);
        let path = make("opened");
        drop(open(&path, create, mode).expect("it is there"));
        assert_eq!(std::fs::read(&path).expect("read"), b"opened");
        let path = make("cut");
        drop(open(&path, create | OFlags::TRUNC, mode).expect("it is there"));
        assert_eq!(std::fs::read(&path).expect("read"), b"");
        let path = make("demanded");
        assert_eq!(open(&path, create | OFlags::EXCL, mode).expect_err("it is there"), Errno::EXIST);
        let path = make("node");
        assert_eq!(mknodat(CWD, &path, FileType::RegularFile, mode, 0), Err(Errno::EXIST));
        assert_eq!(std::fs::create_dir(make("directory")).map_err(|error| error.raw_os_error()), Err(Some(17)));
        drop(open(at.join("new"), create | OFlags::EXCL, mode).expect("it is new"));
        mount.unmount().expect("nobody uses it");
    }
}
