//! Mounting and unmounting, and the thread that sends notices to the kernel.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use amalgam_view::{Notice, View, WatchId};
use fuser::{BackgroundSession, Config, INodeNo, Notifier, Session, SessionACL};
use tracing::{debug, warn};

use crate::again::Again;
use crate::aside::Aside;
use crate::attention::Attention;
use crate::door::{ATTRIBUTES_ALONE, Door};
use crate::kernel;
use crate::relist::Relist;

/// How a view is to be mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// What `mount` shows as the source.
    pub name: String,
    /// Whether other users may enter; needs root, or `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// How many threads do what may take long, beside the one that answers.
    pub threads: usize,
    /// Whether the kernel may hold writes back. Then what it holds is in no snapshot, and is lost with the kernel.
    pub writeback: bool,
    /// Whether device files are devices and set-user-ID bits count, as on a disk of the machine's own; needs root.
    pub privileged: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self { name: "amalgam".to_owned(), allow_other: false, threads: 2, writeback: false, privileged: false }
    }
}

/// Why a view could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel or `fusermount3` refused.
    #[error("could not mount at {}: {source}", .path.display())]
    Refused {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It could not be taken away.
    #[error("could not unmount {}: {source}", .path.display())]
    Busy {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A mount that could not be taken away. It is as it was, and is given back.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct StillMounted {
    /// What is still there.
    pub mount: Box<Mount>,
    /// Why.
    #[source]
    pub error: MountError,
}

impl std::fmt::Debug for StillMounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StillMounted").field("error", &self.error).finish_non_exhaustive()
    }
}

/// A mounted view. Ends with [`unmount`](Self::unmount), or when somebody else unmounts it; one that is dropped goes as soon as
/// nobody uses it any more.
pub struct Mount {
    path: PathBuf,
    view: View,
    id: WatchId,
    /// Whether it was mounted here, and is to be unmounted here.
    is_ours: bool,
    notices: Sender<Told>,
    /// Nothing once it was unmounted.
    session: Option<BackgroundSession>,
    teller: Option<JoinHandle<()>>,
}

pub(crate) enum Told {
    Notice(Notice),
    /// Somebody wants to know when everything before it was told.
    Ask(Sender<()>),
    End,
}

impl Mount {
    /// Mounts a view at an empty directory, with the kernel's help or `fusermount3`'s.
    pub fn at(view: &View, path: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let refused = |source| MountError::Refused { path: path.to_owned(), source };
        // Not by the library, which unmounts whatever it has mounted once more when it is dropped: what lay below would go with it.
        let device = kernel::mount(path, options, view.is_read_only()).map_err(refused)?;
        Self::begin(view, path, options, true, device).inspect_err(|_| drop(kernel::unmount(path, true)))
    }

    /// Answers on a device that somebody else has mounted: in another namespace, say.
    pub fn on(view: &View, path: &Path, device: OwnedFd, options: &MountOptions) -> Result<Self, MountError> {
        Self::begin(view, path, options, false, device)
    }

