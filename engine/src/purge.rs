//! Purges the bytes of a file's content from a store, everywhere or at one path, and leaves a tombstone for each chunk.
//!
//! ```
//! use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge};
//! use amalgam_engine::{OperationContext, Commit, Error, RefName, Store, Time, TreePath, WorkingTree};
//!
//! let store = Store::in_memory();
//! let mut tree = WorkingTree::new(&store);
//! tree.write(".env", b"KEY=hunter2")?;
//! let done = tree.commit(Commit::new(&RefName::new("head/main")?, "oops"))?;
//! drop(tree);
//!
//! let target = PurgeTarget::Path(TreePath::new(".env")?);
//! let plan = plan_purge(&store, &target, &PurgeOptions::default())?; // changes nothing
//! assert_eq!(plan.places.len(), 1);
//! purge(&store, &plan, "a key", &OperationContext::new("ada", Time(1)))?;
//! let tree = WorkingTree::open(&store, done.snapshot)?;
//! assert!(matches!(tree.read(".env"), Err(Error::Purged { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Snapshots, directories and ropes do not change, so every id stays the same: only chunks are deleted. A chunk that another
//! content also contains is kept, and the plan lists its locations; [`PurgeOptions::everywhere`] deletes it as well. The same
//! bytes are rejected until [`forget_tombstone`] allows them again: a purged secret does not come back with the next capture.
//!
//! A plan reads every tree of the store once and takes about 60 bytes of memory for each node. A purge reads every chunk once,
//! because rows that the index does not name can hold the same bytes.
//!
//! Not purged: names of files, symlink targets, attributes, state values and messages, which are in objects that stay;
//! working trees in memory and their segments; other stores, streams and backups.

mod copies;
mod erase;
mod find;

pub use erase::{Purged, forget_tombstone, purge, tombstones};

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::backend::IndexRow;
use crate::directory;
use crate::error::{Error, Result};
use crate::id::{ChunkId, ObjectId, ObjectKind, RootId, SnapshotId};
use crate::name::TreePath;
use crate::object::{Content, Entry, Node};
use crate::store::Store;
use find::Finder;

const PAGE: usize = 4_096;
/// Maximum number of places that are listed. Further ones are counted.
const PLACES_MAX: usize = 10_000;

/// The content to purge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurgeTarget {
    /// The content of the file at this path in every snapshot. Snapshots where the path is a directory have none.
    Path(TreePath),
    /// A chunk, or the content of a file by the top node of its rope, at every path.
    Object(ObjectId),
}

/// Options of a purge.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeOptions {
    /// Whether to purge chunks that other contents or other paths also contain.
    pub everywhere: bool,
}

/// A file in a tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PurgePlace {
    /// The snapshots with this tree; empty for a tree that was never committed.
    pub snapshots: Vec<SnapshotId>,
    /// The tree.
    pub root: RootId,
    /// The path of the file.
    pub path: TreePath,
}

/// A chunk that is kept, because another content contains it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// One of the other places that contain it.
    pub place: PurgePlace,
    /// Number of further places.
    pub places_more: u64,
}

/// The effects of a purge.
#[derive(Clone, Debug, Default)]
pub struct PurgePlan {
    /// The chunks to delete.
    pub chunks: Vec<ChunkId>,
    /// Their stored size in bytes.
    pub bytes: u64,
    /// The files that will not be readable in full.
    pub places: Vec<PurgePlace>,
    /// Number of further files.
    pub places_more: u64,
    /// The chunks that are kept.
    pub shared: Vec<SharedChunk>,
    /// Chunks that were purged before.
    pub purged_before: Vec<ChunkId>,
    /// The last operation when the plan was made.
    operation: u64,
}

