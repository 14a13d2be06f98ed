//! Streams and backups put together from parts by an enemy: every kind of name, every bound, numbers at their ends. What a stream
//! may not bring is refused as a whole, no name has moved, and the store verifies; what a backup brings runs nothing.

use std::collections::BTreeMap;
use std::path::Path;

use amalgam_engine::backend::StoredObject;
use amalgam_engine::lean::{CacheFinder, lean_tree};
use amalgam_engine::object::{GENERATION_MAX, Snapshot};
use amalgam_engine::queue::{MergePolicy, Queue, QueueEntry, QueueOptions, TestVerdict};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue};
use amalgam_engine::workspace::{Change, NewWorkspace, Workspace};
use amalgam_engine::{
    Commit, ErrorKind, History, LivedTime, MergeContents, Now, ObjectId, ObjectKind, OperationContext, RefMove, Result,
    Revision, RootId, SnapshotId, Store, SweepScope, Time, WorkingTree, WorkspaceName, Workspaces,
};
use amalgam_gc::retention::Policies;
use amalgam_tests::harness::lives::assert_sound;
use amalgam_tests::harness::{all_refs, name};
use amalgam_transfer::stream::{Frame, StreamReader, StreamWriter};
use amalgam_transfer::{
    Error, Names, Progress, ReceiveOptions, Selection, SendOptions, backup, receive, restore_backup, send,
};
use bytes::Bytes;

fn by() -> OperationContext {
    OperationContext::new("mallory", Time(9))
}

/// A store with one workspace, and what it sends.
fn sent() -> (Store, SnapshotId, Vec<Frame>) {
    let from = Store::in_memory();
    let mut tree = WorkingTree::new(&from);
    tree.write("file", b"text").expect("write");
    let head = tree.commit(Commit::new(&name("workspace/main"), "one")).expect("commit").snapshot;
    let frames = frames(&stream_of(&from));
    (from, head, frames)
}

fn stream_of(store: &Store) -> Vec<u8> {
    let mut stream = Vec::new();
    let selection = Selection::everything(store).expect("everything");
    send(store, &selection, &SendOptions::default(), &mut stream, &Progress::default()).expect("send");
    stream
}

fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut reader = StreamReader::new(stream);
    let next = || match reader.next_frame().expect("a whole stream") {
        Frame::End { .. } => None,
        frame => Some(frame),
    };
    std::iter::from_fn(next).collect()
}

fn written<'a>(frames: impl IntoIterator<Item = &'a Frame>) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut writer = StreamWriter::new(&mut stream);
    for frame in frames {
        match frame {
            Frame::Base(id) => writer.base(*id),
            Frame::Opened(ids) => writer.opened(ids),
            Frame::Object(StoredObject { id, bytes }) => writer.object(*id, bytes),
            Frame::Thinned(bytes) => writer.thinned(bytes),
            Frame::Purged(id, tombstone) => writer.purged(*id, tombstone),
            Frame::Tip(id) => writer.tip(*id),
            Frame::Name(name, value) => writer.name(name, value),
            Frame::Unreadable { .. } | Frame::End { .. } => Ok(()),
        }
        .expect("memory takes everything");
    }
    writer.end().expect("memory takes everything");
    stream
}

/// The references of a store, but for the marks that say what came from elsewhere.
fn refs(store: &Store) -> BTreeMap<RefName, RefValue> {
    let refs = all_refs(store).expect("references").into_iter();
    refs.filter(|(name, _)| !name.as_str().starts_with("foreign/")).collect()
}

fn take(store: &Store, stream: &[u8], options: &ReceiveOptions) -> Result<Vec<RefName>, Error> {
    receive(store, stream, options, &by(), &Progress::default()).map(|received| received.names)
}

/// Receives what must be refused; nothing has moved, and the store verifies.
fn refused(store: &Store, stream: &[u8], options: &ReceiveOptions) -> Error {
    let before = refs(store);
    let error = take(store, stream, options).expect_err("it must be refused");
    assert_eq!(refs(store), before, "{error}");
    assert_sound(store);
    error
}

