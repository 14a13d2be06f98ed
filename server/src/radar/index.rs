//! The index of the radar: which workspaces changed which paths. Kept in memory and updated by differences, so that one more edit costs
//! time proportional to the edit, not to the number of workspaces.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use amalgam_engine::object::Root;
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{
    Change, DiffOptions, EntryKind, History, SnapshotId, Store, Time, TreePath, Workspaces, diff_roots, entry_at,
};
use amalgam_proto::Reason;
use amalgam_view::StateVersion;

use crate::error::{Error, Result};

/// The most paths of one workspace.
const WORKSPACE_PATHS_MAX: usize = 10_000;
/// The most paths of all workspaces; some 250 bytes each.
const PATHS_MAX: usize = 400_000;
/// The start of the names of workspaces that hold the heads of a remote. Their changes are those of the workspaces themselves.
const REMOTE_PREFIX: &str = "remote/";
/// The most snapshots that are remembered of a workspace to find out that its target got them.
const OWN_SNAPSHOTS_MAX: usize = 256;

/// The paths that open workspaces changed.
#[derive(Default)]
pub(super) struct Index {
    workspaces: BTreeMap<WorkspaceName, Tracked>,
    by_target: HashMap<WorkspaceName, BTreeSet<WorkspaceName>>,
    by_path: BTreeMap<TreePath, BTreeMap<WorkspaceName, Time>>,
    /// The heads of workspaces that are targets.
    target_heads: HashMap<WorkspaceName, Option<SnapshotId>>,
    /// The number of pairs of a workspace and a path.
    count: usize,
    /// The paths whose workspaces changed since the last call of [`take_changed`](Self::take_changed).
    changed: BTreeSet<TreePath>,
}

/// A workspace of the index.
#[derive(Default)]
struct Tracked {
    target: Option<WorkspaceName>,
    agent: String,
    head: Option<SnapshotId>,
    /// The last snapshot that it has in common with its target.
    base: Option<SnapshotId>,
    /// Its heads since the base; too many to tell if `None`.
    own: Option<Vec<SnapshotId>>,
    committed: BTreeSet<TreePath>,
    live: BTreeSet<TreePath>,
    live_version: Option<StateVersion>,
    is_incomplete: bool,
}

/// A workspace that changed a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) workspace: WorkspaceName,
    pub(super) agent: String,
    pub(super) since: Time,
    pub(super) is_uncommitted: bool,
}

/// The store as the index reads it.
pub(super) struct Reader<'a> {
    pub(super) store: &'a Store,
    pub(super) workspaces: &'a Workspaces,
    pub(super) history: &'a History,
}

impl Index {
    /// Empties the index, to read it anew. Its overlaps count as changed, because they may have ended.
    pub(super) fn clear(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        let overlaps = self.by_path.iter().filter(|(_, sides)| sides.len() > 1);
        changed.extend(overlaps.map(|(path, _)| path.clone()));
        *self = Self { changed, ..Self::default() };
    }

    /// Applies the state of a workspace's record: its head, its target, or its end.
    pub(super) fn apply(
        &mut self,
        reader: &Reader<'_>,
        name: &WorkspaceName,
        record: Option<&Workspace>,
        time: Time,
    ) -> Result<()> {
        if let Some(before) = self.target_heads.get(name).copied() {
            self.target_moved(reader, name, before, record.and_then(|record| record.head), time)?;
        }
        let is_copy = name.as_str().starts_with(REMOTE_PREFIX);
        let is_tracked = |record: &&Workspace| {
            !is_copy && !record.name.is_hidden() && (record.target.is_some() || record.base.is_some())
        };
        let open = record.filter(is_tracked);
        let Some(record) = open else {
            self.remove(name);
            return Ok(());
        };
        let known = self.workspaces.get(name);
        let is_step = known.is_some_and(|known| known.target == record.target && known.agent == record.agent);
        match (is_step, known.and_then(|known| known.head), record.head) {
            (true, before, after) if before == after => Ok(()),
            (true, Some(before), Some(after)) if is_only_parent(reader.store, before, after)? => {
                self.step(reader, name, before, after, time)
            }
            _ => self.read_all(reader, record, time),
        }
    }

