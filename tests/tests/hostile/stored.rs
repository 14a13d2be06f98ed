//! Objects that lie in the store already, filed under their right hash, and are not what the engine would have written.
//! Reading says so; it neither panics nor goes on with wrong bytes.

use std::sync::Arc;

use amalgam_engine::backend::{Backend as _, Memory, StoredObject, Transaction};
use amalgam_engine::object::{
    Content, Directories, DirectoryLink, Entry, Node, RopeLink, Ropes, Segment, SegmentSource, SequenceNode, Xattrs,
};
use amalgam_engine::{
    Bare, ChunkId, Commit, DEPTH_MAX, DiffOptions, DirectoryId, Error, ErrorKind, InvalidName, Malformed, Name,
    ObjectId, ObjectKind, RefName, Result, RootId, RopeId, Store, StoreOptions, Time, WorkingTree, XattrsId,
    diff_roots,
};
use bytes::Bytes;

use super::claims::{Leaf, fifo, item, reference, root, rope_link};
use super::limits::bounded;
use super::raw;

/// A store whose objects were put behind its back.
#[derive(Default)]
struct Planted(Memory);

impl Planted {
    fn put(&self, kind: ObjectKind, canonical: &[u8]) -> ObjectId {
        let stored = match kind {
            ObjectKind::Chunk => [&[0], canonical].concat(),
            _ => canonical.to_vec(),
        };
        let id = ObjectId::of(kind, canonical);
        let objects = vec![StoredObject { id, bytes: stored.into() }];
        self.0.transact(Transaction { objects, ..Transaction::default() }).expect("put");
        id
    }

    fn directory(&self, node: &Leaf) -> RootId {
        self.put(ObjectKind::Directory, &node.encode());
        self.root(&root(Some(reference(node))).encode())
    }

    fn file(&self, size: u64, content: Content) -> RootId {
        self.directory(&SequenceNode::Leaf(vec![item(
            "file",
            Entry::new(Node::File { size, content }, 0o644, Time::EPOCH),
        )]))
    }

    fn root(&self, canonical: &[u8]) -> RootId {
        RootId::from_bytes(self.put(ObjectKind::Root, canonical).hash)
    }

    fn open(self, root: RootId) -> Result<WorkingTree> {
        WorkingTree::open_root(&Store::new(Arc::new(self.0), &StoreOptions::default()), root)
    }
}

/// Everything that can be asked of a tree by reading, until the first error.
fn read_all(tree: &WorkingTree) -> Result<()> {
    let mut open = vec![String::new()];
    while let Some(path) = open.pop() {
        let stat = tree.stat(&path)?.expect("it was listed");
        tree.xattrs(&path)?;
        match stat.kind {
            amalgam_engine::object::EntryKind::File => drop(tree.read_at(&path, 0, 1 << 20)?),
            amalgam_engine::object::EntryKind::Directory => {
                for child in tree.list(&path)? {
                    let (name, _) = child?;
                    open.push(if path.is_empty() { name.to_string() } else { format!("{path}/{name}") });
                }
            }
            _ => {}
        }
    }
    tree.state("key").map(drop)
}

fn diff_all(store: &Store, root: RootId) -> Result<()> {
    diff_roots(store, None, Some(root), DiffOptions { times: true, ..DiffOptions::default() })?
        .try_for_each(|change| change.map(drop))
}

/// Reads a tree, compares it with nothing, edits and commits it; returns the first error of each.
fn use_tree(planted: Planted, root: RootId) -> [Option<ErrorKind>; 3] {
    bounded(64 << 20, move || {
        let kind = |result: Result<()>| result.err().map(|error| error.kind());
        let tree = planted.open(root);
        let mut tree = match tree {
            Ok(tree) => tree,
            Err(error) => return [Some(error.kind()); 3],
        };
        let read = kind(read_all(&tree));
        let compared = kind(diff_all(tree.store(), root));
        let edited = (|| {
            if tree.exists("file")? {
                tree.write_at("file", 66_000, b"edited")?;
                tree.truncate("file", 70_001)?;
                tree.link("file", "linked")?;
            }
            tree.write("new", b"new")?;
            tree.rename("new", "newer", amalgam_engine::work::RenameMode::Replace)?;
            tree.set_state("key", "1")?;
            let head = RefName::new("head").expect("a name");
            tree.commit(Commit::new(&head, "")).map(drop)
        })();
        [read, compared, kind(edited)]
    })
}

const CORRUPT: Option<ErrorKind> = Some(ErrorKind::Corrupt);

