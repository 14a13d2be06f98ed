//! Connections of PostgreSQL: all in use by others, or without an answer; and statements that arrive late, after they were sent again.

use std::sync::Mutex;
use std::time::Instant;

use amalgam_engine::backend::{Backend, TakenTree};
use sqlx::{Connection as _, PgConnection, Row as _};

use super::*;

fn wait<T>(runtime: &tokio::runtime::Runtime, work: impl Future<Output = T>) -> T {
    runtime.block_on(work)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Opens connections until the server refuses the next one.
fn take_all(runtime: &tokio::runtime::Runtime, url: &str) -> Vec<PgConnection> {
    let mut taken = Vec::new();
    loop {
        match wait(runtime, PgConnection::connect(url)) {
            Ok(connection) => taken.push(connection),
            Err(error) => {
                assert!(error.to_string().contains("too many clients"), "{error}");
                return taken;
            }
        }
    }
}

#[test]
fn a_node_goes_on_with_its_connections_when_others_have_all_the_rest() {
    const THREADS: u64 = 8;
    const COMMITS: u64 = 10;
    let Some(server) = postgres::own_with("max_connections = 12\nsuperuser_reserved_connections = 0") else { return };
    let bucket = FaultyBucket::new();
    let settings = options(server.url(), &bucket, "connections");
    let cloud = open(&settings);
    step(&cloud, "start", None, 1, Vec::new()).expect("committed");
    let runtime = runtime();
    let taken = take_all(&runtime, &server.url());
    assert!(!taken.is_empty());
    let longest = Mutex::new(Duration::ZERO);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (cloud, longest) = (&cloud, &longest);
            scope.spawn(move || {
                let reference = format!("thread {thread}");
                for number in 0..COMMITS {
                    let from = number.checked_sub(1);
                    let object = object(&format!("{thread} {number}"), 100);
                    let begun = Instant::now();
                    step(cloud, &reference, from, number, vec![object]).expect("it has a connection");
                    let value = cloud.read_ref(&name(&reference)).expect("it has a connection");
                    assert_eq!(value, Some(RefValue::noting(number.to_string())));
                    let mut longest = longest.lock().expect("no thread failed");
                    *longest = begun.elapsed().max(*longest);
                }
            });
        }
    });
    // A call waits for a connection that comes back, not for the end of all attempts to open another one.
    let longest = *longest.lock().expect("no thread failed");
    assert!(longest < Duration::from_secs(25), "{longest:?}");

    // A new node needs new connections, and says what is wrong.
    let mut impatient = settings.clone();
    impatient.retry_time = Duration::from_millis(200);
    let error = Cloud::open(&impatient).err().expect("there is no connection").to_string();
    assert!(error.contains("too many clients") && error.contains("max_connections"), "{error}");
    for connection in taken {
        wait(&runtime, connection.close()).expect("closed");
    }
    let fresh = open(&settings);
    let operations = fresh.list_operations(0, 1_000).expect("list");
    assert_eq!(operations.len() as u64, 1 + THREADS * COMMITS, "each acknowledged commit once");
    for thread in 0..THREADS {
        let value = fresh.read_ref(&name(&format!("thread {thread}"))).expect("read");
        assert_eq!(value, Some(RefValue::noting((COMMITS - 1).to_string())));
    }
}

#[test]
fn a_commit_over_a_connection_that_does_not_answer_is_sent_over_another_one() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "silence");
    settings.retry_time = Duration::from_secs(3);
    // The lease is longer than the silence.
    let cloud = open(&settings);
    step(&cloud, "a", None, 1, Vec::new()).expect("committed");
    // As if the machine of the server were gone: nothing closes the connections.
    proxy.hold_present();
    step(&cloud, "a", Some(1), 2, vec![object("two", 100)]).expect("another connection answers");
    step(&cloud, "a", Some(2), 3, vec![object("three", 100)]).expect("committed");
    // What was on its way arrives after all: the batch is refused, because a later one is done.
    proxy.release();
    std::thread::sleep(Duration::from_millis(300));
    step(&cloud, "a", Some(3), 4, Vec::new()).expect("committed");
    assert_eq!(cloud.list_operations(0, 10).expect("list").len(), 4, "nothing is done twice");
    assert_eq!(cloud.read_ref(&name("a")).expect("read"), Some(RefValue::noting("4")));
}

