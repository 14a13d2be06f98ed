//! Sends the objects that another store lacks, as a stream.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::atomic::Ordering;

use amalgam_engine::{
    Error as EngineError, ObjectId, ObjectKind, Pin, RootId, SnapshotId, Store, Tombstone, unpack_chunk,
};
use bytes::Bytes;
use rayon::prelude::*;

use crate::diff_walk::{SeenIds, WalkEvent, diff_walk};
use crate::error::Result;
use crate::have::Have;
use crate::progress::Progress;
use crate::selection::Selection;
use crate::send_order::send_order;
use crate::stream::StreamWriter;

/// Leaves that one thread reads at once, and that are queued for all threads.
const READ_LEAVES: usize = 32;
const QUEUE_LEAVES: usize = 8 * READ_LEAVES;
/// Bytes of other objects that are queued at most.
const QUEUE_BYTES: usize = 4 << 20;

/// Options of a send.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Snapshots that the receiver has. Ids that the sender does not know are ignored.
    pub had: Vec<SnapshotId>,
    /// Hash chunks before they are sent: for a stream that is stored before it is received.
    pub verify: bool,
}

impl SendOptions {
    /// Sends only what the receiver does not have.
    pub fn since(have: &Have) -> Self {
        Self { had: have.snapshots.clone(), verify: false }
    }
}

/// Result of a send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Objects and records.
    pub objects: u64,
    /// Snapshots with their trees.
    pub snapshots: u64,
    /// Snapshots sent as a record without a tree.
    pub thinned: u64,
    /// Names.
    pub names: u64,
    /// The length of the stream.
    pub bytes: u64,
}

/// Sends a selection: its snapshots with history and trees, except what the receiver has, and its names.
pub fn send(
    store: &Store,
    selection: &Selection,
    options: &SendOptions,
    out: impl Write,
    progress: &Progress,
) -> Result<SendReport> {
    send_noting_purged(store, selection, options, out, progress).map(|(sent, _)| sent)
}

/// Sends a selection like [`send`]. Returns the chunks, too, in whose place the stream has tombstones.
pub(crate) fn send_noting_purged(
    store: &Store,
    selection: &Selection,
    options: &SendOptions,
    out: impl Write,
    progress: &Progress,
) -> Result<(SendReport, HashSet<ObjectId>)> {
    let known = known_bases(store, &options.had)?;
    let had: HashSet<_> = known.iter().map(|base| base.snapshot).collect();
    let snapshots = send_order(store, &selection.tips, &had)?;
    progress.snapshots_total.store(snapshots.len() as u64, Ordering::Relaxed);
    let mut sender = Sender {
        store,
        options,
        progress,
        writer: StreamWriter::new(out),
        seen: SeenIds::new(),
        queue: Queue::default(),
        trees: known.iter().map(|base| (base.snapshot, base.root)).collect(),
        // The latest snapshot is probably the most similar.
        fallback: known.iter().max_by_key(|base| base.generation).map(|base| base.snapshot),
        had,
        named: HashSet::new(),
        purged: HashSet::new(),
        sent: SendReport::default(),
    };
    let asked: HashSet<_> = selection.tips.iter().copied().collect();
    for snapshot in snapshots {
        sender.snapshot(snapshot, asked.contains(&snapshot))?;
    }
    for id in &selection.others {
        sender.tree(*id, Vec::new())?;
    }
    sender.finish(selection)
}

/// A snapshot that both sides have, pinned while this value lives.
struct Base {
    snapshot: SnapshotId,
    root: RootId,
    generation: u64,
    _pins: [Pin; 2],
}

