//! The runtimes of the server, and which one starts a sandbox.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use amalgam_proto::{Failure, Reason};
use amalgam_sandbox::{DockerOptions, DockerRuntime, LocalOptions, LocalRuntime, Runtime, SandboxError};
use tokio::sync::OnceCell;
use tonic::Status;
use tracing::warn;

use super::workspace::StoreCalls;
use super::{Parts, SandboxOptions, Sandboxes, sandbox_status};

/// A runtime that the server uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// Namespaces on this machine, by bubblewrap.
    Local,
    /// Containers of a Docker engine.
    Docker(DockerSettings),
}

/// How containers are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerSettings {
    /// The Unix socket of the engine.
    pub socket: PathBuf,
    /// The Docker network of sandboxes that request `bridge`. Without it, such requests are refused.
    pub network: Option<String>,
    /// Whether images that the engine does not have are pulled.
    pub pulls: bool,
}

/// A runtime, with the cached results of its checks.
pub(super) struct RuntimeSlot {
    pub(super) runtime: Arc<dyn Runtime>,
    /// Set when the runtime was found to work.
    probed: OnceCell<()>,
    /// Whether mounts reach running sandboxes, so that these can outlive a server that is killed.
    carries_mounts: OnceLock<bool>,
}

impl RuntimeSlot {
    pub(super) fn new(choice: &RuntimeChoice, options: &SandboxOptions) -> Self {
        let agent = options.agent.clone();
        let runtime: Arc<dyn Runtime> = match choice {
            RuntimeChoice::Local => {
                let SandboxOptions { allows_host_network, has_strict_landlock, .. } = *options;
                Arc::new(LocalRuntime::new(LocalOptions { agent, allows_host_network, has_strict_landlock }))
            }
            RuntimeChoice::Docker(settings) => Arc::new(DockerRuntime::new(DockerOptions {
                agent,
                socket: settings.socket.clone(),
                network: settings.network.clone(),
                pulls: settings.pulls,
                directory: options.directory.clone(),
            })),
        };
        Self { runtime, probed: OnceCell::new(), carries_mounts: OnceLock::new() }
    }

    /// Checks that the runtime works. A success is cached.
    pub(super) async fn probe(&self) -> Result<(), Status> {
        let probed = self.probed.get_or_try_init(|| self.runtime.probe()).await;
        probed.map(drop).map_err(|error| sandbox_status(&error))
    }

    /// Returns whether new mounts below the directory of sandboxes reach sandboxes that already run. The result is cached.
    pub(super) fn carries_mounts(&self, options: &SandboxOptions) -> bool {
        let directory = &options.directory;
        *self
            .carries_mounts
            .get_or_init(|| std::fs::create_dir_all(directory).is_ok() && self.runtime.carries_mounts(directory))
    }
}

/// The runtime of a sandbox, and the revision of its root directory if the template is a snapshot.
pub(super) struct Choice<'a> {
    pub(super) slot: &'a RuntimeSlot,
    pub(super) root: Option<String>,
}

impl Parts {
    /// Returns the runtime with a name, or `None` if the server does not have it.
    pub(super) fn slot(&self, name: &str) -> Option<&RuntimeSlot> {
        self.runtimes.iter().find(|slot| slot.runtime.name() == name)
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.runtimes.iter().map(|slot| format!("`{}`", slot.runtime.name())).collect();
        names.join(" and ")
    }
}

impl Sandboxes {
    /// Chooses the runtime for a template: the one with the name `name`, or the first one that has the template if `name` is empty.
    pub(super) async fn choose<'a>(
        &self,
        parts: &'a Parts,
        calls: &StoreCalls,
        name: &str,
        template: &str,
    ) -> Result<Choice<'a>, Status> {
        if !name.is_empty() && parts.slot(name).is_none() {
            let message = format!("runtime: this server has {} only", parts.names());
            return Err(Failure::new(Reason::Invalid, message).into_status());
        }
        let mut failed = None;
        for slot in parts.runtimes.iter().filter(|slot| name.is_empty() || slot.runtime.name() == name) {
            match slot.runtime.has_template(template).await {
                Ok(true) => return Ok(Choice { slot, root: None }),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
            if slot.runtime.name() == LOCAL
                && let Some(root) = self.root_of(calls, template).await?
            {
                return Ok(Choice { slot, root: Some(root) });
            }
        }
        let unknown = || SandboxError::NoTemplate(template.to_owned());
        Err(sandbox_status(&failed.unwrap_or_else(unknown)))
    }

    /// Lets the runtimes remove their resources of sandboxes that are not alive in the catalog.
    pub(super) async fn sweep_runtimes(&self) {
        let Ok(parts) = self.parts() else { return };
        for slot in &parts.runtimes {
            let runtime = &slot.runtime;
            // Listed before the records are read: a sandbox that is created meanwhile is not in the list, or has its record.
            let resources = runtime.resources().await;
            if resources.is_empty() {
                continue;
            }
            let living: HashSet<String> = match self.inner.catalog.living_sandboxes().await {
                Ok(living) => living.into_iter().map(|record| record.id).collect(),
                Err(error) => {
                    warn!(%error, "the living sandboxes are not known");
                    runtime.keep_resources();
                    continue;
                }
            };
            for resource in resources.iter().filter(|resource| !living.contains(&resource.sandbox)) {
                runtime.remove_resource(resource).await;
            }
        }
    }
}

/// The runtime that starts sandboxes from snapshots of the store.
const LOCAL: &str = "local";
