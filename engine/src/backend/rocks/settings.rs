//! The column families of the database and their settings, and the mapping of its errors.

use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode, LogLevel, Options,
    WriteBufferManager,
};

use super::row_filter::SharedRowFilter;
use crate::backend::Family;
use crate::backend::home::RECOVER_HINT;
use crate::error::Error;
use crate::id::ObjectKind;

/// The folder of the database in the store's directory.
pub(super) const DATABASE_DIRECTORY: &str = "db";
pub(super) const INDEX: &str = "index";
pub(super) const CHUNKS: &str = "chunks";
pub(super) const TREES: &str = "trees";
pub(super) const SNAPSHOTS: &str = "snapshots";
pub(super) const REFS: &str = "refs";
pub(super) const OPERATIONS: &str = "operations";
pub(super) const REQUESTS: &str = "requests";
pub(super) const QUARANTINE: &str = "quarantine";
pub(super) const TOMBSTONES: &str = "tombstones";
pub(super) const META: &str = "default";
pub(super) const EPOCH_KEY: &[u8] = b"epoch";
/// The number of the oldest operation of a trimmed log.
pub(super) const FIRST_OPERATION_KEY: &[u8] = b"first operation";
/// Present while the space of objects removed from the index has not been reclaimed.
pub(super) const UNRECLAIMED_KEY: &[u8] = b"unreclaimed";

/// Approximate maximum size of the write-ahead log. Opening a store needs as much free space again.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Reserved disk space that suffices to open and sweep any store for a while.
pub(super) const RESERVE_BYTES_MAX: u64 = LOG_BYTES_MAX + (8 << 20);
/// Minimum useful size of the reserve.
pub(super) const RESERVE_BYTES_MIN: u64 = 256 << 10;

/// Settings of the RocksDB backend.
#[derive(Clone, Debug)]
pub struct RocksOptions {
    /// Size of RocksDB's cache for blocks, Bloom filters and file indexes, in bytes.
    pub block_cache_bytes: usize,
    /// Size of the write buffer for chunks, in bytes.
    pub chunk_buffer_bytes: usize,
    /// Size of the write buffer for each of the other families, in bytes.
    pub other_buffer_bytes: usize,
    /// Fail if there is no store, instead of creating one.
    pub must_exist: bool,
    /// Reserve one byte of disk space for every `reserve_one_in` bytes of the store, so that a collection has space on a full
    /// disk; 0 for no reserve.
    pub reserve_one_in: u64,
    /// Open the store for a collection, which may use the reserved disk space.
    pub for_collection: bool,
    /// Memory that this store shares with other stores of the process; then `block_cache_bytes` does not count.
    pub shared: Option<SharedMemory>,
}

/// Memory that several stores of one process share: a block cache, and a budget for write buffers.
#[derive(Clone)]
pub struct SharedMemory {
    cache: Cache,
    cache_bytes: usize,
    buffers: WriteBufferManager,
}

impl SharedMemory {
    /// Makes a block cache and a budget for write buffers. A store that exceeds the budget writes its buffers to the disk early.
    pub fn new(cache_bytes: usize, buffer_bytes: usize) -> Self {
        let buffers = WriteBufferManager::new_write_buffer_manager(buffer_bytes, false);
        Self { cache: Cache::new_lru_cache(cache_bytes), cache_bytes, buffers }
    }
}

impl std::fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedMemory").field("cache_bytes", &self.cache_bytes).finish_non_exhaustive()
    }
}

impl RocksOptions {
    /// Returns the block cache of these settings: the shared one, or a new one of the configured size.
    pub(super) fn block_cache(&self) -> BlockCache {
        match &self.shared {
            Some(shared) => BlockCache { cache: shared.cache.clone(), bytes: shared.cache_bytes },
            None => BlockCache { cache: Cache::new_lru_cache(self.block_cache_bytes), bytes: self.block_cache_bytes },
        }
    }
}

impl Default for RocksOptions {
    fn default() -> Self {
        Self {
            block_cache_bytes: 64 << 20,
            chunk_buffer_bytes: 32 << 20,
            other_buffer_bytes: 8 << 20,
            must_exist: false,
            reserve_one_in: 64,
            for_collection: false,
            shared: None,
        }
    }
}

/// RocksDB's block cache.
pub(super) struct BlockCache {
    pub(super) cache: Cache,
    pub(super) bytes: usize,
}

