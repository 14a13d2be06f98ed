//! Encoder and decoder of the canonical encoding: protobuf with fields in ascending order and default values omitted. Written by
//! hand on top of prost's primitives, because a derived decoder silently drops unknown fields and a derived encoder needs a
//! second copy of every value.

use std::cell::Cell;
use std::ops::Range;

use bytes::Bytes;
use prost::encoding::{decode_varint, encode_varint, encoded_len_varint};

use crate::id::ObjectKind;
use crate::malformed::Malformed;

/// The version byte of every object kind.
pub const OBJECT_VERSION: u8 = 1;

const VARINT_BYTES_MAX: usize = 10;
const WIRE_VARINT: u64 = 0;
const WIRE_BYTES: u64 = 2;

thread_local! {
    static ROOM: Cell<[Vec<u8>; 2]> = const { Cell::new([Vec::new(), Vec::new()]) };
}

/// Encodes fields in call order. The caller must write them in ascending order.
#[derive(Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Creates a writer for an object and writes its header.
    pub fn object(kind: ObjectKind) -> Self {
        let mut out = Self(Vec::with_capacity(1024));
        out.header(kind);
        out
    }

    /// Encodes an object into a reused thread-local buffer and passes the bytes to `look`.
    pub fn look_at_object<T>(kind: ObjectKind, write: impl FnOnce(&mut Self), look: impl FnOnce(&[u8]) -> T) -> T {
        Self::look_at_two(kind, |out, _| write(out), |bytes, _| look(bytes))
    }

    /// Encodes two forms of an object into reused thread-local buffers and passes both to `look`.
    pub fn look_at_two<T>(
        kind: ObjectKind,
        write: impl FnOnce(&mut Self, &mut Self),
        look: impl FnOnce(&[u8], &[u8]) -> T,
    ) -> T {
        let [mut one, mut two] = ROOM.take().map(Self);
        for out in [&mut one, &mut two] {
            out.0.clear();
            out.header(kind);
        }
        write(&mut one, &mut two);
        let seen = look(&one.0, &two.0);
        ROOM.set([one.0, two.0]);
        seen
    }

    /// Writes a message in two forms. `before` and `after` write the fields that both forms share; `between` writes the fields
    /// that only the longer form has.
    pub fn message_in_two_forms<T>(
        &mut self,
        longer: &mut Self,
        field: u32,
        value: &T,
        [before, after]: [fn(&T, &mut Self); 2],
        between: fn(&T, &mut Self),
    ) {
        let mut split = 0;
        let start = self.place_message(field, |out| {
            let start = out.0.len();
            before(value, out);
            split = out.0.len() - start;
            after(value, out);
        });
        longer.message(field, |out| {
            let (before, after) = self.0[start..].split_at(split);
            out.0.extend_from_slice(before);
            between(value, out);
            out.0.extend_from_slice(after);
        });
    }

    fn header(&mut self, kind: ObjectKind) {
        self.0.extend([kind as u8, OBJECT_VERSION]);
    }

    /// Creates a writer for a record without a header.
    pub fn record() -> Self {
        Self::default()
    }

    /// Writes an unsigned number. Zero is omitted.
    #[inline]
    pub fn uint(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key_and_number(u64::from(field) << 3 | WIRE_VARINT, value);
        }
    }

    /// Writes a field's key and its number together. This is the hot path: most of an object's bytes are written by this
    /// function.
    #[inline]
    fn key_and_number(&mut self, key: u64, value: u64) {
        if let (Ok(key @ ..0x80), Ok(value @ ..0x80)) = (u8::try_from(key), u8::try_from(value)) {
            self.0.extend_from_slice(&[key, value]);
            return;
        }
        let mut room = [0; 2 * VARINT_BYTES_MAX];
        let mut rest = &mut room[..];
        encode_varint(key, &mut rest);
        encode_varint(value, &mut rest);
        let written = 2 * VARINT_BYTES_MAX - rest.len();
        self.0.extend_from_slice(&room[..written]);
    }

    /// Writes a signed number in zigzag encoding. Zero is omitted.
    pub fn sint(&mut self, field: u32, value: i64) {
        self.uint(field, ((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// Writes a byte string. An empty one is omitted.
    #[inline]
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        if !value.is_empty() {
            self.item(field, value);
        }
    }

    /// Writes one element of a list of byte strings, even if it is empty.
    #[inline]
    pub fn item(&mut self, field: u32, value: &[u8]) {
        self.key_and_number(u64::from(field) << 3 | WIRE_BYTES, value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Writes a nested message, even if it is empty.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        self.place_message(field, write);
    }

    /// Writes a nested message and returns the offset of its first field.
    fn place_message(&mut self, field: u32, write: impl FnOnce(&mut Self)) -> usize {
        self.key_and_number(u64::from(field) << 3 | WIRE_BYTES, 0);
        let start = self.0.len() - 1;
        write(self);
        let length = self.0.len() - start - 1;
        match encoded_len_varint(length as u64) {
            1 => {
                self.0[start] = u8::try_from(length).expect("one byte of varint is below 128");
                start + 1
            }
            more => {
                // Makes room for a longer length prefix. The body moves once and is short.
                self.0.splice(start..=start, std::iter::repeat_n(0, more));
                let mut place = &mut self.0[start..start + more];
                encode_varint(length as u64, &mut place);
                start + more
            }
        }
    }

    /// Returns the encoded bytes.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// The value of a field.
pub enum Value<'a> {
    /// A varint.
    Number(u64),
    /// A range of the object's buffer.
    Bytes(&'a Bytes, Range<usize>),
}

/// Decodes fields one at a time from untrusted bytes. Never allocates memory because of a length prefix alone.
pub struct Reader {
    buffer: Bytes,
    rest: Range<usize>,
    field: u32,
}

impl Reader {
    /// Checks an object's header and returns a reader of its body.
    pub fn object(kind: ObjectKind, bytes: &Bytes) -> Result<Self, Malformed> {
        match bytes[..] {
            [found, _, ..] if found != kind as u8 => Err(Malformed::Kind { found }),
            [_, found, ..] if found != OBJECT_VERSION => Err(Malformed::Version { found }),
            [_, _, ..] => Ok(Self { buffer: bytes.clone(), rest: 2..bytes.len(), field: 0 }),
            _ => Err(Malformed::Truncated),
        }
    }

    /// Creates a reader for a record without a header.
    pub fn record(bytes: Bytes) -> Self {
        Self { rest: 0..bytes.len(), buffer: bytes, field: 0 }
    }

    /// Returns the next field. A field number below the previous one is an error.
    pub fn next_field(&mut self) -> Result<Option<(u32, Value<'_>)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed::Field { number: u32::MAX })?;
        if number < self.field || number == 0 {
            return Err(Malformed::NotCanonical);
        }
        self.field = number;
        let value = match key & 7 {
            WIRE_VARINT => Value::Number(self.varint()?),
            WIRE_BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
                if length > self.rest.len() {
                    return Err(Malformed::Truncated);
                }
                let start = self.rest.start;
                self.rest.start += length;
                Value::Bytes(&self.buffer, start..start + length)
            }
            _ => return Err(Malformed::Field { number }),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut rest = &self.buffer[self.rest.clone()];
        // Most varints are one byte long.
        if let [byte @ ..0x80, ..] = rest {
            self.rest.start += 1;
            return Ok(u64::from(*byte));
        }
        let value = decode_varint(&mut rest).map_err(|_| Malformed::Truncated)?;
        self.rest.start = self.rest.end - rest.len();
        Ok(value)
    }
}

impl<'a> Value<'a> {
    /// Returns the number.
    pub fn number(self, field: u32) -> Result<u64, Malformed> {
        match self {
            Self::Number(value) => Ok(value),
            Self::Bytes(..) => Err(Malformed::Field { number: field }),
        }
    }

    /// Returns the zigzag-decoded signed number.
    pub fn signed(self, field: u32) -> Result<i64, Malformed> {
        let value = self.number(field)?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// Returns the number if it fits 32 bits.
    pub fn small(self, field: u32) -> Result<u32, Malformed> {
        u32::try_from(self.number(field)?).map_err(|_| Malformed::Overflow)
    }

    /// Borrows the bytes from the object's buffer.
    pub fn slice(self, field: u32) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(buffer, range) => Ok(&buffer[range]),
            Self::Number(_) => Err(Malformed::Field { number: field }),
        }
    }

    /// Returns the bytes as a reference-counted slice of the object's buffer.
    pub fn bytes(self, field: u32) -> Result<Bytes, Malformed> {
        match self {
            Self::Bytes(buffer, range) => Ok(buffer.slice(range)),
            Self::Number(_) => Err(Malformed::Field { number: field }),
        }
    }

    /// Returns the bytes as a 32-byte hash.
    pub fn hash(self, field: u32) -> Result<[u8; 32], Malformed> {
        let bytes = self.slice(field)?;
        bytes.try_into().map_err(|_| Malformed::Hash { bytes: bytes.len() })
    }

    /// Returns the bytes as UTF-8 text.
    pub fn text(self, field: u32) -> Result<String, Malformed> {
        String::from_utf8(self.slice(field)?.to_vec()).map_err(|_| Malformed::Rule("text that is not UTF-8"))
    }

    /// Returns a reader for the nested message.
    pub fn message(self, field: u32) -> Result<Reader, Malformed> {
        match self {
            Self::Bytes(buffer, range) => Ok(Reader { buffer: buffer.clone(), rest: range, field: 0 }),
            Self::Number(_) => Err(Malformed::Field { number: field }),
        }
    }
}

/// The value of a field, borrowed from the input.
#[derive(Clone, Copy)]
pub enum FieldValue<'a> {
    /// A varint.
    Number(u64),
    /// A run of bytes.
    Bytes(&'a [u8]),
}

/// Decodes fields one at a time from bytes that are already known to be valid. Unlike [`Reader`], it borrows its input and does
/// not check the order of fields.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Checks an object's header and iterates over its fields.
    pub fn object(kind: ObjectKind, bytes: &'a [u8]) -> Result<Self, Malformed> {
        match bytes {
            [found, ..] if *found != kind as u8 => Err(Malformed::Kind { found: *found }),
            [_, found, ..] if *found != OBJECT_VERSION => Err(Malformed::Version { found: *found }),
            [_, _, body @ ..] => Ok(Self(body)),
            _ => Err(Malformed::Truncated),
        }
    }

    /// Iterates over the fields of a message.
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// Returns the next field.
    #[inline]
    pub fn next_field(&mut self) -> Result<Option<(u32, FieldValue<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = u32::try_from(key >> 3).map_err(|_| Malformed::Field { number: u32::MAX })?;
        let value = match key & 7 {
            WIRE_VARINT => FieldValue::Number(self.varint()?),
            WIRE_BYTES => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Truncated)?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or(Malformed::Truncated)?;
                self.0 = rest;
                FieldValue::Bytes(bytes)
            }
            _ => return Err(Malformed::Field { number }),
        };
        Ok(Some((number, value)))
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        decode_varint(&mut self.0).map_err(|_| Malformed::Truncated)
    }
}

impl<'a> FieldValue<'a> {
    /// Returns the number.
    pub fn number(self, field: u32) -> Result<u64, Malformed> {
        match self {
            Self::Number(value) => Ok(value),
            Self::Bytes(_) => Err(Malformed::Field { number: field }),
        }
    }

    /// Returns the bytes.
    pub fn bytes(self, field: u32) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(Malformed::Field { number: field }),
        }
    }

    /// Returns the bytes as a 32-byte hash.
    pub fn hash(self, field: u32) -> Result<&'a [u8; 32], Malformed> {
        let bytes = self.bytes(field)?;
        bytes.try_into().map_err(|_| Malformed::Hash { bytes: bytes.len() })
    }
}
