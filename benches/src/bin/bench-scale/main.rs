//! Measures what grows with the number of names: the same calls on a store of 1,000, 10,000 and 100,000 workspaces, with ten labels
//! and ten operations for each of them.
//!
//! Prints a table and writes `target/bench/scale.json`. The store is made once and grows from size to size; calls go through the API, as
//! the command's do.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod calls;
mod grown;
mod names;
mod watches;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};
use amalgam_benches::{Bar, Result, machine};
use calls::{Calls, Times};
use grown::Grown;

const CALLS: &[&str] = &["log -n1", "show", "status", "ws ls, first page", "queue"];
const FIGURES: &[&str] = &[
    "log -n1, 100 k workspaces / 1 k",
    "show, 100 k workspaces / 1 k",
    "status, 100 k workspaces / 1 k",
    "ws ls, first page, 100 k workspaces / 1 k",
    "queue, 100 k workspaces / 1 k",
    "du of one workspace",
    "du of the store",
    "retention plan",
    "collection with nothing to free",
    "commit beside a collection, p99",
    "create, 5,000th / first",
    "delete, 5,000th / first",
    "undelete, 5,000th / first",
    "2,000 idle watches, memory",
    "calls beside 2,000 idle watches, p50 / without",
    "calls beside 2,000 idle watches, p99 / without",
];

const GROUPS: &[Group] = &[Group { figures: FIGURES, run }];

fn main() -> ExitCode {
    match Bench::run("scale", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(bench: &mut Bench) -> Result<()> {
    let sizes = bench.size([1_000, 10_000, 100_000], [100, 200, 1_000]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let directory = bench.directory("scale");
    let mut grown = Grown::new(&directory)?;
    let mut curve: Vec<Times> = Vec::new();
    let calls = runtime.block_on(Calls::connect(&grown))?;
    for size in sizes {
        grown.grow_to(size)?;
        machine::settle();
        let times = runtime.block_on(calls.measure())?;
        eprintln!("  {size} workspaces, {} operations: {}", grown.operations()?, times.describe());
        curve.push(times);
    }
    let made = format!(
        "{} workspaces, {} labels, {} operations, {} snapshots",
        sizes[2],
        grown.labels,
        grown.operations()?,
        grown.snapshots
    );
    for (place, name) in CALLS.iter().enumerate() {
        let at = |size: usize| curve[size].0[place].p50();
        let how = format!(
            "through the API in one process; p50 of {} calls at {} workspaces {:.0} us, at {} {:.0} us, at {} {:.0} us; {made}",
            calls::TIMES,
            sizes[0],
            at(0),
            sizes[1],
            at(1),
            sizes[2],
            at(2)
        );
        let figure = FIGURES.iter().find(|figure| figure.starts_with(name)).expect("a figure for each call");
        bench.add(figure, (at(2) / at(0), "times"), Bar::AtMost(1.5), how);
    }
    runtime.block_on(calls.measure_whole(bench, &grown, &made))?;
    runtime.block_on(watches::run(bench, &calls, &made))?;
    names::run(bench, &grown, &made)
}
