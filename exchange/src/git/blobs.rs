//! Stores the blobs of a batch of commits, on all cores.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::content::write_content;
use amalgam_engine::object::Content;
use amalgam_engine::{Progress, WriteSession};
use rayon::prelude::*;

use super::objects::{Oid, Repository};
use crate::error::Result;

/// Blobs above this size are read one at a time, so that memory is bounded by one of them.
const LARGE_BYTES: u64 = 16 << 20;
/// Blobs that one thread reads with one reader.
const CHUNK: usize = 64;
/// Stored blobs are remembered up to this number.
const REMEMBERED_MAX: usize = 2_000_000;

/// The content of each blob that was stored.
#[derive(Default)]
pub(super) struct Blobs {
    stored: HashMap<Oid, (u64, Content)>,
    pub(super) bytes: u64,
}

impl Blobs {
    pub(super) fn get(&self, oid: Oid) -> Option<(u64, Content)> {
        self.stored.get(&oid).copied()
    }

    /// Forgets the stored blobs if there are many. Do not call it in the middle of a batch.
    pub(super) fn bound(&mut self) {
        if self.stored.len() > REMEMBERED_MAX {
            self.stored.clear();
        }
    }

    /// Stores those of the blobs that are not stored yet.
    pub(super) fn store(
        &mut self,
        repository: &Repository,
        session: &WriteSession,
        mut wanted: Vec<Oid>,
        progress: &Progress,
    ) -> Result<u64> {
        let mut seen = std::collections::HashSet::new();
        wanted.retain(|oid| !self.stored.contains_key(oid) && seen.insert(*oid));
        let large = parking_lot::Mutex::new(Vec::new());
        let bytes = AtomicU64::new(0);
        let put = |place: usize, oid: Oid, data: &[u8]| -> Result<(Oid, (u64, Content))> {
            progress.add_items(1);
            progress.check()?;
            progress.bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
            let content = WriteSession::at_write_position(place as u64, || write_content(session, &data))?;
            Ok((oid, (data.len() as u64, content)))
        };
        let stored: Vec<Vec<_>> = wanted
            .par_chunks(CHUNK)
            .enumerate()
            .map_init(
                || repository.reader(),
                |reader, (chunk, oids)| {
                    let mut stored = Vec::with_capacity(oids.len());
                    for (at, oid) in oids.iter().enumerate() {
                        if reader.size(*oid)? > LARGE_BYTES {
                            large.lock().push(*oid);
                        } else {
                            stored.push(put(chunk * CHUNK + at, *oid, &reader.blob(*oid)?)?);
                        }
                    }
                    Ok(stored)
                },
            )
            .collect::<Result<_>>()?;
        self.stored.extend(stored.into_iter().flatten());
        let reader = repository.reader();
        for (at, oid) in large.into_inner().into_iter().enumerate() {
            let (oid, content) = put(wanted.len() + at, oid, &reader.blob(oid)?)?;
            self.stored.insert(oid, content);
        }
        self.bytes += bytes.load(Ordering::Relaxed);
        Ok(wanted.len() as u64)
    }
}
