//! The journal: every edit since the base, with its bytes, in files that are only appended to.
//!
//! A record is a head (length, check sum over record and bytes, time), the edit, and the bytes that it writes. The tree reads
//! those bytes where they lie: the journal is its segment log. `base` names the state that the first file starts from; a
//! commit or a checkpoint begins a new file at the moment of its freeze, and moves the base when it has landed. A file that
//! nothing reads any more goes with the last tree that read it.
//!
//! A file says behind which one it follows, and behind how many bytes of that. One that follows something else than what was
//! read up to there is passed over: a disk may have kept a younger file and lost the end of an older one, and edits behind a
//! gap are no state that ever was.
//!
//! Neither the journal nor the store waits for the other to be on disk, so a power cut may leave a commit in the store whose
//! word, and whose last edits, are not in the journal. So a journal has an identity, and a commit says where in which journal
//! it was taken: the base is moved there before anything is done again.

mod record;
mod remember;
mod replay;
mod room;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_engine::work::{Segment, SegmentRange};
use amalgam_engine::workspace::{JournalPlace, Journaled};
use amalgam_engine::{DEPTH_MAX, Error as EngineError, NAME_BYTES_MAX, SnapshotId, Store, Time, WorkingTree};
use rustix::io::Errno;

use crate::error::{Error, Result};
pub(crate) use record::Edit;
use record::{Reader, Writer};
pub use replay::Recovered;
use replay::{has_record, keep_aside, replay};
use room::Disk;

const MAGIC: &[u8; 8] = b"AMVIEW1\n";
/// The magic, what the file follows, and a check sum.
const BEGINNING_BYTES: usize = MAGIC.len() + 8 + 8 + 4;
/// length of the edit, check sum, time.
const HEAD_BYTES: usize = 4 + 4 + 8;
/// The largest edit: two paths that are as long as can be, or one with an extended attribute, and what stands around them.
const EDIT_BYTES_MAX: usize = 2 * DEPTH_MAX * (NAME_BYTES_MAX + 1) + (128 << 10);

/// Bytes that are copied behind their record: two buffers take the kernel longer than one.
const COPIED_BYTES_MAX: usize = 16 << 10;

/// From so many files or bytes on a journal is long.
const EARLIER_MAX: usize = 64;
const LONG_BYTES: u64 = 64 << 20;

/// The journal of one view.
pub(crate) struct Journal {
    directory: PathBuf,
    identity: Identity,
    current: Arc<JournalFile>,
    /// Where the next record begins.
    end: u64,
    /// Up to where room is set aside for this file.
    aside_end: u64,
    /// What the disk below has, where somebody says so.
    disk: Option<Disk>,
    /// The first file that is needed to come back, and this one's number.
    first: u64,
    number: u64,
    /// Files before this one that may not be on disk yet.
    unsynced: Vec<Arc<JournalFile>>,
    /// Whether a name in the directory may not be on disk yet.
    directory_unsynced: bool,
    /// The files before this one since the base, by number, and their bytes.
    earlier: Vec<(u64, u64)>,
    /// Where the base is to move to, as soon as what it names is on disk.
    pending: Option<JournalBase>,
    /// How many bytes of the files since the base were written before the state that it is to move to, and are not counted any more.
    settled_bytes: u64,
    /// How many bytes went into that state without a commit.
    carried_bytes: u64,
    /// Whether the base is what the next commit follows, and not a state in between.
    at_head: bool,
    /// How often the tree became that of a snapshot, and how many of these snapshots are on disk for certain.
    restores: u64,
    restores_synced: u64,
    failed: Option<String>,
    /// Where records are put together.
    record: Vec<u8>,
}

/// What a sync has to put on disk.
pub(crate) struct Unsynced {
    files: Vec<Arc<JournalFile>>,
    directory: Option<PathBuf>,
    restores: u64,
    /// Whether the edits stand on a snapshot that may not be on disk: the store must be synced before them.
    pub(crate) needs_store: bool,
}

pub(crate) struct JournalFile {
    file: File,
}

/// Where in the journal a file begins: behind so many bytes of another one, or without any behind the base itself. For the first
/// it does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Behind {
    number: u64,
    end: u64,
}

/// What the journal starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalBase {
    /// The state that the first file's edits are done on; the empty tree without one.
    pub(crate) state: Option<SnapshotId>,
    /// The snapshot that the next commit follows.
    pub(crate) head: Option<SnapshotId>,
    first: u64,
    identity: Identity,
    /// How many bytes went into the state without a commit.
    carried_bytes: u64,
}

