//! The store's part of a garbage collection. The collector finds out which objects are dead; this module guarantees that no live
//! object is deleted between marking and deletion.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::Store;
use super::rows::{read_row, show_rows};
use crate::backend::{Deletion, Epoch, Family, IndexRow, KeptRows, NumberSet, Reclaimed, WatchReclaim};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::{FORGET, Operation, RefName, RefValue};

const PAGE: usize = 256;

/// Additional roots of a collection, and references that it ignores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepScope {
    /// Values that a reference had in an operation after this number count as roots too, so that the operation can be undone.
    /// `None` counts only operations since the start of the round. Values removed by a `forget` operation do not count: its
    /// purpose is to release them.
    pub undoable_after: Option<u64>,
    /// References to ignore, to see what their removal would free. A round that ignores references sweeps nothing.
    pub without: BTreeSet<RefName>,
}

/// One collection, from its start to its last deletion. Only one may run at a time.
///
/// The order is: begin; mark everything reachable from [`roots`](Self::roots); call `roots` again and mark the new ones until
/// there are none; call [`sweep`](Self::sweep), marking the objects it returns, until it is done; call
/// [`trim_operations`](Self::trim_operations) repeatedly, until the log is short enough; call [`reclaim`](Self::reclaim).
///
/// Trees are deleted root first, and a tree whose root is too young to be deleted stays whole. So if a root exists, everything
/// below it exists.
pub struct SweepRound {
    store: Store,
    /// The epoch that began with the round.
    epoch: Epoch,
    /// The oldest epoch of a session that was open at the start. Objects of this epoch or a later one are not deleted.
    older_than: Epoch,
    /// The last operation whose references [`roots`](Self::roots) has returned.
    last_operation: u64,
    /// The last operation before the start of the round.
    begun_after: u64,
    /// Operations after this number can be undone: the values in them are roots, and the log keeps them.
    undoable_after: u64,
    without: BTreeSet<RefName>,
    /// Whether [`roots`](Self::roots) has returned the objects of all references.
    are_refs_reported: bool,
    numbers_end: u64,
    pass: SweepPass,
    /// The last index row that the current pass examined.
    after: Option<ObjectId>,
    freed: Tallies,
    /// The numbers of all index rows that the sweep kept, by object family.
    kept: [NumberSet; Family::OBJECTS.len()],
    /// The numbers of the index rows that it deleted.
    gone: [NumberSet; Family::OBJECTS.len()],
}

/// The objects that the sweep examines. Roots of trees come first, so that one that exists has its whole tree.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SweepPass {
    TreeRoots,
    Others,
    Done,
}

/// The result of a sweep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swept {
    /// All dead objects are deleted: this many since the start of the round.
    Done {
        /// Number of objects.
        objects: u64,
    },
    /// This many index rows were examined; there are more.
    Some {
        /// Number of rows.
        rows: u64,
    },
    /// These objects are alive but not marked. Mark everything reachable from them, then continue.
    Unmarked(Vec<ObjectId>),
}

/// A number of objects and their stored bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of objects.
    pub objects: u64,
    /// Number of bytes in stored form.
    pub bytes: u64,
}

/// Objects by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// The kinds of which there is at least one object.
    pub kinds: BTreeMap<ObjectKind, Tally>,
}

impl Tallies {
    /// Counts an object.
    pub fn add(&mut self, kind: ObjectKind, bytes: u64) {
        let tally = self.kinds.entry(kind).or_default();
        tally.objects += 1;
        tally.bytes += bytes;
    }

    /// Adds the counts of another value.
    pub fn merge(&mut self, other: &Self) {
        for (kind, more) in &other.kinds {
            let tally = self.kinds.entry(*kind).or_default();
            tally.objects += more.objects;
            tally.bytes += more.bytes;
        }
    }

    /// Returns the total of all kinds.
    pub fn total(&self) -> Tally {
        self.kinds.values().fold(Tally::default(), |sum, tally| Tally {
            objects: sum.objects + tally.objects,
            bytes: sum.bytes + tally.bytes,
        })
    }
}

