//! The changes of one side relative to the base: the change of each path, additions, and moved directories.

use std::collections::BTreeMap;

use super::moves::AdmitMove;
use crate::diff::{Change, DiffOptions, Kinds, What, find_renames};
use crate::directory;
use crate::error::Result;
use crate::id::RootId;
use crate::insight::{RenameOptions, RenameSearch, changes_with_renames};
use crate::name::TreePath;
use crate::object::{Entry, Node};
use crate::store::Store;

/// A path with its entry.
#[derive(Clone, Debug)]
pub(super) struct PathEntry {
    pub(super) path: TreePath,
    pub(super) entry: Entry,
}

/// The new path and entry of a path of the base.
#[derive(Clone, Debug)]
pub(super) struct SideChange {
    pub(super) before: Entry,
    /// `None` if it was removed. A directory always stays a directory, and any other entry never becomes one.
    pub(super) after: Option<PathEntry>,
}

/// All differences between the base and one side.
#[derive(Default)]
pub(super) struct Side {
    /// By path of the base. Entries below a directory that moved as a whole are not listed.
    pub(super) changes: BTreeMap<TreePath, SideChange>,
    /// Added entries, by path.
    pub(super) added: BTreeMap<TreePath, Entry>,
    /// Directories that moved with all their contents.
    pub(super) moved: BTreeMap<TreePath, TreePath>,
    /// Detected directory renames, which apply to names that the other side added to a directory: directories that moved as a
    /// whole, and removed directories most of whose files moved to one other directory.
    pub(super) dir_renames: BTreeMap<TreePath, TreePath>,
}

pub(super) fn is_directory(entry: &Entry) -> bool {
    matches!(entry.node, Node::Directory(_))
}

/// Computes the changes of both sides. Searches for similar renames only if the other side changed an entry that could follow
/// them. A rename that no change of the other side may follow counts as a removal and an addition.
pub(super) fn two_sides(
    store: &Store,
    base: Option<RootId>,
    [ours, theirs]: [RootId; 2],
    options: &RenameOptions,
    is_fixed: &dyn Fn(&TreePath) -> bool,
    moves: Option<&dyn AdmitMove>,
) -> Result<([Side; 2], [RenameSearch; 2])> {
    let exact = |side| -> Result<Side> {
        Ok(Side::new(find_renames(store, base, Some(side), DiffOptions::default(), Kinds::Apart)?, is_fixed))
    };
    let mut sides = [exact(ours)?, exact(theirs)?];
    let mut searches = [RenameSearch::Off; 2];
    if options.percent_min < 100 {
        let wanted = [sides[0].could_be_followed(&sides[1]), sides[1].could_be_followed(&sides[0])];
        for (at, root) in [ours, theirs].into_iter().enumerate() {
            if wanted[at] {
                let (found, search) = changes_with_renames(store, base, Some(root), options)?;
                sides[at] = Side::new(found, is_fixed);
                searches[at] = search;
            }
        }
    }
    for side in &mut sides {
        let fixed: Vec<_> = side.moved.iter().filter(|(from, to)| is_fixed(from) || is_fixed(to)).collect();
        let fixed: Vec<_> = fixed.into_iter().map(|(from, _)| from.clone()).collect();
        for from in fixed {
            side.open(store, &from, false)?;
        }
        side.find_dir_renames();
        if let Some(moves) = moves {
            side.split_refused(store, moves)?;
        }
    }
    // A directory that both sides renamed applies to neither: each side's own placement counts.
    let both: Vec<_> =
        sides[0].dir_renames.keys().filter(|from| sides[1].dir_renames.contains_key(*from)).cloned().collect();
    for from in both {
        sides[0].dir_renames.remove(&from);
        sides[1].dir_renames.remove(&from);
    }
    Ok((sides, searches))
}

impl Side {
    fn new(changes: Vec<Change>, is_fixed: &dyn Fn(&TreePath) -> bool) -> Self {
        let mut side = Self::default();
        for Change { path, what, before, after, .. } in changes {
            match (what, before, after) {
                // Entries of a unit stay at their paths: a rename counts as a removal and an addition.
                (What::Renamed { from }, Some(before), Some(after))
                    if !is_directory(&before) && (is_fixed(&from) || is_fixed(&path)) =>
                {
                    side.changes.insert(from, SideChange { before, after: None });
                    side.added.insert(path, after);
                }
                (What::Renamed { from }, Some(before), Some(after)) => {
                    if is_directory(&before) {
                        side.moved.insert(from.clone(), path.clone());
                    }
                    side.changes.insert(from, SideChange { before, after: Some(PathEntry { path, entry: after }) });
                }
                (_, Some(before), Some(after)) if is_directory(&before) == is_directory(&after) => {
                    let after = Some(PathEntry { path: path.clone(), entry: after });
                    side.changes.insert(path, SideChange { before, after });
                }
                (_, before, after) => {
                    if let Some(before) = before {
                        side.changes.insert(path.clone(), SideChange { before, after: None });
                    }
                    if let Some(after) = after {
                        side.added.insert(path, after);
                    }
                }
            }
        }
        side
    }

    /// Returns the path of a base entry on this side, or `None` if it was removed.
    pub(super) fn path_of(&self, base: &TreePath) -> Option<TreePath> {
        match self.changes.get(base) {
            Some(change) => change.after.as_ref().map(|after| after.path.clone()),
            None => Some(follow(&self.moved, base).unwrap_or_else(|| base.clone())),
        }
    }

