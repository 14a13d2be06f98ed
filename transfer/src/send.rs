//! Sending: what one store has and another has not, as a stream.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::atomic::Ordering;

use amalgam_engine::{
    Error as EngineError, ObjectId, ObjectKind, Pin, RootId, SnapshotId, Store, Tombstone, unpack_chunk,
};
use bytes::Bytes;
use rayon::prelude::*;

use crate::error::Result;
use crate::have::Have;
use crate::order::order;
use crate::progress::Progress;
use crate::selection::Selection;
use crate::stream::StreamWriter;
use crate::walk::{Met, Seen, walk};

/// Chunks that are read together, by one thread and by all of them.
const READ_TOGETHER: usize = 32;
const QUEUE_LEAVES: usize = 8 * READ_TOGETHER;
/// Other objects wait no longer than this.
const QUEUE_BYTES: usize = 4 << 20;

/// How to send.
#[derive(Clone, Debug, Default)]
pub struct SendOptions {
    /// Snapshots that the receiver has. Those that the sender does not know are of no use and do no harm.
    pub had: Vec<SnapshotId>,
    /// Hash chunks on the way out too: for a stream that is stored before it is received.
    pub verify: bool,
}

impl SendOptions {
    /// What the receiver does not have yet.
    pub fn since(have: &Have) -> Self {
        Self { had: have.snapshots.clone(), verify: false }
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Objects and records.
    pub objects: u64,
    /// Snapshots with their trees.
    pub snapshots: u64,
    /// Snapshots of which only the record is left.
    pub thinned: u64,
    /// Names.
    pub names: u64,
    /// The length of the stream.
    pub bytes: u64,
}

/// Sends a selection: its snapshots with their history and their trees, without what the receiver has, and its names.
pub fn send(
    store: &Store,
    selection: &Selection,
    options: &SendOptions,
    out: impl Write,
    progress: &Progress,
) -> Result<Sent> {
    let known = known_bases(store, &options.had)?;
    let had: HashSet<_> = known.iter().map(|base| base.snapshot).collect();
    let snapshots = order(store, &selection.tips, &had)?;
    progress.snapshots_total.store(snapshots.len() as u64, Ordering::Relaxed);
    let mut sender = Sender {
        store,
        options,
        progress,
        writer: StreamWriter::new(out),
        seen: Seen::new(),
        queue: Queue::default(),
        trees: known.iter().map(|base| (base.snapshot, base.root)).collect(),
        // The latest one is the likeliest to be near.
        fallback: known.iter().max_by_key(|base| base.generation).map(|base| base.snapshot),
        had,
        named: HashSet::new(),
        sent: Sent::default(),
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

/// A snapshot that both sides have, kept while the guard lives.
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

/// Objects on their way into the stream, in its order.
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
    seen: Seen,
    queue: Queue,
    /// Trees that the receiver has, or will have by now.
    trees: HashMap<SnapshotId, RootId>,
    fallback: Option<SnapshotId>,
    had: HashSet<SnapshotId>,
    /// Bases that the stream has named.
    named: HashSet<SnapshotId>,
    sent: Sent,
}

impl<W: Write> Sender<'_, W> {
    fn snapshot(&mut self, id: SnapshotId, asked: bool) -> Result<()> {
        self.progress.check()?;
        let pin = self.store.pin(id);
        let canonical = match self.store.canonical(id.object()) {
            Ok(canonical) => canonical,
            // History is weak: the record went a moment ago.
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
                self.progress.add(1, 1);
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
        self.progress.add(0, 1);
        drop((pin, tree));
        Ok(())
    }

    /// The trees beside which one with these parents is walked.
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
        let mut seen = std::mem::replace(&mut self.seen, Seen::none());
        let walked = walk(self.store, top, bases, &mut seen, &mut |met| self.meet(met));
        self.seen = seen;
        walked
    }

    fn meet(&mut self, met: Met) -> Result<()> {
        match met {
            Met::Opened(ids) => {
                self.flush()?;
                return self.writer.opened(&ids);
            }
            Met::Leaf(id) => {
                self.queue.leaves += 1;
                self.queue.objects.push((id, None));
            }
            Met::Node(id, bytes) => {
                self.queue.bytes += bytes.len();
                self.queue.objects.push((id, Some(bytes)));
            }
        }
        if self.queue.leaves >= QUEUE_LEAVES || self.queue.bytes >= QUEUE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Reads what waits, on all cores, and writes it in its order.
    fn flush(&mut self) -> Result<()> {
        let Queue { objects, .. } = std::mem::take(&mut self.queue);
        if objects.is_empty() {
            return Ok(());
        }
        self.progress.check()?;
        let leaves: Vec<_> = objects.iter().filter(|(_, bytes)| bytes.is_none()).map(|(id, _)| *id).collect();
        let read = |ids: &[ObjectId]| read_leaves(self.store, ids, self.options.verify);
        let read: Vec<_> = leaves.par_chunks(READ_TOGETHER).map(read).collect::<Result<_>>()?;
        let mut read = read.into_iter().flatten();
        for (id, bytes) in objects {
            let bytes = bytes.map(Leaf::Stored).or_else(|| read.next()).expect("each leaf was read");
            match bytes {
                Leaf::Stored(bytes) => self.writer.object(id, &bytes)?,
                Leaf::Purged(tombstone) => self.writer.purged(id, &tombstone)?,
            }
            self.progress.add(1, 0);
        }
        self.progress.bytes.store(self.writer.bytes(), Ordering::Relaxed);
        Ok(())
    }

    fn finish(mut self, selection: &Selection) -> Result<Sent> {
        self.flush()?;
        selection.tips.iter().try_for_each(|tip| self.writer.tip(*tip))?;
        selection.names.iter().try_for_each(|(name, value)| self.writer.name(name, value))?;
        self.sent.objects = self.writer.objects();
        self.sent.names = selection.names.len() as u64;
        self.sent.bytes = self.writer.end()?;
        self.progress.bytes.store(self.sent.bytes, Ordering::Relaxed);
        Ok(self.sent)
    }
}

/// What there is of an object that has nothing below it.
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