/// The entry of a queue whose test is a command of the sender.
fn armed(target: &str, source: &str, snapshot: SnapshotId) -> (RefName, RefValue) {
    let note =
        r#"{"agent":"","actor":"eve","ends":false,"message":"","test":["sh","-c","touch /tmp/owned"],"takes":[]}"#;
    let value = RefValue { note: Bytes::from_static(note.as_bytes()), ..RefValue::to(snapshot.object()) };
    (name(format!("queue/{target}:{:016x}-{source}", 5)), value)
}

/// A value for a name of each kind, as a store itself would write it.
fn every_kind(head: SnapshotId, root: RootId) -> Vec<(RefName, RefValue, bool)> {
    let (queue, entry) = armed("main", "side", head);
    let review = name(queue.as_str().replacen("queue", "review", 1));
    let lean_note = RefValue { note: Bytes::from(vec![0; 8]), ..RefValue::to(root.object()) };
    vec![
        (name("workspace/other"), RefValue::to(head.object()), true),
        (name("label/v1"), RefValue::to(head.object()), true),
        (name(format!("note/{head}")), RefValue::noting(&b"a note"[..]), true),
        (name(format!("reward/{head}")), RefValue::noting(1.0_f64.to_be_bytes().to_vec()), true),
        (queue, entry.clone(), false),
        (review, entry, false),
        (name("view/1"), RefValue::to(root.object()), false),
        (name(format!("resolution/{head}")), RefValue::to(root.object()), false),
        (name("policy/project"), RefValue::to(root.object()), false),
        (name("deleted/main@1"), RefValue::to(head.object()), false),
        (name(format!("lean/{head}")), lean_note, false),
        (name(format!("foreign/{head}")), RefValue::noting(&b"stream"[..]), false),
        (name("head/main"), RefValue::to(head.object()), false),
        (name("unheard-of"), RefValue::to(head.object()), false),
        (name("QUEUE/main:0000000000000005-side"), RefValue::to(head.object()), false),
    ]
}

#[test]
fn a_stream_sets_the_kinds_of_names_that_travel_and_no_others() {
    let (from, head, frames) = sent();
    let root = from.snapshot(head).expect("a snapshot").root;
    for (planted, value, travels) in every_kind(head, root) {
        let parts: Vec<_> = frames.iter().cloned().chain([Frame::Name(planted.clone(), value)]).collect();
        let stream = written(&parts);
        for (replace, under) in [(false, false), (true, false), (false, true), (true, true)] {
            let names = if under { Names::Under("word".to_owned()) } else { Names::AsSent };
            let options = ReceiveOptions { names, replace, tombstones: true };
            let to = Store::in_memory();
            if travels {
                let set = take(&to, &stream, &options).expect("it travels");
                assert_eq!(set.len(), 2, "{planted}: {set:?}");
                continue;
            }
            let error = refused(&to, &stream, &options);
            assert!(error.to_string().contains("workspaces, labels, notes"), "{planted}: {error}");
            assert_eq!(error.kind(), Some(ErrorKind::Corrupt));
        }
        let options = ReceiveOptions { names: Names::None, ..ReceiveOptions::default() };
        assert!(take(&Store::in_memory(), &stream, &options).expect("no name is set").is_empty());
    }
}

#[test]
fn everything_that_is_sent_is_received_and_the_rest_stays_at_home() {
    let (from, head, _) = sent();
    let root = from.snapshot(head).expect("a snapshot").root;
    for (planted, value, _) in every_kind(head, root) {
        plant(&from, planted, value);
    }
    let to = Store::in_memory();
    let set = take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("its own stream");
    let kinds: Vec<_> = set.iter().map(|name| name.as_str().split('/').next().expect("a kind")).collect();
    assert_eq!(kinds, ["label", "note", "reward", "workspace", "workspace"]);
    assert_sound(&to);
}

