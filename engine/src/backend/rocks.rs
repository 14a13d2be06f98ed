//! The embedded store on disk, in RocksDB. The only file that knows RocksDB.
//!
//! Families: `index` (hash -> kind, epoch, stored size, number) answers `contains`, scans and accounting; `chunks` is keyed
//! by a number in the order of writing, so that what was written together is read together, and holds the id before the
//! bytes; `trees` and `snapshots` are keyed by hash; `refs`, `operations` and `requests` are small. Chunks come compressed,
//! so RocksDB's own compression is off. Transactions go through group commit: one leader compares, numbers and writes for
//! all that wait, which makes the operation log gapless and shares the fsync.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamily, ColumnFamilyDescriptor, DB, DBCompressionType, DBRecoveryMode, Direction,
    IngestExternalFileOptions, IteratorMode, Options, ReadOptions, SstFileWriter, WriteBatch, WriteOptions,
};

use super::check::check;
use super::group::Group;
use super::home::{self, Fingerprint, HeaderState, Mark, damaged};
use super::{Backend, Committed, Durability, Epoch, IndexRow, StoredObject, Sweep, Transaction};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::{Operation, OperationDraft, RefChange, RefName, RefValue, RequestId};

const DATABASE_DIRECTORY: &str = "db";
const INGEST_DIRECTORY: &str = "ingest";

const INDEX: &str = "index";
const CHUNKS: &str = "chunks";
const TREES: &str = "trees";
const SNAPSHOTS: &str = "snapshots";
const REFS: &str = "refs";
const OPERATIONS: &str = "operations";
const REQUESTS: &str = "requests";
const META: &str = "default";
const EPOCH_KEY: &[u8] = b"epoch";

/// From this many bytes of chunks on, a batch is written as a file of its own instead of through the log.
const INGEST_BYTES_MIN: usize = 4 << 20;
const STRIPES: usize = 256;

/// Settings that cost memory.
#[derive(Clone, Debug)]
pub struct RocksOptions {
    /// RocksDB's cache of blocks, bloom filters and file indexes.
    pub block_cache_bytes: usize,
    /// Memory for chunks that are not yet in files.
    pub chunk_buffer_bytes: usize,
    /// The same for each of the other families.
    pub other_buffer_bytes: usize,
    /// Refuse to make a store where there is none.
    pub must_exist: bool,
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            block_cache_bytes: 64 << 20,
            chunk_buffer_bytes: 32 << 20,
            other_buffer_bytes: 8 << 20,
            must_exist: false,
        }
    }
}

/// A store in a directory.
pub struct Rocks {
    database: DB,
    chunk_options: Options,
    directory: PathBuf,
    commits: Group<Prepared, Result<Committed>>,
    /// Held by the leader of a group alone; here so that it outlives the group.
    next_operation: AtomicU64,
    next_chunk: AtomicU64,
    next_ingest: AtomicU64,
    epoch: AtomicU64,
    /// A sweep's check and delete, a session's check and stamp, and a put of one object exclude each other.
    stripes: Vec<Mutex<()>>,
    _lock: File,
}

/// A transaction whose rows are ready: only comparing and numbering is left to the leader.
struct Prepared {
    objects: Vec<ObjectRow>,
    expect: Vec<(RefName, Option<RefValue>)>,
    set: Vec<(RefName, Option<RefValue>)>,
    operation: Option<OperationDraft>,
    durability: Durability,
}

/// An object as it lies in its family, and what the index is to say of it.
struct ObjectRow {
    id: ObjectId,
    value: IndexValue,
    bytes: Bytes,
}

/// What a batch puts, by hash, where the index may have to keep a younger epoch than that of the put.
type Merge = HashMap<[u8; 32], IndexValue>;

