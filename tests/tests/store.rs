//! Opening and closing stores, the rules of transactions, and the decorators, on both backends.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use amalgam_engine::backend::{
    Backend, Committed, Durability, Fault, FaultPlan, Inspect, Memory, Meter, Metered, Rocks, RocksOptions,
    StoredObject, Sweep, Transaction, Verify,
};
use amalgam_engine::reference::{OperationDraft, RefName, RefValue, RequestId};
use amalgam_engine::{
    ChunkId, Commit, Error, ErrorKind, ObjectId, ObjectKind, SnapshotId, Store, StoreOptions, WorkingTree,
};
use amalgam_tests::harness::kill::Committer;
use amalgam_tests::harness::workload::Orders;
use amalgam_tests::harness::{Random, check_log, name, over_all, read_files, stored_chunks};
use bytes::Bytes;
use rustix::process::Signal;

fn must_exist() -> StoreOptions {
    let mut options = StoreOptions::default();
    options.rocks.must_exist = true;
    options
}

/// What opening a directory says, in kind and in words.
fn refusal(directory: &Path) -> (Error, String) {
    let error = Store::open(directory).err().expect("the directory must be refused");
    let words = error.to_string();
    (error, words)
}

fn a_closed_store(directory: &Path) {
    let store = Store::open(directory).expect("open");
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"content").expect("write");
    tree.commit(Commit::new(&name("head/main"), "first")).expect("commit");
}

#[test]
fn a_newer_format_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    a_closed_store(directory.path());
    let header = directory.path().join("AMALGAM");
    let text = fs::read_to_string(&header).expect("header").replace("format 2", "format 7");
    fs::write(&header, text).expect("write");
    let (error, words) = refusal(directory.path());
    assert!(matches!(error, Error::NewerFormat { found: 7, known: 2, .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(words.contains("format 7") && words.contains("newer version"), "{words}");
}

#[test]
fn an_older_format_is_raised_and_nothing_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    a_closed_store(directory.path());
    let header = directory.path().join("AMALGAM");
    let now = fs::read_to_string(&header).expect("header");
    fs::write(&header, now.replace("format 2", "format 1")).expect("write");
    let store = Store::open(directory.path()).expect("open");
    let head = store.read_ref(&name("head/main")).expect("read").and_then(|value| value.target).expect("there");
    let head = SnapshotId::from_bytes(head.hash);
    assert_eq!(WorkingTree::open(&store, head).expect("open").read("file").expect("read"), b"content");
    assert_eq!(fs::read_to_string(&header).expect("header"), now);
    fs::write(&header, now.replace("format 2", "format 0")).expect("write");
    drop(store);
    let (error, _) = refusal(directory.path());
    assert!(matches!(error, Error::DamagedRecord { .. }), "{error:?}");
}

#[test]
fn a_foreign_directory_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("thesis.txt"), "mine").expect("write");
    let (error, words) = refusal(directory.path());
    assert!(matches!(error, Error::ForeignDirectory { .. }), "{error:?}");
    assert!(words.contains("thesis.txt") && words.contains("empty or a new directory"), "{words}");
    assert_eq!(fs::read_dir(directory.path()).expect("list").count(), 1);

    fs::write(directory.path().join("AMALGAM"), "another program's header").expect("write");
    let (error, words) = refusal(directory.path());
    assert!(matches!(error, Error::ForeignDirectory { .. }), "{error:?}");
    assert!(words.contains("AMALGAM is another program's"), "{words}");
}

#[test]
fn a_file_in_place_of_a_directory_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "text").expect("write");
    let (error, words) = refusal(&file);
    assert!(matches!(error, Error::ForeignDirectory { .. }), "{error:?}");
    assert!(words.contains("it is a file"), "{words}");
    assert_eq!(fs::read(&file).expect("read"), b"text");
}

#[test]
fn a_second_opener_in_this_process_is_told_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let first = Store::open(&path).expect("open");
    let (error, words) = refusal(&path);
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(words.contains("has the store open") && words.contains("end that process"), "{words}");
    drop(first);
    Store::open(&path).expect("the first is closed");
}

fn committer() -> Command {
    Command::new(env!("CARGO_BIN_EXE_committer"))
}

