//! Landlock: a second wall behind the mounts of a sandbox. The kernel refuses writes outside of named directories, also where a mount
//! is writable by mistake.
//!
//! The rules are those of a thread and of all processes that it starts. They name directories by inode, so a workspace that is mounted
//! again needs a thread with new rules. Reading is not restricted: what a sandbox may read is what its mounts show.

use std::io;
use std::path::Path;

use landlock::{
    ABI, AccessFs, CompatLevel, Compatible as _, LandlockStatus, PathBeneath, PathFd, RestrictionStatus, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};

/// The newest version of the interface whose rights are handled. Later ones add rights that programs in sandboxes need, for example
/// that to connect to sockets.
const ABI_USED: ABI = ABI::V6;
/// The oldest version that is used. The one before refuses to move files between directories.
const ABI_MIN: ABI = ABI::V2;

/// Returns the version of Landlock that this machine has. It restricts a short-lived thread as a trial.
///
/// # Errors
/// The reason why Landlock is not used here.
pub fn landlock_version() -> Result<i32, String> {
    let tried = std::thread::Builder::new().spawn(|| restrict_writes(&[]));
    let failed = |why: &str| format!("Landlock failed in a try: {why}");
    let status = match tried.map(std::thread::JoinHandle::join) {
        Ok(Ok(Ok(status))) => status,
        Ok(Ok(Err(error))) => return Err(failed(&error.to_string())),
        Ok(Err(_)) => return Err(failed("the thread panicked")),
        Err(error) => return Err(failed(&error.to_string())),
    };
    match status.landlock {
        LandlockStatus::NotImplemented => Err("the kernel has no Landlock".to_owned()),
        LandlockStatus::NotEnabled => Err("Landlock is not among the kernel's `lsm=`".to_owned()),
        LandlockStatus::Available { effective_abi, .. } if effective_abi < ABI_MIN => {
            Err("the kernel's Landlock refuses to move files between directories; Linux 5.19 does not".to_owned())
        }
        LandlockStatus::Available { effective_abi, kernel_abi } => Ok(kernel_abi.unwrap_or(effective_abi as i32)),
    }
}

/// Restricts this thread, and all that it starts, to abstract sockets and signals of processes that have the same restriction. A
/// kernel that cannot do so (before Linux 6.12) leaves it out.
///
/// # Errors
/// The kernel refused.
pub fn restrict_scope() -> io::Result<()> {
    let root = PathFd::new("/").map_err(io::Error::other)?;
    let restricted = || -> Result<RestrictionStatus, RulesetError> {
        let scope = Scope::AbstractUnixSocket | Scope::Signal;
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(scope)?;
        // A set of rules that does not name the right to move files between directories refuses it.
        let ruleset = ruleset.handle_access(AccessFs::Refer)?.create()?;
        ruleset.add_rule(PathBeneath::new(root, AccessFs::Refer))?.restrict_self()
    };
    restricted().map(drop).map_err(io::Error::other)
}

/// Restricts this thread, and all that it starts, to write below these directories only. One that cannot be opened cannot be written.
///
/// # Errors
/// The kernel refused, or has no Landlock.
pub fn restrict_writes_to(directories: &[impl AsRef<Path>]) -> io::Result<()> {
    let opened: Vec<_> = directories.iter().filter_map(|directory| PathFd::new(directory.as_ref()).ok()).collect();
    let status = restrict_writes(&opened).map_err(io::Error::other)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(io::Error::other("the kernel does not enforce Landlock")),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

fn restrict_writes(directories: &[PathFd]) -> Result<RestrictionStatus, RulesetError> {
    let writes = AccessFs::from_write(ABI_USED);
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(writes)?.create()?;
    for directory in directories {
        ruleset = ruleset.add_rule(PathBeneath::new(directory, writes))?;
    }
    ruleset.restrict_self()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Runs a shell script in a thread with restrictions. Returns its exit code.
    fn run(script: &str, writable: &Path) -> Option<i32> {
        let (script, writable) = (script.to_owned(), writable.to_owned());
        let restricted = std::thread::spawn(move || {
            restrict_scope().expect("restricted");
            restrict_writes_to(&[writable.as_path(), Path::new("/dev"), Path::new("/no/such/directory")])
                .expect("restricted");
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::null()).status().expect("run").code()
        });
        restricted.join().expect("ended")
    }

    #[test]
    fn writes_outside_of_the_named_directories_are_refused_and_reading_is_not() {
        let has_landlock = landlock_version().is_ok();
        if !amalgam_test_support::has_or_skip("landlock", has_landlock, "the kernel has no Landlock") {
            return;
        }
        let scratch = tempfile::tempdir().expect("a directory");
        let [inside, outside] = ["inside", "outside"].map(|name| scratch.path().join(name));
        for directory in [&inside, &outside] {
            std::fs::create_dir_all(directory.join("sub")).expect("made");
            std::fs::write(directory.join("file"), "kept").expect("written");
        }
        let at = |directory: &Path, script: &str| script.replace('@', &directory.display().to_string());
        let writes = [
            "echo x > @/file",
            "echo x >> @/file",
            "echo x > @/new",
            "mkdir @/directory",
            "rmdir @/sub",
            "ln -s file @/link",
            "ln @/file @/sub/hard",
            "mkfifo @/fifo",
            "mv @/file @/other",
            "mv @/file @/sub/moved",
            "rm @/file",
        ];
        for script in writes {
            assert_ne!(run(&at(&outside, script), &inside), Some(0), "{script}");
            assert_eq!(std::fs::read(outside.join("file")).expect("still there"), b"kept", "{script}");
            assert_eq!(std::fs::read_dir(&outside).expect("read").count(), 2, "{script}");
        }
        // A descriptor of a file outside is no way to open it for writing.
        assert_ne!(run(&at(&outside, "exec 3< @/file; echo x > /proc/self/fd/3"), &inside), Some(0));
        for script in writes {
            std::fs::create_dir_all(inside.join("sub")).expect("made");
            let _ = std::fs::remove_file(inside.join("sub/hard"));
            std::fs::write(inside.join("file"), "kept").expect("written");
            assert_eq!(run(&at(&inside, script), &inside), Some(0), "{script}");
        }
        let reads = at(&outside, "cat @/file && ls @ && cd @ && exec 3< @/file && test -w @/file && echo x | cat");
        assert_eq!(run(&reads, &inside), Some(0));
    }

    #[test]
    fn processes_of_two_threads_with_one_scope_signal_each_other_and_nobody_else() {
        let has_scopes = landlock_version().is_ok_and(|version| version >= 6);
        if !amalgam_test_support::has_or_skip("landlock", has_scopes, "Landlock does not scope signals here") {
            return;
        }
        let mut outside = Command::new("sleep").arg("900").spawn().expect("started");
        let outsider = outside.id();
        let (first, second) = std::thread::spawn(move || {
            restrict_scope().expect("restricted");
            let kill = |pid: u32| Command::new("kill").arg(pid.to_string()).status().expect("run").success();
            let mut inside = Command::new("sleep").arg("901").spawn().expect("started");
            let id = inside.id();
            // The other thread has rules of its own on top.
            let killed = std::thread::spawn(move || {
                restrict_writes_to(&[Path::new("/tmp")]).expect("restricted");
                (kill(id), kill(outsider))
            });
            let killed = killed.join().expect("ended");
            inside.kill().expect("a child");
            inside.wait().expect("ended");
            killed
        })
        .join()
        .expect("ended");
        outside.kill().expect("a child");
        outside.wait().expect("ended");
        assert!(first && !second);
    }
}
