//! The session of a command: output, settings, connection to the store, current directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use amalgam_proto::{Reason, v1};
use amalgam_server::Home;
use jiff::Timestamp;
use rustix::io::Errno;
use rustix::process::Signal;
use tonic::codegen::Bytes;

use crate::attached::{AttachedDirectory, StartDirectory, resolve_path};
use crate::config::Config;
use crate::connect::{Client, ConnectOptions, connect, connect_server, connect_socket, rest_socket, running};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::Output;
use crate::remote::Server;
use crate::text;

/// The session of a command.
pub struct Session {
    /// The output.
    pub output: Output,
    /// The settings.
    pub config: Config,
    /// Where the store of this machine is, and how to connect to it.
    pub connect: ConnectOptions,
    /// The server that the command works on; `None` for the store of this machine.
    server: Option<Server>,
    /// The current directory.
    pub cwd: PathBuf,
    /// Whether the current directory is in a mount whose process has died.
    is_in_dead_mount: bool,
    /// The directory of `-C`, if it does not exist.
    missing: Option<PathBuf>,
    /// Whether prompts are disabled.
    pub no_input: bool,
    /// The time when the command began.
    pub now: Timestamp,
    /// How Ctrl-C is handled.
    pub interrupts: Interrupts,
    client: Option<Client>,
}

/// How the command reacts to signals such as Ctrl-C.
#[derive(Clone, Debug, Default)]
pub struct Interrupts {
    are_left: Arc<AtomicBool>,
    message: Arc<OnceLock<&'static str>>,
    hint: Arc<OnceLock<&'static str>>,
    work_folder: Arc<OnceLock<PathBuf>>,
}

impl Interrupts {
    /// Sets whether Ctrl-C is left to a child, in which case this program waits until the child ends.
    pub fn leave_to_child(&self, left: bool) {
        self.are_left.store(left, Ordering::Relaxed);
    }

    /// Returns whether Ctrl-C is left to a child.
    pub fn are_left_to_child(&self) -> bool {
        self.are_left.load(Ordering::Relaxed)
    }

    /// Sets the message that replaces "interrupted", for a command that a user ends with Ctrl-C. The first one counts.
    pub fn say_instead(&self, message: &'static str) {
        self.message.get_or_init(|| message);
    }

    /// Sets the hint that is printed when the user interrupts the command. The first one counts.
    pub fn say(&self, hint: &'static str) {
        self.hint.get_or_init(|| hint);
    }

    /// Sets the folder with forks that is removed when the command is interrupted. The first one counts.
    pub fn clean_up(&self, folder: &Path) {
        self.work_folder.get_or_init(|| folder.to_owned());
    }

    /// Returns the folder to remove when the command is interrupted, if there is one.
    pub fn work_folder(&self) -> Option<&Path> {
        self.work_folder.get().map(PathBuf::as_path)
    }

    /// Returns the error for an interrupt by a signal.
    pub fn failure(&self, signal: Signal) -> CliError {
        let code = u8::try_from(128 + signal.as_raw()).unwrap_or(Exit::INTERRUPTED.0);
        let message = self.message.get().copied().unwrap_or("interrupted");
        let error = CliError::new(Exit(code), "INTERRUPTED", message);
        match self.hint.get() {
            Some(hint) => error.hint(*hint),
            None => error,
        }
    }
}

impl Session {
    /// Creates a session that has not connected to the store yet.
    pub fn new(
        output: Output,
        config: Config,
        connect: ConnectOptions,
        server: Option<Server>,
        standing: StartDirectory,
        no_input: bool,
    ) -> Self {
        let (now, interrupts) = (Timestamp::now(), Interrupts::default());
        let StartDirectory { cwd, is_dead: is_in_dead_mount, missing } = standing;
        Self {
            output,
            config,
            connect,
            server,
            cwd,
            is_in_dead_mount,
            missing,
            no_input,
            now,
            interrupts,
            client: None,
        }
    }

    /// Refuses a directory of `-C` that does not exist. Does not look for workspaces.
    pub fn refuse_missing_directory(&self) -> Result<(), CliError> {
        match &self.missing {
            Some(missing) => Err(CliError::machine(missing.display(), &Errno::NOENT.into())),
            None => Ok(()),
        }
    }