#[test]
fn a_second_opener_in_another_process_is_told_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let orders = Orders { seed: 1, writers: 1, seconds_max: 30 };
    let mut other = Committer::start(committer(), &path, orders);
    other.wait_for(|told| told.opened);
    let (error, _) = refusal(&path);
    assert!(matches!(error, Error::Busy { .. }), "{error:?}");
    other.kill();
    Store::open(&path).expect("a lock goes with its process");
}

#[test]
fn a_committer_that_nobody_watches_ends() {
    let directory = tempfile::tempdir().expect("a directory");
    let orders = Orders { seed: 1, writers: 1, seconds_max: 30 };
    let mut child = committer()
        .arg(directory.path().join("store"))
        .args(orders.words())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the committer starts");
    drop(child.stdin.take());
    let signal = child.wait().expect("it ends").signal();
    assert_eq!(signal, Some(Signal::KILL.as_raw()), "it ends because its input did, not for its time");
}

#[test]
fn a_missing_store_is_not_made_when_it_must_exist() {
    let directory = tempfile::tempdir().expect("a directory");
    for path in [directory.path().join("absent"), directory.path().to_owned()] {
        let error = Store::open_with(&path, &must_exist()).err().expect("there is no store");
        assert!(matches!(error, Error::NoStore { .. }), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("no store here"), "{error}");
    }
    assert_eq!(fs::read_dir(directory.path()).expect("list").count(), 0, "nothing was made");
}

