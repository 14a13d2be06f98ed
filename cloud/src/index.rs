//! The index of a project's objects in memory: which pack holds an object. Fed by the changes that PostgreSQL numbers, so that two
//! nodes that have seen the same changes have the same index.
//!
//! An object may be in several packs. The copy with the greatest number counts; a collection deletes all copies at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use amalgam_engine::backend::rows::damaged;
use amalgam_engine::backend::{Epoch, IndexRow};
use amalgam_engine::{Error, ObjectId, ObjectKind};
use bytes::Bytes;

use crate::pack::{PackId, Slot};

/// The number of broken packs that an error names beside the first one.
const BROKEN_NAMED_MAX: usize = 9;

/// A registered pack.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) id: PackId,
    /// The number of its first object.
    pub(crate) first: u64,
    pub(crate) epoch: Epoch,
    /// Whether its bytes are in PostgreSQL.
    pub(crate) is_inline: bool,
    pub(crate) bytes: u64,
    pub(crate) slots: Vec<Slot>,
}

/// The place of an object.
#[derive(Clone, Debug)]
struct Entry {
    kind: ObjectKind,
    number: u64,
    epoch: Epoch,
    /// The numbers of older copies.
    older: Vec<u64>,
}

/// An object in a pack.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) pack: Arc<Pack>,
    pub(crate) slot: u32,
}

impl Location {
    pub(crate) fn slot(&self) -> &Slot {
        &self.pack.slots[self.slot as usize]
    }

    pub(crate) fn number(&self) -> u64 {
        self.pack.first + u64::from(self.slot)
    }
}

#[derive(Default)]
pub(crate) struct Index {
    objects: BTreeMap<[u8; 32], Entry>,
    packs: BTreeMap<u64, Arc<Pack>>,
    tombstones: HashMap<Vec<u8>, Bytes>,
    /// Every change up to this one is in the index.
    seen: u64,
    /// Later changes that are in the index too.
    ahead: BTreeSet<u64>,
    inline_bytes: u64,
    /// Packs whose footer cannot be read, by their first number, with the error.
    broken: BTreeMap<u64, Error>,
}

impl Index {
    pub(crate) fn seen(&self) -> u64 {
        self.seen
    }

    /// Records that a change of this node is in the index.
    pub(crate) fn note(&mut self, change: u64) {
        if change > self.seen {
            self.ahead.insert(change);
        }
        while self.ahead.remove(&(self.seen + 1)) {
            self.seen += 1;
        }
    }

    /// Records that every change up to this one is in the index.
    pub(crate) fn note_all(&mut self, until: u64) {
        self.seen = self.seen.max(until);
        self.ahead.retain(|change| *change > until);
        self.note(0);
    }

    pub(crate) fn add(&mut self, pack: Arc<Pack>) {
        if self.packs.contains_key(&pack.first) {
            return;
        }
        for (slot, number) in pack.slots.iter().zip(pack.first..) {
            let new = Entry { kind: slot.id.kind, number, epoch: pack.epoch, older: Vec::new() };
            let entry = self.objects.entry(slot.id.hash).or_insert_with(|| new.clone());
            if entry.number < number {
                entry.older.push(entry.number);
                entry.number = number;
                entry.epoch = entry.epoch.max(pack.epoch);
            } else if entry.number > number {
                entry.older.push(number);
            }
        }
        self.broken.remove(&pack.first);
        self.inline_bytes += if pack.is_inline { pack.bytes } else { 0 };
        self.packs.insert(pack.first, pack);
    }

    /// Adds a pack that this node registered by a change.
    pub(crate) fn add_own(&mut self, pack: Arc<Pack>, change: u64) {
        // A refresh that has seen the change knows whether the pack is still live: it may have been doomed before this node had the reply.
        if change > self.seen || self.broken.contains_key(&pack.first) {
            self.add(pack);
        }
        self.note(change);
    }

    /// Returns the first numbers of packs whose footers cannot be read.
    pub(crate) fn broken_packs(&self) -> Vec<u64> {
        self.broken.keys().copied().collect()
    }

