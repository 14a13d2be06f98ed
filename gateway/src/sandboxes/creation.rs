//! Starts sandboxes: checks, the workspace, the runtime, the registration of the agent.

use std::collections::HashMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_sandbox::{
    Enforced, Limits, Link, LinkOptions, MountPlace, Network, PROXY_PORT, Progress, SandboxError, SandboxState, Secret,
    SecretHash, Secrets, StartSpec, parse_bytes, parse_cpus,
};
use serde_json::json;
use tonic::{Code, Status};
use tracing::{info, warn};

use super::access::Access;
use super::allow_list::HostRule;
use super::checkout::commit_for_fork;
use super::home::{Keep, has_home, home_id, home_name};
use super::runtimes::{Choice, RuntimeSlot};
use super::templates::no_snapshot;
use super::workspace::StoreCalls;
use super::{Living, Parts, Sandboxes, events, sandbox_status};
use crate::catalog::SandboxRecord;
use crate::identity::Identity;
use crate::project::ProjectName;

/// The mount point of the workspace, below the directory of a sandbox.
pub(super) const WORKSPACE: &str = "workspace";
/// The mount point of the home.
pub(super) const HOME: &str = "home";
/// The directory with the socket of the agent.
pub(super) const LINK: &str = "link";
/// The mount point of the root directory of a template.
pub(super) const ROOT: &str = "root";
/// The directory for files of the runtime.
pub(super) const FILES: &str = "files";
/// The directory with the output of commands, which the next server reads.
pub(super) const OUTPUT: &str = "output";
/// Maximum time that a creation waits for others.
const QUEUE_WITHIN: Duration = Duration::from_secs(30);
/// Maximum time that an agent may take to register.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(20);
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Time without a server after which an agent ends its sandbox.
const ORPHANED_AFTER: Duration = Duration::from_secs(120);
pub(super) const LIFETIME_DEFAULT_SECONDS: i64 = 3_600;
pub(super) const LIFETIME_SECONDS_MAX: i64 = 86_400;
const NAME_BYTES_MAX: usize = 128;
pub(super) const NANOSECONDS: i64 = 1_000_000_000;

/// The checked parameters of a sandbox that will be started.
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) template: String,
    /// The name of the runtime; empty for the first one that has the template.
    pub(super) runtime: String,
    pub(super) envs: HashMap<String, String>,
    pub(super) lifetime_seconds: i64,
    pub(super) limits: Limits,
    pub(super) network: Network,
    pub(super) is_read_only: bool,
    pub(super) source: Source,
    /// The snapshot or workspace whose contents the home gets; empty for none.
    pub(super) home_from: String,
    pub(super) metadata: HashMap<String, String>,
    /// The hosts that the sandbox may reach.
    pub(super) allowed_hosts: Vec<HostRule>,
}

/// The origin of the workspace of a sandbox.
pub(super) enum Source {
    /// An existing workspace.
    Existing(String),
    /// A new workspace, with the contents of a snapshot or another workspace; `from` is empty for none.
    New { from: String },
    /// A workspace that was forked for the sandbox.
    Forked(String),
}

/// The caller that starts a sandbox, and the project of the sandbox.
#[derive(Clone)]
pub(super) struct Owner {
    pub(super) project: ProjectName,
    pub(super) key_id: String,
    pub(super) agent: String,
}

impl Owner {
    pub(super) fn new(project: ProjectName, identity: &Identity) -> Self {
        Self { project, key_id: identity.key_id().to_owned(), agent: identity.agent().to_owned() }
    }
}

fn invalid(why: impl Into<String>) -> Status {
    Failure::new(Reason::Invalid, why).into_status()
}

