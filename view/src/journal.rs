//! The journal: every edit since the base, with its data, in append-only files.
//!
//! A record is a head (length, checksum of record and data, time), the edit, and the data that it writes. The working tree reads file
//! data directly from the journal, which is its segment log. The file `base` names the stored state that the first journal file starts
//! from. A commit or a checkpoint begins a new file when it freezes the tree, and moves the base once it is stored. The last tree that
//! reads from a removed file keeps it open.
//!
//! The header of a file names its predecessor and the length of that file. Recovery passes over a file whose predecessor was not replayed
//! to that length: after a power cut a disk may have a younger file and have lost the end of an older one, and edits behind such a gap
//! would give a state that never existed.
//!
//! Neither the journal nor the store waits for the other to be on disk. A power cut may leave a commit in the store whose record, and
//! whose last edits, are missing in the journal. Therefore a journal has an identity, and a commit stores the journal position that it was
//! taken at: opening the view moves the base there before it replays.

mod base;
mod edit;
mod file;
mod group;
mod replay;
mod space;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::work::{Segment, SegmentRange};
use amalgam_engine::workspace::JournalPlace;
use amalgam_engine::{Error as EngineError, SnapshotId, Store, Time, WorkingTree};

use crate::encoding::io_error;
use crate::error::{Error, Result};
use crate::options::MeasureDisk;
pub use base::FILE_NAME as JOURNAL_BASE_FILE;
pub(crate) use base::JournalBase;
pub(crate) use edit::{Edit, JournalPart};
use file::{
    EDIT_BYTES_MAX, HEADER_BYTES, Identity, JournalFile, Predecessor, RECORD_HEAD_BYTES, checksum, file_name,
    file_numbers, new_identity, remove_files, write_both,
};
pub(crate) use group::GroupData;
pub use replay::RecoveryReport;
use replay::{has_record, preserve_files, replay};
use space::JournalSpace;

/// Data up to this size is copied behind its record: for the kernel one buffer is faster than two.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// A journal with more files or bytes is long: see [`Journal::is_long`].
const EARLIER_FILES_MAX: usize = 64;
const LONG_BYTES: u64 = 64 << 20;

/// The journal of one view.
pub(crate) struct Journal {
    directory: PathBuf,
    identity: Identity,
    current: Arc<JournalFile>,
    /// Offset of the next record in the current file.
    end: u64,
    space: JournalSpace,
    /// Number of the first file that a recovery needs.
    first: u64,
    /// Number of the current file.
    number: u64,
    /// Files before the current one that may not be on disk.
    unsynced: Vec<Arc<JournalFile>>,
    /// Whether a file name in the directory may not be on disk.
    is_directory_unsynced: bool,
    /// Numbers and lengths of the files since the base, without the current one.
    earlier: Vec<(u64, u64)>,
    /// The next base, written once the snapshot that it names is on disk.
    pending_base: Option<JournalBase>,
    /// Bytes of the files since the base that the pending base covers.
    covered_bytes: u64,
    /// Bytes that went into the base by checkpoints, without a commit.
    checkpointed_bytes: u64,
    /// Whether the base is the snapshot that the next commit follows, not a checkpoint.
    is_at_head: bool,
    /// How many records need a snapshot of the store, such as restores, and how many of these snapshots are on disk for
    /// certain.
    store_snapshots: u64,
    store_snapshots_synced: u64,
    /// Why the journal failed, if it did.
    failure: Option<String>,
    /// Buffer in which records are assembled.
    record: Vec<u8>,
}

/// Files that a sync writes to disk.
pub(crate) struct Unsynced {
    files: Vec<Arc<JournalFile>>,
    directory: Option<PathBuf>,
    store_snapshots: u64,
    /// Whether the edits build on a snapshot that may not be on disk: then the store must be synced before them.
    pub(crate) needs_store: bool,
}

