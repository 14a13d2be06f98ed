//! What a small command costs.

use std::fs;
use std::path::Path;

use amalgam_benches::bench::Bench;

use amalgam_benches::{Bar, Result, median};

use crate::peers::Amalgam;

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
    let running = (0..21).map(|_| Ok(amalgam.seconds(here, &["ws"])? * 1e3)).collect::<Result<Vec<_>>>()?;
    let started = (0..7).map(|_| {
        amalgam.stop()?;
        Ok(amalgam.seconds(here, &["ws"])? * 1e3)
    });
    let started = started.collect::<Result<Vec<_>>>()?;
    bench.add(RUNNING, (median(running), "ms"), Bar::AtMost(15.0), "median of 21".to_owned());
    bench.add(
        NOT_RUNNING,
        (median(started), "ms"),
        Bar::AtMost(100.0),
        "median of 7, each ends with the process running".to_owned(),
    );
    Ok(())
}
