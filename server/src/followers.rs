//! Followers: workspaces that are kept up to date with a source while agents work in them.
//!
//! The source is part of a workspace's record, so it moves by operations. A thread reads the operation log: it learns which workspaces
//! follow what, and which sources have moved. An update is a merge of the source into the follower, by the code of `amalgam merge`, except
//! that writers of a mount are never overruled. Each head of a source is tried once, so an update that was undone stays undone until the
//! source moves on.

mod origin;
mod s3;
mod table;
#[cfg(test)]
mod tests;
mod tracking;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{Follow, FollowMode, Workspace, WorkspaceName};
use amalgam_engine::{DiffOptions, OperationContext, OperationCursor, SnapshotId, Time, diff_roots};
use amalgam_proto::{Reason, v1};
use parking_lot::{Condvar, Mutex};
use tracing::info;

use crate::call_log::{warn_failure, workspace_id};
use crate::caller::Caller;
use crate::context::Context;
use crate::directory::Directories;
use crate::disk_quota::DiskQuota;
use crate::error::{Error, Result};
use crate::follow_book::{LastUpdate, UpdateOutcome};
use crate::merging::Merging;
use crate::states::is_directory;
use crate::views::{Views, WriterRule};
use origin::{FileVersion, Origin};
use table::Table;

/// The actor in the operation log for updates of followers.
const FOLLOWER: &str = "amalgam";
/// How long the thread waits for an operation before it checks the intervals.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long the thread sleeps while no workspace follows a source.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// The most updates that run at once.
const PARALLEL_UPDATES_MAX: usize = 8;
/// The interval of a follower without a mode.
const EVERY_SECONDS_DEFAULT: u32 = 30;

/// Keeps followers up to date.
#[derive(Clone)]
pub(crate) struct Followers {
    context: Arc<Context>,
    merging: Merging,
    directories: Directories,
    views: Views,
    quota: DiskQuota,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    table: Mutex<Table>,
    /// One lock for each follower; the thread that updates the follower holds it.
    turns: Mutex<HashMap<WorkspaceName, Arc<Mutex<()>>>>,
    ending: Mutex<bool>,
    changed: Condvar,
    /// The archives that were imported, by tracking workspace.
    archives: Mutex<HashMap<String, FileVersion>>,
}

/// An update, with the merge if there was one.
pub(crate) struct Updated {
    pub(crate) update: LastUpdate,
    pub(crate) merge: Option<v1::Merge>,
}

