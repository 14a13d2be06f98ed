//! Monte-Carlo tree search when evaluation costs nothing: what is left is the engine.

use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::{Plan, Shape, reference};
use amalgam_benches::{Bar, Result, machine, median};
use amalgam_engine::search::{Choice, Edits, SearchOptions, TreeSearch};
use amalgam_engine::{EpisodeName, Episodes, OperationContext, SnapshotId, Store, Time, WorkingTree};

const RATE: &str = "MCTS, expansions a second when evaluation is free";
const THREADS: &str = "MCTS, expansions a second when evaluation is free, 2 threads";
const COUNT: &str = "MCTS, best leaf of the episode";

pub(crate) const FIGURES: &[&str] = &[RATE, THREADS, COUNT];

const EDIT_BYTES: usize = 1 << 10;
const ACTIONS: u64 = 8;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("search");
    let plan = Plan { shape: Shape::Nested, files: bench.size(10_000, 500) };
    let (turns, states) = bench.size((5, 10_000), (2, 300));
    let store = Store::open(bench.directory("search-store"))?;
    let (_, first) = plan.build(&store, &reference("head/search"))?;
    machine::settle();
    let cpu_before = machine::cpu_seconds();
    // The first turn warms the caches up.
    let (mut rates, mut threads, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..=turns {
        let one = search(&store, plan, first, turn, 1, states)?;
        let two = search(&store, plan, first, turn, 2, states)?;
        let episode = EpisodeName::new(format!("bench/1/{turn}"))?;
        let start = Instant::now();
        Episodes::of(&store).best_leaf(&episode)?.ok_or("no leaf has a reward")?;
        let leaf = start.elapsed().as_secs_f64() * 1e3;
        if turn > 0 {
            rates.push(one);
            threads.push(two);
            leaves.push(leaf);
        }
    }
    let each = (machine::cpu_seconds() - cpu_before) * 1e6 / (2 * (turns + 1) * states) as f64;
    let how = |what: &str, list: &[f64]| {
        format!(
            "{what}; {} files on disk in RocksDB, {ACTIONS} actions a state; each expansion opens its parent, writes 1 KiB to a \
             file, commits buffered and records a step in one transaction, and back-propagates; rewards and visits are \
             written every 1,000 states, in the time; {each:.0} us of processor time for each; median of {turns} turns of {states} states: {list:.0?}",
            plan.files
        )
    };
    bench.add(RATE, (median(rates.clone()), "states/s"), Bar::AtLeast(3_000.0), how("one thread", &rates));
    bench.add(THREADS, (median(threads.clone()), "states/s"), Bar::None, how("two threads on one tree", &threads));
    let how = format!("an episode of {states} steps, all read in pages; median of {turns}: {leaves:.1?}");
    bench.add(COUNT, (median(leaves), "ms"), Bar::None, how);
    Ok(())
}

/// States a second, back-propagation and the writing of its numbers included.
fn search(store: &Store, plan: Plan, first: SnapshotId, turn: u64, threads: usize, states: u64) -> Result<f64> {
    let name = EpisodeName::new(format!("bench/{threads}/{turn}"))?;
    let options = SearchOptions { threads, seed: turn, ..SearchOptions::default() };
    let act = OperationContext::new("bench", Time::EPOCH).buffered();
    let mut search = TreeSearch::begin(store, &name, first, Free { plan, turn }, options, &act)?;
    let start = Instant::now();
    search.run(states, |_| false)?;
    let rate = states as f64 / start.elapsed().as_secs_f64();
    assert_eq!(search.statistics().expansions, states, "the space is larger than that");
    Ok(rate)
}

/// Writes to any file; worth whatever the snapshot's id says.
struct Free {
    plan: Plan,
    turn: u64,
}

impl Edits for Free {
    type Action = u64;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn actions(&self, tree: &WorkingTree, _: usize) -> Result<Vec<Choice<u64>>> {
        let parent = tree.base().map_or(0, |base| number(&base));
        Ok((0..ACTIONS).map(|action| Choice::of(parent.wrapping_add(action + self.turn * 100))).collect())
    }

    fn edit(&self, tree: &mut WorkingTree, action: &u64) -> Result<()> {
        let mut random = Random::new(*action);
        let path = self.plan.path(random.below(self.plan.files));
        tree.write(path, &random.text(EDIT_BYTES))?;
        Ok(())
    }

    fn evaluate(&self, _: &WorkingTree, snapshot: SnapshotId) -> Result<f64> {
        Ok((number(&snapshot) % 1_000) as f64 / 1_001.0)
    }

    fn describe(&self, action: &u64) -> String {
        format!("edit {action}")
    }
}

fn number(snapshot: &SnapshotId) -> u64 {
    let hash = snapshot.object().hash;
    hash[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
