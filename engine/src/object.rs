//! Object types and their canonical encoding. Plain immutable values: nothing in this module reads a store.
//!
//! Every object except a chunk is encoded as `kind, version, body`. The body is protobuf with fields in ascending order, default
//! values omitted, and maps as sorted lists. `docs/FORMAT.md` is the specification; golden tests pin the bytes.

mod children;
pub mod codec;
mod conflict;
mod directory;
mod entry;
mod links;
mod refers;
mod root;
mod rope;
mod sequence;
mod snapshot;
mod state;
mod xattrs;

pub use children::{Child, Children, children};
pub use conflict::{Conflict, Settled};
pub use directory::{Directories, DirectoryItem, DirectoryLink, DirectoryNode};
pub(crate) use directory::{NodeLookup, say};
pub use entry::{Content, Device, DirectoryRef, Entry, EntryKind, Extra, Node, Owner, SYMLINK_TARGET_BYTES_MAX};
pub use links::{LinkLink, LinkMember, Links};
pub use refers::refers;
pub use root::Root;
pub(crate) use rope::FILE_BYTES_MAX;
pub use rope::{CHUNK_BYTES_MAX, HOLE_BYTES_MIN, RopeLink, Ropes, SINGLE_CHUNK_BYTES_MAX, Segment, SegmentSource};
pub use sequence::{CUT_BITS, ITEMS_MAX, ITEMS_MIN, LEVEL_MAX, Sequence, SequenceNode};
pub use snapshot::{GENERATION_MAX, Snapshot};
pub use state::{STATE_KEY_BYTES_MAX, STATE_VALUE_BYTES_MAX, StateItem, StateLink, States};
pub use xattrs::{
    XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XATTRS_INLINE_BYTES_MAX, Xattr, Xattrs,
};

use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use bytes::Bytes;

/// Maximum encoded size of an object that is not a chunk, in bytes.
pub const OBJECT_BYTES_MAX: usize = 32 << 20;

/// The ids an object refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outgoing {
    /// Ids that the object is incomplete without. Garbage collection keeps them alive.
    pub strong: Vec<ObjectId>,
    /// Ids of the object's history. Thinning may have deleted them.
    pub weak: Vec<ObjectId>,
}

/// Returns the ids that an object of this kind refers to. Safe on untrusted bytes.
pub fn outgoing(kind: ObjectKind, canonical: &Bytes) -> Result<Outgoing, Malformed> {
    let mut out = Outgoing::default();
    match kind {
        ObjectKind::Chunk | ObjectKind::Xattrs => {}
        ObjectKind::Rope => out.strong = sequence::decode::<Ropes>(canonical)?.outgoing(),
        ObjectKind::Directory => out.strong = sequence::decode::<Directories>(canonical)?.outgoing(),
        ObjectKind::Links => out.strong = sequence::decode::<Links>(canonical)?.outgoing(),
        ObjectKind::State => out.strong = sequence::decode::<States>(canonical)?.outgoing(),
        ObjectKind::Root => out.strong = Root::decode(canonical)?.outgoing(),
        ObjectKind::Snapshot => {
            let snapshot = Snapshot::decode(canonical)?;
            out.strong.push(snapshot.root.object());
            out.weak.extend(snapshot.parents.iter().map(|parent| parent.object()));
        }
    }
    Ok(out)
}

/// Checks that untrusted bytes are the canonical encoding of a valid object of this kind.
pub fn check(kind: ObjectKind, bytes: &Bytes) -> Result<(), Malformed> {
    let canonical = match kind {
        ObjectKind::Chunk => return check_chunk(bytes.len()),
        _ if bytes.len() > OBJECT_BYTES_MAX => return Err(Malformed::TooMuch { what: "an object" }),
        ObjectKind::Rope => sequence::decode::<Ropes>(bytes)?.encode(),
        ObjectKind::Directory => sequence::decode::<Directories>(bytes)?.encode(),
        ObjectKind::Links => sequence::decode::<Links>(bytes)?.encode(),
        ObjectKind::State => sequence::decode::<States>(bytes)?.encode(),
        ObjectKind::Root => Root::decode(bytes)?.encode(),
        ObjectKind::Snapshot => Snapshot::decode(bytes)?.encode(),
        ObjectKind::Xattrs => xattrs::encode_apart(&xattrs::decode_apart(bytes)?),
    };
    if canonical == bytes[..] { Ok(()) } else { Err(Malformed::NotCanonical) }
}

/// Checks the length of a chunk.
pub(crate) fn check_chunk(bytes: usize) -> Result<(), Malformed> {
    match bytes {
        1..=CHUNK_BYTES_MAX => Ok(()),
        0 => Err(Malformed::TooFew),
        _ => Err(Malformed::TooMuch { what: "a chunk" }),
    }
}

pub(crate) use sequence::{KeyHash, decode as decode_node, ends_node};
pub(crate) use xattrs::{check as check_xattrs, decode_apart as decode_xattrs, encode_apart as encode_xattrs};
