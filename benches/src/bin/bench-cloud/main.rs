//! Measures the store of many nodes: commits beside plain ones of PostgreSQL, many clients, many files, the Linux tree to and from an
//! S3 store, events between nodes, forks. Once as they are on this machine, and with a delay before PostgreSQL and the S3 store.
//!
//! Prints a table and writes `target/bench/cloud.json`. `make bench-cloud` starts PostgreSQL and an S3 store on loopback.

#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]

mod commits;
mod delay;
mod events;
mod forks;
mod place;
mod trees;

use std::process::ExitCode;
use std::time::Duration;

use amalgam_benches::bench::{Bench, Group};
use amalgam_benches::{Bar, Result};
use place::Place;

/// Delays of each request to PostgreSQL and to the bucket, in milliseconds.
const DELAYS: [u64; 3] = [0, 2, 20];

const GROUPS: &[Group] = &[
    Group { figures: commits::FIGURES, run: |bench| each_delay(bench, commits::run) },
    Group { figures: commits::CLIENT_FIGURES, run: |bench| each_delay(bench, commits::clients) },
    Group { figures: commits::FILE_FIGURES, run: |bench| each_delay(bench, commits::many_files) },
    Group { figures: events::FIGURES, run: |bench| each_delay(bench, events::run) },
    Group { figures: forks::FIGURES, run: |bench| each_delay(bench, forks::run) },
    Group { figures: trees::FIGURES, run: |bench| each_delay(bench, trees::run) },
    Group { figures: trees::LARGE_FIGURES, run: |bench| each_delay(bench, trees::run_large) },
];

fn main() -> ExitCode {
    match Bench::run("cloud", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-cloud: {error}");
            ExitCode::FAILURE
        }
    }
}

fn each_delay(bench: &mut Bench, run: fn(&mut Bench, &Place) -> Result<()>) -> Result<()> {
    for delay in DELAYS {
        run(bench, &Place::new(Duration::from_millis(delay))?)?;
    }
    Ok(())
}

/// Adds a figure. A bar applies only without an added delay, which its name tells otherwise.
fn add(bench: &mut Bench, place: &Place, name: &str, figure: (f64, &'static str), bar: Bar, how: String) {
    match place.delay.as_millis() {
        0 => bench.add(name, figure, bar, how),
        delay => bench.add(&format!("{name}, +{delay} ms"), figure, Bar::None, how),
    }
}
