//! The interface of runtimes, which start and end sandboxes.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::Result;
use crate::limits::{Enforced, Limits};
use crate::secret::Secret;

/// The file with the agent's secret, in the directory of its link.
const SECRET_FILE: &str = "secret";
/// The home of the sandbox's user.
pub(crate) const HOME: &str = "/sandbox";
/// The directory in the home for temporary files. The local runtime shows it at `/tmp`.
pub const TEMPORARY_DIRECTORY: &str = ".tmp";

/// Starts and ends sandboxes.
#[tonic::async_trait]
pub trait Runtime: Send + Sync {
    /// Returns the name of the runtime in the API.
    fn name(&self) -> &'static str;

    /// Checks that sandboxes can be started here.
    ///
    /// # Errors
    /// Names the capability that the machine lacks, and how to get it.
    async fn probe(&self) -> Result<()>;

    /// Lists the templates that sandboxes can be started from.
    async fn templates(&self) -> Vec<Template>;

    /// Returns whether sandboxes can be started from a template of this name.
    ///
    /// # Errors
    /// The runtime cannot determine it.
    async fn has_template(&self, name: &str) -> Result<bool>;

    /// Returns how the workspace has to be mounted so that the user of a sandbox can access it.
    fn mount_access(&self, _is_mounted_later: bool) -> MountAccess {
        MountAccess::default()
    }

    /// Checks limits and returns what enforces each of them.
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

    /// Returns the last log lines of the agent of a sandbox that did not start. `files` is the directory of the runtime.
    async fn last_words(&self, handle: &str, files: &Path) -> String;

    /// Lists the resources that the runtime holds for sandboxes of this server, if resources of ended sandboxes may be among them.
    async fn resources(&self) -> Vec<Resource> {
        Vec::new()
    }

    /// Removes a resource. If that fails, the next call of [`Runtime::resources`] lists it again.
    async fn remove_resource(&self, _resource: &Resource) {}

    /// Lets the next call of [`Runtime::resources`] list all resources again, because the listed ones were not compared with the
    /// sandboxes.
    fn keep_resources(&self) {}

    /// Returns whether mounts below a directory reach sandboxes that already run. If they do, a sandbox outlives its server: the
    /// next server mounts the workspace again.
    fn carries_mounts(&self, directory: &Path) -> bool;

    /// Reverts [`Runtime::carries_mounts`] when no sandbox is left.
    fn release(&self, directory: &Path);

    /// Returns whether a sandbox sees the mount of its workspace or its home.
    fn sees_mount(&self, handle: &str, place: MountPlace) -> bool;

    /// Returns whether a sandbox has processes.
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
    /// A network of containers that the operator has chosen.
    Bridge,
}

impl Network {
    /// Returns the name of the network in the API.
    pub fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Host => "host",
            Self::Bridge => "bridge",
        }
    }

    /// Returns the network with this name in the API; `None` if there is none.
    pub fn of_word(word: &str) -> Option<Self> {
        [Self::None, Self::Host, Self::Bridge].into_iter().find(|network| network.word() == word)
    }
}

/// A place in a sandbox where the server mounts a workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountPlace {
    /// The workspace that the sandbox works in.
    Workspace,
    /// The hidden workspace with the home and `/tmp`.
    Home,
}

impl MountPlace {
    /// Returns its path in the sandbox.
    pub fn path(self) -> &'static str {
        match self {
            Self::Workspace => "/workspace",
            Self::Home => HOME,
        }
    }
}

/// How a workspace is mounted for a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountAccess {
    /// Whether other users than the server's may enter.
    pub allows_others: bool,
    /// The user and the group that are shown as the owner in place of the server's.
    pub shown_owner: Option<(u32, u32)>,
}

/// Callback that reports the slow parts of a start.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(&str) + Send + Sync>);

impl Progress {
    /// Reports one part.
    pub fn tell(&self, what: &str) {
        (self.0)(what);
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress(..)")
    }
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
    /// The directory to show as the home.
    pub home: PathBuf,
    /// Whether the workspace is shown for reading only.
    pub is_read_only: bool,
    /// Whether workspace and home are mounted at their directories after the start, by a runtime that carries mounts. Until then the sandbox
    /// sees empty directories, for reading only.
    pub is_mounted_later: bool,
    /// The secret that the agent registers with.
    pub secret: Secret,
    /// Its network.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
    /// Receives reports of the slow parts of the start.
    pub progress: Progress,
}

impl StartSpec {
    /// Writes the secret for the agent, for the server's user only.
    pub(crate) fn write_secret(&self) -> io::Result<()> {
        let path = self.secret_file();
        let mut file = std::fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(self.secret.reveal().as_bytes())
    }

    /// Returns the path of the file with the agent's secret.
    pub(crate) fn secret_file(&self) -> PathBuf {
        self.link.join(SECRET_FILE)
    }
}

/// A sandbox that was started.
#[derive(Clone, Debug)]
pub struct Started {
    /// The name by which the runtime finds it again, after a restart too.
    pub handle: String,
    /// The mechanisms that enforce its limits.
    pub enforced: Vec<Enforced>,
}

/// Something that a runtime holds for a sandbox, such as a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The id of the sandbox.
    pub sandbox: String,
    /// The name of the resource in the runtime.
    pub name: String,
}

/// A template: the root directory that a sandbox is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// Its name.
    pub name: String,
    /// A text about its contents.
    pub description: String,
    /// Words to find it by.
    pub tags: Vec<String>,
}
