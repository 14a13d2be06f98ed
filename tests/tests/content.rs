//! A file's content follows from its bytes alone: changed here and there it is the same as written whole.

use std::sync::Arc;

use amalgam_engine::object::{self, Content, HOLE_BYTES_MIN, Node, SINGLE_CHUNK_BYTES_MAX};
use amalgam_engine::work::FileSegments;
use amalgam_engine::{ObjectKind, Store, WorkingTree};
use amalgam_tests::model::{Fill, cases, commit};
use proptest::prelude::*;

const HOLE: usize = HOLE_BYTES_MIN as usize;
const SMALL: usize = SINGLE_CHUNK_BYTES_MAX as usize;
const MEDIUM: usize = 64 << 20;

/// A part of a file.
#[derive(Clone, Copy, Debug)]
enum Part {
    Random(Fill),
    Text(usize),
    Zeros(usize),
}

impl Part {
    fn bytes(self) -> Vec<u8> {
        match self {
            Self::Random(fill) => fill.bytes(),
            Self::Text(length) => {
                b"the quick brown fox jumps over the lazy dog\n".iter().copied().cycle().take(length).collect()
            }
            Self::Zeros(length) => vec![0; length],
        }
    }
}

fn part() -> impl Strategy<Value = Part> {
    let length = || prop_oneof![2 => 1_usize..200, 3 => 1_usize..100_000, 1 => 1_usize..300_000];
    let zeros = prop_oneof![3 => HOLE - 3..HOLE + 4, 1 => 1_usize..HOLE, 1 => HOLE..3 * HOLE];
    prop_oneof![
        3 => (1_u64..9, length()).prop_map(|(seed, length)| Part::Random(Fill { seed, length })),
        1 => length().prop_map(Part::Text),
        3 => zeros.prop_map(Part::Zeros),
    ]
    .boxed()
}

/// A change of a file. Places are parts of a million of its length, so that they fit any; `near` moves one to the next border
/// of a run of zeros.
#[derive(Clone, Debug)]
enum Edit {
    WriteAt { place: u32, near: Option<i32>, part: Part },
    Append(Part),
    Truncate { place: u32, near: Option<i32> },
    Extend(usize),
    PunchHole { place: u32, near: Option<i32>, length: usize },
    Commit,
}

fn edit() -> impl Strategy<Value = Edit> {
    let near = || prop::option::of(-3_i32..4);
    let place = || 0_u32..=1_000_000;
    let small = prop_oneof![2 => (1_u64..9, 1_usize..40).prop_map(|(seed, length)| Part::Random(Fill { seed, length })), 1 => (1_usize..9).prop_map(Part::Zeros)];
    let part = prop_oneof![2 => small, 1 => part()].boxed();
    let hole = prop_oneof![2 => 1_usize..10, 2 => HOLE - 3..HOLE + 4, 1 => 1_usize..2 * HOLE];
    prop_oneof![
        5 => (place(), near(), part.clone()).prop_map(|(place, near, part)| Edit::WriteAt { place, near, part }),
        1 => part.prop_map(Edit::Append),
        1 => (place(), near()).prop_map(|(place, near)| Edit::Truncate { place, near }),
        1 => (1_usize..2 * HOLE).prop_map(Edit::Extend),
        3 => (place(), near(), hole).prop_map(|(place, near, length)| Edit::PunchHole { place, near, length }),
        2 => Just(Edit::Commit),
    ]
    .boxed()
}

fn position(bytes: &[u8], place: u32, near: Option<i32>) -> usize {
    let exact = (bytes.len() as u64 * u64::from(place) / 1_000_000) as usize;
    let Some(shift) = near else { return exact };
    let is_border = |at: &usize| (bytes[*at] == 0) != (bytes[*at - 1] == 0);
    let border = (exact.max(1)..bytes.len()).find(is_border).unwrap_or(exact);
    border.saturating_add_signed(shift as isize).min(bytes.len())
}

/// Applies an edit to the file in the tree and to plain bytes.
fn apply(tree: &mut WorkingTree, bytes: &mut Vec<u8>, edit: &Edit) {
    match *edit {
        Edit::WriteAt { place, near, part } => {
            let (at, new) = (position(bytes, place, near), part.bytes());
            tree.write_at("f", at as u64, &new).expect("write");
            bytes.resize(bytes.len().max(at + new.len()), 0);
            bytes[at..at + new.len()].copy_from_slice(&new);
        }
        Edit::Append(part) => {
            tree.append("f", &part.bytes()).expect("append");
            bytes.extend(part.bytes());
        }
        Edit::Truncate { place, near } => {
            let at = position(bytes, place, near);
            tree.truncate("f", at as u64).expect("truncate");
            bytes.truncate(at);
        }
        Edit::Extend(by) => {
            bytes.resize(bytes.len() + by, 0);
            tree.truncate("f", bytes.len() as u64).expect("truncate");
        }
        Edit::PunchHole { place, near, length } => {
            let at = position(bytes, place, near);
            let end = (at + length).min(bytes.len());
            tree.punch_hole("f", at as u64..(at + length) as u64).expect("punch");
            bytes[at..end].fill(0);
        }
        Edit::Commit => drop(commit(tree).expect("commit")),
    }
}

