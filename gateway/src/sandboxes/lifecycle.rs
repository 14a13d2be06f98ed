//! The life of a sandbox after its creation: its time-out, a pause, and its next start.

use std::collections::HashMap;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::{Network, SandboxState};
use tonic::Status;
use tracing::{info, warn};

use super::creation::{LIFETIME_DEFAULT_SECONDS, LIFETIME_SECONDS_MAX, NANOSECONDS, Owner, Plan, Source};
use super::recovery::{limits_of, read_variables};
use super::{Parts, Sandboxes, allowed_hosts_of, events, metadata_of};
use crate::catalog::SandboxRecord;
use crate::project::ProjectName;

const METADATA_MAX: usize = 64;
const METADATA_BYTES_MAX: usize = 16 << 10;
/// Minimum interval of the checks for expired sandboxes.
const EXPIRY_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Interval of the checks whether a sandbox was deleted while it starts.
const START_CHECK_INTERVAL: Duration = Duration::from_millis(500);
pub(super) const PAUSED: &str = "paused; the workspace was committed and kept";

fn invalid(why: impl Into<String>) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

/// Returns the status of a start during which the sandbox was deleted or stopped.
pub(super) fn cancelled() -> Status {
    Failure::new(Reason::Cancelled, "the sandbox was deleted or stopped while it started").into_status()
}

/// Checks the number and the size of the metadata of a sandbox.
pub(super) fn check_metadata(metadata: &HashMap<String, String>) -> Result<(), Status> {
    let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
    if metadata.len() > METADATA_MAX || bytes > METADATA_BYTES_MAX {
        return Err(invalid("metadata: at most 64 entries, with 16 KiB together"));
    }
    match metadata.keys().any(String::is_empty) {
        true => Err(invalid("metadata: an empty name")),
        false => Ok(()),
    }
}

impl Sandboxes {
    /// Returns all sandboxes that may have processes. Fails if the limits do not permit one more.
    pub(super) async fn others(&self, parts: &Parts, owner: &Owner) -> Result<Vec<SandboxRecord>, Status> {
        let others = self.inner.catalog.living_sandboxes().await?;
        let of_key = others.iter().filter(|other| other.key_id == owner.key_id).count();
        if of_key >= parts.options.per_key_max || others.len() >= parts.options.total_max {
            let message =
                format!("{of_key} sandboxes of this key and {} of this server run; delete some", others.len());
            return Err(Failure::new(Reason::SandboxLimit, message).into_status());
        }
        Ok(others)
    }

    /// Completes when a sandbox that was starting is in another state or has no record any more.
    pub(super) async fn left_start(&self, id: &str) {
        loop {
            tokio::time::sleep(START_CHECK_INTERVAL).await;
            match self.inner.catalog.sandbox(id).await {
                Ok(found) if found.as_ref().is_none_or(|record| record.state != SandboxState::Starting) => return,
                // A catalog that does not answer says nothing about the sandbox.
                _ => {}
            }
        }
    }

    /// Returns the time until the next check for expired sandboxes, at most `interval`.
    pub(super) async fn until_expiry(&self, interval: Duration) -> Duration {
        let next = self.inner.catalog.next_sandbox_expiry().await.ok().flatten();
        let left = next.map_or(interval, |next| {
            Duration::from_nanos(u64::try_from(next.0.saturating_sub(self.now().0)).unwrap_or(0))
        });
        left.clamp(EXPIRY_INTERVAL_MIN.min(interval), interval)
    }

    /// Sets the expiry time of a running sandbox to `seconds` from now.
    pub(super) async fn set_timeout(
        &self,
        project: &ProjectName,
        id: &str,
        seconds: i32,
    ) -> Result<SandboxRecord, Status> {
        if !(0..=LIFETIME_SECONDS_MAX).contains(&i64::from(seconds)) {
            return Err(invalid("seconds: 0 to 86400"));
        }
        self.running(project, id).await?;
        let expires = Time(self.now().0 + i64::from(seconds) * NANOSECONDS);
        self.inner.catalog.set_sandbox_expiry(id, expires).await?;
        self.inner.expiry_changed.notify_one();
        self.find(project, id).await
    }