impl Rocks {
    /// Opens the store in a directory, or makes one where there is nothing yet.
    pub fn open(directory: &Path, options: &RocksOptions) -> Result<Self> {
        let state = home::prepare(directory, options.must_exist)?;
        let lock = home::lock(directory)?;
        let database_path = directory.join(DATABASE_DIRECTORY);
        if state == HeaderState::Ready && !database_path.join("CURRENT").exists() {
            return Err(Error::DamagedRecord {
                what: format!("directory {}", database_path.display()),
                why: "the database is gone".to_owned(),
            });
        }
        let mark = home::read_mark(directory)?;
        if let Some(mark) = &mark {
            check_catalogue(&database_path, &mark.catalogue)?;
        }
        home::clear(&directory.join(INGEST_DIRECTORY))?;
        let cache = Cache::new_lru_cache(options.block_cache_bytes);
        let families = families(options, &cache);
        let chunk_options = family_options(CHUNKS, options, &cache);
        let database = DB::open_cf_descriptors(&database_options(), &database_path, families)
            .map_err(|source| opening(&source))?;
        let rocks = Self {
            database,
            chunk_options,
            directory: directory.to_owned(),
            commits: Group::new(),
            next_operation: AtomicU64::new(1),
            next_chunk: AtomicU64::new(0),
            next_ingest: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            _lock: lock,
        };
        rocks.load_counters(mark.map_or(0, |mark| mark.last_operation))?;
        if state == HeaderState::Creating {
            rocks.database.flush_wal(true).map_err(|source| fault("create the store", &source))?;
            home::write_header(directory, HeaderState::Ready)?;
        }
        Ok(rocks)
    }

    /// `marked` is where the operation log stood when the store was closed.
    fn load_counters(&self, marked: u64) -> Result<()> {
        let last_operation = self.last_number(OPERATIONS)?.unwrap_or(0);
        if marked > last_operation {
            return Err(Error::DamagedRecord {
                what: "operation log".to_owned(),
                why: format!("it ends at {last_operation}, but was closed at {marked}"),
            });
        }
        self.next_operation.store(last_operation + 1, Ordering::SeqCst);
        self.next_chunk.store(self.last_number(CHUNKS)?.map_or(0, |last| last + 1), Ordering::SeqCst);
        let epoch = self.read(META, EPOCH_KEY)?;
        let epoch = epoch.map_or(Ok(0), |bytes| number(&bytes, "epoch"))?;
        self.epoch.store(epoch, Ordering::SeqCst);
        Ok(())
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
        let found = self.database.get_cf(self.family(family), key).map_err(|source| fault("read", &source))?;
        Ok(found.map(Bytes::from))
    }

    fn index_row(&self, id: ObjectId) -> Result<Option<IndexValue>> {
        let found =
            self.database.get_pinned_cf(self.family(INDEX), id.hash).map_err(|source| fault("read", &source))?;
        let value = found.map(|bytes| IndexValue::decode(&bytes)).transpose()?;
        Ok(value.filter(|value| value.kind == id.kind))
    }

    fn put_index(&self, batch: &mut WriteBatch, id: ObjectId, value: &IndexValue) {
        batch.put_cf(self.family(INDEX), id.hash, value.encode());
    }

    /// The rows of objects, chunks numbered in the order they come.
    fn rows(&self, objects: Vec<StoredObject>, epoch: Epoch) -> Vec<ObjectRow> {
        let chunks = objects.iter().filter(|object| object.id.kind == ObjectKind::Chunk).count() as u64;
        let mut number = self.next_chunk.fetch_add(chunks, Ordering::SeqCst);
        let row = |StoredObject { id, bytes }| {
            let mut value = IndexValue { kind: id.kind, epoch, stored_bytes: bytes.len() as u64, number: 0 };
            if id.kind != ObjectKind::Chunk {
                return ObjectRow { id, value, bytes };
            }
            value.number = number;
            number += 1;
            ObjectRow { id, value, bytes: chunk_row(id, &bytes) }
        };
        objects.into_iter().map(row).collect()
    }

