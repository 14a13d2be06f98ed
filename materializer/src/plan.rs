//! Plans a checkout without running it: the difference of two trees, as a directory displays them.
//!
//! The cost is proportional to the difference: equal directories are never opened. Reads trees only, never the disk, so
//! changes on disk since the index was made are not in the plan.

use std::collections::BTreeSet;

use amalgam_engine::content::read_at;
use amalgam_engine::object::{Content, DirectoryRef, Node, Root};
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, Name, NameChange, RootId, Store, TreePath, count_differing_paths, diff_directories,
    entry_at,
};

use parking_lot::Mutex;

use crate::checkout_options::{CheckoutOptions, Times};
use crate::error::Result;
use crate::index::Index;
use crate::report::{Notice, Why};
use crate::rules::TreeRules;

/// The name of a Git repository.
const GIT: &[u8] = b".git";
/// The beginning of a `.git` file; the path of the repository follows.
const GIT_FILE_PREFIX: &[u8] = b"gitdir: ";
/// A `.git` file holds one path.
const GIT_FILE_BYTES_MAX: usize = 8 << 10;

/// The changes that a checkout would make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Each path that would be changed; a directory before its contents.
    pub changes: Vec<PlannedChange>,
    /// How many bytes would be written.
    pub bytes: u64,
    /// How many files would be written.
    pub files: u64,
    /// Paths that would be skipped.
    pub notices: Vec<Notice>,
}

/// One path that would be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// The path.
    pub path: TreePath,
    /// The kind of change.
    pub kind: PlannedKind,
    /// The present entry, according to the index.
    pub from: Option<EntryKind>,
    /// The new entry.
    pub to: Option<EntryKind>,
    /// How many bytes would be written.
    pub bytes: u64,
}

/// Kind of a planned change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlannedKind {
    /// A new entry.
    Add,
    /// Another entry in its place.
    Replace,
    /// New attributes, same bytes.
    Attributes,
    /// Removal.
    Remove,
}

/// Plans a checkout of `target` into the directory that the index describes.
pub fn plan(store: &Store, index: &Index, target: RootId, options: &CheckoutOptions<'_>) -> Result<Plan> {
    let _kept = store.hold(target)?;
    let _base = index.root().map(|root| store.hold(root)).transpose()?;
    let before = index.root().map(|root| store.root(root)).transpose()?;
    let after = store.root(target)?;
    let scope = CheckoutScope::new(store, options, index.root(), target)?;
    check_path_count(store, before.as_deref(), &after, options.paths)?;
    let mut plan = Plan::default();
    let top = EntryPair::of_roots(before.as_deref(), &after);
    if scope.attributes_differ(&top) && scope.relation(&TreePath::root()) == PathRelation::Inside {
        plan.push(TreePath::root(), &top);
    }
    let mut open = vec![(TreePath::root(), top)];
    while let Some((path, pair)) = open.pop() {
        options.progress.check()?;
        let first = open.len();
        for step in scope.changes(store, &path, pair.contents())? {
            match step? {
                PathChange::Skipped(notice) => plan.notices.push(notice),
                PathChange::Differs { path, pair, .. } => {
                    plan.add(&scope, &path, &pair);
                    if pair.is_directory_on_any_side() {
                        open.push((path, pair));
                    }
                }
            }
        }
        open[first..].reverse();
    }
    plan.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(plan)
}

/// Refuses a tree in which few directories lie at very many paths, before anything of it is written: no disk would hold it.
pub(crate) fn check_path_count(
    store: &Store,
    before: Option<&Root>,
    after: &Root,
    paths: Option<&[TreePath]>,
) -> Result<()> {
    let mut count = store.path_count();
    let Some(paths) = paths else {
        let before = before.map(|root| &root.directory);
        return Ok(count.add(count_differing_paths(store, before, Some(&after.directory))?)?);
    };
    for path in paths {
        let before = before.map(|root| entry_at(store, root, path)).transpose()?.flatten();
        let after = entry_at(store, after, path)?;
        count.add(count_differing_paths(store, before.as_ref(), after.as_ref())?)?;
    }
    Ok(())
}

/// Returns how many files and bytes would be written, for progress reports.
pub(crate) fn count_totals(store: &Store, scope: &CheckoutScope<'_>, top: EntryPair) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut open = vec![(TreePath::root(), top)];
    while let Some((path, pair)) = open.pop() {
        scope.options.progress.check()?;
        for step in scope.changes(store, &path, pair.contents())? {
            let PathChange::Differs { path, pair, .. } = step? else { continue };
            if let Some(Entry { node: Node::File { size, .. }, .. }) = &pair.after
                && !pair.same_node()
            {
                files += 1;
                bytes += size;
            }
            if pair.is_directory_on_any_side() {
                open.push((path, pair));
            }
        }
    }
    Ok((files, bytes))
}

