//! Two hundred agents that fork, edit and publish at once: all that each wrote is in the target, in a review, or still in its
//! workspace.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use amalgam_engine::merge::{ContestedFile, Verdict};
use amalgam_engine::queue::{EntryOutcome, MergePolicy, QueueEntry, QueueOptions};
use amalgam_engine::workspace::Change;
use amalgam_engine::{MergeContents, OperationContext, Result, SnapshotId, Time, WorkingTree};
use amalgam_tests::harness::merging::{MAIN, Merged, named};
use amalgam_tests::harness::{Place, Random, over_all, seed};

const AGENTS: u64 = 200;
const THREADS: u64 = 8;
const SHARED: u64 = 40;

/// Texts whose names end in `.log` keep the lines of both; others conflict.
struct Logs;

impl MergeContents for Logs {
    fn merge(&self, contest: &ContestedFile<'_>) -> Result<Verdict> {
        if !contest.path.as_bytes().ends_with(b".log") {
            return Ok(Verdict::Conflict { strategy: "none".to_owned() });
        }
        let (ours, theirs) = (contest.ours.read()?, contest.theirs.read()?);
        let mut lines: Vec<_> = ours.split_inclusive(|byte| *byte == b'\n').collect();
        lines.extend(theirs.split_inclusive(|byte| *byte == b'\n'));
        lines.sort_unstable();
        lines.dedup();
        Ok(Verdict::Merged { bytes: lines.concat().into(), strategy: "lines".to_owned() })
    }
}

impl MergePolicy for Logs {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Logs))
    }
}

/// What an agent did last.
struct Run {
    snapshot: SnapshotId,
    /// What it wrote, by path, as a line of its own.
    wrote: BTreeMap<String, String>,
    entry: Option<String>,
}

#[test]
fn everything_that_two_hundred_agents_wrote_is_somewhere() {
    let seed = seed();
    println!("seed {seed}");
    over_all(|place| run_all(place, seed));
}

fn run_all(place: Place<'_>, seed: u64) {
    let store = place.store();
    let merged = Merged::of(&store).expect("a store");
    let (next, clock) = (AtomicU64::new(0), AtomicI64::new(10));
    let (runs, fates) = (Mutex::new(BTreeMap::new()), Mutex::new(BTreeMap::new()));
    let fold = || {
        let time = clock.fetch_add(1, Ordering::Relaxed);
        let done = merged.queue.fold(&named(MAIN), &Logs, &OperationContext::new("queue", Time(time)).buffered());
        let done = done.expect("folded").done;
        let count = done.len();
        fates
            .lock()
            .expect("no panic")
            .extend(done.into_iter().map(|folded| (folded.entry.id.clone(), folded.outcome)));
        count
    };
    let turn = Mutex::new(());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let agent = next.fetch_add(1, Ordering::Relaxed);
                    if agent >= AGENTS {
                        return;
                    }
                    let run = run_one(&merged, agent, seed, &clock).expect("a run");
                    runs.lock().expect("no panic").insert(agent, run);
                    // Whoever gets the turn folds for all.
                    if let Ok(_turn) = turn.try_lock() {
                        fold();
                    }
                }
            });
        }
    });
    while fold() > 0 {}
    let fates = fates.into_inner().expect("no panic");
    let tally = check(&merged, &runs.into_inner().expect("no panic"), &fates);
    println!("{place:?}: {} landed, {} in review, {} not published", tally[0], tally[1], tally[2]);
    assert!(tally[0] > AGENTS as usize / 4 && tally[1] > 0 && tally[2] > 0, "{tally:?}");
}