    fn begin(
        view: &View,
        path: &Path,
        options: &MountOptions,
        is_ours: bool,
        device: OwnedFd,
    ) -> Result<Self, MountError> {
        let refused = |source| MountError::Refused { path: path.to_owned(), source };
        let (notices, told) = channel();
        let watcher = notices.clone();
        let id = view.watch(Arc::new(move |notice| {
            // Nobody listens any more once the mount has ended.
            watcher.send(Told::Notice(notice)).ok();
        }));
        let at_once = Arc::default();
        let door = Door {
            view: view.clone(),
            id,
            writeback: options.writeback,
            attention: Attention::new(device.try_clone().ok()),
            aside: Aside::new(options.threads),
            again: Again::default(),
            relist: Relist::default(),
            notices: notices.clone(),
            notifier: Arc::clone(&at_once),
        };
        let config = config(options);
        let begun = Session::from_fd(door, device, config.acl, config).and_then(|session| {
            at_once.get_or_init(|| session.notifier());
            session.spawn()
        });
        let session = begun.map_err(refused).inspect_err(|_| view.unwatch(id))?;
        let notifier = session.notifier();
        let (path, view, session) = (path.to_owned(), view.clone(), Some(session));
        let mut mount = Self { path, view, id, is_ours, notices, session, teller: None };
        let teller =
            std::thread::Builder::new().name("amalgam-notices".to_owned()).spawn(move || tell(&told, &notifier));
        mount.teller = Some(teller.map_err(refused)?);
        debug!(path = %mount.path.display(), read_only = mount.view.is_read_only(), "answering FUSE requests");
        Ok(mount)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The view.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether somebody else has unmounted it.
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Gets a message once the kernel was told of everything that has happened until now: then whoever looks sees it. Nobody who waits
    /// for it may hold what an answer to the kernel needs.
    pub fn told(&self) -> Receiver<()> {
        let (asks, answer) = channel();
        // After the end there is nobody to tell, and whoever waits gets an error at once.
        self.notices.send(Told::Ask(asks)).ok();
        answer
    }

    /// Unmounts it and waits until the last request is answered. One that is in use stays, and is given back.
    pub fn unmount(mut self) -> Result<(), StillMounted> {
        if self.is_ours
            && !self.has_ended()
            && let Err(source) = kernel::unmount(&self.path, false)
            && !kernel::was_gone(&source)
        {
            let error = MountError::Busy { path: self.path.clone(), source };
            return Err(StillMounted { mount: Box::new(self), error });
        }
        let ended = self.session.take().map_or(Ok(()), BackgroundSession::join);
        match &ended {
            Ok(()) => debug!(path = %self.path.display(), "FUSE session ended"),
            Err(error) => warn!(%error, "FUSE session ended with an error"),
        }
        self.tell_no_more();
        ended.map_err(|source| {
            let error = MountError::Busy { path: self.path.clone(), source };
            StillMounted { mount: Box::new(self), error }
        })
    }

    fn tell_no_more(&mut self) {
        self.view.unwatch(self.id);
        self.notices.send(Told::End).ok();
        if let Some(teller) = self.teller.take() {
            teller.join().ok();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let has_ended = self.has_ended();
        if self.session.take().is_none() {
            return;
        }
        if self.is_ours && !has_ended {
            // Somebody may be in there: it is answered until they leave.
            kernel::unmount(&self.path, true).ok();
        }
        self.view.unwatch(self.id);
        self.notices.send(Told::End).ok();
    }
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(1);
    config
}

fn tell(told: &Receiver<Told>, notifier: &Notifier) {
    loop {
        // The kernel may have forgotten it by itself, and after the end it knows nothing at all.
        match told.recv() {
            Ok(Told::Notice(notice)) => tell_one(notice, notifier),
            Ok(Told::Ask(asks)) => drop(asks.send(())),
            Ok(Told::End) | Err(_) => return,
        }
    }
}

fn tell_one(notice: Notice, notifier: &Notifier) {
    match notice {
        Notice::Entry { parent, name } => {
            notifier.inval_entry(INodeNo(parent), OsStr::from_bytes(name.as_bytes())).ok();
        }
        Notice::Contents(ino) => {
            notifier.inval_inode(INodeNo(ino), 0, 0).ok();
        }
        Notice::Attributes(ino) => {
            notifier.inval_inode(INodeNo(ino), ATTRIBUTES_ALONE, 0).ok();
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
        // As another mount does it, before the kernel is told.
        let elsewhere = Caller { door: Some(mount.id), ..Caller::owner(0, 0) };
        let make = |name: &str| {
            let path = at.join(name);
            assert!(std::fs::metadata(&path).is_err(), "the kernel knows that there is none");
            let ino = view.create(&elsewhere, ROOT, name.as_bytes(), 0o644).expect("made").ino;
            view.write(&elsewhere, ino, 0, name.as_bytes(), false).expect("written");
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
