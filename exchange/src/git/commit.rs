//! Decodes commits, converts them to metadata of snapshots, and back.

use std::collections::BTreeMap;

use amalgam_engine::Time;
use amalgam_engine::object::Snapshot;
use gix::bstr::ByteSlice;

use super::keys::{KEY_AUTHOR, KEY_COMMIT, KEY_COMMITTER, KEY_RAW, KEY_RAW_ESCAPED};
use super::objects::{Oid, damaged};
use crate::error::Result;

/// Snapshots hold up to 1 MiB of text; a commit that is longer is kept in part.
const TEXT_BYTES_MAX: usize = 500_000;

/// A decoded commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Commit {
    pub(crate) tree: Oid,
    pub(crate) parents: Vec<Oid>,
    /// Name, address, seconds and time zone.
    pub(crate) author: Vec<u8>,
    pub(crate) committer: Vec<u8>,
    pub(crate) encoding: Option<Vec<u8>>,
    /// Whether there are other headers, for example a signature.
    pub(crate) has_more_headers: bool,
    pub(crate) message: Vec<u8>,
}

/// The commit data that a snapshot keeps.
pub(crate) struct CommitWords {
    pub(crate) author: String,
    pub(crate) time: Time,
    pub(crate) message: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Whether a part was too long to be kept.
    pub(crate) is_cut: bool,
}

impl Commit {
    pub(crate) fn parse(oid: Oid, data: &[u8]) -> Result<Self> {
        let broken = |why: &str| damaged(format!("commit {oid}"), why);
        let (headers, message) = match data.find(b"\n\n") {
            Some(at) => (&data[..at], &data[at + 2..]),
            None => (data.strip_suffix(b"\n").unwrap_or(data), &[][..]),
        };
        let mut commit = Self {
            tree: Oid([0; 20]),
            parents: Vec::new(),
            author: Vec::new(),
            committer: Vec::new(),
            encoding: None,
            has_more_headers: false,
            message: message.to_vec(),
        };
        let mut has_tree = false;
        for line in headers.split(|byte| *byte == b'\n') {
            let (key, value) = line.split_once_str(" ").unwrap_or((line, b""));
            let id = || Oid::from_hex(value).ok_or_else(|| broken("a header holds no id"));
            match key {
                b"tree" if !has_tree => {
                    commit.tree = id()?;
                    has_tree = true;
                }
                b"parent" => commit.parents.push(id()?),
                b"author" => commit.author = value.to_vec(),
                b"committer" => commit.committer = value.to_vec(),
                b"encoding" => commit.encoding = Some(value.to_vec()),
                _ => commit.has_more_headers = true,
            }
        }
        if has_tree { Ok(commit) } else { Err(broken("it names no tree")) }
    }