#[test]
fn a_stream_does_not_touch_the_checkpoint_of_a_view() {
    let (_, head, frames) = sent();
    let to = Store::in_memory();
    take(&to, &written(&frames), &ReceiveOptions::default()).expect("received");
    let mut work = WorkingTree::open(&to, head).expect("open");
    work.write("uncommitted", b"a day's work").expect("write");
    let session = to.session();
    let root = work.freeze().write(&session).expect("written");
    session.commit(root, RefMove::default()).expect("committed");
    plant(&to, name("view/1"), RefValue::to(root.object()));
    let foreign = Frame::Name(name("view/1"), RefValue::to(head.object()));
    let stream = written(&frames.iter().cloned().chain([foreign]).collect::<Vec<_>>());
    refused(&to, &stream, &ReceiveOptions { replace: true, ..ReceiveOptions::default() });
    assert_eq!(refs(&to)[&name("view/1")].target, Some(root.object()));
}

/// Sets a name without asking anybody, as an older program may have.
fn plant(store: &Store, name: RefName, value: RefValue) {
    let before = store.read_ref(&name).expect("read");
    let keep = value.roots().next().unwrap_or_else(|| ObjectId::of(ObjectKind::Chunk, b""));
    let operation = OperationDraft { actor: "eve".to_owned(), action: "queue".to_owned(), ..OperationDraft::default() };
    let refs = RefMove {
        expect: vec![(name.clone(), before)],
        set: vec![(name, Some(value))],
        operation,
        ..RefMove::default()
    };
    store.session().commit(keep, refs).expect("planted");
}

/// Panics as soon as it is to run a command.
struct Tripwire;

impl MergePolicy for Tripwire {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        panic!("an entry that is held is not merged")
    }

    fn test(&self, entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        panic!("it would run {:?}", entry.options.test)
    }
}

fn restored(directory: &Path) -> (Store, amalgam_transfer::ReceiveReport) {
    let store = Store::in_memory();
    let received = restore_backup(directory, &store, &by(), &Progress::default()).expect("restored");
    (store, received)
}

#[test]
fn what_waits_in_a_backup_comes_back_held_and_its_test_does_not_run() {
    let from = Store::in_memory();
    let workspaces = Workspaces::of(&from);
    let [main, side] = ["main", "side"].map(|name| WorkspaceName::new(name).expect("a name"));
    workspaces.create(&main, &NewWorkspace::default(), &by()).expect("create");
    let mut tree = workspaces.open(&main).expect("open");
    tree.write("file", b"one").expect("write");
    workspaces.commit(&main, &mut tree, &Change::new("one"), &by()).expect("commit");
    workspaces.fork(&main, std::slice::from_ref(&side), &by()).expect("fork");
    let mut tree = workspaces.open(&side).expect("open");
    tree.write("file", b"two").expect("write");
    workspaces.commit(&side, &mut tree, &Change::new("two"), &by()).expect("commit");
    let queue = Queue::of(&workspaces, &History::of(&from));
    let wish = QueueOptions {
        test: vec!["sh".to_owned(), "-c".to_owned(), "touch /tmp/owned".to_owned()],
        ..QueueOptions::default()
    };
    queue.submit(&side, &main, &wish, &by()).expect("submit");
    assert_eq!(
        queue.targets().expect("targets"),
        std::slice::from_ref(&main),
        "it waits to be merged where it was put"
    );

    // Twice: what is held stays held.
    let directory = tempfile::tempdir().expect("a directory");
    let mut store = from;
    for round in 0..2 {
        let place = directory.path().join(round.to_string());
        backup(&store, &place, Time(1), &Progress::default()).expect("backup");
        store = restored(&place).0;
        let queue = Queue::of(&Workspaces::of(&store), &History::of(&store));
        assert!(queue.targets().expect("targets").is_empty());
        let waiting = queue.list(None).expect("listed");
        assert!(matches!(&waiting[..], [entry] if entry.is_held && entry.options == wish), "{waiting:?}");
        assert!(queue.fold(&main, &Tripwire, &by()).expect("nothing to do").done.is_empty());
        assert_sound(&store);
    }
}

