//! Marking: everything that the roots reach.
//!
//! Objects are numbered in the order of writing, and what refers is nearly always written after what it refers to. So the rows
//! are read once, newest first: an object that is marked when its row comes by marks those it refers to. What was already passed when it
//! was marked, and every root that comes late, is followed by itself, row by row.
//!
//! Three sets, and what each may decide:
//! - `reached`, a filter of everything marked. It may be wrong by saying yes. It keeps chunks, and it lets a row be
//!   *followed* that no root needs: then more is kept. It never says that something was followed.
//! - `followed`, the exact numbers of the rows whose references are in `reached`. It alone keeps a node, and it alone ends a walk. So
//!   whatever node is kept, all below it is kept.
//! - `passed`, a filter of the rows that came by unmarked. It may be wrong by saying yes: then a walk looks, in the index, and
//!   finds that there was nothing to do.

use std::collections::HashSet;
use std::ops::Range;

use amalgam_engine::backend::{IndexRow, NumberSet};
use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, SweepRound};
use rayon::prelude::*;

use crate::digest::{Digest, references, snapshots};
use crate::filter::{Filter, Fingerprint, fingerprint};

/// Stretches that are digested while the ones before them are marked.
const AHEAD: usize = 8;
/// Passed rows are followed when so many wait.
const WAITING_MAX: usize = 1 << 15;
/// Objects that a walk looks up at once.
const WALK_PAGE: usize = 256;
const FILTER_BYTES_MIN: usize = 64 << 10;

/// Decides which snapshots of the history keep their trees. Those that a reference or a pin names keep theirs in any case.
pub trait Retention: Sync {
    /// Whether the tree of this snapshot, which is in the history of another, is kept.
    fn keeps_tree(&self, id: SnapshotId, snapshot: &Snapshot) -> bool;
}

/// Every snapshot of the history keeps its tree.
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

/// What is marked so far.
pub(crate) struct Marks<'a> {
    retention: &'a dyn Retention,
    reached: Filter,
    followed: NumberSet,
    passed: Filter,
    /// Snapshots that a root names, by fingerprint: one too many keeps a tree.
    named: HashSet<Fingerprint>,
    /// What comes by later, and need not be followed by itself.
    to_come: ToCome,
    /// Nodes that may have been passed.
    waiting: Vec<ObjectId>,
    /// Numbers whose rows one thread digests at a time.
    stretch: u64,
    figures: MarkFigures,
}

/// The rows that the reading has not reached yet.
#[derive(Clone, Copy)]
pub(crate) enum ToCome {
    /// Snapshots with a smaller number, and all trees with a number below the end.
    Snapshots { below: u64, end: u64 },
    /// Trees with a smaller number.
    Trees { below: u64 },
    /// None.
    Nothing,
}

impl ToCome {
    pub(crate) fn holds(self, kind: ObjectKind, number: u64) -> bool {
        match self {
            Self::Snapshots { below, .. } if kind == ObjectKind::Snapshot => number < below,
            Self::Snapshots { end, .. } => number < end,
            Self::Trees { below } => kind != ObjectKind::Snapshot && number < below,
            Self::Nothing => false,
        }
    }
}

/// What marking did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkFigures {
    /// Rows of nodes and snapshots that were read from one end to the other.
    pub rows: u64,
    /// References to chunks, shared ones counted each time.
    pub chunk_references: u64,
    /// Objects that were looked up by themselves: written before what they refer to, or roots that came late.
    pub walked: u64,
    /// Snapshots whose record is kept without their tree.
    pub thinned: u64,
    /// The memory of the sets, at the most.
    pub memory_bytes: u64,
}

/// Whether to go on. Asked after some rows, with how many they were and the numbers among which they lay.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

impl<'a> Marks<'a> {
    /// Nothing marked yet. The sets take about this much memory, and less where there are few objects.
    pub(crate) fn new(
        round: &SweepRound,
        retention: &'a dyn Retention,
        memory_bytes: usize,
        stretch: u64,
    ) -> Result<Self> {
        let objects = usize::try_from(round.objects_estimate()?).unwrap_or(usize::MAX);
        let wanted = objects.saturating_mul(2);
        let reached = wanted.clamp(FILTER_BYTES_MIN, (memory_bytes / 4 * 3).max(FILTER_BYTES_MIN));
        Ok(Self {
            retention,
            reached: Filter::new(reached, round.epoch()),
            followed: NumberSet::default(),
            passed: Filter::new((reached / 8).max(FILTER_BYTES_MIN / 8), round.epoch()),
            named: HashSet::new(),
            to_come: ToCome::Nothing,
            waiting: Vec::new(),
            stretch,
            figures: MarkFigures::default(),
        })
    }