/// Appends to the journal of a live tree. Returns whether it is stored.
fn append(cloud: &Cloud, taken: &TakenTree, start: u64, text: &str) -> bool {
    let part = FilePart { name: "0.journal".to_owned(), start, bytes: text.as_bytes().to_vec() };
    cloud.write(taken.number, taken.token, &["0.journal".to_owned()], &[part]).expect("PostgreSQL answers")
}

/// Returns the journal of a live tree, as a node finds it that takes the tree.
fn journal(taken: TakenTree) -> String {
    let bytes: Vec<_> = taken.files.into_iter().flat_map(|(_, bytes)| bytes).collect();
    String::from_utf8(bytes).expect("a text")
}

#[test]
fn a_write_of_a_live_tree_that_arrives_late_removes_no_later_edit() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "late writes");
    settings.retry_time = Duration::from_secs(3);
    let cloud = open(&settings);
    let taken = cloud.take("main").expect("take");
    assert!(append(&cloud, &taken, 0, "one"));
    proxy.hold_present();
    assert!(append(&cloud, &taken, 3, " two"), "another connection answers");
    assert!(append(&cloud, &taken, 7, " three"));
    // The first attempt of the second write arrives after all.
    proxy.release();
    std::thread::sleep(Duration::from_millis(300));
    let other = open(&options(server.url(), &bucket, "late writes"));
    assert_eq!(journal(other.take("main").expect("take")), "one two three");
}

/// A node that takes a tree which it has already keeps its token, so that the token alone does not tell which call was the last.
#[test]
fn calls_for_a_live_tree_before_the_last_one_change_nothing() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(server.url(), &bucket, "late calls"));
    let taken = cloud.take("main").expect("take");
    assert!(append(&cloud, &taken, 0, "one"));
    let again = cloud.take("main").expect("take");
    assert_eq!((again.number, again.token), (taken.number, taken.token));
    let runtime = runtime();
    let mut connection = wait(&runtime, PgConnection::connect(&server.url())).expect("the server runs");
    // The number of the write: the last call took the tree.
    let write =
        "SELECT write_live_tree(project, node, generation, number, token, last_call - 1, '{}', '{}', '{}', '{}')
                 FROM live_trees";
    let row = wait(&runtime, sqlx::query(write).fetch_one(&mut connection)).expect("called");
    assert!(!row.get::<bool, _>(0), "it is not stored");
    let release = "SELECT release_live_tree(project, node, generation, number, token, last_call - 1) FROM live_trees";
    wait(&runtime, sqlx::query(release).execute(&mut connection)).expect("called");
    let forget = "SELECT forget_live_tree(project, workspace, number, token, last_call - 1) FROM live_trees";
    let row = wait(&runtime, sqlx::query(forget).fetch_one(&mut connection)).expect("called");
    assert!(!row.get::<bool, _>(0), "the tree is not as it was");
    assert!(cloud.is_held(taken.number, taken.token).expect("asked"));
    assert!(append(&cloud, &taken, 3, " two"));
    // The answer of the last call may be lost, so that it is sent again.
    let write = "SELECT write_live_tree(project, node, generation, number, token, last_call, '{}', '{}', '{}', '{}')
                 FROM live_trees";
    let row = wait(&runtime, sqlx::query(write).fetch_one(&mut connection)).expect("called");
    assert!(row.get::<bool, _>(0), "it is stored");
    assert_eq!(journal(cloud.take("main").expect("take")), "one two");
}

/// The pool is full of connections that broke at the same time.
#[test]
fn one_broken_connection_is_enough_to_leave_all_older_ones() {
    const READERS: usize = 12;
    let Some(mut server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "broken connections");
    settings.connections = READERS as u32;
    let cloud = open(&settings);
    step(&cloud, "a", None, 1, Vec::new()).expect("committed");
    // Each reader needs a connection of its own.
    proxy.delay(Duration::from_millis(100));
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| cloud.read_ref(&name("a")).expect("read"));
        }
    });
    proxy.delay(Duration::ZERO);
    std::thread::sleep(Duration::from_millis(300));
    server.restart();
    let before = cloud.calls().statements;
    step(&cloud, "a", Some(1), 2, Vec::new()).expect("connections are made anew");
    let attempts = cloud.calls().statements - before;
    assert!(attempts <= 3, "{attempts} attempts");
}

