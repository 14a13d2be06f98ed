//! Disk usage of all workspaces, of one, or of a snapshot: shared bytes, private bytes, and the growth by each snapshot.
//!
//! Measuring only reads. A low-priority thread does it, and pauses while calls commit. A collection may run at the same time.

mod sizes;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::history::LogOrder;
use amalgam_engine::{SnapshotId, Tally, Workspace, WorkspaceName};
use amalgam_gc::{MeasureProgressFn, StoreUsage, Throttle, measure_snapshots, measure_workspaces, run_at_low_priority};
use amalgam_proto::v1::measure_usage_response::Event;
use amalgam_proto::{Reason, v1};
use amalgam_transfer::{Progress, growth};

use super::Collections;
use crate::context::ShownNames;
use crate::error::{Error, Result};

use sizes::Sizes;

/// Receives the progress: the stage, the part done, and the total. A break ends the measurement.
pub(crate) type Tell<'a> = &'a mut (dyn FnMut(&str, u64, u64) -> ControlFlow<()> + Send);

/// The subject of a measurement.
pub(crate) enum Subject {
    /// All workspaces.
    Store,
    /// One workspace, and this many of its snapshots.
    Workspace(WorkspaceName, usize),
    /// One snapshot.
    Snapshot(SnapshotId),
}

impl Collections {
    /// Measures a subject. The results are in the order in which they are sent.
    pub(crate) fn measure_usage(&self, subject: &Subject, tell: Tell<'_>) -> Result<Vec<Event>> {
        match subject {
            Subject::Store => self.measure_all(tell),
            Subject::Workspace(workspace, snapshots) => self.measure_workspace(workspace, *snapshots, tell),
            Subject::Snapshot(snapshot) => self.measure_snapshots(&[*snapshot], tell),
        }
    }

    fn measure_all(&self, tell: Tell<'_>) -> Result<Vec<Event>> {
        let after = self.operations_kept_after()?;
        let last = self.context.store.last_operation()?;
        let collections = self.inner.measured.lock().collections;
        let measured = self.at_low_priority(tell, |watch| measure_workspaces(&self.context.store, after, watch))?;
        let measured = Arc::new(measured);
        self.inner.measured.lock().keep(collections, last, &measured);
        let mut names: HashMap<_, _> =
            measured.names.iter().map(|usage| (usage.workspace.clone(), (usage.reached, usage.private))).collect();
        let disk = self.quota.measure_disk()?;
        let others = names.remove(&None).unwrap_or_default().1;
        let store = v1::StoreAccount {
            disk_bytes: disk.store_bytes,
            free_bytes: disk.free_bytes,
            alive: Some(tally(measured.alive)),
            shared: Some(tally(measured.shared())),
            others: Some(tally(others)),
            undo: Some(tally(measured.undo)),
            journal_bytes: disk.journal_bytes,
            log_bytes: disk.log_bytes,
            reserve_bytes: disk.reserve_bytes,
            directory_bytes: disk.directory_bytes,
        };
        let mut events = vec![Event::Store(store)];
        let (mut sizes, total, mut done) = (Sizes::default(), names.len() as u64, 0);
        self.context.each_workspace("", |workspace| {
            go_on(tell("files", done, total.max(done)))?;
            done += 1;
            // A workspace that was created meanwhile was not measured.
            if let Some((reached, private)) = names.remove(&Some(workspace.name.to_string())) {
                events.push(Event::Workspace(v1::WorkspaceAccount {
                    files: Some(self.workspace_usage(workspace, &mut sizes)?),
                    reached: Some(tally(reached)),
                    private: Some(tally(private)),
                }));
            }
            Ok(())
        })?;
        Ok(events)
    }

    fn measure_workspace(&self, name: &WorkspaceName, snapshots: usize, tell: Tell<'_>) -> Result<Vec<Event>> {
        let workspace = self.context.workspaces.get(name)?;
        let measured = self.measure_names(tell)?;
        let usage = measured.names.iter().find(|usage| usage.workspace.as_deref() == Some(name.as_str()));
        let Some(usage) = usage else {
            return Err(Error::new(Reason::NotFound, format!("workspace {name} was removed while it was measured")));
        };
        let mut events = vec![Event::Workspace(v1::WorkspaceAccount {
            files: Some(self.workspace_usage(&workspace, &mut Sizes::default())?),
            reached: Some(tally(usage.reached)),
            private: Some(tally(usage.private)),
        })];
        let listed = self.log_of(workspace.head, snapshots)?;
        events.extend(self.measure_snapshots(&listed, tell)?);
        Ok(events)
    }

    /// Measures the usage of every workspace. The result is cached until the next operation or collection.
    fn measure_names(&self, tell: Tell<'_>) -> Result<Arc<StoreUsage>> {
        let last = self.context.store.last_operation()?;
        let collections = {
            let known = self.inner.measured.lock();
            if let Some((at, usage)) = &known.last
                && *at == last
            {
                return Ok(Arc::clone(usage));
            }
            known.collections
        };
        let usage =
            Arc::new(self.at_low_priority(tell, |watch| measure_workspaces(&self.context.store, u64::MAX, watch))?);
        self.inner.measured.lock().keep(collections, last, &usage);
        Ok(usage)
    }

