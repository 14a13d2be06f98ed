//! The store on disk, in RocksDB. Only this file and its folder depend on RocksDB.
//!
//! Families: `index` (hash -> kind, epoch, stored size, number) serves `contains`, scans and accounting. `chunks`, `trees` and
//! `snapshots` hold the objects, keyed by a number in write order. So objects that were written together are read together, and
//! compaction moves whole files of objects instead of sorting them by hash again and again. `refs`, `operations` and `requests`
//! are small, and `default` has the epoch and counters. `quarantine` holds rows that a repair removed from the others, `tombstones` the records of purged objects. Chunks
//! are already compressed, so RocksDB's compression is off. Transactions use group commit: one leader compares, numbers and
//! writes for all waiting threads, which makes the operation log gapless and shares the fsync.

mod disk_cache;
mod group_commit;
mod inspect;
mod names;
mod reclaim;
mod recover;
mod requests;
mod row_filter;
mod settings;
mod sweep;
mod trim;

pub use disk_cache::DiskCache;
pub use recover::recover;
pub use settings::{RocksOptions, SharedMemory};

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rocksdb::{
    ColumnFamily, DB, DBPinnableSlice, Direction, IngestExternalFileOptions, IteratorMode, Options, ReadOptions,
    SstFileWriter, WriteBatch, WriteOptions,
};

use super::group::Group;
use super::home::{self, Fingerprint, HeaderState, Mark, damaged};
use super::rows::{IndexValue, RefRow, after_prefix, number, read_tombstone, tombstone_key};
use super::{Backend, Committed, Durability, Epoch, MatchCallback, ReadCallback, StoredObject, Transaction};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::{Operation, OperationDraft, RefName, RefValue, RequestId};
use crate::tombstone::Tombstone;
use recover::{catalogue_name, check_catalogue};
use row_filter::SharedRowFilter;
use settings::{
    BlockCache, CHUNKS, DATABASE_DIRECTORY, EPOCH_KEY, FAMILIES, INDEX, META, OBJECT_FAMILIES, OPERATIONS, REFS,
    RESERVE_BYTES_MAX, RESERVE_BYTES_MIN, TOMBSTONES, UNRECLAIMED_KEY, database_options, families, family_options,
    fault, hinting, object_family, opening,
};

const INGEST_DIRECTORY: &str = "ingest";

/// From this many bytes of chunks on, a batch is ingested as a file instead of written through the log.
const INGEST_BYTES_MIN: usize = 4 << 20;
const STRIPES: usize = 256;
/// A placeholder for an unknown positive count.
const UNKNOWN: u64 = 1 << 62;

/// A store in a directory.
pub struct Rocks {
    database: DB,
    chunk_options: Options,
    directory: PathBuf,
    commits: Group<PreparedTransaction, Result<Committed>>,
    /// Only accessed by the leader of a group; it is here because it outlives the group. 0 until the log was read.
    next_operation: AtomicU64,
    /// The oldest operation in the log.
    first_operation: AtomicU64,
    /// The key of the next object in any family.
    next_object: AtomicU64,
    next_ingest: AtomicU64,
    /// Read-locked around every write of the index, so that a later write never carries an earlier epoch.
    epoch: RwLock<Epoch>,
    /// Lock stripes: a sweep's check and delete, a session's check and stamp, and the put of an object exclude each other.
    stripes: Vec<Mutex<()>>,
    /// Read-locked from the moment an object gets its number until it is in the index.
    numbering: RwLock<()>,
    /// Whether the index of references is complete.
    names_are_indexed: AtomicBool,
    row_filter: SharedRowFilter,
    /// Number of objects removed from the index whose space is not reclaimed; unknown after opening.
    unreclaimed: AtomicU64,
    reserve_one_in: u64,
    block_cache: BlockCache,
    _lock: File,
}

