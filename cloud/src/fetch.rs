//! Reads objects out of packs: from the caches in memory and on disk, from PostgreSQL, or from the bucket by ranges. Neighbouring objects
//! are read with one request, and two threads that want the same object share one fetch.
//!
//! The cache on disk is by object, so that it stays useful when a collection moves objects from one pack to another. Its bytes are compared
//! with the checksum of the pack, and read elsewhere if they are wrong.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use amalgam_engine::backend::DiskCache;
use amalgam_engine::backend::rows::damaged;
use amalgam_engine::{Error, Result};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use parking_lot::{Condvar, Mutex};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use sqlx::Row as _;

use crate::bucket::{Bucket, fault};
use crate::calls::{add, count};
use crate::database::Database;
use crate::index::{Location, Pack};
use crate::pack::{PackId, Slot};
use crate::read_ahead::ReadAhead;

/// Gaps up to this size are read with their neighbours.
const GAP_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of one request.
const REQUEST_BYTES_MAX: u64 = 16 << 20;
/// Number of requests to the bucket at a time.
const REQUESTS_MAX: usize = 10;
/// Memory that an entry of the cache takes beside its bytes.
const ENTRY_OVERHEAD_BYTES: u64 = 96;

/// An object by its pack and slot. Names of packs are never used again, so that a key never changes its meaning.
type Key = (PackId, u32);
/// The stored bytes; `None` if the pack does not exist.
type Fetched = Result<Option<Bytes>>;

#[derive(Clone)]
struct ByBytes;

impl Weighter<Key, Bytes> for ByBytes {
    fn weight(&self, _key: &Key, bytes: &Bytes) -> u64 {
        bytes.len() as u64 + ENTRY_OVERHEAD_BYTES
    }
}

/// A fetch that other threads wait for.
#[derive(Default)]
struct Flight {
    landed: Mutex<Option<Fetched>>,
    changed: Condvar,
}

impl Flight {
    fn land(&self, fetched: Fetched) {
        *self.landed.lock() = Some(fetched);
        self.changed.notify_all();
    }

    fn wait(&self) -> Fetched {
        let mut landed = self.landed.lock();
        loop {
            if let Some(fetched) = &*landed {
                return fetched.clone();
            }
            self.changed.wait(&mut landed);
        }
    }
}

pub(crate) struct Fetcher {
    database: Database,
    bucket: Bucket,
    project: i64,
    cache: Cache<Key, Bytes, ByBytes>,
    flights: Mutex<HashMap<Key, Arc<Flight>>>,
    disk: Option<Arc<DiskCache>>,
    ahead: ReadAhead,
}

/// How objects are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// As they are.
    Raw,
    /// With verified checksums.
    Checked,
    /// With verified checksums, and into the caches, with their neighbours.
    Cached,
}

/// A range of a pack to read, and the positions of the wanted objects in the request.
struct Span {
    pack: Arc<Pack>,
    range: Range<u64>,
    wanted: Vec<usize>,
}

impl Fetcher {
    pub(crate) fn new(
        database: Database,
        bucket: Bucket,
        project: i64,
        cache_bytes: u64,
        disk: Option<Arc<DiskCache>>,
    ) -> Self {
        let items = usize::try_from(cache_bytes / 4096).unwrap_or(usize::MAX).max(64);
        let cache = Cache::with_weighter(items, cache_bytes, ByBytes);
        Self { database, bucket, project, cache, flights: Mutex::default(), disk, ahead: ReadAhead::default() }
    }

    /// Forgets all bytes that are cached in memory.
    pub(crate) fn clear(&self) {
        self.cache.clear();
    }

    /// Forgets all cached bytes after a purge, those on disk too. Purges of a project have ascending numbers.
    pub(crate) fn follow_purge(&self, number: u64) -> Result<()> {
        self.cache.clear();
        match &self.disk {
            Some(disk) => disk.follow_purge(&self.project.to_string(), number),
            None => Ok(()),
        }
    }

    /// Returns the footer of a pack from the cache on disk. The caller checks it.
    pub(crate) fn cached_footer(&self, id: &PackId) -> Option<Bytes> {
        self.disk.as_ref()?.get_named(id)
    }

    /// Caches the footer of a pack on disk.
    pub(crate) fn keep_footer(&self, id: &PackId, footer: &[u8]) {
        if let Some(disk) = &self.disk {
            disk.put_named(id, footer);
        }
    }

    /// Caches the objects of a pack that this node wrote.
    pub(crate) fn keep_own(&self, slots: &[Slot], body: &[u8]) {
        if let Some(disk) = &self.disk {
            disk.put_many(slots.iter().map(|slot| (slot.id, &body[slot.offset as usize..slot.end() as usize])));
        }
    }

