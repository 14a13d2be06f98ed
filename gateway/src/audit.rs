//! The audit log: one JSON line for each call, with who, what, and the result. Never a key, an argument or a file's content.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_server::{MountChange, MountEvent};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::json;
use tonic::Code;

/// The size at which the file is rotated.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// The number of rotated files beside the current one.
const ROTATED_FILES_MAX: u32 = 8;

/// One call, as the log has it.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    /// When the call ended.
    pub(crate) time: Time,
    /// The agent of the key.
    pub(crate) agent: &'a str,
    /// The id of the key; `-` without one.
    pub(crate) key_id: &'a str,
    /// The project; empty if the call was about the server, or was refused before.
    pub(crate) project: &'a str,
    /// The method.
    pub(crate) method: &'a str,
    /// The result.
    pub(crate) code: Code,
    /// The id of the request, which the answer has too.
    pub(crate) request_id: &'a str,
    /// The address of the caller.
    pub(crate) peer: &'a str,
    /// How long the call took.
    pub(crate) duration: Duration,
}

/// A line of the log about a call. Written for each call, so it is not a tree of values first.
#[derive(Serialize)]
struct Line<'a> {
    timestamp: &'a str,
    level: &'a str,
    event: &'a str,
    user: &'a str,
    agent: &'a str,
    project: &'a str,
    method: &'a str,
    result: &'a str,
    request_id: &'a str,
    peer: &'a str,
    duration_ms: u64,
}

/// The audit log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Audit {
    file: Option<Arc<Mutex<AuditFile>>>,
}

/// The file of the log. A full one becomes `audit.log.1`, that one `audit.log.2`, and so on; the oldest is removed.
struct AuditFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    bytes_max: u64,
}

impl AuditFile {
    fn open(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = File::options().append(true).create(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, bytes, bytes_max })
    }

    /// Appends a complete line with one write. A file that cannot be rotated keeps growing, because losing a record would be worse.
    fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let length = line.len() as u64;
        if self.bytes > 0 && self.bytes.saturating_add(length) > self.bytes_max {
            match self.rotate() {
                Ok(next) => *self = next,
                Err(error) => tracing::warn!(%error, "the audit log cannot be rotated"),
            }
        }
        self.file.write_all(line)?;
        self.bytes += length;
        Ok(())
    }

    fn rotate(&self) -> io::Result<Self> {
        for number in (1..ROTATED_FILES_MAX).rev() {
            match fs::rename(rotated(&self.path, number), rotated(&self.path, number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        fs::rename(&self.path, rotated(&self.path, 1))?;
        Self::open(&self.path, self.bytes_max)
    }
}

fn rotated(path: &Path, number: u32) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{number}"));
    name.into()
}

impl Audit {
    /// Opens an audit log that appends to a file, and creates the file if needed. Only the server's user can read it.
    pub(crate) fn to_file(path: &Path) -> io::Result<Self> {
        Self::with_limit(path, FILE_BYTES_MAX)
    }

    fn with_limit(path: &Path, bytes_max: u64) -> io::Result<Self> {
        Ok(Self { file: Some(Arc::new(Mutex::new(AuditFile::open(path, bytes_max)?))) })
    }

    /// Returns an audit log that discards all records.
    pub(crate) fn off() -> Self {
        Self { file: None }
    }

    /// Writes the record of one call.
    pub(crate) fn write(&self, record: &Record<'_>) {
        let event = match record.code {
            Code::Unauthenticated => "authentication.failed",
            Code::PermissionDenied => "call.refused",
            _ => "call",
        };
        self.append(&Line {
            timestamp: &timestamp(record.time),
            level: if record.code == Code::Ok { "info" } else { "warn" },
            event,
            user: record.key_id,
            agent: record.agent,
            project: record.project,
            method: record.method,
            result: &format!("{:?}", record.code),
            request_id: record.request_id,
            peer: record.peer,
            duration_ms: u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX),
        });
    }

    /// Writes that an NFS client mounted or unmounted something, or was refused.
    pub(crate) fn write_mount(&self, time: Time, mount: &MountEvent) {
        let (level, event) = match mount.what {
            MountChange::Mounted => ("info", "nfs.mounted"),
            MountChange::Unmounted => ("info", "nfs.unmounted"),
            MountChange::Refused => ("warn", "nfs.refused"),
        };
        self.append(&json!({
            "timestamp": timestamp(time),
            "level": level,
            "event": event,
            "path": mount.path,
            "peer": mount.client.to_string(),
        }));
    }

    /// Writes that a sandbox tried to reach a host that it may not reach.
    pub(crate) fn write_refused_connection(&self, time: Time, project: &str, sandbox: &str, why: &str) {
        self.append(&json!({
            "timestamp": timestamp(time),
            "level": "warn",
            "event": "sandbox.connection_refused",
            "project": project,
            "sandbox": sandbox,
            "message": why,
        }));
    }

    fn append(&self, line: &impl Serialize) {
        let Some(file) = &self.file else { return };
        let written = serde_json::to_vec(line).map_err(io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            file.lock().write(&line)
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the audit log cannot be written");
        }
    }
}

/// Formats a time as RFC 3339 in UTC, truncated to milliseconds.
pub(crate) fn timestamp(time: Time) -> String {
    let seconds = time.0.div_euclid(1_000_000_000);
    let nanos = i32::try_from(time.0.rem_euclid(1_000_000_000)).unwrap_or(0) / 1_000_000 * 1_000_000;
    prost_types::Timestamp { seconds, nanos }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_rotated_and_the_oldest_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("audit.log");
        let audit = Audit::with_limit(&path, 500).expect("opened");
        let mount = |number: u32| MountEvent {
            client: "127.0.0.1".parse().expect("an address"),
            path: format!("/default/{number}"),
            what: MountChange::Mounted,
        };
        (0..200).for_each(|number| audit.write_mount(Time(0), &mount(number)));
        let text = |path: &Path| std::fs::read_to_string(path).expect("it is there");
        assert!(text(&path).contains("/default/199") && text(&path).len() <= 500);
        assert!(text(&rotated(&path, 1)).contains("nfs.mounted"));
        assert!(rotated(&path, ROTATED_FILES_MAX).exists() && !rotated(&path, ROTATED_FILES_MAX + 1).exists());
        // Another process finds the file as it was left.
        let size = text(&path).len();
        Audit::with_limit(&path, 500).expect("opened").write_mount(Time(0), &mount(200));
        assert!(text(&path).len() > size || text(&rotated(&path, 1)).len() == size);
    }

    #[test]
    fn a_record_is_one_line_of_json_whatever_its_texts() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("audit.log");
        let audit = Audit::to_file(&path).expect("opened");
        audit.write(&Record {
            time: Time(1_705_312_345_678_000_000),
            agent: "a\n\"b",
            key_id: "abc",
            project: "p",
            method: "amalgam.v1.X/Y",
            code: Code::Unauthenticated,
            request_id: "r",
            peer: "127.0.0.1:1",
            duration: Duration::from_millis(7),
        });
        let text = std::fs::read_to_string(&path).expect("written");
        let line: serde_json::Value = serde_json::from_str(text.trim_end()).expect("one line of JSON");
        assert_eq!(line["timestamp"], "2024-01-15T09:52:25.678Z");
        assert_eq!(line["event"], "authentication.failed");
        assert_eq!(line["duration_ms"], 7);
    }
}
