//! The commits of a child process that is going to be killed, and the check of what it left.
//!
//! A commit's content follows from its writer and its number alone, so whoever finds it later knows every byte that must be
//! there. The child tells on its standard output what it begins and what was acknowledged, one line each, the latter only
//! after the commit returned.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use amalgam_engine::backend::Durability;
use amalgam_engine::object::Content;
use amalgam_engine::reference::RefName;
use amalgam_engine::{Commit, Result, SnapshotId, Store, WorkingTree};

use super::watched::{end_with_input, tell};
use super::{Random, check_log, name, walk};

/// Large enough to go ahead of its transaction, by ingestion.
const BULK_BYTES: usize = 18 << 20;
const BULK_PERIOD: u64 = 60;
const BULK_PHASE: u64 = 5;
const SMALL_FILES: u64 = 16;
const ROPE_PERIOD: u64 = 8;

/// What the child is told.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// Its contents follow from this.
    pub seed: u64,
    /// How many threads commit, each to its own reference.
    pub writers: u64,
    /// It ends by itself after this long.
    pub seconds_max: u64,
}

impl Orders {
    /// As words of a command line.
    pub fn words(&self) -> [String; 3] {
        [self.seed.to_string(), self.writers.to_string(), self.seconds_max.to_string()]
    }

    /// From those words.
    pub fn parse(words: &[String]) -> Option<Self> {
        let [seed, writers, seconds_max] = words else { return None };
        Some(Self { seed: seed.parse().ok()?, writers: writers.parse().ok()?, seconds_max: seconds_max.parse().ok()? })
    }
}

/// One file of the tree: which commits write it anew, and how large it is then.
struct Slot {
    path: String,
    period: u64,
    phase: u64,
    bytes_max: usize,
}

fn slots() -> Vec<Slot> {
    let mut slots = vec![Slot { path: "number".to_owned(), period: 1, phase: 0, bytes_max: 0 }];
    for phase in 0..SMALL_FILES {
        slots.push(Slot { path: format!("small/{phase}"), period: SMALL_FILES, phase, bytes_max: 6_000 });
    }
    for phase in [1, 4] {
        slots.push(Slot { path: format!("deep/er/rope{phase}"), period: ROPE_PERIOD, phase, bytes_max: 200_000 });
    }
    slots.push(Slot { path: "bulk".to_owned(), period: BULK_PERIOD, phase: BULK_PHASE, bytes_max: BULK_BYTES });
    slots
}

impl Slot {
    fn is_written_by(&self, number: u64) -> bool {
        number % self.period == self.phase
    }

    /// The newest commit up to this one that wrote it.
    fn last_write(&self, number: u64) -> Option<u64> {
        let last = number.checked_sub((number + self.period - self.phase) % self.period)?;
        (last > 0).then_some(last)
    }

    fn content(&self, seed: u64, writer: u64, number: u64) -> Vec<u8> {
        if self.bytes_max == 0 {
            return format!("commit {number} of writer {writer}\n").into_bytes();
        }
        let mut random = Random::of(&[seed, writer, number, self.phase, self.bytes_max as u64]);
        let length = match self.bytes_max {
            BULK_BYTES => BULK_BYTES,
            max => max / 2 + random.below(max as u64 / 2) as usize,
        };
        random.bytes(length)
    }
}

/// Whether this commit waits for the disk.
pub fn durability(number: u64) -> Durability {
    if number % 4 == 1 { Durability::Durable } else { Durability::Buffered }
}

/// The reference of a writer.
pub fn reference(writer: u64) -> RefName {
    name(format!("head/writer{writer}"))
}

fn number_of(store: &Store, snapshot: SnapshotId) -> Result<u64> {
    Ok(store.snapshot(snapshot)?.message.parse().expect("the message of a commit is its number"))
}

fn tip(store: &Store, writer: u64) -> Result<Option<SnapshotId>> {
    let target = store.read_ref(&reference(writer))?.and_then(|value| value.target);
    Ok(target.map(|target| SnapshotId::from_bytes(target.hash)))
}

/// Commits until it is killed, its standard input ends, or its time is up.
pub fn commit_until_killed(directory: &Path, orders: Orders) -> Result<()> {
    end_with_input();
    let end = Instant::now() + Duration::from_secs(orders.seconds_max);
    let store = Store::open(directory)?;
    tell("open");
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..orders.writers)
            .map(|writer| {
                scope.spawn({
                    let store = &store;
                    move || write(store, orders, writer, end)
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("a writer does not panic"))
    })
}

fn write(store: &Store, orders: Orders, writer: u64, end: Instant) -> Result<()> {
    let slots = slots();
    let (mut tree, mut number) = match tip(store, writer)? {
        Some(snapshot) => (WorkingTree::open(store, snapshot)?, number_of(store, snapshot)?),
        None => (WorkingTree::new(store), 0),
    };
    tree.create_directories("small")?;
    tree.create_directories("deep/er")?;
    while Instant::now() < end {
        number += 1;
        for slot in slots.iter().filter(|slot| slot.is_written_by(number)) {
            tree.write(&slot.path, &slot.content(orders.seed, writer, number))?;
        }
        let mut commit = Commit::new(&reference(writer), number.to_string());
        commit.durability = durability(number);
        tell(&format!("begin {writer} {number}"));
        let done = tree.commit(commit)?;
        tell(&format!("done {writer} {number} {} {}", done.operation, done.snapshot));
        if number % 32 == 0 {
            store.sync()?;
            tell(&format!("sync {}", done.operation));
        }
    }
    Ok(())
}

