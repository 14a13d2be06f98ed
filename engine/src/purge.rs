//! Forgetting: the bytes of a file's content taken out of a store, everywhere or at one path, with a tombstone left for each chunk.
//!
//! ```
//! use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge};
//! use amalgam_engine::{Act, Commit, Error, RefName, Store, Time, TreePath, WorkingTree};
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
//! purge(&store, &plan, "a key", &Act::new("ada", Time(1)))?;
//! let tree = WorkingTree::open(&store, done.snapshot)?;
//! assert!(matches!(tree.read(".env"), Err(Error::Purged { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Snapshots, directories and ropes stay as they are, so every id stays what it was: only chunks go. A chunk that another content
//! holds too stays, and the plan says where; [`PurgeOptions::everywhere`] takes it as well. The same bytes are not stored again
//! until [`forget_tombstone`] allows it: a secret that was purged on purpose does not come back with the next capture.
//!
//! A plan reads every tree of the store once; it holds about 60 bytes for each of their nodes. A purge reads every chunk once: the same
//! bytes may lie in rows that the index does not name.
//!
//! What is not reached: names of files, symlink targets, attributes, state values and messages, which are in objects that stay;
//! working trees in memory and their segments; other stores, streams and backups.

mod act;
mod copies;
mod find;

pub use act::{Purged, forget_tombstone, purge, tombstones};

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
/// So many places are listed; the others are counted.
const PLACES_MAX: usize = 10_000;

/// What is to be forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurgeTarget {
    /// Whatever the file at this path held in any snapshot.
    Path(TreePath),
    /// A chunk, or the content of a file by the top node of its rope, wherever it is.
    Object(ObjectId),
}

/// How far a purge goes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeOptions {
    /// Chunks that other contents or other paths hold too.
    pub everywhere: bool,
}

/// A file in a tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PurgePlace {
    /// The snapshots with this tree; none for a tree that was never committed.
    pub snapshots: Vec<SnapshotId>,
    /// The tree.
    pub root: RootId,
    /// The file.
    pub path: TreePath,
}

/// A chunk that stays, because something else holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// One of the places that hold it.
    pub place: PurgePlace,
    /// How many more there are.
    pub places_more: u64,
}

/// What a purge would do.
#[derive(Clone, Debug, Default)]
pub struct PurgePlan {
    /// The chunks that go.
    pub chunks: Vec<ChunkId>,
    /// What they take in the store.
    pub bytes: u64,
    /// The files that cannot be read in full afterwards.
    pub places: Vec<PurgePlace>,
    /// How many more there are.
    pub places_more: u64,
    /// The chunks that stay.
    pub shared: Vec<SharedChunk>,
    /// Chunks that were purged before.
    pub purged_before: Vec<ChunkId>,
    /// Where the operation log stood.
    operation: u64,
}

/// Finds out what a purge would do. Changes nothing.
pub fn plan_purge(store: &Store, target: &PurgeTarget, options: &PurgeOptions) -> Result<PurgePlan> {
    let operation = store.last_operation()?;
    let trees = Trees::read(store)?;
    let mut finder = Finder::new(store);
    match target {
        PurgeTarget::Path(path) => {
            for root in trees.roots.keys() {
                if let Some(entry) = directory::entry_at(store, &*store.root(*root)?, path)? {
                    contents(&entry, path, &mut |content| finder.want_content(content))?;
                }
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

/// The contents of a file, in all terms of a conflict.
fn contents(entry: &Entry, path: &TreePath, want: &mut dyn FnMut(ObjectId) -> Result<()>) -> Result<()> {
    match &entry.node {
        Node::File { content: Content::Chunk(id), .. } => want(id.object()),
        Node::File { content: Content::Rope(id), .. } => want(id.object()),
        Node::Conflict(conflict) => conflict.terms().iter().flatten().try_for_each(|term| contents(term, path, want)),
        Node::Directory(_) => Err(Error::IsADirectory { path: path.clone() }),
        _ => Ok(()),
    }
}

/// Every tree of a store, with the snapshots that have it, and how much each chunk takes.
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
            // A thinned one has no tree to look at.
            if let Some(of) = trees.roots.get_mut(&store.snapshot(id)?.root) {
                of.push(id);
            }
        }
        Ok(trees)
    }
}
