//! The items of a merge: the versions of an entry on each side, its path and its value in the merged tree.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{self, Merged, Three, same, settle};
use super::side::{Place, Side, ancestors, exchange, is_directory};
use super::{ConflictKind, Merge, Trees};
use crate::directory;
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{Entry, Node, Root};
use crate::store::Store;

/// An item: an entry that is not a directory, tracked across renames on each side.
pub(super) struct Thing {
    pub(super) at: Three<Place>,
    /// The unit that it belongs to, if both sides changed that unit.
    pub(super) unit: Option<usize>,
    /// Its path in the merged tree; two if the sides disagree.
    pub(super) paths: Vec<TreePath>,
    /// Its value in the merged tree.
    pub(super) value: Merged,
    /// The conflict about its path, if there is one.
    pub(super) kind: Option<ConflictKind>,
}

/// A directory that theirs moved as a whole, and that is moved in our tree with its current contents.
pub(super) struct WholeMove {
    /// Its path in the base.
    pub(super) base: TreePath,
    /// Its path in our tree.
    pub(super) from: TreePath,
    /// Its new path.
    pub(super) to: TreePath,
}

impl Thing {
    fn new(base: Option<Place>, ours: Option<Place>, theirs: Option<Place>) -> Self {
        let at = Three { base, ours, theirs };
        Self { at, unit: None, paths: Vec::new(), value: Merged::Entry(None), kind: None }
    }

    /// Returns the versions of the item.
    pub(super) fn entries(&self) -> Three<Entry> {
        let entry = |place: &Option<Place>| place.as_ref().map(|place| place.entry.clone());
        Three { base: entry(&self.at.base), ours: entry(&self.at.ours), theirs: entry(&self.at.theirs) }
    }

    pub(super) fn is_there(&self) -> bool {
        !matches!(self.value, Merged::Entry(None))
    }

    pub(super) fn is_ours_at(&self, path: &TreePath) -> bool {
        self.at.ours.as_ref().is_some_and(|ours| ours.path == *path)
    }
}

/// Returns whether a path of a tree does not exist and has only directories above it.
fn is_vacant(store: &Store, root: &Root, path: &TreePath) -> Result<bool> {
    let mut here = root.directory.clone();
    for name in path.names() {
        let Node::Directory(contents) = here.node else { return Ok(false) };
        match directory::get(store, contents, &name)? {
            Some(entry) => here = entry,
            None => return Ok(true),
        }
    }
    Ok(false)
}

impl Trees {
    /// Returns the entry at a path of ours, unless it is a directory.
    pub(super) fn our_leaf(&self, path: &TreePath) -> Result<Option<Place>> {
        self.ours.leaf_at(path)
    }

    fn their_leaf(&self, path: &TreePath) -> Result<Option<Place>> {
        self.theirs.leaf_at(path)
    }

    fn base_leaf(&self, path: &TreePath) -> Result<Option<Place>> {
        self.base.as_ref().map_or(Ok(None), |base| base.leaf_at(path))
    }
}

