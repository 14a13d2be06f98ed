//! Merging workspaces, and planning the merge of many.

use amalgam_engine::conflict::{CONFLICTS_KEY, remember};
use amalgam_engine::merge::{MERGE_RECORD_KEY, MergeHow, MergeRecord, MergeRequest, plan_octopus};
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::reference::RequestId;
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    Error, History, MergeContents, MergeOptions, NoContents, OperationContext, Result, SnapshotId, Store, Time,
    TreePath, WorkspaceName, Workspaces, entry_at,
};

use crate::kit::{self, BothAfterEachOther};

struct House {
    store: Store,
    workspaces: Workspaces,
    history: History,
}

fn name(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a name")
}

fn act() -> OperationContext {
    OperationContext::new("ada", Time(1_000))
}

impl House {
    /// A workspace `main` with this tree.
    fn new(text: &str) -> Self {
        let store = Store::in_memory();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let house = Self { store, workspaces, history };
        house.workspaces.create(&name("main"), &NewWorkspace::default(), &act()).expect("created");
        for word in text.split_whitespace() {
            house.write("main", word);
        }
        house
    }

    fn fork(&self, to: &str) {
        self.workspaces.fork(&name("main"), &[name(to)], &act()).expect("forked");
    }

    /// Writes `path=contents` and commits.
    fn write(&self, workspace: &str, word: &str) -> SnapshotId {
        let (path, contents) = word.split_once('=').expect("path=contents");
        let mut tree = self.workspaces.open(&name(workspace)).expect("open");
        if let Some((above, _)) = path.rsplit_once('/') {
            tree.create_directories(above).expect("directories");
        }
        // A conflict is no file that could be written to.
        if tree.exists(path).expect("a look") {
            tree.remove_all(path).expect("removed");
        }
        tree.write(path, contents.as_bytes()).expect("written");
        self.workspaces.commit(&name(workspace), &mut tree, &Change::new(word), &act()).expect("committed").snapshot
    }

    fn merge_with(
        &self,
        sources: &[&str],
        contents: &dyn MergeContents,
        change: impl FnOnce(&mut MergeRequest<'_>),
    ) -> Result<amalgam_engine::merge::MergeDone> {
        let target = name("main");
        let sources: Vec<_> = sources.iter().map(|source| name(source)).collect();
        let mut request = MergeRequest::new(&target, &sources, contents);
        change(&mut request);
        self.workspaces.merge(&self.history, &request, &act())
    }

    fn text(&self, workspace: &str) -> String {
        kit::text(&self.workspaces.open(&name(workspace)).expect("open"))
    }

    fn head(&self, workspace: &str) -> SnapshotId {
        self.workspaces.get(&name(workspace)).expect("there").head.expect("a head")
    }
}

#[test]
fn a_merge_is_one_snapshot_and_one_operation_that_can_be_undone() {
    let house = House::new("a=1 b=1");
    house.fork("one");
    house.write("one", "a=2");
    let before = house.write("main", "b=2");
    let operations = house.store.last_operation().expect("the log");
    let done = house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.how, done.conflicts.len()), (MergeHow::Merged, 0));
    assert_eq!(house.store.last_operation().expect("the log"), operations + 1);
    assert_eq!(house.text("main"), "a=2 b=2");
    let operation = amalgam_engine::operation::operation(&house.store, operations + 1).expect("the operation");
    assert_eq!(operation.draft.action, "merge");
    let snapshot = house.store.snapshot(house.head("main")).expect("a snapshot");
    assert_eq!(snapshot.parents, [before, house.head("one")]);
    let record = MergeRecord::from_json(&snapshot.metadata[MERGE_RECORD_KEY]).expect("a record");
    assert_eq!(record.sources, [("one".to_owned(), house.head("one").to_string())]);
    house.workspaces.undo(&name("main"), &act()).expect("undone");
    assert_eq!((house.head("main"), house.text("main").as_str()), (before, "a=1 b=2"));
}