impl BlockCache {
    /// Frees all blocks that are not in use.
    pub(super) fn empty(&self) {
        let mut cache = self.cache.clone();
        cache.set_capacity(0);
        cache.set_capacity(self.bytes);
    }
}

pub(super) fn object_family(kind: ObjectKind) -> &'static str {
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

pub(super) const OBJECT_FAMILIES: [&str; 3] = [CHUNKS, TREES, SNAPSHOTS];
pub(super) const FAMILIES: [&str; 10] =
    [META, INDEX, CHUNKS, TREES, SNAPSHOTS, REFS, OPERATIONS, REQUESTS, QUARANTINE, TOMBSTONES];

pub(super) fn families(
    options: &RocksOptions,
    cache: &Cache,
    row_filter: &SharedRowFilter,
) -> Vec<ColumnFamilyDescriptor> {
    let described = |name: &&'static str| {
        let mut settings = family_options(name, options, cache);
        if let Some(family) = Family::OBJECTS.into_iter().find(|family| family.name() == *name) {
            settings.set_compaction_filter_factory(row_filter.for_family(family));
        }
        ColumnFamilyDescriptor::new(*name, settings)
    };
    FAMILIES.iter().map(described).collect()
}

pub(super) fn family_options(name: &str, options: &RocksOptions, cache: &Cache) -> Options {
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
            // Reads that bypass the cache would not find filters and index blocks there, so they stay with their open files,
            // whose number is limited.
            table.set_cache_index_and_filter_blocks(false);
            family.set_write_buffer_size(options.chunk_buffer_bytes);
            family.set_target_file_size_base(64 << 20);
        }
        OPERATIONS => {
            table.set_block_size(16 << 10);
            family.set_compression_type(DBCompressionType::Lz4);
        }
        // No Bloom filter: missing numbers are never requested.
        TREES | SNAPSHOTS => table.set_block_size(4 << 10),
        _ => {
            // Most lookups in the index find nothing: the Bloom filters answer them, including that of the memtable.
            family.set_memtable_prefix_bloom_ratio(0.1);
            family.set_memtable_whole_key_filtering(true);
            table.set_block_size(4 << 10);
            table.set_bloom_filter(10.0, false);
        }
    }
    family.set_block_based_table_factory(&table);
    family
}

pub(super) fn database_options(options: &RocksOptions) -> Options {
    let mut database = Options::default();
    if let Some(shared) = &options.shared {
        database.set_write_buffer_manager(&shared.buffers);
    }
    database.create_if_missing(true);
    database.create_missing_column_families(true);
    database.set_max_background_jobs(2);
    // Data is stored in tree order, so that kernel read-ahead helps.
    database.set_advise_random_on_open(false);
    // Many systems allow a process 1,024 open files.
    database.set_max_open_files(512);
    // By default each family opens its files on sixteen threads: a small store would start 150 threads before it responds.
    database.set_max_file_opening_threads(1);
    database.set_max_total_wal_size(LOG_BYTES_MAX);
    // After a power failure the log ends at its last intact record: a suffix may be lost, never the middle.
    database.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // RocksDB's info log would soon be larger than a small store: log warnings only.
    database.set_log_level(LogLevel::Warn);
    database.set_keep_log_file_num(2);
    database.set_max_log_file_size(1 << 20);
    database.set_stats_dump_period_sec(0);
    database.set_stats_persist_period_sec(0);
    database
}

pub(super) fn fault(action: &'static str, source: &rocksdb::Error) -> Error {
    let why = source.to_string();
    if why.contains("No space left on device") || why.contains("Disk quota exceeded") || why.contains("NoSpace") {
        return Error::Full { action, why };
    }
    match source.kind() {
        rocksdb::ErrorKind::Corruption => Error::DamagedRecord { what: "database".to_owned(), why },
        _ => Error::Fault { action, why },
    }
}

/// Adds the recovery hint to a damage error.
pub(super) fn hinting(error: Error) -> Error {
    match error {
        Error::DamagedRecord { what, why } if !why.contains(RECOVER_HINT) => {
            Error::DamagedRecord { what, why: format!("{why}; {RECOVER_HINT}") }
        }
        other => other,
    }
}

pub(super) fn opening(source: &rocksdb::Error) -> Error {
    match fault("open the store", source) {
        // A database that cannot be opened because a file is missing is damaged, regardless of RocksDB's error code.
        Error::Fault { why, .. } if why.contains("No such file") => {
            hinting(Error::DamagedRecord { what: "database".to_owned(), why })
        }
        other => hinting(other),
    }
}
