//! Who keeps what: all that a workspace or a snapshot leads to, and what of that nothing else leads to.
//!
//! Rows are read once, newest first, as a collection reads them, and each object gets the set of its *owners*: a bit for each of 63
//! workspaces, or snapshots, and one for everybody else. What refers hands its owners on to what it refers to. When an
//! object gets another owner, the sums change: so there is nothing to add up at the end, and no owner is walked by itself. What was passed
//! already when it got an owner is walked at once, with the new owners only. Where there are more owners than 63, everything is read again
//! for the next; where that would be too often, the history is walked instead ([`many`]).
//!
//! Eight bytes for each object, in pages; beside them the names of the store, and what waits in such a walk.

mod many;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;

use amalgam_engine::backend::{Family, IndexRow};
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{FORGET, RefValue};
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, Rows, SnapshotId, Store, Tally};
use bytes::Bytes;

use crate::digest::{kind_of, references};
use crate::mark::ToCome;

const PAGE: usize = 256;
const WORKSPACE: &str = "workspace/";
const LEAN: &str = "lean/";
/// Numbers whose rows are in memory at once.
const STRETCH: u64 = 1_024;
/// So many are told apart in one reading.
const OWNERS_MAX: usize = 63;
/// So often at most everything is read. Where there are more groups, the history is walked instead.
const READINGS_MAX: usize = 4;
/// The bit of all others.
const OTHERS: u64 = 1 << OWNERS_MAX;

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

/// What all names keep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Everything that a name leads to, each object once.
    pub alive: Tally,
    /// By workspace, and all other names together at the end, if there are any.
    pub names: Vec<WorkspaceUsage>,
    /// What no name leads to, and operations that can be undone or redone do.
    pub undo: Tally,
}

impl StoreUsage {
    /// What more than one of the names leads to, each object once.
    pub fn shared(&self) -> Tally {
        self.names.iter().fold(self.alive, |left, usage| without(left, usage.private))
    }
}

/// What a snapshot keeps, by itself: its record and its tree, not what came before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Its record and its tree, or what was left of that when its caches went.
    pub reached: Tally,
    /// What of that no other snapshot has, and nothing that is named beside snapshots.
    pub private: Tally,
}

/// Told of how much was read, and how much there is to read. May take its time; a break ends the measuring.
pub type WatchMeasuring<'a> = &'a mut (dyn FnMut(u64, u64) -> ControlFlow<()> + Send);

/// Measures what every workspace keeps, and what operations after the one with this number keep beside that. Returns nothing when it
/// was ended.
pub fn measure_workspaces(
    store: &Store,
    operations_after: u64,
    watch: WatchMeasuring<'_>,
) -> Result<Option<StoreUsage>> {
    measure_in(store, operations_after, READINGS_MAX, watch)
}

/// With at most so many readings; where that is not enough, by a walk over the history.
fn measure_in(
    store: &Store,
    operations_after: u64,
    readings_max: usize,
    watch: WatchMeasuring<'_>,
) -> Result<Option<StoreUsage>> {
    let rows = store.rows()?;
    let names = Names::read(store)?;
    let groups = names.groups();
    let mut usage = StoreUsage::default();
    let measured = match groups.len().div_ceil(OWNERS_MAX) <= readings_max {
        true => measure_some(&rows, &names, &groups, watch)?,
        false => {
            let mut measure = Measure::new(&rows, &names.lean, None);
            let sums = many::measure_many(&mut measure, &groups, watch)?;
            measure.to_come = ToCome::Nothing;
            sums.map(|sums| (measure, sums))
        }
    };
    let Some((mut measure, sums)) = measured else { return Ok(None) };
    usage.alive = measure.alive;
    usage.undo = measure.beside(moved_after(store, operations_after)?)?;
    let mut names = Vec::new();
    for (group, sums) in groups.into_iter().zip(sums) {
        // What several names keep belongs to none of them.
        let private = if group.lines.len() == 1 { sums.private } else { Tally::default() };
        names.extend(group.lines.into_iter().map(|line| (line, sums.reached, private)));
    }
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let named =
        |(line, reached, private): (Line, Tally, Tally)| WorkspaceUsage { workspace: line.workspace, reached, private };
    usage.names = names.into_iter().map(named).collect();
    Ok(Some(usage))
}

