//! Kill -9: a child commits, dies at a random moment, and nothing that it was told was done may be missing.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_engine::Store;

use super::Random;
use super::workload::{Ledger, Orders, Told};

const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What some rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct KillSummary {
    /// Kills.
    pub rounds: u64,
    /// Commits acknowledged before them.
    pub acknowledged: u64,
    /// Commits under way when the kill came.
    pub in_flight: u64,
    /// Of these, commits that were found done all the same.
    pub done_unacknowledged: u64,
    /// Kills that came while the store was being opened.
    pub while_opening: u64,
}

impl std::fmt::Display for KillSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rounds, acknowledged, in_flight, done_unacknowledged, while_opening } = self;
        write!(
            f,
            "{rounds} kills, {while_opening} of them while opening; {acknowledged} commits acknowledged, 0 lost; \
             {in_flight} under way, {done_unacknowledged} of them whole, the others absent"
        )
    }
}

/// A committing process and what it told so far.
pub struct Committer {
    child: Child,
    _input: ChildStdin,
    told: Arc<std::sync::Mutex<Told>>,
    reader: JoinHandle<()>,
}

impl Committer {
    /// Starts one. The command gets the directory and the orders as its last words.
    pub fn start(mut command: Command, directory: &Path, orders: Orders) -> Self {
        command.arg(directory).args(orders.words()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the committer starts");
        let input = child.stdin.take().expect("its input is a pipe");
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let told = Arc::new(std::sync::Mutex::new(Told::default()));
        let reader = std::thread::spawn({
            let told = Arc::clone(&told);
            move || {
                for line in output.lines() {
                    told.lock().expect("no panic").take(&line.expect("lines of text"));
                }
            }
        });
        Self { child, _input: input, told, reader }
    }

    /// What it told up to now.
    pub fn told(&self) -> Told {
        self.told.lock().expect("a line that cannot be read is a failure").clone()
    }

    /// Waits until it told something.
    pub fn wait_for(&mut self, what: impl Fn(&Told) -> bool) {
        let end = Instant::now() + ANSWER_WITHIN;
        while !what(&self.told()) {
            let ended = self.child.try_wait().expect("it is our child");
            assert!(ended.is_none(), "the committer ended by itself: {ended:?}");
            assert!(Instant::now() < end, "the committer says nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it and returns all it told.
    pub fn kill(mut self) -> Told {
        let ended = self.child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the committer ended by itself: {ended:?}");
        self.child.kill().expect("it is our child and runs");
        self.child.wait().expect("it was killed");
        self.reader.join().expect("its lines can be read");
        self.told.lock().expect("the reader has ended").clone()
    }
}

/// Kills committers again and again over one store, and checks what each left. Panics when a commit is lost or half there,
/// and when the kills hit nothing.
pub fn kill_rounds(command: &dyn Fn() -> Command, rounds: u64, seed: u64) -> KillSummary {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store_directory = directory.path().join("store");
    let mut random = Random::new(seed);
    let mut ledger = Ledger::default();
    let mut summary = KillSummary::default();
    let orders = Orders { seed, writers: 4, seconds_max: 60 };
    let mut commits_before = 0;
    for round in 0..rounds {
        let mut committer = Committer::start(command(), &store_directory, orders);
        if round % 4 == 3 {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
        } else {
            committer.wait_for(|told| !told.done.is_empty());
            std::thread::sleep(Duration::from_micros(random.below(500_000)));
        }
        let told = committer.kill();
        let store = Store::open(&store_directory).expect("a killed store opens without repair");
        let held = ledger.check(&store, orders, &told.done).expect("everything that a reference reaches can be read");
        let last = told.done.iter().map(|done| done.operation).max().unwrap_or(0);
        assert!(held.operations >= last, "operation {last} was acknowledged, the log ends at {}", held.operations);
        summary.rounds += 1;
        summary.acknowledged += told.done.len() as u64;
        summary.in_flight += told.in_flight() as u64;
        summary.done_unacknowledged += held.commits - commits_before - told.done.len() as u64;
        summary.while_opening += u64::from(!told.opened);
        commits_before = held.commits;
    }
    assert!(summary.acknowledged > rounds, "hardly anything was committed: {summary:?}");
    assert!(summary.in_flight > 0, "no kill came in the middle of a commit: {summary:?}");
    summary
}
