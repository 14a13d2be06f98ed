//! REST on a Unix socket, for programs of the user who owns the store, and gRPC for the commands about sandboxes. There are no keys: the
//! socket lets no other user in.
//!
//! The catalog is opened for the first caller, so that a process without one pays nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_server::serve::Calls;
use amalgam_server::{OpenStore, Service};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tracing::{debug, warn};

use crate::audit::Audit;
use crate::catalog::Catalog;
use crate::gate::{Gate, Inner};
use crate::git::CLIENTS_MAX;
use crate::identity::{Authentication, Keys};
use crate::listener::{ACCEPT_RETRY_DELAY, Front, HEAD_WITHIN, Protocol, serve};
use crate::metrics::Metrics;
use crate::own_services::OwnServices;
use crate::projects::Projects;
use crate::rate::{RateLimits, RatePreset};
use crate::sandboxes::{SandboxOptions, Sandboxes};
use crate::server::{own_routes, seconds};
use crate::system::SystemCalls;

/// Maximum time that running calls may take to finish when the process ends.
const FINISH_WITHIN: Duration = Duration::from_secs(5);

/// The store that is served, and the user who may connect.
pub struct LocalOptions {
    /// The file of the catalog.
    pub catalog: PathBuf,
    /// The store.
    pub service: Service,
    /// The calls of the store, which keep the process from being idle.
    pub calls: Arc<Calls>,
    /// The user who may connect.
    pub user: u32,
    /// How sandboxes are started; `None` for a server without sandboxes.
    pub sandboxes: Option<SandboxOptions>,
    /// The clock.
    pub now: fn() -> Time,
}

/// Answers REST calls on a Unix socket until `stopping` is true.
pub async fn serve_local(options: LocalOptions, listener: UnixListener, mut stopping: watch::Receiver<bool>) {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_WITHIN);
    builder.http2().timer(TokioTimer::new());
    let (protocol, graceful, stopped) =
        (Arc::new(Protocol::Either(builder)), GracefulShutdown::new(), stopping.clone());
    let mut front: Option<Front> = None;
    let mut expiring = None;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopping.wait_for(|stopping| *stopping) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) if is_of(&stream, options.user) => stream,
            Ok(_) => continue,
            Err(error) => {
                // Out of file descriptors or memory: connections that end release some.
                warn!(%error, "no connection can be accepted at the moment");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        if front.is_none() {
            front = open(&options, stopped.clone()).await;
            expiring = front.as_ref().map(|front| {
                let sandboxes = front.sandboxes.clone();
                tokio::spawn(async move { sandboxes.keep_expiring().await })
            });
        }
        let Some(front) = front.clone() else { continue };
        let (protocol, watcher) = (Arc::clone(&protocol), graceful.watcher());
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        tokio::spawn(async move { serve(front, &protocol, watcher, stream, peer).await });
    }
    drop(listener);
    if let Some(front) = &front {
        expiring.inspect(tokio::task::JoinHandle::abort);
        front.sandboxes.stop_all().await;
    }
    if tokio::time::timeout(FINISH_WITHIN, graceful.shutdown()).await.is_err() {
        debug!("connections are closed that did not end in time");
    }
    if let Some(front) = &front {
        front.sandboxes.release_all();
    }
}

fn is_of(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

async fn open(options: &LocalOptions, stopping: watch::Receiver<bool>) -> Option<Front> {
    let catalog = match Catalog::open(&options.catalog).await {
        Ok(catalog) => catalog,
        Err(error) => {
            warn!(%error, "the catalog cannot be opened, so that REST is not answered");
            return None;
        }
    };
    let (now, authentication) = (options.now, Authentication::SameUser);
    let store = OpenStore::beside_counted(options.service.clone(), Arc::clone(&options.calls));
    let projects = Projects::local(catalog.clone(), store);
    if let Err(error) = projects.create_default(now()).await {
        warn!(%error, "the project cannot be entered into the catalog, so that REST is not answered");
        return None;
    }
    let keys = Keys::new(catalog.clone(), authentication, now);
    let sandboxes =
        Sandboxes::new(catalog.clone(), projects.clone(), options.sandboxes.clone(), false, Audit::off(), now);
    sandboxes.recover().await;
    let has_sandboxes = options.sandboxes.is_some();
    let own =
        OwnServices { catalog, projects: projects.clone(), sandboxes: sandboxes.clone(), keys: keys.clone(), now };
    let system = SystemCalls::new(projects.clone(), sandboxes.clone(), now);
    let gate = Gate::new(Inner {
        keys,
        projects,
        limits: RateLimits::new(RatePreset::DEFAULT),
        audit: Audit::off(),
        metrics: Metrics::new(seconds(now()), sandboxes.metrics()),
        // Webhooks are not served: this socket does not live long enough to send deliveries.
        server_services: own_routes(own, system, None, has_sandboxes.then(|| sandboxes.clone())).await,
        git_permits: Arc::new(Semaphore::new(CLIENTS_MAX)),
        now,
        stopping: stopping.clone(),
        has_traces: false,
    });
    Some(Front { gate, stopping, metrics_open: true, authentication, sandboxes, e2b: None })
}