impl Followers {
    pub(crate) fn new(
        context: &Arc<Context>,
        merging: &Merging,
        directories: &Directories,
        views: &Views,
        quota: &DiskQuota,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            merging: merging.clone(),
            directories: directories.clone(),
            views: views.clone(),
            quota: quota.clone(),
            inner: Arc::default(),
        }
    }

    /// Makes a workspace follow a source, and updates it. Returns the workspace and the update; an update that failed is tried again later.
    pub(crate) fn follow(
        &self,
        request: &v1::FollowSourceRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<(v1::Workspace, Option<Updated>)> {
        let name = workspace_id(&request.workspace)?;
        self.context.workspaces.get(&name)?;
        if self.context.done_before(act)?.is_some() {
            return Ok((self.views.workspace_message(&name)?, None));
        }
        let mode = mode_asked_for(request)?;
        let origin = Origin::of_request(request)?;
        if origin.is_some() && mode == FollowMode::Event {
            let message = "only a workspace tells when it changes; follow other sources with an interval";
            return Err(Error::new(Reason::Invalid, message));
        }
        let source = match (&origin, &request.source) {
            (None, Some(v1::follow_source_request::Source::SourceWorkspace(source))) => {
                self.context.workspaces.get(&workspace_id(source)?)?.name
            }
            (None, _) => return Err(Error::new(Reason::Invalid, "source: name what to follow")),
            (Some(origin), _) if request.dry_run => self.tracking_workspace(&name, origin)?,
            (Some(origin), _) => self.track(&name, origin, act)?,
        };
        if source == name {
            return Err(Error::new(Reason::Invalid, format!("{name} cannot follow itself")));
        }
        let follow = Follow { source, mode, origin: origin.as_ref().map(Origin::text).unwrap_or_default() };
        if request.dry_run {
            let mut workspace = self.context.workspaces.get(&name)?;
            workspace.follow = Some(follow);
            let following = self.context.following.following_message(&workspace);
            return Ok((v1::Workspace { following, ..self.views.workspace_message(&name)? }, None));
        }
        let turn = self.turn_of(&name);
        let _turn = turn.lock();
        self.context.workspaces.follow(&name, Some(&follow), act)?;
        self.inner.changed.notify_one();
        let act = &OperationContext { request: None, ..act.clone() };
        let updated = match self.update_in_turn(&name, act, caller) {
            Ok(updated) => updated,
            Err(failure) => {
                warn_failure(&failure, &format!("first update of {name} from its source failed"));
                let last = self.context.following.last(&name, &follow.source);
                last.map(|update| Updated { update, merge: None })
            }
        };
        Ok((self.views.workspace_message(&name)?, updated))
    }

    /// Returns the lock that serializes the updates of a follower.
    fn turn_of(&self, name: &WorkspaceName) -> Arc<Mutex<()>> {
        Arc::clone(self.inner.turns.lock().entry(name.clone()).or_default())
    }

    /// Forgets the last update and the lock of a workspace that does not exist any more.
    fn forget(&self, name: &WorkspaceName) {
        if let Err(failure) = self.context.following.record(name, None) {
            warn_failure(&failure, &format!("the result of the last update of {name}, which is gone, was not removed"));
        }
        let mut turns = self.inner.turns.lock();
        // A thread that holds or awaits the lock has a reference of its own.
        if turns.get(name).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(name);
        }
    }

    /// Ends the following of a workspace.
    pub(crate) fn unfollow(
        &self,
        request: &v1::UnfollowSourceRequest,
        act: &OperationContext,
    ) -> Result<v1::Workspace> {
        let name = workspace_id(&request.workspace)?;
        if self.context.done_before(act)?.is_none() {
            self.context.workspaces.follow(&name, None, act)?;
            self.context.following.record(&name, None)?;
        }
        self.views.workspace_message(&name)
    }

    /// Updates a follower now. Returns nothing if the workspace follows no source.
    pub(crate) fn update(
        &self,
        name: &WorkspaceName,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<Option<Updated>> {
        // Only followers have a lock.
        if self.context.workspaces.get(name)?.follow.is_none() {
            return Ok(None);
        }
        let turn = self.turn_of(name);
        let _turn = turn.lock();
        self.update_in_turn(name, act, caller)
    }

    /// Updates a follower whose lock the caller holds.
    fn update_in_turn(&self, name: &WorkspaceName, act: &OperationContext, caller: &Caller) -> Result<Option<Updated>> {
        let workspace = self.context.workspaces.get(name)?;
        let Some(follow) = workspace.follow.clone() else { return Ok(None) };
        let time = self.context.now().0;
        let started = LastUpdate { time, source: follow.source.to_string(), ..LastUpdate::default() };
        let updated = self.update_from(&workspace, &follow, started.clone(), act, caller);
        let failure = match updated {
            Ok(done) => {
                // An update without changes is not recorded, so that the last one that changed something stays.
                let known = self.context.following.last(name, &follow.source);
                let is_news = done.update.how != UpdateOutcome::Already
                    || known.is_none_or(|known| known.tried != done.update.tried || known.how == UpdateOutcome::Failed);
                if is_news {
                    self.context.following.record(name, Some(done.update.clone()))?;
                }
                return Ok(Some(done));
            }
            Err(failure) => failure,
        };
        // A workspace that was removed meanwhile keeps no result.
        if !matches!(self.context.workspaces.find(name), Ok(None)) {
            let (how, reason) = (UpdateOutcome::Failed, failure.to_string());
            self.context.following.record(name, Some(LastUpdate { how, reason, ..started }))?;
        }
        Err(failure)
    }

    fn update_from(
        &self,
        workspace: &Workspace,
        follow: &Follow,
        mut update: LastUpdate,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<Updated> {
        let name = &workspace.name;
        if let Some(origin) = Origin::of_text(&follow.origin) {
            self.refresh(name, &follow.source, &origin, act)?;
        }
        let Some(theirs) = self.source_head(follow)? else { return Ok(Updated { update, merge: None }) };
        update.tried = amalgam_proto::snapshot_name(theirs);
        let before = workspace.head;
        if self.has(before, theirs)? {
            // A process that was killed, or a busy writer, left the files behind the head.
            self.directories.catch_up_files(name, &mut v1::Merge::default(), act)?;
            return Ok(Updated { update, merge: None });
        }
        let before = self.bring_along(name, before, act)?;
        let request = self.merge_request(name, follow, false);
        let merge = self.merging.merge_with(&request, WriterRule::LetWrite, act, caller)?;
        update.reason = merge.reason.clone();
        update.how = match merge.how() {
            v1::MergeHow::Refused => UpdateOutcome::Refused,
            v1::MergeHow::Already => UpdateOutcome::Already,
            _ if !merge.conflicts.is_empty() => UpdateOutcome::Conflicts,
            _ => UpdateOutcome::Updated,
        };
        self.count(&mut update, before, theirs, &merge)?;
        Ok(Updated { update, merge: Some(merge) })
    }

    /// Brings a live tree that stayed behind to the head of its workspace, so that the merge need not replace it. Returns the head.
    fn bring_along(
        &self,
        name: &WorkspaceName,
        head: Option<SnapshotId>,
        act: &OperationContext,
    ) -> Result<Option<SnapshotId>> {
        if !self.views.is_behind(name)? {
            return Ok(head);
        }
        self.directories.catch_up_files(name, &mut v1::Merge::default(), act)?;
        match self.views.is_behind(name)? {
            false => self.context.head(name),
            true => {
                let message =
                    format!("processes write into the mount of {name} all the time; it is updated when they pause");
                Err(Error::new(Reason::Busy, message))
            }
        }
    }

    /// Previews an update: what the source has in the store, and what the follower's files hold.
    pub(crate) fn preview(&self, name: &WorkspaceName, act: &OperationContext, caller: &Caller) -> Result<v1::Merge> {
        let workspace = self.context.workspaces.get(name)?;
        let follow = workspace.follow.ok_or_else(|| follows_nothing(name))?;
        self.merging.merge_workspaces(&self.merge_request(name, &follow, true), act, caller)
    }

    fn merge_request(&self, name: &WorkspaceName, follow: &Follow, dry_run: bool) -> v1::MergeWorkspacesRequest {
        v1::MergeWorkspacesRequest {
            target: amalgam_proto::workspace_name(name),
            sources: vec![amalgam_proto::workspace_name(&follow.source)],
            message: format!("update from {}", follow.source),
            dry_run,
            ..v1::MergeWorkspacesRequest::default()
        }
    }

    fn source_head(&self, follow: &Follow) -> Result<Option<SnapshotId>> {
        match self.context.workspaces.find(&follow.source)? {
            Some(source) => Ok(source.head),
            None => {
                let message =
                    format!("{} does not exist any more; `amalgam follow` names another source", follow.source);
                Err(Error::new(Reason::NotFound, message))
            }
        }
    }

    fn has(&self, head: Option<SnapshotId>, other: SnapshotId) -> Result<bool> {
        let Some(head) = head else { return Ok(false) };
        Ok(head == other || self.context.history.is_ancestor(other, head)?)
    }

    /// Counts the files that the source changed since the last common snapshot, and those that the update changed in the follower.
    fn count(
        &self,
        update: &mut LastUpdate,
        before: Option<SnapshotId>,
        theirs: SnapshotId,
        merge: &v1::Merge,
    ) -> Result<()> {
        let (store, history) = (&self.context.store, &self.context.history);
        let head = merge.head.as_ref().map(|head| amalgam_proto::snapshot_id(&head.name)).transpose()?;
        let Some(head) = head else { return Ok(()) };
        let ours = match merge.how() {
            v1::MergeHow::Forward => before,
            v1::MergeHow::Merged => store.snapshot(head)?.parents.first().copied(),
            _ => Some(head),
        };
        let base = match ours {
            Some(ours) => history.merge_bases(ours, theirs)?.first().copied(),
            None => None,
        };
        let root = |snapshot: Option<SnapshotId>| self.context.head_root(snapshot);
        let files = |before: Option<SnapshotId>, after: SnapshotId| {
            let mut count = 0_u64;
            for change in diff_roots(store, root(before)?, root(Some(after))?, DiffOptions::default())? {
                count += u64::from(!is_directory(&change?));
            }
            Ok::<_, Error>(count)
        };
        let paths: BTreeSet<_> = merge.conflicts.iter().map(|conflict| &conflict.path).collect();
        update.conflicts = paths.len() as u64;
        update.total = files(base, theirs)?.max(update.conflicts);
        if merge.how() != v1::MergeHow::Refused {
            let changed = files(ours, head)?.saturating_sub(update.conflicts);
            update.synced = changed.min(update.total - update.conflicts);
        }
        update.skipped = update.total - update.conflicts - update.synced;
        Ok(())
    }

    /// Returns whether a follower is updated by interval, so that the process must keep running.
    pub(crate) fn is_following(&self) -> bool {
        self.inner.table.lock().has_intervals()
    }

    /// Returns when the next follower is due, or `None` if all wait for a change of their source.
    pub(crate) fn next_due(&self) -> Option<Time> {
        self.inner.table.lock().next_due(self.context.now())
    }

    /// Ends the thread that updates followers.
    pub(crate) fn end_following(&self) {
        *self.inner.ending.lock() = true;
        self.inner.changed.notify_one();
    }

    /// Updates followers until the process ends.
    pub(crate) fn keep_following(&self) {
        let mut cursor: Option<OperationCursor> = None;
        let busy = Mutex::new(BTreeSet::new());
        std::thread::scope(|scope| {
            loop {
                let is_idle = self.inner.table.lock().is_empty() && cursor.is_some();
                {
                    let mut ending = self.inner.ending.lock();
                    if is_idle && !*ending {
                        self.inner.changed.wait_for(&mut ending, IDLE_INTERVAL);
                    }
                    if *ending {
                        return;
                    }
                }
                // Outside the gate: a call that needs the store alone does not wait for this one.
                let moved = match &mut cursor {
                    Some(cursor) if !is_idle => cursor.wait(CHECK_INTERVAL).map_err(Error::from),
                    _ => Ok(Vec::new()),
                };
                let _using = self.context.using();
                let read = moved.and_then(|moved| {
                    self.note_moves(&moved)?;
                    self.read_operations(&mut cursor)
                });
                if let Err(failure) = read {
                    // All workspaces are read anew: the log may have been trimmed.
                    warn_failure(&failure, "the operations for followers cannot be read");
                    cursor = None;
                    std::thread::sleep(CHECK_INTERVAL);
                    continue;
                }
                let due = self.inner.table.lock().due(self.context.now(), &busy.lock());
                for name in due {
                    if busy.lock().len() >= PARALLEL_UPDATES_MAX {
                        break;
                    }
                    self.inner.table.lock().begin(&name, self.context.now());
                    busy.lock().insert(name.clone());
                    let busy = &busy;
                    scope.spawn(move || {
                        let _using = self.context.using();
                        self.update_due(&name);
                        busy.lock().remove(&name);
                    });
                }
            }
        });
    }

    /// Reads new operations: which workspaces follow a source, and which sources moved. The first call reads all workspaces.
    fn read_operations(&self, cursor: &mut Option<OperationCursor>) -> Result<()> {
        let store = &self.context.store;
        let Some(cursor) = cursor else {
            *cursor = Some(OperationCursor::at_end(store)?);
            let mut all = Vec::new();
            self.context.each_workspace("", |workspace| {
                all.extend(workspace.follow.is_some().then(|| workspace.clone()));
                Ok(())
            })?;
            let mut table = self.inner.table.lock();
            table.clear();
            all.iter().for_each(|workspace| table.set(&workspace.name, workspace.follow.clone()));
            return Ok(());
        };
        loop {
            let page = cursor.read()?;
            if page.is_empty() {
                return Ok(());
            }
            self.note_moves(&page)?;
        }
    }

    /// Updates the table of followers by the workspaces that operations moved, and forgets those that operations removed.
    fn note_moves(&self, operations: &[Operation]) -> Result<()> {
        for change in operations.iter().flat_map(|operation| &operation.changes) {
            let Ok(name) = WorkspaceName::of_reference(&change.name) else { continue };
            let found = self.context.workspaces.find(&name)?;
            if found.is_none() {
                self.forget(&name);
            }
            let follow = found.and_then(|workspace| workspace.follow);
            let mut table = self.inner.table.lock();
            table.set(&name, follow);
            table.source_moved(&name);
        }
        Ok(())
    }

    /// Updates a follower that is due. Each head of a source workspace is tried once; an origin is read each time.
    fn update_due(&self, name: &WorkspaceName) {
        let tried = || -> Result<Option<Updated>> {
            let turn = self.turn_of(name);
            let _turn = turn.lock();
            let Some(workspace) = self.context.workspaces.find(name)? else { return Ok(None) };
            let Some(follow) = &workspace.follow else { return Ok(None) };
            let last = self.context.following.last(name, &follow.source);
            if let Some(last) = last.filter(|last| last.how != UpdateOutcome::Failed)
                && follow.origin.is_empty()
                // The update reports a source that is gone.
                && self.source_head(follow).ok().flatten().map(amalgam_proto::snapshot_name) == Some(last.tried)
                && !self.views.is_behind(name)?
            {
                return Ok(None);
            }
            self.update_in_turn(name, &OperationContext::new(FOLLOWER, self.context.now()), &Caller::default())
        };
        match tried() {
            Ok(Some(Updated { update, .. })) if update.how != UpdateOutcome::Already => {
                let LastUpdate { how, synced, skipped, total, conflicts, .. } = update;
                info!(workspace = %name, ?how, synced, skipped, total, conflicts, "workspace updated from its source");
            }
            Ok(_) => {}
            Err(failure) => {
                warn_failure(&failure, &format!("update of {name} from its source failed"));
                self.inner.table.lock().delay(name, self.context.now());
            }
        }
    }

    /// Reads the operations and updates the followers that are due, one after another.
    #[cfg(test)]
    fn update_all_due(&self, cursor: &mut Option<OperationCursor>) {
        self.read_operations(cursor).expect("the log can be read");
        let due = self.inner.table.lock().due(self.context.now(), &BTreeSet::new());
        for name in due {
            self.inner.table.lock().begin(&name, self.context.now());
            self.update_due(&name);
        }
    }
}

/// Returns the error for a workspace that follows no source.
pub(crate) fn follows_nothing(name: &WorkspaceName) -> Error {
    Error::new(Reason::Invalid, format!("{name} follows nothing; `amalgam follow SOURCE` names a source"))
}

fn mode_asked_for(request: &v1::FollowSourceRequest) -> Result<FollowMode> {
    let invalid = |message: String| Error::new(Reason::Invalid, message);
    match (request.mode.as_str(), request.every_seconds) {
        ("", 0) => Ok(FollowMode::Every(EVERY_SECONDS_DEFAULT)),
        ("", seconds) => FollowMode::parse(&format!("every {seconds}"))
            .ok_or_else(|| invalid("every_seconds: the longest interval is a year".to_owned())),
        (_, seconds) if seconds > 0 => Err(invalid("mode and every_seconds exclude each other".to_owned())),
        (mode @ ("event" | "lazy" | "regular"), _) => Ok(FollowMode::parse(mode).expect("it is one of the modes")),
        (mode, _) => Err(invalid(format!("mode: `{}` is none of lazy, regular, event", mode.escape_debug()))),
    }
}