impl Journal {
    /// Creates a journal on a clean tree.
    pub(crate) fn create(directory: &Path, state: Option<SnapshotId>) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(io_error("make the journal's directory"))?;
        remove_files(directory, |_| true)?;
        let identity = new_identity()?;
        let journal = Self::begin(directory, identity, 0, 0, Predecessor::default())?;
        JournalBase { state, head: state, first: 0, identity, checkpointed_bytes: 0 }.write(directory)?;
        Ok(journal)
    }

    fn begin(directory: &Path, identity: Identity, first: u64, number: u64, predecessor: Predecessor) -> Result<Self> {
        let current = JournalFile::create(directory, number, predecessor)?;
        let mut journal = Self {
            directory: directory.to_owned(),
            identity,
            current,
            end: HEADER_BYTES as u64,
            space: JournalSpace::default(),
            first,
            number,
            unsynced: Vec::new(),
            is_directory_unsynced: true,
            earlier: Vec::new(),
            pending_base: None,
            covered_bytes: 0,
            checkpointed_bytes: 0,
            is_at_head: true,
            store_snapshots: 0,
            store_snapshots_synced: 0,
            failure: None,
            record: Vec::new(),
        };
        journal.space.begin_file(&journal.current.file, journal.end);
        Ok(journal)
    }

    /// Opens the journal in a directory and replays its edits. An incomplete last record is left out.
    pub(crate) fn recover(
        store: &Store,
        directory: &Path,
        base: JournalBase,
    ) -> Result<(Self, WorkingTree, RecoveryReport)> {
        let mut tree = match base.state {
            Some(state) => WorkingTree::open(store, state)?,
            None => WorkingTree::new(store),
        };
        tree.rebase(base.head);
        let mut report = RecoveryReport::default();
        let mut number = base.first;
        let mut predecessor = None;
        let mut earlier = Vec::new();
        let mut unsynced = Vec::new();
        // Files with edits that were not replayed.
        let mut unfinished = Vec::new();
        loop {
            let path = directory.join(file_name(number));
            let file = match File::open(&path) {
                Ok(file) => Arc::new(JournalFile::new(file)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                Err(error) => return Err(io_error("open the journal")(error)),
            };
            // The first file of the base may have any predecessor.
            let expected = (number > base.first).then(|| predecessor.unwrap_or_default());
            let replayed = replay(&file, expected, &mut tree, &mut report)?;
            if replayed.has_more {
                unfinished.push(number);
            }
            if let Some(end) = replayed.end {
                predecessor = Some(Predecessor { number, end });
                earlier.push((number, end));
                unsynced.push(file);
            }
            number += 1;
        }
        // Files behind a missing one cannot be replayed.
        for found in file_numbers(directory)?.into_iter().filter(|found| *found > number) {
            let file = File::open(directory.join(file_name(found))).map_err(io_error("open the journal"))?;
            let length = file.metadata().map_err(io_error("read the journal"))?.len();
            report.cut_bytes += length;
            if has_record(&JournalFile::new(file), length)? {
                unfinished.push(found);
            }
        }
        if !unfinished.is_empty() {
            report.kept = Some(preserve_files(directory, &base.identity, &unfinished)?);
        }
        remove_files(directory, |found| found < base.first || found > number)?;
        let begin = || Self::begin(directory, base.identity, base.first, number, predecessor.unwrap_or_default());
        let mut journal = match begin() {
            Err(error) if error.is_full() => {
                space::release_leftover(directory, earlier.iter().map(|(number, _)| *number));
                begin()?
            }
            begun => begun?,
        };
        journal.earlier = earlier;
        // The process that wrote them may have died before it synced them.
        journal.unsynced = unsynced;
        journal.is_at_head = base.state == base.head;
        journal.checkpointed_bytes = base.checkpointed_bytes;
        journal.store_snapshots = u64::from(report.needs_store);
        Ok((journal, tree, report))
    }

    /// Appends an edit with its data. Returns the location of the data.
    pub(crate) fn append(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<Option<SegmentRange>> {
        self.ensure_sound()?;
        debug_assert_eq!(edit.data_bytes(), data.len() as u64, "an edit says how many bytes follow it");
        let record = &mut self.record;
        record.clear();
        record.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
        edit.encode(record);
        let edit_bytes = record.len() - RECORD_HEAD_BYTES;
        if edit_bytes > EDIT_BYTES_MAX {
            // A recovery would read neither this record nor any behind it.
            let (value, max) = (edit_bytes as u64, EDIT_BYTES_MAX as u64);
            return Err(EngineError::TooLarge { what: "an edit", value, max }.into());
        }
        record[8..RECORD_HEAD_BYTES].copy_from_slice(&now.0.to_le_bytes());
        record[..4].copy_from_slice(&(edit_bytes as u32).to_le_bytes());
        let sum = checksum(&record[8..], data);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        let record_bytes = record.len() as u64;
        self.space.ensure(&self.current.file, self.end, edit, record_bytes + data.len() as u64)?;
        let written = if data.is_empty() {
            self.current.file.write_all_at(record, self.end)
        } else if data.len() <= COPIED_BYTES_MAX {
            record.extend_from_slice(data);
            self.current.file.write_all_at(record, self.end)
        } else {
            write_both(&self.current.file, record, data, self.end)
        };
        if let Err(error) = written {
            // A shorter next record must not be followed by the rest of this one.
            self.truncate(self.end);
            return Err(io_error("write the journal")(error));
        }
        let offset = self.end + record_bytes;
        self.end = offset + data.len() as u64;
        let segment: Arc<dyn Segment> = self.current.clone();
        Ok((!data.is_empty()).then_some(SegmentRange { segment, offset }))
    }

    /// Returns the beginning of the current file as a location of data.
    pub(crate) fn current_file(&self) -> SegmentRange {
        SegmentRange { segment: self.current.clone(), offset: 0 }
    }

    /// Returns the number of the current file.
    pub(crate) fn file_number(&self) -> u64 {
        self.number
    }

    /// Returns the offset of the next record in the current file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of the current file and the offset of the next record.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.number, self.end)
    }

    /// Removes the records of the current file from an offset on.
    pub(crate) fn truncate(&mut self, end: u64) {
        match self.current.file.set_len(end) {
            Ok(()) => {
                self.end = end;
                self.space.begin_file(&self.current.file, end);
            }
            Err(error) => self.fail(format!("a refused edit could not be removed from it: {error}")),
        }
    }

    /// Returns the names of the files that a recovery reads, and how many bytes of each.
    pub(crate) fn files(&self) -> Vec<(String, u64)> {
        let current = (self.number, self.end);
        self.earlier.iter().copied().chain([current]).map(|(number, bytes)| (file_name(number), bytes)).collect()
    }

    /// Returns how many bytes a recovery would read.
    pub(crate) fn bytes(&self) -> u64 {
        self.earlier.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.end
    }

    /// Returns how many bytes were written since the last commit.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.checkpointed_bytes + self.bytes().saturating_sub(self.covered_bytes)
    }

    /// Replaces the count of bytes that went into the base by checkpoints. Of a base that is a commit nothing is uncommitted.
    pub(crate) fn set_checkpointed_bytes(&mut self, bytes: u64) {
        if !self.is_at_head {
            self.checkpointed_bytes = bytes;
        }
    }

    /// Returns whether the base should move even if the store must be synced for it.
    pub(crate) fn is_long(&self) -> bool {
        self.earlier.len() > EARLIER_FILES_MAX || self.bytes() > LONG_BYTES
    }

    /// Returns whether the base is the head, and nothing was written since.
    pub(crate) fn is_empty(&self) -> bool {
        self.is_at_head && self.earlier.is_empty() && self.end == HEADER_BYTES as u64
    }

    /// Records that the tree becomes that of a snapshot, at the beginning of a new file. Until the base moves, only this journal has the
    /// earlier tree. `head` is the snapshot that the next commit follows.
    pub(crate) fn record_restore(&mut self, snapshot: SnapshotId, head: Option<SnapshotId>, now: Time) -> Result<()> {
        self.rotate()?;
        self.append(&Edit::Restore { snapshot, head }, now, &[])?;
        self.store_snapshots += 1;
        self.is_at_head = false;
        Ok(())
    }

    /// Records that the journal needs a snapshot of the store: a sync then syncs the store first. `moves_head` tells whether the next commit
    /// follows another snapshot.
    pub(crate) fn refer_to_store(&mut self, moves_head: bool) {
        self.store_snapshots += 1;
        self.is_at_head &= !moves_head;
    }

    /// Returns whether the base is the snapshot that the next commit follows.
    pub(crate) fn is_at_head(&self) -> bool {
        self.is_at_head
    }

    /// Returns the files that must be synced for all records to be on disk. The caller syncs them without the view's lock.
    pub(crate) fn unsynced(&self) -> Result<Unsynced> {
        self.ensure_sound()?;
        let mut files = self.unsynced.clone();
        files.push(Arc::clone(&self.current));
        let directory = self.is_directory_unsynced.then(|| self.directory.clone());
        let needs_store = self.store_snapshots > self.store_snapshots_synced;
        Ok(Unsynced { files, directory, store_snapshots: self.store_snapshots, needs_store })
    }

    /// Records that a sync is done.
    pub(crate) fn synced(&mut self, done: &Unsynced) {
        self.unsynced.retain(|file| !done.files.iter().any(|other| Arc::ptr_eq(file, other)));
        if done.directory.is_some() && done.files.last().is_some_and(|last| Arc::ptr_eq(last, &self.current)) {
            self.is_directory_unsynced = false;
        }
        self.store_snapshots_synced = self.store_snapshots_synced.max(done.store_snapshots);
    }

    /// Marks the journal as failed. After a failed sync the kernel may have dropped dirty pages, so later records cannot be trusted.
    pub(crate) fn fail(&mut self, why: String) {
        self.failure.get_or_insert(why);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    fn ensure_sound(&self) -> Result<()> {
        self.failure.as_ref().map_or(Ok(()), |why| Err(Error::Journal(why.clone())))
    }

    /// Begins a new file if the current one has records. Returns its place, for [`set_pending_base`](Self::set_pending_base).
    pub(crate) fn rotate(&mut self) -> Result<JournalPlace> {
        self.ensure_sound()?;
        if self.end == HEADER_BYTES as u64 && self.number > self.first {
            // The file was begun for a state that did not become a base, and is empty. The first file of the base cannot be reused:
            // opening a view moves the base only to commits behind it.
            return Ok(JournalPlace { journal: self.identity, file: self.number });
        }
        let number = self.number + 1;
        let predecessor = Predecessor { number: self.number, end: self.end };
        // Nothing more is written to the current file.
        let is_released_later = self.space.can_release_later(self.end);
        if !is_released_later {
            self.release_preallocated();
        }
        let next = match JournalFile::create(&self.directory, number, predecessor) {
            // The file needs the preallocated space of its predecessors.
            Err(error) if error.is_full() => {
                self.release_preallocated();
                JournalFile::create(&self.directory, number, predecessor)?
            }
            created => created?,
        };
        if is_released_later && self.space.has_reserve(self.end) {
            self.current.finish(self.end);
        }
        self.unsynced.push(std::mem::replace(&mut self.current, next));
        self.earlier.push((self.number, self.end));
        self.end = HEADER_BYTES as u64;
        self.space.begin_file(&self.current.file, self.end);
        if !self.space.has_reserve(self.end) && self.release_finished() {
            self.space.begin_file(&self.current.file, self.end);
        }
        self.number = number;
        self.is_directory_unsynced = true;
        Ok(JournalPlace { journal: self.identity, file: number })
    }

    /// Sets the next base: the state at a place is in the store. `head` is the snapshot that the next commit follows. The base moves
    /// later: see [`take_pending_base`](Self::take_pending_base).
    pub(crate) fn set_pending_base(
        &mut self,
        place: JournalPlace,
        state: Option<SnapshotId>,
        head: Option<SnapshotId>,
    ) {
        let first = place.file;
        self.is_at_head = state == head;
        let before: u64 = self.earlier.iter().filter(|(number, _)| *number < first).map(|(_, bytes)| bytes).sum();
        // Bytes before a checkpoint are still uncommitted.
        self.checkpointed_bytes =
            if self.is_at_head { 0 } else { self.checkpointed_bytes + before.saturating_sub(self.covered_bytes) };
        self.covered_bytes = before;
        let (identity, checkpointed_bytes) = (self.identity, self.checkpointed_bytes);
        self.pending_base = Some(JournalBase { state, head, first, identity, checkpointed_bytes });
    }

    /// Takes the next base and the directory to write it to. The caller has synced the snapshot that it names, writes the base without the
    /// view's lock, and then calls [`base_moved`](Self::base_moved).
    pub(crate) fn take_pending_base(&mut self) -> Option<(PathBuf, JournalBase)> {
        Some((self.directory.clone(), self.pending_base.take()?))
    }

    /// Forgets the files before the new base.
    pub(crate) fn base_moved(&mut self, base: &JournalBase) {
        self.first = base.first;
        self.earlier.retain(|(number, _)| *number >= base.first);
        self.covered_bytes = 0;
        if base.first == self.number {
            self.unsynced.clear();
        }
    }

    /// Removes the journal. The tree must be equal to the base. After an error the journal is unchanged.
    pub(crate) fn remove(&self) -> Result<()> {
        let path = self.directory.join(base::FILE_NAME);
        std::fs::remove_file(path).map_err(io_error("remove the journal"))?;
        // Files without a base are ignored, and the next journal removes them.
        remove_files(&self.directory, |_| true).ok();
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Respects the floor of the disk from now on.
    pub(crate) fn set_disk(&mut self, measure: MeasureDisk) {
        self.space.set_disk(measure);
    }

    /// Frees the preallocated space of all files.
    pub(crate) fn release_preallocated(&mut self) {
        self.release_finished();
        self.space.release(&self.current.file, self.end);
    }

    /// Frees the preallocated space of all files, except for the reserve. Returns whether there was any.
    pub(crate) fn release_beyond_reserve(&mut self) -> bool {
        let was_finished = self.release_finished();
        self.space.release_beyond_reserve(&self.current.file, self.end) || was_finished
    }

    /// Frees the preallocated space of files before the current one. Returns whether there was any.
    fn release_finished(&self) -> bool {
        self.unsynced.iter().filter(|file| file.release_finished()).count() > 0
    }
}

impl Unsynced {
    /// Syncs the files, not their names: a failure of this part can lose data.
    pub(crate) fn sync_files(&self) -> std::io::Result<()> {
        self.files.iter().try_for_each(|file| {
            file.release_finished();
            file.file.sync_data()
        })
    }

    /// Syncs the files and their names.
    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.sync_files()?;
        self.directory.as_ref().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}
