//! Takes what is damaged out of the way, and makes anew what can be made from what is left. Every step is one batch that leaves
//! the store better than before, so a repair that is killed is finished by the next one.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use bytes::Bytes;

use super::index::Seat;
use super::records::quarantine;
use super::report::{Damage, Record, VerifyOptions, VerifyReport};
use super::scan::{Loose, identify};
use super::{Examined, QUARANTINED_OBJECT, examine, touched};
use crate::backend::rows::{IndexValue, Quarantined};
use crate::backend::{Family, Inspect, RowEdit};
use crate::compress;
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind};
use crate::object;
use crate::store::Store;
use crate::touched::canonical_start;

/// One thing that a repair did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// An object that is damaged or gone was taken out of the index, and its bytes, as they were found, put into quarantine. It
    /// can be put again.
    Quarantined {
        /// The object.
        id: ObjectId,
        /// What was wrong with it.
        damage: Damage,
    },
    /// An object's row was found elsewhere, and the index names it again.
    Found {
        /// The object.
        id: ObjectId,
    },
    /// A row of an object that no row of the index named, and that the store has once more, was removed.
    Dropped {
        /// The object.
        id: ObjectId,
    },
    /// A row of an object that no row of the index named, and that is no object, was put into quarantine.
    QuarantinedRow {
        /// Where it was.
        family: Family,
        /// Its number.
        number: u64,
    },
    /// A row that is not an object's was put right or put into quarantine.
    Record {
        /// Which.
        record: Record,
        /// What was done with it.
        remedy: &'static str,
    },
}

/// What a repair did, and what it could not do.
#[derive(Clone, Debug)]
pub struct Repair {
    /// What was found before.
    pub found: VerifyReport,
    /// What was done, in this order.
    pub done: Vec<Repaired>,
    /// What is still wrong afterwards: what is lost, with the snapshots and paths that can no longer be read, and what was left
    /// alone. Objects of an unknown version and those that break a rule of the format are as they were written, and stay.
    pub left: VerifyReport,
}

/// Repairs a store that nobody else uses: without open sessions, working trees and pins. Reads everything, twice.
pub fn repair(store: &Store, options: &VerifyOptions) -> Result<Repair> {
    store.alone("repair")?;
    let options = VerifyOptions { read_data: true, ..*options };
    let all = || -> Result<Examined> {
        let examined = examine(store, &options, &|_| ControlFlow::Continue(()))?;
        Ok(examined.expect("nobody ends it"))
    };
    let found = all()?;
    let mut work = Work { inspect: store.inspect(), found: &found, done: Vec::new(), healed: HashSet::new() };
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
    healed: HashSet<Seat>,
}

impl Work<'_> {
    fn step(&mut self, edits: Vec<RowEdit>, done: Repaired) -> Result<()> {
        self.inspect.edit(edits)?;
        self.done.push(done);
        Ok(())
    }

    /// Rows of the index that say nothing. Their objects have become rows that no row of the index names.
    fn index_rows(&mut self) -> Result<()> {
        for (key, value, why) in &self.found.graph.index.wrong {
            let edits = quarantine(Family::Index, key, value, why).to_vec();
            let record = Record::Index(key.to_vec());
            self.step(edits, Repaired::Record { record, remedy: "put into quarantine" })?;
        }
        Ok(())
    }

    /// Finds out what each loose row is, and gives it to the index row that misses it. Returns the rows that are named now.
    fn loose_rows(&mut self) -> Result<HashSet<(Family, u64)>> {
        let graph = &self.found.graph;
        let wanted: HashSet<_> = graph.ghosts.iter().copied().collect();
        let mut in_use = HashSet::new();
        let mut given = HashSet::new();
        for loose in &self.found.loose {
            let Some(stored) = self.row(loose)? else { continue };
            let id = known(loose.family, &stored);
            let key = Bytes::copy_from_slice(&loose.number.to_be_bytes());
            let Some(id) = id else {
                if !loose.named {
                    let Loose { family, number, .. } = *loose;
                    let edits = quarantine(family, &key, &stored, "a row that is no object").to_vec();
                    self.step(edits, Repaired::QuarantinedRow { family, number })?;
                }
                continue;
            };
            let seat = graph.index.find(&id.hash);
            let damaged = seat.filter(|seat| graph.damage.get(seat).is_some_and(Damage::is_of_row));
            let misses = match seat {
                Some(_) => damaged.is_some(),
                // Any bytes are a chunk: what an index row names under another hash is made one only if it is asked for.
                None => !loose.named || wanted.contains(&id),
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
                self.healed.extend(seat);
                in_use.insert((loose.family, loose.number));
            } else if !loose.named {
                let edit = RowEdit { family: loose.family, key, value: None };
                self.step(vec![edit], Repaired::Dropped { id })?;
            }
        }
        Ok(in_use)
    }

    fn row(&self, loose: &Loose) -> Result<Option<Bytes>> {
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
        let mut seats: Vec<_> = graph
            .damage
            .iter()
            .filter(|(seat, damage)| damage.is_of_row() && !graph.is_ghost(**seat) && !self.healed.contains(*seat))
            .collect();
        seats.sort_by_key(|(seat, _)| **seat);
        for (seat, damage) in seats {
            let row = &graph.index.rows[*seat as usize];
            let id = graph.id(*seat);
            let place = (Family::of(row.kind), row.number);
            let bytes = self.stored(place.0, place.1)?.unwrap_or_default();
            let kept = Quarantined { kind: row.value().kind as u8, reason: damage.to_string(), bytes };
            let key = [&[QUARANTINED_OBJECT][..], &row.hash].concat();
            let mut edits = vec![
                RowEdit { family: Family::Quarantine, key: key.into(), value: Some(kept.encode().into()) },
                RowEdit { family: Family::Index, key: Bytes::copy_from_slice(&row.hash), value: None },
            ];
            // Its row may be another object's, which the index names.
            let unreadable = matches!(damage, Damage::Unreadable { .. });
            if (loose.contains_key(&place) || unreadable) && !in_use.contains(&place) {
                let key = Bytes::copy_from_slice(&row.number.to_be_bytes());
                edits.push(RowEdit { family: place.0, key, value: None });
            }
            self.step(edits, Repaired::Quarantined { id, damage: damage.clone() })?;
        }
        Ok(())
    }

    /// Marks that are not to be believed. Without them nothing is known, which is never wrong.
    fn marks(&mut self) -> Result<()> {
        for flaw in &self.found.flaws {
            let row = &self.found.graph.index.rows[flaw.seat as usize];
            let Some(stored) = self.stored(Family::Snapshots, row.number)? else { continue };
            let edits = touched::without(&stored, row.hash, row.value());
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

/// The object that a row is.
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
