//! State values and episodes by call.

use amalgam_proto::v1::episode_service_client::EpisodeServiceClient;
use amalgam_proto::v1::state_service_client::StateServiceClient;
use amalgam_proto::{Failure, Reason, v1};
use tonic::Status;

use super::{Caller, in_process, open, reason};

type States = StateServiceClient<tonic::transport::Channel>;

async fn set(states: &mut States, key: &str, json: &str, if_match: &str) -> Result<v1::StateValue, Status> {
    let request = v1::SetStateRequest {
        workspace: "workspaces/main".to_owned(),
        key: key.to_owned(),
        json: json.to_owned(),
        if_match: if_match.to_owned(),
        ..Default::default()
    };
    Ok(states.set_state(request).await?.into_inner().value.expect("a value"))
}

async fn get(states: &mut States, workspace: &str, revision: &str, key: &str) -> Result<String, Status> {
    let request = v1::GetStateRequest {
        workspace: format!("workspaces/{workspace}"),
        revision: revision.to_owned(),
        key: key.to_owned(),
    };
    Ok(states.get_state(request).await?.into_inner().value.expect("a value").json)
}

#[tokio::test]
async fn state_values_are_set_by_etag_and_carried_by_commits_forks_and_restores() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut states) = (Caller::new(&channel, "ada"), StateServiceClient::new(channel));
    ada.create("main", "").await.expect("made");
    let first = set(&mut states, "plan/1", "{\"step\": 1}", "").await.expect("set");
    let stale = set(&mut states, "plan/1", "2", "0123").await.expect_err("another etag");
    let failure = Failure::of_status(&stale).expect("one of ours");
    assert_eq!((failure.reason, &failure.details["etag"]), (Reason::StaleFile, &first.etag));
    set(&mut states, "plan/1", "2", &first.etag).await.expect("set");
    set(&mut states, "plan/2", "[]", "").await.expect("set");
    set(&mut states, "other", "null", "").await.expect("set");
    assert_eq!(reason(&set(&mut states, "bad", "{", "").await.expect_err("no JSON")), Reason::Invalid);
    let status = ada.status("main").await;
    assert!(status.state_changed && status.changes.is_empty(), "{status:?}");
    let list = |page_size, page_token: String| v1::ListStatesRequest {
        workspace: "workspaces/main".to_owned(),
        prefix: "plan/".to_owned(),
        page_size,
        page_token,
        ..Default::default()
    };
    let page = states.list_states(list(1, String::new())).await.expect("listed").into_inner();
    assert_eq!((page.values[0].key.as_str(), page.next_page_token.as_str()), ("plan/1", "plan/1"));
    let page = states.list_states(list(5, page.next_page_token)).await.expect("listed").into_inner();
    assert_eq!((page.values[0].key.as_str(), page.next_page_token.as_str()), ("plan/2", ""));
    // A change of values alone is a change to commit, and a fork takes it along.
    let done = ada.commit_live("main", "").await.expect("committed");
    assert!(done.changed, "{done:?}");
    let delete = |key: &str| v1::DeleteStateRequest {
        workspace: "workspaces/main".to_owned(),
        key: key.to_owned(),
        ..Default::default()
    };
    states.delete_state(delete("plan/1")).await.expect("deleted");
    let absent = states.delete_state(delete("plan/1")).await.expect_err("gone");
    assert_eq!(reason(&absent), Reason::NotFound, "{absent}");
    assert_eq!(reason(&get(&mut states, "main", "", "plan/1").await.expect_err("gone")), Reason::NotFound);
    assert_eq!(get(&mut states, "main", "@", "plan/1").await.expect("at the head"), "2");
    let fork = v1::ForkWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        workspace_ids: vec!["try".to_owned()],
        ..Default::default()
    };
    ada.workspaces.fork_workspace(fork).await.expect("forked");
    assert_eq!(reason(&get(&mut states, "try", "", "plan/1").await.expect_err("gone")), Reason::NotFound);
    assert_eq!(get(&mut states, "try", "", "plan/2").await.expect("forked"), "[]");
    let restore = v1::RestoreWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        revision: "@~".to_owned(),
        ..Default::default()
    };
    ada.workspaces.restore_workspace(restore).await.expect("restored");
    assert_eq!(get(&mut states, "main", "", "plan/1").await.expect("restored"), "2");
}