    /// Records a pack whose footer cannot be read. Its objects do not exist for this node.
    pub(crate) fn add_broken(&mut self, first: u64, error: Error) {
        self.broken.insert(first, error);
    }

    /// Returns the error of packs whose footers cannot be read: any object that is not found may be in one of them.
    pub(crate) fn broken(&self) -> Option<Error> {
        let mut errors = self.broken.values();
        let first = errors.next()?.clone();
        let more: Vec<_> = errors.take(BROKEN_NAMED_MAX).map(ToString::to_string).collect();
        let all = || format!("{first}; {}", more.join("; "));
        Some(if more.is_empty() { first.clone() } else { damaged("packs", &all()) })
    }

    /// Removes the objects in these slots of a pack, which a collection deleted.
    pub(crate) fn bury(&mut self, first: u64, slots: impl IntoIterator<Item = u32>) {
        let Some(pack) = self.packs.get(&first).map(Arc::clone) else { return };
        for slot in slots {
            if let Some(at) = pack.slots.get(slot as usize) {
                self.remove(&at.id.hash, first + u64::from(slot));
            }
        }
    }

    /// Removes a pack that others replace.
    pub(crate) fn doom(&mut self, first: u64) {
        self.broken.remove(&first);
        let Some(pack) = self.packs.remove(&first) else { return };
        self.inline_bytes -= if pack.is_inline { pack.bytes } else { 0 };
        for (slot, number) in pack.slots.iter().zip(first..) {
            self.remove(&slot.id.hash, number);
        }
    }

    fn remove(&mut self, hash: &[u8; 32], number: u64) {
        let Some(entry) = self.objects.get_mut(hash) else { return };
        if entry.number != number {
            entry.older.retain(|older| *older != number);
            return;
        }
        match entry.older.iter().copied().max() {
            Some(next) => {
                entry.older.retain(|older| *older != next);
                entry.number = next;
            }
            None => drop(self.objects.remove(hash)),
        }
    }

    fn entry(&self, id: ObjectId) -> Option<&Entry> {
        self.objects.get(&id.hash).filter(|entry| entry.kind == id.kind)
    }

    /// Returns the pack and the slot with this number.
    pub(crate) fn at(&self, number: u64) -> Option<Location> {
        let (first, pack) = self.packs.range(..=number).next_back()?;
        let slot = u32::try_from(number - first).ok()?;
        ((slot as usize) < pack.slots.len()).then(|| Location { pack: Arc::clone(pack), slot })
    }

    pub(crate) fn find(&self, id: ObjectId) -> Option<Location> {
        self.at(self.entry(id)?.number)
    }

    pub(crate) fn epoch_of(&self, id: ObjectId) -> Option<Epoch> {
        self.entry(id).map(|entry| entry.epoch)
    }

    /// Sets the epoch of an object that a session checked for.
    pub(crate) fn stamp(&mut self, id: ObjectId, epoch: Epoch) {
        if let Some(entry) = self.objects.get_mut(&id.hash) {
            entry.epoch = entry.epoch.max(epoch);
        }
    }

    /// Returns all copies of an object.
    pub(crate) fn copies(&self, id: ObjectId) -> Vec<Location> {
        let Some(entry) = self.entry(id) else { return Vec::new() };
        entry.older.iter().chain([&entry.number]).filter_map(|number| self.at(*number)).collect()
    }

    fn row_of(&self, hash: &[u8; 32], entry: &Entry) -> Option<IndexRow> {
        let location = self.at(entry.number)?;
        Some(IndexRow {
            id: ObjectId { kind: entry.kind, hash: *hash },
            stored_bytes: u64::from(location.slot().length),
            epoch: entry.epoch,
            number: entry.number,
        })
    }

    pub(crate) fn row(&self, id: ObjectId) -> Option<IndexRow> {
        self.row_of(&id.hash, self.entry(id)?)
    }

    /// Returns rows from a hash on, in hash order.
    pub(crate) fn rows(&self, from: Bound<&[u8; 32]>, limit: usize) -> Vec<IndexRow> {
        let range = self.objects.range::<[u8; 32], _>((from, Bound::Unbounded));
        range.filter_map(|(hash, entry)| self.row_of(hash, entry)).take(limit).collect()
    }

