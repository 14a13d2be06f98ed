//! Reads a stream. Trusts no length: allocates only for bytes that have arrived.

use std::io::Read;

use amalgam_engine::backend::StoredObject;
use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{ObjectId, ObjectKind, SnapshotId, Tombstone};
use bytes::Bytes;

use super::format::{
    BASE, BODY_BYTES_MAX, CHECK_BYTES, END, Frame, HEAD_BYTES, ID_BYTES, MAGIC, NAME, OBJECT, OPENED, OPENED_MAX,
    PURGED, THINNED, TIP, VERSION,
};
use crate::error::{Error, FramePosition, Result};

const BLOCK_BYTES: usize = 1 << 20;
/// The body of an end: two counts and the checksum.
const END_BYTES: usize = 16 + CHECK_BYTES;

/// Splits a stream into frames. A returned frame is complete; objects in it are not verified here.
pub struct StreamReader<R> {
    from: R,
    block: Vec<u8>,
    /// Offset in the block up to which bytes were consumed, and up to which they were hashed.
    taken: usize,
    hashed: usize,
    filled: usize,
    hasher: blake3::Hasher,
    place: FramePosition,
    /// Bytes before the block.
    before: u64,
    objects: u64,
    names: u64,
    begun: bool,
    /// Returns frames that cannot be parsed as such, and an end that does not match, instead of an error.
    salvages: bool,
}

impl<R: Read> StreamReader<R> {
    /// Creates a reader.
    pub fn new(from: R) -> Self {
        Self {
            from,
            block: vec![0; BLOCK_BYTES],
            taken: 0,
            hashed: 0,
            filled: 0,
            hasher: blake3::Hasher::new(),
            place: FramePosition::default(),
            before: 0,
            objects: 0,
            names: 0,
            begun: false,
            salvages: false,
        }
    }

    /// Reads as much of a damaged stream as possible: a frame with a damaged body does not end it. A damaged length still does,
    /// since the next frame cannot be found then.
    pub fn salvaging(from: R) -> Self {
        Self { salvages: true, ..Self::new(from) }
    }

    /// Returns the position of the last frame.
    pub fn place(&self) -> FramePosition {
        self.place
    }

    /// Returns the number of bytes read.
    pub fn bytes(&self) -> u64 {
        self.before + self.taken as u64
    }

    /// Reads the next frame. Do not call it after the end.
    pub fn next_frame(&mut self) -> Result<Frame> {
        if !self.begun {
            self.read_header()?;
        }
        self.place = FramePosition { frame: self.place.frame + 1, byte: self.bytes() };
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_le_bytes(length) as usize;
        if length > BODY_BYTES_MAX {
            return Err(self.damaged(format!("a frame of {length} bytes; the most is {BODY_BYTES_MAX}")));
        }
        if kind == END && (length == END_BYTES || !self.salvages) {
            return self.end(length);
        }
        let body = self.body(length)?;
        let frame = match self.parse(kind, body) {
            Err(Error::Damaged { why, .. }) if self.salvages => Frame::Unreadable { why },
            parsed => parsed?,
        };
        match frame {
            Frame::Object(_) | Frame::Thinned(_) => self.objects += 1,
            Frame::Name(..) => self.names += 1,
            _ => {}
        }
        Ok(frame)
    }

