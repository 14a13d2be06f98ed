//! What those notice who commit while a collection runs.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_engine::{Commit, Expect, SnapshotId, Store, WorkingTree};
use amalgam_gc::{CollectOptions, Courtesy, collect};

use crate::made::{Made, remove};

pub const FIGURES: &[&str] = &[
    "commit beside a collection, p50 / without",
    "commit beside a collection, p99",
    "commit beside a collection, p99 / without",
];

fn commits(store: &Store, name: &str, head: SnapshotId, times: usize, go_on: &dyn Fn() -> bool) -> Result<Samples> {
    let mut tree = WorkingTree::open(store, head)?;
    let name = reference(name);
    let mut values = Vec::new();
    let mut round = 0_u64;
    while values.len() < times || go_on() {
        round += 1;
        tree.write(format!("d0/f{}", 1 + round % 40), &round.to_le_bytes())?;
        let start = Instant::now();
        let mut commit = Commit::new(&name, "edit").buffered();
        if round == 1 {
            commit = commit.expecting(Expect::Absent);
        }
        tree.commit(commit)?;
        values.push(microseconds(start.elapsed()));
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(Samples::new(values))
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let objects = bench.size(1_000_000, 60_000);
    let times = bench.size(4_000, 400);
    let directory = bench.directory("beside");
    let store = Store::open(&directory)?;
    let made = Made { objects, file_bytes: 1 << 10 };
    let heads = made.build(&store, "head")?;
    let without = commits(&store, "head/without", heads[0], times, &|| false)?;
    for number in 1..heads.len() {
        remove(&store, &format!("head/{number}"))?;
    }
    let stop = AtomicBool::new(false);
    let (collections, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| -> Result<Samples> {
        let collector = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let (clock, sleep) = (|| begun.elapsed(), |time: Duration| std::thread::sleep(time));
                let mut courtesy = Courtesy::new(&store, &clock, &sleep)?;
                let done = collect(&store, &CollectOptions::default(), &mut |_| {
                    courtesy.rest().map_or(ControlFlow::Break(()), ControlFlow::Continue)
                })?;
                collections.fetch_add(1, Ordering::Relaxed);
                deleted.fetch_add(done.freed.total().objects, Ordering::Relaxed);
            }
            Ok(())
        });
        let samples = commits(&store, "head/beside", heads[0], times, &|| collections.load(Ordering::Relaxed) == 0);
        stop.store(true, Ordering::Relaxed);
        collector.join().map_err(|_| "the collector panicked")??;
        samples
    })?;
    let how = format!(
        "buffered commits of one small file, one every half millisecond; without: {}; beside {} collections that took {} objects of \
         {objects}: {}",
        without.describe("us"),
        collections.into_inner(),
        deleted.into_inner(),
        beside.describe("us")
    );
    bench.add(FIGURES[0], (beside.p50() / without.p50(), "times"), Bar::AtMost(1.3), how.clone());
    let bar = (3.0 * without.p99()).max(10_000.0);
    bench.add(FIGURES[1], (beside.p99() / 1e3, "ms"), Bar::AtMost(bar / 1e3), how.clone());
    bench.add(FIGURES[2], (beside.p99() / without.p99(), "times"), Bar::None, how);
    drop(store);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
