//! Verifies and repairs a whole store.
//!
//! [`verify`] reads the object index, then every object family sequentially in write order, on all cores. Each row is hashed and
//! decoded once, regardless of how many snapshots share it. The claims of objects about each other become a graph in memory, on
//! which reachability and the rules between objects are checked. It runs at the speed of the disk, the hash and the decoder, at
//! the cost of memory: about 60 bytes for each object, 100 more for each that is not a chunk, and 16 for each reference between
//! objects. The affected snapshots and paths are computed only for damage that was found.
//!
//! [`repair`] moves damaged rows out of the way without discarding anything, and rebuilds rows that can be derived from the rest.
//! Neither is a garbage collection: unreachable objects are counted and stay.
//!
//! Concurrency: `verify` reads the index first and the objects later, so that objects *deleted* in between look missing. It should
//! not run during a collection, and the server prevents that. Concurrent writers are safe: objects that look missing are checked
//! once more at the end.

mod affected;
mod changed_paths;
mod facts;
mod graph;
mod index;
mod links;
mod records;
mod repair;
mod report;
mod scan;

pub use repair::{Repair, Repaired, repair};
pub use report::{
    AffectedPlace, Damage, Problem, Record, RecordProblem, VerifyOptions, VerifyProgress, VerifyReport, Watch,
};

use std::collections::{BTreeMap, HashSet};

use parking_lot::Mutex;
use rayon::prelude::*;

use crate::backend::{Family, Inspect};
use crate::error::Result;
use crate::id::{ObjectId, ObjectKind, RootId};
use crate::reference::RefName;
use crate::store::Store;
use affected::DamagedAncestors;
use changed_paths::Flaw;
use facts::ReferenceKind;
use graph::Graph;
use index::{Index, ObjectIndex, each_row};
use records::Records;
use scan::{MissingObjects, UnindexedRow, seat_of};

/// The first byte of the quarantine key of an object; its hash follows. Rows of other families have the number of their family.
const QUARANTINED_OBJECT: u8 = 0;

/// Verifies everything that references hold, and everything else in the store.
///
/// Damage is part of the report, not an error. An error means that the database cannot be read at all.
pub fn verify(store: &Store, options: &VerifyOptions, watch: Watch<'_>) -> Result<VerifyReport> {
    Ok(match examine(store, options, watch)? {
        Some(examined) => examined.report,
        None => VerifyReport { read_data: options.read_data, ..VerifyReport::default() },
    })
}

/// A report with the data it is based on.
struct Examined {
    report: VerifyReport,
    graph: Graph,
    records: Records,
    loose: Vec<UnindexedRow>,
    flaws: Vec<Flaw>,
    /// The purged objects.
    buried: HashSet<ObjectId>,
}

fn examine(store: &Store, options: &VerifyOptions, watch: Watch<'_>) -> Result<Option<Examined>> {
    let inspect = store.inspect();
    let records = records::read(inspect)?;
    let (lost, quarantined) = read_quarantine(inspect)?;
    let buried = read_tombstones(inspect)?;
    let index = Index::read(inspect)?;
    let missing_objects = Mutex::new(MissingObjects::default());
    let mut held: BTreeMap<ObjectIndex, Vec<RefName>> = BTreeMap::new();
    for (name, value) in &records.refs {
        for id in value.roots() {
            held.entry(seat_of(&index, &missing_objects, id)).or_default().push(name.clone());
        }
    }
    let Some(mut scan) = scan::scan(inspect, &index, &missing_objects, options, watch)? else { return Ok(None) };
    let (loose, bytes) = (std::mem::take(&mut scan.loose), scan.bytes);
    let beside = std::mem::take(&mut scan.beside);
    let mut graph = Graph::new(index, missing_objects.into_inner(), scan);
    graph.walk(held.keys().copied(), &|id| lost.contains(&id.hash));
    let mut purged = 0;
    graph.mark_missing(&held.keys().copied().collect(), &mut |id| {
        let is_purged = buried.contains(&id);
        purged += u64::from(is_purged);
        is_purged
    });
    graph.compare();
    compare_links(store, &mut graph, &held)?;
    look_again(store, &mut graph)?;
    let mut report = VerifyReport {
        finished: true,
        read_data: options.read_data,
        objects: graph.index.rows.len() as u64,
        bytes,
        thinned: graph.thinned,
        absent: graph.absent,
        orphans: loose.iter().filter(|loose| !loose.named).count() as u64,
        quarantined,
        purged,
        refs: records.refs.len() as u64,
        operations: records.operations,
        ..VerifyReport::default()
    };
    for (row, reached) in graph.index.rows.iter().zip(&graph.reached) {
        if !reached {
            report.unreachable += 1;
            report.unreachable_bytes += u64::from(row.stored_bytes);
        }
    }
    report.problems = problems(store, &graph, &held, options)?;
    report.records = records.flaws.iter().map(|flaw| flaw.problem.clone()).collect();
    let wrong = graph.index.wrong.iter().map(|(key, _, why)| (Record::Index(key.to_vec()), why.clone()));
    let unreadable = graph.index.unreadable.iter().map(|why| (Record::Rows(Family::Index), why.clone()));
    report.records.extend(wrong.chain(unreadable).map(|(record, why)| RecordProblem { record, why }));
    let flaws = changed_paths::flaws(store, &graph, &beside, options.read_data);
    report.records.extend(flaws.iter().map(|flaw| flaw.problem.clone()));
    Ok(Some(Examined { report, graph, records, loose, flaws, buried }))
}