impl Plan {
    fn add(&mut self, scope: &CheckoutScope<'_>, path: &TreePath, pair: &EntryPair) {
        let both_directories = is_directory(pair.before.as_ref()) && is_directory(pair.after.as_ref());
        let wanted = scope.relation(path) == PathRelation::Inside || (pair.before.is_none() && pair.after.is_some());
        if wanted && (!both_directories || scope.attributes_differ(pair)) {
            self.push(path.clone(), pair);
        }
    }

    fn push(&mut self, path: TreePath, pair: &EntryPair) {
        let kind = match (&pair.before, &pair.after) {
            (None, _) => PlannedKind::Add,
            (_, None) => PlannedKind::Remove,
            _ if pair.same_node() => PlannedKind::Attributes,
            _ => PlannedKind::Replace,
        };
        let bytes = match (&pair.after, kind) {
            (Some(Entry { node: Node::File { size, .. }, .. }), PlannedKind::Add | PlannedKind::Replace) => {
                self.files += 1;
                *size
            }
            _ => 0,
        };
        self.bytes += bytes;
        let kind_of = |entry: &Option<Entry>| entry.as_ref().map(Entry::kind);
        self.changes.push(PlannedChange { path, kind, from: kind_of(&pair.before), to: kind_of(&pair.after), bytes });
    }
}

/// The entries of a path in both trees, as a directory displays them.
#[derive(Clone, Debug)]
pub(crate) struct EntryPair {
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

impl EntryPair {
    pub(crate) fn of_roots(before: Option<&Root>, after: &Root) -> Self {
        Self { before: before.map(|root| root.directory.clone()), after: Some(after.directory.clone()) }
    }

    /// Returns the contents of both as directories.
    pub(crate) fn contents(&self) -> Contents {
        Contents { before: contents(self.before.as_ref()), after: contents(self.after.as_ref()) }
    }

    pub(crate) fn is_directory_on_any_side(&self) -> bool {
        is_directory(self.before.as_ref()) || is_directory(self.after.as_ref())
    }

    /// Returns whether bytes, symlink target or device are equal, so that only attributes have to be set.
    pub(crate) fn same_node(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(Entry { node: Node::Directory(_), .. }), Some(Entry { node: Node::Directory(_), .. })) => true,
            (Some(before), Some(after)) => before.node == after.node,
            _ => false,
        }
    }
}

/// The contents of a directory in both trees.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) before: Option<DirectoryRef>,
    pub(crate) after: Option<DirectoryRef>,
}

/// A name of a directory that differs.
pub(crate) enum PathChange {
    /// It is skipped, with a notice.
    Skipped(Notice),
    /// It has to be changed.
    Differs { path: TreePath, name: Name, pair: EntryPair },
}

/// The paths that a checkout changes.
pub(crate) struct CheckoutScope<'a> {
    options: &'a CheckoutOptions<'a>,
    /// Those requested paths that are in one of the trees.
    paths: Option<BTreeSet<TreePath>>,
    /// The ignore rules of the target.
    rules: Option<TreeRules>,
    /// The ignore rules of the directory as it is.
    rules_before: Option<TreeRules>,
    /// Directories with a `.git` that was skipped.
    holds_git: Mutex<BTreeSet<TreePath>>,
}

/// Relation of a path to the requested paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathRelation {
    /// It is one of them or below one.
    Inside,
    /// One of them is below it.
    Above,
    /// Neither.
    Outside,
}

impl<'a> CheckoutScope<'a> {
    pub(crate) fn new(
        store: &Store,
        options: &'a CheckoutOptions<'a>,
        before: Option<RootId>,
        target: RootId,
    ) -> Result<Self> {
        let rules_of = |root: RootId| options.rules.map(|rules| TreeRules::new(store, root, rules)).transpose();
        let (rules, rules_before) = (rules_of(target)?, before.map(rules_of).transpose()?.flatten());
        let before = before.map(|root| store.root(root)).transpose()?;
        let (before, after) = (before.as_deref(), &*store.root(target)?);
        let is_there = |path: &TreePath| -> Result<bool> {
            let there_before = before.map(|root| entry_at(store, root, path)).transpose()?.flatten().is_some();
            Ok(there_before || entry_at(store, after, path)?.is_some())
        };
        let holds_git = Mutex::default();
        let Some(wanted) = options.paths else {
            return Ok(Self { options, paths: None, rules, rules_before, holds_git });
        };
        let mut paths = BTreeSet::new();
        for path in wanted {
            // A path in neither tree must not create its parents.
            if is_there(path)? {
                paths.insert(path.clone());
            }
        }
        Ok(Self { options, paths: Some(paths), rules, rules_before, holds_git })
    }

