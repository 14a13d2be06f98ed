//! Reads the object families sequentially, in write order, on all cores: each row is hashed and decoded once, and its claims
//! become edges of a graph in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use rayon::prelude::*;

use super::facts::{self, Claim, Facts, ReferenceKind};
use super::index::{Index, ObjectIndex};
use super::report::{Damage, VerifyOptions, VerifyProgress, Watch};
use crate::backend::rows::number;
use crate::backend::{Family, Inspect, PageEnd};
use crate::changed_paths::SnapshotSuffix;
use crate::compress;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::malformed::Malformed;
use crate::object;

/// Page size for reading rows, in bytes.
const ROOM_BYTES: usize = 1 << 20;
/// Size of the part of a family that one thread reads, in bytes.
const PART_BYTES: u64 = 4 << 20;

/// A readable object.
pub(super) struct Member {
    pub(super) object_index: ObjectIndex,
    pub(super) facts: Facts,
    /// The index of its first edge, and the number of its edges.
    pub(super) edges: (usize, u32),
}

pub(super) struct Edge {
    pub(super) says: u64,
    pub(super) to: ObjectIndex,
    pub(super) how: ReferenceKind,
}

/// A row that does not match its index row, or that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnindexedRow {
    pub(super) family: Family,
    pub(super) number: u64,
    /// Whether an index row refers to it.
    pub(super) named: bool,
}

/// The result of a scan.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) members: Vec<Member>,
    pub(super) edges: Vec<Edge>,
    pub(super) damage: HashMap<ObjectIndex, Damage>,
    /// The lengths of the chunks, by object index; empty if they were not read.
    pub(super) chunk_bytes: Vec<u32>,
    pub(super) loose: Vec<UnindexedRow>,
    /// The marks of snapshots that have some.
    pub(super) beside: Vec<(ObjectIndex, SnapshotSuffix)>,
    /// Number of canonical bytes hashed.
    pub(super) bytes: u64,
}

/// Objects that are referred to but not in the index. Their indices follow those of the index rows.
#[derive(Default)]
pub(super) struct MissingObjects {
    pub(super) ids: Vec<ObjectId>,
    object_indices: HashMap<ObjectId, ObjectIndex>,
}

impl MissingObjects {
    pub(super) fn object_index(&mut self, index: &Index, id: ObjectId) -> ObjectIndex {
        *self.object_indices.entry(id).or_insert_with(|| {
            self.ids.push(id);
            (index.rows.len() + self.ids.len() - 1) as ObjectIndex
        })
    }
}

/// Returns the index of an object, in the index or after it.
pub(super) fn seat_of(index: &Index, missing_objects: &Mutex<MissingObjects>, id: ObjectId) -> ObjectIndex {
    match index.find(&id.hash) {
        Some(object_index) if index.rows[object_index as usize].kind == id.kind => object_index,
        _ => missing_objects.lock().object_index(index, id),
    }
}

/// A part of a family: the indices of its rows, and the range of their numbers.
struct Part<'a> {
    family: Family,
    object_indices: &'a [ObjectIndex],
    from: u64,
    until: Option<u64>,
}

struct Reader<'a> {
    inspect: &'a dyn Inspect,
    index: &'a Index,
    missing_objects: &'a Mutex<MissingObjects>,
    watch: Watch<'a>,
    total: VerifyProgress,
    objects: AtomicU64,
    bytes: AtomicU64,
    ended: AtomicBool,
}

