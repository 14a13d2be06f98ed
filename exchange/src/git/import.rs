//! Imports git commits as snapshots.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use amalgam_engine::object::{Entry, Node, Root, Snapshot};
use amalgam_engine::{Assembly, Progress, SnapshotId, Store};

use super::blobs::Blobs;
use super::commit::Commit;
use super::history::GitHistory;
use super::keys::{KEY_HISTORY, KEY_SUBMODULES};
use super::objects::{Oid, Reader, Repository};
use super::trees::{ParentTree, TreeMaker, collect_blobs};
use super::walk::{Plan, WalkOptions, plan};
use crate::error::{Error, Result};
use crate::imported::{ImportPins, Imported};
use crate::report::Report;

/// Commits whose blobs are stored together.
const BATCH_COMMITS: usize = 256;
/// A batch ends early when it has this many blobs.
const BATCH_BLOBS: usize = 4_096;
/// A snapshot has at most this many parents.
const PARENTS_MAX: usize = 64;
const OBJECT_BYTES_MAX: u64 = 4 << 30;
/// Trees may be 2,048 directories deep, and each level takes a frame.
const STACK_BYTES: usize = 128 << 20;

const NOTE_PARENTS: &str = "commits with over 64 parents, or with one parent twice, kept the first 64 different ones";
const NOTE_CUT: &str = "commits with over 100 KB of text were kept in part";
const NOTE_BOUNDARY: &str = "commits at the boundary of the import have parents that were not imported";

/// Options of an import.
#[derive(Clone, Debug)]
pub struct GitImport {
    /// A branch, a tag, any reference or a full commit id; `HEAD` when nothing is said.
    pub reference: Option<String>,
    /// How far back the import goes.
    pub history: GitHistory,
    /// Snapshots whose histories may contain earlier imports, so that only new commits are imported.
    pub known: Vec<SnapshotId>,
    /// Imports the files of submodules whose repositories git keeps beside this one. Otherwise a submodule is an empty directory
    /// that records its commit.
    pub submodules: bool,
    /// The largest object that is read; git objects are read into memory.
    pub object_bytes_max: u64,
}

impl Default for GitImport {
    fn default() -> Self {
        Self {
            reference: None,
            history: GitHistory::Last(1),
            known: Vec::new(),
            submodules: false,
            object_bytes_max: OBJECT_BYTES_MAX,
        }
    }
}

impl GitImport {
    fn walk(&self) -> WalkOptions<'_> {
        WalkOptions { history: self.history, heads: &self.known, submodules: self.submodules }
    }
}

/// Counts the commits that an import would make, without storing anything.
pub fn count_git(store: &Store, path: &Path, options: &GitImport, progress: &Progress) -> Result<Report> {
    let repository = Repository::open(path, options.object_bytes_max)?;
    let reader = repository.reader();
    let tip = reader.resolve(options.reference.as_deref())?;
    let plan = plan(store, &reader, tip, &options.walk(), progress)?;
    Ok(Report { snapshots: plan.order.len() as u64, ..Report::default() })
}

