//! Object ids. The id of an object is the keyed BLAKE3 hash of its canonical bytes. The key is a constant of its kind, so that a
//! chunk with the bytes of a directory has a different id. This module holds no objects and reads no store.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The kind of an object. The number is its first byte on disk and never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum ObjectKind {
    /// A range of file bytes.
    Chunk = 1,
    /// A node of a large file's rope.
    Rope = 2,
    /// A node of a directory.
    Directory = 3,
    /// A whole tree: the root directory, its hard-link map and its state map.
    Root = 4,
    /// A tree with its history: parents, author, time, message.
    Snapshot = 5,
    /// A node of the map from link groups to their members.
    Links = 6,
    /// A node of the map of state values.
    State = 7,
    /// Extended attributes too large for their entry.
    Xattrs = 8,
}

impl ObjectKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 8] =
        [Self::Chunk, Self::Rope, Self::Directory, Self::Root, Self::Snapshot, Self::Links, Self::State, Self::Xattrs];

    /// Returns the kind with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns the name of the kind, for messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Chunk => "chunk",
            Self::Rope => "rope",
            Self::Directory => "directory",
            Self::Root => "root",
            Self::Snapshot => "snapshot",
            Self::Links => "links",
            Self::State => "state",
            Self::Xattrs => "xattrs",
        }
    }

    fn key(self) -> &'static [u8; 32] {
        match self {
            Self::Chunk => b"amalgam/1/chunk\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Rope => b"amalgam/1/rope\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Directory => b"amalgam/1/directory\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Root => b"amalgam/1/root\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Snapshot => b"amalgam/1/snapshot\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Links => b"amalgam/1/links\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::State => b"amalgam/1/state\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            Self::Xattrs => b"amalgam/1/xattrs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

const BARE_KEY: &[u8; 32] = b"amalgam/1/bare\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const LINK_GROUP_KEY: &[u8; 32] = b"amalgam/1/link-group\0\0\0\0\0\0\0\0\0\0\0\0";

/// The id of any object: its kind and its hash.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// The kind.
    pub kind: ObjectKind,
    /// The keyed hash of its canonical bytes.
    pub hash: [u8; 32],
}

impl ObjectId {
    /// Returns the id of the object of this kind with these canonical bytes.
    pub fn of(kind: ObjectKind, canonical: &[u8]) -> Self {
        Self { kind, hash: *blake3::keyed_hash(kind.key(), canonical).as_bytes() }
    }
}

impl Hash for ObjectId {
    /// Hashes the first eight bytes: they are part of a hash already, and suffice for a hash table.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.hash;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, Hex(&self.hash))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut hash = [0; 32];
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).expect("two hex digits fit a byte");
    }
    Some(hash)
}

macro_rules! hash_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Creates an id from 32 bytes without checking that the object exists.
            pub const fn from_bytes(hash: [u8; 32]) -> Self {
                Self(hash)
            }

            /// Returns the 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Parses 64 hexadecimal digits.
            pub fn from_hex(text: &str) -> Option<Self> {
                parse_hex(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Hex(&self.0), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), Hex(&self.0[..6]))
            }
        }
    };
}

macro_rules! object_newtype {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        hash_newtype!($(#[$doc])* $name);

        impl $name {
            /// Returns the id of the object with these canonical bytes.
            pub fn of(canonical: &[u8]) -> Self {
                Self(ObjectId::of(ObjectKind::$kind, canonical).hash)
            }

            /// Returns the id as an [`ObjectId`].
            pub const fn object(self) -> ObjectId {
                ObjectId { kind: ObjectKind::$kind, hash: self.0 }
            }
        }

        impl From<$name> for ObjectId {
            fn from(id: $name) -> Self {
                id.object()
            }
        }
    };
}

object_newtype!(/// A chunk of file bytes.
    ChunkId, Chunk);
object_newtype!(/// A node of a rope.
    RopeId, Rope);
object_newtype!(/// A node of a directory.
    DirectoryId, Directory);
object_newtype!(/// A whole tree.
    RootId, Root);
object_newtype!(/// A snapshot.
    SnapshotId, Snapshot);
object_newtype!(/// A node of the link-group map.
    LinksId, Links);
object_newtype!(/// A node of the state map.
    StateId, State);
object_newtype!(/// A set of large extended attributes.
    XattrsId, Xattrs);

impl SnapshotId {
    /// Returns the first 12 hexadecimal digits, for display. A store resolves them to a snapshot.
    pub fn short(&self) -> String {
        Hex(&self.0[..6]).to_string()
    }
}

hash_newtype!(
    /// The second hash of a directory or root, which covers the tree without its times. Two trees with an equal `Bare` are equal
    /// except for their mtimes.
    Bare
);

impl Bare {
    /// Returns the hash of an encoding without times.
    pub fn of(timeless: &[u8]) -> Self {
        Self(*blake3::keyed_hash(BARE_KEY, timeless).as_bytes())
    }
}

hash_newtype!(
    /// A hard-link group: the names that share one file.
    LinkGroup
);

impl LinkGroup {
    /// Returns the id of a group by its smallest path when it was first seen. `attempt` is 0 unless that id is taken.
    pub fn first_seen_at(smallest_path: &[u8], attempt: u32) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(LINK_GROUP_KEY);
        hasher.update(&attempt.to_le_bytes()).update(smallest_path);
        Self(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_with_equal_bytes_have_different_ids() {
        let hashes: std::collections::HashSet<_> =
            ObjectKind::ALL.iter().map(|kind| ObjectId::of(*kind, b"same").hash).collect();
        assert_eq!(hashes.len(), ObjectKind::ALL.len());
    }

    #[test]
    fn numbers_and_hex_go_round() {
        for kind in ObjectKind::ALL {
            assert_eq!(ObjectKind::from_number(kind as u8), Some(kind));
        }
        assert_eq!(ObjectKind::from_number(0), None);
        assert_eq!(ObjectKind::from_number(9), None);
        let id = ChunkId::of(b"hello");
        assert_eq!(ChunkId::from_hex(&id.to_string()), Some(id));
        assert_eq!(ChunkId::from_hex("zz"), None);
        assert_eq!(ChunkId::from_hex(&"+".repeat(64)), None);
    }
}