    /// Marks everything that these reach, by reading all rows once. Nothing when it was ended.
    pub(crate) fn mark_all(&mut self, round: &SweepRound, roots: &[ObjectId], go_on: GoOn<'_>) -> Result<Option<()>> {
        for root in roots {
            self.name(root);
        }
        let end = round.numbers_end();
        if self.read_snapshots(round, end, go_on)?.is_none() || self.read_trees(round, go_on)?.is_none() {
            return Ok(None);
        }
        self.to_come = ToCome::Nothing;
        Ok(Some(()))
    }

    fn name(&mut self, root: &ObjectId) {
        self.reached.insert(fingerprint(root));
        if root.kind == ObjectKind::Snapshot {
            self.named.insert(fingerprint(root));
        }
    }

    /// Marks everything that these reach beyond what is marked.
    pub(crate) fn mark_late(&mut self, round: &SweepRound, roots: &[ObjectId]) -> Result<()> {
        let mut open = Vec::new();
        for root in roots {
            self.name(root);
            open.push(*root);
            if root.kind == ObjectKind::Snapshot
                && let Some(snapshot) = read_snapshot(round, *root)?
            {
                // Its record may have been followed as that of a snapshot that only history leads to.
                open.push(snapshot.root.object());
            }
        }
        self.walk(round, open)
    }

    /// Whether the object of this row is kept.
    pub(crate) fn keeps(&self, row: &IndexRow) -> bool {
        match row.id.kind {
            ObjectKind::Chunk => self.reached.contains(fingerprint(&row.id)),
            _ => self.followed.contains(row.number),
        }
    }

    /// Makes sure of an object that is doubtful: reads it, and follows it if it is what it should be.
    pub(crate) fn settle(&mut self, round: &SweepRound, id: ObjectId) -> Result<()> {
        self.walk(round, vec![id])
    }

    /// Whether the object is marked, as far as the filter knows, and its row was never followed. Either the filter is wrong, or
    /// the row is not what it should be.
    pub(crate) fn is_doubtful(&self, row: &IndexRow) -> bool {
        row.id.kind != ObjectKind::Chunk
            && !self.followed.contains(row.number)
            && self.reached.contains(fingerprint(&row.id))
    }

    /// What was done so far, and the memory it took.
    pub(crate) fn figures(&self) -> MarkFigures {
        let sets = self.reached.memory_bytes() + self.followed.memory_bytes() + self.passed.memory_bytes();
        MarkFigures { memory_bytes: (sets + self.named.capacity() * 9) as u64, ..self.figures }
    }

    fn read_snapshots(&mut self, round: &SweepRound, end: u64, go_on: GoOn<'_>) -> Result<Option<()>> {
        let digest = |range| snapshots(round, range);
        let to_come = |below| ToCome::Snapshots { below, end };
        self.read(round, &to_come, go_on, &digest, &mut |marks, found: Vec<(u64, SnapshotId, Snapshot)>| {
            for (number, id, snapshot) in found.iter().rev() {
                marks.figures.rows += 1;
                let id = id.object();
                if marks.followed.contains(*number) {
                    continue;
                }
                if !marks.reached.contains(fingerprint(&id)) {
                    marks.passed.insert(fingerprint(&id));
                    continue;
                }
                marks.followed.insert(*number);
                snapshot.parents.iter().for_each(|parent| marks.refer(parent.object()));
                if marks.keeps_tree(id, snapshot) {
                    marks.refer(snapshot.root.object());
                }
            }
        })
    }

