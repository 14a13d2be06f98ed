//! Commands in directories that are thrown away: tests that must succeed with the merged files before a target moves, and
//! commands of rules that make a file anew.
//!
//! A test runs as the user whose store this is, and nothing keeps it from doing what that user may: only calls of the same
//! user on the same machine may ask for it. A command of a rule runs in `bwrap`, without a network, and can write to its
//! directory alone.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use amalgam_engine::queue::{QueueEntry, Regenerated, TestVerdict};
use amalgam_engine::{RootId, Store, TreePath};
use amalgam_materializer::{Checkout, HostDir, Index, Progress, Times, checkout};
use rustix::process::{Pid, Signal, kill_process_group};

use amalgam_proto::{Failure, Reason};

use crate::failure::{Result, of_io, of_materializer};
use crate::home::Home;

/// How long a test may take when nobody says.
const SECONDS: u32 = 600;
/// The longest that a test may take: its target takes nothing else meanwhile.
const SECONDS_MAX: u32 = 6 * 3_600;
/// How often it is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How much of its output is kept.
const OUTPUT_BYTES_MAX: usize = 8 << 10;
/// The largest file that a command may make.
const MADE_BYTES_MAX: u64 = 64 << 20;
/// What keeps a command of a rule in its directory.
const BWRAP: &str = "bwrap";
/// What a shell ends with when it found no such command, or may not run it.
const NOT_STARTED: [i32; 2] = [126, 127];

/// The directory of a test, removed when this goes.
pub(super) struct TestPlace {
    path: PathBuf,
}

impl Drop for TestPlace {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
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
        is_over: &dyn Fn() -> bool,
    ) -> Result<TestVerdict> {
        let files = self.path.join("tree");
        // Left by a process that died.
        let _ = fs::remove_dir_all(&self.path);
        fs::create_dir_all(&files).map_err(|source| of_io("make a directory for a test", &source))?;
        self.write(store, tree, &files)?;
        let Some((program, arguments)) = entry.wish.test.split_first() else { return Ok(TestVerdict::Passed) };
        let seconds = if entry.wish.test_seconds == 0 { SECONDS } else { entry.wish.test_seconds.min(SECONDS_MAX) };
        let mut command = Command::new(program);
        command.args(arguments);
        self.finish(command, &files, seconds, "the test", is_over)
    }

    /// Runs commands of rules with a tree, each for its files, and reads what they made; why not, if something is wrong.
    pub(super) fn regenerate(
        &self,
        store: &Store,
        tree: RootId,
        made: &[(String, Vec<TreePath>)],
    ) -> Result<Regenerated> {
        let files = self.path.join("tree");
        let _ = fs::remove_dir_all(&self.path);
        fs::create_dir_all(&files).map_err(|source| of_io("make a directory for a command", &source))?;
        self.write(store, tree, &files)?;
        let mut found = Vec::new();
        for (command, paths) in made {
            for path in paths {
                // What stands there for the conflict would mislead the command.
                let _ = fs::remove_file(host_path(&files, path));
            }
            let mut boxed = Command::new(BWRAP);
            boxed.args([
                "--die-with-parent",
                "--unshare-all",
                "--ro-bind",
                "/",
                "/",
                "--dev",
                "/dev",
                "--proc",
                "/proc",
            ]);
            boxed.args(["--tmpfs", "/tmp", "--bind"]).args([&files, &files]).arg("--chdir").arg(&files);
            boxed.args(["sh", "-c", command]);
            match self.finish(boxed, &files, SECONDS, &format!("the command `{command}` in {BWRAP}"), &|| false)? {
                TestVerdict::Passed => {}
                TestVerdict::Failed(reason) | TestVerdict::NotStarted(reason) => return Ok(Err(reason)),
            }
            for path in paths {
                match read_made(&files, path) {
                    Ok(bytes) => found.push((path.clone(), bytes)),
                    Err(why) => return Ok(Err(format!("the command `{command}` did not make {path}: {why}"))),
                }
            }
        }
        Ok(Ok(found))
    }

    /// Runs a command to its end.
    fn finish(
        &self,
        mut command: Command,
        files: &Path,
        seconds: u32,
        what: &str,
        is_over: &dyn Fn() -> bool,
    ) -> Result<TestVerdict> {
        let hint = match command.get_program() == BWRAP {
            true => "commands of rules run in it only: install bubblewrap",
            false => "is it installed?",
        };
        let output = self.path.join("output");
        let sink = fs::File::create(&output).map_err(|source| of_io("make a file for a command's output", &source))?;
        let other = sink.try_clone().map_err(|source| of_io("make a file for a command's output", &source))?;
        command.current_dir(files).stdin(Stdio::null()).stdout(sink).stderr(other).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return Ok(TestVerdict::NotStarted(format!("{what} could not be started: {error}; {hint}"))),
        };
        let ended = wait(&mut child, Duration::from_secs(u64::from(seconds)), is_over)
            .map_err(|source| of_io("wait for a command", &source))?;
        let said = tail(&output);
        Ok(match ended {
            Some(status) if status.success() => TestVerdict::Passed,
            Some(status) if status.code().is_some_and(|code| NOT_STARTED.contains(&code)) => {
                TestVerdict::NotStarted(format!("{what} could not be started ({status}):\n{said}"))
            }
            Some(status) => TestVerdict::Failed(format!("{what} failed ({status}):\n{said}")),
            None => TestVerdict::Failed(format!("{what} took more than {seconds} s and was ended:\n{said}")),
        })
    }

    fn write(&self, store: &Store, tree: RootId, files: &Path) -> Result<()> {
        let host = HostDir::open(files).map_err(of_materializer)?;
        let progress = Progress::default();
        let job = Checkout {
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
        checkout(store, &host, &Index::new(host.identity()), tree, &job).map(drop).map_err(of_materializer)
    }
}

