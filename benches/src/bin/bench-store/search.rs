//! A search through states: go to one, edit, commit, look at the difference, again and again.

use std::time::Instant;

use amalgam_benches::random::Random;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, machine, median};
use amalgam_engine::{Commit, DiffOptions, Expect, Store, WorkingTree, diff};

use crate::{Bench, Built};

const SEARCH: &str = "search loop on one core";

pub(crate) const FIGURES: &[&str] = &[SEARCH];

const EDIT_BYTES: usize = 1 << 10;
/// A search goes back to one of this many newest states.
const FRONTIER: u64 = 100;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("search");
    let plan = Plan { shape: Shape::Nested, files: bench.size(10_000, 500) };
    let built = bench.tree(plan)?;
    let (turns, states) = bench.size((7, 10_000), (2, 200));
    // RocksDB's own threads share that core.
    let cpu_before = machine::cpu_seconds();
    let rates = machine::on_one_core(|| search(plan, &built, turns, states))?;
    let each = (machine::cpu_seconds() - cpu_before) * 1e6 / ((turns + 1) * states) as f64;
    let how = format!(
        "one core for everything, {} files; restore to one of {FRONTIER} newest states, write 1 KiB, buffered commit, \
         diff to the parent; {each:.0} us of processor time for each; median of {turns} turns of {states} states: {rates:.0?}",
        plan.files
    );
    bench.add(SEARCH, (median(rates), "states/s"), Bar::AtLeast(6_000.0), how);
    Ok(())
}

fn search(plan: Plan, built: &Built, turns: u64, states: u64) -> Result<Vec<f64>> {
    let store = Store::open(&built.directory)?;
    let head = reference("head/search");
    let mut tree = WorkingTree::open(&store, built.snapshot)?;
    let start = Commit::new(&head, "start").buffered().expecting(Expect::Absent);
    let mut seen = vec![tree.commit(start)?.snapshot];
    let mut random = Random::new(1);
    let mut rates = Vec::new();
    // The first turn warms the caches up.
    for turn in 0..=turns {
        let start = Instant::now();
        for _ in 0..states {
            let newest = seen[seen.len() - 1];
            let back = random.below(FRONTIER.min(seen.len() as u64)) as usize;
            let parent = seen[seen.len() - 1 - back];
            tree.restore(parent)?;
            tree.write(plan.path(random.below(plan.files)), &random.text(EDIT_BYTES))?;
            let done = tree.commit(Commit::new(&head, "state").buffered().expecting(Expect::At(newest)))?;
            let changes = diff(&store, parent, done.snapshot, DiffOptions::default())?;
            assert_eq!(changes.count(), 1, "one file was changed");
            seen.push(done.snapshot);
        }
        if turn > 0 {
            rates.push(states as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(rates)
}
