//! History: ancestors and merge bases, the log, versions and blame of files, and bisection.
//!
//! A [`History`] caches the graph that it has walked, about 200 bytes per snapshot, so a program with many queries should keep
//! one. Snapshots never change, so the cache is never stale. The history is read-only: commits and merges create snapshots.

mod bases;
mod bisect;
mod blame;
mod foreign;
mod foreign_cache;
mod graph;
mod layout;
mod log;
mod versions;

pub use bisect::{BisectStep, Bisected, Verdict};
pub use blame::{Blame, BlamedLines};
pub use foreign::mark_foreign;
pub use layout::{GraphEdge, GraphLayout, GraphRow};
pub use log::{Log, LogEntry, LogOrder};
pub use versions::{PathChange, Version, Versions};

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::error::Result;
use crate::id::SnapshotId;
use crate::store::Store;
use graph::{Graph, GraphIndex};

/// The history of a store's snapshots.
#[derive(Clone)]
pub struct History {
    store: Store,
    graph: Arc<Mutex<Graph>>,
    foreign: Arc<Mutex<foreign_cache::ForeignCache>>,
}

impl History {
    /// Creates the history of a store. Reads nothing yet.
    pub fn of(store: &Store) -> Self {
        Self { store: store.clone(), graph: Arc::default(), foreign: Arc::default() }
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns whether retention dropped the tree of a snapshot. Its record still exists.
    pub fn is_thinned(&self, snapshot: SnapshotId) -> Result<bool> {
        let root = self.store.snapshot(snapshot)?.root;
        Ok(!self.store.has(root.object())?)
    }

    /// Returns whether one snapshot is an ancestor of another, or the same.
    pub fn is_ancestor(&self, ancestor: SnapshotId, of: SnapshotId) -> Result<bool> {
        let mut graph = self.graph.lock();
        let (ancestor, start) = (graph.need(&self.store, ancestor)?, graph.need(&self.store, of)?);
        let wanted = graph.generation(ancestor);
        let mut seen = std::collections::HashSet::from([start]);
        let mut open = vec![start];
        while let Some(here) = open.pop() {
            yield_lock(&mut graph);
            if here == ancestor {
                return Ok(true);
            }
            for parent in graph.parents(&self.store, here)? {
                if graph.generation(parent) >= wanted && seen.insert(parent) {
                    open.push(parent);
                }
            }
        }
        Ok(false)
    }

    /// Returns the ancestors of a snapshot, itself included, that are not ancestors of others. Children come before
    /// parents. For example the snapshots of a fork since it left `main`: `range(fork, &[main])`.
    pub fn range(&self, of: SnapshotId, but_not: &[SnapshotId]) -> Result<Vec<SnapshotId>> {
        let mut graph = self.graph.lock();
        let places = self.range_of(&mut graph, of, but_not)?;
        Ok(places.into_iter().map(|place| graph.id(place)).collect())
    }

    fn range_of(
        &self,
        graph: &mut MutexGuard<'_, Graph>,
        of: SnapshotId,
        but_not: &[SnapshotId],
    ) -> Result<Vec<GraphIndex>> {
        let mut walk = graph::Walk::default();
        let place = graph.need(&self.store, of)?;
        walk.start(graph, place, WANTED);
        for other in but_not {
            let place = graph.need(&self.store, *other)?;
            walk.start(graph, place, UNWANTED);
        }
        let mut found = Vec::new();
        while walk.open_without(UNWANTED) > 0 {
            yield_lock(graph);
            let Some((here, flags)) = walk.next() else { break };
            if flags & UNWANTED == 0 {
                found.push(here);
            }
            for parent in graph.parents(&self.store, here)? {
                walk.start(graph, parent, flags);
            }
        }
        Ok(found)
    }
}

const WANTED: u8 = 1;
const UNWANTED: u8 = 2;

/// Lets waiting threads lock the graph during a long walk. Indices stay valid.
fn yield_lock(graph: &mut MutexGuard<'_, Graph>) {
    MutexGuard::bump(graph);
}
