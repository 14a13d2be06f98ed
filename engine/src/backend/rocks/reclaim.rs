//! Reclaims disk space. Rows that a sweep removed from the index are still in the files; this module rewrites the files without
//! them, a few at a time.
//!
//! Dead rows are not recorded anywhere: the row of an object is dead if its number is not in the index. The number of dead rows
//! of a file follows from its counters, without reading it. So no state has to survive a crash, rows left by a crash or by two
//! concurrent sessions are removed like all others, and no RocksDB tombstone is ever written for a chunk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::{BottommostLevelCompaction, CompactOptions, ReadOptions, WriteBatch};

use super::Rocks;
use super::row_filter::{ActiveRowFilter, Installed};
use super::settings::{INDEX, META, UNRECLAIMED_KEY, fault};
use crate::backend::rows::number;
use crate::backend::{Backend, Family, KeptRows, NumberSet, ReclaimProgress, Reclaimed, WatchReclaim};
use crate::error::{Error, Result};

const ACTION: &str = "give room back";
/// A file is rewritten if at least one in this many of its rows is dead.
const DEAD_ONE_IN: u64 = 20;
/// A step rewrites at most this fraction of the store (one in `STEP_ONE_IN`), or one file if that is larger.
const STEP_ONE_IN: u64 = 20;
const STEP_BYTES_MIN: u64 = 16 << 20;
const READAHEAD_BYTES: usize = 1 << 20;
/// At least this many adjacent files, each smaller than `SMALL_FILE_BYTES_MAX`, are merged: otherwise the small remainders of many
/// collections would stay separate files forever.
const SMALL_FILES_MIN: usize = 8;
const SMALL_FILE_BYTES_MAX: u64 = 1 << 20;

/// Files of one family with overlapping keys, and the number of their rows.
#[derive(Clone, Debug)]
struct Part {
    family: Family,
    first: Vec<u8>,
    last: Vec<u8>,
    bytes: u64,
    rows: u64,
    is_counted: bool,
    dead: u64,
    /// Whether it is one of many small adjacent parts.
    is_small_file: bool,
}

impl Part {
    /// Returns the approximate size after a rewrite: this much space is needed temporarily.
    fn live_bytes(&self) -> u64 {
        (u128::from(self.bytes) * u128::from(self.rows - self.dead) / u128::from(self.rows.max(1))) as u64
    }

    /// Returns whether all its rows are dead, and no new ones can be added.
    fn is_dead(&self, named: &KeptRows) -> bool {
        self.dead == self.rows && self.dead > 0 && self.last[..] < named.end.to_be_bytes()[..]
    }

    fn is_worth_it(&self) -> bool {
        self.is_small_file || (self.dead * DEAD_ONE_IN >= self.rows && self.dead > 0)
    }
}

impl Rocks {
    pub(super) fn reclaim_rows(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        let unreclaimed = self.unreclaimed.load(Ordering::SeqCst);
        let gone: u64 = named.gone.iter().map(NumberSet::len).sum();
        let thorough = unreclaimed != gone;
        // The index must be durable before rows that it no longer refers to are deleted.
        self.sync()?;
        let active = Arc::new(ActiveRowFilter { named, rows: AtomicU64::new(0) });
        let done = {
            let _guard = Installed::new(&self.row_filter, &active);
            self.reclaim_steps(&active.named, thorough, watch)
        };
        if done.as_ref().is_ok_and(|done| done.finished) {
            let mut batch = WriteBatch::default();
            batch.delete_cf(self.family(META), UNRECLAIMED_KEY);
            self.write(batch, false)?;
            self.unreclaimed.store(0, Ordering::SeqCst);
        }
        done.map(|reclaimed| Reclaimed { rows: active.rows.load(Ordering::Relaxed), ..reclaimed })
    }