impl Plan {
    /// Checks a request, and returns the parameters of its sandbox.
    pub(super) fn of_request(request: v1::CreateSandboxRequest) -> Result<Self, Status> {
        if request.name.len() > NAME_BYTES_MAX || request.name.chars().any(char::is_control) {
            return Err(invalid("name: at most 128 bytes, without control characters"));
        }
        let lifetime_seconds = match i64::from(request.timeout_seconds) {
            0 => LIFETIME_DEFAULT_SECONDS,
            seconds @ 1..=LIFETIME_SECONDS_MAX => seconds,
            _ => return Err(invalid("timeout_seconds: 1 to 86400")),
        };
        let network = match request.network.as_str() {
            "" => Network::None,
            word => Network::of_word(word).ok_or_else(|| invalid("network: `none`, `bridge` or `host`"))?,
        };
        let source = match (request.workspace, request.from) {
            (workspace, from) if !workspace.is_empty() && !from.is_empty() => {
                return Err(invalid(format!("workspace {workspace} and from {from} exclude each other")));
            }
            (workspace, from) if workspace.is_empty() => Source::New { from },
            (workspace, _) => Source::Existing(workspace),
        };
        check_envs(&request.envs)?;
        let allowed_hosts = allowed_hosts(&request.allowed_hosts, network)?;
        let mut envs = request.envs;
        if !allowed_hosts.is_empty() {
            add_proxy(&mut envs);
        }
        super::lifecycle::check_metadata(&request.metadata)?;
        Ok(Self {
            name: request.name,
            template: request.template,
            runtime: request.runtime,
            envs,
            lifetime_seconds,
            limits: limits(&request.resources.unwrap_or_default(), request.best_effort)?,
            network,
            is_read_only: request.read_only,
            source,
            home_from: request.home_from,
            metadata: request.metadata,
            allowed_hosts,
        })
    }
}

/// Parses and checks the hosts that a sandbox may reach.
fn allowed_hosts(words: &[String], network: Network) -> Result<Vec<HostRule>, Status> {
    const HOSTS_MAX: usize = 64;
    if words.len() > HOSTS_MAX {
        return Err(invalid("allowed_hosts: at most 64"));
    }
    if !words.is_empty() && network != Network::None {
        return Err(invalid("allowed_hosts: only with the network `none`; another network reaches all hosts"));
    }
    let rule = |word: &String| word.parse::<HostRule>().map_err(|why| invalid(format!("allowed_hosts: {why}")));
    words.iter().map(rule).collect()
}

/// Adds the environment variables by which programs find the proxy. Variables of the caller take precedence.
fn add_proxy(envs: &mut HashMap<String, String>) {
    let proxy = format!("http://127.0.0.1:{PROXY_PORT}");
    let local = "localhost,127.0.0.1,::1".to_owned();
    for (name, value) in [("HTTP_PROXY", &proxy), ("HTTPS_PROXY", &proxy), ("NO_PROXY", &local)] {
        for name in [name.to_owned(), name.to_ascii_lowercase()] {
            envs.entry(name).or_insert_with(|| value.clone());
        }
    }
}

/// Checks the names and values of environment variables.
pub(super) fn check_envs(envs: &HashMap<String, String>) -> Result<(), Status> {
    let is_wrong = |name: &str, value: &str| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0');
    match envs.iter().find(|(name, value)| is_wrong(name, value)) {
        Some((name, _)) => Err(invalid(format!("envs: `{}` is no environment variable", name.escape_debug()))),
        None => Ok(()),
    }
}

