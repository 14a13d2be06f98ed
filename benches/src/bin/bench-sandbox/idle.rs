//! What sandboxes cost that do nothing, and the size of the agent.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::served::{BoxedError, runtime};
use amalgam_benches::{Bar, Result};

use crate::site::{Kind, Site, agent};

pub const FIGURES: &[&str] =
    &["100 idle sandboxes, memory", "100 idle sandboxes, CPU", "agent, program", "agent, memory"];

const MEGABYTE: f64 = 1e6;
/// Sandboxes that are started at a time.
const AT_A_TIME: usize = 8;
/// After the start of the last one.
const SETTLE: Duration = Duration::from_secs(5);

pub fn run(bench: &mut Bench) -> Result<()> {
    let (directory, count) = (bench.directory("idle"), bench.size(100, 4));
    let window = Duration::from_secs(bench.size(60, 3));
    let (memory, agents, percent) = runtime()?.block_on(async {
        let site = Site::start(&directory, &Kind::local()).await?;
        let mut left = count;
        while left > 0 {
            let mut running = tokio::task::JoinSet::new();
            for _ in 0..left.min(AT_A_TIME) {
                let (mut client, request) = (site.client.clone(), site.request());
                running.spawn(async move { client.create_sandbox(request).await });
            }
            while let Some(done) = running.join_next().await {
                done??;
                left -= 1;
            }
        }
        tokio::time::sleep(SETTLE).await;
        let (before, begin) = (family()?, Instant::now());
        tokio::time::sleep(window).await;
        let after = family()?;
        let percent = 100.0 * (after.cpu_seconds - before.cpu_seconds) / begin.elapsed().as_secs_f64();
        site.stop().await?;
        Ok::<_, BoxedError>((after.resident_bytes, after.agent_bytes, percent))
    })?;
    let all =
        format!("{count} sandboxes, this process (server and client) and all processes that it started, resident");
    bench.add(FIGURES[0], (memory as f64 / MEGABYTE, "MB"), Bar::AtMost(1_500.0), all);
    let how = format!("{count} sandboxes over {} s, 100 is one CPU", window.as_secs());
    bench.add(FIGURES[1], (percent, "%"), Bar::AtMost(3.0), how);
    let (program, how) = program_bytes(bench)?;
    bench.add(FIGURES[2], (program as f64 / MEGABYTE, "MB"), Bar::AtMost(10.0), how);
    let most = agents.iter().max().copied().unwrap_or(0);
    let how = format!("resident, the most of {} agents", agents.len());
    bench.add(FIGURES[3], (most as f64 / MEGABYTE, "MB"), Bar::AtMost(20.0), how);
    Ok(())
}

/// The size of the agent as it is installed: without symbols.
fn program_bytes(bench: &Bench) -> Result<(u64, String)> {
    let (program, stripped) = (agent()?, bench.directory("agent"));
    let done = Command::new("strip").arg("-o").arg(&stripped).arg(&program).status();
    match done.is_ok_and(|status| status.success()) {
        true => Ok((fs::metadata(stripped)?.len(), "without symbols, as it is installed".to_owned())),
        false => Ok((fs::metadata(program)?.len(), "with symbols, because `strip` is not there".to_owned())),
    }
}

/// This process and all that descend from it.
struct Family {
    resident_bytes: u64,
    cpu_seconds: f64,
    agent_bytes: Vec<u64>,
}

/// Measures this process and all that descend from it. Pages that processes share count for each of them.
fn family() -> Result<Family> {
    let mut all = HashMap::new();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(process) = parse(&stat) {
            all.insert(pid, process);
        }
    }
    let mut members = HashSet::from([std::process::id()]);
    loop {
        let more: Vec<_> =
            all.iter().filter(|(pid, one)| !members.contains(*pid) && members.contains(&one.parent)).collect();
        if more.is_empty() {
            break;
        }
        members.extend(more.iter().map(|(pid, _)| **pid));
    }
    let page = rustix::param::page_size() as u64;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let mut family = Family { resident_bytes: 0, cpu_seconds: 0.0, agent_bytes: Vec::new() };
    for process in members.iter().filter_map(|pid| all.get(pid)) {
        family.resident_bytes += process.pages * page;
        family.cpu_seconds += process.ticks as f64 / ticks;
        if process.name.starts_with("amalgam-agent") || process.name == "agent" {
            family.agent_bytes.push(process.pages * page);
        }
    }
    Ok(family)
}

struct Process {
    name: String,
    parent: u32,
    ticks: u64,
    pages: u64,
}

fn parse(stat: &str) -> Option<Process> {
    let (head, tail) = stat.rsplit_once(')')?;
    let fields: Vec<_> = tail.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    let name = head.split_once('(')?.1.to_owned();
    let parent = u32::try_from(number(1)?).ok()?;
    Some(Process { name, parent, ticks: number(11)? + number(12)?, pages: number(21)? })
}
