//! A server with one key in a scratch directory, and connections to it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use amalgam_engine::backend::{RocksOptions, SharedMemory};
use amalgam_engine::{StoreOptions, Time};
use amalgam_gateway::{
    Authentication, Catalog, NewKey, OpenHome, Projects, RatePreset, SandboxOptions, Scopes, Server, ServerOptions,
};
use amalgam_server::Service;
use tokio::sync::oneshot;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::Result;

/// Any error.
pub type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// A server that runs until it is stopped.
pub struct Served {
    /// Where it listens.
    pub address: SocketAddr,
    /// A key for everything.
    pub key: String,
    /// Its projects.
    pub projects: Projects,
    catalog: Catalog,
    stop: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<()>,
}

/// Adds the key to every call.
#[derive(Clone)]
pub struct WithKey(MetadataValue<Ascii>);

impl Interceptor for WithKey {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("x-api-key", self.0.clone());
        Ok(request)
    }
}

/// The present time.
pub fn now() -> Time {
    #[allow(clippy::disallowed_methods, reason = "a server reads the clock")]
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

impl Served {
    /// Starts a server with the project `default`, and settings like those of the command.
    pub async fn start(directory: &Path) -> Result<Self> {
        Self::start_with(directory, None).await
    }

    /// Starts a server with sandboxes, or without.
    pub async fn start_with(directory: &Path, sandboxes: Option<SandboxOptions>) -> Result<Self> {
        std::fs::create_dir_all(directory.join("projects"))?;
        let catalog = Catalog::open(&directory.join("catalog.db")).await?;
        let rocks = RocksOptions {
            shared: Some(SharedMemory::new(256 << 20, 128 << 20)),
            chunk_buffer_bytes: 16 << 20,
            other_buffer_bytes: 4 << 20,
            ..RocksOptions::default()
        };
        let options = StoreOptions { cache_bytes: 8 << 20, rocks, ..StoreOptions::default() };
        let open_home: OpenHome =
            Arc::new(move |home| Service::open(&home.clone().with_options(options.clone()), now, &[]));
        let projects = Projects::in_directory(catalog.clone(), directory, open_home);
        projects.create_default(now()).await?;
        let key = create_key(&catalog, "bench").await?;
        let options = ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            e2b: None,
            tls: None,
            is_behind_tls_proxy: false,
            authentication: Authentication::Keys,
            metrics_open: false,
            audit_log: Some(directory.join("audit.log")),
            rates: RatePreset::uniform(NonZeroU32::MAX),
            webhooks: amalgam_gateway::WebhookOptions::default(),
            sandboxes,
            has_traces: false,
        };
        let server = Server::bind(catalog.clone(), projects.clone(), options, now).await?;
        let address = server.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Ok(Self { address, key, projects, catalog, stop, served })
    }

    /// A new connection.
    pub async fn connect(&self) -> Result<Channel> {
        Ok(Endpoint::from_shared(format!("http://{}", self.address))?.connect().await?)
    }

    /// Adds the key to calls.
    pub fn with_key(&self) -> Result<WithKey> {
        Ok(WithKey(self.key.parse()?))
    }

    /// Adds the key of another agent to calls.
    pub async fn with_key_of(&self, agent: &str) -> Result<WithKey> {
        Ok(WithKey(create_key(&self.catalog, agent).await?.parse()?))
    }

    /// Stops the server.
    pub async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(self.served.await?)
    }
}

async fn create_key(catalog: &Catalog, agent: &str) -> Result<String> {
    let key = NewKey { agent: agent.to_owned(), scopes: Scopes::ALL, projects: Vec::new(), expires: None };
    Ok(catalog.create_key(&key, now()).await?.0.reveal())
}

/// A runtime for a server and its clients.
pub fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}

/// The resident memory of this process.
pub fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1_024)
}