fn known_bases(store: &Store, had: &[SnapshotId]) -> Result<Vec<Base>> {
    let mut bases = Vec::new();
    for id in had {
        let pin = store.pin(*id);
        let held = store.snapshot(*id).and_then(|snapshot| Ok((store.hold(snapshot.root)?, snapshot)));
        match held {
            Ok((tree, snapshot)) => bases.push(Base {
                snapshot: *id,
                root: snapshot.root,
                generation: snapshot.generation,
                _pins: [pin, tree],
            }),
            Err(EngineError::Missing { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bases)
}

/// Objects that wait for the stream, in its order.
#[derive(Default)]
struct Queue {
    objects: Vec<(ObjectId, Option<Bytes>)>,
    leaves: usize,
    bytes: usize,
}

struct Sender<'a, W> {
    store: &'a Store,
    options: &'a SendOptions,
    progress: &'a Progress,
    writer: StreamWriter<W>,
    seen: SeenIds,
    queue: Queue,
    /// Trees that the receiver has, or will have by now.
    trees: HashMap<SnapshotId, RootId>,
    fallback: Option<SnapshotId>,
    had: HashSet<SnapshotId>,
    /// Bases that the stream has named.
    named: HashSet<SnapshotId>,
    /// Chunks in whose place the stream has tombstones.
    purged: HashSet<ObjectId>,
    sent: SendReport,
}

impl<W: Write> Sender<'_, W> {
    fn snapshot(&mut self, id: SnapshotId, asked: bool) -> Result<()> {
        self.progress.check()?;
        let pin = self.store.pin(id);
        let canonical = match self.store.canonical(id.object()) {
            Ok(canonical) => canonical,
            // Ancestors may be missing: a collection removed the record.
            Err(EngineError::Missing { .. }) if !asked => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let snapshot = self.store.snapshot(id)?;
        let tree = match self.store.hold(snapshot.root) {
            Ok(tree) => tree,
            Err(EngineError::Missing { .. }) if !asked => {
                self.flush()?;
                self.writer.thinned(&canonical)?;
                self.sent.thinned += 1;
                self.progress.add_items(1);
                self.progress.add_snapshots(1);
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        let bases = self.bases(&snapshot.parents)?;
        self.tree(snapshot.root.object(), bases)?;
        self.queue.objects.push((id.object(), Some(canonical)));
        self.trees.insert(id, snapshot.root);
        self.fallback = Some(id);
        self.sent.snapshots += 1;
        self.progress.add_snapshots(1);
        drop((pin, tree));
        Ok(())
    }

    /// Returns the trees beside which a tree with these parents is walked.
    fn bases(&mut self, parents: &[SnapshotId]) -> Result<Vec<ObjectId>> {
        let mut beside: Vec<_> = parents.iter().copied().filter(|parent| self.trees.contains_key(parent)).collect();
        if beside.is_empty() {
            beside.extend(self.fallback);
        }
        let mut roots = Vec::new();
        for base in beside {
            roots.extend(self.trees.get(&base).map(|root| root.object()));
            if self.had.contains(&base) && self.named.insert(base) {
                self.flush()?;
                self.writer.base(base)?;
            }
        }
        Ok(roots)
    }

    fn tree(&mut self, top: ObjectId, bases: Vec<ObjectId>) -> Result<()> {
        let mut seen = std::mem::replace(&mut self.seen, SeenIds::empty());
        let walked = diff_walk(self.store, top, bases, &mut seen, &mut |event| self.handle_event(event));
        self.seen = seen;
        walked
    }

    fn handle_event(&mut self, event: WalkEvent) -> Result<()> {
        match event {
            WalkEvent::Opened(ids) => {
                self.flush()?;
                return self.writer.opened(&ids);
            }
            WalkEvent::Leaf(id) => {
                self.queue.leaves += 1;
                self.queue.objects.push((id, None));
            }
            WalkEvent::Node(id, bytes) => {
                self.queue.bytes += bytes.len();
                self.queue.objects.push((id, Some(bytes)));
            }
        }
        if self.queue.leaves >= QUEUE_LEAVES || self.queue.bytes >= QUEUE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Reads the queued objects on all cores, and writes them in order.
    fn flush(&mut self) -> Result<()> {
        let Queue { objects, .. } = std::mem::take(&mut self.queue);
        if objects.is_empty() {
            return Ok(());
        }
        self.progress.check()?;
        let leaves: Vec<_> = objects.iter().filter(|(_, bytes)| bytes.is_none()).map(|(id, _)| *id).collect();
        let read = |ids: &[ObjectId]| read_leaves(self.store, ids, self.options.verify);
        let read: Vec<_> = leaves.par_chunks(READ_LEAVES).map(read).collect::<Result<_>>()?;
        let mut read = read.into_iter().flatten();
        for (id, bytes) in objects {
            let bytes = bytes.map(Leaf::Stored).or_else(|| read.next()).expect("each leaf was read");
            match bytes {
                Leaf::Stored(bytes) => self.writer.object(id, &bytes)?,
                Leaf::Purged(tombstone) => {
                    self.writer.purged(id, &tombstone)?;
                    self.purged.insert(id);
                }
            }
            self.progress.add_items(1);
        }
        self.progress.bytes.store(self.writer.bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn finish(mut self, selection: &Selection) -> Result<(SendReport, HashSet<ObjectId>)> {
        self.flush()?;
        selection.tips.iter().try_for_each(|tip| self.writer.tip(*tip))?;
        selection.names.iter().try_for_each(|(name, value)| self.writer.name(name, value))?;
        self.sent.objects = self.writer.objects();
        self.sent.names = selection.names.len() as u64;
        self.sent.bytes = self.writer.end()?;
        self.progress.bytes.store(self.sent.bytes, Ordering::Relaxed);
        Ok((self.sent, self.purged))
    }
}

/// A chunk or extended attributes.
enum Leaf {
    Stored(Bytes),
    Purged(Tombstone),
}

fn read_leaves(store: &Store, ids: &[ObjectId], verify: bool) -> Result<Vec<Leaf>> {
    let stored = store.stored_many(ids)?;
    let mut leaves = Vec::with_capacity(ids.len());
    for (id, stored) in ids.iter().copied().zip(stored) {
        let Some(stored) = stored else {
            let tombstone = store.tombstone(id)?.ok_or(EngineError::Missing { id })?;
            leaves.push(Leaf::Purged(tombstone));
            continue;
        };
        if verify {
            let raw = match id.kind {
                ObjectKind::Chunk => unpack_chunk(&stored).map_err(|source| EngineError::Malformed { id, source })?,
                _ => stored.clone(),
            };
            if ObjectId::of(id.kind, &raw) != id {
                return Err(EngineError::HashMismatch { id }.into());
            }
        }
        leaves.push(Leaf::Stored(stored));
    }
    Ok(leaves)
}
