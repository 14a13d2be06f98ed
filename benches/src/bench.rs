//! A run of a benchmark: groups of figures, measured one after another.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::options::{self, Options};
use crate::{Bar, Figure, Report, Result, machine};

/// A group of figures that are measured together.
pub struct Group {
    /// Their names.
    pub figures: &'static [&'static str],
    /// Measures them.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// What was asked for, and what came out so far.
pub struct Bench {
    /// The command line.
    pub options: Options,
    scratch: TempDir,
    report: Report,
}

impl Bench {
    /// Measures the groups that were asked for, prints a table and writes `target/bench/NAME.json`.
    #[allow(clippy::print_stdout, reason = "it is what a benchmark does")]
    pub fn run(name: &str, groups: &[Group], arguments: impl Iterator<Item = String>) -> Result<()> {
        let Some(options) = Options::parse(arguments)? else {
            println!("bench-{name}: figures, measured beside a peer in one run\n\n{}", Options::HELP);
            return Ok(());
        };
        let scratch = options.scratch()?;
        let report = Report::new(machine::describe(scratch.path()), options.quick);
        let mut bench = Self { options, scratch, report };
        for group in groups {
            if group.figures.iter().any(|name| bench.wants(name)) {
                (group.run)(&mut bench)?;
            }
        }
        println!("{}", bench.report.table());
        bench.report.write_json(&options::results().join(format!("{name}.json")))
    }

    /// Whether a figure was asked for.
    pub fn wants(&self, figure: &str) -> bool {
        self.options.only.as_ref().is_none_or(|only| figure.contains(only.as_str()))
    }

    /// One of two sizes, by whether this is a quick run.
    pub fn size<T>(&self, full: T, quick: T) -> T {
        if self.options.quick { quick } else { full }
    }

    /// Takes a figure in, if it was asked for.
    #[allow(clippy::print_stderr, reason = "a run takes long enough to be watched")]
    pub fn add(&mut self, name: &str, (value, unit): (f64, &'static str), bar: Bar, how: String) {
        if self.wants(name) {
            eprintln!("  {name}: {value:.3} {unit} ({how})");
            self.report.add(Figure { name: name.to_owned(), value, unit, bar, how });
        }
    }

    /// A path of its own for a store or a repository.
    pub fn directory(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}
