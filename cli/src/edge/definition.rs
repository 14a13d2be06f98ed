//! The remotes of a store: one file for each in `remotes/` beside the store, and the locks that serialise syncs.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::contexts::Contexts;
use crate::error::CliError;
use crate::exit::Exit;
use crate::remote::Server;

/// The directory of remotes in the home of a store.
const DIRECTORY: &str = "remotes";
/// Suffix of the names of definition files.
const DEFINITION_END: &str = ".remote.json";
/// Most time that a command waits for the sync of another process.
pub const COMMAND_LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay between two attempts to get a lock.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The longest name of a remote.
const NAME_BYTES_MAX: usize = 64;
/// The longest interval: a year.
const INTERVAL_SECONDS_MAX: u32 = 366 * 24 * 60 * 60;
/// The prefixes of workspaces and labels that track others: of remotes, and of sources outside of the store.
const TRACKING_PREFIXES: [&str; 2] = ["remote/", "following/"];

/// When the background process syncs with a remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncMode {
    /// When either side changes.
    Auto,
    /// At this interval, in seconds.
    Every(u32),
    /// Never: only `amalgam remote sync` does.
    Manual,
}

impl SyncMode {
    /// Reads `auto`, `manual` or a number of seconds.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "manual" => Ok(Self::Manual),
            _ => match text.parse() {
                Ok(seconds) if (1..=INTERVAL_SECONDS_MAX).contains(&seconds) => Ok(Self::Every(seconds)),
                _ => Err("write auto, manual, or a number of seconds from 1 on".to_owned()),
            },
        }
    }

    /// Describes the mode for people.
    pub fn words(self) -> String {
        match self {
            Self::Auto => "when either side changes".to_owned(),
            Self::Every(1) => "every second".to_owned(),
            Self::Every(seconds) => format!("every {seconds} seconds"),
            Self::Manual => "by hand".to_owned(),
        }
    }

    /// Returns the mode as `--sync` takes it.
    pub fn word(self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Every(seconds) => seconds.to_string(),
            Self::Manual => "manual".to_owned(),
        }
    }
}

/// A project of a server that workspaces are synced with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Its name here.
    #[serde(skip)]
    pub name: String,
    /// The URL of the server with the project.
    pub url: String,
    /// The context that holds the key.
    pub context: String,
    /// When it is synced with.
    pub sync: SyncMode,
    /// The names of the workspaces, with `*` for any characters; `!` before one leaves workspaces out. Empty for all.
    #[serde(default)]
    pub workspaces: Vec<String>,
    /// Whether contents that look like keys or passwords are sent, too.
    #[serde(default)]
    pub allow_secrets: bool,
}

/// Returns whether a workspace or a label is a copy of one of another store: its name has a tracking prefix.
pub fn is_tracking(name: &str) -> bool {
    TRACKING_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

impl Remote {
    /// Returns whether a workspace is synced with this remote.
    pub fn selects(&self, workspace: &str) -> bool {
        if is_tracking(workspace) {
            return false;
        }
        let (left_out, taken): (Vec<_>, Vec<_>) = self.workspaces.iter().partition(|pattern| pattern.starts_with('!'));
        let is_taken = taken.is_empty() || taken.iter().any(|pattern| matches(pattern, workspace));
        is_taken && !left_out.iter().any(|pattern| matches(&pattern[1..], workspace))
    }

    /// Returns the server of the remote, with the key of its context.
    pub fn server(&self) -> Result<Server, CliError> {
        let found = Contexts::load()?.resolve(&self.context);
        let mut server = found.ok().flatten().ok_or_else(|| {
            let message = format!("the context {} of remote {} does not exist any more", self.context, self.name);
            CliError::refused(message).hint(format!("`amalgam login {} --name {}`", self.url, self.context))
        })?;
        server.url = crate::remote::ServerUrl::parse(&self.url)?;
        Ok(server)
    }
}

/// Returns whether a name matches a pattern in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// The remotes of a store.
#[derive(Clone, Debug)]
pub struct Remotes {
    directory: PathBuf,
}

impl Remotes {
    /// Returns the remotes of the store in a home directory.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// Returns the modification time of the directory, which changes when a remote is added, changed or removed.
    pub fn stamp(&self) -> Option<SystemTime> {
        fs::metadata(&self.directory).and_then(|found| found.modified()).ok()
    }

    /// Reads all remotes, sorted by name.
    pub fn list(&self) -> Result<Vec<Remote>, CliError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(CliError::machine(self.directory.display(), &error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| CliError::machine(self.directory.display(), &error))?;
            let file_name = entry.file_name();
            if let Some(name) = file_name.to_str().and_then(|name| name.strip_suffix(DEFINITION_END)) {
                found.extend(self.find(name)?);
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// Reads a remote, or returns `None` if there is no remote of this name.
    pub fn find(&self, name: &str) -> Result<Option<Remote>, CliError> {
        let path = self.definition_path(name);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CliError::machine(path.display(), &error)),
        };
        let remote: Remote = serde_json::from_slice(&bytes).map_err(|error| {
            CliError::refused(format!("{}: {error}", path.display())).hint("correct the file, or remove it")
        })?;
        Ok(Some(Remote { name: name.to_owned(), ..remote }))
    }

    /// Reads a remote, or returns an error that lists all remotes if there is no remote of this name.
    pub fn get(&self, name: &str) -> Result<Remote, CliError> {
        if let Some(found) = self.find(name)? {
            return Ok(found);
        }
        let names: Vec<_> = self.list()?.into_iter().map(|remote| remote.name).collect();
        let error = CliError::usage(format!("there is no remote `{name}`"));
        Err(match names.is_empty() {
            true => error.hint("`amalgam remote add URL` adds one"),
            false => error.hint(format!("there are: {}", names.join(", "))),
        })
    }

    /// Stores a remote, and replaces one of the same name.
    pub fn put(&self, remote: &Remote) -> Result<(), CliError> {
        let text = serde_json::to_vec_pretty(remote).expect("a definition is plain values");
        self.write(&self.definition_path(&remote.name), &text)
    }

    /// Removes a remote and its state. The caller holds its lock, whose file stays.
    pub fn remove(&self, name: &str) -> Result<(), CliError> {
        for path in [self.definition_path(name), self.state_path(name)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(CliError::machine(path.display(), &error));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Locks a remote, and waits while another process syncs with it. Fails after `timeout`.
    pub async fn lock(&self, name: &str, timeout: Duration) -> Result<SyncLock, CliError> {
        let path = self.lock_path(name);
        let failed = |error: io::Error| CliError::machine(path.display(), &error);
        self.make_directory()?;
        let file = File::options().create(true).write(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        let began = tokio::time::Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(SyncLock { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < timeout => {
                    tokio::time::sleep(LOCK_POLL_INTERVAL).await;
                }
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let message = format!("another process syncs with remote {name}");
                    let error = CliError::new(Exit::BUSY, amalgam_proto::Reason::Busy.word(), message);
                    return Err(error.hint("`amalgam remote status` shows how far it is"));
                }
                Err(error) => return Err(failed(error.into())),
            }
        }
    }

    /// Returns the path of the file with the state of a remote.
    pub fn state_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.state.json"))
    }

    fn definition_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{DEFINITION_END}"))
    }

    fn lock_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.lock"))
    }

    fn make_directory(&self) -> Result<(), CliError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory);
        made.map_err(|error| CliError::machine(self.directory.display(), &error))
    }

    /// Replaces a file atomically, so that a crash leaves the old one or the new one.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), CliError> {
        self.make_directory()?;
        let replace = || {
            let mut file = tempfile::NamedTempFile::new_in(&self.directory)?;
            file.write_all(bytes)?;
            file.as_file().sync_data()?;
            file.persist(path).map_err(|error| error.error)
        };
        replace().map(drop).map_err(|error| CliError::machine(path.display(), &error))
    }
}