    /// Refuses a directory of `-C` that does not exist. Where it is a lost directory of a workspace, the error names the command
    /// that writes it again.
    pub async fn refuse_lost_directory(&mut self) -> Result<(), CliError> {
        let Err(missing) = self.refuse_missing_directory() else { return Ok(()) };
        // `missing/..` does not exist either, and is no lost directory.
        if self.server.is_some() || self.cwd.exists() {
            return Err(missing);
        }
        // Without a store, or with one that cannot be reached, the missing directory is the better error.
        match self.attached_directory_if_any().await {
            Ok(Some(place)) if !place.directory.problem.is_empty() => Err(CliError::refused(place.directory.problem)),
            _ => Err(missing),
        }
    }

    /// Restores the mount that the working directory is in if its background process has died: connects to the store, which starts
    /// a process that mounts it again, and enters the directory.
    pub async fn enter_dead_mount(&mut self) -> Result<(), CliError> {
        if !self.is_in_dead_mount {
            return Ok(());
        }
        let shown = self.cwd.display().to_string();
        if self.connect.in_process {
            return Err(CliError::refused(format!("{shown} is in a mount whose background process has died"))
                .hint("run this without --in-process, and the mount is made again"));
        }
        // A new process mounts again when it starts. One that runs already has done so.
        let place = self.attached_directory_if_any().await?;
        let entered = std::env::set_current_dir(&self.cwd);
        match (place, entered) {
            (Some(_), Ok(())) => self.output.remark(format!(
                "the background process had died; {shown} is mounted again, with what was not committed (`cd .` takes a shell in there along)"
            )),
            (Some(_), Err(error)) => Err(CliError::machine(shown, &error)),
            // It was not mounted again, or it is the mount of a snapshot. A command that needs a workspace fails with the reason.
            (None, _) => Ok(()),
        }
    }

    /// Returns the home of the store.
    pub fn home(&self) -> &Path {
        &self.connect.home
    }

    /// Returns the server that the command works on, or `None` for the store of this machine.
    pub fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    /// Removes the server from the session, which then works on the store of this machine. Returns the server.
    pub fn take_server(&mut self) -> Option<Server> {
        self.client = None;
        self.server.take()
    }

    /// Describes the location of the snapshots: the home of the store, or the URL of the server.
    pub fn store_words(&self) -> String {
        self.server.as_ref().map_or_else(|| self.home().display().to_string(), |server| server.url.to_string())
    }

    /// Refuses an action that only the store of this machine supports. `instead` is the hint for the user.
    pub fn refuse_server(&self, what: &str, instead: &str) -> Result<(), CliError> {
        let Some(server) = &self.server else { return Ok(()) };
        let message = format!("{what} works on this machine, and {} is a server", server.url);
        let error = CliError::new(Exit::ERROR, Reason::LocalOnly.word(), message);
        Err(error.hint(format!("{instead}; --server local uses the store of this machine")))
    }

    /// Connects to the process of the store, or to the server. Fails if there is no store.
    pub async fn client(&mut self) -> Result<Client, CliError> {
        if self.client.is_none() {
            self.client = Some(match &self.server {
                Some(server) => connect_server(server, &self.connect.actor).await?,
                None => connect(&self.connect).await?,
            });
        }
        Ok(self.client.clone().expect("it was put there"))
    }

    /// Connects to the sandbox service of the server, or of the background process of the store.
    pub async fn sandbox_client(&mut self) -> Result<Client, CliError> {
        if self.server.is_some() {
            return self.client().await;
        }
        if self.connect.in_process {
            let message = "sandboxes outlive a command, so they need the background process";
            return Err(CliError::usage(message).hint("leave --in-process out"));
        }
        if !cfg!(feature = "network") {
            return Err(CliError::without_network("sandbox"));
        }
        // Starts the process if it does not run.
        self.client().await?;
        self.rest_client().await
    }

    /// Connects to the REST socket of the background process of the store, which runs.
    pub async fn rest_client(&self) -> Result<Client, CliError> {
        let socket = Home::new(self.home()).listening_at();
        let found = match socket {
            Some(socket) => connect_socket(&rest_socket(&socket), &self.connect.actor).await,
            None => None,
        };
        found.ok_or_else(|| {
            let message = "the background process does not answer on its socket for REST";
            CliError::new(Exit::ERROR, "UNAVAILABLE", message)
                .hint("`amalgam logs` may say why; `amalgam stop` ends one that a program without network started")
        })
    }

    /// Connects to the process of the store, and creates the store if there is none.
    pub async fn client_of_new_store(&mut self) -> Result<Client, CliError> {
        self.connect.create = true;
        self.client().await
    }

