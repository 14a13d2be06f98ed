//! The queue: what cannot be read in it, and what goes on beside a test.

use std::time::{Duration, Instant};

use amalgam_engine::backend::{Backend as _, Rocks, RocksOptions, Transaction};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue};
use amalgam_proto::v1;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;

use super::{Caller, OnSocket, in_process, open};

/// Makes two workspaces with directories, the second with a change of its own.
async fn two_workspaces(around: &std::path::Path, caller: &mut Caller, [target, source]: [&str; 2]) -> [String; 2] {
    let mut names = Vec::new();
    for name in [target, source] {
        let directory = around.join(name);
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join(name), name).expect("written");
        let attached = caller.attach(&directory, name).await;
        caller.commit(&attached, "one", "").await.expect("committed");
        names.push(attached);
    }
    names.try_into().expect("two")
}

fn submission(target: &str, source: &str, test: &str) -> v1::Submission {
    v1::Submission {
        workspace: format!("workspaces/{source}"),
        target: format!("workspaces/{target}"),
        test: vec!["sh".to_owned(), "-c".to_owned(), test.to_owned()],
        ..Default::default()
    }
}

/// Puts references into a store that no rule allows.
fn plant(store: &std::path::Path, names: &[&str]) {
    let rocks = Rocks::open(store, &RocksOptions::default()).expect("open");
    let value = RefValue { note: bytes::Bytes::from_static(b"no JSON"), ..RefValue::default() };
    let names = || names.iter().map(|name| RefName::new(*name).expect("a name"));
    let expect = names().map(|name| (name, None)).collect();
    let set = names().map(|name| (name, Some(value.clone()))).collect();
    let operation = OperationDraft { actor: "mallory".to_owned(), action: "queue".to_owned(), ..Default::default() };
    let transaction = Transaction { expect, set, operation: Some(operation), ..Transaction::default() };
    rocks.transact(transaction).expect("planted");
}

