//! Agents at work through the real command, while the process that holds the store is killed under them again and again: every
//! byte that one wrote is in the target, waits in a review, or is still in its workspace.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::scratch::Scratch;

/// So many agents where nobody says otherwise in this variable.
const AGENTS: usize = 24;
const AGENTS_VARIABLE: &str = "AMALGAM_AGENTS";
const SEED_VARIABLE: &str = "AMALGAM_SEED";
const THREADS: usize = 8;
/// A command that met so many kills one after another would have met something else.
const TRIES_MAX: usize = 50;

/// What an agent did, and what it was told.
struct Run {
    workspace: String,
    /// A path with the line that it wrote there.
    wrote: Vec<(String, String)>,
    end: End,
}

enum End {
    /// It was told that all has landed, in this head if it was told which.
    Landed(Option<String>),
    Review,
    /// It did not ask.
    Left,
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {text}")))
}

/// A number below a limit that follows from a seed, an agent and a question.
fn below(seed: u64, agent: usize, question: u64, limit: u64) -> u64 {
    let mut z =
        seed ^ (agent as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ question.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % limit
}

fn lines(text: &[u8]) -> Vec<Value> {
    let text = String::from_utf8_lossy(text);
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Ends the process that holds the store as a crash would; false if there was none to be found.
fn kill(scratch: &Scratch) -> bool {
    let told = lines(&scratch.output("amalgam doctor --json").stdout);
    let id = told.iter().find_map(|line| line.get("process_id")?.as_i64());
    let id = id.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    id.is_some_and(|id| kill_process(id, Signal::KILL).is_ok())
}

/// Forks, edits files of its own and files that others edit too, and mostly completes; whatever fails is tried again.
fn run(scratch: &Scratch, seed: u64, agent: usize) -> Run {
    let workspace = (0..TRIES_MAX)
        .map(|attempt| format!("agent-{agent}-{attempt}"))
        .find(|name| {
            // A fork that was cut short leaves its name behind, so the next one has another.
            scratch.output(&format!("amalgam fork -q --from main {name} --dir '../{{name}}'")).status.success()
        })
        .unwrap_or_else(|| panic!("agent {agent} never got a workspace"));
    let place = scratch.path().join(&workspace);
    let mut wrote = Vec::new();
    for edit in 0..1 + below(seed, agent, 1, 3) {
        let shared = below(seed, agent, 10 + edit, 6);
        let path = match below(seed, agent, 20 + edit, 10) {
            0..2 => format!("shared-{shared}.txt"),
            2..5 => format!("shared-{shared}.log"),
            _ => format!("own-{agent}-{edit}"),
        };
        let line = format!("agent {agent} wrote {edit}\n");
        let file = place.join(&path);
        let before = std::fs::read_to_string(&file).ok().filter(|_| path.ends_with(".log")).unwrap_or_default();
        std::fs::write(&file, before + &line).expect("written");
        wrote.retain(|(other, _)| *other != path || path.ends_with(".log"));
        wrote.push((path, line));
    }
    let end = match below(seed, agent, 2, 8) {
        0 => End::Left,
        _ => complete(scratch, &workspace),
    };
    Run { workspace, wrote, end }
}

fn complete(scratch: &Scratch, workspace: &str) -> End {
    let line = format!("amalgam complete --json {workspace} --request-id {workspace}");
    let mut said = String::new();
    for _ in 0..TRIES_MAX {
        let done = scratch.output(&line);
        let merge = lines(&done.stdout).into_iter().find(|line| line["type"] == "merge");
        let how = merge.as_ref().and_then(|merge| merge["how"].as_str()).unwrap_or_default().to_owned();
        let head = merge.and_then(|merge| merge["head"].as_str().map(str::to_owned));
        match (done.status.code(), how.as_str()) {
            (Some(0), "merged" | "forward") => return End::Landed(head),
            (Some(0), "already" | "replayed") => return End::Landed(None),
            (Some(5), "review") => return End::Review,
            _ => {}
        }
        said = format!(
            "{:?}: {}{}",
            done.status,
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{line}: {said}");
}

#[test]
fn whatever_agents_wrote_is_somewhere_though_the_store_is_killed_under_them() {
    let agents = number(AGENTS_VARIABLE).map_or(AGENTS, |agents| agents as usize);
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| RandomState::new().hash_one(0_u8) >> 16);
    println!("{AGENTS_VARIABLE}={agents} {SEED_VARIABLE}={seed}");
    let scratch = Scratch::new();
    scratch.run("mkdir .amalgam; printf '[[rule]]\\npath = \"*.log\"\\nway = \"union\"\\n' > .amalgam/rules.toml");
    scratch.run("echo base > shared-0.txt; echo base > shared-0.log; amalgam init --workspace main -q");
    let (next, finished, over, kills) =
        (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
    let runs = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let agent = next.fetch_add(1, Ordering::Relaxed);
                        if agent >= agents {
                            return;
                        }
                        let done = run(&scratch, seed, agent);
                        runs.lock().expect("no panic").insert(agent, done);
                        finished.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // One kill for every few agents that have finished, wherever the others are then.
        scope.spawn(|| {
            let mut due = 2;
            while !over.load(Ordering::Relaxed) {
                if finished.load(Ordering::Relaxed) >= due {
                    due += 4;
                    std::thread::sleep(Duration::from_millis(below(seed, due, 3, 60)));
                    kills.fetch_add(usize::from(kill(&scratch)), Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // A worker that panics must not leave the killer at work.
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.expect("an agent's work"));
    });
    let kills = kills.into_inner();
    let runs = runs.into_inner().expect("no panic");
    let tally = check(&scratch, &runs);
    println!("{kills} kills; {} landed, {} in review, {} left", tally[0], tally[1], tally[2]);
    assert!(kills > 0, "it was never killed");
    assert!(tally[0] > agents / 4, "hardly anything landed");
    scratch.run("amalgam verify");
}

/// Looks for what each agent wrote where it must be, and counts where that is.
fn check(scratch: &Scratch, runs: &BTreeMap<usize, Run>) -> [usize; 3] {
    // What waited when the process died is merged by the next one.
    let waits = (0..600).take_while(|_| {
        let waits = !scratch.run("amalgam queue --json").is_empty();
        std::thread::sleep(Duration::from_millis(if waits { 50 } else { 0 }));
        waits
    });
    assert!(waits.count() < 600, "the queue does not get empty");
    scratch.run("amalgam checkout -q main@ ../result");
    let reviews = lines(scratch.run("amalgam review --json").as_bytes());
    let reviewed: BTreeMap<_, _> =
        reviews.iter().map(|review| (review["workspace"].as_str(), review["snapshot"].as_str())).collect();
    let mut tally = [0; 3];
    for (agent, run) in runs {
        let holds = |text: &str, line: &str, path: &str, place: &str| {
            let times = text.split_inclusive('\n').filter(|one| *one == line).count();
            assert_eq!(times, 1, "agent {agent} wrote {line:?} into {path}; in {place} is {text:?}");
        };
        match &run.end {
            End::Landed(head) => {
                tally[0] += 1;
                for (path, line) in &run.wrote {
                    // What is shared may be written anew by others who have seen it; a log only grows.
                    match (path.ends_with(".txt"), head) {
                        (false, _) => {
                            let text = std::fs::read_to_string(scratch.path().join("result").join(path));
                            holds(&text.unwrap_or_default(), line, path, "main");
                        }
                        (true, Some(head)) => {
                            holds(&scratch.run(&format!("amalgam show {head}:{path}")), line, path, head);
                        }
                        (true, None) => {}
                    }
                }
            }
            End::Review => {
                tally[1] += 1;
                let snapshot = reviewed.get(&Some(run.workspace.as_str())).copied().flatten();
                let snapshot = snapshot.unwrap_or_else(|| panic!("{} waits in no review", run.workspace));
                for (path, line) in &run.wrote {
                    holds(&scratch.run(&format!("amalgam show {snapshot}:{path}")), line, path, "the review");
                    holds(
                        &scratch.run(&format!("amalgam show {}@:{path}", run.workspace)),
                        line,
                        path,
                        "the workspace",
                    );
                }
            }
            End::Left => {
                tally[2] += 1;
                scratch.run(&format!("cd '../{}'; amalgam commit -q -m later", run.workspace));
                for (path, line) in &run.wrote {
                    holds(
                        &scratch.run(&format!("amalgam show {}@:{path}", run.workspace)),
                        line,
                        path,
                        "the workspace",
                    );
                }
            }
        }
    }
    tally
}
