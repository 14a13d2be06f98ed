//! The items of a merge: the versions of an entry on each side, its path and its value in the merged tree.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{self, Merged, Three, same, settle};
use super::side::{PathEntry, Side, ancestors, exchange, is_directory};
use super::{ConflictKind, Merge, Trees};
use crate::directory;
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{Entry, Node, Root};
use crate::store::Store;

/// An item: an entry that is not a directory, tracked across renames on each side.
pub(super) struct MergeCandidate {
    pub(super) at: Three<PathEntry>,
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

impl MergeCandidate {
    fn new(base: Option<PathEntry>, ours: Option<PathEntry>, theirs: Option<PathEntry>) -> Self {
        let at = Three { base, ours, theirs };
        Self { at, unit: None, paths: Vec::new(), value: Merged::Entry(None), kind: None }
    }

    /// Returns the versions of the item.
    pub(super) fn entries(&self) -> Three<Entry> {
        let entry = |place: &Option<PathEntry>| place.as_ref().map(|place| place.entry.clone());
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
    pub(super) fn our_leaf(&self, path: &TreePath) -> Result<Option<PathEntry>> {
        self.ours.leaf_at(path)
    }

    fn their_leaf(&self, path: &TreePath) -> Result<Option<PathEntry>> {
        self.theirs.leaf_at(path)
    }

    fn base_leaf(&self, path: &TreePath) -> Result<Option<PathEntry>> {
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
        for (source, target) in &self.theirs.dir_renames {
            sources.entry(target.clone()).or_default().push(source.clone());
        }
        for (base, to) in moved {
            if self.ours.moved.get(&base) == Some(&to) {
                continue;
            }
            let from = match self.ours.changes.get(&base) {
                Some(change) => {
                    change.after.as_ref().filter(|after| after.path == base).map(|after| after.path.clone())
                }
                None => self.ours.path_of(&base),
            };
            let to = match self.apply_our_dir_renames(&to)? {
                renamed if renamed != to && !self.follows_whole(&to, &renamed) => to,
                renamed => renamed,
            };
            let apart = |from: &TreePath| from.below(&to).is_none() && to.below(from).is_none();
            match from.filter(apart) {
                // Another kind of entry replaces a directory above it: its entries are moved one by one first.
                Some(from) if self.is_covered(&from)? => self.theirs.open(&self.trees.store, &base, true)?,
                Some(from) if self.carries_refused(&from, &to) => self.theirs.open(&self.trees.store, &base, true)?,
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

    /// Returns whether a directory may follow a directory rename with everything below it.
    fn follows_whole(&self, from: &TreePath, to: &TreePath) -> bool {
        self.options.moves.as_ref().is_none_or(|moves| moves.admits_below(from, to))
    }

    /// Returns whether a directory that is moved as a whole would take an entry of ours along that may not follow it.
    fn carries_refused(&self, from: &TreePath, to: &TreePath) -> bool {
        let Some(moves) = &self.options.moves else { return false };
        let is_refused =
            |path: &TreePath| exchange(path, from, to).is_some_and(|renamed| !moves.admits(path, &renamed));
        let is_whole_refused =
            |path: &TreePath| exchange(path, from, to).is_some_and(|renamed| !moves.admits_below(path, &renamed));
        let changed = self.ours.changes.values().filter_map(|change| change.after.as_ref());
        self.ours.added.keys().chain(changed.map(|after| &after.path)).any(is_refused)
            || self.ours.moved.values().any(is_whole_refused)
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
    fn apply_dir_renames(
        &self,
        side: &Side,
        other: &Side,
        path: &TreePath,
        own: Option<&TreePath>,
    ) -> Result<TreePath> {
        let Some((source, target)) = side.dir_rename_of(path) else { return Ok(path.clone()) };
        // A directory that the other side renamed further would form a cycle.
        if other.dir_renames.contains_key(target) {
            return Ok(path.clone());
        }
        let Some(renamed) = exchange(path, source, target) else { return Ok(path.clone()) };
        if self.options.moves.as_ref().is_some_and(|moves| !moves.admits(path, &renamed)) {
            return Ok(path.clone());
        }
        let Trees { store, ours, theirs, .. } = &self.trees;
        let (here, there) = if std::ptr::eq(side, &self.ours) { (ours, theirs) } else { (theirs, ours) };
        let is_free =
            (own == Some(&renamed) || is_vacant(store, here, &renamed)?) && is_vacant(store, there, &renamed)?;
        Ok(if is_free { renamed } else { path.clone() })
    }

    /// Applies our directory renames to a path of theirs.
    pub(super) fn apply_our_dir_renames(&self, path: &TreePath) -> Result<TreePath> {
        self.apply_dir_renames(&self.ours, &self.theirs, path, None)
    }

    /// Applies their directory renames to a path of ours.
    pub(super) fn apply_their_dir_renames(&self, path: &TreePath) -> Result<TreePath> {
        self.apply_their_dir_renames_to(path, None)
    }

    /// Applies their directory renames to a path of ours, for an item that theirs has at `own`.
    fn apply_their_dir_renames_to(&self, path: &TreePath, own: Option<&TreePath>) -> Result<TreePath> {
        // A directory that is moved as a whole in our tree takes our additions along.
        if self.theirs.dir_rename_of(path).is_some_and(|(source, _)| self.carried.contains(source)) {
            return Ok(path.clone());
        }
        self.apply_dir_renames(&self.theirs, &self.ours, path, own)
    }

    /// Returns all items that theirs changed, and those of ours that follow their directory renames. Our tree already contains
    /// the changes that only our side made.
    pub(super) fn candidates(&self, moves: &[WholeMove]) -> Result<Vec<MergeCandidate>> {
        let mut candidates = Vec::new();
        let contested = self.contested_units();
        for (path, change) in self.theirs.changes.iter().filter(|(_, change)| !is_directory(&change.before)) {
            if self.unit_of(path, &contested).is_some() {
                continue;
            }
            let ours = match self.ours.path_of(path) {
                Some(path) => self.trees.our_leaf(&path)?,
                None => None,
            };
            let base = PathEntry { path: path.clone(), entry: change.before.clone() };
            candidates.push(MergeCandidate::new(Some(base), ours, change.after.clone()));
        }
        for (path, entry) in self.theirs.added.iter().filter(|(_, entry)| !is_directory(entry)) {
            if self.unit_of(path, &contested).is_none() {
                candidates.push(MergeCandidate::new(
                    None,
                    None,
                    Some(PathEntry { path: path.clone(), entry: entry.clone() }),
                ));
            }
        }
        if !self.theirs.dir_renames.is_empty() {
            self.redirected_candidates(moves, &mut candidates)?;
        }
        self.unit_candidates(&contested, &mut candidates)?;
        Ok(candidates)
    }

    /// Adds the items that our side added or moved into directories that theirs renamed.
    fn redirected_candidates(&self, moves: &[WholeMove], candidates: &mut Vec<MergeCandidate>) -> Result<()> {
        let is_carried = |path: &TreePath| moves.iter().any(|one| path.below(&one.from).is_some());
        for (base, change) in &self.ours.changes {
            let Some(ours) = &change.after else { continue };
            let is_known = self.theirs.changes.contains_key(base) || is_directory(&change.before) || ours.path == *base;
            if is_known || is_carried(&ours.path) {
                continue;
            }
            let their_path = self.theirs.path_of(base);
            if self.apply_their_dir_renames_to(&ours.path, their_path.as_ref())? == ours.path {
                continue;
            }
            let theirs = match their_path {
                Some(path) => self.trees.their_leaf(&path)?,
                None => None,
            };
            let base = PathEntry { path: base.clone(), entry: change.before.clone() };
            candidates.push(MergeCandidate::new(Some(base), Some(ours.clone()), theirs));
        }
        for (path, entry) in self.ours.added.iter().filter(|(_, entry)| !is_directory(entry)) {
            if !is_carried(path) && self.apply_their_dir_renames(path)? != *path {
                candidates.push(MergeCandidate::new(
                    None,
                    Some(PathEntry { path: path.clone(), entry: entry.clone() }),
                    None,
                ));
            }
        }
        Ok(())
    }

    /// Returns the units that both sides changed.
    fn contested_units(&self) -> BTreeSet<usize> {
        let touched = |side: &Side| self.units.touched_by(side.changes.keys().chain(side.added.keys()));
        &touched(&self.ours) & &touched(&self.theirs)
    }

    /// Returns the contested unit of a path; the first, if it belongs to several.
    fn unit_of(&self, path: &TreePath, contested: &BTreeSet<usize>) -> Option<usize> {
        if contested.is_empty() {
            return None;
        }
        self.units.of(path).filter(|unit| contested.contains(unit)).min()
    }

    /// Adds all entries of contested units that either side changed, each at its path.
    fn unit_candidates(&self, contested: &BTreeSet<usize>, candidates: &mut Vec<MergeCandidate>) -> Result<()> {
        let mut changed = BTreeSet::new();
        for side in [&self.ours, &self.theirs] {
            let all = side.changes.keys().chain(side.added.keys());
            changed.extend(all.filter_map(|path| Some((self.unit_of(path, contested)?, path))));
        }
        for (unit, path) in changed {
            let (base, ours, theirs) =
                (self.trees.base_leaf(path)?, self.trees.our_leaf(path)?, self.trees.their_leaf(path)?);
            let mut candidate = MergeCandidate::new(base, ours, theirs);
            candidate.unit = Some(unit);
            candidates.push(candidate);
        }
        Ok(())
    }

    /// Decides the value and the path of each item.
    pub(super) fn decide(&self, candidates: &mut [MergeCandidate]) -> Result<()> {
        for candidate in candidates {
            let three = candidate.entries();
            candidate.value = match candidate.unit {
                Some(_) => unit_value(&three)?,
                None => entry::merge(&three, self.options.time)?,
            };
            self.decide_paths(candidate, &three)?;
        }
        Ok(())
    }

    fn decide_paths(&self, candidate: &mut MergeCandidate, three: &Three<Entry>) -> Result<()> {
        let Three { base, ours, theirs } = &candidate.at;
        let paths = match (base, ours, theirs) {
            (_, None, None) => Vec::new(),
            (_, Some(ours), Some(theirs)) if ours.path == theirs.path => vec![ours.path.clone()],
            (None, None, Some(theirs)) => vec![self.apply_our_dir_renames(&theirs.path)?],
            (None, Some(ours), None) => vec![self.apply_their_dir_renames(&ours.path)?],
            (None, Some(ours), Some(_)) => vec![ours.path.clone()],
            (Some(base), Some(ours), Some(theirs)) => match self.merged_path(&base.path, &ours.path, &theirs.path)? {
                Some(path) => vec![path],
                None => {
                    // Each path follows the directory renames of the other side, like additions do.
                    let mut paths =
                        vec![self.apply_their_dir_renames(&ours.path)?, self.apply_our_dir_renames(&theirs.path)?];
                    paths.dedup();
                    if paths.len() > 1 {
                        candidate.kind = Some(ConflictKind::MovedTwice);
                    }
                    paths
                }
            },
            (Some(base), None, Some(theirs)) => {
                let unchanged = same(three.base.as_ref(), three.theirs.as_ref());
                if unchanged && theirs.path != base.path && !is_with_directory(&self.theirs, &self.ours, base, theirs) {
                    candidate.value =
                        Merged::Entry(Some(Entry { mtime: self.options.time, ..entry::plain(&theirs.entry) }));
                    candidate.kind = Some(ConflictKind::MovedRemoved);
                }
                match theirs.path == base.path {
                    true => vec![theirs.path.clone()],
                    false => vec![self.apply_our_dir_renames(&theirs.path)?],
                }
            }
            (Some(base), Some(ours), None) => {
                let unchanged = same(three.base.as_ref(), three.ours.as_ref());
                if unchanged && ours.path != base.path && !is_with_directory(&self.ours, &self.theirs, base, ours) {
                    candidate.value = Merged::Entry(Some(entry::plain(&ours.entry)));
                    candidate.kind = Some(ConflictKind::MovedRemoved);
                }
                match ours.path == base.path {
                    true => vec![ours.path.clone()],
                    false => vec![self.apply_their_dir_renames(&ours.path)?],
                }
            }
        };
        candidate.paths = paths;
        Ok(())
    }

    /// Returns the path of an item that exists on all sides, or `None` if both sides moved it to different paths.
    fn merged_path(&self, base: &TreePath, ours: &TreePath, theirs: &TreePath) -> Result<Option<TreePath>> {
        if ours == base {
            return self.apply_dir_renames(&self.ours, &self.theirs, theirs, Some(ours)).map(Some);
        }
        if theirs == base {
            return self.apply_their_dir_renames_to(ours, Some(theirs)).map(Some);
        }
        // An item that only moved with its directory follows the directory, even if the other side renamed it.
        let (we_carried, they_carried) =
            (self.ours.apply_dir_renames(base) == *ours, self.theirs.apply_dir_renames(base) == *theirs);
        let (by_ours, by_theirs) = (self.apply_our_dir_renames(theirs)?, self.apply_their_dir_renames(ours)?);
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
fn is_with_directory(side: &Side, other: &Side, base: &PathEntry, now: &PathEntry) -> bool {
    side.apply_dir_renames(&base.path) == now.path
        && side.dir_rename_of(&base.path).is_some_and(|(source, _)| !other.is_removed(source))
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
