//! Starting commands and ending them: tests of entries, and commands of rules.
//!
//! A command gets the environment that the settings name, and nothing of this process. It runs below a supervisor, a program of the
//! settings that ends everything that the command started once the command has ended, took too long, or this process is gone.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use amalgam_engine::queue::TestVerdict;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::error::{Error, Result};
use crate::settings::CommandSettings;

/// The interval at which the process checks whether a command has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// How long a supervisor may take to end the processes that a command started.
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// The number of bytes of a command's output that are kept, from its end.
const OUTPUT_BYTES_MAX: usize = 8 << 10;
/// The exit codes of a shell for a missing command, and for one that it may not run.
const NOT_STARTED: [i32; 2] = [126, 127];

/// A command that runs in a temporary directory.
pub(super) struct Job<'a> {
    /// The name of the command in messages.
    pub(super) what: &'a str,
    /// The program and its arguments.
    pub(super) words: Vec<&'a std::ffi::OsStr>,
    /// Where it runs.
    pub(super) directory: &'a Path,
    /// The file that gets its output.
    pub(super) output: &'a Path,
    /// The most seconds that the command may take.
    pub(super) seconds: u32,
    /// The hint if there is no such program.
    pub(super) hint: &'a str,
}

/// Runs a command to its end, or until `is_over` returns true: then the command is ended with everything that it started.
pub(super) fn run(job: &Job<'_>, settings: &CommandSettings, is_over: &dyn Fn() -> bool) -> Result<TestVerdict> {
    let what = job.what;
    let failed = |source: std::io::Error| Error::io("make a file for a command's output")(source);
    let sink = fs::File::create(job.output).map_err(failed)?;
    let other = sink.try_clone().map_err(failed)?;
    let mut command = settings.command(&job.words);
    command.current_dir(job.directory).stdin(Stdio::null()).stdout(sink).stderr(other);
    let mut child = match command.spawn() {
        Ok(child) => Running { child, is_supervised: !settings.supervisor.is_empty() },
        Err(error) => return Ok(not_started(what, &error.to_string(), job.hint)),
    };
    let ended =
        child.wait(Duration::from_secs(u64::from(job.seconds)), is_over).map_err(Error::io("wait for a command"))?;
    let said = tail(job.output);
    Ok(match ended {
        Some(status) if status.success() => TestVerdict::Passed,
        Some(status) if status.code().is_some_and(|code| NOT_STARTED.contains(&code)) => {
            not_started(what, &format!("{}\n{status}", said.trim_end()), job.hint)
        }
        Some(status) => TestVerdict::Failed(format!("{what} failed ({status}):\n{said}")),
        None => TestVerdict::Failed(format!("{what} took more than {} s and was ended:\n{said}", job.seconds)),
    })
}

fn not_started(what: &str, why: &str, hint: &str) -> TestVerdict {
    TestVerdict::NotStarted(format!("{what} could not be started: {why}; {hint}"))
}

impl CommandSettings {
    /// Builds a command with the environment of these settings: below their supervisor, or else in a process group of its own.
    pub(super) fn command(&self, words: &[&std::ffi::OsStr]) -> Command {
        let mut all = self.supervisor.iter().map(std::ffi::OsString::as_os_str).chain(words.iter().copied());
        let mut command = Command::new(all.next().expect("a command has a word"));
        command.args(all).env_clear().envs(&self.environment);
        if self.supervisor.is_empty() {
            command.process_group(0);
        }
        command
    }
}

/// A command that runs.
struct Running {
    child: Child,
    is_supervised: bool,
}

impl Running {
    /// Waits until the command has ended, with everything that it started. Returns `None` if it took too long or was cancelled,
    /// and was killed.
    fn wait(&mut self, within: Duration, is_over: &dyn Fn() -> bool) -> io::Result<Option<ExitStatus>> {
        let has_ended = self.wait_until(Instant::now() + within, is_over)?;
        if !has_ended && self.is_supervised {
            self.signal(Signal::TERM);
            self.wait_until(Instant::now() + END_TIMEOUT, &|| false)?;
        }
        if !self.is_supervised || !self.has_ended()? {
            // Without a supervisor, or with one that hangs, only its process group is known. The command is not reaped yet, so that
            // no other process can have its id.
            self.signal(Signal::KILL);
        }
        let status = self.child.wait()?;
        Ok(has_ended.then_some(status))
    }

    /// Waits until the command has ended, and does not reap it. Returns `false` if it took too long or was cancelled.
    fn wait_until(&self, until: Instant, is_over: &dyn Fn() -> bool) -> io::Result<bool> {
        loop {
            if self.has_ended()? {
                return Ok(true);
            }
            if Instant::now() >= until || is_over() {
                return Ok(false);
            }
            thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Returns whether the command has ended, and does not reap it.
    fn has_ended(&self) -> io::Result<bool> {
        let Some(id) = self.id() else { return Ok(true) };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(id), options)?.is_some())
    }

    fn id(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    fn signal(&self, signal: Signal) {
        let Some(id) = self.id() else { return };
        // It may have ended in this moment.
        let _ = match self.is_supervised {
            true => kill_process(id, signal),
            false => kill_process_group(id, signal),
        };
    }
}

/// Returns the end of a command's output; empty if it cannot be read.
fn tail(output: &Path) -> String {
    use std::io::{Seek as _, SeekFrom};
    let read = || -> io::Result<Vec<u8>> {
        let mut file = fs::File::open(output)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(OUTPUT_BYTES_MAX as u64)))?;
        let mut bytes = Vec::new();
        file.take(OUTPUT_BYTES_MAX as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process;

    use super::*;

    #[test]
    fn a_command_that_ended_is_reaped_after_its_group_is_killed() {
        let child = Command::new("true").process_group(0).spawn().expect("started");
        let mut running = Running { child, is_supervised: false };
        let id = running.id().expect("an id");
        assert!(running.wait_until(Instant::now() + END_TIMEOUT, &|| false).expect("waited"));
        test_kill_process(id).expect("no other process can have its id");
        let status = running.wait(END_TIMEOUT, &|| false).expect("waited").expect("it has ended");
        assert!(status.success());
    }
}