    /// Takes the locks of these objects, in the one order that everybody takes them in.
    fn lock_stripes<'a>(&self, rows: impl Iterator<Item = &'a ObjectRow>) -> Vec<MutexGuard<'_, ()>> {
        let mut wanted = [false; STRIPES];
        rows.for_each(|row| wanted[stripe_of(row.id)] = true);
        self.stripes.iter().zip(wanted).filter(|(_, wanted)| *wanted).map(|(stripe, _)| stripe.lock()).collect()
    }

    /// Somebody may have met an object in a younger epoch than that of its put only if there is a younger one. To be asked
    /// under the locks of the objects.
    fn merge(&self, mut epochs: impl Iterator<Item = Epoch>) -> Option<Merge> {
        let now = self.epoch();
        epochs.any(|epoch| epoch < now).then(Merge::default)
    }

    /// Adds an object to a batch. The caller holds its lock until the batch is written.
    fn add_object(&self, batch: &mut WriteBatch, row: &ObjectRow, merge: &mut Option<Merge>) -> Result<()> {
        let value = self.add_index(batch, row, merge)?;
        match row.id.kind {
            ObjectKind::Chunk => batch.put_cf(self.family(CHUNKS), value.number.to_be_bytes(), &row.bytes),
            kind => batch.put_cf(self.family(object_family(kind)), row.id.hash, &row.bytes),
        }
        Ok(())
    }

    /// The same for the index alone. What is there already stays where it is, and never becomes older.
    fn add_index(&self, batch: &mut WriteBatch, row: &ObjectRow, merge: &mut Option<Merge>) -> Result<IndexValue> {
        let mut value = row.value;
        if let Some(merge) = merge {
            let there = match merge.get(&row.id.hash) {
                Some(there) => Some(*there),
                None => self.index_row(row.id)?,
            };
            if let Some(there) = there {
                value = IndexValue { epoch: there.epoch.max(value.epoch), ..there };
            }
            merge.insert(row.id.hash, value);
        }
        self.put_index(batch, row.id, &value);
        Ok(value)
    }

    /// Writes chunk rows as a sorted file and hands it to RocksDB whole: no log, no memtable, no compaction.
    fn ingest(&self, chunks: &[&ObjectRow]) -> Result<()> {
        let action = "write imported chunks";
        let ingest = self.directory.join(INGEST_DIRECTORY);
        fs::create_dir_all(&ingest).map_err(|source| Error::from_io(action, &source))?;
        let path = ingest.join(format!("{}.sst", self.next_ingest.fetch_add(1, Ordering::Relaxed)));
        let written = (|| {
            let mut writer = SstFileWriter::create(&self.chunk_options);
            writer.open(&path)?;
            for row in chunks {
                writer.put(row.value.number.to_be_bytes(), &row.bytes)?;
            }
            writer.finish()?;
            let mut options = IngestExternalFileOptions::default();
            options.set_move_files(true);
            self.database.ingest_external_file_cf_opts(self.family(CHUNKS), &options, vec![&path])
        })();
        written.map_err(|source| {
            // Whatever is left of the file is cleared when the store is opened next.
            fs::remove_file(&path).ok();
            fault(action, &source)
        })
    }

    /// Leads a group: compares, numbers, writes once, and says to each what came of it.
    fn commit_group(&self, group: Vec<Prepared>) -> Vec<Result<Committed>> {
        let _guards = self.lock_stripes(group.iter().flat_map(|prepared| &prepared.objects));
        let merge = self.merge(group.iter().flat_map(|prepared| &prepared.objects).map(|row| row.value.epoch));
        let mut round = Round {
            rocks: self,
            merge,
            batch: WriteBatch::default(),
            moved: HashMap::new(),
            requests: HashMap::new(),
            next_operation: self.next_operation.load(Ordering::SeqCst),
        };
        let durable = group.iter().any(|prepared| prepared.durability == Durability::Durable);
        let mut results: Vec<_> = group.into_iter().map(|prepared| round.add(prepared)).collect();
        let Round { batch, next_operation, .. } = round;
        if let Err(error) = self.write(batch, durable) {
            for result in &mut results {
                if result.is_ok() {
                    *result = Err(error.clone());
                }
            }
            return results;
        }
        self.next_operation.store(next_operation, Ordering::SeqCst);
        results
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
        &self.stripes[stripe_of(id)]
    }

    /// Stamps an object that is there with an older epoch, unless a sweep took it in the meantime.
    fn stamp(&self, id: ObjectId, epoch: Epoch) -> Result<bool> {
        let _guard = self.stripe(id).lock();
        let Some(mut value) = self.index_row(id)? else {
            return Ok(false);
        };
        if value.epoch < epoch {
            value.epoch = epoch;
            let mut batch = WriteBatch::default();
            self.put_index(&mut batch, id, &value);
            self.write(batch, false)?;
        }
        Ok(true)
    }

    /// The chunk rows with these numbers, read in the order of the numbers.
    fn chunk_rows(&self, numbers: &[(u64, usize)], ids: &[ObjectId], found: &mut [Option<Bytes>]) -> Result<()> {
        let keys: Vec<_> = numbers.iter().map(|(number, _)| number.to_be_bytes()).collect();
        let rows = self.database.batched_multi_get_cf(self.family(CHUNKS), &keys, true);
        for ((_, place), row) in numbers.iter().zip(rows) {
            if let Some(row) = row.map_err(|source| fault("read", &source))? {
                found[*place] = Some(chunk_bytes(ids[*place], &Bytes::copy_from_slice(&row))?);
            }
        }
        Ok(())
    }
}