/// Reads everything once for every 63 groups. The last reading, with all that it found.
fn measure_some<'a>(
    rows: &'a Rows,
    names: &'a Names,
    groups: &[Group],
    watch: WatchMeasuring<'_>,
) -> Result<Option<(Measure<'a>, Vec<Sums>)>> {
    let readings = groups.len().div_ceil(OWNERS_MAX).max(1) as u64;
    let mut sums = Vec::new();
    let mut last = Measure::new(rows, &names.lean, None);
    for reading in 0..readings {
        let start = reading as usize * OWNERS_MAX;
        let told_apart = start..(start + OWNERS_MAX).min(groups.len());
        let mut seeds = Vec::new();
        for (number, group) in groups.iter().enumerate() {
            let owner = if told_apart.contains(&number) { 1_u64 << (number - start) } else { OTHERS };
            seeds.extend(group.roots.iter().map(|root| (*root, owner)));
        }
        last = Measure::new(rows, &names.lean, None);
        if !last.run(seeds, &mut |done, total| watch(reading * total + done, readings * total))? {
            return Ok(None);
        }
        sums.extend_from_slice(&last.sums[..told_apart.len()]);
    }
    Ok(Some((last, sums)))
}

/// Measures what each of these snapshots keeps. Nothing when it was ended.
pub fn measure_snapshots(
    store: &Store,
    snapshots: &[SnapshotId],
    watch: WatchMeasuring<'_>,
) -> Result<Option<Vec<SnapshotUsage>>> {
    let rows = store.rows()?;
    let names = Names::read(store)?;
    let mut measured = Vec::new();
    let readings = snapshots.len().div_ceil(OWNERS_MAX) as u64;
    for (reading, told_apart) in (0..).zip(snapshots.chunks(OWNERS_MAX)) {
        let bits: HashMap<_, _> = told_apart.iter().copied().zip((0..).map(|bit| 1_u64 << bit)).collect();
        let records: Vec<_> = told_apart.iter().map(|id| id.object()).collect();
        // One that no name leads to any more counts all the same.
        let seeds = names.lines.values().flatten().chain(&records).map(|root| (*root, OTHERS)).collect();
        let mut measure = Measure::new(&rows, &names.lean, Some(&bits));
        if !measure.run(seeds, &mut |done, total| watch(reading * total + done, readings * total))? {
            return Ok(None);
        }
        for ((id, sums), record) in told_apart.iter().zip(measure.sums).zip(rows.look_up(&records)?) {
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

/// Workspaces by name, and then the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Line {
    is_other: bool,
    workspace: Option<String>,
}

/// Names that keep the same: forks that nobody has changed yet are one group, however many they are.
struct Group {
    roots: Vec<ObjectId>,
    lines: Vec<Line>,
}

/// From where to measure.
struct Names {
    lines: BTreeMap<Line, Vec<ObjectId>>,
    /// Trees that stand for those of snapshots whose caches went: they belong to whom the snapshot belongs.
    lean: HashMap<SnapshotId, Vec<ObjectId>>,
}

impl Names {
    /// The names by what they keep.
    fn groups(&self) -> Vec<Group> {
        let mut by_roots: BTreeMap<&[ObjectId], Vec<Line>> = BTreeMap::new();
        for (line, roots) in &self.lines {
            by_roots.entry(roots).or_default().push(line.clone());
        }
        by_roots.into_iter().map(|(roots, lines)| Group { roots: roots.to_vec(), lines }).collect()
    }

    fn read(store: &Store) -> Result<Self> {
        let (mut names, mut after) = (Self { lines: BTreeMap::new(), lean: HashMap::new() }, None);
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, value) in page {
                if let Some(snapshot) = name.as_str().strip_prefix(LEAN).and_then(SnapshotId::from_hex) {
                    names.lean.insert(snapshot, value.roots().collect());
                    continue;
                }
                let workspace = name.as_str().strip_prefix(WORKSPACE).map(str::to_owned);
                let line = Line { is_other: workspace.is_none(), workspace };
                names.lines.entry(line).or_default().extend(value.roots());
            }
        }
        // Very many labels may point at few snapshots.
        if let Some(others) = names.lines.get_mut(&Line { is_other: true, workspace: None }) {
            others.sort_unstable();
            others.dedup();
        }
        Ok(names)
    }
}

