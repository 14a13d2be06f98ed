//! Runs `git fast-import` and writes its commands.

use std::fs;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::objects::Oid;
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 1 << 20;
/// Variables that would lead git to another repository than the one that was named.
const REPOSITORY_VARIABLES: [&str; 8] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_QUARANTINE_PATH",
];

/// Returns a `git` command for a repository.
pub(super) fn git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    for name in REPOSITORY_VARIABLES {
        command.env_remove(name);
    }
    command.arg("-C").arg(repository).stdin(Stdio::null());
    command
}

/// Returns a `git` command for a repository that only this library writes: without the environment, the configuration and the hooks
/// of the user.
pub(super) fn isolated_git(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.env_clear();
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    for (name, value) in [
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
    ] {
        command.env(name, value);
    }
    command.arg("-C").arg(repository).args(["-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*"]);
    command.stdin(Stdio::null());
    command
}

/// Runs git to its end and returns its output.
pub(super) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let done = command.output().map_err(not_started)?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    Err(Error::Program { program: "git", why: String::from_utf8_lossy(&done.stderr).trim().to_owned() })
}

pub(super) fn not_started(source: io::Error) -> Error {
    match source.kind() {
        io::ErrorKind::NotFound => Error::Program {
            program: "git",
            why: "it is not installed, and an export to a repository needs it".to_owned(),
        },
        _ => Error::host("start git", source),
    }
}

/// The parent of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitRef {
    Mark(u64),
    Commit(Oid),
}

impl std::fmt::Display for CommitRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mark(mark) => write!(f, ":{mark}"),
            Self::Commit(oid) => write!(f, "{oid}"),
        }
    }
}

/// The running program. Dropped before its end, it is killed, and no reference has moved.
pub(super) struct FastImport {
    child: Child,
    input: Option<BufWriter<ChildStdin>>,
    errors: fs::File,
    marks: tempfile::NamedTempFile,
}

impl FastImport {
    /// Starts it. For a mirror it moves the branch to any commit, and applies no settings of the user.
    pub(super) fn start(repository: &Path, is_mirror: bool) -> Result<Self> {
        let temporary = |source| Error::host("make a temporary file", source);
        let errors = tempfile::tempfile().map_err(temporary)?;
        let marks = tempfile::NamedTempFile::new().map_err(temporary)?;
        let mut command = if is_mirror { isolated_git(repository) } else { git(repository) };
        if is_mirror {
            // One pack for each export: loose objects are slow to read, and are never combined.
            command.args(["-c", "fastimport.unpackLimit=1"]);
        }
        command.args(["fast-import", "--quiet", "--done", "--date-format=raw-permissive"]);
        if is_mirror {
            command.arg("--force");
        }
        let mut export = std::ffi::OsString::from("--export-marks=");
        export.push(marks.path());
        let stderr = errors.try_clone().map_err(temporary)?;
        command.arg(export).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(stderr);
        let mut child = command.spawn().map_err(not_started)?;
        let input = child.stdin.take().map(|input| BufWriter::with_capacity(BUFFER_BYTES, input));
        Ok(Self { child, input, errors, marks })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let input = self.input.as_mut().expect("it is open until the end");
        match input.write_all(bytes) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Returns the error for a failed write. If the program has ended, the error is its message.
    fn failed(&mut self, error: io::Error) -> Error {
        if error.kind() != io::ErrorKind::BrokenPipe {
            return Error::host("write to git fast-import", error);
        }
        drop(self.child.wait());
        Error::Program { program: "git fast-import", why: self.said() }
    }

    fn said(&mut self) -> String {
        let mut text = String::new();
        let read = self.errors.rewind().and_then(|()| self.errors.read_to_string(&mut text));
        match read {
            Ok(_) if !text.trim().is_empty() => text.trim().to_owned(),
            _ => "it ended without a word".to_owned(),
        }
    }

    /// Writes bytes of this length, in parts.
    pub(super) fn data(&mut self, length: u64) -> Result<()> {
        self.write(format!("data {length}\n").as_bytes())
    }

    /// Ends the stream, waits, and returns the commits and blobs of all marks.
    pub(super) fn finish(mut self) -> Result<Vec<(u64, Oid)>> {
        self.write(b"done\n")?;
        let input = self.input.take().expect("it is open until the end");
        if let Err(error) = input.into_inner().map(drop).map_err(io::IntoInnerError::into_error) {
            return Err(self.failed(error));
        }
        let status = self.child.wait().map_err(|source| Error::host("wait for git fast-import", source))?;
        let said = self.said();
        // Not updating a branch is a warning for it.
        if !status.success() || said.contains("Not updating") {
            return Err(Error::Program { program: "git fast-import", why: said });
        }
        let text = fs::read_to_string(self.marks.path()).map_err(|source| Error::host("read git's marks", source))?;
        let parse = |line: &str| {
            let (mark, oid) = line.strip_prefix(':')?.split_once(' ')?;
            Some((mark.parse().ok()?, Oid::from_hex(oid.as_bytes())?))
        };
        Ok(text.lines().filter_map(parse).collect())
    }
}

impl Drop for FastImport {
    fn drop(&mut self) {
        // Killed, not ended: it would leave a report of a crash in the repository.
        if self.input.is_some() {
            drop(self.child.kill());
            drop(self.input.take());
            drop(self.child.wait());
        }
    }
}

/// Quotes a path for fast-import, so that it may have any bytes.
pub(super) fn quoted(path: &[u8]) -> Vec<u8> {
    let mut text = vec![b'"'];
    for byte in path {
        match byte {
            b'"' | b'\\' => text.extend_from_slice(&[b'\\', *byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            0..=31 | 127.. => text.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            byte => text.push(*byte),
        }
    }
    text.push(b'"');
    text
}
