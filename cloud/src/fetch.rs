//! Reads objects out of packs: from the cache, from PostgreSQL, or from the bucket by ranges. Neighbouring objects are read with one
//! request, and two threads that want the same object share one fetch.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use amalgam_engine::backend::rows::damaged;
use amalgam_engine::{Error, Result};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use parking_lot::{Condvar, Mutex};
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use sqlx::Row as _;

use crate::bucket::{Bucket, fault};
use crate::database::Database;
use crate::index::{Location, Pack};
use crate::pack::PackId;

/// Gaps up to this size are read with their neighbours.
const GAP_BYTES_MAX: u64 = 1 << 20;
/// Maximum size of one request.
const REQUEST_BYTES_MAX: u64 = 16 << 20;
/// Number of requests to the bucket at a time.
const REQUESTS_MAX: usize = 10;
/// A single object is read with the objects after it, up to this many bytes.
const READ_AHEAD_BYTES: u64 = 1 << 20;
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
}

/// A range of a pack to read, and the positions of the wanted objects in the request.
struct Span {
    pack: Arc<Pack>,
    range: Range<u64>,
    wanted: Vec<usize>,
}

impl Fetcher {
    pub(crate) fn new(database: Database, bucket: Bucket, project: i64, cache_bytes: u64) -> Self {
        let items = usize::try_from(cache_bytes / 4096).unwrap_or(usize::MAX).max(64);
        let cache = Cache::with_weighter(items, cache_bytes, ByBytes);
        Self { database, bucket, project, cache, flights: Mutex::default() }
    }

    /// Forgets all cached bytes.
    pub(crate) fn clear(&self) {
        self.cache.clear();
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
        for ((place, key, flight), fetched) in own.into_iter().zip(self.read(&locations, true)) {
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

    /// Returns the stored bytes of objects as they are, without checks and without the cache.
    pub(crate) fn fetch_raw(&self, wanted: &[Location]) -> Vec<Fetched> {
        self.read(wanted, false)
    }

    fn read(&self, wanted: &[Location], is_checked: bool) -> Vec<Fetched> {
        let mut results: Vec<Fetched> = vec![Ok(None); wanted.len()];
        if wanted.is_empty() {
            return results;
        }
        let (inline, stored): (Vec<_>, Vec<_>) = (0..wanted.len()).partition(|place| wanted[*place].pack.is_inline);
        if !inline.is_empty() {
            self.read_inline(wanted, &inline, &mut results, is_checked);
        }
        let spans = plan(wanted, stored);
        let read = |span: Span| async {
            let bytes = self.bucket.get(&span.pack.id, span.range.clone()).await;
            (span, bytes)
        };
        let spans: Vec<_> = self.database.wait(stream::iter(spans).map(read).buffer_unordered(REQUESTS_MAX).collect());
        for (span, bytes) in spans {
            match bytes {
                Ok(Some(bytes)) => self.take(wanted, &span, &bytes, &mut results, is_checked),
                Ok(None) => {}
                Err(error) => {
                    span.wanted.iter().for_each(|place| results[*place] = Err(fault("read a pack", &error)));
                }
            }
        }
        results
    }

    fn read_inline(&self, wanted: &[Location], places: &[usize], results: &mut [Fetched], is_checked: bool) {
        let mut ids: Vec<_> = places.iter().map(|place| wanted[*place].pack.id.to_vec()).collect();
        ids.sort_unstable();
        ids.dedup();
        let rows = self.database.call("read objects", || {
            let query = sqlx::query("SELECT id, body FROM tails WHERE project = $1 AND id = ANY ($2)");
            let query = query.bind(self.project).bind(ids.clone());
            async { query.fetch_all(&self.database.pool).await }
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
                self.take(wanted, &span, body, results, is_checked);
            }
        }
    }

    /// Cuts the wanted objects out of a range, and caches the others in it.
    fn take(&self, wanted: &[Location], span: &Span, bytes: &Bytes, results: &mut [Fetched], is_checked: bool) {
        let cut = |location: &Location| {
            let slot = location.slot();
            let (start, end) = (slot.offset.checked_sub(span.range.start)?, slot.end().checked_sub(span.range.start)?);
            bytes.get(start as usize..end as usize).map(Bytes::copy_from_slice)
        };
        for place in &span.wanted {
            let location = &wanted[*place];
            results[*place] = match cut(location) {
                Some(stored) if !is_checked || location.slot().matches(&stored) => Ok(Some(stored)),
                _ => self.read_again(location),
            };
        }
        if is_checked {
            let slots = &span.pack.slots;
            let first = slots.partition_point(|slot| slot.offset < span.range.start);
            for (at, slot) in slots.iter().enumerate().skip(first).take_while(|(_, slot)| slot.end() <= span.range.end)
            {
                let location = Location { pack: Arc::clone(&span.pack), slot: at as u32 };
                let key = (span.pack.id, at as u32);
                if self.cache.peek(&key).is_none()
                    && let Some(stored) = cut(&location).filter(|stored| slot.matches(stored))
                {
                    self.cache.insert(key, stored);
                }
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
    let is_single = places.len() == 1;
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
    if is_single && let [span] = &mut spans[..] {
        let body_end = span.pack.slots.last().map_or(0, |slot| slot.end());
        span.range.end = span.range.end.max(body_end.min(span.range.start + READ_AHEAD_BYTES));
    }
    // An empty object needs no request, but a range must not be empty.
    spans.iter_mut().filter(|span| span.range.is_empty()).for_each(|span| span.range.end += 1);
    spans
}