/// A transaction with its rows prepared: the leader only compares and numbers.
struct PreparedTransaction {
    objects: Vec<ObjectRow>,
    expect: Vec<(RefName, Option<RefValue>)>,
    set: Vec<(RefName, Option<RefValue>)>,
    operation: Option<OperationDraft>,
    durability: Durability,
}

/// The database row of an object. The epoch is set when it is written.
struct ObjectRow {
    id: ObjectId,
    index: IndexValue,
    bytes: Bytes,
}

impl Rocks {
    /// Opens the store in a directory, or creates it in an empty one.
    pub fn open(directory: &Path, options: &RocksOptions) -> Result<Self> {
        let state = home::prepare(directory, options.must_exist)?;
        let lock = home::lock(directory)?;
        let database_path = directory.join(DATABASE_DIRECTORY);
        if state != HeaderState::Creating && !database_path.join("CURRENT").exists() {
            return Err(Error::DamagedRecord {
                what: format!("directory {}", database_path.display()),
                why: "the database is gone, or its file CURRENT; the latter comes back with `amalgam verify --repair`"
                    .to_owned(),
            });
        }
        if state == HeaderState::Older {
            // Update the header before the database contains anything that older versions do not support.
            home::write_header(directory, HeaderState::Ready)?;
        }
        let mut mark = home::read_mark(directory)?;
        if let Some(Err(error)) = mark.as_ref().map(|mark| check_catalogue(&database_path, &mark.catalogue)) {
            if !home::is_mark_damaged(directory) {
                return Err(error);
            }
            mark = None;
        }
        home::clear(&directory.join(INGEST_DIRECTORY))?;
        if options.for_collection {
            home::release_reserve(directory)?;
        }
        let block_cache = options.block_cache();
        let cache = &block_cache.cache;
        let row_filter = SharedRowFilter::default();
        let families = families(options, cache, &row_filter);
        let chunk_options = family_options(CHUNKS, options, cache);
        let database = DB::open_cf_descriptors(&database_options(options), &database_path, families)
            .map_err(|source| opening(&source))?;
        let rocks = Self {
            database,
            chunk_options,
            directory: directory.to_owned(),
            commits: Group::new(),
            next_operation: AtomicU64::new(0),
            first_operation: AtomicU64::new(1),
            next_object: AtomicU64::new(0),
            next_ingest: AtomicU64::new(0),
            epoch: RwLock::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            numbering: RwLock::new(()),
            names_are_indexed: AtomicBool::new(false),
            row_filter,
            unreclaimed: AtomicU64::new(0),
            reserve_one_in: options.reserve_one_in,
            block_cache,
            _lock: lock,
        };
        let marked = mark.filter(|_| !home::is_mark_damaged(directory)).map_or(0, |mark| mark.last_operation);
        rocks.load_counters(marked).map_err(hinting)?;
        if state == HeaderState::Creating {
            rocks.database.flush_wal(true).map_err(|source| fault("create the store", &source))?;
            home::write_header(directory, HeaderState::Ready)?;
        }
        if !options.for_collection {
            rocks.keep_reserve();
        }
        Ok(rocks)
    }

