//! Rows for verification, and the edits that make sense on a shared store: tombstones, quarantined rows, records, and the removal of
//! objects. An object's bytes are immutable here, so that an edit that would change them is refused.

use std::ops::Bound;

use amalgam_engine::backend::rows::{RefRow, damaged, number};
use amalgam_engine::backend::{Family, Inspect, Page, PageEnd, RowEdit};
use amalgam_engine::reference::Operation;
use amalgam_engine::{Error, ObjectId, Result};
use bytes::Bytes;
use sqlx::Row as _;

use crate::identity::{Identity, signed, unsigned};
use crate::index::Location;
use crate::node::{Cloud, Node};

/// Number of rows that one query returns.
const ROWS_MAX: usize = 1_024;

impl Inspect for Cloud {
    fn rows(&self, family: Family, from: &[u8], until: Option<&[u8]>, room_bytes: usize) -> Result<Page> {
        let mut page = Page { rows: Vec::new(), end: PageEnd::Range };
        let mut taken = 0;
        let mut from = from.to_vec();
        loop {
            let rows = match family {
                Family::Index => self.index_rows(&from),
                Family::Chunks | Family::Trees | Family::Snapshots => {
                    match self.object_rows(family, &from, until, room_bytes.saturating_sub(taken))? {
                        Ok(rows) => rows,
                        Err(error) => {
                            page.end = PageEnd::Damaged { why: error.to_string() };
                            return Ok(page);
                        }
                    }
                }
                Family::Refs => self.ref_rows(&from)?,
                Family::Operations => self.operation_rows(&from)?,
                Family::Requests => self.request_rows(&from)?,
                Family::Quarantine => self.mark_rows("q", &from)?,
                Family::Tombstones => self.mark_rows("t", &from)?,
            };
            let Some((last, _)) = rows.last() else { return Ok(page) };
            from = [&last[..], &[0]].concat();
            for (key, value) in rows {
                if until.is_some_and(|until| key[..] >= *until) {
                    return Ok(page);
                }
                if taken >= room_bytes {
                    page.end = PageEnd::Room;
                    return Ok(page);
                }
                taken += key.len() + value.len();
                page.rows.push((key, value));
            }
        }
    }

    fn edit(&self, edits: Vec<RowEdit>) -> Result<()> {
        edits.iter().try_for_each(check_edit)?;
        self.refresh()?;
        self.edit_rows(&edits)?;
        self.refresh()
    }

    fn restore_objects(&self) -> Result<Vec<ObjectId>> {
        self.restore_packs()
    }

    /// Rewrites every pack that holds a removed object, and deletes the old ones without a grace time.
    fn scrub(&self, _removed: &[(Family, Bytes)]) -> Result<()> {
        self.scrub_packs()
    }
}

/// Refuses an edit that would change the bytes of an object or its place, or a record that PostgreSQL guards.
fn check_edit(edit: &RowEdit) -> Result<()> {
    let refused = |why: &str| Err(Error::Invalid { what: "repair", why: why.to_owned() });
    match edit.family {
        Family::Quarantine | Family::Tombstones => Ok(()),
        Family::Index | Family::Chunks | Family::Trees | Family::Snapshots if edit.value.is_none() => Ok(()),
        Family::Index | Family::Chunks | Family::Trees | Family::Snapshots => {
            refused("objects of a store on PostgreSQL and S3 are immutable; put the object again instead")
        }
        Family::Refs | Family::Operations | Family::Requests => {
            refused("references and operations on PostgreSQL are not rewritten; restore the database from its backup")
        }
    }
}

type Rows = Vec<(Bytes, Bytes)>;

impl Node {
    fn index_rows(&self, from: &[u8]) -> Rows {
        let mut hash = [0; 32];
        let length = from.len().min(32);
        hash[..length].copy_from_slice(&from[..length]);
        // A longer key comes after the hash with which it begins.
        let bound = if from.len() > 32 { Bound::Excluded(&hash) } else { Bound::Included(&hash) };
        let rows = self.index.read().rows(bound, ROWS_MAX);
        rows.into_iter().map(|row| (Bytes::copy_from_slice(&row.id.hash), row.encode_value().into())).collect()
    }