/// A commit that was acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// Whose.
    pub writer: u64,
    /// Which of his.
    pub number: u64,
    /// Its place in the operation log.
    pub operation: u64,
    /// What was made.
    pub snapshot: SnapshotId,
}

/// All that a child told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// It had opened the store.
    pub opened: bool,
    /// Commits begun, by writer.
    pub begun: BTreeMap<u64, u64>,
    /// Commits acknowledged, in the order of the acknowledgements.
    pub done: Vec<Done>,
    /// Operations up to this one were acknowledged before a sync that returned.
    pub synced: u64,
}

impl Told {
    /// Takes one more line.
    pub fn take(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap_or_else(|_| panic!("no number in {line:?}"));
        match words[0] {
            "open" => self.opened = true,
            "begin" => drop(self.begun.insert(number(1), number(2))),
            "done" => self.done.push(Done {
                writer: number(1),
                number: number(2),
                operation: number(3),
                snapshot: SnapshotId::from_hex(words[4]).expect("a snapshot's id in hex"),
            }),
            "sync" => self.synced = self.synced.max(number(1)),
            other => panic!("the child said {other:?}"),
        }
    }

    /// How many commits were begun and not acknowledged.
    pub fn in_flight(&self) -> usize {
        let done = |writer| self.done.iter().rev().find(|done| done.writer == writer).map(|done| done.number);
        self.begun.iter().filter(|(writer, begun)| done(**writer) != Some(**begun)).count()
    }
}

/// What is known of a store between two rounds of faults.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Contents that were read and found right, by writer, path and the commit that wrote them.
    seen: HashMap<(u64, String, u64), Content>,
    /// Commits whose tree was found right.
    checked: HashMap<SnapshotId, u64>,
}

/// What a store held.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The end of its operation log.
    pub operations: u64,
    /// Commits that can be reached from references.
    pub commits: u64,
}

impl Ledger {
    /// Checks that no commit is there by half, and that log, references and history say the same.
    ///
    /// Of `told`, every commit whose operation the log still has must be in the history it belongs to.
    pub fn check(&mut self, store: &Store, orders: Orders, told: &[Done]) -> Result<Held> {
        let operations = check_log(store)?;
        let mut history = HashMap::new();
        for writer in 0..orders.writers {
            let mut next = tip(store, writer)?;
            let mut expected = None;
            while let Some(snapshot) = next {
                let number = number_of(store, snapshot)?;
                assert_eq!(*expected.get_or_insert(number), number, "writer {writer}'s history has a gap");
                expected = Some(number - 1);
                history.insert((writer, number), snapshot);
                if let std::collections::hash_map::Entry::Vacant(place) = self.checked.entry(snapshot) {
                    place.insert(number);
                    self.check_tree(store, orders, snapshot, writer, number)?;
                }
                next = store.snapshot(snapshot)?.parents.first().copied();
            }
            assert!(matches!(expected, None | Some(0)), "writer {writer}'s history does not begin at 1");
        }
        assert_eq!(history.len(), operations.len(), "one operation for each commit");
        for done in told.iter().filter(|done| done.operation <= operations.len() as u64) {
            let found = history.get(&(done.writer, done.number));
            assert_eq!(found, Some(&done.snapshot), "{done:?} was acknowledged, and its operation is in the log");
        }
        Ok(Held { operations: operations.len() as u64, commits: history.len() as u64 })
    }

    fn check_tree(
        &mut self,
        store: &Store,
        orders: Orders,
        snapshot: SnapshotId,
        writer: u64,
        number: u64,
    ) -> Result<()> {
        let mut expected: BTreeMap<String, (Slot, u64)> = BTreeMap::new();
        for slot in slots() {
            if let Some(last) = slot.last_write(number) {
                expected.insert(slot.path.clone(), (slot, last));
            }
        }
        let tree = WorkingTree::open(store, snapshot)?;
        walk(&tree, &mut |path, tree| {
            let (slot, last) = expected.remove(path).unwrap_or_else(|| panic!("{path} is none of commit {number}'s"));
            let entry = tree.stat(path)?.and_then(|stat| stat.entry).expect("a stored file has an entry");
            let amalgam_engine::object::Node::File { content, .. } = entry.node else { panic!("{path} is no file") };
            let key = (writer, path.to_owned(), last);
            // Equal content ids are equal bytes, and these were read once before.
            if self.seen.get(&key) != Some(&content) {
                let right = tree.read(path)? == slot.content(orders.seed, writer, last);
                assert!(right, "{path} of writer {writer}'s commit {number} has other bytes than were committed");
                self.seen.insert(key, content);
            }
            Ok(())
        })?;
        assert!(expected.is_empty(), "writer {writer}'s commit {number} lacks {:?}", expected.keys());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_write_of_a_slot() {
        let slot = Slot { path: String::new(), period: 8, phase: 3, bytes_max: 1 };
        let found: Vec<_> = [1, 2, 3, 4, 10, 11, 12].map(|number| slot.last_write(number)).into();
        assert_eq!(found, [None, None, Some(3), Some(3), Some(3), Some(11), Some(11)]);
        let slot = Slot { path: String::new(), period: 8, phase: 0, bytes_max: 1 };
        assert_eq!([1, 7, 8, 9].map(|number| slot.last_write(number)), [None, None, Some(8), Some(8)]);
    }
}
