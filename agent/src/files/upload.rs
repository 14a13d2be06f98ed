//! An upload: parts with their lengths, and an empty part at the end. Without the end the file is not changed; missing directories
//! above it are made before.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;

use super::Result;
use super::entry::METADATA;
use super::failure::Failure;

/// Largest upload that is held in memory and written directly into the target. A larger one goes to a temporary file that replaces
/// the target.
const HELD_BYTES_MAX: usize = 1 << 20;
/// Largest part of an upload.
const PART_BYTES_MAX: u32 = 16 << 20;
/// Limit on names that are tried for a temporary file.
const NAMES_MAX: u32 = 1_000;

/// Reads an upload and writes it to a path, with directories that are missing. `metadata` are pairs of `KEY=VALUE`.
pub(super) fn write(path: &Path, metadata: &[&str], mut from: impl Read) -> Result<()> {
    // A symlink stays, and its target is written.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.is_dir() {
        return Err(Failure::invalid(format!("{} is a directory", path.display())));
    }
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(Failure::at(parent))?;
    }
    let mut held = Vec::new();
    let is_whole = loop {
        let Some(part) = next(&mut from)? else { break true };
        held.extend_from_slice(&part);
        if held.len() > HELD_BYTES_MAX {
            break false;
        }
    };
    match is_whole {
        true => fs::write(&target, &held).map_err(Failure::at(path))?,
        false => write_beside(&target, &held, &mut from)?,
    }
    for pair in metadata {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let set = rustix::fs::setxattr(&target, format!("{METADATA}{key}"), value.as_bytes(), XattrFlags::empty());
        set.map_err(|error| Failure::at(path)(error.into()))?;
    }
    super::stat(path)
}

/// Writes to a file beside the target, which takes its place at the end.
fn write_beside(target: &Path, first: &[u8], from: &mut impl Read) -> Result<()> {
    let beside = Beside::create(target)?;
    let mut file = &beside.file;
    file.write_all(first).map_err(Failure::at(target))?;
    while let Some(part) = next(from)? {
        file.write_all(&part).map_err(Failure::at(target))?;
    }
    if let Ok(before) = fs::metadata(target) {
        file.set_permissions(before.permissions()).map_err(Failure::at(target))?;
    }
    fs::rename(&beside.path, target).map_err(Failure::at(target))
}

/// A file that is removed unless it got another name.
struct Beside {
    file: File,
    path: PathBuf,
}

impl Beside {
    fn create(target: &Path) -> Result<Self> {
        let mut number = 0;
        loop {
            let path = target.with_file_name(format!(".upload-{}-{number}", std::process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok(Self { file, path }),
                // An upload that was killed has left the file, and process ids repeat.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < NAMES_MAX => number += 1,
                Err(error) => return Err(Failure::at(target)(error)),
            }
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // Gone after a rename.
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads the next part of an upload. Returns `None` at the empty part that ends it.
fn next(from: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(cut)?;
    let length = u32::from_be_bytes(length);
    if length == 0 {
        return Ok(None);
    }
    if length > PART_BYTES_MAX {
        return Err(Failure::invalid("a part of an upload is too long"));
    }
    let mut part = vec![0; usize::try_from(length).unwrap_or(0)];
    from.read_exact(&mut part).map_err(cut)?;
    Ok(Some(part))
}

fn cut(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Failure::new("aborted", "the upload ended early; the file was not changed"),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(all: &[&[u8]], is_ended: bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        for part in all {
            bytes.extend_from_slice(&u32::try_from(part.len()).expect("short").to_be_bytes());
            bytes.extend_from_slice(part);
        }
        if is_ended {
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes
    }

    #[test]
    fn an_upload_without_its_end_changes_nothing() {
        let directory = std::env::temp_dir().join(format!("amalgam-upload-{}", std::process::id()));
        let path = directory.join("a/b");
        write(&path, &[], parts(&[b"one", b"two"], true).as_slice()).expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"onetwo");
        let long = vec![7; HELD_BYTES_MAX + 1];
        for cut in [parts(&[b"lost"], false), parts(&[&long, b"x"], false), b"\0\0\0\x05abc".to_vec()] {
            assert_eq!(write(&path, &[], cut.as_slice()).expect_err("cut").code, "aborted");
        }
        let lying = [0xff; 64];
        assert_eq!(write(&path, &[], lying.as_slice()).expect_err("too long").code, "invalid_argument");
        assert_eq!(fs::read(&path).expect("read"), b"onetwo");
        assert_eq!(fs::read_dir(directory.join("a")).expect("read").count(), 1);
        write(&path, &[], parts(&[&long, b"end"], true).as_slice()).expect("written");
        assert_eq!(fs::read(&path).expect("read").len(), HELD_BYTES_MAX + 4);
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn a_file_that_a_killed_upload_left_does_not_stop_the_next_one() {
        let directory = std::env::temp_dir().join(format!("amalgam-upload-left-{}", std::process::id()));
        let path = directory.join("file");
        fs::create_dir_all(&directory).expect("made");
        // Never dropped, as in a process that is killed.
        let left = std::mem::ManuallyDrop::new(Beside::create(&path).expect("made"));
        let long = vec![7; HELD_BYTES_MAX + 1];
        write(&path, &[], parts(&[&long], true).as_slice()).expect("written");
        assert_eq!(fs::read(&path).expect("read").len(), long.len());
        assert!(left.path.exists(), "it may be the file of another upload");
        fs::remove_dir_all(&directory).expect("removed");
    }
}