    /// Returns the packs from this number on, in order, beginning with the one that contains it.
    pub(crate) fn packs_from(&self, number: u64) -> impl Iterator<Item = &Arc<Pack>> {
        let first = self.packs.range(..=number).next_back().map_or(number, |(first, _)| *first);
        self.packs.range(first..).map(|(_, pack)| pack)
    }

    pub(crate) fn objects(&self) -> u64 {
        self.objects.len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.packs.values().map(|pack| pack.bytes).sum()
    }

    /// Returns how many bytes of packs are in PostgreSQL.
    pub(crate) fn inline_bytes(&self) -> u64 {
        self.inline_bytes
    }

    pub(crate) fn tombstone(&self, key: &[u8]) -> Option<Bytes> {
        self.tombstones.get(key).cloned()
    }

    pub(crate) fn set_tombstone(&mut self, key: Vec<u8>, value: Option<Bytes>) {
        match value {
            Some(value) => drop(self.tombstones.insert(key, value)),
            None => drop(self.tombstones.remove(&key)),
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::backend::StoredObject;

    use super::*;
    use crate::pack::build;

    fn pack(first: u64, epoch: Epoch, contents: &[&'static str]) -> Arc<Pack> {
        let object = |text: &&'static str| StoredObject { id: id(text), bytes: Bytes::from_static(text.as_bytes()) };
        let built = build(&[0; 16], &contents.iter().map(object).collect::<Vec<_>>());
        Arc::new(Pack { id: [first as u8; 16], first, epoch, is_inline: true, bytes: 1, slots: built.slots })
    }

    fn id(text: &str) -> ObjectId {
        ObjectId::of(ObjectKind::Chunk, text.as_bytes())
    }

    #[test]
    fn the_newest_copy_counts_in_any_order_of_arrival() {
        for order in [[0, 1], [1, 0]] {
            let packs = [pack(0, 1, &["a", "b"]), pack(2, 3, &["a"])];
            let mut index = Index::default();
            order.iter().for_each(|at: &usize| index.add(Arc::clone(&packs[*at])));
            assert_eq!(index.find(id("a")).expect("there").number(), 2);
            assert_eq!(index.copies(id("a")).len(), 2);
            assert_eq!(index.row(id("b")).expect("there").number, 1);
            assert_eq!(index.objects(), 2);
            index.doom(2);
            assert_eq!(index.find(id("a")).expect("the older copy").number(), 0);
            index.bury(0, [0]);
            assert!(index.find(id("a")).is_none() && index.find(id("b")).is_some());
        }
    }

    #[test]
    fn a_pack_that_was_doomed_before_its_registration_was_answered_is_not_added() {
        let mut index = Index::default();
        index.note_all(4);
        // Change 6 moved the object of the first pack, which change 5 registered, and change 7 doomed that pack.
        index.add(pack(1, 1, &["a"]));
        index.doom(0);
        index.note_all(7);
        index.add_own(pack(0, 1, &["a"]), 5);
        assert_eq!((index.copies(id("a")).len(), index.inline_bytes(), index.seen()), (1, 1, 7));
        index.bury(1, [0]);
        assert!(index.find(id("a")).is_none());
    }

    #[test]
    fn a_registered_pack_is_added_if_no_refresh_has_read_it() {
        let mut index = Index::default();
        index.add_own(pack(0, 1, &["a"]), 1);
        assert_eq!((index.find(id("a")).expect("there").number(), index.seen()), (0, 1));
        index.add_broken(1, damaged("pack", &"its footer is missing"));
        index.note_all(2);
        index.add_own(pack(1, 1, &["b"]), 2);
        assert!(index.find(id("b")).is_some() && index.broken().is_none());
    }

    #[test]
    fn changes_count_when_no_earlier_one_is_missing() {
        let mut index = Index::default();
        index.note(1);
        index.note(3);
        assert_eq!(index.seen(), 1);
        index.note(2);
        assert_eq!(index.seen(), 3);
        index.note(5);
        index.note_all(4);
        assert_eq!(index.seen(), 5);
    }
}
