//! Trees in which few directories lie at very many paths. What can be answered by looking at each distinct directory once is
//! answered; a walk over paths ends with an error that says so; and whoever goes away ends the walk.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::backend::Memory;
use amalgam_engine::conflict::conflicts;
use amalgam_engine::history::History;
use amalgam_engine::lean::CacheFinder;
use amalgam_engine::merge::MergeRequest;
use amalgam_engine::object::{Conflict, Content, DirectoryItem, Entry, Node, SequenceNode, Settled, Snapshot};
use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{
    Cancellation, ChunkId, DiffOptions, Error, MergeOptions, NoContents, OperationContext, PatchOptions, RefMove,
    Result, RootId, SnapshotId, Store, StoreOptions, Time, TreePath, VerifyOptions, WorkingTree, WriteSession,
    count_differing_paths, diff_roots, diff_with_renames, insight, merge_trees, patch, verify,
};
use amalgam_gc::{CollectOptions, collect};
use amalgam_materializer::{CheckoutOptions, HostDir, Index, Progress, Times, checkout, plan};
use amalgam_transfer::{Selection, SendOptions, growth, send};

use super::claims::{Leaf, admit, item, reference, root};
use super::limits::bounded;

const DEPTH: u32 = 40;
/// A limit that a test can reach in a moment.
const PATHS_MAX: u64 = 100_000;

fn store() -> Store {
    let options = StoreOptions { paths_max: PATHS_MAX, ..StoreOptions::default() };
    Store::new(Arc::new(Memory::default()), &options)
}

fn file(session: &WriteSession, bytes: &[u8]) -> Entry {
    let content = Content::Chunk(session.put_chunk(bytes).expect("put"));
    Entry::new(Node::File { size: bytes.len() as u64, content }, 0o644, Time::EPOCH)
}

/// What lies in each directory at the bottom.
fn bottom(session: &WriteSession) -> Vec<DirectoryItem> {
    let [ours, base, theirs] = [&b"ours"[..], b"base", b"theirs"].map(|bytes| Some(file(session, bytes)));
    let Ok(Settled::Conflicted(conflict)) = Conflict::settle(vec![ours, base, theirs]) else { panic!("they disagree") };
    let tagged: Leaf = SequenceNode::Leaf(vec![
        item("CACHEDIR.TAG", file(session, b"Signature: 8a477f597d28d172789f06886806bc55")),
        item("made", file(session, b"made anew")),
    ]);
    admit(session, &tagged).expect("valid");
    vec![
        item("cache", Entry::new(Node::Directory(Some(reference(&tagged))), 0o755, Time::EPOCH)),
        item("clash", Entry::new(Node::Conflict(Arc::new(conflict)), 0, Time::EPOCH)),
        item("secret", file(session, b"hunter2")),
    ]
}

/// A directory with three names for one that is as wide, 40 deep: 3^40 paths in some forty objects.
fn wide(session: &WriteSession) -> RootId {
    let mut node: Leaf = SequenceNode::Leaf(bottom(session));
    for _ in 0..DEPTH {
        admit(session, &node).expect("valid");
        let below = Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH);
        node = SequenceNode::Leaf(["a", "b", "c"].map(|name| item(name, below.clone())).to_vec());
    }
    admit(session, &node).expect("valid");
    session.put_root(&root(Some(reference(&node)))).expect("put")
}

/// A store whose workspace `evil` has that tree.
fn store_with_wide_tree() -> (Store, SnapshotId, RootId) {
    let store = store();
    let session = store.session();
    let root = wide(&session);
    let snapshot = session
        .put_snapshot(Snapshot {
            root,
            parents: Vec::new(),
            author: "eve".to_owned(),
            time: Time(1),
            message: String::new(),
            metadata: Default::default(),
            generation: 0,
        })
        .expect("put");
    session.commit(snapshot, RefMove::default()).expect("committed");
    let new = NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() };
    let evil = WorkspaceName::new("evil").expect("a name");
    Workspaces::of(&store).create(&evil, &new, &OperationContext::new("eve", Time(1))).expect("created");
    (store, snapshot, root)
}

fn too_wide<T>(result: Result<T>) {
    match result {
        Err(Error::TooWide { most }) => assert!(most <= PATHS_MAX),
        Err(error) => panic!("another error: {error}"),
        Ok(_) => panic!("it cannot be done"),
    }
}

