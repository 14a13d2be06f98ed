//! A node that is stopped (SIGSTOP) in the middle of a commit for longer than its lease, and continued: it comes back fenced, overwrites
//! nothing, and goes on after it has opened the project anew. No acknowledged commit is lost or done twice. It is stopped before and
//! after its statement, with a pack in the bucket that nothing names yet and without one, and at random.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use amalgam_cloud::{Cloud, CloudOptions, open_bucket};
use amalgam_engine::backend::{Backend as _, Durability, Sweep as _, Transaction};
use amalgam_engine::reference::{OperationDraft, RefValue};
use amalgam_engine::{Error, SplitMix64, Store, StoreOptions};
use amalgam_test_support::postgres;
use amalgam_test_support::postgres_proxy::PostgresProxy;
use amalgam_tests::harness::{check_log, name, seed};
use rustix::process::Signal;

const LEASE: Duration = Duration::from_secs(1);
/// The time within which something must happen.
const WITHIN: Duration = Duration::from_secs(60);
/// A writer that prints nothing for this long waits for PostgreSQL.
const QUIET: Duration = Duration::from_millis(200);
/// The writer puts the objects of commits whose number this divides into the bucket.
const LARGE_ONE_IN: u64 = 2;

/// A node in a process of its own.
struct Writer {
    child: Child,
    lines: Receiver<String>,
    /// The number of the last acknowledged commit.
    done: u64,
}

impl Writer {
    fn start(database: &str, bucket: &str, project: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_node-writer"));
        command.args([database, bucket, project, &LEASE.as_millis().to_string()]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let (sender, lines) = std::sync::mpsc::channel();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        std::thread::spawn(move || output.lines().map_while(|line| line.ok()).try_for_each(|line| sender.send(line)));
        Self { child, lines, done: 0 }
    }

    fn note(&mut self, line: &str) {
        assert!(!line.starts_with("error"), "{line}");
        if let Some(number) = line.strip_prefix("done ").and_then(|rest| rest.split(' ').next()) {
            let number = number.parse().expect("a number");
            assert_eq!(number, self.done + 1, "each commit is acknowledged once");
            self.done = number;
        }
    }

    /// Waits for a line that begins with a word, and returns the words before it.
    fn wait_for(&mut self, word: &str) -> Vec<String> {
        let mut words = Vec::new();
        loop {
            let line = self.lines.recv_timeout(WITHIN).expect("it goes on");
            self.note(&line);
            let first = line.split(' ').next().unwrap_or_default().to_owned();
            if first == word {
                return words;
            }
            words.push(first);
        }
    }

    /// Waits until the writer prints nothing more. Returns the last line.
    fn wait_for_silence(&mut self) -> String {
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(QUIET) {
                Ok(line) => {
                    self.note(&line);
                    last = line;
                }
                Err(RecvTimeoutError::Timeout) => return last,
                Err(RecvTimeoutError::Disconnected) => panic!("it ended"),
            }
        }
    }

    /// Holds the statements of the writer back when it commits a pack that it has put into the bucket, or one that travels with the
    /// statement. Returns the last line.
    fn hold_commit(&mut self, proxy: &PostgresProxy, is_put: bool) -> String {
        let begun = Instant::now();
        loop {
            proxy.hold();
            let at = self.wait_for_silence();
            let number = at.strip_prefix("try ").and_then(|number| number.parse::<u64>().ok());
            if number.is_some_and(|number| number.is_multiple_of(LARGE_ONE_IN) == is_put) {
                return at;
            }
            assert!(begun.elapsed() < WITHIN, "{at}");
            proxy.release();
            self.wait_for("done");
        }
    }

    /// Kills the writer. Returns the number of its last acknowledged commit.
    fn end(mut self) -> u64 {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
        while let Ok(line) = self.lines.recv_timeout(QUIET) {
            self.note(&line);
        }
        self.done
    }