#[test]
fn a_deleted_database_is_told_not_replaced_by_an_empty_one() {
    let directory = tempfile::tempdir().expect("a directory");
    a_closed_store(directory.path());
    fs::remove_dir_all(directory.path().join("db")).expect("remove");
    let (error, words) = refusal(directory.path());
    assert!(matches!(error, Error::DamagedRecord { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(words.contains("the database is gone"), "{words}");
    assert!(!directory.path().join("db").exists(), "nothing was made");
}

#[test]
fn a_damaged_header_or_mark_is_told() {
    let directory = tempfile::tempdir().expect("a directory");
    a_closed_store(directory.path());
    let mark = fs::read_to_string(directory.path().join("MARK")).expect("a closed store has a mark");
    let replaced = |text: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        text.replace(from, to).into_bytes()
    };
    for (file, text, says) in [
        ("AMALGAM", b"amalgam store\nformat 2\n".to_vec(), "header is damaged"),
        ("AMALGAM", b"amalgam store\nformat x\nstate ready\n".to_vec(), "header is damaged"),
        ("AMALGAM", b"\xff\xfe".to_vec(), "header is damaged: it is not text"),
    ] {
        let path = directory.path().join(file);
        let before = fs::read(&path).expect("read");
        fs::write(&path, text).expect("write");
        let (error, words) = refusal(directory.path());
        assert!(matches!(error, Error::DamagedRecord { .. }), "{error:?}");
        assert!(words.contains(says), "{words}");
        fs::write(&path, before).expect("write");
    }
    // The mark is auxiliary: a damaged one is ignored, and the next close writes a new one.
    for text in [b"many\n".to_vec(), b"\xff\xfe".to_vec(), replaced(&mark, "operation 1", "operation 900")] {
        fs::write(directory.path().join("MARK"), text).expect("write");
        Store::open(directory.path()).expect("a store without a mark");
    }
    Store::open(directory.path()).expect("all is as it was");
}

#[test]
fn a_crash_while_creating_is_made_good() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    fs::create_dir(&path).expect("create");
    fs::write(path.join("AMALGAM.new"), "amalg").expect("write");
    drop(Store::open(&path).expect("a header that was not finished"));

    let header = path.join("AMALGAM");
    let ready = fs::read_to_string(&header).expect("header");
    assert!(ready.contains("state ready"), "{ready}");
    for keep in [&[][..], &["IDENTITY", "LOCK"], &["MANIFEST", "IDENTITY"]] {
        fs::write(&header, ready.replace("ready", "creating")).expect("write");
        for entry in fs::read_dir(path.join("db")).expect("list") {
            let entry = entry.expect("entry");
            if !keep.iter().any(|name| entry.file_name().to_string_lossy().starts_with(name)) {
                fs::remove_file(entry.path()).expect("remove");
            }
        }
        fs::remove_file(path.join("MARK")).expect("remove");
        a_closed_store_again(&path);
        assert_eq!(fs::read_to_string(&header).expect("header"), ready);
        fs::remove_dir_all(path.join("db")).expect("remove");
        fs::create_dir(path.join("db")).expect("create");
    }
}

fn a_closed_store_again(path: &Path) {
    a_closed_store(path);
    let store = Store::open(path).expect("open");
    assert_eq!(check_log(&store).expect("log").len(), 1);
}

#[test]
fn reopening_keeps_references_operations_and_counters() {
    let directory = tempfile::tempdir().expect("a directory");
    let head = name("head/main");
    let mut contents = Vec::new();
    for round in 0..4_u64 {
        let store = Store::open(directory.path()).expect("open");
        let before = store.read_ref(&head).expect("read");
        let mut tree = match before.and_then(|value| value.target) {
            Some(target) => {
                WorkingTree::open(&store, amalgam_engine::SnapshotId::from_bytes(target.hash)).expect("open")
            }
            None => WorkingTree::new(&store),
        };
        assert_eq!(read_files(&tree).expect("files").into_values().collect::<Vec<_>>(), contents);
        contents.push(vec![u8::try_from(round).expect("small"); 70_000]);
        tree.write(format!("file{round}"), contents.last().expect("one")).expect("write");
        let done = tree.commit(Commit::new(&head, "more")).expect("commit");
        assert_eq!(done.operation, round + 1, "the log goes on");
        assert_eq!(check_log(&store).expect("log").len() as u64, round + 1);
    }
    let rocks = Rocks::open(directory.path(), &RocksOptions::default()).expect("open");
    assert_eq!(rocks.last_operation().expect("last"), 4);
    assert_eq!((rocks.advance_epoch().expect("epoch"), rocks.epoch()), (1, 1));
    drop(rocks);
    assert_eq!(Rocks::open(directory.path(), &RocksOptions::default()).expect("open").epoch(), 1);
}

fn value(text: &str) -> Option<RefValue> {
    Some(RefValue::noting(Bytes::copy_from_slice(text.as_bytes())))
}

type Side<'a> = &'a [(&'a str, Option<&'a str>)];

fn transaction(expect: Side<'_>, set: Side<'_>) -> Transaction {
    let side = |side: Side<'_>| side.iter().map(|(key, text)| (name(*key), text.and_then(value))).collect();
    let operation = Some(OperationDraft { action: "test".to_owned(), ..OperationDraft::default() });
    Transaction { expect: side(expect), set: side(set), operation, ..Transaction::default() }
}

fn why(result: amalgam_engine::Result<Committed>) -> String {
    let error = result.expect_err("it must be refused");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    error.to_string()
}

#[test]
fn transactions_that_break_a_rule_change_nothing() {
    over_all(|place| {
        let backend = place.backend();
        let mut unrecorded = transaction(&[("a", None)], &[("a", Some("1"))]);
        unrecorded.operation = None;
        let mut long = transaction(&[("a", None)], &[("a", None)]);
        long.set[0].1 = Some(RefValue::noting(vec![0; (64 << 10) + 1]));
        for (broken, says) in [
            (transaction(&[], &[("a", Some("1"))]), "a would move without being compared first"),
            (transaction(&[("a", None), ("a", None)], &[]), "a is expected twice"),
            (transaction(&[("a", None)], &[("a", Some("1")), ("a", Some("2"))]), "a is set twice"),
            (unrecorded, "references move without an operation record"),
            (long, "a reference's note over its limit"),
        ] {
            let words = why(backend.transact(broken));
            assert!(words.contains(says), "{words}");
        }
        assert_eq!(backend.last_operation().expect("last"), 0);
        assert_eq!(backend.list_refs("", None, 10).expect("list"), []);
    });
}

#[test]
fn references_move_all_or_not_at_all_and_stale_says_where_they_stand() {
    over_all(|place| {
        let backend = place.backend();
        backend
            .transact(transaction(&[("a", None), ("b", None)], &[("a", Some("1")), ("b", Some("1"))]))
            .expect("both");
        let both = transaction(&[("a", Some("1")), ("b", Some("0"))], &[("a", Some("2")), ("b", Some("2"))]);
        let object = ObjectId::of(ObjectKind::Root, b"unborn");
        let objects = vec![StoredObject { id: object, bytes: Bytes::from_static(b"unborn") }];
        let error = backend.transact(Transaction { objects, ..both }).expect_err("b is not at 0");
        let Error::Stale { moved } = &error else { panic!("{error:?}") };
        assert_eq!(moved, &[(name("b"), value("1"))], "{place:?}");
        assert!(error.to_string().starts_with("b moved since it was read"), "{error}");
        assert_eq!(backend.read_ref(&name("a")).expect("read"), value("1"), "{place:?}: a moved alone");
        assert!(backend.get(object).expect("get").is_none(), "{place:?}: an object of a refused transaction");

        let error = backend.transact(transaction(&[("a", None), ("c", Some("1"))], &[])).expect_err("both differ");
        let Error::Stale { moved } = &error else { panic!("{error:?}") };
        assert_eq!(moved, &[(name("a"), value("1")), (name("c"), None)]);
        assert!(error.to_string().contains("(and 1 more)"), "{error}");

        // Comparing without setting is a guard.
        backend.transact(transaction(&[("a", Some("1")), ("b", Some("1"))], &[("b", None)])).expect("a guards b");
        assert_eq!(backend.read_ref(&name("b")).expect("read"), None);
        assert_eq!(backend.last_operation().expect("last"), 2);
        let operations = backend.list_operations(0, 10).expect("list");
        assert_eq!(operations[1].changes.len(), 1);
        assert_eq!((&operations[1].changes[0].before, &operations[1].changes[0].after), (&value("1"), &None));
    });
}

#[test]
fn a_request_is_done_once() {
    over_all(|place| {
        let backend = place.backend();
        let request = RequestId::new("r1").expect("id");
        let with_request = |mut transaction: Transaction| {
            let draft = transaction.operation.as_mut().expect("there is one");
            draft.request = Some(request.clone());
            transaction
        };
        assert!(backend.find_request(&request).expect("find").is_none());
        backend.transact(with_request(transaction(&[("a", Some("0"))], &[]))).expect_err("stale is not done");
        let first = backend.transact(with_request(transaction(&[("a", None)], &[("a", Some("1"))]))).expect("first");
        let again = backend.transact(with_request(transaction(&[("b", None)], &[("b", Some("2"))]))).expect("again");
        assert!(!first.replayed && again.replayed);
        assert_eq!(first.operation, again.operation);
        assert_eq!(backend.find_request(&request).expect("find"), first.operation);
        assert_eq!(backend.read_ref(&name("b")).expect("read"), None, "{place:?}: a retry did something else");
        assert_eq!(backend.last_operation().expect("last"), 1);
    });
}

#[test]
fn references_are_listed_by_prefix_and_page() {
    over_all(|place| {
        let backend = place.backend();
        let names: Vec<_> = (0..25).map(|number| format!("head/{number:02}")).collect();
        for key in names.iter().map(String::as_str).chain(["head", "headless", "label/x", "\u{10ffff}"]) {
            backend.transact(transaction(&[(key, None)], &[(key, Some(key))])).expect("set");
        }
        let page = |prefix: &str, after: Option<&RefName>, limit| -> Vec<String> {
            let listed = backend.list_refs(prefix, after, limit).expect("list");
            assert!(listed.iter().all(|(name, held)| Some(held) == value(name.as_str()).as_ref()));
            listed.into_iter().map(|(name, _)| name.as_str().to_owned()).collect()
        };
        let mut found: Vec<String> = Vec::new();
        loop {
            let after = found.last().map(name);
            let next = page("head/", after.as_ref(), 10);
            assert!(next.len() <= 10);
            if next.is_empty() {
                break;
            }
            found.extend(next);
        }
        assert_eq!(found, names, "{place:?}");
        assert_eq!(page("head/", Some(&name("a")), 1), ["head/00"], "{place:?}: after lies before the prefix");
        assert_eq!(page("head/", Some(&name("z")), 1), [""; 0], "{place:?}: after lies behind the prefix");
        assert_eq!(page("head/1", Some(&name("head/18")), 9), ["head/19"], "{place:?}");
        assert_eq!(page("", None, 100).len(), 29, "{place:?}");
        assert_eq!(page("", Some(&name("label/x")), 100), ["\u{10ffff}"], "{place:?}");
        assert_eq!(page("", None, 0), [""; 0], "{place:?}");
    });
}

#[test]
fn operations_are_listed_from_a_cursor() {
    over_all(|place| {
        let backend = place.backend();
        for number in 0..7 {
            let key = format!("r{number}");
            backend.transact(transaction(&[(&key, None)], &[(&key, Some("1"))])).expect("set");
        }
        let page = |after, limit| -> Vec<u64> {
            backend.list_operations(after, limit).expect("list").iter().map(|operation| operation.sequence).collect()
        };
        assert_eq!(page(0, 3), [1, 2, 3], "{place:?}");
        assert_eq!(page(3, 100), [4, 5, 6, 7], "{place:?}");
        assert_eq!(page(7, 100), [0; 0], "{place:?}");
        assert_eq!(page(u64::MAX, 100), [0; 0], "{place:?}");
        assert_eq!(page(0, 0), [0; 0], "{place:?}");
    });
}

#[test]
fn objects_come_back_in_the_order_asked_for() {
    over_all(|place| {
        let backend = place.backend();
        let chunk = |text: &str| StoredObject {
            id: ChunkId::of(text.as_bytes()).object(),
            bytes: [&[0], text.as_bytes()].concat().into(),
        };
        let root = StoredObject { id: ObjectId::of(ObjectKind::Root, b"r"), bytes: Bytes::from_static(b"r") };
        let objects = vec![chunk("a"), root, chunk("b"), chunk("c")];
        let mut ids: Vec<_> = objects.iter().map(|object| object.id).collect();
        backend.put_ahead(objects.clone()).expect("put");
        ids.reverse();
        ids.insert(1, ChunkId::of(b"absent").object());
        let found = backend.get_many(&ids).expect("get");
        let expected: Vec<_> = ids
            .iter()
            .map(|id| objects.iter().find(|object| object.id == *id).map(|object| object.bytes.clone()))
            .collect();
        assert_eq!(found, expected, "{place:?}");
        assert_eq!(backend.contains_many(&ids, 0).expect("contains"), [true, false, true, true, true], "{place:?}");
        // The same hash as another kind is another object.
        let other_kind = ObjectId { kind: ObjectKind::State, hash: ids[0].hash };
        assert_eq!(backend.contains_many(&[other_kind], 0).expect("contains"), [false], "{place:?}");
    });
}

#[test]
fn verify_refuses_an_id_that_lies() {
    over_all(|place| {
        let inner = place.backend();
        let lie = StoredObject { id: ChunkId::of(b"truth").object(), bytes: Bytes::from_static(b"\0other") };
        inner.put_ahead(vec![lie.clone()]).expect("a backend by itself believes");
        let verify = Verify(Shared(inner));
        let is_mismatch = |error: Error| matches!(error, Error::HashMismatch { id } if id == lie.id);
        assert!(verify.get(lie.id).is_err_and(is_mismatch), "{place:?}");
        assert!(verify.get_many(&[lie.id]).is_err_and(is_mismatch), "{place:?}");
        let lie = StoredObject { id: ObjectId::of(ObjectKind::Root, b"truth"), bytes: Bytes::from_static(b"other") };
        let is_mismatch = |error: Error| matches!(error, Error::HashMismatch { id } if id == lie.id);
        assert!(verify.put_ahead(vec![lie.clone()]).is_err_and(is_mismatch), "{place:?}");
        let objects = vec![lie.clone()];
        let transact = verify.transact(Transaction { objects, ..Transaction::default() });
        assert!(transact.is_err_and(is_mismatch), "{place:?}");
        assert!(verify.get(lie.id).expect("get").is_none(), "{place:?}: a refused object was put");
    });
}

/// An `Arc` of a backend as a backend, for decorators that own theirs.
struct Shared(Arc<dyn Inspect>);

impl Backend for Shared {
    fn get(&self, id: ObjectId) -> amalgam_engine::Result<Option<Bytes>> {
        self.0.get(id)
    }
    fn get_many(&self, ids: &[ObjectId]) -> amalgam_engine::Result<Vec<Option<Bytes>>> {
        self.0.get_many(ids)
    }
    fn contains_many(&self, ids: &[ObjectId], stamp: u64) -> amalgam_engine::Result<Vec<bool>> {
        self.0.contains_many(ids, stamp)
    }
    fn put_ahead(&self, objects: Vec<StoredObject>) -> amalgam_engine::Result<()> {
        self.0.put_ahead(objects)
    }
    fn transact(&self, transaction: Transaction) -> amalgam_engine::Result<Committed> {
        self.0.transact(transaction)
    }
    fn sync(&self) -> amalgam_engine::Result<()> {
        self.0.sync()
    }
    fn empty_log(&self) -> amalgam_engine::Result<()> {
        self.0.empty_log()
    }
    fn tombstone(&self, id: ObjectId) -> amalgam_engine::Result<Option<amalgam_engine::Tombstone>> {
        self.0.tombstone(id)
    }
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }
    fn read_ref(&self, name: &RefName) -> amalgam_engine::Result<Option<RefValue>> {
        self.0.read_ref(name)
    }
    fn last_move(&self, name: &RefName) -> amalgam_engine::Result<u64> {
        self.0.last_move(name)
    }

    fn list_refs(
        &self,
        prefix: &str,
        after: Option<&RefName>,
        limit: usize,
    ) -> amalgam_engine::Result<Vec<(RefName, RefValue)>> {
        self.0.list_refs(prefix, after, limit)
    }
    fn list_operations(
        &self,
        after: u64,
        limit: usize,
    ) -> amalgam_engine::Result<Vec<amalgam_engine::reference::Operation>> {
        self.0.list_operations(after, limit)
    }
    fn last_operation(&self) -> amalgam_engine::Result<u64> {
        self.0.last_operation()
    }
    fn first_operation(&self) -> amalgam_engine::Result<u64> {
        self.0.first_operation()
    }
    fn find_request(
        &self,
        request: &RequestId,
    ) -> amalgam_engine::Result<Option<amalgam_engine::reference::Operation>> {
        self.0.find_request(request)
    }
}

