//! The bytes of the format, version 1, against `golden/v1.txt`.
//!
//! A line there that no longer holds means that every store is unreadable or quietly keeps everything twice. So no line is
//! ever edited or removed: bytes that change are a new version of the format, with lines of its own beside the old ones.
//! `docs/FORMAT.md` explains them, and takes its examples from here.

use std::collections::BTreeMap;

use amalgam_engine::backend::{Family, Inspect, Memory, StoredObject, Transaction};
use amalgam_engine::content::{ByteSource, write_content};
use amalgam_engine::object::codec::{Reader, Value};
use amalgam_engine::object::{
    Conflict, Content, Device, Directories, DirectoryItem, DirectoryLink, DirectoryRef, Entry, LinkLink, LinkMember,
    Links, Node, Owner, Root, RopeLink, Ropes, Segment, SegmentSource, Sequence, SequenceNode, Settled, Snapshot,
    StateItem, StateLink, States, Xattr, Xattrs, check,
};
use amalgam_engine::reference::{Operation, OperationDraft, RefChange, RefName, RefValue, RequestId, Revert};
use amalgam_engine::{
    Bare, ChunkId, Commit, DirectoryId, LinkGroup, Name, ObjectId, ObjectKind, RefMove, Result, RootId, RopeId,
    SnapshotId, Store, StoreOptions, Time, TreePath, WorkingTree, WriteSession, XattrsId, unpack_chunk,
};
use bytes::Bytes;

const GOLDEN: &str = include_str!("golden/v1.txt");

/// Compares what a test found with the lines of its group, both ways: a line that is not found any more fails too.
fn compare(group: &str, found: &[(String, String)]) {
    let lines = GOLDEN.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expected: Vec<(String, String)> = lines
        .map(|line| line.split_once(" = ").expect("a line is `name = value`"))
        .filter(|(name, _)| name.starts_with(group))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "the format changed: this needs a new version, not a new line");
    }
    let text: String = found.iter().map(|(name, value)| format!("{name} = {value}\n")).collect();
    assert_eq!(found.len(), expected.len(), "lines were added or removed; found:\n{text}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("a name")
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a path")
}

/// 1,700,000,000.000000001 seconds after 1970.
const TIME: Time = Time(1_700_000_000_000_000_001);

fn hello() -> ChunkId {
    ChunkId::of(b"hello")
}

fn file(text: &[u8]) -> Entry {
    Entry::new(Node::File { size: text.len() as u64, content: Content::Chunk(ChunkId::of(text)) }, 0o644, TIME)
}

fn leaf(items: &[(&str, Entry)]) -> SequenceNode<Directories> {
    SequenceNode::Leaf(
        items.iter().map(|(text, entry)| DirectoryItem { name: name(text), entry: entry.clone() }).collect(),
    )
}

fn reference(node: &SequenceNode<Directories>, linked: u64) -> DirectoryRef {
    DirectoryRef { id: DirectoryId::of(&node.encode()), bare: node.bare(), linked }
}

fn conflict(terms: Vec<Option<Entry>>) -> Entry {
    match Conflict::settle(terms).expect("terms") {
        Settled::Conflicted(conflict) => Entry::new(Node::Conflict(conflict.into()), 0, Time::EPOCH),
        Settled::Resolved(_) => panic!("the terms differ"),
    }
}

fn with(mut entry: Entry, change: impl FnOnce(&mut amalgam_engine::object::Extra)) -> Entry {
    change(entry.extra.get_or_insert_default());
    entry
}

fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: Bytes::copy_from_slice(name.as_bytes()), value: Bytes::copy_from_slice(value) }
}

