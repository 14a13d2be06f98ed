//! Answers that are larger than a message.

use amalgam_proto::v1;
use tokio_stream::StreamExt as _;

use super::{Caller, in_process, open};

/// What tonic lets a client take, unless it asks for more.
const CLIENT_BYTES_MAX: usize = 4 << 20;

#[tokio::test]
async fn operations_that_moved_very_much_are_listed_in_parts() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let names: Vec<_> = (0..25_000).map(|number| format!("attempts/{}/{number:05}", "long-".repeat(20))).collect();
    let request =
        v1::ForkWorkspaceRequest { name: "workspaces/main".to_owned(), workspace_ids: names, ..Default::default() };
    let mut forks = ada.workspaces.clone().max_decoding_message_size(64 << 20);
    let fork = forks.fork_workspace(request).await.expect("forked").into_inner().operation.expect("an operation");
    assert_eq!(fork.changes.len() as u64 + fork.changes_left_out, 25_000);
    ada.create("after", "").await.expect("made");

    let request = v1::ListOperationsRequest { page_size: 1_000, ..Default::default() };
    let mut listed = Vec::new();
    let mut page = ada.operations.list_operations(request.clone()).await.expect("listed").into_inner();
    loop {
        listed.append(&mut page.operations);
        if page.next_page_token.is_empty() {
            break;
        }
        let request = v1::ListOperationsRequest { page_token: page.next_page_token, ..request.clone() };
        page = ada.operations.list_operations(request).await.expect("listed").into_inner();
    }
    assert_eq!(listed.iter().map(|one| one.sequence).collect::<Vec<_>>(), [3, 2, 1]);
    let mut watch = ada.operations.watch_operations(v1::WatchOperationsRequest { after: 1 }).await.expect("open");
    assert_eq!(watch.get_mut().message().await.expect("it fits").and_then(|one| one.operation), Some(fork.clone()));

    // All of its changes, part by part.
    let (mut changes, mut token) = (Vec::new(), String::new());
    loop {
        let request = v1::GetOperationRequest { name: fork.name.clone(), page_token: token };
        let part = ada.operations.get_operation(request).await.expect("found").into_inner();
        changes.extend(part.operation.expect("an operation").changes);
        token = part.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(changes.len(), 25_000);
    assert!(changes.is_sorted_by(|one, next| one.reference < next.reference));
}

#[tokio::test]
async fn the_largest_page_token_lists_operations_from_the_newest() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let request = v1::ListOperationsRequest { page_token: u64::MAX.to_string(), ..Default::default() };
    let call = ada.operations.list_operations(request);
    let listed = tokio::time::timeout(std::time::Duration::from_secs(10), call).await.expect("it ends");
    assert_eq!(listed.expect("listed").into_inner().operations.len(), 1);
}

#[tokio::test]
async fn a_status_with_very_many_paths_comes_in_parts() {
    use v1::detect_changes_response::Event;
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let project = around.path().join("project");
    // A deep place, so that few files have long paths.
    let deep = project.join(["d".repeat(250).as_str(); 11].join("/"));
    std::fs::create_dir_all(&deep).expect("made");
    for number in 0..2_000 {
        std::fs::write(deep.join(format!("{number:05}")), "").expect("written");
    }
    let directory = ada.attach(&project, "main").await;
    let request = v1::DetectChangesRequest { name: directory.clone(), parts: true };
    let events = ada.directories.detect_changes(request).await.expect("begun").into_inner();
    let events: Vec<_> = events.collect().await;
    let (mut parts, mut paths) = (0, Vec::new());
    for event in events {
        match event.expect("it fits").event {
            Some(Event::Part(part)) => {
                parts += 1;
                paths.extend(part.added);
            }
            Some(Event::Status(status)) => paths.extend(status.added),
            _ => {}
        }
    }
    let bytes: usize = paths.iter().map(bytes::Bytes::len).sum();
    assert!(parts >= 4 && bytes > CLIENT_BYTES_MAX, "{parts} parts, {bytes} bytes");
    assert_eq!(paths.len(), 2_000 + 11);
    assert!(paths.is_sorted(), "in their order");
    // Whoever did not ask for parts gets one message, if it fits.
    let request = v1::DetectChangesRequest { name: directory, parts: false };
    let mut large = ada.directories.clone().max_decoding_message_size(64 << 20);
    let mut events = large.detect_changes(request).await.expect("begun").into_inner();
    while let Some(event) = events.message().await.expect("it fits") {
        if let Some(Event::Status(status)) = event.event {
            assert_eq!(status.added.len(), 2_000 + 11);
        }
    }
}
