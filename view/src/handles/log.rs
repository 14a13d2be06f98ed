//! The handle table file: an append-only log. The last record of an inode wins. Rewritten when most records are obsolete.
//!
//! Opening truncates the file at the first torn record. Records that cannot be written stay in memory and are retried with the next one.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use amalgam_engine::Name;
use foldhash::{HashMap, HashMapExt as _};

use crate::attributes::Ino;
use crate::dentry::Dentry;

const MAGIC: &[u8; 8] = b"AMHAND1\n";
/// Length and checksum before each record.
const HEAD_BYTES: usize = 8;
/// Limit of dentries per record.
const DENTRIES_MAX: usize = 64;
const RECORD_BYTES_MAX: usize = 18 + DENTRIES_MAX * (9 + 255);
/// Files with fewer records are not rewritten.
const RECORDS_MIN: usize = 4_096;

/// Limit of buffered records while the file cannot be written.
const BUFFER_BYTES_MAX: usize = 8 << 20;

/// The state of a handle. A record without dentries removes it.
pub(super) struct Record {
    pub(super) ino: Ino,
    pub(super) generation: u64,
    pub(super) is_directory: bool,
    pub(super) dentries: Vec<Dentry>,
}

/// The open table file and the records that are not in it yet.
pub(super) struct Log {
    path: PathBuf,
    file: Arc<File>,
    end: u64,
    records: usize,
    /// Records that are not in the file yet.
    buffer: Vec<u8>,
    is_dirty: AtomicBool,
    /// Whether records were dropped because they could not be written for too long.
    is_incomplete: bool,
}

impl Log {
    /// Opens or creates a log, and returns its current records.
    pub(super) fn open(path: &Path) -> io::Result<(Self, Vec<Record>)> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let bytes = match std::fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let (found, end, records) = read(&bytes);
        let file = Arc::new(File::options().create(true).truncate(false).read(true).write(true).open(path)?);
        file.set_len(end)?;
        let mut log = Self {
            path: path.to_owned(),
            file,
            end,
            records,
            buffer: Vec::new(),
            is_dirty: AtomicBool::new(false),
            is_incomplete: false,
        };
        if end == 0 {
            log.buffer.extend_from_slice(MAGIC);
            sync_parent(path)?;
        }
        log.flush();
        Ok((log, found))
    }

    /// Buffers a record.
    pub(super) fn put(&mut self, record: &Record) {
        encode(record, &mut self.buffer);
        self.records += 1;
    }

    /// Writes the buffered records.
    pub(super) fn flush(&mut self) {
        if self.buffer.is_empty() {
            return;
        }
        // On failure the buffer stays; a torn tail is cut off at the next open.
        if self.file.write_all_at(&self.buffer, self.end).is_ok() {
            self.end += self.buffer.len() as u64;
            self.buffer.clear();
            self.is_dirty.store(true, Relaxed);
        } else if self.buffer.len() > BUFFER_BYTES_MAX {
            // A full disk: give up these records, and write the whole table once there is room.
            self.buffer.clear();
            self.is_incomplete = true;
        }
    }

    /// Returns whether the log should be rewritten: less than a quarter of its records is in use (`known`), or records were lost.
    pub(super) fn is_mostly_obsolete(&self, known: usize) -> bool {
        self.records > RECORDS_MIN && (self.is_incomplete || self.records / 4 > known)
    }

    /// Replaces the file by one with these records only.
    pub(super) fn rewrite(&mut self, records: impl Iterator<Item = Record>) {
        let mut bytes = MAGIC.to_vec();
        let mut count = 0;
        for record in records {
            encode(&record, &mut bytes);
            count += 1;
        }
        let new = self.path.with_extension("new");
        let replace = || -> io::Result<File> {
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&new)?;
            file.write_all_at(&bytes, 0)?;
            file.sync_data()?;
            std::fs::rename(&new, &self.path)?;
            sync_parent(&self.path)?;
            Ok(file)
        };
        match replace() {
            Ok(file) => {
                self.file = Arc::new(file);
                (self.end, self.records) = (bytes.len() as u64, count);
                self.buffer.clear();
                self.is_incomplete = false;
            }
            // Retried after as many further records.
            Err(_) => {
                std::fs::remove_file(&new).ok();
                self.records = 0;
            }
        }
    }

    /// Returns the file if it has unsynced records.
    pub(super) fn unsynced(&self) -> Option<Arc<File>> {
        self.is_dirty.swap(false, Relaxed).then(|| Arc::clone(&self.file))
    }

    pub(super) fn sync_failed(&self) {
        self.is_dirty.store(true, Relaxed);
    }
}