#[tokio::test]
async fn entries_that_cannot_be_read_are_reported_and_keep_no_others_waiting() {
    let around = tempfile::tempdir().expect("a directory");
    drop(open(around.path()));
    let names = ["queue/x", "queue/main:0-attempt", "review/x", "review/main:0000000000000001-attempt"];
    plant(&around.path().join("home/store"), &names);
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    two_workspaces(around.path(), &mut ada, ["main", "attempt"]).await;
    let mut merges = MergeServiceClient::new(channel);
    let queue = merges.list_queue(v1::ListQueueRequest::default()).await.expect("listed").into_inner();
    assert_eq!((queue.entries.len(), queue.problems.len()), (0, 2), "{queue:?}");
    let reviews = merges.list_reviews(v1::ListReviewsRequest::default()).await.expect("listed").into_inner();
    assert_eq!((reviews.reviews.len(), reviews.problems.len()), (0, 2), "{reviews:?}");
    // Others are merged.
    let request = v1::CompleteWorkspaceRequest {
        submission: Some(v1::Submission { test: Vec::new(), ..submission("main", "attempt", "") }),
        ..Default::default()
    };
    let done = merges.complete_workspace(request).await.expect("completed").into_inner();
    assert_eq!(done.merge.expect("a merge").how(), v1::MergeHow::Merged);
    // Each problem says how to get rid of it.
    let id =
        |problem: &str| problem.split('`').nth(1).and_then(|command| command.rsplit(' ').next()).map(str::to_owned);
    for problem in &queue.problems {
        let name = format!("queue/{}", id(problem).expect("an id"));
        let request = v1::WithdrawQueueEntryRequest { name, ..Default::default() };
        merges.withdraw_queue_entry(request).await.expect("withdrawn");
    }
    for problem in &reviews.problems {
        let name = format!("reviews/{}", id(problem).expect("an id"));
        merges.reject_review(v1::RejectReviewRequest { name, ..Default::default() }).await.expect("rejected");
    }
    let queue = merges.list_queue(v1::ListQueueRequest::default()).await.expect("listed").into_inner();
    let reviews = merges.list_reviews(v1::ListReviewsRequest::default()).await.expect("listed").into_inner();
    assert!(queue.problems.is_empty() && reviews.problems.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_free_while_a_test_runs_and_what_is_written_there_is_merged() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let [main, _] = two_workspaces(around.path(), &mut ada, ["main", "attempt"]).await;
    let mut merges = MergeServiceClient::new(channel);
    let complete = tokio::spawn(async move {
        let submission = Some(submission("main", "attempt", "sleep 4"));
        merges.complete_workspace(v1::CompleteWorkspaceRequest { submission, ..Default::default() }).await
    });
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let request = v1::DetectChangesRequest { name: main, parts: true };
    let mut events = ada.directories.detect_changes(request).await.expect("begun").into_inner();
    while events.message().await.expect("a status").is_some() {}
    assert!(!complete.is_finished(), "the test of four seconds still runs");
    std::fs::write(around.path().join("main/meanwhile"), "written during the test").expect("written");
    let done = complete.await.expect("no panic").expect("completed").into_inner();
    let merge = done.merge.expect("a merge");
    assert_eq!(merge.how(), v1::MergeHow::Merged, "{merge:?}");
    let read = |name: &str| std::fs::read_to_string(around.path().join("main").join(name)).unwrap_or_default();
    assert_eq!((read("attempt").as_str(), read("main").as_str()), ("attempt", "main"));
    assert_eq!(read("meanwhile"), "written during the test");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_test_of_one_target_keeps_no_other_target_waiting() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let mut ada = Caller::new(&channel, "ada");
    two_workspaces(around.path(), &mut ada, ["slow", "slow-attempt"]).await;
    two_workspaces(around.path(), &mut ada, ["swift", "swift-attempt"]).await;
    let mut merges = MergeServiceClient::new(channel);
    for (target, source, test) in [("slow", "slow-attempt", "sleep 30"), ("swift", "swift-attempt", "true")] {
        let request = v1::SchedulePublishingRequest {
            submission: Some(submission(target, source, test)),
            on_commit: true,
            ..Default::default()
        };
        merges.schedule_publishing(request).await.expect("scheduled");
    }
    let landed = around.path().join("swift/swift-attempt");
    let began = Instant::now();
    while !landed.exists() {
        assert!(began.elapsed() < Duration::from_secs(20), "it waits for the test of the other target");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(!around.path().join("slow/slow-attempt").exists());
    // The test that runs ends with the process.
    drop((ada, merges));
    assert!(server.end().await < Duration::from_secs(20));
}

#[tokio::test]
async fn tests_have_a_longest_time() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    two_workspaces(around.path(), &mut ada, ["main", "attempt"]).await;
    let mut merges = MergeServiceClient::new(channel);
    let asked = v1::Submission { test_seconds: u32::MAX, ..submission("main", "attempt", "true") };
    let request = v1::CompleteWorkspaceRequest { submission: Some(asked), ..Default::default() };
    let refused = merges.complete_workspace(request).await.expect_err("too long");
    assert!(refused.message().contains("six hours"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submission_tells_its_stages_and_then_its_result() {
    use v1::submit_workspace_response::Event;
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    two_workspaces(around.path(), &mut ada, ["main", "first"]).await;
    two_workspaces(around.path(), &mut ada, ["other", "second"]).await;
    let (tested, mut is_tested) = tokio::sync::mpsc::unbounded_channel();
    let submit = |source: &'static str, complete: bool| {
        let tested = tested.clone();
        let mut merges = MergeServiceClient::new(channel.clone());
        let submission = Some(submission("main", source, "sleep 1.5"));
        async move {
            let request = v1::SubmitWorkspaceRequest { submission, complete, ..Default::default() };
            let mut events = merges.submit_workspace(request).await.expect("begun").into_inner();
            let (mut stages, mut ahead, mut entry, mut result) = (Vec::new(), 0, String::new(), None);
            while let Some(message) = events.message().await.expect("merged") {
                match message.event.expect("an event") {
                    Event::Progress(progress) => {
                        assert!(result.is_none(), "the result comes last");
                        ahead = ahead.max(progress.entries_ahead);
                        entry.clone_from(&progress.entry);
                        if progress.stage == "test" {
                            tested.send(source).ok();
                        }
                        if stages.last() != Some(&progress.stage) {
                            stages.push(progress.stage);
                        }
                    }
                    Event::Result(done) => result = Some(done),
                }
            }
            (stages, ahead, entry, result.expect("a result"))
        }
    };
    let first = tokio::spawn(submit("first", true));
    assert_eq!(is_tested.recv().await, Some("first"));
    let second = tokio::spawn(submit("second", false));
    let (stages, _, entry, result) = first.await.expect("no panic");
    assert!(stages.contains(&"test".to_owned()), "{stages:?}");
    assert_eq!(entry, result.entry.expect("an entry").name);
    assert_eq!((result.merge.expect("a merge").how(), result.ended), (v1::MergeHow::Merged, true));
    let (stages, ahead, _, result) = second.await.expect("no panic");
    assert_eq!((stages[0].as_str(), ahead), ("wait", 1), "{stages:?}");
    assert!(stages.contains(&"test".to_owned()), "{stages:?}");
    assert_eq!((result.merge.expect("a merge").how(), result.ended), (v1::MergeHow::Merged, false));
    let mut merges = MergeServiceClient::new(channel.clone());
    let mut events = merges.submit_workspace(v1::SubmitWorkspaceRequest::default()).await.expect("begun").into_inner();
    let refused = loop {
        // A slow machine is told that it waits, first.
        match events.message().await {
            Ok(told) => assert!(matches!(told.and_then(|told| told.event), Some(Event::Progress(_))), "no result"),
            Err(refused) => break refused,
        }
    };
    assert!(refused.message().contains("submission"), "{refused}");
}