/// Which journal it is, of all that ever were.
type Identity = [u8; 16];

impl Segment for JournalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|source| EngineError::from_io("read the journal", &source))
    }
}

fn io(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Engine(EngineError::from_io(action, &source))
}

impl Journal {
    /// Whether there is one in a directory.
    pub(crate) fn base(directory: &Path) -> Result<Option<JournalBase>> {
        let path = directory.join("base");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("read the journal's base")(error)),
        };
        match JournalBase::decode(&bytes) {
            Some(base) => Ok(Some(base)),
            None => Err(Error::Engine(EngineError::DamagedRecord {
                what: format!("journal base {}", path.display()),
                why: "it does not have the form that this version writes".to_owned(),
            })),
        }
    }

    /// Begins a journal on a clean tree.
    pub(crate) fn create(directory: &Path, state: Option<SnapshotId>) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(io("make the journal's directory"))?;
        remove_files(directory, |_| true)?;
        let identity = new_identity()?;
        let journal = Self::at(directory, identity, 0, 0, Behind::default())?;
        JournalBase { state, head: state, first: 0, identity, carried_bytes: 0 }.write(directory)?;
        Ok(journal)
    }

    fn at(directory: &Path, identity: Identity, first: u64, number: u64, behind: Behind) -> Result<Self> {
        let current = begin(directory, number, behind)?;
        let mut journal = Self {
            directory: directory.to_owned(),
            identity,
            current,
            end: BEGINNING_BYTES as u64,
            aside_end: 0,
            disk: None,
            first,
            number,
            unsynced: Vec::new(),
            directory_unsynced: true,
            earlier: Vec::new(),
            pending: None,
            settled_bytes: 0,
            carried_bytes: 0,
            at_head: true,
            restores: 0,
            restores_synced: 0,
            failed: None,
            record: Vec::new(),
        };
        journal.begin_reserve();
        Ok(journal)
    }

    /// Opens the journal in a directory and does its edits again. What the last record lacks is left out.
    pub(crate) fn recover(
        store: &Store,
        directory: &Path,
        base: JournalBase,
    ) -> Result<(Self, WorkingTree, Recovered)> {
        let mut tree = match base.state {
            Some(state) => WorkingTree::open(store, state)?,
            None => WorkingTree::new(store),
        };
        tree.rebase(base.head);
        let mut recovered = Recovered::default();
        let mut number = base.first;
        let mut behind = None;
        let mut earlier = Vec::new();
        let mut unsynced = Vec::new();
        // Files with edits that were not done again.
        let mut unfinished = Vec::new();
        loop {
            let path = directory.join(file_name(number));
            let file = match File::open(&path) {
                Ok(file) => Arc::new(JournalFile { file }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
                Err(error) => return Err(io("open the journal")(error)),
            };
            // The base's own first file follows whatever there was before it.
            let expected = (number > base.first).then(|| behind.unwrap_or_default());
            let replayed = replay(&file, expected, &mut tree, &mut recovered)?;
            if replayed.has_more {
                unfinished.push(number);
            }
            if let Some(end) = replayed.end {
                behind = Some(Behind { number, end });
                earlier.push((number, end));
                unsynced.push(file);
            }
            number += 1;
        }
        // Behind a file that is lost nothing can be done again.
        for found in file_numbers(directory)?.into_iter().filter(|found| *found > number) {
            let file = File::open(directory.join(file_name(found))).map_err(io("open the journal"))?;
            let length = file.metadata().map_err(io("read the journal"))?.len();
            recovered.cut_bytes += length;
            if has_record(&JournalFile { file }, length)? {
                unfinished.push(found);
            }
        }
        if !unfinished.is_empty() {
            recovered.kept = Some(keep_aside(directory, &base.identity, &unfinished)?);
        }
        remove_files(directory, |found| found < base.first || found > number)?;
        let begin = || Self::at(directory, base.identity, base.first, number, behind.unwrap_or_default());
        let mut journal = match begin() {
            Err(error) if error.is_full() => {
                room::release_left(directory, earlier.iter().map(|(number, _)| *number));
                begin()?
            }
            begun => begun?,
        };
        journal.earlier = earlier;
        // Whoever wrote them may have died before they were on disk.
        journal.unsynced = unsynced;
        journal.at_head = base.state == base.head;
        journal.carried_bytes = base.carried_bytes;
        journal.restores = u64::from(recovered.restored);
        Ok((journal, tree, recovered))
    }

    /// Writes an edit down, with its bytes, and says where those lie.
    pub(crate) fn append(&mut self, edit: &Edit, now: Time, data: &[u8]) -> Result<Option<SegmentRange>> {
        self.demand_sound()?;
        debug_assert_eq!(edit.data_bytes(), data.len() as u64, "an edit says how many bytes follow it");
        let record = &mut self.record;
        record.clear();
        record.extend_from_slice(&[0; HEAD_BYTES]);
        edit.encode(record);
        let edit_bytes = record.len() - HEAD_BYTES;
        if edit_bytes > EDIT_BYTES_MAX {
            // It would not be read back, nor anything behind it.
            let (value, max) = (edit_bytes as u64, EDIT_BYTES_MAX as u64);
            return Err(EngineError::TooLarge { what: "an edit", value, max }.into());
        }
        record[8..HEAD_BYTES].copy_from_slice(&now.0.to_le_bytes());
        record[..4].copy_from_slice(&(edit_bytes as u32).to_le_bytes());
        let sum = check_sum(&record[8..], data);
        record[4..8].copy_from_slice(&sum.to_le_bytes());
        let record_bytes = record.len() as u64;
        self.demand_room(edit, record_bytes + data.len() as u64)?;
        let record = &mut self.record;
        let written = if data.is_empty() {
            self.current.file.write_all_at(record, self.end)
        } else if data.len() <= COPIED_BYTES_MAX {
            record.extend_from_slice(data);
            self.current.file.write_all_at(record, self.end)
        } else {
            write_both(&self.current.file, record, data, self.end)
        };
        if let Err(error) = written {
            // What is left of it must not stand behind the next record, which may be shorter.
            self.cut(self.end);
            return Err(io("write the journal")(error));
        }
        let offset = self.end + record_bytes;
        self.end = offset + data.len() as u64;
        let segment: Arc<dyn Segment> = self.current.clone();
        Ok((!data.is_empty()).then_some(SegmentRange { segment, offset }))
    }

    /// Where the next record begins.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The same, and in which file.
    pub(crate) fn place(&self) -> (u64, u64) {
        (self.number, self.end)
    }

    /// Takes back what was written to this file from there on.
    pub(crate) fn cut(&mut self, end: u64) {
        match self.current.file.set_len(end) {
            Ok(()) => {
                self.end = end;
                self.was_cut();
                self.begin_reserve();
            }
            Err(error) => self.fail(format!("what was refused could not be taken back: {error}")),
        }
    }

    /// How many bytes a recovery would read.
    pub(crate) fn bytes(&self) -> u64 {
        self.earlier.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.end
    }

    /// How many were written that no commit has.
    pub(crate) fn uncommitted_bytes(&self) -> u64 {
        self.carried_bytes + self.bytes().saturating_sub(self.settled_bytes)
    }

    /// Whether it is time to move the base, even if something must be put on disk for it.
    pub(crate) fn is_long(&self) -> bool {
        self.earlier.len() > EARLIER_MAX || self.bytes() > LONG_BYTES
    }

    /// Whether anything was written since the base.
    pub(crate) fn is_empty(&self) -> bool {
        self.at_head && self.earlier.is_empty() && self.end == BEGINNING_BYTES as u64
    }

    /// The tree is another one from now on; until the base is moved, this journal alone knows what was there.
    /// `head` is what the next commit follows.
    pub(crate) fn depart(&mut self, snapshot: SnapshotId, head: Option<SnapshotId>, now: Time) -> Result<()> {
        self.turn()?;
        self.append(&Edit::Restore { snapshot, head }, now, &[])?;
        self.restores += 1;
        self.at_head = false;
        Ok(())
    }

    /// Whether the base is what the next commit follows.
    pub(crate) fn is_at_head(&self) -> bool {
        self.at_head
    }

    /// What must be put on disk for all that was appended to be there. The caller does that without holding the view still.
    pub(crate) fn unsynced(&self) -> Result<Unsynced> {
        self.demand_sound()?;
        let mut files = self.unsynced.clone();
        files.push(Arc::clone(&self.current));
        let directory = self.directory_unsynced.then(|| self.directory.clone());
        let needs_store = self.restores > self.restores_synced;
        Ok(Unsynced { files, directory, restores: self.restores, needs_store })
    }

    /// Says that it was done.
    pub(crate) fn synced(&mut self, done: &Unsynced) {
        self.unsynced.retain(|file| !done.files.iter().any(|other| Arc::ptr_eq(file, other)));
        if done.directory.is_some() && done.files.last().is_some_and(|last| Arc::ptr_eq(last, &self.current)) {
            self.directory_unsynced = false;
        }
        self.restores_synced = self.restores_synced.max(done.restores);
    }

    /// A sync failed: the kernel may have dropped what was not on disk, so nothing that comes after it can be trusted.
    pub(crate) fn fail(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    fn demand_sound(&self) -> Result<()> {
        self.failed.as_ref().map_or(Ok(()), |why| Err(Error::Journal(why.clone())))
    }

    /// Begins a new file if need be; returns where, for when the state of this moment has become the base.
    pub(crate) fn turn(&mut self) -> Result<JournalPlace> {
        self.demand_sound()?;
        if self.end == BEGINNING_BYTES as u64 && self.number > self.first {
            // Begun for a state that never came to be a base, and nothing was written since. The base's own file is no place for a
            // commit: whoever opens the journal takes up only those behind it.
            return Ok(JournalPlace { journal: self.identity, file: self.number });
        }
        let number = self.number + 1;
        let behind = Behind { number: self.number, end: self.end };
        // From here on nothing is written to this file, and what was set aside for it may be what the next one needs.
        self.release_room();
        let next = begin(&self.directory, number, behind)?;
        self.unsynced.push(std::mem::replace(&mut self.current, next));
        self.earlier.push((self.number, self.end));
        self.end = BEGINNING_BYTES as u64;
        self.begin_reserve();
        self.number = number;
        self.directory_unsynced = true;
        Ok(JournalPlace { journal: self.identity, file: number })
    }

    /// The state at a place is in the store now; `head` is what the next commit follows. The base moves later: see
    /// [`take_move`](Self::take_move).
    pub(crate) fn landed(&mut self, place: JournalPlace, state: Option<SnapshotId>, head: Option<SnapshotId>) {
        let first = place.file;
        self.at_head = state == head;
        let before: u64 = self.earlier.iter().filter(|(number, _)| *number < first).map(|(_, bytes)| bytes).sum();
        // A state in between is no commit: what was written before it still counts.
        self.carried_bytes =
            if self.at_head { 0 } else { self.carried_bytes + before.saturating_sub(self.settled_bytes) };
        self.settled_bytes = before;
        let (identity, carried_bytes) = (self.identity, self.carried_bytes);
        self.pending = Some(JournalBase { state, head, first, identity, carried_bytes });
    }

    /// Where the base is to move to. Whoever asks has put on disk what it names, writes it down without holding the view
    /// still, and then says so.
    pub(crate) fn take_move(&mut self) -> Option<(PathBuf, JournalBase)> {
        Some((self.directory.clone(), self.pending.take()?))
    }

    /// The base was moved: what was written before it is not needed to come back.
    pub(crate) fn moved(&mut self, base: &JournalBase) {
        self.first = base.first;
        self.earlier.retain(|(number, _)| *number >= base.first);
        self.settled_bytes = 0;
        if base.first == self.number {
            self.unsynced.clear();
        }
    }

    /// Ends a journal that nothing is needed of: the tree is what the base says. Either it is gone afterwards, or it is as it was.
    pub(crate) fn remove(&self) -> Result<()> {
        let path = self.directory.join("base");
        std::fs::remove_file(path).map_err(io("remove the journal"))?;
        // Without a base they are nothing, and the next journal removes them.
        remove_files(&self.directory, |_| true).ok();
        Ok(())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl JournalBase {
    /// Where the journal begins if a commit was taken from it that it does not know: behind that.
    pub(crate) fn behind(self, store: &Store, directory: &Path, journaled: Option<Journaled>) -> Result<Self> {
        if self.identity == Identity::default() {
            return Ok(Self { identity: new_identity()?, ..self });
        }
        let Some(Journaled { snapshot, place }) = journaled else { return Ok(self) };
        if place.journal != self.identity || place.file <= self.first || WorkingTree::open(store, snapshot).is_err() {
            return Ok(self);
        }
        // What it names must be on disk before what was written before it goes.
        store.sync()?;
        let moved = Self { state: Some(snapshot), head: Some(snapshot), first: place.file, carried_bytes: 0, ..self };
        moved.write(directory)?;
        Ok(moved)
    }

    /// Makes this the base of the journal in a directory, on disk.
    pub(crate) fn write(&self, directory: &Path) -> Result<()> {
        replace_file(directory, "base", &self.encode())
    }

    /// Removes what was written before it.
    pub(crate) fn remove_earlier(&self, directory: &Path) -> Result<()> {
        remove_files(directory, |number| number < self.first)
    }
}

impl Unsynced {
    /// The files alone: what can be lost when it fails.
    pub(crate) fn sync_files(&self) -> std::io::Result<()> {
        self.files.iter().try_for_each(|file| file.file.sync_data())
    }

    pub(crate) fn sync(&self) -> std::io::Result<()> {
        self.sync_files()?;
        self.directory.as_ref().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
    }
}

impl Behind {
    fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        Writer(&mut bytes).u64(self.number).u64(self.end);
        seal(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(unsealed(bytes)?.strip_prefix(MAGIC)?);
        Some(Self { number: from.u64()?, end: from.u64()? })
    }
}

impl JournalBase {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let mut out = Writer(&mut bytes);
        for snapshot in [self.state, self.head] {
            out.bytes(snapshot.as_ref().map_or(&[], |snapshot| snapshot.as_bytes()));
        }
        out.u64(self.first).bytes(&self.identity).u64(self.carried_bytes);
        seal(bytes)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(unsealed(bytes)?.strip_prefix(MAGIC)?);
        let mut snapshot = || -> Option<Option<SnapshotId>> {
            match from.bytes()? {
                [] => Some(None),
                bytes => Some(Some(SnapshotId::from_bytes(bytes.try_into().ok()?))),
            }
        };
        let (state, head, first) = (snapshot()?, snapshot()?, from.u64()?);
        // Bases had none once, and did not count.
        let identity = if from.0.is_empty() { Identity::default() } else { from.bytes()?.try_into().ok()? };
        let carried_bytes = if from.0.is_empty() { 0 } else { from.u64()? };
        Some(Self { state, head, first, identity, carried_bytes })
    }
}

/// Puts a check sum behind bytes.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// The bytes before their check sum; nothing when it is not theirs.
fn unsealed(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    (crc32fast::hash(body).to_le_bytes() == sum).then_some(body)
}

fn check_sum(rest: &[u8], data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(rest);
    hasher.update(data);
    hasher.finalize()
}

/// Writes two buffers side by side, in one call where the kernel takes it whole.
fn write_both(file: &File, head: &[u8], data: &[u8], offset: u64) -> std::io::Result<()> {
    use std::io::IoSlice;
    let done = loop {
        match rustix::io::pwritev(file, &[IoSlice::new(head), IoSlice::new(data)], offset) {
            Ok(done) => break done,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if done < head.len() {
        file.write_all_at(&head[done..], offset + done as u64)?;
    }
    let skip = done.saturating_sub(head.len());
    file.write_all_at(&data[skip..], offset + (head.len() + skip) as u64)
}

fn new_identity() -> Result<Identity> {
    let mut identity = Identity::default();
    match rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => Ok(identity),
        Err(error) => Err(io("draw a random number")(error.into())),
    }
}

fn begin(directory: &Path, number: u64, behind: Behind) -> Result<Arc<JournalFile>> {
    let path = directory.join(file_name(number));
    let open = || -> std::io::Result<File> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
        file.write_all_at(&behind.encode(), 0)?;
        Ok(file)
    };
    Ok(Arc::new(JournalFile { file: open().map_err(io("begin a journal"))? }))
}

fn file_name(number: u64) -> String {
    format!("{number}.journal")
}

/// The numbers of the files in a directory, in order.
fn file_numbers(directory: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io("list the journal"))? {
        let name = entry.map_err(io("list the journal"))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".journal"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

fn remove_files(directory: &Path, which: impl Fn(u64) -> bool) -> Result<()> {
    for number in file_numbers(directory)?.into_iter().filter(|number| which(*number)) {
        std::fs::remove_file(directory.join(file_name(number))).map_err(io("remove a journal"))?;
    }
    Ok(())
}

/// Puts a small file in the place of another, all of it or nothing, on disk.
fn replace_file(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let new = directory.join(format!("{name}.new"));
    let replace = || -> std::io::Result<()> {
        let file = File::create(&new)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        std::fs::rename(&new, directory.join(name))?;
        File::open(directory)?.sync_all()
    };
    // On a full disk the half of it takes room that others need.
    replace().inspect_err(|_| std::fs::remove_file(&new).unwrap_or_default()).map_err(io("write the journal's base"))
}
