//! Backups: a directory of numbered streams, each with what came since the one before it, and a manifest.
//!
//! A backup holds every name, as they all were at one moment, and everything that these hold, with the history behind it. It does
//! not hold the operation log and the requests (what was can be read, but not undone), what lies in quarantine, and what no name
//! leads to. Of tombstones it holds those of contents that a name still leads to. A purge does not reach into backups: parts that
//! were written before it still have the bytes.

mod manifest;

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use amalgam_engine::{Error as EngineError, OperationContext, Store, Time};

use crate::error::{Error, Result};
use crate::have::Have;
use crate::kinds::Origin;
use crate::progress::Progress;
use crate::receive::{LeftOut, Names, ReceiveOptions, Received, Source, receive_from};
use crate::selection::Selection;
use crate::send::{SendOptions, Sent, send};
use crate::stream::CHECK_BYTES;
use manifest::{Manifest, Part};

/// The directory of the scratch store of a verification, in that of the backup.
#[cfg(feature = "rocksdb")]
const SCRATCH: &str = "verify.new";

/// What a backup came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupDone {
    /// The part that was written, from 1.
    pub part: u64,
    /// Whether it builds on the parts before it.
    pub is_difference: bool,
    /// The operation after which the store was as the backup has it.
    pub operation: u64,
    /// What is in it.
    pub sent: Sent,
}

/// Backs a store up into a directory, which is made if there is none: everything the first time, then what came since.
///
/// The store may be in use. Every chunk is hashed on its way out, so a backup of damaged bytes is an error now and not when it is
/// needed. A part counts once the manifest names it; what a crash leaves of one is overwritten.
pub fn backup(store: &Store, directory: &Path, time: Time, progress: &Progress) -> Result<BackupDone> {
    fs::create_dir_all(directory).map_err(|source| failed("make", directory, source))?;
    let _lock = lock(directory)?;
    let mut manifest = Manifest::read(directory)?.unwrap_or_default();
    for part in &manifest.parts {
        check_length(directory, part)?;
    }
    let had = manifest.parts.last().and_then(|part| read_tips(directory, part)).unwrap_or_default();
    let selection = Selection::of_backup(store)?;
    let number = manifest.parts.len() as u64 + 1;
    let mut part = Part { number, operation: selection.operation(), time, ..Part::default() };
    let options = SendOptions { had: had.snapshots, verify: true };
    let sent = write_new(directory, &part.stream(), |file| send(store, &selection, &options, file, progress))?;
    part.length = sent.bytes;
    part.check = read_check(&directory.join(part.stream())).map_err(|source| failed("read", directory, source))?;
    let tips = Have { snapshots: selection.tips().to_vec() }.encode();
    part.tips = *blake3::hash(tips.as_bytes()).as_bytes();
    let write = |file: &mut File| file.write_all(tips.as_bytes()).map_err(|source| failed("write", directory, source));
    write_new(directory, &part.tips_file(), write)?;
    manifest.parts.push(part);
    manifest.write(directory)?;
    Ok(BackupDone { part: number, is_difference: !options.had.is_empty(), operation: selection.operation(), sent })
}

/// Brings a backup back into a store that holds nothing yet. Nothing is visible there before all of it has arrived.
///
/// An object that is damaged or breaks a rule of the format is skipped with the objects that refer to it, and reported; a workspace
/// whose head is among those falls back to the nearest first parent that came back. Merges that wait in the queue come back held.
///
/// Damaged bytes cost the frame that they are in. A damaged length costs the rest of its part, and in the last part, where the names
/// are, it is an error.
pub fn restore_backup(
    directory: &Path,
    store: &Store,
    act: &OperationContext,
    progress: &Progress,
) -> Result<Received> {
    if store.last_operation()? != 0 {
        let why = "the store is not empty; restore the backup into a new store".to_owned();
        return Err(EngineError::Invalid { what: "restore", why }.into());
    }
    let Some(manifest) = Manifest::read(directory)? else {
        return Err(Error::Backup { part: manifest::FILE.to_owned(), why: "it is not there".to_owned() });
    };
    for part in &manifest.parts {
        check_length(directory, part)?;
    }
    let Some(last) = manifest.parts.last() else {
        return Err(Error::Backup { part: manifest::FILE.to_owned(), why: "it names no part".to_owned() });
    };
    let (mut before, mut left_out): (Option<Received>, _) = (None, LeftOut::default());
    for part in &manifest.parts {
        let is_last = part.number == last.number;
        let names = if is_last { Names::AsSent } else { Names::None };
        let options = ReceiveOptions { names, replace: false, tombstones: true };
        let file = File::open(directory.join(part.stream())).map_err(|source| gone(part, &source))?;
        let left_out_before = left_out.reading(part.stream());
        let source = Source { origin: Origin::Backup, stream: BufReader::new(file), left_out: left_out_before };
        let mut received =
            receive_from(source, store, &options, act, progress).map_err(|error| of_part(part, error))?;
        left_out = std::mem::take(&mut received.left_out);
        // What the next part builds on is kept until it is there.
        before = Some(received);
    }
    let received = before.expect("there is a last part");
    Ok(Received { left_out, ..received })
}