    /// Loads the counters. `marked` is the last operation when the store was closed.
    fn load_counters(&self, marked: u64) -> Result<()> {
        let last_operation = self.last_number(OPERATIONS)?.unwrap_or(0);
        if marked > last_operation {
            return Err(Error::DamagedRecord {
                what: "operation log".to_owned(),
                why: format!("it ends at {last_operation}, but was closed at {marked}; {}", home::RECOVER_HINT),
            });
        }
        self.next_operation.store(last_operation + 1, Ordering::SeqCst);
        self.load_first_operation(last_operation)?;
        self.load_indexed(last_operation)?;
        for family in OBJECT_FAMILIES {
            if let Some(last) = self.last_number(family)? {
                self.next_object.fetch_max(last + 1, Ordering::SeqCst);
            }
        }
        let epoch = self.read(META, EPOCH_KEY)?;
        let epoch = epoch.map_or(Ok(0), |bytes| number(&bytes, "epoch"))?;
        *self.epoch.write() = epoch;
        if self.read(META, UNRECLAIMED_KEY)?.is_some() {
            self.unreclaimed.store(UNKNOWN, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Reserves disk space for a collection on a full disk, if the store is large enough to need it and there is space.
    fn keep_reserve(&self) {
        let Ok(bytes) = self.files_bytes() else { return };
        let wanted = bytes.checked_div(self.reserve_one_in).unwrap_or(0).min(RESERVE_BYTES_MAX);
        if wanted >= RESERVE_BYTES_MIN {
            home::keep_reserve(&self.directory, wanted).ok();
        }
    }

    fn last_number(&self, family: &'static str) -> Result<Option<u64>> {
        let mut rows = self.database.iterator_cf(self.family(family), IteratorMode::End);
        match rows.next() {
            None => Ok(None),
            Some(Ok((key, _))) => number(&key, family).map(Some),
            Some(Err(source)) => Err(fault("open the store", &source)),
        }
    }

    fn family(&self, name: &'static str) -> &ColumnFamily {
        self.database.cf_handle(name).expect("every family is opened with the store")
    }

    fn read(&self, family: &'static str, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.database.get_cf_opt(self.family(family), key, &reading(family));
        Ok(found.map_err(|source| fault("read", &source))?.map(Bytes::from))
    }

    fn index_row(&self, id: ObjectId) -> Result<Option<IndexValue>> {
        let found =
            self.database.get_pinned_cf(self.family(INDEX), id.hash).map_err(|source| fault("read", &source))?;
        let value = found.map(|bytes| IndexValue::decode(&bytes)).transpose()?;
        Ok(value.filter(|value| value.kind == id.kind))
    }

    fn ref_row(&self, name: &RefName) -> Result<Option<RefRow>> {
        self.read(REFS, name.as_str().as_bytes())?.map(RefRow::decode).transpose()
    }

    /// Returns the index rows of many hashes, regardless of their kinds.
    fn index_rows(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexValue>>> {
        let hashes: Vec<_> = ids.iter().map(|id| id.hash).collect();
        let rows = self.database.batched_multi_get_cf(self.family(INDEX), &hashes, hashes.is_sorted());
        let decode = |row: Option<DBPinnableSlice<'_>>| row.map(|row| IndexValue::decode(&row)).transpose();
        rows.into_iter().map(|row| decode(row.map_err(|source| fault("read", &source))?)).collect()
    }

    fn put_index(&self, batch: &mut WriteBatch, id: ObjectId, value: &IndexValue) {
        batch.put_cf(self.family(INDEX), id.hash, value.encode());
    }

    /// Builds the rows of objects, numbered in order.
    fn rows(&self, objects: Vec<StoredObject>) -> Vec<ObjectRow> {
        let first = self.next_object.fetch_add(objects.len() as u64, Ordering::SeqCst);
        let row = |(number, StoredObject { id, bytes }): (u64, StoredObject)| ObjectRow {
            id,
            index: IndexValue { kind: id.kind, epoch: 0, stored_bytes: bytes.len() as u64, number },
            bytes,
        };
        (first..).zip(objects).map(row).collect()
    }

    fn add_object(&self, batch: &mut WriteBatch, object: &ObjectRow) {
        batch.put_cf(self.family(object_family(object.id.kind)), object.index.number.to_be_bytes(), &object.bytes);
    }

    fn add_index(&self, batch: &mut WriteBatch, object: &mut ObjectRow, epoch: Epoch) {
        object.index.epoch = epoch;
        self.put_index(batch, object.id, &object.index);
    }

    /// Writes chunk rows as a sorted file and ingests it into RocksDB as a whole: no log, no memtable, no compaction.
    fn ingest(&self, chunks: &[&ObjectRow]) -> Result<()> {
        let action = "write imported chunks";
        let ingest = self.directory.join(INGEST_DIRECTORY);
        fs::create_dir_all(&ingest).map_err(|source| Error::from_io(action, &source))?;
        let path = ingest.join(format!("{}.sst", self.next_ingest.fetch_add(1, Ordering::Relaxed)));
        let written = (|| {
            let mut writer = SstFileWriter::create(&self.chunk_options);
            writer.open(&path)?;
            for chunk in chunks {
                writer.put(chunk.index.number.to_be_bytes(), &chunk.bytes)?;
            }
            writer.finish()?;
            let mut options = IngestExternalFileOptions::default();
            options.set_move_files(true);
            self.database.ingest_external_file_cf_opts(self.family(CHUNKS), &options, vec![&path])
        })();
        written.map_err(|source| {
            // A leftover of the file is removed when the store is opened next.
            fs::remove_file(&path).ok();
            fault(action, &source)
        })
    }

    fn write(&self, batch: WriteBatch, durable: bool) -> Result<()> {
        if batch.is_empty() {
            return if durable { self.sync() } else { Ok(()) };
        }
        let mut options = WriteOptions::default();
        options.set_sync(durable);
        self.database.write_opt(batch, &options).map_err(|source| fault("commit", &source))
    }

    fn stripe(&self, id: ObjectId) -> &Mutex<()> {
        &self.stripes[usize::from(id.hash[0]) % STRIPES]
    }

    /// Locks the stripes of these objects, always in the same order, to avoid deadlocks.
    fn lock_stripes(&self, ids: impl IntoIterator<Item = ObjectId>) -> Vec<MutexGuard<'_, ()>> {
        let mut wanted = [false; STRIPES];
        ids.into_iter().for_each(|id| wanted[usize::from(id.hash[0]) % STRIPES] = true);
        self.stripes.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(stripe, _)| stripe.lock()).collect()
    }

    /// Stamps an object with the current epoch, unless a sweep deleted it in the meantime.
    fn stamp(&self, id: ObjectId) -> Result<bool> {
        let epoch = self.epoch.read();
        let _guard = self.stripe(id).lock();
        let Some(mut value) = self.index_row(id)? else { return Ok(false) };
        value.epoch = *epoch;
        let mut batch = WriteBatch::default();
        self.put_index(&mut batch, id, &value);
        self.write(batch, false)?;
        Ok(true)
    }

    /// Calls `look` for the objects of one family, read in the order of their numbers.
    fn object_rows(
        &self,
        family: &'static str,
        wanted: &mut [Wanted],
        ids: &[ObjectId],
        look: &mut ReadCallback<'_>,
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|wanted| (wanted.number, wanted.place));
        if family == CHUNKS && is_dense(wanted) {
            return self.read_adjacent_rows(wanted, ids, look);
        }
        let keys: Vec<_> = wanted.iter().map(|wanted| wanted.number.to_be_bytes()).collect();
        let rows = self.database.batched_multi_get_cf_opt(self.family(family), &keys, true, &reading(family));
        for (Wanted { place, .. }, row) in wanted.iter().zip(rows) {
            match row.map_err(|source| fault("read", &source))? {
                Some(row) => look(*place, Some(&row))?,
                // A concurrent put of the same object moved it.
                None => look(*place, self.get(ids[*place])?.as_deref())?,
            }
        }
        Ok(())
    }

    /// Calls `look` for adjacent chunks with one sequential read instead of one read for each.
    fn read_adjacent_rows(&self, wanted: &[Wanted], ids: &[ObjectId], look: &mut ReadCallback<'_>) -> Result<()> {
        let mut options = reading(CHUNKS);
        let bytes: u64 = wanted.iter().map(|wanted| wanted.stored_bytes).sum();
        options.set_readahead_size(usize::try_from(bytes).unwrap_or(usize::MAX).min(READAHEAD_BYTES_MAX));
        if let Some(end) = wanted.last().and_then(|last| last.number.checked_add(1)) {
            options.set_iterate_upper_bound(end.to_be_bytes());
        }
        let mut rows = self.database.raw_iterator_cf_opt(self.family(CHUNKS), options);
        for Wanted { number, place, .. } in wanted {
            let key = number.to_be_bytes();
            match rows.key() {
                Some(here) if here == key => {}
                Some(here) if here < &key[..] => {
                    rows.next();
                    if rows.key().is_some_and(|here| here < &key[..]) {
                        rows.seek(key);
                    }
                }
                // The iterator is past the key: the row does not exist. Initially the iterator has no position.
                Some(_) => {}
                None => rows.seek(key),
            }
            match rows.item() {
                Some((here, row)) if here == key => look(*place, Some(row))?,
                _ => {
                    rows.status().map_err(|source| fault("read", &source))?;
                    look(*place, self.get(ids[*place])?.as_deref())?;
                }
            }
        }
        Ok(())
    }

    /// Reads the rows between the first and the last of some chunks, if their number matches; otherwise tries each half. `others`
    /// receives the indices of chunks that were not found.
    fn read_guessed_range(
        &self,
        ids: &[ObjectId],
        places: Range<usize>,
        look: &mut MatchCallback<'_>,
        others: &mut Vec<usize>,
    ) -> Result<()> {
        if places.len() < GUESSED_MIN {
            others.extend(places);
            return Ok(());
        }
        let ends = self.index_rows(&[ids[places.start], ids[places.end - 1]])?;
        let [Some(first), Some(last)] = &ends[..] else {
            others.extend(places);
            return Ok(());
        };
        if last.number.checked_sub(first.number) != Some(places.len() as u64 - 1) {
            let middle = places.start + places.len() / 2;
            self.read_guessed_range(ids, places.start..middle, look, others)?;
            return self.read_guessed_range(ids, middle..places.end, look, others);
        }
        let mut options = reading(CHUNKS);
        // `look` compares the hash, and a mismatch is read by id with all checks.
        options.set_verify_checksums(false);
        // An estimate of their size from the first and the last one. If it is too small, one more read is needed.
        let bytes = (first.stored_bytes + last.stored_bytes) / 2 * places.len() as u64;
        options.set_readahead_size(usize::try_from(bytes).unwrap_or(usize::MAX).min(READAHEAD_BYTES_MAX));
        options.set_iterate_upper_bound(last.number.saturating_add(1).to_be_bytes());
        let mut rows = self.database.raw_iterator_cf_opt(self.family(CHUNKS), options);
        rows.seek(first.number.to_be_bytes());
        for (number, place) in (first.number..).zip(places) {
            let is_match = match rows.item() {
                Some((here, row)) if here == number.to_be_bytes() => {
                    let is_match = look(place, row);
                    rows.next();
                    is_match
                }
                _ => false,
            };
            if !is_match {
                others.push(place);
            }
        }
        // A row that cannot be read produces an error when it is read by id.
        Ok(())
    }
}

/// Minimum number of chunks for a guess to be worthwhile.
const GUESSED_MIN: usize = 8;

/// An object to read: the key of its bytes, their length, and its index in the request.
struct Wanted {
    number: u64,
    stored_bytes: u64,
    place: usize,
}

/// Minimum number of objects for a sequential read to be worthwhile.
const IN_A_ROW_MIN: usize = 4;
/// Maximum read-ahead, in bytes.
const READAHEAD_BYTES_MAX: usize = 2 << 20;

/// Returns whether objects are adjacent, except for a few others between them.
fn is_dense(sorted: &[Wanted]) -> bool {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return false };
    let rows = last.number - first.number;
    sorted.len() >= IN_A_ROW_MIN && rows < sorted.len() as u64 * 5 / 4
}

