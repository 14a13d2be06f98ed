//! Fork, restore, commit and diff against the size of the tree, nested and flat.

use std::sync::Arc;
use std::time::Instant;

use amalgam_benches::random::Random;
use amalgam_benches::svg::{Chart, Curve};
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, machine, microseconds, options};
use amalgam_engine::backend::Meter;
use amalgam_engine::reference::RefName;
use amalgam_engine::{Commit, DiffOptions, Expect, SnapshotId, Store, WorkingTree, diff};

use crate::{Bench, Built, open_metered};

const FORK: &str = "fork, 1 M files";
const FORK_GROWTH: &str = "fork, 1 M files against 1 k";
const RESTORE: &str = "restore, 1 M files";
const RESTORE_GROWTH: &str = "restore, 1 M files against 1 k";
const COMMIT: &str = "commit, buffered, 100 k files";
const COMMIT_GROWTH: &str = "commit, buffered, 1 M files against 1 k";
const DIFF: &str = "diff of one change, 100 k files";
const DIFF_GROWTH: &str = "diff of one change, 1 M files against 1 k";
const COMMIT_ANY: &str = "commit, buffered, any of 1 M files";
const DIFF_ANY: &str = "diff of one change, any of 1 M files";
const FLAT_COMMIT: &str = "commit, 1 M names in one directory against nested";
const FLAT_DIFF: &str = "diff, 1 M names in one directory against nested";

pub(crate) const FIGURES: &[&str] = &[
    FORK,
    FORK_GROWTH,
    RESTORE,
    RESTORE_GROWTH,
    COMMIT,
    COMMIT_GROWTH,
    DIFF,
    DIFF_GROWTH,
    COMMIT_ANY,
    DIFF_ANY,
    FLAT_COMMIT,
    FLAT_DIFF,
];

/// Forks are too short to be timed one by one.
const FORKS_TIMED: u32 = 100;
const EDIT_BYTES: usize = 1 << 10;
/// Edits go to this many files all over the tree, so that its size is all that differs between trees.
pub(crate) const FILES_EDITED: u64 = 250;

/// A tree under measurement.
struct Subject {
    plan: Plan,
    store: Store,
    meter: Arc<Meter>,
    tree: WorkingTree,
    head: RefName,
    random: Random,
    snapshots: Vec<SnapshotId>,
    times: Times,
}

/// What single operations took, in microseconds.
#[derive(Default)]
struct Times {
    forks: Vec<f64>,
    restores: Vec<f64>,
    writes: Vec<f64>,
    commits: Vec<f64>,
    diffs: Vec<f64>,
    commits_any: Vec<f64>,
    diffs_any: Vec<f64>,
    /// Objects that all these commits, but those of any file, read from the database.
    reads: u64,
}

/// What an operation costs on one tree, in microseconds.
struct Cost {
    plan: Plan,
    fork: Samples,
    restore: Samples,
    write: Samples,
    commit: Samples,
    diff: Samples,
    commit_any: Samples,
    diff_any: Samples,
    /// Objects that a commit read from the database.
    reads: f64,
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("growth with the tree");
    let sizes = bench.size([1_000, 10_000, 100_000, 1_000_000], [200, 500, 1_000, 2_000]);
    let nested = |files| Plan { shape: Shape::Nested, files };
    let flat = |files| Plan { shape: Shape::Flat, files };
    let mut plans: Vec<_> = sizes.map(nested).into();
    match bench.options.svg {
        true => plans.extend(sizes.map(flat)),
        false => plans.push(flat(sizes[3])),
    }
    let costs = measure(bench, &plans)?;
    let of = |plan: Plan| costs.iter().find(|cost| cost.plan == plan).expect("every plan was measured");
    let (small, medium, large) = (of(nested(sizes[0])), of(nested(sizes[2])), of(nested(sizes[3])));
    let wide = of(flat(sizes[3]));