#[test]
fn a_head_moves_forward_where_it_can_and_a_merge_that_is_done_is_nothing() {
    let house = House::new("a=1");
    house.fork("one");
    let newest = house.write("one", "a=2");
    let done = house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.how, house.head("main")), (MergeHow::Forward, newest));
    let operations = house.store.last_operation().expect("the log");
    let done = house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.how, done.operation), (MergeHow::Already, None));
    assert_eq!(house.store.last_operation().expect("the log"), operations);
    house.write("one", "a=3");
    let done = house.merge_with(&["one"], &NoContents, |request| request.fast_forward = false).expect("merged");
    assert_eq!(done.how, MergeHow::Merged);
    assert_eq!(house.text("main"), "a=3");
}

#[test]
fn conflicts_are_kept_in_the_tree_or_refused_and_recorded() {
    let house = House::new("a=1 b=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("one", "b=2");
    house.write("main", "a=3");
    let head = house.write("main", "b=3");
    let done = house.merge_with(&["one"], &NoContents, |request| request.keep_conflicts = false).expect("tried");
    assert_eq!((done.how, done.conflicts.len(), house.head("main")), (MergeHow::Refused, 2, head));
    let done = house.merge_with(&["one"], &BothAfterEachOther, |_| {}).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=32 b=32"));
    let snapshot = house.store.snapshot(house.head("main")).expect("a snapshot");
    let record = MergeRecord::from_json(&snapshot.metadata[MERGE_RECORD_KEY]).expect("a record");
    let ways: Vec<_> = record.files.iter().map(|file| (file.path.as_str(), file.strategy.as_str())).collect();
    assert_eq!(ways, [("a", "joined"), ("b", "joined")]);
    assert_eq!(MergeRecord::from_json(&record.to_json()), Some(record));
}

#[test]
fn a_merge_that_fails_changes_nothing() {
    struct Fails;
    impl MergeContents for Fails {
        fn merge(&self, _: &amalgam_engine::merge::ContestedFile<'_>) -> Result<amalgam_engine::merge::Verdict> {
            Err(Error::Invalid { what: "contents", why: "they make no sense".to_owned() })
        }
    }
    let house = House::new("a=1");
    house.fork("one");
    house.write("one", "a=2");
    let head = house.write("main", "a=3");
    let operations = house.store.last_operation().expect("the log");
    assert!(matches!(house.merge_with(&["one"], &Fails, |_| {}), Err(Error::Invalid { .. })));
    assert_eq!((house.head("main"), house.store.last_operation().expect("the log")), (head, operations));
}

#[test]
fn a_request_to_merge_is_done_once() {
    let house = House::new("a=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("main", "b=3");
    let (target, sources) = (name("main"), [name("one")]);
    let request = MergeRequest::new(&target, &sources, &NoContents);
    let act = act().as_request(RequestId::new("merge-1").expect("an id"));
    let first = house.workspaces.merge(&house.history, &request, &act).expect("merged");
    house.write("one", "c=4");
    let second = house.workspaces.merge(&house.history, &request, &act).expect("merged");
    assert_eq!((second.how, second.head, second.operation), (MergeHow::Replayed, first.head, first.operation));
    assert_eq!(house.text("main"), "a=2 b=3");
}

#[test]
fn many_are_merged_as_one_snapshot() {
    let house = House::new("a=1 b=1 c=1");
    for (source, word) in [("one", "a=2"), ("two", "b=2"), ("three", "c=2")] {
        house.fork(source);
        house.write(source, word);
    }
    house.write("main", "d=1");
    let done = house.merge_with(&["one", "two", "three"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=2 b=2 c=2 d=1"));
    assert_eq!(house.store.snapshot(house.head("main")).expect("a snapshot").parents.len(), 4);
}

#[test]
fn a_criss_cross_of_merges_has_a_base_of_its_own() {
    // Both lines merged each other's first change; each then goes on.
    let house = House::new("a=1 b=1 c=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("main", "b=2");
    house.fork("saved");
    let (one, saved) = (name("one"), name("saved"));
    house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    let request = MergeRequest::new(&one, std::slice::from_ref(&saved), &NoContents);
    house.workspaces.merge(&house.history, &request, &act()).expect("merged");
    let bases = house.history.merge_bases(house.head("main"), house.head("one")).expect("bases");
    assert_eq!(bases.len(), 2);
    house.write("one", "a=3");
    house.write("main", "b=3");
    let done = house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.conflicts.len(), house.text("main").as_str()), (0, "a=3 b=3 c=1"));
}

#[test]
fn a_criss_cross_over_a_conflict_knows_how_it_was_resolved() {
    let house = House::new("a=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("main", "a=3");
    house.fork("saved");
    house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    let (one, saved) = (name("one"), name("saved"));
    let request = MergeRequest::new(&one, std::slice::from_ref(&saved), &NoContents);
    house.workspaces.merge(&house.history, &request, &act()).expect("merged");
    assert_eq!((house.text("main").as_str(), house.text("one").as_str()), ("a<3|1|2>", "a<2|1|3>"));
    // One of them resolves it; the other did nothing since.
    let mut tree = house.workspaces.open(&one).expect("open");
    tree.remove("a").expect("removed");
    tree.write("a", b"23").expect("written");
    house.workspaces.commit(&one, &mut tree, &Change::new("resolved"), &act()).expect("committed");
    house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!(house.text("main"), "a=23");
}

#[test]
fn workspaces_with_nothing_in_common_are_merged() {
    let house = House::new("a=1");
    house.workspaces.create(&name("other"), &NewWorkspace::default(), &act()).expect("created");
    house.write("other", "b=1");
    let done = house.merge_with(&["other"], &NoContents, |_| {}).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=1 b=1"));
}

#[test]
fn a_plan_says_which_merge_cleanly_and_what_stands_in_the_way() {
    let house = House::new("a=1 b=1 c=1 d=1 e=1");
    let words =
        [("0", vec!["a=2"]), ("1", vec!["a=3", "b=3"]), ("2", vec!["b=4"]), ("3", vec!["c=5"]), ("4", vec!["e=6"])];
    let mut sources = Vec::new();
    for (source, words) in words {
        house.fork(source);
        for word in words {
            house.write(source, word);
        }
        sources.push(house.head(source));
    }
    house.write("main", "e=7");
    let plan = plan_octopus(&house.history, house.head("main"), &sources, &NoContents, &MergeOptions::default())
        .expect("planned");
    // 1 conflicts with 0 on a and with 2 on b; 4 conflicts with the target on e.
    assert_eq!(plan.order, [0, 2, 3]);
    assert_eq!(plan.left.iter().map(|left| left.source).collect::<Vec<_>>(), [1, 4]);
    let clashes = |at: usize| -> Vec<(Option<usize>, String)> {
        let clashes = plan.left[at].clashes.iter();
        clashes
            .map(|clash| (clash.with, clash.paths.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")))
            .collect()
    };
    assert_eq!(clashes(0), [(Some(0), "a".to_owned()), (Some(2), "b".to_owned())]);
    assert_eq!(clashes(1), [(None, "e".to_owned())]);
    assert_eq!(plan.pairs_merged, 3);
    let merged: Vec<_> = plan.order.iter().map(|at| at.to_string()).collect();
    let merged: Vec<_> = merged.iter().map(String::as_str).collect();
    let done = house.merge_with(&merged, &NoContents, |request| request.keep_conflicts = false).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=2 b=4 c=5 d=1 e=7"));
}

#[test]
fn a_target_that_moves_is_merged_as_it_is_then() {
    let house = House::new("a=1 b=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("main", "a=3");
    // While the contents are merged, the target moves once.
    struct Moves<'a>(&'a House, std::cell::Cell<bool>);
    impl MergeContents for Moves<'_> {
        fn merge(&self, contest: &amalgam_engine::merge::ContestedFile<'_>) -> Result<amalgam_engine::merge::Verdict> {
            if !self.1.replace(true) {
                self.0.write("main", "b=9");
            }
            BothAfterEachOther.merge(contest)
        }
    }
    let moves = Moves(&house, std::cell::Cell::new(false));
    let done = house.merge_with(&["one"], &moves, |_| {}).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=32 b=9"));
}

/// Two sides that disagree about `a`: merged, and what the conflict is.
fn disagreeing() -> (House, std::sync::Arc<Conflict>) {
    let house = House::new("a=1 b=1");
    house.fork("one");
    house.write("one", "a=2");
    house.write("main", "a=3");
    house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    let tree = house.workspaces.open(&name("main")).expect("open");
    match tree.stat("a").expect("a look").and_then(|stat| stat.entry).map(|entry| entry.node) {
        Some(Node::Conflict(conflict)) => (house, conflict),
        other => panic!("a is no conflict: {other:?}"),
    }
}

#[test]
fn conflicts_that_are_kept_are_counted() {
    let (house, _) = disagreeing();
    let counted = |house: &House| {
        let snapshot = house.store.snapshot(house.head("main")).expect("a snapshot");
        snapshot.metadata.get(CONFLICTS_KEY).cloned()
    };
    assert_eq!(counted(&house).as_deref(), Some("1"));
    house.fork("two");
    house.write("two", "a=4");
    house.write("two", "b=2");
    house.workspaces.fork(&name("one"), &[name("three")], &act()).expect("forked");
    house.write("three", "c=1");
    house.merge_with(&["three"], &NoContents, |_| {}).expect("merged");
    assert_eq!(counted(&house).as_deref(), Some("1"), "it is still there");
    house.merge_with(&["two"], &NoContents, |_| {}).expect("merged");
    assert_eq!((counted(&house).as_deref(), house.text("main").as_str()), (Some("0"), "a=4 b=2 c=1"));
}

#[test]
fn conflicts_of_a_merge_into_a_workspace_without_a_snapshot_are_counted() {
    let house = House::new("a=1");
    let sources = [("one", "a=2"), ("two", "a=3")].map(|(source, word)| {
        house.fork(source);
        house.write(source, word);
        name(source)
    });
    let empty = name("empty");
    house.workspaces.create(&empty, &NewWorkspace::default(), &act()).expect("created");
    let request = MergeRequest::new(&empty, &sources, &NoContents);
    let done = house.workspaces.merge(&house.history, &request, &act()).expect("merged");
    assert_eq!((done.how, house.text("empty").as_str()), (MergeHow::Merged, "a<2|1|3>"));
    let snapshot = house.store.snapshot(house.head("empty")).expect("a snapshot");
    assert_eq!(snapshot.metadata.get(CONFLICTS_KEY).map(String::as_str), Some("1"));
}

#[test]
fn a_conflict_that_was_resolved_before_is_resolved_by_a_merge() {
    let (house, conflict) = disagreeing();
    let root = house.store.snapshot(house.write("main", "a=both")).expect("a snapshot").root;
    let path = TreePath::new("a").expect("a path");
    let entry = entry_at(&house.store, &house.store.root(root).expect("a root"), &path).expect("a look");
    remember(&house.store, &conflict, &path, entry.as_ref(), root, &act()).expect("remembered");
    for _ in 0..2 {
        house.workspaces.undo(&name("main"), &act()).expect("undone");
    }
    assert_eq!(house.text("main"), "a=3 b=1");
    let done = house.merge_with(&["one"], &NoContents, |request| request.keep_conflicts = false).expect("merged");
    assert_eq!((done.how, house.text("main").as_str()), (MergeHow::Merged, "a=both b=1"));
    assert_eq!(done.report.files[0].strategy, "remembered");
    let snapshot = house.store.snapshot(house.head("main")).expect("a snapshot");
    let record = MergeRecord::from_json(&snapshot.metadata[MERGE_RECORD_KEY]).expect("a record");
    assert_eq!((record.conflicts.len(), record.files[0].strategy.as_str()), (0, "remembered"));
    // One that was removed is known, too.
    house.workspaces.undo(&name("main"), &act()).expect("undone");
    remember(&house.store, &conflict, &path, None, root, &act()).expect("remembered");
    house.merge_with(&["one"], &NoContents, |_| {}).expect("merged");
    assert_eq!(house.text("main"), "b=1");
}
