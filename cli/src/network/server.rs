//! `amalgam serve --listen`: the server for callers on other machines.

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::StoreOptions;
use amalgam_engine::backend::{RocksOptions, SharedMemory};
use amalgam_gateway::{
    Authentication, Catalog, CatalogError, ClusterOptions, ClusterStores, KeyText, NewKey, NodeCache, OpenHome,
    Projects, Scopes, Server,
};
use amalgam_proto::Reason;
use amalgam_server::serve::{Calls, serve_unix_counted};
use amalgam_server::{Home, HostFeatures, NfsListen, OpenStore};
use tokio::signal::unix::{SignalKind, signal};

use super::rest::RestListener;
use super::settings::{CATALOG, NetworkOptions};
use crate::allocator::return_memory_in_background;
use crate::connect::{self, now, runtime_directory, socket_path};
use crate::error::CliError;
use crate::exit::Exit;
use crate::logging::{LogOptions, Traces};
use crate::serve_settings::ServerSettings;

/// The file that a running server has locked, at the same place.
const LOCK: &str = "server.lock";
/// The file that says where a running server of a data directory listens for its operator.
const OPERATOR: &str = "operator.socket";
/// The directory with the files of a node of a cluster.
const NODE: &str = "node";
/// The environment variable with the database of the cluster.
const CLUSTER: &str = "AMALGAM_CLUSTER";
/// The environment variable with the text of the first admin key.
const API_KEY: &str = "API_KEY";
/// Idle time of a server in the foreground, which never ends because it is idle.
const NEVER: Duration = Duration::from_secs(u64::MAX / 4);
/// The memory of all projects together: RocksDB's cache and write buffers.
const BLOCK_CACHE_BYTES: usize = 256 << 20;
const WRITE_BUFFER_BYTES: usize = 128 << 20;
/// The memory of each project: the write buffers of chunks and of other rows, and decoded objects.
const CHUNK_BUFFER_BYTES: usize = 16 << 20;
const OTHER_BUFFER_BYTES: usize = 4 << 20;
const OBJECT_CACHE_BYTES: u64 = 8 << 20;
/// Time limit for abandoned work when the process ends.
const END_WITHIN: Duration = Duration::from_secs(10);

/// Opens the catalog in a directory, and creates it if it does not exist.
pub async fn open_catalog(directory: &Path) -> Result<Catalog, CliError> {
    make_private(directory).map_err(|error| CliError::machine(directory.display(), &error))?;
    Catalog::open(&directory.join(CATALOG)).await.map_err(catalog_error)
}

/// Opens the catalog of a server: that of its cluster, by the flag or the environment, or the one in a directory.
pub async fn open_server_catalog(cluster: Option<&str>, directory: &Path) -> Result<Catalog, CliError> {
    let variable = std::env::var(CLUSTER).ok().filter(|value| !value.is_empty());
    match cluster.or(variable.as_deref()) {
        Some(database) => Catalog::connect(database).await.map_err(catalog_error),
        None => open_catalog(directory).await,
    }
}

/// Converts an error of the catalog to one of the command.
#[allow(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub fn catalog_error(error: CatalogError) -> CliError {
    let (exit, code) = match error {
        CatalogError::NoKey(_)
        | CatalogError::NoProject(_)
        | CatalogError::NoWebhook(_)
        | CatalogError::NoDelivery(..) => (Exit::ERROR, "NOT_FOUND"),
        CatalogError::ProjectExists(_) => (Exit::ERROR, "ALREADY_EXISTS"),
        _ => (Exit::ERROR, "FAULT"),
    };
    CliError::new(exit, code, error.to_string())
}