/// Imports a commit with as much of its history as asked for.
pub fn import_git(store: &Store, path: &Path, options: &GitImport, progress: &Progress) -> Result<Imported> {
    std::thread::scope(|scope| {
        let work = || import(store, path, options, progress);
        let worker = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let worker = worker.map_err(|source| Error::host("start a thread", source))?;
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn import(store: &Store, path: &Path, options: &GitImport, progress: &Progress) -> Result<Imported> {
    let mut repository = Repository::open(path, options.object_bytes_max)?;
    if options.submodules {
        repository.open_submodules();
    }
    let reader = repository.reader();
    let tip = reader.resolve(options.reference.as_deref())?;
    // Held before they are read, so that a collection beside the import leaves them.
    let hold = |head: &SnapshotId| store.hold(store.snapshot(*head)?.root);
    let pins = options.known.iter().map(hold).collect::<amalgam_engine::Result<_>>()?;
    let plan = plan(store, &reader, tip, &options.walk(), progress)?;
    progress.snapshots_total.store(plan.order.len() as u64, Ordering::Relaxed);
    let assembly = Assembly::new(store, None)?;
    let mut importer = Importer {
        store,
        repository: &repository,
        reader: &reader,
        assembly: &assembly,
        plan: &plan,
        done: HashMap::new(),
        blobs: Blobs::default(),
        report: Report::default(),
        pins,
        submodules: options.submodules,
    };
    let mut snapshots = Vec::with_capacity(plan.order.len());
    importer.run(&mut snapshots, progress)?;
    let head = importer.commit_of(tip)?.snapshot;
    let mut report = importer.report;
    report.bytes = importer.blobs.bytes;
    report.snapshots = snapshots.len() as u64;
    let pins = importer.pins;
    assembly.session().write_all_ahead()?;
    let kept = ImportPins { assemblies: vec![assembly], pins, ..ImportPins::default() };
    Imported::new(store, snapshots, head, report, kept)
}

/// A commit that is in the store.
#[derive(Clone)]
struct ImportedCommit {
    snapshot: SnapshotId,
    generation: u64,
    tree: Oid,
    root: Entry,
    is_limited: bool,
}

struct Importer<'a> {
    store: &'a Store,
    repository: &'a Repository,
    reader: &'a Reader,
    assembly: &'a Assembly,
    plan: &'a Plan,
    done: HashMap<Oid, ImportedCommit>,
    blobs: Blobs,
    report: Report,
    /// Keep the snapshots that were known.
    pins: Vec<amalgam_engine::Pin>,
    submodules: bool,
}

impl Importer<'_> {
    fn run(&mut self, snapshots: &mut Vec<SnapshotId>, progress: &Progress) -> Result<()> {
        let mut batch: Vec<(Oid, Vec<u8>, Commit)> = Vec::new();
        let mut wanted = Vec::new();
        let mut trees: HashMap<Oid, Oid> = HashMap::new();
        let plan = self.plan;
        for oid in &plan.order {
            progress.check()?;
            let raw = self.reader.commit(*oid)?;
            let commit = self.cut(*oid, Commit::parse(*oid, &raw)?);
            let parents = commit.parents.iter().map(|parent| match trees.get(parent) {
                Some(tree) => Ok(*tree),
                None => Ok(self.commit_of(*parent)?.tree),
            });
            let parents = parents.collect::<Result<Vec<_>>>()?;
            collect_blobs(self.reader, commit.tree, &parents, &mut wanted)?;
            trees.insert(*oid, commit.tree);
            batch.push((*oid, raw, commit));
            if batch.len() >= BATCH_COMMITS || wanted.len() >= BATCH_BLOBS {
                self.finish_batch(&mut batch, &mut wanted, snapshots, progress)?;
                trees.clear();
            }
        }
        self.finish_batch(&mut batch, &mut wanted, snapshots, progress)
    }

    /// Removes parents of a commit that are not imported, are repeated, or exceed the limit. Notes the change.
    fn cut(&mut self, oid: Oid, mut commit: Commit) -> Commit {
        if self.plan.boundary.contains(&oid) {
            self.report.note(NOTE_BOUNDARY, oid.to_string().as_bytes());
            commit.parents.retain(|parent| self.plan.known.contains_key(parent));
        }
        let before = commit.parents.len();
        let mut seen = std::collections::HashSet::new();
        commit.parents.retain(|parent| seen.insert(*parent));
        commit.parents.truncate(PARENTS_MAX);
        if commit.parents.len() < before {
            self.report.note(NOTE_PARENTS, oid.to_string().as_bytes());
        }
        commit
    }

    fn finish_batch(
        &mut self,
        batch: &mut Vec<(Oid, Vec<u8>, Commit)>,
        wanted: &mut Vec<Oid>,
        snapshots: &mut Vec<SnapshotId>,
        progress: &Progress,
    ) -> Result<()> {
        self.blobs.store(self.repository, self.assembly.session(), std::mem::take(wanted), progress)?;
        for (oid, raw, commit) in batch.drain(..) {
            progress.check()?;
            snapshots.push(self.snapshot(oid, &raw, &commit)?);
            progress.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        self.blobs.bound();
        Ok(())
    }

    fn snapshot(&mut self, oid: Oid, raw: &[u8], commit: &Commit) -> Result<SnapshotId> {
        let parents = commit.parents.iter().map(|parent| self.commit_of(*parent)).collect::<Result<Vec<_>>>()?;
        let time = commit.time();
        let same = parents.iter().find(|parent| parent.tree == commit.tree);
        let root = match same {
            Some(parent) => parent.root.clone(),
            None => {
                let before = parents.iter().map(|parent| {
                    let Node::Directory(directory) = parent.root.node else { unreachable!("a root is a directory") };
                    ParentTree { tree: parent.tree, directory }
                });
                let before: Vec<_> = before.collect();
                let (reader, assembly, blobs) = (self.reader, self.assembly, &self.blobs);
                let report = &mut self.report;
                let mut maker = TreeMaker { reader, assembly, blobs, time, report, made: HashMap::new() };
                let contents = maker.directory(commit.tree, &before, 0)?;
                Entry::new(Node::Directory(contents), 0o755, time)
            }
        };
        let mut words = Commit::parse(oid, raw)?.words(oid, raw);
        if words.is_cut {
            self.report.note(NOTE_CUT, oid.to_string().as_bytes());
        }
        let is_limited = self.plan.boundary.contains(&oid) || parents.iter().any(|parent| parent.is_limited);
        if self.submodules {
            words.metadata.insert(KEY_SUBMODULES.to_owned(), "imported".to_owned());
        }
        if is_limited {
            words.metadata.insert(KEY_HISTORY.to_owned(), "limited".to_owned());
        }
        let session = self.assembly.session();
        let id = session.put_root(&Root { directory: root.clone(), links: None, state: None })?;
        let generation = parents.iter().map(|parent| parent.generation + 1).max().unwrap_or(0);
        let snapshot = session.put_snapshot(Snapshot {
            root: id,
            parents: parents.iter().map(|parent| parent.snapshot).collect(),
            author: words.author,
            time: words.time,
            message: words.message,
            metadata: words.metadata,
            generation,
        })?;
        self.done.insert(oid, ImportedCommit { snapshot, generation, tree: commit.tree, root, is_limited });
        Ok(snapshot)
    }

    /// Returns a commit that was imported, now or before.
    fn commit_of(&mut self, oid: Oid) -> Result<ImportedCommit> {
        if let Some(done) = self.done.get(&oid) {
            return Ok(done.clone());
        }
        let id = self.plan.known.get(&oid).ok_or_else(|| super::objects::damaged(oid, "it was not imported"))?;
        let snapshot = self.store.snapshot(*id)?;
        self.pins.push(self.store.hold(snapshot.root)?);
        let done = ImportedCommit {
            snapshot: *id,
            generation: snapshot.generation,
            tree: Commit::parse(oid, &self.reader.commit(oid)?)?.tree,
            root: self.store.root(snapshot.root)?.directory.clone(),
            is_limited: snapshot.metadata.contains_key(KEY_HISTORY),
        };
        self.done.insert(oid, done.clone());
        Ok(done)
    }
}
