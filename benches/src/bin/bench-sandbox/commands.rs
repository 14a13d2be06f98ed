//! Short commands in a running sandbox, beside processes that are started without one.

use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::served::runtime;
use amalgam_benches::{Bar, Result};
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use tonic::Status;

use crate::site::{Kind, Site, run_request};

pub const FIGURES: &[&str] = &["`true` in a sandbox, 16 clients / bare spawns", "`true` in a sandbox, 16 clients"];

const CLIENTS: usize = 16;

pub fn run(bench: &mut Bench) -> Result<()> {
    let (directory, seconds) = (bench.directory("commands"), Duration::from_secs(bench.size(10, 1)));
    let ours = runtime()?.block_on(async {
        let site = Site::start(&directory, &Kind::local()).await?;
        let (id, _) = site.create().await?;
        site.run(&id, "true").await?;
        let found = rate(&site, &id, seconds).await;
        site.stop().await?;
        found
    })?;
    let (one, many) = (spawns(1, seconds)?, spawns(CLIENTS, seconds)?);
    let how = format!(
        "{ours:.0}/s of `/bin/sh -c true` over gRPC; the same spawned in a loop {one:.0}/s, by {CLIENTS} threads {many:.0}/s"
    );
    bench.add(FIGURES[0], (ours / one, "times"), Bar::AtLeast(0.4), how.clone());
    bench.add(FIGURES[1], (ours, "1/s"), Bar::AtLeast(100.0), how);
    Ok(())
}

async fn rate(site: &Site, id: &str, seconds: Duration) -> Result<f64> {
    let mut running = tokio::task::JoinSet::new();
    let begin = Instant::now();
    for _ in 0..CLIENTS {
        let mut client = SandboxServiceClient::with_interceptor(site.served.connect().await?, site.served.with_key()?);
        let id = id.to_owned();
        running.spawn(async move {
            let mut calls = 0_u32;
            while begin.elapsed() < seconds {
                client.run_command(run_request(&id, "true")).await?;
                calls += 1;
            }
            Ok::<_, Status>(calls)
        });
    }
    let mut calls = 0;
    while let Some(done) = running.join_next().await {
        calls += done??;
    }
    Ok(f64::from(calls) / begin.elapsed().as_secs_f64())
}

/// The peer: the same command, spawned and waited for by some threads, each in a loop.
fn spawns(threads: usize, seconds: Duration) -> Result<f64> {
    let begin = Instant::now();
    let spawning: Vec<_> = (0..threads)
        .map(|_| {
            std::thread::spawn(move || {
                let mut spawned = 0_u32;
                while begin.elapsed() < seconds {
                    Command::new("/bin/sh").args(["-c", "true"]).output()?;
                    spawned += 1;
                }
                Ok::<_, std::io::Error>(spawned)
            })
        })
        .collect();
    let mut spawned = 0;
    for thread in spawning {
        spawned += thread.join().map_err(|_| "a thread panicked")??;
    }
    Ok(f64::from(spawned) / begin.elapsed().as_secs_f64())
}
