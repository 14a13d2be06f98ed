//! Background maintenance of views and mounts: following mounts show the new head, views without changes move to the head of
//! their workspace, long journals are checkpointed, unused views are closed, and ended mounts are cleaned up.

use std::time::{Duration, Instant};

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{OperationCursor, SnapshotId};
use amalgam_proto::Reason;
use amalgam_view::View;

use super::{LiveView, MountedTree, Views};
use crate::call_log::warn_failure;
use crate::error::{Error, Result};
use crate::repeated_problem::RepeatedProblem;

/// Maximum time between two rounds of maintenance; an operation starts a round earlier.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Number of rounds without an open view, mount or export after which the store's memory is released.
const RELEASE_AFTER_CHECKS: u32 = 50;
/// A view without mounts and exports is closed when no call has used it for this long.
const CLOSE_UNUSED_AFTER: Duration = Duration::from_secs(5);
/// Disk space is short when less than 1 / `SHORT_ONE_IN` of the disk and less than `SHORT_BYTES_MAX` are free.
const SHORT_ONE_IN: u64 = 50;
const SHORT_BYTES_MAX: u64 = 2 << 30;
/// The size up to which a collection leaves a journal as it is.
const SHORT_JOURNAL_BYTES: u64 = 1 << 20;

impl Views {
    /// Maintains views and mounts until the process ends. Problems are passed to `tell`.
    pub(crate) fn maintain_in_background(&self, tell: &dyn Fn(&str)) {
        let mut cursor = match OperationCursor::at_end(&self.context.store) {
            Ok(cursor) => cursor,
            Err(error) => return tell(&error.to_string()),
        };
        // `None` while there is no memory to release.
        let mut looks_since_mounted = None;
        let (mut reading, mut looking) = (RepeatedProblem::default(), RepeatedProblem::default());
        let complain = |complaints: &mut RepeatedProblem, problem: &str| {
            if let Some(words) = complaints.add(problem, Instant::now()) {
                tell(&words);
            }
        };
        while !self.inner.is_ending() {
            match cursor.wait(CHECK_INTERVAL) {
                Ok(_) => reading.clear(),
                Err(error) => {
                    complain(&mut reading, &error.to_string());
                    std::thread::sleep(CHECK_INTERVAL);
                }
            }
            if !looking.may_retry(Instant::now()) {
                continue;
            }
            let _using = self.context.using();
            match self.maintain_views() {
                Ok(()) => looking.clear(),
                Err(failure) => complain(&mut looking, &failure.to_string()),
            }
            let is_in_use = self.is_in_use();
            looks_since_mounted = if is_in_use { Some(0) } else { looks_since_mounted.map(|looks| looks + 1) };
            if looks_since_mounted.is_some_and(|looks| looks >= RELEASE_AFTER_CHECKS) {
                looks_since_mounted = None;
                self.release_memory(tell);
            }
        }
    }

    fn is_in_use(&self) -> bool {
        let state = self.inner.state.lock();
        !(state.open.is_empty() && state.mounts.is_empty() && state.exported.is_empty())
    }

    /// Releases the caches of the store, because no view, mount or export is open.
    fn release_memory(&self, tell: &dyn Fn(&str)) {
        match self.context.store.release_memory().map_err(Error::from) {
            // There is no room for rows that are in no file yet, and they stay where they are.
            Err(failure) if failure.reason() == Reason::Full => {}
            Err(failure) => tell(&failure.to_string()),
            Ok(()) => {}
        }
    }

    fn maintain_views(&self) -> Result<()> {
        if !self.is_in_use() {
            return Ok(());
        }
        self.reap()?;
        self.show_new_heads()?;
        self.for_each_open(|id| self.maintain_view(id))
    }

