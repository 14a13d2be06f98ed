//! The format of a pack: the stored bytes of many objects, one after another, then a footer that lists them.
//!
//! The footer has one entry of 45 bytes for each object (kind, hash, length, checksum of the stored bytes), the hash of these entries and
//! of the pack's name, their number, the version and a magic word. Numbers are little-endian. A reader needs the end of the pack only to
//! know all of it. The name is part of the hash because PostgreSQL names objects by pack and slot: a pack under the name of another one
//! must not be taken for it. Version 1 has no name in its hash.

use amalgam_engine::backend::StoredObject;
use amalgam_engine::backend::rows::damaged;
use amalgam_engine::{ObjectId, ObjectKind, Result};
use bytes::{BufMut as _, Bytes, BytesMut};

const MAGIC: &[u8; 8] = b"AMALPACK";
const VERSION: u32 = 2;
/// The version whose hash covers the entries only.
const VERSION_WITHOUT_NAME: u32 = 1;
const ENTRY_BYTES: usize = 1 + 32 + 4 + CHECKSUM_BYTES;
const CHECKSUM_BYTES: usize = 8;
const TRAILER_BYTES: usize = 32 + 4 + 4 + MAGIC.len();

/// The name of a pack: random, and never used again.
pub(crate) type PackId = [u8; 16];

/// The place of an object in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) id: ObjectId,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    checksum: [u8; CHECKSUM_BYTES],
}

impl Slot {
    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.length)
    }

    /// Returns whether these are the bytes that were packed.
    pub(crate) fn matches(&self, stored: &[u8]) -> bool {
        stored.len() == self.length as usize && checksum(stored) == self.checksum
    }
}

/// A pack that was built and not yet stored.
pub(crate) struct NewPack {
    pub(crate) body: Bytes,
    pub(crate) footer: Bytes,
    pub(crate) slots: Vec<Slot>,
}

fn checksum(stored: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = blake3::hash(stored);
    *hash.as_bytes().first_chunk().expect("a hash is longer")
}

/// Returns the hash of a footer's entries in a pack of this name.
fn footer_hash(id: &PackId, entries: &[u8], version: u32) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    hasher.update(entries);
    if version != VERSION_WITHOUT_NAME {
        hasher.update(id);
    }
    hasher.finalize()
}

/// Builds a pack of objects, in their order.
pub(crate) fn build(id: &PackId, objects: &[StoredObject]) -> NewPack {
    let mut body = BytesMut::with_capacity(objects.iter().map(|object| object.bytes.len()).sum());
    let mut footer = BytesMut::with_capacity(objects.len() * ENTRY_BYTES + TRAILER_BYTES);
    let mut slots = Vec::with_capacity(objects.len());
    for StoredObject { id: object, bytes } in objects {
        let length = u32::try_from(bytes.len()).expect("an object has less than 4 GiB");
        let slot = Slot { id: *object, offset: body.len() as u64, length, checksum: checksum(bytes) };
        body.put_slice(bytes);
        footer.put_u8(object.kind as u8);
        footer.put_slice(&object.hash);
        footer.put_u32_le(length);
        footer.put_slice(&slot.checksum);
        slots.push(slot);
    }
    let hash = footer_hash(id, &footer, VERSION);
    footer.put_slice(hash.as_bytes());
    footer.put_u32_le(u32::try_from(slots.len()).expect("a pack has a limited number of objects"));
    footer.put_u32_le(VERSION);
    footer.put_slice(MAGIC);
    NewPack { body: body.freeze(), footer: footer.freeze(), slots }
}

