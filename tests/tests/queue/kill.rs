//! A publishing process is killed at random moments: nothing is half merged, nothing twice, and the queue goes on.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use amalgam_engine::Store;
use amalgam_tests::harness::merging::check_left;
use amalgam_tests::harness::{Random, seed};

const ROUNDS: u64 = 10;
const AGENTS: &str = "4";

#[test]
fn a_kill_in_the_middle_of_merges_loses_nothing_and_does_nothing_twice() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("store");
    let (mut queued, mut landed) = (BTreeSet::new(), BTreeSet::new());
    let mut merges = 0;
    for _ in 0..ROUNDS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_publisher"));
        let mut child = command.arg(&path).arg(AGENTS).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let reader = std::thread::spawn(move || output.lines().map_while(Result::ok).collect::<Vec<_>>());
        std::thread::sleep(Duration::from_micros(150_000 + random.below(600_000)));
        let ended = child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the publisher ended by itself: {ended:?}");
        child.kill().expect("it is our child and runs");
        child.wait().expect("it was killed");
        for line in reader.join().expect("its lines can be read") {
            let words: Vec<_> = line.split(' ').collect();
            // The last line may have been cut.
            let [what, agent, round] = words[..] else { continue };
            let (Ok(agent), Ok(round)) = (agent.parse(), round.parse()) else { continue };
            let told = if what == "queued" { &mut queued } else { &mut landed };
            told.insert((agent, round));
        }
        let store = Store::open(&path).expect("a killed store opens without repair");
        merges = check_left(&store, &queued, &landed).expect("all can be read");
    }
    println!("{ROUNDS} kills, {} queued, {} told as landed, {merges} merges", queued.len(), landed.len());
    assert!(merges >= queued.len() && queued.len() > ROUNDS as usize, "hardly anything was merged");
}
