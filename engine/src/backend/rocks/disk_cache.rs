//! A bounded cache of objects on disk, for a node whose store is elsewhere.
//!
//! It evicts first in, first out: RocksDB drops its oldest file when the files exceed the limit, so that an eviction rewrites nothing. Writes
//! skip the log: a crash loses the newest entries. The caller checks the bytes that the cache returns, and reads missing or damaged objects
//! elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompactionStyle, DBCompressionType, FifoCompactOptions, LogLevel, Options,
    WriteBatch, WriteOptions,
};

use super::settings::fault;
use crate::error::{Error, Result};
use crate::id::ObjectId;

/// The folder of the database in the directory of the cache.
const DATABASE_DIRECTORY: &str = "objects";
/// The file with the purges that the cache has followed.
const PURGES_FILE: &str = "purges.json";
/// A write buffer takes one in this many bytes of the cache, within limits.
const BUFFER_ONE_IN: u64 = 16;
const BUFFER_BYTES_MIN: u64 = 64 << 10;
const BUFFER_BYTES_MAX: u64 = 32 << 20;
/// Write buffers that may be full at once.
const BUFFERS: u64 = 3;
/// Memory for blocks, beside the page cache of the system.
const BLOCK_CACHE_BYTES: usize = 8 << 20;
const BLOCK_BYTES: usize = 16 << 10;
const BLOOM_BITS: f64 = 10.0;

/// Objects on disk, by id, up to a number of bytes.
pub struct DiskCache {
    directory: PathBuf,
    bytes_max: u64,
    /// `None` after the database could not be made again.
    database: RwLock<Option<DB>>,
    /// The last purge of each store that the cache has followed.
    purges: Mutex<BTreeMap<String, u64>>,
}

impl std::fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskCache").field("directory", &self.directory).field("bytes_max", &self.bytes_max).finish()
    }
}

fn key(id: ObjectId) -> [u8; 33] {
    let mut key = [id.kind as u8; 33];
    key[1..].copy_from_slice(&id.hash);
    key
}

fn settings(bytes_max: u64) -> Options {
    let buffer_bytes = (bytes_max / BUFFER_ONE_IN).clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX);
    let mut table = BlockBasedOptions::default();
    table.set_block_cache(&Cache::new_lru_cache(BLOCK_CACHE_BYTES));
    table.set_block_size(BLOCK_BYTES);
    table.set_bloom_filter(BLOOM_BITS, false);
    let mut fifo = FifoCompactOptions::default();
    fifo.set_max_table_files_size(bytes_max.saturating_sub(BUFFERS * buffer_bytes).max(buffer_bytes));
    let mut options = Options::default();
    options.create_if_missing(true);
    options.set_compaction_style(DBCompactionStyle::Fifo);
    options.set_fifo_compaction_options(&fifo);
    options.set_block_based_table_factory(&table);
    // Stored chunks are compressed already.
    options.set_compression_type(DBCompressionType::None);
    options.set_write_buffer_size(usize::try_from(buffer_bytes).unwrap_or(usize::MAX));
    options.set_max_write_buffer_number(BUFFERS as i32);
    // All files are on one level, however many there are.
    options.set_num_levels(1);
    options.set_level_zero_slowdown_writes_trigger(i32::MAX);
    options.set_level_zero_stop_writes_trigger(i32::MAX);
    options.set_log_level(LogLevel::Warn);
    options.set_keep_log_file_num(2);
    options
}

impl DiskCache {
    /// Opens the cache in a directory, which is made if it does not exist. A damaged cache is replaced by an empty one.
    pub fn open(directory: &Path, bytes_max: u64) -> Result<Self> {
        std::fs::create_dir_all(directory).map_err(|source| Error::from_io("open the cache", &source))?;
        let purges = std::fs::read(directory.join(PURGES_FILE)).ok();
        let purges = purges.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let place = directory.join(DATABASE_DIRECTORY);
        let database = match DB::open(&settings(bytes_max), &place) {
            Ok(database) => database,
            // Fails if another process has the cache open.
            Err(_) => make_anew(&place, bytes_max)?,
        };
        let purges = Mutex::new(purges.unwrap_or_default());
        Ok(Self { directory: directory.to_owned(), bytes_max, database: RwLock::new(Some(database)), purges })
    }

    /// Returns the cached bytes of objects, in request order.
    pub fn get_many(&self, ids: &[ObjectId]) -> Vec<Option<Bytes>> {
        let database = self.database.read();
        let Some(database) = &*database else { return vec![None; ids.len()] };
        let found = database.multi_get(ids.iter().map(|id| key(*id)));
        // A block with a wrong checksum is a miss.
        found.into_iter().map(|found| found.ok().flatten().map(Bytes::from)).collect()
    }

    /// Adds objects. Failures, for example on a full disk, cost a later read elsewhere.
    pub fn put_many<'a>(&self, objects: impl IntoIterator<Item = (ObjectId, &'a [u8])>) {
        let mut batch = WriteBatch::default();
        objects.into_iter().for_each(|(id, bytes)| batch.put(key(id), bytes));
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        if let Some(database) = &*self.database.read() {
            let _ = database.write_opt(batch, &options);
        }
    }

    /// Returns the cached bytes under a key that is no object. Keys of objects have 33 bytes.
    pub fn get_named(&self, name: &[u8]) -> Option<Bytes> {
        let database = self.database.read();
        database.as_ref()?.get(name).ok().flatten().map(Bytes::from)
    }

    /// Adds bytes under a key that is no object.
    pub fn put_named(&self, name: &[u8], bytes: &[u8]) {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        if let Some(database) = &*self.database.read() {
            let _ = database.put_opt(name, bytes, &options);
        }
    }

    /// Writes buffered entries to files, so that they survive the end of the process.
    pub fn flush(&self) -> Result<()> {
        match &*self.database.read() {
            Some(database) => database.flush().map_err(|source| fault("write the cache", &source)),
            None => Ok(()),
        }
    }

    /// Returns the number of bytes in files.
    pub fn bytes(&self) -> u64 {
        let database = self.database.read();
        let size = |database: &DB| database.property_int_value("rocksdb.total-sst-files-size").ok().flatten();
        database.as_ref().and_then(size).unwrap_or(0)
    }

    /// Removes all entries, from the disk too.
    pub fn clear(&self) -> Result<()> {
        let mut database = self.database.write();
        *database = None;
        *database = Some(make_anew(&self.directory.join(DATABASE_DIRECTORY), self.bytes_max)?);
        Ok(())
    }

    /// Removes all entries if the cache has not followed this purge of a store yet. Purges of a store have ascending numbers.
    pub fn follow_purge(&self, store: &str, number: u64) -> Result<()> {
        let mut purges = self.purges.lock();
        if purges.get(store).is_some_and(|last| *last >= number) {
            return Ok(());
        }
        self.clear()?;
        purges.insert(store.to_owned(), number);
        let (file, new) = (self.directory.join(PURGES_FILE), self.directory.join("purges.new"));
        let text = serde_json::to_vec(&*purges).expect("names and numbers");
        // If this is lost, the cache is emptied once more.
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &file));
        written.map_err(|source| Error::from_io("note a purge in the cache", &source))
    }
}

/// Removes a database and makes an empty one.
fn make_anew(place: &Path, bytes_max: u64) -> Result<DB> {
    let options = settings(bytes_max);
    DB::destroy(&options, place).map_err(|source| fault("empty the cache", &source))?;
    DB::open(&options, place).map_err(|source| fault("open the cache", &source))
}
