//! Workspaces and operations: the promises of each call, one at a time.

use std::collections::BTreeMap;
use std::time::Duration;

use amalgam_engine::reference::{RefName, RefValue, RequestId};
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace, Taken, with_paths_of};
use amalgam_engine::{
    Error, ErrorKind, LivedTime, Now, OperationContext, OperationCursor, Revision, SnapshotId, Store, Swept, Time,
    TreePath, WorkspaceName, Workspaces, operation,
};
use amalgam_tests::harness::over_all;

fn ada() -> OperationContext {
    OperationContext::new("ada", Time(1_000)).buffered()
}

fn ws(text: &str) -> WorkspaceName {
    WorkspaceName::new(text).expect("a valid name")
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a valid path")
}

/// A file's text as of a workspace's head.
fn text(workspaces: &Workspaces, name: &WorkspaceName, file: &str) -> Option<String> {
    let tree = workspaces.open(name).expect("open");
    tree.exists(file).expect("look").then(|| String::from_utf8(tree.read(file).expect("read")).expect("text"))
}

fn write(workspaces: &Workspaces, name: &WorkspaceName, file: &str, text: &str) -> SnapshotId {
    let mut tree = workspaces.open(name).expect("open");
    tree.write(file, text.as_bytes()).expect("write");
    workspaces.commit(name, &mut tree, &Change::new(text), &ada()).expect("commit").snapshot
}

fn refs(store: &Store) -> Vec<(RefName, RefValue)> {
    store.list_refs("", None, 10_000).expect("list")
}

fn started(store: &Store) -> Workspaces {
    let workspaces = Workspaces::of(store);
    workspaces.create(&ws("main"), &NewWorkspace::default(), &ada()).expect("create");
    workspaces
}

#[test]
fn a_stale_head_is_an_error_that_carries_the_current_one() {
    over_all(|place| {
        let workspaces = started(&place.store());
        let mut late = workspaces.open(&ws("main")).expect("open");
        let head = write(&workspaces, &ws("main"), "a", "1");
        late.write("b", b"2").expect("write");
        match workspaces.commit(&ws("main"), &mut late, &Change::new("late"), &ada()) {
            Err(error @ Error::StaleHead { expected: None, current: Some(current), .. }) => {
                assert_eq!((error.kind(), current), (ErrorKind::Stale, head));
                assert!(error.to_string().contains(&head.short()), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(text(&workspaces, &ws("main"), "b"), None);
    });
}

#[test]
fn a_commit_of_nothing_returns_the_head() {
    let store = Store::in_memory();
    let workspaces = started(&store);
    let head = write(&workspaces, &ws("main"), "a", "1");
    let operations = store.last_operation().expect("log");
    let mut tree = workspaces.open(&ws("main")).expect("open");
    tree.write("a", b"2").expect("write");
    tree.write("a", b"1").expect("and back");
    let done = workspaces.commit(&ws("main"), &mut tree, &Change::new("nothing"), &ada()).expect("commit");
    assert_eq!((done.snapshot, done.operation, done.is_new), (head, None, false));
    assert_eq!(store.last_operation().expect("log"), operations);
    let label = LabelName::new("same").expect("a name");
    let change = Change::new("nothing, with a label").label(label.clone());
    let done = workspaces.commit(&ws("main"), &mut tree, &change, &ada()).expect("commit");
    assert_eq!((done.snapshot, done.is_new), (head, false));
    assert_eq!(Labels::of(&store).find(&label).expect("find"), Some(head));
}

#[test]
fn a_note_is_written_over_an_older_one_by_commits_too() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, labels) = (started(&store), Labels::of(&store));
        let name = ws("main");
        let mut tree = workspaces.open(&name).expect("open");
        tree.write("a", b"1").expect("write");
        let mut again = tree.fork();
        let note = |text: &str| Change::new("same").note(text).reward(1.0);
        let head = workspaces.commit(&name, &mut tree, &note("first"), &ada()).expect("commit").snapshot;
        let request = ada().as_request(RequestId::new("r").expect("an id"));
        let of_nothing = workspaces.commit(&name, &mut tree, &note("second"), &request).expect("commit");
        assert_eq!((of_nothing.snapshot, of_nothing.is_new), (head, false));
        assert_eq!(workspaces.commit(&name, &mut tree, &note("third"), &request).expect("the same"), of_nothing);
        assert_eq!(labels.note(head).expect("note").as_deref(), Some("second"));
        // The same snapshot once more, after it was taken back and its note was not.
        labels.set_note(head, Some("kept"), &ada()).expect("note");
        let act = ada();
        store
            .session()
            .commit(
                head,
                amalgam_engine::RefMove {
                    expect: vec![(name.reference(), store.read_ref(&name.reference()).expect("read"))],
                    set: vec![(name.reference(), Some(RefValue::noting(head_note(&store, &name))))],
                    ..amalgam_engine::RefMove::default()
                },
            )
            .expect("the head goes back to nothing");
        let done = workspaces.commit(&name, &mut again, &note("again"), &act).expect("commit");
        assert_eq!((done.snapshot, labels.note(head).expect("note").as_deref()), (head, Some("again")));
    });
}