#[test]
fn an_entry_whose_operation_was_trimmed_is_held_and_the_queue_can_be_read() {
    let (store, head, _) = sent();
    let (queued, entry) = armed("main", "side", head);
    plant(&store, queued, entry);
    for number in 0..3 {
        plant(&store, name(format!("label/{number}")), RefValue::to(head.object()));
    }
    let queue = Queue::of(&Workspaces::of(&store), &History::of(&store));
    assert!(!queue.list(None).expect("listed")[0].is_held, "somebody put it there");
    let round = store.begin_sweep().expect("a round");
    round.trim_operations(store.last_operation().expect("last"), 100).expect("trimmed");
    drop(round);
    assert!(queue.list(None).expect("listed")[0].is_held);
    assert!(queue.targets().expect("targets").is_empty());
}

#[test]
fn names_of_a_backup_that_break_a_rule_are_left_out_and_told() {
    let (from, head, _) = sent();
    for (planted, value) in [
        ("queue/x", RefValue::to(head.object())),
        ("review/main:5-side", RefValue::noting(&b"{"[..])),
        ("deleted/main@18446744073709551615", RefValue::to(head.object())),
        ("deleted/main@0", RefValue::to(head.object())),
        ("unheard-of", RefValue::to(head.object())),
    ] {
        plant(&from, name(planted), value);
    }
    let directory = tempfile::tempdir().expect("a directory");
    backup(&from, directory.path(), Time(1), &Progress::default()).expect("backup");
    let (store, received) = restored(directory.path());
    assert_eq!(received.names, [name("workspace/main")]);
    assert_eq!(received.left_out.listed().len(), 5, "{:?}", received.left_out);
    let workspaces = Workspaces::of(&store);
    let main = WorkspaceName::new("main").expect("a name");
    workspaces.delete(&main, &by()).expect("delete");
    assert!(refs(&store).contains_key(&name("deleted/main@1")));
    assert_sound(&store);
}

#[test]
fn the_greatest_number_of_a_deleted_workspace_is_not_passed() {
    let (store, head, _) = sent();
    plant(&store, name(format!("deleted/main@{}", u64::MAX)), RefValue::to(head.object()));
    let main = WorkspaceName::new("main").expect("a name");
    let error = Workspaces::of(&store).delete(&main, &by()).expect_err("there is no number left");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(refs(&store).contains_key(&main.reference()), "it is still there");
}

#[test]
fn a_place_in_a_journal_is_that_of_the_store_which_has_it() {
    let (from, head, _) = sent();
    let journaled = |file: u8| {
        let place = [head.as_bytes().as_slice(), &[7; 16], &[0, 0, 0, 0, 0, 0, 0, file]].concat();
        let note = [&[5 << 3 | 2, place.len() as u8][..], &place].concat();
        RefValue { note: note.into(), ..RefValue::to(head.object()) }
    };
    plant(&from, name("workspace/main"), journaled(99));
    let to = Store::in_memory();
    let main = WorkspaceName::new("main").expect("a name");
    let place = |store: &Store| Workspaces::of(store).get(&main).expect("there").journaled.map(|it| it.place.file);
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("received");
    assert_eq!(place(&to), None);
    plant(&to, name("workspace/main"), journaled(3));
    take(&to, &stream_of(&from), &ReceiveOptions { replace: true, ..ReceiveOptions::default() }).expect("received");
    assert_eq!(place(&to), Some(3), "an edit behind it would be taken for committed");
}

#[test]
fn a_stream_moves_the_head_of_an_existing_workspace_and_changes_nothing_else_of_it() {
    let (from, head, _) = sent();
    let feat = WorkspaceName::new("feat").expect("a name");
    let new = |agent: &str, target: Option<&str>| NewWorkspace {
        from: Some(head),
        agent: agent.to_owned(),
        project: agent.to_owned(),
        target: target.map(|target| WorkspaceName::new(target).expect("a name")),
    };
    let to = Store::in_memory();
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("received");
    Workspaces::of(&to).create(&feat, &new("ann", None), &by()).expect("create");
    let before = Workspaces::of(&to).get(&feat).expect("there");
    Workspaces::of(&from)
        .create(&feat, &new("mallory", Some("main")), &OperationContext::new("mallory", Time(0)))
        .expect("create");
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("the same head is received");
    let record = |workspace: Workspace| {
        (workspace.agent, workspace.project, workspace.target, workspace.base, workspace.created)
    };
    let there = || Workspaces::of(&to).get(&feat).expect("there");
    assert_eq!(record(there()), record(before.clone()));
    let mut tree = WorkingTree::open(&from, head).expect("open");
    tree.write("more", b"text").expect("write");
    let moved = Workspaces::of(&from).commit(&feat, &mut tree, &Change::new("more"), &by()).expect("commit").snapshot;
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("received");
    assert_eq!(there().head, Some(moved));
    assert_eq!(record(there()), record(before));
}

