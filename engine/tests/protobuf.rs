//! The schema of `docs/FORMAT.md`, written as messages of another encoder. Whatever the engine writes, they read and write
//! back byte for byte: the schema is the format's, and the encoding is plain protobuf.

use std::collections::BTreeSet;

use amalgam_engine::object::{Owner as EngineOwner, outgoing};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue as EngineRefValue, RequestId, Revert};
use amalgam_engine::work::Special;
use amalgam_engine::{Commit, ObjectId, ObjectKind, RefMove, Store, Time, WorkingTree};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct DirectoryNode {
    #[prost(uint32, tag = "1")]
    level: u32,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Entry>,
    #[prost(message, repeated, tag = "3")]
    links: Vec<DirectoryLink>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(uint32, tag = "2")]
    kind: u32,
    #[prost(uint32, tag = "3")]
    mode: u32,
    #[prost(sint64, tag = "4")]
    mtime: i64,
    #[prost(uint64, tag = "5")]
    size: u64,
    #[prost(uint32, tag = "6")]
    form: u32,
    #[prost(bytes = "vec", tag = "7")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "8")]
    bare: Vec<u8>,
    #[prost(uint64, tag = "9")]
    linked: u64,
    #[prost(bytes = "vec", tag = "10")]
    target: Vec<u8>,
    #[prost(uint64, tag = "11")]
    device: u64,
    #[prost(message, repeated, tag = "12")]
    terms: Vec<Term>,
    #[prost(message, optional, tag = "13")]
    owner: Option<Owner>,
    #[prost(message, repeated, tag = "14")]
    xattrs: Vec<Xattr>,
    #[prost(bytes = "vec", tag = "15")]
    xattrs_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "16")]
    link: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Term {
    #[prost(message, optional, boxed, tag = "1")]
    entry: Option<Box<Entry>>,
}

