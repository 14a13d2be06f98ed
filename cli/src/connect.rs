//! Connects to the process that holds the store (finds it, starts it, or opens the store in this process), or to a server.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use amalgam_engine::backend::LiveTrees;
use amalgam_engine::{Store, Time};
use amalgam_proto::v1::collection_service_client::CollectionServiceClient;
use amalgam_proto::v1::conflict_service_client::ConflictServiceClient;
use amalgam_proto::v1::directory_service_client::DirectoryServiceClient;
use amalgam_proto::v1::event_service_client::EventServiceClient;
use amalgam_proto::v1::exchange_service_client::ExchangeServiceClient;
use amalgam_proto::v1::export_service_client::ExportServiceClient;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::follow_service_client::FollowServiceClient;
use amalgam_proto::v1::key_service_client::KeyServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::mount_service_client::MountServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::policy_service_client::PolicyServiceClient;
use amalgam_proto::v1::radar_service_client::RadarServiceClient;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::store_service_client::StoreServiceClient;
use amalgam_proto::v1::transfer_service_client::TransferServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use amalgam_proto::{API_VERSION, Failure, Reason, v1};
use amalgam_server::{
    Clocks, Home, HostFeatures, Service, ServiceOptions, Settings, SettingsSource, api, handover_socket, serve,
};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tracing::debug;

use crate::config::{CONFIG_FILE, Config};
use crate::contexts::KEY_VARIABLE;
use crate::environment;
use crate::error::CliError;
use crate::exit::Exit;
use crate::logging::{LogOptions, LogOwner};
use crate::namespace::TOKEN_VARIABLE;
use crate::remote::Server;

/// Timeout for a process to answer after it was started.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout for a process that is about to end to stop listening. After it, the new process says what is in its way.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay between two attempts to connect to a process that was just started.
const POLL_INTERVAL: Duration = Duration::from_millis(3);
/// Delay before a process is started again while another one holds the store; it doubles up to the maximum.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(30);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The header that names the project of a call to a server.
const PROJECT_HEADER: &str = "amalgam-project";

/// How to connect to a store.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// The home of the store.
    pub home: PathBuf,
    /// The name of the caller.
    pub actor: String,
    /// Whether to open the store in this process instead of connecting to the background process.
    pub in_process: bool,
    /// Whether to create the store if it does not exist.
    pub create: bool,
    /// Options of the log, for a process that opens the store.
    pub log: LogOptions,
}

/// Adds the caller's name to every request; for a server, the key and the project too.
#[derive(Clone)]
pub struct CallHeaders {
    actor: MetadataValue<Ascii>,
    authorization: Option<MetadataValue<Ascii>>,
    project: Option<MetadataValue<Ascii>>,
}

impl CallHeaders {
    /// Builds the headers of calls to the background process of a store.
    fn local(actor: &str) -> Self {
        // Characters that a header cannot hold are replaced.
        let plain: String = actor.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect();
        let actor = MetadataValue::try_from(plain).unwrap_or_else(|_| MetadataValue::from_static("unknown"));
        Self { actor, authorization: None, project: None }
    }

    /// Builds the headers of calls to a server.
    fn of_server(server: &Server, actor: &str) -> Result<Self, CliError> {
        let header = |text: String, what: &str| {
            MetadataValue::try_from(text)
                .map_err(|_| CliError::usage(format!("the {what} has characters that none has")))
        };
        let key = server.key.as_ref().map(|key| header(format!("Bearer {}", key.reveal()), "key")).transpose()?;
        let authorization = key.map(|mut key| {
            key.set_sensitive(true);
            key
        });
        let project = server.url.project.clone().map(|project| header(project, "project")).transpose()?;
        Ok(Self { authorization, project, ..Self::local(actor) })
    }
}

impl Interceptor for CallHeaders {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let headers = request.metadata_mut();
        headers.insert(api::ACTOR_HEADER, self.actor.clone());
        if let Some(authorization) = &self.authorization {
            headers.insert("authorization", authorization.clone());
        }
        if let Some(project) = &self.project {
            headers.insert(PROJECT_HEADER, project.clone());
        }
        Ok(request)
    }
}