    pub(crate) fn relation(&self, path: &TreePath) -> PathRelation {
        let Some(paths) = &self.paths else { return PathRelation::Inside };
        if path.ancestors().any(|ancestor| paths.contains(&ancestor)) {
            return PathRelation::Inside;
        }
        // In path order, descendants follow a path immediately.
        let next = paths.range(path..).next();
        if next.is_some_and(|next| next.below(path).is_some()) { PathRelation::Above } else { PathRelation::Outside }
    }

    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.options.times, Times::Exact)
    }

    /// Returns whether attributes of an entry in both trees have to be set.
    pub(crate) fn attributes_differ(&self, pair: &EntryPair) -> bool {
        let (Some(before), Some(after)) = (&pair.before, &pair.after) else { return false };
        before.mode != after.mode || before.extra != after.extra || (self.is_exact() && before.mtime != after.mtime)
    }

    /// Returns the differing names of a directory that are in scope, in order.
    pub(crate) fn changes(
        &self,
        store: &Store,
        directory: &TreePath,
        contents: Contents,
    ) -> Result<impl Iterator<Item = Result<PathChange>>> {
        let options = DiffOptions { times: self.is_exact(), ..DiffOptions::default() };
        let differing = diff_directories(store, contents.before, contents.after, options)?;
        Ok(differing.filter_map(move |item| match item {
            Err(error) => Some(Err(error.into())),
            Ok(change) => self.change_of(store, directory, change).transpose(),
        }))
    }

    fn change_of(&self, store: &Store, directory: &TreePath, change: NameChange) -> Result<Option<PathChange>> {
        let NameChange { name, before, after } = change;
        let is_git = name.as_bytes() == GIT;
        let path = directory.join(&name);
        let pair = EntryPair { before: before.and_then(displayed_entry), after: after.and_then(displayed_entry) };
        match self.relation(&path) {
            PathRelation::Outside => return Ok(None),
            PathRelation::Above if !pair.is_directory_on_any_side() => return Ok(None),
            PathRelation::Inside if self.options.keep_git && is_git && !self.names_git(&path) => {
                self.holds_git.lock().insert(directory.clone());
                return Ok(None);
            }
            PathRelation::Above | PathRelation::Inside => {}
        }
        if self.options.leave_git_file
            && is_git
            && let Some(Entry { node: Node::File { size, content }, .. }) = &pair.after
            && !leads_inside(store, directory, content, *size)?
        {
            return Ok(Some(PathChange::Skipped(Notice { path, why: Why::GitFile })));
        }
        if let (Some(rules), Some(_), None) = (&self.rules, &pair.before, &pair.after)
            && rules.excludes(&path, is_directory(pair.before.as_ref()))?
        {
            return Ok(Some(PathChange::Skipped(Notice { path, why: Why::Uncovered })));
        }
        Ok((pair.before.is_some() || pair.after.is_some()).then_some(PathChange::Differs { path, name, pair }))
    }

    /// Returns whether a directory stays because a `.git` in it, or further down, was skipped.
    pub(crate) fn holds_git(&self, directory: &TreePath) -> bool {
        let holds_git = self.holds_git.lock();
        // In path order, descendants follow a path immediately.
        holds_git.range(directory..).next().is_some_and(|next| next == directory || next.below(directory).is_some())
    }

    /// Returns whether the directory's ignore rules exclude a path, so that the index does not describe it.
    pub(crate) fn is_uncovered(&self, path: &TreePath) -> bool {
        let Some(rules) = &self.rules_before else { return false };
        // The path may be a directory or not.
        let is_excluded =
            |path| [false, true].iter().any(|is_directory| rules.excludes(&path, *is_directory).unwrap_or(false));
        path.ancestors().any(is_excluded)
    }

    /// Returns whether the requested paths name a `.git`, or a path in it, at or above this path.
    fn names_git(&self, path: &TreePath) -> bool {
        let Some(paths) = &self.paths else { return false };
        path.ancestors().any(|ancestor| paths.contains(&ancestor) && ancestor.is_in_git())
    }
}

/// Returns whether a `.git` file names a repository by a relative path that stays inside of the tree, as that of a submodule does.
fn leads_inside(store: &Store, directory: &TreePath, content: &Content, size: u64) -> Result<bool> {
    let Ok(length) = usize::try_from(size) else { return Ok(false) };
    if length > GIT_FILE_BYTES_MAX {
        return Ok(false);
    }
    let mut bytes = vec![0; length];
    read_at(store, content, size, 0, &mut bytes)?;
    let Some(named) = bytes.strip_prefix(GIT_FILE_PREFIX) else { return Ok(false) };
    let named = named.trim_ascii_end();
    if named.is_empty() || named.starts_with(b"/") {
        return Ok(false);
    }
    let mut depth = directory.names().count();
    for name in named.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if depth == 0 => return Ok(false),
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    Ok(true)
}

/// Returns the entry that a directory displays. A conflict is displayed as the first of its versions that exists.
pub(crate) fn displayed_entry(entry: Entry) -> Option<Entry> {
    match &entry.node {
        Node::Conflict(conflict) => conflict.added().chain(conflict.removed()).flatten().next().cloned(),
        _ => Some(entry),
    }
}

pub(crate) fn is_directory(entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| entry.kind() == EntryKind::Directory)
}

fn contents(entry: Option<&Entry>) -> Option<DirectoryRef> {
    match entry?.node {
        Node::Directory(contents) => contents,
        _ => None,
    }
}
