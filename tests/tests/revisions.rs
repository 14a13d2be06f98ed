//! Revisions that name a state of the past, by time and by operation.

use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    ErrorKind, Now, OperationContext, Result, Revision, SnapshotId, Store, Time, WorkspaceName, Workspaces,
};

fn ws(text: &str) -> WorkspaceName {
    WorkspaceName::new(text).expect("a valid name")
}

#[test]
fn a_head_is_found_by_time_and_by_operation() {
    let second = |seconds: i64| Time::from_seconds(seconds, 0);
    let store = Store::in_memory();
    let workspaces = Workspaces::of(&store);
    let (main, other) = (ws("main"), ws("other"));
    let at = |seconds| OperationContext::new("ada", second(seconds));
    workspaces.create(&main, &NewWorkspace::default(), &at(1_000)).expect("made");
    let commit = |number: i64| {
        let mut tree = workspaces.open(&main).expect("open");
        tree.write("a", number.to_string().as_bytes()).expect("write");
        workspaces.commit(&main, &mut tree, &Change::new("more"), &at(number)).expect("commit").snapshot
    };
    let (first, middle, last) = (commit(1_100), commit(1_200), commit(1_300));
    let operation = store.last_operation().expect("the log");
    // The head moves back: what was is told by the log of operations, not by the history of the head.
    workspaces.restore(&main, first, &at(1_400)).expect("restored");
    workspaces.fork(&main, std::slice::from_ref(&other), &at(1_500)).expect("forked");
    let find = |text: &str| {
        let now = Now::utc(second(1_600));
        Revision::parse(text).and_then(|revision| revision.resolve(&store, Some(&main), &now))
    };
    let tree_of = |id: SnapshotId| store.snapshot(id).expect("a snapshot").root;
    assert_eq!(tree_of(find("@{now}").expect("the head")), tree_of(first));
    assert_eq!(find("@{250 seconds ago}").expect("by time"), last);
    assert_eq!(find("main@{350 seconds ago}").expect("by time"), middle);
    assert_eq!(find("@{1970-01-01T00:19:00Z}").expect("by time"), first);
    assert_eq!(find("@{250 seconds ago}~2").expect("and back"), first);
    assert_eq!(find("other@{450 seconds ago}").expect("before it was forked, its history"), first);
    assert_eq!(find(&format!("@{{op:{operation}}}")).expect("by operation"), last);
    assert_eq!(find(&format!("@{{op:{}}}", operation - 1)).expect("by operation"), middle);
    let error = |text: &str| find(text).expect_err("not there").to_string();
    assert!(error("@{1 hour ago}").contains("its history begins later"), "{}", error("@{1 hour ago}"));
    assert!(error("@{op:99}").contains("the log of operations ends at"), "{}", error("@{op:99}"));
    assert!(error("other@{op:2}").contains("the log knows of it from operation"), "{}", error("other@{op:2}"));
    assert_eq!(find("@{soon}").expect_err("no time").kind(), ErrorKind::Invalid);
}

#[test]
fn a_renamed_workspace_has_the_heads_of_its_earlier_names() {
    let store = Store::in_memory();
    let workspaces = Workspaces::of(&store);
    let at = |seconds| OperationContext::new("ada", Time::from_seconds(seconds, 0));
    let (old, new) = (ws("old"), ws("new"));
    let commit = |name: &WorkspaceName, number: i64| {
        let mut tree = workspaces.open(name).expect("open");
        tree.write("a", number.to_string().as_bytes()).expect("write");
        let done = workspaces.commit(name, &mut tree, &Change::new("more"), &at(number)).expect("commit");
        (done.snapshot, store.last_operation().expect("the log"))
    };
    // Another workspace had the new name before, and is gone.
    workspaces.create(&new, &NewWorkspace::default(), &at(1_000)).expect("made");
    let (stranger, _) = commit(&new, 1_010);
    workspaces.delete(&new, &at(1_020)).expect("deleted");
    workspaces.create(&old, &NewWorkspace::default(), &at(1_030)).expect("made");
    let begin = store.last_operation().expect("the log");
    let (first, first_operation) = commit(&old, 1_100);
    let (second, second_operation) = commit(&old, 1_200);
    workspaces.restore(&old, first, &at(1_300)).expect("restored");
    workspaces.rename(&old, &new, &at(1_400)).expect("renamed");
    let (last, last_operation) = commit(&new, 1_500);
    let find = |text: &str| {
        let now = Now::utc(Time::from_seconds(1_600, 0));
        Revision::parse(text).and_then(|revision| revision.resolve(&store, Some(&new), &now))
    };
    let check = |find: &dyn Fn(&str) -> Result<SnapshotId>| {
        assert_eq!(find(&format!("@{{op:{first_operation}}}")).expect("by operation"), first);
        assert_eq!(find(&format!("@{{op:{second_operation}}}")).expect("by operation"), second);
        assert_eq!(find(&format!("@{{op:{last_operation}}}")).expect("by operation"), last);
        assert_eq!(find("@{350 seconds ago}").expect("a head that no history has"), second);
        let error = find(&format!("@{{op:{begin}}}")).expect_err("it had no head").to_string();
        assert!(error.contains(&format!("from operation {begin} on")), "{error}, not {stranger}");
    };
    check(&find);
    // Deleted and undeleted, it still has them.
    workspaces.delete(&new, &at(1_550)).expect("deleted");
    workspaces.undelete(&new, &at(1_560)).expect("undeleted");
    check(&find);
}
