//! Verification finds every damage and says where it shows; repair loses nothing else. Damage is planted in the rows, over both
//! backends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Family, Fault, FaultPlan, Inspect, Memory, RowEdit, StoredObject, Transaction};
use amalgam_engine::object::{
    Content, Directories, DirectoryItem, DirectoryRef, Entry, Node, Root, SequenceNode, outgoing,
};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::verify::{Damage, Problem, Record, Repaired, VerifyOptions, VerifyReport};
use amalgam_engine::{
    Bare, ChunkId, Commit, Malformed, Name, ObjectId, ObjectKind, RequestId, SnapshotId, Store, StoreOptions, Time,
    WorkingTree, repair, unpack_chunk, verify,
};
use amalgam_tests::harness::{Place, Random, check_log, name, over_both, read_files};
use bytes::Bytes;

type Rows = BTreeMap<(Family, Bytes), Bytes>;
type Files = BTreeMap<String, Vec<u8>>;

/// A store with a tree that holds every kind of object, and another one that shares nothing with it.
struct House {
    backend: Arc<dyn Inspect>,
    main: SnapshotId,
    other: SnapshotId,
    main_files: Files,
    other_files: Files,
    sound: Rows,
}

fn quiet(_: &amalgam_engine::verify::VerifyProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn store_over(backend: &Arc<dyn Inspect>) -> Store {
    Store::new(Arc::clone(backend), &StoreOptions::default())
}

fn check(backend: &Arc<dyn Inspect>) -> VerifyReport {
    verify(&store_over(backend), &VerifyOptions::reading_data(), &quiet).expect("a report")
}

fn all_rows(backend: &dyn Inspect) -> Rows {
    let mut rows = Rows::new();
    for family in Family::ALL {
        let page = backend.rows(family, &[], None, usize::MAX).expect("rows");
        rows.extend(page.rows.into_iter().map(|(key, value)| ((family, key), value)));
    }
    rows
}

/// Makes the rows what they were.
fn set_rows(backend: &dyn Inspect, wanted: &Rows) {
    let now = all_rows(backend);
    let gone = now.keys().filter(|key| !wanted.contains_key(*key));
    let mut edits: Vec<_> =
        gone.map(|(family, key)| RowEdit { family: *family, key: key.clone(), value: None }).collect();
    let changed = wanted.iter().filter(|(key, value)| now.get(*key) != Some(*value));
    edits.extend(changed.map(|((family, key), value)| put(*family, key, value.clone())));
    backend.edit(edits).expect("edit");
}

fn put(family: Family, key: &[u8], value: impl Into<Bytes>) -> RowEdit {
    RowEdit { family, key: Bytes::copy_from_slice(key), value: Some(value.into()) }
}

fn take(family: Family, key: &[u8]) -> RowEdit {
    RowEdit { family, key: Bytes::copy_from_slice(key), value: None }
}

fn plant_tree(tree: &mut WorkingTree, seed: u64) {
    let mut random = Random::new(seed);
    tree.create_directories("small/below").expect("mkdir");
    tree.create_directories("wide").expect("mkdir");
    tree.write("small/below/file", format!("small {seed}").as_bytes()).expect("write");
    tree.write("big", &random.bytes(1_500_000)).expect("write");
    for number in 0..120 {
        tree.write(format!("wide/{number:03}"), format!("{seed} {number}").as_bytes()).expect("write");
    }
    tree.write(format!("one {seed}"), format!("linked {seed}").as_bytes()).expect("write");
    tree.link(format!("one {seed}"), format!("two {seed}")).expect("link");
    tree.set_state("key", &format!("{{\"seed\":{seed}}}")).expect("state");
    tree.write("tagged", format!("tagged {seed}").as_bytes()).expect("write");
    tree.set_xattr("tagged", b"user.large", &random.bytes(3_000)).expect("xattr");
}

impl House {
    fn new(backend: Arc<dyn Inspect>) -> Self {
        let store = store_over(&backend);
        let commit = |reference: &str, seed: u64| {
            let mut tree = WorkingTree::new(&store);
            plant_tree(&mut tree, seed);
            let mut commit = Commit::new(&name(reference), "all of it");
            commit.request = Some(RequestId::new(reference).expect("an id"));
            let done = tree.commit(commit).expect("commit");
            (done.snapshot, read_files(&tree).expect("files"))
        };
        let (main, main_files) = commit("head/main", 1);
        let (other, other_files) = commit("head/other", 2);
        let sound = all_rows(&*backend);
        Self { backend, main, other, main_files, other_files, sound }
    }

    fn restore(&self) {
        set_rows(&*self.backend, &self.sound);
    }

    /// Where an object lies: its family, and its key there.
    fn place(&self, id: ObjectId) -> (Family, [u8; 8]) {
        let row = &self.sound[&(Family::Index, Bytes::copy_from_slice(&id.hash))];
        // A kind and three varints, the last of which is the number.
        let mut numbers = Vec::new();
        let (mut value, mut shift) = (0, 0);
        for byte in &row[1..] {
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if *byte < 0x80 {
                numbers.push(value);
                (value, shift) = (0, 0);
            }
        }
        (Family::of(id.kind), numbers[2].to_be_bytes())
    }

    fn stored(&self, id: ObjectId) -> Bytes {
        let (family, key) = self.place(id);
        self.sound[&(family, Bytes::copy_from_slice(&key))].clone()
    }

    /// Every object below one, that one first.
    fn below(&self, top: ObjectId) -> Vec<ObjectId> {
        let (mut all, mut open, mut seen) = (Vec::new(), vec![top], BTreeSet::new());
        while let Some(id) = open.pop() {
            if seen.insert(id) {
                all.push(id);
                open.extend(outgoing(id.kind, &self.stored(id)).expect("sound").strong);
            }
        }
        all
    }

    /// One object of every sort in a tree, with the path that it affects.
    fn targets(&self, top: SnapshotId, seed: u64) -> Vec<(&'static str, ObjectId, &'static str)> {
        let below = self.below(top.object());
        let of = |kind: ObjectKind| below.iter().copied().filter(move |id| id.kind == kind);
        let is_inner = |id: &ObjectId| self.stored(*id)[2] == 0x08;
        let holds = |id: &ObjectId, other: ObjectId| {
            outgoing(id.kind, &self.stored(*id)).expect("sound").strong.contains(&other)
        };
        let first = ChunkId::of(format!("{seed} 0").as_bytes()).object();
        let leaf = of(ObjectKind::Directory).find(|id| holds(id, first)).expect("a leaf");
        let inner = of(ObjectKind::Directory).find(|id| is_inner(id) && holds(id, leaf)).expect("an inner node");
        let one = |kind| of(kind).next().expect("every kind is there");
        let big = of(ObjectKind::Rope).find(is_inner).expect("an inner rope");
        let piece = of(ObjectKind::Rope).find(|id| !is_inner(id)).expect("a leaf of a rope");
        vec![
            ("chunk", ChunkId::of(format!("small {seed}").as_bytes()).object(), "small/below/file"),
            ("chunk of a rope", outgoing(piece.kind, &self.stored(piece)).expect("sound").strong[0], "big"),
            ("rope leaf", piece, "big"),
            ("rope inner", big, "big"),
            ("directory leaf", leaf, "wide"),
            ("directory inner", inner, "wide"),
            ("xattrs", one(ObjectKind::Xattrs), "tagged"),
            ("links", one(ObjectKind::Links), ""),
            ("state", one(ObjectKind::State), ""),
            ("root", one(ObjectKind::Root), ""),
            ("snapshot", top.object(), ""),
        ]
    }

    fn plant(&self, planted: &Plant, id: ObjectId, twin: ObjectId) {
        let (family, key) = self.place(id);
        let mut bytes = self.stored(id).to_vec();
        let mut index = self.sound[&(Family::Index, Bytes::copy_from_slice(&id.hash))].to_vec();
        let middle = bytes.len() / 2;
        let edits = match planted {
            Plant::Flip => {
                bytes[middle] ^= 0x10;
                vec![put(family, &key, bytes)]
            }
            Plant::Cut => {
                bytes.truncate(middle);
                vec![put(family, &key, bytes)]
            }
            Plant::Swap => {
                let (_, twin_key) = self.place(twin);
                vec![put(family, &key, self.stored(twin)), put(family, &twin_key, bytes)]
            }
            Plant::RowGone => vec![take(family, &key)],
            Plant::IndexGone => vec![take(Family::Index, &id.hash)],
            Plant::AllGone => vec![take(family, &key), take(Family::Index, &id.hash)],
            Plant::KindWrong => {
                index[0] = if id.kind == ObjectKind::Rope { 3 } else { 2 };
                vec![put(Family::Index, &id.hash, index)]
            }
        };
        self.backend.edit(edits).expect("plant");
        assert!(all_rows(&*self.backend) != self.sound, "{planted:?} of {id}: nothing was planted");
    }

    /// What of the files of a snapshot can be read, path by path.
    fn readable(&self, snapshot: SnapshotId, files: &Files) -> BTreeSet<String> {
        let store = store_over(&self.backend);
        let Ok(tree) = WorkingTree::open(&store, snapshot) else { return BTreeSet::new() };
        let mut readable = BTreeSet::new();
        for (path, bytes) in files {
            if let Ok(read) = tree.read(path) {
                assert_eq!(read, *bytes, "{path}: wrong bytes");
                readable.insert(path.clone());
            }
        }
        readable
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plant {
    Flip,
    Cut,
    Swap,
    RowGone,
    IndexGone,
    AllGone,
    KindWrong,
}

impl Plant {
    const ALL: [Self; 7] =
        [Self::Flip, Self::Cut, Self::Swap, Self::RowGone, Self::IndexGone, Self::AllGone, Self::KindWrong];

    /// Whether nothing is lost by it.
    fn heals(self) -> bool {
        matches!(self, Self::Swap | Self::IndexGone | Self::KindWrong)
    }

    fn explains(self, damage: &Damage, held: bool) -> bool {
        match self {
            Self::Flip | Self::Cut => matches!(damage, Damage::Corrupt { .. }),
            Self::Swap => matches!(damage, Damage::Corrupt { says } if says.contains("those of")),
            Self::RowGone | Self::IndexGone | Self::AllGone if held => *damage == Damage::Dangling,
            Self::RowGone | Self::IndexGone | Self::AllGone => *damage == Damage::Missing,
            Self::KindWrong => matches!(damage, Damage::WrongKind { .. }),
        }
    }
}

fn problem_of(report: &VerifyReport, id: ObjectId) -> &Problem {
    let found: Vec<_> = report.problems.iter().filter(|problem| problem.id == id).collect();
    assert_eq!(found.len(), 1, "{id}: {:#?}", report.problems);
    found[0]
}

fn affects(problem: &Problem, snapshot: SnapshotId, path: &str) -> bool {
    let here = |place: &amalgam_engine::verify::Place| {
        place.top == snapshot.object() && place.path.as_bytes() == path.as_bytes() && !place.refs.is_empty()
    };
    problem.reached && problem.places.iter().any(here) && problem.places_more == 0
}

#[test]
fn a_sound_store_is_clean() {
    over_both(|place| {
        let house = House::new(place.backend());
        for options in [VerifyOptions::default(), VerifyOptions::reading_data()] {
            let report = verify(&store_over(&house.backend), &options, &quiet).expect("a report");
            assert!(report.is_clean(), "{place:?}: {report:#?}");
            assert_eq!((report.refs, report.operations, report.unreachable, report.orphans), (2, 2, 0, 0));
            let indexed = house.sound.keys().filter(|(family, _)| *family == Family::Index).count();
            assert_eq!(report.objects, indexed as u64);
        }
        let data = check(&house.backend).bytes;
        let content: usize = house.main_files.values().chain(house.other_files.values()).map(Vec::len).sum();
        assert!(data > content as u64 - 100, "{place:?}: all contents are hashed");
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!(done.done, [], "{place:?}: nothing to do");
        assert_eq!(all_rows(&*house.backend), house.sound, "{place:?}: a repair of a sound store changes no row");
    });
}

/// Every kind of object and every sort of damage: found, named, and repaired without losing anything else.
#[test]
fn damage_is_found_named_and_repaired() {
    over_both(|place| {
        let house = House::new(place.backend());
        let twins = house.targets(house.other, 2);
        let mut found = 0;
        for ((sort, id, path), (_, twin, _)) in house.targets(house.main, 1).into_iter().zip(twins) {
            for planted in Plant::ALL {
                let here = format!("{place:?}, {sort}, {planted:?}");
                house.plant(&planted, id, twin);
                let report = check(&house.backend);
                let problem = problem_of(&report, id);
                assert!(planted.explains(&problem.damage, sort == "snapshot"), "{here}: {problem:?}");
                assert!(affects(problem, house.main, path), "{here}: {problem:#?}");
                assert_eq!(problem.parents.is_empty(), sort == "snapshot", "{here}: {problem:#?}");
                let others = if planted == Plant::Swap { 2 } else { 1 };
                assert_eq!(report.problems.len(), others, "{here}: {report:#?}");
                found += 1;
                repaired(&house, planted, id, path, &here);
                house.restore();
            }
        }
        assert_eq!(found, 11 * Plant::ALL.len());
        assert!(check(&house.backend).is_clean());
    });
}

fn repaired(house: &House, planted: Plant, id: ObjectId, path: &str, here: &str) {
    let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert_eq!(done.found.problems.is_empty(), false, "{here}");
    let all_main: BTreeSet<_> = house.main_files.keys().cloned().collect();
    let all_other: BTreeSet<_> = house.other_files.keys().cloned().collect();
    let main = house.readable(house.main, &house.main_files);
    assert_eq!(house.readable(house.other, &house.other_files), all_other, "{here}: the other snapshot is whole");
    if planted.heals() {
        assert!(done.left.is_clean(), "{here}: {:#?}", done.left);
        assert_eq!(main, all_main, "{here}: all can be read again");
        assert!(done.done.contains(&Repaired::Found { id }), "{here}: {:?}", done.done);
    } else {
        let lost = problem_of(&done.left, id);
        assert!(matches!(lost.damage, Damage::Missing | Damage::Dangling), "{here}: {lost:?}");
        assert!(affects(lost, house.main, path), "{here}: {lost:#?}");
        assert_eq!((done.left.problems.len(), done.left.records.len()), (1, 0), "{here}: {:#?}", done.left);
        let reads_on = all_main.iter().filter(|file| !(path.is_empty() || file.starts_with(path)));
        assert!(reads_on.clone().all(|file| main.contains(file)), "{here}: an unaffected path was lost");
        if id.kind == ObjectKind::Directory && house.stored(id)[2] != 0x08 {
            assert!(main.iter().any(|file| file.starts_with("wide/")), "{here}: the other leaves can be read");
        }
        let taken =
            done.done.iter().any(|step| matches!(step, Repaired::Quarantined { id: taken, .. } if *taken == id));
        assert_eq!(taken, planted != Plant::AllGone, "{here}: {:?}", done.done);
        if matches!(planted, Plant::Flip | Plant::Cut) {
            let key = [&[0][..], &id.hash].concat();
            let page = house.backend.rows(Family::Quarantine, &key, None, 1).expect("rows");
            let (kept, value) = &page.rows[0];
            assert_eq!((&kept[..], value[0]), (&key[..], id.kind as u8), "{here}: the bytes are kept");
        }
    }
    let before = all_rows(&*house.backend);
    let again = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert_eq!(again.done, [], "{here}: the second repair has nothing to do");
    assert_eq!(all_rows(&*house.backend), before, "{here}: and changes nothing");
}

#[test]
fn what_was_lost_heals_when_it_is_put_again() {
    over_both(|place| {
        let house = House::new(place.backend());
        let (_, id, _) = house.targets(house.main, 1)[0];
        house.plant(&Plant::Flip, id, id);
        repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert!(!check(&house.backend).is_clean());
        let store = store_over(&house.backend);
        let mut tree = WorkingTree::new(&store);
        tree.write("again", b"small 1").expect("write");
        tree.commit(Commit::new(&name("head/again"), "again")).expect("commit");
        drop(tree);
        assert!(check(&house.backend).is_clean(), "{place:?}");
        assert_eq!(house.readable(house.main, &house.main_files).len(), house.main_files.len());
    });
}

#[test]
fn without_reading_data_chunks_are_looked_up_only() {
    over_both(|place| {
        let house = House::new(place.backend());
        let (_, id, path) = house.targets(house.main, 1)[0];
        let structure = || verify(&store_over(&house.backend), &VerifyOptions::default(), &quiet).expect("a report");
        house.plant(&Plant::Flip, id, id);
        assert!(structure().is_clean(), "{place:?}: their bytes are not read");
        assert!(!check(&house.backend).is_clean());
        house.restore();
        house.plant(&Plant::IndexGone, id, id);
        let report = structure();
        assert_eq!(problem_of(&report, id).damage, Damage::Missing);
        assert!(affects(problem_of(&report, id), house.main, path), "{place:?}: {report:#?}");
    });
}

#[test]
fn damaged_records_are_found_and_made_anew_from_the_log() {
    over_both(|place| {
        let house = House::new(place.backend());
        let log = |number: u64| number.to_be_bytes();
        let row = |family, key: &[u8]| house.sound[&(family, Bytes::copy_from_slice(key))].clone();
        let head = b"head/main";
        let mut other_value = row(Family::Refs, b"head/other");
        other_value = Bytes::from([&log(1)[..], &other_value[8..]].concat());
        let reference = Record::Reference("head/main".to_owned());
        let index_key = house.main.as_bytes();
        let cases: Vec<(&str, Vec<RowEdit>, Record, bool)> = vec![
            ("a reference of no form", vec![put(Family::Refs, head, &b"?"[..])], reference.clone(), true),
            ("a reference that is gone", vec![take(Family::Refs, head)], reference.clone(), true),
            ("a reference to another", vec![put(Family::Refs, head, other_value)], reference, true),
            (
                "a reference nobody made",
                vec![put(Family::Refs, b"head/new", row(Family::Refs, head))],
                Record::Reference("head/new".to_owned()),
                true,
            ),
            ("a request that is gone", vec![take(Family::Requests, head)], Record::Request(head.to_vec()), true),
            (
                "a request for another",
                vec![put(Family::Requests, head, log(2).to_vec())],
                Record::Request(head.to_vec()),
                true,
            ),
            (
                "an index row of no form",
                vec![put(Family::Index, index_key, vec![9, 9])],
                Record::Index(index_key.to_vec()),
                true,
            ),
            (
                "an operation of no form",
                vec![put(Family::Operations, &log(1), &b"\xff"[..])],
                Record::Operation(1),
                false,
            ),
            ("an operation that is gone", vec![take(Family::Operations, &log(1))], Record::Operation(1), false),
            ("the newest operation", vec![take(Family::Operations, &log(2))], Record::Operation(2), false),
        ];
        for (what, edits, record, whole) in cases {
            house.backend.edit(edits).expect("plant");
            let report = check(&house.backend);
            assert!(report.records.iter().any(|problem| problem.record == record), "{place:?}, {what}: {report:#?}");
            assert!(report.records.len() <= 2, "{place:?}, {what}: {report:#?}");
            let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
            assert!(done.left.is_clean(), "{place:?}, {what}: {:#?}", done.left);
            let store = store_over(&house.backend);
            let operations = check_log(&store).expect("the log is whole");
            assert_eq!(operations.len(), 2, "{place:?}, {what}");
            for family in [Family::Refs, Family::Requests, Family::Index] {
                let of = |rows: &Rows| -> Rows {
                    rows.iter().filter(|((of, _), _)| *of == family).map(|(k, v)| (k.clone(), v.clone())).collect()
                };
                assert!(of(&all_rows(&*house.backend)) == of(&house.sound), "{place:?}, {what}: {family:?}");
            }
            let lost = operations.iter().any(|operation| operation.draft.action == "lost");
            assert_eq!(lost, !whole, "{place:?}, {what}");
            let again = repair(&store, &VerifyOptions::default()).expect("repair");
            assert_eq!(again.done, [], "{place:?}, {what}");
            house.restore();
        }
    });
}

/// Rows that no row of the index names.
#[test]
fn loose_rows_are_dropped_named_or_kept_aside() {
    over_both(|place| {
        let house = House::new(place.backend());
        let twin = house.stored(ChunkId::of(b"small 1").object());
        let plant = |at: u64, family, bytes: Bytes| put(family, &(1_000_000 + at).to_be_bytes(), bytes);
        let fresh = Bytes::from_static(b"\0nobody knows");
        house
            .backend
            .edit(vec![
                plant(0, Family::Chunks, twin),
                plant(1, Family::Chunks, fresh),
                plant(2, Family::Trees, Bytes::from_static(b"no object")),
            ])
            .expect("plant");
        let report = check(&house.backend);
        assert!(report.is_clean(), "{place:?}: they do no harm");
        assert_eq!((report.orphans, report.unreachable), (3, 0));
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        let expected = [
            Repaired::Dropped { id: ChunkId::of(b"small 1").object() },
            Repaired::Found { id: ChunkId::of(b"nobody knows").object() },
            Repaired::QuarantinedRow { family: Family::Trees, number: 1_000_002 },
        ];
        assert_eq!(done.done, expected, "{place:?}");
        assert_eq!((done.left.orphans, done.left.unreachable, done.left.quarantined), (0, 1, 1));
        assert!(done.left.is_clean());
    });
}

/// A tree whose objects were written as they are, rules or not.
fn hold(backend: &dyn Inspect, reference: &str, objects: Vec<(ObjectKind, Vec<u8>)>) -> ObjectId {
    let objects: Vec<_> = objects
        .into_iter()
        .map(|(kind, bytes)| {
            let canonical = if kind == ObjectKind::Chunk {
                unpack_chunk(&bytes.clone().into()).expect("raw")
            } else {
                bytes.clone().into()
            };
            StoredObject { id: ObjectId::of(kind, &canonical), bytes: bytes.into() }
        })
        .collect();
    let top = objects.last().expect("a top").id;
    let set = vec![(name(reference), Some(RefValue::to(top)))];
    let operation = Some(OperationDraft { action: "plant".to_owned(), ..OperationDraft::default() });
    let expect = vec![(name(reference), None)];
    backend.transact(Transaction { objects, expect, set, operation, ..Transaction::default() }).expect("planted");
    top
}

#[test]
fn an_object_of_a_newer_version_is_told_and_left_alone() {
    over_both(|place| {
        let house = House::new(place.backend());
        let mut planted = Vec::new();
        for (sort, id, _) in house.targets(house.main, 1).into_iter().filter(|(_, id, _)| id.kind != ObjectKind::Chunk)
        {
            let mut bytes = house.stored(id).to_vec();
            bytes[1] = 2;
            planted.push((sort, hold(&*house.backend, &format!("new/{sort}"), vec![(id.kind, bytes)])));
        }
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!(done.done, [], "{place:?}: nothing is done to them");
        for (sort, id) in &planted {
            assert_eq!(problem_of(&done.left, *id).damage, Damage::UnknownVersion { found: 2 }, "{place:?}, {sort}");
        }
        assert_eq!(done.left.problems.len(), planted.len());
    });
}

fn directory_of(entries: Vec<(&str, Entry)>) -> SequenceNode<Directories> {
    let item =
        |(name, entry): (&str, Entry)| DirectoryItem { name: Name::new(name.as_bytes()).expect("a name"), entry };
    SequenceNode::Leaf(entries.into_iter().map(item).collect())
}

fn root_of(node: &SequenceNode<Directories>, bare: Bare, linked: u64) -> Root {
    let id = amalgam_engine::DirectoryId::of(&node.encode());
    let directory = Entry::new(Node::Directory(Some(DirectoryRef { id, bare, linked })), 0o755, Time::EPOCH);
    Root { directory, links: None, state: None }
}

#[test]
fn objects_that_break_the_rules_are_told_and_left_alone() {
    over_both(|place| {
        let house = House::new(place.backend());
        let file = |content, size| Entry::new(Node::File { size, content }, 0o644, Time::EPOCH);
        let right = directory_of(vec![("a", file(Content::Empty, 0))]);
        let long = directory_of(vec![("a", file(Content::Chunk(ChunkId::of(b"chunk")), 6))]);
        let mut not_canonical = right.encode();
        not_canonical.extend([0x12, 0x05, 0x0a, 0x01, 0x62, 0x10, 0x81]);
        not_canonical.push(0x00);
        not_canonical[9 + 1] = 0x06;
        let mut stolen = Root::decode(&house.stored(house.targets(house.main, 1)[9].1)).expect("a root");
        let other = Root::decode(&house.stored(house.targets(house.other, 2)[9].1)).expect("a root");
        stolen.links = other.links;
        let bad_bare = root_of(&right, Bare::of(b"another"), 0);
        let cases: Vec<(&str, Vec<(ObjectKind, Vec<u8>)>, usize, Malformed)> = vec![
            (
                "bare",
                vec![(ObjectKind::Directory, right.encode()), (ObjectKind::Root, bad_bare.encode())],
                1,
                Malformed::Link,
            ),
            (
                "length",
                vec![
                    (ObjectKind::Chunk, b"\0chunk".to_vec()),
                    (ObjectKind::Directory, long.encode()),
                    (ObjectKind::Root, root_of(&long, long.bare(), 0).encode()),
                ],
                1,
                Malformed::Link,
            ),
            ("links", vec![(ObjectKind::Root, stolen.encode())], 0, Malformed::Link),
            ("encoding", vec![(ObjectKind::Directory, not_canonical)], 0, Malformed::NotCanonical),
        ];
        for (what, objects, to_blame, rule) in cases {
            let (kind, bytes) = objects[to_blame].clone();
            hold(&*house.backend, &format!("bad/{what}"), objects);
            let report = check(&house.backend);
            let found = &problem_of(&report, ObjectId::of(kind, &bytes)).damage;
            assert_eq!(*found, Damage::Malformed { source: rule }, "{place:?}, {what}");
        }
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!((done.done.len(), done.left.problems.len()), (0, 4), "{place:?}: {:#?}", done.left);
    });
}

#[test]
fn history_may_be_thinned() {
    over_both(|place| {
        let backend = place.backend();
        let store = store_over(&backend);
        let mut tree = WorkingTree::new(&store);
        let mut snapshots = Vec::new();
        for turn in 0..4 {
            tree.write("file", format!("turn {turn}").as_bytes()).expect("write");
            snapshots.push(tree.commit(Commit::new(&name("head/main"), "turn")).expect("commit").snapshot);
        }
        let root = store.snapshot(snapshots[2]).expect("there").root;
        drop(tree);
        let report = check(&backend);
        assert!(report.is_clean() && report.unreachable == 0, "{place:?}: history is looked at too: {report:#?}");
        let tree_of_first = store.snapshot(snapshots[0]).expect("there").root;
        backend
            .edit(vec![take(Family::Index, root.as_bytes()), take(Family::Index, snapshots[1].as_bytes())])
            .expect("gone");
        let report = check(&backend);
        assert!(report.is_clean(), "{place:?}: {report:#?}");
        assert_eq!((report.thinned, report.absent), (1, 1), "{place:?}");
        assert!(report.unreachable > 0, "{place:?}: nothing leads to {tree_of_first} any more");
    });
}

/// A repair that is killed between two of its steps is finished by the next one.
#[test]
fn a_repair_that_ends_early_is_finished_by_the_next_one() {
    let plan = Arc::new(FaultPlan::default());
    let house = House::new(Arc::new(Fault::new(Memory::default(), Arc::clone(&plan))));
    let targets = house.targets(house.main, 1);
    let twins = house.targets(house.other, 2);
    for ((at, planted), (_, twin, _)) in [Plant::Flip, Plant::Swap, Plant::RowGone, Plant::IndexGone, Plant::KindWrong]
        .into_iter()
        .enumerate()
        .zip(&twins)
    {
        house.plant(&planted, targets[at].1, *twin);
    }
    house
        .backend
        .edit(vec![take(Family::Refs, b"head/main"), take(Family::Operations, &1_u64.to_be_bytes())])
        .expect("plant");
    let damaged = all_rows(&*house.backend);
    let whole = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
    assert!(whole.done.len() >= 6, "{:?}", whole.done);
    let wanted = all_rows(&*house.backend);
    for steps in 0..whole.done.len() {
        set_rows(&*house.backend, &damaged);
        plan.full_after_writes(i64::try_from(steps).expect("few"));
        repair(&store_over(&house.backend), &VerifyOptions::default()).expect_err("it is ended");
        plan.heal();
        let rest = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!(rest.done.len(), whole.done.len() - steps, "after {steps} steps: {:?}", rest.done);
        let differ: Vec<_> =
            wanted.iter().filter(|(key, value)| all_rows(&*house.backend).get(*key) != Some(*value)).collect();
        assert!(differ.is_empty(), "after {steps} steps: {differ:?}");
        assert_eq!(rest.left.problems.len(), whole.left.problems.len());
    }
}

#[test]
fn it_tells_how_far_it_is_and_can_be_ended() {
    let house = House::new(Place::Memory.backend());
    let store = store_over(&house.backend);
    let last = std::sync::Mutex::new((0, 0, 0, 0));
    let report = verify(&store, &VerifyOptions::reading_data(), &|now| {
        let mut last = last.lock().expect("no panic");
        *last = (now.objects.max(last.0), now.objects_total, now.bytes.max(last.2), now.bytes_total);
        ControlFlow::Continue(())
    });
    let (objects, objects_total, bytes, bytes_total) = *last.lock().expect("no panic");
    assert_eq!((objects, bytes), (objects_total, bytes_total));
    assert_eq!(objects, report.expect("a report").objects);
    let ended = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Break(())).expect("a report");
    assert!(!ended.finished && !ended.is_clean(), "{ended:?}");
}

#[test]
fn a_store_in_use_is_not_repaired() {
    let house = House::new(Place::Memory.backend());
    let store = store_over(&house.backend);
    let session = store.session();
    repair(&store, &VerifyOptions::default()).expect_err("a session is open");
    drop(session);
    let pin = store.pin(house.main);
    repair(&store, &VerifyOptions::default()).expect_err("a pin is held");
    drop(pin);
    repair(&store, &VerifyOptions::default()).expect("nobody uses it");
}
