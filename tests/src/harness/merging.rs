//! Agents that edit and publish at once, in a process that may be killed; and what must be true of a store that they left.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use amalgam_engine::merge::{ContestedFile, Verdict};
use amalgam_engine::queue::{EntryOutcome, MergePolicy, Queue, QueueEntry, QueueOptions};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    History, MergeContents, OperationContext, RequestId, Result, Store, Time, VerifyOptions, WorkspaceName, Workspaces,
    verify,
};

use super::read_files;

/// The workspace that everybody publishes to.
pub const MAIN: &str = "main";

/// Leaves all contests as conflicts.
pub struct Strict;

impl MergeContents for Strict {
    fn merge(&self, _contest: &ContestedFile<'_>) -> Result<Verdict> {
        Ok(Verdict::Conflict { strategy: "none".to_owned() })
    }
}

impl MergePolicy for Strict {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Strict))
    }
}

/// A store with its workspaces, its history and its queue.
pub struct Merged {
    /// The workspaces.
    pub workspaces: Workspaces,
    /// The history.
    pub history: History,
    /// The queue.
    pub queue: Queue,
}

/// A workspace's name.
pub fn named(name: impl Into<String>) -> WorkspaceName {
    WorkspaceName::new(name).expect("tests use valid names")
}

fn act(time: i64) -> OperationContext {
    OperationContext::new("agent", Time(time)).buffered()
}

impl Merged {
    /// That of a store, with `main` in it.
    pub fn of(store: &Store) -> Result<Self> {
        let (workspaces, history) = (Workspaces::of(store), History::of(store));
        let queue = Queue::of(&workspaces, &history);
        if workspaces.find(&named(MAIN))?.is_none() {
            workspaces.create(&named(MAIN), &NewWorkspace::default(), &act(1))?;
            let mut tree = workspaces.open(&named(MAIN))?;
            tree.write("plan", b"begin")?;
            workspaces.commit(&named(MAIN), &mut tree, &Change::new("begin"), &act(1))?;
        }
        Ok(Self { workspaces, history, queue })
    }

    /// The files of a workspace.
    pub fn files(&self, name: &WorkspaceName) -> Result<BTreeMap<String, Vec<u8>>> {
        read_files(&self.workspaces.open(name)?)
    }

    /// One round of an agent: a file of its own, and its entry in the queue.
    fn round(&self, agent: u64, round: u64) -> Result<QueueEntry> {
        let name = named(format!("agent/{agent}"));
        if self.workspaces.find(&name)?.is_none() {
            self.workspaces.fork(&named(MAIN), std::slice::from_ref(&name), &act(1))?;
        }
        let (path, contents) = file(agent, round);
        let mut tree = self.workspaces.open(&name)?;
        tree.create_directories(format!("work/{agent}"))?;
        tree.write(path, contents.as_bytes())?;
        let time = i64::try_from(round).expect("rounds are few") + 2;
        self.workspaces.commit(&name, &mut tree, &Change::new("a round"), &act(time))?;
        let request = RequestId::new(format!("{agent}-{round}")).expect("a short id");
        self.queue.submit(&name, &named(MAIN), &QueueOptions::default(), &act(time).as_request(request))
    }
}

/// What an agent writes in a round.
pub fn file(agent: u64, round: u64) -> (String, String) {
    (format!("work/{agent}/{round}"), format!("{agent} wrote this in round {round}"))
}

/// Publishes until the process is killed, and says what was acknowledged: `queued AGENT ROUND`, `landed AGENT ROUND`.
pub fn publish_until_killed(directory: &Path, agents: u64) -> Result<()> {
    let store = Store::open(directory)?;
    let merged = Merged::of(&store)?;
    let out = Mutex::new(std::io::stdout());
    let say = |what: &str, agent: u64, round: u64| {
        let mut out = out.lock().expect("no panic");
        // Whoever listens has killed us otherwise.
        let _ = writeln!(out, "{what} {agent} {round}").and_then(|()| out.flush());
    };
    std::thread::scope(|scope| -> Result<()> {
        let all: Vec<_> = (0..agents)
            .map(|agent| {
                scope.spawn({
                    let (merged, say) = (&merged, &say);
                    move || -> Result<()> {
                        let first = first_round(merged, agent)?;
                        for round in first.. {
                            merged.round(agent, round)?;
                            say("queued", agent, round);
                        }
                        Ok(())
                    }
                })
            })
            .collect();
        let folding = scope.spawn(|| -> Result<()> {
            loop {
                let done = merged.queue.fold(&named(MAIN), &Strict, &act(9))?.done;
                if done.is_empty() {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                for folded in done {
                    assert!(matches!(folded.outcome, EntryOutcome::Landed(_)), "{folded:?}");
                    let (agent, round) = whose(&merged, &folded.entry)?;
                    say("landed", agent, round);
                }
            }
        });
        for thread in all {
            thread.join().expect("no panic")?;
        }
        folding.join().expect("no panic")
    })
}

/// The round that an agent goes on with: after the newest file that its workspace holds.
fn first_round(merged: &Merged, agent: u64) -> Result<u64> {
    let name = named(format!("agent/{agent}"));
    if merged.workspaces.find(&name)?.is_none() {
        return Ok(0);
    }
    let tree = merged.workspaces.open(&name)?;
    let mut round = 0;
    while tree.exists(file(agent, round).0)? {
        round += 1;
    }
    Ok(round)
}

/// The agent and the round of an entry: the newest file in what it merges.
fn whose(merged: &Merged, entry: &QueueEntry) -> Result<(u64, u64)> {
    let agent = entry.source.as_str().trim_start_matches("agent/").parse().expect("an agent's name");
    let tree = amalgam_engine::WorkingTree::open(merged.workspaces.store(), entry.snapshot)?;
    let mut round = 0;
    while tree.exists(file(agent, round + 1).0)? {
        round += 1;
    }
    Ok((agent, round))
}

/// Checks a store that was left in the middle: what was acknowledged is in `main` or in the queue, nothing was merged twice, and the
/// queue goes on. Panics where that is not so. Returns how many merges are in `main`'s history.
pub fn check_left(store: &Store, queued: &BTreeSet<(u64, u64)>, landed: &BTreeSet<(u64, u64)>) -> Result<usize> {
    let report = verify(store, &VerifyOptions::default(), &|_| std::ops::ControlFlow::Continue(()))?;
    assert!(report.is_clean(), "{report:?}");
    let merged = Merged::of(store)?;
    let before = merged.files(&named(MAIN))?;
    for (agent, round) in landed {
        let (path, contents) = file(*agent, *round);
        assert_eq!(before.get(&path).map(Vec::as_slice), Some(contents.as_bytes()), "{path} had landed");
    }
    while !merged.queue.fold(&named(MAIN), &Strict, &act(10))?.done.is_empty() {}
    assert!(merged.queue.list(None)?.is_empty() && merged.queue.reviews(None)?.is_empty());
    let after = merged.files(&named(MAIN))?;
    for (agent, round) in queued {
        let (path, contents) = file(*agent, *round);
        assert_eq!(after.get(&path).map(Vec::as_slice), Some(contents.as_bytes()), "{path} was in the queue");
    }
    let head = merged.workspaces.get(&named(MAIN))?.head.expect("it has snapshots");
    let mut entries = HashSet::new();
    let mut merges = 0;
    for snapshot in merged.history.range(head, &[])? {
        if let Some(entry) = store.snapshot(snapshot)?.metadata.get("queue") {
            assert!(entries.insert(entry.clone()), "{entry} was merged twice");
            merges += 1;
        }
    }
    Ok(merges)
}
