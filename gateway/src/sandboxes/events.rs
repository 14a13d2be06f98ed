//! Events of sandboxes, for webhooks and for those who watch sandboxes. They are queued in the catalog, like those of the log, so that
//! a restart loses none.

use amalgam_sandbox::Link;
use serde_json::{Value, json};
use tracing::warn;

use super::Sandboxes;
use super::watch::stored;
use crate::audit::timestamp;
use crate::catalog::SandboxRecord;

/// Its processes are being started.
pub(super) const STARTING: &str = "sandbox.starting";
/// It can be used; the event has all of it.
pub(super) const CREATED: &str = "sandbox.created";
/// Its agent has registered.
pub(super) const RUNNING: &str = "sandbox.running";
/// Its time is up in five minutes.
pub(super) const EXPIRING: &str = "sandbox.expiring";
/// Its time is up.
pub(super) const EXPIRED: &str = "sandbox.expired";
/// It was ended and forgotten.
pub(super) const DELETED: &str = "sandbox.deleted";
/// It did not start, or its processes are gone.
pub(super) const ERROR: &str = "sandbox.error";
const CONNECTED: &str = "agent.connected";
const DISCONNECTED: &str = "agent.disconnected";

impl Sandboxes {
    /// Queues an event for the webhooks of the sandbox's project, and tells those who watch its sandboxes.
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

    /// Queues an event for a sandbox as the catalog has it now.
    pub(super) async fn announce_now(&self, kind: &str, id: &str) {
        match self.inner.catalog.sandbox(id).await {
            Ok(Some(record)) => self.announce(kind, &record).await,
            Ok(None) => {}
            Err(error) => warn!(sandbox = id, kind, %error, "an event of a sandbox was not queued"),
        }
    }

    /// Tells when the agent of a sandbox comes and goes, until the sandbox ends.
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
