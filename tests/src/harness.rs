//! What the fault suites share: random numbers with a printed seed, trees as plain maps, stores over either backend, and
//! the two faults that need a process of their own, a kill and a power cut.
//!
//! Everything here panics when the store is wrong: it is called by tests.

pub mod collection;
pub mod cuts;
pub mod kill;
pub mod lives;
pub mod merging;
pub mod mounting;
pub mod powercut;
mod random;
pub mod receiving;
pub mod small_disk;
pub mod views;
pub mod watched;
pub mod workload;

pub use random::{Random, seed};

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{Family, Inspect, Memory, Rocks, RocksOptions};
use amalgam_engine::object::EntryKind;
use amalgam_engine::reference::RefName;
use amalgam_engine::{Result, Store, StoreOptions, WorkingTree};
use amalgam_test_support::postgres;

/// Where a suite that runs over several backends keeps its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In memory.
    Memory,
    /// In this directory.
    Disk(&'a Path),
    /// On PostgreSQL and a bucket.
    Cloud(&'a CloudPlace),
}

/// A project on PostgreSQL and a bucket in memory, for nodes of one process.
#[derive(Clone, Debug)]
pub struct CloudPlace {
    /// The settings of a node.
    pub options: CloudOptions,
}

impl CloudPlace {
    /// Makes a project of its own on the server that all tests of this process share; `None` after a skip where there is none.
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let url = postgres::shared()?;
        let project = format!("project {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let bucket = open_bucket("memory:").expect("memory");
        let mut options = CloudOptions::new(url, bucket, project);
        options.connections = 8;
        options.grace = Duration::ZERO;
        Some(Self { options })
    }

    /// Opens the project as another node.
    pub fn node(&self) -> Cloud {
        Cloud::open(&self.options).expect("the server runs")
    }
}

impl PartialEq for CloudPlace {
    fn eq(&self, other: &Self) -> bool {
        self.options.project == other.options.project
    }
}

impl Eq for CloudPlace {}

impl Place<'_> {
    /// Opens a backend there. What was in memory is gone.
    pub fn backend(self) -> Arc<dyn Inspect> {
        match self {
            Place::Memory => Arc::new(Memory::default()),
            Place::Disk(directory) => {
                Arc::new(Rocks::open(directory, &RocksOptions::default()).expect("the directory is the test's own"))
            }
            Place::Cloud(place) => Arc::new(place.node()),
        }
    }

    /// Opens a store there.
    pub fn store(self) -> Store {
        Store::new(self.backend(), &StoreOptions::default())
    }
}

/// Runs a suite over every backend; without PostgreSQL it says that it skips that one.
pub fn over_all(suite: impl Fn(Place<'_>)) {
    over_both(&suite);
    if let Some(place) = CloudPlace::new() {
        suite(Place::Cloud(&place));
    }
}

/// Runs a suite over the backends of one process, whose rows it may edit.
pub fn over_both(suite: impl Fn(Place<'_>)) {
    suite(Place::Memory);
    let directory = tempfile::tempdir().expect("a temporary directory");
    suite(Place::Disk(&directory.path().join("store")));
}

/// A reference's name.
pub fn name(text: impl Into<String>) -> RefName {
    RefName::new(text).expect("tests use valid names")
}

/// Every file of a tree with its bytes, by path. Fails where anything cannot be read.
pub fn read_files(tree: &WorkingTree) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    walk(tree, &mut |path, tree| {
        files.insert(path.to_owned(), tree.read(path)?);
        Ok(())
    })?;
    Ok(files)
}

/// Calls `visit` with the path of every file of a tree.
pub fn walk(tree: &WorkingTree, visit: &mut dyn FnMut(&str, &WorkingTree) -> Result<()>) -> Result<()> {
    let mut open = vec![String::new()];
    while let Some(directory) = open.pop() {
        for item in tree.list(&directory)? {
            let (child, stat) = item?;
            let child = String::from_utf8_lossy(child.as_bytes()).into_owned();
            let path = if directory.is_empty() { child } else { format!("{directory}/{child}") };
            match stat.kind {
                EntryKind::Directory => open.push(path),
                _ => visit(&path, tree)?,
            }
        }
    }
    Ok(())
}

/// The chunks of a store that nobody has open, in the order in which they lie there; of those that cannot be compressed.
pub fn stored_chunks(directory: &Path) -> Result<Vec<Vec<u8>>> {
    let backend = Rocks::open(directory, &RocksOptions::default())?;
    let (mut found, mut from) = (Vec::new(), Vec::new());
    loop {
        let page = backend.rows(Family::Chunks, &from, None, 1 << 20)?;
        let Some((last, _)) = page.rows.last() else { return Ok(found) };
        from = [&last[..], &[0]].concat();
        // Behind a byte that says how it is stored.
        found.extend(page.rows.iter().map(|(_, stored)| stored[1..].to_vec()));
    }
}

/// Every reference of a store.
pub fn all_refs(store: &Store) -> Result<Vec<(RefName, amalgam_engine::reference::RefValue)>> {
    let mut refs: Vec<(RefName, _)> = Vec::new();
    loop {
        let page = store.list_refs("", refs.last().map(|(name, _)| name), 100)?;
        if page.is_empty() {
            return Ok(refs);
        }
        refs.extend(page);
    }
}

/// The whole operation log. Panics where it has a gap.
pub fn all_operations(store: &Store) -> Result<Vec<amalgam_engine::reference::Operation>> {
    let mut operations: Vec<amalgam_engine::reference::Operation> = Vec::new();
    loop {
        let page = store.list_operations(operations.len() as u64, 1_000)?;
        if page.is_empty() {
            return Ok(operations);
        }
        for operation in page {
            assert_eq!(operation.sequence, operations.len() as u64 + 1, "the operation log has a gap");
            operations.push(operation);
        }
    }
}

/// Replays the operation log: each operation must begin where those before it ended, and the end must be the references.
pub fn check_log(store: &Store) -> Result<Vec<amalgam_engine::reference::Operation>> {
    let operations = all_operations(store)?;
    let mut replayed = BTreeMap::new();
    for operation in &operations {
        for change in &operation.changes {
            let sequence = operation.sequence;
            let before = replayed.get(&change.name);
            assert_eq!(before, change.before.as_ref(), "operation {sequence} of {}: another before", change.name);
            match &change.after {
                Some(value) => replayed.insert(change.name.clone(), value.clone()),
                None => replayed.remove(&change.name),
            };
        }
    }
    let refs: BTreeMap<_, _> = all_refs(store)?.into_iter().collect();
    assert_eq!(refs, replayed, "the references are not what the operation log says");
    Ok(operations)
}
