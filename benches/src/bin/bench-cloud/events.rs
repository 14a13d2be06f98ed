//! The time from a change on one node to its event on another.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::random::Random;
use amalgam_benches::trees::reference;
use amalgam_benches::{Bar, Result, Samples};
use amalgam_engine::{Commit, OperationCursor, WorkingTree};

use crate::add;
use crate::place::{Node, Place};

const EVENT: &str = "change on one node to event on another, p99";
pub(crate) const FIGURES: &[&str] = &[EVENT];

const WAIT: Duration = Duration::from_secs(5);
/// Changes come in pauses of up to this many milliseconds.
const PAUSE_MAX: u64 = 20;

pub(crate) fn run(bench: &mut Bench, place: &Place) -> Result<()> {
    eprintln!("events, {:?} of delay", place.delay);
    let times: u64 = bench.size(300, 10);
    let options = place.options();
    let (writer, reader) = (Node::open(&options)?, Node::open(&options)?);
    let mut cursor = OperationCursor::at_end(&reader.store)?;
    let (seen, events) = channel();
    let watcher = std::thread::spawn(move || -> Result<()> {
        for _ in 0..times {
            while cursor.wait(WAIT)?.is_empty() {}
            seen.send(Instant::now())?;
        }
        Ok(())
    });
    let mut random = Random::new(11);
    let mut tree = WorkingTree::new(&writer.store);
    let mut milliseconds = Vec::new();
    for number in 0..times {
        std::thread::sleep(Duration::from_millis(random.below(PAUSE_MAX)));
        tree.write("file", format!("change {number}").as_bytes())?;
        let begun = Instant::now();
        tree.commit(Commit::new(&reference("head/main"), "a change"))?;
        milliseconds.push(events.recv_timeout(WAIT)?.saturating_duration_since(begun).as_secs_f64() * 1e3);
    }
    watcher.join().expect("a thread that does not panic")?;
    let samples = Samples::new(milliseconds);
    let how = format!(
        "from the beginning of a durable commit to the return of the other node's wait: {}",
        samples.describe("ms")
    );
    add(bench, place, EVENT, (samples.p99(), "ms"), Bar::AtMost(50.0), how);
    Ok(())
}