#[test]
fn a_meter_counts_what_passes() {
    let meter = Arc::new(Meter::default());
    let store = Store::new(Arc::new(Metered::new(Memory::default(), Arc::clone(&meter))), &StoreOptions::default());
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"some content").expect("write");
    let first = tree.commit(Commit::new(&name("head/main"), "first")).expect("commit").snapshot;
    // A chunk, a directory, a root and a snapshot, each looked up before it was put.
    assert_eq!((meter.objects_written(), meter.transactions(), meter.lookups()), (4, 1, 4));
    assert!(meter.bytes_written() > 32);
    assert_eq!((meter.gets(), meter.bytes_read()), (0, 0), "a commit reads nothing back");
    let tree = WorkingTree::open(&store, first).expect("open");
    assert_eq!(tree.read("file").expect("read"), b"some content");
    assert_eq!((meter.gets(), meter.bytes_read()), (1, 13), "the chunk with its codec byte; the rest is cached");
}

#[test]
fn a_fault_fails_and_heals() {
    let plan = Arc::new(FaultPlan::default());
    let store = Store::new(Arc::new(Fault::new(Memory::default(), Arc::clone(&plan))), &StoreOptions::default());
    let head = name("head/main");
    let mut tree = WorkingTree::new(&store);
    tree.write("file", b"content").expect("write");
    plan.full_after_writes(0);
    let error = tree.commit(Commit::new(&head, "first")).expect_err("the disk is full");
    assert_eq!((error.kind(), plan.hits()), (ErrorKind::Full, 1));
    assert!(error.to_string().contains("free some space"), "{error}");
    plan.heal();
    plan.fail_after_reads(0);
    let error = store.read_ref(&head).expect_err("nothing can be read");
    assert_eq!((error.kind(), plan.hits()), (ErrorKind::Fault, 2));
    plan.heal();
    assert_eq!(store.read_ref(&head).expect("read"), None);
    tree.commit(Commit::new(&head, "first")).expect("the same tree can be committed");
}