    fn signal(&self, signal: Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).expect("an id");
        rustix::process::kill_process(id, signal).expect("it runs");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Expels nodes whose lease has expired, as a collection does, and moves the shared reference.
fn take_over(cloud: &Cloud, round: u64) {
    let begun = Instant::now();
    while let Err(error) = cloud.advance_epoch() {
        assert!(begun.elapsed() < WITHIN, "{error}");
    }
    cloud.sessions_elsewhere().expect("a silent node is expelled");
    cloud.end_collection();
    let shared = name("shared");
    loop {
        let seen = cloud.read_ref(&shared).expect("read");
        let moved = cloud.transact(Transaction {
            objects: Vec::new(),
            expect: vec![(shared.clone(), seen)],
            set: vec![(shared.clone(), Some(RefValue::noting(format!("other {round}"))))],
            operation: Some(OperationDraft::default()),
            durability: Durability::Durable,
        });
        match moved {
            Ok(_) => return,
            Err(Error::Stale { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_node_that_was_stopped_in_the_middle_of_a_commit_comes_back_fenced() {
    let Some(server) = postgres::own() else { return };
    let seed = seed();
    println!("seed {seed}");
    let mut random = SplitMix64::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let bucket = format!("file://{}", directory.path().display());
    let proxy = PostgresProxy::start(server.directory());
    let project = "stopped writers";
    let options = CloudOptions::new(server.url(), open_bucket(&bucket).expect("a directory"), project);
    let other = Cloud::open(&options).expect("the server runs");
    let mut writer = Writer::start(&postgres::url(proxy.directory()), &bucket, project);
    for round in 0..12 {
        writer.wait_for("done");
        let (kind, is_put) = (round % 3, round % 2 == 0);
        let stopped_at = match kind {
            // Its statement is on the way, and arrives when the node is expelled.
            0 => {
                let at = writer.hold_commit(&proxy, is_put);
                writer.signal(Signal::STOP);
                std::thread::sleep(LEASE * 2);
                take_over(&other, round);
                proxy.release();
                at
            }
            // Its statement is executed, and it does not read the answer before it is expelled.
            1 => {
                let at = writer.hold_commit(&proxy, is_put);
                writer.signal(Signal::STOP);
                proxy.release();
                std::thread::sleep(LEASE * 2);
                take_over(&other, round);
                at
            }
            // Anywhere.
            _ => {
                std::thread::sleep(Duration::from_micros(random.below(20_000)));
                writer.signal(Signal::STOP);
                let at = writer.wait_for_silence();
                std::thread::sleep(LEASE * 2);
                take_over(&other, round);
                at
            }
        };
        let shared = other.read_ref(&name("shared")).expect("read");
        assert_eq!(shared, Some(RefValue::noting(format!("other {round}"))), "a late statement overwrites nothing");
        let before = writer.done;
        writer.signal(Signal::CONT);
        let words = writer.wait_for("fenced");
        let acknowledged = writer.done - before;
        println!("stopped at {stopped_at}: {acknowledged} acknowledged after it was continued, {words:?}");
        match kind {
            0 => assert_eq!(acknowledged, 0, "its commit came too late"),
            // The answer of what it had done before it was expelled, and nothing more.
            _ => assert!(acknowledged <= 1, "{words:?}"),
        }
        writer.wait_for("done");
    }
    let done = writer.end();
    let store = Store::new(Arc::new(other), &StoreOptions::default());
    let operations = check_log(&store).expect("a log without gaps");
    let own = name("writer");
    let changes = operations.iter().flat_map(|operation| operation.changes.iter());
    let moves: Vec<_> = changes.filter(|change| change.name == own).map(|change| change.after.clone()).collect();
    let expected: Vec<_> = (1..=moves.len()).map(|number| Some(RefValue::noting(number.to_string()))).collect();
    assert_eq!(moves, expected, "each commit is in the log once, in its order");
    let made = moves.len() as u64;
    assert!(made == done || made == done + 1, "{made} commits, {done} acknowledged");
    println!("{done} commits acknowledged, {} operations", operations.len());
}
