//! Reads the files of an image, from a directory or from a tar archive with random access.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

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
/// The most bytes that a compressed archive may unpack to.
const UNPACKED_BYTES_MAX: u64 = 256 << 30;
/// The most bytes that it may unpack to for each of its own bytes, beyond [`UNPACKED_BYTES_FREE`].
const UNPACKED_RATIO_MAX: u64 = 100;
/// The bytes that every compressed archive may unpack to.
const UNPACKED_BYTES_FREE: u64 = 64 << 20;

pub(super) enum ImageFiles {
    Directory(OwnedFd),
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
        let found = fs::metadata(path).map_err(failed)?;
        // A pipe would block the thread.
        if !found.is_dir() && !found.is_file() {
            let why = format!("{} is neither a directory nor a regular file", path.display());
            return Err(Error::Invalid { what: "image", why });
        }
        if found.is_dir() {
            return Ok(Self::Directory(File::open(path).map_err(failed)?.into()));
        }
        let mut file = File::open(path).map_err(failed)?;
        let mut first = [0; 6];
        let read = file.read(&mut first).map_err(failed)?;
        file.rewind().map_err(failed)?;
        if Compression::of_magic(&first[..read]) != Compression::None {
            // Layers are read in an order of their own: a compressed archive is unpacked first.
            let packed_bytes = file.metadata().map_err(failed)?.len();
            let mut plain = tempfile::tempfile().map_err(failed)?;
            unpack(decoder(file, None)?, &mut plain, unpacked_bytes_max(packed_bytes), path)?;
            plain.rewind().map_err(failed)?;
            file = plain;
        }
        let members = index(&file)?;
        Ok(Self::Archive { file, members })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(directory) => open_inside(directory, name).is_ok(),
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
            Self::Directory(directory) => {
                let file = open_inside(directory, name)
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

    /// Reads a whole file of limited size.
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

/// Opens a regular file of an image directory. A symlink must stay inside of the directory; where the kernel cannot check that, there
/// must be none.
fn open_inside(directory: &OwnedFd, name: &str) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = match rustix::fs::openat2(directory, name, flags, Mode::empty(), inside) {
        // Old kernels, and containers that filter the call.
        Err(Errno::NOSYS | Errno::PERM) => open_without_symlinks(directory, name, flags)?,
        opened => opened?,
    };
    let file = File::from(opened);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

fn open_without_symlinks(directory: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let mut here = directory.try_clone()?;
    let mut parts = name.split('/').peekable();
    while let Some(part) = parts.next() {
        let on_the_way = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let flags = if parts.peek().is_some() { on_the_way } else { flags };
        here = rustix::fs::openat(&here, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(here)
}

/// Returns how many bytes a compressed archive may unpack to.
fn unpacked_bytes_max(packed_bytes: u64) -> u64 {
    packed_bytes.saturating_mul(UNPACKED_RATIO_MAX).clamp(UNPACKED_BYTES_FREE, UNPACKED_BYTES_MAX)
}

/// Unpacks an archive into a temporary file, unless it is larger than this.
fn unpack(packed: impl Read, plain: &mut File, bytes_max: u64, path: &Path) -> Result<()> {
    let copied = io::copy(&mut packed.take(bytes_max + 1), plain)
        .map_err(|source| Error::host(format!("unpack {}", path.display()), source))?;
    if copied <= bytes_max {
        return Ok(());
    }
    let why = format!(
        "it unpacks to more than {bytes_max} bytes, the most for a compressed image of its size; if you trust it, unpack it yourself and \
         import the plain archive"
    );
    Err(damaged(path.display().to_string(), why))
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

/// Resolves a symlink's target to a name from the top of the archive, where absolute targets begin. Returns `None` where it
/// leaves the archive.
fn resolve(name: &str, target: &[u8]) -> Option<String> {
    let mut parts: Vec<&str> = match target.starts_with(b"/") {
        true => Vec::new(),
        false => name.split('/').collect(),
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_that_unpacks_to_too_much_is_refused() {
        let path = Path::new("image.tar.gz");
        let unpacked = |bytes: u64, most: u64| {
            let mut plain = tempfile::tempfile().expect("a file");
            unpack(io::repeat(0).take(bytes), &mut plain, most, path)
        };
        assert!(unpacked(1_000, 1_000).is_ok());
        let refused = unpacked(1_001, 1_000).expect_err("too much").to_string();
        assert!(refused.contains("unpacks to more than 1000 bytes"), "{refused}");
        assert_eq!(unpacked_bytes_max(1), UNPACKED_BYTES_FREE);
        assert_eq!(unpacked_bytes_max(1 << 30), 100 << 30);
        assert_eq!(unpacked_bytes_max(u64::MAX), UNPACKED_BYTES_MAX);
    }

    #[test]
    fn symlinks_of_an_archive_are_resolved_from_their_directory_or_from_the_top() {
        for (name, target, expected) in [
            ("two/layer.tar", "../one/layer.tar", Some("one/layer.tar")),
            ("two/layer.tar", "other.tar", Some("two/other.tar")),
            ("two/layer.tar", "/one/./layer.tar", Some("one/layer.tar")),
            ("two/layer.tar", "../../one", None),
            ("two/layer.tar", "/../one", None),
        ] {
            assert_eq!(resolve(name, target.as_bytes()).as_deref(), expected, "{name} -> {target}");
        }
    }

    #[test]
    fn a_symlink_leads_out_of_no_image() {
        let around = tempfile::tempdir().expect("a directory");
        let image = around.path().join("image");
        fs::create_dir_all(image.join("blobs")).expect("made");
        fs::write(around.path().join("secret"), "secret").expect("written");
        fs::write(image.join("blobs/layer"), "layer").expect("written");
        for (target, name) in
            [("../secret", "out"), ("/etc/passwd", "absolute"), ("..", "up"), ("blobs/layer", "inside")]
        {
            std::os::unix::fs::symlink(target, image.join(name)).expect("a symlink");
        }
        let files = ImageFiles::open(&image).expect("opened");
        for name in ["out", "absolute", "up/secret", "blobs"] {
            assert!(!files.has(name) && files.read(name).is_err(), "{name}");
        }
        assert_eq!(files.read_small("blobs/layer").expect("read"), b"layer");
        let ImageFiles::Directory(directory) = &files else { panic!("a directory") };
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        assert!(open_without_symlinks(directory, "blobs/layer", flags).is_ok());
        assert!(
            ["out", "up/secret", "inside"].iter().all(|name| open_without_symlinks(directory, name, flags).is_err())
        );
    }
}
