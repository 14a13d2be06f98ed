//! The sandboxes of the server: started in a workspace, watched, ended when they expire, and taken over after a restart.

mod access;
mod activity;
mod allow_list;
mod checkout;
mod creation;
mod events;
mod home;
mod hop_headers;
mod lifecycle;
mod log;
mod messages;
mod metrics;
mod outgoing;
mod port_token;
pub(crate) mod ports;
mod recovery;
mod round;
mod runtimes;
mod service;
mod streams;
mod sweep;
mod templates;
mod ticket;
mod watch;
pub(crate) mod websocket;
mod workspace;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{Limits, Link, SandboxError, SandboxState};
use amalgam_server::Network;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::{info, warn};

use crate::audit::Audit;
use crate::catalog::{Catalog, SandboxRecord};
use crate::project::ProjectName;
use crate::projects::Projects;
use access::Access;
pub use access::AccessSetting;
pub use allow_list::HostRule;
use home::{Keep, has_home, mounts_of};
pub(crate) use metrics::SandboxMetrics;
use port_token::PortTokens;
use runtimes::RuntimeSlot;
pub use runtimes::{DockerSettings, RuntimeChoice};
use ticket::Tickets;
pub use websocket::TerminalTimes;
use workspace::StoreCalls;

/// Time before its expiry at which a sandbox is announced as expiring.
const WARNING: Duration = Duration::from_secs(300);
/// Maximum number of sandboxes that are created at the same time.
const CREATIONS_MAX: usize = 10;

/// How sandboxes are started.
#[derive(Clone, Debug)]
pub struct SandboxOptions {
    /// The directory with one directory for each sandbox: its socket, its log, the mount of its workspace.
    pub directory: PathBuf,
    /// The program of the agent.
    pub agent: PathBuf,
    /// The runtimes; the first one that has the template of a sandbox starts it.
    pub runtimes: Vec<RuntimeChoice>,
    /// How sandboxes access the files of their workspaces.
    pub workspace_access: AccessSetting,
    /// Whether a sandbox of the local runtime may have the network of the host.
    pub allows_host_network: bool,
    /// Whether Landlock also restricts writes of sandboxes that outlive the server.
    pub has_strict_landlock: bool,
    /// Maximum number of sandboxes of one key at a time.
    pub per_key_max: usize,
    /// Maximum number of sandboxes of the server at a time.
    pub total_max: usize,
    /// Maximum interval of the checks for expired sandboxes.
    pub expiry_interval: Duration,
    /// When idle WebSockets of terminals are closed.
    pub terminal_times: TerminalTimes,
    /// Idle time after which a connection to a port of a sandbox, or of a sandbox to a host, is closed.
    pub port_idle_max: Duration,
    /// The domain below which each URL of a port has a host name of its own. Without one ports are paths of the server.
    pub port_domain: Option<String>,
    /// The hosts that sandboxes may be allowed to reach. Without any, allow-lists are refused.
    pub hosts: Vec<HostRule>,
    /// Networks that are not public and that names of those hosts may lead to.
    pub networks: Vec<Network>,
}

impl SandboxOptions {
    /// Returns the default options for sandboxes in `directory`.
    pub fn new(directory: PathBuf, agent: PathBuf) -> Self {
        Self {
            directory,
            agent,
            runtimes: vec![RuntimeChoice::Local],
            workspace_access: AccessSetting::Auto,
            allows_host_network: false,
            has_strict_landlock: false,
            per_key_max: 10,
            total_max: 100,
            expiry_interval: Duration::from_secs(60),
            terminal_times: TerminalTimes::default(),
            port_idle_max: Duration::from_secs(900),
            port_domain: None,
            hosts: Vec::new(),
            networks: Vec::new(),
        }
    }
}

/// The sandboxes of a server. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Sandboxes {
    inner: Arc<Inner>,
}

struct Inner {
    catalog: Catalog,
    projects: Projects,
    /// `None` on a server without sandboxes.
    parts: Option<Parts>,
    now: fn() -> Time,
    /// Whether clients reach the server by TLS.
    is_tls: bool,
    metrics: SandboxMetrics,
    audit: Audit,
    living: Mutex<HashMap<String, Living>>,
    tickets: Mutex<Tickets>,
    port_tokens: Mutex<PortTokens>,
    /// Notified when the expiry time of a sandbox changes.
    expiry_changed: tokio::sync::Notify,
    /// The number of events so far. Watch streams read the catalog when it changes.
    events: tokio::sync::watch::Sender<u64>,
}

