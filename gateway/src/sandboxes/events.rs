//! Events of sandboxes, for webhooks and for clients that watch sandboxes. They are queued in the catalog, like those of the
//! operation log, so that a restart loses none.

use amalgam_sandbox::Link;
use serde_json::{Value, json};
use tracing::warn;

use super::Sandboxes;
use super::watch::stored;
use crate::audit::timestamp;
use crate::catalog::SandboxRecord;

/// The processes of the sandbox are being started.
pub(super) const STARTING: &str = "sandbox.starting";
/// The sandbox can be used.
pub(super) const CREATED: &str = "sandbox.created";
/// The agent of the sandbox has registered.
pub(super) const RUNNING: &str = "sandbox.running";
/// The sandbox expires in about five minutes.
pub(super) const EXPIRING: &str = "sandbox.expiring";
/// The sandbox has expired.
pub(super) const EXPIRED: &str = "sandbox.expired";
/// The sandbox was ended, and its record deleted.
pub(super) const DELETED: &str = "sandbox.deleted";
/// The sandbox did not start, or its processes ended by themselves.
pub(super) const ERROR: &str = "sandbox.error";
const CONNECTED: &str = "agent.connected";
const DISCONNECTED: &str = "agent.disconnected";

impl Sandboxes {
    /// Queues an event for the webhooks of the sandbox's project, and wakes the watch streams.
    pub(super) async fn announce(&self, kind: &str, record: &SandboxRecord) {
        let (catalog, data, now) = (&self.inner.catalog, data(record), self.now());
        let stored = stored(record, &data);
        let logged = catalog.add_sandbox_event(&record.project, kind, &record.id, &stored, now).await;
        self.wake_watchers();
        let queued = catalog.queue_sandbox_event(kind, record, &data, now).await;
        if let Err(error) = logged.and(queued) {
            warn!(sandbox = record.id, kind, %error, "an event of a sandbox was not queued");
        }
    }

    /// Queues an event with the present record of a sandbox.
    pub(super) async fn announce_now(&self, kind: &str, id: &str) {
        match self.inner.catalog.sandbox(id).await {
            Ok(Some(record)) => self.announce(kind, &record).await,
            Ok(None) => {}
            Err(error) => warn!(sandbox = id, kind, %error, "an event of a sandbox was not queued"),
        }
    }

    /// Announces each connect and disconnect of the agent of a sandbox, until the sandbox ends.
    pub(super) async fn announce_agent(&self, id: String, link: Link) {
        let mut changes = link.connection_changes();
        loop {
            let is_connected = *changes.borrow_and_update();
            let is_ours = self.inner.living.lock().get(&id).is_some_and(|living| living.link.is(&link));
            if !is_ours {
                return;
            }
            self.announce_now(if is_connected { CONNECTED } else { DISCONNECTED }, &id).await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

fn data(record: &SandboxRecord) -> Value {
    json!({
        "sandboxId": record.id,
        "name": record.name,
        "state": record.state.word(),
        "reason": record.reason,
        "template": record.template,
        "runtime": record.runtime,
        "workspace": record.workspace,
        "project": record.project.as_str(),
        "actor": record.agent,
        "createdAt": timestamp(record.created),
        "expiresAt": timestamp(record.expires),
    })
}
