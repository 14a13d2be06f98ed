//! Every rule that can be seen in an object's own bytes, broken one at a time.

use amalgam_engine::object::{CHUNK_BYTES_MAX, check};
use amalgam_engine::{Error, InvalidName, Malformed, ObjectKind, Store};
use bytes::Bytes;

use super::limits::bounded;
use super::raw::{bytes, directory, entry, fields, fifo, inner, number, object, varint};

type Case = (&'static str, ObjectKind, Bytes, Malformed);

const HASH: [u8; 32] = [7; 32];
const MODE: Malformed = Malformed::Rule("a mode that its kind does not have");
const CONTENT: Malformed = Malformed::Rule("a content that does not fit its size");
const SEGMENT: Malformed = Malformed::Rule("a segment of an impossible length");
const NESTED: Malformed = Malformed::Rule("a conflict or a hard link inside a conflict");
const MEMBER: Malformed = Malformed::Rule("a hard link without group or path");

fn name(why: InvalidName) -> Malformed {
    Malformed::Name(why)
}

fn too_much(what: &'static str) -> Malformed {
    Malformed::TooMuch { what }
}

fn field(number: u32) -> Malformed {
    Malformed::Field { number }
}

fn names() -> Vec<Case> {
    use ObjectKind::Directory;
    let bad = |text: &'static str, bad: &[u8], why| (text, Directory, directory(&[fifo(bad)]), name(why));
    let nameless = bytes(2, number(2, 4));
    vec![
        bad("the name .", b".", InvalidName::Dots),
        bad("the name ..", b"..", InvalidName::Dots),
        bad("a written empty name", b"", InvalidName::Empty),
        ("no name", Directory, object(Directory, &[nameless]), name(InvalidName::Empty)),
        bad("a slash", b"a/b", InvalidName::ForbiddenByte),
        bad("a NUL", b"a\0", InvalidName::ForbiddenByte),
        bad("256 bytes", &[b'n'; 256], InvalidName::TooLong { bytes: 256 }),
        ("a name twice", Directory, directory(&[fifo("a"), fifo("a")]), Malformed::Order),
        ("unsorted names", Directory, directory(&[fifo("b"), fifo("a")]), Malformed::Order),
        ("sorted as text, not as bytes", Directory, directory(&[fifo("ä"), fifo("b")]), Malformed::Order),
        (
            "a link to ..",
            Directory,
            inner(Directory, 1, &[directory_link(b"..", 9), directory_link(b"b", 9)]),
            name(InvalidName::Dots),
        ),
        (
            "unsorted links",
            Directory,
            inner(Directory, 1, &[directory_link(b"b", 9), directory_link(b"a", 9)]),
            Malformed::Order,
        ),
    ]
}

fn directory_link(first: &[u8], count: u64) -> Vec<u8> {
    fields(&[bytes(1, first), bytes(2, HASH), bytes(3, HASH), number(4, count)])
}

fn encoding() -> Vec<Case> {
    use ObjectKind::{Directory, Root, Snapshot};
    let with = |text, entry: Vec<u8>, why| (text, Directory, directory(&[entry]), why);
    let snapshot = |parts: &[Vec<u8>]| object(Snapshot, parts);
    let mut wrong_version = fifo_directory();
    wrong_version[1] = 2;
    let mut wrong_kind = fifo_directory();
    wrong_kind[0] = 2;
    let mut no_kind = fifo_directory();
    no_kind[0] = 0;
    vec![
        ("nothing", Directory, Bytes::new(), Malformed::Truncated),
        ("a kind and no version", Directory, Bytes::from_static(&[3]), Malformed::Truncated),
        ("another kind's byte", Directory, wrong_kind.into(), Malformed::Kind { found: 2 }),
        ("no kind's byte", Directory, no_kind.into(), Malformed::Kind { found: 0 }),
        ("an unknown version", Directory, wrong_version.into(), Malformed::Version { found: 2 }),
        ("a node without items", Directory, object(Directory, &[]), Malformed::TooFew),
        with("an unknown field", entry("a", &[number(2, 4), number(17, 1)]), field(17)),
        with("a field with another wire type", entry("a", &[bytes(2, "4")]), field(2)),
        with("a fixed-size field", [fifo("a"), vec![13 << 3 | 5, 0, 0, 0, 0]].concat(), field(13)),
        with("a group", [fifo("a"), vec![13 << 3 | 3]].concat(), field(13)),
        with("fields out of order", fields(&[number(2, 4), bytes(1, "a")]), Malformed::NotCanonical),
        with("a field twice", entry("a", &[number(2, 4), number(2, 4)]), Malformed::NotCanonical),
        with("a default that is written", entry("a", &[number(2, 4), number(3, 0)]), Malformed::NotCanonical),
        with("a longer varint", entry("a", &[vec![2 << 3, 0x84, 0x00]]), Malformed::NotCanonical),
        with("a longer key", entry("a", &[vec![0x90, 0x00, 4]]), Malformed::NotCanonical),
        with("field number 0", [vec![0, 0], fifo("a")].concat(), Malformed::NotCanonical),
        with("a varint without an end", entry("a", &[vec![2 << 3, 0xff]]), Malformed::Truncated),
        with(
            "a varint of 11 bytes",
            entry("a", &[[vec![2 << 3], vec![0x80; 10], vec![0]].concat()]),
            Malformed::Truncated,
        ),
        with("a field of another kind", entry("a", &[number(2, 4), bytes(10, "target")]), Malformed::NotCanonical),
        with("a size without a file", entry("a", &[number(2, 4), number(5, 5)]), Malformed::NotCanonical),
        (
            "a length that lies",
            Directory,
            object(Directory, &[[vec![2 << 3 | 2], varint(1 << 40), fifo("a")].concat()]),
            Malformed::Truncated,
        ),
        ("a hash of 31 bytes", Snapshot, snapshot(&[bytes(1, [7; 31])]), Malformed::Hash { bytes: 31 }),
        ("a hash of 33 bytes", Snapshot, snapshot(&[bytes(1, [7; 33])]), Malformed::Hash { bytes: 33 }),
        ("no root", Snapshot, snapshot(&[bytes(3, "ann")]), Malformed::Rule("a snapshot without a root")),
        (
            "the same parent twice",
            Snapshot,
            snapshot(&[bytes(1, HASH), bytes(2, HASH), bytes(2, HASH)]),
            Malformed::Rule("the same parent twice"),
        ),
        ("unsorted metadata", Snapshot, snapshot(&[bytes(1, HASH), pair("b"), pair("a")]), Malformed::Order),
        ("metadata twice", Snapshot, snapshot(&[bytes(1, HASH), pair("a"), pair("a")]), Malformed::Order),
        (
            "metadata without a key",
            Snapshot,
            snapshot(&[bytes(1, HASH), bytes(6, bytes(2, "v"))]),
            Malformed::Rule("metadata with an empty key"),
        ),
        (
            "text that is not UTF-8",
            Snapshot,
            snapshot(&[bytes(1, HASH), bytes(3, [0xff])]),
            Malformed::Rule("text that is not UTF-8"),
        ),
        (
            "65 parents",
            Snapshot,
            snapshot(&[vec![bytes(1, HASH)], (0..65).map(|at| bytes(2, [at; 32])).collect()].concat()),
            too_much("a snapshot's parents"),
        ),
        (
            "a message over 1 MiB",
            Snapshot,
            snapshot(&[bytes(1, HASH), bytes(5, vec![b'm'; (1 << 20) + 1])]),
            too_much("a snapshot's texts"),
        ),
        (
            "a root without a directory",
            Root,
            object(Root, &[]),
            Malformed::Rule("a root that is not a nameless directory"),
        ),
        (
            "a root with a name",
            Root,
            object(Root, &[bytes(1, entry("a", &[number(2, 2)]))]),
            Malformed::Rule("a root that is not a nameless directory"),
        ),
        (
            "a root that is a file",
            Root,
            object(Root, &[bytes(1, number(2, 1))]),
            Malformed::Rule("a root that is not a nameless directory"),
        ),
        (
            "links that nothing has",
            Root,
            object(Root, &[bytes(1, number(2, 2)), bytes(2, HASH)]),
            Malformed::Rule("a hard-link map that does not fit the tree"),
        ),
        (
            "linked names that nothing lists",
            Root,
            object(Root, &[bytes(1, fields(&[number(2, 2), bytes(7, HASH), bytes(8, HASH), number(9, 2)]))]),
            Malformed::Rule("a hard-link map that does not fit the tree"),
        ),
    ]
}

fn pair(key: &str) -> Vec<u8> {
    bytes(6, bytes(1, key))
}

fn fifo_directory() -> Vec<u8> {
    directory(&[fifo("a")]).to_vec()
}

fn entries() -> Vec<Case> {
    let with = |text, parts: &[Vec<u8>], why| (text, ObjectKind::Directory, directory(&[entry("a", parts)]), why);
    let file = |size: u64, form: u64, id: &[Vec<u8>]| {
        [vec![number(2, 1), number(5, size), number(6, form)], id.to_vec()].concat()
    };
    let hash = [bytes(7, HASH)];
    let symlink = |target: Vec<u8>| [number(2, 3), number(3, 0o777), bytes(10, target)];
    let term = |mode: u64| bytes(12, bytes(1, fields(&[number(2, 4), number(3, mode)])));
    let conflict = |terms: &[Vec<u8>]| [vec![number(2, 8)], terms.to_vec()].concat();
    let inner_conflict = bytes(12, bytes(1, fields(&conflict(&[term(1), term(2), term(3)]))));
    let linked = bytes(12, bytes(1, fields(&[number(2, 4), bytes(16, HASH)])));
    let named = bytes(12, bytes(1, entry("n", &[number(2, 4)])));
    let attribute = |name: &[u8], value: usize| bytes(14, fields(&[bytes(1, name), bytes(2, vec![1; value])]));
    vec![
        with("no kind", &[number(3, 0o644)], Malformed::Rule("an entry of no known kind")),
        with("kind 9", &[number(2, 9)], Malformed::Rule("an entry of no known kind")),
        with("a mode with file type bits", &[number(2, 4), number(3, 0o100_644)], MODE),
        with("a mode of 33 bits", &[number(2, 4), number(3, 1 << 32)], Malformed::Overflow),
        with("a symlink with another mode", &[number(2, 3), number(3, 0o755), bytes(10, "t")], MODE),
        with(
            "a symlink without a target",
            &[number(2, 3), number(3, 0o777)],
            Malformed::Rule("a symlink target that is empty or holds a NUL"),
        ),
        with(
            "a symlink target with a NUL",
            &symlink(b"a\0b".to_vec()),
            Malformed::Rule("a symlink target that is empty or holds a NUL"),
        ),
        with("a symlink target of 4096 bytes", &symlink(vec![b't'; 4_096]), too_much("a symlink target")),
        with("an empty file with a chunk", &file(0, 1, &hash), CONTENT),
        with("a file with bytes and no content", &[number(2, 1), number(5, 5)], CONTENT),
        with("a chunk for 65537 bytes", &file(65_537, 1, &hash), CONTENT),
        with("a rope for 65536 bytes", &file(65_536, 2, &hash), CONTENT),
        with("a hole of 65535 bytes", &file(65_535, 3, &[]), CONTENT),
        with("a hole with a hash", &file(65_536, 3, &hash), CONTENT),
        with("a content of form 4", &file(65_536, 4, &hash), CONTENT),
        with("a file over 2^63 bytes", &file(1 << 63, 2, &hash), too_much("a file's size")),
        with(
            "a directory without bare",
            &[number(2, 2), bytes(7, HASH)],
            Malformed::Rule("a directory with one hash instead of two"),
        ),
        with(
            "a directory without id",
            &[number(2, 2), bytes(8, HASH)],
            Malformed::Rule("a directory with one hash instead of two"),
        ),
        with("an empty directory with links", &[number(2, 2), number(9, 1)], Malformed::NotCanonical),
        with(
            "a hard link to a directory",
            &[number(2, 2), bytes(16, HASH)],
            Malformed::Rule("a hard link to a directory"),
        ),
        with("a conflict inside a conflict", &conflict(&[inner_conflict, term(1), term(2)]), field(12)),
        with(
            "an even number of terms",
            &conflict(&[term(1), term(2)]),
            Malformed::Rule("a conflict with an even number of terms"),
        ),
        with("no terms", &conflict(&[]), Malformed::Rule("a conflict with an even number of terms")),
        with("one term", &conflict(&[term(1)]), Malformed::NotCanonical),
        with("terms that cancel", &conflict(&[term(1), term(2), term(2)]), Malformed::NotCanonical),
        with("absences that cancel", &conflict(&[term(1), bytes(12, ""), bytes(12, "")]), Malformed::NotCanonical),
        with("a hard link inside a conflict", &conflict(&[linked, term(1), term(2)]), NESTED),
        with("a name inside a conflict", &conflict(&[named, term(1), term(2)]), field(1)),
        with("257 terms", &conflict(&(1..=257).map(term).collect::<Vec<_>>()), too_much("a conflict's terms")),
        with(
            "a conflict with a mode",
            &[vec![number(2, 8), number(3, 0o644)], vec![term(1), term(2), term(3)]].concat(),
            MODE,
        ),
        with(
            "a conflict with a time",
            &[vec![number(2, 8), number(4, 1)], vec![term(1), term(2), term(3)]].concat(),
            MODE,
        ),
        with(
            "a conflict with an owner",
            &[vec![number(2, 8)], vec![term(1), term(2), term(3), bytes(13, number(1, 1))]].concat(),
            Malformed::Rule("a conflict with attributes of its own"),
        ),
        with("an owner of 33 bits", &[number(2, 4), bytes(13, number(1, 1 << 32))], Malformed::Overflow),
        with(
            "an attribute without a name",
            &[number(2, 4), bytes(14, bytes(2, "v"))],
            Malformed::Rule("an attribute name that is empty or holds a NUL"),
        ),
        with(
            "an attribute name of 256 bytes",
            &[number(2, 4), attribute(&[b'n'; 256], 1)],
            too_much("an attribute name"),
        ),
        with("unsorted attributes", &[number(2, 4), attribute(b"b", 1), attribute(b"a", 1)], Malformed::Order),
        with("an attribute twice", &[number(2, 4), attribute(b"a", 1), attribute(b"a", 1)], Malformed::Order),
        with(
            "1025 bytes of attributes inside",
            &[number(2, 4), attribute(b"a", 1_024)],
            too_much("attributes inside an entry"),
        ),
        with(
            "attributes inside and apart",
            &[number(2, 4), attribute(b"a", 1), bytes(15, HASH)],
            Malformed::NotCanonical,
        ),
    ]
}

fn sequences() -> Vec<Case> {
    use ObjectKind::{Chunk, Directory, Links, Rope, State, Xattrs};
    let segment = |length: u64| bytes(2, fields(&[bytes(1, HASH), number(2, length)]));
    let hole = |length: u64| bytes(2, number(2, length));
    let rope_link = |length: u64, count: u64| fields(&[bytes(1, HASH), number(2, length), number(3, count)]);
    let two = |count: u64| [directory_link(b"a", count), directory_link(b"b", count)];
    let member = |path: &[u8]| bytes(2, fields(&[bytes(1, HASH), bytes(2, path)]));
    let state = |key: &[u8], value: &[u8]| bytes(2, fields(&[bytes(1, key), bytes(2, value)]));
    let attribute = |name: &str, value: usize| bytes(1, fields(&[bytes(1, name), bytes(2, vec![1; value])]));
    let many: Vec<_> = (0..129).map(|at| fifo(format!("{at:03}"))).collect();
    vec![
        ("a chunk of nothing", Chunk, Bytes::new(), Malformed::TooFew),
        ("a chunk of 128 KiB + 1", Chunk, vec![1; CHUNK_BYTES_MAX + 1].into(), too_much("a chunk")),
        ("129 items", Directory, directory(&many), too_much("a node's items")),
        ("items that go on after a cut", Directory, directory(&past_a_cut()), Malformed::Boundary),
        ("items in an inner node", Directory, object(Directory, &[number(1, 1), bytes(2, fifo("a"))]), field(2)),
        ("links in a leaf", Directory, object(Directory, &[bytes(3, directory_link(b"a", 1))]), field(3)),
        ("an inner node without links", Directory, object(Directory, &[number(1, 1)]), Malformed::TooFew),
        ("level 33", Directory, inner(Directory, 33, &two(9)), too_much("a node's level")),
        ("a link to no items", Directory, inner(Directory, 1, &two(0)), Malformed::Overflow),
        ("counts over 2^64", Directory, inner(Directory, 1, &two(1 << 63)), Malformed::Overflow),
        (
            "a link without a hash",
            Directory,
            inner(Directory, 1, &[bytes(1, "a")]),
            Malformed::Rule("a directory link without name or hash"),
        ),
        ("a segment of nothing", Rope, object(Rope, &[segment(0)]), SEGMENT),
        ("a segment over a chunk", Rope, object(Rope, &[segment(131_073)]), SEGMENT),
        ("a hole of 65535", Rope, object(Rope, &[hole(65_535)]), SEGMENT),
        ("a hole over 2^63", Rope, object(Rope, &[hole(1 << 63)]), SEGMENT),
        (
            "two holes side by side",
            Rope,
            object(Rope, &[hole(65_536), hole(65_536)]),
            Malformed::Rule("two holes side by side"),
        ),
        ("segments over 2^63", Rope, object(Rope, &[hole(i64::MAX as u64), segment(1)]), Malformed::Overflow),
        ("links over 2^63", Rope, inner(Rope, 1, &[rope_link(1 << 62, 9), rope_link(1 << 62, 9)]), Malformed::Overflow),
        ("links over 2^64", Rope, inner(Rope, 1, &[rope_link(1 << 63, 9), rope_link(1 << 63, 9)]), Malformed::Overflow),
        (
            "fewer bytes than segments",
            Rope,
            inner(Rope, 1, &[rope_link(8, 9), rope_link(8, 9)]),
            Malformed::Rule("a rope link without a hash or shorter than its segments"),
        ),
        ("a member without a path", Links, object(Links, &[bytes(2, bytes(1, HASH))]), MEMBER),
        ("a member that is the root", Links, object(Links, &[member(b"")]), MEMBER),
        ("a member with a bad path", Links, object(Links, &[member(b"a/../b")]), name(InvalidName::Dots)),
        ("a member with an absolute path", Links, object(Links, &[member(b"/a")]), name(InvalidName::Empty)),
        (
            "a member 2049 names deep",
            Links,
            object(Links, &[member(&[b"a/".repeat(2_048), b"a".to_vec()].concat())]),
            name(InvalidName::TooDeep),
        ),
        ("unsorted members", Links, object(Links, &[member(b"b"), member(b"a")]), Malformed::Order),
        (
            "members sorted as bytes, not by names",
            Links,
            object(Links, &[member(b"a-b"), member(b"a/b")]),
            Malformed::Order,
        ),
        (
            "a count in a member",
            Links,
            object(Links, &[bytes(2, fields(&[bytes(1, HASH), bytes(2, "a"), number(4, 1)]))]),
            field(3),
        ),
        (
            "a state value that is not JSON",
            State,
            object(State, &[state(b"k", b"{")]),
            Malformed::Rule("a state value that is not JSON"),
        ),
        (
            "a state value of nothing",
            State,
            object(State, &[bytes(2, bytes(1, "k"))]),
            Malformed::Rule("a state value that is not JSON"),
        ),
        (
            "a state value nested without end",
            State,
            object(State, &[state(b"k", &b"[".repeat(60_000))]),
            Malformed::Rule("a state value that is not JSON"),
        ),
        ("a state value over 64 KiB", State, object(State, &[state(b"k", &[b'1'; 65_537])]), too_much("a state value")),
        (
            "a state key of nothing",
            State,
            object(State, &[bytes(2, bytes(2, "1"))]),
            Malformed::Rule("a state key that is empty or not UTF-8"),
        ),
        ("a state key of 256 bytes", State, object(State, &[state(&[b'k'; 256], b"1")]), too_much("a state key")),
        (
            "a state key that is not UTF-8",
            State,
            object(State, &[state(&[0xff], b"1")]),
            Malformed::Rule("a state key that is empty or not UTF-8"),
        ),
        ("unsorted state keys", State, object(State, &[state(b"b", b"1"), state(b"a", b"1")]), Malformed::Order),
        (
            "few attributes apart",
            Xattrs,
            object(Xattrs, &[attribute("user.a", 1_018)]),
            Malformed::Rule("small attributes belong in their entry"),
        ),
        (
            "an attribute over 64 KiB",
            Xattrs,
            object(Xattrs, &[attribute("user.a", 65_537)]),
            too_much("an attribute value"),
        ),
        (
            "attributes over 1 MiB",
            Xattrs,
            object(Xattrs, &(10..27).map(|at| attribute(&format!("user.{at}"), 65_536)).collect::<Vec<_>>()),
            too_much("an entry's attributes"),
        ),
        (
            "unsorted attributes apart",
            Xattrs,
            object(Xattrs, &[attribute("b", 600), attribute("a", 600)]),
            Malformed::Order,
        ),
    ]
}

/// Nine entries of which the eighth ends its node.
fn past_a_cut() -> Vec<Vec<u8>> {
    use amalgam_engine::object::{CUT_BITS, Directories, DirectoryItem, Entry, Node, Sequence as _};
    let ends = |text: &String| {
        let entry = Entry::new(Node::Fifo, 0, amalgam_engine::Time::EPOCH);
        let name = amalgam_engine::Name::new(text.as_bytes()).expect("a name");
        Directories::item_hash(&DirectoryItem { name, entry }).trailing_zeros() >= CUT_BITS
    };
    let eighth = (0..).map(|at| format!("b{at:05}")).find(ends).expect("one in 32 does");
    (0..7).map(|at| format!("a{at}")).chain([eighth, "c".to_owned()]).map(fifo).collect()
}

#[test]
fn every_rule_is_kept() {
    let cases = [names(), encoding(), entries(), sequences()].concat();
    let session = Store::in_memory().session();
    for (text, kind, bytes, rule) in cases {
        assert_eq!(check(kind, &bytes), Err(rule.clone()), "{text}");
        match session.admit(kind, bytes) {
            Err(Error::Refused { kind: refused, source }) => assert_eq!((refused, source), (kind, rule), "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
}

/// Lists of the smallest items that fit into an object: refused before they are many times larger in memory.
#[test]
fn long_lists_of_nothing_cost_little() {
    const ITEMS: usize = 4 << 20;
    for (kind, bytes) in [
        (ObjectKind::Xattrs, object(ObjectKind::Xattrs, &[b"\x0a\x00".repeat(ITEMS)])),
        (ObjectKind::Directory, directory(&[entry("a", &[number(2, 8), b"\x62\x00".repeat(ITEMS)])])),
        (ObjectKind::Directory, directory(&[entry("a", &[number(2, 4), b"\x72\x00".repeat(ITEMS)])])),
        (ObjectKind::Directory, object(ObjectKind::Directory, &[b"\x12\x00".repeat(ITEMS)])),
        (ObjectKind::Rope, object(ObjectKind::Rope, &[number(1, 1), b"\x1a\x00".repeat(ITEMS)])),
        (ObjectKind::Snapshot, object(ObjectKind::Snapshot, &[bytes(1, HASH), b"\x32\x00".repeat(ITEMS)])),
    ] {
        assert!(bounded(1 << 20, move || check(kind, &bytes)).is_err(), "{kind}");
    }
}
