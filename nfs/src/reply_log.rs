//! Stores replies of changes, so that the reply cache survives a crash of the server.
//!
//! Records are appended before the reply is sent, without a sync: they survive a killed process. A power cut may lose a change and leave its
//! record, so each file begins with the id of the boot that wrote it, and a file of another boot is ignored. The log rotates between two
//! files.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use amalgam_engine::Time;

/// Size at which the log rotates.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Maximum age of a reply. Clients retransmit within minutes.
const USEFUL_NANOSECONDS: i64 = 10 * 60 * 1_000_000_000;
/// Length and checksum before each record.
const HEAD_BYTES: usize = 4 + 8;
/// Time, address, xid, length and hash of the call.
const FIXED_BYTES: usize = 8 + 16 + 4 + 8 + 16;
const RECORD_BYTES_MAX: usize = 64 << 10;

/// Identifies a call of one client: its transaction id, length and hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallKey {
    pub(crate) xid: u32,
    pub(crate) bytes: usize,
    pub(crate) hash: [u8; 16],
}

/// A logged reply.
pub(crate) struct LoggedReply {
    pub(crate) client: IpAddr,
    pub(crate) key: CallKey,
    pub(crate) answer: Vec<u8>,
}

pub(crate) struct ReplyLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    /// First record of each file.
    boot: Vec<u8>,
}

impl ReplyLog {
    /// Opens or creates a log. Returns the usable replies, oldest first. `boot_id` identifies the boot of the machine; with `None` no earlier
    /// reply is usable.
    pub(crate) fn open(path: &Path, now: Time, boot_id: Option<&str>) -> io::Result<(Self, Vec<LoggedReply>)> {
        let boot = framed(boot_id.unwrap_or_default().as_bytes());
        let ((mut found, _), (newer, end)) = match boot_id {
            Some(_) => (read(&older(path), now, &boot)?, read(path, now, &boot)?),
            None => Default::default(),
        };
        found.extend(newer);
        let file = open(path)?;
        // Cut off a torn record.
        file.set_len(end)?;
        Ok((Self { path: path.to_owned(), file, bytes: end, boot }, found))
    }

    /// Appends a reply. On a write error the reply is in the memory cache only.
    pub(crate) fn append(&mut self, now: Time, client: IpAddr, key: &CallKey, answer: &[u8]) {
        let mut body = Vec::with_capacity(FIXED_BYTES + answer.len());
        body.extend_from_slice(&now.0.to_le_bytes());
        let address = match client {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        body.extend_from_slice(&address.octets());
        body.extend_from_slice(&key.xid.to_le_bytes());
        body.extend_from_slice(&(key.bytes as u64).to_le_bytes());
        body.extend_from_slice(&key.hash);
        body.extend_from_slice(answer);
        if body.len() > RECORD_BYTES_MAX {
            return;
        }
        let mut record = framed(&body);
        if self.bytes + record.len() as u64 > FILE_BYTES_MAX {
            self.rotate();
        }
        if self.bytes == 0 {
            record = [&self.boot[..], &record].concat();
        }
        if self.file.write_all(&record).is_ok() {
            self.bytes += record.len() as u64;
        } else {
            // A torn record would hide the following ones.
            self.file.set_len(self.bytes).ok();
        }
    }

    /// Rotates the files.
    fn rotate(&mut self) {
        if std::fs::rename(&self.path, older(&self.path)).is_err() {
            self.file.set_len(0).ok();
        } else if let Ok(file) = open(&self.path) {
            self.file = file;
        }
        self.bytes = 0;
    }
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("older")
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    // Replies contain file handles, which grant access: mode 0600.
    File::options().create(true).append(true).mode(0o600).open(path)
}

fn check(body: &[u8]) -> [u8; 8] {
    blake3::hash(body).as_bytes().first_chunk().copied().unwrap_or_default()
}

/// Returns a record with its length and checksum.
fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..], &check(body), body].concat()
}

/// Reads the usable replies of a file that begins with the record `boot`, and the end of its last complete record.
fn read(path: &Path, now: Time, boot: &[u8]) -> io::Result<(Vec<LoggedReply>, u64)> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    let Some(mut rest) = bytes.strip_prefix(boot) else { return Ok((Vec::new(), 0)) };
    let mut found = Vec::new();
    while let Some((time, logged, left)) = read_record(rest) {
        rest = left;
        if (0..USEFUL_NANOSECONDS).contains(&now.0.saturating_sub(time.0)) {
            found.push(logged);
        }
    }
    Ok((found, (bytes.len() - rest.len()) as u64))
}