#[tokio::test]
async fn a_live_tree_is_restored_and_its_edits_come_back_by_undo() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    for text in ["one", "two"] {
        ada.write("main", "a", text.as_bytes()).await.expect("written");
        ada.commit_live("main", "").await.expect("committed");
    }
    ada.write("main", "a", b"uncommitted").await.expect("written");
    let restore = v1::RestoreWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        revision: "@~".to_owned(),
        ..Default::default()
    };
    ada.workspaces.restore_workspace(restore).await.expect("restored");
    assert_eq!(ada.read("main", "a").await.expect("read"), b"one");
    assert!(ada.status("main").await.changes.is_empty());
}

#[tokio::test]
async fn uncommitted_state_values_are_undone_and_redone_and_come_back_after_a_restore() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut states) = (Caller::new(&channel, "ada"), StateServiceClient::new(channel));
    ada.create("main", "").await.expect("made");
    for text in ["one", "two"] {
        ada.write("main", "a", text.as_bytes()).await.expect("written");
        set(&mut states, "k", "1", "").await.expect("set");
        ada.commit_live("main", "").await.expect("committed");
    }
    let undo = || v1::UndoOperationRequest {
        target: Some(v1::undo_operation_request::Target::Workspace("workspaces/main".to_owned())),
        ..Default::default()
    };
    let redo = || v1::RedoOperationRequest {
        target: Some(v1::redo_operation_request::Target::Workspace("workspaces/main".to_owned())),
        ..Default::default()
    };
    set(&mut states, "k", "2", "").await.expect("set");
    ada.operations.undo_operation(undo()).await.expect("undone");
    assert_eq!(get(&mut states, "main", "", "k").await.expect("read"), "1");
    assert_eq!(ada.read("main", "a").await.expect("read"), b"two", "the commit stays");
    ada.operations.redo_operation(redo()).await.expect("redone");
    assert_eq!(get(&mut states, "main", "", "k").await.expect("read"), "2");
    ada.operations.undo_operation(undo()).await.expect("undone");
    set(&mut states, "k", "3", "").await.expect("set");
    let refused = ada.operations.redo_operation(redo()).await.expect_err("it would overwrite the value");
    assert_eq!(reason(&refused), Reason::UncommittedChanges, "{refused}");
    let restore = v1::RestoreWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        revision: "@~".to_owned(),
        ..Default::default()
    };
    ada.workspaces.restore_workspace(restore).await.expect("restored");
    assert_eq!(get(&mut states, "main", "", "k").await.expect("read"), "1");
    ada.operations.undo_operation(undo()).await.expect("undone");
    assert_eq!(get(&mut states, "main", "", "k").await.expect("read"), "3");
    assert_eq!(ada.read("main", "a").await.expect("read"), b"two");
}

#[tokio::test]
async fn an_undo_of_an_automatic_commit_of_state_values_goes_one_step_back() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let (mut ada, mut states) = (Caller::new(&channel, "ada"), StateServiceClient::new(channel));
    ada.create("main", "").await.expect("made");
    for text in ["one", "two"] {
        ada.write("main", "a", text.as_bytes()).await.expect("written");
        ada.commit_live("main", "").await.expect("committed");
    }
    set(&mut states, "k", "1", "").await.expect("set");
    let commit = v1::CommitWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        kind: v1::CommitKind::Automatic.into(),
        ..Default::default()
    };
    ada.workspaces.commit_workspace(commit).await.expect("committed");
    let undo = v1::UndoOperationRequest {
        target: Some(v1::undo_operation_request::Target::Workspace("workspaces/main".to_owned())),
        ..Default::default()
    };
    ada.operations.undo_operation(undo).await.expect("undone");
    assert_eq!(reason(&get(&mut states, "main", "", "k").await.expect_err("undone")), Reason::NotFound);
    assert_eq!(ada.read("main", "a").await.expect("read"), b"two", "the commit before stays");
}

