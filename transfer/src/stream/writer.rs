//! Writes a stream.

use std::io::Write;

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{ObjectId, SnapshotId, Tombstone};

use super::format::{
    BASE, END, HEAD_BYTES, ID_BYTES, MAGIC, NAME, OBJECT, OPENED, OPENED_MAX, PURGED, THINNED, TIP, VERSION,
};
use crate::error::{Error, Result};

/// Bytes that are buffered before they are hashed and written.
const BUFFER_BYTES: usize = 1 << 20;

/// Encodes frames, counts and hashes them.
pub struct StreamWriter<W> {
    out: W,
    buffer: Vec<u8>,
    hasher: blake3::Hasher,
    written: u64,
    objects: u64,
    names: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Starts a stream.
    pub fn new(out: W) -> Self {
        let mut buffer = Vec::with_capacity(BUFFER_BYTES + BUFFER_BYTES / 4);
        buffer.extend_from_slice(MAGIC);
        buffer.push(VERSION);
        Self { out, buffer, hasher: blake3::Hasher::new(), written: 0, objects: 0, names: 0 }
    }

    /// Returns the number of bytes so far.
    pub fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Returns the number of objects and records so far.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Writes a base that later frames build on.
    pub fn base(&mut self, snapshot: SnapshotId) -> Result<()> {
        self.frame(BASE, &[snapshot.as_bytes()])
    }

    /// Writes the nodes of bases that were opened.
    pub fn opened(&mut self, ids: &[ObjectId]) -> Result<()> {
        for ids in ids.chunks(OPENED_MAX) {
            let mut body = Vec::with_capacity(ids.len() * ID_BYTES);
            for id in ids {
                body.push(id.kind as u8);
                body.extend_from_slice(&id.hash);
            }
            self.frame(OPENED, &[&body])?;
        }
        Ok(())
    }

    /// Writes an object in stored form; a snapshot in canonical bytes.
    pub fn object(&mut self, id: ObjectId, stored: &[u8]) -> Result<()> {
        self.objects += 1;
        self.frame(OBJECT, &[&[id.kind as u8], &id.hash, stored])
    }

    /// Writes the record of a snapshot whose tree was dropped.
    pub fn thinned(&mut self, canonical: &[u8]) -> Result<()> {
        self.objects += 1;
        self.frame(THINNED, &[canonical])
    }

    /// Writes the tombstone of a purged chunk.
    pub fn purged(&mut self, id: ObjectId, tombstone: &Tombstone) -> Result<()> {
        self.frame(PURGED, &[&[id.kind as u8], &id.hash, &tombstone.encode()])
    }

    /// Writes a snapshot that was asked for.
    pub fn tip(&mut self, snapshot: SnapshotId) -> Result<()> {
        self.frame(TIP, &[snapshot.as_bytes()])
    }

    /// Writes a reference.
    pub fn name(&mut self, name: &RefName, value: &RefValue) -> Result<()> {
        self.names += 1;
        let length = u16::try_from(name.as_str().len()).expect("a reference's name is short");
        self.frame(NAME, &[&length.to_le_bytes(), name.as_str().as_bytes(), &value.encode()])
    }

    /// Ends the stream. Returns its length.
    pub fn end(mut self) -> Result<u64> {
        self.buffer.push(END);
        self.buffer.extend_from_slice(&48_u32.to_le_bytes());
        self.buffer.extend_from_slice(&self.objects.to_le_bytes());
        self.buffer.extend_from_slice(&self.names.to_le_bytes());
        self.flush_buffer()?;
        let check = self.hasher.finalize();
        self.buffer.extend_from_slice(check.as_bytes());
        self.flush_buffer()?;
        self.out.flush().map_err(|source| Error::host("send", source))?;
        Ok(self.written)
    }

    fn frame(&mut self, kind: u8, parts: &[&[u8]]) -> Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let length = u32::try_from(length).expect("a frame is far below 4 GiB");
        self.buffer.reserve(HEAD_BYTES + length as usize);
        self.buffer.push(kind);
        self.buffer.extend_from_slice(&length.to_le_bytes());
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        if self.buffer.len() >= BUFFER_BYTES { self.flush_buffer() } else { Ok(()) }
    }

    fn flush_buffer(&mut self) -> Result<()> {
        self.hasher.update(&self.buffer);
        self.out.write_all(&self.buffer).map_err(|source| Error::host("send", source))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }
}
