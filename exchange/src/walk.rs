//! Walks over a stored tree in the order of names, with the bytes of small files read ahead on all cores.

use std::sync::mpsc;

use amalgam_engine::content;
use amalgam_engine::object::{Content, Entry, Node};
use amalgam_engine::{Name, Store, TreePath, list_directory};
use bytes::Bytes;
use rayon::prelude::*;

use crate::build::SMALL_FILE_BYTES_MAX;
use crate::error::{Error, Result};

/// Entries and bytes that are read ahead.
const BATCH_ENTRIES_MAX: usize = 1_024;
const BATCH_BYTES_MAX: u64 = 8 << 20;
/// Consecutive entries whose files are read together.
const RUN_ENTRIES: usize = 64;
/// Batches that wait for their visit.
const BATCHES_AHEAD: usize = 2;

type Listing = Box<dyn Iterator<Item = amalgam_engine::Result<(Name, Entry)>>>;

/// An entry of the walk.
pub(crate) struct VisitedEntry {
    pub(crate) path: TreePath,
    pub(crate) entry: Entry,
    /// The bytes of a small file.
    pub(crate) bytes: Option<Bytes>,
}

/// Visits a directory's entry and everything below it, each directory before its contents. The next batches are read while one is
/// visited.
pub(crate) fn walk(
    store: &Store,
    path: TreePath,
    entry: Entry,
    mut visit: impl FnMut(VisitedEntry) -> Result<()>,
) -> Result<()> {
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(BATCHES_AHEAD);
        let read_ahead = move || {
            batches(store, path, entry, |mut batch| {
                read_small_files(store, &mut batch)?;
                // The receiver is gone after a visit that failed.
                Ok(sender.send(batch).is_ok())
            })
        };
        let reading = std::thread::Builder::new().name("read-ahead".to_owned()).spawn_scoped(scope, read_ahead);
        let reading = reading.map_err(|source| Error::host("start a thread", source))?;
        for batch in receiver {
            batch.into_iter().try_for_each(&mut visit)?;
        }
        reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Lists a directory's entry and everything below it in batches, until the caller wants no more. Fails if there are more paths
/// than the store's limit.
fn batches(
    store: &Store,
    path: TreePath,
    entry: Entry,
    mut take: impl FnMut(Vec<VisitedEntry>) -> Result<bool>,
) -> Result<()> {
    let (mut bytes, mut count) = (0, store.path_count());
    let mut open: Vec<(TreePath, Listing)> = Vec::new();
    if let Node::Directory(contents) = entry.node {
        open.push((path.clone(), Box::new(list_directory(store, contents)?)));
    }
    let mut batch = vec![VisitedEntry { path, entry, bytes: None }];
    while let Some((above, listing)) = open.last_mut() {
        let Some(item) = listing.next() else {
            open.pop();
            continue;
        };
        let (name, entry) = item?;
        count.add(1)?;
        let path = above.join(&name);
        if let Node::Directory(contents) = entry.node {
            open.push((path.clone(), Box::new(list_directory(store, contents)?)));
        }
        if let Node::File { size, .. } = entry.node {
            bytes += size.min(SMALL_FILE_BYTES_MAX);
        }
        batch.push(VisitedEntry { path, entry, bytes: None });
        if batch.len() >= BATCH_ENTRIES_MAX || bytes >= BATCH_BYTES_MAX {
            if !take(std::mem::take(&mut batch))? {
                return Ok(());
            }
            bytes = 0;
        }
    }
    take(batch).map(drop)
}

/// Reads the small files of a batch, then visits its entries in order.
pub(crate) fn read_and_visit(
    store: &Store,
    mut batch: Vec<VisitedEntry>,
    visit: &mut impl FnMut(VisitedEntry) -> Result<()>,
) -> Result<()> {
    read_small_files(store, &mut batch)?;
    batch.into_iter().try_for_each(visit)
}

fn read_small_files(store: &Store, batch: &mut [VisitedEntry]) -> Result<()> {
    batch.par_chunks_mut(RUN_ENTRIES).try_for_each(|run| read_run(store, run))
}

/// Reads the small files of consecutive entries. Files of one chunk are read together: chunks that were stored one after another
/// are then read in one pass.
fn read_run(store: &Store, run: &mut [VisitedEntry]) -> Result<()> {
    let chunk_of = |step: &VisitedEntry| match step.entry.node {
        Node::File { size, content: Content::Chunk(id) } if size <= SMALL_FILE_BYTES_MAX => Some((id, size)),
        _ => None,
    };
    let wanted: Vec<_> = run.iter().filter_map(chunk_of).collect();
    let mut chunks = store.chunks(&wanted)?.into_iter();
    for step in run {
        if chunk_of(step).is_some() {
            step.bytes = chunks.next();
        } else if let Node::File { size, content } = &step.entry.node
            && *size <= SMALL_FILE_BYTES_MAX
        {
            step.bytes = Some(content::read(store, content, *size, 0, *size)?.into());
        }
    }
    Ok(())
}
