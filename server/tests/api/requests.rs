//! Request ids: one caller's, for one method, with one set of arguments.

use amalgam_engine::workspace::{NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, RequestId, Time};
use amalgam_proto::v1::exchange_service_client::ExchangeServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::request_service_client::RequestServiceClient;
use amalgam_proto::{Reason, v1};
use tonic::Status;
use tonic::transport::Channel;

use super::{Caller, OnSocket, in_process, open, reason};

#[tokio::test]
async fn two_callers_with_one_id_each_get_their_own_commit() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut bob) = (Caller::new(&channel, "ada"), Caller::new(&channel, "bob"));
    let mut commits = Vec::new();
    for (caller, name) in [(&mut ada, "a"), (&mut bob, "b")] {
        let directory = around.path().join(name);
        std::fs::create_dir(&directory).expect("made");
        std::fs::write(directory.join("file"), name).expect("written");
        let directory = caller.attach(&directory, name).await;
        let first = caller.commit(&directory, "first", "id-1").await.expect("committed");
        assert!(first.1, "{name}");
        let again = caller.commit(&directory, "first", "id-1").await.expect("a retry");
        assert_eq!(again, first, "{name}");
        let other = caller.commit(&directory, "second", "id-1").await.expect_err("another message");
        assert_eq!(reason(&other), Reason::RequestReused, "{other}");
        commits.push(first.0);
    }
    assert_ne!(commits[0], commits[1]);
}

#[tokio::test]
async fn two_callers_with_one_id_create_fork_and_delete_what_each_asked_for() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut bob) = (Caller::new(&channel, "ada"), Caller::new(&channel, "bob"));
    assert_eq!(ada.create("one", "id").await.expect("made").name, "workspaces/one");
    assert_eq!(bob.create("two", "id").await.expect("made").name, "workspaces/two");
    assert!(bob.exists("two").await);
    assert_eq!(ada.create("one", "id").await.expect("a retry").name, "workspaces/one");
    let other = ada.create("three", "id").await.expect_err("other arguments");
    assert_eq!((reason(&other), other.code()), (Reason::RequestReused, tonic::Code::FailedPrecondition), "{other}");
    assert!(!ada.exists("three").await);

    let delete = |name: &str| v1::DeleteWorkspaceRequest {
        name: format!("workspaces/{name}"),
        request_id: "id".to_owned(),
        ..Default::default()
    };
    let first = ada.workspaces.delete_workspace(delete("one")).await.expect("deleted").into_inner();
    assert!(!ada.exists("one").await);
    bob.workspaces.delete_workspace(delete("two")).await.expect("deleted");
    assert!(!bob.exists("two").await);
    let again = ada.workspaces.delete_workspace(delete("one")).await.expect("a retry").into_inner();
    assert_eq!(first, again);
    let other = bob.workspaces.delete_workspace(delete("one")).await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused, "{other}");
}

#[tokio::test]
async fn two_callers_with_one_id_undo_and_label_what_each_asked_for() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut bob) = (Caller::new(&channel, "ada"), Caller::new(&channel, "bob"));
    let mut heads = Vec::new();
    for name in ["a", "b"] {
        let directory = around.path().join(name);
        std::fs::create_dir(&directory).expect("made");
        let attached = ada.attach(&directory, name).await;
        for text in ["first", "second"] {
            std::fs::write(directory.join("file"), format!("{name} {text}")).expect("written");
            heads.push(ada.commit(&attached, text, "").await.expect("committed").0);
        }
    }
    let label = |workspace: &str| v1::SetLabelRequest {
        label_id: format!("good-{workspace}"),
        revision: format!("{workspace}@"),
        request_id: "id".to_owned(),
        ..Default::default()
    };
    let set = ada.snapshots.set_label(label("a")).await.expect("set").into_inner().label.expect("a label");
    assert_eq!(set.snapshot, heads[1]);
    let set = bob.snapshots.set_label(label("b")).await.expect("set").into_inner().label.expect("a label");
    assert_eq!(set.snapshot, heads[3]);
    let listed = ada.snapshots.list_labels(v1::ListLabelsRequest::default()).await.expect("listed").into_inner();
    assert_eq!(listed.labels.len(), 2, "{listed:?}");
    let other = ada.snapshots.set_label(label("b")).await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused, "{other}");

    let undo = |workspace: &str| v1::UndoOperationRequest {
        target: Some(v1::undo_operation_request::Target::Workspace(format!("workspaces/{workspace}"))),
        request_id: "id".to_owned(),
    };
    let first = ada.operations.undo_operation(undo("a")).await.expect("undone").into_inner();
    let theirs = bob.operations.undo_operation(undo("b")).await.expect("undone").into_inner();
    assert_ne!(first, theirs);
    let again = ada.operations.undo_operation(undo("a")).await.expect("a retry").into_inner();
    assert_eq!(first, again);
    for (workspace, head) in [("a", &heads[0]), ("b", &heads[2])] {
        let request = v1::GetWorkspaceRequest { name: format!("workspaces/{workspace}") };
        let found = ada.workspaces.get_workspace(request).await.expect("found").into_inner().workspace;
        assert_eq!(found.expect("a workspace").head, **head, "{workspace}");
    }
}

