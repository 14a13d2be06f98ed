//! Files by call beside a mount of the same workspace, and after a crash.

use std::fs;
use std::path::{Path, PathBuf};

use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tonic::transport::{Channel, Endpoint, Uri};
use v1::write_file_request::Part;

use super::scratch::{Scratch, can_mount};
use super::{crash, mounted, read, until};

/// The socket of the background process.
fn socket(scratch: &Scratch) -> PathBuf {
    let mut open = vec![scratch.path().join("runtime")];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("listed").flatten() {
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
            } else if is_socket(&path) && path.extension().is_none_or(|extension| extension != "door") {
                return path;
            }
        }
    }
    panic!("no socket");
}

fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

async fn connect(scratch: &Scratch) -> Channel {
    scratch.run("amalgam ws list");
    let socket = socket(scratch);
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(hyper_util::rt::TokioIo::new) }
    });
    Endpoint::from_static("http://amalgam").connect_with_connector(connector).await.expect("a connection")
}

async fn write(files: &mut FileServiceClient<Channel>, workspace: &str, path: &str, data: &[u8]) {
    let header = v1::WriteFileHeader {
        workspace: format!("workspaces/{workspace}"),
        path: path.to_owned(),
        create_parents: true,
        ..Default::default()
    };
    let mut parts = vec![Part::Header(header)];
    parts.extend(data.chunks(256 << 10).map(|data| Part::Data(data.to_vec().into())));
    parts.push(Part::End(v1::WriteFileEnd::default()));
    let parts = parts.into_iter().map(|part| v1::WriteFileRequest { part: Some(part) });
    files.write_file(tokio_stream::iter(parts)).await.expect("written");
}

async fn read_call(files: &mut FileServiceClient<Channel>, workspace: &str, path: &str) -> Vec<u8> {
    let request = v1::FileServiceReadFileRequest {
        workspace: format!("workspaces/{workspace}"),
        path: path.to_owned(),
        ..Default::default()
    };
    let mut answers = files.read_file(request).await.expect("open").into_inner();
    let mut data = Vec::new();
    while let Some(answer) = answers.message().await.expect("read") {
        data.extend_from_slice(&answer.data);
    }
    data
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_clients_and_a_mount_see_each_others_writes_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    let (ada, bob) = (connect(&scratch).await, connect(&scratch).await);
    let (mut ada, mut bob) = (FileServiceClient::new(ada), FileServiceClient::new(bob));
    assert_eq!(read_call(&mut ada, "try", "a").await, b"one\n");
    for round in 0..20 {
        let text = format!("round {round}\n");
        write(&mut ada, "try", "a", text.as_bytes()).await;
        assert_eq!(read(at.join("a")), text, "a mount sees a write by call");
        assert_eq!(read_call(&mut bob, "try", "a").await, text.as_bytes());
        fs::write(at.join("a"), format!("mount {round}\n")).expect("written");
        assert_eq!(read_call(&mut bob, "try", "a").await, format!("mount {round}\n").as_bytes());
    }
    // A process that has the file open reads on in the old one.
    let open = fs::File::open(at.join("a")).expect("open");
    write(&mut ada, "try", "a", b"replaced\n").await;
    assert_eq!(std::io::read_to_string(open).expect("read"), "mount 19\n");
    assert_eq!(read(at.join("a")), "replaced\n");
    let rename = v1::RenameFileRequest {
        workspace: "workspaces/try".to_owned(),
        path: "d".to_owned(),
        new_path: "moved".to_owned(),
        ..Default::default()
    };
    ada.rename_file(rename).await.expect("renamed");
    assert_eq!(read(at.join("moved/e/x")), "x\n");
    assert!(!at.join("d").exists());
    scratch.run("(cd ../try && amalgam commit -m both) && amalgam umount ../try");
    assert_eq!(read_call(&mut bob, "try", "a").await, b"replaced\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_killed_process_and_a_half_one_leaves_nothing() {
    let scratch = Scratch::new();
    scratch.run("amalgam init --workspace base");
    let channel = connect(&scratch).await;
    let create = v1::CreateWorkspaceRequest { workspace_id: "plain".to_owned(), ..Default::default() };
    WorkspaceServiceClient::new(channel.clone()).create_workspace(create).await.expect("made");
    let mut files = FileServiceClient::new(channel);
    let large: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 253) as u8).collect();
    for number in 0..20 {
        write(&mut files, "plain", &format!("d/{number}"), number.to_string().as_bytes()).await;
    }
    write(&mut files, "plain", "large", &large).await;
    // A write that has not ended when the process dies.
    let (send, receive) = tokio::sync::mpsc::channel(4);
    let mut half = files.clone();
    let call = tokio::spawn(async move {
        half.write_file(tokio_stream::wrappers::ReceiverStream::new(receive)).await.expect_err("the process dies");
    });
    let header = v1::WriteFileHeader {
        workspace: "workspaces/plain".to_owned(),
        path: "large".to_owned(),
        ..Default::default()
    };
    send.send(v1::WriteFileRequest { part: Some(Part::Header(header)) }).await.expect("open");
    for _ in 0..16 {
        let data = Part::Data(vec![0; 512 << 10].into());
        send.send(v1::WriteFileRequest { part: Some(data) }).await.expect("open");
    }
    crash(&scratch);
    call.await.expect("no panic");
    let channel = connect(&scratch).await;
    let mut files = FileServiceClient::new(channel.clone());
    assert_eq!(read_call(&mut files, "plain", "large").await, large);
    for number in 0..20 {
        assert_eq!(read_call(&mut files, "plain", &format!("d/{number}")).await, number.to_string().as_bytes());
    }
    // The tree that no call uses is closed; its work stays.
    until("the view is closed", || read(scratch.path().join("store/log")).contains("view closed"));
    let commit = v1::CommitWorkspaceRequest { name: "workspaces/plain".to_owned(), ..Default::default() };
    let done = WorkspaceServiceClient::new(channel).commit_workspace(commit).await.expect("committed").into_inner();
    assert!(done.changed);
    assert_eq!(read_call(&mut files, "plain", "large").await, large);
}
