//! Applies the decisions of a merge to our tree: first removals, then new and changed entries, then directories that move or
//! became empty.

use std::collections::BTreeMap;

use super::candidate::{MergeCandidate, WholeMove};
use super::contents::{ContestedFile, FileVersion, Verdict, WholeSide};
use super::entry::{self, Contested, Merged, MergedAttributes, Three, same, settle};
use super::layout::Layout;
use super::side::{exchange, is_directory};
use super::{ConflictKind, FileMerged, FileResult, Merge, PathConflict};
use crate::directory;
use crate::error::Result;
use crate::id::LinkGroup;
use crate::name::TreePath;
use crate::object::{Conflict, Entry, EntryKind, Node, Settled};
use crate::time::Time;
use crate::work::{RenameMode, WorkingTree};

/// The application of a merge in progress.
struct Applying<'m, 'a> {
    merge: &'m mut Merge<'a>,
    tree: &'m mut WorkingTree,
    candidates: &'m [MergeCandidate],
    layout: &'m Layout,
    /// The entries written so far to files of ours with several names, by group.
    written: BTreeMap<LinkGroup, Entry>,
    /// Verdicts on items that are at two paths.
    verdicts: BTreeMap<usize, Verdict>,
    units: BTreeMap<usize, Vec<TreePath>>,
}

impl Merge<'_> {
    pub(super) fn apply(
        &mut self,
        tree: &mut WorkingTree,
        candidates: &[MergeCandidate],
        layout: &Layout,
        moves: &[WholeMove],
    ) -> Result<()> {
        let (written, verdicts, units) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut applying = Applying { merge: self, tree, candidates, layout, written, verdicts, units };
        applying.vacate()?;
        applying.mark()?;
        let emptied = applying.directories()?;
        applying.put_all()?;
        let moved = applying.move_whole(moves)?;
        applying.remove_empty(emptied)?;
        applying.report_paths();
        self.report_moved(&moved);
        Ok(())
    }

    /// Updates the reported paths below directories that were moved last.
    fn report_moved(&mut self, moved: &[&WholeMove]) {
        let lies_now = |path: &TreePath| {
            let lies = |path: TreePath, one: &&WholeMove| exchange(&path, &one.from, &one.to).unwrap_or(path);
            moved.iter().fold(path.clone(), lies)
        };
        for file in &mut self.report.files {
            file.path = lies_now(&file.path);
        }
        for PathConflict { path, others, places, .. } in &mut self.conflicts {
            for place in places.iter_mut().flatten() {
                *place = lies_now(place);
            }
            let now = lies_now(path);
            others.retain(|other| *other != now);
            if now != *path && !others.contains(path) {
                others.push(path.clone());
            }
            *path = now;
        }
    }
}

impl Applying<'_, '_> {
    fn vacate(&mut self) -> Result<()> {
        for path in &self.layout.vacated {
            if !self.layout.is_marked(path) {
                self.tree.remove(path.as_bytes())?;
                self.merge.report.changed += 1;
            }
        }
        Ok(())
    }

