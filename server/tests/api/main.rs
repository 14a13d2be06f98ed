//! The API as its callers meet it, on a channel inside the process or on a socket.

mod requests;

use std::path::Path;

use amalgam_engine::Time;
use amalgam_proto::v1::directory_service_client::DirectoryServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use amalgam_proto::{Failure, Reason, v1};
use amalgam_server::{Home, Service, serve};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// A clock that goes on whenever somebody looks at it.
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
}

impl Caller {
    fn new(channel: &Channel, name: &'static str) -> Self {
        let line = || InterceptedService::new(channel.clone(), Who(name));
        Self {
            workspaces: WorkspaceServiceClient::new(line()),
            operations: OperationServiceClient::new(line()),
            snapshots: SnapshotServiceClient::new(line()),
            directories: DirectoryServiceClient::new(line()),
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

async fn in_process(service: Service) -> Channel {
    serve::in_process(service).await.expect("a channel")
}
