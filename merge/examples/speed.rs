//! How long a merge of three given files takes: `speed WAY BASE OURS THEIRS`. Builds in seconds, unlike the benchmarks.

#![allow(clippy::print_stdout, reason = "it is a program for a terminal")]

use std::time::Instant;

use amalgam_merge::{MergeSettings, MergeStrategy, Outcome, Sides, merge};

const TIMES: usize = 200;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [strategy, files @ ..] = arguments.as_slice() else { return Err("speed WAY BASE OURS THEIRS".into()) };
    let strategy = MergeStrategy::named(strategy).ok_or("no such way")?;
    let versions = files.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
    let [base, ours, theirs] = versions.as_slice() else { return Err("speed WAY BASE OURS THEIRS".into()) };
    let (sides, setting) = (Sides { base: Some(base), ours, theirs }, MergeSettings::default());
    let mut spent = Vec::with_capacity(TIMES);
    let mut what = String::new();
    for _ in 0..TIMES {
        let start = Instant::now();
        let outcome = merge(&strategy, &sides, &setting);
        spent.push(start.elapsed());
        what = match outcome {
            Outcome::Merged(bytes) => format!("merged, {} bytes", bytes.len()),
            Outcome::Conflicted(conflicted) => format!("{} conflicts", conflicted.clashes.len()),
            Outcome::Unable(why) => format!("unable: {why}"),
        };
    }
    spent.sort();
    println!(
        "{}: {what}; p50 {:?}, p99 {:?}, {TIMES} times",
        strategy.name(),
        spent[TIMES / 2],
        spent[TIMES * 99 / 100]
    );
    Ok(())
}
