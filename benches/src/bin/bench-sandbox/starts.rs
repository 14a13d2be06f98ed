//! How long sandboxes take to start: one after another, many at once, and as forks.

use std::process::{Command, Stdio};
use std::time::Instant;

use amalgam_benches::bench::Bench;
use amalgam_benches::served::{BoxedError, runtime};
use amalgam_benches::{Bar, Result, Samples};
use amalgam_proto::v1;

use crate::site::{Kind, Site, milliseconds};

pub const FIGURES: &[&str] = &[
    "create to the first output, local, p50",
    "100 creates, local, p99",
    "50 concurrent creates, local",
    "fork with 1 GB to the first command, local, p50",
];
pub const DOCKER_FIGURES: &[&str] = &[
    "create to the first output, docker / docker run, p50",
    "100 creates, docker, p99",
    "50 concurrent creates, docker",
];

const CONCURRENT: usize = 50;
const LARGE_FILES: usize = 4;

pub fn run(bench: &mut Bench) -> Result<()> {
    let (first, creates) = starts(bench, &Kind::local(), "starts-local")?;
    bench.add(FIGURES[0], (first.p50(), "ms"), Bar::AtMost(60.0), first.describe("ms"));
    bench.add(FIGURES[1], (creates.p99(), "ms"), Bar::AtMost(200.0), creates.describe("ms"));
    if bench.wants(FIGURES[2]) {
        let (seconds, how) = concurrent(bench, &Kind::local(), "many-local")?;
        bench.add(FIGURES[2], (seconds, "s"), Bar::AtMost(3.0), how);
    }
    if bench.wants(FIGURES[3]) {
        let (forks, how) = forks(bench)?;
        bench.add(FIGURES[3], (forks.p50(), "ms"), Bar::AtMost(150.0), how);
    }
    Ok(())
}

pub fn run_docker(bench: &mut Bench) -> Result<()> {
    let kind = match Kind::docker() {
        Ok(kind) => kind,
        Err(why) => {
            eprintln!("  skipped: figures about containers: {why}");
            return Ok(());
        }
    };
    let bare = docker_runs(&kind.template, bench.size(20, 3))?;
    let (first, creates) = starts(bench, &kind, "starts-docker")?;
    let how = format!("{}; `docker run --rm` of the same image: {}", first.describe("ms"), bare.describe("ms"));
    bench.add(DOCKER_FIGURES[0], (first.p50() / bare.p50(), "times"), Bar::AtMost(1.5), how);
    bench.add(DOCKER_FIGURES[1], (creates.p99(), "ms"), Bar::AtMost(5_000.0), creates.describe("ms"));
    if bench.wants(DOCKER_FIGURES[2]) {
        let (seconds, how) = concurrent(bench, &kind, "many-docker")?;
        bench.add(DOCKER_FIGURES[2], (seconds, "s"), Bar::AtMost(60.0), how);
    }
    Ok(())
}

/// Starts sandboxes one after another: to the first output of a command, and the creation alone.
fn starts(bench: &Bench, kind: &Kind, name: &str) -> Result<(Samples, Samples)> {
    let (directory, times) = (bench.directory(name), bench.size(100, 5));
    runtime()?.block_on(async {
        let site = Site::start(&directory, kind).await?;
        let (mut first, mut creates) = (Vec::new(), Vec::new());
        // The first one checks the machine.
        for round in 0..=times {
            let begin = Instant::now();
            let (id, took) = site.create().await?;
            site.run(&id, "echo here").await?;
            if round > 0 {
                first.push(milliseconds(begin.elapsed()));
                creates.push(milliseconds(took));
            }
            site.delete(&id).await?;
        }
        site.stop().await?;
        Ok::<_, BoxedError>((Samples::new(first), Samples::new(creates)))
    })
}

/// Starts many sandboxes at once. Returns the seconds until all run.
fn concurrent(bench: &Bench, kind: &Kind, name: &str) -> Result<(f64, String)> {
    let (directory, count) = (bench.directory(name), bench.size(CONCURRENT, 5));
    runtime()?.block_on(async {
        let site = Site::start(&directory, kind).await?;
        let (warm, _) = site.create().await?;
        site.delete(&warm).await?;
        let (begin, mut running) = (Instant::now(), tokio::task::JoinSet::new());
        for _ in 0..count {
            let (mut client, request) = (site.client.clone(), site.request());
            running.spawn(async move { client.create_sandbox(request).await });
        }
        let mut succeeded = 0;
        while let Some(done) = running.join_next().await {
            done??;
            succeeded += 1;
        }
        let seconds = begin.elapsed().as_secs_f64();
        site.stop().await?;
        Ok::<_, BoxedError>((seconds, format!("{succeeded} of {count} succeeded")))
    })
}

/// Forks a running sandbox with a large workspace, each time to the end of a first command in the copy.
fn forks(bench: &Bench) -> Result<(Samples, String)> {
    let (directory, times) = (bench.directory("forks"), bench.size(20, 3));
    let megabytes = bench.size(1_024, 16);
    runtime()?.block_on(async {
        let site = Site::start(&directory, &Kind::local()).await?;
        let (id, _) = site.create().await?;
        for file in 0..LARGE_FILES {
            let each = megabytes / LARGE_FILES;
            site.run(&id, &format!("dd if=/dev/urandom of=file{file} bs=1M count={each} 2>/dev/null")).await?;
        }
        let mut values = Vec::new();
        for round in 0..=times {
            let (mut client, begin) = (site.client.clone(), Instant::now());
            let request = v1::ForkSandboxRequest { id: id.clone(), count: 1, ..Default::default() };
            let forked = client.fork_sandbox(request).await?.into_inner();
            let copy = forked.sandboxes.into_iter().next().ok_or("no copy")?.id;
            site.run(&copy, "test -s file0").await?;
            if round > 0 {
                values.push(milliseconds(begin.elapsed()));
            }
            site.delete(&copy).await?;
        }
        site.stop().await?;
        let samples = Samples::new(values);
        let how = format!("{megabytes} MB in {LARGE_FILES} files, in no snapshot; {}", samples.describe("ms"));
        Ok::<_, BoxedError>((samples, how))
    })
}

/// The peer: containers of the same image by the command of Docker.
fn docker_runs(image: &str, times: usize) -> Result<Samples> {
    let mut values = Vec::new();
    for round in 0..=times {
        let begin = Instant::now();
        let words = ["run", "--rm", "--network", "none", image, "echo", "here"];
        let done = Command::new("docker").args(words).stdin(Stdio::null()).output()?;
        if !done.status.success() {
            return Err(format!("docker run: {}", String::from_utf8_lossy(&done.stderr)).into());
        }
        if round > 0 {
            values.push(milliseconds(begin.elapsed()));
        }
    }
    Ok(Samples::new(values))
}