    /// Returns rows of objects in number order. The inner error is one of the bucket: the rows after it can be read.
    fn object_rows(
        &self,
        family: Family,
        from: &[u8],
        until: Option<&[u8]>,
        room_bytes: usize,
    ) -> Result<Result<Rows>> {
        let start = key_number(from);
        let end = until.map_or(u64::MAX, key_number);
        let mut wanted = Vec::new();
        let mut bytes = 0;
        {
            let index = self.index.read();
            let packs = index.packs_from(start).take_while(|pack| pack.first < end);
            'packs: for pack in packs {
                for (slot, at) in (0..).zip(&pack.slots) {
                    let number = pack.first + u64::from(slot);
                    if number < start || Family::of(at.id.kind) != family {
                        continue;
                    }
                    if number >= end || bytes > room_bytes {
                        break 'packs;
                    }
                    bytes += at.length as usize + 8;
                    wanted.push(Location { pack: std::sync::Arc::clone(pack), slot });
                }
            }
        }
        let mut rows = Vec::with_capacity(wanted.len());
        for (location, fetched) in wanted.iter().zip(self.fetcher.fetch_raw(&wanted)) {
            match fetched {
                Ok(Some(bytes)) => rows.push((Bytes::copy_from_slice(&location.number().to_be_bytes()), bytes)),
                // Replaced by another node meanwhile, or missing.
                Ok(None) => {}
                Err(error) if rows.is_empty() => return Ok(Err(error)),
                Err(_) => break,
            }
        }
        Ok(Ok(rows))
    }

    fn ref_rows(&self, from: &[u8]) -> Result<Rows> {
        // Keys of a continued page end with a zero byte, which no name contains.
        let (after, first) = match from.split_last() {
            Some((0, name)) => (Some(String::from_utf8_lossy(name).into_owned()), String::new()),
            _ => (None, String::from_utf8_lossy(from).into_owned()),
        };
        let rows = self.refs("", after.as_deref(), ROWS_MAX)?;
        let encode = |(name, row): (amalgam_engine::RefName, RefRow)| {
            let key = Bytes::copy_from_slice(name.as_str().as_bytes());
            (key, Bytes::from(RefRow::encode(row.operation, &row.value)))
        };
        Ok(rows.into_iter().filter(|(name, _)| name.as_str() >= &first[..]).map(encode).collect())
    }

    fn operation_rows(&self, from: &[u8]) -> Result<Rows> {
        let (first, _) = self.log_range()?;
        let after = key_number(from).saturating_sub(1).max(first - 1);
        let encode = |operation: Operation| {
            (Bytes::copy_from_slice(&operation.sequence.to_be_bytes()), Bytes::from(operation.encode()))
        };
        Ok(self.operations(after, ROWS_MAX)?.into_iter().map(encode).collect())
    }

    fn request_rows(&self, from: &[u8]) -> Result<Rows> {
        let rows = self.database.call("read requests", async |connection| {
            let query = sqlx::query(
                "SELECT request, seq FROM requests WHERE project = $1 AND request >= $2 ORDER BY request LIMIT $3",
            );
            let query = query.bind(self.identity.project).bind(from).bind(ROWS_MAX as i64);
            query.fetch_all(connection).await
        })?;
        let encode = |row: &sqlx::postgres::PgRow| {
            let sequence = unsigned(row.get(1)).to_be_bytes();
            (Bytes::from(row.get::<Vec<u8>, _>(0)), Bytes::copy_from_slice(&sequence))
        };
        Ok(rows.iter().map(encode).collect())
    }

    fn mark_rows(&self, family: &'static str, from: &[u8]) -> Result<Rows> {
        let rows = self.database.call("read rows", async |connection| {
            let query = sqlx::query(
                "SELECT key, value FROM marks WHERE project = $1 AND family = $2::\"char\" AND key >= $3 AND value IS NOT NULL
                 ORDER BY key LIMIT $4",
            );
            let query = query.bind(self.identity.project).bind(family).bind(from).bind(ROWS_MAX as i64);
            query.fetch_all(connection).await
        })?;
        let row = |row: &sqlx::postgres::PgRow| {
            (Bytes::from(row.get::<Vec<u8>, _>(0)), Bytes::from(row.get::<Vec<u8>, _>(1)))
        };
        Ok(rows.iter().map(row).collect())
    }

    fn edit_rows(&self, edits: &[RowEdit]) -> Result<()> {
        let mut removed = Vec::new();
        let (mut families, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for RowEdit { family, key, value } in edits {
            match family {
                Family::Index => removed.extend(self.copies_of(key)?),
                family if Family::OBJECTS.contains(family) => {
                    removed.extend(self.index.read().at(number(key, family.name())?));
                }
                family => {
                    families.push(if *family == Family::Tombstones { "t" } else { "q" });
                    keys.push(&key[..]);
                    values.push(value.as_deref());
                }
            }
        }
        let packs: Vec<_> = removed.iter().map(|location| signed(location.pack.first)).collect();
        let slots: Vec<_> = removed.iter().map(|location| location.slot as i32).collect();
        let Identity { project, node, generation } = self.identity;
        self.database.call("edit rows", async |connection| {
            let query = sqlx::query("SELECT edit_rows($1, $2, $3, $4, $5, $6, $7, $8)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(&packs[..]).bind(&slots[..]);
            let query = query.bind(&families[..]).bind(&keys[..]).bind(&values[..]);
            query.execute(connection).await.map(drop)
        })
    }

    fn copies_of(&self, key: &[u8]) -> Result<Vec<Location>> {
        let hash: [u8; 32] = key.try_into().map_err(|why| damaged("object index", &why))?;
        let index = self.index.read();
        let row = index.rows(Bound::Included(&hash), 1).into_iter().next().filter(|row| row.id.hash == hash);
        Ok(row.map(|row| index.copies(row.id)).unwrap_or_default())
    }
}

/// Reads the number with which a key begins.
fn key_number(key: &[u8]) -> u64 {
    let mut number = [0; 8];
    let length = key.len().min(8);
    number[..length].copy_from_slice(&key[..length]);
    // A longer key comes after the number with which it begins.
    u64::from_be_bytes(number).saturating_add(u64::from(key.len() > 8))
}
