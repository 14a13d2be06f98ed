//! The operator socket: backups of projects, and nothing else.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amalgam_gateway::{Catalog, OpenHome, PROJECT_HEADER, Projects, serve_operator};
use amalgam_proto::v1::transfer_service_client::TransferServiceClient;
use amalgam_proto::v1::{BackUpStoreRequest, GetHaveRequest};
use amalgam_server::Service;
use bytes::Bytes;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request};

use crate::running::now;

/// Connects as soon as the socket is there.
async fn connect(socket: &Path) -> Channel {
    loop {
        let path = socket.to_owned();
        let connector = tower::service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        if let Ok(channel) = Endpoint::from_static("http://operator").connect_with_connector(connector).await {
            return channel;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_operator_socket_answers_backups_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let catalog = Catalog::open(&home.path().join("catalog.db")).await.unwrap();
    let open_home: OpenHome = Arc::new(|home| Service::open(home, now, &[]));
    std::fs::create_dir_all(home.path().join("projects")).unwrap();
    let projects = Projects::in_directory(catalog.clone(), home.path(), open_home);
    projects.create_default(now()).await.unwrap();
    let socket = home.path().join("operator");
    let serving = tokio::spawn({
        let socket = socket.clone();
        async move { serve_operator(projects, &socket).await }
    });
    let mut client = TransferServiceClient::new(connect(&socket).await);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let directory = home.path().join("backup");
    let back_up = |project: &'static str| {
        let directory = Bytes::copy_from_slice(directory.as_os_str().as_bytes());
        let mut request = Request::new(BackUpStoreRequest { directory, verify: false, ..Default::default() });
        request.metadata_mut().insert(PROJECT_HEADER, project.parse().unwrap());
        request
    };
    let mut told = client.back_up_store(back_up("default")).await.unwrap().into_inner();
    while told.message().await.unwrap().is_some() {}
    assert!(directory.join("BACKUP").is_file());
    assert_eq!(client.back_up_store(back_up("other")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.back_up_store(back_up("Not-A-Name")).await.unwrap_err().code(), Code::InvalidArgument);
    let mut request = Request::new(GetHaveRequest::default());
    request.metadata_mut().insert(PROJECT_HEADER, "default".parse().unwrap());
    assert_eq!(client.get_have(request).await.unwrap_err().code(), Code::InvalidArgument);
    // The copy of the catalog is a catalog.
    let copy = home.path().join("copy.db");
    catalog.copy_to(&copy).await.unwrap();
    assert_eq!(Catalog::open(&copy).await.unwrap().list_projects(None, 9, true).await.unwrap().len(), 1);
    serving.abort();
}
