//! Kill -9 in the middle of receiving: the store opens, is sound, shows nothing, and the stream goes through afterwards.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::{OperationContext, Store, Time, WorkingTree};
use amalgam_transfer::{Progress, ReceiveOptions, Result, Selection, SendOptions, receive, send};

use super::lives::{assert_sound, live};
use super::{Random, all_refs, name};

/// Receives a file into a store on disk.
pub fn receive_file(directory: &Path, stream: &Path) -> Result<()> {
    let store = Store::open(directory)?;
    let host = |source| amalgam_transfer::Error::Host { action: "open the stream".to_owned(), source };
    let file = File::open(stream).map_err(host)?;
    let act = OperationContext::new("receiver", Time(1));
    receive(&store, file, &ReceiveOptions::default(), &act, &Progress::default()).map(drop)
}

/// What some rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveSummary {
    /// Kills.
    pub rounds: u64,
    /// Kills that came before the names were set.
    pub unfinished: u64,
    /// Objects that were there when an unfinished stream was received again.
    pub skipped: u64,
}

/// A stream of some size in a file, and the store that it came from.
pub(super) fn make_stream(path: &Path, random: &mut Random) -> Store {
    let from = Store::in_memory();
    live(&from, random, 10).expect("a life");
    let mut tree = WorkingTree::new(&from);
    for number in 0..40 {
        tree.write(format!("large{number}"), &random.bytes(1 << 20)).expect("write");
    }
    tree.commit(amalgam_engine::Commit::new(&name("workspace/large"), "large")).expect("commit");
    let out = File::create(path).expect("create");
    let selection = Selection::everything(&from).expect("everything");
    send(&from, &selection, &SendOptions::default(), out, &Progress::default()).expect("send");
    from
}

/// Kills receivers again and again, each over a new store. Panics when a store is unsound or shows half of a stream.
pub fn receive_kill_rounds(command: &dyn Fn() -> Command, rounds: u64, seed: u64) -> ReceiveSummary {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut random = Random::new(seed);
    let path = directory.path().join("stream");
    let from = make_stream(&path, &mut random);
    let took = {
        let start = Instant::now();
        let whole = directory.path().join("whole");
        let status = command().arg(&whole).arg(&path).stdout(Stdio::null()).status().expect("the receiver starts");
        assert!(status.success(), "a receiver that nobody kills");
        start.elapsed()
    };
    let mut summary = ReceiveSummary::default();
    for round in 0..rounds {
        let home = directory.path().join(round.to_string());
        let mut child = command().arg(&home).arg(&path).stdout(Stdio::null()).spawn().expect("the receiver starts");
        std::thread::sleep(Duration::from_micros(random.below(took.as_micros() as u64 + 1)));
        child.kill().expect("it is our child");
        child.wait().expect("it was killed");
        let store = Store::open(&home).expect("a killed store opens without repair");
        let held = named(&store);
        let wanted = sent(&from);
        assert!(held.is_empty() || held == wanted, "a stream is there whole, or not at all");
        let act = OperationContext::new("test", Time(2));
        let file = File::open(&path).expect("open");
        let again = receive(&store, file, &ReceiveOptions::default(), &act, &Progress::default()).expect("again");
        assert_eq!(named(&store), wanted);
        // A kill may leave rows that nothing names; they are no damage.
        if round % 4 == 0 && !held.is_empty() {
            assert_sound(&store);
        }
        let report = amalgam_engine::verify(&store, &amalgam_engine::VerifyOptions::reading_data(), &|_| {
            std::ops::ControlFlow::Continue(())
        });
        assert!(report.expect("a report").is_clean(), "round {round}");
        summary.rounds += 1;
        if held.is_empty() {
            summary.unfinished += 1;
            summary.skipped += again.objects - again.objects_new;
        }
        drop(store);
        std::fs::remove_dir_all(&home).expect("remove");
    }
    summary
}

/// The references of a store, but for the marks that say what came from elsewhere: those are set before the names.
pub(super) fn named(store: &Store) -> Vec<(RefName, RefValue)> {
    let refs = all_refs(store).expect("references").into_iter();
    refs.filter(|(name, _)| !name.as_str().starts_with("foreign/")).collect()
}

/// The references of a store that a stream of everything carries: no deleted workspaces.
pub(super) fn sent(store: &Store) -> Vec<(RefName, RefValue)> {
    named(store).into_iter().filter(|(name, _)| !name.as_str().starts_with("deleted/")).collect()
}
