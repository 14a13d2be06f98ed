//! Executes a purge, and removes tombstones.

use std::collections::HashSet;

use bytes::Bytes;

use super::PurgePlan;
use super::copies::{Wanted, find_copies};
use crate::backend::rows::{IndexValue, tombstone_key};
use crate::backend::{Family, PageEnd, RowEdit, Transaction};
use crate::compress;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind};
use crate::operation::OperationContext;
use crate::store::Store;
use crate::tombstone::Tombstone;

/// The first byte of the quarantine key of an object. Its hash follows.
const QUARANTINED_OBJECT: u8 = 0;
/// Number of rows that are removed in one batch.
const BATCH: usize = 4_096;
const PAGE_BYTES: usize = 1 << 20;

/// The result of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Number of deleted chunks.
    pub chunks: u64,
    /// Their stored size in bytes.
    pub bytes: u64,
}

/// Executes a plan: deletes the rows of the chunks, writes tombstones, and rewrites the files that contained the bytes. On return
/// no file of the store contains them.
///
/// Requires exclusive access to the store: no write session may be open and nothing may be pinned. Fails without a change if the
/// store has changed since the plan was made.
pub fn purge(store: &Store, plan: &PurgePlan, reason: &str, context: &OperationContext) -> Result<Purged> {
    let wrong = |why: String| Error::Invalid { what: "purge", why };
    store.alone("purge")?;
    if store.last_operation()? != plan.operation {
        return Err(wrong("the store has changed since it was planned; plan it again".to_owned()));
    }
    let tombstone = Tombstone { time: context.time, actor: context.actor.clone(), reason: reason.to_owned() };
    tombstone.check().map_err(|why| wrong(why.to_string()))?;
    let copies = find_copies(store, &wanted(store, plan)?)?;
    let mut removed = Vec::new();
    for chunks in plan.chunks.chunks(BATCH) {
        let mut edits = Vec::new();
        for chunk in chunks {
            bury(store, *chunk, &tombstone, &mut edits, &mut removed)?;
        }
        store.inspect().edit(edits)?;
    }
    for rows in copies.chunks(BATCH) {
        let edit = |(family, key): &(Family, Bytes)| RowEdit { family: *family, key: key.clone(), value: None };
        store.inspect().edit(rows.iter().map(edit).collect())?;
    }
    removed.extend(copies);
    if !plan.purged_before.is_empty() {
        // It is unknown whether their files were rewritten at that time, and which files these were.
        removed.push((Family::Chunks, Bytes::new()));
    }
    store.inspect().scrub(&removed)?;
    let operation = Some(context.draft("purge"));
    store.transact(Transaction { operation, durability: context.durability, ..Transaction::default() })?;
    Ok(Purged { chunks: plan.chunks.len() as u64, bytes: plan.bytes })
}

/// Returns the chunks that a plan deletes and those of earlier purges, which can have left a copy.
fn wanted(store: &Store, plan: &PurgePlan) -> Result<Wanted> {
    let mut lengths = Some(HashSet::new());
    for ids in plan.chunks.chunks(BATCH) {
        let ids: Vec<_> = ids.iter().map(|chunk| chunk.object()).collect();
        for stored in store.stored_many(&ids)? {
            match stored.map(|stored| compress::chunk_bytes(&stored)) {
                Some(Ok(length)) => drop(lengths.as_mut().map(|lengths: &mut HashSet<_>| lengths.insert(length))),
                _ => lengths = None,
            }
        }
    }
    if !plan.purged_before.is_empty() {
        lengths = None;
    }
    Ok(Wanted { chunks: plan.chunks.iter().chain(&plan.purged_before).copied().collect(), lengths })
}

/// Adds the edits that replace a chunk with a tombstone.
fn bury(
    store: &Store,
    chunk: ChunkId,
    tombstone: &Tombstone,
    edits: &mut Vec<RowEdit>,
    removed: &mut Vec<(Family, Bytes)>,
) -> Result<()> {
    let id = chunk.object();
    let hash = Bytes::copy_from_slice(&id.hash);
    let until = [&id.hash[..], &[0]].concat();
    let row = store.inspect().rows(Family::Index, &hash, Some(&until), 1)?;
    // A repair may have quarantined another copy.
    let aside = Bytes::from([&[QUARANTINED_OBJECT][..], &id.hash].concat());
    let mut rows = vec![(Family::Index, hash), (Family::Quarantine, aside)];
    if let Some((_, value)) = row.rows.first() {
        let number = IndexValue::decode(value)?.number.to_be_bytes();
        rows.push((Family::Chunks, Bytes::copy_from_slice(&number)));
    }
    edits.extend(rows.iter().map(|(family, key)| RowEdit { family: *family, key: key.clone(), value: None }));
    removed.extend(rows);
    let key = Bytes::copy_from_slice(&tombstone_key(id));
    edits.push(RowEdit { family: Family::Tombstones, key, value: Some(tombstone.encode().into()) });
    Ok(())
}

/// Removes a tombstone, so that the same bytes can be stored again. Returns false if there was none. It does not bring the bytes
/// back.
pub fn forget_tombstone(store: &Store, id: ObjectId, context: &OperationContext) -> Result<bool> {
    if store.tombstone(id)?.is_none() {
        return Ok(false);
    }
    let key = Bytes::copy_from_slice(&tombstone_key(id));
    store.inspect().edit(vec![RowEdit { family: Family::Tombstones, key, value: None }])?;
    let operation = Some(context.draft("forget tombstone"));
    store.transact(Transaction { operation, durability: context.durability, ..Transaction::default() })?;
    Ok(true)
}

/// Returns all tombstones of a store, in id order.
pub fn tombstones(store: &Store) -> Result<Vec<(ObjectId, Tombstone)>> {
    let (mut found, mut from) = (Vec::new(), Bytes::new());
    loop {
        let page = store.inspect().rows(Family::Tombstones, &from, None, PAGE_BYTES)?;
        for (key, value) in &page.rows {
            let damaged = |why: String| Error::DamagedRecord { what: "tombstone".to_owned(), why };
            let id = key.split_first().and_then(|(kind, hash)| {
                Some(ObjectId { kind: ObjectKind::from_number(*kind)?, hash: hash.try_into().ok()? })
            });
            let id = id.ok_or_else(|| damaged("a key of the wrong form".to_owned()))?;
            found.push((id, Tombstone::decode(value.clone()).map_err(|why| damaged(why.to_string()))?));
        }
        match (page.end, page.rows.last()) {
            (PageEnd::Room, Some((last, _))) => from = [&last[..], &[0]].concat().into(),
            (PageEnd::Damaged { why }, _) => {
                return Err(Error::DamagedRecord { what: "tombstones".to_owned(), why });
            }
            _ => return Ok(found),
        }
    }
}