/// Serves until SIGTERM or Ctrl-C.
async fn run(options: NetworkOptions) -> Result<(), CliError> {
    let directory = options.directory();
    let catalog = match &options.cluster {
        Some(cluster) => {
            make_private(&directory).map_err(|error| CliError::machine(directory.display(), &error))?;
            Catalog::connect(&cluster.database).await.map_err(catalog_error)?
        }
        None => open_catalog(&directory).await?,
    };
    let _lock = lock(&directory)?;
    let has_keys = make_first_key(&catalog).await?;
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let (projects, beside) = match (&options.cluster, &options.data) {
        (Some(cluster), _) => {
            let place = directory.join(NODE).join("cache");
            let cache = NodeCache { directory: place, bytes_max: options.node_cache_bytes };
            let cache = (options.node_cache_bytes > 0).then_some(cache);
            let cluster = ClusterOptions { cache, ..cluster.clone() };
            (cluster_projects(catalog.clone(), &directory, cluster, options.host_features()).await?, None)
        }
        (None, Some(data)) => {
            let projects = data_projects(catalog.clone(), data, options.host_features())?;
            serve_operator(projects.clone(), data, stopped.clone())?;
            (projects, None)
        }
        (None, None) => {
            let (projects, beside) =
                local_project(&options.home, options.nfs.clone(), catalog.clone(), stopped.clone())?;
            (projects, Some(beside))
        }
    };
    let fault = |error: amalgam_gateway::ProjectError| CliError::new(Exit::ERROR, "FAULT", error.to_string());
    projects.create_default(now()).await.map_err(fault)?;
    let usage = |error: amalgam_gateway::ServerError| CliError::new(Exit::USAGE, "INVALID", error.to_string());
    let server = Server::bind(catalog.clone(), projects, options.server.clone(), now).await.map_err(usage)?;
    announce(&server, &options, has_keys);
    let mut term =
        signal(SignalKind::terminate()).map_err(|error| CliError::machine("could not listen for signals", &error))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(|error| CliError::machine("could not listen for signals", &error))?;
    let ended = async {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    server.run(ended).await;
    stop.send_replace(true);
    if let Some(beside) = beside {
        let _ = beside.await;
    }
    catalog.close().await;
    Ok(())
}

/// Listens on a socket for backups until the server stops, and records its path in the data directory.
fn serve_operator(
    projects: Projects,
    data: &Path,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::machine("the operator socket", &error);
    let socket = socket_path(data).map_err(failed)?;
    let record = data.join(OPERATOR);
    let text = std::os::unix::ffi::OsStrExt::as_bytes(socket.as_os_str()).to_vec();
    std::fs::write(&record, text).map_err(failed)?;
    tokio::spawn(async move {
        tokio::select! {
            served = amalgam_gateway::serve_operator(projects, &socket) => {
                if let Err(error) = served {
                    tracing::warn!(%error, "backups while the server runs are not possible");
                }
            }
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
        let _ = (std::fs::remove_file(&socket), std::fs::remove_file(&record));
    });
    Ok(())
}

/// Returns the socket on which the running server of a data directory listens for its operator.
pub fn operator_socket(data: &Path) -> Result<PathBuf, CliError> {
    let record = data.join(OPERATOR);
    let text = std::fs::read(&record).map_err(|error| CliError::machine(record.display(), &error))?;
    Ok(PathBuf::from(std::ffi::OsString::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&text))))
}