    /// Applies the directory renames of this side to a path. Returns the path itself if none applies.
    pub(super) fn apply_dir_renames(&self, path: &TreePath) -> TreePath {
        follow(&self.dir_renames, path).unwrap_or_else(|| path.clone())
    }

    /// Returns the directory rename that applies to a path.
    pub(super) fn dir_rename_of(&self, path: &TreePath) -> Option<(&TreePath, &TreePath)> {
        ancestors(path).find_map(|above| self.dir_renames.get_key_value(&above))
    }

    /// Returns whether a path of the base was removed and not found elsewhere.
    pub(super) fn is_removed(&self, base: &TreePath) -> bool {
        self.changes.get(base).is_some_and(|change| change.after.is_none())
    }

    /// Returns whether a rename found on this side would affect a change of the other side.
    fn could_be_followed(&self, other: &Self) -> bool {
        let is_file = |entry: &Entry| matches!(entry.node, Node::File { .. });
        let moved_to = other.changes.values().filter_map(|change| change.after.as_ref()).map(|after| &after.path);
        let mut touched = other.changes.keys().chain(other.added.keys()).chain(moved_to);
        self.added.values().any(is_file)
            && touched.any(|path| self.is_removed(path) || ancestors(path).any(|above| self.is_removed(&above)))
    }

    /// Lists the contents of a directory that moved as a whole, entry by entry: as moved, or as removed and added.
    pub(super) fn open(&mut self, store: &Store, from: &TreePath, as_moved: bool) -> Result<()> {
        if self.moved.remove(from).is_none() {
            return Ok(());
        }
        let Some(SideChange { before, after: Some(to) }) = self.changes.get(from).cloned() else { return Ok(()) };
        let mut open = vec![(from.clone(), before, to)];
        let mut count = store.held_path_count();
        while let Some((from, before, to)) = open.pop() {
            if let Node::Directory(contents) = to.entry.node {
                for item in directory::list(store, contents)? {
                    let item = item?;
                    count.add(1)?;
                    let place = PathEntry { path: to.path.join(&item.name), entry: item.entry.clone() };
                    open.push((from.join(&item.name), item.entry, place));
                }
            }
            if as_moved {
                self.changes.insert(from, SideChange { before, after: Some(to) });
            } else {
                self.changes.insert(from, SideChange { before, after: None });
                self.added.insert(to.path, to.entry);
            }
        }
        Ok(())
    }

    /// Turns renames of entries to paths where changes of the other side may not follow them into removals and additions.
    /// Directory renames stay: each entry that would follow one is asked about by itself.
    fn split_refused(&mut self, store: &Store, moves: &dyn AdmitMove) -> Result<()> {
        let moved = self.moved.iter().filter(|(from, to)| !moves.admits_below(from, to));
        let moved: Vec<_> = moved.map(|(from, _)| from.clone()).collect();
        for from in &moved {
            self.open(store, from, true)?;
        }
        for (from, change) in &mut self.changes {
            let is_refused = |after: &mut PathEntry| after.path != *from && !moves.admits(from, &after.path);
            if !is_directory(&change.before)
                && let Some(PathEntry { path, entry }) = change.after.take_if(is_refused)
            {
                self.added.insert(path, entry);
            }
        }
        Ok(())
    }

    fn find_dir_renames(&mut self) {
        let mut counts: BTreeMap<TreePath, BTreeMap<TreePath, usize>> = BTreeMap::new();
        for (from, change) in &self.changes {
            let Some(after) = &change.after else { continue };
            if after.path == *from {
                continue;
            }
            let mut pair = from.split_last().zip(after.path.split_last());
            // A directory that moved under another name gives no evidence about its old parent.
            if is_directory(&change.before) {
                pair = pair.filter(|((_, from), (_, to))| from == to);
            }
            while let Some(((source, _), (target, _))) = pair {
                if source == target || !self.is_removed(&source) {
                    break;
                }
                *counts.entry(source.clone()).or_default().entry(target.clone()).or_default() += 1;
                // A move that keeps the name is evidence for a rename of the parent directory as well.
                pair = source.split_last().zip(target.split_last()).filter(|((_, from), (_, to))| from == to);
            }
        }
        for (source, targets) in counts {
            let most = targets.values().copied().max().unwrap_or_default();
            let mut best = targets.into_iter().filter(|(_, count)| *count == most);
            if let (Some((target, _)), None) = (best.next(), best.next()) {
                self.dir_renames.insert(source, target);
            }
        }
        self.dir_renames.extend(self.moved.iter().map(|(from, to)| (from.clone(), to.clone())));
    }
}

/// Returns the directories above a path, deepest first, without the root.
pub(super) fn ancestors(path: &TreePath) -> impl Iterator<Item = TreePath> {
    let above = |path: &TreePath| path.split_last().map(|(above, _)| above).filter(|above| !above.is_root());
    std::iter::successors(above(path), above)
}

/// Replaces the deepest renamed directory above a path with its new path.
fn follow(dir_renames: &BTreeMap<TreePath, TreePath>, path: &TreePath) -> Option<TreePath> {
    if dir_renames.is_empty() {
        return None;
    }
    let (source, target) = ancestors(path).find_map(|above| dir_renames.get_key_value(&above))?;
    exchange(path, source, target)
}

/// Returns a path below `source` as the same path below `target`, or `None` if that would be too deep.
pub(super) fn exchange(path: &TreePath, source: &TreePath, target: &TreePath) -> Option<TreePath> {
    match path.below(source)? {
        [] => Some(target.clone()),
        rest if target.is_root() => TreePath::new(rest).ok(),
        rest => TreePath::new([target.as_bytes(), b"/", rest].concat()).ok(),
    }
}