#[test]
fn a_received_name_does_not_take_the_place_of_a_snapshot() {
    let (from, head, _) = sent();
    let to = Store::in_memory();
    let mut tree = WorkingTree::new(&to);
    tree.write("file", b"ours").expect("write");
    let ours = tree.commit(Commit::new(&name("workspace/ours"), "ours")).expect("commit").snapshot;
    let (whole, prefix) = (ours.to_string(), ours.short());
    for digits in [whole.as_str(), &prefix] {
        plant(&from, name(format!("label/{digits}")), RefValue::to(head.object()));
        plant(&from, name(format!("workspace/{digits}")), RefValue::to(head.object()));
    }
    plant(&from, name("label/20261117"), RefValue::to(head.object()));
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("received");
    let resolve = |text: &str| Revision::parse(text).and_then(|it| it.resolve(&to, None, &Now::utc(Time(0))));
    assert_eq!(resolve(&whole).expect("a complete id is an id"), ours);
    assert!(matches!(resolve(&prefix), Err(amalgam_engine::Error::Ambiguous { .. })), "{:?}", resolve(&prefix));
    assert_eq!(resolve(&whole[..20]).expect("more digits"), ours);
    assert_eq!(resolve("20261117").expect("digits that begin no id are a name"), head);
}

#[test]
fn a_lean_tree_that_is_not_the_snapshots_own_is_replaced_before_anything_is_thinned() {
    let store = Store::in_memory();
    let mut made = Vec::new();
    let mut tree = WorkingTree::new(&store);
    for day in 0..5_i64 {
        tree.write("source", format!("the real one, day {day}").as_bytes()).expect("write");
        tree.create_directories("target").expect("made");
        tree.write("target/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55").expect("write");
        tree.write("target/cache", format!("{day}").as_bytes()).expect("write");
        let main = name("workspace/main");
        let mut commit = Commit::new(&main, "by itself").by("agent", Time(day));
        commit.metadata.insert(amalgam_gc::retention::AUTOMATIC_KEY.to_owned(), "true".to_owned());
        made.push(tree.commit(commit).expect("commit").snapshot);
    }
    let mut evil = WorkingTree::new(&store);
    evil.write("source", b"the attacker's").expect("write");
    let evil = evil.commit(Commit::new(&name("label/evil"), "evil")).expect("commit").snapshot;
    let evil = store.snapshot(evil).expect("a snapshot").root;
    let planted = RefValue { note: Bytes::from(vec![0; 8]), ..RefValue::to(evil.object()) };
    plant(&store, name(format!("lean/{}", made[1])), planted);

    let scope = SweepScope { undoable_after: Some(store.last_operation().expect("last")), ..SweepScope::default() };
    let history = History::of(&store);
    let mut plan =
        amalgam_gc::plan(&history, &Policies::default(), &scope, Time(5), &LivedTime::default()).expect("a plan");
    assert!(plan.snapshots.iter().any(|planned| planned.id == made[1] && planned.without_caches), "{plan:#?}");
    plan.make_lean(&store, &by(), &mut || true).expect("lean");
    let lean = lean_tree(&store, made[1]).expect("read").expect("it is lean now");
    let lean_files = WorkingTree::open_root(&store, lean.root).expect("open");
    assert_eq!(lean_files.read("source").expect("read"), b"the real one, day 1");
    assert!(!lean_files.exists("target/cache").expect("asked"));
    let root = store.snapshot(made[1]).expect("a snapshot").root;
    assert_eq!(CacheFinder::default().find(&store, root).expect("found").expect("few").len(), 1);
}

