//! Backups: a directory of numbered streams, each with the changes since the previous one, and a manifest.
//!
//! A backup holds all names at one moment, and everything that they reach, with its history. It holds neither the operation
//! log nor request ids (so history can be read but not undone), nor quarantined objects, nor objects that no name reaches. It
//! holds the tombstones of contents that a name still reaches. A purge does not change backups: parts written before it still
//! have the bytes.

mod files;
mod manifest;
mod tips;

use std::fs::{self, File};
use std::io::{BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use amalgam_engine::{ChunkId, Error as EngineError, OperationContext, Store, Time};

use crate::error::{Error, Result};
use crate::have::Have;
use crate::progress::Progress;
use crate::receive::{Names, Omissions, ReceiveOptions, ReceiveReport, ReceiveSource, receive_from};
use crate::ref_kinds::Origin;
use crate::selection::Selection;
use crate::send::{SendOptions, SendReport, send_noting_purged};
use crate::stream::CHECK_BYTES;
use files::{failed, write_new};
use manifest::{Manifest, Part};
use tips::Tips;

/// Name of the scratch store of a verification, in the directory of the backup.
#[cfg(feature = "rocksdb")]
const SCRATCH: &str = "verify.new";

/// Result of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// The number of the part that was written, from 1.
    pub part: u64,
    /// Whether it builds on earlier parts.
    pub is_difference: bool,
    /// The operation after which the store was in the state of the backup.
    pub operation: u64,
    /// Contents of the part.
    pub sent: SendReport,
}

/// Backs a store up into a directory, which is created if necessary: everything the first time, then the changes.
///
/// The store may be in use. Every chunk is hashed on its way out, so damaged bytes fail the backup rather than its restore. A
/// part counts once the manifest names it; a partial one that a crash left is overwritten. Everything is sent, too, if a content
/// that the earlier parts have as purged is in the store again.
pub fn backup(store: &Store, directory: &Path, time: Time, progress: &Progress) -> Result<BackupReport> {
    files::create_directory(directory)?;
    let _lock = lock(directory)?;
    let mut manifest = Manifest::read(directory)?.unwrap_or_default();
    for part in &manifest.parts {
        check_length(directory, part)?;
    }
    let mut last = manifest.parts.last().and_then(|part| read_tips(directory, part)).unwrap_or_default();
    if last.is_outdated(store)? {
        last = Tips::default();
    }
    let Tips { have, mut purged } = last;
    let selection = Selection::of_backup(store)?;
    let number = manifest.parts.len() as u64 + 1;
    let mut part = Part { number, operation: selection.operation(), time, ..Part::default() };
    let options = SendOptions { had: have.snapshots, verify: true };
    let write = |file: &mut File| send_noting_purged(store, &selection, &options, file, progress);
    let (sent, purged_in_part) = write_new(directory, &part.stream(), write)?;
    part.length = sent.bytes;
    part.check = read_check(&directory.join(part.stream())).map_err(|source| failed("read", directory, source))?;
    purged.extend(purged_in_part.iter().map(|id| ChunkId::from_bytes(id.hash)));
    let tips = Tips { have: Have { snapshots: selection.tips().to_vec() }, purged }.encode();
    part.tips = *blake3::hash(tips.as_bytes()).as_bytes();
    let write = |file: &mut File| file.write_all(tips.as_bytes()).map_err(|source| failed("write", directory, source));
    write_new(directory, &part.tips_file(), write)?;
    manifest.parts.push(part);
    manifest.write(directory)?;
    Ok(BackupReport { part: number, is_difference: !options.had.is_empty(), operation: selection.operation(), sent })
}

/// Restores a backup into an empty store. Nothing is visible there before everything has arrived.
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
) -> Result<ReceiveReport> {
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
    let (mut before, mut left_out): (Option<ReceiveReport>, _) = (None, Omissions::default());
    for part in &manifest.parts {
        let is_last = part.number == last.number;
        let names = if is_last { Names::AsSent } else { Names::None };
        let options = ReceiveOptions { names, replace: false, tombstones: true };
        let file = File::open(directory.join(part.stream())).map_err(|source| missing_part(part, &source))?;
        let left_out_before = left_out.reading(part.stream());
        let source = ReceiveSource { origin: Origin::Backup, stream: BufReader::new(file), left_out: left_out_before };
        let mut received =
            receive_from(source, store, &options, act, progress).map_err(|error| part_error(part, error))?;
        left_out = std::mem::take(&mut received.left_out);
        // The pins of a part are kept until the next one, which builds on it, has arrived.
        before = Some(received);
    }
    let received = before.expect("there is a last part");
    Ok(ReceiveReport { left_out, ..received })
}

/// Verifies a backup: restores it into a scratch store beside it, checks that store, and removes it. `remove` removes a
/// directory tree, which may not exist.
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

fn missing_part(part: &Part, source: &std::io::Error) -> Error {
    let why = match source.kind() {
        std::io::ErrorKind::NotFound => "it is missing".to_owned(),
        _ => source.to_string(),
    };
    Error::Backup { part: part.stream(), why }
}

/// Turns an error of a stream into an error of the part's file.
fn part_error(part: &Part, error: Error) -> Error {
    match error {
        Error::Engine(_) | Error::Cancelled | Error::Host { .. } | Error::Diverged { .. } => error,
        other => Error::Backup { part: part.stream(), why: other.to_string() },
    }
}

/// Locks a backup while a part is written.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join("LOCK");
    let file = files::open_lock(&path).map_err(|source| failed("open", &path, source))?;
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
        Err(source) => return Err(missing_part(part, &source)),
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

/// Reads the tips of a part. Returns `None` if the list is damaged; the next backup then sends everything.
fn read_tips(directory: &Path, part: &Part) -> Option<Tips> {
    let text = fs::read_to_string(directory.join(part.tips_file())).ok()?;
    if *blake3::hash(text.as_bytes()).as_bytes() != part.tips {
        return None;
    }
    Tips::decode(&text)
}
