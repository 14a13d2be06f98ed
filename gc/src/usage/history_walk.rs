//! Disk usage of very many names in one walk over the history, instead of one scan of the store for every 63 names.
//!
//! The snapshots form a forest by their first parents. A depth-first walk marks the objects that each snapshot adds to its
//! ancestors, and unmarks them on the way back. At a snapshot the marks are therefore all that it reaches, and their sum is
//! the usage of a name that points at it. Objects marked at a snapshot belong to the names below it, to one or to several.
//! An object is visited once for each branch that added it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, Tally};

use super::roots::RootGroup;
use super::scan::{OwnerUsage, PAGE, PAGE_NUMBERS, UsageScan, add, subtract};

/// Snapshots between two progress callbacks.
const PROGRESS_EVERY: u64 = 64;
/// A group with more roots is walked on its own: it stands for many names.
const ROOTS_MAX: usize = 16;
/// Owner of an object: none, one group (its number plus one), or several.
const OWNER_NONE: u64 = 0;
const OWNER_SHARED: u64 = u64::MAX;

/// Measures every group, and records the owner of every object. Returns `None` when the callback cancelled it.
pub(super) fn measure_by_history_walk(
    scan: &mut UsageScan<'_>,
    groups: &[RootGroup],
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Option<Vec<OwnerUsage>>> {
    let forest = Forest::build(scan, groups)?;
    let total = (forest.nodes.len() + forest.loose.len()) as u64;
    let (marked, sums) = (NumberSet::default(), vec![OwnerUsage::default(); groups.len()]);
    let mut walk = ForestWalk { scan, marked, trail: Vec::new(), reached: Tally::default(), sums };
    let (mut done, mut open) = (0, Vec::new());
    for top in &forest.tops {
        open.push((*top, None));
        while let Some((node, trail)) = open.pop() {
            if let Some(trail) = trail {
                walk.unmark_to(trail);
                continue;
            }
            if done % PROGRESS_EVERY == 0 && watch(done, total).is_break() {
                return Ok(None);
            }
            done += 1;
            let here = &forest.nodes[node];
            open.push((node, Some(walk.trail.len())));
            open.extend(here.below.iter().map(|below| (*below, None)));
            walk.mark(vec![here.id.object()], here.owner)?;
            for number in &here.groups {
                walk.measure_group(*number, &groups[*number])?;
            }
        }
    }
    for number in &forest.loose {
        if watch(done, total).is_break() {
            return Ok(None);
        }
        done += 1;
        walk.measure_group(*number, &groups[*number])?;
    }
    walk.mark_lean_trees()?;
    Ok(Some(walk.sums))
}

/// All snapshots that groups reach, each below its first parent.
struct Forest {
    nodes: Vec<ForestNode>,
    tops: Vec<usize>,
    /// Groups with no snapshot among their roots, or with too many roots.
    loose: Vec<usize>,
}

/// A snapshot of the forest.
struct ForestNode {
    id: SnapshotId,
    parents: Vec<SnapshotId>,
    below: Vec<usize>,
    /// Groups whose first root it is.
    groups: Vec<usize>,
    /// Owner of the objects that it adds, joined over the groups at it and below it.
    owner: u64,
}

impl Forest {
    fn build(scan: &UsageScan<'_>, groups: &[RootGroup]) -> Result<Self> {
        let (mut forest, mut known) = (Self { nodes: Vec::new(), tops: Vec::new(), loose: Vec::new() }, HashMap::new());
        for (number, group) in groups.iter().enumerate() {
            let mut first = None;
            for root in group.roots.iter().filter(|root| root.kind == ObjectKind::Snapshot) {
                let node = forest.node_of(scan, &mut known, SnapshotId::from_bytes(root.hash))?;
                first = first.or(node);
            }
            match first.filter(|_| group.roots.len() <= ROOTS_MAX) {
                Some(node) => {
                    let owner = &mut forest.nodes[node].owner;
                    *owner = merge_owners(*owner, owner_of(group, number));
                    forest.nodes[node].groups.push(number);
                }
                None => forest.loose.push(number),
            }
        }
        let mut above = Vec::new();
        while above.len() < forest.nodes.len() {
            let mut first = None;
            for parent in std::mem::take(&mut forest.nodes[above.len()].parents) {
                let node = forest.node_of(scan, &mut known, parent)?;
                first = first.or(node);
            }
            above.push(first);
        }
        for (node, above) in above.iter().enumerate() {
            match above {
                Some(above) => forest.nodes[*above].below.push(node),
                None => forest.tops.push(node),
            }
        }
        forest.join_owners(&above);
        Ok(forest)
    }

    /// Returns the node of a snapshot, or `None` if its record is gone.
    fn node_of(
        &mut self,
        scan: &UsageScan<'_>,
        known: &mut HashMap<SnapshotId, usize>,
        id: SnapshotId,
    ) -> Result<Option<usize>> {
        if let Some(node) = known.get(&id) {
            return Ok(Some(*node));
        }
        let Some(canonical) = scan.rows.read(id.object())? else { return Ok(None) };
        let snapshot = Snapshot::decode(&canonical).map_err(|source| Error::Malformed { id: id.object(), source })?;
        let node = self.nodes.len();
        known.insert(id, node);
        let (below, groups) = (Vec::new(), Vec::new());
        self.nodes.push(ForestNode { id, parents: snapshot.parents, below, groups, owner: OWNER_NONE });
        Ok(Some(node))
    }

    /// Joins owners bottom-up, from children into parents.
    fn join_owners(&mut self, above: &[Option<usize>]) {
        let mut order = self.tops.clone();
        let mut at = 0;
        while at < order.len() {
            order.extend_from_slice(&self.nodes[order[at]].below);
            at += 1;
        }
        for node in order.into_iter().rev() {
            if let Some(above) = above[node] {
                self.nodes[above].owner = merge_owners(self.nodes[above].owner, self.nodes[node].owner);
            }
        }
    }
}

/// Returns the owner that stands for a group: shared if the group has several names.
fn owner_of(group: &RootGroup, number: usize) -> u64 {
    if group.names.len() == 1 { number as u64 + 1 } else { OWNER_SHARED }
}

fn merge_owners(one: u64, other: u64) -> u64 {
    match (one, other) {
        (OWNER_NONE, owner) | (owner, OWNER_NONE) => owner,
        (one, other) if one == other => one,
        _ => OWNER_SHARED,
    }
}

/// State of the walk: marked objects, the order in which they were marked, and the sums.
struct ForestWalk<'w, 'a> {
    scan: &'w mut UsageScan<'a>,
    marked: NumberSet,
    trail: Vec<(u64, u64)>,
    reached: Tally,
    sums: Vec<OwnerUsage>,
}

impl ForestWalk<'_, '_> {
    /// Marks all unmarked objects that these reach, and adds an owner to them.
    fn mark(&mut self, mut open: Vec<ObjectId>, owner: u64) -> Result<()> {
        let mut next = Vec::new();
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            for (id, row) in page.iter().zip(self.scan.rows.look_up(&page)?) {
                // A missing object was thinned, purged or collected meanwhile.
                let Some(row) = row else { continue };
                if !self.marked.insert(row.number) {
                    continue;
                }
                self.trail.push((row.number, row.stored_bytes));
                add(&mut self.reached, row.stored_bytes);
                self.add_owner(row.number, row.stored_bytes, owner);
                if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
                    continue;
                }
                match self.scan.rows.read(*id)? {
                    Some(canonical) => self.scan.push_references(*id, &canonical, owner, &mut next)?,
                    None if self.scan.rows.look_up(&[*id])?[0].is_none() => {}
                    None => return Err(Error::Missing { id: *id }),
                }
                open.extend(next.drain(..).map(|(id, _)| id));
            }
        }
        Ok(())
    }

    fn add_owner(&mut self, number: u64, bytes: u64, owner: u64) {
        let before = self.scan.owners.of(number);
        let after = merge_owners(before, owner);
        if before == after {
            return;
        }
        if before == OWNER_NONE {
            add(&mut self.scan.alive, bytes);
        } else if before != OWNER_SHARED {
            let private = &mut self.sums[before as usize - 1].private;
            *private = subtract(*private, Tally { objects: 1, bytes });
        }
        if after != OWNER_SHARED {
            add(&mut self.sums[after as usize - 1].private, bytes);
        }
        self.scan.owners.set(number, after);
    }

    /// Measures a group while its first snapshot is marked, then unmarks what its other roots added.
    fn measure_group(&mut self, number: usize, group: &RootGroup) -> Result<()> {
        let trail = self.trail.len();
        self.mark(group.roots.clone(), owner_of(group, number))?;
        self.sums[number].reached = self.reached;
        self.unmark_to(trail);
        Ok(())
    }

    /// Marks lean trees of snapshots that no name reaches: the next collection drops them.
    fn mark_lean_trees(&mut self) -> Result<()> {
        let roots: Vec<_> = self.scan.lean.values().flatten().copied().collect();
        for page in roots.chunks(PAGE) {
            for (root, row) in page.iter().zip(self.scan.rows.look_up(page)?) {
                if row.is_some_and(|row| self.scan.owners.of(row.number) == OWNER_NONE) {
                    self.mark(vec![*root], OWNER_SHARED)?;
                }
            }
        }
        Ok(())
    }

    fn unmark_to(&mut self, trail: usize) {
        for (number, bytes) in self.trail.drain(trail..) {
            self.marked.remove(number);
            self.reached = subtract(self.reached, Tally { objects: 1, bytes });
        }
    }
}

/// A set of object numbers, in pages.
#[derive(Default)]
struct NumberSet {
    pages: HashMap<u64, Box<[u64; PAGE_NUMBERS as usize / 64]>>,
}

impl NumberSet {
    /// Adds a number. Returns whether it is new.
    fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number / PAGE_NUMBERS).or_insert_with(|| Box::new([0; PAGE_NUMBERS as usize / 64]));
        let (word, bit) = ((number % PAGE_NUMBERS / 64) as usize, 1 << (number % 64));
        let is_new = page[word] & bit == 0;
        page[word] |= bit;
        is_new
    }

    fn remove(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&(number / PAGE_NUMBERS)) {
            page[(number % PAGE_NUMBERS / 64) as usize] &= !(1 << (number % 64));
        }
    }
}
