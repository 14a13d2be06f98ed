//! What each of very many names keeps, in one walk over the history instead of a reading of the store for every 63 of them.
//!
//! Every snapshot hangs below its first parent. The walk goes down that forest and marks what each snapshot adds to what those above
//! it have; on the way back it takes these marks off again. So at a snapshot the marks are all that it leads to, and their sum is what
//! a name that points at it keeps. What was marked at a snapshot belongs to the names below it: to one of them, or to several.
//! An object is looked at once for each branch that brought it.

use std::collections::HashMap;
use std::ops::ControlFlow;

use amalgam_engine::object::Snapshot;
use amalgam_engine::{Error, ObjectId, ObjectKind, Result, SnapshotId, Tally};

use super::{Group, Measure, PAGE, STRETCH, Sums, add, without};

/// Snapshots between two questions whether to go on.
const WATCH_EVERY: u64 = 64;
/// A group with more roots is walked by itself: they are those of many names.
const ROOTS_MAX: usize = 16;
/// An owner: nobody, one group by its number and one, or several.
const NOBODY: u64 = 0;
const SEVERAL: u64 = u64::MAX;

/// Measures what each group keeps. The owners of all objects are known afterwards. Returns nothing when it was ended.
pub(super) fn measure_many(
    measure: &mut Measure<'_>,
    groups: &[Group],
    watch: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
) -> Result<Option<Vec<Sums>>> {
    let forest = Forest::plant(measure, groups)?;
    let total = (forest.places.len() + forest.loose.len()) as u64;
    let (marked, sums) = (Marked::default(), vec![Sums::default(); groups.len()]);
    let mut walk = Walk { measure, marked, trail: Vec::new(), reached: Tally::default(), sums };
    let (mut done, mut open) = (0, Vec::new());
    for top in &forest.tops {
        open.push((*top, None));
        while let Some((place, trail)) = open.pop() {
            if let Some(trail) = trail {
                walk.go_back(trail);
                continue;
            }
            if done % WATCH_EVERY == 0 && watch(done, total).is_break() {
                return Ok(None);
            }
            done += 1;
            let here = &forest.places[place];
            open.push((place, Some(walk.trail.len())));
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
    walk.mark_what_is_left()?;
    Ok(Some(walk.sums))
}

/// All snapshots that groups lead to, each below its first parent.
struct Forest {
    places: Vec<Place>,
    tops: Vec<usize>,
    /// Groups that hang on no snapshot, or on very many.
    loose: Vec<usize>,
}

/// A snapshot of the forest.
struct Place {
    id: SnapshotId,
    parents: Vec<SnapshotId>,
    below: Vec<usize>,
    /// Groups whose first root it is.
    groups: Vec<usize>,
    /// To whom what it adds belongs, as far as groups hang on it and on what is below it.
    owner: u64,
}

impl Forest {
    fn plant(measure: &Measure<'_>, groups: &[Group]) -> Result<Self> {
        let (mut forest, mut known) =
            (Self { places: Vec::new(), tops: Vec::new(), loose: Vec::new() }, HashMap::new());
        for (number, group) in groups.iter().enumerate() {
            let mut first = None;
            for root in group.roots.iter().filter(|root| root.kind == ObjectKind::Snapshot) {
                let place = forest.place(measure, &mut known, SnapshotId::from_bytes(root.hash))?;
                first = first.or(place);
            }
            match first.filter(|_| group.roots.len() <= ROOTS_MAX) {
                Some(place) => {
                    let owner = &mut forest.places[place].owner;
                    *owner = joined(*owner, group.owner(number));
                    forest.places[place].groups.push(number);
                }
                None => forest.loose.push(number),
            }
        }
        let mut above = Vec::new();
        while above.len() < forest.places.len() {
            let mut first = None;
            for parent in std::mem::take(&mut forest.places[above.len()].parents) {
                let place = forest.place(measure, &mut known, parent)?;
                first = first.or(place);
            }
            above.push(first);
        }
        for (place, above) in above.iter().enumerate() {
            match above {
                Some(above) => forest.places[*above].below.push(place),
                None => forest.tops.push(place),
            }
        }
        forest.join_owners(&above);
        Ok(forest)
    }

    /// The place of a snapshot; nothing if its record is gone.
    fn place(
        &mut self,
        measure: &Measure<'_>,
        known: &mut HashMap<SnapshotId, usize>,
        id: SnapshotId,
    ) -> Result<Option<usize>> {
        if let Some(place) = known.get(&id) {
            return Ok(Some(*place));
        }
        let Some(canonical) = measure.rows.read(id.object())? else { return Ok(None) };
        let snapshot = Snapshot::decode(&canonical).map_err(|source| Error::Malformed { id: id.object(), source })?;
        let place = self.places.len();
        known.insert(id, place);
        let (below, groups) = (Vec::new(), Vec::new());
        self.places.push(Place { id, parents: snapshot.parents, below, groups, owner: NOBODY });
        Ok(Some(place))
    }

    /// Hands owners up, from those below to those above.
    fn join_owners(&mut self, above: &[Option<usize>]) {
        let mut order = self.tops.clone();
        let mut at = 0;
        while at < order.len() {
            order.extend_from_slice(&self.places[order[at]].below);
            at += 1;
        }
        for place in order.into_iter().rev() {
            if let Some(above) = above[place] {
                self.places[above].owner = joined(self.places[above].owner, self.places[place].owner);
            }
        }
    }
}

impl Group {
    /// As an owner: what several names keep together belongs to several.
    fn owner(&self, number: usize) -> u64 {
        if self.lines.len() == 1 { number as u64 + 1 } else { SEVERAL }
    }
}

fn joined(one: u64, other: u64) -> u64 {
    match (one, other) {
        (NOBODY, owner) | (owner, NOBODY) => owner,
        (one, other) if one == other => one,
        _ => SEVERAL,
    }
}

/// The walk: what is marked, in which order, and what it comes to.
struct Walk<'w, 'a> {
    measure: &'w mut Measure<'a>,
    marked: Marked,
    trail: Vec<(u64, u64)>,
    reached: Tally,
    sums: Vec<Sums>,
}

impl Walk<'_, '_> {
    /// Marks what these lead to and is not marked, and gives it an owner.
    fn mark(&mut self, mut open: Vec<ObjectId>, owner: u64) -> Result<()> {
        let mut next = Vec::new();
        while !open.is_empty() {
            let page = open.split_off(open.len().saturating_sub(PAGE));
            for (id, row) in page.iter().zip(self.measure.rows.look_up(&page)?) {
                // What is not there was dropped on thinning, was purged, or has gone meanwhile.
                let Some(row) = row else { continue };
                if !self.marked.insert(row.number) {
                    continue;
                }
                self.trail.push((row.number, row.stored_bytes));
                add(&mut self.reached, row.stored_bytes);
                self.own(row.number, row.stored_bytes, owner);
                if matches!(id.kind, ObjectKind::Chunk | ObjectKind::Xattrs) {
                    continue;
                }
                match self.measure.rows.read(*id)? {
                    Some(canonical) => self.measure.lead_on(*id, &canonical, owner, &mut next)?,
                    None if self.measure.rows.look_up(&[*id])?[0].is_none() => {}
                    None => return Err(Error::Missing { id: *id }),
                }
                open.extend(next.drain(..).map(|(id, _)| id));
            }
        }
        Ok(())
    }

    fn own(&mut self, number: u64, bytes: u64, owner: u64) {
        let before = self.measure.owners.of(number);
        let after = joined(before, owner);
        if before == after {
            return;
        }
        if before == NOBODY {
            add(&mut self.measure.alive, bytes);
        } else if before != SEVERAL {
            let private = &mut self.sums[before as usize - 1].private;
            *private = without(*private, Tally { objects: 1, bytes });
        }
        if after != SEVERAL {
            add(&mut self.sums[after as usize - 1].private, bytes);
        }
        self.measure.owners.set(number, after);
    }

    /// Measures a group where its first snapshot is marked, and takes the marks of what else it keeps off again.
    fn measure_group(&mut self, number: usize, group: &Group) -> Result<()> {
        let trail = self.trail.len();
        self.mark(group.roots.clone(), group.owner(number))?;
        self.sums[number].reached = self.reached;
        self.go_back(trail);
        Ok(())
    }

    /// Lean trees of snapshots that no name leads to: the next collection forgets them.
    fn mark_what_is_left(&mut self) -> Result<()> {
        let roots: Vec<_> = self.measure.lean.values().flatten().copied().collect();
        for page in roots.chunks(PAGE) {
            for (root, row) in page.iter().zip(self.measure.rows.look_up(page)?) {
                if row.is_some_and(|row| self.measure.owners.of(row.number) == NOBODY) {
                    self.mark(vec![*root], SEVERAL)?;
                }
            }
        }
        Ok(())
    }

    fn go_back(&mut self, trail: usize) {
        for (number, bytes) in self.trail.drain(trail..) {
            self.marked.remove(number);
            self.reached = without(self.reached, Tally { objects: 1, bytes });
        }
    }
}

/// A set of numbers, in pages.
#[derive(Default)]
struct Marked {
    pages: HashMap<u64, Box<[u64; STRETCH as usize / 64]>>,
}

impl Marked {
    /// Whether it was not in it.
    fn insert(&mut self, number: u64) -> bool {
        let page = self.pages.entry(number / STRETCH).or_insert_with(|| Box::new([0; STRETCH as usize / 64]));
        let (word, bit) = ((number % STRETCH / 64) as usize, 1 << (number % 64));
        let is_new = page[word] & bit == 0;
        page[word] |= bit;
        is_new
    }

    fn remove(&mut self, number: u64) {
        if let Some(page) = self.pages.get_mut(&(number / STRETCH)) {
            page[(number % STRETCH / 64) as usize] &= !(1 << (number % 64));
        }
    }
}
