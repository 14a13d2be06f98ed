//! Raw access to rows in RocksDB.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rocksdb::{BottommostLevelCompaction, CompactOptions, ReadOptions, WriteBatch};

use super::Rocks;
use super::settings::{FAMILIES, fault};
use crate::backend::rows::number;
use crate::backend::{Family, Inspect, Page, PageEnd, RowEdit};
use crate::error::Result;

const READAHEAD_BYTES: usize = 1 << 20;
const NEAR_ROWS: u64 = 4_096;

impl Inspect for Rocks {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        let mut options = ReadOptions::default();
        options.fill_cache(false);
        options.set_readahead_size(READAHEAD_BYTES);
        if let Some(until) = until {
            options.set_iterate_upper_bound(until);
        }
        let mut cursor = self.database.raw_iterator_cf_opt(self.family(family.name()), options);
        cursor.seek(from);
        // One buffer for the whole page: a row is two slices of it.
        let (mut room, mut places) = (Vec::with_capacity(room_bytes.min(READAHEAD_BYTES) * 9 / 8), Vec::new());
        let mut end = PageEnd::Range;
        while let Some((key, value)) = cursor.item() {
            if room.len() >= room_bytes {
                end = PageEnd::Room;
                break;
            }
            let start = room.len();
            room.extend_from_slice(key);
            let middle = room.len();
            room.extend_from_slice(value);
            places.push((start, middle, room.len()));
            cursor.next();
        }
        if let Err(source) = cursor.status() {
            end = PageEnd::Damaged { why: source.to_string() };
        }
        let room = Bytes::from(room);
        let row = |(start, middle, end)| (room.slice(start..middle), room.slice(middle..end));
        Ok(Page { rows: places.into_iter().map(row).collect(), end })
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        // Only these families have rows that the filter judges. Others may be written while space is reclaimed.
        if edits.iter().any(|edit| edit.family == Family::Index || Family::OBJECTS.contains(&edit.family)) {
            self.row_filter.clear();
        }
        let mut batch = WriteBatch::default();
        if edits.iter().any(|edit| matches!(edit.family, Family::Refs | Family::Operations)) {
            self.forget_indexed(&mut batch);
        }
        for RowEdit { family, key, value } in edits {
            match &value {
                Some(value) => batch.put_cf(self.family(family.name()), &key, value),
                None => batch.delete_cf(self.family(family.name()), &key),
            }
            let counter = match family {
                Family::Operations => &self.next_operation,
                _ if Family::OBJECTS.contains(&family) => &self.next_object,
                _ => continue,
            };
            if value.is_some() {
                counter.fetch_max(number(&key, family.name())? + 1, Ordering::SeqCst);
            }
        }
        self.write(batch, true)
    }

    fn scrub(&self, removed: &[(Family, Bytes)]) -> Result<()> {
        let failed = |source: rocksdb::Error| fault("scrub", &source);
        // After all memtables are flushed, the log with the removed rows is obsolete and deleted.
        for family in FAMILIES {
            self.database.flush_cf(self.family(family)).map_err(failed)?;
        }
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(true);
        // A file of the lowest level is rewritten too, although there is nothing to merge it with.
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        for family in Family::ALL {
            let mut keys: Vec<_> = removed.iter().filter(|(of, _)| *of == family).map(|(_, key)| &key[..]).collect();
            keys.sort_unstable();
            let mut keys = keys.into_iter().peekable();
            while let Some(first) = keys.next() {
                if first.is_empty() {
                    let all: Option<&[u8]> = None;
                    self.database.compact_range_cf_opt(self.family(family.name()), all, all, &options);
                    break;
                }
                let mut last = first;
                while let Some(next) = keys.next_if(|next| are_near(last, next)) {
                    last = next;
                }
                let until = [last, &[0]].concat();
                self.database.compact_range_cf_opt(self.family(family.name()), Some(first), Some(&until[..]), &options);
            }
        }
        self.database.flush_wal(true).map_err(failed)
    }
}

/// Returns whether two rows are probably in one file: objects that were written close to each other.
fn are_near(one: &[u8], other: &[u8]) -> bool {
    match (number(one, ""), number(other, "")) {
        (Ok(one), Ok(other)) => other.abs_diff(one) < NEAR_ROWS,
        _ => false,
    }
}
