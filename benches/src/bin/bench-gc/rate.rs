//! How fast a collection marks and sweeps, and what memory it takes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_engine::backend::RocksOptions;
use amalgam_engine::{Store, StoreOptions};
use amalgam_gc::{CollectOptions, CollectReport, Stage, collect};

use crate::made::{Made, remove};

pub const FIGURES: &[&str] = &["mark rate", "mark and survey rate", "sweep rate"];
pub const MEMORY_FIGURES: &[&str] = &["memory of a process that collects"];
/// The first argument of the process whose memory is measured.
pub const CHILD: &str = "--collect";

const FILE_BYTES: usize = 96;

/// A collection, and how long each stage of it took.
pub fn timed(store: &Store, options: &CollectOptions<'_>) -> Result<(CollectReport, HashMap<Stage, Duration>)> {
    let mut took: HashMap<Stage, Duration> = HashMap::new();
    let (mut stage, mut since) = (Stage::Mark, Instant::now());
    let done = collect(store, options, &mut |progress| {
        if progress.stage != stage {
            *took.entry(stage).or_default() += since.elapsed();
            (stage, since) = (progress.stage, Instant::now());
        }
        ControlFlow::Continue(())
    })?;
    *took.entry(stage).or_default() += since.elapsed();
    Ok((done, took))
}

fn seconds(took: &HashMap<Stage, Duration>, stage: Stage) -> f64 {
    took.get(&stage).map_or(0.0, Duration::as_secs_f64).max(1e-9)
}

pub fn run(bench: &mut Bench) -> Result<()> {
    let objects = bench.size(5_000_000, 100_000);
    let directory = bench.directory("rate");
    let heads = {
        let store = Store::open(&directory)?;
        Made { objects, file_bytes: FILE_BYTES }.build(&store, "head")?.len()
    };
    let store = Store::open(&directory)?;
    let dry = CollectOptions { dry_run: true, ..CollectOptions::default() };
    let mut rates = Vec::new();
    let mut how = String::new();
    for _ in 0..3 {
        let (done, took) = timed(&store, &dry)?;
        let alive = done.alive.total().objects as f64;
        let (mark, survey) = (seconds(&took, Stage::Mark), seconds(&took, Stage::Survey));
        rates.push((alive / mark, alive / (mark + survey)));
        how = format!(
            "{alive} objects, {} of them nodes, all alive; best of 3; {:.2} s, and {:.2} s for the survey; {} MiB of marks",
            done.mark.rows,
            mark,
            survey,
            done.mark.memory_bytes >> 20
        );
    }
    let best = |part: fn(&(f64, f64)) -> f64| rates.iter().map(part).fold(0.0, f64::max);
    bench.add("mark rate", (best(|rate| rate.0) / 1e6, "M objects/s"), Bar::AtLeast(1.0), how.clone());
    bench.add("mark and survey rate", (best(|rate| rate.1) / 1e6, "M objects/s"), Bar::None, how);
    for number in 1..heads {
        remove(&store, &format!("head/{number}"))?;
    }
    let (done, took) = timed(&store, &CollectOptions { reclaim: false, ..CollectOptions::default() })?;
    let deleted = done.freed.total().objects as f64;
    let how = format!("{deleted} of {objects} objects deleted in {:.2} s, not synced", seconds(&took, Stage::Sweep));
    bench.add("sweep rate", (deleted / seconds(&took, Stage::Sweep) / 1e3, "k deletes/s"), Bar::AtLeast(200.0), how);
    drop(store);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

pub fn run_memory(bench: &mut Bench) -> Result<()> {
    let objects = bench.size(20_000_000, 100_000);
    let directory = bench.directory("memory");
    let heads = {
        let store = Store::open(&directory)?;
        let heads = Made { objects, file_bytes: FILE_BYTES }.build(&store, "head")?.len();
        for number in 0..heads / 2 {
            remove(&store, &format!("head/{number}"))?;
        }
        heads
    };
    let output = Command::new(std::env::current_exe()?).arg(CHILD).arg(&directory).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let words = String::from_utf8(output.stdout)?;
    let mut words = words.split_whitespace().map(str::parse::<f64>);
    let mut next = || words.next().ok_or("the child says too little")?.map_err(|_| "the child says no number");
    let (peak_mib, marks_mib, alive, freed) = (next()?, next()?, next()?, next()?);
    let how = format!(
        "peak resident memory of a process of its own, RocksDB's included; {alive} objects alive, {freed} deleted and their room \
         given back, {heads} trees; the marks took {marks_mib:.0} MiB of it"
    );
    bench.add("memory of a process that collects", (peak_mib, "MiB"), Bar::AtMost(256.0), how);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// Collects a store and says what it took.
#[allow(clippy::print_stdout, reason = "it answers its parent")]
pub fn child(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let directory = arguments.next().ok_or("a directory is missing")?;
    let rocks = RocksOptions {
        must_exist: true,
        block_cache_bytes: 16 << 20,
        chunk_buffer_bytes: 4 << 20,
        other_buffer_bytes: 4 << 20,
        ..RocksOptions::default()
    };
    let store = Store::open_with(
        Path::new(&directory),
        &StoreOptions { cache_bytes: 1 << 20, rocks, ..StoreOptions::default() },
    )?;
    let options = CollectOptions { memory_bytes: 128 << 20, ..CollectOptions::default() };
    let done = collect(&store, &options, &mut |_| ControlFlow::Continue(()))?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no peak in /proc")?;
    let peak_kib: f64 = peak.trim().trim_end_matches(" kB").parse()?;
    println!(
        "{} {} {} {}",
        peak_kib / 1024.0,
        done.mark.memory_bytes as f64 / f64::from(1 << 20),
        done.alive.total().objects,
        done.freed.total().objects
    );
    Ok(())
}
