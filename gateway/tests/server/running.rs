//! A running server with projects in a temporary directory, and clients for it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_gateway::{
    Authentication, Catalog, ClusterOptions, ClusterStores, NewKey, OpenHome, ProjectName, Projects, RatePreset,
    SandboxOptions, Scopes, Server, ServerOptions, SharedStore, TlsFiles, WebhookOptions,
};
use amalgam_server::{HostFeatures, Service, ServiceOptions};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};

/// How long the body of an answer may take. The stream of a command lasts as long as the command.
const BODY_WITHIN: Duration = Duration::from_secs(90);

/// The present time.
pub fn now() -> Time {
    #[allow(clippy::disallowed_methods, reason = "keys expire by the clock")]
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH).unwrap();
    Time(i64::try_from(since.as_nanos()).unwrap())
}

/// A server that runs until it is stopped.
pub struct Running {
    pub home: tempfile::TempDir,
    pub catalog: Catalog,
    pub address: SocketAddr,
    /// The address for e2b clients.
    pub e2b: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<tokio::task::JoinHandle<()>>,
}

/// How a server is started.
pub struct Setup {
    pub rates: RatePreset,
    pub webhooks: WebhookOptions,
    pub tls: Option<TlsFiles>,
    pub sandboxes: Option<SandboxOptions>,
    pub has_e2b: bool,
    pub now: fn() -> Time,
    /// The cluster that the server is a node of.
    pub cluster: Option<ClusterOptions>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            // Some tests make thousands of calls.
            rates: RatePreset::uniform(std::num::NonZeroU32::MAX),
            webhooks: WebhookOptions::default(),
            tls: None,
            sandboxes: None,
            has_e2b: false,
            cluster: None,
            now,
        }
    }
}

impl Running {
    /// A server with the project `default`.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// A server with other rate limits.
    pub async fn with_rates(rates: RatePreset) -> Self {
        Self::with(Setup { rates, ..Setup::default() }).await
    }

    /// A server with sandboxes; `options` gets its directory.
    pub async fn with_sandboxes(options: impl FnOnce(&Path) -> SandboxOptions) -> Self {
        let home = tempfile::tempdir().unwrap();
        let sandboxes = Some(options(home.path()));
        Self::in_home(home, Setup { sandboxes, ..Setup::default() }).await
    }

    /// A server with other settings.
    pub async fn with(setup: Setup) -> Self {
        Self::in_home(tempfile::tempdir().unwrap(), setup).await
    }

    /// A server on data that another one may have left.
    pub async fn in_home(home: tempfile::TempDir, setup: Setup) -> Self {
        let clock = setup.now;
        let (catalog, open_home) = match &setup.cluster {
            Some(cluster) => {
                let (catalog, options) = (Catalog::connect(&cluster.database).await.unwrap(), cluster.clone());
                let stores = tokio::task::spawn_blocking(move || ClusterStores::connect(&options).unwrap());
                let stores = stores.await.unwrap();
                let open_home: OpenHome = Arc::new(move |home| {
                    let SharedStore { store, live_trees } = stores.open(home)?;
                    let clock: amalgam_server::Clock = clock;
                    let options = ServiceOptions { host: HostFeatures::Disabled, ..ServiceOptions::new(clock.into()) };
                    Service::open_shared(store, live_trees, home, options)
                });
                (catalog, open_home)
            }
            None => {
                let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
                let open_home: OpenHome = Arc::new(move |home| Service::open(home, clock, &[]));
                (catalog, open_home)
            }
        };
        let projects = Projects::in_directory(catalog.clone(), home.path(), open_home);
        std::fs::create_dir_all(home.path().join("projects")).unwrap();
        projects.create_default(now()).await.unwrap();
        let options = ServerOptions {
            listen: "127.0.0.1:0".parse().unwrap(),
            e2b: setup.has_e2b.then(|| "127.0.0.1:0".parse().unwrap()),
            tls: setup.tls,
            is_behind_tls_proxy: false,
            authentication: Authentication::Keys,
            metrics_open: false,
            audit_log: Some(home.path().join("audit.log")),
            rates: setup.rates,
            webhooks: setup.webhooks,
            sandboxes: setup.sandboxes,
            has_traces: false,
        };
        let server = Server::bind(catalog.clone(), projects, options, clock).await.unwrap();
        let (address, e2b) = (server.address(), server.e2b_address());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        Self { home, catalog, address, e2b, stop: Some(stop), served: Some(served) }
    }

    /// Stops the server, and starts another one on its data.
    pub async fn restart(mut self, setup: Setup) -> Self {
        self.stop().await;
        self.catalog.close().await;
        Self::in_home(self.home, setup).await
    }

    /// Makes a key: its scopes, its projects, and whether it has expired.
    pub async fn key(&self, scopes: &str, projects: &[&str], is_expired: bool) -> String {
        self.key_of("ann", scopes, projects, is_expired).await
    }

    /// Makes a key of an agent.
    pub async fn key_of(&self, agent: &str, scopes: &str, projects: &[&str], is_expired: bool) -> String {
        let key = NewKey {
            agent: agent.to_owned(),
            scopes: scopes.parse::<Scopes>().unwrap(),
            projects: projects.iter().map(|name| ProjectName::new(*name).unwrap()).collect(),
            expires: is_expired.then(|| Time(now().0 - 1)),
        };
        self.catalog.create_key(&key, now()).await.unwrap().0.reveal()
    }

    /// A connection for gRPC.
    pub async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// Makes one REST call.
    pub async fn rest(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.request_at(self.address, method, path, headers, body).await
    }

    /// Makes one request of an e2b client.
    pub async fn e2b(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        self.request_at(self.e2b.unwrap(), method, path, headers, body).await
    }

    async fn request_at(
        &self,
        address: SocketAddr,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        request.headers_mut().insert("host", "localhost".parse().unwrap());
        for (name, value) in headers {
            request
                .headers_mut()
                .insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        let response =
            tokio::time::timeout(Duration::from_secs(20), send.send_request(request)).await.unwrap().unwrap();
        let (head, body) = response.into_parts();
        let bytes = tokio::time::timeout(BODY_WITHIN, body.collect()).await.unwrap().unwrap().to_bytes();
        connection.abort();
        Answer { status: head.status, headers: head.headers, bytes }
    }

    /// Stops the server and waits for its end.
    pub async fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(served) = self.served.take() {
            served.await.unwrap();
        }
    }

    /// Asks the server to stop, and returns at once.
    pub fn ask_to_stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }
}

/// The answer of a REST call.
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {:?}", self.bytes))
    }
}

/// A gRPC request without fields.
pub fn empty_call(method: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::new(Body::new(Full::new(Bytes::from_static(&[0; 5]))));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = format!("/{method}").parse().unwrap();
    request.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    for (name, value) in headers {
        request.headers_mut().insert(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
    }
    request
}