/// Makes the name of a file durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn encode(record: &Record, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEAD_BYTES]);
    out.extend_from_slice(&record.ino.to_le_bytes());
    out.extend_from_slice(&record.generation.to_le_bytes());
    out.push(u8::from(record.is_directory));
    let dentries = &record.dentries[..record.dentries.len().min(DENTRIES_MAX)];
    out.push(dentries.len() as u8);
    for Dentry { parent, name } in dentries {
        out.extend_from_slice(&parent.to_le_bytes());
        out.push(name.as_bytes().len() as u8);
        out.extend_from_slice(name.as_bytes());
    }
    let body = start + HEAD_BYTES;
    let (length, sum) = ((out.len() - body) as u32, crc32fast::hash(&out[body..]));
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..body].copy_from_slice(&sum.to_le_bytes());
}

/// Returns the current records, the end of the last complete record, and the number of records.
fn read(bytes: &[u8]) -> (Vec<Record>, u64, usize) {
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else { return (Vec::new(), 0, 0) };
    let mut found: HashMap<Ino, Record> = HashMap::new();
    let mut count = 0;
    while let Some((record, left)) = read_record(rest) {
        rest = left;
        count += 1;
        match record.dentries.is_empty() {
            true => drop(found.remove(&record.ino)),
            false => drop(found.insert(record.ino, record)),
        }
    }
    (found.into_values().collect(), (bytes.len() - rest.len()) as u64, count)
}

fn read_record(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (head, rest) = bytes.split_at_checked(HEAD_BYTES)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?) as usize;
    if length > RECORD_BYTES_MAX {
        return None;
    }
    let (body, rest) = rest.split_at_checked(length)?;
    if crc32fast::hash(body).to_le_bytes() != head[4..] {
        return None;
    }
    let (fixed, mut names) = body.split_at_checked(18)?;
    let number = |range: std::ops::Range<usize>| Some(u64::from_le_bytes(fixed[range].try_into().ok()?));
    let mut dentries = Vec::with_capacity(usize::from(fixed[17]));
    for _ in 0..fixed[17] {
        let (head, left) = names.split_at_checked(9)?;
        let (name, left) = left.split_at_checked(usize::from(head[8]))?;
        let parent = u64::from_le_bytes(head[..8].try_into().ok()?);
        dentries.push(Dentry { parent, name: Name::new(name).ok()? });
        names = left;
    }
    Some((Record { ino: number(0..8)?, generation: number(8..16)?, is_directory: fixed[16] == 1, dentries }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(ino: Ino, names: &[&str]) -> Record {
        let dentry = |name: &&str| Dentry { parent: 1, name: Name::new(name.as_bytes()).expect("a name") };
        Record { ino, generation: ino + 100, is_directory: false, dentries: names.iter().map(dentry).collect() }
    }

    #[test]
    fn the_last_record_of_a_handle_counts_and_a_torn_one_is_cut_off() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("handles");
        let (mut log, found) = Log::open(&path).expect("begun");
        assert!(found.is_empty());
        for record in [record(7, &["a"]), record(8, &["b"]), record(7, &["c", "d"]), record(8, &[])] {
            log.put(&record);
        }
        log.flush();
        drop(log);
        let whole = std::fs::read(&path).expect("read");
        let (_, found) = Log::open(&path).expect("opened");
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].ino, found[0].generation, found[0].dentries.len()), (7, 107, 2));
        for cut in [1, 9, 20] {
            std::fs::write(&path, &whole[..whole.len() - cut]).expect("cut");
            let (mut log, found) = Log::open(&path).expect("opened");
            assert_eq!(found.len(), 2, "the removal of 8 is torn");
            log.put(&record(9, &["e"]));
            log.flush();
            assert_eq!(Log::open(&path).expect("opened").1.len(), 3, "what follows a torn record is read");
        }
    }

    #[test]
    fn a_file_that_is_mostly_obsolete_is_written_anew() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("handles");
        let (mut log, _) = Log::open(&path).expect("begun");
        for number in 0..10_000 {
            log.put(&record(number % 10, &["a"]));
        }
        log.flush();
        assert!(log.is_mostly_obsolete(10));
        let before = std::fs::metadata(&path).expect("there").len();
        log.rewrite((0..10).map(|number| record(number, &["a"])));
        log.put(&record(10, &["b"]));
        log.flush();
        assert!(std::fs::metadata(&path).expect("there").len() < before / 100);
        assert_eq!(Log::open(&path).expect("opened").1.len(), 11);
    }
}
