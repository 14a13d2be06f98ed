//! The Unix socket of the operator: the server's own user backs up projects while the server runs. It answers one method and no other.

use std::convert::Infallible;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tonic::Status;
use tonic::body::Body;
use tracing::{debug, warn};

use crate::gate::PROJECT_HEADER;
use crate::project::ProjectName;
use crate::projects::Projects;

/// The only method: it writes a backup of a project into a directory that the operator names.
const BACK_UP: &str = "/amalgam.v1.TransferService/BackUpStore";
/// Delay before a connection is accepted again after the kernel refused.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Listens on a Unix socket, for this user alone, until the future is dropped. The caller holds the lock of the data directory, so a
/// socket at that path is one that a dead server left.
///
/// # Errors
/// The socket cannot be made.
pub async fn serve_operator(projects: Projects, socket: &Path) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    let user = std::fs::metadata(socket)?.uid();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors or memory: connections that end release some.
                warn!(%error, "no connection of the operator can be accepted at the moment");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        // The mode of the socket keeps other users out already; this is a second check.
        if stream.peer_cred().is_ok_and(|peer| peer.uid() == user) {
            tokio::spawn(serve(projects.clone(), stream));
        }
    }
}

async fn serve(projects: Projects, stream: UnixStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let projects = projects.clone();
        async move { Ok::<_, Infallible>(answer(&projects, request.map(Body::new)).await) }
    });
    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "a connection of the operator ended with an error");
    }
}

async fn answer(projects: &Projects, request: Request<Body>) -> Response<Body> {
    let refused = |message: String| Failure::new(Reason::Invalid, message).into_status().into_http();
    if request.uri().path() != BACK_UP {
        return refused("this socket is for backups".to_owned());
    }
    let name = request.headers().get(PROJECT_HEADER).and_then(|name| name.to_str().ok()).unwrap_or_default();
    let name = match ProjectName::new(name) {
        Ok(name) => name,
        Err(why) => return refused(why),
    };
    match projects.open(&name).await {
        Ok(store) => store.call_local(request).await,
        Err(error) => Status::from(error).into_http(),
    }
}