/// One entry of every kind, each the only one of its directory.
fn entries() -> Vec<(&'static str, Entry)> {
    let plain = |node| Entry::new(node, 0o644, TIME);
    let rope = RopeId::of(&two_chunks().encode());
    let below = leaf(&[("hello", file(b"hello"))]);
    vec![
        ("file", file(b"hello")),
        ("empty-file", Entry::new(Node::File { size: 0, content: Content::Empty }, 0, Time::EPOCH)),
        ("rope-file", plain(Node::File { size: 70_000, content: Content::Rope(rope) })),
        ("hole-file", plain(Node::File { size: 65_536, content: Content::Hole })),
        ("directory", Entry::new(Node::Directory(Some(reference(&below, 0))), 0o755, TIME)),
        ("empty-directory", Entry::empty_directory(0o1777, Time(-1))),
        ("symlink", Entry::new(Node::Symlink(Bytes::from_static(b"../target")), 0o777, TIME)),
        ("fifo", plain(Node::Fifo)),
        ("socket", plain(Node::Socket)),
        ("char-device", plain(Node::CharDevice(Device { major: 1, minor: 3 }))),
        ("block-device", plain(Node::BlockDevice(Device { major: 0, minor: 0 }))),
        ("owner", with(file(b"hello"), |extra| extra.owner = Some(Owner { uid: 1_000, gid: 0 }))),
        ("root-owner", with(file(b"hello"), |extra| extra.owner = Some(Owner { uid: 0, gid: 0 }))),
        (
            "xattrs",
            with(file(b"hello"), |extra| {
                extra.xattrs = Xattrs::Inline(vec![xattr("user.a", b""), xattr("user.b", b"1")]);
            }),
        ),
        ("xattrs-apart", with(file(b"hello"), |extra| extra.xattrs = Xattrs::Apart(XattrsId::of(b"some")))),
        ("linked", with(file(b"hello"), |extra| extra.link = Some(LinkGroup::first_seen_at(b"a", 0)))),
        ("conflict", conflict(vec![Some(file(b"ours")), Some(file(b"base")), Some(file(b"theirs"))])),
        ("conflict-with-absence", conflict(vec![Some(file(b"ours")), Some(file(b"base")), None])),
    ]
}

fn two_chunks() -> SequenceNode<Ropes> {
    SequenceNode::Leaf(vec![
        Segment { length: 5, source: SegmentSource::Chunk(hello()) },
        Segment { length: 69_995, source: SegmentSource::Hole },
    ])
}

fn members() -> Vec<LinkMember> {
    let group = LinkGroup::first_seen_at(b"a", 0);
    ["a", "dir/b"].map(|text| LinkMember { group, path: path(text) }).into()
}