/// What a workspace's reference says beside its head.
fn head_note(store: &Store, name: &WorkspaceName) -> bytes::Bytes {
    store.read_ref(&name.reference()).expect("read").expect("there").note
}

#[test]
fn a_workspace_whose_tree_is_gone_is_renamed_and_deleted_all_the_same() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let head = write(&workspaces, &ws("main"), "a", "1");
        let root = store.snapshot(head).expect("there").root.object();
        let mut round = store.begin_sweep().expect("begin");
        assert_eq!(round.sweep(&|id| id != root).expect("sweep"), Swept::Done { objects: 1 });
        drop(round);
        assert!(workspaces.open(&ws("main")).is_err(), "its tree is gone");
        workspaces.rename(&ws("main"), &ws("other"), &ada()).expect("rename");
        workspaces.delete(&ws("other"), &ada()).expect("delete");
        workspaces.undelete(&ws("other"), &ada()).expect("undelete");
        let fork = workspaces.fork(&ws("other"), &[ws("fork")], &ada()).expect_err("nothing to fork");
        assert_eq!(fork.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn labels_notes_and_rewards_come_with_the_commit_or_later() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, labels) = (started(&store), Labels::of(&store));
        let v1 = LabelName::new("v1").expect("a name");
        let mut tree = workspaces.open(&ws("main")).expect("open");
        tree.write("a", b"1").expect("write");
        let before = store.last_operation().expect("log");
        let change = Change::new("all at once").label(v1.clone()).label(v1.clone()).note("well done").reward(0.5);
        let done = workspaces.commit(&ws("main"), &mut tree, &change, &ada()).expect("commit");
        assert_eq!(store.last_operation().expect("log"), before + 1, "one operation");
        assert_eq!(labels.find(&v1).expect("find"), Some(done.snapshot));
        assert_eq!(labels.note(done.snapshot).expect("note").as_deref(), Some("well done"));
        assert_eq!(labels.reward(done.snapshot).expect("reward"), Some(0.5));
        workspaces.undo(&ws("main"), &ada()).expect("undo");
        assert_eq!(labels.find(&v1).expect("find"), None, "taken back together");
        workspaces.redo(&ws("main"), &ada()).expect("redo");
        labels.set_reward(done.snapshot, Some(-1.0), &ada()).expect("reward");
        labels.set_note(done.snapshot, None, &ada()).expect("note");
        labels.set(&v1, None, &ada()).expect("label");
        assert_eq!(labels.reward(done.snapshot).expect("reward"), Some(-1.0));
        assert_eq!(labels.note(done.snapshot).expect("note"), None);
        assert_eq!(labels.list("", None, 10).expect("list"), []);
        assert_eq!(
            labels.set_reward(done.snapshot, Some(f64::NAN), &ada()).expect_err("NaN").kind(),
            ErrorKind::Invalid
        );
    });
}

