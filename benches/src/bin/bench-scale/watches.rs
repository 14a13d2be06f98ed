//! Watches that are open and see nothing: what they take, and what other calls notice.

use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result, Samples, microseconds};
use amalgam_proto::v1;

use crate::calls::Calls;

const TIMES: usize = 1_000;
/// A call that takes longer is taken for one that never ends.
const STALLED: Duration = Duration::from_secs(5);

pub async fn run(bench: &mut Bench, calls: &Calls, made: &str) -> Result<()> {
    let wanted = bench.size(2_000, 50);
    let request = v1::ListOperationsRequest { page_size: 1, ..v1::ListOperationsRequest::default() };
    let last = calls.operations.clone().list_operations(request).await?.into_inner();
    let after = last.operations.first().map_or(0, |operation| operation.sequence);
    let without = shows(calls).await?.ok_or("calls stall without any watch")?;
    let before = resident_bytes()?;
    let mut open = Vec::new();
    while open.len() < wanted {
        let mut operations = calls.operations.clone();
        let request = v1::WatchOperationsRequest { after };
        let opened = tokio::time::timeout(STALLED, operations.watch_operations(request)).await;
        match opened {
            Ok(stream) => open.push(stream?.into_inner()),
            Err(_) => break,
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let bytes = resident_bytes()?.saturating_sub(before);
    let beside = shows(calls).await?;
    let number = open.len();
    drop(open);
    let how = format!("{number} of `WatchOperations` through one connection, both ends in this process; {made}");
    bench.add("2,000 idle watches, memory", (bytes as f64 / 1e6, "MB"), Bar::AtMost(100.0), how.clone());
    let (p50, p99, how) = match &beside {
        Some(beside) if number == wanted => {
            let how =
                format!("{how}; `show` {} beside them, {} without", beside.describe("us"), without.describe("us"));
            (beside.p50() / without.p50(), beside.p99() / without.p99(), how)
        }
        _ => {
            let stalled = STALLED.as_secs_f64() * 1e6;
            let how = format!("{how}; a call did not end within {} s: the ratio is of that", STALLED.as_secs());
            (stalled / without.p50(), stalled / without.p99(), how)
        }
    };
    bench.add("calls beside 2,000 idle watches, p50 / without", (p50, "times"), Bar::AtMost(1.2), how.clone());
    bench.add("calls beside 2,000 idle watches, p99 / without", (p99, "times"), Bar::AtMost(2.0), how);
    Ok(())
}

/// How long `show` takes; nothing if one does not end.
async fn shows(calls: &Calls) -> Result<Option<Samples>> {
    let mut times = Vec::new();
    for round in 0..TIMES + 50 {
        let request = v1::GetSnapshotRequest { revision: "@".to_owned(), workspace: "workspaces/main".to_owned() };
        let begun = Instant::now();
        let mut snapshots = calls.snapshots.clone();
        match tokio::time::timeout(STALLED, snapshots.get_snapshot(request)).await {
            Ok(answer) => drop(answer?),
            Err(_) => return Ok(None),
        }
        if round >= 50 {
            times.push(microseconds(begun.elapsed()));
        }
    }
    Ok(Some(Samples::new(times)))
}

/// The memory that this process has now.
fn resident_bytes() -> Result<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")?.split(' ').nth(1).ok_or("no field")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
