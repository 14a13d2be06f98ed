//! Checks which backends work on this machine, and chooses one. A backend provides the files of a workspace: a mount or a checkout.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cloning::can_clone;
use crate::error::CliError;
use crate::namespace::{FUSE_DEVICE, holds_sys_admin, is_capable};
use crate::output::json as lines;
use crate::session::Session;

/// The way in which files are provided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The better one of those that work on this machine
    #[default]
    Auto,
    /// Mount the files with FUSE: available at once, nothing is copied
    Fuse,
    /// Write the files to the disk
    Checkout,
}

/// The purpose of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// Reads and writes a lot
    Build,
    /// Reads a little
    Browse,
    /// Reads a lot, writes little
    Test,
}

/// The processes that see a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A mount that all processes see.
    Shared,
    /// A mount that one command and its children see.
    Private,
}

/// Options that choose a backend.
#[derive(Clone, Debug, Default, Args)]
pub struct BackendArgs {
    /// How the files are provided: by a mount, or as a copy on the disk
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub backend: Backend,
    /// The task that needs the files: a hint for --backend auto
    #[arg(long = "for", value_name = "TASK")]
    pub task: Option<Task>,
    /// Print which backend was chosen, and why
    #[arg(long)]
    pub explain: bool,
}

/// The backend that was chosen, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// Never `Auto`.
    pub backend: Backend,
    /// The reason, in words.
    pub why: String,
    /// Whether files are written out only because nothing can be mounted.
    pub is_fallback: bool,
}

impl BackendChoice {
    /// Returns the name of the backend as `--backend` takes it: `checkout` or `fuse`.
    pub fn word(&self) -> &'static str {
        if self.backend == Backend::Checkout { "checkout" } else { "fuse" }
    }
}

impl BackendArgs {
    /// Returns the first option that differs from its default, or `None`.
    pub fn given(&self) -> Option<&'static str> {
        let given =
            [(self.backend != Backend::Auto, "--backend"), (self.task.is_some(), "--for"), (self.explain, "--explain")];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }

    /// Chooses a backend. Fails if the user asked for one that does not work here.
    pub fn choose(&self, home: &Path, purpose: Purpose) -> Result<BackendChoice, CliError> {
        let possible = match purpose {
            Purpose::Shared => check_shared_mounts(),
            Purpose::Private => check_private_mounts(),
        };
        if let (Backend::Fuse, Err(why)) = (self.backend, &possible) {
            let message = format!("nothing can be mounted here: {why}");
            return Err(
                CliError::refused(message).hint("`amalgam doctor` says how to enable it; --backend checkout works")
            );
        }
        Ok(decide(self.backend, self.task, possible, || can_clone(home)))
    }

    /// Prints the choice if `--explain` is given.
    pub fn say(&self, session: &mut Session, word: &str, why: &str) -> Result<(), CliError> {
        if !self.explain {
            return Ok(());
        }
        session.output.emit(&lines::line("backend", json!({"backend": word, "why": why})))?;
        session.output.remark(format!("backend {word}: {why}"))
    }
}

fn decide(
    asked: Backend,
    task: Option<Task>,
    possible: Result<(), String>,
    clones: impl FnOnce() -> bool,
) -> BackendChoice {
    let chosen = |backend, why: &str| BackendChoice { backend, why: why.to_owned(), is_fallback: false };
    match (asked, possible, task) {
        (Backend::Fuse, ..) => chosen(Backend::Fuse, "asked for"),
        (Backend::Checkout, ..) => chosen(Backend::Checkout, "asked for"),
        (Backend::Auto, Err(why), _) => {
            let why = format!("nothing can be mounted here: {why}");
            BackendChoice { backend: Backend::Checkout, why, is_fallback: true }
        }
        (Backend::Auto, Ok(()), Some(Task::Build)) if clones() => {
            chosen(Backend::Checkout, "a build writes much, and this disk clones files at no cost")
        }
        (Backend::Auto, Ok(()), Some(Task::Build)) => chosen(
            Backend::Fuse,
            "a build writes much, but writing the files out first would cost a copy of all of them",
        ),
        (Backend::Auto, Ok(()), Some(Task::Browse | Task::Test)) => {
            chosen(Backend::Fuse, "little is written, and only what is read is fetched")
        }
        (Backend::Auto, Ok(()), None) => chosen(Backend::Fuse, "it is there at once, and costs no room"),
    }
}

