//! Permissions on the Unix socket: the store's user sets the policy, and work in a workspace is judged by its agent.

use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::policy_service_client::PolicyServiceClient;
use amalgam_proto::{Reason, v1};
use tonic::transport::Channel;

use super::{Caller, in_process, open, reason};

async fn set(channel: &Channel, text: &str) -> v1::SetPolicyResponse {
    let request = v1::SetPolicyRequest { text: text.to_owned(), ..Default::default() };
    PolicyServiceClient::new(channel.clone()).set_policy(request).await.expect("set").into_inner()
}

/// A workspace `main` of nobody, and a fork of it with a directory whose agent is ann.
async fn house(around: &std::path::Path) -> (Channel, Caller, std::path::PathBuf, String) {
    let channel = in_process(open(around)).await;
    let mut root = Caller::new(&channel, "root");
    root.create("main", "").await.expect("made");
    let write = |path: &str| v1::WriteEdit {
        path: path.to_owned(),
        content: Some(v1::write_edit::Content::Text("canary".to_owned())),
        create_parents: true,
        ..Default::default()
    };
    let edits = ["src/a", "docs/b"].map(|path| v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write(path))) });
    let request = v1::CommitEditsRequest {
        workspace: "workspaces/main".to_owned(),
        edits: edits.to_vec(),
        message: "first".to_owned(),
        ..Default::default()
    };
    root.files.commit_edits(request).await.expect("committed");
    let fork = v1::ForkWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        workspace_ids: vec!["mine".to_owned()],
        ..Default::default()
    };
    root.workspaces.fork_workspace(fork).await.expect("forked");
    let describe = v1::UpdateWorkspaceRequest {
        name: "workspaces/mine".to_owned(),
        agent: "ann".to_owned(),
        ..Default::default()
    };
    root.workspaces.update_workspace(describe).await.expect("described");
    let directory = around.join("mine");
    let name = checkout(&mut root, &directory, "mine").await.expect("checked out");
    (channel, root, directory, name)
}

async fn checkout(caller: &mut Caller, directory: &std::path::Path, workspace: &str) -> Result<String, tonic::Status> {
    use v1::checkout_directory_response::Event;
    let request = v1::CheckoutDirectoryRequest {
        path: directory.to_str().expect("text").as_bytes().to_vec().into(),
        workspace: format!("workspaces/{workspace}"),
        attach_workspace: format!("workspaces/{workspace}"),
        ..Default::default()
    };
    let mut events = caller.directories.checkout_directory(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        if let Some(Event::Result(result)) = event.event {
            return Ok(result.directory.expect("attached").name);
        }
    }
    panic!("a checkout ends with its result");
}

#[tokio::test]
async fn a_commit_of_a_directory_is_judged_by_the_agent_of_its_workspace() {
    let around = tempfile::tempdir().expect("a directory");
    let (channel, mut root, directory, name) = house(around.path()).await;
    set(&channel, "default = \"RW\"\n[[rule]]\nagents = [\"ann\"]\npaths = [\"src\"]\nlevel = \"R\"\n").await;
    std::fs::write(directory.join("docs/b"), "permitted").expect("written");
    root.commit(&name, "docs", "").await.expect("committed");
    std::fs::write(directory.join("src/a"), "not permitted").expect("written");
    let refused = root.commit(&name, "src", "").await.expect_err("refused");
    assert_eq!(reason(&refused), Reason::Forbidden, "{refused}");
    assert!(refused.message().contains("ann may not change src/a"), "{refused}");
    assert_eq!(std::fs::read_to_string(directory.join("src/a")).expect("read"), "not permitted", "the file stays");
    // Nothing is lost: what is merged secures the files, and is judged again.
    let submission = v1::Submission {
        workspace: "workspaces/mine".to_owned(),
        target: "workspaces/main".to_owned(),
        capture: true,
        on_refused: "partial".to_owned(),
        ..Default::default()
    };
    let request = v1::PublishWorkspaceRequest { submission: Some(submission), request_id: String::new() };
    let done = MergeServiceClient::new(channel.clone()).publish_workspace(request).await.expect("published");
    let merge = done.into_inner().merge.expect("a result");
    assert_eq!(merge.how(), v1::MergeHow::Merged, "{merge:?}");
    assert_eq!(merge.refused.len(), 1, "{merge:?}");
    assert_eq!((&merge.refused[0].path[..], merge.refused[0].agent.as_str()), (&b"src/a"[..], "ann"));
}

#[tokio::test]
async fn a_directory_that_cannot_hide_files_is_not_checked_out() {
    let around = tempfile::tempdir().expect("a directory");
    let (channel, mut root, _, name) = house(around.path()).await;
    let detach = v1::DetachDirectoryRequest { name, ..Default::default() };
    root.directories.detach_directory(detach).await.expect("detached");
    set(&channel, "default = \"RW\"\n[[rule]]\nagents = [\"ann\"]\npaths = [\"src\"]\nlevel = \"none\"\n").await;
    let refused = checkout(&mut root, &around.path().join("other"), "mine").await.expect_err("refused");
    assert_eq!(reason(&refused), Reason::Forbidden, "{refused}");
    set(&channel, "").await;
    checkout(&mut root, &around.path().join("another"), "mine").await.expect("checked out");
}

#[tokio::test]
async fn a_policy_has_a_history_and_an_undo_and_complaints_change_nothing() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut policies = PolicyServiceClient::new(channel.clone());
    let mut root = Caller::new(&channel, "root");
    let first = set(&channel, "default = \"R\"").await;
    assert!(first.changed && first.warnings.is_empty(), "{first:?}");
    assert!(!set(&channel, "default = \"R\"").await.changed, "the same text");
    let second = set(&channel, "default = \"none\"").await;
    assert_eq!(second.warnings.len(), 2, "{second:?}");
    let bad = v1::SetPolicyRequest { text: "default = \"X\"".to_owned(), ..Default::default() };
    let refused = policies.set_policy(bad).await.expect_err("refused");
    assert_eq!(reason(&refused), Reason::Invalid);
    let text = async |policies: &mut PolicyServiceClient<Channel>| {
        policies.get_policy(v1::GetPolicyRequest {}).await.expect("read").into_inner().text
    };
    assert_eq!(text(&mut policies).await, "default = \"none\"");
    let operation = second.operation.expect("an operation").name;
    let target = Some(v1::undo_operation_request::Target::Operation(operation));
    let undo = v1::UndoOperationRequest { target, ..Default::default() };
    root.operations.undo_operation(undo).await.expect("undone");
    assert_eq!(text(&mut policies).await, "default = \"R\"");
    let changes = policies.list_policy_changes(v1::ListPolicyChangesRequest::default()).await.expect("listed");
    assert_eq!(changes.into_inner().operations.len(), 3);
    let dry = v1::SetPolicyRequest { text: String::new(), dry_run: true, ..Default::default() };
    assert!(policies.set_policy(dry).await.expect("looked").into_inner().changed);
    assert_eq!(text(&mut policies).await, "default = \"R\"", "a dry run changes nothing");
    set(&channel, "").await;
    assert_eq!(text(&mut policies).await, "");
}
