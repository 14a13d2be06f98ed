//! Computes the layout of the merged tree: resolves names that several items claim, and names that are a directory on one side
//! and another kind of entry on the other.
//!
//! If one side has a directory and the other another kind of entry, and neither is removed, the name becomes one conflict. Its
//! terms are the entries of the trees, directories with their contents. Other items that would be placed at or below that name
//! stay at their path on the other side, so that no term contains entries that are in none of the trees.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Merge;
use super::candidate::{MergeCandidate, WholeMove};
use super::entry::same;
use super::side::{ancestors, is_directory};
use crate::directory;
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{DirectoryRef, Entry, Node};

/// The paths of all items in the merged tree.
pub(super) struct Layout {
    /// The items at each path, by index.
    pub(super) at: BTreeMap<TreePath, Vec<usize>>,
    /// Paths of ours that items have left.
    pub(super) vacated: BTreeSet<TreePath>,
    /// Names that become one conflict. None is below another.
    pub(super) marks: BTreeSet<TreePath>,
    /// Paths of items that would have been placed at or below those names.
    pub(super) displaced: Vec<TreePath>,
}

impl Layout {
    /// Returns whether a path is part of a conflict between a directory and another kind of entry.
    pub(super) fn is_marked(&self, path: &TreePath) -> bool {
        is_marked(&self.marks, path)
    }
}

fn is_marked(marks: &BTreeSet<TreePath>, path: &TreePath) -> bool {
    !marks.is_empty() && (marks.contains(path) || ancestors(path).any(|above| marks.contains(&above)))
}

