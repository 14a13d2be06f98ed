//! Collects a project of PostgreSQL and a bucket again and again, as a node of its own, until it is killed. Prints a line for each stage
//! of a collection and for its end. Started by the tests: `node-collector DATABASE BUCKET PROJECT LEASE_MILLISECONDS`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a process of its own tells its progress")]

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::{Result, Store, StoreOptions};
use amalgam_gc::{CollectOptions, collect};

/// Delay after each step, so that a test can stop the process between any two.
const STEP_DELAY: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [database, bucket, project, lease] = &words[..] else {
        eprintln!("usage: node-collector DATABASE BUCKET PROJECT LEASE_MILLISECONDS");
        return ExitCode::FAILURE;
    };
    let Ok(lease) = lease.parse() else {
        eprintln!("node-collector: {lease} is no number");
        return ExitCode::FAILURE;
    };
    loop {
        if let Err(error) = collect_once(database, bucket, project, Duration::from_millis(lease)) {
            println!("error {error}");
        }
    }
}

fn collect_once(database: &str, bucket: &str, project: &str, lease: Duration) -> Result<()> {
    let mut options = CloudOptions::new(database, open_bucket(bucket)?, project);
    options.connections = 4;
    options.grace = Duration::ZERO;
    options.lease = lease;
    let store = Store::new(Arc::new(Cloud::open(&options)?), &StoreOptions::default());
    let mut stage = None;
    let settings = CollectOptions { sweep_batch_rows: 16, ..CollectOptions::default() };
    println!("begin");
    let done = collect(&store, &settings, &mut |progress| {
        if stage != Some(progress.stage) {
            stage = Some(progress.stage);
            println!("{}", progress.stage.word());
        }
        std::thread::sleep(STEP_DELAY);
        ControlFlow::Continue(())
    })?;
    println!("done {}", done.freed.total().objects);
    Ok(())
}
