//! Directories that are thrown away, for commands: tests that must succeed with the merged files before a target moves, and
//! commands of rules that make a file anew.
//!
//! A test runs as the user whose store this is, and nothing keeps it from doing what that user may: only calls of the same
//! user on the same machine may ask for it. A command of a rule runs in a [`sandbox`](super::sandbox), each in a directory of its
//! own that no other command has written to.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _};
use std::path::PathBuf;
use std::process::Stdio;

use amalgam_engine::queue::{QueueEntry, Regenerated, TestVerdict};
use amalgam_engine::{RootId, Store, TreePath};
use amalgam_materializer::{CheckoutOptions, HostDir, Index, Notice, Progress, Times, Why, checkout, remove_tree};

use amalgam_proto::Reason;

use super::command::{self, Job};
use super::sandbox;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::home::Home;
use crate::settings::CommandSettings;

/// The time that a test may take unless its submitter says otherwise.
const SECONDS: u32 = 600;
/// The longest that a test may take: its target takes nothing else meanwhile.
const SECONDS_MAX: u32 = 6 * 3_600;
/// The largest file that a command may make.
const MADE_BYTES_MAX: u64 = 64 << 20;

/// The directory of a test, removed on drop.
pub(super) struct TestPlace {
    path: PathBuf,
}

impl Drop for TestPlace {
    fn drop(&mut self) {
        // Leftovers are removed before the next use of this name, or that use is refused.
        let _ = remove_tree(&self.path);
    }
}

impl TestPlace {
    pub(super) fn new(home: &Home, id: &str) -> Self {
        Self { path: home.path().join("tests").join(id) }
    }

    /// Runs an entry's test with a tree.
    pub(super) fn run(
        &self,
        store: &Store,
        tree: RootId,
        entry: &QueueEntry,
        settings: &CommandSettings,
        is_over: &dyn Fn() -> bool,
    ) -> Result<TestVerdict> {
        let (files, _) = self.write_fresh(store, tree)?;
        if entry.options.test.is_empty() {
            return Ok(TestVerdict::Passed);
        }
        let seconds =
            if entry.options.test_seconds == 0 { SECONDS } else { entry.options.test_seconds.min(SECONDS_MAX) };
        let job = Job {
            what: "the test",
            words: entry.options.test.iter().map(OsStr::new).collect(),
            directory: &files,
            output: &self.path.join("output"),
            seconds,
            hint: "is it installed?",
        };
        command::run(&job, settings, is_over)
    }

    /// Runs commands of rules with a tree, each for its files, and reads the files that they made; returns the reason if one fails.
    pub(super) fn regenerate(
        &self,
        store: &Store,
        tree: RootId,
        made: &[(String, Vec<TreePath>)],
        settings: &CommandSettings,
    ) -> Result<Regenerated> {
        let mut found = Vec::new();
        for (line, paths) in made {
            let (files, host) = self.write_fresh(store, tree)?;
            for path in paths {
                // The file that shows the conflict would mislead the command.
                remove_beneath(&host, path).map_err(Error::io(format!("remove {path}")))?;
            }
            let words: Vec<OsString> = sandbox::words(&files, line, &settings.toolchain);
            let job = Job {
                what: &format!("the command `{line}` in {}", sandbox::BWRAP),
                words: words.iter().map(OsString::as_os_str).collect(),
                directory: &files,
                output: &self.path.join("output"),
                seconds: SECONDS,
                hint: sandbox::BWRAP_HINT,
            };
            match command::run(&job, settings, &|| false)? {
                TestVerdict::Passed => {}
                TestVerdict::Failed(reason) | TestVerdict::NotStarted(reason) => return Ok(Err(reason)),
            }
            for path in paths {
                match read_made(&host, path) {
                    Ok(bytes) => found.push((path.clone(), bytes)),
                    Err(why) => return Ok(Err(format!("the command `{line}` did not make {path}: {why}"))),
                }
            }
        }
        Ok(Ok(found))
    }

