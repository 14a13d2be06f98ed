//! Sandboxes in containers of a Docker engine on this machine.
//!
//! Any image is a template: the agent, a static program, is mounted into the container and is its first process. The root directory
//! is read-only, the workspace and the home are mounts, and `/tmp` and `/dev/shm` are in memory. The user is not root, and has no
//! capability and gets none.
//!
//! The engine has to run on the same machine and see the same processes and directories: the workspace is a mount of the host.

mod container;
mod image;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ImageConfig};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, ListContainersOptionsBuilder, ListImagesOptions, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use data_encoding::HEXLOWER;
use rustix::process::{Signal, kill_process};
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;
use tokio_stream::StreamExt as _;
use tracing::{info, warn};

use crate::error::{Result, SandboxError};
use crate::limits::{Enforced, Limits, Means};
use crate::process;
use crate::propagation;
use crate::runtime::{MountAccess, MountPlace, Resource, Runtime, StartSpec, Started, Template};
use container::{Common, SANDBOX_LABEL, SERVER_LABEL};

/// How long the engine may take to answer a call. It is slow while many containers start.
const CALL_TIMEOUT_SECONDS: u64 = 60;
/// How long the log of a container may take.
const LOG_WITHIN: Duration = Duration::from_secs(2);
/// How long killed processes may take to go.
const STOP_WITHIN: Duration = Duration::from_secs(10);
/// The user and the group in containers of a server that runs as root.
const USER: u32 = 1_000;
/// The file with the random part of the server's id, in the directory of its sandboxes.
const ID_FILE: &str = "docker-id";
/// The start of the names of containers.
const NAME: &str = "amalgam-";
/// The program header of an ELF file that names a dynamic loader.
const PT_INTERP: u32 = 3;

/// How containers are started.
#[derive(Clone, Debug)]
pub struct DockerOptions {
    /// The program of the agent. A static one runs in every image.
    pub agent: PathBuf,
    /// The Unix socket of the engine.
    pub socket: PathBuf,
    /// The network of sandboxes that ask for one. Without it they are refused.
    pub network: Option<String>,
    /// Whether images that the engine does not have are pulled.
    pub pulls: bool,
    /// The directory of the server's sandboxes. Servers with different directories do not touch each other's containers.
    pub directory: PathBuf,
}

/// Starts sandboxes in containers.
#[derive(Debug)]
pub struct DockerRuntime {
    options: DockerOptions,
    is_root: bool,
    engine: OnceCell<Docker>,
    means: OnceLock<Means>,
    server_id: OnceLock<String>,
    /// Whether containers of ended sandboxes may be left.
    has_leftovers: AtomicBool,
}

