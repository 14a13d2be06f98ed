//! Request ids: one caller's, for one method, with one set of arguments.

use amalgam_engine::workspace::{NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, RequestId, Time};
use amalgam_proto::{Reason, v1};

use super::{Caller, in_process, open, reason};

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