fn fifos(names: &[&str]) -> Leaf {
    SequenceNode::Leaf(names.iter().map(|name| item(name, fifo())).collect())
}

fn link(node: &Leaf, first: &str) -> DirectoryLink {
    let first = Name::new(first.as_bytes()).expect("a name");
    DirectoryLink { first, id: DirectoryId::of(&node.encode()), bare: node.bare(), count: node.count(), linked: 0 }
}

#[test]
fn directories_that_are_none() {
    let garbage = |bytes: &[u8]| {
        let planted = Planted::default();
        planted.put(ObjectKind::Directory, bytes);
        let contents =
            amalgam_engine::object::DirectoryRef { id: DirectoryId::of(bytes), bare: Bare::of(b""), linked: 0 };
        let id = planted.root(&root(Some(contents)).encode());
        use_tree(planted, id)
    };
    for (text, bytes) in [
        ("nothing", &b""[..]),
        ("noise", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("a rope", &raw::object(ObjectKind::Rope, &[raw::bytes(2, raw::number(2, 70_000))])),
        ("a bad name", &raw::directory(&[raw::fifo("..")])),
        ("unsorted", &raw::directory(&[raw::fifo("b"), raw::fifo("a")])),
        ("no items", b"\x03\x01"),
    ] {
        assert_eq!(garbage(bytes), [CORRUPT; 3], "{text}");
    }
    let newer = garbage(b"\x03\x02");
    assert_eq!(newer, [Some(ErrorKind::Unsupported); 3], "a version to come");
    let planted = Planted::default();
    let absent = planted.root(&root(Some(reference(&fifos(&["a"])))).encode());
    assert_eq!(use_tree(planted, absent), [CORRUPT; 3], "not there");
}

#[test]
fn directory_nodes_that_lie() {
    let attempt = |change: fn(&mut Vec<DirectoryLink>), level: u32| {
        let planted = Planted::default();
        let (a, b) = (fifos(&["a", "b"]), fifos(&["m", "n"]));
        planted.put(ObjectKind::Directory, &a.encode());
        planted.put(ObjectKind::Directory, &b.encode());
        let mut links = vec![link(&a, "a"), link(&b, "m")];
        change(&mut links);
        let id = planted.directory(&SequenceNode::<Directories>::Inner { level, links });
        use_tree(planted, id)
    };
    // Edits beside the lie need not meet it; reading everything does.
    let reads = |result: [Option<ErrorKind>; 3]| [result[0], result[1]];
    assert_eq!(attempt(|_| {}, 1), [None; 3], "the truth is read");
    assert_eq!(reads(attempt(|links| links[1].count = 3, 1)), [CORRUPT; 2], "a count");
    assert_eq!(reads(attempt(|links| links[1].linked = 3, 1)), [CORRUPT; 2], "hard links");
    assert_eq!(reads(attempt(|links| links[1].first = Name::new(b"x").expect("a name"), 1)), [CORRUPT; 2], "a name");
    assert_eq!(reads(attempt(|_| {}, 2)), [CORRUPT; 2], "a level");
    assert_eq!(reads(attempt(|links| links.truncate(1), 1)), [CORRUPT; 2], "a single link at the top");
    assert_eq!(reads(attempt(|links| links[1].id = DirectoryId::of(b"absent"), 1)), [CORRUPT; 2], "absent");
}

#[test]
fn roots_that_are_none() {
    let entry = raw::fields(&[raw::number(2, 2), raw::bytes(7, [1; 32]), raw::bytes(8, [1; 32]), raw::number(9, 2)]);
    for (text, bytes) in [
        ("a file", raw::object(ObjectKind::Root, &[raw::bytes(1, raw::number(2, 1))])),
        ("no entry", raw::object(ObjectKind::Root, &[])),
        ("links that nothing lists", raw::object(ObjectKind::Root, &[raw::bytes(1, entry)])),
    ] {
        let planted = Planted::default();
        let id = planted.root(&bytes);
        assert_eq!(use_tree(planted, id), [CORRUPT; 3], "{text}");
    }
}

fn chunk(planted: &Planted, bytes: &[u8]) -> Segment {
    let id = planted.put(ObjectKind::Chunk, bytes);
    Segment { length: bytes.len() as u64, source: SegmentSource::Chunk(ChunkId::from_bytes(id.hash)) }
}

#[test]
fn files_that_lie() {
    let attempt = |make: fn(&Planted) -> (u64, Content)| {
        let planted = Planted::default();
        let (size, content) = make(&planted);
        let id = planted.file(size, content);
        let [read, _, edited] = use_tree(planted, id);
        [read, edited]
    };
    fn rope(planted: &Planted, node: &SequenceNode<Ropes>) -> Content {
        Content::Rope(RopeId::from_bytes(planted.put(ObjectKind::Rope, &node.encode()).hash))
    }
    fn two(planted: &Planted) -> SequenceNode<Ropes> {
        SequenceNode::Leaf(vec![chunk(planted, &[1; 40_000]), chunk(planted, &[2; 40_000])])
    }
    fn id_of(planted: &Planted, bytes: &[u8]) -> ChunkId {
        ChunkId::from_bytes(planted.put(ObjectKind::Chunk, bytes).hash)
    }
    assert_eq!(attempt(|planted| (80_000, rope(planted, &two(planted)))), [None; 2], "the truth is read");
    assert_eq!(attempt(|planted| (80_001, rope(planted, &two(planted)))), [CORRUPT; 2], "a size over the rope's");
    assert_eq!(attempt(|planted| (79_999, rope(planted, &two(planted)))), [CORRUPT; 2], "a size under the rope's");
    let longer_chunk = |planted: &Planted| {
        let SequenceNode::Leaf(mut segments) = two(planted) else { panic!("a leaf") };
        segments[0].length += 1;
        (80_001, rope(planted, &SequenceNode::Leaf(segments)))
    };
    assert_eq!(attempt(longer_chunk), [CORRUPT; 2], "a segment over its chunk");
    assert_eq!(
        attempt(|planted| (6, Content::Chunk(id_of(planted, b"hello")))),
        [CORRUPT; 2],
        "a size over the chunk's"
    );
    assert_eq!(
        attempt(|planted| (4, Content::Chunk(id_of(planted, b"hello")))),
        [CORRUPT; 2],
        "a size under the chunk's"
    );
    assert_eq!(attempt(|_| (5, Content::Chunk(ChunkId::of(b"absent")))), [CORRUPT; 2], "an absent chunk");
    assert_eq!(attempt(|_| (80_000, Content::Rope(RopeId::of(b"absent")))), [CORRUPT; 2], "an absent rope");
    let lying_link = |planted: &Planted| {
        let node = two(planted);
        planted.put(ObjectKind::Rope, &node.encode());
        let lying = RopeLink { length: 80_001, ..rope_link(&node) };
        (160_001, rope(planted, &SequenceNode::Inner { level: 1, links: vec![rope_link(&node), lying] }))
    };
    assert_eq!(attempt(lying_link), [CORRUPT; 2], "a link that lies");
    let wrong_level = |planted: &Planted| {
        let node = two(planted);
        planted.put(ObjectKind::Rope, &node.encode());
        (160_000, rope(planted, &SequenceNode::Inner { level: 2, links: vec![rope_link(&node); 2] }))
    };
    assert_eq!(attempt(wrong_level), [CORRUPT; 2], "a level that lies");
    let single = |planted: &Planted| {
        let node = two(planted);
        planted.put(ObjectKind::Rope, &node.encode());
        (80_000, rope(planted, &SequenceNode::Inner { level: 1, links: vec![rope_link(&node)] }))
    };
    assert_eq!(attempt(single), [CORRUPT; 2], "a single link at the top");
}

#[test]
fn attributes_that_are_none() {
    let attempt = |bytes: &[u8]| {
        let planted = Planted::default();
        planted.put(ObjectKind::Xattrs, bytes);
        let mut entry = fifo();
        let xattrs = Xattrs::Apart(XattrsId::of(bytes));
        entry.extra = Some(Box::new(amalgam_engine::object::Extra { xattrs, ..Default::default() }));
        let id = planted.directory(&SequenceNode::Leaf(vec![item("a", entry)]));
        use_tree(planted, id)[0]
    };
    assert_eq!(attempt(b""), CORRUPT);
    assert_eq!(attempt(&raw::object(ObjectKind::Xattrs, &[raw::bytes(1, raw::bytes(1, "few"))])), CORRUPT);
}

#[test]
fn chunks_filed_under_another_hash() {
    let planted = Planted::default();
    let id = ChunkId::of(b"hello");
    let lying = StoredObject { id: id.object(), bytes: Bytes::from_static(b"\0other") };
    planted.0.transact(Transaction { objects: vec![lying], ..Transaction::default() }).expect("put");
    let root = planted.file(5, Content::Chunk(id));
    assert_eq!(use_tree(planted, root)[0], CORRUPT);
}

/// A list of hard links that does not fit its tree: edits are refused or done, never a panic.
#[test]
fn hard_links_that_lie() {
    let group = [9; 32];
    let file = |name: &str| raw::entry(name, &[raw::number(2, 4), raw::bytes(16, group)]);
    let member = |path: &str| raw::bytes(2, raw::fields(&[raw::bytes(1, group), raw::bytes(2, path)]));
    for members in [vec!["x", "y"], vec!["a", "a/b"], vec!["d", "d/e"], vec!["b"], vec!["no/such/path", "z"], vec![""]]
    {
        let planted = Planted::default();
        let directory = raw::directory(&[
            file("a"),
            file("b"),
            raw::entry("d", &[raw::number(2, 2), raw::number(3, 0o755)]),
            raw::entry("file", &[raw::number(2, 4), raw::bytes(16, [8; 32])]),
        ]);
        let id = planted.put(ObjectKind::Directory, &directory);
        let links: Vec<_> = members.iter().map(|path| member(path)).collect();
        let links = planted.put(ObjectKind::Links, &raw::object(ObjectKind::Links, &links));
        let entry =
            raw::fields(&[raw::number(2, 2), raw::bytes(7, id.hash), raw::bytes(8, [1; 32]), raw::number(9, 3)]);
        let root = planted.root(&raw::object(ObjectKind::Root, &[raw::bytes(1, entry), raw::bytes(2, links.hash)]));
        bounded(64 << 20, move || {
            let mut tree = planted.open(root).expect("open");
            for path in ["a", "b", "d", "file"] {
                tree.stat(path).ok();
            }
            let edited = tree.set_mode("a", 0o600);
            if members == [""] {
                assert_eq!(edited.map_err(|error| error.kind()), Err(ErrorKind::Corrupt), "no link is the root");
            }
            tree.rename("a", "d/moved", amalgam_engine::work::RenameMode::Replace).ok();
            tree.link("b", "d/more").ok();
            tree.remove("file").ok();
            tree.rename("d", "e", amalgam_engine::work::RenameMode::Replace).ok();
            let head = RefName::new("head").expect("a name");
            tree.commit(Commit::new(&head, "")).ok();
        });
    }
}

/// Directories nested deeper than any path: comparing stops there, admitting refuses, nothing recurses.
#[test]
fn a_tree_100000_deep() {
    let planted = Planted::default();
    let mut node = fifos(&["d"]);
    for _ in 0..100_000 {
        planted.put(ObjectKind::Directory, &node.encode());
        node = SequenceNode::Leaf(vec![item(
            "d",
            Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH),
        )]);
    }
    let id = planted.directory(&node);
    bounded(64 << 20, move || {
        let tree = planted.open(id).expect("open");
        let deepest = vec!["d"; DEPTH_MAX].join("/");
        assert!(tree.exists(&deepest).expect("asked"));
        let mut changes = diff_roots(tree.store(), None, Some(id), DiffOptions::default()).expect("diff");
        let deep =
            changes.by_ref().take_while(Result::is_ok).map(|change| change.expect("ok").path.names().count()).max();
        assert_eq!(deep, Some(DEPTH_MAX - 1), "what has names below the deepest level is not shown");
        assert!(changes.next().is_none(), "an error is the end");
        let error = diff_all(tree.store(), id).expect_err("too deep");
        assert!(matches!(error, Error::Malformed { source: Malformed::Name(InvalidName::TooDeep), .. }), "{error}");

        let session = tree.store().session();
        let refused = session.admit(ObjectKind::Root, root(Some(reference(&node))).encode());
        let too_deep = Malformed::Name(InvalidName::TooDeep);
        assert!(matches!(&refused, Err(Error::Refused { source, .. }) if *source == too_deep), "{refused:?}");
    });
}

/// The deepest tree there may be, made, committed, edited and dropped on a small stack.
#[test]
fn a_tree_as_deep_as_a_path() {
    bounded(256 << 20, || {
        let store = Store::in_memory();
        let head = RefName::new("head").expect("a name");
        let mut tree = WorkingTree::new(&store);
        let deepest = vec!["d"; DEPTH_MAX].join("/");
        tree.create_directories(&deepest).expect("made");
        tree.commit(Commit::new(&head, "")).expect("committed");
        let fork = tree.fork();
        tree.set_mode(&deepest, 0o700).expect("set");
        tree.commit(Commit::new(&head, "")).expect("committed");
        assert!(tree.create_directory(format!("{deepest}/d"), 0o755).is_err());
        drop(fork);
        tree.remove_all("d").expect("removed");
        tree.commit(Commit::new(&head, "")).expect("committed");
    });
}
