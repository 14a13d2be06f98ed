//! What a checkout would do, without doing it: the difference of two trees as a directory shows it.
//!
//! Costs what differs: equal directories are never opened. Looks at trees only, never at the disk; so what changed there since
//! the index was made is not in it.

use std::collections::BTreeSet;

use amalgam_engine::object::{DirectoryRef, Node, Root};
use amalgam_engine::{
    DiffOptions, Entry, EntryKind, Name, NameChange, RootId, Store, TreePath, count_differing_paths, diff_directories,
    entry_at,
};

use parking_lot::Mutex;

use crate::checkout::{Checkout, Times};
use crate::error::Result;
use crate::index::Index;
use crate::report::{Notice, Why};
use crate::rules::TreeRules;

/// The name under which Git keeps a repository.
const GIT: &[u8] = b".git";

/// The steps of a checkout, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Each path that would be touched; a directory before what is in it.
    pub changes: Vec<PlannedChange>,
    /// How many bytes would be written.
    pub bytes: u64,
    /// How many files would be written.
    pub files: u64,
    /// What would be left out, and why.
    pub notices: Vec<Notice>,
}

/// One path that would be touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedChange {
    /// Where.
    pub path: TreePath,
    /// What would be done.
    pub kind: PlannedKind,
    /// What is there, as far as the index knows.
    pub from: Option<EntryKind>,
    /// What would be there.
    pub to: Option<EntryKind>,
    /// How many bytes would be written.
    pub bytes: u64,
}

/// What would be done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlannedKind {
    /// Something new.
    Add,
    /// Something else in its place.
    Replace,
    /// Other attributes on the same bytes.
    Attributes,
    /// It goes.
    Remove,
}