impl Merge<'_> {
    pub(super) fn lay_out(&self, candidates: &mut [MergeCandidate], moves: &[WholeMove]) -> Result<Layout> {
        let mut layout =
            Layout { at: BTreeMap::new(), vacated: BTreeSet::new(), marks: BTreeSet::new(), displaced: Vec::new() };
        let mut directories: Vec<TreePath> = moves.iter().map(|one| one.to.clone()).collect();
        for (path, _) in self.theirs.added.iter().filter(|(_, entry)| is_directory(entry)) {
            directories.push(self.apply_our_dir_renames(path)?);
        }
        directories.extend(self.redirected_directories()?);
        layout.marks = self.carried_clashes()?;
        for candidate in candidates.iter_mut() {
            displace(candidate, &layout.marks, &mut layout.displaced);
        }
        // Each round marks at least one more name, so the loop terminates.
        loop {
            fill(&mut layout, candidates);
            let new = self.clashes(&layout, &directories)?;
            if new.is_empty() {
                return Ok(layout);
            }
            layout.marks.extend(new);
            let marks = layout.marks.clone();
            layout.marks.retain(|mark| !ancestors(mark).any(|above| marks.contains(&above)));
            for candidate in candidates.iter_mut() {
                displace(candidate, &layout.marks, &mut layout.displaced);
            }
        }
    }

    /// Returns the new paths of directories that one side renamed without moving them as a whole, and of directories that follow
    /// a directory rename of the other side.
    fn redirected_directories(&self) -> Result<Vec<TreePath>> {
        let mut found = Vec::new();
        for (path, change) in self.theirs.changes.iter().filter(|(_, change)| is_directory(&change.before)) {
            let Some(after) = change.after.as_ref().filter(|after| after.path != *path) else { continue };
            let is_ours = self.ours.path_of(path).is_some_and(|ours| ours == *path);
            if is_ours && !self.theirs.moved.contains_key(path) {
                found.push(self.apply_our_dir_renames(&after.path)?);
            }
        }
        for (path, _) in self.ours.added.iter().filter(|(_, entry)| is_directory(entry)) {
            let to = self.apply_their_dir_renames(path)?;
            if to != *path {
                found.push(to);
            }
        }
        Ok(found)
    }

    /// Returns names that were a directory and are now a conflict with a directory as a term, or the other way round. Their terms
    /// add up unchanged.
    fn carried_clashes(&self) -> Result<BTreeSet<TreePath>> {
        let mut clashes = BTreeSet::new();
        let trees = &self.trees;
        for (path, entry) in self.ours.added.iter().chain(&self.theirs.added) {
            let Node::Conflict(conflict) = &entry.node else { continue };
            if !conflict.terms().iter().flatten().any(is_directory) {
                continue;
            }
            for root in [Some(&trees.ours), Some(&trees.theirs), trees.base.as_ref()].into_iter().flatten() {
                if root.entry_at(path)?.as_ref().is_some_and(is_directory) {
                    clashes.insert(path.clone());
                }
            }
        }
        Ok(clashes)
    }

    /// Returns names that would be a directory and another kind of entry at once.
    fn clashes(&self, layout: &Layout, directories: &[TreePath]) -> Result<BTreeSet<TreePath>> {
        let mut clashes = BTreeSet::new();
        let mut known: HashMap<TreePath, bool> = HashMap::new();
        let mut is_leaf = |path: &TreePath| -> Result<bool> {
            if let Some(known) = known.get(path) {
                return Ok(*known);
            }
            let is_leaf = layout.at.contains_key(path)
                || (!layout.vacated.contains(path) && self.trees.our_leaf(path)?.is_some());
            known.insert(path.clone(), is_leaf);
            Ok(is_leaf)
        };
        for path in directories.iter().filter(|path| !layout.is_marked(path)) {
            for path in std::iter::once(path.clone()).chain(ancestors(path)) {
                if is_leaf(&path)? {
                    clashes.insert(path);
                }
            }
        }
        for path in layout.at.keys() {
            for above in ancestors(path) {
                if is_leaf(&above)? {
                    clashes.insert(above);
                }
            }
            if let Some(Entry { node: Node::Directory(contents), .. }) = self.trees.ours.entry_at(path)?
                && self.has_survivors(layout, path, contents)?
            {
                clashes.insert(path.clone());
            }
        }
        Ok(clashes)
    }

    /// Returns whether any entry of our directory remains after all vacated paths are removed.
    fn has_survivors(&self, layout: &Layout, path: &TreePath, contents: Option<DirectoryRef>) -> Result<bool> {
        let mut open = vec![(path.clone(), contents)];
        let mut count = self.trees.store.path_count();
        while let Some((path, contents)) = open.pop() {
            for item in directory::list(&self.trees.store, contents)? {
                let item = item?;
                count.add(1)?;
                let path = path.join(&item.name);
                match item.entry.node {
                    Node::Directory(_) if self.ours.added.contains_key(&path) => return Ok(true),
                    Node::Directory(contents) => open.push((path, contents)),
                    _ if !layout.vacated.contains(&path) => return Ok(true),
                    _ => {}
                }
            }
        }
        Ok(false)
    }
}

fn fill(layout: &mut Layout, candidates: &[MergeCandidate]) {
    layout.at.clear();
    layout.vacated.clear();
    for (number, candidate) in candidates.iter().enumerate() {
        if candidate.is_there() {
            for path in &candidate.paths {
                layout.at.entry(path.clone()).or_default().push(number);
            }
        }
        if let Some(ours) = &candidate.at.ours
            && !(candidate.is_there() && candidate.paths.contains(&ours.path))
        {
            layout.vacated.insert(ours.path.clone());
        }
    }
}

/// Moves an item from a marked path to the path where the other side changed it. Leaves it without a path if the terms of the
/// conflict contain it unchanged.
fn displace(candidate: &mut MergeCandidate, marks: &BTreeSet<TreePath>, displaced: &mut Vec<TreePath>) {
    let before = candidate.paths.len();
    candidate.paths.retain(|path| !is_marked(marks, path));
    if candidate.paths.len() == before || !candidate.paths.is_empty() {
        return;
    }
    // An item that the other side did not change is contained in the terms.
    let base = candidate.at.base.as_ref().map(|base| &base.entry);
    let places = [&candidate.at.ours, &candidate.at.theirs].into_iter().flatten();
    let changed = places.filter(|place| !same(base, Some(&place.entry)));
    let elsewhere = changed.map(|place| &place.path).find(|path| !is_marked(marks, path));
    if let Some(path) = elsewhere {
        candidate.paths.push(path.clone());
        displaced.push(path.clone());
    }
}
