//! Edits by call: all or none, and committed in one call.

use amalgam_proto::{Reason, v1};
use tonic::Status;
use v1::file_edit::Edit;

use super::{Caller, in_process, open, reason};

fn write(path: &str, text: &str) -> Edit {
    let content = Some(v1::write_edit::Content::Text(text.to_owned()));
    Edit::Write(v1::WriteEdit { path: path.to_owned(), content, create_parents: true, ..Default::default() })
}

fn remove(path: &str) -> Edit {
    Edit::Remove(v1::RemoveEdit { path: path.to_owned(), recursive: true, ..Default::default() })
}

fn edits(edits: Vec<Edit>) -> Vec<v1::FileEdit> {
    edits.into_iter().map(|edit| v1::FileEdit { edit: Some(edit) }).collect()
}

impl Caller {
    async fn apply(&mut self, workspace: &str, asked: Vec<Edit>) -> Result<Vec<v1::FileStat>, Status> {
        let request = v1::ApplyEditsRequest {
            workspace: format!("workspaces/{workspace}"),
            edits: edits(asked),
            ..Default::default()
        };
        Ok(self.files.apply_edits(request).await?.into_inner().files)
    }

    async fn commit_edits(
        &mut self,
        workspace: &str,
        asked: Vec<Edit>,
        expected_head: &str,
    ) -> Result<v1::CommitEditsResponse, Status> {
        let request = v1::CommitEditsRequest {
            workspace: format!("workspaces/{workspace}"),
            edits: edits(asked),
            expected_head: expected_head.to_owned(),
            buffered: true,
            with_changes: true,
            with_summary: true,
            ..Default::default()
        };
        Ok(self.files.commit_edits(request).await?.into_inner())
    }

    async fn replace(&mut self, path: &str, old: &str, new: &str, all: bool) -> Result<u64, Status> {
        let replace = v1::ReplaceEdit {
            path: path.to_owned(),
            old_text: old.to_owned(),
            new_text: new.to_owned(),
            replace_all: all,
            ..Default::default()
        };
        let edit = Some(v1::edit_file_request::Edit::Replace(replace));
        let request = v1::EditFileRequest { workspace: "workspaces/main".to_owned(), edit, ..Default::default() };
        Ok(self.files.edit_file(request).await?.into_inner().replacements)
    }
}

#[tokio::test]
async fn edits_that_fail_in_the_middle_change_nothing() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "keep", b"old").await.expect("written");
    let failing = vec![write("new", "x"), remove("keep"), remove("missing"), write("never", "x")];
    let refused = ada.apply("main", failing).await.expect_err("the third fails");
    assert_eq!(reason(&refused), Reason::NotFound, "{refused}");
    assert_eq!(ada.list("main", 10).await, ["keep"]);
    let rename = v1::RenameEdit { path: "a/b".to_owned(), new_path: "c".to_owned(), ..Default::default() };
    let done = ada.apply("main", vec![write("a/b", "one"), Edit::Rename(rename), remove("keep"), remove("a")]).await;
    let left: Vec<_> = done.expect("applied").into_iter().map(|file| file.path).collect();
    assert_eq!(left, ["", "c", "", ""], "an entry that is gone has no path");
    assert_eq!(ada.list("main", 10).await, ["c"]);
    assert_eq!(ada.read("main", "c").await.expect("read"), b"one");
}

