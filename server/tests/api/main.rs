//! The API as its callers meet it, on a channel inside the process or on a socket.

mod edits;
mod files;
mod mounts;
mod paging;
mod permissions;
mod queue;
mod requests;
mod states;
mod streams;

use std::path::Path;

use amalgam_engine::Time;
use amalgam_proto::v1::directory_service_client::DirectoryServiceClient;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_server::{Home, Service, serve};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// A clock that advances whenever it is read.
fn tick() -> Time {
    static TIME: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(1_000_000_000);
    Time(TIME.fetch_add(1_000, std::sync::atomic::Ordering::Relaxed))
}

fn open(around: &Path) -> Service {
    Service::open(&Home::new(around.join("home")), tick, &[]).expect("a service")
}

/// Says who calls.
#[derive(Clone)]
struct Who(&'static str);

impl Interceptor for Who {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert(amalgam_server::api::ACTOR_HEADER, self.0.parse().expect("a plain word"));
        Ok(request)
    }
}

type Line = InterceptedService<Channel, Who>;

/// One caller's clients.
#[derive(Clone)]
struct Caller {
    workspaces: WorkspaceServiceClient<Line>,
    operations: OperationServiceClient<Line>,
    snapshots: SnapshotServiceClient<Line>,
    directories: DirectoryServiceClient<Line>,
    files: FileServiceClient<Line>,
}

impl Caller {
    fn new(channel: &Channel, name: &'static str) -> Self {
        let line = || InterceptedService::new(channel.clone(), Who(name));
        Self {
            workspaces: WorkspaceServiceClient::new(line()),
            operations: OperationServiceClient::new(line()),
            snapshots: SnapshotServiceClient::new(line()),
            directories: DirectoryServiceClient::new(line()),
            files: FileServiceClient::new(line()),
        }
    }

    async fn create(&mut self, name: &str, id: &str) -> Result<v1::Workspace, Status> {
        let request = v1::CreateWorkspaceRequest {
            workspace_id: name.to_owned(),
            request_id: id.to_owned(),
            ..Default::default()
        };
        Ok(self.workspaces.create_workspace(request).await?.into_inner().workspace.expect("a workspace"))
    }

    async fn exists(&mut self, name: &str) -> bool {
        let request = v1::GetWorkspaceRequest { name: format!("workspaces/{name}") };
        self.workspaces.get_workspace(request).await.is_ok()
    }

    /// Attaches a directory to a workspace of this name.
    async fn attach(&mut self, directory: &Path, workspace: &str) -> String {
        let request = v1::AttachDirectoryRequest {
            path: directory.to_str().expect("text").as_bytes().to_vec().into(),
            workspace_id: workspace.to_owned(),
            ..Default::default()
        };
        let attached = self.directories.attach_directory(request).await.expect("attached").into_inner();
        attached.directory.expect("a directory").name
    }

    /// Commits a directory: the snapshot, and whether it is new.
    async fn commit(&mut self, directory: &str, message: &str, id: &str) -> Result<(String, bool), Status> {
        use v1::capture_directory_response::Event;
        let request = v1::CaptureDirectoryRequest {
            name: directory.to_owned(),
            message: message.to_owned(),
            request_id: id.to_owned(),
            ..Default::default()
        };
        let mut events = self.directories.capture_directory(request).await?.into_inner();
        while let Some(event) = events.message().await? {
            if let Some(Event::Result(result)) = event.event {
                return Ok((result.snapshot.map(|snapshot| snapshot.name).unwrap_or_default(), result.changed));
            }
        }
        panic!("a capture ends with its result");
    }
}

fn reason(status: &Status) -> Reason {
    Failure::of_status(status).expect("one of ours").reason
}

/// A server on a socket, in this process.
struct OnSocket {
    socket: std::path::PathBuf,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    served: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl OnSocket {
    async fn start(around: &Path) -> Self {
        let (service, socket) = (open(around), around.join("socket"));
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let at = socket.clone();
        let served = tokio::spawn(async move {
            let ended = async move { drop(ended.await) };
            serve::serve_unix(service, &at, std::time::Duration::from_secs(600), ended).await
        });
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Self { socket, end: Some(end), served }
    }

    /// A connection of its own.
    async fn connect(&self) -> Channel {
        let socket = self.socket.clone();
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let socket = socket.clone();
            async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://amalgam");
        endpoint.connect_with_connector(connector).await.expect("a connection")
    }

    /// Tells it to end, as a signal does, and says how long it took.
    async fn end(mut self) -> std::time::Duration {
        let began = std::time::Instant::now();
        drop(self.end.take());
        self.ended(began).await
    }

    /// Waits until it has ended.
    async fn ended(self, began: std::time::Instant) -> std::time::Duration {
        let served = tokio::time::timeout(std::time::Duration::from_secs(60), self.served).await;
        served.expect("it ends").expect("no panic").expect("it ends well");
        began.elapsed()
    }
}

async fn in_process(service: Service) -> Channel {
    serve::in_process(service).await.expect("a channel")
}
