//! Answers requests of the smart HTTP protocol by a process `git upload-pack`, with limits on time, number and size.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flate2::read::GzDecoder;
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::limits::GitServeLimits;
use super::locks::FileLock;
use crate::error::{Error, Result};
use crate::git::fast_import::{isolated_git, not_started};

const COPY_BYTES: usize = 64 << 10;
/// Limit on the bytes of git's error message that an error repeats.
const WORDS_BYTES_MAX: u64 = 4_096;
/// The longest value of the `Git-Protocol` header that is passed on.
const PROTOCOL_BYTES_MAX: usize = 256;

/// A request of the smart HTTP protocol.
pub enum GitRequest {
    /// `GET info/refs?service=git-upload-pack`.
    Advertise {
        /// The value of the header `Git-Protocol`.
        protocol: Option<String>,
    },
    /// `POST git-upload-pack`.
    UploadPack {
        /// The value of the header `Git-Protocol`.
        protocol: Option<String>,
        /// The body. It must end, or fail, when the client is gone.
        body: Box<dyn Read + Send>,
        /// Whether the body has `Content-Encoding: gzip`.
        is_gzip: bool,
    },
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GitRoute {
    /// [`GitRequest::Advertise`].
    Advertise,
    /// [`GitRequest::UploadPack`].
    UploadPack,
    /// A request that is refused with status 403: a push, or the protocol of plain files.
    Refused(&'static str),
    /// No request of git: status 404.
    Unknown,
}

/// Returns what a request to a repository asks for, by its method, the path behind the repository, and the query.
pub fn git_route(method: &str, path: &str, query: &str) -> GitRoute {
    let service = query.split('&').find_map(|pair| pair.strip_prefix("service="));
    match (method, path.trim_start_matches('/'), service) {
        ("GET" | "HEAD", "info/refs", Some("git-upload-pack")) => GitRoute::Advertise,
        ("GET" | "HEAD", "info/refs", None) => GitRoute::Refused("this repository needs a client with smart HTTP"),
        ("GET" | "HEAD", "info/refs", Some(_)) | ("POST", "git-receive-pack", _) => {
            GitRoute::Refused("this repository is read-only")
        }
        ("POST", "git-upload-pack", _) => GitRoute::UploadPack,
        _ => GitRoute::Unknown,
    }
}

/// Places for running processes.
pub(super) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One place, which is given back with the value.
pub(super) struct Slot(Arc<Slots>);

impl Slots {
    pub(super) fn new(number: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(number.max(1)), freed: Condvar::new() })
    }

    pub(super) fn take(slots: &Arc<Self>, wait_max: Duration) -> Result<Slot> {
        let mut free = slots.free.lock();
        let waited = slots.freed.wait_while_for(&mut free, |free| *free == 0, wait_max);
        if waited.timed_out() && *free == 0 {
            return Err(Error::Busy { what: "too many git clients are served", hint: "try again later" });
        }
        *free -= 1;
        Ok(Slot(Arc::clone(slots)))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.freed.notify_one();
    }
}

/// The answer to a request: bytes as git writes them. Dropped early, it ends the process.
pub struct GitResponse {
    /// Bytes before those of the process.
    first: &'static [u8],
    content_type: &'static str,
    output: ChildStdout,
    errors: File,
    process: Arc<Process>,
    is_ended: bool,
    _slot: Slot,
    _in_use: Arc<FileLock>,
}

/// A process with all that it started, in a group of its own.
struct Process {
    id: Pid,
    child: Mutex<Option<Child>>,
    ended: Condvar,
}

/// Returns the command of a process that reads a repository of the cache, with its environment and settings.
fn upload_pack(repository: &Path, protocol: Option<&str>) -> Command {
    let mut command = isolated_git(repository);
    command.args(["-c", "uploadpack.allowFilter=true"]);
    // Deltas that the repository has are sent; searching for others at each clone costs more than it saves.
    command.args(["-c", "pack.window=0"]);
    command.args(["upload-pack", "--strict", "--stateless-rpc"]);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"=:._-".contains(&byte);
    if let Some(protocol) = protocol.filter(|text| text.len() <= PROTOCOL_BYTES_MAX && text.bytes().all(is_plain)) {
        command.env("GIT_PROTOCOL", protocol);
    }
    command
}