#[test]
fn a_request_is_done_once_wherever_the_head_is_by_then() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let mut tree = workspaces.open(&ws("main")).expect("open");
        tree.write("a", b"1").expect("write");
        let mut again = tree.fork();
        let act = ada().as_request(RequestId::new("r").expect("an id"));
        let first = workspaces.commit(&ws("main"), &mut tree, &Change::new("1"), &act).expect("commit");
        write(&workspaces, &ws("main"), "b", "2");
        let operations = store.last_operation().expect("log");
        let second = workspaces.commit(&ws("main"), &mut again, &Change::new("1"), &act).expect("the same");
        assert_eq!((second.snapshot, second.operation), (first.snapshot, first.operation));
        assert_eq!(store.last_operation().expect("log"), operations);
    });
}

#[test]
fn a_retried_commit_of_a_note_names_the_snapshot_that_got_it() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, name) = (started(&store), ws("main"));
        let head = write(&workspaces, &name, "a", "1");
        for (id, change) in [("note", Change::new("").note("good")), ("reward", Change::new("").reward(1.0))] {
            let act = ada().as_request(RequestId::new(id).expect("an id"));
            let mut tree = amalgam_engine::WorkingTree::open(&store, head).expect("open");
            let first = workspaces.commit(&name, &mut tree, &change, &act).expect("commit");
            assert_eq!((first.snapshot, first.is_new), (head, false), "{id}");
            write(&workspaces, &name, "b", id);
            let mut tree = workspaces.open(&name).expect("open");
            assert_eq!(workspaces.commit(&name, &mut tree, &change, &act).expect("a retry"), first, "{id}");
            workspaces.undo(&name, &ada()).expect("undo");
        }
    });
}

#[test]
fn a_retried_undo_or_redo_returns_the_operation_of_the_first_attempt() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, name) = (started(&store), ws("main"));
        write(&workspaces, &name, "a", "1");
        let by = |id: &str| ada().as_request(RequestId::new(id).expect("an id"));
        workspaces.undo(&name, &ada()).expect("undo");
        let redone = workspaces.redo(&name, &by("redo")).expect("redo").sequence;
        assert_eq!(workspaces.redo(&name, &by("redo")).expect("a retry").sequence, redone);
        let undo_the_redo = || operation::undo_operation(&store, redone, &by("undo of the redo"));
        let undone = undo_the_redo().expect("undo").sequence;
        assert_eq!(undo_the_redo().expect("a retry").sequence, undone);
        let removed = workspaces.undo(&name, &by("undo of the creation")).expect("undo").sequence;
        assert_eq!(workspaces.undo(&name, &by("undo of the creation")).expect("a retry").sequence, removed);
        assert!(workspaces.find(&name).expect("look").is_none());
        assert_eq!(store.last_operation().expect("log"), removed, "nothing was done twice");
    });
}

#[test]
fn a_whole_restore_is_a_new_snapshot_with_the_old_tree() {
    let store = Store::in_memory();
    let workspaces = started(&store);
    let old = write(&workspaces, &ws("main"), "a", "1");
    let head = write(&workspaces, &ws("main"), "a", "2");
    let done = workspaces.restore(&ws("main"), old, &ada()).expect("restore");
    let (before, after) = (store.snapshot(old).expect("old"), store.snapshot(done.snapshot).expect("new"));
    assert_eq!((after.root, &after.parents[..]), (before.root, &[head][..]));
    assert!(!workspaces.restore(&ws("main"), old, &ada()).expect("again").is_new);
}