struct Parts {
    options: SandboxOptions,
    runtimes: Vec<RuntimeSlot>,
    creations: Semaphore,
    /// Held while sandboxes are counted and the record of a new one is written.
    reserving: tokio::sync::Mutex<()>,
}

/// A running sandbox to which this process has a link.
#[derive(Clone)]
struct Living {
    link: Link,
    handle: String,
    envs: HashMap<String, String>,
    limits: Limits,
}

impl Sandboxes {
    pub(crate) fn new(
        catalog: Catalog,
        projects: Projects,
        options: Option<SandboxOptions>,
        is_tls: bool,
        audit: Audit,
        now: fn() -> Time,
    ) -> Self {
        let parts = options.map(|options| {
            let runtimes = options.runtimes.iter().map(|choice| RuntimeSlot::new(choice, &options)).collect();
            let (creations, reserving) = (Semaphore::new(CREATIONS_MAX), tokio::sync::Mutex::default());
            Parts { options, runtimes, creations, reserving }
        });
        let (metrics, living) = (SandboxMetrics::new(), Mutex::default());
        let (tickets, port_tokens) = (Mutex::default(), Mutex::default());
        let (expiry_changed, events) = (tokio::sync::Notify::new(), tokio::sync::watch::Sender::new(0));
        Self {
            inner: Arc::new(Inner {
                catalog,
                projects,
                parts,
                now,
                is_tls,
                metrics,
                audit,
                living,
                tickets,
                port_tokens,
                expiry_changed,
                events,
            }),
        }
    }

    fn parts(&self) -> Result<&Parts, Status> {
        let message =
            "this server has no sandboxes: it is a node of a cluster, or its setting sandbox-runtimes is `none`";
        self.inner.parts.as_ref().ok_or_else(|| Failure::new(Reason::Unsupported, message).into_status())
    }

    fn now(&self) -> Time {
        (self.inner.now)()
    }

    /// Returns the domain below which ports have host names of their own, or `None` if ports are paths of the server.
    pub(crate) fn port_domain(&self) -> Option<&str> {
        self.inner.parts.as_ref()?.options.port_domain.as_deref()
    }

    /// Returns the directory of a sandbox.
    fn directory(&self, id: &str) -> Result<PathBuf, Status> {
        Ok(self.parts()?.options.directory.join(id))
    }

    /// Returns the record of a sandbox of a project, or fails if there is none.
    async fn find(&self, project: &ProjectName, id: &str) -> Result<SandboxRecord, Status> {
        let found = self.inner.catalog.sandbox(id).await?;
        // The error does not say whether the sandbox is in another project.
        found.filter(|record| record.project == *project).ok_or_else(|| {
            let message = format!("there is no sandbox {} in project {project}", id.escape_debug());
            Failure::new(Reason::SandboxNotFound, message).with("sandboxId", id).into_status()
        })
    }

    /// Returns the link to a running sandbox of a project, or fails if it does not run.
    async fn running(&self, project: &ProjectName, id: &str) -> Result<Living, Status> {
        self.parts()?;
        let record = self.find(project, id).await?;
        let living = self.inner.living.lock().get(id).cloned();
        living.filter(|_| record.state == SandboxState::Running).ok_or_else(|| {
            let message = format!("sandbox {id} does not run; its state is `{}`", record.state);
            Failure::new(Reason::SandboxNotReady, message).with("state", record.state.word()).into_status()
        })
    }

    async fn store_calls(&self, record: &SandboxRecord) -> Result<StoreCalls, Status> {
        Ok(StoreCalls::new(self.inner.projects.open(&record.project).await?, &record.agent))
    }