/// What is pending in a session must be readable there even when nothing is cached.
#[test]
fn trees_grow_and_shrink_without_a_cache() {
    over_all(|place| {
        let store = Store::new(place.backend(), &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
        let head = name("head/main");
        let mut tree = WorkingTree::new(&store);
        for number in 0..2_000 {
            tree.write(format!("{number:05}"), number.to_string().as_bytes()).expect("write");
        }
        tree.commit(Commit::new(&head, "many")).expect("commit");
        for (keep, step) in [(900, 3), (300, 2), (40, 1), (1, 1)] {
            let names: Vec<_> = read_files(&tree).expect("files").into_keys().collect();
            for name in names.iter().skip(keep).step_by(step) {
                tree.remove(name).expect("remove");
            }
            let mut commit = Commit::new(&head, "fewer");
            commit.durability = Durability::Buffered;
            let done = tree.commit(commit).unwrap_or_else(|error| panic!("{place:?}, {keep} kept: {error}"));
            let again = WorkingTree::open(&store, done.snapshot).expect("open");
            assert_eq!(read_files(&again).expect("files"), read_files(&tree).expect("files"), "{place:?}");
        }
    });
}

#[test]
fn chunks_that_were_written_in_a_row_are_guessed_and_others_are_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let backend = Rocks::open(directory.path(), &RocksOptions::default()).expect("open");
    let text = |number: usize| format!("chunk {number}").into_bytes();
    let id = |number| ChunkId::of(&text(number)).object();
    let chunk = |number| StoredObject { id: id(number), bytes: [vec![0], text(number)].concat().into() };
    backend.put_ahead((0..40).map(chunk).collect()).expect("put");
    backend.put_ahead((50..90).map(chunk).collect()).expect("put");
    // What was shown and right, and the places of the others.
    let guess = |wanted: &[usize]| {
        let ids: Vec<_> = wanted.iter().map(|number| id(*number)).collect();
        let mut right = Vec::new();
        let others = backend.guess_many(&ids, &mut |place, stored| {
            let is_it = stored[1..] == text(wanted[place]);
            if is_it {
                right.push(wanted[place]);
            }
            is_it
        });
        (right, others.expect("read"))
    };
    let row: Vec<usize> = (0..40).collect();
    assert_eq!(guess(&row), (row.clone(), vec![]));
    let swapped: Vec<usize> = (0..10).chain([11, 10]).chain(12..20).collect();
    let (right, others) = guess(&swapped);
    assert_eq!((right.len(), others), (18, vec![10, 11]), "between the ends each lies where it would");
    let two_rows: Vec<usize> = (24..40).chain(50..66).collect();
    assert_eq!(guess(&two_rows), (two_rows.clone(), vec![]), "in halves");
    let few: Vec<usize> = (0..5).collect();
    assert_eq!(guess(&few), (vec![], few.clone()), "not worth it");
    let absent: Vec<usize> = (30..50).collect();
    let (right, others) = guess(&absent);
    assert_eq!(right.len() + others.len(), 20);
    assert!((10..20).all(|place| others.contains(&place)), "what is not there is not shown: {others:?}");
    assert!(guess(&[]).1.is_empty());
}

