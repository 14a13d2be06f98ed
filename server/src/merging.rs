//! Merges of workspaces: at once (`merge`), through the queue of a target (`queue`), and reviews of entries with
//! conflicts (`review`).
//!
//! The engine merges trees and folds queues; `amalgam-merge` merges contents of files. This module joins both: it reads
//! the rules, captures directories before and updates them after, runs tests, and returns each submitter its result.
//!
//! One fold of a target runs at a time, and takes all waiting entries. A submitter that comes during a fold waits for its end, and
//! usually finds that the next fold has taken its entry: there are no retries.

mod approval;
mod command;
mod merge;
mod publishing;
mod queue;
mod regenerate;
mod review;
mod rule_commands;
mod sandbox;
mod test;
mod writes;

pub(crate) use queue::AfterMerge;

use approval::Approvals;
use writes::Writes;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_engine::merge::{FileMerged, PathConflict};
use amalgam_engine::queue::Folded;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_proto::v1;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::context::Context;
use crate::directory::Directories;
use crate::error::Result;
use crate::merge_rules::MergeRules;
use crate::publishing::Publishing;
use crate::views::Views;

/// How many results of entries are kept for submitters that wait.
const RESULTS_MAX: usize = 4_096;

/// How many locks of targets are kept. Beyond it, those that no thread uses are dropped.
const LOCKS_MAX: usize = 1_024;

/// Merges workspaces, at once and through the queue, and keeps reviews.
#[derive(Clone)]
pub(crate) struct Merging {
    context: Arc<Context>,
    rules: MergeRules,
    publishing: Publishing,
    views: Views,
    directories: Directories,
    inner: Arc<Inner>,
}

struct Inner {
    /// One lock for each target; the thread that folds the target holds it.
    folding: Mutex<HashMap<WorkspaceName, Arc<Mutex<()>>>>,
    results: Mutex<Results>,
    /// The ids of entries whose submitters wait for the result.
    awaited: Mutex<HashSet<String>>,
    turn: Turn,
    writes: Writes,
    approvals: Approvals,
    /// The number of directories that were made for commands.
    places: AtomicU64,
    /// Whether tests are cancelled because the process ends.
    tests_are_cancelled: AtomicBool,
}

/// The signal for the thread that folds in the background.
#[derive(Default)]
struct Turn {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    fold: bool,
    end: bool,
    is_folding: bool,
}

/// The results of the newest entries, by their ids.
#[derive(Default)]
struct Results {
    order: VecDeque<String>,
    by_id: HashMap<String, Folded>,
}

impl Inner {
    fn new(approvals: Approvals) -> Self {
        Self {
            folding: Mutex::default(),
            results: Mutex::default(),
            awaited: Mutex::default(),
            turn: Turn::default(),
            writes: Writes::default(),
            approvals,
            places: AtomicU64::new(0),
            tests_are_cancelled: AtomicBool::new(false),
        }
    }

    /// Returns the lock of a target.
    fn lock_of(&self, target: &WorkspaceName) -> Arc<Mutex<()>> {
        let mut folding = self.folding.lock();
        if folding.len() >= LOCKS_MAX {
            // Others clone a lock only while they hold the map, so one that is not in use stays so.
            folding.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(folding.entry(target.clone()).or_default())
    }

    /// Records that the submitter of an entry waits for it, until the guard is dropped.
    fn await_entry(&self, id: &str) -> Awaited<'_> {
        self.awaited.lock().insert(id.to_owned());
        Awaited { merging: self, id: id.to_owned() }
    }

    fn is_awaited(&self, id: &str) -> bool {
        self.awaited.lock().contains(id)
    }

    fn result_of(&self, id: &str) -> Option<Folded> {
        self.results.lock().by_id.get(id).cloned()
    }

    fn keep_results(&self, done: Vec<Folded>) {
        let mut results = self.results.lock();
        for folded in done {
            results.order.push_back(folded.entry.id.clone());
            results.by_id.insert(folded.entry.id.clone(), folded);
        }
        while results.order.len() > RESULTS_MAX {
            if let Some(oldest) = results.order.pop_front() {
                results.by_id.remove(&oldest);
            }
        }
    }
}

impl Merging {
    /// Reads the approved commands of a home.
    pub(crate) fn open(
        context: &Arc<Context>,
        rules: &MergeRules,
        publishing: &Publishing,
        views: &Views,
        directories: &Directories,
    ) -> Result<Self> {
        Ok(Self {
            context: Arc::clone(context),
            rules: rules.clone(),
            publishing: publishing.clone(),
            views: views.clone(),
            directories: directories.clone(),
            inner: Arc::new(Inner::new(Approvals::open(&context.home)?)),
        })
    }

    /// Ends tests, because the process ends. Their entries wait in the queue for the next process.
    pub(crate) fn cancel_tests(&self) {
        self.inner.tests_are_cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns whether files were written that will be published after a quiet time.
    pub(crate) fn has_pending_writes(&self) -> bool {
        self.inner.writes.are_pending()
    }

    fn tests_are_cancelled(&self) -> bool {
        self.inner.tests_are_cancelled.load(Ordering::Relaxed)
    }
}

/// An entry whose submitter waits.
struct Awaited<'a> {
    merging: &'a Inner,
    id: String,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.merging.awaited.lock().remove(&self.id);
    }
}

/// Converts the files that both sides changed to messages.
fn files_message(files: &[FileMerged]) -> Vec<v1::MergedPath> {
    let file = |file: &FileMerged| v1::MergedPath {
        path: path_bytes(&file.path),
        way: file.strategy.clone(),
        result: file.result.word().to_owned(),
        others: Vec::new(),
        remembered: file.remembered.map(|id| id.to_string()).unwrap_or_default(),
    };
    files.iter().map(file).collect()
}

/// Converts the conflicts of a merge to messages.
fn conflicts_message(conflicts: &[PathConflict]) -> Vec<v1::MergedPath> {
    let conflict = |conflict: &PathConflict| v1::MergedPath {
        path: path_bytes(&conflict.path),
        way: conflict.kind.detail(),
        result: conflict.kind.word().to_owned(),
        others: conflict.others.iter().map(path_bytes).collect(),
        remembered: String::new(),
    };
    conflicts.iter().map(conflict).collect()
}

fn path_bytes(path: &amalgam_engine::TreePath) -> Bytes {
    Bytes::copy_from_slice(path.as_bytes())
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;
    use amalgam_engine::workspace::NewWorkspace;

    use super::*;
    use crate::caller::Caller;
    use crate::home::Home;
    use crate::service::Service;

    fn name(name: impl Into<String>) -> WorkspaceName {
        WorkspaceName::new(name).expect("a name")
    }

    #[test]
    fn locks_of_targets_are_bounded_and_those_in_use_stay() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(1), &[]).expect("opened");
        let inner = &service.merging.inner;
        let held = inner.lock_of(&name("held"));
        for number in 0..3 * LOCKS_MAX {
            inner.lock_of(&name(format!("t{number}")));
        }
        assert!(inner.folding.lock().len() <= LOCKS_MAX);
        assert!(Arc::ptr_eq(&held, &inner.lock_of(&name("held"))));
        let act = service.context.act("ann");
        service.context.workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        let request = v1::MergeWorkspacesRequest {
            target: "workspaces/absent".to_owned(),
            sources: vec!["workspaces/main".to_owned()],
            ..Default::default()
        };
        service.merging.merge_workspaces(&request, &act, &Caller::default()).expect_err("no such target");
        assert!(!inner.folding.lock().contains_key(&name("absent")));
    }
}
