//! Moves damaged rows out of the way, and rebuilds rows that can be derived from the rest. Every step is one batch that improves
//! the store, so that the next repair can finish an interrupted one.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use bytes::Bytes;

use super::index::ObjectIndex;
use super::records::quarantine;
use super::report::{Damage, Record, VerifyOptions, VerifyReport};
use super::scan::{UnindexedRow, identify};
use super::{Examined, QUARANTINED_OBJECT, changed_paths, examine};
use crate::backend::rows::{IndexValue, Quarantined};
use crate::backend::{Family, Inspect, RowEdit};
use crate::changed_paths::canonical_start;
use crate::compress;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::object;
use crate::store::Store;

/// One step of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// A damaged or missing object was removed from the index, and its bytes, as found, were quarantined. It can be put again.
    Quarantined {
        /// The object.
        id: ObjectId,
        /// The damage.
        damage: Damage,
    },
    /// A damaged or missing object was stored again, from a copy outside of the store.
    Restored {
        /// The object.
        id: ObjectId,
    },
    /// The row of an object was found under another number, and the index refers to it again.
    Found {
        /// The object.
        id: ObjectId,
    },
    /// An unreferenced row of an object that the store has a second time, or that was purged, was removed.
    Dropped {
        /// The object.
        id: ObjectId,
    },
    /// An unreferenced row that is not a valid object was quarantined.
    QuarantinedRow {
        /// The family of the row.
        family: Family,
        /// The number of the row.
        number: u64,
    },
    /// A row that is not an object was fixed or quarantined.
    Record {
        /// The row.
        record: Record,
        /// The fix.
        remedy: &'static str,
    },
}

/// The result of a repair.
#[derive(Clone, Debug)]
pub struct Repair {
    /// The report before the repair, without the objects that were restored.
    pub found: VerifyReport,
    /// The steps, in order.
    pub done: Vec<Repaired>,
    /// The report after the repair: lost objects, with the snapshots and paths that can no longer be read, and damage that was
    /// left alone. Objects of an unknown version, and objects that break a rule of the format, are as they were written, and
    /// stay.
    pub left: VerifyReport,
}

/// Repairs a store. Requires exclusive access: no open sessions, working trees or pins. Reads everything twice.
pub fn repair(store: &Store, options: &VerifyOptions) -> Result<Repair> {
    store.alone("repair")?;
    let options = VerifyOptions { read_data: true, ..*options };
    let all = || -> Result<Examined> {
        let examined = examine(store, &options, &|_| ControlFlow::Continue(()))?;
        Ok(examined.expect("nobody ends it"))
    };
    let restored = store.inspect().restore_objects()?;
    let found = all()?;
    let done = restored.into_iter().map(|id| Repaired::Restored { id }).collect();
    let mut work = Work { inspect: store.inspect(), found: &found, done, healed: HashSet::new() };
    work.index_rows()?;
    let in_use = work.loose_rows()?;
    work.damaged_objects(&in_use)?;
    work.marks()?;
    work.records()?;
    let done = work.done;
    store.alone("repair")?;
    let left = all()?.report;
    Ok(Repair { found: found.report, done, left })
}

struct Work<'a> {
    inspect: &'a dyn Inspect,
    found: &'a Examined,
    done: Vec<Repaired>,
    healed: HashSet<ObjectIndex>,
}

