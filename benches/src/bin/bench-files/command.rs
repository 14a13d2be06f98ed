//! What a small command costs.

use std::fs;
use std::path::Path;
use std::process::Command;

use amalgam_benches::bench::Bench;

use amalgam_benches::{Bar, Result, median};

use crate::peers::{self, Amalgam};

pub const FIGURES: &[&str] = &[RUNNING, NOT_RUNNING];
const RUNNING: &str = "amalgam ws, process running";
const NOT_RUNNING: &str = "amalgam ws, process not running";

pub fn run(bench: &mut Bench) -> Result<()> {
    let amalgam = Amalgam::new(bench.directory("small"))?;
    let directory = bench.directory("small-directory");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("file"), "contents")?;
    amalgam.seconds(&directory, &["init", "-q"])?;
    let here = Path::new("/");
    let running = || Ok(amalgam.seconds(here, &["ws"])? * 1e3);
    let (running, beside) = in_turns(21, running)?;
    let how = format!("median of 21; {}", beside_words(beside));
    bench.add(RUNNING, (median(running), "ms"), Bar::AtMost(15.0), how);
    let started = || {
        amalgam.stop()?;
        Ok(amalgam.seconds(here, &["ws"])? * 1e3)
    };
    let (started, beside) = in_turns(7, started)?;
    let how = format!("median of 7, each ends with the process running; {}", beside_words(beside));
    bench.add(NOT_RUNNING, (median(started), "ms"), Bar::AtMost(100.0), how);
    Ok(())
}

/// Measures something and `git --version` in turns, in milliseconds: a busy machine slows down both.
fn in_turns(rounds: usize, ours: impl Fn() -> Result<f64>) -> Result<(Vec<f64>, Vec<f64>)> {
    let turn = |_| Ok((ours()?, peers::seconds(Command::new("git").arg("--version"))? * 1e3));
    (0..rounds).map(turn).collect()
}

fn beside_words(git: Vec<f64>) -> String {
    format!("`git --version` {:.1} ms in turns", median(git))
}
