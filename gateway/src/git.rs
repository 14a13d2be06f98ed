//! Workspaces for git clients: `git clone http://HOST/PROJECT/WORKSPACE.git`, read-only.

use std::io::{self, Read};
use std::sync::Arc;

use amalgam_engine::Progress;
use amalgam_proto::{Failure, Reason};
use amalgam_server::{GitRequest, GitRoute, OpenStore, git_route};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use percent_encoding::percent_decode_str;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;

use crate::gate::{Gate, PROJECT_HEADER, Peer};
use crate::key::Scope;
use crate::method::{Access, Method};
use crate::rest;

/// The name of these requests in metrics and in the audit log, and the scope that they need.
static CLONE: Method = Method { name: "git/upload-pack", access: Access::Project(&[Scope::Read]), rest: "" };
/// Maximum number of git clients that are served at a time, over all projects: each takes a thread.
pub(crate) const CLIENTS_MAX: usize = 32;
/// Maximum time that a git client waits for a permit.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// Maximum time that the export of new snapshots may take before the client is answered.
const EXPORT_MAX: std::time::Duration = std::time::Duration::from_secs(3_600);
/// Maximum number of chunks of a body that are queued for a slow reader.
const QUEUE: usize = 8;
const PIECE_BYTES: usize = 64 << 10;

/// The repository and the route that a request of a git client names.
pub(crate) struct GitPlace {
    project: String,
    workspace: String,
    route: GitRoute,
}

/// Returns the repository that a request names, or `None` if it is no request of a git client.
pub(crate) fn place<B>(request: &Request<B>) -> Option<GitPlace> {
    let uri = request.uri();
    let (repository, rest) = uri.path().strip_prefix('/')?.split_once(".git/")?;
    let (project, workspace) = repository.split_once('/')?;
    let route = git_route(request.method().as_str(), rest, uri.query().unwrap_or_default());
    if route == GitRoute::Unknown {
        return None;
    }
    let workspace = percent_decode_str(workspace).decode_utf8().ok()?.into_owned();
    Some(GitPlace { project: project.to_owned(), workspace, route })
}

/// Answers a request of a git client.
pub(crate) async fn answer(gate: &Gate, place: GitPlace, mut request: Request<Body>, peer: Peer) -> Response<Body> {
    let headers = request.headers().clone();
    let failed = |status: &Status| failed(status, &headers);
    match HeaderValue::from_str(&place.project) {
        Ok(project) => request.headers_mut().insert(HeaderName::from_static(PROJECT_HEADER), project),
        Err(_) => return failed(&Failure::new(Reason::Invalid, "the name of the project is malformed").into_status()),
    };
    let permits = Arc::clone(gate.git_permits());
    // Only callers with a key wait for a permit.
    let work = async |store: Arc<OpenStore>, request: Request<Body>| {
        let Ok(Ok(permit)) = tokio::time::timeout(WAIT_MAX, permits.acquire_owned()).await else {
            return Err(Failure::new(Reason::Busy, "too many git clients are served; try again").into_status());
        };
        served(store, place, request, permit).await
    };
    match gate.call_other(&CLONE, request, peer, work).await {
        Ok(response) => response,
        Err(status) => failed(&status),
    }
}

async fn served(
    store: Arc<OpenStore>,
    place: GitPlace,
    request: Request<Body>,
    permit: OwnedSemaphorePermit,
) -> Result<Response<Body>, Status> {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let protocol = header("git-protocol");
    let asked = match place.route {
        GitRoute::Advertise => GitRequest::Advertise { protocol },
        GitRoute::UploadPack => {
            let is_gzip = header(CONTENT_ENCODING.as_str()).is_some_and(|encoding| encoding == "gzip");
            GitRequest::UploadPack { protocol, body: Box::new(reader(body)), is_gzip }
        }
        GitRoute::Refused(why) => return Err(Failure::new(Reason::Forbidden, why).into_status()),
        GitRoute::Unknown => return Err(Status::not_found("no request of a git client")),
    };
    let (send, receive) = mpsc::channel::<Result<Frame<Bytes>, Status>>(QUEUE);
    let (begun, begins) = tokio::sync::oneshot::channel();
    let export = CancelOnDrop(Arc::default());
    let progress = Arc::clone(&export.0);
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let mut response = match store.service().serve_git(&place.workspace, &head.headers, asked, &progress) {
            Ok(response) => response,
            Err(error) => {
                return drop(begun.send(Err(Failure::new(error.reason(), error.to_string()).into_status())));
            }
        };
        if begun.send(Ok(response.content_type())).is_err() {
            return;
        }
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let frame = match response.read(&mut piece) {
                Ok(0) => return,
                Ok(count) => Ok(Frame::data(Bytes::copy_from_slice(&piece[..count]))),
                Err(error) => Err(Status::internal(error.to_string())),
            };
            let is_over = frame.is_err();
            // If the client has disconnected, the git process is dropped with the response, and ends.
            if send.blocking_send(frame).is_err() || is_over {
                return;
            }
        }
    });
    let Ok(begun) = tokio::time::timeout(EXPORT_MAX, begins).await else {
        let message = "the workspace is too large to be exported for git clients in an hour";
        return Err(Failure::new(Reason::Invalid, message).into_status());
    };
    let content_type = begun.map_err(|_| Status::internal("a bug in the server; its log says more"))??;
    drop(export);
    let mut response = Response::new(Body::new(StreamBody::new(ReceiverStream::new(receive))));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// Cancels an export when its client disconnects. After the export it has no effect.
struct CancelOnDrop(Arc<Progress>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Builds the response to a refused request. On a missing or invalid key it asks for Basic authentication, so that git prompts for
/// a password.
fn failed(status: &Status, headers: &HeaderMap) -> Response<Body> {
    let mut response = rest::failed(status, headers);
    if response.status() == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"amalgam\""));
    }
    response
}

/// Returns a blocking reader of a request body. Reads fail when the client disconnects.
fn reader(mut body: Body) -> BodyReader {
    let (send, pieces) = mpsc::channel(QUEUE);
    tokio::spawn(async move {
        while let Some(frame) = body.frame().await {
            let piece = frame.map(|frame| frame.into_data().unwrap_or_default());
            let is_over = piece.is_err();
            if send.send(piece.map_err(|error| io::Error::other(error.to_string()))).await.is_err() || is_over {
                return;
            }
        }
    });
    BodyReader { pieces, current: Bytes::new() }
}

struct BodyReader {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}