    /// Returns the bytes of objects in the cache on disk, if they are right.
    pub(crate) fn read_disk(&self, wanted: &[Location]) -> Vec<Option<Bytes>> {
        let Some(disk) = self.disk.as_ref().filter(|_| !wanted.is_empty()) else { return vec![None; wanted.len()] };
        let ids: Vec<_> = wanted.iter().map(|location| location.slot().id).collect();
        let mut found = disk.get_many(&ids);
        for (location, bytes) in wanted.iter().zip(&mut found) {
            if bytes.as_ref().is_some_and(|bytes| !location.slot().matches(bytes)) {
                count(&self.database.counters.damaged);
                *bytes = None;
            }
        }
        found
    }

    /// Returns the stored bytes of objects, with verified checksums, in request order.
    pub(crate) fn fetch(&self, wanted: &[Location]) -> Vec<Fetched> {
        let mut results: Vec<Option<Fetched>> = vec![None; wanted.len()];
        let (mut own, mut others) = (Vec::new(), Vec::new());
        for (place, location) in wanted.iter().enumerate() {
            let key = (location.pack.id, location.slot);
            let mut flights = self.flights.lock();
            // A flight lands in the cache before it ends, so that one of the two has it.
            if let Some(bytes) = self.cache.get(&key) {
                count(&self.database.counters.memory_hits);
                add(&self.database.counters.hit_bytes, bytes.len());
                results[place] = Some(Ok(Some(bytes)));
            } else if let Some(flight) = flights.get(&key) {
                others.push((place, Arc::clone(flight)));
            } else {
                let flight = Arc::<Flight>::default();
                flights.insert(key, Arc::clone(&flight));
                own.push((place, key, flight));
            }
        }
        let locations: Vec<_> = own.iter().map(|(place, ..)| wanted[*place].clone()).collect();
        for ((place, key, flight), fetched) in own.into_iter().zip(self.read_cached(&locations)) {
            if let Ok(Some(bytes)) = &fetched {
                self.cache.insert(key, bytes.clone());
            }
            self.flights.lock().remove(&key);
            flight.land(fetched.clone());
            results[place] = Some(fetched);
        }
        for (place, flight) in others {
            results[place] = Some(flight.wait());
        }
        results.into_iter().map(|fetched| fetched.expect("each was fetched")).collect()
    }

    /// Reads objects from the cache on disk, and the others elsewhere.
    fn read_cached(&self, wanted: &[Location]) -> Vec<Fetched> {
        let counters = &self.database.counters;
        let mut results: Vec<Fetched> = self.read_disk(wanted).into_iter().map(Ok).collect();
        let missing: Vec<_> = (0..wanted.len()).filter(|place| matches!(results[*place], Ok(None))).collect();
        for bytes in results.iter().flatten().flatten() {
            count(&counters.disk_hits);
            add(&counters.hit_bytes, bytes.len());
        }
        add(&counters.misses, missing.len());
        let locations: Vec<_> = missing.iter().map(|place| wanted[*place].clone()).collect();
        for (place, fetched) in missing.into_iter().zip(self.read(&locations, Mode::Cached)) {
            results[place] = fetched;
        }
        results
    }

    /// Returns the stored bytes of objects as they are, without checks and without the cache.
    pub(crate) fn fetch_raw(&self, wanted: &[Location]) -> Vec<Fetched> {
        self.read(wanted, Mode::Raw)
    }

    /// Returns the stored bytes of objects that move to another pack, with verified checksums and without the caches: a purged neighbour
    /// does not get into them.
    pub(crate) fn fetch_to_move(&self, wanted: &[Location]) -> Vec<Fetched> {
        self.read(wanted, Mode::Checked)
    }

    fn read(&self, wanted: &[Location], mode: Mode) -> Vec<Fetched> {
        let mut results: Vec<Fetched> = vec![Ok(None); wanted.len()];
        if wanted.is_empty() {
            return results;
        }
        let (inline, stored): (Vec<_>, Vec<_>) = (0..wanted.len()).partition(|place| wanted[*place].pack.is_inline);
        if !inline.is_empty() {
            self.read_inline(wanted, &inline, &mut results, mode);
        }
        let mut spans = plan(wanted, stored);
        if let [span] = &mut spans[..]
            && span.wanted.len() == 1
            && mode == Mode::Cached
        {
            let body_end = span.pack.slots.last().map_or(0, |slot| slot.end());
            span.range.end = self.ahead.end(span.pack.id, span.range.start, span.range.end, body_end);
        }
        let read = |span: Span| async {
            let bytes = self.bucket.get(&span.pack.id, span.range.clone()).await;
            (span, bytes)
        };
        let spans: Vec<_> = self.database.wait(stream::iter(spans).map(read).buffer_unordered(REQUESTS_MAX).collect());
        for (span, bytes) in spans {
            match bytes {
                Ok(Some(bytes)) => {
                    add(&self.database.counters.read_bytes, bytes.len());
                    self.take(wanted, &span, &bytes, &mut results, mode);
                }
                Ok(None) => {}
                Err(error) => {
                    span.wanted.iter().for_each(|place| results[*place] = Err(fault("read a pack", &error)));
                }
            }
        }
        results
    }