/// Locks a data directory, so that no second server uses its projects.
pub fn lock(directory: &Path) -> Result<File, CliError> {
    let path = directory.join(LOCK);
    let failed = |error: io::Error| CliError::machine(path.display(), &error);
    let file = File::options().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let message = format!("another server uses {}", directory.display());
            Err(CliError::new(Exit::BUSY, "BUSY", message))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Prints where the server listens, and how to get a key.
fn announce(server: &Server, options: &NetworkOptions, has_keys: bool) {
    let scheme = if options.server.tls.is_some() { "https" } else { "http" };
    let mut lines = vec![format!("listening on {scheme}://{}", server.address())];
    if let Some(address) = server.e2b_address() {
        lines.push(format!("e2b clients: E2B_API_URL={scheme}://{address} E2B_SANDBOX_URL={scheme}://{address}"));
    }
    match options.server.authentication {
        Authentication::Off => {
            lines.push(
                "WARNING: --insecure-no-auth: every process on this machine may read and change everything".to_owned(),
            );
        }
        Authentication::Keys if !has_keys => {
            let place = match (&options.cluster, &options.data) {
                (Some(_), _) => " --cluster URL".to_owned(),
                (None, Some(data)) => format!(" --data {}", data.display()),
                (None, None) => String::new(),
            };
            lines.push(format!("there is no API key yet; `amalgam key create admin --scope admin{place}` makes one"));
        }
        Authentication::Keys | Authentication::SameUser => {}
    }
    // A closed standard error cannot be reported.
    lines.iter().for_each(|line| drop(writeln!(io::stderr(), "{line}")));
}

/// Stores the key of the environment as the first admin key. Returns whether there is any key.
async fn make_first_key(catalog: &Catalog) -> Result<bool, CliError> {
    if let Some(text) = std::env::var(API_KEY).ok().filter(|text| !text.is_empty()) {
        let key = KeyText::parse(&text).ok_or_else(|| {
            let message = format!("{API_KEY} holds no key of this server");
            CliError::new(Exit::USAGE, "INVALID", message).hint("`amalgam key generate` prints one that fits")
        })?;
        let admin = NewKey { agent: "admin".to_owned(), scopes: Scopes::ALL, projects: Vec::new(), expires: None };
        catalog.store_key(&key, &admin, now()).await.map_err(catalog_error)?;
    }
    Ok(!catalog.list_keys().await.map_err(catalog_error)?.is_empty())
}

/// Returns the projects in a data directory.
fn data_projects(catalog: Catalog, data: &Path, host: HostFeatures) -> Result<Projects, CliError> {
    let runtime = runtime_directory().map_err(|error| CliError::machine("the runtime directory", &error))?;
    make_private(&data.join("projects")).map_err(|error| CliError::machine(data.display(), &error))?;
    let place = data.to_owned();
    let rocks = RocksOptions {
        shared: Some(SharedMemory::new(BLOCK_CACHE_BYTES, WRITE_BUFFER_BYTES)),
        chunk_buffer_bytes: CHUNK_BUFFER_BYTES,
        other_buffer_bytes: OTHER_BUFFER_BYTES,
        ..RocksOptions::default()
    };
    let options = StoreOptions { cache_bytes: OBJECT_CACHE_BYTES, rocks, ..StoreOptions::default() };
    let open_home: OpenHome = Arc::new(move |home: &Home| {
        connect::open_project(&home.clone().with_options(options.clone()), &place, &runtime, host)
    });
    Ok(Projects::in_directory(catalog, data, open_home))
}

/// Connects to a cluster and returns its projects. The directory has files of this node only.
async fn cluster_projects(
    catalog: Catalog,
    directory: &Path,
    cluster: ClusterOptions,
    host: HostFeatures,
) -> Result<Projects, CliError> {
    let runtime = runtime_directory().map_err(|error| CliError::machine("the runtime directory", &error))?;
    // Apart from the projects of a server that used the directory before: a node removes files that it finds in its own.
    let files = directory.join(NODE);
    make_private(&files.join("projects")).map_err(|error| CliError::machine(directory.display(), &error))?;
    let connected = tokio::task::spawn_blocking(move || ClusterStores::connect(&cluster)).await;
    let failed = |error: String| CliError::new(Exit::ERROR, "FAULT", format!("the cluster: {error}"));
    let stores = connected.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
    let (place, opening) = (directory.to_owned(), stores.clone());
    let open_home: OpenHome = Arc::new(move |home: &Home| {
        let shared = opening.open(home)?;
        connect::open_shared(shared.store, shared.live_trees, home, &place, &runtime, host)
    });
    Ok(Projects::in_cluster(catalog, &files, stores, open_home))
}

/// Opens the local store as project `default`, and serves it on its Unix socket, too. Returns the projects and the task of the
/// socket.
fn local_project(
    home: &Path,
    nfs: Option<NfsListen>,
    catalog: Catalog,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) -> Result<(Projects, tokio::task::JoinHandle<io::Result<()>>), CliError> {
    let machine = |error: io::Error| CliError::machine("the runtime directory", &error);
    let (runtime, socket) = (runtime_directory().map_err(machine)?, socket_path(home).map_err(machine)?);
    let service = connect::open(&Home::new(home), &runtime).map_err(|failure| match failure.reason {
        Reason::Busy => CliError::from(failure).hint("`amalgam stop` ends the background process of this store"),
        _ => CliError::from(failure),
    })?;
    nfs.map_or(Ok(()), |nfs| service.listen_nfs(nfs).map(drop)).map_err(amalgam_proto::Failure::from)?;
    let calls = Calls::new();
    let projects = Projects::local(catalog, OpenStore::beside_counted(service.clone(), Arc::clone(&calls)));
    let catalog_file = home.join(CATALOG);
    let ended = async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    let serving = tokio::spawn(async move {
        // The sandboxes of the store are those of the server on the network.
        let rest = RestListener::start(&service, &calls, catalog_file, &socket, None)?;
        let served = serve_unix_counted(service, calls, &socket, NEVER, ended).await;
        rest.end().await;
        served
    });
    Ok((projects, serving))
}

/// Serves until the process is asked to stop, on a runtime of its own. `home` is that of the local store.
pub fn serve(
    settings: &ServerSettings,
    listen: SocketAddr,
    nfs: Option<NfsListen>,
    home: &Path,
    log: &LogOptions,
) -> Result<(), CliError> {
    let options = NetworkOptions::load(settings, listen, nfs, home)?;
    let filter = settings.text("log").map(str::to_owned);
    let log = LogOptions { filter, ..log.clone() };
    return_memory_in_background();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::machine("could not start", &error))?;
    let traces = {
        // The connection to the collector belongs to the runtime.
        let _inside = runtime.enter();
        options.otlp_endpoint.as_deref().map(Traces::connect).transpose()?
    };
    log.log_server(traces.as_ref());
    let done = runtime.block_on(run(options));
    if let Some(traces) = traces {
        traces.end();
    }
    runtime.shutdown_timeout(END_WITHIN);
    done
}

/// Creates a directory that only this user can enter.
pub fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}