/// Returns read options. Chunks are read once and then cached by the kernel or by the caller: in the block cache they would only
/// evict other data.
fn reading(family: &'static str) -> ReadOptions {
    let mut options = ReadOptions::default();
    options.fill_cache(family != CHUNKS);
    options
}

impl Backend for Rocks {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        let mut number = None;
        loop {
            let Some(value) = self.index_row(id)? else { return Ok(None) };
            let found = self.read(object_family(id.kind), &value.number.to_be_bytes())?;
            // A concurrent put of the same object moved it, and a collection deleted the old row.
            if found.is_some() || number == Some(value.number) {
                return Ok(found);
            }
            number = Some(value.number);
        }
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let mut found = vec![None; ids.len()];
        self.look_at_many(ids, &mut |place, stored| {
            found[place] = stored.map(Bytes::copy_from_slice);
            Ok(())
        })?;
        Ok(found)
    }

    fn look_at_many(&self, ids: &[ObjectId], look: &mut ReadCallback<'_>) -> Result<()> {
        let mut wanted: HashMap<_, Vec<_>> = HashMap::new();
        for (place, value) in self.index_rows(ids)?.into_iter().enumerate() {
            match value.filter(|value| value.kind == ids[place].kind) {
                Some(IndexValue { kind, number, stored_bytes, .. }) => {
                    wanted.entry(object_family(kind)).or_default().push(Wanted { number, stored_bytes, place });
                }
                None => look(place, None)?,
            }
        }
        wanted.into_iter().try_for_each(|(family, mut wanted)| self.object_rows(family, &mut wanted, ids, look))
    }

    fn guess_many(&self, ids: &[ObjectId], look: &mut MatchCallback<'_>) -> Result<Vec<usize>> {
        let mut others = Vec::new();
        if ids.iter().all(|id| id.kind == ObjectKind::Chunk) {
            self.read_guessed_range(ids, 0..ids.len(), look, &mut others)?;
        } else {
            others.extend(0..ids.len());
        }
        Ok(others)
    }

    fn contains_many(&self, ids: &[ObjectId], at_least: Epoch) -> Result<Vec<bool>> {
        let present = |id: &ObjectId, value: Option<IndexValue>| match value.filter(|value| value.kind == id.kind) {
            None => Ok(false),
            Some(value) if value.epoch >= at_least => Ok(true),
            Some(_) => self.stamp(*id),
        };
        if let [id] = ids {
            return Ok(vec![present(id, self.index_row(*id)?)?]);
        }
        ids.iter().zip(self.index_rows(ids)?).map(|(id, value)| present(id, value)).collect()
    }

    fn put_ahead(&self, objects: Vec<StoredObject>) -> Result<()> {
        let _numbering = self.numbering.read();
        let mut objects = self.rows(objects);
        let mut batch = WriteBatch::default();
        let (chunks, others): (Vec<_>, Vec<_>) = objects.iter().partition(|object| object.id.kind == ObjectKind::Chunk);
        others.into_iter().for_each(|object| self.add_object(&mut batch, object));
        if chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>() >= INGEST_BYTES_MIN {
            // The chunks are on disk before the index refers to them; a crash in between leaves unreferenced rows.
            self.ingest(&chunks)?;
        } else {
            chunks.into_iter().for_each(|chunk| self.add_object(&mut batch, chunk));
        }
        let epoch = self.epoch.read();
        let _stripes = self.lock_stripes(objects.iter().map(|object| object.id));
        objects.iter_mut().for_each(|object| self.add_index(&mut batch, object, *epoch));
        self.write(batch, false)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        transaction.check()?;
        let Transaction { objects, expect, set, operation, durability } = transaction;
        let _numbering = self.numbering.read();
        let prepared = PreparedTransaction { objects: self.rows(objects), expect, set, operation, durability };
        self.commits.submit(prepared, |group| self.commit_group(group))
    }

    fn sync(&self) -> Result<()> {
        self.database.flush_wal(true).map_err(|source| fault("sync", &source))
    }

    fn empty_log(&self) -> Result<()> {
        // A family with rows only in memory keeps the whole log since the first of them.
        let flush = |name: &&'static str| self.database.flush_cf(self.family(name));
        FAMILIES.iter().try_for_each(flush).map_err(|source| fault("empty the log", &source))
    }

    fn release_memory(&self) -> Result<()> {
        self.empty_log()?;
        self.block_cache.empty();
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        *self.epoch.read()
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        Ok(self.ref_row(name)?.map(|row| row.value))
    }

    fn last_move(&self, name: &RefName) -> Result<u64> {
        Ok(self.ref_row(name)?.map_or(0, |row| row.operation))
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let start = after.map_or(prefix, |name| name.as_str().max(prefix));
        let mut options = ReadOptions::default();
        // Beyond the prefix there may be many deleted rows, and the iterator would skip them one by one.
        options.set_iterate_upper_bound(after_prefix(prefix.as_bytes()));
        let mode = IteratorMode::From(start.as_bytes(), Direction::Forward);
        let mut listed = Vec::new();
        for row in self.database.iterator_cf_opt(self.family(REFS), options, mode) {
            let (key, value) = row.map_err(|source| fault("list references", &source))?;
            if listed.len() == limit || !key.starts_with(prefix.as_bytes()) {
                break;
            }
            if after.is_some_and(|name| name.as_str().as_bytes() == &*key) {
                continue;
            }
            let name = String::from_utf8(key.into_vec()).map_err(|why| damaged("reference", &why))?;
            let name = RefName::new(name).map_err(|why| damaged("reference", &why))?;
            listed.push((name, RefRow::decode(Bytes::from(value))?.value));
        }
        Ok(listed)
    }

    fn names_of(&self, target: ObjectId) -> Result<Vec<RefName>> {
        self.indexed_names(target)
    }

    fn greatest_deleted(&self, prefix: &str) -> Result<Option<u64>> {
        self.indexed_number(prefix)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        let Some(first) = after.checked_add(1) else {
            return Ok(Vec::new());
        };
        self.check_reach(after)?;
        let start = first.to_be_bytes();
        let rows = self.database.iterator_cf(self.family(OPERATIONS), IteratorMode::From(&start, Direction::Forward));
        let listed = rows
            .take(limit)
            .map(|row| {
                let (key, value) = row.map_err(|source| fault("list operations", &source))?;
                Operation::decode(number(&key, OPERATIONS)?, Bytes::from(value))
                    .map_err(|why| damaged("operation", &why))
            })
            .collect();
        // The log may have been trimmed since.
        self.check_reach(after)?;
        listed
    }

    fn last_operation(&self) -> Result<u64> {
        Ok(self.next_operation.load(Ordering::SeqCst) - 1)
    }

    fn first_operation(&self) -> Result<u64> {
        Ok(self.first_operation.load(Ordering::SeqCst))
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        self.operation_of(request)
    }

    fn tombstone(&self, id: ObjectId) -> Result<Option<Tombstone>> {
        self.read(TOMBSTONES, &tombstone_key(id))?.map(read_tombstone).transpose()
    }
}

impl Drop for Rocks {
    /// Flushes the log into files, so that the next opening replays nothing, and writes the mark that the next opening compares
    /// with. A failure loses nothing: the log still exists.
    fn drop(&mut self) {
        if self.empty_log().is_err() || self.database.flush_wal(true).is_err() {
            return;
        }
        self.keep_reserve();
        // From here on nothing is appended to the manifest.
        self.database.cancel_all_background_work(true);
        // An opening that failed because of the mark leaves it, so that the next opening fails too.
        let Some(last_operation) = self.next_operation.load(Ordering::SeqCst).checked_sub(1) else { return };
        let database_path = self.directory.join(DATABASE_DIRECTORY);
        catalogue_name(&database_path)
            .and_then(|name| Fingerprint::of(&database_path, &name))
            .and_then(|catalogue| home::write_mark(&self.directory, &Mark { last_operation, catalogue }))
            .ok();
    }
}