#[tokio::test]
async fn a_text_is_replaced_where_it_is_unique_and_a_patch_where_it_fits() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "a", b"one\ntwo\ntwo\n").await.expect("written");
    assert_eq!(ada.replace("a", "one", "ONE", false).await.expect("unique"), 1);
    let refused = ada.replace("a", "two", "2", false).await.expect_err("twice");
    let failure = amalgam_proto::Failure::of_status(&refused).expect("one of ours");
    assert_eq!((failure.reason, failure.details["count"].as_str()), (Reason::NotUnique, "2"));
    let absent = ada.replace("a", "three", "3", true).await.expect_err("nowhere");
    assert_eq!(reason(&absent), Reason::NotUnique);
    assert_eq!(ada.replace("a", "two", "2", true).await.expect("all"), 2);
    assert_eq!(ada.read("main", "a").await.expect("read"), b"ONE\n2\n2\n");
    let patch = |text: &str| v1::EditFileRequest {
        workspace: "workspaces/main".to_owned(),
        edit: Some(v1::edit_file_request::Edit::Patch(v1::PatchEdit {
            path: "a".to_owned(),
            patch: text.to_owned(),
            ..Default::default()
        })),
        ..Default::default()
    };
    ada.files.edit_file(patch("@@ -1,2 +1,2 @@\n ONE\n-2\n+two\n")).await.expect("patched");
    assert_eq!(ada.read("main", "a").await.expect("read"), b"ONE\ntwo\n2\n");
    let refused = ada.files.edit_file(patch("@@ -1 +1 @@\n-ONE\n+1\n@@ -3 +3 @@\n-gone\n+x\n")).await;
    let failure = amalgam_proto::Failure::of_status(&refused.expect_err("the second hunk")).expect("one of ours");
    assert_eq!((failure.reason, failure.details["hunk"].as_str()), (Reason::PatchFailed, "2"));
    assert_eq!(ada.read("main", "a").await.expect("read"), b"ONE\ntwo\n2\n");
    let far = v1::WriteFileHeader { offset: Some(1 << 30), ..super::files::header("main", "huge") };
    let parts =
        vec![v1::write_file_request::Part::Header(far), v1::write_file_request::Part::Data(b"x".to_vec().into())];
    ada.send_parts(parts).await.expect("a sparse file");
    let refused = ada.replace("huge", "x", "y", false).await.expect_err("too large");
    assert_eq!(reason(&refused), Reason::Invalid, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_commits_win_once_per_expected_head_and_none_is_lost_without() {
    const WRITERS: usize = 64;
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let first = ada.commit_edits("main", vec![write("a", "0")], "none").await.expect("committed");
    let head = first.snapshot.expect("a snapshot").name;
    assert_eq!(first.changes.iter().map(|change| change.path.as_str()).collect::<Vec<_>>(), ["a"]);
    let race = |expected: String, folder: &'static str| {
        let ada = ada.clone();
        async move {
            let tasks: Vec<_> = (0..WRITERS)
                .map(|number| {
                    let (mut ada, expected) = (ada.clone(), expected.clone());
                    tokio::spawn(async move {
                        ada.commit_edits("main", vec![write(&format!("{folder}/{number}"), "x")], &expected).await
                    })
                })
                .collect();
            let mut done = Vec::new();
            for task in tasks {
                done.push(task.await.expect("no panic"));
            }
            done
        }
    };
    let done = race(head, "once").await;
    assert_eq!(done.iter().filter(|done| done.is_ok()).count(), 1);
    for refused in done.into_iter().filter_map(Result::err) {
        assert_eq!(reason(&refused), Reason::StaleHead, "{refused}");
    }
    let done = race(String::new(), "all").await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let listed = ada.list("main", 1_000).await;
    assert_eq!(listed.iter().filter(|path| path.starts_with("all/")).count(), WRITERS);
    assert_eq!(listed.iter().filter(|path| path.starts_with("once/")).count(), 1);
}

#[tokio::test]
async fn a_commit_of_edits_is_repeated_by_its_request_id_and_labels_its_kind() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let request = |kind: v1::CommitKind, id: &str, text: &str| v1::CommitEditsRequest {
        workspace: "workspaces/main".to_owned(),
        edits: edits(vec![write("a", text)]),
        kind: kind.into(),
        labels: vec!["good".to_owned()],
        request_id: id.to_owned(),
        ..Default::default()
    };
    let first = ada.files.commit_edits(request(v1::CommitKind::Step, "1", "x")).await.expect("committed").into_inner();
    let again = ada.files.commit_edits(request(v1::CommitKind::Step, "1", "x")).await.expect("a retry").into_inner();
    assert_eq!(first, again);
    assert_eq!(first.snapshot.expect("a snapshot").metadata["kind"], "step");
    let other = ada.files.commit_edits(request(v1::CommitKind::Step, "1", "y")).await.expect_err("other arguments");
    assert_eq!(reason(&other), Reason::RequestReused);
    let automatic = ada.files.commit_edits(request(v1::CommitKind::Automatic, "2", "z")).await.expect("committed");
    let metadata = automatic.into_inner().snapshot.expect("a snapshot").metadata;
    assert_eq!((metadata["kind"].as_str(), metadata["automatic"].as_str()), ("automatic", "true"));
}

