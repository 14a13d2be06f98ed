//! Syncs with the remotes of a store in its background process: when either side changes, at intervals, and after failures with
//! growing delays. One task for each remote; the definitions are read again when they change.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amalgam_proto::v1;
use amalgam_server::Service;
use amalgam_server::serve::Calls;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::definition::{Remote, Remotes, SyncMode};
use super::sides::{Sides, connect_remote};
use super::state::{RemoteState, SyncOutcome, SyncedName, WorkspaceState};
use super::sync::sync_remote;
use crate::connect::{Client, connect_service, now};
use crate::error::CliError;

/// Delay between two checks for changed definitions.
const DEFINITION_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay between a change and the sync, so that several changes are synced at once.
const DEBOUNCE_DELAY: Duration = Duration::from_millis(300);
/// The longest time between two syncs with `auto`, in case an event was lost.
const AUTO_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before a failed sync is retried; it doubles up to the maximum.
const RETRY_DELAY_MIN: Duration = Duration::from_secs(1);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(60);
/// Delay before another subscription to a server that refused to send events.
const SUBSCRIBE_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Most time that the worker waits for a sync of another process.
const LOCK_TIMEOUT: Duration = Duration::from_secs(600);
/// The events that can need a sync: a push of another store is `store.received`, an undo `operation.undone`.
const EVENT_KINDS: [&str; 4] = ["workspace.*", "store.*", "operation.*", "label.*"];
/// The actor of background syncs in the operation log.
const ACTOR: &str = "amalgam";

/// The task that syncs with all remotes of a store.
pub struct SyncWorker {
    task: JoinHandle<()>,
}

impl SyncWorker {
    /// Starts the worker. While a remote is synced automatically, the process does not end because it is idle.
    pub fn start(service: &Service, calls: &Arc<Calls>, home: &Path) -> Self {
        let (service, calls, remotes) = (service.clone(), Arc::clone(calls), Remotes::of_home(home));
        Self { task: tokio::spawn(run(service, calls, remotes)) }
    }

    /// Stops the worker. A sync in progress is cancelled, and continues when the process runs again.
    pub async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A task that ends when this is dropped.
struct RemoteTask {
    remote: Remote,
    task: JoinHandle<()>,
}

impl Drop for RemoteTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run(service: Service, calls: Arc<Calls>, remotes: Remotes) {
    let mut tasks: HashMap<String, RemoteTask> = HashMap::new();
    let mut last_problem = String::new();
    loop {
        match remotes.list() {
            Ok(listed) => {
                let is_wanted = |remote: &Remote| remote.sync != SyncMode::Manual;
                tasks.retain(|_, running| listed.contains(&running.remote) && is_wanted(&running.remote));
                for remote in listed.into_iter().filter(is_wanted) {
                    tasks.entry(remote.name.clone()).or_insert_with(|| {
                        let work = RemoteSync {
                            service: service.clone(),
                            remotes: remotes.clone(),
                            remote: remote.clone(),
                            wake: Arc::default(),
                        };
                        RemoteTask { remote, task: tokio::spawn(work.run()) }
                    });
                }
                calls.keep_process(!tasks.is_empty());
            }
            Err(error) => {
                let problem = error.to_string();
                if problem != last_problem {
                    warn!(%problem, "the remotes cannot be read");
                }
                last_problem = problem;
            }
        }
        let before = remotes.stamp();
        loop {
            sleep(DEFINITION_POLL_INTERVAL).await;
            if remotes.stamp() != before {
                break;
            }
        }
    }
}

/// The sync loop of one remote.
struct RemoteSync {
    service: Service,
    remotes: Remotes,
    remote: Remote,
    wake: Arc<Notify>,
}

impl RemoteSync {
    async fn run(self) {
        let mut connection: Option<Connection> = None;
        loop {
            let began = Instant::now();
            let delay = match self.sync(&mut connection).await {
                Ok(()) => match self.remote.sync {
                    SyncMode::Every(seconds) => Duration::from_secs(seconds.into()).saturating_sub(began.elapsed()),
                    SyncMode::Auto | SyncMode::Manual => AUTO_INTERVAL,
                },
                Err(delay) => {
                    connection = None;
                    sleep(delay).await;
                    continue;
                }
            };
            match self.remote.sync {
                // Changes within the debounce delay are synced at once.
                SyncMode::Auto if timeout(delay, self.wake.notified()).await.is_ok() => sleep(DEBOUNCE_DELAY).await,
                SyncMode::Auto | SyncMode::Manual => {}
                SyncMode::Every(_) => sleep(delay).await,
            }
        }
    }

    /// Syncs once. If that fails, returns the delay before the next attempt.
    async fn sync(&self, connection: &mut Option<Connection>) -> Result<(), Duration> {
        let name = &self.remote.name;
        let done = match self.remotes.lock(name, LOCK_TIMEOUT).await {
            // The definition was changed or removed while this task waited for the lock: the task is about to end.
            Ok(_) if self.remotes.find(name).ok().flatten().as_ref() != Some(&self.remote) => Ok(()),
            Ok(_lock) => self.sync_locked(connection).await,
            Err(error) => Err((error, RETRY_DELAY_MAX)),
        };
        done.map_err(|(error, delay)| {
            warn!(remote = %name, %error, retry_seconds = delay.as_secs(), "sync failed");
            delay
        })
    }