/// What operations after the one with this number moved references from and to, but for what was forgotten on purpose.
fn moved_after(store: &Store, mut after: u64) -> Result<Vec<ObjectId>> {
    let mut roots = BTreeSet::new();
    loop {
        let page = store.list_operations(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(roots.into_iter().collect()) };
        after = last.sequence;
        let kept = page.iter().filter(|operation| operation.draft.action != FORGET);
        let values = kept.flat_map(|operation| &operation.changes).flat_map(|change| [&change.before, &change.after]);
        roots.extend(values.flatten().flat_map(RefValue::roots));
    }
}

/// What an owner has.
#[derive(Clone, Copy, Default)]
struct Sums {
    reached: Tally,
    private: Tally,
}

/// One reading of everything.
struct Measure<'a> {
    rows: &'a Rows,
    lean: &'a HashMap<SnapshotId, Vec<ObjectId>>,
    /// Snapshots that own their trees; without them a tree belongs to every workspace that leads to its snapshot.
    snapshots: Option<&'a HashMap<SnapshotId, u64>>,
    owners: Owners,
    to_come: ToCome,
    sums: [Sums; OWNERS_MAX + 1],
    alive: Tally,
}

impl<'a> Measure<'a> {
    fn new(
        rows: &'a Rows,
        lean: &'a HashMap<SnapshotId, Vec<ObjectId>>,
        snapshots: Option<&'a HashMap<SnapshotId, u64>>,
    ) -> Self {
        let end = rows.numbers_end();
        Self {
            rows,
            lean,
            snapshots,
            owners: Owners::default(),
            to_come: ToCome::Snapshots { below: end, end },
            sums: [Sums::default(); OWNERS_MAX + 1],
            alive: Tally::default(),
        }
    }

    /// Reads the snapshots, then the trees. False when it was ended.
    fn run(&mut self, seeds: Vec<(ObjectId, u64)>, watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>) -> Result<bool> {
        let end = self.rows.numbers_end();
        let total = 2 * end;
        self.give(seeds)?;
        for (before, family) in [(0, Family::Snapshots), (end, Family::Trees)] {
            for stretch in (0..end.div_ceil(STRETCH)).rev() {
                let (start, stop) = (stretch * STRETCH, ((stretch + 1) * STRETCH).min(end));
                if watch(before + end - stop, total).is_break() {
                    return Ok(false);
                }
                let mut some = Vec::new();
                self.rows.show(family, start..stop, &mut |number, canonical| {
                    some.push((number, canonical.clone()));
                    Ok(())
                })?;
                for (number, canonical) in some.iter().rev() {
                    self.come_by(family, *number, canonical)?;
                }
                self.pass(family, start, end);
            }
        }
        self.to_come = ToCome::Nothing;
        self.give_what_is_left()?;
        Ok(true)
    }

    fn pass(&mut self, family: Family, below: u64, end: u64) {
        self.to_come = match family {
            Family::Snapshots => ToCome::Snapshots { below, end },
            _ => ToCome::Trees { below },
        };
    }

    /// Hands the owners of a row on.
    fn come_by(&mut self, family: Family, number: u64, canonical: &Bytes) -> Result<()> {
        self.pass(family, number, self.rows.numbers_end());
        let owners = self.owners.of(number);
        if owners == 0 {
            return Ok(());
        }
        let kind = if family == Family::Snapshots { ObjectKind::Snapshot } else { kind_of(number, canonical)? };
        let mut next = Vec::new();
        self.lead_on(ObjectId::of(kind, canonical), canonical, owners, &mut next)?;
        self.give(next)
    }

    /// What an object leads to, and the owners that it hands on.
    fn lead_on(&self, id: ObjectId, canonical: &Bytes, owners: u64, next: &mut Vec<(ObjectId, u64)>) -> Result<()> {
        if id.kind != ObjectKind::Snapshot {
            return references(id, canonical, &mut |kind, hash| next.push((ObjectId { kind, hash: *hash }, owners)));
        }
        let snapshot = Snapshot::decode(canonical).map_err(|source| Error::Malformed { id, source })?;
        let id = SnapshotId::from_bytes(id.hash);
        let of_tree = self.snapshots.map_or(owners, |bits| bits.get(&id).copied().unwrap_or(OTHERS));
        next.extend(snapshot.parents.iter().map(|parent| (parent.object(), owners)));
        next.push((snapshot.root.object(), of_tree));
        next.extend(self.lean.get(&id).into_iter().flatten().map(|root| (*root, of_tree)));
        Ok(())
    }

