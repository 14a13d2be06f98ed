//! The versions of one path: the snapshots that changed it.

use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::graph::{Graph, GraphIndex, SameAs};
use super::{History, yield_lock};
use crate::changed_paths::PathMarks;
use crate::directory::entries_at;
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::insight::renamed_from;
use crate::name::TreePath;
use crate::object::{Entry, Snapshot};
use crate::store::Store;

/// Number of trees that are looked up in one batch: few at first, for callers that want only the newest version, then more.
const LOOKAHEAD_MIN: usize = 8;
const LOOKAHEAD_MAX: usize = 1_024;

/// A leap over snapshots that did not change a path ends at the latest at a generation that is a multiple of this number, so that
/// merged lines of history are not followed once for each of them.
const LEAP_GENERATIONS: u64 = 256;

/// The change of a path in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathChange {
    /// The path is new.
    Added,
    /// The path was removed.
    Removed,
    /// The contents or attributes differ, without times.
    Modified,
    /// It was renamed, with or without changes.
    Renamed {
        /// The old path.
        from: TreePath,
    },
}

/// A snapshot that changed a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The snapshot.
    pub id: SnapshotId,
    /// The author, time and message.
    pub snapshot: Arc<Snapshot>,
    /// The path at that time, which differs from the requested one before a rename.
    pub path: TreePath,
    /// The change.
    pub change: PathChange,
    /// The entry at that time; `None` if it was removed.
    pub entry: Option<Entry>,
}

/// Iterates over the versions of a path, newest first. Reads on demand.
///
/// A merge that took a path unchanged from one of its parents is not a version, and only that parent is followed: the others did
/// not contribute to the path. Snapshots whose tree was dropped by retention are skipped; their changes are attributed to the
/// next one.
pub struct Versions {
    history: History,
    follow: bool,
    open: BinaryHeap<(u64, GraphIndex, TreePath)>,
    seen: HashSet<(GraphIndex, TreePath)>,
    lookup: EntryLookup,
}

impl History {
    /// Returns the versions of a path in the history of a snapshot. With `follow`, continues after renames.
    pub fn versions(&self, head: SnapshotId, path: &TreePath, follow: bool) -> Result<Versions> {
        let mut versions = Versions {
            history: self.clone(),
            follow,
            open: BinaryHeap::new(),
            seen: HashSet::new(),
            lookup: EntryLookup::default(),
        };
        let mut graph = self.graph.lock();
        let place = graph.need(&self.store, head)?;
        versions.push(&graph, place, path.clone());
        drop(graph);
        Ok(versions)
    }
}

impl Versions {
    fn push(&mut self, graph: &Graph, place: GraphIndex, path: TreePath) {
        if self.seen.insert((place, path.clone())) {
            self.open.push((graph.generation(place), place, path));
        }
    }

    fn advance(&mut self) -> Result<Option<Version>> {
        let history = self.history.clone();
        let store = &history.store;
        let mut graph = history.graph.lock();
        while let Some((_, place, path)) = self.open.pop() {
            yield_lock(&mut graph);
            if let Some(place) = leap(store, &mut graph, place, &path)? {
                self.push(&graph, place, path);
                continue;
            }
            let Some(entry) = self.lookup.entry(store, &mut graph, place, &path)? else {
                // Its tree was dropped: continue with its parents.
                for parent in graph.parents(store, place)? {
                    self.push(&graph, parent, path.clone());
                }
                continue;
            };
            let mut parents = Vec::new();
            for parent in self.lookup.parents_with_trees(store, &mut graph, place)? {
                let before = self.lookup.entry(store, &mut graph, parent, &path)?.expect("it has a tree");
                parents.push((parent, before));
            }
            if let Some((same, _)) = parents.iter().find(|(_, before)| is_same(before.as_ref(), entry.as_ref())) {
                self.push(&graph, *same, path);
                continue;
            }
            if parents.is_empty() && entry.is_none() {
                continue;
            }
            let before = parents.first().and_then(|(_, before)| before.as_ref());
            let mut from = None;
            if let (true, Some(_), None, Some((parent, _))) = (self.follow, &entry, before, parents.first()) {
                let roots = [graph.root(*parent), graph.root(place)];
                from = MutexGuard::unlocked(&mut graph, || renamed_from(store, roots[0], roots[1], &path))?;
            }
            let earlier = from.clone().unwrap_or_else(|| path.clone());
            for (parent, _) in &parents {
                self.push(&graph, *parent, earlier.clone());
            }
            let change = match (before, &entry, from) {
                (_, _, Some(from)) => PathChange::Renamed { from },
                (None, _, None) => PathChange::Added,
                (Some(_), None, None) => PathChange::Removed,
                (Some(_), Some(_), None) => PathChange::Modified,
            };
            let id = graph.id(place);
            return Ok(Some(Version { id, snapshot: store.snapshot(id)?, path, change, entry }));
        }
        Ok(None)
    }
}

impl Iterator for Versions {
    type Item = Result<Version>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.advance() {
            Ok(version) => version.map(Ok),
            Err(error) => {
                self.open.clear();
                Some(Err(error))
            }
        }
    }
}

