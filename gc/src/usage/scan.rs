//! One scan of the store that gives each object the set of its owners.

use std::collections::HashMap;
use std::ops::ControlFlow;

use amalgam_engine::backend::{Family, IndexRow};
use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, Rows, SnapshotId, Tally};
use bytes::Bytes;

use crate::mark::UnreadRows;
use crate::row_batch::{for_each_reference, kind_of};

/// Objects that are looked up at once.
pub(super) const PAGE: usize = 256;
/// Numbers of rows in a page, which is in memory as a whole.
pub(super) const PAGE_NUMBERS: u64 = 1_024;
/// Limit on the owners that one scan distinguishes.
pub(super) const OWNERS_MAX: usize = 63;
/// Owner bit of all objects whose owner is not distinguished.
pub(super) const OTHERS: u64 = 1 << OWNERS_MAX;

/// Totals of one owner.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnerUsage {
    pub(super) reached: Tally,
    pub(super) private: Tally,
}

/// One scan of the store.
pub(super) struct UsageScan<'a> {
    pub(super) rows: &'a Rows,
    pub(super) lean: &'a HashMap<SnapshotId, Vec<ObjectId>>,
    /// Snapshots that own their trees; if `None`, a tree belongs to every workspace that reaches its snapshot.
    pub(super) snapshots: Option<&'a HashMap<SnapshotId, u64>>,
    pub(super) owners: Owners,
    pub(super) unread: UnreadRows,
    pub(super) sums: [OwnerUsage; OWNERS_MAX + 1],
    pub(super) alive: Tally,
}

impl<'a> UsageScan<'a> {
    pub(super) fn new(
        rows: &'a Rows,
        lean: &'a HashMap<SnapshotId, Vec<ObjectId>>,
        snapshots: Option<&'a HashMap<SnapshotId, u64>>,
    ) -> Self {
        let end = rows.numbers_end();
        Self {
            rows,
            lean,
            snapshots,
            owners: Owners::default(),
            unread: UnreadRows::Snapshots { below: end, end },
            sums: [OwnerUsage::default(); OWNERS_MAX + 1],
            alive: Tally::default(),
        }
    }