    fn read_trees(&mut self, round: &SweepRound, go_on: GoOn<'_>) -> Result<Option<()>> {
        let digest = |range| Digest::of_trees(round, range);
        let to_come = |below| ToCome::Trees { below };
        self.read(round, &to_come, go_on, &digest, &mut |marks, digest: Digest| {
            for row in digest.rows.iter().rev() {
                marks.figures.rows += 1;
                if marks.followed.contains(row.number) {
                    continue;
                }
                if !marks.reached.contains(row.id) {
                    marks.passed.insert(row.id);
                    continue;
                }
                marks.followed.insert(row.number);
                let chunks = &digest.chunks[row.chunks.clone()];
                chunks.iter().for_each(|chunk| marks.reached.insert(*chunk));
                marks.figures.chunk_references += chunks.len() as u64;
                for node in &digest.nodes[row.nodes.clone()] {
                    marks.refer(*node);
                }
            }
        })
    }

    /// Reads one family from its end to its beginning: stretches are digested on all cores while those before them are marked.
    fn read<T: Send>(
        &mut self,
        round: &SweepRound,
        to_come: &(dyn Fn(u64) -> ToCome + Sync),
        go_on: GoOn<'_>,
        digest: &(dyn Fn(Range<u64>) -> Result<T> + Sync),
        mark: &mut (dyn FnMut(&mut Self, T) + Send),
    ) -> Result<Option<()>> {
        let end = round.numbers_end();
        let stretch = self.stretch;
        let mut stretches = (0..end.div_ceil(stretch)).rev();
        let digest_some = |stretches: &mut (dyn Iterator<Item = u64> + Send)| -> Vec<(Range<u64>, Result<T>)> {
            let some: Vec<_> = stretches.take(AHEAD).collect();
            let range = |at: u64| at * stretch..((at + 1) * stretch).min(end);
            some.into_par_iter().map(|at| (range(at), digest(range(at)))).collect()
        };
        self.to_come = to_come(end);
        let mut ready = digest_some(&mut stretches);
        while !ready.is_empty() {
            let before = self.figures.rows;
            let numbers = ready.iter().map(|(range, _)| range.end - range.start).sum();
            let (marked, next) = rayon::join(
                || {
                    ready.into_iter().try_for_each(|(range, digest)| {
                        mark(self, digest?);
                        self.to_come = to_come(range.start);
                        Ok::<_, Error>(())
                    })
                },
                || digest_some(&mut stretches),
            );
            marked?;
            if self.waiting.len() > WAITING_MAX {
                self.follow_waiting(round)?;
            }
            if !go_on(self.figures.rows - before, numbers) {
                return Ok(None);
            }
            ready = next;
        }
        self.follow_waiting(round)?;
        Ok(Some(()))
    }

    /// Marks a node that a followed row refers to.
    fn refer(&mut self, id: ObjectId) {
        let known = fingerprint(&id);
        self.reached.insert(known);
        if self.passed.contains(known) {
            self.waiting.push(id);
        }
    }

    fn keeps_tree(&mut self, id: ObjectId, snapshot: &Snapshot) -> bool {
        let keeps = self.named.contains(&fingerprint(&id))
            || self.retention.keeps_tree(SnapshotId::from_bytes(id.hash), snapshot);
        self.figures.thinned += u64::from(!keeps);
        keeps
    }

    fn follow_waiting(&mut self, round: &SweepRound) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.walk(round, waiting)
    }

    /// Follows objects one by one, down to rows that were followed before or are still to come.
    fn walk(&mut self, round: &SweepRound, mut open: Vec<ObjectId>) -> Result<()> {
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(WALK_PAGE));
            let (chunks, nodes): (Vec<_>, Vec<_>) = page.into_iter().partition(|id| id.kind == ObjectKind::Chunk);
            chunks.iter().for_each(|chunk| self.reached.insert(fingerprint(chunk)));
            self.figures.walked += nodes.len() as u64;
            for (id, row) in nodes.iter().zip(round.look_up(&nodes)?) {
                self.reached.insert(fingerprint(id));
                // What is not there was pinned too late, or the history ends before it.
                let Some(row) = row else { continue };
                if self.followed.contains(row.number) || self.to_come.holds(id.kind, row.number) {
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
                references(*id, &canonical, &mut |kind, hash| open.push(ObjectId { kind, hash: *hash }))?;
            }
        }
        Ok(())
    }
}

fn read_snapshot(round: &SweepRound, id: ObjectId) -> Result<Option<Snapshot>> {
    let Some(canonical) = round.read(id)? else { return Ok(None) };
    Snapshot::decode(&canonical).map(Some).map_err(|source| Error::Malformed { id, source })
}