#[test]
fn the_chunks_of_a_file_lie_in_its_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(7);
    // Several batches, each packed on all cores.
    let bytes = random.bytes(12 << 20);
    let store = Store::open(directory.path()).expect("open");
    let mut tree = WorkingTree::new(&store);
    tree.write("large", &bytes).expect("write");
    tree.commit(Commit::new(&name("head/main"), "all")).expect("commit");
    assert!(tree.read("large").expect("read") == bytes);
    drop((tree, store));
    let found: Vec<_> = stored_chunks(directory.path()).expect("read").concat();
    assert!(found == bytes, "one after the other they are the file");
}

#[test]
fn many_files_lie_in_the_order_of_their_paths() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut random = Random::new(8);
    let store = Store::open(directory.path()).expect("open");
    let mut tree = WorkingTree::new(&store);
    let mut expected = Vec::new();
    // Enough for several threads.
    for place in 0..200 {
        let bytes = random.bytes(20_000);
        tree.create_directories(format!("{:02}", place / 10)).expect("made");
        tree.write(format!("{:02}/{place:03}", place / 10), &bytes).expect("write");
        expected.push(bytes);
    }
    tree.commit(Commit::new(&name("head/main"), "all")).expect("commit");
    drop((tree, store));
    assert!(stored_chunks(directory.path()).expect("read").concat() == expected.concat(), "whichever thread put them");
}