#[derive(Clone, PartialEq, Message)]
struct Owner {
    #[prost(uint32, tag = "1")]
    uid: u32,
    #[prost(uint32, tag = "2")]
    gid: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Xattr {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DirectoryLink {
    #[prost(bytes = "vec", tag = "1")]
    first: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    bare: Vec<u8>,
    #[prost(uint64, tag = "4")]
    count: u64,
    #[prost(uint64, tag = "5")]
    linked: u64,
}

#[derive(Clone, PartialEq, Message)]
struct RopeNode {
    #[prost(uint32, tag = "1")]
    level: u32,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Segment>,
    #[prost(message, repeated, tag = "3")]
    links: Vec<RopeLink>,
}

#[derive(Clone, PartialEq, Message)]
struct Segment {
    #[prost(bytes = "vec", tag = "1")]
    chunk: Vec<u8>,
    #[prost(uint64, tag = "2")]
    length: u64,
}

#[derive(Clone, PartialEq, Message)]
struct RopeLink {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(uint64, tag = "2")]
    length: u64,
    #[prost(uint64, tag = "3")]
    count: u64,
}

#[derive(Clone, PartialEq, Message)]
struct LinksNode {
    #[prost(uint32, tag = "1")]
    level: u32,
    #[prost(message, repeated, tag = "2")]
    items: Vec<Member>,
    #[prost(message, repeated, tag = "3")]
    links: Vec<LinksLink>,
}

#[derive(Clone, PartialEq, Message)]
struct Member {
    #[prost(bytes = "vec", tag = "1")]
    group: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    path: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct LinksLink {
    #[prost(bytes = "vec", tag = "1")]
    group: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    path: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    count: u64,
}

#[derive(Clone, PartialEq, Message)]
struct StateNode {
    #[prost(uint32, tag = "1")]
    level: u32,
    #[prost(message, repeated, tag = "2")]
    items: Vec<State>,
    #[prost(message, repeated, tag = "3")]
    links: Vec<StateLink>,
}

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct StateLink {
    #[prost(bytes = "vec", tag = "1")]
    first: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    id: Vec<u8>,
    #[prost(uint64, tag = "4")]
    count: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Root {
    #[prost(message, optional, tag = "1")]
    directory: Option<Entry>,
    #[prost(bytes = "vec", tag = "2")]
    links: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    state: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Snapshot {
    #[prost(bytes = "vec", tag = "1")]
    root: Vec<u8>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    parents: Vec<Vec<u8>>,
    #[prost(string, tag = "3")]
    author: String,
    #[prost(sint64, tag = "4")]
    time: i64,
    #[prost(string, tag = "5")]
    message: String,
    #[prost(message, repeated, tag = "6")]
    metadata: Vec<Pair>,
    #[prost(uint64, tag = "7")]
    generation: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Pair {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Xattrs {
    #[prost(message, repeated, tag = "1")]
    xattrs: Vec<Xattr>,
}

#[derive(Clone, PartialEq, Message)]
struct RefValue {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(bytes = "vec", tag = "2")]
    hash: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    note: Vec<u8>,
    #[prost(message, repeated, tag = "4")]
    keeps: Vec<Kept>,
}

#[derive(Clone, PartialEq, Message)]
struct Kept {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(bytes = "vec", tag = "2")]
    hash: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Operation {
    #[prost(string, tag = "1")]
    actor: String,
    #[prost(sint64, tag = "2")]
    time: i64,
    #[prost(string, tag = "3")]
    action: String,
    #[prost(bytes = "vec", tag = "4")]
    request: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    changes: Vec<RefChange>,
    #[prost(uint64, tag = "6")]
    undoes: u64,
    #[prost(uint64, tag = "7")]
    redoes: u64,
}

#[derive(Clone, PartialEq, Message)]
struct RefChange {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    before: Option<RefValue>,
    #[prost(message, optional, tag = "3")]
    after: Option<RefValue>,
    #[prost(uint64, tag = "4")]
    previous: u64,
}

fn again<M: Message + Default>(body: &[u8]) -> Vec<u8> {
    M::decode(body).expect("the schema reads it").encode_to_vec()
}

/// Reads an object by the schema and writes it once more.
fn round_trip(kind: ObjectKind, object: &[u8]) {
    assert_eq!(object[..2], [kind as u8, 1], "kind and version");
    let body = &object[2..];
    let written = match kind {
        ObjectKind::Chunk => panic!("a chunk has no body"),
        ObjectKind::Rope => again::<RopeNode>(body),
        ObjectKind::Directory => again::<DirectoryNode>(body),
        ObjectKind::Root => again::<Root>(body),
        ObjectKind::Snapshot => again::<Snapshot>(body),
        ObjectKind::Links => again::<LinksNode>(body),
        ObjectKind::State => again::<StateNode>(body),
        ObjectKind::Xattrs => again::<Xattrs>(body),
    };
    assert_eq!(written, body, "a {kind}");
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[test]
fn the_golden_bytes() {
    let mut kinds = BTreeSet::new();
    let mut records = 0;
    for line in include_str!("golden/v1.txt").lines() {
        let Some((name, value)) = line.split_once(" = ") else { continue };
        let Some(bytes) = unhex(value) else { continue };
        match name {
            "record/reference" => assert_eq!(again::<RefValue>(&bytes), bytes),
            "record/operation" => assert_eq!(again::<Operation>(&bytes), bytes),
            _ if name.starts_with("object/") && name.ends_with(" bytes") && name != "object/chunk bytes" => {
                let kind = ObjectKind::from_number(bytes[0]).expect("a kind");
                round_trip(kind, &bytes);
                kinds.insert(kind);
                continue;
            }
            _ => continue,
        }
        records += 1;
    }
    assert_eq!((kinds.len(), records), (6, 2), "every kind but chunks and the long attributes, and both records");
}

/// A tree with something of everything, large enough for inner nodes of every sequence.
fn large_tree(store: &Store, seed: u64) -> ObjectId {
    let mut state = seed | 1;
    let mut random = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut tree = WorkingTree::new(store);
    for number in 0..600 {
        tree.set_now(Time(random(1 << 60).cast_signed() - (1 << 59)));
        let path = format!("{}/{number}", random(3));
        tree.create_directories(path.split('/').next().expect("a part")).expect("made");
        match random(6) {
            0 => tree.symlink(&path, "target").expect("made"),
            1 => tree.create_special(&path, Special::Fifo, 0o600).expect("made"),
            2 => {
                let device = amalgam_engine::object::Device { major: random(9) as u32, minor: random(9) as u32 };
                tree.create_special(&path, Special::BlockDevice(device), 0o600).expect("made");
            }
            _ => {
                tree.write(&path, &vec![number as u8; random(300) as usize]).expect("written");
                tree.link(&path, format!("{path}-too")).expect("linked");
            }
        }
        if random(5) == 0 {
            let owner = EngineOwner { uid: random(2_000) as u32, gid: random(2) as u32 };
            tree.set_owner(&path, Some(owner)).expect("set");
            tree.set_xattr(&path, b"user.a", &vec![1; random(1_500) as usize]).expect("set");
        }
        tree.set_state(&format!("key{number}"), &number.to_string()).expect("set");
    }
    let noise: Vec<u8> = (0..400_000).flat_map(|_| random(u64::MAX).to_le_bytes()).collect();
    tree.write("noise", &noise).expect("written");
    tree.truncate("noise", 5_000_000).expect("lengthened");
    let head = RefName::new("head").expect("a name");
    let mut commit = Commit::new(&head, "large").by("ann", Time(-5));
    commit.metadata.insert("key".to_owned(), String::new());
    tree.commit(commit).expect("committed").snapshot.object()
}

#[test]
fn whatever_a_commit_writes() {
    for seed in [1, 2, 3] {
        let store = Store::in_memory();
        let mut open = vec![large_tree(&store, seed)];
        let mut seen = BTreeSet::new();
        let mut inner = BTreeSet::new();
        while let Some(id) = open.pop() {
            if !seen.insert(id) || id.kind == ObjectKind::Chunk {
                continue;
            }
            let bytes = store.canonical(id).expect("stored");
            round_trip(id.kind, &bytes);
            if bytes[2] == 1 << 3 {
                inner.insert(id.kind);
            }
            open.extend(outgoing(id.kind, &bytes).expect("valid").strong);
        }
        let kinds: BTreeSet<_> = seen.iter().map(|id| id.kind).collect();
        assert_eq!(kinds.len(), ObjectKind::ALL.len(), "seed {seed}: {kinds:?}");
        assert_eq!(inner.len(), 4, "seed {seed}: every sequence has inner nodes, {inner:?}");
    }
}

#[test]
fn whatever_a_transaction_records() {
    let store = Store::in_memory();
    let (one, two) = (RefName::new("one").expect("a name"), RefName::new("two/zwei").expect("a name"));
    let tree = large_tree(&store, 9);
    let value = EngineRefValue { target: Some(tree), keeps: vec![tree], note: bytes::Bytes::from_static(b"a note") };
    let steps = [
        (vec![(one.clone(), None), (two.clone(), None)], vec![(one.clone(), Some(value.clone())), (two, None)]),
        (vec![(one.clone(), Some(value.clone()))], vec![(one.clone(), Some(EngineRefValue::default()))]),
        (vec![(one.clone(), Some(EngineRefValue::default()))], vec![(one, None)]),
    ];
    for (number, (expect, set)) in steps.into_iter().enumerate() {
        let operation = OperationDraft {
            actor: "ann".to_owned(),
            time: Time(-1),
            action: String::new(),
            request: (number > 0).then(|| RequestId::new([number as u8; 128]).expect("an id")),
            reverts: [None, Some(Revert::Undo(1)), Some(Revert::Redo(1))][number],
        };
        let refs = RefMove { expect, set, operation, ..RefMove::default() };
        store.session().commit(value.target.expect("a target"), refs).expect("done");
    }
    let log = store.list_operations(0, 10).expect("listed");
    assert_eq!(log.len(), 4, "the tree's commit, and the three steps");
    for operation in log {
        let bytes = operation.encode();
        assert_eq!(again::<Operation>(&bytes), bytes);
        for value in operation.changes.iter().flat_map(|change| [&change.before, &change.after]).flatten() {
            assert_eq!(again::<RefValue>(&value.encode()), value.encode());
        }
    }
}