/// What a leader gathers for one write.
struct Round<'a> {
    rocks: &'a Rocks,
    merge: Option<Merge>,
    batch: WriteBatch,
    moved: HashMap<RefName, Option<RefValue>>,
    requests: HashMap<RequestId, Operation>,
    next_operation: u64,
}

impl Round<'_> {
    fn add(&mut self, prepared: Prepared) -> Result<Committed> {
        let request = prepared.operation.as_ref().and_then(|draft| draft.request.clone());
        if let Some(request) = &request
            && let Some(operation) = self.find_request(request)?
        {
            return Ok(Committed { operation: Some(operation), replayed: true });
        }
        let mut before = HashMap::with_capacity(prepared.expect.len());
        let mut stale = Vec::new();
        for (name, expected) in prepared.expect {
            let current = self.current(&name)?;
            if current == expected {
                before.insert(name, current);
            } else {
                stale.push((name, current));
            }
        }
        if !stale.is_empty() {
            return Err(Error::Stale { moved: stale });
        }
        for row in &prepared.objects {
            self.rocks.add_object(&mut self.batch, row, &mut self.merge)?;
        }
        let mut changes = Vec::with_capacity(prepared.set.len());
        for (name, after) in prepared.set {
            let refs = self.rocks.family(REFS);
            match &after {
                Some(value) => self.batch.put_cf(refs, name.as_str(), value.encode()),
                None => self.batch.delete_cf(refs, name.as_str()),
            }
            self.moved.insert(name.clone(), after.clone());
            let before = before.remove(&name).flatten();
            changes.push(RefChange { name, before, after });
        }
        let operation = prepared.operation.map(|draft| Operation { sequence: self.next_operation, draft, changes });
        if let Some(operation) = &operation {
            self.next_operation += 1;
            let key = operation.sequence.to_be_bytes();
            self.batch.put_cf(self.rocks.family(OPERATIONS), key, operation.encode());
            if let Some(request) = request {
                self.batch.put_cf(self.rocks.family(REQUESTS), request.as_bytes(), key);
                self.requests.insert(request, operation.clone());
            }
        }
        Ok(Committed { operation, replayed: false })
    }

    fn current(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.moved.get(name).map_or_else(|| self.rocks.read_ref(name), |value| Ok(value.clone()))
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        match self.requests.get(request) {
            Some(operation) => Ok(Some(operation.clone())),
            None => self.rocks.find_request(request),
        }
    }
}

impl Backend for Rocks {
    fn get(&self, id: ObjectId) -> Result<Option<Bytes>> {
        if id.kind != ObjectKind::Chunk {
            return self.read(object_family(id.kind), &id.hash);
        }
        let Some(value) = self.index_row(id)? else {
            return Ok(None);
        };
        let row = self.read(CHUNKS, &value.number.to_be_bytes())?;
        row.map(|row| chunk_bytes(id, &row)).transpose()
    }

    fn get_many(&self, ids: &[ObjectId]) -> Result<Vec<Option<Bytes>>> {
        let mut found = vec![None; ids.len()];
        let mut numbers = Vec::new();
        let chunk_places: Vec<_> = (0..ids.len()).filter(|place| ids[*place].kind == ObjectKind::Chunk).collect();
        let hashes: Vec<_> = chunk_places.iter().map(|place| ids[*place].hash).collect();
        let rows = self.database.batched_multi_get_cf(self.family(INDEX), &hashes, false);
        for (place, row) in chunk_places.into_iter().zip(rows) {
            if let Some(row) = row.map_err(|source| fault("read", &source))? {
                numbers.push((IndexValue::decode(&row)?.number, place));
            }
        }
        numbers.sort_unstable();
        self.chunk_rows(&numbers, ids, &mut found)?;
        for (place, id) in ids.iter().enumerate().filter(|(_, id)| id.kind != ObjectKind::Chunk) {
            found[place] = self.get(*id)?;
        }
        Ok(found)
    }