/// Checks secrets, whose names become names of variables and files.
pub(super) fn check_secrets(secrets: HashMap<String, String>) -> Result<Secrets, Status> {
    const SECRETS_MAX: usize = 64;
    const SECRET_BYTES_MAX: usize = 64 << 10;
    let is_name = |name: &str| {
        let is_first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        is_first && name.len() <= 128 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if let Some(name) = secrets.keys().find(|name| !is_name(name)) {
        return Err(invalid(format!("secrets: `{}` is no name of a variable", name.escape_debug())));
    }
    if secrets.len() > SECRETS_MAX || secrets.values().any(|value| value.len() > SECRET_BYTES_MAX) {
        return Err(invalid("secrets: at most 64, of 64 KiB each"));
    }
    Ok(Secrets(secrets))
}

fn limits(resources: &v1::ResourceConfig, is_best_effort: bool) -> Result<Limits, Status> {
    let mut limits = Limits { is_best_effort, ..Limits::default() };
    let wrong = |name: &str| {
        let name = name.to_owned();
        move |why: String| invalid(format!("resources.{name}: {why}"))
    };
    if !resources.cpu.is_empty() {
        limits.cpus = parse_cpus(&resources.cpu).map_err(wrong("cpu"))?;
        limits.asked.push("cpu");
    }
    if !resources.memory.is_empty() {
        limits.memory_bytes = parse_bytes(&resources.memory).map_err(wrong("memory"))?;
        limits.asked.push("memory");
    }
    if !resources.disk.is_empty() {
        limits.disk_bytes = parse_bytes(&resources.disk).map_err(wrong("disk"))?;
        limits.asked.push("disk");
    }
    if resources.pids > 0 {
        limits.pids = u64::from(resources.pids);
        limits.asked.push("pids");
    }
    Ok(limits)
}

impl Sandboxes {
    /// Starts a sandbox, and counts the creation in the metrics. Everything that was created is removed if it does not start.
    pub(super) async fn start(&self, owner: &Owner, plan: Plan) -> Result<SandboxRecord, Status> {
        let begin = Instant::now();
        let started = self.start_checked(owner, plan).await;
        // A wrong request is no failure of the server.
        let is_failure = started.as_ref().is_err_and(|status| {
            !matches!(Failure::of_status(status).map(|failure| failure.reason), Some(reason) if is_refusal(reason))
        });
        if started.is_ok() || is_failure {
            self.inner.metrics.created(started.is_ok(), begin.elapsed());
        }
        started
    }

    async fn start_checked(&self, owner: &Owner, plan: Plan) -> Result<SandboxRecord, Status> {
        let parts = self.parts()?;
        let choice = self.choose(parts, &self.calls_of(owner).await?, &plan.runtime, &plan.template).await?;
        choice.slot.probe().await?;
        let hosts = &parts.options.hosts;
        if let Some(rule) = plan.allowed_hosts.iter().find(|rule| !hosts.iter().any(|host| host.covers(rule))) {
            let message = format!("allowed_hosts: the setting `sandbox-hosts` of the server does not permit {rule}");
            return Err(invalid(message));
        }
        let mut enforced = choice.slot.runtime.enforce(&plan.limits).map_err(|error| sandbox_status(&error))?;
        let access = Access::choose(&parts.options, &choice, plan.is_read_only)?;
        access.enforce_disk(&plan.limits, &mut enforced)?;
        let queued = tokio::time::timeout(QUEUE_WITHIN, parts.creations.acquire()).await;
        let busy = || Failure::new(Reason::Busy, "too many sandboxes are being created; try again").into_status();
        let _place = queued.map_err(|_| busy())?.map_err(|_| busy())?;
        let record = self.reserve(parts, owner, &plan, (&choice, access), &enforced).await?;
        match self.begin(choice.slot, &record, plan).await {
            Ok(()) => {
                info!(sandbox = record.id, project = %record.project, "sandbox runs");
                self.note(&record.id, "running");
                self.inner.expiry_changed.notify_one();
                let record = self.find(&owner.project, &record.id).await?;
                self.announce(events::RUNNING, &record).await;
                self.announce(events::CREATED, &record).await;
                Ok(record)
            }
            Err(status) => {
                warn!(sandbox = record.id, %status, "a sandbox did not start");
                let reason = status.message().to_owned();
                self.announce(events::ERROR, &SandboxRecord { state: SandboxState::Error, reason, ..record.clone() })
                    .await;
                let keep = if super::owns_workspace(&record) { Keep::Nothing } else { Keep::WorkspaceAndHome };
                if let Err(error) = self.delete(&owner.project, &record.id, keep).await {
                    warn!(sandbox = record.id, %error, "the rest of a sandbox was not removed");
                    self.end_unrecorded(&record).await;
                }
                Err(status)
            }
        }
    }

    /// Writes the record of a sandbox that is about to start, if the limits permit one more. Creates its workspace if needed.
    async fn reserve(
        &self,
        parts: &Parts,
        owner: &Owner,
        plan: &Plan,
        (choice, access): (&Choice<'_>, Access),
        enforced: &[Enforced],
    ) -> Result<SandboxRecord, Status> {
        let id = new_sandbox_id()?;
        let _turn = parts.reserving.lock().await;
        let others = self.others(parts, owner).await?;
        let calls = self.calls_of(owner).await?;
        let workspace_id = workspace_id(&id);
        let (workspace, owns_workspace) = match &plan.source {
            Source::Existing(name) => (calls.find(name).await?, false),
            Source::New { from } => (calls.create(&workspace_id, from).await?, true),
            Source::Forked(name) => (name.clone(), true),
        };
        let is_used = |other: &SandboxRecord| other.project == owner.project && other.workspace == workspace;
        if let Some(other) = others.iter().find(|other| is_used(other)) {
            let message = format!("sandbox {} works in {workspace}; fork it", other.id);
            return Err(Failure::new(Reason::AlreadyExists, message).into_status());
        }
        let home = home_name(&workspace);
        let limits: Vec<_> =
            enforced.iter().map(|one| json!({"limit": one.limit, "value": one.value, "by": one.by})).collect();
        let outlives_server = match access {
            // The root directory of a template ends with the server that mounts it. A read-only sandbox sees the mount itself,
            // read-only.
            Access::Fuse => choice.root.is_none() && !plan.is_read_only && choice.slot.carries_mounts(&parts.options),
            Access::Checkout => true,
        };
        let now = self.now();
        let record = SandboxRecord {
            id,
            project: owner.project.clone(),
            name: plan.name.clone(),
            state: SandboxState::Starting,
            reason: String::new(),
            template: plan.template.clone(),
            runtime: choice.slot.runtime.name().to_owned(),
            handle: String::new(),
            workspace,
            key_id: owner.key_id.clone(),
            agent: owner.agent.clone(),
            credential: SecretHash::from_hex(""),
            config: json!({
                "limits": limits,
                "network": plan.network.word(),
                "readOnly": plan.is_read_only,
                "ownsWorkspace": owns_workspace,
                "provider": access.word(),
                "bestEffort": plan.limits.is_best_effort,
                "outlivesServer": outlives_server,
                "root": choice.root,
                "metadata": plan.metadata,
                "allowedHosts": plan.allowed_hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "home": home,
            }),
            created: now,
            expires: Time(now.0 + plan.lifetime_seconds * NANOSECONDS),
        };
        self.add_record(&calls, &plan.source, &record).await?;
        self.announce(events::STARTING, &record).await;
        Ok(record)
    }

    /// Adds the record of a sandbox to the catalog. If that fails, deletes the workspace that was created for the sandbox.
    async fn add_record(&self, calls: &StoreCalls, source: &Source, record: &SandboxRecord) -> Result<(), Status> {
        let Err(error) = self.inner.catalog.add_sandbox(record).await else { return Ok(()) };
        if matches!(source, Source::New { .. }) {
            log_failed_clean_up("workspace", &record.workspace, calls.delete(&record.workspace).await);
        }
        Err(error.into())
    }

    /// Returns a client of the store of a project that makes its calls as the owner of the sandbox.
    pub(super) async fn calls_of(&self, owner: &Owner) -> Result<StoreCalls, Status> {
        Ok(StoreCalls::new(self.inner.projects.open(&owner.project).await?, &owner.agent))
    }

    /// Mounts or checks out the workspace, starts the processes, and waits for the agent.
    pub(super) async fn begin(&self, slot: &RuntimeSlot, record: &SandboxRecord, plan: Plan) -> Result<(), Status> {
        let runtime = &slot.runtime;
        let directory = self.directory(&record.id)?;
        let failed = |error| sandbox_status(&SandboxError::io("the directory of a sandbox")(error));
        make_directories(&directory).map_err(failed)?;
        self.note(&record.id, "starting");
        super::recovery::write_variables(&directory, &plan.envs).map_err(failed)?;
        let calls = self.store_calls(record).await?;
        calls.update(&record.workspace).await?;
        calls.ensure_home(&record.workspace, &plan.home_from).await?;
        let is_mounted_later = record.config["outlivesServer"] == true && Access::of_record(record) == Access::Fuse;
        if !is_mounted_later {
            self.show_all(&calls, runtime.as_ref(), record, plan.limits.disk_bytes).await?;
        }
        let root = record.config["root"].as_str();
        if let Some(revision) = root {
            let mounted = calls.mount_snapshot(revision, &directory.join(ROOT)).await;
            mounted.map_err(|status| no_snapshot(&plan.template, status))?;
        }
        let secret = Secret::generate().map_err(failed)?;
        let catalog = self.inner.catalog.clone();
        let link = self.listen(record, &directory, secret.hash()).map_err(|error| sandbox_status(&error))?;
        let spec = StartSpec {
            id: record.id.clone(),
            template: plan.template,
            link: directory.join(LINK),
            root: root.map(|_| directory.join(ROOT)),
            files: directory.join(FILES),
            workspace: directory.join(WORKSPACE),
            home: directory.join(HOME),
            is_read_only: plan.is_read_only,
            is_mounted_later,
            secret,
            network: plan.network,
            limits: plan.limits.clone(),
            progress: self.progress(&record.id),
        };
        let started = match runtime.start(&spec).await {
            Ok(started) => started,
            Err(error) => {
                link.close("not started");
                return Err(sandbox_status(&error));
            }
        };
        let disk_bytes = plan.limits.disk_bytes;
        let living =
            Living { link: link.clone(), handle: started.handle.clone(), envs: plan.envs, limits: plan.limits };
        self.inner.living.lock().insert(record.id.clone(), living);
        // A sandbox that an earlier version of the server started has no home in its record.
        let mut config = record.config.clone();
        config["home"] = home_name(&record.workspace).into();
        catalog.set_sandbox_handle(&record.id, &started.handle, &config).await?;
        let ready = tokio::select! {
            ready = tokio::time::timeout(READY_WITHIN, link.connected()) => ready.is_ok(),
            () = runtime.ended(&started.handle) => false,
            // A deletion may have removed the socket that the agent dials.
            () = self.left_start(&record.id) => return Err(super::lifecycle::cancelled()),
        };
        // The secret is valid once, and was used.
        let _ = std::fs::remove_file(directory.join(LINK).join("secret"));
        if !ready {
            let said = runtime.last_words(&started.handle, &directory.join(FILES)).await;
            warn!(sandbox = record.id, said, "the agent did not register");
            let message = "the agent of the sandbox did not register; the server's log says more".to_owned();
            return Err(sandbox_status(&SandboxError::NotStarted(message)));
        }
        if is_mounted_later {
            // The agent runs, so the sandbox has its empty directories. An earlier mount would replace them, read-only.
            self.show_all(&calls, runtime.as_ref(), record, disk_bytes).await?;
            let places = [MountPlace::Workspace, MountPlace::Home];
            if !places.into_iter().all(|place| runtime.sees_mount(&started.handle, place)) {
                let message = "the sandbox does not see the mounts of its workspace and its home".to_owned();
                return Err(sandbox_status(&SandboxError::NotStarted(message)));
            }
        }
        if !catalog.set_sandbox_state(&record.id, SandboxState::Running, "", self.now()).await? {
            return Err(super::lifecycle::cancelled());
        }
        self.spawn_watch(record, started.handle);
        let (sandboxes, id) = (self.clone(), record.id.clone());
        tokio::spawn(async move { sandboxes.announce_agent(id, link).await });
        Ok(())
    }

    /// Returns a callback that writes the slow steps of a start into the log of the sandbox.
    fn progress(&self, id: &str) -> Progress {
        let (sandboxes, id) = (self.clone(), id.to_owned());
        Progress(std::sync::Arc::new(move |what| sandboxes.note(&id, what)))
    }

    /// Starts a task that notices when the processes of a sandbox end by themselves.
    pub(super) fn spawn_watch(&self, record: &SandboxRecord, handle: String) {
        let (sandboxes, id, runtime) = (self.clone(), record.id.clone(), record.runtime.clone());
        tokio::spawn(async move { sandboxes.watch(id, runtime, handle).await });
    }

    /// Listens for the agent of a sandbox, which registers with the secret of the hash `credential`.
    pub(super) fn listen(
        &self,
        record: &SandboxRecord,
        directory: &Path,
        credential: SecretHash,
    ) -> amalgam_sandbox::Result<Link> {
        let slot = self.inner.parts.as_ref().and_then(|parts| parts.slot(&record.runtime));
        Link::listen(LinkOptions {
            sandbox_id: record.id.clone(),
            socket: directory.join(LINK).join("agent.sock"),
            owner: slot.and_then(|slot| slot.runtime.mount_access(true).shown_owner),
            credential,
            save_credential: self.credential_writer(&record.id),
            heartbeat: HEARTBEAT,
            orphaned_after: ORPHANED_AFTER,
            spool: directory.join(OUTPUT),
            on_outgoing: self.outgoing(record),
            now_ms: now_ms_of_process,
        })
    }

    /// Returns a function that writes credentials of the agent of a sandbox to the catalog, in the order of its calls.
    fn credential_writer(&self, id: &str) -> Box<dyn Fn(SecretHash) + Send + Sync> {
        let (catalog, id) = (self.inner.catalog.clone(), id.to_owned());
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel::<SecretHash>();
        // One task for all credentials, so that an earlier one does not replace a later one.
        tokio::spawn(async move {
            while let Some(credential) = receiver.recv().await {
                if let Err(error) = catalog.set_sandbox_credential(&id, &credential).await {
                    warn!(sandbox = id, %error, "the credential of an agent was not written");
                }
            }
        });
        Box::new(move |credential| {
            // The task ends with the last sender, so it receives this.
            let _ = sender.send(credential);
        })
    }

    /// Forks the workspace and the home of a running sandbox, and starts a sandbox on each fork. If one does not start, all are
    /// deleted.
    pub(super) async fn fork(
        &self,
        owner: &Owner,
        request: v1::ForkSandboxRequest,
    ) -> Result<Vec<SandboxRecord>, Status> {
        const COPIES_MAX: i32 = 50;
        let count = match request.count {
            0 => 1,
            count @ 1..=COPIES_MAX => count,
            _ => return Err(invalid("count: 1 to 50")),
        };
        let record = self.find(&owner.project, &request.id).await?;
        let living = self.running(&owner.project, &request.id).await?;
        let calls = self.calls_of(owner).await?;
        let mut forked = fork_places(&calls, &record, count).await?.into_iter();
        let left_seconds = (record.expires.0 - self.now().0) / NANOSECONDS;
        let mut started = Vec::new();
        let mut failed = None;
        for workspace in forked.by_ref() {
            let plan = Plan {
                name: request.name.clone(),
                template: record.template.clone(),
                runtime: record.runtime.clone(),
                envs: living.envs.clone(),
                lifetime_seconds: left_seconds.clamp(1, LIFETIME_SECONDS_MAX),
                limits: living.limits.clone(),
                network: record.config["network"].as_str().and_then(Network::of_word).unwrap_or(Network::None),
                is_read_only: record.config["readOnly"] == true,
                source: Source::Forked(workspace.clone()),
                home_from: String::new(),
                metadata: super::metadata_of(&record),
                allowed_hosts: super::allowed_hosts_of(&record),
            };
            match self.start(owner, plan).await {
                Ok(record) => started.push(record),
                Err(status) => {
                    // It may have been deleted with its sandbox.
                    drop_places(&calls, &workspace).await;
                    failed = Some(status);
                    break;
                }
            }
        }
        let Some(status) = failed else { return Ok(started) };
        for workspace in forked {
            drop_places(&calls, &workspace).await;
        }
        for record in started {
            let deleted = self.delete(&owner.project, &record.id, Keep::Nothing).await;
            log_failed_clean_up("sandbox", &record.id, deleted.map(drop));
        }
        Err(status)
    }
}

/// Forks the workspace of a sandbox and its home. Returns the names of the new workspaces.
async fn fork_places(calls: &StoreCalls, record: &SandboxRecord, count: i32) -> Result<Vec<String>, Status> {
    let ids: Vec<_> = (0..count).map(|_| Ok(workspace_id(&new_sandbox_id()?))).collect::<Result<_, Status>>()?;
    // A home without a workspace is swept, so the workspaces are forked first.
    commit_for_fork(calls, record).await?;
    let forked = calls.fork(&record.workspace, ids.clone()).await?;
    if has_home(record)
        && let Err(status) = calls.fork(&home_name(&record.workspace), ids.iter().map(|id| home_id(id)).collect()).await
    {
        for workspace in &forked {
            drop_places(calls, workspace).await;
        }
        return Err(status);
    }
    Ok(forked)
}

/// Deletes a forked workspace and its home. They may have been deleted with their sandbox.
async fn drop_places(calls: &StoreCalls, workspace: &str) {
    log_failed_clean_up("home", workspace, calls.delete_home(workspace).await);
    log_failed_clean_up("workspace", workspace, calls.delete(workspace).await);
}

/// Logs that a resource of a failed creation or fork was not deleted. One that does not exist any more is no failure.
fn log_failed_clean_up(kind: &'static str, name: &str, deleted: Result<(), Status>) {
    if let Err(status) = deleted
        && status.code() != Code::NotFound
    {
        warn!(kind, name, %status, "a resource of a sandbox that was not started was not deleted");
    }
}

/// Returns whether a reason means that the request was wrong or a limit was reached, not that the server failed.
fn is_refusal(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::Invalid
            | Reason::NotFound
            | Reason::AlreadyExists
            | Reason::TemplateNotFound
            | Reason::LimitNotEnforced
            | Reason::SandboxLimit
            | Reason::Unsupported
    )
}

/// Returns the id of the workspace that is created for a sandbox.
fn workspace_id(id: &str) -> String {
    format!("sandboxes/{id}")
}

fn new_sandbox_id() -> Result<String, Status> {
    let mut random = [0; 10];
    getrandom::fill(&mut random).map_err(|error| Status::internal(error.to_string()))?;
    Ok(format!("sbx-{}", data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase()))
}

fn make_directories(directory: &Path) -> std::io::Result<()> {
    for part in [LINK, FILES, WORKSPACE, HOME, ROOT] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory.join(part))?;
    }
    Ok(())
}

/// Returns the milliseconds since 1970, for the times of output.
fn now_ms_of_process() -> i64 {
    #[allow(clippy::disallowed_methods, reason = "times of output are for people and decide nothing")]
    let now = std::time::SystemTime::now();
    i64::try_from(now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tracing::span;

    use super::*;

    /// Counts warnings.
    struct Warnings(Arc<AtomicUsize>);

    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_clean_up_that_fails_is_logged_and_one_of_what_is_gone_is_not() {
        let warnings = Arc::new(AtomicUsize::new(0));
        tracing::subscriber::with_default(Warnings(Arc::clone(&warnings)), || {
            log_failed_clean_up("workspace", "workspaces/a", Ok(()));
            log_failed_clean_up("workspace", "workspaces/a", Err(Status::not_found("gone")));
            assert_eq!(warnings.load(Ordering::Relaxed), 0);
            log_failed_clean_up("workspace", "workspaces/a", Err(Status::unavailable("locked")));
        });
        assert_eq!(warnings.load(Ordering::Relaxed), 1);
    }
}