/// A snapshot above another with a generation of its own choice, by its canonical bytes.
fn snapshot_above(store: &Store, parent: SnapshotId, generation: u64) -> Frame {
    let root = store.snapshot(parent).expect("a snapshot").root;
    let snapshot = Snapshot {
        root,
        parents: vec![parent],
        author: "eve".to_owned(),
        time: Time(1),
        message: String::new(),
        metadata: BTreeMap::new(),
        generation,
    };
    let bytes = Bytes::from(snapshot.encode());
    Frame::Object(StoredObject { id: ObjectId::of(ObjectKind::Snapshot, &bytes), bytes })
}

fn with_tip(frames: &[Frame], tip: &Frame) -> Vec<u8> {
    let Frame::Object(StoredObject { id, .. }) = tip else { panic!("an object") };
    let is_object = |frame: &&Frame| matches!(frame, Frame::Object(_));
    let name = Frame::Name(name("workspace/evil"), RefValue::to(*id));
    written(&frames.iter().filter(is_object).chain([tip, &name]).cloned().collect::<Vec<_>>())
}

#[test]
fn generations_at_their_ends_are_refused_and_never_wrap() {
    let (from, head, frames) = sent();
    for generation in [0, GENERATION_MAX + 1, u64::MAX - 1, u64::MAX] {
        let to = Store::in_memory();
        refused(&to, &with_tip(&frames, &snapshot_above(&from, head, generation)), &ReceiveOptions::default());
        let Frame::Object(StoredObject { bytes, .. }) = snapshot_above(&from, head, generation) else { continue };
        let thinned = written(&frames.iter().cloned().chain([Frame::Thinned(bytes)]).collect::<Vec<_>>());
        refused(&to, &thinned, &ReceiveOptions::default());
    }
    let to = Store::in_memory();
    let greatest = with_tip(&frames, &snapshot_above(&from, head, GENERATION_MAX));
    take(&to, &greatest, &ReceiveOptions::default()).expect("the greatest there is");
    let evil = WorkspaceName::new("evil").expect("a name");
    let mut tree = Workspaces::of(&to).open(&evil).expect("open");
    tree.write("file", b"on top").expect("write");
    let error = Workspaces::of(&to).commit(&evil, &mut tree, &Change::new("on top"), &by()).expect_err("no next one");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_sound(&to);
}

#[test]
fn more_tips_than_memory_is_for_are_refused() {
    let (_, head, frames) = sent();
    let objects = frames.iter().filter(|frame| matches!(frame, Frame::Object(_)));
    let tip = Frame::Tip(head);
    let stream = written(objects.chain(std::iter::repeat_n(&tip, 1_100_000)));
    let error = refused(&Store::in_memory(), &stream, &ReceiveOptions::default());
    assert!(error.to_string().contains("too many names and tips"), "{error}");
}

#[test]
fn a_base_that_is_named_often_counts_once() {
    let (_, head, frames) = sent();
    let to = Store::in_memory();
    take(&to, &written(&frames), &ReceiveOptions::default()).expect("received");
    let base = Frame::Base(head);
    let stream = written(std::iter::repeat_n(&base, 200_000));
    super::limits::bounded(48 << 20, move || {
        assert!(take(&to, &stream, &ReceiveOptions::default()).expect("received").is_empty());
    });
}

