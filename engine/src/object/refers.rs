//! A fast reader of an object's references, for garbage collection, which visits every object of a store and needs only its
//! references. Borrows from the input instead of decoding it. Returns the same ids as [`outgoing`](super::outgoing) in a tenth of
//! the time.

use super::codec::{FieldValue, Fields};
use crate::id::ObjectKind;
use crate::malformed::Malformed;

const FILE: u64 = 1;
const DIRECTORY: u64 = 2;
const ONE_CHUNK: u64 = 1;
const ROPE: u64 = 2;

/// Callback that receives each reference.
type VisitReference<'a> = &'a mut dyn FnMut(ObjectKind, &[u8; 32]);

/// Calls `tell` with the kind and the hash of every object that this object is incomplete without. The caller has verified the
/// hash of the bytes, so they are a valid object. An unknown field is an error and is never skipped.
///
/// Snapshots report nothing: the collector decides how much of the history it keeps.
pub fn refers(kind: ObjectKind, canonical: &[u8], tell: VisitReference<'_>) -> Result<(), Malformed> {
    match kind {
        ObjectKind::Chunk | ObjectKind::Xattrs | ObjectKind::Snapshot => Ok(()),
        ObjectKind::Root => {
            let mut fields = Fields::object(kind, canonical)?;
            while let Some((field, value)) = fields.next_field()? {
                match field {
                    1 => entry(value.bytes(1)?, tell)?,
                    2 => tell(ObjectKind::Links, value.hash(2)?),
                    3 => tell(ObjectKind::State, value.hash(3)?),
                    number => return Err(Malformed::Field { number }),
                }
            }
            Ok(())
        }
        ObjectKind::Directory | ObjectKind::Rope | ObjectKind::Links | ObjectKind::State => {
            let mut fields = Fields::object(kind, canonical)?;
            while let Some((field, value)) = fields.next_field()? {
                match (field, kind) {
                    (1, _) => {}
                    (2, ObjectKind::Directory) => entry(value.bytes(2)?, tell)?,
                    (2, ObjectKind::Rope) => hash_in(value.bytes(2)?, 1, ObjectKind::Chunk, tell)?,
                    (2, _) => {}
                    (3, ObjectKind::Directory) => hash_in(value.bytes(3)?, 2, kind, tell)?,
                    (3, ObjectKind::Rope) => hash_in(value.bytes(3)?, 1, kind, tell)?,
                    (3, _) => hash_in(value.bytes(3)?, 3, kind, tell)?,
                    (number, _) => return Err(Malformed::Field { number }),
                }
            }
            Ok(())
        }
    }
}

/// Reports the hash in one field of a message, if the field is present.
fn hash_in(message: &[u8], wanted: u32, kind: ObjectKind, tell: VisitReference<'_>) -> Result<(), Malformed> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next_field()? {
        if field == wanted {
            tell(kind, value.hash(field)?);
        }
    }
    Ok(())
}

fn entry(message: &[u8], tell: VisitReference<'_>) -> Result<(), Malformed> {
    let (mut kind, mut form) = (0, 0);
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next_field()? {
        match (field, value) {
            (2, value) => kind = value.number(2)?,
            (6, value) => form = value.number(6)?,
            (7, value) => {
                let below = match (kind, form) {
                    (FILE, ONE_CHUNK) => ObjectKind::Chunk,
                    (FILE, ROPE) => ObjectKind::Rope,
                    (DIRECTORY, _) => ObjectKind::Directory,
                    _ => return Err(Malformed::Rule("a hash that belongs to no kind of entry")),
                };
                tell(below, value.hash(7)?);
            }
            (12, FieldValue::Bytes(term)) => {
                let mut terms = Fields::of(term);
                while let Some((field, value)) = terms.next_field()? {
                    entry(value.bytes(field)?, tell)?;
                }
            }
            (15, value) => tell(ObjectKind::Xattrs, value.hash(15)?),
            (1 | 3 | 4 | 5 | 8 | 9 | 10 | 11 | 13 | 14 | 16, _) => {}
            (number, _) => return Err(Malformed::Field { number }),
        }
    }
    Ok(())
}
