//! The resources that all processes of the sandbox use.

use std::fs;
use std::time::Instant;

use amalgam_sandbox::agent_v1::ResourceUsage;

/// The mounts of the sandbox. They have the quota as their size.
const MOUNTS: [&str; 2] = ["/workspace", "/sandbox"];
/// The kind of their file systems, to the kernel.
const FUSE: rustix::fs::FsWord = 0x6573_5546;

/// Measures the resource usage of the sandbox periodically.
#[derive(Default)]
pub(crate) struct Meter {
    before: Option<(Instant, u64)>,
}

impl Meter {
    /// Measures the present resource usage of the sandbox. The CPU usage is the mean since the previous call, and 0 in the first
    /// call.
    #[allow(clippy::cast_precision_loss, reason = "a percentage needs few digits")]
    pub(crate) fn measure(&mut self) -> ResourceUsage {
        let (mut ticks, mut pages, mut processes) = (0, 0, 0);
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            let Some((own, reaped, resident)) = parse(&stat) else { continue };
            // Children of pid 1 that have ended are in its sum only.
            ticks += own + if pid == 1 { reaped } else { 0 };
            pages += resident;
            processes += 1;
        }
        let now = Instant::now();
        let cpu_percent = match self.before.replace((now, ticks)) {
            Some((then, before)) if now > then => {
                let seconds = ticks.saturating_sub(before) as f64 / rustix::param::clock_ticks_per_second() as f64;
                100.0 * seconds / now.duration_since(then).as_secs_f64()
            }
            _ => 0.0,
        };
        let (received_bytes, sent_bytes) = network(&fs::read_to_string("/proc/net/dev").unwrap_or_default());
        ResourceUsage {
            cpu_percent,
            memory_bytes: pages * rustix::param::page_size() as u64,
            disk_bytes: MOUNTS.iter().filter_map(|path| used_bytes(path)).sum(),
            processes,
            received_bytes,
            sent_bytes,
        }
    }
}

/// Parses the CPU ticks of a process, those of its reaped children, and its resident pages.
fn parse(stat: &str) -> Option<(u64, u64, u64)> {
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some((number(11)? + number(12)?, number(13)? + number(14)?, number(21)?))
}

fn used_bytes(path: &str) -> Option<u64> {
    // Before the mount, the directory is one of the host.
    rustix::fs::statfs(path).ok().filter(|found| found.f_type == FUSE)?;
    let space = rustix::fs::statvfs(path).ok()?;
    Some(space.f_blocks.saturating_sub(space.f_bfree) * space.f_frsize)
}

/// Returns the bytes received and sent by all interfaces but loopback.
fn network(devices: &str) -> (u64, u64) {
    let (mut received, mut sent) = (0, 0);
    for line in devices.lines() {
        let Some((name, counts)) = line.split_once(':') else { continue };
        let counts: Vec<u64> = counts.split_whitespace().filter_map(|count| count.parse().ok()).collect();
        if name.trim() != "lo" && counts.len() > 8 {
            received += counts[0];
            sent += counts[8];
        }
    }
    (received, sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_found() {
        let stat = "1 (a) b) S 0 1 1 0 -1 4 5 6 7 8 10 20 30 40 20 0 1 0 99 1000 77 18446744073709551615";
        assert_eq!(parse(stat), Some((30, 70, 77)));
        let devices = "Inter-|\n face |bytes\n    lo: 9 0 0 0 0 0 0 0 9 0\n  eth0: 5 0 0 0 0 0 0 0 7 0 0\n";
        assert_eq!(network(devices), (5, 7));
    }
}
