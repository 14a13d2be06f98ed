//! Mark phase: finds everything that the roots reach.
//!
//! Objects are numbered in the order of writing, and an object is nearly always written after the objects that it refers
//! to. So all rows are read once, newest first: a row that is marked when it is read marks the objects that it refers to.
//! An object that is marked after its row was read, and every root added meanwhile, is followed on its own, row by row.
//!
//! Three sets, and the decisions that each may make:
//! - `reached`: Bloom filter of all marked objects. A false positive keeps a chunk, or lets a row be *followed* that no root
//!   needs; both only keep garbage. It never decides that a row was followed.
//! - `followed`: exact set of the rows whose references are in `reached`. It alone keeps a node and ends a walk. So
//!   everything below a kept node is kept.
//! - `passed`: Bloom filter of the rows that were read unmarked. A false positive costs one useless index lookup.

use std::collections::HashSet;
use std::ops::Range;

use amalgam_engine::backend::{IndexRow, NumberSet};
use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, SweepRound};
use rayon::prelude::*;

use crate::bloom::{BloomFilter, Fingerprint, fingerprint};
use crate::row_batch::{NodeBatch, for_each_reference, read_snapshots};

/// Batches that are decoded in parallel while earlier ones are marked.
const READ_AHEAD_BATCHES: usize = 8;
/// Passed nodes are followed when more than this many are deferred.
const DEFERRED_MAX: usize = 1 << 15;
/// Objects that a walk looks up at once.
const WALK_PAGE: usize = 256;
const FILTER_BYTES_MIN: usize = 64 << 10;

/// Decides which snapshots of the history keep their trees. Snapshots that a reference or a pin names always keep theirs.
pub trait Retention: Sync {
    /// Returns whether this snapshot, an ancestor of another one, keeps its tree.
    fn keeps_tree(&self, id: SnapshotId, snapshot: &Snapshot) -> bool;
}

/// Retention that keeps the trees of all snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAll;

impl Retention for KeepAll {
    fn keeps_tree(&self, _id: SnapshotId, _snapshot: &Snapshot) -> bool {
        true
    }
}

impl<F: Fn(SnapshotId, &Snapshot) -> bool + Sync> Retention for F {
    fn keeps_tree(&self, id: SnapshotId, snapshot: &Snapshot) -> bool {
        self(id, snapshot)
    }
}

/// The sets of marked objects.
pub(crate) struct Marks<'a> {
    retention: &'a dyn Retention,
    reached: BloomFilter,
    followed: NumberSet,
    passed: BloomFilter,
    /// Snapshots that a root names, by fingerprint. A collision only keeps a tree.
    named: HashSet<Fingerprint>,
    /// Rows that the scan will still read; they need no walk.
    unread: UnreadRows,
    /// Nodes that were marked after their rows were (probably) passed.
    deferred: Vec<ObjectId>,
    /// How many row numbers a batch spans. One thread decodes a batch.
    batch_rows: u64,
    stats: MarkStats,
}

/// The rows that a scan has not read yet.
#[derive(Clone, Copy)]
pub(crate) enum UnreadRows {
    /// Snapshots with a number below `below`, and all trees with a number below `end`.
    Snapshots { below: u64, end: u64 },
    /// Trees with a number below `below`.
    Trees { below: u64 },
    /// None: the scan is complete.
    Nothing,
}

impl UnreadRows {
    pub(crate) fn holds(self, kind: ObjectKind, number: u64) -> bool {
        match self {
            Self::Snapshots { below, .. } if kind == ObjectKind::Snapshot => number < below,
            Self::Snapshots { end, .. } => number < end,
            Self::Trees { below } => kind != ObjectKind::Snapshot && number < below,
            Self::Nothing => false,
        }
    }
}

/// Statistics of the mark phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkStats {
    /// Rows of nodes and snapshots that the scan read.
    pub rows: u64,
    /// References to chunks; shared chunks count each time.
    pub chunk_references: u64,
    /// Objects that were looked up one by one: nodes marked after their rows were read, and late roots.
    pub walked: u64,
    /// Snapshots whose record is kept without their tree.
    pub thinned: u64,
    /// Peak memory of the sets.
    pub memory_bytes: u64,
}

/// Callback after some rows: how many there were, and how many numbers they span. Returns whether to continue.
pub(crate) type ContinueFn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

impl<'a> Marks<'a> {
    /// Creates empty sets of about `memory_bytes`, or less if the store has few objects.
    pub(crate) fn new(
        round: &SweepRound,
        retention: &'a dyn Retention,
        memory_bytes: usize,
        batch_rows: u64,
    ) -> Result<Self> {
        let objects = usize::try_from(round.objects_estimate()?).unwrap_or(usize::MAX);
        let wanted = objects.saturating_mul(2);
        let reached = wanted.clamp(FILTER_BYTES_MIN, (memory_bytes / 4 * 3).max(FILTER_BYTES_MIN));
        Ok(Self {
            retention,
            reached: BloomFilter::new(reached, round.epoch()),
            followed: NumberSet::default(),
            passed: BloomFilter::new((reached / 8).max(FILTER_BYTES_MIN / 8), round.epoch()),
            named: HashSet::new(),
            unread: UnreadRows::Nothing,
            deferred: Vec::new(),
            batch_rows,
            stats: MarkStats::default(),
        })
    }