    fn read_header(&mut self) -> Result<()> {
        let mut head = [0; MAGIC.len() + 1];
        match self.fill(&mut head) {
            Err(Error::Cut { .. }) => return Err(Error::NotAStream { why: "it is too short".to_owned() }),
            other => other?,
        }
        let (magic, version) = head.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Error::NotAStream { why: "it begins otherwise".to_owned() });
        }
        if version[0] != VERSION {
            return Err(Error::Version { found: version[0], known: VERSION });
        }
        self.begun = true;
        Ok(())
    }

    fn parse(&self, kind: u8, body: Bytes) -> Result<Frame> {
        let wrong = |why: &str| self.damaged(why.to_owned());
        let snapshot = |body: &[u8]| {
            let hash = body.try_into().map_err(|_| wrong("a snapshot's id has 32 bytes"))?;
            Ok::<_, Error>(SnapshotId::from_bytes(hash))
        };
        Ok(match kind {
            BASE => Frame::Base(snapshot(&body)?),
            TIP => Frame::Tip(snapshot(&body)?),
            OPENED => {
                if !body.len().is_multiple_of(ID_BYTES) || body.len() > OPENED_MAX * ID_BYTES {
                    return Err(wrong("a list of ids of the wrong length"));
                }
                let ids: Option<Vec<_>> = body.chunks_exact(ID_BYTES).map(read_id).collect();
                Frame::Opened(ids.ok_or_else(|| wrong("an object of an unknown kind"))?)
            }
            OBJECT => {
                if body.len() < ID_BYTES {
                    return Err(wrong("an object without its id"));
                }
                let id = read_id(&body[..ID_BYTES]).ok_or_else(|| wrong("an object of an unknown kind"))?;
                Frame::Object(StoredObject { id, bytes: body.slice(ID_BYTES..) })
            }
            THINNED => Frame::Thinned(body),
            PURGED => {
                if body.len() < ID_BYTES {
                    return Err(wrong("a tombstone without an id"));
                }
                let id = read_id(&body[..ID_BYTES]).ok_or_else(|| wrong("an object of an unknown kind"))?;
                let tombstone =
                    Tombstone::decode(body.slice(ID_BYTES..)).map_err(|why| self.damaged(why.to_string()))?;
                Frame::Purged(id, tombstone)
            }
            NAME => self.name(&body)?,
            other => return Err(self.damaged(format!("a frame of the unknown type {other}"))),
        })
    }

    fn name(&self, body: &Bytes) -> Result<Frame> {
        let short = || self.damaged("a name that is cut".to_owned());
        let (length, rest) = body.split_first_chunk::<2>().ok_or_else(short)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let text = rest.get(..length).ok_or_else(short)?;
        let text = std::str::from_utf8(text).map_err(|_| self.damaged("a name that is not text".to_owned()))?;
        let name = RefName::new(text).map_err(|why| self.damaged(why.to_string()))?;
        let value = RefValue::decode(body.slice(2 + length..)).map_err(|why| self.damaged(why.to_string()))?;
        Ok(Frame::Name(name, value))
    }

    fn end(&mut self, length: usize) -> Result<Frame> {
        let mut counts = [0; END_BYTES - CHECK_BYTES];
        let mut check = [0; CHECK_BYTES];
        if length != END_BYTES {
            return Err(self.damaged("an end of the wrong length".to_owned()));
        }
        self.fill(&mut counts)?;
        self.hash_taken();
        let expected = self.hasher.finalize();
        self.fill(&mut check)?;
        let count = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| counts[at + byte]));
        let (objects, names) = (count(0), count(8));
        let is_intact = expected.as_bytes() == &check && (objects, names) == (self.objects, self.names);
        if is_intact || self.salvages {
            return Ok(Frame::End { is_intact, objects, names });
        }
        if expected.as_bytes() != &check {
            return Err(self.damaged("the checksum of the whole stream does not match".to_owned()));
        }
        let (objects_found, names_found) = (self.objects, self.names);
        let why =
            format!("it has {objects_found} objects and {names_found} names, but its end says {objects} and {names}");
        Err(self.damaged(why))
    }

    fn damaged(&self, why: String) -> Error {
        Error::Damaged { place: self.place, why }
    }

    /// Reads a body of this length, growing it as bytes arrive.
    fn body(&mut self, length: usize) -> Result<Bytes> {
        let mut body = Vec::with_capacity(length.min(BLOCK_BYTES));
        while body.len() < length {
            let piece = self.available()?.min(length - body.len());
            body.extend_from_slice(&self.block[self.taken..self.taken + piece]);
            self.taken += piece;
        }
        Ok(body.into())
    }

    fn fill(&mut self, mut place: &mut [u8]) -> Result<()> {
        while !place.is_empty() {
            let piece = self.available()?.min(place.len());
            place[..piece].copy_from_slice(&self.block[self.taken..self.taken + piece]);
            self.taken += piece;
            place = &mut place[piece..];
        }
        Ok(())
    }

    fn hash_taken(&mut self) {
        self.hasher.update(&self.block[self.hashed..self.taken]);
        self.hashed = self.taken;
    }

    /// Returns how many unread bytes the block has; reads the next block if there are none.
    fn available(&mut self) -> Result<usize> {
        if self.taken == self.filled {
            self.hash_taken();
            self.before += self.filled as u64;
            (self.taken, self.hashed, self.filled) = (0, 0, 0);
            self.filled = loop {
                match self.from.read(&mut self.block) {
                    Ok(0) => return Err(Error::Cut { place: self.place }),
                    Ok(read) => break read,
                    Err(source) if source.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(Error::host("receive", source)),
                }
            };
        }
        Ok(self.filled - self.taken)
    }
}

fn read_id(bytes: &[u8]) -> Option<ObjectId> {
    let (kind, hash) = bytes.split_first()?;
    Some(ObjectId { kind: ObjectKind::from_number(*kind)?, hash: hash.try_into().ok()? })
}