    /// Ends the processes of a sandbox, commits its workspace and unmounts it. A workspace that is deleted next is committed, too,
    /// so that an undelete restores all its files.
    async fn end(&self, record: &SandboxRecord, why: &str) -> Result<(), Status> {
        let parts = self.parts()?;
        let living = self.inner.living.lock().remove(&record.id);
        self.forget_port_tokens(&record.id);
        let handle = living.as_ref().map_or(record.handle.as_str(), |living| living.handle.as_str());
        match parts.slot(&record.runtime) {
            Some(slot) => slot.runtime.stop(&record.id, handle).await,
            None => warn!(sandbox = record.id, runtime = record.runtime, "this server has no such runtime any more"),
        }
        if let Some(living) = &living {
            living.link.close(why);
        }
        // Only the next server would need these: output, and variables that may be secret.
        let directory = self.directory(&record.id)?;
        let _ = std::fs::remove_dir_all(directory.join(creation::OUTPUT));
        let _ = std::fs::remove_file(directory.join(recovery::VARIABLES));
        let calls = self.store_calls(record).await?;
        if Access::of_record(record) == Access::Checkout {
            self.put_away_all(&calls, record, why).await;
            return Ok(());
        }
        if let Err(status) = calls.commit(&record.workspace, why).await {
            // Uncommitted work stays with the workspace.
            warn!(sandbox = record.id, %status, "the workspace of a sandbox was not committed");
        }
        for (place, _, part) in mounts_of(record) {
            if let Err(status) = calls.unmount(&directory.join(part)).await {
                warn!(sandbox = record.id, ?place, %status, "the workspace or the home of a sandbox was not unmounted");
            }
        }
        if record.config["root"].is_string()
            && let Err(status) = calls.unmount(&directory.join(creation::ROOT)).await
        {
            warn!(sandbox = record.id, %status, "the root directory of a sandbox was not unmounted");
        }
        Ok(())
    }

    /// Ends a sandbox and keeps its record, so that it can be started again.
    async fn stop(&self, record: &SandboxRecord, why: &str) -> Result<(), Status> {
        let catalog = &self.inner.catalog;
        if !catalog.set_sandbox_state(&record.id, SandboxState::Stopping, why, self.now()).await? {
            return Ok(());
        }
        let directory = self.directory(&record.id)?;
        let envs = recovery::read_variables(&directory).unwrap_or_default();
        if let Err(status) = self.end(record, why).await {
            self.mark_not_ended(record, &status).await;
            return Err(status);
        }
        // Kept with the record, because the sandbox can be started again.
        if let Err(error) = recovery::write_variables(&directory, &envs) {
            warn!(sandbox = record.id, %error, "the variables of a stopped sandbox are not kept");
        }
        catalog.set_sandbox_state(&record.id, SandboxState::Stopped, why, self.now()).await?;
        self.note(&record.id, why);
        Ok(())
    }

    /// Ends a sandbox and deletes its record. `keep` says whether its workspace and its home stay. A sandbox that cannot be deleted is
    /// marked as failed, so that the next call can delete it.
    pub(crate) async fn delete(&self, project: &ProjectName, id: &str, keep: Keep) -> Result<(), Status> {
        self.parts()?;
        let record = self.find(project, id).await?;
        let catalog = &self.inner.catalog;
        if record.state != SandboxState::Stopped {
            let is_first = catalog.set_sandbox_state(id, SandboxState::Stopping, "deleted", self.now()).await?;
            if !is_first && record.state == SandboxState::Stopping {
                return Err(Failure::new(Reason::Busy, format!("sandbox {id} is being ended")).into_status());
            }
        }
        if let Err(status) = self.end_and_clear(&record, keep).await {
            if record.state != SandboxState::Stopped {
                self.mark_not_ended(&record, &status).await;
            }
            return Err(status);
        }
        catalog.remove_sandbox(id).await?;
        self.announce(events::DELETED, &SandboxRecord { state: SandboxState::Stopped, ..record }).await;
        let directory = self.directory(id)?;
        // A mount that is still there is not removed with the directory; a failure leaves only files of no use.
        let _ = tokio::task::spawn_blocking(move || remove_files(&directory)).await;
        info!(sandbox = id, "sandbox deleted");
        Ok(())
    }

    /// Ends a sandbox that is not stopped, and deletes its workspace and its home unless `keep` says that they stay.
    async fn end_and_clear(&self, record: &SandboxRecord, keep: Keep) -> Result<(), Status> {
        if record.state != SandboxState::Stopped {
            self.end(record, "deleted").await?;
        }
        let calls = self.store_calls(record).await?;
        if keep != Keep::WorkspaceAndHome && has_home(record) {
            calls.delete_home(&record.workspace).await?;
            self.remove_checkouts(record, &[creation::HOME]).await;
        }
        if keep == Keep::Nothing && owns_workspace(record) {
            match calls.delete(&record.workspace).await {
                Err(status) if status.code() != tonic::Code::NotFound => return Err(status),
                _ => self.remove_checkouts(record, &[creation::WORKSPACE]).await,
            }
        }
        Ok(())
    }

