//! The long tests. `soak kill | receive | powercut | powercut-gc | powercut-receive | model | doors | views | linear | gc | agents | server |
//! all`, with `--rounds N` and `--seed S`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people, which tells what it does")]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

use amalgam_engine::backend::Inspect;
use amalgam_engine::{Store, StoreOptions};
use amalgam_tests::harness::collection::{World, collect_until_killed, kill_collections};
use amalgam_tests::harness::cuts::{cut_collections, cut_receivers};
use amalgam_tests::harness::kill::kill_rounds;
use amalgam_tests::harness::mounting::{Orders as MountOrders, can_mount, serve};
use amalgam_tests::harness::powercut::{in_own_namespace, is_root, powercut_rounds};
use amalgam_tests::harness::receiving::{receive_file, receive_kill_rounds};
use amalgam_tests::harness::views::{rollback_rounds, view_kill_rounds, view_powercut_rounds};
use amalgam_tests::harness::watched::end_with_input;
use amalgam_tests::harness::workload::{Orders, commit_until_killed};
use amalgam_tests::harness::{Place, over_both, seed};
use amalgam_tests::linear::{HistoryOptions, check_history, record};

const USAGE: &str = "usage: soak kill|receive|powercut|powercut-gc|powercut-receive|model|doors|views|linear|gc|agents|server|all [--rounds N] [--seed S]";
/// The committing process and the inner half of the power cuts are this program again.
const COMMIT: &str = "commit";
const COLLECT: &str = "collect";
const RECEIVE_INSIDE: &str = "receive-inside";
const POWERCUT_INSIDE: &str = "powercut-inside";
const MOUNT_INSIDE: &str = "mount-inside";
const VIEWS_POWERCUT_INSIDE: &str = "views-powercut-inside";
const MODEL_CASES: u64 = 10_000;
const COLLECTIONS: u64 = 100_000;
const DOOR_CASES: u64 = 1_000;
const EQUAL_SNAPSHOTS: u64 = 10_000;
const AGENTS: u64 = 200;
const SERVER_KILLS: u64 = 50;

struct Options {
    rounds: Option<u64>,
    seed: u64,
}

