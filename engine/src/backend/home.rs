//! The directory of a store: its header, its lock file and its closing mark. Independent of the database in it.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;

pub(super) use super::rows::damaged;
use crate::error::{Error, Result};

/// The store format that this version writes, and the newest it reads. Format 1 had no tombstones.
const STORE_FORMAT: u32 = 2;
const STORE_FORMAT_OLDEST: u32 = 1;
const HEADER_FILE: &str = "AMALGAM";
const LOCK_FILE: &str = "LOCK";
const MARK_FILE: &str = "MARK";
/// Hash of the mark file. If both files exist and do not match, the mark is damaged and is ignored.
const MARK_HASH_FILE: &str = "MARK.hash";
/// Hint for damage that prevents a store from being opened.
pub(super) const RECOVER_HINT: &str = "`amalgam verify --repair` rebuilds what can be rebuilt";
/// The file that reserves disk space for a collection on a full disk.
pub const RESERVE_FILE: &str = "RESERVE";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderState {
    Creating,
    /// An older format.
    Older,
    Ready,
}

/// Reads the header of a store, or writes one into an empty directory.
pub(super) fn prepare(directory: &Path, must_exist: bool) -> Result<HeaderState> {
    let action = "open the store";
    let no_store = || Err(Error::NoStore { path: directory.to_owned() });
    match fs::read_dir(directory) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            if must_exist {
                return no_store();
            }
            create_directory(directory).map_err(|source| Error::from_io("create the store", &source))?;
        }
        Err(source) if source.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(Error::ForeignDirectory { path: directory.to_owned(), why: "it is a file".to_owned() });
        }
        Err(source) => return Err(Error::from_io(action, &source)),
        Ok(_) => {}
    }
    match fs::read_to_string(directory.join(HEADER_FILE)) {
        Ok(header) => read_header(directory, &header),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            let entries = fs::read_dir(directory).map_err(|source| Error::from_io(action, &source))?;
            for entry in entries {
                let entry = entry.map_err(|source| Error::from_io(action, &source))?;
                if entry.file_name() != temporary(HEADER_FILE).as_str() {
                    let why = format!("it holds {}", entry.file_name().display());
                    return Err(Error::ForeignDirectory { path: directory.to_owned(), why });
                }
            }
            if must_exist {
                return no_store();
            }
            write_header(directory, HeaderState::Creating)?;
            Ok(HeaderState::Creating)
        }
        Err(source) if source.kind() == std::io::ErrorKind::InvalidData => Err(damaged_header("it is not text")),
        Err(source) => Err(Error::from_io(action, &source)),
    }
}

fn damaged_header(why: &str) -> Error {
    damaged("header", &format!("{why} (file {HEADER_FILE}); {RECOVER_HINT}"))
}

/// Creates a directory and its parents durably: a power failure must not lose a store with all its commits.
fn create_directory(directory: &Path) -> std::io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_directory(parent)?;
    match fs::create_dir(directory) {
        Err(source) if source.kind() != std::io::ErrorKind::AlreadyExists => return Err(source),
        _ => {}
    }
    File::open(parent)?.sync_all()
}

fn read_header(directory: &Path, header: &str) -> Result<HeaderState> {
    let mut lines = header.lines();
    if lines.next() != Some("amalgam store") {
        // Where a database of ours lies beside it, it is a header that was damaged.
        if directory.join("db").join("CURRENT").exists() {
            return Err(damaged_header("it does not begin as a header does"));
        }
        let why = format!("its file {HEADER_FILE} is another program's");
        return Err(Error::ForeignDirectory { path: directory.to_owned(), why });
    }
    let format = lines.next().and_then(|line| line.strip_prefix("format ")).and_then(|text| text.parse::<u32>().ok());
    match (format, lines.next()) {
        (Some(found), _) if found > STORE_FORMAT => {
            Err(Error::NewerFormat { path: directory.to_owned(), found, known: STORE_FORMAT })
        }
        (Some(STORE_FORMAT), Some("state ready")) => Ok(HeaderState::Ready),
        (Some(STORE_FORMAT_OLDEST..STORE_FORMAT), Some("state ready")) => Ok(HeaderState::Older),
        (Some(STORE_FORMAT_OLDEST..=STORE_FORMAT), Some("state creating")) => Ok(HeaderState::Creating),
        _ => Err(damaged_header("it does not say format and state")),
    }
}

pub(super) fn write_header(directory: &Path, state: HeaderState) -> Result<()> {
    let state = match state {
        HeaderState::Creating => "creating",
        HeaderState::Older | HeaderState::Ready => "ready",
    };
    let text = format!("amalgam store\nformat {STORE_FORMAT}\nstate {state}\n");
    write_file(directory, HEADER_FILE, text.as_bytes()).map_err(|source| Error::from_io("create the store", &source))
}

fn temporary(name: &str) -> String {
    format!("{name}.new")
}

/// Replaces a file atomically: after a power failure either the old or the new file exists, complete.
fn write_file(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let new = directory.join(temporary(name));
    let mut file = File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, directory.join(name))?;
    File::open(directory)?.sync_all()
}