/// Objects with their kinds, each by name.
fn objects() -> Vec<(String, ObjectKind, Vec<u8>)> {
    let rope = two_chunks();
    let rope_link = RopeLink { id: RopeId::of(&rope.encode()), count: 2, length: 70_000 };
    let directory = leaf(&[("a", file(b"a")), ("b", with(file(b"b"), |extra| extra.link = members()[0].group.into()))]);
    let link = |first: &str| DirectoryLink {
        first: name(first),
        id: DirectoryId::of(&directory.encode()),
        bare: directory.bare(),
        count: 2,
        linked: 1,
    };
    let links = SequenceNode::<Links>::Leaf(members());
    let link_link = |first: &LinkMember| LinkLink {
        first: first.clone(),
        id: amalgam_engine::LinksId::of(&links.encode()),
        count: 2,
    };
    let state = SequenceNode::<States>::Leaf(vec![StateItem::new("key", "{\"n\": 1}").expect("a value")]);
    let state_link = |first: &str| StateLink {
        first: Bytes::copy_from_slice(first.as_bytes()),
        id: amalgam_engine::StateId::of(&state.encode()),
        count: 1,
    };
    let empty_root = Root { directory: Entry::empty_directory(0o755, Time::EPOCH), links: None, state: None };
    let root = Root {
        directory: Entry::new(Node::Directory(Some(reference(&directory, 1))), 0o755, TIME),
        links: Some(amalgam_engine::LinksId::of(&links.encode())),
        state: Some(amalgam_engine::StateId::of(&state.encode())),
    };
    let first = Snapshot {
        root: empty_root.id(),
        parents: Vec::new(),
        author: String::new(),
        time: Time::EPOCH,
        message: String::new(),
        metadata: BTreeMap::new(),
        generation: 0,
    };
    let merge = Snapshot {
        root: root.id(),
        parents: vec![SnapshotId::of(b"theirs"), SnapshotId::of(b"ours")],
        author: "ann".to_owned(),
        time: TIME,
        message: "merge\n".to_owned(),
        metadata: BTreeMap::from([("a".to_owned(), "1".to_owned()), ("b".to_owned(), String::new())]),
        generation: 300,
    };
    let mut objects = vec![
        ("chunk".to_owned(), ObjectKind::Chunk, b"hello".to_vec()),
        ("rope/leaf".to_owned(), ObjectKind::Rope, rope.encode()),
        (
            "rope/inner".to_owned(),
            ObjectKind::Rope,
            SequenceNode::<Ropes>::Inner { level: 1, links: vec![rope_link, rope_link] }.encode(),
        ),
        (
            "directory/inner".to_owned(),
            ObjectKind::Directory,
            SequenceNode::<Directories>::Inner { level: 1, links: vec![link("a"), link("c")] }.encode(),
        ),
        ("links/leaf".to_owned(), ObjectKind::Links, links.encode()),
        (
            "links/inner".to_owned(),
            ObjectKind::Links,
            SequenceNode::<Links>::Inner { level: 1, links: members().iter().map(link_link).collect() }.encode(),
        ),
        ("state/leaf".to_owned(), ObjectKind::State, state.encode()),
        (
            "state/inner".to_owned(),
            ObjectKind::State,
            SequenceNode::<States>::Inner { level: 2, links: vec![state_link("key"), state_link("z")] }.encode(),
        ),
        ("root/empty".to_owned(), ObjectKind::Root, empty_root.encode()),
        ("root/full".to_owned(), ObjectKind::Root, root.encode()),
        ("snapshot/first".to_owned(), ObjectKind::Snapshot, first.encode()),
        ("snapshot/merge".to_owned(), ObjectKind::Snapshot, merge.encode()),
        ("xattrs".to_owned(), ObjectKind::Xattrs, large_xattrs()),
    ];
    for (text, entry) in entries() {
        objects.push((format!("directory/{text}"), ObjectKind::Directory, leaf(&[("n", entry)]).encode()));
    }
    objects
}

/// Two attributes with 1,025 bytes together, as a working tree writes them.
fn large_xattrs() -> Vec<u8> {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"").expect("write");
    tree.set_xattr("file", b"user.a", &[b'x'; 1_012]).expect("set");
    tree.set_xattr("file", b"user.b", b"y").expect("set");
    commit(&mut tree);
    let entry = tree.stat("file").expect("stat").expect("there").entry.expect("stored");
    match entry.xattrs() {
        Xattrs::Apart(id) => store.canonical(id.object()).expect("stored").to_vec(),
        other => panic!("over 1 KiB lies apart, not {other:?}"),
    }
}

fn commit(tree: &mut WorkingTree) -> RootId {
    let head = RefName::new("head").expect("a name");
    let done = tree.commit(Commit::new(&head, "")).expect("a commit");
    tree.store().snapshot(done.snapshot).expect("stored").root
}

#[test]
fn objects_have_their_bytes_and_ids() {
    let mut found = Vec::new();
    for (text, kind, bytes) in objects() {
        assert_eq!(check(kind, &Bytes::copy_from_slice(&bytes)), Ok(()), "{text} is valid");
        // The long one is shown by its beginning, length and id.
        let shown =
            if bytes.len() > 600 { format!("{}… {} bytes", hex(&bytes[..24]), bytes.len()) } else { hex(&bytes) };
        found.push((format!("object/{text} bytes"), shown));
        found.push((format!("object/{text} id"), hex(&ObjectId::of(kind, &bytes).hash)));
    }
    for (text, entry) in entries() {
        found.push((format!("object/directory/{text} bare"), leaf(&[("n", entry)]).bare().to_string()));
    }
    compare("object/", &found);
}