    /// Drops the connection, so that the next call connects again: the process may have ended.
    pub fn forget_client(&mut self) {
        self.client = None;
    }

    /// Connects to the process of the store if it runs.
    pub async fn client_if_running(&self) -> Option<Client> {
        running(&self.connect).await
    }

    /// Returns whether the store exists.
    pub fn has_store(&self) -> bool {
        Home::new(self.home()).exists()
    }

    /// Returns the attached directory around the current one. Fails if there is none.
    pub async fn attached_directory(&mut self) -> Result<AttachedDirectory, CliError> {
        if let Some(server) = &self.server {
            let message = format!("no directory of this machine belongs to a workspace of {}", server.url);
            let error = CliError::new(Exit::ERROR, Reason::NoDirectory.word(), message);
            return Err(error.hint("name a workspace, as in `amalgam log main` or `amalgam fork --from main`"));
        }
        let mut client = self.client().await?;
        let path = Bytes::copy_from_slice(self.cwd.as_os_str().as_bytes());
        let found = client.directories.find_directory(v1::FindDirectoryRequest { path }).await?.into_inner();
        let directory = found.directory.ok_or_else(|| missing_field("directory"))?;
        let workspace = found.workspace.ok_or_else(|| missing_field("workspace"))?;
        Ok(AttachedDirectory { directory, workspace })
    }

    /// Returns the live tree of a workspace: its directory, or its view if it is mounted or exported. Without a name, the attached
    /// directory around the current one.
    pub async fn live_tree(&mut self, workspace: Option<&str>) -> Result<AttachedDirectory, CliError> {
        let Some(name) = workspace else { return self.attached_directory().await };
        self.refuse_server("the live tree of a workspace", "`amalgam commit -w` and `amalgam restore -w` reach it")?;
        let mut client = self.client().await?;
        let request = v1::GetWorkspaceRequest { name: workspace_name(name) };
        let found = client.workspaces.get_workspace(request).await?.into_inner();
        let workspace = found.workspace.ok_or_else(|| missing_field("workspace"))?;
        let (name, path) = match workspace.directories.first() {
            Some(directory) => (directory.name.clone(), directory.path.clone()),
            None => (workspace.live.clone(), workspace.mounts.first().cloned().unwrap_or_default()),
        };
        if name.is_empty() {
            let message = format!(
                "workspace {} has no directory, and is neither mounted nor exported",
                text::id(&workspace.name)
            );
            return Err(CliError::new(Exit::ERROR, Reason::NoDirectory.word(), message));
        }
        let directory = v1::Directory { name, path, workspace: workspace.name.clone(), ..Default::default() };
        Ok(AttachedDirectory { directory, workspace })
    }

    /// Returns the attached directory around the current one, if there is one.
    pub async fn attached_directory_if_any(&mut self) -> Result<Option<AttachedDirectory>, CliError> {
        match self.attached_directory().await {
            Ok(place) => Ok(Some(place)),
            Err(error) if error.is(Reason::NoDirectory) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Resolves an argument to an absolute path on the host, which need not exist.
    pub fn host_path(&self, given: &OsStr) -> PathBuf {
        resolve_path(&self.cwd.join(given))
    }
}

/// Returns the error for a response without a required field.
pub fn missing_field(what: &str) -> CliError {
    let message = format!("the background process answered without a {what}");
    CliError::new(Exit::ERROR, "UNAVAILABLE", message).hint("`amalgam stop`, then try again")
}

/// Returns the resource name of a workspace; empty for an empty name.
pub fn workspace_name(id: &str) -> String {
    if id.is_empty() { String::new() } else { format!("workspaces/{id}") }
}

/// Returns the resource name of the workspace that `@` stands for; empty without one.
pub fn current_workspace(place: Option<&AttachedDirectory>) -> String {
    place.map(|place| place.workspace.name.clone()).unwrap_or_default()
}

/// Returns the state that a revision names.
pub fn revision_state(text: &str) -> v1::State {
    v1::State { state: Some(v1::state::State::Revision(text.to_owned())) }
}

/// Returns the current state of a directory.
pub fn directory_state(place: &AttachedDirectory) -> v1::State {
    v1::State { state: Some(v1::state::State::Directory(place.directory.name.clone())) }
}

/// Returns the state without files.
pub fn empty_state() -> v1::State {
    v1::State { state: Some(v1::state::State::Empty(true)) }
}