    /// Ends what a failed start has left of a sandbox that another call deletes or has deleted: that call may have ended the sandbox
    /// before its processes and mounts were there. Does nothing for a sandbox that is stopped.
    async fn end_unrecorded(&self, record: &SandboxRecord) {
        let is_living = self.inner.living.lock().contains_key(&record.id);
        let found = self.inner.catalog.sandbox(&record.id).await;
        if !is_living && matches!(&found, Ok(Some(found)) if found.state == SandboxState::Stopped) {
            return;
        }
        if let Err(status) = self.end(record, "not started").await {
            warn!(sandbox = record.id, %status, "a sandbox that was deleted while it started was not ended");
        }
        if matches!(found, Ok(None))
            && let Ok(directory) = self.directory(&record.id)
        {
            // As in a deletion, a failure leaves only files of no use.
            let _ = tokio::task::spawn_blocking(move || remove_files(&directory)).await;
        }
    }

    /// Marks a sandbox whose end failed as failed. Its processes have ended, so it does not count against the limits.
    async fn mark_not_ended(&self, record: &SandboxRecord, status: &Status) {
        let why = format!("not ended: {}", status.message());
        let marked = self.inner.catalog.set_sandbox_state(&record.id, SandboxState::Error, &why, self.now()).await;
        if let Err(error) = marked {
            warn!(sandbox = record.id, %error, "the state of a sandbox was not written");
        }
        self.note(&record.id, &why);
        self.announce_now(events::ERROR, &record.id).await;
    }

    /// Waits until the processes of a sandbox end. Marks the sandbox as failed unless the server ended it.
    async fn watch(&self, id: String, runtime: String, handle: String) {
        let Some(slot) = self.parts().ok().and_then(|parts| parts.slot(&runtime)) else { return };
        slot.runtime.ended(&handle).await;
        let is_ours = self.inner.living.lock().get(&id).is_some_and(|living| living.handle == handle);
        let why = "the processes of the sandbox ended by themselves or were killed";
        if !is_ours {
            return;
        }
        match self.inner.catalog.set_sandbox_state(&id, SandboxState::Error, why, self.now()).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => warn!(sandbox = id, %error, "the state of a sandbox was not written"),
        }
        self.note(&id, why);
        if let Ok(Some(record)) = self.inner.catalog.sandbox(&id).await {
            self.announce(events::ERROR, &record).await;
            if let Err(status) = self.end(&record, why).await {
                warn!(sandbox = id, %status, "a sandbox that ended was not cleaned up");
            }
        }
    }

    /// Announces that sandboxes expire soon, at least five minutes ahead.
    async fn warn_expiring(&self, interval: Duration) {
        let ahead = i64::try_from((WARNING + interval).as_nanos()).unwrap_or(i64::MAX);
        let soon = self.inner.catalog.expiring_sandboxes(Time(self.now().0.saturating_add(ahead))).await;
        for record in soon.unwrap_or_default() {
            if let Err(error) = self.inner.catalog.set_sandbox_warned(&record.id, record.expires).await {
                warn!(sandbox = record.id, %error, "a warning was not written");
                continue;
            }
            self.note(&record.id, "expires soon");
            self.announce(events::EXPIRING, &record).await;
        }
    }

    /// Ends expired sandboxes at an interval. Never completes on a server with sandboxes.
    pub(crate) async fn keep_expiring(&self) {
        let Some(parts) = &self.inner.parts else { return };
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.until_expiry(parts.options.expiry_interval).await) => {}
                () = self.inner.expiry_changed.notified() => {}
            }
            self.warn_expiring(parts.options.expiry_interval).await;
            self.sweep_runtimes().await;
            let expired = self.inner.catalog.expired_sandboxes(self.now()).await;
            for record in expired.unwrap_or_default() {
                self.announce(events::EXPIRED, &record).await;
                if let Err(status) = self.stop(&record, "expired; the workspace was committed and kept").await {
                    warn!(sandbox = record.id, %status, "an expired sandbox was not ended");
                }
            }
        }
    }

    /// Ends all sandboxes before the server ends, because the server provides their mounts.
    pub(crate) async fn stop_all(&self) {
        self.end_watchers();
        self.stop_living(|_| true, "the server was stopped; the workspace was committed and kept").await;
    }

    /// Ends the sandboxes of a project before it is deleted.
    pub(crate) async fn stop_project(&self, project: &ProjectName) {
        let is_wanted = |record: &SandboxRecord| record.project == *project;
        self.stop_living(is_wanted, "the project was deleted; the workspace was committed and kept").await;
    }

    async fn stop_living(&self, is_wanted: impl Fn(&SandboxRecord) -> bool, why: &str) {
        let ids: Vec<_> = self.inner.living.lock().keys().cloned().collect();
        for id in ids {
            if let Ok(Some(record)) = self.inner.catalog.sandbox(&id).await
                && is_wanted(&record)
                && let Err(status) = self.stop(&record, why).await
            {
                warn!(sandbox = id, %status, "a sandbox was not ended");
            }
        }
    }

    /// Lets the runtimes undo their changes to the machine, unless a mount still uses them. Called after the stores were closed,
    /// with their mounts.
    pub(crate) fn release_all(&self) {
        if let Some(parts) = &self.inner.parts
            && self.inner.living.lock().is_empty()
        {
            for slot in &parts.runtimes {
                slot.runtime.release(&parts.options.directory);
            }
        }
    }
}