#[test]
fn restored_paths_get_the_time_of_the_restore_and_nothing_else_changes() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let name = ws("main");
        let mut tree = workspaces.open(&name).expect("open");
        tree.set_now(Time(10));
        tree.create_directories("d/e").expect("mkdir");
        for file in ["d/same", "d/changed", "d/gone", "d/e/deep", "kind", "other"] {
            tree.write(file, b"old").expect("write");
        }
        tree.set_mode("d/same", 0o755).expect("chmod");
        let old = workspaces.commit(&name, &mut tree, &Change::new("old"), &ada()).expect("commit").snapshot;
        tree.set_now(Time(20));
        tree.write("d/changed", b"new").expect("write");
        tree.write("other", b"new").expect("write");
        tree.write("d/added", b"new").expect("write");
        tree.remove("d/gone").expect("remove");
        tree.remove_all("d/e").expect("remove");
        tree.write("d/e", b"a file now").expect("write");
        tree.set_mode("d/same", 0o644).expect("chmod");
        tree.remove("kind").expect("remove");
        tree.create_directories("kind/below").expect("mkdir");
        workspaces.commit(&name, &mut tree, &Change::new("new"), &ada()).expect("commit");

        let act = OperationContext::new("ada", Time(30)).buffered();
        workspaces.restore_paths(&name, old, &[path("d"), path("kind")], &act).expect("restore");
        let tree = workspaces.open(&name).expect("open");
        let mtime = |file: &str| tree.stat(file).expect("stat").expect(file).mtime;
        for file in ["d/changed", "d/gone", "d/e/deep", "kind"] {
            assert_eq!(tree.read(file).expect(file), b"old");
            assert_eq!(mtime(file), Time(30), "{file}: its bytes changed");
        }
        assert_eq!((mtime("d/same"), tree.stat("d/same").expect("stat").expect("there").mode), (Time(10), 0o755));
        assert!(!tree.exists("d/added").expect("look"));
        assert_eq!((tree.read("other").expect("read"), mtime("other")), (b"new".to_vec(), Time(20)));
        let error = workspaces.restore_paths(&name, old, &[path("nowhere")], &act).expect_err("absent");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn paths_that_overlap_or_repeat_are_restored_once() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let name = ws("main");
        let without = write(&workspaces, &name, "other", "1");
        let as_file = write(&workspaces, &name, "a", "a file");
        let mut tree = workspaces.open(&name).expect("open");
        tree.remove("a").expect("remove");
        tree.create_directories("a").expect("mkdir");
        tree.write("a/b", b"below").expect("write");
        let with = workspaces.commit(&name, &mut tree, &Change::new("below"), &ada()).expect("commit").snapshot;
        for paths in [["a", "a/b"], ["a/b", "a"], ["a", "a"]] {
            let paths = paths.map(path);
            workspaces.restore_paths(&name, without, &paths, &ada()).expect("removed");
            assert!(!workspaces.open(&name).expect("open").exists("a").expect("look"), "{paths:?}");
            workspaces.restore_paths(&name, with, &paths, &ada()).expect("restored");
            assert_eq!(text(&workspaces, &name, "a/b").as_deref(), Some("below"), "{paths:?}");
            workspaces.restore_paths(&name, as_file, &paths, &ada()).expect("restored as a file");
            assert_eq!(text(&workspaces, &name, "a").as_deref(), Some("a file"), "{paths:?}");
            workspaces.restore_paths(&name, with, &paths, &ada()).expect("restored");
            let [directory, file] = [with, as_file].map(|id| store.snapshot(id).expect("read").root);
            let made = with_paths_of(&store, directory, file, &paths, Taken::AsItWas).expect("taken");
            assert_eq!(made.read("a").expect("read"), b"a file", "{paths:?}");
        }
    });
}