/// The lock of a remote: no other process syncs with it until this is dropped.
#[derive(Debug)]
pub struct SyncLock {
    _file: File,
}

/// Checks the name of a remote, which becomes part of workspace names and file names.
pub fn check_name(name: &str) -> Result<(), CliError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_name = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match is_name {
        true => Ok(()),
        false => Err(CliError::usage(format!(
            "--name: letters, digits, `-`, `_` and `.`, at most {NAME_BYTES_MAX}, a letter or digit first"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(workspaces: &[&str]) -> Remote {
        Remote {
            name: "origin".to_owned(),
            url: "https://state.example.com/demo".to_owned(),
            context: "prod".to_owned(),
            sync: SyncMode::Every(30),
            workspaces: workspaces.iter().map(ToString::to_string).collect(),
            allow_secrets: false,
        }
    }

    #[test]
    fn patterns_choose_workspaces_and_tracking_ones_are_never_chosen() {
        let all = remote(&[]);
        assert!(all.selects("main") && all.selects("agent/7"));
        assert!(!all.selects("remote/origin/main") && !all.selects("following/main/git"));
        let some = remote(&["main", "agent/*-done", "!agent/7*"]);
        assert!(some.selects("main") && some.selects("agent/1-done") && some.selects("agent/-done"));
        assert!(!some.selects("mainly") && !some.selects("agent/1") && !some.selects("agent/7-done"));
        assert!(remote(&["a*b*c"]).selects("a-b-b-c") && !remote(&["a*b*c"]).selects("a-c-b"));
        assert!(!remote(&["!x"]).selects("x") && remote(&["!x"]).selects("y"));
    }

    #[test]
    fn a_mode_is_a_word_or_seconds() {
        assert_eq!(SyncMode::parse("auto"), Ok(SyncMode::Auto));
        assert_eq!(SyncMode::parse("30"), Ok(SyncMode::Every(30)));
        for text in ["", "0", "-1", "1.5", "often", "99999999999"] {
            assert!(SyncMode::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_remote_is_stored_found_and_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let remotes = Remotes::of_home(home.path());
        assert_eq!(remotes.list().expect("none yet"), []);
        remotes.put(&remote(&["main"])).expect("stored");
        assert_eq!(remotes.list().expect("read"), [remote(&["main"])]);
        assert!(remotes.get("other").expect_err("unknown").to_string().contains("origin"));
        remotes.remove("origin").expect("removed");
        assert_eq!(remotes.find("origin").expect("read"), None);
    }

    #[test]
    fn names_of_remotes_are_no_paths() {
        assert!(check_name("origin").is_ok() && check_name("a.b-c_1").is_ok());
        for name in ["", ".", "..", "a/b", "-a", ".a", "a b", "ä"] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
