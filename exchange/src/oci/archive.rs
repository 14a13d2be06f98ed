//! Reads the files of an image, from a directory or from a tar archive with random access.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use super::keys::FORMAT;
use crate::compress::{Compression, decoder};
use crate::error::{Error, Result};
use crate::file_range::FileRange;
use crate::report::Report;
use crate::tar::{MemberKind, TarReader};

/// Members of the archive of an image.
const MEMBERS_MAX: usize = 1_000_000;
/// The largest manifest or configuration.
const JSON_BYTES_MAX: u64 = 16 << 20;
const BUFFER_BYTES: usize = 256 << 10;

pub(super) enum ImageFiles {
    Directory(PathBuf),
    Archive { file: File, members: HashMap<String, Member> },
}

pub(super) enum Member {
    Bytes {
        offset: u64,
        size: u64,
    },
    /// Old versions of Docker save a layer that occurs twice as a symlink.
    Symlink(String),
}

pub(super) fn damaged(place: impl Into<String>, why: impl Into<String>) -> Error {
    Error::Malformed { format: FORMAT, place: place.into(), why: why.into() }
}

impl ImageFiles {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::host(format!("read {}", path.display()), source);
        if fs::metadata(path).map_err(failed)?.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut first = [0; 6];
        let read = file.read(&mut first).map_err(failed)?;
        file.rewind().map_err(failed)?;
        if Compression::of_magic(&first[..read]) != Compression::None {
            // Layers are read in an order of their own: a compressed archive is unpacked first.
            let mut plain = tempfile::tempfile().map_err(failed)?;
            io::copy(&mut decoder(file, None)?, &mut plain).map_err(failed)?;
            plain.rewind().map_err(failed)?;
            file = plain;
        }
        let members = index(&file)?;
        Ok(Self::Archive { file, members })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(path) => path.join(name).is_file(),
            Self::Archive { members, .. } => members.contains_key(name),
        }
    }

    /// Opens a file of the image. The name is checked: it cannot leave the directory.
    pub(super) fn read(&self, name: &str) -> Result<Box<dyn Read + Send>> {
        let is_inside = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_inside {
            return Err(damaged(name, "the image names a file outside of itself"));
        }
        match self {
            Self::Directory(_) if !self.has(name) => {
                Err(Error::host(format!("read {name} of the image"), io::ErrorKind::NotFound.into()))
            }
            Self::Directory(path) => {
                let file = File::open(path.join(name))
                    .map_err(|source| Error::host(format!("read {name} of the image"), source))?;
                Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, file)))
            }
            Self::Archive { file, members } => {
                let mut found = members.get(name);
                if let Some(Member::Symlink(target)) = found {
                    found = members.get(target);
                }
                let Some(Member::Bytes { offset, size }) = found else {
                    return Err(damaged(name, "the image names a file that it does not hold"));
                };
                let failed = |source| Error::host(format!("read {name} of the image"), source);
                let file = file.try_clone().map_err(failed)?;
                let part = FileRange::new(file, *offset, *size);
                Ok(Box::new(BufReader::with_capacity(BUFFER_BYTES, part)))
            }
        }
    }

    /// A small file as a whole.
    pub(super) fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.read(name)?.take(JSON_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|source| Error::host(format!("read {name} of the image"), source))?;
        match bytes.len() as u64 > JSON_BYTES_MAX {
            true => Err(damaged(name, format!("it has more than {JSON_BYTES_MAX} bytes"))),
            false => Ok(bytes),
        }
    }
}

/// Returns the position of each member of an archive.
fn index(file: &File) -> Result<HashMap<String, Member>> {
    let mut members = HashMap::new();
    let mut report = Report::default();
    let mut reader = TarReader::new(BufReader::with_capacity(BUFFER_BYTES, file));
    reader.is_end_optional = true;
    while let Some(member) = reader.next_member()? {
        let Ok(path) = crate::member::tree_path(&member.name, &mut report) else { continue };
        let Ok(name) = String::from_utf8(path.as_bytes().to_vec()) else { continue };
        let found = match member.kind {
            MemberKind::File { size, ranges: None } => Member::Bytes { offset: reader.position(), size },
            MemberKind::Symlink(target) => match resolve(&name, &target) {
                Some(target) => Member::Symlink(target),
                None => continue,
            },
            _ => continue,
        };
        members.insert(name, found);
        if members.len() > MEMBERS_MAX {
            return Err(damaged("the archive", format!("it has more than {MEMBERS_MAX} members")));
        }
    }
    Ok(members)
}

/// A symlink's target from the top of the archive; nothing where it leaves it.
fn resolve(name: &str, target: &[u8]) -> Option<String> {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in std::str::from_utf8(target).ok()?.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}
