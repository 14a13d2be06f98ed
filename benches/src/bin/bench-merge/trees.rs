//! Merges of trees: two workspaces that changed different files, and a plan for many.

use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, Samples, machine, microseconds};
use amalgam_engine::merge::{MergeHow, MergeRequest, plan_octopus};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    History, MergeOptions, NoContents, OperationContext, SnapshotId, Store, Time, WorkspaceName, Workspaces,
    merge_snapshots,
};

const MERGE_SMALL: &str = "merge of 2 x 100 changed files, 10 k files";
const MERGE_LARGE: &str = "merge of 2 x 100 changed files, 1 M files";
const GROWTH: &str = "merge, 1 M files beside 10 k";
const OCTOPUS: &str = "plan of 16 workspaces with 10 conflicting pairs, 1 M files";

pub(crate) const FIGURES: &[&str] = &[MERGE_SMALL, MERGE_LARGE, GROWTH, OCTOPUS];

/// The first argument of the process that builds a tree. What that many allocations leave behind in a process slows down all
/// that comes after; whoever merges opens a store that is there.
pub(crate) const CHILD: &str = "--build-tree";

/// Files that each side changes.
const CHANGED: u64 = 100;
const SOURCES: usize = 16;
const PAIRS: usize = 10;

/// A store with a workspace that holds a tree.
struct House {
    plan: Plan,
    workspaces: Workspaces,
    history: History,
    main: WorkspaceName,
    act: OperationContext,
}

impl House {
    fn new(bench: &Bench, files: u64) -> Result<Self> {
        let directory = bench.directory(&format!("merge-{files}"));
        let mut build = Command::new(std::env::current_exe()?);
        let built = build.arg(CHILD).arg(&directory).arg(files.to_string()).stderr(Stdio::inherit()).output()?;
        let snapshot = SnapshotId::from_hex(String::from_utf8(built.stdout)?.trim());
        let snapshot = snapshot.ok_or("the tree could not be built")?;
        let store = Store::open(directory)?;
        let plan = Plan { shape: Shape::Nested, files };
        let (main, act) = (WorkspaceName::new("main")?, OperationContext::new("bench", Time(1)).buffered());
        let new = NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() };
        let workspaces = Workspaces::of(&store);
        workspaces.create(&main, &new, &act)?;
        machine::settle();
        Ok(Self { plan, workspaces, history: History::of(&store), main, act })
    }

    /// A fork in which these files hold something else.
    fn fork(&self, name: &str, changed: impl Iterator<Item = u64>) -> Result<(WorkspaceName, SnapshotId)> {
        let workspace = WorkspaceName::new(name)?;
        self.workspaces.fork(&self.main, std::slice::from_ref(&workspace), &self.act)?;
        let mut tree = self.workspaces.open(&workspace)?;
        for index in changed {
            tree.write(self.plan.path(index), format!("{index} as {name} has it").as_bytes())?;
        }
        let done = self.workspaces.commit(&workspace, &mut tree, &Change::new("changed"), &self.act)?;
        Ok((workspace, done.snapshot))
    }

    /// Every so many files of the tree, from one on.
    fn spread(&self, from: u64) -> impl Iterator<Item = u64> {
        let (step, files) = (self.plan.files / CHANGED, self.plan.files);
        (0..CHANGED).map(move |at| (at * step + from) % files)
    }
}

/// The process that builds a tree: says which snapshot it is.
#[expect(clippy::print_stdout, reason = "the process that started it reads it")]
pub(crate) fn child(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let directory = arguments.next().ok_or("a directory is missing")?;
    let files = arguments.next().ok_or("a number of files is missing")?.parse()?;
    let store = Store::open(directory)?;
    let (_, snapshot) = Plan { shape: Shape::Nested, files }.build(&store, &reference("head/built"))?;
    println!("{snapshot}");
    Ok(())
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("merges of trees");
    let houses = [bench.size(10_000, 1_000), bench.size(1_000_000, 10_000)].map(|files| Merging::new(bench, files));
    let [mut small, mut large] = {
        let [small, large] = houses;
        [small?, large?]
    };
    // In turns, so that an hour of the machine is the same hour for both.
    for round in 0..bench.size(200, 5) + 5 {
        for merging in [&mut small, &mut large] {
            merging.once(round, round >= 5)?;
        }
    }
    let small_took = small.tell(bench, MERGE_SMALL);
    let large_took = large.tell(bench, MERGE_LARGE);
    let how = format!("{:.2} ms beside {:.2} ms", large_took / 1_000.0, small_took / 1_000.0);
    bench.add(GROWTH, (large_took / small_took, "times"), Bar::AtMost(2.0), how);
    octopus(bench, &large.house)
}