    let ratio = |bench: &mut Bench, name, bar, [above, below]: [&Samples; 2]| {
        let how = format!("{} over {}", above.describe("us"), below.describe("us"));
        bench.add(name, (above.p50() / below.p50(), "x"), Bar::AtMost(bar), how);
    };
    let forked = format!("each time {FORKS_TIMED} forks and their ends: {}", large.fork.describe("us"));
    bench.add(FORK, (large.fork.p50(), "us"), Bar::AtMost(10.0), forked);
    ratio(bench, FORK_GROWTH, 1.5, [&large.fork, &small.fork]);
    let restored = format!("to one of the last commits: {}", large.restore.describe("us"));
    bench.add(RESTORE, (large.restore.p50(), "us"), Bar::AtMost(10.0), restored);
    ratio(bench, RESTORE_GROWTH, 1.5, [&large.restore, &small.restore]);
    let how = format!(
        "1 KiB over one of {FILES_EDITED} files all over the tree, write and commit: {}; of these the write {}; objects \
         read from the database for each at 1 k, 100 k and 1 M files and 1 M names: {:.2}, {:.2}, {:.2}, {:.2}",
        medium.commit.describe("us"),
        medium.write.describe("us"),
        small.reads,
        medium.reads,
        large.reads,
        wide.reads,
    );
    bench.add(COMMIT, (medium.commit.p50(), "us"), Bar::AtMost(100.0), how);
    ratio(bench, COMMIT_GROWTH, 2.0, [&large.commit, &small.commit]);
    let how = format!("a commit and the one before, just made, all changes read: {}", medium.diff.describe("us"));
    bench.add(DIFF, (medium.diff.p50(), "us"), Bar::AtMost(100.0), how);
    ratio(bench, DIFF_GROWTH, 2.0, [&large.diff, &small.diff]);
    let any =
        |samples: &Samples| format!("files chosen among all, most of the tree in no cache: {}", samples.describe("us"));
    bench.add(COMMIT_ANY, (large.commit_any.p50(), "us"), Bar::None, any(&large.commit_any));
    bench.add(DIFF_ANY, (large.diff_any.p50(), "us"), Bar::None, any(&large.diff_any));
    ratio(bench, FLAT_COMMIT, 2.0, [&wide.commit, &large.commit]);
    ratio(bench, FLAT_DIFF, 2.0, [&wide.diff, &large.diff]);
    if bench.options.svg { draw(&costs) } else { Ok(()) }
}

/// Measures all trees in turns, so that what disturbs the machine for a while disturbs them alike.
fn measure(bench: &mut Bench, plans: &[Plan]) -> Result<Vec<Cost>> {
    let mut subjects = Vec::new();
    for plan in plans {
        let built = bench.tree(*plan)?;
        subjects.push(Subject::open(*plan, &built)?);
    }
    machine::settle();
    let (turns, steps) = bench.size((6, 1_000), (2, 20));
    for turn in 0..=turns {
        for subject in &mut subjects {
            subject.turn(steps)?;
            if turn == 0 {
                // That one warmed the caches up.
                subject.times = Times::default();
            }
        }
    }
    for subject in &mut subjects {
        subject.turn_anywhere(steps)?;
    }
    Ok(subjects.into_iter().map(Subject::cost).collect())
}

impl Subject {
    fn open(plan: Plan, built: &Built) -> Result<Self> {
        let (store, meter) = open_metered(&built.directory)?;
        let mut tree = WorkingTree::open(&store, built.snapshot)?;
        let head = reference("head/growth");
        let first = tree.commit(Commit::new(&head, "start").expecting(Expect::Absent))?.snapshot;
        Ok(Self {
            plan,
            store,
            meter,
            tree,
            head,
            random: Random::new(plan.files),
            snapshots: vec![first],
            times: Times::default(),
        })
    }