/// What a checkout of `target` would do to the directory that the index describes.
pub fn plan(store: &Store, index: &Index, target: RootId, job: &Checkout<'_>) -> Result<Plan> {
    let _kept = store.hold(target)?;
    let _base = index.root().map(|root| store.hold(root)).transpose()?;
    let before = index.root().map(|root| store.root(root)).transpose()?;
    let after = store.root(target)?;
    let aim = Aim::new(store, job, index.root(), target)?;
    check_width(store, before.as_deref(), &after, job.paths)?;
    let mut plan = Plan::default();
    let top = Pair::of_roots(before.as_deref(), &after);
    if aim.attributes_differ(&top) && aim.reach(&TreePath::root()) == Reach::Inside {
        plan.push(TreePath::root(), &top);
    }
    let mut open = vec![(TreePath::root(), top)];
    while let Some((path, pair)) = open.pop() {
        job.progress.check()?;
        let first = open.len();
        for step in aim.steps(store, &path, pair.contents())? {
            match step? {
                Step::Left(notice) => plan.notices.push(notice),
                Step::Differs { path, pair, .. } => {
                    plan.add(&aim, &path, &pair);
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

/// Refuses what no disk would hold, before anything of it is written: a tree in which few directories lie at very many paths.
pub(crate) fn check_width(
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

/// How many files and bytes would be written, for progress reports.
pub(crate) fn totals(store: &Store, aim: &Aim<'_>, top: Pair) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut open = vec![(TreePath::root(), top)];
    while let Some((path, pair)) = open.pop() {
        aim.job.progress.check()?;
        for step in aim.steps(store, &path, pair.contents())? {
            let Step::Differs { path, pair, .. } = step? else { continue };
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
    fn add(&mut self, aim: &Aim<'_>, path: &TreePath, pair: &Pair) {
        let both_directories = is_directory(pair.before.as_ref()) && is_directory(pair.after.as_ref());
        let wanted = aim.reach(path) == Reach::Inside || (pair.before.is_none() && pair.after.is_some());
        if wanted && (!both_directories || aim.attributes_differ(pair)) {
            self.push(path.clone(), pair);
        }
    }

    fn push(&mut self, path: TreePath, pair: &Pair) {
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

/// What a path has on both sides, as a directory shows it.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) before: Option<Entry>,
    pub(crate) after: Option<Entry>,
}

impl Pair {
    pub(crate) fn of_roots(before: Option<&Root>, after: &Root) -> Self {
        Self { before: before.map(|root| root.directory.clone()), after: Some(after.directory.clone()) }
    }

    /// What the two hold as directories.
    pub(crate) fn contents(&self) -> Contents {
        Contents { before: contents(self.before.as_ref()), after: contents(self.after.as_ref()) }
    }

    pub(crate) fn is_directory_on_any_side(&self) -> bool {
        is_directory(self.before.as_ref()) || is_directory(self.after.as_ref())
    }

    /// Whether the bytes, the target or the device are the same: nothing but attributes has to be set.
    pub(crate) fn same_node(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(Entry { node: Node::Directory(_), .. }), Some(Entry { node: Node::Directory(_), .. })) => true,
            (Some(before), Some(after)) => before.node == after.node,
            _ => false,
        }
    }
}

/// The contents of a directory on both sides.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Contents {
    pub(crate) before: Option<DirectoryRef>,
    pub(crate) after: Option<DirectoryRef>,
}

/// What comes of a name of a directory.
pub(crate) enum Step {
    /// It is left as it is, and that has to be said.
    Left(Notice),
    /// It differs.
    Differs { path: TreePath, name: Name, pair: Pair },
}

/// What a job is about.
pub(crate) struct Aim<'a> {
    job: &'a Checkout<'a>,
    /// Those paths of the job that are in one of the trees.
    paths: Option<BTreeSet<TreePath>>,
    /// The rules of the target.
    rules: Option<TreeRules>,
    /// The rules of the directory as it is.
    rules_before: Option<TreeRules>,
    /// Directories with a `.git` that was left alone.
    holds_git: Mutex<BTreeSet<TreePath>>,
}

/// How a path lies to those that a job is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is one of them or below one.
    Inside,
    /// One of them is below it.
    Above,
    /// Neither.
    Outside,
}

impl<'a> Aim<'a> {
    pub(crate) fn new(store: &Store, job: &'a Checkout<'a>, before: Option<RootId>, target: RootId) -> Result<Self> {
        let rules_of = |root: RootId| job.rules.map(|rules| TreeRules::new(store, root, rules)).transpose();
        let (rules, rules_before) = (rules_of(target)?, before.map(rules_of).transpose()?.flatten());
        let before = before.map(|root| store.root(root)).transpose()?;
        let (before, after) = (before.as_deref(), &*store.root(target)?);
        let is_there = |path: &TreePath| -> Result<bool> {
            let there_before = before.map(|root| entry_at(store, root, path)).transpose()?.flatten().is_some();
            Ok(there_before || entry_at(store, after, path)?.is_some())
        };
        let holds_git = Mutex::default();
        let Some(wanted) = job.paths else { return Ok(Self { job, paths: None, rules, rules_before, holds_git }) };
        let mut paths = BTreeSet::new();
        for path in wanted {
            // A path that is nowhere must not make the directories above it.
            if is_there(path)? {
                paths.insert(path.clone());
            }
        }
        Ok(Self { job, paths: Some(paths), rules, rules_before, holds_git })
    }

    pub(crate) fn reach(&self, path: &TreePath) -> Reach {
        let Some(paths) = &self.paths else { return Reach::Inside };
        let mut here = Some(path.clone());
        while let Some(ancestor) = here {
            if paths.contains(&ancestor) {
                return Reach::Inside;
            }
            here = ancestor.split_last().map(|(parent, _)| parent);
        }
        // What is below a path follows it at once.
        let next = paths.range(path..).next();
        if next.is_some_and(|next| next.below(path).is_some()) { Reach::Above } else { Reach::Outside }
    }

    pub(crate) fn is_exact(&self) -> bool {
        matches!(self.job.times, Times::Exact)
    }

    /// Whether attributes of something that is on both sides have to be set.
    pub(crate) fn attributes_differ(&self, pair: &Pair) -> bool {
        let (Some(before), Some(after)) = (&pair.before, &pair.after) else { return false };
        before.mode != after.mode || before.extra != after.extra || (self.is_exact() && before.mtime != after.mtime)
    }

    /// The names of a directory that differ and that the job is about, in order.
    pub(crate) fn steps(
        &self,
        store: &Store,
        directory: &TreePath,
        contents: Contents,
    ) -> Result<impl Iterator<Item = Result<Step>>> {
        let options = DiffOptions { times: self.is_exact(), ..DiffOptions::default() };
        let differing = diff_directories(store, contents.before, contents.after, options)?;
        Ok(differing.filter_map(move |item| match item {
            Err(error) => Some(Err(error.into())),
            Ok(change) => self.step(directory, change).transpose(),
        }))
    }

    fn step(&self, directory: &TreePath, change: NameChange) -> Result<Option<Step>> {
        let NameChange { name, before, after } = change;
        let is_git = name.as_bytes() == GIT;
        let path = directory.join(&name);
        let pair = Pair { before: before.and_then(shown), after: after.and_then(shown) };
        match self.reach(&path) {
            Reach::Outside => return Ok(None),
            Reach::Above if !pair.is_directory_on_any_side() => return Ok(None),
            Reach::Inside if self.job.keep_git && is_git && !self.is_named_git(&path) => {
                self.holds_git.lock().insert(directory.clone());
                return Ok(None);
            }
            Reach::Above | Reach::Inside => {}
        }
        let is_file = pair.after.as_ref().is_some_and(|entry| entry.kind() == EntryKind::File);
        if self.job.leave_git_file && is_git && is_file {
            return Ok(Some(Step::Left(Notice { path, why: Why::GitFile })));
        }
        if let (Some(rules), Some(_), None) = (&self.rules, &pair.before, &pair.after)
            && rules.leave_out(&path, is_directory(pair.before.as_ref()))?
        {
            return Ok(Some(Step::Left(Notice { path, why: Why::Uncovered })));
        }
        Ok((pair.before.is_some() || pair.after.is_some()).then_some(Step::Differs { path, name, pair }))
    }

    /// Whether a directory stays because it holds a `.git` that was left alone, here or further down.
    pub(crate) fn holds_git(&self, directory: &TreePath) -> bool {
        let holds_git = self.holds_git.lock();
        // What is below a path follows it at once.
        holds_git.range(directory..).next().is_some_and(|next| next == directory || next.below(directory).is_some())
    }

    /// Whether the rules of the directory leave a path out, so that what is there is not known.
    pub(crate) fn is_uncovered(&self, path: &TreePath) -> bool {
        let Some(rules) = &self.rules_before else { return false };
        let mut here = Some(path.clone());
        while let Some(ancestor) = here {
            // What is in the way may be a directory or not.
            if [false, true].iter().any(|is_directory| rules.leave_out(&ancestor, *is_directory).unwrap_or(false)) {
                return true;
            }
            here = ancestor.split_last().map(|(parent, _)| parent);
        }
        false
    }

    /// Whether the job names a `.git`, or something in it, at or above this path.
    fn is_named_git(&self, path: &TreePath) -> bool {
        let Some(paths) = &self.paths else { return false };
        let mut here = Some(path.clone());
        while let Some(ancestor) = here {
            if paths.contains(&ancestor) && ancestor.is_in_git() {
                return true;
            }
            here = ancestor.split_last().map(|(parent, _)| parent);
        }
        false
    }
}

/// What stands for an entry in a directory. A conflict is shown by the first of its versions that is there.
pub(crate) fn shown(entry: Entry) -> Option<Entry> {
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
