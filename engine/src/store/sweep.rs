//! The store's half of a collection. Which objects are dead is for the collector to find out; that nothing alive can die
//! between its marking and its deleting is guaranteed here.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::Store;
use super::rows::{read_row, show_rows};
use crate::backend::{Epoch, Family, IndexRow, Named, Numbers, Reclaimed, WatchReclaim};
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::reference::{FORGET, Operation, RefName, RefValue};

const PAGE: usize = 256;

/// From where a collection marks, beside what references hold now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepScope {
    /// What a reference held in an operation after this number counts, too, so that the operation can be taken back. Without one
    /// only operations from the beginning of the round on count. What was forgotten does not: that it can go is why it was.
    pub operations_after: Option<u64>,
    /// As if these references were not there: to see what would go with them. A round with some of them sweeps nothing.
    pub without: BTreeSet<RefName>,
}

/// One collection, from its beginning to its last deletion. Only one may run at a time.
///
/// The order is: begin, mark everything reachable from [`roots`](Self::roots), ask for the roots again and mark the new ones
/// until none is new, then [`sweep`](Self::sweep), marking what it returns, until it is done, then [`reclaim`](Self::reclaim).
///
/// Trees go root first, and a tree whose root is too young to go stays whole. So whoever finds a root, finds all below it.
pub struct SweepRound {
    store: Store,
    epoch: Epoch,
    older_than: Epoch,
    last_operation: u64,
    /// The last operation before the round began.
    begun_after: u64,
    /// What operations after this number held is kept.
    counts_after: u64,
    without: BTreeSet<RefName>,
    refs_told: bool,
    numbers_end: u64,
    stage: Stage,
    after: Option<ObjectId>,
    freed: Tallies,
    /// The numbers of all rows of the index that the sweep left, by family of objects.
    kept: [Numbers; Family::OBJECTS.len()],
    /// Those of the rows that it took.
    gone: [Numbers; Family::OBJECTS.len()],
}

/// What is being deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Roots,
    Others,
    Nothing,
}

/// What a sweep came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swept {
    /// All that was dead is gone: so many objects since the round began.
    Done {
        /// How many.
        objects: u64,
    },
    /// So many rows of the index were looked at; there are more.
    Some {
        /// How many.
        rows: u64,
    },
    /// These are alive and not marked. Mark all that is reachable from them, then go on.
    Unmarked(Vec<ObjectId>),
}

/// Objects and the bytes that were kept for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many.
    pub objects: u64,
    /// As they are stored.
    pub bytes: u64,
}

/// Objects by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tallies {
    /// Kinds of which there are some.
    pub kinds: BTreeMap<ObjectKind, Tally>,
}

impl Tallies {
    /// Counts an object.
    pub fn add(&mut self, kind: ObjectKind, bytes: u64) {
        let tally = self.kinds.entry(kind).or_default();
        tally.objects += 1;
        tally.bytes += bytes;
    }

    /// Counts all that another one counted.
    pub fn merge(&mut self, other: &Self) {
        for (kind, more) in &other.kinds {
            let tally = self.kinds.entry(*kind).or_default();
            tally.objects += more.objects;
            tally.bytes += more.bytes;
        }
    }

    /// All kinds together.
    pub fn total(&self) -> Tally {
        self.kinds.values().fold(Tally::default(), |sum, tally| Tally {
            objects: sum.objects + tally.objects,
            bytes: sum.bytes + tally.bytes,
        })
    }
}

impl SweepRound {
    pub(super) fn begin(store: Store, scope: SweepScope) -> Result<Self> {
        let sessions = store.inner.sessions.lock();
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
        let older_than = sessions.oldest().map_or(epoch, |oldest| oldest.min(epoch));
        drop(sessions);
        // From here on its end ends the round.
        let mut round = Self {
            store,
            epoch,
            older_than,
            last_operation: 0,
            begun_after: 0,
            counts_after: 0,
            without: scope.without,
            refs_told: false,
            numbers_end: 0,
            stage: Stage::Roots,
            after: None,
            freed: Tallies::default(),
            kept: Default::default(),
            gone: Default::default(),
        };
        round.begun_after = round.store.inner.backend.last_operation()?;
        round.last_operation = scope.operations_after.map_or(round.begun_after, |after| after.min(round.begun_after));
        round.counts_after = round.last_operation;
        round.numbers_end = round.store.inner.backend.numbers_end()?;
        Ok(round)
    }