/// A reservation is sent again, its names are used, and then the first one is executed, too.
#[test]
fn a_reservation_that_arrives_late_does_not_make_a_registered_pack_an_orphan() {
    const NAMES: u64 = 64;
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let proxy = Proxy::start(server.directory());
    let mut settings = options(postgres::url(proxy.directory()), &bucket, "late reservations");
    settings.inline_bytes_max = 1 << 10;
    settings.connections = 1;
    let cloud = open(&settings);
    let packed = |number: u64| object(&format!("object {number}"), 2_000);
    for number in 0..NAMES {
        step(&cloud, "a", number.checked_sub(1), number, vec![packed(number)]).expect("committed");
    }
    // The next commit reserves names first. The pool asks a connection that comes back whether it is alive: not that is to be held.
    std::thread::sleep(Duration::from_millis(200));
    proxy.hold_present();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| step(&cloud, "a", Some(NAMES - 1), NAMES, vec![packed(NAMES)]));
        std::thread::sleep(Duration::from_millis(500));
        proxy.cut();
        commit.join().expect("no panic").expect("sent again");
    });
    proxy.release();
    let runtime = runtime();
    let mut connection = wait(&runtime, PgConnection::connect(&server.url())).expect("the server runs");
    let begun = Instant::now();
    loop {
        let query = sqlx::query("SELECT count(*) FROM uploads JOIN packs USING (project, id)");
        let row = wait(&runtime, query.fetch_one(&mut connection)).expect("counted");
        if row.get::<i64, _>(0) > 0 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "the late reservation does not arrive");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(cloud);
    let other = open(&options(server.url(), &bucket, "late reservations"));
    other.advance_epoch().expect("a collection");
    let nothing = KeptRows { numbers: Arc::default(), gone: Arc::default(), end: 0 };
    assert!(other.reclaim(nothing, &mut |_| ControlFlow::Continue(())).expect("reclaimed").finished);
    other.end_collection();
    for number in 0..=NAMES {
        let object = packed(number);
        assert_eq!(other.get(object.id).expect("get").expect("there"), object.bytes, "{number}");
    }
}

/// A batch whose answer was lost is found by its number, which a late duplicate of joining must not reset.
#[test]
fn joining_twice_does_not_forget_the_last_batch() {
    let Some(server) = postgres::own() else { return };
    let bucket = FaultyBucket::new();
    let cloud = open(&options(server.url(), &bucket, "joined twice"));
    step(&cloud, "a", None, 1, Vec::new()).expect("committed");
    let runtime = runtime();
    let mut connection = wait(&runtime, PgConnection::connect(&server.url())).expect("the server runs");
    let join = sqlx::query("SELECT join_project(project, node, generation) FROM writers");
    wait(&runtime, join.execute(&mut connection)).expect("joined");
    let row = wait(&runtime, sqlx::query("SELECT batch FROM writers").fetch_one(&mut connection)).expect("a row");
    assert_eq!(row.get::<i64, _>(0), 1);
    step(&cloud, "a", Some(1), 2, Vec::new()).expect("committed");
}

/// The pool of connections must not test each one that comes back.
#[test]
fn a_call_is_one_round_trip() {
    const CALLS: usize = 50;
    /// Round trips of background tasks, for example of the heartbeat.
    const OTHERS_MAX: usize = 20;
    let Some(server) = postgres::own() else { return };
    let (bucket, proxy) = (FaultyBucket::new(), Proxy::start(server.directory()));
    let cloud = open(&options(postgres::url(proxy.directory()), &bucket, "one round trip"));
    step(&cloud, "a", None, 1, Vec::new()).expect("committed");
    // Prepares the statement.
    cloud.read_ref(&name("a")).expect("read");
    let before = proxy.answers();
    for _ in 0..CALLS {
        cloud.read_ref(&name("a")).expect("read");
    }
    let answers = proxy.answers() - before;
    assert!((CALLS..CALLS + OTHERS_MAX).contains(&answers), "{answers} round trips");
}
