//! Merges hard links: applies the links and unlinks of theirs, and makes our writes visible under all names.

use std::collections::{BTreeMap, BTreeSet};

use super::Merge;
use super::candidate::MergeCandidate;
use super::entry::{Three, same};
use super::side::exchange;
use crate::directory::linked_paths;
use crate::error::Result;
use crate::id::LinkGroup;
use crate::name::TreePath;
use crate::object::{Entry, EntryKind};
use crate::work::WorkingTree;

/// The current path of a name in a hard-link group of theirs.
struct Name<'a> {
    path: TreePath,
    candidate: Option<&'a MergeCandidate>,
}

impl Merge<'_> {
    /// Returns whether theirs replaced one of several names with a separate file while other names remain.
    pub(super) fn is_unlinked(&self, three: &Three<Entry>) -> Result<bool> {
        let Three { base: Some(base), theirs: Some(theirs), .. } = three else { return Ok(false) };
        let (Some(group), Some(root)) = (base.link(), &self.trees.base) else { return Ok(false) };
        if theirs.link() == Some(group) {
            return Ok(false);
        }
        // If the name has no other names any more, it is itself one of the separate files.
        let mut apart_max = usize::from(theirs.link().is_none());
        for path in linked_paths(&self.trees.store, root, group)? {
            let Some(path) = self.theirs.path_of(&path) else { continue };
            let there = self.trees.theirs.entry_at(&path)?;
            if there.is_some_and(|there| there.link().is_none() || there.link() != theirs.link()) {
                if apart_max == 0 {
                    return Ok(true);
                }
                apart_max -= 1;
            }
        }
        Ok(false)
    }

    /// Applies the hard links that theirs created.
    pub(super) fn merge_links(&self, tree: &mut WorkingTree, candidates: &[MergeCandidate]) -> Result<()> {
        if self.trees.theirs.links.is_none() {
            return Ok(());
        }
        let mut groups: BTreeSet<LinkGroup> = self.theirs.added.values().filter_map(Entry::link).collect();
        for change in self.theirs.changes.values() {
            let Some(after) = &change.after else { continue };
            groups.extend(after.entry.link().filter(|group| change.before.link() != Some(*group)));
        }
        let moved_linked = self.theirs.changes.iter().filter_map(|(from, change)| {
            let after = change.after.as_ref().filter(|after| after.path != *from)?;
            after.entry.link()
        });
        groups.extend(moved_linked);
        let by_path: BTreeMap<&TreePath, &MergeCandidate> =
            candidates.iter().filter_map(|candidate| Some((&candidate.at.theirs.as_ref()?.path, candidate))).collect();
        for group in groups {
            let mut names = Vec::new();
            for path in linked_paths(&self.trees.store, &self.trees.theirs, group)? {
                names.extend(self.name_now(&path, &by_path));
            }
            self.link_names(tree, &names)?;
        }
        Ok(())
    }

    /// Returns the path of a name of theirs in the merged tree.
    fn name_now<'a>(&self, path: &TreePath, candidates: &BTreeMap<&TreePath, &'a MergeCandidate>) -> Option<Name<'a>> {
        if let Some(candidate) = candidates.get(path) {
            return Some(Name { path: candidate.paths.first()?.clone(), candidate: Some(candidate) });
        }
        let moved = self.theirs.moved.iter().find_map(|(from, to)| exchange(path, to, from));
        let base = moved.as_ref().unwrap_or(path);
        let path = match moved.is_some() {
            // It moved with its directory.
            true => path.clone(),
            false => self.ours.path_of(base)?,
        };
        Some(Name { path, candidate: None })
    }

    fn link_names(&self, tree: &mut WorkingTree, names: &[Name<'_>]) -> Result<()> {
        let is_file = |path: &TreePath| -> Result<bool> {
            let kind = tree.stat(path.as_bytes())?.map(|stat| stat.kind);
            Ok(kind.is_some_and(|kind| !matches!(kind, EntryKind::Directory | EntryKind::Conflict)))
        };
        let mut there = Vec::new();
        for name in names {
            if is_file(&name.path)? {
                there.push(name);
            }
        }
        // Prefer the name that our side wrote, then one that existed before.
        let rank = |name: &&Name<'_>| match name.candidate {
            Some(candidate) if !is_untouched(candidate) => 0,
            None => 1,
            Some(candidate) if candidate.at.base.is_some() => 2,
            Some(_) => 3,
        };
        there.sort_by_key(rank);
        let Some((anchor, rest)) = there.split_first() else { return Ok(()) };
        for name in rest {
            let Some(candidate) = name.candidate else { continue };
            // If our tree has an entry there as well, the two were merged and are not hard-linked.
            let is_shared = candidate.at.ours.is_none() && self.trees.our_leaf(&name.path)?.is_some();
            if !is_untouched(candidate) || is_shared || name.path == anchor.path {
                continue;
            }
            tree.remove(name.path.as_bytes())?;
            tree.link(anchor.path.as_bytes(), name.path.as_bytes())?;
        }
        Ok(())
    }
}

/// Returns whether our side left the item unchanged, so that the change of theirs applies.
fn is_untouched(candidate: &MergeCandidate) -> bool {
    let Three { base, ours, .. } = candidate.entries();
    candidate.at.base.is_none() || same(base.as_ref(), ours.as_ref())
}