impl DockerRuntime {
    /// Creates a runtime of the engine at a socket. It connects to the engine at the first call.
    pub fn new(options: DockerOptions) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        let (engine, means, server_id) = Default::default();
        Self { options, is_root, engine, means, server_id, has_leftovers: AtomicBool::new(true) }
    }

    /// Returns the user and the group in a container: those of the server, unless it runs as root.
    fn user(&self) -> (u32, u32) {
        match self.is_root {
            true => (USER, USER),
            false => (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
        }
    }

    async fn engine(&self) -> Result<&Docker> {
        let connect = || async {
            let path = self.options.socket.to_string_lossy();
            let docker = Docker::connect_with_unix(&path, CALL_TIMEOUT_SECONDS, API_DEFAULT_VERSION)?;
            docker.negotiate_version().await
        };
        self.engine.get_or_try_init(connect).await.map_err(|error| self.no_engine(&error))
    }

    fn no_engine(&self, error: &Error) -> SandboxError {
        let socket = self.options.socket.display();
        SandboxError::NotIsolated { why: format!("the Docker engine at {socket} does not answer: {error}") }
    }

    /// Returns the id of this server on its engine.
    fn server_id(&self) -> Result<&str> {
        if let Some(id) = self.server_id.get() {
            return Ok(id);
        }
        let id = make_server_id(&self.options.directory).map_err(SandboxError::io("the id of the server"))?;
        Ok(self.server_id.get_or_init(|| id))
    }

    /// Returns the configuration of the image of a sandbox. Pulls the image if the engine does not have it and the operator allows
    /// it.
    async fn image(&self, docker: &Docker, spec: &StartSpec) -> Result<ImageConfig> {
        let name = spec.template.as_str();
        let missing = |why: &str| SandboxError::NoImage { image: name.to_owned(), why: why.to_owned() };
        if !image::is_name(name) {
            return Err(SandboxError::NoTemplate(name.to_owned()));
        }
        let find = || async { image::find(docker, name).await.map_err(|error| self.no_engine(&error)) };
        if let Some(found) = find().await? {
            return Ok(found);
        }
        if !self.options.pulls {
            return Err(missing(
                "the server does not pull images; its operator can pull it, or allow it (docker-pull)",
            ));
        }
        image::pull(docker, name, &spec.progress).await?;
        find().await?.ok_or_else(|| missing("it was pulled, and is gone"))
    }

    /// Writes the secret, and lets the user of the container read its files.
    fn prepare(&self, spec: &StartSpec) -> io::Result<()> {
        spec.write_secret()?;
        if self.is_root {
            let (uid, gid) = self.user();
            chown(spec.secret_file(), Some(uid), Some(gid))?;
            chown(&spec.link, Some(uid), Some(gid))?;
        }
        Ok(())
    }

    /// Creates and starts a container. Returns the id of its first process.
    async fn run(&self, docker: &Docker, name: &str, body: ContainerCreateBody) -> Result<(String, i32)> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let created = docker.create_container(Some(options), body).await.map_err(|error| refused(&error))?;
        docker.start_container(&created.id, None).await.map_err(|error| refused(&error))?;
        let found = docker.inspect_container(&created.id, None).await.map_err(|error| refused(&error))?;
        let state = found.state.unwrap_or_default();
        let pid = state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0);
        match pid {
            Some(pid) => Ok((created.id, pid)),
            None => Err(SandboxError::NotStarted(format!("the agent ended at once{}", self.agent_hint()))),
        }
    }

    /// Returns a hint that an agent with a dynamic loader may not run in an image; empty for a static agent.
    fn agent_hint(&self) -> &'static str {
        match is_dynamic(&self.options.agent) {
            true => "; the agent of this server is no static program, and the image may lack its C library",
            false => "",
        }
    }

    /// Removes a container with its processes. Returns whether it is gone.
    async fn remove(&self, name: &str) -> bool {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let removed = match self.engine().await {
            Ok(docker) => docker.remove_container(name, Some(options)).await,
            Err(error) => {
                warn!(container = name, %error, "a container was not removed");
                return false;
            }
        };
        match removed {
            Ok(()) => true,
            Err(error) if image::is_missing(&error) => true,
            Err(error) => {
                warn!(container = name, %error, "a container was not removed");
                false
            }
        }
    }
}