#[tokio::test]
async fn labels_note_and_reward_are_set_on_a_head_that_has_the_edits_already() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    let mut head = String::new();
    for text in ["one", "two"] {
        let done = ada.commit_edits("main", vec![write("a", text)], "").await.expect("committed");
        head = done.snapshot.expect("a snapshot").name;
    }
    let request = v1::CommitEditsRequest {
        workspace: "workspaces/main".to_owned(),
        edits: edits(vec![write("a", "two")]),
        revision: "@~".to_owned(),
        labels: vec!["good".to_owned()],
        note: Some("checked".to_owned()),
        reward: Some(0.5),
        request_id: "1".to_owned(),
        ..Default::default()
    };
    let done = ada.files.commit_edits(request.clone()).await.expect("committed").into_inner();
    let snapshot = done.snapshot.clone().expect("a snapshot");
    assert_eq!((&snapshot.name, done.changed), (&head, false));
    assert_eq!((&snapshot.labels[..], snapshot.note.as_str()), (&["good".to_owned()][..], "checked"));
    assert_eq!(snapshot.reward, Some(0.5));
    let again = ada.files.commit_edits(request).await.expect("a retry").into_inner();
    assert_eq!(done, again);
}

#[tokio::test]
async fn a_live_tree_follows_commits_without_changes_and_merges_with_them() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    ada.create("main", "").await.expect("made");
    ada.write("main", "a", b"1\n2\n3\n4\n5\n").await.expect("written");
    ada.commit_live("main", "").await.expect("committed");
    ada.commit_edits("main", vec![write("b", "b")], "").await.expect("committed");
    assert_eq!(ada.read("main", "b").await.expect("the tree follows"), b"b");
    // The head moves under a tree with changes.
    ada.write("main", "mine", b"live").await.expect("written");
    ada.write("main", "a", b"one\n2\n3\n4\n5\n").await.expect("written");
    ada.write("main", "both", b"live").await.expect("written");
    let edits = vec![write("a", "1\n2\n3\n4\nfive\n"), write("both", "head")];
    let head = ada.commit_edits("main", edits, "").await.expect("committed").snapshot.expect("a snapshot").name;
    assert_eq!(ada.read("main", "mine").await.expect("read"), b"live");
    assert_eq!(ada.status("main").await.head, head);
    let refused = ada.commit_live("main", &head).await.expect_err("the tree follows an older head");
    assert_eq!(reason(&refused), Reason::StaleHead, "{refused}");
    let done = ada.commit_live("main", "").await.expect("merged");
    assert!(done.merged && done.changed, "{done:?}");
    let snapshot = done.snapshot.expect("a snapshot");
    assert_eq!((snapshot.parents, snapshot.conflicts), (vec![head], 1));
    assert_eq!(ada.read("main", "a").await.expect("read"), b"one\n2\n3\n4\nfive\n");
    assert_eq!(ada.read("main", "mine").await.expect("read"), b"live");
    assert_eq!(ada.stat("main", "both").await.expect("found").kind(), v1::EntryKind::Conflict);
    let shown = String::from_utf8(ada.read("main", "both").await.expect("read")).expect("text");
    assert!(shown.contains("live") && shown.contains("head"), "{shown}");
    ada.write("main", "both", b"decided").await.expect("resolved");
    ada.commit_live("main", "").await.expect("committed");
    assert_eq!(ada.read_at("main", "@", "both").await.expect("read"), b"decided");
}

#[tokio::test]
async fn a_fork_of_a_live_tree_with_changes_keeps_commits_that_were_made_beside_it() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    // The live tree follows a snapshot, or is older than the first one.
    for (workspace, fork, has_snapshot) in [("main", "try", true), ("empty", "try-empty", false)] {
        ada.create(workspace, "").await.expect("made");
        if has_snapshot {
            ada.write(workspace, "a", b"first").await.expect("written");
            ada.commit_live(workspace, "").await.expect("committed");
        }
        ada.write(workspace, "mine", b"live").await.expect("written");
        ada.commit_edits(workspace, vec![write("b", "committed")], "").await.expect("committed");
        let request = v1::ForkWorkspaceRequest {
            name: format!("workspaces/{workspace}"),
            workspace_ids: vec![fork.to_owned()],
            ..Default::default()
        };
        ada.workspaces.fork_workspace(request).await.expect("forked");
        for name in [workspace, fork] {
            assert_eq!(ada.read_at(name, "@", "b").await.expect("read"), b"committed", "{name}");
            assert_eq!(ada.read_at(name, "@", "mine").await.expect("read"), b"live", "{name}");
        }
        assert_eq!(ada.read(workspace, "b").await.expect("read"), b"committed", "{workspace}");
        assert!(ada.status(workspace).await.changes.is_empty(), "{workspace}");
    }
}