    fn reclaim_steps(&self, named: &KeptRows, thorough: bool, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        let bytes_before = self.files_bytes()?;
        let mut reclaimed = Reclaimed { bytes_before, bytes_after: bytes_before, ..Reclaimed::default() };
        let mut progress = ReclaimProgress { bytes_total: bytes_before, ..Default::default() };
        let room = (bytes_before / STEP_ONE_IN).max(STEP_BYTES_MIN);
        // Files without live rows go first: dropping them needs no space and frees some.
        for family in Family::OBJECTS {
            for part in self.parts(family, named, thorough)?.iter().filter(|part| part.is_dead(named)) {
                if watch(&progress).is_break() {
                    reclaimed.bytes_after = self.files_bytes()?;
                    return Ok(reclaimed);
                }
                self.drop_files(part)?;
                progress.bytes_done += part.bytes;
            }
        }
        for family in Family::OBJECTS {
            self.database.flush_cf(self.family(family.name())).map_err(|source| fault(ACTION, &source))?;
            let mut parts = self.parts(family, named, thorough)?;
            find_small_files(&mut parts);
            let mut parts = parts.into_iter().peekable();
            while let Some(mut step) = parts.next() {
                // Adjacent parts that are worth rewriting are combined, so that small files become large ones again.
                while step.is_worth_it()
                    && let Some(next) =
                        parts.next_if(|next| next.is_worth_it() && step.live_bytes() + next.live_bytes() <= room)
                {
                    step.last = next.last;
                    step.bytes += next.bytes;
                    step.rows += next.rows;
                    step.dead += next.dead;
                }
                if step.is_worth_it() {
                    progress.step_bytes = step.live_bytes();
                    if watch(&progress).is_break() {
                        reclaimed.bytes_after = self.files_bytes()?;
                        return Ok(reclaimed);
                    }
                    reclaimed.step_bytes_max = reclaimed.step_bytes_max.max(progress.step_bytes);
                    self.rewrite(&step, named)?;
                }
                progress.bytes_done += step.bytes;
            }
        }
        reclaimed.finished = self.reclaim_others(&mut progress, watch)?;
        reclaimed.bytes_after = self.files_bytes()?;
        Ok(reclaimed)
    }

    /// Reclaims the families without objects. Returns false if it was stopped.
    fn reclaim_others(&self, progress: &mut ReclaimProgress, watch: WatchReclaim<'_>) -> Result<bool> {
        let mut go_on = |bytes: u64| {
            progress.step_bytes = bytes;
            watch(progress).is_continue()
        };
        if let Some(bytes) = self.index_worth_it()? {
            if !go_on(bytes) {
                return Ok(false);
            }
            self.compact(INDEX, None, None);
        }
        if let Some(bytes) = self.log_worth_it()? {
            if !go_on(bytes) {
                return Ok(false);
            }
            self.rewrite_log()?;
        }
        for (family, bytes) in self.small_worth_it()? {
            if !go_on(bytes) {
                return Ok(false);
            }
            self.compact(family, None, None);
        }
        // Otherwise the deleted rows would still be in the log and take as much space there.
        self.empty_log()?;
        Ok(true)
    }

    /// Returns the files of a family in key order, with overlapping ones combined into one part.
    ///
    /// RocksDB knows the number of rows of a file only after it has opened it, which it does for few files when it opens a store.
    /// In the others only the rows of this sweep are known to be dead. With `thorough`, because there may be more, the files are
    /// read.
    fn parts(&self, family: Family, named: &KeptRows, thorough: bool) -> Result<Vec<Part>> {
        let files = self.database.live_files().map_err(|source| fault(ACTION, &source))?;
        let mut files: Vec<_> = files.into_iter().filter(|file| file.column_family_name == family.name()).collect();
        files.sort_by(|one, two| one.start_key.cmp(&two.start_key));
        let mut parts: Vec<Part> = Vec::new();
        for file in files {
            let (Some(first), Some(last)) = (file.start_key, file.end_key) else { continue };
            let (bytes, rows, is_counted) = (file.size as u64, file.num_entries, file.num_entries > 0);
            match parts.last_mut().filter(|part| part.last >= first) {
                Some(part) => {
                    part.last = last.max(std::mem::take(&mut part.last));
                    part.bytes += bytes;
                    part.rows += rows;
                    part.is_counted &= is_counted;
                }
                None => {
                    parts.push(Part { family, first, last, bytes, rows, is_counted, dead: 0, is_small_file: false })
                }
            }
        }
        for part in &mut parts {
            let (first, last) = (number(&part.first, family.name())?, number(&part.last, family.name())?);
            if first < named.end {
                // Newer rows are not in the set; each number from `end` on counts as a live row.
                let young = last.saturating_add(1).saturating_sub(named.end);
                let old = named.of(family).count_in(first..named.end.min(last.saturating_add(1)));
                if !part.is_counted {
                    let gone = named.gone_of(family).count_in(first..named.end.min(last.saturating_add(1)));
                    part.rows = if thorough { self.count_rows(part)? } else { old + gone + young };
                }
                part.dead = part.rows.saturating_sub(old + young);
            }
        }
        Ok(parts)
    }