#[test]
fn what_asks_for_paths_ends_at_a_limit() {
    bounded(256 << 20, || {
        let (store, _, root) = store_with_wide_tree();
        let changes = diff_roots(&store, None, Some(root), DiffOptions::default()).expect("begun");
        too_wide(changes.map(|change| change.map(drop)).collect::<Result<Vec<_>>>());
        too_wide(
            diff_roots(&store, Some(root), None, DiffOptions::default()).expect("begun").collect::<Result<Vec<_>>>(),
        );
        too_wide(diff_with_renames(&store, None, Some(root), DiffOptions::default()));
        too_wide(diff_with_renames(&store, Some(root), None, DiffOptions::default()));
        let found = insight(&store, None, Some(root), &amalgam_engine::InsightOptions::default());
        too_wide(found.and_then(|found| found.map(|file| file.map(drop)).collect::<Result<Vec<_>>>()));
        too_wide(patch(&store, None, Some(root), &PatchOptions::default(), &mut std::io::sink()));
        too_wide(conflicts(&store, root));
    });
}

#[test]
fn what_asks_for_numbers_looks_at_each_directory_once() {
    bounded(64 << 20, || {
        let (store, snapshot, root) = store_with_wide_tree();
        let top = store.root(root).expect("there").directory.clone();
        // Every path of the directories, and below each of the lowest ones `cache`, two files in it, `clash` and `secret`.
        let directories: u64 = (1..=DEPTH).map(|depth| 3_u64.pow(depth)).fold(0, u64::saturating_add);
        let all = directories.saturating_add(3_u64.pow(DEPTH).saturating_mul(5));
        assert_eq!(count_differing_paths(&store, None, Some(&top)).expect("counted"), all);
        assert_eq!(count_differing_paths(&store, Some(&top), Some(&top)).expect("counted"), 0);
        assert_eq!(CacheFinder::default().find(&store, root).expect("found"), None, "too many to be taken out");
        let grown =
            growth(&store, snapshot, &amalgam_transfer::Progress::default()).expect("measured").expect("a tree");
        assert!(grown.objects < 100, "{grown:?}");
        let selection = Selection::everything(&store).expect("everything");
        let mut stream = Vec::new();
        let progress = amalgam_transfer::Progress::default();
        send(&store, &selection, &SendOptions::default(), &mut stream, &progress).expect("sent");
        assert!(stream.len() < 20_000, "{} bytes", stream.len());
    });
}

#[test]
fn a_purge_finds_a_secret_that_lies_at_more_paths_than_anybody_can_list() {
    bounded(512 << 20, || {
        let (store, _, _) = store_with_wide_tree();
        let secret = ChunkId::of(b"hunter2");
        let target = PurgeTarget::Object(secret.object());
        let found = plan_purge(&store, &target, &PurgeOptions { everywhere: true }).expect("planned");
        assert_eq!(found.chunks, [secret]);
        assert!(found.places_more > 0);
        let path = TreePath::new(["a"; DEPTH as usize].join("/") + "/secret").expect("a path");
        let found = plan_purge(&store, &PurgeTarget::Path(path), &PurgeOptions::default()).expect("planned");
        assert!(found.chunks.is_empty(), "other paths have it too");
        assert_eq!(found.shared.len(), 1);
    });
}

#[test]
fn merges_with_a_wide_tree_are_refused_and_those_beside_it_go_on() {
    bounded(256 << 20, || {
        let (store, snapshot, wide) = store_with_wide_tree();
        let mut small = WorkingTree::new(&store);
        small.write("file", b"small").expect("write");
        let session = store.session();
        let small = small.freeze().write(&session).expect("written");
        session.commit(small, RefMove::default()).expect("committed");
        let _pin = store.pin(small);
        let options = MergeOptions::default();
        let mut base = WorkingTree::new(&store);
        base.write("other", b"x").expect("write");
        let session = store.session();
        let base = base.freeze().write(&session).expect("written");
        session.commit(base, RefMove::default()).expect("committed");
        let _base = store.pin(base);
        too_wide(merge_trees(&store, Some(base), small, wide, &NoContents, &options).map(drop));
        too_wide(merge_trees(&store, Some(base), wide, small, &NoContents, &options).map(drop));

        // What both have is never opened.
        let edited = |path: &str| {
            let mut tree = WorkingTree::open(&store, snapshot).expect("open");
            tree.write(path, b"edited").expect("write");
            let session = store.session();
            let root = tree.freeze().write(&session).expect("written");
            session.commit(root, RefMove::default()).expect("committed");
            (root, store.pin(root))
        };
        let ((ours, _ours), (theirs, _theirs)) = (edited("a/b/c/ours"), edited("c/b/a/theirs"));
        let merged = merge_trees(&store, Some(wide), ours, theirs, &NoContents, &options).expect("merged");
        assert_eq!(merged.conflicts.len(), 0);
        assert!(merged.tree.exists("a/b/c/ours").expect("asked") && merged.tree.exists("c/b/a/theirs").expect("asked"));
    });
}

