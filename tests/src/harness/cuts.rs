//! Power cuts in the middle of collections and of receiving; how a power is cut is told in [`powercut`](super::powercut).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use amalgam_engine::{OperationContext, Store, Time, VerifyOptions, verify};
use amalgam_transfer::{Progress, ReceiveOptions, receive};

use super::Random;
use super::collection::{check_kept, make_kept};
use super::powercut::Pool;
use super::receiving::{make_stream, named, sent};

/// After so many cuts the disk is made anew.
const ROUNDS_PER_DISK: u64 = 5;

/// Cuts the power while a process collects. Returns in which stage it was, as far as it had told. Panics when something that is named is
/// not whole afterwards.
pub fn cut_collections(
    command: &dyn Fn() -> Command,
    directory: &Path,
    rounds: u64,
    seed: u64,
    tell: &dyn Fn(String),
) -> BTreeMap<String, u64> {
    let mut random = Random::new(seed);
    let mut pool = Pool::new(directory);
    let store_directory = pool.disk().join("store");
    let (mut hits, mut kept) = (BTreeMap::new(), BTreeMap::new());
    for round in 0..rounds {
        if round % ROUNDS_PER_DISK == 0 {
            if round > 0 {
                pool.unmount();
            }
            pool.make_disk();
            kept = make_kept(&store_directory);
        }
        let mut command = command();
        command.arg(&store_directory).arg((seed % 1_000_000 + round * 1_000).to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the collector starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        for _ in 0..1 + random.below(12) {
            lines.next().expect("it goes on").expect("lines of text");
        }
        std::thread::sleep(Duration::from_micros(random.below(40_000)));
        let cut = pool.cut();
        child.kill().expect("it is our child and runs");
        child.wait().expect("it was killed");
        let stage = lines.map_while(Result::ok).last().unwrap_or_else(|| "just told".to_owned());
        *hits.entry(stage.clone()).or_default() += 1;
        pool.become_cut(&cut);
        let store = Store::open(&store_directory).expect("a store opens after a power cut, without repair");
        check_kept(&store, &kept, &format!("round {round}, cut near {stage}"));
        tell(format!("round {}: cut near {stage}, all that is named is whole", round + 1));
    }
    hits
}

/// What cuts in the middle of receiving came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct CutReceivers {
    /// Cuts.
    pub rounds: u64,
    /// Cuts that left nothing that shows.
    pub unfinished: u64,
    /// Objects that were there when such a stream was received again.
    pub skipped: u64,
}

/// Cuts the power while a process receives. Panics when half of a stream shows, or it cannot be received again.
pub fn cut_receivers(
    command: &dyn Fn() -> Command,
    directory: &Path,
    rounds: u64,
    seed: u64,
    tell: &dyn Fn(String),
) -> CutReceivers {
    let mut random = Random::new(seed);
    let stream = directory.join("stream");
    let from = make_stream(&stream, &mut random);
    let wanted = sent(&from);
    let mut pool = Pool::new(directory);
    pool.make_disk();
    let store_directory = pool.disk().join("store");
    let start = || command().arg(&store_directory).arg(&stream).stdout(Stdio::null()).spawn().expect("it starts");
    let begun = Instant::now();
    assert!(start().wait().expect("it is our child").success(), "a receiver that nobody cuts");
    let took = begun.elapsed();
    let mut summary = CutReceivers::default();
    for round in 0..rounds {
        fs::remove_dir_all(&store_directory).expect("the one before");
        // What goes must not be there by half after the cut.
        File::open(pool.disk()).and_then(|disk| disk.sync_all()).expect("sync");
        let mut child = start();
        std::thread::sleep(Duration::from_micros(random.below(took.as_micros() as u64 * 5 / 4 + 1)));
        let cut = pool.cut();
        child.kill().expect("it is our child");
        child.wait().expect("it was killed");
        pool.become_cut(&cut);
        let store = Store::open(&store_directory).expect("a store opens after a power cut, without repair");
        let held = named(&store);
        assert!(held.is_empty() || held == wanted, "round {round}: a stream is there whole, or not at all");
        let file = File::open(&stream).expect("open");
        let act = OperationContext::new("test", Time(2));
        let again = receive(&store, file, &ReceiveOptions::default(), &act, &Progress::default()).expect("again");
        assert_eq!(named(&store), wanted, "round {round}");
        let report = verify(&store, &VerifyOptions::reading_data(), &|_| std::ops::ControlFlow::Continue(()));
        assert!(report.expect("a report").is_clean(), "round {round}");
        summary.rounds += 1;
        if held.is_empty() {
            summary.unfinished += 1;
            summary.skipped += again.objects - again.objects_new;
        }
        tell(format!("round {}: {summary:?}", round + 1));
    }
    summary
}
