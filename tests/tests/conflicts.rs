//! Nothing of a conflict is lost: collection keeps what its versions reach, transfer carries it, verification knows it, a purge
//! reaches into it; and the same holds for resolutions that are remembered.

use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Family, Inspect, RowEdit};
use amalgam_engine::conflict::{Exchange, conflicts, remember, replay};
use amalgam_engine::merge::merge_trees;
use amalgam_engine::object::{Conflict, Content, Entry, EntryKind, Node, Settled};
use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge};
use amalgam_engine::workspace::{Taken, with_paths_of};
use amalgam_engine::{
    Commit, Error, MergeOptions, NoContents, OperationContext, RefMove, SnapshotId, Store, StoreOptions, Time,
    TreePath, VerifyOptions, WorkingTree, repair, verify,
};
use amalgam_gc::{CollectOptions, collect};
use amalgam_tests::harness::{name, over_all};
use amalgam_transfer::{Progress, ReceiveOptions, Selection, SendOptions, backup, have, receive, restore_backup, send};
use bytes::Bytes;

const SIDES: [&str; 3] = ["ours", "base", "theirs"];

fn act() -> OperationContext {
    OperationContext::new("ada", Time::from_seconds(1_700_000_000, 0))
}

fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a path")
}

/// What a version of a file holds; large enough to be a rope where `large`.
fn content(side: &str, large: bool) -> Vec<u8> {
    let mut bytes = format!("the version of {side}\n").into_bytes();
    if large {
        bytes.extend((0..30_000_u32).flat_map(|number| (number ^ side.len() as u32).to_le_bytes()));
    }
    bytes
}

/// A snapshot whose tree has conflicts of files, of large files and of directories, and nothing else that holds the versions.
fn conflicted(store: &Store) -> SnapshotId {
    let mut parts = WorkingTree::new(store);
    for side in SIDES {
        parts.write(side, &content(side, false)).expect("written");
        parts.write(format!("large-{side}"), &content(side, true)).expect("written");
        parts.create_directories(format!("d-{side}/deep")).expect("made");
        parts.write(format!("d-{side}/deep/file"), format!("inside {side}").as_bytes()).expect("written");
    }
    let versions = name("workspace/versions");
    let done = parts.commit(Commit::new(&versions, "versions")).expect("committed");
    let stored = WorkingTree::open(store, done.snapshot).expect("opened");
    let entry = |at: String| stored.stat(&at).expect("read").and_then(|stat| stat.entry);
    let root = |snapshot: SnapshotId| store.snapshot(snapshot).expect("read").root;
    let mut around = WorkingTree::new(store);
    around.write("quiet", b"nothing happens").expect("written");
    let around = around.commit(Commit::new(&name("workspace/around"), "around")).expect("committed");
    let mut exchange = Exchange::new(store, root(around.snapshot), &[root(done.snapshot)]).expect("begun");
    for (at, before) in [("file", ""), ("large", "large-"), ("directory", "d-")] {
        let terms = SIDES.iter().map(|side| entry(format!("{before}{side}"))).collect();
        let Ok(Settled::Conflicted(conflict)) = Conflict::settle(terms) else { panic!("they disagree") };
        let entry = Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH);
        exchange.set(&path(at), Some(&entry)).expect("set");
    }
    let (mut tree, _) = exchange.finish().expect("put together");
    let head = tree.commit(Commit::new(&name("workspace/main"), "conflicts")).expect("committed").snapshot;
    for gone in ["workspace/versions", "workspace/around"] {
        let before = store.read_ref(&name(gone)).expect("read");
        let refs = RefMove { expect: vec![(name(gone), before)], set: vec![(name(gone), None)], ..RefMove::default() };
        store.session().commit(head, refs).expect("removed");
    }
    head
}

/// All bytes that the conflicts of a snapshot hold.
fn check_all(store: &Store, head: SnapshotId) {
    let root = store.snapshot(head).expect("read").root;
    let placed = conflicts(store, root).expect("walked");
    assert_eq!(placed.iter().map(|placed| placed.path.to_string()).collect::<Vec<_>>(), ["directory", "file", "large"]);
    for placed in placed {
        for (side, term) in SIDES.iter().zip(placed.conflict.terms()) {
            let mut exchange = Exchange::new(store, root, &[]).expect("begun");
            exchange.set(&placed.path, term.as_ref()).expect("set");
            let (tree, _) = exchange.finish().expect("put together");
            let wanted = match placed.path.to_string().as_str() {
                "directory" => (tree.read("directory/deep/file").expect("read"), format!("inside {side}").into_bytes()),
                "file" => (tree.read("file").expect("read"), content(side, false)),
                _ => (tree.read("large").expect("read"), content(side, true)),
            };
            assert!(wanted.0 == wanted.1, "{} of {side}", placed.path);
        }
    }
}