    /// Applies a commit on top of the head. Reads only its difference.
    fn step(
        &mut self,
        reader: &Reader<'_>,
        name: &WorkspaceName,
        before: SnapshotId,
        after: SnapshotId,
        time: Time,
    ) -> Result<()> {
        let store = reader.store;
        let Some(tracked) = self.workspaces.get_mut(name) else { return Ok(()) };
        tracked.head = Some(after);
        push_own(&mut tracked.own, after);
        let base = tracked.base.map(|base| root_of(store, base)).transpose()?;
        let (from, to) = (store.snapshot(before)?.root, store.snapshot(after)?.root);
        let head = store.root(to)?;
        let mut is_cut = false;
        for (number, change) in diff_roots(store, Some(from), Some(to), DiffOptions::default())?.enumerate() {
            if number >= WORKSPACE_PATHS_MAX {
                is_cut = true;
                break;
            }
            let change = change?;
            if is_directory(&change) {
                continue;
            }
            let old = base.as_ref().map(|base| entry_at(store, base, &change.path)).transpose()?.flatten();
            let new = entry_at(store, &head, &change.path)?;
            let is_changed = match (&old, &new) {
                (Some(old), Some(new)) => old.node != new.node || old.mode != new.mode,
                (old, new) => old.is_some() != new.is_some(),
            };
            self.set_committed(name, &change.path, is_changed, time);
        }
        if is_cut && let Some(tracked) = self.workspaces.get_mut(name) {
            tracked.is_incomplete = true;
        }
        Ok(())
    }

    /// Reads all changes of a workspace since the last snapshot that it has in common with its target.
    fn read_all(&mut self, reader: &Reader<'_>, record: &Workspace, time: Time) -> Result<()> {
        let (store, name) = (reader.store, &record.name);
        let target = record.target.as_ref().map(|target| reader.workspaces.find(target)).transpose()?.flatten();
        let target_head = target.as_ref().and_then(|target| target.head);
        let base = match (target_head, record.head) {
            (Some(target), Some(head)) => reader.history.merge_bases(target, head)?.first().copied().or(record.base),
            _ => record.base,
        };
        self.set_target(name, record.target.as_ref(), target_head);
        let tracked = self.workspaces.entry(name.clone()).or_default();
        (tracked.agent, tracked.head, tracked.base) = (record.agent.clone(), record.head, base);
        tracked.own = Some(record.head.into_iter().collect());
        tracked.is_incomplete = false;
        let before = tracked.committed.clone();
        let root = |snapshot: Option<SnapshotId>| snapshot.map(|id| store.snapshot(id)).transpose();
        let (from, to) = (root(base)?.map(|found| found.root), root(record.head)?.map(|found| found.root));
        let mut now = BTreeSet::new();
        let mut is_cut = false;
        for change in diff_roots(store, from, to, DiffOptions::default())? {
            let change = change?;
            if is_directory(&change) {
                continue;
            }
            if now.len() >= WORKSPACE_PATHS_MAX {
                is_cut = true;
                break;
            }
            now.insert(change.path);
        }
        for path in before.difference(&now) {
            self.set_committed(name, path, false, time);
        }
        for path in now.difference(&before) {
            self.set_committed(name, path, true, time);
        }
        if is_cut && let Some(tracked) = self.workspaces.get_mut(name) {
            tracked.is_incomplete = true;
        }
        Ok(())
    }

    /// Applies the move of a target: reads the workspaces again whose snapshots it got.
    fn target_moved(
        &mut self,
        reader: &Reader<'_>,
        target: &WorkspaceName,
        before: Option<SnapshotId>,
        after: Option<SnapshotId>,
        time: Time,
    ) -> Result<()> {
        if before == after {
            return Ok(());
        }
        self.target_heads.insert(target.clone(), after);
        let new = match (before, after) {
            (Some(before), Some(after)) if reader.history.is_ancestor(before, after)? => {
                Some(reader.history.range(after, &[before])?.into_iter().collect::<BTreeSet<_>>())
            }
            _ => None,
        };
        let names: Vec<_> = self.by_target.get(target).into_iter().flatten().cloned().collect();
        for name in names {
            let own = self.workspaces.get(&name).and_then(|tracked| tracked.own.as_ref());
            let is_concerned = match (&new, own) {
                (Some(new), Some(own)) => own.iter().any(|snapshot| new.contains(snapshot)),
                _ => true,
            };
            if is_concerned && let Some(record) = reader.workspaces.find(&name)? {
                match self.read_all(reader, &record, time) {
                    Err(failure) if is_dropped(&failure) => self.mark_incomplete(&name),
                    done => done?,
                }
            }
        }
        Ok(())
    }

