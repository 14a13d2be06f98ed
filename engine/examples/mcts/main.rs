//! Repairs a small program by Monte-Carlo tree search: `cargo run --release --example mcts`.
//!
//! A state is a snapshot in a store on disk, an action is an edit of one line, and a state is worth the share of the tests
//! that pass on a written-out copy of it. With `--free` nothing is run and a state is worth a number that follows from its
//! bytes; that measures the search itself. A number as an argument is the most states to look at.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example talks")]

mod task;

use std::process::ExitCode;
use std::time::Instant;

use amalgam_engine::search::{SearchOptions, Selection, TreeSearch};
use amalgam_engine::{Commit, EpisodeName, Episodes, OperationContext, PatchOptions, RefName, Store, Time, patch};
use task::{Repair, Result};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mcts: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let is_free = arguments.iter().any(|argument| argument == "--free");
    let number = arguments.iter().find(|argument| *argument != "--free");
    let default = if is_free { 20_000 } else { 2_000 };
    let limit = number.map_or(Ok(default), |number| number.parse()).map_err(|_| "usage: mcts [--free] [STATES]")?;

    let directory = tempfile::tempdir()?;
    let store = Store::open(directory.path().join("store"))?;
    let first = Repair::program(&store)?.commit(Commit::new(&RefName::new("head/main")?, "the program"))?.snapshot;
    let repair = if is_free { Repair::free() } else { Repair::new()? };
    let options =
        SearchOptions { selection: Selection::Uct { constant: 0.15 }, depth_max: 12, seed: 1, ..Default::default() };
    let (name, act) = (EpisodeName::new("repair")?, OperationContext::new("search", Time::EPOCH).buffered());
    let mut search = TreeSearch::begin(&store, &name, first, repair, options, &act)?;
    println!("the program as it is: {:.0} % of its tests pass", 100.0 * search.best().reward);

    let started = Instant::now();
    let ended = search.run(limit, |so_far| so_far.best_reward >= 1.0)?;
    let seconds = started.elapsed().as_secs_f64();
    let (evaluations, hits) = search.edits().counts();
    let statistics = search.statistics();
    println!("ended: {ended:?} after {seconds:.2} s");
    println!("expansions: {}, {:.0} states a second", statistics.expansions, statistics.expansions as f64 / seconds);
    println!("evaluations: {evaluations}, known from before: {hits}");
    println!("deepest: {} edits, ends: {}", statistics.depth_max, statistics.terminals);

    let best = search.best();
    println!("best reward: {:.3}, by {} edits:", best.reward, best.depth);
    let episodes = Episodes::of(&store);
    for step in episodes.path_to(&name, best.state.step)?.iter().skip(1) {
        let (action, reward) =
            (step.metadata.get("action").map_or("", String::as_str), step.reward.unwrap_or_default());
        println!("  step {:<6} reward {reward:.3}, visits {:<6} {action}", step.id, step.visits);
    }
    println!("the change as a patch:\n");
    let root = |snapshot| store.snapshot(snapshot).map(|snapshot| Some(snapshot.root));
    let mut text = Vec::new();
    patch(&store, root(first)?, root(best.state.snapshot)?, &PatchOptions::default(), &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
