//! The server: assembles its parts, starts them, and stops them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amalgam_e2b::E2b;
use amalgam_engine::Time;
use amalgam_proto::v1::key_service_server::KeyServiceServer;
use amalgam_proto::v1::project_service_server::ProjectServiceServer;
use amalgam_proto::v1::sandbox_service_server::SandboxServiceServer;
use amalgam_proto::v1::system_service_server::SystemServiceServer;
use amalgam_proto::v1::webhook_service_server::WebhookServiceServer;
use amalgam_server::MountEvent;
use tokio::sync::{Semaphore, watch};
use tonic::service::Routes;
use tracing::info;

use crate::audit::Audit;
use crate::catalog::Catalog;
use crate::gate::{Gate, Inner};
use crate::git::CLIENTS_MAX;
use crate::identity::{Authentication, Keys};
use crate::listener::{Front, bind, listen};
use crate::metrics::Metrics;
use crate::own_services::OwnServices;
use crate::projects::Projects;
use crate::rate::{RateLimits, RatePreset};
use crate::sandboxes::{SandboxOptions, Sandboxes};
use crate::system::SystemCalls;
use crate::tls::{Tls, TlsFiles};
use crate::webhook_service::Webhooks;
use crate::webhooks::{Dispatcher, WebhookOptions};

/// Maximum time that running calls may take to finish when the server stops.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// How a server listens, and which callers it accepts.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address.
    pub listen: SocketAddr,
    /// The address for e2b clients; `None` if they are not served. It uses the TLS files and keys of the other address.
    pub e2b: Option<SocketAddr>,
    /// The files for TLS; without them connections are not encrypted.
    pub tls: Option<TlsFiles>,
    /// Whether a proxy in front of the server terminates TLS, so that the address need not be on loopback.
    pub is_behind_tls_proxy: bool,
    /// Whether calls need a key.
    pub authentication: Authentication,
    /// Whether `/metrics` is answered without a key.
    pub metrics_open: bool,
    /// The file of the audit log; `None` for no audit log.
    pub audit_log: Option<PathBuf>,
    /// How many calls a key may make.
    pub rates: RatePreset,
    /// How events are sent to webhooks.
    pub webhooks: WebhookOptions,
    /// How sandboxes are started; `None` for a server without sandboxes.
    pub sandboxes: Option<SandboxOptions>,
    /// Whether each call has a span, which continues the trace of the caller.
    pub has_traces: bool,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address can be reached by others, and nothing encrypts what goes there.
    #[error(
        "{0} can be reached from other machines, and without TLS everybody on the way reads the keys; give --tls-cert and --tls-key, say \
         --behind-tls-proxy if a proxy does TLS, or listen on 127.0.0.1"
    )]
    NotEncrypted(SocketAddr),
    /// Calls without a key are for loopback only.
    #[error("--insecure-no-auth lets everybody in who can reach {0}; it is for loopback addresses only")]
    OpenToOthers(SocketAddr),
    /// The address cannot be used.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The TLS files cannot be used.
    #[error("the TLS files cannot be used: {0}")]
    Tls(io::Error),
    /// The audit log cannot be written.
    #[error("the audit log cannot be written: {0}")]
    Audit(io::Error),
}

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    front: Front,
    listener: tokio::net::TcpListener,
    e2b: Option<tokio::net::TcpListener>,
    tls: Option<Tls>,
    keys: Keys,
    projects: Projects,
    dispatcher: Dispatcher,
    sandboxes: Sandboxes,
    stop: watch::Sender<bool>,
    now: fn() -> Time,
}