#[test]
fn paths_taken_as_they_were_have_the_directory_times_of_the_other_tree() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let root_of = |time: i64, text: &str| {
            let mut tree = workspaces.open(&ws("main")).expect("open");
            tree.set_now(Time(time));
            tree.create_directories("d/e").expect("mkdir");
            tree.write("d/e/f", text.as_bytes()).expect("write");
            tree.write("d/same", b"same").expect("write");
            for path in ["", "d", "d/e"] {
                tree.set_mtime(path, Time(time)).expect("utimes");
            }
            let change = Change::new(text);
            let done = workspaces.commit(&ws("main"), &mut tree, &change, &ada()).expect("commit");
            store.snapshot(done.snapshot).expect("read").root
        };
        let (old, new) = (root_of(10, "old"), root_of(20, "new"));
        let mut bare = workspaces.open(&ws("main")).expect("open");
        bare.remove_all("d").expect("remove");
        bare.set_mtime("", Time(30)).expect("utimes");
        let (bare, _pin) = bare.freeze().hold().expect("stored");
        let times = |tree, taken: &str| {
            let made = with_paths_of(&store, tree, old, &[path(taken)], Taken::AsItWas).expect("taken");
            ["", "d", "d/e", "d/e/f"].map(|path| made.stat(path).expect("stat").expect("there").mtime.0)
        };
        assert_eq!(times(new, "d"), [20, 10, 10, 10]);
        assert_eq!(times(new, "d/e"), [20, 20, 10, 10], "a directory above keeps its own time");
        assert_eq!(times(new, "d/e/f"), [20, 20, 20, 10]);
        assert_eq!(times(bare, "d"), [30, 10, 10, 10]);
        assert_eq!(times(bare, "d/e"), [30, 10, 10, 10], "a new directory above has the other tree's time");
        let removed = with_paths_of(&store, new, bare, &[path("d/e")], Taken::AsItWas).expect("taken");
        assert_eq!(["", "d"].map(|path| removed.stat(path).expect("stat").expect("there").mtime.0), [20, 20]);
    });
}

#[test]
fn names_of_snapshots_are_found_or_the_error_says_what_could_be_meant() {
    let store = Store::in_memory();
    let workspaces = started(&store);
    let (main, here) = (ws("main"), Some(ws("main")));
    let find = |text: &str| {
        Revision::parse(text).and_then(|revision| revision.resolve(&store, here.as_ref(), &Now::utc(Time(0))))
    };
    assert_eq!(find("@").expect_err("nothing yet").kind(), ErrorKind::NotFound);
    let ids: Vec<_> = (0..300).map(|number| write(&workspaces, &main, "a", &number.to_string())).collect();
    let last = ids.len() - 1;
    Labels::of(&store).set(&LabelName::new("v1").expect("a name"), Some(ids[3]), &ada()).expect("label");
    assert_eq!(find("@").expect("head"), ids[last]);
    assert_eq!(find("main@~2").expect("two back"), ids[last - 2]);
    assert_eq!(find("@~").expect("one back"), ids[last - 1]);
    assert_eq!(find("v1~1").expect("before the label"), ids[2]);
    assert_eq!(find(&ids[7].to_string()).expect("whole id"), ids[7]);
    assert_eq!(find(&ids[7].short()).expect("short id"), ids[7]);
    assert_eq!(find(&ids[7].short().to_uppercase()).expect("short id"), ids[7]);
    let hint = |text: &str| find(text).expect_err("not there").to_string();
    assert!(hint("v2").contains("v1"), "{}", hint("v2"));
    assert_eq!(find("main").expect("a workspace by its bare name"), ids[last]);
    assert_eq!(find("main~2").expect("two back"), ids[last - 2]);
    Labels::of(&store).set(&LabelName::new("main").expect("a name"), Some(ids[5]), &ada()).expect("label");
    assert_eq!(find("main").expect("a label goes before a workspace"), ids[5]);
    assert_eq!(find("main@").expect("and this is the workspace"), ids[last]);
    assert!(hint("mian@").contains("main"), "{}", hint("mian@"));
    assert!(hint("@~300").contains("history begins 299 back"), "{}", hint("@~300"));
    assert_eq!(find("@@").expect_err("nonsense").kind(), ErrorKind::Invalid);
    // Of 300 ids some two share their first digits.
    let mut sorted: Vec<_> = ids.iter().map(ToString::to_string).collect();
    sorted.sort();
    let shared = |a: &str, b: &str| a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    let pair = sorted.windows(2).max_by_key(|pair| shared(&pair[0], &pair[1])).expect("many");
    let digits = shared(&pair[0], &pair[1]);
    if digits >= 4 {
        match find(&pair[0][..digits]) {
            Err(Error::Ambiguous { candidates, .. }) => assert_eq!(candidates.len(), 2),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(find(&pair[0][..digits + 4]).expect("unique").to_string(), pair[0]);
}

#[test]
fn a_cursor_follows_the_log_and_waits() {
    over_all(|place| {
        let store = place.store();
        let workspaces = started(&store);
        let mut cursor = OperationCursor::after(&store, 0);
        assert_eq!(cursor.read().expect("read").len(), 1);
        assert_eq!(cursor.wait(Duration::from_millis(1)).expect("nothing").len(), 0);
        let follower = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while seen.len() < 20 {
                seen.extend(cursor.wait(Duration::from_secs(30)).expect("wait").into_iter().map(|o| o.sequence));
            }
            seen
        });
        for number in 0..20 {
            write(&workspaces, &ws("main"), "a", &number.to_string());
        }
        assert_eq!(follower.join().expect("no panic"), (2..22).collect::<Vec<_>>());
        assert_eq!(OperationCursor::at_end(&store).expect("end").position(), 21);
    });
}