    /// Gives owners to objects. What comes by later hands them on then; what was passed already does so at once. What is not there was
    /// dropped on thinning, was purged, or has gone meanwhile.
    fn give(&mut self, mut open: Vec<(ObjectId, u64)>) -> Result<()> {
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            let ids: Vec<_> = page.iter().map(|(id, _)| *id).collect();
            for ((id, owners), row) in page.into_iter().zip(self.rows.look_up(&ids)?) {
                let Some(row) = row else { continue };
                let new = self.count(&row, owners);
                let leads_nowhere = matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs);
                if new == 0 || leads_nowhere || self.to_come.holds(id.kind, row.number) {
                    continue;
                }
                match self.rows.read(id)? {
                    Some(canonical) => self.lead_on(id, &canonical, new, &mut open)?,
                    None if self.rows.look_up(&[id])?[0].is_none() => {}
                    None => return Err(Error::Missing { id }),
                }
            }
        }
        Ok(())
    }

    /// Gives owners to an object, and returns those that it did not have.
    fn count(&mut self, row: &IndexRow, owners: u64) -> u64 {
        let (before, bytes) = (self.owners.of(row.number), row.stored_bytes);
        let new = owners & !before;
        if new == 0 {
            return 0;
        }
        if before == 0 {
            add(&mut self.alive, bytes);
        }
        let mut left = new;
        while left != 0 {
            add(&mut self.sums[left.trailing_zeros() as usize].reached, bytes);
            left &= left - 1;
        }
        if before.count_ones() == 1 {
            let sums = &mut self.sums[before.trailing_zeros() as usize];
            sums.private = without(sums.private, Tally { objects: 1, bytes });
        }
        let after = before | new;
        if after.count_ones() == 1 {
            add(&mut self.sums[after.trailing_zeros() as usize].private, bytes);
        }
        self.owners.set(row.number, after);
        new
    }

    /// Counts what these lead to and no owner does. Everything was passed already: where there is an owner, it has all below it, too.
    fn beside(&mut self, mut open: Vec<ObjectId>) -> Result<Tally> {
        let (mut found, mut next) = (Tally::default(), Vec::new());
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            for (id, row) in page.iter().zip(self.rows.look_up(&page)?) {
                let Some(row) = row.filter(|row| self.owners.of(row.number) == 0) else { continue };
                self.owners.set(row.number, OTHERS);
                add(&mut found, row.stored_bytes);
                if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
                    continue;
                }
                // What is gone meanwhile leads nowhere.
                if let Some(canonical) = self.rows.read(*id)? {
                    self.lead_on(*id, &canonical, OTHERS, &mut next)?;
                    open.extend(next.drain(..).map(|(id, _)| id));
                }
            }
        }
        Ok(found)
    }

    /// Lean trees of snapshots that no name leads to: the next collection forgets them.
    fn give_what_is_left(&mut self) -> Result<()> {
        let roots: Vec<_> = self.lean.values().flatten().copied().collect();
        for page in roots.chunks(PAGE) {
            for (root, row) in page.iter().zip(self.rows.look_up(page)?) {
                if row.is_some_and(|row| self.owners.of(row.number) == 0) {
                    self.give(vec![(*root, OTHERS)])?;
                }
            }
        }
        Ok(())
    }
}

/// The owners of each object, by its number.
#[derive(Default)]
struct Owners {
    pages: HashMap<u64, Box<[u64; STRETCH as usize]>>,
}

impl Owners {
    fn of(&self, number: u64) -> u64 {
        self.pages.get(&(number / STRETCH)).map_or(0, |page| page[(number % STRETCH) as usize])
    }

    fn set(&mut self, number: u64, owners: u64) {
        let page = self.pages.entry(number / STRETCH).or_insert_with(|| Box::new([0; STRETCH as usize]));
        page[(number % STRETCH) as usize] = owners;
    }
}

fn add(tally: &mut Tally, bytes: u64) {
    tally.objects += 1;
    tally.bytes += bytes;
}

fn without(tally: Tally, less: Tally) -> Tally {
    Tally { objects: tally.objects.saturating_sub(less.objects), bytes: tally.bytes.saturating_sub(less.bytes) }
}

#[cfg(test)]
mod tests;