    fn contains_many(&self, ids: &[ObjectId], stamp: Epoch) -> Result<Vec<bool>> {
        let present = |id: &ObjectId| match self.index_row(*id)? {
            None => Ok(false),
            Some(value) if value.epoch >= stamp => Ok(true),
            Some(_) => self.stamp(*id, stamp),
        };
        ids.iter().map(present).collect()
    }

    fn put_ahead(&self, objects: Vec<StoredObject>, epoch: Epoch) -> Result<()> {
        let rows = self.rows(objects, epoch);
        let chunks: Vec<_> = rows.iter().filter(|row| row.id.kind == ObjectKind::Chunk).collect();
        let ingested = chunks.iter().map(|row| row.bytes.len()).sum::<usize>() >= INGEST_BYTES_MIN;
        if ingested {
            // The chunks are on disk before the index says so; a crash in between leaves rows that nothing names.
            self.ingest(&chunks)?;
        }
        let _guards = self.lock_stripes(rows.iter());
        let mut merge = self.merge(std::iter::once(epoch));
        let mut batch = WriteBatch::default();
        for row in &rows {
            if ingested && row.id.kind == ObjectKind::Chunk {
                self.add_index(&mut batch, row, &mut merge)?;
            } else {
                self.add_object(&mut batch, row, &mut merge)?;
            }
        }
        self.write(batch, false)
    }

    fn transact(&self, transaction: Transaction) -> Result<Committed> {
        check(&transaction)?;
        let Transaction { objects, epoch, expect, set, operation, durability } = transaction;
        let prepared = Prepared { objects: self.rows(objects, epoch), expect, set, operation, durability };
        self.commits.submit(prepared, |group| self.commit_group(group))
    }

    fn sync(&self) -> Result<()> {
        self.database.flush_wal(true).map_err(|source| fault("sync", &source))
    }

    fn epoch(&self) -> Epoch {
        self.epoch.load(Ordering::SeqCst)
    }

    fn read_ref(&self, name: &RefName) -> Result<Option<RefValue>> {
        let found = self.read(REFS, name.as_str().as_bytes())?;
        found.map(|bytes| RefValue::decode(bytes).map_err(|why| damaged("reference", &why))).transpose()
    }

    fn list_refs(&self, prefix: &str, after: Option<&RefName>, limit: usize) -> Result<Vec<(RefName, RefValue)>> {
        let start = after.map_or(prefix, |name| name.as_str().max(prefix));
        let mut listed = Vec::new();
        for row in
            self.database.iterator_cf(self.family(REFS), IteratorMode::From(start.as_bytes(), Direction::Forward))
        {
            let (key, value) = row.map_err(|source| fault("list references", &source))?;
            if listed.len() == limit || !key.starts_with(prefix.as_bytes()) {
                break;
            }
            if after.is_some_and(|name| name.as_str().as_bytes() == &*key) {
                continue;
            }
            let name = String::from_utf8(key.into_vec()).map_err(|why| damaged("reference", &why))?;
            let name = RefName::new(name).map_err(|why| damaged("reference", &why))?;
            let value = RefValue::decode(Bytes::from(value)).map_err(|why| damaged("reference", &why))?;
            listed.push((name, value));
        }
        Ok(listed)
    }

    fn list_operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        let Some(first) = after.checked_add(1) else {
            return Ok(Vec::new());
        };
        let start = first.to_be_bytes();
        let rows = self.database.iterator_cf(self.family(OPERATIONS), IteratorMode::From(&start, Direction::Forward));
        rows.take(limit)
            .map(|row| {
                let (key, value) = row.map_err(|source| fault("list operations", &source))?;
                Operation::decode(number(&key, OPERATIONS)?, Bytes::from(value))
                    .map_err(|why| damaged("operation", &why))
            })
            .collect()
    }

    fn last_operation(&self) -> Result<u64> {
        Ok(self.next_operation.load(Ordering::SeqCst) - 1)
    }

    fn find_request(&self, request: &RequestId) -> Result<Option<Operation>> {
        let Some(key) = self.read(REQUESTS, request.as_bytes())? else {
            return Ok(None);
        };
        let sequence = number(&key, REQUESTS)?;
        let Some(bytes) = self.read(OPERATIONS, &key)? else {
            return Err(damaged("operation log", &format!("operation {sequence} is missing")));
        };
        Operation::decode(sequence, bytes).map(Some).map_err(|why| damaged("operation", &why))
    }
}