/// Reads the footer of the pack with this id. `name` is for the error.
pub(crate) fn read_footer(name: &str, id: &PackId, footer: &[u8]) -> Result<Vec<Slot>> {
    let wrong = |why: &str| damaged(&format!("pack {name}"), &format!("its footer {why}"));
    let split = footer.len().checked_sub(TRAILER_BYTES).ok_or_else(|| wrong("is too short"))?;
    let (entries, trailer) = footer.split_at(split);
    if !trailer.ends_with(MAGIC) {
        return Err(wrong("does not end with the magic word"));
    }
    let version = u32::from_le_bytes(*trailer[36..].first_chunk().expect("a trailer has a version"));
    if ![VERSION, VERSION_WITHOUT_NAME].contains(&version) {
        return Err(wrong("has an unknown version"));
    }
    if trailer[..32] != *footer_hash(id, entries, version).as_bytes() {
        return Err(wrong("does not have its hash, or is that of another pack"));
    }
    if !entries.len().is_multiple_of(ENTRY_BYTES)
        || trailer[32..36] != ((entries.len() / ENTRY_BYTES) as u32).to_le_bytes()
    {
        return Err(wrong("has another number of entries"));
    }
    let mut slots = Vec::with_capacity(entries.len() / ENTRY_BYTES);
    let mut offset = 0;
    for entry in entries.chunks_exact(ENTRY_BYTES) {
        let kind = ObjectKind::from_number(entry[0]).ok_or_else(|| wrong("has an object of an unknown kind"))?;
        let hash = *entry[1..].first_chunk().expect("an entry has a hash");
        let length = u32::from_le_bytes(*entry[33..].first_chunk().expect("an entry has a length"));
        let checksum = *entry[37..].first_chunk().expect("an entry has a checksum");
        slots.push(Slot { id: ObjectId { kind, hash }, offset, length, checksum });
        offset += u64::from(length);
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: PackId = [7; 16];

    fn objects() -> Vec<StoredObject> {
        let object = |(kind, bytes): (ObjectKind, &'static [u8])| StoredObject {
            id: ObjectId::of(kind, bytes),
            bytes: Bytes::from_static(bytes),
        };
        let all: [(ObjectKind, &'static [u8]); 3] =
            [(ObjectKind::Chunk, b"one"), (ObjectKind::Root, b""), (ObjectKind::Snapshot, b"three")];
        all.into_iter().map(object).collect()
    }

    #[test]
    fn a_footer_gives_back_the_slots_of_its_pack() {
        let objects = objects();
        let pack = build(&ID, &objects);
        let slots = read_footer("p", &ID, &pack.footer).expect("it was just built");
        assert_eq!(slots, pack.slots);
        for (slot, object) in slots.iter().zip(&objects) {
            assert_eq!(slot.id, object.id);
            let stored = &pack.body[slot.offset as usize..slot.end() as usize];
            assert_eq!(stored, &object.bytes[..]);
            assert!(slot.matches(stored));
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_footer_is_found() {
        let footer = build(&ID, &objects()).footer;
        for at in 0..footer.len() {
            let mut damaged = footer.to_vec();
            damaged[at] ^= 1;
            let error = read_footer("packs/ab/cd", &ID, &damaged).expect_err("a damaged footer").to_string();
            assert!(error.contains("packs/ab/cd"), "byte {at}: {error}");
        }
        for length in 0..footer.len() {
            read_footer("p", &ID, &footer[..length]).expect_err("a truncated footer");
        }
    }

    #[test]
    fn a_pack_has_golden_bytes() {
        let pack = build(&ID, &objects()[..1]);
        assert_eq!(&pack.body[..], b"one");
        assert_eq!(pack.footer.len(), ENTRY_BYTES + TRAILER_BYTES);
        assert_eq!(pack.footer[0], 1);
        assert_eq!(&pack.footer[33..37], &[3, 0, 0, 0]);
        assert_eq!(&pack.footer[ENTRY_BYTES + 32..], b"\x01\0\0\0\x02\0\0\0AMALPACK");
    }
    #[test]
    fn a_footer_under_the_name_of_another_pack_is_refused() {
        let footer = build(&ID, &objects()).footer;
        read_footer("p", &[8; 16], &footer).expect_err("another pack");
    }

    #[test]
    fn a_footer_of_version_1_is_read() {
        let NewPack { footer, slots, .. } = build(&ID, &objects());
        let mut old = footer.to_vec();
        let entries = old.len() - TRAILER_BYTES;
        let hash = blake3::hash(&old[..entries]);
        old[entries..entries + 32].copy_from_slice(hash.as_bytes());
        old[entries + 36] = 1;
        assert_eq!(read_footer("p", &ID, &old).expect("version 1"), slots);
    }
}