/// Returns whether the workspace was created for the sandbox.
fn owns_workspace(record: &SandboxRecord) -> bool {
    record.config.get("ownsWorkspace").and_then(serde_json::Value::as_bool).unwrap_or(false)
}

/// Returns the metadata that the creator of a sandbox gave it.
fn metadata_of(record: &SandboxRecord) -> HashMap<String, String> {
    serde_json::from_value(record.config["metadata"].clone()).unwrap_or_default()
}

/// Returns the hosts that a sandbox may reach; empty if it has no allow-list.
fn allowed_hosts_of(record: &SandboxRecord) -> Vec<HostRule> {
    let named = record.config["allowedHosts"].as_array().map(Vec::as_slice).unwrap_or_default();
    named.iter().filter_map(|rule| rule.as_str()?.parse().ok()).collect()
}

/// Removes the directory of a sandbox, but no mount in it.
fn remove_files(directory: &std::path::Path) {
    for part in [creation::LINK, creation::FILES, creation::OUTPUT] {
        let _ = std::fs::remove_dir_all(directory.join(part));
    }
    for part in [creation::WORKSPACE, creation::HOME, creation::ROOT] {
        let _ = std::fs::remove_dir(directory.join(part));
    }
    let _ = std::fs::remove_file(directory.join(log::FILE));
    let _ = std::fs::remove_file(directory.join(recovery::VARIABLES));
    let _ = std::fs::remove_dir(directory);
}

/// Converts an error of a runtime or a link to a status.
fn sandbox_status(error: &SandboxError) -> Status {
    let reason = match error {
        SandboxError::NotIsolated { .. } => Reason::NotIsolated,
        SandboxError::NotEnforced { .. } => Reason::LimitNotEnforced,
        SandboxError::NoTemplate(_) | SandboxError::NoImage { .. } => Reason::TemplateNotFound,
        SandboxError::NotStarted(_) | SandboxError::NotConnected | SandboxError::NoPorts => Reason::SandboxNotReady,
        SandboxError::NoCommand(_) => Reason::CommandNotFound,
        SandboxError::NoTerminal(_) => Reason::PtyNotFound,
        SandboxError::TooManyTerminals(_) => Reason::PtyLimit,
        SandboxError::TooManyCommands(_) | SandboxError::TooManyConnections(_) => Reason::TooMany,
        SandboxError::PortClosed(_) => Reason::PortUnreachable,
        SandboxError::CommandFailed(_) => Reason::CommandFailed,
        SandboxError::Io { .. } => {
            // The message names paths of the host.
            warn!(%error, "a sandbox failed");
            return Failure::new(Reason::Fault, "the server could not do this; its log says why").into_status();
        }
    };
    Failure::new(reason, error.to_string()).into_status()
}