#[test]
fn forks_are_made_together_or_not_at_all() {
    let store = Store::in_memory();
    let workspaces = started(&store);
    write(&workspaces, &ws("main"), "a", "1");
    let names: Vec<_> = (0..1_000).map(|number| ws(&format!("fork/{number}"))).collect();
    workspaces.fork(&ws("main"), &names, &ada()).expect("fork");
    assert_eq!(workspaces.list("fork/", None, 2_000).expect("list").len(), 1_000);
    let fork = workspaces.get(&names[7]).expect("there");
    let main = workspaces.get(&ws("main")).expect("there");
    assert_eq!((fork.head, fork.base), (main.head, main.head));
    let more = [ws("new"), ws("fork/3")];
    let error = workspaces.fork(&ws("main"), &more, &ada()).expect_err("one is taken");
    assert_eq!((error.kind(), error.to_string().contains("fork/3")), (ErrorKind::Exists, true));
    assert!(workspaces.find(&ws("new")).expect("look").is_none());
    workspaces.undo(&names[0], &ada()).expect("undo");
    assert_eq!(workspaces.list("fork/", None, 2_000).expect("list").len(), 0, "taken back together");
}

#[test]
fn what_was_deleted_comes_back_and_the_error_says_how() {
    let store = Store::in_memory();
    let workspaces = started(&store);
    write(&workspaces, &ws("main"), "a", "1");
    workspaces.delete(&ws("main"), &ada()).expect("delete");
    let error = workspaces.get(&ws("main")).expect_err("deleted").to_string();
    assert!(error.contains("undelete"), "{error}");
    workspaces.create(&ws("main"), &NewWorkspace::default(), &ada()).expect("the name is free");
    assert_eq!(workspaces.undelete(&ws("main"), &ada()).expect_err("taken").kind(), ErrorKind::Exists);
    workspaces.rename(&ws("main"), &ws("other"), &ada()).expect("rename");
    workspaces.undelete(&ws("main"), &ada()).expect("undelete");
    assert_eq!(text(&workspaces, &ws("main"), "a").as_deref(), Some("1"));
}

#[test]
fn a_workspace_that_was_undeleted_and_deleted_again_is_not_forgotten_with_the_old_ones() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, name) = (started(&store), ws("main"));
        write(&workspaces, &name, "a", "1");
        workspaces.delete(&name, &ada()).expect("delete");
        let deleted = || workspaces.deleted_before(Time(2_000), &LivedTime::default()).expect("a list");
        let old = deleted();
        workspaces.undelete(&name, &ada()).expect("undelete");
        workspaces.delete(&name, &ada()).expect("delete");
        assert_eq!(deleted()[0].0, old[0].0, "one name for both");
        assert!(workspaces.forget_deleted(&old, &ada()).expect("skipped").is_none());
        workspaces.undelete(&name, &ada()).expect("it is there");
        assert_eq!(text(&workspaces, &name, "a").as_deref(), Some("1"));
        workspaces.delete(&name, &ada()).expect("delete");
        assert!(workspaces.forget_deleted(&deleted(), &ada()).expect("forgotten").is_some());
        assert_eq!(workspaces.undelete(&name, &ada()).expect_err("forgotten").kind(), ErrorKind::NotFound);
    });
}

