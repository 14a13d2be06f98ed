//! Small objects that stand for enormous trees and files. They are valid; what matters is that nothing ever unfolds them.

use amalgam_engine::object::{
    CHUNK_BYTES_MAX, CUT_BITS, Content, Entry, ITEMS_MAX, Node, RopeLink, Ropes, Segment, SegmentSource, Sequence as _,
    SequenceNode,
};
use amalgam_engine::{
    ChunkId, DiffOptions, ErrorKind, RefMove, RootId, RopeId, Store, Time, WorkingTree, diff_roots, unpack_chunk,
};
use bytes::Bytes;

use super::claims::{Leaf, admit, fifo, item, quiet_names, reference, root};
use super::limits::bounded;

const NESTING: usize = 40;

/// 128 names in each directory, all of them the same directory, 40 deep: 2^280 files in 40 objects.
fn tree_bomb(store: &Store) -> RootId {
    let session = store.session();
    let names = quiet_names(ITEMS_MAX);
    let mut node: Leaf = SequenceNode::Leaf(names.iter().map(|name| item(name, fifo())).collect());
    for _ in 1..NESTING {
        admit(&session, &node).expect("valid");
        let entry = Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH);
        node = SequenceNode::Leaf(names.iter().map(|name| item(name, entry.clone())).collect());
    }
    admit(&session, &node).expect("valid");
    let root = root(Some(reference(&node)));
    let id = session.put_root(&root).expect("put");
    session.commit(id, RefMove::default()).expect("committed");
    id
}

#[test]
fn a_tree_of_2_to_the_280_files() {
    bounded(64 << 20, || {
        let store = Store::in_memory();
        let id = tree_bomb(&store);
        let mut tree = WorkingTree::open_root(&store, id).expect("open");
        let name = &quiet_names(ITEMS_MAX)[17];
        let deepest = vec![name.as_str(); NESTING].join("/");
        assert_eq!(tree.stat(&deepest).expect("stat").expect("there").mode, 0o600);
        assert_eq!(tree.list(vec![name.as_str(); NESTING - 1].join("/")).expect("list").count(), ITEMS_MAX);

        let changes = diff_roots(&store, None, Some(id), DiffOptions::default()).expect("diff");
        let depths: Vec<usize> = changes.take(1_000).map(|change| change.expect("one").path.names().count()).collect();
        assert_eq!(depths.len(), 1_000);
        assert_eq!(depths.iter().max(), Some(&NESTING));

        tree.write(format!("{deepest}x"), b"edited").expect("write");
        let session = store.session();
        let edited = tree.freeze().write(&session).expect("frozen");
        session.commit(edited, RefMove::default()).expect("committed");
        let changes = diff_roots(&store, Some(id), Some(edited), DiffOptions::default()).expect("diff");
        let paths: Vec<_> = changes.map(|change| change.expect("one").path.to_string()).collect();
        assert_eq!(paths, [format!("{deepest}x")], "the equal rest is never opened");
    });
}

/// A rope of 128 links to the same rope, six times over, above one chunk: 2^60 bytes.
fn rope_bomb(store: &Store) -> (RootId, u64) {
    let session = store.session();
    let loud =
        |hash: &[u8; 32]| u64::from_le_bytes(hash[..8].try_into().expect("eight bytes")).trailing_zeros() >= CUT_BITS;
    'seed: for seed in 1..=u8::MAX {
        let chunk = session.put_chunk(&[seed; CHUNK_BYTES_MAX]).expect("put");
        let segment = Segment { length: CHUNK_BYTES_MAX as u64, source: SegmentSource::Chunk(chunk) };
        if Ropes::item_hash(&segment).trailing_zeros() >= CUT_BITS {
            continue;
        }
        let mut node = SequenceNode::<Ropes>::Leaf(vec![segment; ITEMS_MAX]);
        for level in 1..=6 {
            admit(&session, &node).expect("valid");
            let link = RopeLink { id: RopeId::of(&node.encode()), count: node.count(), length: node.length() };
            if loud(link.id.as_bytes()) {
                continue 'seed;
            }
            let links = if level == 6 { 2 } else { ITEMS_MAX };
            node = SequenceNode::Inner { level, links: vec![link; links] };
        }
        admit(&session, &node).expect("valid");
        let size = node.length();
        let content = Content::Rope(RopeId::of(&node.encode()));
        let directory: Leaf =
            SequenceNode::Leaf(vec![item("file", Entry::new(Node::File { size, content }, 0o644, Time::EPOCH))]);
        admit(&session, &directory).expect("valid");
        let id = session.put_root(&root(Some(reference(&directory)))).expect("put");
        session.commit(id, RefMove::default()).expect("committed");
        return (id, size);
    }
    panic!("one seed in a few does");
}

