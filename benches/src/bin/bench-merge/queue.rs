//! The queue: a hundred agents that edit and publish into one target at once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use amalgam_benches::bench::Bench;
use amalgam_benches::{Bar, Result};
use amalgam_engine::merge::{ContestedFile, Verdict};
use amalgam_engine::queue::{EntryOutcome, MergePolicy, Queue, QueueEntry, QueueOptions};
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{History, MergeContents, OperationContext, Store, Time, WorkingTree, WorkspaceName, Workspaces};
use amalgam_merge::Rules;
use amalgam_merge::trees::RuleMerger;

const RATE: &str = "queue: 100 agents, 20 rounds each, disjoint paths";
const LOST: &str = "queue: of these, changes that are lost or in conflict";
const OVERLAP_RATE: &str = "queue: the same, every tenth round in shared files";
const OVERLAP_LOST: &str = "queue: of these, changes neither in the target nor in review";
const SHARE: &str = "queue: of contested files, merged by themselves";
const GIT_SHARE: &str = "queue: of the same, merged by git merge-file";

pub(crate) const FIGURES: &[&str] = &[RATE, LOST, OVERLAP_RATE, OVERLAP_LOST, SHARE, GIT_SHARE];

const FILES: usize = 10;
const FIELDS: usize = 60;
const LINES: usize = 200;

/// The three versions of a contested file, and whether it was merged.
type Contested = ([Vec<u8>; 3], bool);

/// Everything that agents share.
struct Field {
    workspaces: Workspaces,
    queue: Queue,
    main: WorkspaceName,
    rules: Arc<Rules>,
    clock: AtomicI64,
    /// Whoever folds has it.
    turn: Mutex<()>,
    fates: Mutex<HashMap<String, EntryOutcome>>,
    contested: Mutex<Vec<Contested>>,
}

struct Watching<'a> {
    field: &'a Field,
    inner: RuleMerger,
}

impl MergeContents for Watching<'_> {
    fn merge(&self, contest: &ContestedFile<'_>) -> amalgam_engine::Result<Verdict> {
        let verdict = self.inner.merge(contest)?;
        let base = contest.base.as_ref().map(|base| base.read()).transpose()?.unwrap_or_default();
        let versions = [base.to_vec(), contest.ours.read()?.to_vec(), contest.theirs.read()?.to_vec()];
        let is_merged = !matches!(verdict, Verdict::Conflict { .. });
        self.field.contested.lock().expect("no panic").push((versions, is_merged));
        Ok(verdict)
    }
}

impl MergePolicy for Field {
    fn contents(&self, entry: &QueueEntry) -> amalgam_engine::Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Watching { field: self, inner: RuleMerger::new(&self.rules, "", &entry.agent) }))
    }
}

impl Field {
    fn new(store: &Store, agents: usize) -> Result<Self> {
        let (workspaces, history) = (Workspaces::of(store), History::of(store));
        let main = WorkspaceName::new("main")?;
        let act = OperationContext::new("bench", Time(1)).buffered();
        workspaces.create(&main, &NewWorkspace::default(), &act)?;
        let mut tree = workspaces.open(&main)?;
        for agent in 0..agents {
            tree.create_directories(format!("agents/{agent}"))?;
            for file in 0..FILES {
                tree.write(format!("agents/{agent}/{file}.txt"), format!("{agent} {file}\n").as_bytes())?;
            }
        }
        let fields: Vec<_> = (0..FIELDS).map(|field| format!("  \"field-{field}\": \"as it was\"")).collect();
        tree.write("shared.json", format!("{{\n{}\n}}\n", fields.join(",\n")).as_bytes())?;
        let mut lines = String::new();
        for line in 0..LINES {
            writeln!(lines, "line {line} as it was")?;
        }
        tree.write("shared.txt", lines.as_bytes())?;
        workspaces.commit(&main, &mut tree, &Change::new("begin"), &act)?;
        Ok(Self {
            queue: Queue::of(&workspaces, &history),
            workspaces,
            main,
            rules: Arc::new(Rules::built_in()),
            clock: AtomicI64::new(2),
            turn: Mutex::default(),
            fates: Mutex::default(),
            contested: Mutex::default(),
        })
    }

