//! Finds the snapshot that each line of a file comes from.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use amalgam_textdiff::line_hunks;
use bytes::Bytes;
use parking_lot::MutexGuard;

use super::graph::{Graph, GraphIndex};
use super::versions::{EntryLookup, is_same, leap};
use super::{History, yield_lock};
use crate::error::{Error, Result};
use crate::id::SnapshotId;
use crate::insight::{load, renamed_from};
use crate::name::TreePath;
use crate::object::{Entry, Node, Snapshot};
use crate::store::Store;

/// Maximum size of a file for blame, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A run of lines from one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlamedLines {
    /// The lines, counted from 0.
    pub lines: Range<usize>,
    /// The snapshot that introduced them.
    pub id: SnapshotId,
    /// The author, time and message.
    pub snapshot: Arc<Snapshot>,
    /// The path of the file in that snapshot.
    pub path: TreePath,
    /// The first line of the run in that version of the file.
    pub first_line: usize,
}

/// A file with the origin of each of its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The bytes of the file.
    pub text: Bytes,
    /// Runs of lines that cover the file, in ascending order.
    pub runs: Vec<BlamedLines>,
}

/// Lines of unknown origin: their position in the current version and in the requested one.
#[derive(Clone, Debug)]
struct Suspect {
    here: usize,
    last: usize,
    count: usize,
}

/// A version of the file that some lines passed through: the file of a snapshot, or one side of a conflict.
struct Stop {
    entry: Entry,
    suspects: Vec<Suspect>,
}

/// The order of versions, newest last, and the path of the file in each.
type StopKey = (u64, GraphIndex, TreePath);

/// The versions to visit.
#[derive(Default)]
struct OpenStops {
    stops: BTreeMap<StopKey, Vec<Stop>>,
}

impl OpenStops {
    fn add(&mut self, key: StopKey, entry: Entry, suspects: Vec<Suspect>) {
        let stops = self.stops.entry(key).or_default();
        match stops.iter_mut().find(|stop| stop.entry.node == entry.node) {
            Some(stop) => stop.suspects.extend(suspects),
            None => stops.push(Stop { entry, suspects }),
        }
    }

    fn take_newest(&mut self) -> Option<(StopKey, Stop)> {
        let mut newest = self.stops.last_entry()?;
        let key = newest.key().clone();
        let stop = newest.get_mut().pop()?;
        if newest.get().is_empty() {
            newest.remove();
        }
        Some((key, stop))
    }
}

impl History {
    /// Returns the snapshot that each line of a file comes from. Follows renames. Lines that a merge took over belong to the
    /// first parent that had them. Lines that the resolution of a conflict took from a side belong to the author of that side.
    pub fn blame(&self, head: SnapshotId, path: &TreePath) -> Result<Blame> {
        let store = &self.store;
        let mut graph = self.graph.lock();
        let mut lookup = EntryLookup::default();
        let start = graph.need(store, head)?;
        let found = lookup.entry(store, &mut graph, start, path)?.flatten();
        let entry = found.ok_or_else(|| Error::NotFound { path: path.clone() })?;
        let text = read(store, path, &entry)?;
        let lines = text.split_inclusive(|byte| *byte == b'\n').count();
        let whole = Suspect { here: 0, last: 0, count: lines };
        let suspects = if lines == 0 { Vec::new() } else { vec![whole] };
        let mut walk = BlameWalk { store, graph, lookup, open: OpenStops::default(), runs: Vec::new() };
        walk.open.add((walk.graph.generation(start), start, path.clone()), entry, suspects);
        while let Some(((_, here, path), stop)) = walk.open.take_newest() {
            yield_lock(&mut walk.graph);
            walk.visit(here, path, stop)?;
        }
        Ok(Blame { text, runs: joined(walk.runs) })
    }
}

/// The walk of a blame from the requested version to older ones.
struct BlameWalk<'a> {
    store: &'a Store,
    graph: MutexGuard<'a, Graph>,
    lookup: EntryLookup,
    open: OpenStops,
    runs: Vec<BlamedLines>,
}

/// A version of the file in a parent: the snapshot, the path there, and the entry.
type OlderVersion = (GraphIndex, TreePath, Entry);

