//! Imports the objects below a prefix of a bucket as a tree, by difference: only objects whose ETag changed are read.
//!
//! A listing is read once, into a temporary file. Keys that are no paths are left out and reported, as is an object that other
//! objects lie below. Objects that were read are recorded in a [`BucketIndex`], by hashes of keys and ETags, together with the tree that
//! it describes: an index that is lost, or that belongs to another tree, costs that all objects are read again.
//!
//! This module knows no network. A [`BucketSource`] lists and reads the objects.

mod index;
mod listing;
mod object;

pub use index::BucketIndex;
pub use object::{BucketCounts, BucketSource, ListedObject};

use std::io::Read;

use amalgam_engine::object::{DirectoryRef, Node};
use amalgam_engine::{Progress, RootId, SnapshotId, Store, TreePath, list_directory};

use crate::build::{BuildOptions, SMALL_FILE_BYTES_MAX, TreeBuilder};
use crate::error::{Error, Result};
use crate::imported::{self, Imported, SnapshotInfo};
use crate::member::{Attributes, Body, Edit};
use crate::report::Report;
use crate::source::MemberSource;
use listing::{Listing, ListingOptions};

/// Limit on the small objects of one batch of reads.
const READ_MANY_MAX: usize = 32;
/// Mode of files and directories: a bucket has none.
const FILE_MODE: u32 = 0o644;
const DIRECTORY_MODE: u32 = 0o755;

const NOTE_CHANGED: &str = "objects that changed or vanished while they were read stay as they were";

/// Options of an import.
#[derive(Clone, Debug)]
pub struct BucketImport {
    /// The snapshot of the last import, which becomes the parent.
    pub onto: Option<SnapshotId>,
    /// The index of the last import.
    pub known: Option<BucketIndex>,
    /// Limit on the objects of a listing.
    pub objects_max: u64,
    /// Author, time and message of the snapshot. The counts are added to the message.
    pub words: SnapshotInfo,
}

/// Default limit on the objects of a listing. Memory grows by about 100 bytes for each.
pub const BUCKET_OBJECTS_MAX: u64 = 4_000_000;

/// The result of an import.
pub struct ImportedBucket {
    /// The snapshot; `None` if the tree did not change.
    pub imported: Option<Imported>,
    /// The index to pass to the next import.
    pub index: BucketIndex,
    /// The counts.
    pub counts: BucketCounts,
    /// Keys and objects that were left out, by reason.
    pub report: Report,
}

/// Imports the objects of a bucket.
pub fn import_bucket(
    store: &Store,
    source: &mut dyn BucketSource,
    options: BucketImport,
    progress: &Progress,
) -> Result<ImportedBucket> {
    let base = options.onto.map(|snapshot| store.snapshot(snapshot)).transpose()?.map(|snapshot| snapshot.root);
    let known = options.known.filter(|known| base.is_some_and(|base| known.describes(base)));
    let limits = ListingOptions { objects_max: options.objects_max };
    let mut listing = Listing::read(source, known.as_ref(), limits, progress)?;
    let mut builder = TreeBuilder::new(store, base, BuildOptions { layer: true, dry_run: false })?;
    let mut removed = 0;
    if let Some(base) = base
        && listing.may_have_vanished(known.as_ref())
    {
        removed = remove_vanished(store, base, &listing, &mut builder)?;
    }
    let mut reader =
        ObjectReader { source, builder, pending: Vec::new(), index: listing.take_index(), synced: 0, changed: 0 };
    while let Some((path, object)) = listing.next_changed()? {
        progress.add_items(1);
        progress.check()?;
        reader.add(path, object)?;
    }
    reader.flush()?;
    let ObjectReader { builder, mut index, synced, changed, .. } = reader;
    let left_out = listing.counts.left_out + changed;
    let counts = BucketCounts { synced, removed, left_out, ..listing.counts };
    let (tree, mut report) = builder.finish()?;
    report.add(&listing.report);
    let mut words = options.words;
    words.message = format!("{}: {}", words.message, counts.words());
    let imported = imported::import_single(store, tree, report.clone(), options.onto, words)?;
    index.settle(imported.root);
    let imported = (base != Some(imported.root)).then_some(imported);
    Ok(ImportedBucket { imported, index, counts, report })
}