#[tokio::test]
async fn a_directory_follows_committed_edits_and_its_captures_keep_state_values() {
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let directory = around.path().join("project");
    std::fs::create_dir(&directory).expect("made");
    std::fs::write(directory.join("a"), "one").expect("written");
    let attached = ada.attach(&directory, "main").await;
    ada.commit(&attached, "first", "").await.expect("committed");
    std::fs::write(directory.join("mine"), "uncommitted").expect("written");
    let state = v1::StateEdit { key: "k".to_owned(), json: Some("1".to_owned()), ..Default::default() };
    ada.commit_edits("main", vec![write("a", "two"), Edit::SetState(state)], "").await.expect("committed");
    assert_eq!(std::fs::read_to_string(directory.join("a")).expect("read"), "two");
    assert_eq!(std::fs::read_to_string(directory.join("mine")).expect("read"), "uncommitted");
    assert_eq!(ada.read("main", "mine").await.expect("read"), b"uncommitted");
    let refused = ada.write("main", "a", b"x").await.expect_err("a directory of the host");
    assert_eq!(reason(&refused), Reason::Mounted, "{refused}");
    std::fs::write(directory.join("a"), "three").expect("written");
    assert_eq!(ada.status("main").await.changes.len(), 1);
    ada.commit_live("main", "").await.expect("committed");
    assert_eq!(ada.read_at("main", "@", "a").await.expect("read"), b"three");
    let mut states = amalgam_proto::v1::state_service_client::StateServiceClient::new(channel);
    let get =
        v1::GetStateRequest { workspace: "workspaces/main".to_owned(), revision: "@".to_owned(), key: "k".to_owned() };
    let kept = states.get_state(get).await.expect("kept").into_inner().value.expect("a value");
    assert_eq!(kept.json, "1");
}

#[tokio::test]
async fn a_directory_and_a_live_tree_follow_an_undo_and_a_redo_of_a_renaming() {
    use v1::redo_operation_request::Target as RedoTarget;
    use v1::undo_operation_request::Target as UndoTarget;
    let around = tempfile::tempdir().expect("a directory");
    let channel = in_process(open(around.path())).await;
    let mut ada = Caller::new(&channel, "ada");
    let directory = around.path().join("project");
    std::fs::create_dir(&directory).expect("made");
    std::fs::write(directory.join("a"), "one").expect("written");
    let attached = ada.attach(&directory, "attached").await;
    ada.commit(&attached, "first", "").await.expect("committed");
    ada.create("live", "").await.expect("made");
    ada.write("live", "a", b"one").await.expect("written");
    ada.commit_live("live", "").await.expect("committed");
    for name in ["attached", "live"] {
        let renamed = format!("{name}-renamed");
        let rename = v1::RenameWorkspaceRequest {
            name: format!("workspaces/{name}"),
            new_workspace_id: renamed.clone(),
            ..Default::default()
        };
        ada.workspaces.rename_workspace(rename).await.expect("renamed");
        let undo = v1::UndoOperationRequest {
            target: Some(UndoTarget::Workspace(format!("workspaces/{renamed}"))),
            ..Default::default()
        };
        let redo = v1::RedoOperationRequest {
            target: Some(RedoTarget::Workspace(format!("workspaces/{name}"))),
            ..Default::default()
        };
        ada.operations.undo_operation(undo.clone()).await.expect("undone");
        assert!(ada.exists(name).await && !ada.exists(&renamed).await);
        ada.operations.redo_operation(redo).await.expect("redone");
        assert!(ada.exists(&renamed).await && !ada.exists(name).await);
        ada.operations.undo_operation(undo).await.expect("undone");
    }
    std::fs::write(directory.join("a"), "two").expect("written");
    assert!(ada.commit(&attached, "second", "").await.expect("the directory has its workspace").1);
    ada.write("live", "a", b"two").await.expect("written");
    ada.commit_live("live", "").await.expect("committed");
    for name in ["attached", "live"] {
        assert_eq!(ada.read_at(name, "@", "a").await.expect("read"), b"two", "{name}");
    }
}
