//! Manifest of a backup: a text with one line for each part, and a checksum.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use amalgam_engine::Time;

use super::files::write_new;
use crate::error::{Error, Result};

pub(super) const FILE: &str = "BACKUP";
const TITLE: &str = "amalgam backup";
const FORMAT: &str = "format 1";

/// A part of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) number: u64,
    pub(super) length: u64,
    /// The stream's own checksum.
    pub(super) check: [u8; 32],
    /// The hash of its list of tips.
    pub(super) tips: [u8; 32],
    pub(super) operation: u64,
    pub(super) time: Time,
}

impl Part {
    pub(super) fn stream(&self) -> String {
        format!("{:06}.stream", self.number)
    }

    pub(super) fn tips_file(&self) -> String {
        format!("{:06}.tips", self.number)
    }

    fn line(&self) -> String {
        let hex = |hash: &[u8; 32]| blake3::Hash::from_bytes(*hash).to_hex();
        let Self { number, length, check, tips, operation, time } = self;
        format!("part {number} {length} {} {} {operation} {}\n", hex(check), hex(tips), time.0)
    }

    fn read(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split(' ').collect();
        let ["part", number, length, check, tips, operation, time] = words[..] else { return None };
        let hash = |text: &str| blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes());
        Some(Self {
            number: number.parse().ok()?,
            length: length.parse().ok()?,
            check: hash(check)?,
            tips: hash(tips)?,
            operation: operation.parse().ok()?,
            time: Time(time.parse().ok()?),
        })
    }
}

/// The parts, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) parts: Vec<Part>,
}

impl Manifest {
    /// Reads the manifest of a directory; `None` if there is none yet.
    pub(super) fn read(directory: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(directory.join(FILE)) {
            Ok(text) => text,
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(wrong(source.to_string())),
        };
        Self::decode(&text).map(Some)
    }

    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let text = self.encode();
        write_new(directory, FILE, |file| {
            file.write_all(text.as_bytes()).map_err(|source| Error::host(format!("write {FILE}"), source))
        })
    }

    fn encode(&self) -> String {
        let lines: String = self.parts.iter().map(Part::line).collect();
        let body = format!("{TITLE}\n{FORMAT}\n{lines}");
        format!("{body}check {}\n", blake3::hash(body.as_bytes()).to_hex())
    }

    fn decode(text: &str) -> Result<Self> {
        let Some((body, check)) = text.rsplit_once("check ") else { return Err(wrong("it is cut".to_owned())) };
        let mut lines = body.lines();
        if lines.next() != Some(TITLE) {
            return Err(wrong("it is no backup's".to_owned()));
        }
        match lines.next() {
            Some(FORMAT) => {}
            other => {
                return Err(wrong(format!("this version of Amalgam does not know {}", other.unwrap_or("its format"))));
            }
        }
        if check.trim_end() != blake3::hash(body.as_bytes()).to_hex().as_str() {
            return Err(wrong("its checksum does not match".to_owned()));
        }
        let parts: Option<Vec<_>> = lines.map(Part::read).collect();
        let parts = parts.ok_or_else(|| wrong("it has a line that does not describe a part".to_owned()))?;
        if (1..).zip(&parts).any(|(number, part)| part.number != number) {
            return Err(wrong("its parts are not in order".to_owned()));
        }
        Ok(Self { parts })
    }
}

fn wrong(why: String) -> Error {
    Error::Backup { part: FILE.to_owned(), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_back_and_damage_is_noticed() {
        let part = Part { number: 1, length: 9, check: [1; 32], tips: [2; 32], operation: 3, time: Time(-4) };
        let manifest = Manifest { parts: vec![part.clone(), Part { number: 2, ..part }] };
        let text = manifest.encode();
        assert_eq!(Manifest::decode(&text).expect("its own text"), manifest);
        for at in 0..text.len() {
            let mut bent = text.clone().into_bytes();
            bent[at] ^= 1;
            let bent = String::from_utf8_lossy(&bent).into_owned();
            assert!(Manifest::decode(&bent).is_err() || at + 1 == text.len(), "a bit at {at}");
        }
        assert!(Manifest::decode("").is_err());
        assert!(Manifest::decode("amalgam backup\nformat 2\ncheck 00\n").is_err());
    }
}