#[tonic::async_trait]
impl Runtime for DockerRuntime {
    fn name(&self) -> &'static str {
        "docker"
    }

    async fn probe(&self) -> Result<()> {
        if !self.options.agent.is_file() {
            let why = format!("the program of the agent is not at {}", self.options.agent.display());
            return Err(SandboxError::NotIsolated { why });
        }
        let info = self.engine().await?.info().await.map_err(|error| self.no_engine(&error))?;
        let is_on = |limit: Option<bool>| limit.unwrap_or(false);
        let means = Means {
            cpu_cgroup: is_on(info.cpu_cfs_quota),
            memory_cgroup: is_on(info.memory_limit),
            pids_cgroup: is_on(info.pids_limit),
            pids_rlimit: false,
        };
        let _ = self.means.set(means);
        if is_dynamic(&self.options.agent) {
            warn!("the agent is no static program: it runs only in images that have its C library");
        }
        info!(engine = info.server_version, driver = info.driver, "Docker engine found");
        Ok(())
    }

    async fn templates(&self) -> Vec<Template> {
        let listed = match self.engine().await {
            Ok(docker) => docker.list_images(None::<ListImagesOptions>).await.map_err(|error| self.no_engine(&error)),
            Err(error) => Err(error),
        };
        let images = listed.unwrap_or_else(|error| {
            warn!(%error, "images are not listed");
            Vec::new()
        });
        let mut templates: Vec<_> = images
            .into_iter()
            .flat_map(|image| {
                let description = format!("a Docker image of {} MB", image.size / 1_000_000);
                let named = image.repo_tags.into_iter().filter(|tag| image::is_name(tag));
                named.map(move |name| Template {
                    name,
                    description: description.clone(),
                    tags: vec!["docker".to_owned()],
                })
            })
            .collect();
        templates.sort_by(|one, other| one.name.cmp(&other.name));
        templates
    }

    async fn has_template(&self, name: &str) -> Result<bool> {
        if !image::is_name(name) {
            return Ok(false);
        }
        let found = image::find(self.engine().await?, name).await.map_err(|error| self.no_engine(&error))?;
        Ok(found.is_some() || self.options.pulls)
    }

    fn mount_access(&self, is_mounted_later: bool) -> MountAccess {
        match self.is_root {
            true => MountAccess { allows_others: true, shown_owner: Some(self.user()) },
            // The engine, which is root, looks at the directories that it mounts into the container.
            false => MountAccess { allows_others: !is_mounted_later, shown_owner: None },
        }
    }

    fn enforce(&self, limits: &Limits) -> Result<Vec<Enforced>> {
        let mut enforced = limits.enforce(self.means.get().copied().unwrap_or_default())?;
        enforced.push(Enforced::landlock(Err("the engine alone isolates containers")));
        Ok(enforced)
    }

    async fn start(&self, spec: &StartSpec) -> Result<Started> {
        let enforced = self.enforce(&spec.limits)?;
        let docker = self.engine().await?;
        let image = self.image(docker, spec).await?;
        let (uid, gid) = self.user();
        let common = Common {
            server_id: self.server_id()?,
            agent: &self.options.agent,
            uid,
            gid,
            network: self.options.network.as_deref(),
        };
        let body = container::body(spec, common, &image)?;
        self.prepare(spec).map_err(SandboxError::io("the files of a sandbox"))?;
        let name = container_name(&spec.id);
        let started = match self.run(docker, &name, body).await {
            Ok((container, pid)) => {
                process::handle_of(pid).map(|process| format!("{container}:{process}")).ok_or_else(|| {
                    SandboxError::NotStarted("the engine runs where this server does not see its processes".to_owned())
                })
            }
            Err(error) => Err(error),
        };
        match started {
            Ok(handle) => {
                info!(sandbox = spec.id, handle, "container started");
                Ok(Started { handle, enforced })
            }
            Err(error) => {
                let said = self.last_words(&name, &spec.files).await;
                warn!(sandbox = spec.id, %error, said, "a container did not start");
                if !self.remove(&name).await {
                    self.has_leftovers.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }

    async fn stop(&self, id: &str, handle: &str) {
        // The name finds a container whose handle was never written down.
        let container =
            handle.split_once(':').map_or_else(|| container_name(id), |(container, _)| container.to_owned());
        if !self.remove(&container).await {
            self.has_leftovers.store(true, Ordering::Relaxed);
            if let Some(pid) = process_of(handle).and_then(process::living) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        if tokio::time::timeout(STOP_WITHIN, self.ended(handle)).await.is_err() {
            warn!(sandbox = id, handle, "the processes of a container do not end");
        }
    }

    async fn last_words(&self, handle: &str, _: &Path) -> String {
        let container = handle.split(':').next().unwrap_or_default();
        let Ok(docker) = self.engine().await else { return String::new() };
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail("20").build();
        let mut lines = std::pin::pin!(docker.logs(container, Some(options)));
        let mut said = String::new();
        let reading = async {
            while let Some(Ok(line)) = lines.next().await {
                said.push_str(&line.to_string());
            }
        };
        let _ = tokio::time::timeout(LOG_WITHIN, reading).await;
        with_hint(&said, self.agent_hint())
    }

    async fn resources(&self) -> Vec<Resource> {
        if !self.has_leftovers.swap(false, Ordering::Relaxed) {
            return Vec::new();
        }
        let (Ok(docker), Ok(server)) = (self.engine().await, self.server_id()) else {
            self.keep_resources();
            return Vec::new();
        };
        let filter = HashMap::from([("label", vec![format!("{SERVER_LABEL}={server}")])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filter).build();
        let own = docker.list_containers(Some(options)).await.unwrap_or_else(|error| {
            warn!(%error, "containers of ended sandboxes were not looked for");
            self.keep_resources();
            Vec::new()
        });
        let named = own.into_iter().filter_map(|container| {
            let sandbox = container.labels.unwrap_or_default().remove(SANDBOX_LABEL).unwrap_or_default();
            Some(Resource { sandbox, name: container.id? })
        });
        named.collect()
    }

    async fn remove_resource(&self, resource: &Resource) {
        let Resource { sandbox, name } = resource;
        info!(sandbox, container = name, "the container of an unknown sandbox is removed");
        if !self.remove(name).await {
            self.keep_resources();
        }
    }

    fn keep_resources(&self) {
        self.has_leftovers.store(true, Ordering::Relaxed);
    }

    fn carries_mounts(&self, directory: &Path) -> bool {
        propagation::carries_mounts(directory, self.is_root)
    }

    fn release(&self, directory: &Path) {
        if self.is_root {
            propagation::release(directory);
        }
    }

    fn sees_mount(&self, handle: &str, place: MountPlace) -> bool {
        let pid = process_of(handle).and_then(process::living);
        pid.is_some_and(|pid| propagation::sees_mount(pid.as_raw_nonzero().get(), place.path()))
    }

    fn is_alive(&self, handle: &str) -> bool {
        process_of(handle).and_then(process::living).is_some()
    }

    async fn ended(&self, handle: &str) {
        if let Some(process) = process_of(handle) {
            process::ended(process).await;
        }
    }
}

/// Returns the handle of the first process from the handle of a container.
fn process_of(handle: &str) -> Option<&str> {
    handle.split_once(':').map(|(_, process)| process)
}

fn container_name(id: &str) -> String {
    format!("{NAME}{id}")
}

/// Logs an error of the engine about a container and returns one without its message, which names paths of the host.
fn refused(error: &Error) -> SandboxError {
    warn!(%error, "the Docker engine refused a container");
    SandboxError::NotStarted("the Docker engine refused the container; the server's log says why".to_owned())
}

/// Makes the id of a server: a hash of a random number in its directory and of the directory's path. So a copy of the directory has
/// another id.
fn make_server_id(directory: &Path) -> io::Result<String> {
    std::fs::create_dir_all(directory)?;
    let path = directory.join(ID_FILE);
    let random = match std::fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut random = [0; 16];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            std::fs::write(&path, random)?;
            random.to_vec()
        }
        read => read?,
    };
    let mut hash = Sha256::new();
    hash.update(&random);
    hash.update(directory.canonicalize()?.as_os_str().as_encoded_bytes());
    Ok(HEXLOWER.encode(&hash.finalize()[..16]))
}

/// Returns the log of a container with a hint behind it. The hint begins with `; `, which an empty log does not need.
fn with_hint(log: &str, hint: &str) -> String {
    match log.trim() {
        "" => hint.trim_start_matches("; ").to_owned(),
        log => format!("{log}{hint}"),
    }
}

/// Returns whether a program needs a dynamic loader, by its ELF headers. Returns `false` for a file that is no ELF program.
fn is_dynamic(program: &Path) -> bool {
    use std::io::Read as _;
    const HEAD_BYTES: u64 = 4_096;
    let mut head = Vec::new();
    let read = std::fs::File::open(program).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    read.is_ok() && has_interpreter(&head)
}

fn has_interpreter(head: &[u8]) -> bool {
    let number = |at: usize, bytes: usize| {
        let field = head.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0_usize, |sum, byte| (sum << 8) | usize::from(*byte)))
    };
    // 64 bits, little end first.
    if head.get(..6) != Some(b"\x7fELF\x02\x01") {
        return false;
    }
    let (Some(start), Some(size), Some(count)) = (number(0x20, 8), number(0x36, 2), number(0x38, 2)) else {
        return false;
    };
    (0..count).any(|index| number(start.saturating_add(index * size), 4) == Some(PT_INTERP as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_keeps_its_id_and_a_copy_of_its_directory_has_another() {
        let (one, other) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
        let id = make_server_id(one.path()).expect("an id");
        assert_eq!(make_server_id(one.path()).expect("an id"), id);
        std::fs::copy(one.path().join(ID_FILE), other.path().join(ID_FILE)).expect("copied");
        assert_ne!(make_server_id(other.path()).expect("an id"), id);
    }

    #[test]
    fn a_program_with_an_interpreter_is_dynamic() {
        let own = std::env::current_exe().expect("this program");
        assert!(is_dynamic(&own), "tests are linked dynamically");
        assert!(!is_dynamic(Path::new("/nowhere")));
        for head in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01"] {
            assert!(!has_interpreter(head));
        }
    }

    #[test]
    fn a_hint_follows_the_log_and_stands_alone_without_one() {
        assert_eq!(with_hint("failed\n", "; a hint"), "failed; a hint");
        assert_eq!(with_hint("failed\n", ""), "failed");
        assert_eq!(with_hint(" \n", "; a hint"), "a hint");
        assert_eq!(with_hint("", ""), "");
    }

    #[test]
    fn a_handle_names_the_container_and_its_process() {
        assert_eq!(process_of("0f:12:34"), Some("12:34"));
        assert_eq!(process_of(""), None);
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_named() {
        let scratch = tempfile::tempdir().expect("made");
        let socket = scratch.path().join("docker.sock");
        let agent = std::env::current_exe().expect("this program");
        let directory = scratch.path().to_owned();
        let runtime = DockerRuntime::new(DockerOptions { agent, socket, network: None, pulls: false, directory });
        let error = runtime.probe().await.expect_err("no engine").to_string();
        assert!(error.contains("docker.sock does not answer"), "{error}");
        assert!(runtime.templates().await.is_empty());
        assert!(runtime.resources().await.is_empty());
        assert!(runtime.has_leftovers.load(Ordering::Relaxed), "tried again later");
    }
}
