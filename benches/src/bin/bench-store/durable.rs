//! Durable commits: one thread beside the bare disk, and many threads together.

use std::fs::File;
use std::io::Write as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use amalgam_benches::random::Random;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, machine, median, microseconds};
use amalgam_engine::backend::Durability;
use amalgam_engine::{Commit, Expect, SnapshotId, Store, WorkingTree};

use crate::Bench;
use crate::growth::FILES_EDITED;

const APPEND: &str = "append of 4 KiB and fdatasync";
const COMMIT: &str = "commit, durable, against append and fdatasync";
const TOGETHER: &str = "commits, durable, 64 threads together";
const TOGETHER_BUFFERED: &str = "commits, buffered, 64 threads together";
const ALONE: &str = "commits, durable, one thread";

pub(crate) const FIGURES: &[&str] = &[APPEND, COMMIT, TOGETHER, TOGETHER_BUFFERED, ALONE];

const EDIT_BYTES: usize = 1 << 10;
const THREADS: usize = 64;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("durable commits");
    let plan = Plan { shape: Shape::Nested, files: bench.size(100_000, 1_000) };
    let built = bench.tree(plan)?;
    let store = Store::open(&built.directory)?;
    machine::settle();
    one_by_one(bench, plan, &store, built.snapshot)?;
    together(bench, plan, &store, built.snapshot)
}

fn one_by_one(bench: &mut Bench, plan: Plan, store: &Store, base: SnapshotId) -> Result<()> {
    let mut tree = WorkingTree::open(store, base)?;
    let head = reference("head/durable");
    tree.commit(Commit::new(&head, "start").expecting(Expect::Absent))?;
    let mut beside = File::create(bench.directory("appended"))?;
    let block = [7; 4 << 10];
    let mut random = Random::new(2);
    let (warm_up, times) = bench.size((500, 2_000), (5, 50));
    let (mut commits, mut appends) = (Vec::new(), Vec::new());
    for round in 0..warm_up + times {
        // The same edits as of the buffered commits.
        let file = round as u64 % FILES_EDITED * plan.files / FILES_EDITED;
        let (path, edit) = (plan.path(file), random.text(EDIT_BYTES));
        let start = Instant::now();
        tree.write(&path, &edit)?;
        tree.commit(Commit::new(&head, "edit"))?;
        let committed = start.elapsed();
        let start = Instant::now();
        beside.write_all(&block)?;
        beside.sync_data()?;
        let appended = start.elapsed();
        if round >= warm_up {
            commits.push(microseconds(committed));
            appends.push(microseconds(appended));
        }
    }
    let (commits, appends) = (Samples::new(commits), Samples::new(appends));
    bench.add(APPEND, (appends.p50(), "us"), Bar::None, format!("in turns with commits: {}", appends.describe("us")));
    let how = format!(
        "1 KiB edit among {} files, in turns on one disk: {} over {}",
        plan.files,
        commits.describe("us"),
        appends.describe("us")
    );
    bench.add(COMMIT, (commits.p50() / appends.p50(), "x"), Bar::AtMost(2.0), how);
    Ok(())
}

fn together(bench: &mut Bench, plan: Plan, store: &Store, base: SnapshotId) -> Result<()> {
    let (turns, length) = bench.size((5, Duration::from_secs(2)), (2, Duration::from_millis(100)));
    let (mut alone, mut durable, mut buffered) = (Vec::new(), Vec::new(), Vec::new());
    // The first turn warms up.
    for turn in 0..=turns {
        let rate = |name: &str, threads, durability| {
            let crowd = Crowd { plan, base, name: format!("head/{name}-{turn}"), threads, durability, length };
            crowd.commits_per_second(store)
        };
        let rates = [
            rate("alone", 1, Durability::Durable)?,
            rate("durable", THREADS, Durability::Durable)?,
            rate("buffered", THREADS, Durability::Buffered)?,
        ];
        if turn > 0 {
            alone.push(rates[0]);
            durable.push(rates[1]);
            buffered.push(rates[2]);
        }
    }
    let how = format!("a reference each, in turns, median of {turns} turns of {:.1} s", length.as_secs_f64());
    let (one, many, free) = (median(alone), median(durable), median(buffered));
    bench.add(ALONE, (one, "commits/s"), Bar::None, how.clone());
    bench.add(TOGETHER_BUFFERED, (free, "commits/s"), Bar::None, how.clone());
    let bar = Bar::AtLeast((8.0 * one).min(0.6 * free));
    let how = format!("{how}; the bar is the lower of 8 x one thread ({one:.0}) and 0.6 x buffered ({free:.0})");
    bench.add(TOGETHER, (many, "commits/s"), bar, how);
    Ok(())
}

/// Threads that commit at the same time.
struct Crowd {
    plan: Plan,
    base: SnapshotId,
    name: String,
    threads: usize,
    durability: Durability,
    length: Duration,
}

impl Crowd {
    fn commits_per_second(&self, store: &Store) -> Result<f64> {
        let ready = Barrier::new(self.threads);
        let counts = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|thread| {
                    scope.spawn({
                        let ready = &ready;
                        move || self.one(store, thread, ready)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread that does not panic")).collect::<Vec<_>>()
        });
        counts.into_iter().sum()
    }

    /// Commits until the time is over; returns how many a second.
    fn one(&self, store: &Store, thread: usize, ready: &Barrier) -> Result<f64> {
        let head = reference(&format!("{}-{thread}", self.name));
        let mut random = Random::new(thread as u64);
        let opened = WorkingTree::open(store, self.base);
        ready.wait();
        let mut tree = opened?;
        let mut expect = Expect::Absent;
        let mut count = 0;
        let start = Instant::now();
        while start.elapsed() < self.length {
            tree.write(self.plan.path(random.below(self.plan.files)), &random.text(EDIT_BYTES))?;
            let mut commit = Commit::new(&head, "edit").expecting(expect);
            commit.durability = self.durability;
            tree.commit(commit)?;
            expect = Expect::Base;
            count += 1;
        }
        Ok(f64::from(count) / start.elapsed().as_secs_f64())
    }
}
