//! Valid objects of every kind, to be damaged.

use std::collections::HashSet;

use amalgam_engine::object::{check, outgoing};
use amalgam_engine::{ObjectId, ObjectKind};
use bytes::Bytes;

use super::raw::{bytes, directory, entry, fields, fifo, inner, number, object};

const HASH: [u8; 32] = [7; 32];
const OTHER: [u8; 32] = [8; 32];

pub fn objects() -> Vec<(ObjectKind, Bytes)> {
    let file = entry("f", &[number(2, 1), number(3, 0o644), number(4, 9), number(5, 5), number(6, 1), bytes(7, HASH)]);
    let rope_file = entry("r", &[number(2, 1), number(5, 70_000), number(6, 2), bytes(7, HASH)]);
    let sub = entry("s", &[number(2, 2), number(3, 0o755), bytes(7, HASH), bytes(8, OTHER), number(9, 1)]);
    let symlink = entry("t", &[number(2, 3), number(3, 0o777), bytes(10, "target")]);
    let device = entry("u", &[number(2, 6), number(11, 1 << 32 | 3)]);
    let term = |mode: u64| bytes(12, bytes(1, fields(&[number(2, 4), number(3, mode)])));
    let conflict = entry("v", &[number(2, 8), term(1), term(2), bytes(12, "")]);
    let rare = entry(
        "w",
        &[
            number(2, 1),
            number(5, 65_536),
            number(6, 3),
            bytes(13, number(1, 1_000)),
            bytes(14, bytes(1, "user.a")),
            bytes(14, fields(&[bytes(1, "user.b"), bytes(2, "x")])),
            bytes(16, HASH),
        ],
    );
    let apart = entry("x", &[number(2, 4), bytes(15, HASH)]);
    let link = |first: &str| fields(&[bytes(1, first), bytes(2, HASH), bytes(3, OTHER), number(4, 9), number(5, 1)]);
    let map_link = |first: &str| fields(&[bytes(1, first), bytes(3, HASH), number(4, 9)]);
    let member = |path: &str| fields(&[bytes(1, HASH), bytes(2, path)]);
    let member_link = |path: &str| fields(&[bytes(1, HASH), bytes(2, path), bytes(3, HASH), number(4, 3)]);
    let segment = |length: u64| bytes(2, fields(&[bytes(1, HASH), number(2, length)]));
    let rope_link = fields(&[bytes(1, HASH), number(2, 100_000), number(3, 10)]);
    let root_entry =
        fields(&[number(2, 2), number(3, 0o755), number(4, 9), bytes(7, HASH), bytes(8, OTHER), number(9, 2)]);
    let pair = |key: &str| bytes(6, fields(&[bytes(1, key), bytes(2, "v")]));
    vec![
        (ObjectKind::Directory, directory(&[file, rope_file, sub, symlink, device, conflict, rare, apart])),
        (ObjectKind::Directory, directory(&[fifo("a")])),
        (ObjectKind::Directory, inner(ObjectKind::Directory, 1, &[link("a"), link("b")])),
        (ObjectKind::Rope, object(ObjectKind::Rope, &[segment(5), bytes(2, number(2, 70_000)), segment(131_072)])),
        (ObjectKind::Rope, inner(ObjectKind::Rope, 3, &[rope_link.clone(), rope_link])),
        (ObjectKind::Links, object(ObjectKind::Links, &[bytes(2, member("a")), bytes(2, member("a/b"))])),
        (ObjectKind::Links, inner(ObjectKind::Links, 1, &[member_link("a"), member_link("b")])),
        (ObjectKind::State, object(ObjectKind::State, &[bytes(2, fields(&[bytes(1, "k"), bytes(2, "[1]")]))])),
        (ObjectKind::State, inner(ObjectKind::State, 1, &[map_link("a"), map_link("b")])),
        (ObjectKind::Root, object(ObjectKind::Root, &[bytes(1, root_entry), bytes(2, HASH), bytes(3, OTHER)])),
        (ObjectKind::Root, object(ObjectKind::Root, &[bytes(1, number(2, 2))])),
        (
            ObjectKind::Snapshot,
            object(
                ObjectKind::Snapshot,
                &[
                    bytes(1, HASH),
                    bytes(2, HASH),
                    bytes(2, OTHER),
                    bytes(3, "ann"),
                    number(4, 8),
                    bytes(5, "why"),
                    pair("a"),
                    pair("b"),
                    number(7, 3),
                ],
            ),
        ),
        (
            ObjectKind::Xattrs,
            object(
                ObjectKind::Xattrs,
                &[
                    bytes(1, fields(&[bytes(1, "user.a"), bytes(2, vec![1; 600])])),
                    bytes(1, fields(&[bytes(1, "user.b"), bytes(2, vec![2; 600])])),
                ],
            ),
        ),
    ]
}

#[test]
fn they_are_valid() {
    for (kind, bytes) in objects() {
        assert_eq!(check(kind, &bytes), Ok(()), "{kind} {bytes:02x?}");
        assert_eq!(outgoing(kind, &bytes).expect("valid").strong.is_empty(), false_for_references(kind, &bytes));
    }
}

/// Only a named pipe, an empty root, a leaf of state or of links and attributes refer to nothing.
fn false_for_references(kind: ObjectKind, bytes: &Bytes) -> bool {
    !bytes.windows(32).any(|run| run == HASH || run == OTHER) || (kind == ObjectKind::Links && bytes[2] != 8)
}

#[test]
fn no_other_kind_takes_them() {
    for (kind, bytes) in objects() {
        for other in ObjectKind::ALL.into_iter().filter(|other| *other != kind && *other != ObjectKind::Chunk) {
            assert!(check(other, &bytes).is_err(), "{kind} as {other}");
        }
    }
}

/// A cut in the middle is refused. Where whole fields are missing, the rest may be a smaller object, and is another one.
#[test]
fn cut_off_anywhere() {
    for (kind, whole) in objects() {
        let borders = borders(&whole);
        for end in 0..whole.len() {
            let rest = whole.slice(..end);
            if check(kind, &rest).is_ok() {
                assert!(borders.contains(&end), "{kind} cut off after {end} bytes is accepted");
                assert_ne!(ObjectId::of(kind, &rest), ObjectId::of(kind, &whole));
            }
        }
    }
}

/// Where the fields of the body end.
fn borders(object: &Bytes) -> HashSet<usize> {
    let mut borders = HashSet::new();
    let mut at = 2;
    while at < object.len() {
        let mut varint = || {
            let mut value = 0_u64;
            for shift in (0..).step_by(7) {
                let byte = object[at];
                at += 1;
                value |= u64::from(byte & 127) << shift;
                if byte < 128 {
                    break;
                }
            }
            value
        };
        let key = varint();
        let value = varint();
        if key & 7 == 2 {
            at += value as usize;
        }
        borders.insert(at);
    }
    borders
}

/// Every byte, changed to every other value: refused, or another valid object under another id.
#[test]
fn any_byte_changed() {
    for (kind, whole) in objects() {
        let mut ids = HashSet::from([ObjectId::of(kind, &whole)]);
        let mut refused = 0;
        for at in 0..whole.len() {
            for value in (0..=255).filter(|value| *value != whole[at]) {
                let mut changed = whole.to_vec();
                changed[at] = value;
                let changed = Bytes::from(changed);
                match check(kind, &changed) {
                    Ok(()) => {
                        assert!(outgoing(kind, &changed).is_ok());
                        assert!(ids.insert(ObjectId::of(kind, &changed)), "two objects with one id");
                    }
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused > 0, "some changes are refused");
    }
}