    /// The epoch of this round. What is written from now on carries it.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Every object that was there when the round began has a smaller number than this.
    pub fn numbers_end(&self) -> u64 {
        self.numbers_end
    }

    /// About how many objects there are.
    pub fn objects_estimate(&self) -> Result<u64> {
        self.store.inner.backend.objects_estimate()
    }

    /// The first time, every object that a reference holds, or held at any time since the round began or in an operation that the
    /// scope names, and every pinned one. Later, what has become one of these since it was asked last.
    ///
    /// The log closes the gap of a reference that moves from behind the reader's position to before it.
    pub fn roots(&mut self) -> Result<Vec<ObjectId>> {
        let pins = &self.store.inner.pins;
        let mut roots = if self.refs_told { pins.untold() } else { pins.since_sweep() };
        let mut after = None;
        while !self.refs_told {
            let page = self.store.list_refs("", after.as_ref(), PAGE)?;
            let counted = page.iter().filter(|(name, _)| !self.without.contains(name));
            roots.extend(counted.flat_map(|(_, value)| value.roots()));
            match page.into_iter().last() {
                Some((name, _)) => after = Some(name),
                None => self.refs_told = true,
            }
        }
        loop {
            let page = self.store.list_operations(self.last_operation, PAGE)?;
            let Some(last) = page.last() else { break };
            self.last_operation = last.sequence;
            let counted = page.iter().filter(|operation| self.counts(operation));
            let changes = counted.flat_map(|operation| &operation.changes);
            let changes = changes.filter(|change| !self.without.contains(&change.name));
            roots
                .extend(changes.flat_map(|change| [&change.before, &change.after]).flatten().flat_map(RefValue::roots));
        }
        roots.sort_unstable();
        roots.dedup();
        Ok(roots)
    }

    /// Whether what an operation moved is kept: all that came since the round began, for the gap's sake, and before it whatever
    /// was not forgotten on purpose.
    fn counts(&self, operation: &Operation) -> bool {
        operation.sequence > self.begun_after || operation.draft.action != FORGET
    }

    /// Shows the rows of a family of objects with numbers in a range, in the order of writing, in their canonical bytes.
    /// Nothing that was there when the round began is left out; a row may be shown that no row of the index names.
    pub fn rows(
        &self,
        family: Family,
        range: Range<u64>,
        show: &mut dyn FnMut(u64, &Bytes) -> Result<()>,
    ) -> Result<()> {
        show_rows(&self.store, family, range, show)
    }