impl Sweep for Rocks {
    fn advance_epoch(&self) -> Result<Epoch> {
        let mut batch = WriteBatch::default();
        let epoch = self.epoch() + 1;
        batch.put_cf(self.family(META), EPOCH_KEY, epoch.to_be_bytes());
        self.write(batch, true)?;
        self.epoch.store(epoch, Ordering::SeqCst);
        Ok(epoch)
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        let mode = match &after {
            None => IteratorMode::Start,
            Some(id) => IteratorMode::From(&id.hash, Direction::Forward),
        };
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        let mut rows = Vec::new();
        for row in self.database.iterator_cf_opt(self.family(INDEX), options, mode) {
            let (key, value) = row.map_err(|source| fault("scan objects", &source))?;
            if after.is_some_and(|id| id.hash[..] == *key) {
                continue;
            }
            if rows.len() == limit {
                break;
            }
            let hash = key[..].try_into().map_err(|why| damaged("object index", &why))?;
            let value = IndexValue::decode(&value)?;
            let id = ObjectId { kind: value.kind, hash };
            rows.push(IndexRow { id, stored_bytes: value.stored_bytes, epoch: value.epoch });
        }
        Ok(rows)
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<u64> {
        let mut deleted = 0;
        for id in ids {
            let _guard = self.stripe(*id).lock();
            let Some(value) = self.index_row(*id)?.filter(|value| value.epoch < older_than) else {
                continue;
            };
            let mut batch = WriteBatch::default();
            batch.delete_cf(self.family(INDEX), id.hash);
            match id.kind {
                ObjectKind::Chunk => batch.delete_cf(self.family(CHUNKS), value.number.to_be_bytes()),
                kind => batch.delete_cf(self.family(object_family(kind)), id.hash),
            }
            self.write(batch, false)?;
            deleted += 1;
        }
        Ok(deleted)
    }
}

impl Drop for Rocks {
    /// Empties the log into files, so that the next opening replays nothing, and leaves the mark that the next opening
    /// compares with. A failure here loses nothing: the log is still there.
    fn drop(&mut self) {
        let flushed = FAMILIES.iter().try_for_each(|name| self.database.flush_cf(self.family(name)));
        if flushed.is_err() || self.database.flush_wal(true).is_err() {
            return;
        }
        // From here on nothing is added to the catalogue.
        self.database.cancel_all_background_work(true);
        let last_operation = self.next_operation.load(Ordering::SeqCst) - 1;
        let database_path = self.directory.join(DATABASE_DIRECTORY);
        catalogue_name(&database_path)
            .and_then(|name| Fingerprint::of(&database_path, &name))
            .and_then(|catalogue| home::write_mark(&self.directory, &Mark { last_operation, catalogue }))
            .ok();
    }
}

/// The manifest in use. RocksDB begins a new one at every opening and then only appends to it.
fn catalogue_name(database_path: &Path) -> std::io::Result<String> {
    Ok(fs::read_to_string(database_path.join("CURRENT"))?.trim_end().to_owned())
}

/// A manifest that lost its end is taken for one that was never longer, and one with a certain damage is read for ever. So
/// the one that the store was closed with is looked at first; another one belongs to a later opening, which ended early.
fn check_catalogue(database_path: &Path, marked: &Fingerprint) -> Result<()> {
    let holds = match catalogue_name(database_path) {
        Ok(name) if name != marked.name => return Ok(()),
        Ok(_) => marked.holds(database_path),
        Err(source) => Err(source),
    };
    match holds {
        Ok(true) => Ok(()),
        Ok(false) => Err(damaged("database", &format!("its file {} is not as it was closed", marked.name))),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(damaged("database", &format!("its file {} is gone", marked.name)))
        }
        Err(source) if source.kind() == std::io::ErrorKind::InvalidData => {
            Err(damaged("database", &"its file CURRENT is not text"))
        }
        Err(source) => Err(Error::from_io("open the store", &source)),
    }
}

fn stripe_of(id: ObjectId) -> usize {
    usize::from(id.hash[0]) % STRIPES
}

/// The value of a row of the object index.
#[derive(Clone, Copy)]
struct IndexValue {
    kind: ObjectKind,
    epoch: Epoch,
    stored_bytes: u64,
    /// The key in the chunk family; 0 for other kinds.
    number: u64,
}