/// A channel that adds the caller's headers to every request.
pub type CallerChannel = InterceptedService<Channel, CallHeaders>;

/// The clients of all services of a store.
#[derive(Clone)]
pub struct Client {
    /// Workspaces.
    pub workspaces: WorkspaceServiceClient<CallerChannel>,
    /// Snapshots: reading and comparing.
    pub snapshots: SnapshotServiceClient<CallerChannel>,
    /// Operations.
    pub operations: OperationServiceClient<CallerChannel>,
    /// Attached directories.
    pub directories: DirectoryServiceClient<CallerChannel>,
    /// The store and its process.
    pub store: StoreServiceClient<CallerChannel>,
    /// Transfers between stores.
    pub transfer: TransferServiceClient<CallerChannel>,
    /// Import and export.
    pub exchange: ExchangeServiceClient<CallerChannel>,
    /// Merges, the queue and reviews.
    pub merges: MergeServiceClient<CallerChannel>,
    /// Garbage collection.
    pub collections: CollectionServiceClient<CallerChannel>,
    /// Conflicts.
    pub conflicts: ConflictServiceClient<CallerChannel>,
    /// Mounts.
    pub mounts: MountServiceClient<CallerChannel>,
    /// Permissions of agents.
    pub policy: PolicyServiceClient<CallerChannel>,
    pub follows: FollowServiceClient<CallerChannel>,
    pub radar: RadarServiceClient<CallerChannel>,
    pub events: EventServiceClient<CallerChannel>,
    /// Exports over NFS.
    pub exports: ExportServiceClient<CallerChannel>,
    /// The keys of a server.
    pub keys: KeyServiceClient<CallerChannel>,
    /// Files of workspaces, without a directory.
    pub files: FileServiceClient<CallerChannel>,
    /// Sandboxes. The process of the local store has them on its socket for REST.
    pub sandboxes: SandboxServiceClient<CallerChannel>,
}

impl Client {
    fn local(connection: &Channel, actor: &str) -> Self {
        Self::new(connection, &CallHeaders::local(actor))
    }

    fn new(connection: &Channel, headers: &CallHeaders) -> Self {
        let channel = || InterceptedService::new(connection.clone(), headers.clone());
        Self {
            workspaces: WorkspaceServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            snapshots: SnapshotServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            operations: OperationServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            directories: DirectoryServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            store: StoreServiceClient::new(channel()),
            transfer: TransferServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            exchange: ExchangeServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            merges: MergeServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            collections: CollectionServiceClient::new(channel()),
            conflicts: ConflictServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            mounts: MountServiceClient::new(channel()),
            policy: PolicyServiceClient::new(channel()),
            follows: FollowServiceClient::new(channel()),
            radar: RadarServiceClient::new(channel()),
            events: EventServiceClient::new(channel()),
            exports: ExportServiceClient::new(channel()),
            keys: KeyServiceClient::new(channel()),
            files: FileServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
            sandboxes: SandboxServiceClient::new(channel()).max_decoding_message_size(MESSAGE_BYTES_MAX),
        }
    }
}

/// Why a command could not connect to a store.
#[derive(Debug)]
pub enum ConnectError {
    /// There is no store at this path.
    NoStore(PathBuf),
    /// Another failure, with a reason of the API.
    Failed(Failure),
}

impl From<Failure> for ConnectError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Failed(failure) => Self::from(failure),
            ConnectError::NoStore(home) => {
                let message = format!("there is no store at {}", home.display());
                let error = CliError::new(Exit::NO_STORE, "NO_STORE", message);
                error.hint("`amalgam init` creates one, --store PATH names another one")
            }
        }
    }
}

