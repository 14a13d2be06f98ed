//! What those notice who commit while a collection runs.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, Samples, machine, microseconds};
use amalgam_engine::{Commit, Expect, SnapshotId, Store, WorkingTree};
use amalgam_gc::{CollectOptions, Throttle, collect, low_priority_readers};

use crate::made::{Made, remove};

pub const FIGURES: &[&str] = &[
    "commit beside a collection, p50 / without",
    "commit beside a collection, p99",
    "commit beside a collection, p99 / without",
];

/// Commits in a stretch in which the collection works, and then in one in which it is held; so that both meet the same machine.
const STRETCH: u64 = 250;
/// Commits at the beginning of a stretch that count for neither: a step of a collection ends when it is done.
const BETWEEN: u64 = 50;

/// How long commits took while the collection worked, and while it was held.
#[derive(Default)]
struct Took {
    beside: Vec<f64>,
    without: Vec<f64>,
}

fn commits(store: &Store, head: SnapshotId, hold: &AtomicBool, is_done: &dyn Fn() -> bool) -> Result<Took> {
    let mut tree = WorkingTree::open(store, head)?;
    let name = reference("head/committed");
    let mut took = Took::default();
    let mut round = 0_u64;
    while !is_done() {
        let is_held = round / STRETCH % 2 == 1;
        hold.store(is_held, Ordering::Relaxed);
        round += 1;
        tree.write(format!("d0/f{}", 1 + round % 40), &round.to_le_bytes())?;
        let start = Instant::now();
        let mut commit = Commit::new(&name, "edit").buffered();
        if round == 1 {
            commit = commit.expecting(Expect::Absent);
        }
        tree.commit(commit)?;
        let time = microseconds(start.elapsed());
        if round % STRETCH >= BETWEEN {
            if is_held { took.without.push(time) } else { took.beside.push(time) }
        }
        // Whoever commits is at work in between: a processor that was put to sleep has lost its caches, beside a collection or not.
        let done = Instant::now();
        while done.elapsed() < Duration::from_micros(500) {
            std::hint::spin_loop();
        }
    }
    hold.store(false, Ordering::Relaxed);
    Ok(took)
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let objects = bench.size(1_000_000, 60_000);
    let directory = bench.directory("beside");
    let store = Store::open(&directory)?;
    let made = Made { objects, file_bytes: 1 << 10 };
    let heads = made.build(&store, "head")?;
    for number in 1..heads.len() {
        remove(&store, &format!("head/{number}"))?;
    }
    machine::settle();
    // As the process of a store collects.
    let readers = low_priority_readers();
    let (hold, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let (took, deleted) = std::thread::scope(|scope| -> Result<(Took, u64)> {
        let collector = scope.spawn(|| -> Result<u64> {
            let begun = Instant::now();
            // While it is held its clock stands still.
            let held = AtomicU64::new(0);
            let clock = || begun.elapsed() - Duration::from_nanos(held.load(Ordering::Relaxed));
            let sleep = |time: Duration| std::thread::sleep(time);
            let mut throttle = Throttle::new(&store, &clock, &sleep)?;
            let options = CollectOptions { readers: readers.as_ref(), ..CollectOptions::default() };
            let done = collect(&store, &options, &mut |_| {
                let from = Instant::now();
                while hold.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                held.fetch_add(from.elapsed().as_nanos() as u64, Ordering::Relaxed);
                throttle.pause().map_or(ControlFlow::Break(()), ControlFlow::Continue)
            });
            is_done.store(true, Ordering::Relaxed);
            Ok(done?.freed.total().objects)
        });
        let took = commits(&store, heads[0], &hold, &|| is_done.load(Ordering::Relaxed));
        // Whatever happened, it is not held any more.
        hold.store(false, Ordering::Relaxed);
        let deleted = collector.join().map_err(|_| "the collector panicked")??;
        Ok((took?, deleted))
    })?;
    let [beside, without] = [took.beside, took.without].map(Samples::new);
    let how = format!(
        "buffered commits of one small file, one every half millisecond; beside a collection that took {deleted} objects of \
         {objects}: {}; in turns with it, while it was held: {}",
        beside.describe("us"),
        without.describe("us")
    );
    bench.add(FIGURES[0], (beside.p50() / without.p50(), "times"), Bar::AtMost(1.3), how.clone());
    let bar = (3.0 * without.p99()).max(10_000.0);
    bench.add(FIGURES[1], (beside.p99() / 1e3, "ms"), Bar::AtMost(bar / 1e3), how.clone());
    bench.add(FIGURES[2], (beside.p99() / without.p99(), "times"), Bar::None, how);
    drop(store);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}
