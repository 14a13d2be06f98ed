//! Walks over a stored tree in the order of names, with the bytes of small files read ahead on all cores.

use amalgam_engine::content;
use amalgam_engine::object::{Entry, Node};
use amalgam_engine::{Name, Store, TreePath, list_directory};
use rayon::prelude::*;

use crate::build::SMALL_FILE_BYTES_MAX;
use crate::error::{Error, Result};

/// Entries and bytes that are read ahead.
const BATCH_ENTRIES_MAX: usize = 1_024;
const BATCH_BYTES_MAX: u64 = 8 << 20;

type Listing = Box<dyn Iterator<Item = amalgam_engine::Result<(Name, Entry)>>>;

/// An entry of the walk.
pub(crate) struct VisitedEntry {
    pub(crate) path: TreePath,
    pub(crate) entry: Entry,
    /// The bytes of a small file.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Visits a directory's entry and everything below it, each directory before its contents.
pub(crate) fn walk(
    store: &Store,
    path: TreePath,
    entry: Entry,
    mut visit: impl FnMut(VisitedEntry) -> Result<()>,
) -> Result<()> {
    let mut bytes = 0;
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
        let path = above.join(&name);
        if let Node::Directory(contents) = entry.node {
            open.push((path.clone(), Box::new(list_directory(store, contents)?)));
        }
        if let Node::File { size, .. } = entry.node {
            bytes += size.min(SMALL_FILE_BYTES_MAX);
        }
        batch.push(VisitedEntry { path, entry, bytes: None });
        if batch.len() >= BATCH_ENTRIES_MAX || bytes >= BATCH_BYTES_MAX {
            read_and_visit(store, std::mem::take(&mut batch), &mut visit)?;
            bytes = 0;
        }
    }
    read_and_visit(store, batch, &mut visit)
}

/// Reads the small files of a batch, then visits its entries in order.
pub(crate) fn read_and_visit(
    store: &Store,
    mut batch: Vec<VisitedEntry>,
    visit: &mut impl FnMut(VisitedEntry) -> Result<()>,
) -> Result<()> {
    let read = |step: &mut VisitedEntry| match &step.entry.node {
        Node::File { size, content } if *size <= SMALL_FILE_BYTES_MAX => {
            step.bytes = Some(content::read(store, content, *size, 0, *size)?);
            Ok(())
        }
        _ => Ok::<_, Error>(()),
    };
    batch.par_iter_mut().try_for_each(read)?;
    batch.into_iter().try_for_each(visit)
}
