//! Starts processes with the restrictions of Landlock, which belong to a thread and to the processes that it starts.
//!
//! One thread has the scope of signals and abstract sockets, which all commands share. Below it a second one has the rules for writing,
//! and starts the processes: so commands may also look at each other in `/proc`. When the server has mounted the workspace or the home
//! again, another thread takes its place, because rules name directories by inode. Processes that ran before can then read the new mount,
//! and not write it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::mpsc;

use amalgam_sandbox::{restrict_scope, restrict_writes_to};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Environment variable with the directories that commands may write, with colons in between. Without it there are no restrictions.
pub(crate) const WRITABLE_VARIABLE: &str = "AMALGAM_WRITABLE";
/// Asks for the id of a mount that is never used again (Linux 6.8). Older kernels answer with one that is.
const MOUNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

type Job = Box<dyn FnOnce() + Send>;

/// Starts processes.
pub(crate) struct Spawner {
    writable: Vec<PathBuf>,
    threads: Mutex<Threads>,
}

#[derive(Default)]
struct Threads {
    /// Thread with the scope only.
    scoped: Option<mpsc::Sender<Job>>,
    /// Thread with the scope and the rules for writing, and the mounts that the rules were made for.
    confined: Option<(Vec<Option<MountRoot>>, mpsc::Sender<Job>)>,
}

/// Identity of a directory, which shows when another mount has taken its place.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MountRoot {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl Spawner {
    /// Creates a spawner with the restrictions that the environment of this process names.
    pub(crate) fn from_environment() -> Self {
        let writable = std::env::var_os(WRITABLE_VARIABLE);
        Self::new(writable.map(|paths| std::env::split_paths(&paths).collect()).unwrap_or_default())
    }

    fn new(writable: Vec<PathBuf>) -> Self {
        Self { writable, threads: Mutex::default() }
    }

    /// Starts a process. It is not started without the restrictions.
    pub(crate) fn spawn(&self, start: impl FnOnce() -> io::Result<Child> + Send + 'static) -> io::Result<Child> {
        if self.writable.is_empty() {
            return start();
        }
        let (send, receive) = mpsc::sync_channel(1);
        let job: Job = Box::new(move || drop(send.send(start())));
        self.confined()?.send(job).map_err(|_| gone())?;
        receive.recv().map_err(|_| gone())?
    }

    /// Returns the queue of the thread that starts processes. Starts a new thread if the mounts have changed since the last one was
    /// made.
    fn confined(&self) -> io::Result<mpsc::Sender<Job>> {
        let mut threads = self.threads.lock();
        let roots: Vec<_> = self.writable.iter().map(|path| mount_root(path)).collect();
        if let Some((present, jobs)) = &threads.confined
            && *present == roots
        {
            return Ok(jobs.clone());
        }
        let scoped = match &threads.scoped {
            Some(jobs) => jobs.clone(),
            None => threads.scoped.insert(thread("scope", restrict_scope)?).clone(),
        };
        let (send, receive) = mpsc::sync_channel(1);
        let writable = self.writable.clone();
        // A thread has the restrictions of the one that it is started by.
        let start = move || drop(send.send(thread("spawner", move || restrict_writes_to(&writable))));
        scoped.send(Box::new(start)).map_err(|_| gone())?;
        let jobs = receive.recv().map_err(|_| gone())??;
        threads.confined = Some((roots, jobs.clone()));
        Ok(jobs)
    }
}

/// Starts a thread that restricts itself and runs jobs until the last sender of its queue is dropped. Returns once the thread is
/// restricted.
fn thread(name: &str, restrict: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<mpsc::Sender<Job>> {
    let (jobs, receive) = mpsc::channel::<Job>();
    let (send, restricted) = mpsc::sync_channel(1);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = restrict();
        let is_restricted = result.is_ok();
        if send.send(result).is_ok() && is_restricted {
            receive.iter().for_each(|job| job());
        }
    })?;
    let result = restricted.recv().map_err(|_| gone())?;
    result.map_err(|error| io::Error::other(format!("Landlock: {error}")))?;
    Ok(jobs)
}

fn gone() -> io::Error {
    io::Error::other("the thread that starts processes has ended")
}

fn mount_root(path: &Path) -> Option<MountRoot> {
    let mask = StatxFlags::INO | StatxFlags::MNT_ID | MOUNT_ID_UNIQUE;
    let found = statx(CWD, path, AtFlags::NO_AUTOMOUNT, mask).ok()?;
    Some(MountRoot {
        mount: found.stx_mnt_id,
        device: (found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn succeeds(spawner: &Spawner, script: String) -> bool {
        let start = move || Command::new("/bin/sh").args(["-c", &script]).stderr(Stdio::null()).spawn();
        spawner.spawn(start).expect("started").wait().expect("ended").success()
    }

    #[test]
    fn processes_write_only_named_directories_also_when_one_was_replaced() {
        let has_landlock = amalgam_sandbox::landlock_version().is_ok();
        if !amalgam_test_support::has_or_skip("landlock", has_landlock, "the kernel has no Landlock") {
            return;
        }
        let scratch = std::env::temp_dir().join(format!("amalgam-spawner-{}", std::process::id()));
        let [inside, outside] = ["inside", "outside"].map(|name| scratch.join(name));
        for directory in [&inside, &outside] {
            std::fs::create_dir_all(directory).expect("made");
        }
        let spawner = Spawner::new(vec![inside.clone(), "/dev".into()]);
        let write = |directory: &Path| format!("echo x > {}/file", directory.display());
        assert!(succeeds(&spawner, write(&inside)));
        assert!(!succeeds(&spawner, write(&outside)));
        // A process looks at one that another command started, and ends it.
        let mut other = spawner.spawn(|| Command::new("sleep").arg("900").spawn()).expect("started");
        let id = other.id();
        assert!(succeeds(&spawner, format!("test -n \"$(readlink /proc/{id}/exe)\"")));
        // As a workspace that is mounted again: another directory at the same path.
        std::fs::rename(&inside, scratch.join("old")).expect("renamed");
        std::fs::create_dir(&inside).expect("made");
        assert!(succeeds(&spawner, write(&inside)));
        assert!(!succeeds(&spawner, write(&scratch.join("old"))));
        assert!(succeeds(&spawner, format!("kill {id}")), "signals reach commands that ran before");
        other.wait().expect("ended");
        assert!(succeeds(&Spawner::new(Vec::new()), write(&outside)), "no restrictions were asked for");
        std::fs::remove_dir_all(&scratch).expect("removed");
    }
}