    fn act(&self, agent: usize) -> OperationContext {
        OperationContext::new(format!("agent-{agent}"), Time(self.clock.fetch_add(1, Ordering::Relaxed))).buffered()
    }

    fn fork(&self, agent: usize, number: usize) -> Result<WorkspaceName> {
        let name = WorkspaceName::new(format!("agent/{agent}/{number}"))?;
        self.workspaces.fork(&self.main, std::slice::from_ref(&name), &self.act(agent))?;
        Ok(name)
    }

    /// Commits, puts it into the queue, and folds or waits until it is dealt with.
    fn complete(&self, name: &WorkspaceName, tree: &mut WorkingTree, agent: usize, ends: bool) -> Result<EntryOutcome> {
        self.workspaces.commit(name, tree, &Change::new("a round"), &self.act(agent))?;
        let wish = QueueOptions { ends, ..QueueOptions::default() };
        let entry = self.queue.submit(name, &self.main, &wish, &self.act(agent))?;
        loop {
            let _turn = self.turn.lock().expect("no panic");
            if let Some(outcome) = self.fates.lock().expect("no panic").remove(&entry.id) {
                return Ok(outcome);
            }
            let fold = self.queue.fold(&self.main, self, &self.act(agent))?;
            let done = fold.done.into_iter().map(|folded| (folded.entry.id, folded.outcome));
            self.fates.lock().expect("no panic").extend(done);
        }
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    eprintln!("the queue");
    let (agents, rounds) = bench.size((100, 20), (20, 5));
    disjoint(bench, agents, rounds)?;
    overlapping(bench, agents, rounds)
}

/// Runs all agents, each on a thread of its own.
fn all_agents<T: Send>(agents: usize, run: impl Fn(usize) -> Result<T> + Sync) -> Result<(Vec<T>, Duration)> {
    let start = Instant::now();
    let done: Vec<std::result::Result<T, String>> = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            (0..agents).map(|agent| scope.spawn(move || run(agent).map_err(|error| error.to_string()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let took = start.elapsed();
    Ok((done.into_iter().collect::<std::result::Result<_, _>>()?, took))
}

fn disjoint(bench: &mut Bench, agents: usize, rounds: usize) -> Result<()> {
    let store = Store::open(bench.directory("queue-disjoint"))?;
    let field = Field::new(&store, agents)?;
    let (wrong, took) = all_agents(agents, |agent| {
        let name = field.fork(agent, 0)?;
        let mut tree = field.workspaces.open(&name)?;
        let mut wrong = 0;
        for round in 0..rounds {
            tree.write(own(agent, round), text(agent, round).as_bytes())?;
            let outcome = field.complete(&name, &mut tree, agent, round + 1 == rounds)?;
            wrong += usize::from(!matches!(outcome, EntryOutcome::Landed(_)));
        }
        Ok(wrong)
    })?;
    let merges = (agents * rounds) as f64;
    let mut lost: usize = wrong.into_iter().sum();
    let tree = field.workspaces.open(&field.main)?;
    for agent in 0..agents {
        for round in rounds.saturating_sub(FILES)..rounds {
            lost += usize::from(tree.read(own(agent, round))? != text(agent, round).as_bytes());
        }
    }
    let how = format!("edit, commit, queue, merge and end, buffered: {merges} merges in {:.2} s", took.as_secs_f64());
    bench.add(RATE, (merges / took.as_secs_f64(), "merges/s"), Bar::AtLeast(1_500.0), how);
    bench.add(LOST, (lost as f64, "changes"), Bar::AtMost(0.0), format!("of {merges}"));
    Ok(())
}

fn own(agent: usize, round: usize) -> String {
    format!("agents/{agent}/{}.txt", round % FILES)
}

fn text(agent: usize, round: usize) -> String {
    format!("{agent} wrote this in round {round}\n")
}

/// What an agent did in a round: the workspace, what it wrote, and what became of it.
struct Round {
    wrote: String,
    path: String,
    outcome: EntryOutcome,
    workspace: WorkspaceName,
}

fn overlapping(bench: &mut Bench, agents: usize, rounds: usize) -> Result<()> {
    let store = Store::open(bench.directory("queue-overlap"))?;
    let field = Field::new(&store, agents)?;
    let (done, took) = all_agents(agents, |agent| {
        let mut name = field.fork(agent, 0)?;
        let mut tree = field.workspaces.open(&name)?;
        let mut done = Vec::new();
        for round in 0..rounds {
            let (path, wrote) = edit(&mut tree, agent, round)?;
            let outcome = field.complete(&name, &mut tree, agent, false)?;
            let is_set_aside = matches!(outcome, EntryOutcome::Review(_));
            done.push(Round { wrote, path, outcome, workspace: name.clone() });
            // What waits for a person stays in its workspace; the agent goes on from what everybody has.
            if is_set_aside {
                name = field.fork(agent, round + 1)?;
                tree = field.workspaces.open(&name)?;
            }
        }
        Ok(done)
    })?;
    let merges = (agents * rounds) as f64;
    let (mut lost, mut set_aside) = (0, 0);
    for round in done.iter().flatten() {
        let at = match &round.outcome {
            EntryOutcome::Landed(snapshot) => *snapshot,
            _ => {
                set_aside += 1;
                field.workspaces.get(&round.workspace)?.head.ok_or("no head")?
            }
        };
        let bytes = WorkingTree::open(&store, at)?.read(&round.path)?;
        lost += usize::from(!String::from_utf8_lossy(&bytes).contains(&round.wrote));
    }
    let reviews = field.queue.reviews(None)?.len();
    assert_eq!(reviews, set_aside, "an entry that was set aside waits for a person");
    let how = format!("{merges} merges in {:.2} s, {reviews} in review", took.as_secs_f64());
    bench.add(OVERLAP_RATE, (merges / took.as_secs_f64(), "merges/s"), Bar::None, how);
    bench.add(OVERLAP_LOST, (f64::from(lost as u32), "changes"), Bar::AtMost(0.0), format!("of {merges}"));
    let contested = field.contested.into_inner().expect("no panic");
    shares(bench, &contested)
}

/// An own file, or every tenth time a field of the shared document or a line of the shared text.
fn edit(tree: &mut WorkingTree, agent: usize, round: usize) -> Result<(String, String)> {
    let number = agent * 7 + round * 13;
    if !(agent + round).is_multiple_of(10) {
        let (path, wrote) = (own(agent, round), text(agent, round));
        tree.write(&path, wrote.as_bytes())?;
        return Ok((path, wrote));
    }
    let (path, before, wrote) = match agent % 2 {
        0 => {
            let name = format!("\"field-{}\": ", number % FIELDS);
            ("shared.json", name.clone(), format!("{name}\"agent {agent}, round {round}\""))
        }
        _ => {
            let name = format!("line {} ", number % LINES);
            ("shared.txt", name.clone(), format!("{name}as agent {agent} wrote it in round {round}"))
        }
    };
    let old = String::from_utf8(tree.read(path)?)?;
    let line = |line: &str| match line.trim_start().starts_with(&before) {
        true => {
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = if line.ends_with(',') { "," } else { "" };
            format!("{indent}{wrote}{end}\n")
        }
        false => format!("{line}\n"),
    };
    tree.write(path, old.lines().map(line).collect::<String>().as_bytes())?;
    Ok((path.to_owned(), wrote))
}

fn shares(bench: &mut Bench, contested: &[Contested]) -> Result<()> {
    let directory = bench.directory("queue-git");
    std::fs::create_dir_all(&directory)?;
    let (mut ours, mut git) = (0, 0);
    for (versions, is_merged) in contested {
        ours += usize::from(*is_merged);
        git += usize::from(git_merges(&directory, versions)?);
    }
    let all = contested.len().max(1) as f64;
    let how = format!("{ours} of {} files that both sides had changed", contested.len());
    bench.add(SHARE, (ours as f64 / all * 100.0, "%"), Bar::None, how);
    bench.add(GIT_SHARE, (git as f64 / all * 100.0, "%"), Bar::None, format!("{git} of the same versions"));
    Ok(())
}

fn git_merges(directory: &Path, versions: &[Vec<u8>; 3]) -> Result<bool> {
    for (name, bytes) in ["base", "ours", "theirs"].iter().zip(versions) {
        std::fs::write(directory.join(name), bytes)?;
    }
    let mut command = Command::new("git");
    command.args(["merge-file", "-p", "ours", "base", "theirs"]).current_dir(directory);
    Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
}