impl Work<'_> {
    fn step(&mut self, edits: Vec<RowEdit>, done: Repaired) -> Result<()> {
        self.inspect.edit(edits)?;
        self.done.push(done);
        Ok(())
    }

    /// Quarantines index rows that cannot be decoded. Their objects have become unreferenced rows.
    fn index_rows(&mut self) -> Result<()> {
        for (key, value, why) in &self.found.graph.index.wrong {
            let edits = quarantine(Family::Index, key, value, why).to_vec();
            let record = Record::Index(key.to_vec());
            self.step(edits, Repaired::Record { record, remedy: "put into quarantine" })?;
        }
        Ok(())
    }

    /// Identifies each loose row and assigns it to the index row that lacks it. Returns the rows that are referenced now.
    fn loose_rows(&mut self) -> Result<HashSet<(Family, u64)>> {
        let graph = &self.found.graph;
        let wanted: HashSet<_> = graph.missing_objects.iter().copied().collect();
        let mut in_use = HashSet::new();
        let mut given = HashSet::new();
        for loose in &self.found.loose {
            let Some(stored) = self.row(loose)? else { continue };
            let id = known(loose.family, &stored);
            let key = Bytes::copy_from_slice(&loose.number.to_be_bytes());
            let Some(id) = id else {
                if !loose.named {
                    let UnindexedRow { family, number, .. } = *loose;
                    let edits = quarantine(family, &key, &stored, "a row that is no object").to_vec();
                    self.step(edits, Repaired::QuarantinedRow { family, number })?;
                }
                continue;
            };
            let object_index = graph.index.find(&id.hash);
            let damaged =
                object_index.filter(|object_index| graph.damage.get(object_index).is_some_and(Damage::is_of_row));
            let misses = match object_index {
                Some(_) => damaged.is_some(),
                // Any bytes are a valid chunk: a row indexed under another hash becomes a chunk only if that chunk is wanted.
                // A row of a purged chunk is a copy that the purge did not find.
                None => !self.found.buried.contains(&id) && (!loose.named || wanted.contains(&id)),
            };
            if misses && given.insert(id) {
                let row = IndexValue {
                    kind: id.kind,
                    epoch: self.inspect.epoch(),
                    stored_bytes: stored.len() as u64,
                    number: loose.number,
                };
                let value = Some(row.encode().into());
                let edit = RowEdit { family: Family::Index, key: Bytes::copy_from_slice(&id.hash), value };
                self.step(vec![edit], Repaired::Found { id })?;
                self.healed.extend(object_index);
                in_use.insert((loose.family, loose.number));
            } else if !loose.named {
                let edit = RowEdit { family: loose.family, key, value: None };
                self.step(vec![edit], Repaired::Dropped { id })?;
            }
        }
        Ok(in_use)
    }

    fn row(&self, loose: &UnindexedRow) -> Result<Option<Bytes>> {
        self.stored(loose.family, loose.number)
    }

    fn stored(&self, family: Family, number: u64) -> Result<Option<Bytes>> {
        let until = number.saturating_add(1).to_be_bytes();
        let page = self.inspect.rows(family, &number.to_be_bytes(), Some(&until), 1)?;
        Ok(page.rows.into_iter().next().map(|(_, value)| value))
    }

    fn damaged_objects(&mut self, in_use: &HashSet<(Family, u64)>) -> Result<()> {
        let graph = &self.found.graph;
        let loose: HashMap<_, _> =
            self.found.loose.iter().map(|loose| ((loose.family, loose.number), loose.named)).collect();
        let mut object_indices: Vec<_> = graph
            .damage
            .iter()
            .filter(|(object_index, damage)| {
                damage.is_of_row() && !graph.is_missing(**object_index) && !self.healed.contains(*object_index)
            })
            .collect();
        object_indices.sort_by_key(|(object_index, _)| **object_index);
        for (object_index, damage) in object_indices {
            let row = &graph.index.rows[*object_index as usize];
            let id = graph.id(*object_index);
            let place = (Family::of(row.kind), row.number);
            let bytes = self.stored(place.0, place.1)?.unwrap_or_default();
            let kept = Quarantined { kind: row.value().kind as u8, reason: damage.to_string(), bytes };
            let key = [&[QUARANTINED_OBJECT][..], &row.hash].concat();
            let mut edits = vec![
                RowEdit { family: Family::Quarantine, key: key.into(), value: Some(kept.encode().into()) },
                RowEdit { family: Family::Index, key: Bytes::copy_from_slice(&row.hash), value: None },
            ];
            // Its row may belong to another object in the index.
            let unreadable = matches!(damage, Damage::Unreadable { .. });
            if (loose.contains_key(&place) || unreadable) && !in_use.contains(&place) {
                let key = Bytes::copy_from_slice(&row.number.to_be_bytes());
                edits.push(RowEdit { family: place.0, key, value: None });
            }
            self.step(edits, Repaired::Quarantined { id, damage: damage.clone() })?;
        }
        Ok(())
    }

    /// Removes damaged marks. Without marks nothing is known, which is always correct.
    fn marks(&mut self) -> Result<()> {
        for flaw in &self.found.flaws {
            let row = &self.found.graph.index.rows[flaw.object_index as usize];
            let Some(stored) = self.stored(Family::Snapshots, row.number)? else { continue };
            let edits = changed_paths::without(&stored, row.hash, row.value());
            self.step(edits, Repaired::Record { record: flaw.problem.record.clone(), remedy: "dropped" })?;
        }
        Ok(())
    }

    fn records(&mut self) -> Result<()> {
        for flaw in self.found.records.flaws.iter().filter(|flaw| !flaw.edits.is_empty()) {
            let record = flaw.problem.record.clone();
            self.step(flaw.edits.clone(), Repaired::Record { record, remedy: flaw.remedy })?;
        }
        Ok(())
    }
}

/// Identifies the object in a row.
fn known(family: Family, stored: &Bytes) -> Option<ObjectId> {
    match family {
        Family::Chunks => {}
        Family::Snapshots => return identify(family, &stored.slice(canonical_start(stored).ok()?..)),
        _ => return identify(family, stored),
    }
    let canonical = compress::unpack_chunk(stored).ok()?;
    object::check(ObjectKind::Chunk, &canonical).ok()?;
    Some(ObjectId::of(ObjectKind::Chunk, &canonical))
}