impl Server {
    /// Checks the options and binds the address. [`Server::run`] answers calls.
    ///
    /// # Errors
    /// The options are not safe together, the address is taken, or a file cannot be used.
    pub async fn bind(
        catalog: Catalog,
        projects: Projects,
        options: ServerOptions,
        now: fn() -> Time,
    ) -> Result<Self, ServerError> {
        for address in std::iter::once(options.listen).chain(options.e2b) {
            let is_loopback = address.ip().is_loopback();
            if options.authentication == Authentication::Off && !is_loopback {
                return Err(ServerError::OpenToOthers(address));
            }
            if !is_loopback && options.tls.is_none() && !options.is_behind_tls_proxy {
                return Err(ServerError::NotEncrypted(address));
            }
        }
        // One provider for the whole process; a second installation fails, and the first one stays.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let tls = options.tls.map(Tls::open).transpose().map_err(ServerError::Tls)?;
        let audit =
            options.audit_log.map_or(Ok(Audit::off()), |path| Audit::to_file(&path)).map_err(ServerError::Audit)?;
        if let Some(store) = projects.local_store() {
            let audit = audit.clone();
            store.service().observe_nfs_mounts(Arc::new(move |mount: &MountEvent| audit.write_mount(now(), mount)));
        }
        let refused = |source| ServerError::Listen { address: options.listen, source };
        let listener = bind(options.listen).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let e2b = match options.e2b {
            Some(address) => {
                let refused = |source| ServerError::Listen { address, source };
                Some(bind(address).await.map_err(refused)?)
            }
            None => None,
        };
        let (stop, stopping) = watch::channel(false);
        let keys = Keys::new(catalog.clone(), options.authentication, now);
        let dispatcher = Dispatcher::new(catalog.clone(), projects.clone(), options.webhooks, now);
        let webhooks =
            Webhooks { catalog: catalog.clone(), projects: projects.clone(), dispatcher: dispatcher.clone(), now };
        let is_tls = tls.is_some() || options.is_behind_tls_proxy;
        let sandboxes =
            Sandboxes::new(catalog.clone(), projects.clone(), options.sandboxes, is_tls, audit.clone(), now);
        let own =
            OwnServices { catalog, projects: projects.clone(), sandboxes: sandboxes.clone(), keys: keys.clone(), now };
        let system = SystemCalls::new(projects.clone(), sandboxes.clone(), now);
        let gate = Gate::new(Inner {
            keys: keys.clone(),
            projects: projects.clone(),
            limits: RateLimits::new(options.rates),
            audit,
            metrics: Metrics::new(seconds(now()), sandboxes.metrics()),
            server_services: own_routes(own, system, Some(webhooks), Some(sandboxes.clone())).await,
            git_permits: Arc::new(Semaphore::new(CLIENTS_MAX)),
            now,
            stopping: stopping.clone(),
            has_traces: options.has_traces,
        });
        let (metrics_open, authentication) = (options.metrics_open, options.authentication);
        let front = Front { gate, stopping, metrics_open, authentication, sandboxes: sandboxes.clone(), e2b: None };
        Ok(Self { address, front, listener, e2b, tls, keys, projects, dispatcher, sandboxes, stop, now })
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address for e2b clients, or `None` if they are not served.
    pub fn e2b_address(&self) -> Option<SocketAddr> {
        self.e2b.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Answers calls until `ended` completes. Then new calls are refused, and running ones have 30 seconds to finish.
    pub async fn run(self, ended: impl Future<Output = ()>) {
        let Self { front, listener, e2b, tls, keys, projects, dispatcher, sandboxes, stop, address, now } = self;
        sandboxes.recover().await;
        info!(%address, "listening");
        let dispatching = tokio::spawn(async move { dispatcher.run().await });
        let background = [
            tokio::spawn({
                let keys = keys.clone();
                async move { keys.keep_checking().await }
            }),
            tokio::spawn({
                let projects = projects.clone();
                async move { projects.keep_closing().await }
            }),
            tokio::spawn({
                let projects = projects.clone();
                async move { projects.keep_scheduling(now).await }
            }),
            tokio::spawn({
                let projects = projects.clone();
                async move { projects.keep_closing_deleted(now).await }
            }),
            tokio::spawn({
                let sandboxes = sandboxes.clone();
                async move { sandboxes.keep_expiring().await }
            }),
            tokio::spawn({
                let tls = tls.clone();
                async move {
                    match tls {
                        Some(tls) => tls.keep_reloading().await,
                        None => std::future::pending().await,
                    }
                }
            }),
        ];
        let of_e2b = async {
            if let Some(listener) = e2b {
                let front = Front { e2b: Some(E2b::new(now)), ..front.clone() };
                listen(front, listener, tls.clone(), FINISH_WITHIN).await;
            }
        };
        let listening = listen(front.clone(), listener, tls.clone(), FINISH_WITHIN);
        let stopped = async {
            ended.await;
            info!("stopping");
            stop.send_replace(true);
            // Due deliveries would open projects again. They stay queued.
            dispatching.abort();
            sandboxes.stop_all().await;
            // Subscriptions never end by themselves.
            projects.close_all(FINISH_WITHIN).await;
            sandboxes.release_all();
        };
        tokio::join!(listening, of_e2b, stopped);
        background.iter().for_each(tokio::task::JoinHandle::abort);
        info!("stopped");
    }
}

/// Returns the routes of the server's own services. Calls of a service that is `None` are not implemented.
pub(crate) async fn own_routes(
    own: OwnServices,
    system: SystemCalls,
    webhooks: Option<Webhooks>,
    sandboxes: Option<Sandboxes>,
) -> Routes {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(amalgam_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the build wrote the descriptors");
    let routes = Routes::new(ProjectServiceServer::new(own.clone()))
        .add_service(KeyServiceServer::new(own))
        .add_service(SystemServiceServer::new(system))
        .add_service(health)
        .add_service(reflection);
    let routes = match webhooks {
        Some(webhooks) => routes.add_service(WebhookServiceServer::new(webhooks)),
        None => routes,
    };
    let routes = match sandboxes {
        Some(sandboxes) => routes.add_service(SandboxServiceServer::new(sandboxes)),
        None => routes,
    };
    routes.prepare()
}

#[allow(clippy::cast_precision_loss, reason = "seconds since 1970 fit")]
pub(crate) fn seconds(time: Time) -> f64 {
    time.0 as f64 / 1e9
}
