//! The supervisor of tests of the queue and of commands of rules: a process that kills everything that the command started.
//!
//! It becomes the parent of every descendant whose own parent ends, so none escapes by a session or process group of its own.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, set_parent_process_death_signal, wait,
};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;

/// Time limit for killed processes to end: one that waits for a disk needs time, one of another user never ends.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Run a command and end everything that it started; the background process starts this
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam supervise -- make test")]
pub struct Supervise {
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Supervise {
    /// Runs the command under supervision. Returns its exit code, or 143 if the supervisor was asked to end.
    pub fn run(&self) -> Exit {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let ended = runtime.and_then(|runtime| runtime.block_on(self.supervise()));
        end_descendants();
        ended.unwrap_or_else(|error| {
            // Standard error is shared with the command.
            drop(writeln!(io::stderr(), "{}: {error}", self.command[0].to_string_lossy()));
            if error.kind() == io::ErrorKind::NotFound { Exit(127) } else { Exit(126) }
        })
    }

    async fn supervise(&self) -> io::Result<Exit> {
        // A new session, so that signals to the terminal's process group do not reach it. Fails if it leads a session already.
        let _ = rustix::process::setsid();
        set_child_subreaper(Some(getpid()))?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let mut asked_to_end = signal(SignalKind::terminate())?;
        let mut command = Command::new(&self.command[0]);
        let mut child = command.args(&self.command[1..]).spawn()?;
        tokio::select! {
            status = child.wait() => Ok(Exit::of_status(status?)),
            _ = asked_to_end.recv() => Ok(Exit(143)),
        }
    }
}

/// Kills all descendants. The kernel reparents orphaned grandchildren to this process, which kills them in the next round.
fn end_descendants() {
    let until = Instant::now() + END_TIMEOUT;
    loop {
        for id in children() {
            // The process may have just ended.
            let _ = kill_process(id, Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                // There is no child left.
                Err(_) => return,
            }
        }
        if Instant::now() > until {
            return;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the process ids of the children of this process.
fn children() -> Vec<Pid> {
    let own = getpid().as_raw_nonzero().to_string();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| parent_of(*id).as_deref() == Some(&*own)).filter_map(Pid::from_raw).collect()
}

/// Reads the parent id of a process from `/proc`, or returns `None` if the process is gone.
fn parent_of(id: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name of the program is in brackets, and may hold brackets and blanks itself.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1).map(str::to_owned)
}