    /// Reads the snapshots, then the trees. Returns false when it was cancelled.
    pub(super) fn run(
        &mut self,
        seeds: Vec<(ObjectId, u64)>,
        watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<bool> {
        let end = self.rows.numbers_end();
        let total = 2 * end;
        self.add_owners(seeds)?;
        for (before, family) in [(0, Family::Snapshots), (end, Family::Trees)] {
            for stretch in (0..end.div_ceil(PAGE_NUMBERS)).rev() {
                let (start, stop) = (stretch * PAGE_NUMBERS, ((stretch + 1) * PAGE_NUMBERS).min(end));
                if watch(before + end - stop, total).is_break() {
                    return Ok(false);
                }
                let mut some = Vec::new();
                self.rows.show(family, start..stop, &mut |number, canonical| {
                    some.push((number, canonical.clone()));
                    Ok(())
                })?;
                for (number, canonical) in some.iter().rev() {
                    self.propagate_row(family, *number, canonical)?;
                }
                self.pass(family, start, end);
            }
        }
        self.unread = UnreadRows::Nothing;
        self.add_lean_tree_owners()?;
        Ok(true)
    }

    fn pass(&mut self, family: Family, below: u64, end: u64) {
        self.unread = match family {
            Family::Snapshots => UnreadRows::Snapshots { below, end },
            _ => UnreadRows::Trees { below },
        };
    }

    /// Passes the owners of a row on to the objects that it refers to.
    fn propagate_row(&mut self, family: Family, number: u64, canonical: &Bytes) -> Result<()> {
        self.pass(family, number, self.rows.numbers_end());
        let owners = self.owners.of(number);
        if owners == 0 {
            return Ok(());
        }
        let kind = if family == Family::Snapshots { ObjectKind::Snapshot } else { kind_of(number, canonical)? };
        let mut next = Vec::new();
        self.push_references(ObjectId::of(kind, canonical), canonical, owners, &mut next)?;
        self.add_owners(next)
    }

    /// Appends the objects that `id` refers to, with the owners that they get.
    pub(super) fn push_references(
        &self,
        id: ObjectId,
        canonical: &Bytes,
        owners: u64,
        next: &mut Vec<(ObjectId, u64)>,
    ) -> Result<()> {
        if id.kind != ObjectKind::Snapshot {
            return for_each_reference(id, canonical, &mut |kind, hash| {
                next.push((ObjectId { kind, hash: *hash }, owners))
            });
        }
        let snapshot = Snapshot::decode(canonical).map_err(|source| Error::Malformed { id, source })?;
        let id = SnapshotId::from_bytes(id.hash);
        let of_tree = self.snapshots.map_or(owners, |bits| bits.get(&id).copied().unwrap_or(OTHERS));
        next.extend(snapshot.parents.iter().map(|parent| (parent.object(), owners)));
        next.push((snapshot.root.object(), of_tree));
        next.extend(self.lean.get(&id).into_iter().flatten().map(|root| (*root, of_tree)));
        Ok(())
    }

    /// Adds owners to objects. Rows that are still unread pass them on when they are read; rows already read do so at once.
    /// Missing objects were thinned, purged or collected meanwhile.
    fn add_owners(&mut self, mut open: Vec<(ObjectId, u64)>) -> Result<()> {
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            let ids: Vec<_> = page.iter().map(|(id, _)| *id).collect();
            for ((id, owners), row) in page.into_iter().zip(self.rows.look_up(&ids)?) {
                let Some(row) = row else { continue };
                let new = self.record_owners(&row, owners);
                let leads_nowhere = matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs);
                if new == 0 || leads_nowhere || self.unread.holds(id.kind, row.number) {
                    continue;
                }
                match self.rows.read(id)? {
                    Some(canonical) => self.push_references(id, &canonical, new, &mut open)?,
                    None if self.rows.look_up(&[id])?[0].is_none() => {}
                    None => return Err(Error::Missing { id }),
                }
            }
        }
        Ok(())
    }

    /// Adds owners to an object and returns those that are new to it.
    fn record_owners(&mut self, row: &IndexRow, owners: u64) -> u64 {
        let (before, bytes) = (self.owners.of(row.number), row.stored_bytes);
        let new = owners & !before;
        if new == 0 {
            return 0;
        }
        if before == 0 {
            add(&mut self.alive, bytes);
        }
        let mut left = new;
        while left != 0 {
            add(&mut self.sums[left.trailing_zeros() as usize].reached, bytes);
            left &= left - 1;
        }
        if before.count_ones() == 1 {
            let sums = &mut self.sums[before.trailing_zeros() as usize];
            sums.private = subtract(sums.private, Tally { objects: 1, bytes });
        }
        let after = before | new;
        if after.count_ones() == 1 {
            add(&mut self.sums[after.trailing_zeros() as usize].private, bytes);
        }
        self.owners.set(row.number, after);
        new
    }

    /// Counts the objects that these reach and that have no owner. Call it after the scan: an object with an owner then shares
    /// it with everything below.
    pub(super) fn tally_unowned(&mut self, mut open: Vec<ObjectId>) -> Result<Tally> {
        let (mut found, mut next) = (Tally::default(), Vec::new());
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            for (id, row) in page.iter().zip(self.rows.look_up(&page)?) {
                let Some(row) = row.filter(|row| self.owners.of(row.number) == 0) else { continue };
                self.owners.set(row.number, OTHERS);
                add(&mut found, row.stored_bytes);
                if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
                    continue;
                }
                // An object that is gone by now refers to nothing.
                if let Some(canonical) = self.rows.read(*id)? {
                    self.push_references(*id, &canonical, OTHERS, &mut next)?;
                    open.extend(next.drain(..).map(|(id, _)| id));
                }
            }
        }
        Ok(found)
    }

    /// Adds lean trees of snapshots that no name reaches: the next collection drops them.
    fn add_lean_tree_owners(&mut self) -> Result<()> {
        let roots: Vec<_> = self.lean.values().flatten().copied().collect();
        for page in roots.chunks(PAGE) {
            for (root, row) in page.iter().zip(self.rows.look_up(page)?) {
                if row.is_some_and(|row| self.owners.of(row.number) == 0) {
                    self.add_owners(vec![(*root, OTHERS)])?;
                }
            }
        }
        Ok(())
    }
}

/// The owners of each object, by object number.
#[derive(Default)]
pub(super) struct Owners {
    pages: HashMap<u64, Box<[u64; PAGE_NUMBERS as usize]>>,
}

impl Owners {
    pub(super) fn of(&self, number: u64) -> u64 {
        self.pages.get(&(number / PAGE_NUMBERS)).map_or(0, |page| page[(number % PAGE_NUMBERS) as usize])
    }

    pub(super) fn set(&mut self, number: u64, owners: u64) {
        let page = self.pages.entry(number / PAGE_NUMBERS).or_insert_with(|| Box::new([0; PAGE_NUMBERS as usize]));
        page[(number % PAGE_NUMBERS) as usize] = owners;
    }
}

pub(super) fn add(tally: &mut Tally, bytes: u64) {
    tally.objects += 1;
    tally.bytes += bytes;
}

pub(super) fn subtract(tally: Tally, less: Tally) -> Tally {
    Tally { objects: tally.objects.saturating_sub(less.objects), bytes: tally.bytes.saturating_sub(less.bytes) }
}
