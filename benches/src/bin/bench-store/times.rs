//! The diff of two large trees that differ in nothing but times.

use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, sample};
use amalgam_engine::{Commit, DiffOptions, Expect, Store, Time, WorkingTree, diff};

use crate::Bench;

const TIMES: &str = "diff, 100 k files that differ in times only";

pub(crate) const FIGURES: &[&str] = &[TIMES];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("times");
    let plan = Plan { shape: Shape::Nested, files: bench.size(100_000, 1_000) };
    let built = bench.tree(plan)?;
    let store = Store::open(&built.directory)?;
    let mut tree = WorkingTree::open(&store, built.snapshot)?;
    for index in 0..plan.files {
        tree.set_mtime(plan.path(index), Time::from_seconds(1_000_000 + index as i64, 0))?;
    }
    let touched = tree.commit(Commit::new(&reference("head/touched"), "touch").expecting(Expect::Absent))?.snapshot;
    let samples = sample(100, bench.size(2_000, 50), |_| {
        let differing = diff(&store, built.snapshot, touched, DiffOptions::default())?.count();
        assert_eq!(differing, 0, "times are not looked at");
        Ok(())
    })?;
    bench.add(TIMES, (samples.p50(), "us"), Bar::AtMost(100.0), samples.describe("us"));
    Ok(())
}