/// 32 threads on few workspaces: the log tells one story, in which every acknowledged operation happened once, at a moment
/// between its call and its answer.
#[test]
fn threads_agree_on_one_story() {
    use std::sync::atomic::{AtomicU64, Ordering};
    over_all(|place| {
        let store = place.store();
        let workspaces = Workspaces::of(&store);
        for number in 0..4 {
            workspaces.create(&ws(&format!("w{number}")), &NewWorkspace::default(), &ada()).expect("create");
        }
        let acknowledged = AtomicU64::new(store.last_operation().expect("log"));
        let done: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..32_u64)
                .map(|thread| {
                    let (workspaces, acknowledged) = (&workspaces, &acknowledged);
                    scope.spawn(move || {
                        let mut done = Vec::new();
                        let act = OperationContext::new(format!("t{thread}"), Time(1)).buffered();
                        for step in 0..25_u64 {
                            let name = ws(&format!("w{}", (thread + step) % 4));
                            let floor = acknowledged.load(Ordering::SeqCst);
                            let sequence = match (thread + step * 3) % 5 {
                                0 | 1 => {
                                    let Ok(mut tree) = workspaces.open(&name) else { continue };
                                    tree.write(format!("f{thread}"), &step.to_be_bytes()).expect("write");
                                    let change = Change::new("c");
                                    workspaces.commit(&name, &mut tree, &change, &act).map(|done| done.operation)
                                }
                                2 => {
                                    let into = [ws(&format!("fork-{thread}-{step}"))];
                                    workspaces.fork(&name, &into, &act).map(|operation| Some(operation.sequence))
                                }
                                3 => workspaces.undo(&name, &act).map(|operation| Some(operation.sequence)),
                                _ => workspaces.redo(&name, &act).map(|operation| Some(operation.sequence)),
                            };
                            match sequence {
                                Ok(Some(sequence)) => {
                                    acknowledged.fetch_max(sequence, Ordering::SeqCst);
                                    done.push((floor, sequence));
                                }
                                Ok(None) => {}
                                Err(error) => {
                                    assert!(matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound), "{error}")
                                }
                            }
                        }
                        done
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(done.len() > 100, "only {} operations came through", done.len());
        for (floor, sequence) in &done {
            assert!(sequence > floor, "an operation is in the log before one that was acknowledged before it began");
        }
        let mut sequences: Vec<_> = done.iter().map(|(_, sequence)| *sequence).collect();
        sequences.sort_unstable();
        let log = store.list_operations(0, usize::MAX).expect("log");
        assert_eq!(sequences, (5..=log.len() as u64).collect::<Vec<_>>(), "each acknowledged one once, and no other");
        let mut state: BTreeMap<RefName, RefValue> = BTreeMap::new();
        for (number, operation) in log.into_iter().enumerate() {
            assert_eq!(operation.sequence, number as u64 + 1);
            for change in operation.changes {
                assert_eq!(state.get(&change.name), change.before.as_ref(), "operation {}", operation.sequence);
                match change.after {
                    Some(value) => state.insert(change.name, value),
                    None => state.remove(&change.name),
                };
            }
        }
        assert_eq!(state.into_iter().collect::<Vec<_>>(), refs(&store));
    });
}

#[test]
fn a_snapshot_knows_the_labels_and_workspaces_that_point_at_it() {
    over_all(|place| {
        let store = place.store();
        let (workspaces, labels) = (started(&store), Labels::of(&store));
        let first = write(&workspaces, &ws("main"), "a", "1");
        workspaces.fork(&ws("main"), &[ws("fork"), ws("other")], &ada()).expect("forked");
        let label = |name: &str| LabelName::new(name).expect("a name");
        labels.set(&label("v1"), Some(first), &ada()).expect("labelled");
        let names = |id| -> Vec<String> {
            store.names_of(id).expect("names").iter().map(|name| name.as_str().to_owned()).collect()
        };
        assert_eq!(names(first), ["label/v1", "workspace/fork", "workspace/main", "workspace/other"]);
        let second = write(&workspaces, &ws("fork"), "a", "2");
        workspaces.delete(&ws("other"), &ada()).expect("deleted");
        assert_eq!(names(first), ["label/v1", "workspace/main"]);
        assert_eq!(names(second), ["workspace/fork"]);
        labels.set(&label("v1"), Some(second), &ada()).expect("moved");
        workspaces.undo(&ws("fork"), &ada()).expect("undone");
        assert_eq!(names(first), ["workspace/fork", "workspace/main"]);
        assert_eq!(names(second), ["label/v1"]);
        workspaces.undelete(&ws("other"), &ada()).expect("undeleted");
        assert_eq!(names(first), ["workspace/fork", "workspace/main", "workspace/other"]);
    });
}

#[test]
fn the_index_of_names_is_made_anew_where_rows_were_changed_behind_its_back() {
    use amalgam_engine::backend::{Backend as _, Family, Inspect as _, Rocks, RocksOptions, RowEdit};

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let store = Store::open(&path).expect("opened");
    let workspaces = started(&store);
    let first = write(&workspaces, &ws("main"), "a", "1");
    for _ in 0..12 {
        workspaces.create(&ws("again"), &NewWorkspace::default(), &ada()).expect("made");
        workspaces.delete(&ws("again"), &ada()).expect("deleted");
    }
    drop((workspaces, store));
    // As an older version, or a repair, would leave it: a name that the index does not have.
    let rocks = Rocks::open(&path, &RocksOptions::default()).expect("opened");
    let value =
        rocks.rows(Family::Refs, b"workspace/main", Some(b"workspace/maio"), 1 << 20).expect("rows").rows[0].1.clone();
    let edit =
        RowEdit { family: Family::Refs, key: bytes::Bytes::from_static(b"workspace/planted"), value: Some(value) };
    rocks.edit(vec![edit]).expect("edited");
    let names = rocks.names_of(first.object()).expect("names");
    assert_eq!(names.iter().map(RefName::as_str).collect::<Vec<_>>(), ["workspace/main", "workspace/planted"]);
    assert_eq!(
        rocks.greatest_deleted("deleted/again@").expect("a number"),
        Some(12),
        "not 9, which comes last as text"
    );
    drop(rocks);
    let store = Store::open(&path).expect("opened");
    assert_eq!(store.names_of(first).expect("names").len(), 2, "and it stays so");
}

#[test]
fn creating_and_deleting_one_name_reads_the_same_however_often_it_was_done() {
    use amalgam_engine::StoreOptions;
    use amalgam_engine::backend::{Meter, Metered, Rocks, RocksOptions};

    let directory = tempfile::tempdir().expect("a directory");
    let rocks = Rocks::open(&directory.path().join("store"), &RocksOptions::default()).expect("opened");
    let meter = std::sync::Arc::new(Meter::default());
    let store = Store::new(std::sync::Arc::new(Metered::new(rocks, meter.clone())), &StoreOptions::default());
    let workspaces = started(&store);
    let mut listed = Vec::new();
    for _ in 0..40 {
        let before = meter.refs_listed();
        workspaces.create(&ws("again"), &NewWorkspace::default(), &ada()).expect("made");
        workspaces.delete(&ws("again"), &ada()).expect("deleted");
        workspaces.undelete(&ws("again"), &ada()).expect("undeleted");
        workspaces.delete(&ws("again"), &ada()).expect("deleted");
        listed.push(meter.refs_listed() - before);
    }
    assert_eq!(listed.first(), listed.last(), "{listed:?}");
}
