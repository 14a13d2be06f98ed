//! Bytes as the format has them and as it does not: fields by hand, in any order, with any lie.

use amalgam_engine::ObjectKind;
use bytes::Bytes;

pub fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 128 {
        bytes.push(value as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A field with a number.
pub fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

/// A field with bytes or a message.
pub fn bytes(field: u64, value: impl AsRef<[u8]>) -> Vec<u8> {
    let value = value.as_ref();
    [varint(field << 3 | 2), varint(value.len() as u64), value.to_vec()].concat()
}

/// Fields in the order given.
pub fn fields(parts: &[Vec<u8>]) -> Vec<u8> {
    parts.concat()
}

/// An object with this body.
pub fn object(kind: ObjectKind, parts: &[Vec<u8>]) -> Bytes {
    [vec![kind as u8, 1], parts.concat()].concat().into()
}

/// A leaf of a directory with these entries.
pub fn directory(entries: &[Vec<u8>]) -> Bytes {
    object(ObjectKind::Directory, &entries.iter().map(|entry| bytes(2, entry)).collect::<Vec<_>>())
}

/// An entry with a name and more fields.
pub fn entry(name: impl AsRef<[u8]>, parts: &[Vec<u8>]) -> Vec<u8> {
    [vec![bytes(1, name)], parts.to_vec()].concat().concat()
}

/// A named pipe: the shortest valid entry.
pub fn fifo(name: impl AsRef<[u8]>) -> Vec<u8> {
    entry(name, &[number(2, 4)])
}

/// An inner node of this level with these links.
pub fn inner(kind: ObjectKind, level: u64, links: &[Vec<u8>]) -> Bytes {
    let links = links.iter().map(|link| bytes(3, link));
    object(kind, &std::iter::once(number(1, level)).chain(links).collect::<Vec<_>>())
}
