//! Measures the store: forks, commits, diffs, their growth with the tree, and the Linux tree put into it.
//!
//! Prints a table and writes `target/bench/store.json`. Each module measures one group of figures.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

mod checkout;
mod durable;
mod forks;
mod growth;
mod large;
mod linux;
mod memory;
mod search;
mod times;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use amalgam_benches::options::{self, Options};
use amalgam_benches::trees::{Plan, reference};
use amalgam_benches::{Bar, Figure, Report, Result, machine};
use amalgam_engine::backend::{Meter, Metered, Rocks};
use amalgam_engine::{SnapshotId, Store, StoreOptions};
use tempfile::TempDir;

/// A group of figures that are measured together.
struct Group {
    figures: &'static [&'static str],
    run: fn(&mut Bench) -> Result<()>,
}

const GROUPS: [Group; 9] = [
    Group { figures: growth::FIGURES, run: growth::run },
    Group { figures: times::FIGURES, run: times::run },
    Group { figures: search::FIGURES, run: search::run },
    Group { figures: durable::FIGURES, run: durable::run },
    Group { figures: memory::FIGURES, run: memory::run },
    Group { figures: large::FIGURES, run: large::run },
    Group { figures: forks::FIGURES, run: forks::run },
    Group { figures: checkout::FIGURES, run: checkout::run },
    Group { figures: linux::FIGURES, run: linux::run },
];

/// A run: what was asked for, and what came out so far.
struct Bench {
    options: Options,
    scratch: TempDir,
    report: Report,
    built: HashMap<(&'static str, u64), Built>,
}

/// A store with one tree in it, closed.
#[derive(Clone)]
struct Built {
    directory: PathBuf,
    snapshot: SnapshotId,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let done = match arguments.next_if(|first| first == memory::CHILD) {
        Some(_) => memory::child(arguments),
        None => run(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-store: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: impl Iterator<Item = String>) -> Result<()> {
    let Some(options) = Options::parse(arguments)? else {
        println!("bench-store: measures the store\n\n{}", Options::HELP);
        return Ok(());
    };
    let scratch = options.scratch()?;
    let report = Report::new(machine::describe(scratch.path()), options.quick);
    let mut bench = Bench { options, scratch, report, built: HashMap::new() };
    for group in GROUPS {
        if group.figures.iter().any(|name| bench.wants(name)) {
            (group.run)(&mut bench)?;
        }
    }
    println!("{}", bench.report.table());
    bench.report.write_json(&options::results().join("store.json"))
}

/// Opens a store that counts what is read from it and written to it.
fn open_metered(directory: &Path) -> Result<(Store, Arc<Meter>)> {
    let options = StoreOptions::default();
    let meter = Arc::new(Meter::default());
    let rocks = Rocks::open(directory, &options.rocks)?;
    Ok((Store::new(Arc::new(Metered::new(rocks, Arc::clone(&meter))), &options), meter))
}

impl Bench {
    fn wants(&self, figure: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| figure.contains(only.as_str()))
    }

    /// One of two sizes, by whether this is a quick run.
    fn size<T>(&self, full: T, quick: T) -> T {
        if self.options.quick { quick } else { full }
    }

    fn add(&mut self, name: &str, (value, unit): (f64, &'static str), bar: Bar, how: String) {
        if self.wants(name) {
            eprintln!("  {name}: {value:.3} {unit} ({how})");
            self.report.add(Figure { name: name.to_owned(), value, unit, bar, how });
        }
    }

    /// A directory for a store of its own.
    fn directory(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// A store with this tree; made once in a run.
    fn tree(&mut self, plan: Plan) -> Result<Built> {
        let key = (plan.shape.word(), plan.files);
        if let Some(built) = self.built.get(&key) {
            return Ok(built.clone());
        }
        let directory = self.directory(&format!("{}-{}", plan.shape.word(), plan.files));
        let start = Instant::now();
        let store = Store::open(&directory)?;
        let (_, snapshot) = plan.build(&store, &reference("head/built"))?;
        drop(store);
        eprintln!("  a {} tree of {} files, made in {:.1} s", key.0, key.1, start.elapsed().as_secs_f64());
        let built = Built { directory, snapshot };
        self.built.insert(key, built.clone());
        Ok(built)
    }
}
