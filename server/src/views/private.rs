//! Mounts in a namespace of their own: they end with the last process in there, and the kernel takes them away some moments later.
//! A call that needs the workspace waits for that, and is refused while a process runs in there.

use std::time::{Duration, Instant};

use amalgam_proto::Reason;

use super::{MountedTree, Views};
use crate::error::{Error, Result};

/// How long the kernel may take to end a mount that no process is in.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// How long processes that a command left get to end by themselves.
const PROCESSES_END_TIMEOUT: Duration = Duration::from_millis(300);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

impl Views {
    /// Waits until the private mount of a command that has ended is gone. Forgets a mount that was announced and never made.
    pub(super) fn end_private(&self, token: &[u8]) -> Result<()> {
        self.inner.expected.lock().remove(token);
        let found = {
            let state = self.inner.state.lock();
            let mut private =
                state.mounts.iter().filter_map(|(number, mounted)| Some((number, mounted.private.as_ref()?)));
            private.find(|(_, private)| private.token == token).map(|(number, _)| *number)
        };
        found.map_or(Ok(()), |number| self.await_private(number))
    }

    /// Waits until a private mount has ended. Fails if processes keep running in it.
    pub(super) fn await_private(&self, number: u64) -> Result<()> {
        let began = Instant::now();
        loop {
            let (private, record) = {
                let state = self.inner.state.lock();
                let Some(mounted) = state.mounts.get(&number) else { return Ok(()) };
                if mounted.mount.has_ended() {
                    drop(state);
                    return self.put_away(number);
                }
                let Some(private) = mounted.private.clone() else { return Ok(()) };
                (private, mounted.record.clone())
            };
            let is_used = began.elapsed() > PROCESSES_END_TIMEOUT && !private.processes().is_empty();
            if is_used || began.elapsed() > END_TIMEOUT {
                let message = format!(
                    "{} in the private mount of {}, which ends when that has ended",
                    private.words(),
                    super::mounting::words_of(&record)
                );
                return Err(Error::new(Reason::MountBusy, message));
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    /// Waits for mounts of a view that are about to end: unmounted by others, or left by the last process of a private one.
    pub(super) fn await_ended_mounts(&self, id: u64) -> Result<()> {
        self.put_away_unmounted()?;
        let private: Vec<_> = {
            let state = self.inner.state.lock();
            let shown = state
                .mounts
                .iter()
                .filter(|(_, mounted)| matches!(mounted.shows, MountedTree::Live(other) if other == id));
            shown.filter(|(_, mounted)| mounted.private.is_some()).map(|(number, _)| *number).collect()
        };
        for number in private {
            match self.await_private(number) {
                // The caller words the refusal itself.
                Err(failure) if failure.reason() == Reason::MountBusy => return Ok(()),
                done => done?,
            }
        }
        Ok(())
    }
}