/// Commits the resolution of the file by theirs, and remembers it.
fn resolve(store: &Store, head: SnapshotId) -> Arc<Conflict> {
    let root = store.snapshot(head).expect("read").root;
    let placed = conflicts(store, root).expect("walked").into_iter().find(|placed| placed.path == path("file"));
    let conflict = placed.expect("it is there").conflict;
    let done = remember(store, &conflict, &path("file"), conflict.terms()[2].as_ref(), root, &act());
    assert!(done.expect("remembered").is_some());
    conflict
}

fn gone(store: &Store) {
    collect(store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("a collection");
}

/// Without a cache, which might know what is long gone.
fn open(backend: Arc<dyn Inspect>) -> Store {
    Store::new(backend, &StoreOptions { cache_bytes: 0, ..StoreOptions::default() })
}

fn remembered_bytes(store: &Store, conflict: &Conflict) -> Vec<u8> {
    let entry = replay(store, conflict).expect("read").expect("it is known").expect("a file");
    amalgam_conflicts::read_whole(store, &entry, 1 << 20).expect("read").expect("a file")
}

#[test]
fn a_conflict_that_is_restored_by_its_path_is_whole() {
    let store = Store::in_memory();
    let head = conflicted(&store);
    let before = store.snapshot(head).expect("read").root;
    let mut edited = WorkingTree::open(&store, head).expect("opened");
    for at in ["file", "directory"] {
        edited.remove_all(at).expect("removed");
        edited.write(at, b"resolved").expect("written");
    }
    let (edited, _pin) = edited.freeze().hold().expect("stored");
    let entry = |tree: &WorkingTree, at: &str| tree.stat(at).expect("read").and_then(|stat| stat.entry);
    let whole = WorkingTree::open(&store, head).expect("opened");
    for times in [Taken::At(Time::from_seconds(30, 0)), Taken::AsItWas] {
        let made = with_paths_of(&store, edited, before, &[path("file"), path("directory")], times).expect("taken");
        let (root, _pin) = made.freeze().hold().expect("stored");
        let read = WorkingTree::open_root(&store, root).expect("opened");
        for at in ["file", "directory"] {
            assert_eq!(entry(&read, at), entry(&whole, at), "{at}");
        }
        let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn a_conflict_that_a_merge_takes_over_a_hard_linked_file_has_one_name() {
    let store = Store::in_memory();
    let conflict = conflicts(&store, store.snapshot(conflicted(&store)).expect("read").root).expect("walked");
    let conflict = conflict.into_iter().find(|placed| placed.path == path("file")).expect("it is there").conflict;
    let mut tree = WorkingTree::new(&store);
    tree.write("a", b"one file").expect("written");
    let (base, _base) = tree.freeze().hold().expect("stored");
    for link in ["b", "c"] {
        tree.link("a", link).expect("linked");
    }
    let (ours, _ours) = tree.freeze().hold().expect("stored");
    let mut exchange = Exchange::new(&store, base, &[]).expect("begun");
    let entry = Entry::new(Node::Conflict(conflict), 0, Time::EPOCH);
    exchange.set(&path("a"), Some(&entry)).expect("set");
    let (_theirs, theirs) = exchange.finish().expect("put together");
    let options = MergeOptions { time: Time::from_seconds(30, 0), ..MergeOptions::default() };
    let merged = merge_trees(&store, Some(base), ours, theirs, &NoContents, &options).expect("merged").tree;
    let (root, _pin) = merged.freeze().hold().expect("stored");
    let read = WorkingTree::open_root(&store, root).expect("opened");
    let links = |at: &str| read.stat(at).expect("read").map(|stat| (stat.kind, stat.links));
    assert_eq!(links("a"), Some((EntryKind::Conflict, 1)));
    assert_eq!((links("b"), links("c")), (Some((EntryKind::File, 2)), Some((EntryKind::File, 2))));
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
    assert!(report.is_clean(), "{report:?}");
}

#[test]
fn a_collection_keeps_what_the_versions_of_a_conflict_reach() {
    over_all(|place| {
        let backend = place.backend();
        let head = conflicted(&open(Arc::clone(&backend)));
        let store = open(Arc::clone(&backend));
        gone(&store);
        drop(store);
        check_all(&open(backend), head);
    });
}

#[test]
fn a_collection_keeps_remembered_resolutions_when_the_conflict_is_gone() {
    over_all(|place| {
        let backend = place.backend();
        let store = open(Arc::clone(&backend));
        let head = conflicted(&store);
        let conflict = resolve(&store, head);
        let before = store.read_ref(&name("workspace/main")).expect("read");
        let main = name("workspace/main");
        let refs = RefMove { expect: vec![(main.clone(), before)], set: vec![(main, None)], ..RefMove::default() };
        store.session().commit(head, refs).expect("removed");
        drop(store);
        let store = open(Arc::clone(&backend));
        gone(&store);
        drop(store);
        let store = open(backend);
        assert_eq!(remembered_bytes(&store, &conflict), content("theirs", false));
        assert!(
            verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(()))
                .expect("a report")
                .is_clean()
        );
    });
}

#[test]
fn a_stream_carries_conflicts_and_a_backup_remembered_resolutions_too() {
    let (here, there) = (Store::in_memory(), Store::in_memory());
    let head = conflicted(&here);
    let conflict = resolve(&here, head);
    let mut stream = Vec::new();
    let since = SendOptions::since(&have(&there).expect("listed"));
    send(&here, &Selection::everything(&here).expect("all"), &since, &mut stream, &Progress::default()).expect("sent");
    receive(&there, &stream[..], &ReceiveOptions::default(), &act(), &Progress::default()).expect("received");
    check_all(&there, head);
    // How a stranger resolves conflicts is no advice.
    assert!(store_refs(&there).iter().all(|name| !name.starts_with("resolution/")));
    let directory = tempfile::tempdir().expect("a directory");
    backup(&here, directory.path(), Time(1), &Progress::default()).expect("backed up");
    let again = Store::in_memory();
    restore_backup(directory.path(), &again, &act(), &Progress::default()).expect("restored");
    check_all(&again, head);
    assert_eq!(remembered_bytes(&again, &conflict), content("theirs", false));
}

fn store_refs(store: &Store) -> Vec<String> {
    let refs = amalgam_tests::harness::all_refs(store).expect("references");
    refs.into_iter().map(|(name, _)| name.to_string()).collect()
}

#[test]
fn a_verification_knows_conflicts_and_finds_a_version_that_is_missing() {
    over_all(|place| {
        let backend = place.backend();
        let store = open(Arc::clone(&backend));
        let head = conflicted(&store);
        resolve(&store, head);
        let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
        assert!(report.is_clean(), "{place:?}: {report:#?}");
        assert_eq!(repair(&store, &VerifyOptions::default()).expect("repaired").done, []);
        let root = store.snapshot(head).expect("read").root;
        let placed = conflicts(&store, root).expect("walked").into_iter().find(|placed| placed.path == path("file"));
        let placed = placed.expect("it is there");
        let Some(Entry { node: Node::File { content: Content::Chunk(chunk), .. }, .. }) = &placed.conflict.terms()[1]
        else {
            panic!("the base is one chunk")
        };
        let key = Bytes::copy_from_slice(chunk.as_bytes());
        backend.edit(vec![RowEdit { family: Family::Index, key, value: None }]).expect("taken");
        let report =
            verify(&open(backend), &VerifyOptions::default(), &|_| ControlFlow::Continue(())).expect("a report");
        let said = format!("{report:?}");
        assert!(!report.is_clean() && said.contains("file"), "{place:?}: {said}");
    });
}

#[test]
fn a_purge_reaches_into_the_versions_of_a_conflict() {
    over_all(|place| {
        let backend = place.backend();
        let store = open(Arc::clone(&backend));
        let head = conflicted(&store);
        let plan = plan_purge(&store, &PurgeTarget::Path(path("file")), &PurgeOptions { everywhere: true });
        let plan = plan.expect("a plan");
        assert!(plan.chunks.len() >= 3, "{place:?}: all three versions: {plan:?}");
        purge(&store, &plan, "a secret", &act()).expect("purged");
        drop(store);
        let store = open(backend);
        let root = store.snapshot(head).expect("read").root;
        for placed in conflicts(&store, root).expect("walked").iter().filter(|placed| placed.path == path("file")) {
            for term in placed.conflict.terms().iter().flatten() {
                let Node::File { size, content } = term.node else { panic!("a file") };
                let mut bytes = vec![0; size as usize];
                let read = amalgam_engine::content::read_at(&store, &content, size, 0, &mut bytes);
                assert!(matches!(read, Err(Error::Purged { .. })), "{read:?}");
            }
            // What cannot be read is shown by a version, and stays a conflict.
            let faced =
                amalgam_conflicts::RenderedTree::new(&store, root, std::slice::from_ref(placed), Default::default());
            let faced = faced.expect("faced");
            let known = amalgam_conflicts::KnownRendering { rendered: &faced, is_written: false, paths: None };
            assert_eq!(amalgam_conflicts::read_back(&store, faced.rendered, &[known]).expect("read").root, root);
        }
        let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
        assert!(report.is_clean(), "{place:?}: {report:#?}");
    });
}