/// Reads all families, chunks only if requested. Returns `None` if it was stopped.
pub(super) fn scan(
    inspect: &dyn Inspect,
    index: &Index,
    missing_objects: &Mutex<MissingObjects>,
    options: &VerifyOptions,
    watch: Watch<'_>,
) -> Result<Option<Scan>> {
    let families: &[Family] = if options.read_data { &Family::OBJECTS } else { &[Family::Trees, Family::Snapshots] };
    let object_indices: Vec<_> = families.iter().map(|family| (*family, index.in_family(*family))).collect();
    let all_bytes = object_indices
        .iter()
        .flat_map(|(_, object_indices)| object_indices)
        .map(|object_index| stored(index, *object_index))
        .sum();
    let total = VerifyProgress { objects_total: index.rows.len() as u64, bytes_total: all_bytes, ..Default::default() };
    let looked_up =
        total.objects_total - object_indices.iter().map(|(_, object_indices)| object_indices.len() as u64).sum::<u64>();
    let reader = Reader {
        inspect,
        index,
        missing_objects,
        watch,
        total,
        objects: AtomicU64::new(looked_up),
        bytes: AtomicU64::new(0),
        ended: AtomicBool::new(false),
    };
    let parts: Vec<_> =
        object_indices.iter().flat_map(|(family, object_indices)| parts(index, *family, object_indices)).collect();
    let read: Result<Vec<Scan>> = parts.par_iter().map(|part| reader.read_part(part)).collect();
    let read = read?;
    if reader.ended.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let mut all = Scan::default();
    if options.read_data {
        all.chunk_bytes = vec![0; index.rows.len()];
    }
    all.edges.reserve(read.iter().map(|part| part.edges.len()).sum());
    all.members.reserve(read.iter().map(|part| part.members.len()).sum());
    for (part, of) in read.into_iter().zip(&parts) {
        let before = all.edges.len();
        all.edges.extend(part.edges);
        all.members.extend(part.members.into_iter().map(|member| {
            let (start, count) = member.edges;
            Member { edges: (before + start, count), ..member }
        }));
        all.damage.extend(part.damage);
        all.loose.extend(part.loose);
        all.beside.extend(part.beside);
        all.bytes += part.bytes;
        if of.family == Family::Chunks {
            of.object_indices
                .iter()
                .zip(part.chunk_bytes)
                .for_each(|(object_index, bytes)| all.chunk_bytes[*object_index as usize] = bytes);
        }
    }
    Ok(Some(all))
}

fn stored(index: &Index, object_index: ObjectIndex) -> u64 {
    u64::from(index.rows[object_index as usize].stored_bytes)
}

fn parts<'a>(index: &Index, family: Family, object_indices: &'a [ObjectIndex]) -> Vec<Part<'a>> {
    let number = |at: usize| index.rows[object_indices[at] as usize].number;
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for at in 0..=object_indices.len() {
        // A number is never in two parts.
        let can_end = at == object_indices.len() || (at > start && number(at) > number(at - 1) && bytes >= PART_BYTES);
        if can_end {
            let from = if start == 0 { 0 } else { number(start) };
            let until = (at < object_indices.len()).then(|| number(at));
            parts.push(Part { family, object_indices: &object_indices[start..at], from, until });
            (start, bytes) = (at, 0);
        }
        bytes += object_indices.get(at).map_or(0, |object_index| stored(index, *object_index));
    }
    parts
}