impl SweepRound {
    pub(super) fn begin(store: Store, scope: SweepScope) -> Result<Self> {
        if !store.inner.pins.begin_sweep() {
            let why = "another one is under way; wait for its end".to_owned();
            return Err(Error::Invalid { what: "collection", why });
        }
        let epoch = match store.inner.backend.advance_epoch() {
            Ok(epoch) => epoch,
            Err(error) => {
                store.inner.pins.end_sweep();
                return Err(error);
            }
        };
        // A session that is not in the table by now gets the new epoch.
        let oldest = store.inner.sessions.lock().oldest();
        let older_than = oldest.map_or(epoch, |oldest| oldest.min(epoch));
        // From here on, dropping the value ends the round.
        let mut round = Self {
            store,
            epoch,
            older_than,
            last_operation: 0,
            begun_after: 0,
            undoable_after: 0,
            without: scope.without,
            are_refs_reported: false,
            numbers_end: 0,
            pass: SweepPass::TreeRoots,
            after: None,
            freed: Tallies::default(),
            kept: Default::default(),
            gone: Default::default(),
        };
        if let Some(oldest) = round.store.inner.backend.sessions_elsewhere()? {
            round.older_than = round.older_than.min(oldest);
        }
        round.begun_after = round.store.inner.backend.last_operation()?;
        round.last_operation = scope.undoable_after.map_or(round.begun_after, |after| after.min(round.begun_after));
        round.undoable_after = round.last_operation;
        round.numbers_end = round.store.inner.backend.numbers_end()?;
        Ok(round)
    }

    /// Returns the epoch of this round. Objects written from now on carry it.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns an upper bound: every object that existed when the round began has a smaller number.
    pub fn numbers_end(&self) -> u64 {
        self.numbers_end
    }

    /// Returns an estimate of the number of objects.
    pub fn objects_estimate(&self) -> Result<u64> {
        self.store.inner.backend.objects_estimate()
    }

    /// Returns the roots to mark from. The first call returns every object that a reference holds, or held at any time since the
    /// round began or in an operation within the scope, and every pinned object. Later calls return the objects that joined these
    /// since the previous call.
    ///
    /// The log covers the case of a reference that is renamed from after the reader's position to before it.
    pub fn roots(&mut self) -> Result<Vec<ObjectId>> {
        let pins = &self.store.inner.pins;
        let mut roots = if self.are_refs_reported { pins.unreported() } else { pins.since_sweep() };
        roots.extend(self.store.inner.backend.pins_elsewhere()?);
        let mut after = None;
        while !self.are_refs_reported {
            let page = self.store.list_refs("", after.as_ref(), PAGE)?;
            let counted = page.iter().filter(|(name, _)| !self.without.contains(name));
            roots.extend(counted.flat_map(|(_, value)| value.roots()));
            match page.into_iter().last() {
                Some((name, _)) => after = Some(name),
                None => self.are_refs_reported = true,
            }
        }
        loop {
            let page = self.store.list_operations(self.last_operation, PAGE)?;
            let Some(last) = page.last() else { break };
            self.last_operation = last.sequence;
            let counted = page.iter().filter(|operation| self.is_counted(operation));
            let changes = counted.flat_map(|operation| &operation.changes);
            let changes = changes.filter(|change| !self.without.contains(&change.name));
            roots
                .extend(changes.flat_map(|change| [&change.before, &change.after]).flatten().flat_map(RefValue::roots));
        }
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }

    /// Returns whether the references that an operation moved count as roots: always since the start of the round, and before it
    /// unless the operation was a `forget`.
    fn is_counted(&self, operation: &Operation) -> bool {
        operation.sequence > self.begun_after || operation.draft.action != FORGET
    }

    /// Calls `show` with the canonical bytes of the rows of an object family in a range of numbers, in write order. Includes all
    /// rows that existed when the round began; rows that are not in the index may be included.
    pub fn rows(
        &self,
        family: Family,
        range: Range<u64>,
        show: &mut dyn FnMut(u64, &Bytes) -> Result<()>,
    ) -> Result<()> {
        show_rows(&self.store, family, range, show)
    }