#[test]
fn hashes_have_their_keys() {
    let mut found: Vec<_> = ObjectKind::ALL
        .iter()
        .map(|kind| (format!("hash/{kind} of nothing"), hex(&ObjectId::of(*kind, b"").hash)))
        .collect();
    found.push(("hash/bare of nothing".to_owned(), Bare::of(b"").to_string()));
    for attempt in [0, 1] {
        let group = LinkGroup::first_seen_at(b"dir/file", attempt);
        found.push((format!("hash/link group of dir/file, attempt {attempt}"), group.to_string()));
    }
    compare("hash/", &found);
}

#[test]
fn cut_decisions_have_their_hashes() {
    let item = |text: &str| DirectoryItem { name: name(text), entry: file(b"a") };
    let link = |text: &str| DirectoryLink {
        first: name(text),
        id: DirectoryId::from_bytes([0; 32]),
        bare: Bare::from_bytes([0; 32]),
        count: 1,
        linked: 0,
    };
    let mut found = Vec::new();
    for text in ["a", "b", "name", "päron"] {
        found.push((format!("cut/name {text}"), format!("{:016x}", Directories::item_hash(&item(text)))));
    }
    for level in [1, 2, 32] {
        let hash = Directories::link_hash(&link("name"), level);
        found.push((format!("cut/name name at level {level}"), format!("{hash:016x}")));
    }
    found.push(("cut/link a".to_owned(), format!("{:016x}", Links::item_hash(&members()[0]))));
    let key = StateItem::new("key", "1").expect("a value");
    found.push(("cut/state key".to_owned(), format!("{:016x}", States::item_hash(&key))));
    let chunk = Segment { length: 5, source: SegmentSource::Chunk(hello()) };
    found.push(("cut/chunk hello".to_owned(), format!("{:016x}", Ropes::item_hash(&chunk))));
    let hole = Segment { length: 65_536, source: SegmentSource::Hole };
    found.push(("cut/hole of 65536".to_owned(), format!("{:016x}", Ropes::item_hash(&hole))));
    compare("cut/", &found);
}

/// xorshift64 from a fixed seed, eight bytes at a time, little-endian.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(bytes).collect()
}

/// Zeros with some bytes at the end: large, but cheap to read.
struct Sparse {
    zeros: u64,
    tail: Vec<u8>,
}

impl ByteSource for Sparse {
    fn length(&self) -> u64 {
        self.zeros + self.tail.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        for (place, at) in buffer.iter_mut().zip(offset..) {
            *place = at.checked_sub(self.zeros).map_or(0, |index| self.tail[index as usize]);
        }
        Ok(())
    }

    fn known_zeros(&self, offset: u64) -> Result<u64> {
        Ok(self.zeros.saturating_sub(offset))
    }
}

/// The segments of a content as text: `8192` is a chunk, `(65536)` a hole.
fn segments<B: ByteSource>(source: &B) -> (String, String) {
    let store = Store::in_memory();
    let session = store.session();
    let content = write_content(&session, source).expect("written");
    session.commit(empty_root(&store), RefMove::default()).expect("committed");
    match content {
        Content::Empty => ("empty".to_owned(), "none".to_owned()),
        Content::Hole => ("hole".to_owned(), format!("({})", source.length())),
        Content::Chunk(id) => (format!("chunk {id}"), source.length().to_string()),
        Content::Rope(id) => {
            let mut lengths = Vec::new();
            collect(&store, id, &mut lengths);
            (format!("rope {id}"), lengths.join(" "))
        }
    }
}