    /// Writes a tree into a new directory. Removes the files of the command before it.
    fn write_fresh(&self, store: &Store, tree: RootId) -> Result<(PathBuf, HostDir)> {
        use std::os::unix::fs::DirBuilderExt as _;
        remove_tree(&self.path).map_err(Error::io("remove what a command before it left"))?;
        let files = self.path.join("tree");
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&files);
        made.map_err(Error::io("make a directory for a command"))?;
        let host = HostDir::open(&files)?;
        let progress = Progress::default();
        let job = CheckoutOptions {
            keep_git: false,
            rules: None,
            leave_git_file: true,
            // Nothing that is to be tested needs the rights of others.
            withholds: true,
            paths: None,
            times: Times::Exact,
            source: None,
            pool: None,
            progress: &progress,
        };
        let done = checkout(store, &host, &Index::new(host.identity()), tree, &job)?;
        match done.notices.iter().find(|notice| matches!(notice.why, Why::Damaged(_))) {
            Some(Notice { path, why }) => Err(Error::new(Reason::Corrupt, format!("{path}: {why}"))),
            None => Ok((files, host)),
        }
    }
}

/// Refuses a test that would keep others waiting for too long.
pub(super) fn refuse_long_test(seconds: u32) -> Result<()> {
    if seconds <= SECONDS_MAX {
        return Ok(());
    }
    let message = format!("a test may take {SECONDS_MAX} seconds (six hours) at most, not {seconds}");
    Err(Error::new(Reason::Invalid, message))
}

/// Refuses a test that certainly cannot be started: no words, a line that the shell cannot read, or a program that the background process
/// does not find. What lies in the tree is known only when the test runs.
pub(super) fn refuse_unstartable(test: &[String], context: &Context) -> Result<()> {
    let refused = |why: String| Err(not_started(format!("the test could not be started: {why}")));
    let Some(program) = test.first() else { return Ok(()) };
    let settings = &context.command_settings()?;
    let line = match test {
        [shell, option, line] if shell == "sh" && option == "-c" => Some(line.trim()),
        _ => None,
    };
    let word = match line {
        Some("") => return refused("it is empty".to_owned()),
        Some(line) => {
            let (is_read, said) = ask_shell(&["-n", "-c", line], settings)?;
            if !is_read {
                return refused(said);
            }
            line.split_ascii_whitespace().next().unwrap_or_default()
        }
        None if program.is_empty() => return refused("its first word is empty".to_owned()),
        None => program,
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._+/-".contains(c);
    let is_in_tree = word.contains('/') && !word.starts_with('/');
    if (line.is_some() && !word.chars().all(is_plain)) || is_in_tree {
        return Ok(());
    }
    match ask_shell(&["-c", "command -v -- \"$1\"", "sh", word], settings)? {
        (true, _) => Ok(()),
        (false, _) => refused(format!("the background process finds no program `{word}`")),
    }
}

/// Returns the error for a test that could not be started.
pub(super) fn not_started(message: impl Into<String>) -> Error {
    Error::new(Reason::TestNotStarted, message)
}

/// Runs a shell. Returns whether it succeeded, and its error output.
fn ask_shell(words: &[&str], settings: &CommandSettings) -> Result<(bool, String)> {
    let words: Vec<_> = std::iter::once("sh").chain(words.iter().copied()).map(OsStr::new).collect();
    let mut shell = CommandSettings { supervisor: Vec::new(), ..settings.clone() }.command(&words);
    shell.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    let done = shell.output().map_err(Error::io("start a shell"))?;
    Ok((done.status.success(), String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

/// Removes a file of a directory; one that is not there is no error.
fn remove_beneath(host: &HostDir, path: &TreePath) -> io::Result<()> {
    match host.remove_file(path) {
        Err(error) if amalgam_materializer::is_absent(&error) => Ok(()),
        done => done,
    }
}

/// Reads a file that a command made. Opens it beneath the directory, so that no symlink leads out of it.
fn read_made(host: &HostDir, path: &TreePath) -> io::Result<Vec<u8>> {
    let file = host.open_file(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > MADE_BYTES_MAX {
        return Err(io::Error::other("not a regular file, or too large"));
    }
    let mut bytes = Vec::new();
    file.take(MADE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