fn read_record(bytes: &[u8]) -> Option<(Time, LoggedReply, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let (body, rest) = rest.split_at_checked(length)?;
    if check(body) != head[4..] {
        return None;
    }
    let (fixed, answer) = body.split_at_checked(FIXED_BYTES)?;
    let address: [u8; 16] = *fixed[8..].first_chunk()?;
    let key = CallKey {
        xid: u32::from_le_bytes(*fixed[24..].first_chunk()?),
        bytes: u64::from_le_bytes(*fixed[28..].first_chunk()?) as usize,
        hash: *fixed[36..].first_chunk()?,
    };
    let client = IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
    let logged = LoggedReply { client, key, answer: answer.to_vec() };
    Some((Time(i64::from_le_bytes(*fixed.first_chunk()?)), logged, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_700_000_000_000_000_000);
    const BOOT: Option<&str> = Some("one");
    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn key(xid: u32) -> CallKey {
        CallKey { xid, bytes: 7, hash: [xid as u8; 16] }
    }

    #[test]
    fn answers_come_back_in_order_unless_they_are_old_or_torn() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("replies");
        let (mut log, found) = ReplyLog::open(&path, NOW, BOOT).expect("begun");
        assert!(found.is_empty());
        log.append(Time(NOW.0 - USEFUL_NANOSECONDS), CLIENT, &key(1), b"old");
        log.append(NOW, CLIENT, &key(2), b"two");
        log.append(NOW, CLIENT, &key(3), b"three");
        drop(log);
        let whole = std::fs::read(&path).expect("read");
        std::fs::write(&path, &whole[..whole.len() - 1]).expect("torn");
        let (mut log, found) = ReplyLog::open(&path, NOW, BOOT).expect("opened");
        let answers: Vec<_> = found.iter().map(|logged| (logged.client, logged.key.xid, &logged.answer[..])).collect();
        assert_eq!(answers, [(CLIENT, 2, &b"two"[..])]);
        log.append(NOW, CLIENT, &key(4), b"four");
        let (_, found) = ReplyLog::open(&path, NOW, BOOT).expect("opened");
        assert_eq!(found.iter().map(|logged| logged.key.xid).collect::<Vec<_>>(), [2, 4]);
    }

    #[test]
    fn replies_of_another_boot_are_ignored() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("replies");
        let open = |boot| {
            let (log, found) = ReplyLog::open(&path, NOW, boot).expect("opened");
            (log, found.iter().map(|logged| logged.key.xid).collect::<Vec<_>>())
        };
        let (mut log, _) = open(BOOT);
        // Both files have replies.
        for xid in 0..5_000 {
            log.append(NOW, CLIENT, &key(xid), &[7; 1_000]);
        }
        drop(log);
        assert!(older(&path).exists());
        assert_eq!(open(BOOT).1.last(), Some(&4_999));
        let (mut log, found) = open(Some("two"));
        assert!(found.is_empty());
        log.append(NOW, CLIENT, &key(7), b"seven");
        drop(log);
        assert_eq!(open(Some("two")).1, [7], "the other file is of the first boot");
        assert!(open(None).1.is_empty());
        // A file of a version without boots.
        std::fs::write(&path, framed(&[0; FIXED_BYTES])).expect("written");
        assert!(open(Some("two")).1.is_empty());
    }

    #[test]
    fn the_files_stay_small() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("replies");
        let (mut log, _) = ReplyLog::open(&path, NOW, BOOT).expect("begun");
        for xid in 0..20_000 {
            log.append(NOW, CLIENT, &key(xid), &[7; 1_000]);
        }
        let size = |path: &Path| std::fs::metadata(path).expect("there").len();
        assert!(size(&path) <= FILE_BYTES_MAX && size(&older(&path)) <= FILE_BYTES_MAX);
        let (_, found) = ReplyLog::open(&path, NOW, BOOT).expect("opened");
        assert_eq!(found.last().map(|logged| logged.key.xid), Some(19_999));
        assert!(found.len() > 3_900, "{}", found.len());
    }
}