/// Computes the effects of a purge. Changes nothing.
pub fn plan_purge(store: &Store, target: &PurgeTarget, options: &PurgeOptions) -> Result<PurgePlan> {
    let operation = store.last_operation()?;
    let trees = Trees::read(store)?;
    let mut finder = Finder::new(store);
    match target {
        PurgeTarget::Path(path) => {
            let mut is_directory = false;
            for root in trees.roots.keys() {
                if let Some(entry) = directory::entry_at(store, &*store.root(*root)?, path)? {
                    contents(&entry, &mut is_directory, &mut |content| finder.want_content(content))?;
                }
            }
            if is_directory && finder.wanted().is_empty() {
                return Err(Error::IsADirectory { path: path.clone() });
            }
        }
        PurgeTarget::Object(id) if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Rope) => {
            finder.want_content(*id)?
        }
        PurgeTarget::Object(id) => {
            let why = format!("{id} is no content of a file; name a chunk, a rope, or a path");
            return Err(Error::Invalid { what: "purge", why });
        }
    }
    let mut plan = PurgePlan { operation, ..PurgePlan::default() };
    let mut shared: BTreeMap<ChunkId, SharedChunk> = BTreeMap::new();
    for (root, snapshots) in &trees.roots {
        finder.places(*root, &mut |path, content, chunks| {
            let place = || PurgePlace { snapshots: snapshots.clone(), root: *root, path: path.clone() };
            let is_meant = match target {
                PurgeTarget::Path(meant) => path == meant,
                PurgeTarget::Object(id) => *id == content || id.kind == ObjectKind::Chunk,
            };
            if is_meant || options.everywhere {
                plan.places_more += u64::from(plan.places.len() == PLACES_MAX);
                if plan.places.len() < PLACES_MAX {
                    plan.places.push(place());
                }
                return;
            }
            for chunk in chunks {
                let new = || SharedChunk { chunk: *chunk, place: place(), places_more: 0 };
                shared.entry(*chunk).and_modify(|shared| shared.places_more += 1).or_insert_with(new);
            }
        })?;
    }
    for chunk in finder.wanted() {
        match (store.tombstone(chunk.object())?, trees.chunk_bytes.get(chunk)) {
            (Some(_), None) => plan.purged_before.push(*chunk),
            (_, bytes) if !shared.contains_key(chunk) => {
                plan.bytes += bytes.copied().unwrap_or(0);
                plan.chunks.push(*chunk);
            }
            _ => {}
        }
    }
    plan.shared = shared.into_values().collect();
    Ok(plan)
}

/// Calls `want` with the contents of a file, for all terms of a conflict. Sets `is_directory` for a directory, which has none.
fn contents(entry: &Entry, is_directory: &mut bool, want: &mut dyn FnMut(ObjectId) -> Result<()>) -> Result<()> {
    match &entry.node {
        Node::File { content: Content::Chunk(id), .. } => want(id.object()),
        Node::File { content: Content::Rope(id), .. } => want(id.object()),
        Node::Conflict(conflict) => {
            conflict.terms().iter().flatten().try_for_each(|term| contents(term, is_directory, want))
        }
        Node::Directory(_) => {
            *is_directory = true;
            Ok(())
        }
        _ => Ok(()),
    }
}

/// All trees of a store with their snapshots, and the stored size of each chunk.
struct Trees {
    roots: BTreeMap<RootId, Vec<SnapshotId>>,
    chunk_bytes: HashMap<ChunkId, u64>,
}

impl Trees {
    fn read(store: &Store) -> Result<Self> {
        let mut trees = Self { roots: BTreeMap::new(), chunk_bytes: HashMap::new() };
        let (mut snapshots, mut after) = (BTreeSet::new(), None);
        loop {
            let page = store.scan_index(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            for IndexRow { id, stored_bytes, .. } in page {
                match id.kind {
                    ObjectKind::Root => drop(trees.roots.entry(RootId::from_bytes(id.hash)).or_default()),
                    ObjectKind::Snapshot => drop(snapshots.insert(SnapshotId::from_bytes(id.hash))),
                    ObjectKind::Chunk => drop(trees.chunk_bytes.insert(ChunkId::from_bytes(id.hash), stored_bytes)),
                    _ => {}
                }
            }
        }
        for id in snapshots {
            // A thinned snapshot has no tree to search.
            if let Some(of) = trees.roots.get_mut(&store.snapshot(id)?.root) {
                of.push(id);
            }
        }
        Ok(trees)
    }
}
