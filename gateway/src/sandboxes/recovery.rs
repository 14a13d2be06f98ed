//! After a restart: takes over sandboxes whose processes still run, marks the others as failed, and removes leftovers.
//!
//! The mounts of workspaces end with a server that is killed. Where the runtime carries mounts, the next server mounts them again
//! and running sandboxes see them; files that were open in them are lost. Otherwise the sandbox is ended, and its files are
//! committed.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use amalgam_sandbox::{Limits, SandboxState};
use serde_json::Value;
use tonic::Status;
use tracing::{info, warn};

use super::access::Access;
use super::creation::READY_WITHIN;
use super::home::mounts_of;
use super::{Living, Sandboxes, events, remove_files, sandbox_status};
use crate::catalog::SandboxRecord;

/// The file with the environment variables of a sandbox, in its directory.
pub(super) const VARIABLES: &str = "variables.json";

impl Sandboxes {
    /// Takes over the sandboxes of an earlier process, or ends those that cannot be taken over.
    pub(crate) async fn recover(&self) {
        if self.inner.parts.is_none() {
            return;
        }
        let left = match self.inner.catalog.living_sandboxes().await {
            Ok(left) => left,
            Err(error) => return warn!(%error, "the sandboxes of an earlier process are not known"),
        };
        for record in left {
            let resumed = match record.state {
                SandboxState::Running => self.resume(&record).await,
                state => Err(Status::aborted(format!("it was {state}"))),
            };
            match resumed {
                Ok(()) => {
                    info!(sandbox = record.id, "sandbox taken over");
                    self.note(&record.id, "the server was restarted, and took the sandbox over");
                }
                Err(status) => {
                    info!(sandbox = record.id, %status, "a sandbox of an earlier process cannot be taken over");
                    self.lose(&record, "the server was restarted; the workspace was committed and kept").await;
                }
            }
        }
        self.remove_leftovers().await;
        self.sweep_runtimes().await;
        if let Err(status) = self.sweep_homes().await {
            warn!(%status, "homes of sandboxes that are gone were not looked for");
        }
    }

    /// Takes over a sandbox whose processes still run.
    async fn resume(&self, record: &SandboxRecord) -> Result<(), Status> {
        let gone = |why: &str| Status::aborted(why.to_owned());
        let runtime = &self.parts()?.slot(&record.runtime).ok_or_else(|| gone("its runtime is off"))?.runtime;
        if !runtime.is_alive(&record.handle) {
            return Err(gone("its processes are gone"));
        }
        if record.config["outlivesServer"] != true {
            return Err(gone("mounts do not reach it"));
        }
        // Opening the store restores the mounts of the earlier process, with uncommitted work.
        let calls = self.store_calls(record).await?;
        let directory = self.directory(&record.id)?;
        let disk_bytes = limits_of(record).disk_bytes;
        // A checkout does not depend on the server.
        let mounts = if Access::of_record(record) == Access::Fuse { mounts_of(record) } else { Vec::new() };
        for (place, name, part) in mounts {
            if !runtime.sees_mount(&record.handle, place) {
                // The store has not mounted it again, or the mount did not reach the sandbox.
                let _ = calls.unmount(&directory.join(part)).await;
                calls.mount(&name, &directory.join(part), runtime.mount_access(true), disk_bytes).await?;
            }
            if !runtime.sees_mount(&record.handle, place) {
                return Err(gone("it does not see its workspace or its home"));
            }
        }
        let link =
            self.listen(record, &directory, record.credential.clone()).map_err(|error| sandbox_status(&error))?;
        let envs = read_variables(&directory).unwrap_or_default();
        let living = Living { link: link.clone(), handle: record.handle.clone(), envs, limits: limits_of(record) };
        self.inner.living.lock().insert(record.id.clone(), living);
        self.spawn_watch(record, record.handle.clone());
        let (sandboxes, record) = (self.clone(), record.clone());
        tokio::spawn(async move {
            if tokio::time::timeout(READY_WITHIN, link.connected()).await.is_err() {
                let why =
                    "the agent did not come back after a restart of the server; the workspace was committed and kept";
                return sandboxes.lose(&record, why).await;
            }
            sandboxes.announce_agent(record.id, link).await;
        });
        Ok(())
    }

    /// Ends a sandbox that cannot be used any more, and marks it as failed.
    async fn lose(&self, record: &SandboxRecord, why: &str) {
        if let Err(status) = self.end(record, why).await {
            warn!(sandbox = record.id, %status, "a sandbox of an earlier process was not ended");
        }
        let marked = self.inner.catalog.set_sandbox_state(&record.id, SandboxState::Error, why, self.now()).await;
        if let Err(error) = marked {
            warn!(sandbox = record.id, %error, "the state of a sandbox was not written");
        }
        self.note(&record.id, why);
        self.announce_now(events::ERROR, &record.id).await;
    }

    /// Removes the directories of sandboxes that are not in the catalog.
    async fn remove_leftovers(&self) {
        let Ok(parts) = self.parts() else { return };
        let Ok(entries) = std::fs::read_dir(&parts.options.directory) else { return };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut unknown = HashSet::new();
        for name in names.filter(|name| name.starts_with("sbx-")) {
            if matches!(self.inner.catalog.sandbox(&name).await, Ok(None)) {
                unknown.insert(name);
            }
        }
        for name in unknown {
            info!(sandbox = name, "the directory of an unknown sandbox is removed");
            remove_files(&parts.options.directory.join(name));
        }
    }
}

/// Stores the environment variables of a sandbox for the next server. They may be secret, so they are in a file and not in the
/// catalog.
pub(super) fn write_variables(directory: &Path, envs: &HashMap<String, String>) -> io::Result<()> {
    let path = directory.join(VARIABLES);
    let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(serde_json::json!(envs).to_string().as_bytes())
}

pub(super) fn read_variables(directory: &Path) -> Option<HashMap<String, String>> {
    serde_json::from_slice(&std::fs::read(directory.join(VARIABLES)).ok()?).ok()
}

/// Returns the limits in the record of a sandbox, with defaults for missing ones.
pub(super) fn limits_of(record: &SandboxRecord) -> Limits {
    let all = record.config["limits"].as_array().map(Vec::as_slice).unwrap_or_default();
    let value = |name: &str| all.iter().find(|one| one["limit"] == name).and_then(|one| one["value"].as_str());
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    let default = Limits::default();
    Limits {
        cpus: value("cpu").and_then(|text| text.parse().ok()).unwrap_or(default.cpus),
        memory_bytes: number("memory").unwrap_or(default.memory_bytes),
        pids: number("pids").unwrap_or(default.pids),
        disk_bytes: number("disk").unwrap_or(default.disk_bytes),
        is_best_effort: record.config["bestEffort"] == Value::Bool(true),
        ..default
    }
}