impl Reader<'_> {
    fn read_part(&self, part: &Part<'_>) -> Result<Scan> {
        let mut read = Scan::default();
        if part.family == Family::Chunks {
            read.chunk_bytes = vec![0; part.object_indices.len()];
        }
        let number_of = |object_index: ObjectIndex| self.index.rows[object_index as usize].number;
        let until = part.until.map(u64::to_be_bytes);
        let (mut from, mut next, mut claims) = (part.from, 0, Vec::new());
        while !self.ended.load(Ordering::Relaxed) {
            let first = next;
            let page =
                self.inspect.rows(part.family, &from.to_be_bytes(), until.as_ref().map(|key| &key[..]), ROOM_BYTES)?;
            let (page_rows, page_bytes) =
                (page.rows.len(), page.rows.iter().map(|(_, value)| value.len() as u64).sum());
            for (key, value) in page.rows {
                let Ok(number) = number(&key, part.family.name()) else { continue };
                while next < part.object_indices.len() && number_of(part.object_indices[next]) < number {
                    read.damage.insert(part.object_indices[next], Damage::Missing);
                    next += 1;
                }
                let named = &part.object_indices[next..];
                let named =
                    &named[..named.iter().take_while(|object_index| number_of(**object_index) == number).count()];
                let mut is_one = false;
                for (at, object_index) in (next..).zip(named) {
                    is_one |= self.read_row(*object_index, at, &value, &mut read, &mut claims);
                }
                if !is_one {
                    read.loose.push(UnindexedRow { family: part.family, number, named: !named.is_empty() });
                }
                next += named.len();
                from = number.saturating_add(1);
            }
            let goes_on = page.end == PageEnd::Room;
            match page.end {
                PageEnd::Room => {}
                PageEnd::Range => {
                    read.damage.extend(
                        part.object_indices[next..].iter().map(|object_index| (*object_index, Damage::Missing)),
                    );
                    next = part.object_indices.len();
                }
                PageEnd::Damaged { why } => match part.object_indices.get(next) {
                    Some(object_index) if page_rows == 0 && number_of(*object_index) == from => {
                        read.damage.insert(*object_index, Damage::Unreadable { why });
                        next += 1;
                        from = part.object_indices.get(next).map_or(from, |object_index| number_of(*object_index));
                    }
                    Some(object_index) => from = number_of(*object_index),
                    None => {}
                },
            }
            self.tell((next - first) as u64, page_bytes);
            if next == part.object_indices.len() && !goes_on {
                break;
            }
        }
        Ok(read)
    }

    fn tell(&self, objects: u64, bytes: u64) {
        let objects = self.objects.fetch_add(objects, Ordering::Relaxed) + objects;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if (self.watch)(&VerifyProgress { objects, bytes, ..self.total }).is_break() {
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the row matches its index row.
    fn read_row(
        &self,
        object_index: ObjectIndex,
        at: usize,
        stored: &Bytes,
        read: &mut Scan,
        claims: &mut Vec<Claim>,
    ) -> bool {
        let id = self.index.id(object_index);
        if id.kind == ObjectKind::Chunk {
            // Most of a store consists of intact chunks.
            let look = |raw: &[u8]| (raw.len(), ObjectId::of(id.kind, raw) == id);
            if let Ok((length, true)) = compress::look_at_chunk(stored, look) {
                read.bytes += length as u64;
                read.chunk_bytes[at] = length as u32;
                return true;
            }
        }
        let canonical = match compress::canonical(id, stored) {
            Ok(canonical) => canonical,
            Err(error) => {
                read.damage.insert(object_index, Damage::Corrupt { says: error.to_string() });
                return false;
            }
        };
        read.bytes += canonical.len() as u64;
        if ObjectId::of(id.kind, &canonical) != id {
            read.damage.insert(object_index, self.mismatch(id, &canonical));
            return false;
        }
        if id.kind == ObjectKind::Snapshot {
            read.beside.extend(
                Some((object_index, SnapshotSuffix::of(id, stored)))
                    .filter(|(_, beside)| *beside != SnapshotSuffix::Nothing),
            );
        }
        claims.clear();
        match facts::read(id, &canonical, claims) {
            Ok(facts) => {
                let start = read.edges.len();
                let edge = |claim: &Claim| Edge {
                    says: claim.says,
                    to: seat_of(self.index, self.missing_objects, claim.id),
                    how: claim.how,
                };
                read.edges.extend(claims.iter().map(edge));
                read.members.push(Member { object_index, facts, edges: (start, claims.len() as u32) });
            }
            Err(Malformed::Version { found }) => {
                read.damage.insert(object_index, Damage::UnknownVersion { found });
            }
            Err(source) => {
                read.damage.insert(object_index, Damage::Malformed { source });
            }
        }
        true
    }

    /// Determines the damage of a row that does not match its object.
    fn mismatch(&self, id: ObjectId, canonical: &Bytes) -> Damage {
        if let Some(other) = identify(Family::of(id.kind), canonical)
            && (other.kind != id.kind || self.index.find(&other.hash).is_some())
        {
            if other.kind != id.kind {
                return Damage::WrongKind { found: other.kind };
            }
            return Damage::Corrupt { says: format!("they are those of {other}") };
        }
        let says = match (id.kind, object::check(id.kind, canonical)) {
            (ObjectKind::Chunk, _) => "any bytes can be a chunk".to_owned(),
            (_, Ok(())) => "they are another valid object of its kind".to_owned(),
            (_, Err(source)) => source.to_string(),
        };
        Damage::Corrupt { says }
    }
}

/// Returns the object with these canonical bytes in a family, if they are valid.
pub(super) fn identify(family: Family, canonical: &Bytes) -> Option<ObjectId> {
    let kind = match family {
        Family::Chunks => ObjectKind::Chunk,
        _ => ObjectKind::from_number(*canonical.first()?).filter(|kind| Family::of(*kind) == family)?,
    };
    match object::check(kind, canonical) {
        Ok(()) | Err(Malformed::Version { .. }) => Some(ObjectId::of(kind, canonical)),
        Err(_) => None,
    }
}