    /// Marks everything that `roots` reach, by one scan of all rows. Returns `None` when the callback cancelled it.
    pub(crate) fn mark_all(
        &mut self,
        round: &SweepRound,
        roots: &[ObjectId],
        should_continue: ContinueFn<'_>,
    ) -> Result<Option<()>> {
        for root in roots {
            self.add_root(root);
        }
        let end = round.numbers_end();
        if self.read_snapshots(round, end, should_continue)?.is_none()
            || self.read_trees(round, should_continue)?.is_none()
        {
            return Ok(None);
        }
        self.unread = UnreadRows::Nothing;
        Ok(Some(()))
    }

    /// Marks a root. A snapshot among the roots keeps its tree under any retention.
    fn add_root(&mut self, root: &ObjectId) {
        self.reached.insert(fingerprint(root));
        if root.kind == ObjectKind::Snapshot {
            self.named.insert(fingerprint(root));
        }
    }

    /// Marks everything that roots added after the scan reach.
    pub(crate) fn mark_late_roots(&mut self, round: &SweepRound, roots: &[ObjectId]) -> Result<()> {
        let mut open = Vec::new();
        for root in roots {
            self.add_root(root);
            open.push(*root);
            if root.kind == ObjectKind::Snapshot
                && let Some(snapshot) = read_snapshot(round, *root)?
            {
                // A snapshot that only history led to may have been followed without its tree.
                open.push(snapshot.root.object());
            }
        }
        self.walk(round, open)
    }

    /// Returns whether the object of this row is kept.
    pub(crate) fn keeps(&self, row: &IndexRow) -> bool {
        match row.id.kind {
            ObjectKind::Chunk => self.reached.contains(fingerprint(&row.id)),
            _ => self.followed.contains(row.number),
        }
    }

    /// Reads a doubtful object, and follows it if it is intact.
    pub(crate) fn recheck(&mut self, round: &SweepRound, id: ObjectId) -> Result<()> {
        self.walk(round, vec![id])
    }

    /// Returns whether the filter contains the object although its row was never followed. Either that is a false positive, or
    /// the row is damaged.
    pub(crate) fn is_doubtful(&self, row: &IndexRow) -> bool {
        row.id.kind != ObjectKind::Chunk
            && !self.followed.contains(row.number)
            && self.reached.contains(fingerprint(&row.id))
    }

    /// Returns the statistics so far, with the memory in use.
    pub(crate) fn stats(&self) -> MarkStats {
        let sets = self.reached.memory_bytes() + self.followed.memory_bytes() + self.passed.memory_bytes();
        MarkStats { memory_bytes: (sets + self.named.capacity() * 9) as u64, ..self.stats }
    }

    fn read_snapshots(&mut self, round: &SweepRound, end: u64, should_continue: ContinueFn<'_>) -> Result<Option<()>> {
        let decode = |range| read_snapshots(round, range);
        let unread = |below| UnreadRows::Snapshots { below, end };
        self.read(round, &unread, should_continue, &decode, &mut |marks, found: Vec<(u64, SnapshotId, Snapshot)>| {
            for (number, id, snapshot) in found.iter().rev() {
                marks.stats.rows += 1;
                let id = id.object();
                if marks.followed.contains(*number) {
                    continue;
                }
                if !marks.reached.contains(fingerprint(&id)) {
                    marks.passed.insert(fingerprint(&id));
                    continue;
                }
                marks.followed.insert(*number);
                snapshot.parents.iter().for_each(|parent| marks.mark_node(parent.object()));
                if marks.keeps_tree(id, snapshot) {
                    marks.mark_node(snapshot.root.object());
                }
            }
        })
    }

    fn read_trees(&mut self, round: &SweepRound, should_continue: ContinueFn<'_>) -> Result<Option<()>> {
        let decode = |range| NodeBatch::read(round, range);
        let unread = |below| UnreadRows::Trees { below };
        self.read(round, &unread, should_continue, &decode, &mut |marks, batch: NodeBatch| {
            for row in batch.rows.iter().rev() {
                marks.stats.rows += 1;
                if marks.followed.contains(row.number) {
                    continue;
                }
                if !marks.reached.contains(row.id) {
                    marks.passed.insert(row.id);
                    continue;
                }
                marks.followed.insert(row.number);
                let chunks = &batch.chunks[row.chunks.clone()];
                chunks.iter().for_each(|chunk| marks.reached.insert(*chunk));
                marks.stats.chunk_references += chunks.len() as u64;
                for node in &batch.nodes[row.nodes.clone()] {
                    marks.mark_node(*node);
                }
            }
        })
    }