    async fn sync_locked(&self, connection: &mut Option<Connection>) -> Result<(), (CliError, Duration)> {
        let (remotes, name) = (&self.remotes, &self.remote.name);
        let mut state = RemoteState::load(remotes, name).map_err(|error| (error, RETRY_DELAY_MAX))?;
        state.tried = now().0;
        let synced = self.sync_all(connection, &mut state).await;
        let delay = match &synced {
            Ok(()) => {
                let (workspaces, labels) = (std::mem::take(&mut state.workspaces), std::mem::take(&mut state.labels));
                let succeeded = now().0;
                state = RemoteState { succeeded, tried: state.tried, workspaces, labels, ..RemoteState::default() };
                Duration::ZERO
            }
            Err(error) => {
                let delay = retry_delay(state.failures, state.tried);
                state.failures = state.failures.saturating_add(1);
                state.next_try = now().0.saturating_add(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX));
                (state.problem, state.hint) = (error.message.clone(), error.hint.clone().unwrap_or_default());
                delay
            }
        };
        let saved = state.save(remotes, name);
        synced.and(saved).map_err(|error| (error, delay.max(RETRY_DELAY_MIN)))
    }

    async fn sync_all(&self, connection: &mut Option<Connection>, state: &mut RemoteState) -> Result<(), CliError> {
        if connection.as_ref().is_some_and(Connection::is_deaf) {
            *connection = None;
        }
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(Connection::open(self).await?),
        };
        let name = &self.remote.name;
        let report = |what: SyncedName<'_>, done: &WorkspaceState, state: &RemoteState| {
            let (outcome, conflicts) = (done.outcome.word(), done.conflicts);
            match what {
                SyncedName::Workspace(workspace) if done.outcome == SyncOutcome::Failed => {
                    warn!(remote = %name, %workspace, problem = %done.problem, "workspace not synced");
                }
                SyncedName::Label(label) if done.outcome == SyncOutcome::Failed => {
                    warn!(remote = %name, %label, problem = %done.problem, "label not synced");
                }
                SyncedName::Workspace(workspace) if done.outcome.is_change() => {
                    info!(remote = %name, %workspace, outcome, conflicts, "workspace synced");
                }
                SyncedName::Label(label) if done.outcome.is_change() => {
                    info!(remote = %name, %label, outcome, "label synced");
                }
                SyncedName::Workspace(_) | SyncedName::Label(_) => {}
            }
            if done.outcome.is_change() {
                // The state is saved at once, so that it is not lost if the process is killed before the round ends.
                state.save(&self.remotes, name)?;
            }
            Ok(())
        };
        sync_remote(&mut connection.sides, &self.remote, state, &[], report).await
    }
}

/// Returns the retry delay after a number of failures. It doubles with each failure, and is up to a quarter shorter at random, so
/// that many stores do not reconnect at once.
fn retry_delay(failures: u32, seed: i64) -> Duration {
    let delay = RETRY_DELAY_MIN.saturating_mul(1 << failures.min(6)).min(RETRY_DELAY_MAX);
    let quarter = u64::try_from(delay.as_millis() / 4).unwrap_or(0).max(1);
    delay - Duration::from_millis(seed.unsigned_abs() / 1_000 % quarter)
}

/// The connections to both sides, and the tasks that listen to their events.
struct Connection {
    sides: Sides,
    listeners: Vec<JoinHandle<()>>,
}

impl Connection {
    async fn open(sync: &RemoteSync) -> Result<Self, CliError> {
        let remote = connect_remote(&sync.remote, ACTOR).await?;
        let local = connect_service(sync.service.clone(), ACTOR).await?;
        let listeners = match sync.remote.sync {
            SyncMode::Auto => [&local, &remote].map(|client| listen(client, &sync.wake)).into(),
            SyncMode::Every(_) | SyncMode::Manual => Vec::new(),
        };
        Ok(Self { sides: Sides { local, remote }, listeners })
    }

    /// Returns whether the event stream of a side has ended.
    fn is_deaf(&self) -> bool {
        self.listeners.iter().any(JoinHandle::is_finished)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.listeners.iter().for_each(JoinHandle::abort);
    }
}

/// Wakes the sync when a workspace changes, and once when the stream begins, because earlier changes are not sent. When the stream
/// ends, wakes the sync once more, which then reconnects.
fn listen(client: &Client, wake: &Arc<Notify>) -> JoinHandle<()> {
    let (mut client, wake) = (client.clone(), Arc::clone(wake));
    tokio::spawn(async move {
        let request = v1::SubscribeRequest { kinds: EVENT_KINDS.map(str::to_owned).to_vec(), ..Default::default() };
        match client.events.subscribe(request).await {
            Ok(stream) => {
                let (mut stream, mut is_first) = (stream.into_inner(), true);
                while let Ok(Some(message)) = stream.message().await {
                    if message.event.is_some() || is_first {
                        wake.notify_one();
                    }
                    is_first = false;
                }
            }
            Err(_) => sleep(SUBSCRIBE_RETRY_DELAY).await,
        }
        wake.notify_one();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_after_failures_doubles_up_to_a_limit() {
        let delays: Vec<_> = (0..9).map(|failures| retry_delay(failures, 0).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        for seed in [1, 77_777_777, -5_000_001, i64::MIN] {
            let delay = retry_delay(3, seed);
            assert!(delay > Duration::from_secs(6) && delay <= Duration::from_secs(8), "{delay:?}");
        }
    }
}