    /// Returns the index rows of these objects.
    pub fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.store.inner.backend.look_up(ids)
    }

    /// Returns the canonical bytes of an object, with a verified hash, from the store and not from a cache.
    pub fn read(&self, id: ObjectId) -> Result<Option<Bytes>> {
        read_row(&self.store, id)
    }

    /// Returns index rows after `after`, in hash order.
    pub fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.store.inner.backend.scan(after, limit)
    }

    /// Returns whether a sweep of this round may delete an object if it is dead.
    pub fn is_old(&self, row: &IndexRow) -> bool {
        row.epoch < self.older_than
    }

    /// Deletes objects that are not alive and that no session may still rely on. Continues where it stopped.
    pub fn sweep(&mut self, is_alive: &dyn Fn(ObjectId) -> bool) -> Result<Swept> {
        loop {
            match self.sweep_some(PAGE, &|row| is_alive(row.id))? {
                Swept::Some { .. } => {}
                other => return Ok(other),
            }
        }
    }

    /// Sweeps at most `rows` index rows, like [`sweep`](Self::sweep).
    pub fn sweep_some(&mut self, rows: usize, is_alive: &dyn Fn(&IndexRow) -> bool) -> Result<Swept> {
        let inner = &self.store.inner;
        if !self.without.is_empty() {
            let why =
                "this round ignores references, so live objects look dead; they can be counted, not deleted".to_owned();
            return Err(Error::Invalid { what: "collection", why });
        }
        if self.pass == SweepPass::Done {
            return Ok(Swept::Done { objects: self.freed.total().objects });
        }
        let page = inner.backend.scan(self.after, rows)?;
        let Some(last) = page.last() else {
            self.after = None;
            self.pass = if self.pass == SweepPass::TreeRoots { SweepPass::Others } else { SweepPass::Done };
            return Ok(Swept::Some { rows: 0 });
        };
        let in_pass = |row: &&IndexRow| (row.id.kind == ObjectKind::Root) == (self.pass == SweepPass::TreeRoots);
        let (alive, unmarked): (Vec<&IndexRow>, Vec<&IndexRow>) =
            page.iter().filter(in_pass).partition(|row| is_alive(row));
        if self.pass == SweepPass::TreeRoots {
            // Objects below such a root may be older than the root. Roots created in this epoch were made from marked ones; a
            // root that existed before was only checked for, by a session that may not have checked everything below it.
            let was_there = |row: &IndexRow| row.epoch < self.epoch || row.number < self.numbers_end;
            let too_young = unmarked.iter().filter(|row| row.epoch >= self.older_than && was_there(row));
            let too_young: Vec<_> = too_young.map(|row| row.id).collect();
            if !too_young.is_empty() {
                return Ok(Swept::Unmarked(too_young));
            }
        }
        let gone = if unmarked.is_empty() {
            Vec::new()
        } else {
            let dead: Vec<_> = unmarked.iter().map(|row| row.id).collect();
            match inner.pins.unless_unreported(|| inner.backend.delete(&dead, self.older_than)) {
                Ok(deletion) => match deletion? {
                    Deletion::Done(gone) => gone,
                    Deletion::Pinned(pinned) => return Ok(Swept::Unmarked(pinned)),
                },
                Err(unreported) => return Ok(Swept::Unmarked(unreported)),
            }
        };
        for (row, _) in unmarked.iter().zip(&gone).filter(|(_, gone)| **gone) {
            self.freed.add(row.id.kind, row.stored_bytes);
            self.gone[family_index(row)].insert(row.number);
        }
        if self.pass == SweepPass::TreeRoots {
            // A session looked these up between the scan and the deletion, which stamped them with its epoch.
            let stamped = unmarked.iter().zip(&gone).filter(|(row, gone)| !**gone && row.epoch < self.older_than);
            let stamped: Vec<_> = stamped.map(|(row, _)| row.id).collect();
            if !stamped.is_empty() {
                return Ok(Swept::Unmarked(stamped));
            }
        }
        let stayed = unmarked.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(row, _)| row);
        for row in alive.iter().chain(stayed) {
            self.kept[family_index(row)].insert(row.number);
        }
        self.after = Some(last.id);
        Ok(Swept::Some { rows: page.len() as u64 })
    }

    /// Trims the operation log: deletes at most `limit` operations before this number, oldest first. Operations that count as
    /// roots of this round stay. Returns the number of the oldest remaining operation.
    pub fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.store.inner.backend.trim_operations(before.min(self.undoable_after.saturating_add(1)), limit)
    }

    /// Returns the total number of operations that trimming would delete.
    pub fn operations_to_trim(&self, before: u64) -> Result<u64> {
        let before = before.min(self.undoable_after.saturating_add(1)).min(self.store.last_operation()?);
        Ok(before.saturating_sub(self.store.first_operation()?))
    }

    /// Returns the objects deleted so far.
    pub fn freed(&self) -> &Tallies {
        &self.freed
    }

    /// Reclaims the disk space of deleted objects. Must be called after the sweep, which determines the live rows.
    pub fn reclaim(&mut self, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        assert!(self.pass == SweepPass::Done, "the sweep is done, so the rows to keep are known");
        let named = KeptRows {
            numbers: Arc::new(std::mem::take(&mut self.kept)),
            gone: Arc::new(std::mem::take(&mut self.gone)),
            end: self.numbers_end,
        };
        self.store.inner.backend.reclaim(named, watch)
    }
}

/// Returns the index of a row's family among the object families.
fn family_index(row: &IndexRow) -> usize {
    let family = Family::of(row.id.kind);
    Family::OBJECTS.iter().position(|known| *known == family).expect("every kind has its family")
}

impl Drop for SweepRound {
    fn drop(&mut self) {
        self.store.inner.backend.end_collection();
        self.store.inner.pins.end_sweep();
    }
}