    /// Encodes a commit with these parts and no other headers.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut data = format!("tree {}\n", self.tree).into_bytes();
        for parent in &self.parents {
            data.extend_from_slice(format!("parent {parent}\n").as_bytes());
        }
        for (key, value) in [("author", &self.author), ("committer", &self.committer)] {
            data.extend_from_slice(format!("{key} ").as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        if let Some(encoding) = &self.encoding {
            data.extend_from_slice(b"encoding ");
            data.extend_from_slice(encoding);
            data.push(b'\n');
        }
        data.push(b'\n');
        data.extend_from_slice(&self.message);
        data
    }

    /// Returns the commit time.
    pub(crate) fn time(&self) -> Time {
        let seconds = person(&self.committer).1;
        Time::from_seconds(seconds, 0)
    }

    /// Returns the metadata of a snapshot of this commit.
    pub(crate) fn words(&self, oid: Oid, raw: &[u8]) -> CommitWords {
        let text = |bytes: &[u8]| {
            let cut = &bytes[..bytes.len().min(TEXT_BYTES_MAX / 4)];
            String::from_utf8_lossy(cut).into_owned()
        };
        let message = self.message.strip_suffix(b"\n").unwrap_or(&self.message);
        let mut words = CommitWords {
            author: text(person(&self.author).0),
            time: self.time(),
            message: text(message),
            metadata: BTreeMap::new(),
            is_cut: message.len() > TEXT_BYTES_MAX / 4,
        };
        let mut keep = |key: &str, value: String| words.metadata.insert(key.to_owned(), value);
        keep(KEY_COMMIT, oid.to_string());
        let said = self.encode() == raw && self.encoding.is_none();
        let texts = (std::str::from_utf8(&self.author), std::str::from_utf8(&self.committer));
        let is_plain = said && self.message.ends_with(b"\n") && std::str::from_utf8(message).is_ok();
        match (texts, std::str::from_utf8(raw)) {
            ((Ok(author), Ok(committer)), _) if is_plain && author.len() + committer.len() < TEXT_BYTES_MAX / 4 => {
                keep(KEY_AUTHOR, author.to_owned());
                keep(KEY_COMMITTER, committer.to_owned());
            }
            (_, Ok(raw)) if raw.len() <= TEXT_BYTES_MAX => drop(keep(KEY_RAW, raw.to_owned())),
            _ if raw.len() <= TEXT_BYTES_MAX / 3 => drop(keep(KEY_RAW_ESCAPED, escaped(raw))),
            _ => words.is_cut = true,
        }
        words
    }

    /// Returns the commit that a snapshot says it was imported from, and its id; tree and parents may be empty. Returns `None` if
    /// the snapshot names no commit.
    pub(crate) fn of_snapshot(snapshot: &Snapshot) -> Option<(Oid, Self)> {
        let said = |key: &str| snapshot.metadata.get(key);
        let oid = Oid::from_hex(said(KEY_COMMIT)?.as_bytes())?;
        if let Some(raw) = said(KEY_RAW) {
            return Some((oid, Self::parse(oid, raw.as_bytes()).ok()?));
        }
        if let Some(raw) = said(KEY_RAW_ESCAPED) {
            return Some((oid, Self::parse(oid, &unescaped(raw)?).ok()?));
        }
        let commit = Self {
            tree: Oid([0; 20]),
            parents: Vec::new(),
            author: said(KEY_AUTHOR)?.clone().into_bytes(),
            committer: said(KEY_COMMITTER)?.clone().into_bytes(),
            encoding: None,
            has_more_headers: false,
            message: [snapshot.message.as_bytes(), b"\n"].concat(),
        };
        Some((oid, commit))
    }
}

/// Splits the line of an author or committer into the name with the address, and the seconds since 1970; 0 for a line without a
/// time.
pub(crate) fn person(line: &[u8]) -> (&[u8], i64) {
    let end = line.rfind_byte(b'>').map_or(line.len(), |at| at + 1);
    let seconds = line[end..].fields().next().and_then(|field| std::str::from_utf8(field).ok()?.parse().ok());
    (&line[..end], seconds.unwrap_or(0))
}

/// Encodes bytes as text: `%` and all that is not printable ASCII or a line break as `%xx`.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'%' | 0..=9 | 11..=31 | 127.. => text.push_str(&format!("%{byte:02x}")),
            byte => text.push(char::from(*byte)),
        }
    }
    text
}

fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OID: Oid = Oid([7; 20]);

    fn snapshot(words: CommitWords) -> Snapshot {
        Snapshot {
            root: amalgam_engine::RootId::from_bytes([0; 32]),
            parents: Vec::new(),
            author: words.author,
            time: words.time,
            message: words.message,
            metadata: words.metadata,
            generation: 0,
        }
    }

    #[test]
    fn a_commit_comes_back_from_its_snapshot() {
        let tree = "tree 0707070707070707070707070707070707070707\n";
        let people = "author A <a@b> 1 +0100\ncommitter C <c@d> -5 -0330\n";
        for (headers, message) in [
            ("", &b"subject\n\nbody\n"[..]),
            ("", b"no newline"),
            ("", b""),
            ("", b"\xff\xfe latin\n"),
            ("encoding ISO-8859-1\n", b"caf\xe9\n"),
            ("gpgsig -----BEGIN\n line\n -----END\n", b"signed\n"),
        ] {
            let raw = [tree.as_bytes(), people.as_bytes(), headers.as_bytes(), b"\n", message].concat();
            let commit = Commit::parse(OID, &raw).expect("a commit");
            let words = commit.words(OID, &raw);
            assert_eq!((words.author.as_str(), words.time), ("A <a@b>", Time(-5_000_000_000)));
            let (oid, back) = Commit::of_snapshot(&snapshot(words)).expect("it was imported");
            assert_eq!(oid, OID);
            assert_eq!(Commit { tree: OID, ..back }, commit);
        }
    }

    #[test]
    fn bytes_are_escaped_and_back() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unescaped(&escaped(&all)), Some(all));
        assert_eq!(unescaped("%4"), None);
    }
}