pub(super) fn respond(
    repository: &Path,
    request: GitRequest,
    limits: &GitServeLimits,
    slot: Slot,
    in_use: Arc<FileLock>,
) -> Result<GitResponse> {
    let (mut command, body, first, content_type) = match request {
        GitRequest::Advertise { protocol } => {
            let mut command = upload_pack(repository, protocol.as_deref());
            command.arg("--advertise-refs");
            let is_second = protocol.is_some_and(|text| text.split(':').any(|field| field == "version=2"));
            let first: &[u8] = if is_second { b"" } else { b"001e# service=git-upload-pack\n0000" };
            (command, None, first, "application/x-git-upload-pack-advertisement")
        }
        GitRequest::UploadPack { protocol, body, is_gzip } => {
            let command = upload_pack(repository, protocol.as_deref());
            let body: Box<dyn Read + Send> = if is_gzip { Box::new(GzDecoder::new(body)) } else { body };
            (command, Some(body), &b""[..], "application/x-git-upload-pack-result")
        }
    };
    let errors = tempfile::tempfile().map_err(|source| Error::host("make a temporary file", source))?;
    let stderr = errors.try_clone().map_err(|source| Error::host("make a temporary file", source))?;
    command.arg(".").process_group(0).stdout(Stdio::piped()).stderr(stderr);
    command.stdin(if body.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().map_err(not_started)?;
    let (input, output) = (child.stdin.take(), child.stdout.take().expect("it has a pipe"));
    let id = Pid::from_child(&child);
    let process = Arc::new(Process { id, child: Mutex::new(Some(child)), ended: Condvar::new() });
    let response = GitResponse {
        first,
        content_type,
        output,
        errors,
        process: Arc::clone(&process),
        is_ended: false,
        _slot: slot,
        _in_use: in_use,
    };
    // From here on, dropping the response ends the process.
    let run_max = limits.run_max;
    let watched = Arc::clone(&process);
    start("git-deadline", move || watched.kill_after(run_max))?;
    if let (Some(body), Some(input)) = (body, input) {
        let bytes_max = limits.request_bytes_max;
        start("git-request", move || send_body(body, input, bytes_max, &process))?;
    }
    Ok(response)
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|source| Error::host("start a thread", source))
}

/// Passes the body of a request to the process. A body that fails, or is longer than allowed, ends the process.
fn send_body(mut body: impl Read, mut input: ChildStdin, bytes_max: u64, process: &Process) {
    let (mut buffer, mut left) = (vec![0; COPY_BYTES], bytes_max);
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return,
            Ok(bytes) if bytes as u64 <= left => {
                left -= bytes as u64;
                if input.write_all(&buffer[..bytes]).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(_) | Err(_) => return process.kill(),
        }
    }
}

impl Process {
    /// Ends the process and those that it started, unless it has ended.
    fn kill(&self) {
        // The id stays taken until the child is reaped, which needs the lock.
        if self.child.lock().is_some() {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
    }

    /// Waits for the end of the process; kills it when that takes too long.
    fn kill_after(&self, run_max: Duration) {
        let mut child = self.child.lock();
        let waited = self.ended.wait_while_for(&mut child, |child| child.is_some(), run_max);
        if waited.timed_out() && child.is_some() {
            let _ = kill_process_group(self.id, Signal::KILL);
        }
    }

    /// Waits for the end, without the lock, and reaps.
    fn wait(&self) -> io::Result<ExitStatus> {
        loop {
            match waitid(WaitId::Pid(self.id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) => break,
            }
        }
        let mut child = self.child.lock();
        let status = child.as_mut().map(Child::wait).unwrap_or_else(|| Err(io::Error::other("it was reaped")));
        *child = None;
        self.ended.notify_all();
        status
    }
}

impl GitResponse {
    /// Returns the value of the header `Content-Type`. No proxy may cache answers.
    pub fn content_type(&self) -> &'static str {
        self.content_type
    }

    /// Checks how the process ended.
    fn end(&mut self) -> io::Result<()> {
        self.is_ended = true;
        let status = self.process.wait()?;
        if status.success() {
            return Ok(());
        }
        let mut words = String::new();
        self.errors.rewind()?;
        drop((&self.errors).take(WORDS_BYTES_MAX).read_to_string(&mut words));
        Err(io::Error::other(format!("git upload-pack failed ({status}): {}", words.trim())))
    }
}

impl Read for GitResponse {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.first.is_empty() {
            return self.first.read(buffer);
        }
        if self.is_ended || buffer.is_empty() {
            return Ok(0);
        }
        match self.output.read(buffer)? {
            0 => self.end().map(|()| 0),
            bytes => Ok(bytes),
        }
    }
}

impl Drop for GitResponse {
    fn drop(&mut self) {
        if !self.is_ended {
            self.process.kill();
            drop(self.process.wait());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reading_requests_are_routed() {
        assert_eq!(git_route("GET", "/info/refs", "service=git-upload-pack"), GitRoute::Advertise);
        assert_eq!(git_route("POST", "git-upload-pack", ""), GitRoute::UploadPack);
        for (method, path, query) in [
            ("GET", "info/refs", "service=git-receive-pack"),
            ("POST", "git-receive-pack", ""),
            ("GET", "info/refs", ""),
        ] {
            assert!(matches!(git_route(method, path, query), GitRoute::Refused(_)), "{method} {path}?{query}");
        }
        for (method, path) in [("GET", "HEAD"), ("GET", "objects/info/packs"), ("PUT", "git-upload-pack"), ("GET", "")]
        {
            assert_eq!(git_route(method, path, ""), GitRoute::Unknown);
        }
    }

    #[test]
    fn a_slot_is_waited_for_and_given_back() {
        let slots = Slots::new(1);
        let slot = Slots::take(&slots, Duration::ZERO).expect("the only one");
        assert!(matches!(Slots::take(&slots, Duration::ZERO), Err(Error::Busy { .. })));
        drop(slot);
        Slots::take(&slots, Duration::ZERO).expect("given back");
    }
}
