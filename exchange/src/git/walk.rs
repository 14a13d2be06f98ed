//! Selects the commits to import: those between the tip and known commits, or the depth limit.

use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};

use amalgam_engine::{Progress, SnapshotId, Store, Time};

use super::commit::Commit;
use super::history::GitHistory;
use super::keys::{KEY_COMMIT, KEY_HISTORY, KEY_SUBMODULES};
use super::objects::{Oid, Reader};
use crate::error::Result;

/// Commits to import, parents before children.
pub(super) struct Plan {
    pub(super) order: Vec<Oid>,
    /// Commits whose parents are not imported.
    pub(super) boundary: HashSet<Oid>,
    /// Snapshots of commits that were imported before.
    pub(super) known: HashMap<Oid, SnapshotId>,
}

/// The options of an import: how much history, and which parts.
pub(super) struct WalkOptions<'a> {
    pub(super) history: GitHistory,
    /// Snapshots whose histories may contain earlier imports.
    pub(super) heads: &'a [SnapshotId],
    /// Whether snapshots have the files of submodules.
    pub(super) submodules: bool,
}

/// Snapshots below the known heads, opened newest first as the walk goes back in time.
struct KnownCommits<'a> {
    store: &'a Store,
    open: BinaryHeap<(Time, SnapshotId)>,
    seen: HashSet<SnapshotId>,
    found: HashMap<Oid, SnapshotId>,
    is_limited_taken: bool,
    submodules: bool,
}

impl KnownCommits<'_> {
    fn add(&mut self, snapshot: SnapshotId) {
        // A snapshot that is gone is not known; the commit is imported again.
        if self.seen.insert(snapshot)
            && let Ok(found) = self.store.snapshot(snapshot)
        {
            // Later commits on top of an import tell nothing about the age of git commits.
            let is_imported = found.metadata.contains_key(KEY_COMMIT);
            self.open.push((if is_imported { found.time } else { Time(i64::MAX) }, snapshot));
        }
    }

    /// Reads all snapshots that are not older than this.
    fn advance(&mut self, time: Time) -> Result<()> {
        while self.open.peek().is_some_and(|(newest, _)| *newest >= time) {
            let (_, id) = self.open.pop().expect("one was seen");
            let snapshot = self.store.snapshot(id)?;
            let commit = snapshot.metadata.get(KEY_COMMIT).and_then(|hex| Oid::from_hex(hex.as_bytes()));
            let is_limited = snapshot.metadata.contains_key(KEY_HISTORY);
            if let Some(commit) = commit
                && (self.is_limited_taken || !is_limited)
                && snapshot.metadata.contains_key(KEY_SUBMODULES) == self.submodules
            {
                self.found.entry(commit).or_insert(id);
            }
            snapshot.parents.iter().for_each(|parent| self.add(*parent));
        }
        Ok(())
    }
}

pub(super) fn plan(
    store: &Store,
    reader: &Reader,
    tip: Oid,
    options: &WalkOptions<'_>,
    progress: &Progress,
) -> Result<Plan> {
    let WalkOptions { history, heads, submodules } = *options;
    let is_limited_taken = history != GitHistory::All;
    let (open, seen, found) = (BinaryHeap::new(), HashSet::new(), HashMap::new());
    let mut known = KnownCommits { store, open, seen, found, is_limited_taken, submodules };
    heads.iter().for_each(|head| known.add(*head));
    let shallow: HashSet<Oid> = reader.shallow()?.into_iter().collect();
    let depth_max = match history {
        GitHistory::All => u64::MAX,
        GitHistory::Last(commits) => commits.max(1),
    };
    let mut boundary = HashSet::new();
    let mut parents: HashMap<Oid, Vec<Oid>> = HashMap::new();
    let mut queue = CommitQueue::new(history);
    queue.push(reader, tip, 1)?;
    while let Some((oid, depth, commit)) = queue.pop() {
        progress.add_items(1);
        progress.check()?;
        known.advance(commit.time())?;
        if known.found.contains_key(&oid) || parents.contains_key(&oid) {
            continue;
        }
        let cut = shallow.contains(&oid) || depth >= depth_max;
        if cut && !commit.parents.is_empty() {
            // A parent that is known joins the two histories all the same.
            let older =
                commit.parents.iter().filter_map(|parent| reader.commit(*parent).ok().map(|raw| (*parent, raw)));
            for (parent, raw) in older {
                known.advance(Commit::parse(parent, &raw)?.time())?;
            }
        }
        let taken: Vec<Oid> = match cut {
            true => commit.parents.iter().copied().filter(|parent| known.found.contains_key(parent)).collect(),
            false => commit.parents.clone(),
        };
        if taken.len() < commit.parents.len() {
            boundary.insert(oid);
        }
        for parent in &taken {
            if !known.found.contains_key(parent) && !parents.contains_key(parent) {
                queue.push(reader, *parent, depth + 1)?;
            }
        }
        parents.insert(oid, taken);
    }
    let order = parents_first(tip, &parents);
    Ok(Plan { order, boundary, known: known.found })
}

/// Commits to look at: the newest first where everything is imported, so that known ones are met early; level by level where
/// the number of levels is limited.
struct CommitQueue {
    by_time: Option<BTreeSet<(Time, Oid)>>,
    by_depth: VecDeque<Oid>,
    waiting: HashMap<Oid, (u64, Commit)>,
}

impl CommitQueue {
    fn new(history: GitHistory) -> Self {
        Self {
            by_time: (history == GitHistory::All).then(BTreeSet::new),
            by_depth: VecDeque::new(),
            waiting: HashMap::new(),
        }
    }

    fn push(&mut self, reader: &Reader, oid: Oid, depth: u64) -> Result<()> {
        if self.waiting.contains_key(&oid) {
            return Ok(());
        }
        let commit = Commit::parse(oid, &reader.commit(oid)?)?;
        match &mut self.by_time {
            Some(by_time) => drop(by_time.insert((commit.time(), oid))),
            None => self.by_depth.push_back(oid),
        }
        // The walk needs neither messages nor authors.
        let commit = Commit { message: Vec::new(), author: Vec::new(), ..commit };
        self.waiting.insert(oid, (depth, commit));
        Ok(())
    }

    fn pop(&mut self) -> Option<(Oid, u64, Commit)> {
        let oid = match &mut self.by_time {
            Some(by_time) => by_time.pop_last()?.1,
            None => self.by_depth.pop_front()?,
        };
        let (depth, commit) = self.waiting.remove(&oid).expect("what waits is known");
        Some((oid, depth, commit))
    }
}

/// Returns the commits that the tip reaches, parents before children. The order depends on the graph only.
fn parents_first(tip: Oid, parents: &HashMap<Oid, Vec<Oid>>) -> Vec<Oid> {
    let mut order = Vec::with_capacity(parents.len());
    let mut done = HashSet::with_capacity(parents.len());
    let mut open = vec![(tip, 0)];
    while let Some((oid, next)) = open.pop() {
        if done.contains(&oid) {
            continue;
        }
        let Some(above) = parents.get(&oid) else { continue };
        match above.get(next) {
            Some(parent) => {
                open.push((oid, next + 1));
                open.push((*parent, 0));
            }
            None => {
                done.insert(oid);
                order.push(oid);
            }
        }
    }
    order
}
