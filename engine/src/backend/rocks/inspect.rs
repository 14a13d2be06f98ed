//! The rows as they are.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use rocksdb::{ReadOptions, WriteBatch};

use super::Rocks;
use crate::backend::rows::number;
use crate::backend::{Family, Inspect, Page, PageEnd, RowEdit};
use crate::error::Result;

const READAHEAD_BYTES: usize = 1 << 20;

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
        // One room for all of the page: a row is two slices of it.
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
        self.doomed.clear();
        let mut batch = WriteBatch::default();
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
}