fn empty_root(store: &Store) -> RootId {
    let session: WriteSession = store.session();
    let root = Root { directory: Entry::empty_directory(0o755, Time::EPOCH), links: None, state: None };
    session.put_root(&root).expect("put")
}

fn collect(store: &Store, rope: RopeId, lengths: &mut Vec<String>) {
    let bytes = store.canonical(rope.object()).expect("stored");
    let mut node = Reader::object(ObjectKind::Rope, &bytes).expect("a rope");
    while let Some((field, value)) = node.next_field().expect("a field") {
        if field == 1 {
            continue;
        }
        let (mut id, mut length) = (None, 0);
        let mut item = value.message(field).expect("a message");
        while let Some((number, value)) = item.next_field().expect("a field") {
            match (number, value) {
                (1, value) => id = Some(value.hash(1).expect("a hash")),
                (2, Value::Number(value)) => length = value,
                _ => {}
            }
        }
        match (field, id) {
            (2, Some(_)) => lengths.push(length.to_string()),
            (2, None) => lengths.push(format!("({length})")),
            (_, id) => collect(store, RopeId::from_bytes(id.expect("a link")), lengths),
        }
    }
}

#[test]
fn contents_have_their_cuts() {
    let noise_around_zeros = [&noise(100_000)[..], &[0; 70_000], &noise(2_001), &[0; 65_535], &noise(30_000)].concat();
    let text: Vec<u8> = (0..20_000).flat_map(|line| format!("line {line}\n").into_bytes()).collect();
    let in_memory: Vec<(&str, Vec<u8>)> = vec![
        ("nothing", Vec::new()),
        ("65536 zeros", vec![0; 65_536]),
        ("65535 zeros", vec![0; 65_535]),
        ("65536 of noise", noise(65_536)),
        ("65537 of noise", noise(65_537)),
        ("1048576 of noise", noise(1 << 20)),
        ("20000 lines", text),
        ("200000 times x", vec![b'x'; 200_000]),
        ("noise around zeros", noise_around_zeros),
    ];
    let mut found = Vec::new();
    for (text, bytes) in in_memory {
        let (content, cuts) = segments(&&bytes[..]);
        found.push((format!("content/{text}"), content));
        found.push((format!("content/{text}, cuts"), cuts));
    }
    let class_border = (64 << 20) - (1 << 20);
    for (text, zeros) in [("64 MiB", class_border), ("64 MiB + 1", class_border + 1)] {
        let (content, cuts) = segments(&Sparse { zeros, tail: noise(1 << 20) });
        found.push((format!("content/{text} with noise in the last MiB"), content));
        found.push((format!("content/{text} with noise in the last MiB, cuts"), cuts));
    }
    compare("content/", &found);
}

#[test]
fn trees_have_their_ids() {
    let mut found = Vec::new();
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.set_now(TIME);
    tree.create_directories("src/deep").expect("made");
    tree.write("src/main.rs", b"fn main() {}\n").expect("written");
    tree.write("noise", &noise(200_000)).expect("written");
    tree.symlink("link", "src/main.rs").expect("made");
    tree.link("src/main.rs", "src/deep/main.rs").expect("made");
    tree.set_xattr("noise", b"user.kind", b"noise").expect("set");
    tree.set_state("step", "7").expect("set");
    let root = commit(&mut tree);
    found.push(("tree/small id".to_owned(), root.to_string()));
    found.push(("tree/small bare".to_owned(), store.root(root).expect("stored").bare().to_string()));

    let mut tree = WorkingTree::new(&Store::in_memory());
    tree.create_directory("many", 0o755).expect("made");
    for number in 0..10_000 {
        tree.write(format!("many/{number:05}"), b"").expect("written");
    }
    commit(&mut tree);
    match tree.stat("many").expect("stat").expect("there").entry.expect("stored").node {
        Node::Directory(Some(contents)) => {
            found.push(("tree/10000 names id".to_owned(), contents.id.to_string()));
            found.push(("tree/10000 names bare".to_owned(), contents.bare.to_string()));
        }
        other => panic!("not a directory: {other:?}"),
    }
    compare("tree/", &found);
}

