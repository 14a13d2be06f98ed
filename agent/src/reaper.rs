//! Waits for all children: those that this process started, and orphans that the kernel gave to it because its id is 1.

use std::collections::HashMap;
use std::io;
use std::process::Child;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Pid, WaitOptions, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::spawner::Spawner;

/// Added to the number of the signal that ended a process, as shells do.
const SIGNALLED: i32 = 128;

/// The one place that starts processes and waits for them.
pub(crate) struct Reaper {
    spawner: Spawner,
    expected: Mutex<HashMap<i32, oneshot::Sender<i32>>>,
}

/// A process that was started.
pub(crate) struct Started {
    pub(crate) pid: Pid,
    /// Its exit code.
    pub(crate) exit: oneshot::Receiver<i32>,
}

impl Reaper {
    pub(crate) fn new(spawner: Spawner) -> Self {
        Self { spawner, expected: Mutex::default() }
    }

    /// Starts a process. Its end is not missed, however early it comes.
    pub(crate) fn spawn(
        &self,
        start: impl FnOnce() -> io::Result<Child> + Send + 'static,
    ) -> io::Result<(Started, Child)> {
        let mut expected = self.expected.lock();
        let child = self.spawner.spawn(start)?;
        let id = i32::try_from(child.id()).map_err(io::Error::other)?;
        let pid = Pid::from_raw(id).ok_or_else(|| io::Error::other("a process without an id"))?;
        let (send, exit) = oneshot::channel();
        expected.insert(id, send);
        Ok((Started { pid, exit }, child))
    }

    fn reap(&self) {
        let mut expected = self.expected.lock();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let signalled = status.terminating_signal().map(|signal| SIGNALLED + signal);
            let Some(code) = status.exit_status().or(signalled) else { continue };
            if let Some(exit) = expected.remove(&pid.as_raw_nonzero().get()) {
                // No task waits for a terminal that was closed.
                let _ = exit.send(code);
            }
        }
    }
}

/// Reaps for ever.
///
/// # Errors
/// Signals cannot be received.
pub(crate) fn keep_reaping(reaper: Arc<Reaper>) -> io::Result<impl Future<Output = ()> + Send> {
    let mut children = signal(SignalKind::child())?;
    Ok(async move {
        loop {
            reaper.reap();
            children.recv().await;
        }
    })
}