fn content_of(tree: &WorkingTree) -> Content {
    let entry = tree.stat("f").expect("stat").expect("there").entry.expect("committed");
    match entry.node {
        Node::File { content, .. } => content,
        other => panic!("a file became {other:?}"),
    }
}

fn written_whole(store: &Store, bytes: &[u8]) -> Content {
    let mut tree = WorkingTree::new(store);
    tree.write("f", bytes).expect("write");
    commit(&mut tree).expect("commit");
    content_of(&tree)
}

/// Writes, edits, commits; the content must be that of the same bytes written whole into a store of their own.
fn check(mut tree: WorkingTree, base: &[u8], edits: &[Edit]) {
    let mut bytes = base.to_vec();
    tree.write("f", base).expect("write");
    commit(&mut tree).expect("commit");
    assert_eq!(content_of(&tree), written_whole(&Store::in_memory(), base), "before any edit");
    for edit in edits {
        apply(&mut tree, &mut bytes, edit);
    }
    assert!(tree.read("f").expect("read") == bytes, "the bytes differ before the commit");
    commit(&mut tree).expect("commit");
    assert!(tree.read("f").expect("read") == bytes, "the bytes differ after the commit");
    assert_eq!(content_of(&tree), written_whole(&Store::in_memory(), &bytes), "{} bytes", bytes.len());
}

fn base() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::collection::vec(part(), 0..6).prop_map(|parts| parts.into_iter().flat_map(Part::bytes).collect());
    let border = (1_u64..9, SMALL - 3..SMALL + 4).prop_map(|(seed, length)| Fill { seed, length }.bytes());
    prop_oneof![4 => parts, 1 => border].boxed()
}

/// A failure prints the edits; the base would be pages of numbers.
#[derive(Clone)]
struct Base(Vec<u8>);

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes: ", self.0.len())?;
        let mut start = 0;
        for run in self.0.chunk_by(|a, b| (*a == 0) == (*b == 0)) {
            if run[0] == 0 && run.len() > 1_000 {
                write!(f, "zeros {start}..{} ", start + run.len())?;
            }
            start += run.len();
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn an_edited_file_is_cut_as_if_written_whole(
        base in base().prop_map(Base),
        edits in prop::collection::vec(edit(), 1..8),
    ) {
        check(WorkingTree::new(&Store::in_memory()), &base.0, &edits);
    }

    #[test]
    fn any_range_reads_as_the_bytes(
        base in base().prop_map(Base),
        edits in prop::collection::vec(edit(), 0..5),
        ranges in prop::collection::vec((0_u64..500_000, 0_usize..200_000), 1..12),
        committed: bool,
    ) {
        let mut tree = WorkingTree::new(&Store::in_memory());
        let mut bytes = base.0;
        tree.write("f", &bytes).expect("write");
        edits.iter().for_each(|edit| apply(&mut tree, &mut bytes, edit));
        if committed {
            commit(&mut tree).expect("commit");
        }
        for (offset, length) in ranges {
            let start = bytes.len().min(offset as usize);
            let end = bytes.len().min(start + length);
            let read = tree.read_at("f", offset, length).expect("read");
            prop_assert!(read == bytes[start..end], "{} bytes at {}", length, offset);
        }
    }

    #[test]
    fn holes_hold_zeros_only_and_long_runs_are_holes_after_a_commit(
        base in base().prop_map(Base),
        edits in prop::collection::vec(edit(), 0..5),
    ) {
        let mut tree = WorkingTree::new(&Store::in_memory());
        let mut bytes = base.0;
        tree.write("f", &bytes).expect("write");
        edits.iter().for_each(|edit| apply(&mut tree, &mut bytes, edit));
        commit(&mut tree).expect("commit");
        let mut at = 0;
        for run in bytes.chunk_by(|a, b| (*a == 0) == (*b == 0)) {
            let is_hole = run[0] == 0 && run.len() >= HOLE && (bytes.len() > SMALL || run.len() == bytes.len());
            let hole = tree.hole_at("f", at).expect("ask");
            prop_assert_eq!(hole, if is_hole { run.len() as u64 } else { 0 }, "the run at {}", at);
            at += run.len() as u64;
        }
    }
}