impl Merge<'_> {
    /// Returns the directories that theirs moved and that can be moved as a whole in our tree. The others are expanded: each
    /// entry in them becomes an item of its own.
    pub(super) fn whole_moves(&mut self) -> Result<Vec<WholeMove>> {
        let mut moves = Vec::new();
        let moved: Vec<_> = self.theirs.moved.iter().map(|(from, to)| (from.clone(), to.clone())).collect();
        let mut sources: BTreeMap<TreePath, Vec<TreePath>> = BTreeMap::new();
        for (source, target) in &self.theirs.directions {
            sources.entry(target.clone()).or_default().push(source.clone());
        }
        for (base, to) in moved {
            if self.ours.moved.get(&base) == Some(&to) {
                continue;
            }
            let from = match self.ours.fates.get(&base) {
                Some(fate) => fate.after.as_ref().filter(|after| after.path == base).map(|after| after.path.clone()),
                None => self.ours.path_of(&base),
            };
            let to = self.led_by_ours(&to)?;
            let apart = |from: &TreePath| from.below(&to).is_none() && to.below(from).is_none();
            match from.filter(apart) {
                // Another kind of entry replaces a directory above it: its entries are moved one by one first.
                Some(from) if self.is_covered(&from)? => self.theirs.open(&self.trees.store, &base, true)?,
                // A rename of theirs also places another directory of ours at this target: the name is taken before this one
                // arrives.
                Some(_) if self.is_met(&base, &to, &sources)? => self.theirs.open(&self.trees.store, &base, true)?,
                Some(from) if is_vacant(&self.trees.store, &self.trees.ours, &to)? => {
                    moves.push(WholeMove { base, from, to });
                }
                _ => self.theirs.open(&self.trees.store, &base, true)?,
            }
        }
        self.carried = moves.iter().map(|one| one.base.clone()).collect();
        Ok(moves)
    }

    /// Returns whether a directory rename of theirs places another directory of ours at this target. `sources` lists the renamed
    /// directories by target.
    fn is_met(&self, base: &TreePath, to: &TreePath, sources: &BTreeMap<TreePath, Vec<TreePath>>) -> Result<bool> {
        for target in std::iter::once(to.clone()).chain(ancestors(to)).chain([TreePath::root()]) {
            for source in sources.get(&target).into_iter().flatten().filter(|source| *source != base) {
                let Some(path) = exchange(to, &target, source) else { continue };
                if self.trees.ours.entry_at(&path)?.as_ref().is_some_and(is_directory) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether theirs has another kind of entry at a directory above a path of ours.
    fn is_covered(&self, path: &TreePath) -> Result<bool> {
        for above in ancestors(path) {
            if self.trees.their_leaf(&above)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Applies the directory renames of a side to a path, if the target is vacant. `own` is the path of the item itself on that
    /// side, which counts as vacant.
    fn led(&self, side: &Side, other: &Side, path: &TreePath, own: Option<&TreePath>) -> Result<TreePath> {
        let Some((source, target)) = side.direction_of(path) else { return Ok(path.clone()) };
        // A directory that the other side renamed further would form a cycle.
        if other.directions.contains_key(target) {
            return Ok(path.clone());
        }
        let Some(led) = exchange(path, source, target) else { return Ok(path.clone()) };
        let Trees { store, ours, theirs, .. } = &self.trees;
        let (here, there) = if std::ptr::eq(side, &self.ours) { (ours, theirs) } else { (theirs, ours) };
        let is_free = (own == Some(&led) || is_vacant(store, here, &led)?) && is_vacant(store, there, &led)?;
        Ok(if is_free { led } else { path.clone() })
    }

    /// Applies our directory renames to a path of theirs.
    pub(super) fn led_by_ours(&self, path: &TreePath) -> Result<TreePath> {
        self.led(&self.ours, &self.theirs, path, None)
    }

    /// Applies their directory renames to a path of ours.
    pub(super) fn led_by_theirs(&self, path: &TreePath) -> Result<TreePath> {
        self.led_from_theirs(path, None)
    }

    /// Applies their directory renames to a path of ours, for an item that theirs has at `own`.
    fn led_from_theirs(&self, path: &TreePath, own: Option<&TreePath>) -> Result<TreePath> {
        // A directory that is moved as a whole in our tree takes our additions along.
        if self.theirs.direction_of(path).is_some_and(|(source, _)| self.carried.contains(source)) {
            return Ok(path.clone());
        }
        self.led(&self.theirs, &self.ours, path, own)
    }

    /// Returns all items that theirs changed, and those of ours that follow their directory renames. Our tree already contains
    /// the changes that only our side made.
    pub(super) fn things(&self, moves: &[WholeMove]) -> Result<Vec<Thing>> {
        let mut things = Vec::new();
        let units = self.contested_units();
        let in_unit =
            |path: &TreePath| units.iter().find(|(_, paths)| paths.iter().any(|unit| path.below(unit).is_some()));
        for (path, fate) in self.theirs.fates.iter().filter(|(_, fate)| !is_directory(&fate.before)) {
            if in_unit(path).is_some() {
                continue;
            }
            let ours = match self.ours.path_of(path) {
                Some(path) => self.trees.our_leaf(&path)?,
                None => None,
            };
            let base = Place { path: path.clone(), entry: fate.before.clone() };
            things.push(Thing::new(Some(base), ours, fate.after.clone()));
        }
        for (path, entry) in self.theirs.added.iter().filter(|(_, entry)| !is_directory(entry)) {
            if in_unit(path).is_none() {
                things.push(Thing::new(None, None, Some(Place { path: path.clone(), entry: entry.clone() })));
            }
        }
        if !self.theirs.directions.is_empty() {
            self.led_things(moves, &mut things)?;
        }
        for (unit, paths) in &units {
            self.unit_things(*unit, paths, &mut things)?;
        }
        Ok(things)
    }

    /// Adds the items that our side added or moved into directories that theirs renamed.
    fn led_things(&self, moves: &[WholeMove], things: &mut Vec<Thing>) -> Result<()> {
        let is_carried = |path: &TreePath| moves.iter().any(|one| path.below(&one.from).is_some());
        for (base, fate) in &self.ours.fates {
            let Some(ours) = &fate.after else { continue };
            let is_known = self.theirs.fates.contains_key(base) || is_directory(&fate.before) || ours.path == *base;
            if is_known || is_carried(&ours.path) {
                continue;
            }
            let their_path = self.theirs.path_of(base);
            if self.led_from_theirs(&ours.path, their_path.as_ref())? == ours.path {
                continue;
            }
            let theirs = match their_path {
                Some(path) => self.trees.their_leaf(&path)?,
                None => None,
            };
            let base = Place { path: base.clone(), entry: fate.before.clone() };
            things.push(Thing::new(Some(base), Some(ours.clone()), theirs));
        }
        for (path, entry) in self.ours.added.iter().filter(|(_, entry)| !is_directory(entry)) {
            if !is_carried(path) && self.led_by_theirs(path)? != *path {
                things.push(Thing::new(None, Some(Place { path: path.clone(), entry: entry.clone() }), None));
            }
        }
        Ok(())
    }

    /// Returns the units that both sides changed.
    fn contested_units(&self) -> Vec<(usize, &Vec<TreePath>)> {
        let touches = |side: &Side, paths: &[TreePath]| {
            let mut changed = side.fates.keys().chain(side.added.keys());
            changed.any(|path| paths.iter().any(|unit| path.below(unit).is_some()))
        };
        let units = self.options.units.iter().enumerate();
        units.filter(|(_, paths)| touches(&self.ours, paths) && touches(&self.theirs, paths)).collect()
    }

    /// Adds all entries of a unit that either side changed, each at its path.
    fn unit_things(&self, unit: usize, paths: &[TreePath], things: &mut Vec<Thing>) -> Result<()> {
        let mut changed = BTreeSet::new();
        for side in [&self.ours, &self.theirs] {
            let all = side.fates.keys().chain(side.added.keys());
            changed.extend(all.filter(|path| paths.iter().any(|unit| path.below(unit).is_some())).cloned());
        }
        for path in changed {
            let (base, ours, theirs) =
                (self.trees.base_leaf(&path)?, self.trees.our_leaf(&path)?, self.trees.their_leaf(&path)?);
            let mut thing = Thing::new(base, ours, theirs);
            thing.unit = Some(unit);
            things.push(thing);
        }
        Ok(())
    }

    /// Decides the value and the path of each item.
    pub(super) fn decide(&self, things: &mut [Thing]) -> Result<()> {
        for thing in things {
            let three = thing.entries();
            thing.value = match thing.unit {
                Some(_) => unit_value(&three)?,
                None => entry::merge(&three, self.options.time)?,
            };
            self.decide_paths(thing, &three)?;
        }
        Ok(())
    }

    fn decide_paths(&self, thing: &mut Thing, three: &Three<Entry>) -> Result<()> {
        let Three { base, ours, theirs } = &thing.at;
        let paths = match (base, ours, theirs) {
            (_, None, None) => Vec::new(),
            (_, Some(ours), Some(theirs)) if ours.path == theirs.path => vec![ours.path.clone()],
            (None, None, Some(theirs)) => vec![self.led_by_ours(&theirs.path)?],
            (None, Some(ours), None) => vec![self.led_by_theirs(&ours.path)?],
            (None, Some(ours), Some(_)) => vec![ours.path.clone()],
            (Some(base), Some(ours), Some(theirs)) => match self.merged_path(&base.path, &ours.path, &theirs.path)? {
                Some(path) => vec![path],
                None => {
                    // Each path follows the directory renames of the other side, like additions do.
                    let mut paths = vec![self.led_by_theirs(&ours.path)?, self.led_by_ours(&theirs.path)?];
                    paths.dedup();
                    if paths.len() > 1 {
                        thing.kind = Some(ConflictKind::MovedTwice);
                    }
                    paths
                }
            },
            (Some(base), None, Some(theirs)) => {
                let unchanged = same(three.base.as_ref(), three.theirs.as_ref());
                if unchanged && theirs.path != base.path && !is_with_directory(&self.theirs, &self.ours, base, theirs) {
                    thing.value =
                        Merged::Entry(Some(Entry { mtime: self.options.time, ..entry::plain(&theirs.entry) }));
                    thing.kind = Some(ConflictKind::MovedRemoved);
                }
                match theirs.path == base.path {
                    true => vec![theirs.path.clone()],
                    false => vec![self.led_by_ours(&theirs.path)?],
                }
            }
            (Some(base), Some(ours), None) => {
                let unchanged = same(three.base.as_ref(), three.ours.as_ref());
                if unchanged && ours.path != base.path && !is_with_directory(&self.ours, &self.theirs, base, ours) {
                    thing.value = Merged::Entry(Some(entry::plain(&ours.entry)));
                    thing.kind = Some(ConflictKind::MovedRemoved);
                }
                match ours.path == base.path {
                    true => vec![ours.path.clone()],
                    false => vec![self.led_by_theirs(&ours.path)?],
                }
            }
        };
        thing.paths = paths;
        Ok(())
    }

    /// Returns the path of an item that exists on all sides, or `None` if both sides moved it to different paths.
    fn merged_path(&self, base: &TreePath, ours: &TreePath, theirs: &TreePath) -> Result<Option<TreePath>> {
        if ours == base {
            return self.led(&self.ours, &self.theirs, theirs, Some(ours)).map(Some);
        }
        if theirs == base {
            return self.led_from_theirs(ours, Some(theirs)).map(Some);
        }
        // An item that only moved with its directory follows the directory, even if the other side renamed it.
        let (we_carried, they_carried) = (self.ours.direct(base) == *ours, self.theirs.direct(base) == *theirs);
        let (by_ours, by_theirs) = (self.led_by_ours(theirs)?, self.led_by_theirs(ours)?);
        Ok(match (we_carried, they_carried) {
            (true, false) => Some(by_ours),
            (false, true) => Some(by_theirs),
            (true, true) if by_ours != *theirs => Some(by_ours),
            (true, true) if by_theirs != *ours => Some(by_theirs),
            _ => None,
        })
    }
}

/// Returns whether an item moved only because its directory moved, and the other side still has that directory.
fn is_with_directory(side: &Side, other: &Side, base: &Place, now: &Place) -> bool {
    side.direct(&base.path) == now.path
        && side.direction_of(&base.path).is_some_and(|(source, _)| !other.is_removed(source))
}

/// Returns the value of an entry of a contested unit: both versions if there are two, otherwise the existing one.
fn unit_value(three: &Three<Entry>) -> Result<Merged> {
    let Three { base, ours, theirs } = three;
    let (Some(our), Some(their)) = (ours, theirs) else {
        let there = ours.as_ref().or(theirs.as_ref());
        return Ok(Merged::Entry(there.map(entry::plain)));
    };
    if same(Some(our), Some(their)) {
        return Ok(Merged::Entry(Some(entry::plain(our))));
    }
    let mut terms = entry::terms_of(ours.as_ref());
    terms.extend(entry::terms_of(base.as_ref()));
    terms.extend(entry::terms_of(theirs.as_ref()));
    if let Merged::Conflict(conflict) = Merged::from(settle(terms)?) {
        return Ok(Merged::Conflict(conflict));
    }
    // Only one side changed it, but the entries of a unit must stay together.
    let mut terms = entry::terms_of(ours.as_ref());
    terms.push(None);
    terms.extend(entry::terms_of(theirs.as_ref()));
    settle(terms).map(Merged::from)
}