/// The state of a closed store, checked when it is opened next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The last operation in the log. If the log ends earlier when the store is opened, it is damaged.
    pub(super) last_operation: u64,
    /// The fingerprint of the database's manifest. A manifest is only appended to, and the database may not notice that its end
    /// is missing.
    pub(super) catalogue: Fingerprint,
}

/// The length and hash of the beginning of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) name: String,
    pub(super) length: u64,
    pub(super) hash: blake3::Hash,
}

impl Fingerprint {
    /// Computes the fingerprint of a whole file.
    pub(super) fn of(directory: &Path, name: &str) -> std::io::Result<Self> {
        let bytes = fs::read(directory.join(name))?;
        Ok(Self { name: name.to_owned(), length: bytes.len() as u64, hash: blake3::hash(&bytes) })
    }

    /// Returns whether the file still begins with these bytes.
    pub(super) fn holds(&self, directory: &Path) -> std::io::Result<bool> {
        let mut bytes = Vec::new();
        File::open(directory.join(&self.name))?.take(self.length).read_to_end(&mut bytes)?;
        Ok(bytes.len() as u64 == self.length && blake3::hash(&bytes) == self.hash)
    }
}

pub(super) fn write_mark(directory: &Path, mark: &Mark) -> std::io::Result<()> {
    let Mark { last_operation, catalogue: Fingerprint { name, length, hash } } = mark;
    let text = format!("operation {last_operation}\ncatalogue {name} {length} {hash}\n");
    write_file(directory, MARK_FILE, text.as_bytes())?;
    write_file(directory, MARK_HASH_FILE, blake3::hash(text.as_bytes()).to_hex().as_bytes())
}

/// Reads the closing mark. Returns `None` if there is none, or it cannot be parsed: a store opens without it, but some damage then
/// goes unnoticed.
pub(super) fn read_mark(directory: &Path) -> Result<Option<Mark>> {
    match fs::read(directory.join(MARK_FILE)) {
        Ok(bytes) => Ok(std::str::from_utf8(&bytes).ok().and_then(parse_mark)),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::from_io("open the store", &source)),
    }
}

/// Returns whether the mark does not have its hash, and so is damaged. A mark without a hash file, of an older version, counts as
/// undamaged.
pub(super) fn is_mark_damaged(directory: &Path) -> bool {
    match (fs::read(directory.join(MARK_FILE)), fs::read(directory.join(MARK_HASH_FILE))) {
        (Ok(mark), Ok(hash)) => blake3::hash(&mark).to_hex().as_bytes() != hash,
        _ => false,
    }
}

/// Removes the mark. The next close of the store writes a new one.
pub(super) fn remove_mark(directory: &Path) -> Result<()> {
    for name in [MARK_FILE, MARK_HASH_FILE] {
        match fs::remove_file(directory.join(name)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::from_io("remove the mark", &source));
            }
            _ => {}
        }
    }
    Ok(())
}

fn parse_mark(text: &str) -> Option<Mark> {
    let (operation, catalogue) = text.strip_suffix('\n')?.split_once('\n')?;
    let last_operation = operation.strip_prefix("operation ")?.parse().ok()?;
    let mut words = catalogue.strip_prefix("catalogue ")?.split(' ');
    let name = words.next()?.to_owned();
    let length = words.next()?.parse().ok()?;
    let hash = blake3::Hash::from_hex(words.next()?).ok()?;
    words.next().is_none().then_some(Mark { last_operation, catalogue: Fingerprint { name, length, hash } })
}

pub(super) fn lock(directory: &Path) -> Result<File> {
    let action = "lock the store";
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(directory.join(LOCK_FILE))
        .map_err(|source| Error::from_io(action, &source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => Err(Error::Busy { path: directory.to_owned() }),
        Err(fs::TryLockError::Error(source)) => Err(Error::from_io(action, &source)),
    }
}

/// Creates a file of about this size that only reserves disk space.
pub(super) fn keep_reserve(directory: &Path, bytes: u64) -> std::io::Result<()> {
    let path = directory.join(RESERVE_FILE);
    let has = fs::metadata(&path).map_or(0, |metadata| metadata.len());
    if has * 2 > bytes {
        return Ok(());
    }
    let written = File::options().create(true).append(true).open(&path).and_then(|mut file| {
        // Written zeros occupy disk blocks; a file that was only extended does not.
        std::io::copy(&mut std::io::repeat(0).take(bytes - has), &mut file)?;
        file.sync_all()
    });
    written.inspect_err(|_| fs::remove_file(&path).unwrap_or_default())
}

/// Frees the reserved disk space.
pub(super) fn release_reserve(directory: &Path) -> Result<()> {
    match fs::remove_file(directory.join(RESERVE_FILE)) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(Error::from_io("make room", &source)),
        _ => Ok(()),
    }
}

/// Removes the files that an import left behind. Only files are there: a directory, or a mount, is an error and stays.
pub(super) fn clear(ingest: &Path) -> Result<()> {
    let cleared = || {
        for entry in fs::read_dir(ingest)? {
            fs::remove_file(entry?.path())?;
        }
        fs::remove_dir(ingest)
    };
    match cleared() {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::from_io("clear what an import left behind", &source))
        }
        _ => Ok(()),
    }
}