#[test]
fn a_checkout_is_refused_before_anything_is_written_and_a_part_can_be_had() {
    bounded(64 << 20, || {
        let (store, _, root) = store_with_wide_tree();
        let directory = tempfile::tempdir().expect("a directory");
        let host = HostDir::open(directory.path()).expect("open");
        let progress = Progress::default();
        let job = |paths| CheckoutOptions {
            keep_git: true,
            rules: None,
            leave_git_file: false,
            withholds: false,
            paths,
            times: Times::Exact,
            source: None,
            pool: None,
            progress: &progress,
        };
        let index = Index::new(host.identity());
        let refused = |error: amalgam_materializer::Error| error.to_string().contains("more than 100000 paths");
        assert!(checkout(&store, &host, &index, root, &job(None)).is_err_and(refused));
        assert!(plan(&store, &index, root, &job(None)).is_err_and(refused));
        assert_eq!(std::fs::read_dir(directory.path()).expect("listed").count(), 0);
        let path = TreePath::new(["a"; DEPTH as usize].join("/") + "/secret").expect("a path");
        checkout(&store, &host, &index, root, &job(Some(std::slice::from_ref(&path)))).expect("one file of it");
        let found = std::fs::read(directory.path().join(path.to_string())).expect("read");
        assert_eq!(found, b"hunter2");
    });
}

#[test]
fn collection_and_verification_take_a_moment() {
    let (store, _, _) = store_with_wide_tree();
    let begun = Instant::now();
    collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("collected");
    let report = verify(&store, &VerifyOptions::reading_data(), &|_| ControlFlow::Continue(())).expect("a report");
    assert!(report.is_clean(), "{report:#?}");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_walk_ends_when_its_caller_goes_away() {
    let (_, _, _) = store_with_wide_tree();
    // Without a limit that would end it first.
    let options = StoreOptions { paths_max: u64::MAX, ..StoreOptions::default() };
    let store = Store::new(Arc::new(Memory::default()), &options);
    let session = store.session();
    let root = wide(&session);
    session.commit(root, RefMove::default()).expect("committed");
    let interrupt = Cancellation::default();
    let caller = interrupt.clone();
    let begun = Instant::now();
    let walk = std::thread::spawn(move || {
        let changes = diff_roots(&store, None, Some(root), DiffOptions::default()).expect("begun");
        interrupt.during(|| changes.map(|change| change.map(drop)).find_map(Result::err))
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!walk.is_finished());
    caller.cancel();
    assert!(matches!(walk.join().expect("no panic"), Some(Error::Interrupted)));
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_merge_and_a_listing_of_conflicts_end_when_their_caller_goes_away() {
    // Without a limit that would end them first.
    let options = StoreOptions { paths_max: u64::MAX, ..StoreOptions::default() };
    let store = Store::new(Arc::new(Memory::default()), &options);
    let session = store.session();
    let root = wide(&session);
    session.commit(root, RefMove::default()).expect("committed");
    let _root = store.pin(root);
    let (workspaces, act) = (Workspaces::of(&store), OperationContext::new("eve", Time(1)));
    let [main, evil] = ["main", "evil"].map(|name| WorkspaceName::new(name).expect("a name"));
    for (name, mut tree) in
        [(&main, WorkingTree::new(&store)), (&evil, WorkingTree::open_root(&store, root).expect("open"))]
    {
        workspaces.create(name, &NewWorkspace::default(), &act).expect("created");
        tree.write(format!("of {name}"), b"x").expect("written");
        workspaces.commit(name, &mut tree, &Change::new("one"), &act).expect("committed");
    }
    let head = workspaces.get(&main).expect("found").head;
    let interrupted = |work: &(dyn Fn() -> Option<Error> + Sync)| {
        let (interrupt, begun) = (Cancellation::default(), Instant::now());
        let caller = interrupt.clone();
        let error = std::thread::scope(|scope| {
            let work = scope.spawn(move || interrupt.during(work));
            std::thread::sleep(Duration::from_millis(200));
            assert!(!work.is_finished());
            caller.cancel();
            work.join().expect("no panic")
        });
        assert!(matches!(error, Some(Error::Interrupted)), "{error:?}");
        assert!(begun.elapsed() < Duration::from_secs(20));
    };
    let sources = [evil];
    interrupted(&|| {
        let request = MergeRequest::new(&main, &sources, &NoContents);
        workspaces.merge(&History::of(&store), &request, &act).err()
    });
    assert_eq!(workspaces.get(&main).expect("found").head, head, "nothing landed");
    interrupted(&|| conflicts(&store, root).map(drop).err());
}