/// Restores a backup into a scratch store beside it, checks that store, and removes it: whatever would not come back is an error now
/// and not when it is needed. `remove` removes a tree, which need not be there.
#[cfg(feature = "rocksdb")]
pub fn verify_backup(
    directory: &Path,
    act: &OperationContext,
    progress: &Progress,
    remove: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<()> {
    let scratch = directory.join(SCRATCH);
    let removed = || remove(&scratch).map_err(|source| failed("remove", &scratch, source));
    removed()?;
    let verified = verify_in(directory, &scratch, act, progress);
    removed()?;
    verified
}

#[cfg(feature = "rocksdb")]
fn verify_in(directory: &Path, scratch: &Path, act: &OperationContext, progress: &Progress) -> Result<()> {
    let store = Store::open(scratch)?;
    let received = restore_backup(directory, &store, act, progress)?;
    if let Some((what, why)) = received.left_out.listed().first() {
        let others = received.left_out.listed().len() as u64 - 1 + received.left_out.more();
        let why = format!("{what} and {others} others would not come back as they are: {why}");
        return Err(Error::Backup { part: what.clone(), why });
    }
    let go_on = |_: &_| match progress.check() {
        Ok(()) => std::ops::ControlFlow::Continue(()),
        Err(_) => std::ops::ControlFlow::Break(()),
    };
    let report = amalgam_engine::verify(&store, &amalgam_engine::VerifyOptions::reading_data(), &go_on)?;
    progress.check()?;
    if !report.is_clean() {
        let why = format!("a store that was restored from it does not verify: {} problems", report.problems.len());
        return Err(Error::Backup { part: manifest::FILE.to_owned(), why });
    }
    Ok(())
}

fn failed(action: &str, path: &Path, source: std::io::Error) -> Error {
    Error::host(format!("{action} {}", path.display()), source)
}

fn gone(part: &Part, source: &std::io::Error) -> Error {
    let why = match source.kind() {
        std::io::ErrorKind::NotFound => "it is missing".to_owned(),
        _ => source.to_string(),
    };
    Error::Backup { part: part.stream(), why }
}

/// Trouble with a stream is trouble with its file.
fn of_part(part: &Part, error: Error) -> Error {
    match error {
        Error::Engine(_) | Error::Cancelled | Error::Host { .. } | Error::Diverged { .. } => error,
        other => Error::Backup { part: part.stream(), why: other.to_string() },
    }
}

/// Held while something is written into a backup.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join("LOCK");
    let file = File::create(&path).map_err(|source| failed("open", &path, source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(fs::TryLockError::WouldBlock) => {
            Err(Error::Backup { part: "LOCK".to_owned(), why: "another backup is being written here".to_owned() })
        }
        Err(fs::TryLockError::Error(source)) => Err(failed("lock", &path, source)),
    }
}

fn check_length(directory: &Path, part: &Part) -> Result<()> {
    let path = directory.join(part.stream());
    let wrong = |why: String| Err(Error::Backup { part: part.stream(), why });
    match fs::metadata(&path) {
        Ok(found) if found.len() == part.length => {}
        Ok(found) => return wrong(format!("it has {} bytes instead of {}", found.len(), part.length)),
        Err(source) => return Err(gone(part, &source)),
    }
    match read_check(&path) {
        Ok(check) if check == part.check => Ok(()),
        Ok(_) => wrong("its checksum does not match".to_owned()),
        Err(source) => wrong(source.to_string()),
    }
}

fn read_check(path: &Path) -> std::io::Result<[u8; CHECK_BYTES]> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::End(-(CHECK_BYTES as i64)))?;
    let mut check = [0; CHECK_BYTES];
    file.read_exact(&mut check)?;
    Ok(check)
}

/// What a part holds; nothing where the list is not as it was written: then everything is sent again.
fn read_tips(directory: &Path, part: &Part) -> Option<Have> {
    let text = fs::read_to_string(directory.join(part.tips_file())).ok()?;
    if *blake3::hash(text.as_bytes()).as_bytes() != part.tips {
        return None;
    }
    Have::decode(&text).ok()
}

/// Writes a file under another name first: what has its name is whole and on disk.
fn write_new<T>(directory: &Path, name: &str, write: impl FnOnce(&mut File) -> Result<T>) -> Result<T> {
    let (path, new) = (directory.join(name), directory.join(format!("{name}.new")));
    let mut file = File::create(&new).map_err(|source| failed("write", &new, source))?;
    let written = write(&mut file)?;
    file.sync_all().map_err(|source| failed("write", &new, source))?;
    fs::rename(&new, &path).map_err(|source| failed("write", &path, source))?;
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|source| failed("write", directory, source))?;
    Ok(written)
}