/// Removes false reports of damage. The index is read in parts and the rows later, so an object that was written, moved or collected
/// in between looks missing. An object that can be read now is undamaged; an unreachable one without an index row was collected.
fn look_again(store: &Store, graph: &mut Graph) -> Result<()> {
    let mut whole = Vec::new();
    for (object_index, damage) in &graph.damage {
        if !matches!(damage, Damage::Missing | Damage::Unreadable { .. }) {
            continue;
        }
        let id = graph.id(*object_index);
        let is_gone = store.inspect().look_up(&[id])?[0].is_none();
        let is_harmless = match is_gone {
            true => !graph.is_missing(*object_index) && !graph.reached[*object_index as usize],
            false => store.canonical(id).is_ok(),
        };
        if is_harmless {
            whole.push(*object_index);
        }
    }
    whole.iter().for_each(|object_index| drop(graph.damage.remove(object_index)));
    Ok(())
}

/// Returns the hashes of the quarantined objects and the total number of quarantined rows.
fn read_quarantine(inspect: &dyn Inspect) -> Result<(HashSet<[u8; 32]>, u64)> {
    let (mut hashes, mut rows) = (HashSet::new(), 0);
    each_row(inspect, Family::Quarantine, &[], None, &mut |key, _| {
        rows += 1;
        if let [QUARANTINED_OBJECT, hash @ ..] = &key[..] {
            hashes.extend(<[u8; 32]>::try_from(hash));
        }
    })?;
    Ok((hashes, rows))
}

/// Returns the purged objects.
fn read_tombstones(inspect: &dyn Inspect) -> Result<HashSet<ObjectId>> {
    let mut found = HashSet::new();
    each_row(inspect, Family::Tombstones, &[], None, &mut |key, _| {
        if let [kind, hash @ ..] = &key[..]
            && let (Some(kind), Ok(hash)) = (ObjectKind::from_number(*kind), hash.try_into())
        {
            found.insert(ObjectId { kind, hash });
        }
    })?;
    Ok(found)
}

/// Checks the hard links of every readable tree, once for each pair of map and directory.
fn compare_links(store: &Store, graph: &mut Graph, held: &BTreeMap<ObjectIndex, Vec<RefName>>) -> Result<()> {
    let has_links =
        |object_index: ObjectIndex| graph.edges_of(object_index).iter().any(|edge| edge.how == ReferenceKind::Links);
    let roots = graph
        .members()
        .iter()
        .map(|member| member.object_index)
        .filter(|object_index| graph.reached[*object_index as usize]);
    let roots =
        roots.filter(|object_index| graph.id(*object_index).kind == ObjectKind::Root && has_links(*object_index));
    let mut roots: Vec<_> = roots.collect();
    if roots.is_empty() {
        return Ok(());
    }
    if !graph.damage.is_empty() {
        let above = DamagedAncestors::new(store, graph, held, 0);
        roots.retain(|object_index| !above.is_above(*object_index));
    }
    let mut seen = HashSet::new();
    roots.retain(|object_index| {
        seen.insert(graph.edges_of(*object_index).iter().map(|edge| edge.to).collect::<Vec<_>>())
    });
    let broken = |object_index: ObjectIndex| links::broken_rule(store, RootId::from_bytes(graph.id(object_index).hash));
    let broken: Result<Vec<_>> =
        roots.into_par_iter().map(|object_index| Ok((object_index, broken(object_index)?))).collect();
    for (object_index, source) in broken? {
        graph.damage.extend(source.map(|source| (object_index, Damage::Malformed { source })));
    }
    Ok(())
}

fn problems(
    store: &Store,
    graph: &Graph,
    held: &BTreeMap<ObjectIndex, Vec<RefName>>,
    options: &VerifyOptions,
) -> Result<Vec<Problem>> {
    if graph.damage.is_empty() {
        return Ok(Vec::new());
    }
    let mut above = DamagedAncestors::new(store, graph, held, options.listed_max);
    let missing_objects: HashSet<_> = graph
        .damage
        .keys()
        .filter(|object_index| graph.is_missing(**object_index))
        .map(|object_index| graph.id(*object_index).hash)
        .collect();
    let mut problems = Vec::new();
    for (object_index, damage) in &graph.damage {
        let id: ObjectId = graph.id(*object_index);
        let reached = graph.reached[*object_index as usize];
        // An object whose index row states another kind is one problem, reported for the requested kind.
        if !graph.is_missing(*object_index) && !reached && missing_objects.contains(&id.hash) {
            continue;
        }
        let mut problem = Problem {
            id,
            damage: damage.clone(),
            reached,
            parents: Vec::new(),
            parents_more: 0,
            places: Vec::new(),
            places_more: 0,
        };
        above.fill(*object_index, &mut problem)?;
        problems.push(problem);
    }
    problems.sort_by_key(|problem| problem.id);
    Ok(problems)
}
