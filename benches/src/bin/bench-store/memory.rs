//! What it takes in memory to open a large tree and commit one edit, in a process of its own.

use std::process::Command;

use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, machine};
use amalgam_engine::backend::RocksOptions;
use amalgam_engine::{Commit, Expect, SnapshotId, Store, StoreOptions, WorkingTree};

use crate::Bench;

const MEMORY: &str = "memory to open 1 M files and commit an edit";

pub(crate) const FIGURES: &[&str] = &[MEMORY];

/// The first argument of the process that is measured.
pub(crate) const CHILD: &str = "--measure-memory";

const CACHE_BYTES: usize = 16 << 20;
const MB: f64 = 1e6;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("memory");
    let plan = Plan { shape: Shape::Nested, files: bench.size(1_000_000, 1_000) };
    let built = bench.tree(plan)?;
    let nothing = measure(&[])?;
    let directory = built.directory.to_str().ok_or("the directory's name is not text")?;
    let opened = measure(&[directory, &built.snapshot.to_string(), &plan.path(plan.files / 2)])?;
    let caches = 2.0 * CACHE_BYTES as f64;
    let how = format!(
        "peak of a process that opens the store and commits a 1 KiB edit durably ({:.1} MB) without that of one that opens \
         nothing ({:.1} MB) and without its two caches ({:.1} MB each, as configured); write buffers count",
        opened / MB,
        nothing / MB,
        CACHE_BYTES as f64 / MB
    );
    bench.add(MEMORY, ((opened - nothing - caches) / MB, "MB"), Bar::AtMost(100.0), how);
    Ok(())
}

/// The peak memory of a process of this program with these arguments.
fn measure(arguments: &[&str]) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?).arg(CHILD).args(arguments).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The process that is measured: opens what it is told to, and says how much memory that took.
pub(crate) fn child(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    if let Some(directory) = arguments.next() {
        let snapshot = arguments.next().and_then(|id| SnapshotId::from_hex(&id)).ok_or("a snapshot is missing")?;
        let path = arguments.next().ok_or("a path is missing")?;
        let rocks = RocksOptions { block_cache_bytes: CACHE_BYTES, ..RocksOptions::default() };
        let store = Store::open_with(
            directory,
            &StoreOptions { cache_bytes: CACHE_BYTES as u64, rocks, ..StoreOptions::default() },
        )?;
        let mut tree = WorkingTree::open(&store, snapshot)?;
        tree.write(path, &[b'x'; 1 << 10])?;
        tree.commit(Commit::new(&reference("head/memory"), "edit").expecting(Expect::Absent))?;
    }
    println!("{}", machine::peak_memory_bytes()?);
    Ok(())
}