    /// Puts conflicts at names that are a directory on one side and another kind of entry on the other. The terms are the entries
    /// of the trees.
    fn mark(&mut self) -> Result<()> {
        for path in &self.layout.marks {
            let trees = &self.merge.trees;
            let base = trees.base.as_ref().map(|base| base.entry_at(path)).transpose()?.flatten();
            let (ours, theirs) = (trees.ours.entry_at(path)?, trees.theirs.entry_at(path)?);
            let mut terms = entry::terms_of(ours.as_ref());
            terms.extend(entry::terms_of(base.as_ref()));
            terms.extend(entry::terms_of(theirs.as_ref()));
            let is_ours = |entry: Option<&Entry>| same(ours.as_ref(), entry);
            match settle(terms)? {
                Settled::Conflicted(conflict) => {
                    let kind = match kind_of(&Three { base, ours: ours.clone(), theirs }) {
                        ConflictKind::Carried => ConflictKind::Carried,
                        _ => ConflictKind::Kinds,
                    };
                    self.put_conflict(path, &conflict)?;
                    let others = self.layout.displaced.clone();
                    self.conflict(path, kind, others, true);
                }
                Settled::Resolved(entry) if is_ours(entry.as_ref()) => {}
                Settled::Resolved(entry) => {
                    self.remove_any(path)?;
                    if let Some(entry) = entry {
                        self.put_stored(path, &entry)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Creates and changes directories as theirs did. Returns the directories that theirs removed.
    fn directories(&mut self) -> Result<Vec<TreePath>> {
        let mut emptied = Vec::new();
        let added: Vec<_> = self.merge.theirs.added.iter().filter(|(_, entry)| is_directory(entry)).collect();
        let added: Vec<_> = added.into_iter().map(|(path, entry)| (path.clone(), entry.clone())).collect();
        for (path, entry) in added {
            let path = self.merge.apply_our_dir_renames(&path)?;
            self.put_directory(&path, None, &entry)?;
        }
        let changes = self.merge.theirs.changes.iter().filter(|(_, change)| is_directory(&change.before));
        let changes: Vec<_> = changes.map(|(path, change)| (path.clone(), change.clone())).collect();
        for (path, change) in changes {
            let Some(ours) = self.merge.ours.path_of(&path) else { continue };
            match change.after {
                None => emptied.push(ours),
                Some(after) if after.path == path => self.put_directory(&ours, Some(&change.before), &after.entry)?,
                // Moves as a whole, or our side moved it to the same path.
                Some(after) if self.merge.theirs.moved.contains_key(&path) || after.path == ours => {}
                Some(after) => {
                    let to = self.merge.apply_our_dir_renames(&after.path)?;
                    if ours == path {
                        self.put_directory(&to, Some(&change.before), &after.entry)?;
                        emptied.push(ours);
                    }
                }
            }
        }
        if !self.merge.theirs.dir_renames.is_empty() {
            let added: Vec<_> = self.merge.ours.added.iter().filter(|(_, entry)| is_directory(entry)).collect();
            let added: Vec<_> = added.into_iter().map(|(path, entry)| (path.clone(), entry.clone())).collect();
            for (path, entry) in added {
                let to = self.merge.apply_their_dir_renames(&path)?;
                if to != path {
                    self.put_directory(&to, None, &entry)?;
                    emptied.push(path);
                }
            }
        }
        Ok(emptied)
    }

    /// Creates a directory, or merges the attributes into an existing one.
    fn put_directory(&mut self, path: &TreePath, base: Option<&Entry>, theirs: &Entry) -> Result<()> {
        if self.layout.is_marked(path) {
            return Ok(());
        }
        let now = self.merge.options.time;
        let kind = self.tree.stat(path.as_bytes())?.map(|stat| stat.kind);
        if kind != Some(EntryKind::Directory) {
            // Entries in the way were already vacated, or are replaced when the items are put. So the directory is created only
            // if the path is free.
            if kind.is_none() {
                self.make_parents(path)?;
                self.tree.put_entry(path, theirs, now)?;
                self.merge.report.changed += 1;
            }
            return Ok(());
        }
        let Some(ours) = self.merge.trees.ours.entry_at(path)?.filter(is_directory) else {
            return Ok(());
        };
        let merged = entry::merge_attributes(base, &ours, theirs, &ours);
        let three = Three { base: base.cloned(), ours: Some(ours.clone()), theirs: Some(theirs.clone()) };
        if merged.mode != ours.mode || merged.owner() != ours.owner() || merged.xattrs() != ours.xattrs() {
            self.tree.put_entry(path, &merged, ours.mtime)?;
            self.merge.report.changed += 1;
        }
        self.put_attributes(path, &three)
    }

    fn put_all(&mut self) -> Result<()> {
        let layout = self.layout;
        for (path, numbers) in &layout.at {
            let occupant = match numbers.iter().any(|number| self.candidates[*number].is_ours_at(path)) {
                true => None,
                false => self.merge.trees.our_leaf(path)?.filter(|_| !layout.vacated.contains(path)),
            };
            match (&numbers[..], occupant) {
                ([number], None) => self.put_one(path, *number)?,
                (_, occupant) => self.put_several(path, numbers, occupant.map(|place| place.entry))?,
            }
        }
        Ok(())
    }

    fn put_one(&mut self, path: &TreePath, number: usize) -> Result<()> {
        let candidate = &self.candidates[number];
        let three = candidate.entries();
        self.put_value(path, &candidate.value, &three, Some(number))?;
        if let Some(unit) = candidate.unit {
            self.units.entry(unit).or_default().push(path.clone());
        }
        Ok(())
    }

    /// Puts several items under one name, as if each had been added there.
    fn put_several(&mut self, path: &TreePath, numbers: &[usize], occupant: Option<Entry>) -> Result<()> {
        let is_added = occupant.is_some() && self.merge.ours.added.contains_key(path);
        let mut numbers = numbers.to_vec();
        numbers.sort_by_key(|number| !self.candidates[*number].is_ours_at(path));
        let candidates = numbers.iter().map(|number| &self.candidates[*number]);
        let both_added = is_added && candidates.clone().all(|candidate| candidate.at.base.is_none());
        let kind = if both_added { ConflictKind::BothAdded } else { ConflictKind::MovedOnto };
        let values = occupant.clone().map(|entry| Merged::Entry(Some(entry)));
        let mut values: Vec<Merged> =
            values.into_iter().chain(candidates.map(|candidate| candidate.value.clone())).collect();
        let in_place = occupant.or_else(|| {
            numbers.iter().find_map(|number| {
                let ours = self.candidates[*number].at.ours.as_ref()?;
                (ours.path == *path).then(|| ours.entry.clone())
            })
        });
        let others = numbers.iter().filter_map(|number| self.candidates[*number].at.base.as_ref());
        let others: Vec<_> = others.map(|base| base.path.clone()).filter(|other| other != path).collect();
        if let [Merged::Entry(Some(ours)), Merged::Entry(Some(theirs))] = &values[..] {
            let three = Three { base: None, ours: Some(ours.clone()), theirs: Some(theirs.clone()) };
            let merged = entry::merge(&three, self.merge.options.time)?;
            let three = Three { ours: in_place, ..three };
            return self.put_contested(path, &merged, &three, kind, others);
        }
        let mut terms = value_terms(&values.remove(0));
        for value in &values {
            terms.push(None);
            terms.extend(value_terms(value));
        }
        let merged = Merged::from(settle(terms)?);
        let three = Three { base: None, ours: in_place, theirs: None };
        self.put_contested(path, &merged, &three, kind, others)
    }

    fn put_contested(
        &mut self,
        path: &TreePath,
        merged: &Merged,
        three: &Three<Entry>,
        kind: ConflictKind,
        others: Vec<TreePath>,
    ) -> Result<()> {
        let before = self.merge.conflicts.len();
        self.put_value(path, merged, three, None)?;
        if let Some(conflict) = self.merge.conflicts.get_mut(before).filter(|conflict| conflict.is_entry) {
            (conflict.kind, conflict.others) = (kind, others);
        }
        Ok(())
    }

    /// Puts the merged value of an item at a path. `three.ours` is the version of the item in our tree, at this or another path.
    fn put_value(
        &mut self,
        path: &TreePath,
        value: &Merged,
        three: &Three<Entry>,
        number: Option<usize>,
    ) -> Result<()> {
        match value {
            Merged::Entry(None) => Ok(()),
            Merged::Entry(Some(entry)) => {
                self.put_leaf(path, entry, three)?;
                self.put_attributes(path, three)
            }
            Merged::Conflict(conflict) => {
                let candidate = number.map(|number| &self.candidates[number]);
                let is_unit = candidate.is_some_and(|candidate| candidate.unit.is_some());
                // Where the sides also disagree on the path, a person decides.
                let is_in_place = candidate.is_some_and(|candidate| candidate.kind.is_none());
                if is_in_place && !is_unit && self.take_side(path, three)? {
                    return Ok(());
                }
                self.put_conflict(path, conflict)?;
                if !is_unit {
                    self.conflict(path, kind_of(three), Vec::new(), true);
                }
                Ok(())
            }
            Merged::ContestedFile(contested) => {
                let verdict = match number.and_then(|number| self.verdicts.get(&number)) {
                    Some(verdict) => verdict.clone(),
                    None => self.ask(path, contested)?,
                };
                if let Some(number) = number {
                    self.verdicts.insert(number, verdict.clone());
                }
                self.put_verdict(path, verdict, contested, three)
            }
        }
    }

    /// Puts the version of one side as a whole at a path whose contents cannot be merged, if a rule says so. Returns whether one did.
    fn take_side(&mut self, path: &TreePath, three: &Three<Entry>) -> Result<bool> {
        if !matches!(kind_of(three), ConflictKind::Removed | ConflictKind::Kinds) {
            return Ok(false);
        }
        let Some(side) = self.merge.contents.side_without_contents(path) else { return Ok(false) };
        let (entry, result, strategy) = match side {
            WholeSide::Ours => (&three.ours, FileResult::Ours, "ours"),
            WholeSide::Theirs => (&three.theirs, FileResult::Theirs, "theirs"),
        };
        match entry {
            Some(entry) => {
                let mtime = if side == WholeSide::Ours { entry.mtime } else { self.merge.options.time };
                self.put_leaf(path, &Entry { mtime, ..entry::plain(entry) }, three)?;
            }
            None if self.tree.exists(path.as_bytes())? => {
                self.tree.remove_all(path.as_bytes())?;
                self.merge.report.changed += 1;
            }
            None => {}
        }
        let strategy = strategy.to_owned();
        self.merge.report.files.push(FileMerged { path: path.clone(), strategy, result, remembered: None });
        Ok(true)
    }

    fn ask(&self, path: &TreePath, contested: &Contested) -> Result<Verdict> {
        let store = &self.merge.trees.store;
        let version = |entry| FileVersion::new(store, entry);
        let base = contested.base.as_ref().filter(|base| base.kind() == EntryKind::File).map(version);
        let contested =
            ContestedFile { path, base, ours: version(&contested.ours), theirs: version(&contested.theirs) };
        self.merge.contents.merge(&contested)
    }

    fn put_verdict(
        &mut self,
        path: &TreePath,
        verdict: Verdict,
        contested: &Contested,
        three: &Three<Entry>,
    ) -> Result<()> {
        let Contested { entry, ours, theirs, .. } = contested;
        let (strategy, result) = match verdict {
            Verdict::Merged { bytes, strategy } => {
                let before = self.merge.report.changed;
                self.put_leaf(path, &Entry { node: ours.node.clone(), ..entry.clone() }, three)?;
                self.tree.write(path.as_bytes(), &bytes)?;
                // The attributes may have been counted already; the bytes are those of neither side.
                self.merge.report.changed = before + 1;
                (strategy, FileResult::Merged)
            }
            Verdict::Ours { strategy } => {
                let kept = Entry { node: ours.node.clone(), mtime: ours.mtime, ..entry.clone() };
                self.put_leaf(path, &kept, three)?;
                (strategy, FileResult::Ours)
            }
            Verdict::Theirs { strategy } => {
                self.put_leaf(path, &Entry { node: theirs.node.clone(), ..entry.clone() }, three)?;
                (strategy, FileResult::Theirs)
            }
            Verdict::Conflict { strategy } => {
                match settle(contested.terms())? {
                    Settled::Conflicted(conflict) => self.put_conflict(path, &conflict)?,
                    Settled::Resolved(_) => unreachable!("contents that differ do not cancel"),
                }
                self.conflict(path, kind_of(three), Vec::new(), true);
                (strategy, FileResult::Conflict)
            }
        };
        if result != FileResult::Conflict {
            self.put_attributes(path, three)?;
        }
        self.merge.report.files.push(FileMerged { path: path.clone(), strategy, result, remembered: None });
        Ok(())
    }

    /// Sets the merged extended attributes at a path, and reports attributes that only one side could keep.
    fn put_attributes(&mut self, path: &TreePath, three: &Three<Entry>) -> Result<()> {
        let MergedAttributes { xattrs, lost } = entry::merged_attributes(&self.merge.trees.store, three)?;
        for attribute in lost {
            self.conflict(path, ConflictKind::Attribute(attribute), Vec::new(), false);
        }
        xattrs.map_or(Ok(()), |list| self.tree.set_xattrs(path, list))
    }

    /// Puts a stored entry. If our tree has the file at the path under several names, it changes under all of them, unless theirs
    /// unlinked this name from the others or another of its names was already given different contents.
    fn put_leaf(&mut self, path: &TreePath, entry: &Entry, three: &Three<Entry>) -> Result<()> {
        if is_directory(entry) {
            self.remove_any(path)?;
            return self.put_stored(path, entry);
        }
        let now = self.tree.stat(path.as_bytes())?.filter(|stat| stat.kind != EntryKind::Directory);
        let here = now.and(self.merge.trees.ours.entry_at(path)?).filter(|here| !is_directory(here));
        let is_here = here.as_ref().is_some_and(|here| three.ours.as_ref() == Some(here));
        let Some(here) = here.filter(|_| is_here) else {
            self.make_parents(path)?;
            self.tree.put_entry(path, entry, entry.mtime)?;
            self.merge.report.changed += 1;
            return Ok(());
        };
        if let Some(group) = here.link() {
            let is_written = |written: &Entry| same(Some(written), Some(entry));
            // A conflict has one name.
            let is_conflict = entry.kind() == EntryKind::Conflict;
            if is_conflict
                || self.merge.is_unlinked(three)?
                || self.written.get(&group).is_some_and(|written| !is_written(written))
            {
                self.tree.put_entry(path, entry, entry.mtime)?;
                self.merge.report.changed += 1;
                return Ok(());
            }
            self.written.insert(group, entry.clone());
        }
        if !same(Some(&here), Some(entry)) {
            self.tree.replace_leaf(path, entry)?;
            self.merge.report.changed += 1;
        }
        Ok(())
    }

    fn put_conflict(&mut self, path: &TreePath, conflict: &Conflict) -> Result<()> {
        let entry = Entry::new(Node::Conflict(conflict.clone().into()), 0, Time::EPOCH);
        if self
            .tree
            .stat(path.as_bytes())?
            .and_then(|stat| stat.entry)
            .is_some_and(|here| here.equal_but_for_times(&entry))
        {
            return Ok(());
        }
        self.make_parents(path)?;
        self.merge.report.changed += 1;
        self.tree.put_entry(path, &entry, Time::EPOCH)
    }

    /// Puts a stored entry, a directory with everything in it. Files in it lose their other names.
    fn put_stored(&mut self, path: &TreePath, entry: &Entry) -> Result<()> {
        self.make_parents(path)?;
        self.merge.report.changed += 1;
        let mut open = vec![(path.clone(), entry.clone())];
        while let Some((path, entry)) = open.pop() {
            match entry.node {
                Node::Directory(Some(contents)) if contents.linked > 0 => {
                    self.tree.put_entry(&path, &entry, entry.mtime)?;
                    for item in directory::list(&self.merge.trees.store, Some(contents))? {
                        let item = item?;
                        open.push((path.join(&item.name), item.entry));
                    }
                }
                Node::Directory(_) => self.tree.put_tree(&path, &entry)?,
                _ => self.tree.put_entry(&path, &entry, entry.mtime)?,
            }
        }
        Ok(())
    }

    /// Creates the missing directories above a path, with the attributes they have in one of the trees.
    fn make_parents(&mut self, path: &TreePath) -> Result<()> {
        let parent = path.split_last().map(|(parent, _)| parent).unwrap_or_default();
        if self.tree.exists(parent.as_bytes())? {
            return Ok(());
        }
        let mut above = TreePath::root();
        for name in parent.names() {
            above = above.join(&name);
            if self.tree.exists(above.as_bytes())? {
                continue;
            }
            let trees = &self.merge.trees;
            let mut made = Entry::empty_directory(0o755, self.merge.options.time);
            for root in [Some(&trees.theirs), Some(&trees.ours), trees.base.as_ref()].into_iter().flatten() {
                if let Some(found) = root.entry_at(&above)?.filter(is_directory) {
                    made = found;
                    break;
                }
            }
            self.tree.put_entry(&above, &made, self.merge.options.time)?;
        }
        Ok(())
    }

    fn remove_any(&mut self, path: &TreePath) -> Result<()> {
        if self.tree.exists(path.as_bytes())? {
            self.tree.remove_all(path.as_bytes())?;
        }
        Ok(())
    }

    /// Moves directories as a whole, in their current state. Returns the moved directories.
    fn move_whole<'w>(&mut self, moves: &'w [WholeMove]) -> Result<Vec<&'w WholeMove>> {
        let mut moved = Vec::new();
        for one @ WholeMove { base, from, to } in moves {
            if self.layout.is_marked(to) || self.layout.is_marked(from) {
                continue;
            }
            self.make_parents(to)?;
            self.tree.rename(from.as_bytes(), to.as_bytes(), RenameMode::NoReplace)?;
            moved.push(one);
            self.merge.report.changed += 1;
            let Some(change) = self.merge.theirs.changes.get(base).cloned() else { continue };
            let (Some(after), Some(ours)) = (change.after, self.merge.trees.ours.entry_at(from)?) else {
                continue;
            };
            let merged = entry::merge_attributes(Some(&change.before), &ours, &after.entry, &ours);
            if !same(Some(&merged), Some(&ours)) {
                self.tree.put_entry(to, &merged, ours.mtime)?;
            }
            let three = Three { base: Some(change.before), ours: Some(ours), theirs: Some(after.entry) };
            self.put_attributes(to, &three)?;
        }
        Ok(moved)
    }

    /// Removes directories that theirs removed, if they are empty now.
    fn remove_empty(&mut self, mut emptied: Vec<TreePath>) -> Result<()> {
        emptied.sort();
        for path in emptied.iter().rev() {
            let is_directory = self.tree.stat(path.as_bytes())?.is_some_and(|stat| stat.kind == EntryKind::Directory);
            if is_directory && self.tree.list(path.as_bytes())?.next().is_none() {
                self.tree.remove_directory(path.as_bytes())?;
                self.merge.report.changed += 1;
            }
        }
        Ok(())
    }

    /// Reports items whose path the sides disagree on, and units.
    fn report_paths(&mut self) {
        for candidate in self.candidates {
            let (Some(kind), Some(path)) = (&candidate.kind, candidate.paths.first()) else { continue };
            let places = [&candidate.at.base, &candidate.at.ours, &candidate.at.theirs].into_iter().flatten();
            let mut others = Vec::new();
            for other in places.map(|place| &place.path).chain(&candidate.paths) {
                if other != path && !others.contains(other) {
                    others.push(other.clone());
                }
            }
            let (path, kind) = (path.clone(), kind.clone());
            let places = match (&candidate.at.ours, &candidate.at.theirs) {
                (None, _) => [None, Some(path.clone())],
                (_, None) => [Some(path.clone()), None],
                _ => [Some(path.clone()), candidate.paths.get(1).cloned()],
            };
            self.merge.conflicts.push(PathConflict { path, kind, others, is_entry: false, places });
        }
        for (unit, paths) in std::mem::take(&mut self.units) {
            if let Some((first, others)) = paths.split_first() {
                let is_entry = self
                    .tree
                    .stat(first.as_bytes())
                    .ok()
                    .flatten()
                    .is_some_and(|stat| stat.kind == EntryKind::Conflict);
                self.conflict(first, ConflictKind::Unit(unit), others.to_vec(), is_entry);
            }
        }
    }

    fn conflict(&mut self, path: &TreePath, kind: ConflictKind, others: Vec<TreePath>, is_entry: bool) {
        let places = [None, None];
        self.merge.conflicts.push(PathConflict { path: path.clone(), kind, others, is_entry, places });
    }
}

/// Returns the terms of a value.
fn value_terms(value: &Merged) -> Vec<Option<Entry>> {
    match value {
        Merged::Entry(entry) => entry::terms_of(entry.as_ref()),
        Merged::ContestedFile(contested) => contested.terms(),
        Merged::Conflict(conflict) => conflict.terms().to_vec(),
    }
}

fn kind_of(three: &Three<Entry>) -> ConflictKind {
    let is_conflict = |entry: &Option<Entry>| matches!(entry, Some(Entry { node: Node::Conflict(_), .. }));
    let Three { base, ours, theirs } = three;
    if [base, ours, theirs].into_iter().any(is_conflict) {
        return ConflictKind::Carried;
    }
    match (base, ours, theirs) {
        (_, Some(ours), Some(theirs)) if ours.kind() != theirs.kind() => ConflictKind::Kinds,
        (None, Some(_), Some(_)) => ConflictKind::BothAdded,
        (_, Some(_), Some(_)) => ConflictKind::Contents,
        _ => ConflictKind::Removed,
    }
}