#[tokio::test]
async fn a_commit_of_a_note_or_a_reward_alone_that_is_retried_returns_the_first_result() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "a", b"one").await.expect("written");
    let head = ada.commit_live("main", "").await.expect("committed").snapshot.expect("a snapshot").name;
    let plain = || v1::CommitEditsRequest { workspace: "workspaces/main".to_owned(), ..Default::default() };
    let note = v1::CommitEditsRequest { note: Some("good".to_owned()), request_id: "n".to_owned(), ..plain() };
    let reward = v1::CommitEditsRequest { reward: Some(1.0), request_id: "r".to_owned(), ..plain() };
    for request in [note, reward] {
        let first = ada.files.commit_edits(request.clone()).await.expect("committed").into_inner();
        let again = ada.files.commit_edits(request).await.expect("a retry").into_inner();
        assert_eq!((again.snapshot.expect("a snapshot").name, again.changed), (head.clone(), false));
        assert_eq!((first.snapshot.expect("a snapshot").name, first.changed), (head.clone(), false));
    }
    let live = v1::CommitWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        note: Some("better".to_owned()),
        request_id: "w".to_owned(),
        ..Default::default()
    };
    let first = ada.workspaces.commit_workspace(live.clone()).await.expect("committed").into_inner();
    let again = ada.workspaces.commit_workspace(live).await.expect("a retry").into_inner();
    assert_eq!(first, again);
}

#[tokio::test]
async fn a_label_and_a_creation_that_are_retried_do_not_read_their_revision_again() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "a", b"one").await.expect("written");
    let first = ada.commit_live("main", "").await.expect("committed").snapshot.expect("a snapshot").name;
    let set = v1::SetLabelRequest {
        label_id: "good".to_owned(),
        revision: "main@".to_owned(),
        request_id: "label".to_owned(),
        ..Default::default()
    };
    let create = v1::CreateWorkspaceRequest {
        workspace_id: "copy".to_owned(),
        from: "good".to_owned(),
        request_id: "create".to_owned(),
        ..Default::default()
    };
    let labelled = ada.snapshots.set_label(set.clone()).await.expect("set").into_inner();
    ada.workspaces.create_workspace(create.clone()).await.expect("made");
    ada.write("main", "a", b"two").await.expect("written");
    ada.commit_live("main", "").await.expect("committed");
    let again = ada.snapshots.set_label(set).await.expect("a retry").into_inner();
    assert_eq!(again, labelled);
    assert_eq!(again.label.expect("a label").snapshot, first);
    let delete = v1::DeleteLabelRequest { name: "labels/good".to_owned(), ..Default::default() };
    ada.snapshots.delete_label(delete).await.expect("deleted");
    let again = ada.workspaces.create_workspace(create).await.expect("a retry").into_inner();
    assert_eq!(again.workspace.expect("a workspace").head, first);
}

#[tokio::test]
async fn an_undo_and_a_redo_that_are_retried_return_the_first_operation() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let directory = around.path().join("attached");
    std::fs::create_dir(&directory).expect("made");
    let attached = ada.attach(&directory, "attached").await;
    ada.create("live", "").await.expect("made");
    for text in ["first", "second"] {
        std::fs::write(directory.join("file"), text).expect("written");
        ada.commit(&attached, text, "").await.expect("committed");
        ada.write("live", "file", text.as_bytes()).await.expect("written");
        ada.commit_live("live", "").await.expect("committed");
    }
    for workspace in ["attached", "live"] {
        let undo = v1::UndoOperationRequest {
            target: Some(v1::undo_operation_request::Target::Workspace(format!("workspaces/{workspace}"))),
            request_id: format!("undo-{workspace}"),
        };
        let first = ada.operations.undo_operation(undo.clone()).await.expect("undone").into_inner();
        let again = ada.operations.undo_operation(undo).await.expect("a retry").into_inner();
        assert_eq!(first, again, "{workspace}");
        let redo = v1::RedoOperationRequest {
            target: Some(v1::redo_operation_request::Target::Workspace(format!("workspaces/{workspace}"))),
            request_id: format!("redo-{workspace}"),
        };
        let first = ada.operations.redo_operation(redo.clone()).await.expect("redone").into_inner();
        let again = ada.operations.redo_operation(redo).await.expect("a retry").into_inner();
        assert_eq!(first, again, "{workspace}");
        assert!(first.operation.is_some_and(|operation| !operation.name.is_empty()), "{workspace}");
    }
}

