//! What each workspace keeps: all that its name leads to, and what of that no other name leads to.
//!
//! Each name is walked by itself, twice: first to see what more than one of them reaches, then to count. What was reached is kept as
//! exact numbers of rows, a bit each, so memory is bounded by the number of objects and not by that of workspaces.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use amalgam_engine::backend::Numbers;
use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, Store, SweepRound, Tally};

use crate::digest::references;

const PAGE: usize = 256;
const WORKSPACE: &str = "workspace/";

/// What a workspace keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceUsage {
    /// The workspace; nothing for all other names together: labels, what was deleted, steps of episodes.
    pub workspace: Option<String>,
    /// All that its name leads to: its head, where it began, and what their histories still have.
    pub reached: Tally,
    /// What of that no other name leads to.
    pub private: Tally,
}

/// Measures what every workspace keeps, by name, and all other names together at the end. Told of the names that are done, of twice as
/// many as there are; nothing when it was ended.
pub fn measure_workspaces(
    store: &Store,
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Option<Vec<WorkspaceUsage>>> {
    let round = store.begin_sweep()?;
    let names = read_names(store)?;
    let total = 2 * names.len() as u64;
    let mut done = 0;
    let (mut once, mut often) = (Numbers::default(), Numbers::default());
    for roots in names.values() {
        if watch(done, total).is_break() {
            return Ok(None);
        }
        walk(&round, roots, &mut |number, _| {
            if !once.insert(number) {
                often.insert(number);
            }
        })?;
        done += 1;
    }
    drop(once);
    let mut measured = Vec::new();
    for (name, roots) in &names {
        if watch(done, total).is_break() {
            return Ok(None);
        }
        let mut usage = WorkspaceUsage { workspace: name.workspace.clone(), ..WorkspaceUsage::default() };
        walk(&round, roots, &mut |number, bytes| {
            count(&mut usage.reached, bytes);
            if !often.contains(number) {
                count(&mut usage.private, bytes);
            }
        })?;
        measured.push(usage);
        done += 1;
    }
    Ok(Some(measured))
}

/// Workspaces by name, and then the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    is_other: bool,
    workspace: Option<String>,
}

fn read_names(store: &Store) -> Result<BTreeMap<Line, Vec<ObjectId>>> {
    let (mut names, mut after) = (BTreeMap::<_, Vec<_>>::new(), None);
    loop {
        let page = store.list_refs("", after.as_ref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(names) };
        after = Some(last.clone());
        for (name, value) in page {
            let workspace = name.as_str().strip_prefix(WORKSPACE).map(str::to_owned);
            let line = Line { is_other: workspace.is_none(), workspace };
            names.entry(line).or_default().extend(value.roots());
        }
    }
}

fn count(tally: &mut Tally, bytes: u64) {
    tally.objects += 1;
    tally.bytes += bytes;
}

/// Shows the number and the size of each object that these lead to, once. A tree that was dropped on thinning is not there, and neither
/// is content that was purged.
fn walk(round: &SweepRound, roots: &[ObjectId], show: &mut dyn FnMut(u64, u64)) -> Result<()> {
    let (mut seen, mut open) = (Numbers::default(), roots.to_vec());
    while !open.is_empty() {
        let page = open.split_off(open.len().saturating_sub(PAGE));
        for (id, row) in page.iter().zip(round.look_up(&page)?) {
            let Some(row) = row.filter(|row| seen.insert(row.number)) else { continue };
            show(row.number, row.stored_bytes);
            if id.kind == ObjectKind::Chunk {
                continue;
            }
            let Some(canonical) = round.read(*id)? else { return Err(Error::Missing { id: *id }) };
            if id.kind == ObjectKind::Snapshot {
                let snapshot = Snapshot::decode(&canonical).map_err(|source| Error::Malformed { id: *id, source })?;
                open.extend(snapshot.parents.iter().map(|parent| parent.object()));
                open.push(snapshot.root.object());
                continue;
            }
            references(*id, &canonical, &mut |kind, hash| open.push(ObjectId { kind, hash: *hash }))?;
        }
    }
    Ok(())
}
