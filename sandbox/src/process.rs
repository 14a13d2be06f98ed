//! Processes of the host that are no children of this one, found again by their id and the time of their start.

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Polling interval for the end of a process for which no pidfd can be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns when a process was started, in clock ticks since boot; `None` if it has ended. Distinguishes a process from a later one
/// with the same id.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name of the program may have spaces and parentheses.
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    // The first of them is the state; a zombie counts as ended.
    let is_zombie = matches!(fields.first(), Some(&("Z" | "X")));
    if is_zombie { None } else { fields.get(19)?.parse().ok() }
}

/// Returns the handle by which a process is found again: its id and its start time. Returns `None` if it has ended.
pub(crate) fn handle_of(pid: i32) -> Option<String> {
    Some(format!("{pid}:{}", start_time(pid)?))
}

/// Returns the process of a handle; `None` if it has ended.
pub(crate) fn living(handle: &str) -> Option<Pid> {
    let (pid, started) = handle.split_once(':')?;
    let (pid, started): (i32, u64) = (pid.parse().ok()?, started.parse().ok()?);
    (start_time(pid)? == started).then(|| Pid::from_raw(pid))?
}

/// Completes when the process of a handle is gone.
pub(crate) async fn ended(handle: &str) {
    let Some(pid) = living(handle) else { return };
    let opened = pidfd_open(pid, PidfdFlags::NONBLOCK);
    #[allow(deprecated, reason = "sound for an owned descriptor; what replaces it is unsafe code")]
    let watched = opened.ok().and_then(|process| AsyncFd::with_interest(process, Interest::READABLE).ok());
    // The descriptor may be that of a later process with the same id, if this one has just ended.
    if let Some(watched) = watched
        && living(handle).is_some()
        && watched.readable().await.is_ok()
    {
        return;
    }
    while living(handle).is_some() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_another_start_time_is_not_ours() {
        let own = i32::try_from(std::process::id()).expect("a process id");
        let started = start_time(own).expect("this process runs");
        assert!(living(&format!("{own}:{started}")).is_some());
        for other in [format!("{own}:{}", started + 1), "x:1".to_owned(), format!("{own}"), String::new()] {
            assert!(living(&other).is_none(), "{other}");
        }
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_noticed_at_once() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("started");
        let handle = handle_of(i32::try_from(child.id()).expect("a process id")).expect("it runs");
        let early = tokio::time::timeout(Duration::from_millis(50), ended(&handle)).await;
        assert!(early.is_err(), "it runs");
        child.kill().expect("killed");
        tokio::time::timeout(Duration::from_secs(10), ended(&handle)).await.expect("noticed");
        child.wait().expect("reaped");
        ended(&handle).await;
    }
}