    /// Reads one family, newest row first. All cores decode the next batches while the current ones are marked.
    fn read<T: Send>(
        &mut self,
        round: &SweepRound,
        unread: &(dyn Fn(u64) -> UnreadRows + Sync),
        should_continue: ContinueFn<'_>,
        decode: &(dyn Fn(Range<u64>) -> Result<T> + Sync),
        mark: &mut (dyn FnMut(&mut Self, T) + Send),
    ) -> Result<Option<()>> {
        let end = round.numbers_end();
        let batch_rows = self.batch_rows;
        let mut batches = (0..end.div_ceil(batch_rows)).rev();
        let decode_next = |batches: &mut (dyn Iterator<Item = u64> + Send)| -> Vec<(Range<u64>, Result<T>)> {
            let some: Vec<_> = batches.take(READ_AHEAD_BATCHES).collect();
            let range = |at: u64| at * batch_rows..((at + 1) * batch_rows).min(end);
            some.into_par_iter().map(|at| (range(at), decode(range(at)))).collect()
        };
        self.unread = unread(end);
        let mut ready = decode_next(&mut batches);
        while !ready.is_empty() {
            let before = self.stats.rows;
            let numbers = ready.iter().map(|(range, _)| range.end - range.start).sum();
            let (marked, next) = rayon::join(
                || {
                    ready.into_iter().try_for_each(|(range, batch)| {
                        mark(self, batch?);
                        self.unread = unread(range.start);
                        Ok::<_, Error>(())
                    })
                },
                || decode_next(&mut batches),
            );
            marked?;
            if self.deferred.len() > DEFERRED_MAX {
                self.follow_deferred(round)?;
            }
            if !should_continue(self.stats.rows - before, numbers) {
                return Ok(None);
            }
            ready = next;
        }
        self.follow_deferred(round)?;
        Ok(Some(()))
    }

    /// Marks a node that a followed row refers to.
    fn mark_node(&mut self, id: ObjectId) {
        let fingerprint = fingerprint(&id);
        self.reached.insert(fingerprint);
        if self.passed.contains(fingerprint) {
            self.deferred.push(id);
        }
    }

    /// Returns whether a followed snapshot keeps its tree, and counts it if not.
    fn keeps_tree(&mut self, id: ObjectId, snapshot: &Snapshot) -> bool {
        let keeps = self.named.contains(&fingerprint(&id))
            || self.retention.keeps_tree(SnapshotId::from_bytes(id.hash), snapshot);
        self.stats.thinned += u64::from(!keeps);
        keeps
    }

    /// Follows the nodes that were marked after their rows had been read.
    fn follow_deferred(&mut self, round: &SweepRound) -> Result<()> {
        let deferred = std::mem::take(&mut self.deferred);
        self.walk(round, deferred)
    }

    /// Follows objects one by one, down to rows that were followed before or are still unread.
    fn walk(&mut self, round: &SweepRound, mut open: Vec<ObjectId>) -> Result<()> {
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(WALK_PAGE));
            let (chunks, nodes): (Vec<_>, Vec<_>) = page.into_iter().partition(|id| id.kind == ObjectKind::Chunk);
            chunks.iter().for_each(|chunk| self.reached.insert(fingerprint(chunk)));
            self.stats.walked += nodes.len() as u64;
            for (id, row) in nodes.iter().zip(round.look_up(&nodes)?) {
                self.reached.insert(fingerprint(id));
                // A missing object was pinned too late, or the history is cut off before it.
                let Some(row) = row else { continue };
                if self.followed.contains(row.number) || self.unread.holds(id.kind, row.number) {
                    continue;
                }
                let Some(canonical) = round.read(*id)? else { return Err(Error::Missing { id: *id }) };
                self.followed.insert(row.number);
                if id.kind == ObjectKind::Snapshot {
                    let snapshot =
                        Snapshot::decode(&canonical).map_err(|source| Error::Malformed { id: *id, source })?;
                    open.extend(snapshot.parents.iter().map(|parent| parent.object()));
                    if self.keeps_tree(*id, &snapshot) {
                        open.push(snapshot.root.object());
                    }
                    continue;
                }
                for_each_reference(*id, &canonical, &mut |kind, hash| open.push(ObjectId { kind, hash: *hash }))?;
            }
        }
        Ok(())
    }
}

fn read_snapshot(round: &SweepRound, id: ObjectId) -> Result<Option<Snapshot>> {
    let Some(canonical) = round.read(id)? else { return Ok(None) };
    Snapshot::decode(&canonical).map(Some).map_err(|source| Error::Malformed { id, source })
}
