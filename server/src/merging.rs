//! Merging: workspaces into others at once, through the queue, and what waits for a person.
//!
//! The engine merges trees and folds queues; `amalgam-merge` knows what bytes mean. Here both are joined: rules are read,
//! directories are captured before and brought along after, tests are run, and whoever waits for a fold gets its result.
//!
//! One fold of a target runs at a time, and takes all that waits. Whoever comes while one runs waits for it to end, and
//! mostly finds that the next one has taken its entry along: nobody retries.

mod approval;
mod command;
mod made;
mod merge;
mod publishing;
mod queue;
mod review;
mod rules;
mod sandbox;
mod test;

pub(crate) use approval::Approvals;
pub(crate) use publishing::Publishing;
pub(crate) use rules::check_rules;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_engine::merge::{FileMerged, PathConflict};
use amalgam_engine::queue::{Folded, Queue};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_proto::v1;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::service::Service;

/// How many results are kept for those who wait for them.
const RESULTS_MAX: usize = 4_096;

/// What the service keeps of merges.
pub(crate) struct Merging {
    pub(crate) queue: Queue,
    /// Whoever folds a target holds its lock.
    folding: Mutex<HashMap<WorkspaceName, Arc<Mutex<()>>>>,
    results: Mutex<Results>,
    /// The ids of entries whose submitters wait for what becomes of them.
    awaited: Mutex<HashSet<String>>,
    turn: Turn,
    publishing: Publishing,
    approvals: Approvals,
    /// How many directories for commands were made.
    places: AtomicU64,
    /// Whether tests are to end, because the process does.
    tests_are_cancelled: AtomicBool,
}

/// What the thread that folds in the background waits for.
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

/// What became of the newest entries, by their ids.
#[derive(Default)]
struct Results {
    order: VecDeque<String>,
    by_id: HashMap<String, Folded>,
}

impl Merging {
    pub(crate) fn new(queue: Queue, publishing: Publishing, approvals: Approvals) -> Self {
        Self {
            queue,
            folding: Mutex::default(),
            results: Mutex::default(),
            awaited: Mutex::default(),
            turn: Turn::default(),
            publishing,
            approvals,
            places: AtomicU64::new(0),
            tests_are_cancelled: AtomicBool::new(false),
        }
    }

    fn lock_of(&self, target: &WorkspaceName) -> Arc<Mutex<()>> {
        Arc::clone(self.folding.lock().entry(target.clone()).or_default())
    }

    /// Says that the submitter of an entry waits for it, for as long as the guard lives.
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

impl Service {
    /// Ends tests, because the process ends. What they were run for waits in the queue for the next one.
    pub(crate) fn cancel_tests(&self) {
        self.inner.merging.tests_are_cancelled.store(true, Ordering::Relaxed);
    }

    fn tests_are_cancelled(&self) -> bool {
        self.inner.merging.tests_are_cancelled.load(Ordering::Relaxed)
    }
}

/// An entry whose submitter waits.
struct Awaited<'a> {
    merging: &'a Merging,
    id: String,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.merging.awaited.lock().remove(&self.id);
    }
}

/// Files that both sides changed, for the wire.
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

/// What could not be merged, for the wire.
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