#[tokio::test]
async fn a_restore_that_is_retried_keeps_the_edits_made_after_the_first_one() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    for text in ["one", "two"] {
        ada.write("main", "a", text.as_bytes()).await.expect("written");
        ada.commit_live("main", "").await.expect("committed");
    }
    // The first one moves the head, the second one only discards edits.
    for (revision, is_moved) in [("@~", true), ("@", false)] {
        ada.write("main", "a", b"discarded").await.expect("written");
        let restore = v1::RestoreWorkspaceRequest {
            name: "workspaces/main".to_owned(),
            revision: revision.to_owned(),
            request_id: revision.to_owned(),
            ..Default::default()
        };
        let first = ada.workspaces.restore_workspace(restore.clone()).await.expect("restored").into_inner();
        assert_eq!(first.changed, is_moved, "{revision}");
        assert_eq!(ada.read("main", "a").await.expect("read"), b"one", "{revision}");
        ada.write("main", "a", b"later").await.expect("written");
        let again = ada.workspaces.restore_workspace(restore).await.expect("a retry").into_inner();
        assert_eq!(again.changed, is_moved, "{revision}");
        assert_eq!(ada.read("main", "a").await.expect("read"), b"later", "{revision}");
    }
}

#[tokio::test]
async fn an_id_that_an_older_version_recorded_is_neither_replayed_nor_done_again() {
    let around = tempfile::tempdir().expect("a directory");
    let service = open(around.path());
    let older = OperationContext::new("ada", Time(1)).as_request(RequestId::new("id").expect("an id"));
    let name = WorkspaceName::new("old").expect("a name");
    Workspaces::of(service.store()).create(&name, &NewWorkspace::default(), &older).expect("made");
    let channel = in_process(service).await;
    let (mut ada, mut bob) = (Caller::new(&channel, "ada"), Caller::new(&channel, "bob"));
    let refused = ada.create("new", "id").await.expect_err("whether it is a retry cannot be told");
    assert_eq!(reason(&refused), Reason::RequestReused, "{refused}");
    assert!(refused.message().contains("operation 1 (create)"), "{refused}");
    assert!(!ada.exists("new").await);
    bob.create("bobs", "id").await.expect("another caller's");
    assert!(bob.exists("bobs").await);
}