impl IndexValue {
    const BYTES: usize = 25;

    fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.epoch.to_be_bytes());
        bytes[9..17].copy_from_slice(&self.stored_bytes.to_be_bytes());
        bytes[17..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let wrong = || damaged("object index", &"a row of the wrong form");
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| wrong())?;
        let part = |from: usize| u64::from_be_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let kind = ObjectKind::from_number(bytes[0]).ok_or_else(wrong)?;
        Ok(Self { kind, epoch: part(1), stored_bytes: part(9), number: part(17) })
    }
}

fn chunk_row(id: ObjectId, stored: &Bytes) -> Bytes {
    let mut row = Vec::with_capacity(32 + stored.len());
    row.extend_from_slice(&id.hash);
    row.extend_from_slice(stored);
    row.into()
}

fn chunk_bytes(id: ObjectId, row: &Bytes) -> Result<Bytes> {
    if row.starts_with(&id.hash) { Ok(row.slice(32..)) } else { Err(Error::HashMismatch { id }) }
}

fn object_family(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Chunk => CHUNKS,
        ObjectKind::Snapshot => SNAPSHOTS,
        ObjectKind::Rope
        | ObjectKind::Directory
        | ObjectKind::Root
        | ObjectKind::Links
        | ObjectKind::State
        | ObjectKind::Xattrs => TREES,
    }
}

const FAMILIES: [&str; 8] = [META, INDEX, CHUNKS, TREES, SNAPSHOTS, REFS, OPERATIONS, REQUESTS];

fn families(options: &RocksOptions, cache: &Cache) -> Vec<ColumnFamilyDescriptor> {
    FAMILIES.iter().map(|name| ColumnFamilyDescriptor::new(*name, family_options(name, options, cache))).collect()
}

fn family_options(name: &str, options: &RocksOptions, cache: &Cache) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(cache);
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);
    table.set_format_version(6);
    let mut family = Options::default();
    family.set_write_buffer_size(options.other_buffer_bytes);
    family.set_max_write_buffer_number(3);
    family.set_target_file_size_base(16 << 20);
    family.set_compression_type(DBCompressionType::None);
    match name {
        CHUNKS => {
            table.set_block_size(16 << 10);
            family.set_write_buffer_size(options.chunk_buffer_bytes);
            family.set_target_file_size_base(64 << 20);
        }
        OPERATIONS => {
            table.set_block_size(16 << 10);
            family.set_compression_type(DBCompressionType::Lz4);
        }
        _ => {
            table.set_block_size(4 << 10);
            table.set_bloom_filter(10.0, false);
        }
    }
    family.set_block_based_table_factory(&table);
    family
}

fn database_options() -> Options {
    let mut database = Options::default();
    database.create_if_missing(true);
    database.create_missing_column_families(true);
    database.set_max_background_jobs(2);
    // Many systems allow a process 1,024 files.
    database.set_max_open_files(512);
    database.set_max_total_wal_size(64 << 20);
    database.set_recycle_log_file_num(4);
    // After a power cut the log ends where it was last whole: a suffix may be lost, never the middle.
    database.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    database.set_keep_log_file_num(4);
    database.set_max_log_file_size(4 << 20);
    database.set_stats_dump_period_sec(0);
    database.set_stats_persist_period_sec(0);
    database
}

fn number(bytes: &[u8], what: &str) -> Result<u64> {
    bytes.try_into().map(u64::from_be_bytes).map_err(|_| damaged(what, &"a key of the wrong length"))
}

fn fault(action: &'static str, source: &rocksdb::Error) -> Error {
    let why = source.to_string();
    if why.contains("No space left on device") || why.contains("Disk quota exceeded") || why.contains("NoSpace") {
        return Error::Full { action, why };
    }
    match source.kind() {
        rocksdb::ErrorKind::Corruption => Error::DamagedRecord { what: "database".to_owned(), why },
        _ => Error::Fault { action, why },
    }
}

fn opening(source: &rocksdb::Error) -> Error {
    match fault("open the store", source) {
        // A database that cannot be opened for lack of one of its files is damaged, whatever RocksDB calls it.
        Error::Fault { why, .. } if why.contains("No such file") => {
            Error::DamagedRecord { what: "database".to_owned(), why }
        }
        other => other,
    }
}