/// Refuses a test that would keep others waiting for too long.
pub(super) fn refuse_long_test(seconds: u32) -> Result<()> {
    if seconds <= SECONDS_MAX {
        return Ok(());
    }
    let message = format!("a test may take {SECONDS_MAX} seconds (six hours) at most, not {seconds}");
    Err(Failure::new(Reason::Invalid, message))
}

/// Refuses a test that certainly cannot be started: no words, a line that the shell cannot read, or a program that the background process
/// does not find. What lies in the tree is known only when the test runs.
pub(super) fn refuse_unstartable(test: &[String]) -> Result<()> {
    let refused = |why: String| Err(not_started(format!("the test could not be started: {why}")));
    let Some(program) = test.first() else { return Ok(()) };
    let line = match test {
        [shell, option, line] if shell == "sh" && option == "-c" => Some(line.trim()),
        _ => None,
    };
    let word = match line {
        Some("") => return refused("it is empty".to_owned()),
        Some(line) => {
            let (is_read, said) = ask_shell(&["-n", "-c", line])?;
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
    match ask_shell(&["-c", "command -v -- \"$1\"", "sh", word])? {
        (true, _) => Ok(()),
        (false, _) => refused(format!("the background process finds no program `{word}`")),
    }
}

/// The failure of a test that could not be started.
pub(super) fn not_started(message: impl Into<String>) -> Failure {
    Failure::new(Reason::TestNotStarted, message)
}

/// Whether the shell ends well, and what it complains of.
fn ask_shell(words: &[&str]) -> Result<(bool, String)> {
    let mut shell = Command::new("sh");
    shell.args(words).current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
    let done = shell.output().map_err(|source| of_io("start a shell", &source))?;
    Ok((done.status.success(), String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

/// Where a path of a tree lies.
fn host_path(files: &Path, path: &TreePath) -> PathBuf {
    files.join(OsStr::from_bytes(path.as_bytes()))
}

/// A file that a command made, if it is one and lies where it should.
fn read_made(files: &Path, path: &TreePath) -> std::io::Result<Vec<u8>> {
    let (within, made) = (files.canonicalize()?, host_path(files, path));
    let found = made.canonicalize()?;
    let size = fs::symlink_metadata(&made)?.len();
    if !found.starts_with(&within) || !fs::symlink_metadata(&made)?.is_file() || size > MADE_BYTES_MAX {
        return Err(std::io::Error::other("not a regular file, or too large"));
    }
    fs::read(found)
}

/// Waits for a child; nothing when it took too long, or nobody waits for it, and it was ended with all that it started.
fn wait(
    child: &mut Child,
    within: Duration,
    is_over: &dyn Fn() -> bool,
) -> std::io::Result<Option<std::process::ExitStatus>> {
    let until = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until || is_over() {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// The end of what a test said.
fn tail(output: &Path) -> String {
    use std::io::{Seek as _, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(output)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX as u64)))?;
        let mut bytes = Vec::new();
        file.take(OUTPUT_BYTES_MAX as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}