fn change(name: &str, before: Option<RefValue>, after: Option<RefValue>, previous: u64) -> RefChange {
    RefChange { name: RefName::new(name).expect("a name"), before, after, previous }
}

#[test]
fn records_have_their_bytes() {
    let kept = hello().object();
    let value = RefValue { target: Some(kept), keeps: vec![kept], note: Bytes::from_static(b"note") };
    let operation = Operation {
        sequence: 7,
        draft: OperationDraft {
            actor: "ann".to_owned(),
            time: TIME,
            action: "commit".to_owned(),
            request: Some(RequestId::new(b"request").expect("an id")),
            reverts: Some(Revert::Undo(5)),
        },
        changes: vec![
            change("head/main", None, Some(value.clone()), 0),
            change("x", Some(RefValue::default()), None, 3),
        ],
    };
    assert_eq!(RefValue::decode(value.encode().into()), Ok(value.clone()));
    assert_eq!(Operation::decode(7, operation.encode().into()), Ok(operation.clone()));
    let found = [
        ("record/reference".to_owned(), hex(&value.encode())),
        ("record/empty reference".to_owned(), format!("{:?}", RefValue::default().encode())),
        ("record/operation".to_owned(), hex(&operation.encode())),
    ];
    compare("record/", &found);
}

/// The compressed bytes are not golden, since versions of zstd differ; that old ones still unpack is.
#[test]
fn stored_chunks_still_unpack() {
    let raw = [&[b'a'; 500][..], &[b'b'; 500]].concat();
    let stored = [("0068656c6c6f", b"hello".to_vec()), ("01e803000028b52ffd00006d0000186161620200f04015ef2ac002", raw)];
    for (form, raw) in stored {
        let bytes: Vec<u8> =
            (0..form.len()).step_by(2).map(|at| u8::from_str_radix(&form[at..at + 2], 16).expect("hex")).collect();
        let bytes = Bytes::from(bytes);
        assert_eq!(unpack_chunk(&bytes).expect("unpacked"), raw);
        let id = ChunkId::of(&raw);
        let backend = Memory::default();
        let objects = vec![StoredObject { id: id.object(), bytes }];
        let backend: std::sync::Arc<dyn Inspect> = {
            use amalgam_engine::backend::Backend as _;
            backend.transact(Transaction { objects, ..Transaction::default() }).expect("put");
            std::sync::Arc::new(backend)
        };
        let store = Store::new(backend, &StoreOptions::default());
        assert_eq!(store.chunk(id, raw.len() as u64).expect("read"), raw);
    }
}

/// Marks are no part of a snapshot; that those which are stored are still understood is golden all the same.
#[test]
fn stored_snapshots_have_their_marks() {
    let backend = std::sync::Arc::new(Memory::default());
    let store = Store::new(std::sync::Arc::clone(&backend) as _, &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    tree.create_directory("src", 0o755).expect("made");
    tree.write("src/main.rs", b"hello").expect("written");
    commit(&mut tree);
    tree.write("src/main.rs", b"fn main() {}\n").expect("written");
    commit(&mut tree);
    let rows = backend.rows(Family::Snapshots, &[], None, usize::MAX).expect("rows").rows;
    let found: Vec<_> = ["first", "second"]
        .into_iter()
        .zip(rows)
        .map(|(number, (_, row))| (format!("stored/{number} snapshot"), hex(&row)))
        .collect();
    compare("stored/", &found);
}

/// Nothing in the file is left unread.
#[test]
fn every_golden_line_belongs_to_a_group() {
    let groups = ["object/", "hash/", "cut/", "content/", "tree/", "record/", "stored/"];
    for line in GOLDEN.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        assert!(groups.iter().any(|group| line.starts_with(group)), "{line}");
    }
}