/// Forks, edits some files, and mostly publishes.
fn run_one(merged: &Merged, agent: u64, seed: u64, clock: &AtomicI64) -> Result<Run> {
    let mut random = Random::new(seed.wrapping_mul(31).wrapping_add(agent));
    let act = || OperationContext::new("agent", Time(clock.fetch_add(1, Ordering::Relaxed))).buffered();
    let name = named(format!("agent/{agent}"));
    merged.workspaces.fork(&named(MAIN), std::slice::from_ref(&name), &act())?;
    let mut tree = merged.workspaces.open(&name)?;
    tree.set_now(Time(clock.fetch_add(1, Ordering::Relaxed)));
    let mut wrote = BTreeMap::new();
    tree.create_directories("shared")?;
    for edit in 0..1 + random.below(4) {
        let path = match random.below(10) {
            0 => format!("shared/{}", random.below(SHARED)),
            1..4 => format!("shared/{}.log", random.below(SHARED)),
            _ => format!("own-{agent}-{edit}"),
        };
        let line = format!("agent {agent} wrote {edit} into {path}\n");
        match path.ends_with(".log") && tree.exists(&path)? {
            true => drop(tree.append(&path, line.as_bytes())?),
            false => tree.write(&path, line.as_bytes())?,
        }
        wrote.insert(path, line);
    }
    let snapshot = merged.workspaces.commit(&name, &mut tree, &Change::new("a run"), &act())?.snapshot;
    if random.below(10) == 0 {
        return Ok(Run { snapshot, wrote, entry: None });
    }
    let wish = QueueOptions { ends: random.below(2) == 0, ..QueueOptions::default() };
    let entry = merged.queue.submit(&name, &named(MAIN), &wish, &act())?;
    Ok(Run { snapshot, wrote, entry: Some(entry.id) })
}

/// Where each run went; its words are there.
fn check(merged: &Merged, runs: &BTreeMap<u64, Run>, fates: &BTreeMap<String, EntryOutcome>) -> [usize; 3] {
    let store = merged.workspaces.store();
    let reviews = merged.queue.reviews(None).expect("reviews");
    let head = merged.workspaces.get(&named(MAIN)).expect("main").head.expect("a head");
    let holds_all = |snapshot: SnapshotId, run: &Run| {
        let tree = WorkingTree::open(store, snapshot).expect("a tree");
        for (path, line) in &run.wrote {
            let bytes = tree.read(path).expect("what was written is there");
            assert!(String::from_utf8_lossy(&bytes).contains(line.as_str()), "{path} lost {line}");
        }
    };
    let target = WorkingTree::open(store, head).expect("a tree");
    let is_still_there = |run: &Run| {
        // Others may write what is shared anew when they have seen it; a log only grows, and what is one's own is nobody else's.
        for (path, line) in run.wrote.iter().filter(|(path, _)| path.ends_with(".log") || path.starts_with("own-")) {
            let bytes = target.read(path).expect("what has landed stays");
            assert!(String::from_utf8_lossy(&bytes).contains(line.as_str()), "the target lost {line} of {path}");
        }
    };
    let mut tally = [0; 3];
    for (agent, run) in runs {
        match run.entry.as_ref().map(|id| (id, fates.get(id).expect("every entry was dealt with"))) {
            Some((_, EntryOutcome::Landed(snapshot))) => {
                holds_all(*snapshot, run);
                is_still_there(run);
                assert!(merged.history.is_ancestor(*snapshot, head).expect("a history"), "{agent} is out of it");
                tally[0] += 1;
            }
            Some((id, EntryOutcome::Review(_))) => {
                let review = reviews.iter().find(|review| review.entry.id == *id).expect("a review");
                holds_all(review.entry.snapshot, run);
                assert!(merged.workspaces.find(&named(format!("agent/{agent}"))).expect("a look").is_some());
                tally[1] += 1;
            }
            Some((_, EntryOutcome::Already)) => panic!("{agent} changed something"),
            Some((_, EntryOutcome::Refused(_))) => panic!("{agent} has no test"),
            None => {
                let workspace = merged.workspaces.get(&named(format!("agent/{agent}"))).expect("it is there");
                assert_eq!(workspace.head, Some(run.snapshot));
                holds_all(run.snapshot, run);
                tally[2] += 1;
            }
        }
    }
    tally
}
