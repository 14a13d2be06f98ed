//! Trees that are held in the store without a commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use amalgam_engine::object::refers;
use amalgam_engine::work::{MemorySegments, Segment, SegmentLog, SegmentRange};
use amalgam_engine::{Commit, ObjectId, ObjectKind, RefName, Result, Store, Swept, TreePath, WorkingTree};

/// Segments that count how often they are read.
#[derive(Default)]
struct Counted {
    memory: MemorySegments,
    reads: Arc<AtomicUsize>,
}

struct CountedSegment(SegmentRange, Arc<AtomicUsize>);

impl Segment for CountedSegment {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.segment.read_at(offset, buffer)
    }
}

impl SegmentLog for Counted {
    fn append(&self, bytes: &[u8]) -> Result<SegmentRange> {
        let range = self.memory.append(bytes)?;
        let offset = range.offset;
        Ok(SegmentRange { segment: Arc::new(CountedSegment(range, Arc::clone(&self.reads))), offset })
    }

    fn sync(&self) -> Result<()> {
        self.memory.sync()
    }
}

/// A tree with some files under edit, and the counter of reads of what was written to them.
fn edited(store: &Store) -> (WorkingTree, Arc<AtomicUsize>) {
    let log = Counted::default();
    let reads = Arc::clone(&log.reads);
    let mut tree = WorkingTree::new(store).with_segments(Arc::new(log));
    tree.create_directories("d").expect("mkdir");
    for number in 0..20_u8 {
        tree.write(format!("d/{number}"), &[number; 3_000]).expect("write");
    }
    (tree, reads)
}

fn name() -> RefName {
    RefName::new("test/head").expect("a name")
}

#[test]
fn a_tree_that_is_held_is_not_read_again_by_later_freezes() {
    let store = Store::in_memory();
    let (mut tree, reads) = edited(&store);
    let (root, _pin) = tree.freeze().hold().expect("held");
    let first = reads.load(Ordering::Relaxed);
    assert!(first > 0, "the first freeze reads what was written");
    let (again, _second_pin) = tree.fork().freeze().hold().expect("held again");
    assert_eq!((again, reads.load(Ordering::Relaxed)), (root, first));
    tree.write("d/3", b"edited since").expect("write");
    let done = tree.commit(Commit::new(&name(), "commit")).expect("commit");
    assert_eq!(reads.load(Ordering::Relaxed), first + 1, "only the file that was edited since is read");
    let tree = WorkingTree::open(&store, done.snapshot).expect("open");
    assert_eq!(tree.read("d/3").expect("read"), b"edited since");
    assert_eq!(tree.read("d/4").expect("read"), [4; 3_000]);
}

#[test]
fn what_nodes_remember_of_a_hold_outlives_its_pin_and_a_sweep() {
    let store = Store::in_memory();
    let (mut tree, _) = edited(&store);
    drop(tree.freeze().hold().expect("held"));
    let mut round = store.begin_sweep().expect("a sweep");
    let roots = round.roots().expect("roots");
    let rows = store.rows().expect("rows");
    let mut alive = BTreeSet::new();
    let mut open = roots;
    while let Some(id) = open.pop() {
        if alive.insert(id) && id.kind != ObjectKind::Chunk {
            let canonical = rows.read(id).expect("read").expect("a root is there");
            let mut below = |kind, hash: &[u8; 32]| open.push(ObjectId { kind, hash: *hash });
            refers(id.kind, &canonical, &mut below).expect("valid");
        }
    }
    while !matches!(round.sweep(&|id| alive.contains(&id)).expect("swept"), Swept::Done { .. }) {}
    drop(round);
    let done = tree.commit(Commit::new(&name(), "commit")).expect("commit");
    let tree = WorkingTree::open(&store, done.snapshot).expect("open");
    assert_eq!(tree.read("d/7").expect("read"), [7; 3_000]);
}

#[test]
fn a_mode_that_was_set_on_the_root_stays_a_change_after_a_hold() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"a").expect("write");
    tree.commit(Commit::new(&name(), "commit")).expect("commit");
    assert!(tree.is_clean() && tree.edited().is_empty());
    tree.set_mode("", 0o700).expect("chmod");
    let _held = tree.freeze().hold().expect("held");
    assert!(!tree.is_clean());
    assert_eq!(tree.edited(), [TreePath::root()]);
}
