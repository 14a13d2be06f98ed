//! The calls about the server as a whole: statistics, and the removal of leftovers of sandboxes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::v1::system_service_server::SystemService;
use amalgam_proto::{Reason, v1};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};
use tracing::warn;

use crate::identity::Identity;
use crate::projects::{ProjectError, Projects};
use crate::sandboxes::Sandboxes;

/// Duration of the first measurement of CPU usage, which has no earlier one to compare with.
const CPU_LOOK: Duration = Duration::from_millis(100);
const PROJECTS_PAGE: u32 = 1_000;

type Answer<T> = Result<Response<T>, Status>;

/// Implements the calls about the server.
#[derive(Clone)]
pub(crate) struct SystemCalls {
    projects: Projects,
    sandboxes: Sandboxes,
    now: fn() -> Time,
    started: Time,
    processors: Arc<Mutex<Option<CpuTimes>>>,
}

impl SystemCalls {
    pub(crate) fn new(projects: Projects, sandboxes: Sandboxes, now: fn() -> Time) -> Self {
        Self { projects, sandboxes, now, started: now(), processors: Arc::default() }
    }

    /// Returns the CPU usage of the machine since the last call, from 0 to 100 percent.
    async fn cpu_usage(&self) -> f64 {
        let before = *self.processors.lock();
        let before = match before {
            Some(before) => Some(before),
            None => {
                let first = CpuTimes::read();
                tokio::time::sleep(CPU_LOOK).await;
                first
            }
        };
        let now = CpuTimes::read();
        *self.processors.lock() = now;
        before.zip(now).map_or(0.0, |(before, now)| before.usage_until(now))
    }

    /// Collects garbage in the stores of all projects. Returns the number of collected stores, and the bytes that were freed.
    async fn collect_stores(&self) -> Result<(i64, u64), Status> {
        let (mut after, mut collected, mut freed) = (None, 0, 0);
        loop {
            let page = self.projects.list(after.as_ref(), PROJECTS_PAGE, false).await?;
            for project in &page {
                let store = match self.projects.open(&project.name).await {
                    Ok(store) => store,
                    // It was deleted meanwhile.
                    Err(ProjectError::Deleted(_)) => continue,
                    Err(error @ ProjectError::Store { .. }) => {
                        warn!(project = %project.name, %error, "a store was not collected");
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                let done = tokio::task::spawn_blocking(move || store.service().collect()).await;
                match done.map_err(|_| Status::internal("a bug in the server; its log says more"))? {
                    Ok(bytes) => (collected, freed) = (collected + 1, freed + bytes),
                    // The store is being collected already, or other nodes have it open.
                    Err(error) if error.reason() == Reason::Busy => {}
                    Err(error) => warn!(project = %project.name, %error, "a store was not collected"),
                }
            }
            match page.last() {
                Some(last) if page.len() == PROJECTS_PAGE as usize => after = Some(last.name.clone()),
                _ => return Ok((collected, freed)),
            }
        }
    }
}

#[tonic::async_trait]
impl SystemService for SystemCalls {
    async fn get_system_stats(
        &self,
        request: Request<v1::GetSystemStatsRequest>,
    ) -> Answer<v1::GetSystemStatsResponse> {
        let identity = request.extensions().get::<Identity>().cloned();
        let identity = identity.ok_or_else(|| Status::internal("the call did not pass the gate"))?;
        let sandboxes = self.sandboxes.counts(|project| identity.reaches(project)).await?;
        let cpu_usage = self.cpu_usage().await;
        let data: PathBuf = self.projects.data_directory();
        let machine = tokio::task::spawn_blocking(move || (memory_usage(), disk_usage(&data))).await;
        let (memory_usage, disk_usage) = machine.unwrap_or_default();
        let connections = self.projects.nfs_statistics().map_or(0, |found| found.connections);
        Ok(Response::new(v1::GetSystemStatsResponse {
            sandboxes: Some(sandboxes),
            resources: Some(v1::SystemResources { cpu_usage, memory_usage, disk_usage }),
            nfs: Some(v1::NfsStats {
                mode: "embedded".to_owned(),
                connections: i64::try_from(connections).unwrap_or(i64::MAX),
            }),
            uptime: ((self.now)().0 - self.started.0).max(0) / 1_000_000_000,
        }))
    }

    async fn collect_garbage(&self, request: Request<v1::CollectGarbageRequest>) -> Answer<v1::CollectGarbageResponse> {
        let swept = self.sandboxes.sweep().await?;
        let (collected_projects, freed) = match request.into_inner().stores {
            true => self.collect_stores().await?,
            false => (0, 0),
        };
        Ok(Response::new(v1::CollectGarbageResponse {
            cleaned_sandboxes: swept.sandboxes,
            cleaned_workspaces: swept.directories,
            freed_space: i64::try_from(swept.bytes.saturating_add(freed)).unwrap_or(i64::MAX),
            collected_projects,
        }))
    }
}

/// The CPU times of the machine since its start, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    all: u64,
}

impl CpuTimes {
    fn read() -> Option<Self> {
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// Parses the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let times: Option<Vec<u64>> = line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
        let times = times.filter(|times| times.len() >= 5)?;
        let all = times.iter().sum::<u64>();
        Some(Self { busy: all - times[3] - times[4], all })
    }

    #[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
    fn usage_until(self, now: Self) -> f64 {
        let (busy, all) = (now.busy.saturating_sub(self.busy), now.all.saturating_sub(self.all));
        if all == 0 { 0.0 } else { (100.0 * busy as f64 / all as f64).min(100.0) }
    }
}

fn memory_usage() -> f64 {
    std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| parse_memory(&text)).unwrap_or(0.0)
}

#[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
fn parse_memory(text: &str) -> Option<f64> {
    let value = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    };
    let (all, free) = (value("MemTotal")?, value("MemAvailable")?);
    (all > 0).then(|| 100.0 * all.saturating_sub(free) as f64 / all as f64)
}

#[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
fn disk_usage(path: &Path) -> f64 {
    match rustix::fs::statvfs(path) {
        Ok(found) if found.f_blocks > 0 => {
            100.0 * found.f_blocks.saturating_sub(found.f_bavail) as f64 / found.f_blocks as f64
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_and_memory_are_read_as_the_kernel_tells_them() {
        let before = CpuTimes::parse("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n").expect("times");
        let after = CpuTimes::parse("cpu  150 0 50 840 60 0 0 0 0 0\n").expect("times");
        assert_eq!(before, CpuTimes { busy: 150, all: 1_000 });
        assert!((before.usage_until(after) - 50.0).abs() < 1e-9);
        assert!(before.usage_until(before).abs() < 1e-9);
        assert_eq!(CpuTimes::parse("intr 1 2"), None);
        let memory = parse_memory("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:   250 kB\n").expect("memory");
        assert!((memory - 75.0).abs() < 1e-9);
        assert_eq!(parse_memory("nothing"), None);
    }
}
