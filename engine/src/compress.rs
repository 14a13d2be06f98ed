//! The stored form of chunks: a codec byte, then raw or compressed bytes. Other objects are stored in canonical form, except that
//! marks may precede a snapshot.

use std::borrow::Cow;
use std::cell::RefCell;

use bytes::Bytes;

use crate::changed_paths;
use crate::error::{Error, Result};
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object::CHUNK_BYTES_MAX;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
/// The fastest level with a larger hash table and a shorter minimum match than its defaults: smaller and no slower on source
/// text.
const ZSTD_LEVEL: i32 = 1;
const ZSTD_HASH_LOG: u32 = 14;
const ZSTD_MATCH_BYTES_MIN: u32 = 5;
/// Below this size compression does not save space.
const COMPRESS_BYTES_MIN: usize = 64;
const ZSTD_HEADER_BYTES: usize = 5;
const CHUNK_BYTES_MAX_U64: u64 = CHUNK_BYTES_MAX as u64;

thread_local! {
    static PACKER: RefCell<Option<Packer>> = const { RefCell::new(None) };
    static UNPACKED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// A thread-local compressor and its output buffer.
struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
    room: Vec<u8>,
}

/// Up to this size, in bytes, compressing a chunk takes longer than storing it and saves at most a few hundred bytes.
pub(crate) const SMALL_CHUNK_BYTES_MAX: usize = 2 << 10;

/// Returns the stored form of a chunk. With `pressed`, small chunks are compressed too.
pub(crate) fn pack_chunk(raw: &[u8], pressed: bool) -> Bytes {
    debug_assert!((1..=CHUNK_BYTES_MAX).contains(&raw.len()), "a chunk has its size from the chunker");
    let compress_from = if pressed { COMPRESS_BYTES_MIN } else { SMALL_CHUNK_BYTES_MAX + 1 };
    if raw.len() >= compress_from
        && let Ok(packed) = compress(raw)
        && packed.len() + raw.len() / 32 < raw.len()
    {
        return packed.into();
    }
    store_raw(raw)
}

/// Returns the uncompressed stored form of a chunk.
pub(crate) fn store_raw(raw: &[u8]) -> Bytes {
    let mut stored = Vec::with_capacity(raw.len() + 1);
    stored.push(RAW);
    stored.extend_from_slice(raw);
    stored.into()
}

impl Packer {
    fn new() -> std::io::Result<Self> {
        use zstd::zstd_safe::CParameter;
        let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        compressor.set_parameter(CParameter::HashLog(ZSTD_HASH_LOG))?;
        compressor.set_parameter(CParameter::MinMatch(ZSTD_MATCH_BYTES_MIN))?;
        // Our header has the length, and the object id is the checksum.
        compressor.set_parameter(CParameter::ContentSizeFlag(false))?;
        compressor.set_parameter(CParameter::ChecksumFlag(false))?;
        Ok(Self { compressor, room: vec![0; zstd::zstd_safe::compress_bound(CHUNK_BYTES_MAX)] })
    }
}

fn compress(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    PACKER.with_borrow_mut(|place| {
        let packer = match place {
            Some(packer) => packer,
            None => place.insert(Packer::new()?),
        };
        let written = packer.compressor.compress_to_buffer(raw, &mut packer.room[..])?;
        let length = u32::try_from(raw.len()).expect("a chunk is far below 4 GiB");
        let mut stored = Vec::with_capacity(ZSTD_HEADER_BYTES + written);
        stored.push(ZSTD);
        stored.extend_from_slice(&length.to_le_bytes());
        stored.extend_from_slice(&packer.room[..written]);
        Ok(stored)
    })
}

/// Returns the uncompressed length of a stored chunk from its header.
pub(crate) fn chunk_bytes(stored: &[u8]) -> Result<u64, Malformed> {
    let length = match stored {
        [RAW, raw @ ..] if !raw.is_empty() => raw.len() as u64,
        [ZSTD, a, b, c, d, _, ..] => u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
        [RAW | ZSTD, ..] | [] => return Err(Malformed::Truncated),
        _ => return Err(Malformed::Rule("a chunk in an unknown codec")),
    };
    match length {
        1..=CHUNK_BYTES_MAX_U64 => Ok(length),
        _ => Err(Malformed::TooMuch { what: "a chunk" }),
    }
}

/// Decodes a stored chunk. Allocates at most the maximum chunk size, regardless of the header.
pub fn unpack_chunk(stored: &Bytes) -> Result<Bytes, Malformed> {
    match chunk_bytes(stored)? {
        _ if stored[0] == RAW => Ok(stored.slice(1..)),
        length => decompress(stored, length as usize),
    }
}

/// Decodes a stored chunk from borrowed bytes.
pub(crate) fn copy_chunk(stored: &[u8]) -> Result<Bytes, Malformed> {
    match chunk_bytes(stored)? {
        _ if stored[0] == RAW => Ok(Bytes::copy_from_slice(&stored[1..])),
        length => decompress(stored, length as usize),
    }
}

/// Decodes a stored chunk into a reused thread-local buffer and passes the bytes to `look`.
pub(crate) fn look_at_chunk<T>(stored: &[u8], look: impl FnOnce(&[u8]) -> T) -> Result<T, Malformed> {
    let length = chunk_bytes(stored)? as usize;
    if stored[0] == RAW {
        return Ok(look(&stored[1..]));
    }
    let broken = |_| Malformed::Rule("broken zstd");
    UNPACKED.with_borrow_mut(|room| {
        room.resize(CHUNK_BYTES_MAX, 0);
        let packed = &stored[ZSTD_HEADER_BYTES..];
        let unpacked = with_decompressor(|decompressor| decompressor.decompress_to_buffer(packed, &mut room[..length]));
        if unpacked.map_err(broken)? == length { Ok(look(&room[..length])) } else { Err(Malformed::Truncated) }
    })
}

fn decompress(stored: &[u8], length: usize) -> Result<Bytes, Malformed> {
    let raw = with_decompressor(|decompressor| decompressor.decompress(&stored[ZSTD_HEADER_BYTES..], length));
    let raw = raw.map_err(|_| Malformed::Rule("broken zstd"))?;
    if raw.len() == length { Ok(raw.into()) } else { Err(Malformed::Truncated) }
}

fn with_decompressor<T>(
    run: impl FnOnce(&mut zstd::bulk::Decompressor<'static>) -> std::io::Result<T>,
) -> std::io::Result<T> {
    DECOMPRESSOR.with_borrow_mut(|place| match place {
        Some(decompressor) => run(decompressor),
        None => run(place.insert(zstd::bulk::Decompressor::new()?)),
    })
}

/// Returns the canonical bytes of a stored form.
pub(crate) fn canonical(id: ObjectId, stored: &Bytes) -> Result<Cow<'_, Bytes>> {
    let malformed = |source| Error::Malformed { id, source };
    match id.kind {
        ObjectKind::Chunk => unpack_chunk(stored).map(Cow::Owned).map_err(malformed),
        ObjectKind::Snapshot => match changed_paths::canonical_start(stored).map_err(malformed)? {
            0 => Ok(Cow::Borrowed(stored)),
            start => Ok(Cow::Owned(stored.slice(start..))),
        },
        _ => Ok(Cow::Borrowed(stored)),
    }
}
