//! Runs this program again for a tool call, and collects its output.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::contexts::KEY_VARIABLE;
use crate::remote::Server;

/// Most bytes of output that a model gets.
const OUTPUT_BYTES_MAX: usize = 48 << 10;
/// Time that a command has to end after it was asked to.
const END_WITHIN: Duration = Duration::from_secs(5);
/// Time to wait for the end of the output of a command that has ended: its background processes keep the pipes open.
const OUTPUT_WITHIN: Duration = Duration::from_millis(500);

/// This program, as tool calls run it.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// The home of the store.
    pub store: PathBuf,
    /// The server that calls work on instead of the store.
    pub server: Option<Server>,
    /// The directory that calls work in.
    pub directory: PathBuf,
    /// The author of snapshots that calls take.
    pub author: String,
}

/// The result of a command.
#[derive(Debug)]
pub struct Finished {
    /// The exit status.
    pub status: ExitStatus,
    /// Its output: standard output before standard error.
    pub text: String,
    /// Whether the program itself failed, and not a command that it ran.
    pub has_failed: bool,
}

impl Program {
    /// Runs a command to its end. Dropping the future ends the command. Background processes that the command leaves
    /// go on, and their later output is dropped.
    ///
    /// # Errors
    /// Returns a message if the command could not be started or exceeded the time limit.
    pub async fn run(&self, words: &[String], timeout: Duration) -> Result<Finished, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.path.display());
        let mut command = Command::new(&self.path);
        if let Some(server) = &self.server {
            command.arg("--server").arg(server.url.to_string());
            // The environment of a process cannot be read by other users, unlike its arguments.
            if let Some(key) = &server.key {
                command.env(KEY_VARIABLE, key.reveal());
            }
        } else {
            command.arg("--store").arg(&self.store);
        }
        let mut child = command
            .args(["--no-input", "--no-pager", "--color=never"])
            .args(words)
            .current_dir(&self.directory)
            .env("PWD", &self.directory)
            .env("AMALGAM_AUTHOR", &self.author)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (stdout, stderr) = (Output::collect(child.stdout.take()), Output::collect(child.stderr.take()));
        let mut group = Group(Some(child));
        let ended = tokio::time::timeout(timeout, group.wait()).await;
        match ended {
            Ok(status) => {
                let status = status.map_err(failed)?;
                let (out, remarks) = tokio::join!(stdout.take(), stderr.take());
                Ok(finished(status, &out, &remarks))
            }
            Err(_) => {
                group.end().await;
                let seconds = timeout.as_secs();
                Err(format!("the command did not end within {seconds} s and was ended; pass a longer timeout_seconds"))
            }
        }
    }
}

/// The process group of a command. Dropping it ends the processes.
struct Group(Option<Child>);

impl Group {
    async fn wait(&mut self) -> io::Result<ExitStatus> {
        let child = self.0.as_mut().ok_or_else(|| io::Error::other("it has ended"))?;
        let status = child.wait().await?;
        self.0 = None;
        Ok(status)
    }

    fn signal(&self, signal: Signal) {
        let id = self.0.as_ref().and_then(Child::id).and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // The processes may have just ended.
            let _ = kill_process_group(id, signal);
        }
    }

    async fn end(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(END_WITHIN, self.wait()).await.is_err() {
            self.signal(Signal::KILL);
            let _ = self.wait().await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
    }
}

/// The output of a command. A task reads all of it and keeps the beginning.
struct Output {
    kept: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    fn collect(source: Option<impl AsyncRead + Send + Unpin + 'static>) -> Self {
        let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
        let shared = Arc::clone(&kept);
        let reader = tokio::spawn(async move {
            let Some(mut source) = source else { return };
            let mut buffer = vec![0; 16 << 10];
            while let Ok(count @ 1..) = source.read(&mut buffer).await {
                let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let room = (OUTPUT_BYTES_MAX + 1).saturating_sub(kept.len());
                kept.extend_from_slice(&buffer[..count.min(room)]);
            }
        });
        Self { kept, reader }
    }

    /// Returns the output up to its end, or up to [`OUTPUT_WITHIN`] from now.
    async fn take(self) -> Vec<u8> {
        // The task of a pipe that stays open reads on: a background process that writes to a closed pipe would fail.
        let _ = tokio::time::timeout(OUTPUT_WITHIN, self.reader).await;
        std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn finished(status: ExitStatus, out: &[u8], remarks: &[u8]) -> Finished {
    let (out, remarks) = (shortened(out), shortened(remarks));
    let has_failed = !status.success() && remarks.lines().any(|line| line.starts_with("error: "));
    let text = [out.trim_end(), remarks.trim_end()].into_iter().filter(|text| !text.is_empty());
    Finished { status, text: text.collect::<Vec<_>>().join("\n"), has_failed }
}

/// Converts bytes to text, cut at [`OUTPUT_BYTES_MAX`].
pub fn shortened(bytes: &[u8]) -> String {
    if bytes.len() <= OUTPUT_BYTES_MAX {
        return String::from_utf8_lossy(bytes).into_owned();
    }
    let begin = String::from_utf8_lossy(&bytes[..OUTPUT_BYTES_MAX]);
    format!("{begin}\n... cut after {} KiB; ask for less, for example by paths or a limit", OUTPUT_BYTES_MAX >> 10)
}