    /// The rows of these objects in the index.
    pub fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        self.store.inner.backend.look_up(ids)
    }

    /// The canonical bytes of an object, hashed; from the store itself, not from a cache.
    pub fn read(&self, id: ObjectId) -> Result<Option<Bytes>> {
        read_row(&self.store, id)
    }

    /// Rows of the index that follow `after`, in the order of hashes.
    pub fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        self.store.inner.backend.scan(after, limit)
    }

    /// Whether a sweep of this round could take an object, were it dead.
    pub fn is_old(&self, row: &IndexRow) -> bool {
        row.epoch < self.older_than
    }

    /// Deletes what is not alive and what no session may still rely on. Goes on where it stopped.
    pub fn sweep(&mut self, is_alive: &dyn Fn(ObjectId) -> bool) -> Result<Swept> {
        loop {
            match self.sweep_some(PAGE, &|row| is_alive(row.id))? {
                Swept::Some { .. } => {}
                other => return Ok(other),
            }
        }
    }

    /// The same for at most so many rows of the index.
    pub fn sweep_some(&mut self, rows: usize, is_alive: &dyn Fn(&IndexRow) -> bool) -> Result<Swept> {
        let inner = &self.store.inner;
        if !self.without.is_empty() {
            let why =
                "references were left out, so what they hold looks dead; it can be counted, not deleted".to_owned();
            return Err(Error::Invalid { what: "collection", why });
        }
        if self.stage == Stage::Nothing {
            return Ok(Swept::Done { objects: self.freed.total().objects });
        }
        let page = inner.backend.scan(self.after, rows)?;
        let Some(last) = page.last() else {
            self.after = None;
            self.stage = if self.stage == Stage::Roots { Stage::Others } else { Stage::Nothing };
            return Ok(Swept::Some { rows: 0 });
        };
        let of_stage = |row: &&IndexRow| (row.id.kind == ObjectKind::Root) == (self.stage == Stage::Roots);
        let (alive, unmarked): (Vec<&IndexRow>, Vec<&IndexRow>) =
            page.iter().filter(of_stage).partition(|row| is_alive(row));
        if self.stage == Stage::Roots {
            // What lies below such a root may be older than it is. Roots that were made in this epoch were made from marked ones;
            // one that was there before was only met, by somebody who may not have asked for all of it.
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
            match inner.pins.unless_untold(|| inner.backend.delete(&dead, self.older_than)) {
                Ok(gone) => gone?,
                Err(untold) => return Ok(Swept::Unmarked(untold)),
            }
        };
        for (row, _) in unmarked.iter().zip(&gone).filter(|(_, gone)| **gone) {
            self.freed.add(row.id.kind, row.stored_bytes);
            self.gone[place(row)].insert(row.number);
        }
        if self.stage == Stage::Roots {
            // Met between the look and the deletion.
            let met = unmarked.iter().zip(&gone).filter(|(row, gone)| !**gone && row.epoch < self.older_than);
            let met: Vec<_> = met.map(|(row, _)| row.id).collect();
            if !met.is_empty() {
                return Ok(Swept::Unmarked(met));
            }
        }
        let stayed = unmarked.iter().zip(&gone).filter(|(_, gone)| !**gone).map(|(row, _)| row);
        for row in alive.iter().chain(stayed) {
            self.kept[place(row)].insert(row.number);
        }
        self.after = Some(last.id);
        Ok(Swept::Some { rows: page.len() as u64 })
    }

    /// Shortens the log of operations: those before this number go, at most so many, the oldest first. Those that count as roots
    /// of this round stay. Returns the number of the oldest that is left.
    pub fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        self.store.inner.backend.trim_operations(before.min(self.counts_after.saturating_add(1)), limit)
    }

    /// How many operations that would take in all.
    pub fn operations_to_trim(&self, before: u64) -> Result<u64> {
        let before = before.min(self.counts_after.saturating_add(1)).min(self.store.last_operation()?);
        Ok(before.saturating_sub(self.store.first_operation()?))
    }

    /// What went so far.
    pub fn freed(&self) -> &Tallies {
        &self.freed
    }

    /// Gives the room of what went back to the disk. Comes after the sweep, which says what stays.
    pub fn reclaim(&mut self, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        assert!(self.stage == Stage::Nothing, "what stays is known when the sweep is done");
        let named = Named {
            numbers: Arc::new(std::mem::take(&mut self.kept)),
            gone: Arc::new(std::mem::take(&mut self.gone)),
            end: self.numbers_end,
        };
        self.store.inner.backend.reclaim(named, watch)
    }
}

/// The place of a row's family among those of objects.
fn place(row: &IndexRow) -> usize {
    let family = Family::of(row.id.kind);
    Family::OBJECTS.iter().position(|known| *known == family).expect("every kind has its family")
}

impl Drop for SweepRound {
    fn drop(&mut self) {
        self.store.inner.pins.end_sweep();
    }
}
