//! Streams that stay open, and the end of the process beside them.

use std::time::{Duration, Instant};

use amalgam_proto::v1::store_service_client::StoreServiceClient;
use amalgam_proto::{Reason, v1};
use tokio::io::AsyncWriteExt as _;
use tonic::Streaming;

use super::{Caller, OnSocket, reason};

/// A server lets one connection have this many streams.
const STREAMS_PER_CONNECTION: usize = 150;
const WATCHES: usize = 700;

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(0)
}

async fn watch_operations(callers: &mut [Caller]) -> Vec<Streaming<v1::WatchOperationsResponse>> {
    let mut open = Vec::new();
    for at in 0..WATCHES {
        let caller = &mut callers[at / STREAMS_PER_CONNECTION];
        let request = v1::WatchOperationsRequest { after: 0 };
        open.push(caller.operations.watch_operations(request).await.expect("open").into_inner());
    }
    open
}

async fn callers(server: &OnSocket) -> Vec<Caller> {
    let mut callers = Vec::new();
    for _ in 0..=WATCHES / STREAMS_PER_CONNECTION {
        callers.push(Caller::new(&server.connect().await, "ada"));
    }
    callers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_open_watches_take_no_threads_and_keep_no_call_waiting() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let mut callers = callers(&server).await;
    let before = threads();
    let mut open = watch_operations(&mut callers).await;
    let project = around.path().join("project");
    std::fs::create_dir(&project).expect("made");
    let mut other = Caller::new(&server.connect().await, "bob");
    let directory = other.attach(&project, "main").await;
    let mut watched = Vec::new();
    for at in 0..WATCHES {
        let caller = &mut callers[at / STREAMS_PER_CONNECTION];
        let request =
            v1::WatchDirectoryRequest { name: directory.clone(), quiet_milliseconds: 3_600_000, ..Default::default() };
        if at % STREAMS_PER_CONNECTION < 40 {
            watched.push(caller.directories.watch_directory(request).await.expect("open").into_inner());
        }
    }
    let calls = async {
        for number in 0..20 {
            other.create(&format!("made-{number}"), "").await.expect("made");
            std::fs::write(project.join("file"), number.to_string()).expect("written");
            other.commit(&directory, "one", "").await.expect("committed");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), calls).await.expect("other calls are answered");
    assert!(threads() < before + 300, "{} threads, {before} before", threads());
    // Everybody hears of everything.
    for stream in &mut open {
        for sequence in 1..=41 {
            let heard = tokio::time::timeout(Duration::from_secs(30), stream.message()).await.expect("in time");
            assert_eq!(heard.expect("open").expect("one").operation.expect("an operation").sequence, sequence);
        }
    }
    drop((open, watched));
    drop(callers);
    assert!(server.end().await < Duration::from_secs(20));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_do_not_keep_the_process() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    // One says nothing at all, one stops in the middle of the greeting, one has a watch open that it does not read.
    let _silent = tokio::net::UnixStream::connect(&server.socket).await.expect("connected");
    let mut greeting = tokio::net::UnixStream::connect(&server.socket).await.expect("connected");
    greeting.write_all(b"PRI * HTTP/2.0").await.expect("written");
    let mut caller = Caller::new(&server.connect().await, "ada");
    let watch = caller.operations.watch_operations(v1::WatchOperationsRequest { after: 0 }).await.expect("open");
    let took = server.end().await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    let mut watch = watch.into_inner();
    let ended = watch.message().await.expect_err("it ends with the process");
    assert_eq!(reason(&ended), Reason::Busy, "{ended}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_cancels_what_is_under_way() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let mut caller = Caller::new(&channel, "ada");
    for name in ["main", "attempt"] {
        let directory = around.path().join(name);
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join(name), name).expect("written");
        let directory = caller.attach(&directory, name).await;
        caller.commit(&directory, "one", "").await.expect("committed");
    }
    let mut merges = v1::merge_service_client::MergeServiceClient::new(channel.clone());
    let submission = v1::Submission {
        workspace: "workspaces/attempt".to_owned(),
        target: "workspaces/main".to_owned(),
        test: vec!["sleep".to_owned(), "300".to_owned()],
        ..Default::default()
    };
    let complete = tokio::spawn(async move {
        let request = v1::CompleteWorkspaceRequest { submission: Some(submission), ..Default::default() };
        merges.complete_workspace(request).await
    });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut store = StoreServiceClient::new(channel);
    store.stop_server(v1::StopServerRequest { force: true }).await.expect("asked");
    let began = Instant::now();
    assert!(complete.await.expect("no panic").is_err());
    let took = server.ended(began).await;
    assert!(took < Duration::from_secs(15), "{took:?}");
    // What was to be merged waits for the next process.
    let service = super::open(around.path());
    let channel = super::in_process(service).await;
    let mut merges = v1::merge_service_client::MergeServiceClient::new(channel);
    let waiting = merges.list_queue(v1::ListQueueRequest::default()).await.expect("listed").into_inner();
    assert_eq!(waiting.entries.len(), 1, "{waiting:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_to_the_handover_of_mounts_keep_no_call_waiting() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let mut ada = Caller::new(&server.connect().await, "ada");
    let mut idle = Vec::new();
    for _ in 0..600 {
        idle.push(tokio::net::UnixStream::connect(server.socket.with_extension("door")).await.expect("connected"));
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let began = Instant::now();
    for number in 0..20 {
        ada.create(&format!("made-{number}"), "").await.expect("made");
    }
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(idle);
}
