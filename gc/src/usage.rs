//! Disk usage: for each workspace or snapshot, all that it reaches, and the part that nothing else reaches.
//!
//! A scan reads all rows once, newest first, like the mark phase. Each object gets a bit set of its *owners*: one bit for
//! each of 63 workspaces (or snapshots) and one bit for all others. A row passes its owners on to the objects that it
//! refers to. The sums change whenever an object gets a new owner, so no owner needs a walk of its own. An object that the
//! scan has already passed is walked at once, with the new owners only. More than 63 owners need more scans; where that
//! would take more than [`SCANS_MAX`] of them, [`history_walk`] walks the history instead.
//!
//! Memory: eight bytes for each object, in pages, and the names of the store.

mod history_walk;
mod roots;
mod scan;

use std::collections::HashMap;
use std::ops::ControlFlow;

use amalgam_engine::{Result, Rows, SnapshotId, Store, Tally};

use crate::mark::UnreadRows;
use roots::{NameKey, NamedRoots, RootGroup, undo_roots};
use scan::{OTHERS, OWNERS_MAX, OwnerUsage, UsageScan, add, subtract};

/// Most scans of the store; beyond that the history is walked.
const SCANS_MAX: usize = 4;

/// Disk usage of a workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkspaceUsage {
    /// The workspace; `None` for all other names together: labels, deleted workspaces, steps of episodes.
    pub workspace: Option<String>,
    /// Everything that the workspace reaches: its head, its base, and their histories.
    pub reached: Tally,
    /// The part that no other name reaches.
    pub private: Tally,
}

/// Disk usage of a store by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Everything that any name reaches; each object counts once.
    pub alive: Tally,
    /// One item for each workspace, then one for all other names, if there are any.
    pub names: Vec<WorkspaceUsage>,
    /// Objects that only operations within the undo window reach.
    pub undo: Tally,
}

impl StoreUsage {
    /// Returns the usage of objects that more than one name reaches; each object counts once.
    pub fn shared(&self) -> Tally {
        self.names.iter().fold(self.alive, |left, usage| subtract(left, usage.private))
    }
}

/// Disk usage of one snapshot: its record and its tree, without its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The record and the tree; the lean tree where caches were dropped.
    pub reached: Tally,
    /// The part that neither another snapshot nor a name other than a snapshot's reaches.
    pub private: Tally,
}

/// Callback with the work done and the total. It may block; a break cancels the measurement.
pub type MeasureProgressFn<'a> = &'a mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send);

/// Measures what every workspace keeps, and what operations after `undoable_after` keep beyond that. Returns `None` when
/// the callback cancelled it.
pub fn measure_workspaces(
    store: &Store,
    undoable_after: u64,
    watch: MeasureProgressFn<'_>,
) -> Result<Option<StoreUsage>> {
    measure_with(store, undoable_after, SCANS_MAX, watch)
}

/// Measures with at most `scans_max` scans; where they do not suffice, by a walk over the history.
fn measure_with(
    store: &Store,
    undoable_after: u64,
    scans_max: usize,
    watch: MeasureProgressFn<'_>,
) -> Result<Option<StoreUsage>> {
    let rows = store.rows()?;
    let names = NamedRoots::read(store)?;
    let groups = names.groups();
    let mut usage = StoreUsage::default();
    let measured = match groups.len().div_ceil(OWNERS_MAX) <= scans_max {
        true => measure_by_scans(&rows, &names, &groups, watch)?,
        false => {
            let mut scan = UsageScan::new(&rows, &names.lean, None);
            let sums = history_walk::measure_by_history_walk(&mut scan, &groups, watch)?;
            scan.unread = UnreadRows::Nothing;
            sums.map(|sums| (scan, sums))
        }
    };
    let Some((mut scan, sums)) = measured else { return Ok(None) };
    usage.alive = scan.alive;
    usage.undo = scan.tally_unowned(undo_roots(store, undoable_after)?)?;
    let mut names = Vec::new();
    for (group, sums) in groups.into_iter().zip(sums) {
        // Objects that several names keep are private to none of them.
        let private = if group.names.len() == 1 { sums.private } else { Tally::default() };
        names.extend(group.names.into_iter().map(|name| (name, sums.reached, private)));
    }
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let named = |(name, reached, private): (NameKey, Tally, Tally)| WorkspaceUsage {
        workspace: name.workspace,
        reached,
        private,
    };
    usage.names = names.into_iter().map(named).collect();
    Ok(Some(usage))
}

/// Scans the store once for every 63 groups. Returns the last scan and the usage of all groups.
fn measure_by_scans<'a>(
    rows: &'a Rows,
    names: &'a NamedRoots,
    groups: &[RootGroup],
    watch: MeasureProgressFn<'_>,
) -> Result<Option<(UsageScan<'a>, Vec<OwnerUsage>)>> {
    let scans = groups.len().div_ceil(OWNERS_MAX).max(1) as u64;
    let mut sums = Vec::new();
    let mut last = UsageScan::new(rows, &names.lean, None);
    for round in 0..scans {
        let start = round as usize * OWNERS_MAX;
        let distinct = start..(start + OWNERS_MAX).min(groups.len());
        let mut seeds = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let owner = if distinct.contains(&number) { 1_u64 << (number - start) } else { OTHERS };
            seeds.extend(group.roots.iter().map(|root| (*root, owner)));
        }
        last = UsageScan::new(rows, &names.lean, None);
        if !last.run(seeds, &mut |done, total| watch(round * total + done, scans * total))? {
            return Ok(None);
        }
        sums.extend_from_slice(&last.sums[..distinct.len()]);
    }
    Ok(Some((last, sums)))
}

/// Measures what each of these snapshots keeps. Returns `None` when the callback cancelled it.
pub fn measure_snapshots(
    store: &Store,
    snapshots: &[SnapshotId],
    watch: MeasureProgressFn<'_>,
) -> Result<Option<Vec<SnapshotUsage>>> {
    let rows = store.rows()?;
    let names = NamedRoots::read(store)?;
    let mut measured = Vec::new();
    let scans = snapshots.len().div_ceil(OWNERS_MAX) as u64;
    for (round, distinct) in (0..).zip(snapshots.chunks(OWNERS_MAX)) {
        let bits: HashMap<_, _> = distinct.iter().copied().zip((0..).map(|bit| 1_u64 << bit)).collect();
        let records: Vec<_> = distinct.iter().map(|id| id.object()).collect();
        // A snapshot that no name reaches any more counts all the same.
        let seeds = names.by_name.values().flatten().chain(&records).map(|root| (*root, OTHERS)).collect();
        let mut scan = UsageScan::new(&rows, &names.lean, Some(&bits));
        if !scan.run(seeds, &mut |done, total| watch(round * total + done, scans * total))? {
            return Ok(None);
        }
        for ((id, sums), record) in distinct.iter().zip(scan.sums).zip(rows.look_up(&records)?) {
            let mut usage = SnapshotUsage { snapshot: *id, reached: sums.reached, private: sums.private };
            if let Some(record) = record {
                add(&mut usage.reached, record.stored_bytes);
                add(&mut usage.private, record.stored_bytes);
            }
            measured.push(usage);
        }
    }
    Ok(Some(measured))
}

#[cfg(test)]
mod tests;