fn tar_of(files: &[(&str, &str)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, text) in files {
        let mut header = [0_u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[100..108].copy_from_slice(b"0000644\0");
        header[108..116].copy_from_slice(b"0000000\0");
        header[116..124].copy_from_slice(b"0000000\0");
        header[124..136].copy_from_slice(format!("{:011o}\0", text.len()).as_bytes());
        header[136..148].copy_from_slice(b"00000000000\0");
        header[148..156].copy_from_slice(b"        ");
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(text.as_bytes());
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1_024, 0);
    archive
}

/// Imports a tar archive into the workspace `in`, onto its head if it has one.
async fn import(channel: &Channel, archive: &[u8], onto: &str, id: &str) -> Result<v1::ImportResult, Status> {
    use v1::import_tree_request::Event as Asked;
    use v1::import_tree_response::Event;
    let options = v1::ImportOptions {
        source: Some(v1::import_options::Source::Tar(v1::TarSource::default())),
        workspace_id: "in".to_owned(),
        onto: onto.to_owned(),
        request_id: id.to_owned(),
        ..Default::default()
    };
    let sent = [Asked::Options(options), Asked::Data(archive.to_vec().into())];
    let sent = sent.map(|event| v1::ImportTreeRequest { event: Some(event) });
    let mut exchange = ExchangeServiceClient::with_interceptor(channel.clone(), super::Who("ada"));
    let mut events = exchange.import_tree(tokio_stream::iter(sent)).await?.into_inner();
    while let Some(message) = events.message().await? {
        if let Some(Event::Result(result)) = message.event {
            return Ok(result);
        }
    }
    panic!("an import ends with its result");
}

async fn operations(channel: &Channel) -> usize {
    let mut ada = Caller::new(channel, "ada");
    let request = v1::ListOperationsRequest { page_size: 1_000, ..Default::default() };
    ada.operations.list_operations(request).await.expect("listed").into_inner().operations.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_import_that_is_retried_lands_once_even_after_a_restart() {
    let around = tempfile::tempdir().expect("a directory");
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let first = import(&channel, &tar_of(&[("a", "one\n")]), "", "first").await.expect("imported");
    assert!(first.created);
    let more = tar_of(&[("b", "two\n")]);
    let second = import(&channel, &more, "in@", "second").await.expect("imported");
    assert!(!second.created && second.snapshot != first.snapshot);
    let before = operations(&channel).await;
    assert_eq!(import(&channel, &more, "in@", "second").await.expect("a retry"), second);
    let other = import(&channel, &more, "in@~", "second").await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused, "{other}");
    assert_eq!(operations(&channel).await, before);
    drop(channel);
    server.end().await;
    let server = OnSocket::start(around.path()).await;
    let channel = server.connect().await;
    let again = import(&channel, &more, "in@", "second").await.expect("a retry");
    assert_eq!((again.snapshot, again.created, again.report), (second.snapshot, false, None));
    let again = import(&channel, &tar_of(&[("a", "one\n")]), "", "first").await.expect("a retry");
    assert_eq!((again.snapshot, again.created), (first.snapshot, true));
    assert_eq!(operations(&channel).await, before);
    drop(channel);
    server.end().await;
}

#[tokio::test]
async fn a_change_of_a_live_tree_that_is_retried_is_made_once() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let workspace = || "workspaces/main".to_owned();
    let write = v1::FileEdit {
        edit: Some(v1::file_edit::Edit::Write(v1::WriteEdit {
            path: "a".to_owned(),
            content: Some(v1::write_edit::Content::Text("one".to_owned())),
            ..Default::default()
        })),
    };
    let apply = v1::ApplyEditsRequest { workspace: workspace(), edits: vec![write], request_id: "w".to_owned() };
    ada.files.apply_edits(apply).await.expect("written");
    let edit = |old: &str, new: &str| v1::EditFileRequest {
        workspace: workspace(),
        edit: Some(v1::edit_file_request::Edit::Replace(v1::ReplaceEdit {
            path: "a".to_owned(),
            old_text: old.to_owned(),
            new_text: new.to_owned(),
            ..Default::default()
        })),
        request_id: "e".to_owned(),
    };
    let first = ada.files.edit_file(edit("one", "two")).await.expect("edited").into_inner();
    let again = ada.files.edit_file(edit("one", "two")).await.expect("a retry").into_inner();
    assert_eq!(first, again);
    let other = ada.files.edit_file(edit("two", "three")).await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused, "{other}");
    let mut requests = RequestServiceClient::with_interceptor(channel.clone(), super::Who("ada"));
    let asked = v1::GetRequestRequest { request_id: "e".to_owned(), ..Default::default() };
    let done = requests.get_request(asked).await.expect("answered").into_inner();
    assert_eq!((done.state(), done.method.as_str()), (v1::RequestState::Done, "EditFile"));
    assert_eq!(done.operation, None, "no operation is recorded");
}

#[tokio::test]
async fn a_checkout_and_a_schedule_that_are_retried_return_the_first_result() {
    use v1::checkout_directory_response::Event;
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let directory = around.path().join("main");
    std::fs::create_dir(&directory).expect("made");
    std::fs::write(directory.join("file"), "one").expect("written");
    let attached = ada.attach(&directory, "main").await;
    ada.commit(&attached, "one", "").await.expect("committed");
    let out = around.path().join("out");
    let mut results = Vec::new();
    for _ in 0..2 {
        let request = v1::CheckoutDirectoryRequest {
            path: out.to_str().expect("text").as_bytes().to_vec().into(),
            revision: "main@".to_owned(),
            request_id: "out".to_owned(),
            ..Default::default()
        };
        let mut events = ada.directories.checkout_directory(request).await.expect("begun").into_inner();
        while let Some(message) = events.message().await.expect("the directory is written once") {
            if let Some(Event::Result(result)) = message.event {
                results.push(result);
            }
        }
    }
    assert_eq!(results.len(), 2);
    assert_eq!(results[0], results[1]);
    ada.create("try", "").await.expect("made");
    let mut merges = MergeServiceClient::with_interceptor(channel.clone(), super::Who("ada"));
    let schedule = |every_seconds| v1::SchedulePublishingRequest {
        submission: Some(v1::Submission {
            workspace: "workspaces/try".to_owned(),
            target: "workspaces/main".to_owned(),
            ..Default::default()
        }),
        every_seconds,
        request_id: "plan".to_owned(),
        ..Default::default()
    };
    let first = merges.schedule_publishing(schedule(60)).await.expect("scheduled").into_inner();
    assert_eq!(merges.schedule_publishing(schedule(60)).await.expect("a retry").into_inner(), first);
    let other = merges.schedule_publishing(schedule(30)).await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused, "{other}");
}
