//! Objects whose bytes have their hash and that are wrong all the same: of a version that is not known, or against the format.

use amalgam_engine::backend::{Inspect, StoredObject, Transaction};
use amalgam_engine::object::{
    Content, Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, LinkMember, Links, Node, Root,
    SequenceNode, Snapshot,
};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::verify::{Damage, VerifyOptions};
use amalgam_engine::{
    Bare, ChunkId, DirectoryId, InvalidName, LinkGroup, LinksId, Malformed, Name, ObjectId, ObjectKind, SnapshotId,
    Time, TreePath, repair, unpack_chunk,
};
use amalgam_tests::harness::{name, over_both};
use bytes::Bytes;

use crate::house::{House, check, problem_of, store_over};

/// Kinds and canonical bytes, children first; a chunk in its stored form.
type Objects = Vec<(ObjectKind, Vec<u8>)>;

/// A tree whose objects were written as they are, rules or not.
fn hold(backend: &dyn Inspect, reference: &str, objects: Objects) -> ObjectId {
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
    let is_new = |object: &StoredObject| !backend.contains_many(&[object.id], 0).expect("look")[0];
    let objects = objects.into_iter().filter(is_new).collect();
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
    let id = DirectoryId::of(&node.encode());
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
        let cases: Vec<(&str, Objects, usize, Malformed)> = vec![
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
            ("names", differing_names(), 2, Malformed::Rule("names of one file that differ")),
            ("encoding", vec![(ObjectKind::Directory, not_canonical)], 0, Malformed::NotCanonical),
            ("count", split(&[["a", "b"], ["c", "d"]], 1), 2, Malformed::Link),
            ("boundary", split(&[["a", "b"], ["c", "d"]], 0), 2, Malformed::Boundary),
            ("depth", nested(2_049), 2_049, Malformed::Name(InvalidName::TooDeep)),
            ("generation", generations(house.main, &house.stored(house.main.object())), 1, Malformed::Link),
        ];
        let planted = cases.len();
        for (what, objects, to_blame, rule) in cases {
            let (kind, bytes) = objects[to_blame].clone();
            hold(&*house.backend, &format!("bad/{what}"), objects);
            let report = check(&house.backend);
            let found = &problem_of(&report, ObjectId::of(kind, &bytes)).damage;
            assert_eq!(*found, Damage::Malformed { source: rule }, "{place:?}, {what}");
        }
        let done = repair(&store_over(&house.backend), &VerifyOptions::default()).expect("repair");
        assert_eq!((done.done.len(), done.left.problems.len()), (0, planted), "{place:?}: {:#?}", done.left);
    });
}

/// Two leaves below an inner node, whose links count `more` items too many.
fn split(leaves: &[[&str; 2]; 2], more: u64) -> Objects {
    let empty = || Entry::new(Node::File { size: 0, content: Content::Empty }, 0o644, Time::EPOCH);
    let leaves = leaves.map(|names| directory_of(names.into_iter().map(|name| (name, empty())).collect()));
    let link = |leaf: &SequenceNode<Directories>| match leaf {
        SequenceNode::Leaf(items) => DirectoryLink {
            first: items[0].name.clone(),
            id: DirectoryId::of(&leaf.encode()),
            bare: leaf.bare(),
            count: 2 + more,
            linked: 0,
        },
        SequenceNode::Inner { .. } => unreachable!("they are leaves"),
    };
    let inner = SequenceNode::<Directories>::Inner { level: 1, links: leaves.iter().map(link).collect() };
    leaves.iter().chain([&inner]).map(|node| (ObjectKind::Directory, node.encode())).collect()
}

/// Two names of one file, with different modes.
fn differing_names() -> Objects {
    let group = LinkGroup::first_seen_at(b"a", 0);
    let linked = |mode| Entry::new(Node::Fifo, mode, Time::EPOCH).with_extra(|extra| extra.link = Some(group));
    let node = directory_of(vec![("a", linked(0o600)), ("b", linked(0o666))]);
    let member = |path: &str| LinkMember { group, path: TreePath::new(path).expect("a path") };
    let list = SequenceNode::<Links>::Leaf(vec![member("a"), member("b")]);
    let root = Root { links: Some(LinksId::of(&list.encode())), ..root_of(&node, node.bare(), 2) };
    vec![(ObjectKind::Directory, node.encode()), (ObjectKind::Links, list.encode()), (ObjectKind::Root, root.encode())]
}

/// Directories inside each other, and the root above them.
fn nested(names: usize) -> Objects {
    let mut objects = Vec::new();
    let mut below = Entry::empty_directory(0o755, Time::EPOCH);
    for _ in 0..names {
        let node = directory_of(vec![("n", below)]);
        below = root_of(&node, node.bare(), 0).directory;
        objects.push((ObjectKind::Directory, node.encode()));
    }
    objects.push((ObjectKind::Root, Root { directory: below, links: None, state: None }.encode()));
    objects
}

/// A snapshot that is said to come before its parent.
fn generations(parent: SnapshotId, bytes: &Bytes) -> Objects {
    let mut old = Snapshot::decode(bytes).expect("a snapshot");
    (old.parents, old.generation) = (vec![parent], 5);
    let mut young = old.clone();
    (young.parents, young.generation) = (vec![SnapshotId::of(&old.encode())], 1);
    [old, young].map(|snapshot| (ObjectKind::Snapshot, snapshot.encode())).to_vec()
}