    fn count_rows(&self, part: &Part) -> Result<u64> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(READAHEAD_BYTES);
        let mut cursor = self.database.raw_iterator_cf_opt(self.family(part.family.name()), options);
        cursor.seek(&part.first);
        let mut rows = 0;
        while cursor.key().is_some_and(|key| *key <= part.last[..]) {
            rows += 1;
            cursor.next();
        }
        cursor.status().map_err(|source| fault(ACTION, &source))?;
        Ok(rows)
    }

    /// Drops the files of a part without live rows. Files that were never compacted stay for the rewrite.
    fn drop_files(&self, part: &Part) -> Result<()> {
        self.database
            .delete_file_in_range_cf(self.family(part.family.name()), &part.first, &part.last)
            .map_err(|source| fault(ACTION, &source))
    }

    fn rewrite(&self, part: &Part, named: &KeptRows) -> Result<()> {
        self.compact(part.family.name(), Some(&part.first), Some(&part.last));
        // Compactions update the row counts of the files that they write.
        let left = self.parts(part.family, named, false)?;
        let left: u64 =
            left.iter().filter(|left| left.first >= part.first && left.last <= part.last).map(|left| left.dead).sum();
        // A failed compaction reports no error.
        if left * 2 > part.dead {
            let why = "rows that were to go are still there; the disk may be full".to_owned();
            return Err(Error::Full { action: ACTION, why });
        }
        Ok(())
    }

    pub(super) fn compact(&self, family: &'static str, first: Option<&[u8]>, last: Option<&[u8]>) {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.database.compact_range_cf_opt(self.family(family), first, last, &options);
    }

    /// Returns the size of the index in bytes, if enough of it is tombstones.
    fn index_worth_it(&self) -> Result<Option<u64>> {
        self.database.flush_cf(self.family(INDEX)).map_err(|source| fault(ACTION, &source))?;
        self.tombstones_worth_it(INDEX)
    }

    /// Returns the size of a family in bytes, if enough of its rows are tombstones.
    pub(super) fn tombstones_worth_it(&self, family: &'static str) -> Result<Option<u64>> {
        let files = self.database.live_files().map_err(|source| fault(ACTION, &source))?;
        let files = files.iter().filter(|file| file.column_family_name == family);
        let (mut bytes, mut rows, mut deletions) = (0, 0, 0);
        for file in files {
            bytes += file.size as u64;
            rows += file.num_entries;
            deletions += file.num_deletions;
        }
        Ok((deletions * DEAD_ONE_IN >= rows && deletions > 0).then_some(bytes))
    }

    pub(super) fn files_bytes(&self) -> Result<u64> {
        let files = self.database.live_files().map_err(|source| fault(ACTION, &source))?;
        Ok(files.iter().map(|file| file.size as u64).sum())
    }
}

/// Marks small adjacent parts that should be merged.
fn find_small_files(parts: &mut [Part]) {
    for run in parts.chunk_by_mut(|one, two| one.bytes < SMALL_FILE_BYTES_MAX && two.bytes < SMALL_FILE_BYTES_MAX) {
        if run.len() >= SMALL_FILES_MIN {
            run.iter_mut().for_each(|part| part.is_small_file = true);
        }
    }
}