    fn measure_snapshots(&self, snapshots: &[SnapshotId], tell: Tell<'_>) -> Result<Vec<Event>> {
        if snapshots.is_empty() {
            return Ok(Vec::new());
        }
        let measured = self.at_low_priority(tell, |watch| measure_snapshots(&self.context.store, snapshots, watch))?;
        let (names, total) = (self.context.shown_names(), measured.len() as u64);
        let mut events = Vec::new();
        for (done, usage) in (0..).zip(measured) {
            go_on(tell("growth", done, total))?;
            events.push(Event::Snapshot(v1::SnapshotAccount {
                reached: Some(tally(usage.reached)),
                private: Some(tally(usage.private)),
                ..self.growth_of(usage.snapshot, &names)?
            }));
        }
        Ok(events)
    }

    /// Returns the growth of the store by a snapshot.
    pub(crate) fn growth_of(&self, snapshot: SnapshotId, names: &ShownNames) -> Result<v1::SnapshotAccount> {
        let brought = growth(&self.context.store, snapshot, &Progress::default())?;
        Ok(v1::SnapshotAccount {
            snapshot: Some(self.context.snapshot_message(snapshot, names)?),
            growth: brought.map(tally),
            ..v1::SnapshotAccount::default()
        })
    }

    /// Returns the newest snapshots of a history, at most `limit`, newest first.
    pub(crate) fn log_of(&self, head: Option<SnapshotId>, limit: usize) -> Result<Vec<SnapshotId>> {
        let Some(head) = head else { return Ok(Vec::new()) };
        let log = self.context.history.log(&[head], LogOrder::Time)?;
        log.take(limit).map(|entry| Ok(entry?.id)).collect()
    }

    /// Reads on a thread of low priority, and stops when the client disconnects or the process ends.
    fn at_low_priority<T: Send>(
        &self,
        tell: Tell<'_>,
        measure: impl FnOnce(MeasureProgressFn<'_>) -> amalgam_engine::Result<Option<T>> + Send,
    ) -> Result<T> {
        let store = &self.context.store;
        let measured = run_at_low_priority(|| {
            let begun = Instant::now();
            let (clock, sleep) = (|| begun.elapsed(), |time: Duration| std::thread::sleep(time));
            let mut throttle = Throttle::new(store, &clock, &sleep)?;
            measure(&mut |done, total| {
                if self.is_ending() {
                    return ControlFlow::Break(());
                }
                // A throttle that cannot read the load does not end the measurement.
                let _ = throttle.pause();
                tell("measure", done, total)
            })
        });
        measured?.ok_or_else(ended)
    }

    /// Returns the number and size of the files of a workspace's head, as a listing shows them, and the length of its history.
    fn workspace_usage(&self, workspace: &Workspace, sizes: &mut Sizes) -> Result<v1::WorkspaceUsage> {
        let name = amalgam_proto::workspace_name(&workspace.name);
        let mut usage = v1::WorkspaceUsage { workspace: name, ..v1::WorkspaceUsage::default() };
        let Some(head) = workspace.head else { return Ok(usage) };
        let root = self.context.store.snapshot(head)?.root;
        // Unchanged forks share one tree.
        (usage.files, usage.bytes) = match sizes.trees.get(&root) {
            Some(size) => *size,
            None => sizes.measure(&self.context.store, root)?,
        };
        usage.snapshots = sizes.length(&self.context.history, head)?;
        Ok(usage)
    }

    /// Returns the size of the store's files.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        Ok(self.quota.measure_disk()?.store_bytes)
    }

    /// Returns the disk usage of the store and of a page of its workspaces, without a scan of the store's objects.
    pub(crate) fn measure_store(&self, page_token: &str, limit: usize) -> Result<v1::MeasureStoreResponse> {
        let after = match page_token {
            "" => None,
            token => Some(WorkspaceName::new(token)?),
        };
        let (found, mut sizes) = (self.context.workspaces.list("", after.as_ref(), limit)?, Sizes::default());
        let next = if found.len() == limit { found.last().map(|last| last.name.to_string()) } else { None };
        let workspaces = found.iter().map(|workspace| self.workspace_usage(workspace, &mut sizes));
        let workspaces = workspaces.collect::<Result<_>>()?;
        let disk = self.quota.measure_disk()?;
        Ok(v1::MeasureStoreResponse {
            disk_bytes: disk.store_bytes,
            free_bytes: disk.free_bytes,
            workspaces,
            next_page_token: next.unwrap_or_default(),
        })
    }
}

fn go_on(told: ControlFlow<()>) -> Result<()> {
    if told.is_break() { Err(ended()) } else { Ok(()) }
}

fn ended() -> Error {
    Error::new(Reason::Cancelled, "the measuring was ended")
}

fn tally(tally: Tally) -> v1::ObjectTally {
    v1::ObjectTally { objects: tally.objects, bytes: tally.bytes }
}