/// A house with two workspaces that changed files, none in common, and how long their merges took.
struct Merging {
    house: House,
    ours: (WorkspaceName, SnapshotId),
    theirs: (WorkspaceName, SnapshotId),
    whole: Vec<f64>,
    trees: Vec<f64>,
}

impl Merging {
    fn new(bench: &Bench, files: u64) -> Result<Self> {
        let house = House::new(bench, files)?;
        let (ours, theirs) = (house.fork("ours", house.spread(0))?, house.fork("theirs", house.spread(1))?);
        Ok(Self { house, ours, theirs, whole: Vec::new(), trees: Vec::new() })
    }

    /// One merge without a commit, and one with it.
    fn once(&mut self, round: usize, counts: bool) -> Result<()> {
        let Self { house, ours: (ours, our_head), theirs: (theirs, their_head), .. } = self;
        let target = WorkspaceName::new(format!("target/{round}"))?;
        house.workspaces.fork(ours, std::slice::from_ref(&target), &house.act)?;
        let start = Instant::now();
        let outcome = merge_snapshots(&house.history, *our_head, *their_head, &NoContents, &MergeOptions::default())?;
        let merged = start.elapsed();
        assert!(outcome.conflicts.is_empty() && outcome.report.changed == CHANGED, "it is no clean merge");
        let sources = [theirs.clone()];
        let request = MergeRequest::new(&target, &sources, &NoContents);
        let start = Instant::now();
        let done = house.workspaces.merge(&house.history, &request, &house.act)?;
        let took = start.elapsed();
        assert_eq!(done.how, MergeHow::Merged);
        if counts {
            self.whole.push(microseconds(took));
            self.trees.push(microseconds(merged));
        }
        Ok(())
    }

    /// Tells the figure; returns the middle of the whole merges.
    fn tell(&mut self, bench: &mut Bench, name: &str) -> f64 {
        let (whole, trees) =
            (Samples::new(std::mem::take(&mut self.whole)), Samples::new(std::mem::take(&mut self.trees)));
        let how = format!(
            "none in common, found, merged and committed, buffered: {}; without the commit {}",
            whole.describe("us"),
            trees.describe("us")
        );
        bench.add(name, (whole.p50() / 1_000.0, "ms"), Bar::AtMost(20.0), how);
        whole.p50()
    }
}

/// Each workspace changes a hundred files of its own; ten pairs of neighbours have one file more in common.
fn octopus(bench: &mut Bench, house: &House) -> Result<()> {
    let mut heads = Vec::new();
    for source in 0..SOURCES as u64 {
        let shared = (0..PAIRS as u64).filter(move |pair| *pair == source || pair + 1 == source);
        let changed = house.spread(10 + source).chain(shared.map(|pair| pair * 3 + 40));
        heads.push(house.fork(&format!("source/{source}"), changed)?.1);
    }
    let target = house.fork("octopus", house.spread(9))?.1;
    let mut took = Vec::new();
    for round in 0..bench.size(50, 2) + 2 {
        let start = Instant::now();
        let plan = plan_octopus(&house.history, target, &heads, &NoContents, &MergeOptions::default())?;
        let elapsed = start.elapsed();
        assert_eq!((plan.order.len() + plan.left.len(), plan.pairs_merged), (SOURCES, PAIRS as u64));
        if round >= 2 {
            took.push(microseconds(elapsed));
        }
    }
    let took = Samples::new(took);
    let how = format!("{CHANGED} files changed in each: {}", took.describe("us"));
    bench.add(OCTOPUS, (took.p50() / 1_000.0, "ms"), Bar::AtMost(200.0), how);
    Ok(())
}