    fn set_target(&mut self, name: &WorkspaceName, target: Option<&WorkspaceName>, head: Option<SnapshotId>) {
        let before = self.workspaces.get(name).and_then(|tracked| tracked.target.clone());
        if before.as_ref() != target {
            self.leave_target(name, before.as_ref());
            self.workspaces.entry(name.clone()).or_default().target = target.cloned();
        }
        if let Some(target) = target {
            self.by_target.entry(target.clone()).or_default().insert(name.clone());
            self.target_heads.insert(target.clone(), head);
        }
    }

    fn leave_target(&mut self, name: &WorkspaceName, target: Option<&WorkspaceName>) {
        let Some(target) = target else { return };
        if let Some(names) = self.by_target.get_mut(target) {
            names.remove(name);
            if names.is_empty() {
                self.by_target.remove(target);
                self.target_heads.remove(target);
            }
        }
    }

    fn remove(&mut self, name: &WorkspaceName) {
        let Some(tracked) = self.workspaces.remove(name) else { return };
        self.leave_target(name, tracked.target.as_ref());
        for path in tracked.committed.union(&tracked.live) {
            self.leave(name, path);
        }
    }

    fn set_committed(&mut self, name: &WorkspaceName, path: &TreePath, is_changed: bool, time: Time) {
        let is_full = self.count >= PATHS_MAX;
        let Some(tracked) = self.workspaces.get_mut(name) else { return };
        if is_changed {
            if is_full || tracked.committed.len() >= WORKSPACE_PATHS_MAX {
                tracked.is_incomplete = true;
                return;
            }
            tracked.committed.insert(path.clone());
            self.enter(name, path, time);
        } else if tracked.committed.remove(path) && !tracked.live.contains(path) {
            self.leave(name, path);
        }
    }

    /// Sets the uncommitted changes of a live tree, as they are in a version of it.
    pub(super) fn set_live(
        &mut self,
        name: &WorkspaceName,
        version: Option<StateVersion>,
        paths: impl IntoIterator<Item = TreePath>,
        time: Time,
    ) {
        let Some(tracked) = self.workspaces.get_mut(name) else { return };
        let mut paths = paths.into_iter();
        let now: BTreeSet<_> = paths.by_ref().take(WORKSPACE_PATHS_MAX).collect();
        tracked.is_incomplete |= paths.next().is_some();
        let before = std::mem::replace(&mut tracked.live, now.clone());
        tracked.live_version = version;
        let gone: Vec<_> = before.difference(&now).filter(|path| !tracked.committed.contains(*path)).cloned().collect();
        gone.iter().for_each(|path| self.leave(name, path));
        for path in now.difference(&before) {
            if self.count < PATHS_MAX {
                self.enter(name, path, time);
            }
        }
    }

    /// Returns whether the uncommitted changes of a live tree are known in this version.
    pub(super) fn knows_live(&self, name: &WorkspaceName, version: StateVersion) -> bool {
        self.workspaces.get(name).is_none_or(|tracked| tracked.live_version == Some(version))
    }

    /// Returns the workspaces with a live tree that is known.
    pub(super) fn live_workspaces(&self) -> Vec<WorkspaceName> {
        let is_live = |(_, tracked): &(&WorkspaceName, &Tracked)| tracked.live_version.is_some();
        self.workspaces.iter().filter(is_live).map(|(name, _)| name.clone()).collect()
    }