    /// Ends a running sandbox and keeps its record, so that it can be resumed.
    pub(super) async fn pause(&self, project: &ProjectName, id: &str) -> Result<SandboxRecord, Status> {
        self.running(project, id).await?;
        let record = self.find(project, id).await?;
        self.stop(&record, PAUSED).await?;
        self.find(project, id).await
    }

    /// Starts a stopped sandbox again.
    pub(super) async fn resume_stopped(
        &self,
        owner: &Owner,
        request: &v1::ResumeSandboxRequest,
    ) -> Result<SandboxRecord, Status> {
        let lifetime_seconds = match i64::from(request.timeout_seconds) {
            0 => LIFETIME_DEFAULT_SECONDS,
            seconds @ 1..=LIFETIME_SECONDS_MAX => seconds,
            _ => return Err(invalid("timeout_seconds: 1 to 86400")),
        };
        let parts = self.parts()?;
        let runtime = self.find(&owner.project, &request.id).await?.runtime;
        let slot = parts.slot(&runtime).ok_or_else(|| {
            let message =
                format!("this server has no runtime `{runtime}` any more; see the setting `sandbox-runtimes`");
            Failure::new(Reason::Unsupported, message).into_status()
        })?;
        slot.probe().await?;
        // After a restart the server has not yet shared the directory of the mounts. This call does so.
        slot.carries_mounts(&parts.options);
        let record = self.reserve_again(parts, owner, &request.id, lifetime_seconds).await?;
        let plan = Plan {
            name: record.name.clone(),
            template: record.template.clone(),
            runtime,
            envs: read_variables(&self.directory(&record.id)?).unwrap_or_default(),
            lifetime_seconds,
            limits: limits_of(&record),
            network: record.config["network"].as_str().and_then(Network::of_word).unwrap_or(Network::None),
            is_read_only: record.config["readOnly"] == true,
            source: Source::Existing(record.workspace.clone()),
            home_from: String::new(),
            metadata: metadata_of(&record),
            allowed_hosts: allowed_hosts_of(&record),
        };
        if let Err(status) = self.begin(slot, &record, plan).await {
            warn!(sandbox = record.id, %status, "a sandbox did not start again");
            if let Err(error) = self.stop(&record, &format!("not started again: {}", status.message())).await {
                warn!(sandbox = record.id, %error, "a sandbox that did not start again was not ended");
            }
            self.end_unrecorded(&record).await;
            return Err(status);
        }
        info!(sandbox = record.id, "sandbox runs again");
        self.note(&record.id, "running again");
        self.inner.expiry_changed.notify_one();
        let record = self.find(&owner.project, &record.id).await?;
        self.announce(events::RUNNING, &record).await;
        Ok(record)
    }

    /// Marks a stopped sandbox as starting, if the limits permit one more.
    async fn reserve_again(
        &self,
        parts: &Parts,
        owner: &Owner,
        id: &str,
        lifetime_seconds: i64,
    ) -> Result<SandboxRecord, Status> {
        let _turn = parts.reserving.lock().await;
        let others = self.others(parts, owner).await?;
        let record = self.find(&owner.project, id).await?;
        let is_used = |other: &SandboxRecord| {
            other.id != record.id && other.project == record.project && other.workspace == record.workspace
        };
        if let Some(other) = others.iter().find(|other| is_used(other)) {
            let message = format!("sandbox {} works in {}", other.id, record.workspace);
            return Err(Failure::new(Reason::AlreadyExists, message).into_status());
        }
        let catalog = &self.inner.catalog;
        if !catalog.set_sandbox_state(id, SandboxState::Starting, "", self.now()).await? {
            let message = format!("sandbox {id} is not stopped; its state is `{}`", record.state);
            let failure = Failure::new(Reason::SandboxNotReady, message).with("state", record.state.word());
            return Err(failure.into_status());
        }
        catalog.set_sandbox_expiry(id, Time(self.now().0 + lifetime_seconds * NANOSECONDS)).await?;
        self.announce(events::STARTING, &record).await;
        self.find(&owner.project, id).await
    }
}