#[tokio::test]
async fn uncommitted_edits_at_other_paths_stay_when_a_path_of_a_live_tree_is_restored() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "b", b"one").await.expect("written");
    for text in ["one", "two"] {
        ada.write("main", "a", text.as_bytes()).await.expect("written");
        ada.commit_live("main", "").await.expect("committed");
    }
    ada.write("main", "b", b"uncommitted").await.expect("written");
    let restore = v1::RestoreWorkspaceRequest {
        name: "workspaces/main".to_owned(),
        revision: "@~".to_owned(),
        paths: vec![b"a".to_vec().into()],
        ..Default::default()
    };
    let restored = ada.workspaces.restore_workspace(restore).await.expect("restored").into_inner();
    assert!(restored.changed);
    assert_eq!(ada.read("main", "a").await.expect("read"), b"one");
    assert_eq!(ada.read("main", "b").await.expect("read"), b"uncommitted");
}

#[tokio::test]
async fn an_episode_is_recorded_from_edits_compared_exported_and_dropped() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let mut episodes = EpisodeServiceClient::new(channel);
    ada.create("main", "").await.expect("made");
    ada.write("main", "a", b"start").await.expect("written");
    ada.commit_live("main", "").await.expect("committed");
    let begin = v1::BeginEpisodeRequest { episode_id: "run/1".to_owned(), ..Default::default() };
    episodes.begin_episode(begin).await.expect("begun");
    let name = || "episodes/run/1".to_owned();
    let write = |text: &str| v1::FileEdit {
        edit: Some(v1::file_edit::Edit::Write(v1::WriteEdit {
            path: "a".to_owned(),
            content: Some(v1::write_edit::Content::Text(text.to_owned())),
            ..Default::default()
        })),
    };
    let root = v1::RecordStepRequest {
        name: name(),
        revision: "@".to_owned(),
        workspace: "workspaces/main".to_owned(),
        ..Default::default()
    };
    let root = episodes.record_step(root).await.expect("recorded").into_inner().step.expect("a step");
    assert_eq!((root.number, root.parent), (1, 0));
    let mut numbers = Vec::new();
    for (text, reward) in [("left", 0.25), ("right", 0.75)] {
        let step = v1::RecordStepRequest {
            name: name(),
            edits: vec![write(text)],
            parent: root.number,
            reward: Some(reward),
            request_id: text.to_owned(),
            ..Default::default()
        };
        let done = episodes.record_step(step.clone()).await.expect("recorded").into_inner().step.expect("a step");
        let again = episodes.record_step(step).await.expect("a retry").into_inner().step.expect("a step");
        assert_eq!(done, again);
        assert_eq!(
            ada.read_at("main", &done.snapshot["snapshots/".len()..], "a").await.expect("read"),
            text.as_bytes()
        );
        numbers.push(done.number);
    }
    let best = v1::GetBestStepsRequest { name: name(), ..Default::default() };
    let best = episodes.get_best_steps(best).await.expect("found").into_inner().steps;
    assert_eq!(best.iter().map(|step| step.number).collect::<Vec<_>>(), [numbers[1]]);
    let path = v1::GetStepPathRequest { name: name(), number: numbers[1] };
    let path = episodes.get_step_path(path).await.expect("found").into_inner().steps;
    assert_eq!(path.iter().map(|step| step.number).collect::<Vec<_>>(), [1, numbers[1]]);
    let compare = v1::CompareStepsRequest { name: name(), before: numbers[0], after: numbers[1] };
    let compared = episodes.compare_steps(compare).await.expect("compared").into_inner();
    assert_eq!((compared.common.expect("the root").number, compared.reward_difference), (1, Some(0.5)));
    assert_eq!(compared.summary.expect("counts").files_modified, 1);
    let mut export =
        episodes.export_episode(v1::ExportEpisodeRequest { name: name() }).await.expect("open").into_inner();
    let mut lines = Vec::new();
    while let Some(piece) = export.message().await.expect("open") {
        lines.extend_from_slice(&piece.data);
    }
    assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 4, "a header and three steps");
    let finish = v1::FinishEpisodeRequest { name: name(), ..Default::default() };
    let finished = episodes.finish_episode(finish).await.expect("finished").into_inner().episode.expect("one");
    assert_eq!(finished.state, "kept");
    let drop = || v1::DropEpisodeRequest { name: name(), ..Default::default() };
    assert_eq!(reason(&episodes.drop_episode(drop()).await.expect_err("kept")), Reason::Invalid);
    let release = v1::ReleaseEpisodeRequest { name: name(), ..Default::default() };
    episodes.release_episode(release).await.expect("released");
    assert_eq!(episodes.drop_episode(drop()).await.expect("dropped").into_inner().steps, 3);
}