#[test]
fn a_restore_leaves_a_bad_snapshot_out_and_its_workspace_falls_back_to_the_parent() {
    let (from, head, _) = sent();
    // As an older program may have stored it.
    let Frame::Object(StoredObject { bytes, .. }) = snapshot_above(&from, head, u64::MAX) else { panic!("an object") };
    let session = from.session();
    let evil = session.put_snapshot(Snapshot::decode(&bytes).expect("valid")).expect("put");
    session.commit(evil, RefMove::default()).expect("committed");
    plant(&from, name("workspace/main"), RefValue::to(evil.object()));
    plant(&from, name("label/evil"), RefValue::to(evil.object()));
    let directory = tempfile::tempdir().expect("a directory");
    backup(&from, directory.path(), Time(1), &Progress::default()).expect("backup");
    let (store, received) = restored(directory.path());
    assert_eq!(received.names, [name("workspace/main")]);
    let main = WorkspaceName::new("main").expect("a name");
    assert_eq!(Workspaces::of(&store).get(&main).expect("there").head, Some(head));
    let told: Vec<_> = received.left_out.listed().iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(told, [&*evil.object().to_string(), "label/evil", "workspace/main"]);
    assert_sound(&store);

    let verify = |directory: &Path| {
        amalgam_transfer::verify_backup(directory, &by(), &Progress::default(), amalgam_materializer::remove_tree)
    };
    let error = verify(directory.path()).expect_err("not as it was");
    assert!(matches!(&error, Error::Backup { .. }), "{error}");
    assert!(!directory.path().join("verify.new").exists());
    let (good, _, _) = sent();
    let directory = tempfile::tempdir().expect("a directory");
    backup(&good, directory.path(), Time(1), &Progress::default()).expect("backup");
    verify(directory.path()).expect("all of it comes back");
}

#[test]
fn hard_links_at_paths_that_no_object_holds_are_refused() {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    let deep = vec!["x".repeat(255); 2_040].join("/");
    tree.create_directories(&deep).expect("made");
    tree.write(format!("{deep}/f"), b"many names").expect("write");
    let main = name("workspace/main");
    tree.commit(Commit::new(&main, "one name")).expect("a file with one name lies as deep as it likes");
    let error = tree.link(format!("{deep}/f"), format!("{deep}/g")).expect_err("it could not be restored");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("hard link") && error.to_string().len() < 1_000, "{error}");
    assert_sound(&store);
}

#[test]
fn what_a_stream_brought_and_what_comes_of_it_is_known_to_be_foreign() {
    let (from, _, _) = sent();
    let workspaces = Workspaces::of(&from);
    let main = WorkspaceName::new("main").expect("a name");
    let mut heads = vec![workspaces.get(&main).expect("there").head.expect("a head")];
    for number in 0..3 {
        let mut tree = workspaces.open(&main).expect("open");
        tree.write("file", format!("{number}").as_bytes()).expect("write");
        heads.push(workspaces.commit(&main, &mut tree, &Change::new("more"), &by()).expect("commit").snapshot);
    }
    assert!(!History::of(&from).is_foreign(&heads, None).expect("asked"), "nothing came from elsewhere here");

    let to = Store::in_memory();
    let mut tree = WorkingTree::new(&to);
    tree.write("mine", b"mine").expect("write");
    let mine = tree.commit(Commit::new(&name("workspace/mine"), "mine")).expect("commit").snapshot;
    // Without names and tips it is foreign all the same.
    let objects: Vec<_> =
        frames(&stream_of(&from)).into_iter().filter(|frame| matches!(frame, Frame::Object(_))).collect();
    take(&to, &written(&objects), &ReceiveOptions::default()).expect("received");
    take(&to, &stream_of(&from), &ReceiveOptions::default()).expect("received");
    let history = History::of(&to);
    let is_foreign = |id: SnapshotId| history.is_foreign(&[id], None).expect("asked");
    assert!(heads.iter().copied().all(is_foreign));
    assert!(!is_foreign(mine));
    let mut tree = Workspaces::of(&to).open(&main).expect("open");
    tree.write("file", b"on top").expect("write");
    let on_top = Workspaces::of(&to).commit(&main, &mut tree, &Change::new("on top"), &by()).expect("commit").snapshot;
    assert!(is_foreign(on_top), "it may hold what came from elsewhere");
    let root = to.snapshot(heads[1]).expect("there").root;
    assert!(history.is_foreign(&[mine], Some(root)).expect("asked"), "the tree of such a snapshot");
    assert_sound(&to);

    let directory = tempfile::tempdir().expect("a directory");
    backup(&to, directory.path(), Time(1), &Progress::default()).expect("backup");
    let (again, _) = restored(directory.path());
    assert!(History::of(&again).is_foreign(&[on_top], None).expect("asked"));
    assert!(!History::of(&again).is_foreign(&[mine], None).expect("asked"));
}
