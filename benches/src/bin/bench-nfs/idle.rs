//! Memory of a process with many clients that have mounted an export and do nothing.

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::served::Served;

pub const FIGURES: &[&str] = &[IDLE];
const IDLE: &str = "memory with 1,000 idle mounts";

/// Open files of this program beside connections.
const SPARE_FILES: u64 = 64;

pub fn run(bench: &mut Bench) -> Result<()> {
    let mounts: usize = bench.size(1_000, 50);
    let limit = getrlimit(Resource::Nofile);
    let wanted = Some(mounts as u64 + SPARE_FILES);
    if limit.current < wanted {
        setrlimit(Resource::Nofile, Rlimit { current: wanted, ..limit })?;
    }
    let around = bench.directory("idle");
    std::fs::create_dir_all(&around)?;
    let served = Served::start(&around)?;
    let before = served.resident_bytes()?;
    let mut clients = Vec::with_capacity(mounts);
    for _ in 0..mounts {
        let (mut client, root) = served.mount()?;
        client.get_attributes(&root)?;
        clients.push(client);
    }
    let after = served.resident_bytes()?;
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let how = format!("{mounts} connections; without them {:.0} MB", megabytes(before));
    bench.add(IDLE, (megabytes(after), "MB"), Bar::AtMost(300.0), how);
    Ok(())
}