    fn read_inline(&self, wanted: &[Location], places: &[usize], results: &mut [Fetched], mode: Mode) {
        let mut ids: Vec<_> = places.iter().map(|place| wanted[*place].pack.id.to_vec()).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = self.database.call("read objects", async |connection| {
            let query = sqlx::query("SELECT id, body FROM tails WHERE project = $1 AND id = ANY ($2)");
            query.bind(self.project).bind(&ids[..]).fetch_all(connection).await
        });
        let rows = match rows {
            Ok(rows) => rows,
            Err(error) => {
                places.iter().for_each(|place| results[*place] = Err(error.clone()));
                return;
            }
        };
        let bodies: HashMap<Vec<u8>, Bytes> =
            rows.iter().map(|row| (row.get(0), Bytes::from(row.get::<Vec<u8>, _>(1)))).collect();
        for place in places {
            let pack = Arc::clone(&wanted[*place].pack);
            if let Some(body) = bodies.get(&pack.id[..]) {
                let span = Span { pack, range: 0..body.len() as u64, wanted: vec![*place] };
                self.take(wanted, &span, body, results, mode);
            }
        }
    }

    /// Cuts the wanted objects out of a range, and caches the others in it.
    fn take(&self, wanted: &[Location], span: &Span, bytes: &Bytes, results: &mut [Fetched], mode: Mode) {
        let cut = |location: &Location| {
            let slot = location.slot();
            let (start, end) = (slot.offset.checked_sub(span.range.start)?, slot.end().checked_sub(span.range.start)?);
            bytes.get(start as usize..end as usize).map(Bytes::copy_from_slice)
        };
        for place in &span.wanted {
            let location = &wanted[*place];
            results[*place] = match cut(location) {
                Some(stored) if mode == Mode::Raw || location.slot().matches(&stored) => Ok(Some(stored)),
                // The pack is too short.
                None if mode == Mode::Raw => Ok(None),
                _ => self.read_again(location),
            };
        }
        if mode == Mode::Cached {
            let slots = &span.pack.slots;
            let mut new = Vec::new();
            let first = slots.partition_point(|slot| slot.offset < span.range.start);
            for (at, slot) in slots.iter().enumerate().skip(first).take_while(|(_, slot)| slot.end() <= span.range.end)
            {
                let location = Location { pack: Arc::clone(&span.pack), slot: at as u32 };
                let key = (span.pack.id, at as u32);
                if self.cache.peek(&key).is_none()
                    && let Some(stored) = cut(&location).filter(|stored| slot.matches(stored))
                {
                    new.push((slot.id, stored.clone()));
                    self.cache.insert(key, stored);
                }
            }
            if let Some(disk) = &self.disk {
                disk.put_many(new.iter().map(|(id, stored)| (*id, &stored[..])));
            }
        }
    }

    /// Reads an object whose bytes were wrong once more, in case they were damaged on the way.
    fn read_again(&self, location: &Location) -> Fetched {
        let slot = location.slot();
        let name = self.bucket.name(&location.pack.id);
        if !location.pack.is_inline {
            let range = slot.offset..slot.end();
            match self.database.wait(self.bucket.get(&location.pack.id, range)) {
                Ok(Some(stored)) if slot.matches(&stored) => return Ok(Some(stored)),
                Ok(None) => return Ok(None),
                Err(error) => return Err(fault("read a pack", &error)),
                Ok(Some(_)) => {}
            }
        }
        let why = format!("the bytes of {} in it (slot {}) do not match their checksum", slot.id, location.slot);
        Err(damaged(&format!("pack {name}"), &why))
    }
}

/// Returns the error for a pack that does not exist.
pub(crate) fn missing(bucket: &Bucket, location: &Location) -> Error {
    let why = format!("it is missing, and with it {}", location.slot().id);
    damaged(&format!("pack {}", bucket.name(&location.pack.id)), &why)
}

/// Joins neighbouring objects to ranges.
fn plan(wanted: &[Location], mut places: Vec<usize>) -> Vec<Span> {
    places.sort_unstable_by_key(|place| (wanted[*place].pack.first, wanted[*place].slot));
    let mut spans: Vec<Span> = Vec::new();
    for place in places {
        let Location { pack, .. } = &wanted[place];
        let slot = wanted[place].slot();
        match spans.last_mut() {
            Some(span)
                if span.pack.id == pack.id
                    && slot.offset <= span.range.end + GAP_BYTES_MAX
                    && slot.end() <= span.range.start + REQUEST_BYTES_MAX =>
            {
                span.range.end = span.range.end.max(slot.end());
                span.wanted.push(place);
            }
            _ => {
                let range = slot.offset..slot.end();
                spans.push(Span { pack: Arc::clone(pack), range, wanted: vec![place] });
            }
        }
    }
    // An empty object needs no request, but a range must not be empty.
    spans.iter_mut().filter(|span| span.range.is_empty()).for_each(|span| span.range.end += 1);
    spans
}
