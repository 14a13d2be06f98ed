//! What starts and ends sandboxes.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::limits::{Enforced, Limits};
use crate::secret::Secret;

/// Starts and ends sandboxes.
#[tonic::async_trait]
pub trait Runtime: Send + Sync {
    /// Its name in the API.
    fn name(&self) -> &'static str;

    /// Checks that sandboxes can be started here.
    ///
    /// # Errors
    /// Says what the machine lacks and how to get it.
    async fn probe(&self) -> Result<()>;

    /// The templates that sandboxes can be started from.
    async fn templates(&self) -> Vec<Template>;

    /// Checks limits and says what enforces each.
    ///
    /// # Errors
    /// A limit was asked for that nothing enforces.
    fn enforce(&self, limits: &Limits) -> Result<Vec<Enforced>>;

    /// Starts a sandbox. Its agent dials the socket of the link by itself.
    ///
    /// # Errors
    /// The template is not known, a limit cannot be enforced, or the machine failed.
    async fn start(&self, spec: &StartSpec) -> Result<Started>;

    /// Ends all processes of a sandbox and frees what the runtime holds for it. A sandbox that is gone is no error.
    async fn stop(&self, id: &str, handle: &str);

    /// Whether mounts below a directory reach sandboxes that run already. Then a sandbox outlives its server: the next one mounts the
    /// workspace again.
    fn carries_mounts(&self, directory: &Path) -> bool;

    /// Takes back what [`Runtime::carries_mounts`] did, when no sandbox is left.
    fn release(&self, directory: &Path);

    /// Whether a sandbox sees its workspace.
    fn sees_workspace(&self, handle: &str) -> bool;

    /// Whether a sandbox has processes.
    fn is_alive(&self, handle: &str) -> bool;

    /// Completes when the processes of a sandbox are gone.
    async fn ended(&self, handle: &str);
}

/// The network of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Loopback only.
    None,
    /// The network of the host.
    Host,
}

/// A sandbox to be started.
#[derive(Clone, Debug)]
pub struct StartSpec {
    /// Its id.
    pub id: String,
    /// Its template.
    pub template: String,
    /// The directory with the socket of its link. It is shown to the sandbox.
    pub link: PathBuf,
    /// The root directory, for a template that is one. The sandbox sees it for reading only.
    pub root: Option<PathBuf>,
    /// A directory for files of the runtime.
    pub files: PathBuf,
    /// The directory to show at `/workspace`.
    pub workspace: PathBuf,
    /// Whether the workspace is shown for reading only.
    pub is_read_only: bool,
    /// Whether the workspace is mounted at its directory after the start, by a runtime that carries mounts. Until then the sandbox sees an
    /// empty directory, for reading only.
    pub is_mounted_later: bool,
    /// What the agent registers with.
    pub secret: Secret,
    /// Its network.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
}

/// A sandbox that was started.
#[derive(Clone, Debug)]
pub struct Started {
    /// The name by which the runtime finds it again, after a restart too.
    pub handle: String,
    /// What enforces its limits.
    pub enforced: Vec<Enforced>,
}

/// What sandboxes can be started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// What it has.
    pub description: String,
    /// Words to find it by.
    pub tags: Vec<String>,
}