    fn maintain_view(&self, id: u64) -> Result<()> {
        let find = || self.inner.state.lock().open.get(&id).cloned();
        // A call that holds the view may take long, and leaves it in order.
        if find().is_none_or(|live| live.turn.is_locked()) {
            return Ok(());
        }
        self.close_view_if_unused(id, CLOSE_UNUSED_AFTER)?;
        let Some(live) = find() else { return Ok(()) };
        let workspace = self.view_workspace(id)?;
        let found = self.context.workspaces.find(&workspace)?;
        let is_behind = found.is_some_and(|found| live.view.head() != found.head && *live.behind.lock() != found.head);
        if is_behind || live.view.is_checkpoint_due() {
            if self.abandon_if_taken(id)? {
                return Ok(());
            }
            let locked = self.lock_view(id)?;
            if locked.live.view.is_checkpoint_due() {
                self.checkpoint(&locked)?;
            }
        }
        self.measure_quota(id, &live)?;
        self.make_room(id, &live)
    }

    /// Frees the journal's space of removed files by a checkpoint of the others, if disk space is short.
    fn make_room(&self, id: u64, live: &LiveView) -> Result<()> {
        let (room, moment) = (live.view.disk_space(), live.view.version());
        let is_short = room.free_bytes < (room.total_bytes / SHORT_ONE_IN).min(SHORT_BYTES_MAX);
        if !is_short || *live.full_at.lock() == Some(moment) || !live.view.is_mostly_garbage()? {
            return Ok(());
        }
        let locked = self.lock_view(id)?;
        match self.checkpoint(&locked) {
            Err(failure) if failure.reason() == Reason::Full => *live.full_at.lock() = Some(live.view.version()),
            done => done?,
        }
        Ok(())
    }

    /// Checkpoints the views with large journals: bytes overwritten or removed since the last commit go with the journal, and
    /// the rest is compressed and shared in the store. A view that a call holds is left alone, and so is one whose tree cannot be written:
    /// its journal has everything.
    pub(crate) fn shorten_journals(&self) {
        let shorten = |id: u64| {
            let live = self.inner.state.lock().open.get(&id).cloned();
            let is_long = |live: &LiveView| !live.turn.is_locked() && live.view.journal_bytes() > SHORT_JOURNAL_BYTES;
            if live.is_some_and(|live| is_long(&live)) {
                self.checkpoint(&self.lock_view(id)?)?;
            }
            Ok(())
        };
        if let Err(failure) = self.for_each_open(shorten) {
            warn_failure(&failure, "a journal could not be shortened before a collection");
        }
    }

    /// Runs `work` for every open view, and returns the first error.
    fn for_each_open(&self, work: impl FnMut(u64) -> Result<()>) -> Result<()> {
        let open: Vec<_> = self.inner.state.lock().open.keys().copied().collect();
        open.into_iter().map(work).fold(Ok(()), Result::and)
    }

    /// Moves the mounts and exports that follow a workspace to its current head.
    pub(crate) fn show_new_heads(&self) -> Result<()> {
        self.show_new_heads_in_exports()?;
        let following: Vec<(u64, View, SnapshotId, String)> = {
            let state = self.inner.state.lock();
            let following = state.mounts.iter().filter_map(|(number, mounted)| match &mounted.shows {
                MountedTree::Following(view, shown) => {
                    Some((*number, view.clone(), *shown, mounted.record.workspace.clone()))
                }
                _ => None,
            });
            following.collect()
        };
        for (number, view, shown, workspace) in following {
            let workspace = WorkspaceName::new(workspace)?;
            // A workspace that was deleted is shown as it was.
            let Some(found) = self.context.workspaces.find(&workspace)? else { continue };
            let Some(head) = found.head.filter(|head| *head != shown) else { continue };
            view.show(head)?;
            if let Some(mounted) = self.inner.state.lock().mounts.get_mut(&number) {
                mounted.shows = MountedTree::Following(view, head);
            }
            self.wait_for_kernels(|shows| matches!(shows, MountedTree::Following(_, shown) if *shown == head));
        }
        Ok(())
    }

    /// Moves following mounts, and views without changes, to the current heads of their workspaces at once.
    pub(crate) fn heads_moved(&self) -> Result<()> {
        self.show_new_heads()?;
        self.for_each_open(|id| self.lock_view(id).map(drop))
    }
}