proptest! {
    #![proptest_config(cases(40))]

    #[test]
    fn segments_in_files_give_the_same_content(
        base in base().prop_map(Base),
        edits in prop::collection::vec(edit(), 1..8),
    ) {
        let directory = tempfile::tempdir().expect("a directory");
        let log = FileSegments::create(directory.path()).expect("segments");
        check(WorkingTree::new(&Store::in_memory()).with_segments(Arc::new(log)), &base.0, &edits);
        let left = std::fs::read_dir(directory.path()).expect("read").count();
        prop_assert_eq!(left, 0, "segments that nothing uses are gone");
    }
}

/// Larger files have larger chunks; going over the border and back re-cuts all of it.
#[test]
fn a_file_around_64_mib_is_cut_as_if_written_whole() {
    let base = Fill { seed: 3, length: MEDIUM - 2 }.bytes();
    let tiny = |seed| Part::Random(Fill { seed, length: 5 });
    let middle = Edit::WriteAt { place: 500_000, near: None, part: tiny(1) };
    let hole = Edit::PunchHole { place: 250_000, near: None, length: HOLE };
    for edits in [
        vec![Edit::Append(Part::Zeros(2))],
        vec![middle.clone(), Edit::Append(tiny(2))],
        vec![Edit::Append(tiny(2)), Edit::Commit, middle.clone(), hole.clone()],
        vec![Edit::Append(tiny(2)), Edit::Commit, hole, Edit::Truncate { place: 999_999, near: None }, middle],
    ] {
        check(WorkingTree::new(&Store::in_memory()), &base, &edits);
    }
}

/// The lengths of the chunks of a file of up to a few hundred.
fn chunk_lengths(store: &Store, content: &Content) -> Vec<usize> {
    let Content::Rope(rope) = content else { panic!("{content:?}") };
    let mut open = vec![rope.object()];
    let mut lengths = Vec::new();
    while let Some(id) = open.pop() {
        let bytes = store.canonical(id).expect("there");
        match id.kind {
            ObjectKind::Chunk => lengths.push(bytes.len()),
            _ => open.extend(object::children(id.kind, &bytes).expect("valid").list.iter().rev().map(|child| child.id)),
        }
    }
    lengths
}

/// Where a hole comes to begin within three bytes behind any chunk, that chunk is cut as if the file was written whole.
#[test]
fn a_hole_that_comes_to_begin_just_behind_a_chunk_changes_it_as_if_written_whole() {
    let random = Fill { seed: 5, length: 200_000 }.bytes();
    let store = Store::in_memory();
    let lengths = chunk_lengths(&store, &written_whole(&store, &random));
    let mut end = 0;
    let mut even = 0;
    for length in &lengths[..lengths.len() - 1] {
        end += length;
        even += usize::from(length % 2 == 0);
        for behind in 0..=3 {
            // One byte ends the run of zeros a byte short of a hole, until it becomes zero too.
            let head = &random[..end + behind];
            let base = [head, &[0; HOLE - 1], b"x", &random[..5_000]].concat();
            let mut tree = WorkingTree::new(&Store::in_memory());
            tree.write("f", &base).expect("write");
            commit(&mut tree).expect("commit");
            tree.write_at("f", (head.len() + HOLE - 1) as u64, b"\0").expect("write");
            commit(&mut tree).expect("commit");
            let bytes = tree.read("f").expect("read");
            assert_eq!(content_of(&tree), written_whole(&Store::in_memory(), &bytes), "{behind} behind {end}");
        }
    }
    assert!(even > 3, "some chunks are of even length");
}

#[test]
fn a_file_of_a_tebibyte_of_zeros_commits_and_reads_in_moments() {
    const TEBIBYTE: u64 = 1 << 40;
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.create("f", 0o644).expect("create");
    tree.truncate("f", TEBIBYTE).expect("truncate");
    commit(&mut tree).expect("commit");
    assert_eq!(content_of(&tree), Content::Hole);
    assert_eq!(tree.stat("f").expect("stat").expect("there").size, TEBIBYTE);
    assert_eq!(tree.read_at("f", TEBIBYTE - 3, 100).expect("read"), [0; 3]);
    assert_eq!(tree.hole_at("f", 5).expect("ask"), TEBIBYTE - 5);
    assert!(tree.read("f").is_err(), "a tebibyte is not read in one piece");
    tree.write_at("f", TEBIBYTE / 2, b"data").expect("write");
    commit(&mut tree).expect("commit");
    assert_eq!(tree.read_at("f", TEBIBYTE / 2 - 2, 8).expect("read"), b"\0\0data\0\0");
    assert_eq!(tree.hole_at("f", 0).expect("ask"), TEBIBYTE / 2);
    let once = content_of(&tree);
    tree.punch_hole("f", TEBIBYTE / 2..TEBIBYTE / 2 + 4).expect("punch");
    commit(&mut tree).expect("commit");
    assert_eq!(content_of(&tree), Content::Hole, "zeros again, however they came about");
    tree.write_at("f", TEBIBYTE / 2, b"data").expect("write");
    commit(&mut tree).expect("commit");
    assert_eq!(content_of(&tree), once);
}