/// Checks whether a mount for all processes works here. The error says why not.
pub fn check_shared_mounts() -> Result<(), String> {
    check_device()?;
    if rustix::process::geteuid().is_root() {
        return root_mounts();
    }
    find_mount_helper().map(drop)
}

/// Checks whether root may mount here, by mounting a tmpfs in a new mount namespace. In a container root often may not.
fn root_mounts() -> Result<(), String> {
    if !is_capable() {
        return Err("root may not mount here (no CAP_SYS_ADMIN), as in most containers".to_owned());
    }
    let trial = ["--mount", "mount", "-t", "tmpfs", "amalgam", "/"];
    match std::process::Command::new("unshare").args(trial).output() {
        Ok(done) if !done.status.success() => {
            Err(format!("root may not mount here: {}", String::from_utf8_lossy(&done.stderr).trim()))
        }
        // `unshare` is not installed: the capabilities of root decide.
        _ => Ok(()),
    }
}

/// Checks whether a private mount for one command works here. The error says why not.
pub fn check_private_mounts() -> Result<(), String> {
    check_device()?;
    if rustix::process::geteuid().is_root() && is_capable() {
        return root_mounts();
    }
    check_user_namespaces()
}

/// Checks whether the FUSE device can be opened. The error says why not.
pub fn check_device() -> Result<(), String> {
    match File::options().read(true).write(true).open(FUSE_DEVICE) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("there is no {FUSE_DEVICE}")),
        Err(error) => Err(format!("{FUSE_DEVICE} cannot be opened: {error}")),
    }
}

/// Returns the set-user-ID program that mounts for users without privilege.
pub fn find_mount_helper() -> Result<PathBuf, String> {
    const NAME: &str = "fusermount3";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(NAME)).find(|file| file.is_file());
    let file = found.ok_or_else(|| format!("{NAME} is not installed"))?;
    let mode = file.metadata().map(|found| found.permissions().mode()).unwrap_or(0);
    match mode & 0o4000 {
        _ if cannot_gain_privileges() => {
            Err(format!("no program here gains the privilege to mount, so {} can mount nothing", file.display()))
        }
        0 => Err(format!("{} is not set-user-ID root, so it can mount nothing", file.display())),
        _ => Ok(file),
    }
}

/// Returns whether set-user-ID programs cannot gain the privilege to mount, as in many containers and services: `no_new_privs` is
/// set, or `CAP_SYS_ADMIN` is not in the bounding set.
fn cannot_gain_privileges() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let word = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    word("NoNewPrivs:") == Some("1") || word("CapBnd:").is_some_and(|set| !holds_sys_admin(set))
}

/// Checks whether a user namespace can be created, by running `unshare`. The error says why not.
pub fn check_user_namespaces() -> Result<(), String> {
    let tried = std::process::Command::new("unshare").args(["--user", "--mount", "true"]).output();
    match tried {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(format!("user namespaces are forbidden: {}", String::from_utf8_lossy(&done.stderr).trim())),
        // `unshare` is not installed: the limit of the kernel decides.
        Err(_) => match std::fs::read_to_string("/proc/sys/user/max_user_namespaces") {
            Ok(number) if number.trim() != "0" => Ok(()),
            _ => Err("user namespaces are switched off".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_chosen_by_what_is_possible_and_what_it_is_for() {
        let check = |asked, task, possible: bool, clones| {
            let possible = if possible { Ok(()) } else { Err("no device".to_owned()) };
            decide(asked, task, possible, || clones).backend
        };
        assert_eq!(check(Backend::Auto, None, true, true), Backend::Fuse);
        assert_eq!(check(Backend::Auto, None, false, true), Backend::Checkout);
        assert_eq!(check(Backend::Auto, Some(Task::Build), true, true), Backend::Checkout);
        assert_eq!(check(Backend::Auto, Some(Task::Build), true, false), Backend::Fuse);
        assert_eq!(check(Backend::Auto, Some(Task::Browse), true, true), Backend::Fuse);
        assert_eq!(check(Backend::Auto, Some(Task::Test), true, true), Backend::Fuse);
        assert_eq!(check(Backend::Checkout, None, true, false), Backend::Checkout);
    }

    #[test]
    fn what_was_chosen_says_why() {
        let chosen = decide(Backend::Auto, None, Err("there is no device".to_owned()), || false);
        assert!(chosen.is_fallback && chosen.why.contains("there is no device"), "{}", chosen.why);
        assert!(!decide(Backend::Auto, Some(Task::Build), Ok(()), || true).is_fallback, "it is the better one");
    }
}