/// Follows first parents while a path is certainly the same, and returns the last one: an ancestor from which the versions
/// continue as they would from here. Returns `None` if that is the start itself.
///
/// From a snapshot with a tree it only leaps to one with a tree, because changes of snapshots without trees are attributed to the
/// next one. It passes a merge only if both its tree and that of its first parent exist, because otherwise the other parents
/// contribute to the result.
pub(super) fn leap(store: &Store, graph: &mut Graph, from: GraphIndex, path: &TreePath) -> Result<Option<GraphIndex>> {
    let Some(asked) = PathMarks::of(path) else { return Ok(None) };
    let mut passed = Vec::new();
    let mut here = from;
    while let Some(same) = graph.untouched(store, here, &asked)? {
        let next = match same {
            SameAs::OnlyParent(next) => next,
            SameAs::FirstParent(next) if has_tree(store, graph, here)? && has_tree(store, graph, next)? => next,
            SameAs::FirstParent(_) => break,
        };
        passed.push(here);
        here = next;
        if graph.generation(here).is_multiple_of(LEAP_GENERATIONS) {
            break;
        }
    }
    let end = here;
    while here != from && !has_tree(store, graph, here)? {
        here = passed.pop().expect("it began where it came from");
    }
    if here == from && end != from && !has_tree(store, graph, from)? {
        // None of them has a tree, so they are equivalent.
        here = end;
    }
    Ok((here != from).then_some(here))
}

fn has_tree(store: &Store, graph: &Graph, place: GraphIndex) -> Result<bool> {
    store.has(graph.root(place).object())
}

pub(super) fn is_same(before: Option<&Entry>, after: Option<&Entry>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => before.equal_but_for_times(after),
        (before, after) => before.is_none() && after.is_none(),
    }
}

fn is_untouched(store: &Store, graph: &mut Graph, place: GraphIndex, asked: Option<&PathMarks>) -> Result<bool> {
    match asked {
        Some(asked) => Ok(graph.untouched(store, place, asked)?.is_some()),
        None => Ok(false),
    }
}

/// Entries of paths in old trees, looked up in batches ahead of the walk.
#[derive(Default)]
pub(super) struct EntryLookup {
    known: HashMap<TreePath, HashMap<GraphIndex, Option<Option<Entry>>>>,
    ahead: usize,
}

impl EntryLookup {
    /// Returns the entry of a path in a snapshot. The outer `None` stands for a dropped tree.
    pub(super) fn entry(
        &mut self,
        store: &Store,
        graph: &mut Graph,
        place: GraphIndex,
        path: &TreePath,
    ) -> Result<Option<Option<Entry>>> {
        if !self.known.contains_key(path) {
            self.known.insert(path.clone(), HashMap::new());
        }
        let known = self.known.get_mut(path).expect("it was just put there");
        if let Some(entry) = known.get(&place) {
            return Ok(entry.clone());
        }
        self.ahead = (self.ahead * 2).clamp(LOOKAHEAD_MIN, LOOKAHEAD_MAX);
        let mut places = vec![place];
        let mut here = place;
        let asked = PathMarks::of(path);
        while places.len() < self.ahead
            && !is_untouched(store, graph, here, asked.as_ref())?
            && let Some(parent) = graph.parents(store, here)?.next()
            && !known.contains_key(&parent)
        {
            places.push(parent);
            here = parent;
        }
        if path.is_root() {
            let roots: Vec<_> = places.iter().map(|place| graph.root(*place)).collect();
            let entries = store.roots(&roots)?.into_iter().map(|root| root.map(|root| Some(root.directory.clone())));
            known.extend(places.into_iter().zip(entries));
            return Ok(known[&place].clone());
        }
        let tops = graph.tops(store, &places)?;
        let there: Vec<_> = tops.iter().copied().flatten().collect();
        let mut found = entries_at(store, &there, path)?.into_iter();
        for (place, top) in places.into_iter().zip(tops) {
            let entry = top.and_then(|_| found.next().expect("an answer for each"));
            // If the root exists, everything below it exists, unless it is damaged.
            if let (None, Some(Some(top))) = (&entry, top)
                && store.has(graph.root(place).object())?
            {
                return Err(Error::Missing { id: top.object() });
            }
            known.insert(place, entry);
        }
        Ok(known[&place].clone())
    }

    /// Returns the nearest ancestors that have trees.
    pub(super) fn parents_with_trees(
        &mut self,
        store: &Store,
        graph: &mut Graph,
        of: GraphIndex,
    ) -> Result<Vec<GraphIndex>> {
        let mut found = Vec::new();
        let mut open: Vec<_> = graph.parents(store, of)?.collect();
        open.reverse();
        while let Some(place) = open.pop() {
            // A cached lookup of any path tells whether the tree exists, and is needed anyway.
            let is_there = match self.known.values().find_map(|known| known.get(&place)) {
                Some(entry) => entry.is_some(),
                None => store.has(graph.root(place).object())?,
            };
            if !is_there {
                open.extend(graph.parents(store, place)?);
            } else if !found.contains(&place) {
                found.push(place);
            }
        }
        Ok(found)
    }
}