/// Returns the current time.
pub fn now() -> Time {
    #[allow(clippy::disallowed_methods, reason = "the binary is where the clock is read")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

/// Returns the time since the machine was started, including sleep.
fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Connects to the process that holds the store, or starts it.
pub async fn connect(options: &ConnectOptions) -> Result<Client, ConnectError> {
    let home = Home::new(&options.home);
    if !home.exists() && !options.create {
        return Err(ConnectError::NoStore(options.home.clone()));
    }
    if options.in_process {
        let runtime = runtime_directory().map_err(|error| fault("make the runtime directory", &error))?;
        // A log that cannot be written does not fail the command.
        let _ = make_home(&home).and_then(|()| options.log.log_to_file(&home.log_path(), LogOwner::Command));
        let service = open(&home, &runtime)?;
        let channel = serve::in_process(service).await.map_err(|error| fault("open the store", &error))?;
        return Ok(Client::local(&channel, &options.actor));
    }
    let socket = socket_path(&options.home).map_err(|error| fault("find the runtime directory", &error))?;
    for _ in 0..2 {
        if let Some(channel) = try_connect_any(&home, &socket).await
            && let Some(client) = check_version(Client::local(&channel, &options.actor)).await?
        {
            return Ok(client);
        }
        await_end(&socket).await;
        let channel = start_and_wait(&home, &socket).await?;
        if let Some(client) = check_version(Client::local(&channel, &options.actor)).await? {
            return Ok(client);
        }
    }
    Err(Failure::new(Reason::Busy, "the background process of another version keeps coming back; stop what starts it")
        .into())
}

/// Connects to a server on the network.
pub async fn connect_server(server: &Server, actor: &str) -> Result<Client, CliError> {
    let headers = CallHeaders::of_server(server, actor)?;
    Ok(Client::new(&server.connect().await?, &headers))
}

/// Connects to the operator socket of a server, for calls about one project. `None` if no server answers there.
pub async fn connect_project(socket: &Path, project: &str, actor: &str) -> Option<Client> {
    let channel = try_connect(socket).await?;
    let project = MetadataValue::try_from(project).ok()?;
    Some(Client::new(&channel, &CallHeaders { project: Some(project), ..CallHeaders::local(actor) }))
}

/// Connects to a socket of the process that holds the store: the one for REST also answers calls about sandboxes. `None` if no
/// process answers there.
pub async fn connect_socket(socket: &Path, actor: &str) -> Option<Client> {
    let channel = try_connect(socket).await?;
    Some(Client::local(&channel, actor))
}

/// Opens the store in a home in this process, with the settings in another directory. The store closes with the client.
pub async fn in_process_client(home: &Path, settings: &Path, actor: &str) -> Result<Client, CliError> {
    let runtime = runtime_directory().map_err(|error| CliError::machine("the runtime directory", &error))?;
    let service = open_project(&Home::new(home), settings, &runtime, HostFeatures::Enabled).map_err(Failure::from)?;
    let channel = serve::in_process(service).await;
    let channel = channel.map_err(|error| CliError::machine(home.display(), &io::Error::other(error)))?;
    Ok(Client::local(&channel, actor))
}

/// Connects to the store that this process holds.
pub async fn connect_service(service: Service, actor: &str) -> Result<Client, CliError> {
    let channel = serve::in_process(service).await;
    let channel = channel.map_err(|error| CliError::machine("the store", &io::Error::other(error)))?;
    Ok(Client::local(&channel, actor))
}

/// Connects to the process that holds the store if it runs.
pub async fn running(options: &ConnectOptions) -> Option<Client> {
    let socket = socket_path(&options.home).ok()?;
    let found = try_connect_any(&Home::new(&options.home), &socket).await;
    found.map(|channel| Client::local(&channel, &options.actor))
}

/// Connects to the process that holds the store: at its usual socket, or at the socket recorded in the store's home, if it was
/// started with another runtime directory.
async fn try_connect_any(home: &Home, socket: &Path) -> Option<Channel> {
    if let Some(channel) = try_connect(socket).await {
        return Some(channel);
    }
    let elsewhere = home.listening_at().filter(|elsewhere| elsewhere != socket)?;
    try_connect(&elsewhere).await
}

async fn try_connect(socket: &Path) -> Option<Channel> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://amalgam").connect_with_connector(connector).await.ok()
}