impl BlameWalk<'_> {
    /// Passes the lines of a version on to the versions of its parents. The remaining lines are from this snapshot.
    fn visit(&mut self, here: GraphIndex, path: TreePath, stop: Stop) -> Result<()> {
        let Stop { entry, mut suspects } = stop;
        if let Some(same) = leap(self.store, &mut self.graph, here, &path)? {
            self.open.add((self.graph.generation(same), same, path), entry, suspects);
            return Ok(());
        }
        let mut parents = self.older_versions(here, &path)?;
        // A parent with the same file comes first: none of its lines are from this snapshot.
        parents.sort_by_key(|(_, _, before)| !is_same_file(before, &entry));
        let mut text_here = None;
        for (parent, from, before) in parents {
            if suspects.is_empty() {
                break;
            }
            let passed = if is_same_file(&before, &entry) {
                std::mem::take(&mut suspects)
            } else {
                let text = match &text_here {
                    Some(text) => text,
                    None => text_here.insert(read(self.store, &path, &entry)?),
                };
                let older = read(self.store, &from, &before)?;
                let (passed, kept) = pass(&suspects, &older, text);
                suspects = kept;
                passed
            };
            if !passed.is_empty() {
                self.open.add((self.graph.generation(parent), parent, from), before, passed);
            }
        }
        self.blame_on(here, &path, suspects)
    }

    /// Returns the versions of the file in the parents of a snapshot, under their paths there.
    fn older_versions(&mut self, here: GraphIndex, path: &TreePath) -> Result<Vec<OlderVersion>> {
        let store = self.store;
        let mut parents = Vec::new();
        for parent in self.lookup.parents_with_trees(store, &mut self.graph, here)? {
            let mut from = path.clone();
            let mut before = self.lookup.entry(store, &mut self.graph, parent, path)?.flatten();
            if before.as_ref().is_none_or(|before| !matches!(before.node, Node::File { .. } | Node::Conflict(_)))
                && let roots = [self.graph.root(parent), self.graph.root(here)]
                && let Some(old) =
                    MutexGuard::unlocked(&mut self.graph, || renamed_from(store, roots[0], roots[1], path))?
            {
                before = self.lookup.entry(store, &mut self.graph, parent, &old)?.flatten();
                from = old;
            }
            parents.extend(files_of(before).into_iter().map(|before| (parent, from.clone(), before)));
        }
        Ok(parents)
    }

    /// Records lines as introduced by a snapshot.
    fn blame_on(&mut self, here: GraphIndex, path: &TreePath, suspects: Vec<Suspect>) -> Result<()> {
        let id = self.graph.id(here);
        for Suspect { here, last, count } in suspects {
            let snapshot = self.store.snapshot(id)?;
            let lines = last..last + count;
            self.runs.push(BlamedLines { lines, id, snapshot, path: path.clone(), first_line: here });
        }
        Ok(())
    }
}

/// Sorts runs of lines, and joins adjacent runs of one version.
fn joined(mut runs: Vec<BlamedLines>) -> Vec<BlamedLines> {
    runs.sort_by_key(|run| run.lines.start);
    runs.dedup_by(|next, run| {
        let joins = run.id == next.id
            && run.path == next.path
            && run.lines.end == next.lines.start
            && run.first_line + run.lines.len() == next.first_line;
        if joins {
            run.lines.end = next.lines.end;
        }
        joins
    });
    runs
}

/// Returns the files of an entry: itself, or the sides of a conflict, whose lines a resolution may have taken.
fn files_of(entry: Option<Entry>) -> Vec<Entry> {
    let is_file = |entry: &&Entry| matches!(entry.node, Node::File { .. });
    match entry {
        Some(Entry { node: Node::Conflict(conflict), .. }) => {
            conflict.added().flatten().filter(is_file).cloned().collect()
        }
        entry => entry.iter().filter(is_file).cloned().collect(),
    }
}

fn is_same_file(before: &Entry, after: &Entry) -> bool {
    before.node == after.node || is_same(Some(before), Some(after))
}

fn read(store: &Store, path: &TreePath, entry: &Entry) -> Result<Bytes> {
    match &entry.node {
        Node::File { size, .. } if *size > FILE_BYTES_MAX => {
            Err(Error::TooLarge { what: "a file to be blamed", value: *size, max: FILE_BYTES_MAX })
        }
        Node::File { .. } => load(store, entry),
        _ => Err(Error::WrongKind { path: path.clone(), wanted: "a file", found: entry.kind().word() }),
    }
}

/// Splits lines into those which the older text has and the others.
fn pass(suspects: &[Suspect], older: &[u8], newer: &[u8]) -> (Vec<Suspect>, Vec<Suspect>) {
    let hunks = line_hunks(older, newer);
    let (mut passed, mut kept) = (Vec::new(), Vec::new());
    for suspect in suspects {
        let (mut here, end) = (suspect.here, suspect.here + suspect.count);
        // The first hunk that ends after the line, which determines the shift of the lines before it.
        let mut at = hunks.partition_point(|hunk| hunk.after.end <= here);
        while here < end {
            let last = suspect.last + (here - suspect.here);
            let hunk = hunks.get(at);
            let (count, older) = match hunk {
                Some(hunk) if hunk.after.start <= here => (hunk.after.end.min(end) - here, None),
                Some(hunk) => (hunk.after.start.min(end) - here, Some(hunk.before.start - (hunk.after.start - here))),
                None => {
                    let (before, after) = hunks.last().map_or((0, 0), |hunk| (hunk.before.end, hunk.after.end));
                    (end - here, Some(before + (here - after)))
                }
            };
            match older {
                Some(older) => passed.push(Suspect { here: older, last, count }),
                None => kept.push(Suspect { here, last, count }),
            }
            here += count;
            if hunk.is_some_and(|hunk| hunk.after.end <= here) {
                at += 1;
            }
        }
    }
    (passed, kept)
}