#[test]
fn a_file_of_2_to_the_60_bytes() {
    bounded(96 << 20, || {
        let store = Store::in_memory();
        let (id, size) = rope_bomb(&store);
        assert_eq!(size, 1 << 60);
        let mut tree = WorkingTree::open_root(&store, id).expect("open");
        let byte = tree.read_at("file", 0, 1).expect("read")[0];
        for offset in [0, 131_071, 1 << 24, (1 << 40) + 5, size / 2 - 1, size - 300_000] {
            assert_eq!(tree.read_at("file", offset, 300_000).expect("read"), vec![byte; 300_000]);
        }
        assert_eq!(tree.read_at("file", size - 1, 10).expect("read"), [byte]);
        assert!(tree.read_at("file", size, 10).expect("read").is_empty());
        assert_eq!(tree.read("file").map_err(|error| error.kind()), Err(ErrorKind::Invalid));
        assert_eq!(tree.hole_at("file", size / 3).expect("asked"), 0);

        assert_eq!(tree.loose("file").expect("a file").data_at(5).expect("asked"), size - 5, "the search has a limit");

        tree.write_at("file", size / 2, b"edited").expect("write");
        assert_eq!(&tree.read_at("file", size / 2 - 1, 8).expect("read")[1..7], b"edited");

        let stored = WorkingTree::open_root(&store, id).expect("open").loose("file").expect("a file");
        let edited = tree.loose("file").expect("a file");
        assert_eq!(edited.shared_at(&stored, 7).expect("asked"), size / 2 - 7);
        assert_eq!(edited.shared_at(&stored, size / 2 + 5).expect("asked"), 0);
        assert_eq!(edited.shared_at(&stored, size / 2 + 6).expect("asked"), size / 2 - 6);
    });
}

/// Segments of one byte: no cutter makes them, and none of them may cost much more than its byte.
#[test]
fn a_file_of_chunks_of_one_byte() {
    bounded(24 << 20, || {
        let store = Store::in_memory();
        let session = store.session();
        let quiet = |id: &[u8; 32]| id[0] & 31 != 0;
        let byte = (1..=u8::MAX).find(|byte| quiet(ChunkId::of(&[*byte]).as_bytes())).expect("most are");
        let chunk = session.put_chunk(&[byte]).expect("put");
        let segment = Segment { length: 1, source: SegmentSource::Chunk(chunk) };
        let mut node = SequenceNode::<Ropes>::Leaf(vec![segment; ITEMS_MAX]);
        let mut levels = 0;
        while node.length() < 1 << 20 {
            admit(&session, &node).expect("valid");
            let link = RopeLink { id: RopeId::of(&node.encode()), count: node.count(), length: node.length() };
            levels += 1;
            let many = if quiet(link.id.as_bytes()) { ITEMS_MAX } else { 8 };
            node = SequenceNode::Inner { level: levels, links: vec![link; many] };
        }
        admit(&session, &node).expect("valid");
        let (size, content) = (node.length(), Content::Rope(RopeId::of(&node.encode())));
        let directory: Leaf =
            SequenceNode::Leaf(vec![item("file", Entry::new(Node::File { size, content }, 0o644, Time::EPOCH))]);
        admit(&session, &directory).expect("valid");
        let id = session.put_root(&root(Some(reference(&directory)))).expect("put");
        session.commit(id, RefMove::default()).expect("committed");
        let tree = WorkingTree::open_root(&store, id).expect("open");
        let read = tree.read_at("file", 0, 1 << 20).expect("read");
        assert_eq!(read, vec![byte; 1 << 20]);
    });
}

/// A frame of blocks that each say "this byte, 128 KiB times": 40 KB that unpack to 1.2 GB.
fn zstd_bomb(claimed: u32) -> Bytes {
    let mut bytes = vec![1];
    bytes.extend(claimed.to_le_bytes());
    bytes.extend([0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38]);
    for block in 0..10_000_u32 {
        let header = u32::from(block == 9_999) | 1 << 1 | (128 << 10) << 3;
        bytes.extend(&header.to_le_bytes()[..3]);
        bytes.push(b'z');
    }
    bytes.into()
}

#[test]
fn chunks_that_unpack_to_gigabytes() {
    bounded(2 << 20, || {
        for claimed in [1, 100, CHUNK_BYTES_MAX as u32, CHUNK_BYTES_MAX as u32 + 1, u32::MAX, 0] {
            assert!(unpack_chunk(&zstd_bomb(claimed)).is_err(), "claims {claimed}");
        }
    });
}

#[test]
fn stored_chunks_of_any_form() {
    let long = [vec![0], vec![1; CHUNK_BYTES_MAX + 1]].concat();
    for (text, stored) in [
        ("nothing", &b""[..]),
        ("raw, of nothing", b"\0"),
        ("raw, too long", &long),
        ("zstd without a header", b"\x01\x05\0\0"),
        ("zstd of nothing", b"\x01\x05\0\0\0"),
        ("zstd that is not", b"\x01\x05\0\0\0hello"),
        ("another codec", b"\x02hello"),
    ] {
        assert!(unpack_chunk(&Bytes::copy_from_slice(stored)).is_err(), "{text}");
    }
}