/// Removes files whose objects are gone, and directories without objects. Returns the number of files.
fn remove_vanished(store: &Store, base: RootId, listing: &Listing, builder: &mut TreeBuilder) -> Result<u64> {
    let mut removed = 0;
    let root = store.root(base)?;
    let Node::Directory(contents) = root.directory.node else { return Ok(0) };
    let mut open = vec![(TreePath::root(), contents)];
    while let Some((above, contents)) = open.pop() {
        for item in list_directory(store, contents)? {
            let (name, entry) = item?;
            let path = above.join(&name);
            match entry.node {
                Node::Directory(contents) => {
                    if !listing.has_directory(&path) {
                        removed += count_files(store, contents)?;
                        builder.add(path, Edit::Whiteout)?;
                    } else {
                        open.push((path, contents));
                    }
                }
                _ if listing.has_file(&path) => {}
                _ => {
                    removed += 1;
                    builder.add(path, Edit::Whiteout)?;
                }
            }
        }
    }
    Ok(removed)
}

/// Counts the files below a directory. Every entry that is no directory counts as a file.
fn count_files(store: &Store, contents: Option<DirectoryRef>) -> Result<u64> {
    let (mut files, mut open) = (0, vec![contents]);
    while let Some(contents) = open.pop() {
        for item in list_directory(store, contents)? {
            match item?.1.node {
                Node::Directory(below) => open.push(below),
                _ => files += 1,
            }
        }
    }
    Ok(files)
}

/// Reads changed objects into a tree, small ones together.
struct ObjectReader<'a> {
    source: &'a mut dyn BucketSource,
    builder: TreeBuilder,
    pending: Vec<(TreePath, ListedObject)>,
    index: BucketIndex,
    synced: u64,
    /// Objects that changed while they were read.
    changed: u64,
}

impl ObjectReader<'_> {
    fn add(&mut self, path: TreePath, object: ListedObject) -> Result<()> {
        if object.key.ends_with(b"/") {
            // An empty directory that a program made visible.
            self.index.record(&object);
            self.synced += 1;
            let attributes = Attributes { mode: DIRECTORY_MODE, mtime: object.modified, ..Attributes::default() };
            return self.builder.add(path, Edit::Directory { attributes });
        }
        if object.size > SMALL_FILE_BYTES_MAX {
            return self.add_large(path, &object);
        }
        self.pending.push((path, object));
        if self.pending.len() >= READ_MANY_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if pending.is_empty() {
            return Ok(());
        }
        let objects: Vec<_> = pending.iter().map(|(_, object)| object.clone()).collect();
        let bodies = self.source.read_many(&objects)?;
        if bodies.len() != objects.len() {
            return Err(Error::host("read objects", std::io::ErrorKind::UnexpectedEof.into()));
        }
        for ((path, object), body) in pending.into_iter().zip(bodies) {
            let body = body.filter(|bytes| bytes.len() as u64 == object.size).map(Body::Bytes);
            self.place(path, &object, body)?;
        }
        Ok(())
    }

    fn add_large(&mut self, path: TreePath, object: &ListedObject) -> Result<()> {
        let Some(mut reader) = self.source.read_one(object)? else { return self.place(path, object, None) };
        let member = MemberSource::plain(&mut reader, object.size);
        let stored = self.builder.store(&member);
        let body = match member.finish() {
            (_, Some(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => None,
            (_, Some(error)) => return Err(Error::host("read an object", error)),
            (_, None) => Some(stored?),
        };
        // A body that goes on is not the object that was listed.
        let is_whole = reader.read(&mut [0]).map_err(|source| Error::host("read an object", source))? == 0;
        drop(reader);
        self.place(path, object, body.filter(|_| is_whole))
    }

    fn place(&mut self, path: TreePath, object: &ListedObject, body: Option<Body>) -> Result<()> {
        let Some(body) = body else {
            self.builder.report.note(NOTE_CHANGED, &object.key);
            self.changed += 1;
            self.index.is_complete = false;
            return Ok(());
        };
        self.index.record(object);
        self.synced += 1;
        let attributes = Attributes { mode: FILE_MODE, mtime: object.modified, ..Attributes::default() };
        self.builder.add(path, Edit::File { attributes, body })
    }
}