/// Waits until no process listens at the sockets of a store: one whose store was removed, or that has another version, is about to
/// end.
async fn await_end(socket: &Path) {
    let began = Instant::now();
    for socket in [socket, &rest_socket(socket), &handover_socket(socket)] {
        while began.elapsed() < END_TIMEOUT && UnixStream::connect(socket).await.is_ok() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Returns the client if the process has this program's version; otherwise asks the process to end and returns `None`.
async fn check_version(mut client: Client) -> Result<Option<Client>, ConnectError> {
    let told = match client.store.get_store(v1::GetStoreRequest {}).await {
        Ok(told) => told.into_inner(),
        // The process ended after the connection was made, or ends because its store was removed.
        Err(_) => return Ok(None),
    };
    let ours = env!("CARGO_PKG_VERSION");
    if told.api_version == API_VERSION && told.version == ours {
        return Ok(Some(client));
    }
    let asked = client.store.stop_server(v1::StopServerRequest { force: false }).await;
    if let Err(status) = asked {
        let message = format!(
            "the background process (version {}) is not of this version ({ours}) and has work to do: {}; `amalgam stop --force` ends it",
            told.version,
            status.message()
        );
        return Err(Failure::new(Reason::Busy, message).into());
    }
    // It ends when its calls are done, and releases the store.
    Ok(None)
}

/// Creates the home directory of a store, accessible only to its user.
pub fn make_home(home: &Home) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home.path())
}

/// Starts a background process. It writes its log to the file that is its standard error, too, so that a panic is in the log.
fn start(home: &Home, socket: &Path) -> io::Result<Child> {
    make_home(home)?;
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(home.log_path())?;
    debug!("starting a background process");
    Command::new(std::env::current_exe()?)
        .arg("--store")
        .arg(home.path())
        .arg("serve")
        .arg("--socket")
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .env_remove(TOKEN_VARIABLE)
        .env_remove(KEY_VARIABLE)
        .spawn()
}

async fn start_and_wait(home: &Home, socket: &Path) -> Result<Channel, ConnectError> {
    let began = Instant::now();
    let start = || start(home, socket).map_err(|error| fault("start the background process", &error));
    let mut child = start()?;
    let mut retry = RETRY_DELAY_MIN;
    loop {
        if let Some(channel) = try_connect_any(home, socket).await {
            return Ok(channel);
        }
        let mut pause = POLL_INTERVAL;
        match child.try_wait() {
            // Another process holds the store: it will listen soon, or end, and then a new process must replace it.
            Ok(Some(status)) if status.code() == Some(EXIT_BUSY) => {
                pause = retry;
                retry = (retry * 2).min(RETRY_DELAY_MAX);
                child = start()?;
            }
            Ok(Some(status)) => return Err(last_error(home, status.code()).into()),
            _ => {}
        }
        if began.elapsed() > START_TIMEOUT {
            let message =
                format!("{}: the store is open in another process that does not answer", home.path().display());
            return Err(Failure::new(Reason::Busy, message).into());
        }
        tokio::time::sleep(pause).await;
    }
}

/// Returns the last error in the log of a process that could not start.
fn last_error(home: &Home, code: Option<i32>) -> Failure {
    let log = fs::read(home.log_path()).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let last = text.lines().rev().find_map(|line| line.strip_prefix("error: "));
    let reason = match code {
        Some(EXIT_FULL) => Reason::Full,
        _ => Reason::Fault,
    };
    let message = last.map_or_else(
        || format!("the background process ended at once; {} may say why", home.log_path().display()),
        str::to_owned,
    );
    Failure::new(reason, message)
}

/// Exit code of the background process when another process holds the store.
pub const EXIT_BUSY: i32 = 11;
/// Exit code of the background process when the disk is full.
pub const EXIT_FULL: i32 = 13;

/// Opens a store in this process.
pub fn open(home: &Home, runtime: &Path) -> Result<Service, Failure> {
    Ok(open_project(home, home.path(), runtime, HostFeatures::Enabled)?)
}

/// Opens a store in this process, with the settings in another directory.
pub fn open_project(
    home: &Home,
    settings: &Path,
    runtime: &Path,
    host: HostFeatures,
) -> amalgam_server::error::Result<Service> {
    let service = Service::open_with(home, service_options(settings, runtime, host)?)?;
    service.set_utc_offset(utc_offset);
    Ok(service)
}