    fn turn(&mut self, steps: usize) -> Result<()> {
        let first = self.snapshots.len() - 1;
        for step in 0..steps as u64 {
            let file = step % FILES_EDITED * self.plan.files / FILES_EDITED;
            let reads = self.meter.gets();
            let (write, commit) = self.commit_once(file)?;
            self.times.reads += self.meter.gets() - reads;
            let diff = self.diff_once()?;
            self.times.writes.push(write);
            self.times.commits.push(write + commit);
            self.times.diffs.push(diff);
        }
        let latest = &self.snapshots[first..];
        for _ in 0..steps {
            let start = Instant::now();
            for _ in 0..FORKS_TIMED {
                drop(std::hint::black_box(self.tree.fork()));
            }
            self.times.forks.push(microseconds(start.elapsed()) / f64::from(FORKS_TIMED));
        }
        let mut tree = self.tree.fork();
        for _ in 0..steps {
            let target = latest[self.random.below(latest.len() as u64) as usize];
            let start = Instant::now();
            tree.restore(target)?;
            self.times.restores.push(microseconds(start.elapsed()));
        }
        Ok(())
    }

    /// Commits and diffs of files chosen among all.
    fn turn_anywhere(&mut self, steps: usize) -> Result<()> {
        for _ in 0..steps {
            let file = self.random.below(self.plan.files);
            let (write, commit) = self.commit_once(file)?;
            self.times.commits_any.push(write + commit);
            let diff = self.diff_once()?;
            self.times.diffs_any.push(diff);
        }
        Ok(())
    }

    /// Edits a file and commits it; returns how long the two took.
    fn commit_once(&mut self, file: u64) -> Result<(f64, f64)> {
        let path = self.plan.path(file);
        let edit = self.random.text(EDIT_BYTES);
        let commit = Commit::new(&self.head, "edit").buffered();
        let start = Instant::now();
        self.tree.write(&path, &edit)?;
        let written = start.elapsed();
        let done = self.tree.commit(commit)?;
        let committed = start.elapsed();
        self.snapshots.push(done.snapshot);
        Ok((microseconds(written), microseconds(committed - written)))
    }

    /// The difference that the last commit made; returns how long it took.
    fn diff_once(&self) -> Result<f64> {
        let [.., before, after] = self.snapshots[..] else { return Err("there is one snapshot only".into()) };
        let start = Instant::now();
        let changes = diff(&self.store, before, after, DiffOptions::default())?.collect::<Result<Vec<_>, _>>()?;
        let took = microseconds(start.elapsed());
        assert_eq!(changes.len(), 1, "one file was changed");
        Ok(took)
    }

    fn cost(self) -> Cost {
        Cost {
            plan: self.plan,
            reads: self.times.reads as f64 / self.times.commits.len() as f64,
            fork: Samples::new(self.times.forks),
            restore: Samples::new(self.times.restores),
            write: Samples::new(self.times.writes),
            commit: Samples::new(self.times.commits),
            diff: Samples::new(self.times.diffs),
            commit_any: Samples::new(self.times.commits_any),
            diff_any: Samples::new(self.times.diffs_any),
        }
    }
}

fn draw(costs: &[Cost]) -> Result<()> {
    let curve = |shape: Shape, value: fn(&Cost) -> f64| Curve {
        name: shape.word().to_owned(),
        points: costs
            .iter()
            .filter(|cost| cost.plan.shape == shape)
            .map(|cost| (cost.plan.files as f64, value(cost)))
            .collect(),
    };
    type Value = fn(&Cost) -> f64;
    let charts = [
        ("fork", "Fork of a working tree", 10.0, (|cost| cost.fork.p50()) as Value),
        ("restore", "Restore to a snapshot", 10.0, |cost| cost.restore.p50()),
        ("commit", "Buffered commit of one 1 KiB edit", 100.0, |cost| cost.commit.p50()),
        ("diff", "Diff of one change", 100.0, |cost| cost.diff.p50()),
    ];
    for (name, title, bar, value) in charts {
        let chart = Chart {
            title,
            x_label: "files in the tree",
            y_label: "microseconds, p50",
            bar: Some((bar, "bar")),
            curves: vec![curve(Shape::Nested, value), curve(Shape::Flat, value)],
        };
        std::fs::write(options::repository().join(format!("docs/curves-{name}.svg")), chart.draw())?;
    }
    Ok(())
}