impl Options {
    fn parse(words: &[String]) -> Option<Self> {
        let mut options = Self { rounds: None, seed: seed() };
        let (pairs, []) = words.as_chunks::<2>() else { return None };
        for [name, value] in pairs {
            match name.as_str() {
                "--rounds" => options.rounds = Some(value.parse().ok()?),
                "--seed" => options.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(options)
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => {
            eprintln!("{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Option<bool> {
    let (what, rest) = words.split_first()?;
    match what.as_str() {
        COMMIT => return commit(rest),
        COLLECT => return collect(rest),
        RECEIVE_INSIDE => return receive_inside(rest),
        POWERCUT_INSIDE => return powercut_inside(rest),
        MOUNT_INSIDE => return mount_inside(rest),
        VIEWS_POWERCUT_INSIDE => return views_powercut_inside(rest),
        _ => {}
    }
    let options = Options::parse(rest)?;
    let passed = match what.as_str() {
        "kill" => kill(&options),
        "receive" => receive(&options),
        "powercut" | "powercut-gc" | "powercut-receive" => powercut(what, &options),
        "model" => model(&options),
        "doors" => doors(&options),
        "views" => views(&options),
        "linear" => linear(&options),
        "gc" => gc(&options),
        "agents" => agents(&options),
        "server" => server(&options),
        "all" => {
            kill(&options)
                && receive(&options)
                && linear(&options)
                && gc(&options)
                && model(&options)
                && doors(&options)
                && agents(&options)
                && server(&options)
                && views(&options)
                && powercut_if_possible(&options)
        }
        _ => return None,
    };
    Some(passed)
}

fn this_program() -> PathBuf {
    std::env::current_exe().expect("a running program has a file")
}

fn committer() -> Command {
    let mut command = Command::new(this_program());
    command.arg(COMMIT);
    command
}

fn collector() -> Command {
    let mut command = Command::new(this_program());
    command.arg(COLLECT);
    command
}

fn receiver() -> Command {
    let mut command = Command::new(this_program());
    command.arg(RECEIVE_INSIDE);
    command
}

fn commit(words: &[String]) -> Option<bool> {
    let (directory, orders) = words.split_first()?;
    let result = commit_until_killed(Path::new(directory), Orders::parse(orders)?);
    if let Err(error) = &result {
        eprintln!("soak: the committer ended: {error}");
    }
    Some(result.is_ok())
}

fn kill(options: &Options) -> bool {
    println!("kill: seed {}", options.seed);
    println!("kill: {}", kill_rounds(&committer, options.rounds.unwrap_or(200), options.seed));
    true
}

fn collect(words: &[String]) -> Option<bool> {
    let [directory, seed] = words else { return None };
    let result = collect_until_killed(Path::new(directory), seed.parse().ok()?);
    if let Err(error) = &result {
        eprintln!("soak: the collector ended: {error}");
    }
    Some(result.is_ok())
}

/// Collections with everything a store is used for between their steps, in memory and on disk, and kills in every stage.
fn gc(options: &Options) -> bool {
    println!("gc: seed {}", options.seed);
    let collections = options.rounds.unwrap_or(COLLECTIONS);
    const IN_ONE_STORE: u64 = 20;
    let one = |backend: Arc<dyn Inspect>, seed: u64, collections: u64| {
        let store = Store::new(Arc::clone(&backend), &StoreOptions::default());
        let reader = Store::new(backend, &StoreOptions { cache_bytes: 0, ..StoreOptions::default() });
        let mut world = World::new(&store, seed);
        for _ in 0..collections {
            world.live(10).expect("what a store is used for works");
            world.collect().unwrap_or_else(|error| panic!("gc: seed {seed}: {error}"));
            world.check(&reader).unwrap_or_else(|error| panic!("gc: seed {seed}: {error}"));
        }
        world.figures()
    };
    let mut deleted = 0;
    for round in 0..collections.div_ceil(IN_ONE_STORE) {
        let seed = options.seed.wrapping_add(round);
        // One in ten is on disk.
        let figures = if round % 10 == 9 {
            let directory = tempfile::tempdir().expect("a temporary directory");
            one(Place::Disk(directory.path()).backend(), seed, IN_ONE_STORE)
        } else {
            one(Place::Memory.backend(), seed, IN_ONE_STORE)
        };
        deleted += figures.deleted;
        if round % 500 == 499 {
            println!("gc: {} collections, {deleted} objects went", (round + 1) * IN_ONE_STORE);
        }
    }
    let kills = (collections / 500).max(8);
    println!("gc: {kills} kills, in {:?}", kill_collections(&collector, kills, options.seed));
    true
}

fn receive(options: &Options) -> bool {
    println!("receive: seed {}", options.seed);
    println!("receive: {:?}", receive_kill_rounds(&receiver, options.rounds.unwrap_or(200), options.seed));
    true
}

fn receive_inside(words: &[String]) -> Option<bool> {
    let [directory, stream] = words else { return None };
    Some(receive_file(Path::new(directory), Path::new(stream)).is_ok())
}

fn linear(options: &Options) -> bool {
    println!("linear: seed {}", options.seed);
    for round in 0..options.rounds.unwrap_or(50) {
        over_both(|place| {
            let seed = options.seed.wrapping_add(round);
            let options = HistoryOptions { seed, threads: 16, calls: 600, registers: 2 + round % 4 };
            let figures = check_history(&record(&*place.backend(), options), options);
            println!("linear: {options:?} {figures:?}");
        });
    }
    true
}

/// The suites that compare with a model, each with many cases.
fn model(options: &Options) -> bool {
    let cases = options.rounds.unwrap_or(MODEL_CASES);
    println!("model: {cases} cases each");
    let suites = ["model", "content", "diff", "links"].map(|suite| ["--test", suite]);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "-p", "amalgam-tests", "--release"])
        .args(suites.as_flattened())
        .env("PROPTEST_CASES", cases.to_string())
        .status();
    status.expect("cargo starts").success()
}

/// Runs suites of a package in the release profile, with something in their environment.
fn suites(package: &str, suites: &[&str], (name, value): (&str, u64)) -> bool {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--release", "-p", package]);
    for suite in suites {
        command.args(["--test", suite]);
    }
    command.env(name, value.to_string()).status().expect("cargo starts").success()
}

/// The same operations through every door.
fn doors(options: &Options) -> bool {
    let cases = options.rounds.unwrap_or(DOOR_CASES);
    println!("doors: {cases} histories each");
    suites("amalgam-tests", &["doors"], ("PROPTEST_CASES", cases))
}

/// Agents at work through the real command while the process that holds the store is killed under them.
fn agents(options: &Options) -> bool {
    let agents = options.rounds.unwrap_or(AGENTS);
    println!("agents: {agents}, seed {}", options.seed);
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--release", "-p", "amalgam-cli", "--test", "command", "whatever_agents", "--", "--nocapture"])
        .env("AMALGAM_AGENTS", agents.to_string())
        .env("AMALGAM_SEED", options.seed.to_string())
        .status();
    status.expect("cargo starts").success()
}

/// A server under load that is killed again and again.
fn server(options: &Options) -> bool {
    let kills = options.rounds.unwrap_or(SERVER_KILLS);
    println!("server: {kills} kills");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--release", "-p", "amalgam-cli", "--test", "command", "server_killed", "--", "--nocapture"])
        .env("AMALGAM_SERVER_KILLS", kills.to_string())
        .status();
    status.expect("cargo starts").success()
}

fn mounter() -> Command {
    let mut command = Command::new(this_program());
    command.arg(MOUNT_INSIDE);
    command
}

fn mount_inside(words: &[String]) -> Option<bool> {
    let result = serve(&MountOrders::parse(words)?, &|line| println!("{line}"));
    if let Err(error) = &result {
        eprintln!("soak: the mounter ended: {error}");
    }
    Some(result.is_ok())
}

/// Mounts that are killed, cut off from power, and rolled back while in use; snapshots beside a writer.
fn views(options: &Options) -> bool {
    println!("views: seed {}", options.seed);
    if !suites("amalgam-view", &["posix"], ("AMALGAM_ROUNDS", options.rounds.unwrap_or(EQUAL_SNAPSHOTS))) {
        return false;
    }
    if !can_mount() {
        println!("views: mounts are left out, they need root and /dev/fuse");
        return true;
    }
    println!("views: {}", view_kill_rounds(&mounter, options.rounds.unwrap_or(200), options.seed));
    let load = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/rollback.py");
    let (rounds, said) = rollback_rounds(&mounter, &load, options.rounds.unwrap_or(2_000));
    println!("views: {rounds} rollbacks under load; {said}");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let words = [
        VIEWS_POWERCUT_INSIDE.to_owned(),
        directory.path().display().to_string(),
        options.rounds.unwrap_or(50).to_string(),
        options.seed.to_string(),
    ];
    in_own_namespace(&this_program(), &words)
}

fn views_powercut_inside(words: &[String]) -> Option<bool> {
    let [directory, rounds, seed] = words else { return None };
    end_with_input();
    let tell = |line: String| println!("views: power cuts: {line}");
    let summary = view_powercut_rounds(&mounter, Path::new(directory), rounds.parse().ok()?, seed.parse().ok()?, &tell);
    println!("views: power cuts: {summary}");
    Some(true)
}

fn powercut(what: &str, options: &Options) -> bool {
    if !is_root() {
        eprintln!("soak: powercut mounts loop devices: run it as root");
        return false;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let rounds = options.rounds.unwrap_or(if what == "powercut" { 100 } else { 50 });
    println!("{what}: seed {}", options.seed);
    let words = [
        POWERCUT_INSIDE.to_owned(),
        what.to_owned(),
        directory.path().display().to_string(),
        rounds.to_string(),
        options.seed.to_string(),
    ];
    in_own_namespace(&this_program(), &words)
}

fn powercut_if_possible(options: &Options) -> bool {
    if is_root() {
        return ["powercut", "powercut-gc", "powercut-receive"].into_iter().all(|what| powercut(what, options));
    }
    println!("powercut: left out, it needs root");
    true
}

fn powercut_inside(words: &[String]) -> Option<bool> {
    let [what, directory, rounds, seed] = words else { return None };
    // The outer half holds the other end: when it goes, this one goes, and the namespace with all mounts goes with it.
    end_with_input();
    let tell = |line: String| println!("{what}: {line}");
    let (directory, rounds, seed) = (Path::new(directory), rounds.parse().ok()?, seed.parse().ok()?);
    let summary = match what.as_str() {
        "powercut-gc" => format!("{:?}", cut_collections(&collector, directory, rounds, seed, &tell)),
        "powercut-receive" => format!("{:?}", cut_receivers(&receiver, directory, rounds, seed, &tell)),
        _ => powercut_rounds(&committer, directory, rounds, seed, &tell).to_string(),
    };
    println!("{what}: {summary}");
    Some(true)
}