    fn enter(&mut self, name: &WorkspaceName, path: &TreePath, time: Time) {
        let sides = self.by_path.entry(path.clone()).or_default();
        if sides.contains_key(name) {
            return;
        }
        sides.insert(name.clone(), time);
        self.count += 1;
        if sides.len() > 1 {
            self.changed.insert(path.clone());
        }
    }

    fn leave(&mut self, name: &WorkspaceName, path: &TreePath) {
        let Some(sides) = self.by_path.get_mut(path) else { return };
        if sides.remove(name).is_none() {
            return;
        }
        self.count -= 1;
        if sides.is_empty() {
            self.by_path.remove(path);
        } else {
            self.changed.insert(path.clone());
        }
    }

    /// Returns the paths whose workspaces changed since the last call, if at least two had changed them before or have now.
    pub(super) fn take_changed(&mut self) -> BTreeSet<TreePath> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the workspaces that changed a path, the earliest first.
    pub(super) fn sides(&self, path: &TreePath) -> Vec<Side> {
        let side = |(name, since): (&WorkspaceName, &Time)| {
            let tracked = self.workspaces.get(name);
            Side {
                workspace: name.clone(),
                agent: tracked.map(|tracked| tracked.agent.clone()).unwrap_or_default(),
                since: *since,
                is_uncommitted: tracked.is_some_and(|tracked| tracked.live.contains(path)),
            }
        };
        let mut sides: Vec<_> = self.by_path.get(path).into_iter().flatten().map(side).collect();
        sides.sort_by(|one, other| (one.since, &one.workspace).cmp(&(other.since, &other.workspace)));
        sides
    }

    /// Returns the paths that several workspaces changed, after a path, in order.
    pub(super) fn overlaps(
        &self,
        workspace: Option<&WorkspaceName>,
        is_wanted: impl Fn(&TreePath) -> bool,
        after: Option<&TreePath>,
        limit: usize,
    ) -> Vec<TreePath> {
        let has_others = |path: &TreePath| self.by_path.get(path).is_some_and(|sides| sides.len() > 1);
        let is_after = |path: &TreePath| after.is_none_or(|after| path > after);
        let is_one = |path: &&TreePath| is_after(path) && has_others(path) && is_wanted(path);
        match workspace {
            Some(workspace) => {
                let Some(tracked) = self.workspaces.get(workspace) else { return Vec::new() };
                tracked.committed.union(&tracked.live).filter(is_one).take(limit).cloned().collect()
            }
            None => self.by_path.keys().filter(is_one).take(limit).cloned().collect(),
        }
    }

    /// Records that the changes of a workspace cannot all be known.
    pub(super) fn mark_incomplete(&mut self, name: &WorkspaceName) {
        self.workspaces.entry(name.clone()).or_default().is_incomplete = true;
    }

    /// Returns the workspaces whose changes are not all known.
    pub(super) fn incomplete(&self) -> Vec<WorkspaceName> {
        let is_incomplete = |(_, tracked): &(&WorkspaceName, &Tracked)| tracked.is_incomplete;
        self.workspaces.iter().filter(is_incomplete).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the number of pairs of a workspace and a path.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.count
    }
}

/// Returns whether a failure means that retention dropped the trees of a workspace.
pub(super) fn is_dropped(failure: &Error) -> bool {
    matches!(failure.reason(), Reason::NotFound | Reason::Corrupt)
}

fn push_own(own: &mut Option<Vec<SnapshotId>>, head: SnapshotId) {
    match own {
        Some(heads) if heads.len() < OWN_SNAPSHOTS_MAX => heads.push(head),
        _ => *own = None,
    }
}

fn root_of(store: &Store, snapshot: SnapshotId) -> Result<std::sync::Arc<Root>> {
    Ok(store.root(store.snapshot(snapshot)?.root)?)
}

/// Returns whether a snapshot is the only parent of another one.
fn is_only_parent(store: &Store, parent: SnapshotId, of: SnapshotId) -> Result<bool> {
    Ok(store.snapshot(of)?.parents == [parent])
}

fn is_directory(change: &Change) -> bool {
    let entries = change.before.iter().chain(&change.after);
    entries.into_iter().all(|entry| entry.kind() == EntryKind::Directory)
}
