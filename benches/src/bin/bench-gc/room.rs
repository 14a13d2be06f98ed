//! Whether the room comes back, and how much is needed meanwhile.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_engine::object::Snapshot;
use amalgam_engine::{SnapshotId, Store};
use amalgam_gc::{CollectOptions, collect};

use crate::made::{Made, disk_bytes};

pub const FIGURES: &[&str] =
    &["store after dropping 90 % of snapshots / fresh store", "most room beside the store / store"];

const MADE: Made = Made { objects: 8_000, file_bytes: 4 << 10 };
/// One file in so many changes from snapshot to snapshot.
const CHANGED_ONE_IN: u64 = 3;
const KEPT_ONE_IN: u64 = 10;

/// A history in which every snapshot changes a third of the tree.
fn history(store: &Store, made: Made, snapshots: u64) -> Result<()> {
    let mut head = made.build_tree(store, "head/main", 0)?;
    for version in 1..snapshots {
        head = made.change(store, head, "head/main", version, CHANGED_ONE_IN)?;
    }
    Ok(())
}

/// The same history with only the trees that stay.
fn fresh(store: &Store, from: &Store, snapshots: &[SnapshotId]) -> Result<()> {
    for (at, snapshot) in snapshots.iter().enumerate() {
        let source = amalgam_engine::WorkingTree::open(from, *snapshot)?;
        let mut tree = amalgam_engine::WorkingTree::new(store);
        for directory in source.list("")? {
            let (directory, _) = directory?;
            let directory = String::from_utf8_lossy(directory.as_bytes()).into_owned();
            tree.create_directories(&directory)?;
            for file in source.list(&directory)? {
                let (file, _) = file?;
                let path = format!("{directory}/{}", String::from_utf8_lossy(file.as_bytes()));
                tree.write(&path, &source.read(&path)?)?;
            }
        }
        let name = amalgam_benches::trees::reference(&format!("head/{at}"));
        tree.commit(amalgam_engine::Commit::new(&name, "fresh").buffered())?;
    }
    Ok(())
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let snapshots = bench.size(100, 20);
    let made = Made { objects: bench.size(MADE.objects, 2_000), ..MADE };
    let (old, new) = (bench.directory("room"), bench.directory("room-fresh"));
    {
        history(&Store::open(&old)?, made, snapshots)?;
    }
    let before = disk_bytes(&old);
    let stop = AtomicBool::new(false);
    let peak = AtomicU64::new(0);
    let mut kept = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(disk_bytes(&old), Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        let done = (|| -> Result<()> {
            let store = Store::open(&old)?;
            let keeps = |_: SnapshotId, snapshot: &Snapshot| snapshot.generation.is_multiple_of(KEPT_ONE_IN);
            let options = CollectOptions { retention: &keeps, ..CollectOptions::default() };
            collect(&store, &options, &mut |_| ControlFlow::Continue(()))?;
            let head = store.read_ref(&amalgam_benches::trees::reference("head/main"))?;
            let head = head.and_then(|value| value.target).ok_or("the head is gone")?;
            let history = amalgam_engine::History::of(&store);
            for snapshot in history.range(SnapshotId::from_bytes(head.hash), &[])? {
                if !history.is_thinned(snapshot)? {
                    kept.push(snapshot);
                }
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        done
    })?;
    let after = disk_bytes(&old);
    let fresh_bytes = {
        let (from, to) = (Store::open(&old)?, Store::open(&new)?);
        fresh(&to, &from, &kept)?;
        drop(to);
        disk_bytes(&new)
    };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let how = format!(
        "{snapshots} snapshots, each a third new; {:.0} MiB before, {:.0} MiB after {} trees stayed, {:.0} MiB fresh; closed",
        mib(before),
        mib(after),
        kept.len(),
        mib(fresh_bytes)
    );
    bench.add(FIGURES[0], (after as f64 / fresh_bytes as f64, "times"), Bar::AtMost(1.15), how);
    let peak = peak.load(Ordering::Relaxed).saturating_sub(before);
    let how = format!("{:.1} MiB more than before at the most, the log included; looked at every 5 ms", mib(peak));
    bench.add(FIGURES[1], (peak as f64 / before as f64, "parts"), Bar::AtMost(0.1), how);
    std::fs::remove_dir_all(old)?;
    std::fs::remove_dir_all(new)?;
    Ok(())
}