/// Opens a store that other nodes may have open, too, with the settings in another directory.
pub fn open_shared(
    store: Store,
    live_trees: Arc<dyn LiveTrees>,
    home: &Home,
    settings: &Path,
    runtime: &Path,
    host: HostFeatures,
) -> amalgam_server::error::Result<Service> {
    let service = Service::open_shared(store, live_trees, home, service_options(settings, runtime, host)?)?;
    service.set_utc_offset(utc_offset);
    Ok(service)
}

fn service_options(
    settings: &Path,
    runtime: &Path,
    host: HostFeatures,
) -> amalgam_server::error::Result<ServiceOptions> {
    let ours = vec![amalgam_server::identity_of(runtime)?];
    Ok(ServiceOptions { clocks: Clocks { wall: now, uptime }, ours, settings: settings_in(settings), host })
}

/// Returns the source of the settings in a directory.
fn settings_in(place: &Path) -> SettingsSource {
    let place = place.to_owned();
    let cached = Mutex::new(None::<(FileStamp, Settings)>);
    // The settings are read on each use, so that a change applies at once. The file is parsed again only when it has changed.
    Arc::new(move || {
        let stamp = FileStamp::of(&place.join(CONFIG_FILE));
        let mut cached = cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, settings)) = &*cached
            && *known == stamp
            && stamp.is_settled()
        {
            return Ok(settings.clone());
        }
        let settings = Config::load(&place).and_then(|config| {
            let mut settings = config.settings()?;
            settings.commands.environment = environment::for_commands(&config);
            settings.commands.supervisor = environment::supervisor();
            Ok(settings)
        });
        let settings = settings.map_err(|error| amalgam_server::Error::new(Reason::Invalid, error.to_string()))?;
        *cached = Some((stamp, settings.clone()));
        Ok(settings)
    })
}

/// The device, inode, size and change time of a file, to detect changes; `None` if the file does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp(Option<(u64, u64, u64, i64)>);

impl FileStamp {
    /// Age after which a change time is trusted. Two changes within one tick of the file system's clock have the same time.
    const SETTLED_AFTER_NANOSECONDS: i64 = 1_000_000_000;

    fn of(path: &Path) -> Self {
        let stamp = |found: std::fs::Metadata| {
            let changed = found.ctime().saturating_mul(1_000_000_000).saturating_add(found.ctime_nsec());
            (found.dev(), found.ino(), found.size(), changed)
        };
        Self(std::fs::metadata(path).ok().map(stamp))
    }

    /// Returns whether the last change is old enough that the next one gets another time. A missing file counts as settled.
    fn is_settled(self) -> bool {
        self.0.is_none_or(|(.., changed)| now().0.saturating_sub(changed) > Self::SETTLED_AFTER_NANOSECONDS)
    }
}

/// Returns the offset of the system's time zone from UTC at a time, in seconds.
fn utc_offset(time: Time) -> i64 {
    let time = Timestamp::from_nanosecond(time.0.into()).unwrap_or(Timestamp::UNIX_EPOCH);
    TimeZone::system().to_offset(time).seconds().into()
}

/// Returns the directory of sockets: in the user's runtime directory, or a private one in the temporary directory.
pub fn runtime_directory() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let path = match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(runtime) if Path::new(&runtime).is_absolute() => Path::new(&runtime).join("amalgam"),
        _ => std::env::temp_dir().join(format!("amalgam-{user}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(&path)?;
    if !found.is_dir() || found.uid() != user || found.mode() & 0o077 != 0 {
        let message = format!("{} must be a directory of yours that nobody else can enter (mode 0700)", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(path)
}

/// Returns the socket of a store. Its name is a hash, because the length of socket paths is limited.
pub fn socket_path(home: &Path) -> io::Result<PathBuf> {
    let home = home.canonicalize().or_else(|_| std::path::absolute(home))?;
    let id = amalgam_engine::ChunkId::of(std::os::unix::ffi::OsStrExt::as_bytes(home.as_os_str()));
    Ok(runtime_directory()?.join(format!("{}.sock", &id.to_string()[..16])))
}

/// Returns the REST socket that belongs to a gRPC socket.
pub fn rest_socket(socket: &Path) -> PathBuf {
    socket.with_extension("rest")
}

fn fault(action: &str, error: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::Failed(Failure::new(Reason::Fault, format!("could not {action}: {error}")))
}
