//! The offline command `amalgam-gc`: output, exit codes, and work on a full disk.
#![expect(clippy::print_stdout, reason = "figures are printed")]

#[path = "../../tests/src/harness/small_disk.rs"]
mod small_disk;

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Output};

use amalgam_engine::backend::RocksOptions;
use amalgam_engine::{
    Commit, ErrorKind, RefMove, RefName, SnapshotId, SplitMix64, Store, StoreOptions, VerifyOptions, WorkingTree,
    verify,
};
use serde_json::Value;
use small_disk::{fill_disk, on_a_small_disk};

const DISK_MIB: usize = 160;

fn name(text: &str) -> RefName {
    RefName::new(text).expect("a name")
}

fn bytes(seed: u64, length: usize) -> Vec<u8> {
    SplitMix64::new(seed).bytes(length)
}

/// Commits files whose content depends on the number.
fn commit(store: &Store, reference: &str, number: u64, file_bytes: usize) -> Result<SnapshotId, amalgam_engine::Error> {
    let mut tree = WorkingTree::new(store);
    tree.write(format!("shared{}", number % 2), b"the same for many")?;
    for file in 0..10 {
        tree.write(format!("f{file}"), &bytes(number * 100 + file, file_bytes))?;
    }
    let standing = store.read_ref(&name(reference))?.and_then(|value| value.target);
    let expect = standing
        .map_or(amalgam_engine::Expect::Absent, |at| amalgam_engine::Expect::At(SnapshotId::from_bytes(at.hash)));
    Ok(tree.commit(Commit::new(&name(reference), "x").expecting(expect))?.snapshot)
}

fn remove(store: &Store, reference: &str) {
    let value = store.read_ref(&name(reference)).expect("read").expect("there");
    let target = value.target.expect("a snapshot");
    let refs = RefMove {
        expect: vec![(name(reference), Some(value))],
        set: vec![(name(reference), None)],
        ..RefMove::default()
    };
    store.session().commit(target, refs).expect("remove");
}

fn gc(store: &Path, words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_amalgam-gc")).arg(store).args(words).output().expect("it starts")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let last = lines(output).pop().expect("a last line");
    assert_eq!(last["type"], "report");
    last
}

fn assert_whole(directory: &Path, kept: &[SnapshotId]) {
    let store = Store::open(directory).expect("open");
    let options = VerifyOptions { read_data: true, ..VerifyOptions::default() };
    let found = verify(&store, &options, &|_| ControlFlow::Continue(())).expect("a verification");
    assert!(found.is_clean(), "{found:?}");
    for snapshot in kept {
        WorkingTree::open(&store, *snapshot).expect("open").read("f3").expect("it is whole");
    }
}

fn disk_bytes(directory: &Path) -> u64 {
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    fs::read_dir(directory).expect("a directory").flatten().map(bytes).sum()
}

#[test]
fn it_says_what_it_finds_and_what_it_took() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let kept = {
        let store = Store::open(&path).expect("open");
        let kept = commit(&store, "head/kept", 1, 200_000).expect("commit");
        for number in 2..12 {
            commit(&store, "head/dropped", number, 200_000).expect("commit");
        }
        remove(&store, "head/dropped");
        kept
    };
    let before = disk_bytes(&path);
    let dry = report(&gc(&path, &["--dry-run", "--json"]));
    assert_eq!((&dry["dry_run"], &dry["freed"]["objects"]), (&Value::Bool(true), &0.into()));
    let dead = dry["dead"]["objects"].as_u64().expect("a number");
    assert!(dead > 100, "{dry}");
    let done = gc(&path, &["--json"]);
    let stages: Vec<_> = lines(&done).iter().filter_map(|line| line["stage"].as_str().map(str::to_owned)).collect();
    for stage in ["mark", "survey", "sweep"] {
        assert!(stages.iter().any(|told| told == stage), "{stages:?}");
    }
    let done = report(&done);
    assert_eq!(done["freed"], dry["dead"], "what was found went");
    assert_eq!(done["alive"], dry["alive"]);
    assert!(done["freed"]["kinds"]["chunk"]["bytes"].as_u64() > Some(10 << 20), "{done}");
    let after = disk_bytes(&path);
    assert!(after * 4 < before, "{before} bytes before, {after} after");
    assert_whole(&path, &[kept]);
    let again = gc(&path, &[]);
    assert!(again.status.success() && again.stderr.is_empty(), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stdout).contains("deleted: 0 objects"), "{again:?}");
}

#[test]
fn endings_have_their_numbers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let missing = gc(&path, &[]);
    assert_eq!(missing.status.code(), Some(10), "{missing:?}");
    assert!(!path.exists(), "it makes no store");
    let store = Store::open(&path).expect("open");
    let busy = gc(&path, &["--json"]);
    assert_eq!(busy.status.code(), Some(11), "{busy:?}");
    assert_eq!(lines(&busy)[0]["type"], "error");
    drop(store);
    assert_eq!(gc(&path, &["--nonsense"]).status.code(), Some(2));
    assert!(gc(&path, &[]).status.success());
}

#[test]
fn its_manual_page_has_every_option() {
    let run = |word: &str| Command::new(env!("CARGO_BIN_EXE_amalgam-gc")).arg(word).output().expect("it starts");
    let (page, help) = (run("--man"), run("--help"));
    assert!(page.status.success(), "{page:?}");
    let page = String::from_utf8(page.stdout).expect("text").replace("\\-", "-");
    assert!(page.contains(".TH amalgam-gc 8"), "{page}");
    let help = String::from_utf8(help.stdout).expect("text");
    let options: Vec<_> = help.split_whitespace().filter(|word| word.starts_with("--")).collect();
    assert!(
        options.len() > 8 && options.iter().all(|option| page.contains(option.trim_end_matches([',', ':']))),
        "{page}"
    );
}

/// Cancelled repeatedly, the collection completes.
#[test]
fn a_run_that_was_ended_is_finished_by_later_ones() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let kept = {
        let store = Store::open(&path).expect("open");
        let kept = commit(&store, "head/kept", 1, 3_000).expect("commit");
        for number in 2..300 {
            commit(&store, "head/dropped", number, 3_000).expect("commit");
        }
        remove(&store, "head/dropped");
        kept
    };
    let none = report(&gc(&path, &["--json", "--max-seconds", "0"]));
    assert_eq!((none["ended_in"].as_str(), none["freed"]["objects"].as_u64()), (Some("mark"), Some(0)));
    assert_whole(&path, &[kept]);
    // Slow enough to be cancelled during the sweep.
    let some = report(&gc(&path, &["--json", "--max-seconds", "1", "--objects-per-second", "6000"]));
    assert!(some["ended_in"].is_string(), "{some}");
    assert_whole(&path, &[kept]);
    let rest = report(&gc(&path, &["--json"]));
    assert!(rest["ended_in"].is_null(), "{rest}");
    let clean = report(&gc(&path, &["--json"]));
    assert_eq!(clean["dead"]["objects"], 0);
    assert_whole(&path, &[kept]);
}

/// A store that filled the disk leaves a write-ahead log, and opening it needs as much space again.
fn with_reserve() -> StoreOptions {
    StoreOptions { rocks: RocksOptions { reserve_one_in: 1, ..RocksOptions::default() }, ..StoreOptions::default() }
}

#[test]
fn it_makes_room_where_there_is_none() {
    let Some(disk) = on_a_small_disk("it_makes_room_where_there_is_none", DISK_MIB) else { return };
    let (path, ballast) = (disk.join("store"), disk.join("ballast"));
    // The disk is filled by other files after a clean close, then by the store itself.
    for by_itself in [false, true] {
        let mut kept = Vec::new();
        let store = Store::open_with(&path, &with_reserve()).expect("an empty disk has room");
        kept.push(commit(&store, "head/kept", 1, 100_000).expect("commit"));
        for number in 2..60 {
            commit(&store, "head/dropped", number, 100_000).expect("there is room");
        }
        drop(store);
        let store = Store::open_with(&path, &with_reserve()).expect("open");
        assert!(path.join("RESERVE").exists(), "some room is set aside");
        remove(&store, "head/dropped");
        if by_itself {
            for number in 100.. {
                match commit(&store, "head/full", number, 100_000) {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
                        break;
                    }
                }
            }
        }
        drop(store);
        fill_disk(&ballast);
        let before = disk_bytes(&path);
        let done = gc(&path, &["--json"]);
        let told = report(&done);
        let after = disk_bytes(&path);
        println!("{before} bytes before, {after} after; {told}");
        assert!(after + (30 << 20) < before, "{before} bytes before, {after} after: {told}");
        assert_whole(&path, &kept);
        fs::remove_file(&ballast).expect("remove");
        fs::remove_dir_all(&path).expect("remove");
    }
}

/// With --grace the command does what the background process does: purges deleted workspaces, thins, trims the log.
#[test]
fn with_a_grace_time_it_forgets_thins_and_shortens_the_log() {
    use amalgam_engine::workspace::{Change, NewWorkspace};
    use amalgam_engine::{OperationContext, Time, WorkspaceName, Workspaces};

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    let (kept, thinned) = {
        let store = Store::open(&path).expect("open");
        let workspaces = Workspaces::of(&store);
        let (name, gone) = (WorkspaceName::new("main").expect("a name"), WorkspaceName::new("gone").expect("a name"));
        let act = |at: i64| OperationContext::new("ann", Time::from_seconds(1_000_000 + at, 0));
        let mut snapshots = Vec::new();
        for workspace in [&gone, &name] {
            workspaces.create(workspace, &NewWorkspace::default(), &act(0)).expect("made");
            for number in 0..4_i64 {
                let mut tree = workspaces.open(workspace).expect("open");
                tree.write("f3", &bytes(number as u64 + workspace.as_str().len() as u64, 50_000)).expect("write");
                let mut change = Change::new("x");
                change.metadata.insert("automatic".to_owned(), "true".to_owned());
                snapshots
                    .push(workspaces.commit(workspace, &mut tree, &change, &act(number)).expect("commit").snapshot);
            }
        }
        workspaces.delete(&gone, &act(9)).expect("deleted");
        (snapshots[7], snapshots[5])
    };
    let plain = report(&gc(&path, &["--json"]));
    assert_eq!((&plain["freed"]["objects"], &plain["operations_trimmed"]), (&0.into(), &0.into()), "{plain}");
    let long = report(&gc(&path, &["--json", "--grace", "forever"]));
    assert_eq!((&long["freed"]["objects"], &long["operations_trimmed"]), (&0.into(), &0.into()), "{long}");
    let words = ["--json", "--grace", "1h", "--keep-operations-max", "3", "--retention", "automatic.daily=none"];
    let dry = report(&gc(&path, &[&words[..], &["--dry-run"]].concat()));
    assert!(dry["dead"]["objects"].as_u64() > Some(0), "{dry}");
    let done = report(&gc(&path, &words));
    assert_eq!(done["freed"], dry["dead"], "what was found went: {done}");
    assert!(done["operations_trimmed"].as_u64() > Some(5) && done["thinned"].as_u64() == Some(3), "{done}");
    assert_whole(&path, &[kept]);
    let store = Store::open(&path).expect("open");
    assert!(WorkingTree::open(&store, thinned).is_err(), "its tree went");
    assert!(store.snapshot(thinned).is_ok(), "its record stays");
    assert_eq!(gc(&path, &["--grace", "1h", "--retention", "automatic.yearly=1h"]).status.code(), Some(2));
    assert_eq!(gc(&path, &["--keep-operations", "1h"]).status.code(), Some(2));
}

/// The report says how much each workspace keeps, and how much no other name keeps.
#[test]
fn it_says_what_remains_for_which_workspace() {
    use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace};
    use amalgam_engine::{OperationContext, Time, WorkspaceName, Workspaces};

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("store");
    {
        let store = Store::open(&path).expect("open");
        let (workspaces, act) =
            (Workspaces::of(&store), OperationContext::new("ann", Time::from_seconds(1_000_000, 0)));
        let [one, two] = ["one", "two"].map(|text| WorkspaceName::new(text).expect("a name"));
        let write = |name: &WorkspaceName, file: &str, length: usize| {
            let mut tree = workspaces.open(name).expect("open");
            tree.write(file, &bytes(length as u64, length)).expect("write");
            workspaces.commit(name, &mut tree, &Change::new("x"), &act).expect("commit").snapshot
        };
        workspaces.create(&one, &NewWorkspace::default(), &act).expect("made");
        write(&one, "shared", 40_000);
        workspaces.fork(&one, std::slice::from_ref(&two), &act).expect("forked");
        write(&one, "small", 10_000);
        let labelled = write(&two, "large", 50_000);
        write(&two, "large", 30_000);
        Labels::of(&store).set(&LabelName::new("v1").expect("a name"), Some(labelled), &act).expect("labelled");
    }
    let done = gc(&path, &["--json", "--workspaces"]);
    report(&done);
    let found: Vec<_> = lines(&done).into_iter().filter(|line| line["type"] == "workspace_remains").collect();
    let about = |at: usize, what: &str| found[at][what]["bytes"].as_u64().expect("bytes") / 10_000;
    assert_eq!((&found[0]["workspace"], about(0, "reached"), about(0, "private")), (&"one".into(), 5, 1), "{found:?}");
    // Objects that a label keeps, too, are not private to the workspace.
    assert_eq!((&found[1]["workspace"], about(1, "reached"), about(1, "private")), (&"two".into(), 12, 3), "{found:?}");
    assert_eq!((&found[2]["workspace"], about(2, "reached"), about(2, "private")), (&Value::Null, 9, 0), "{found:?}");
    assert_eq!(found.len(), 3);
    let told = gc(&path, &["--workspaces"]);
    let told = String::from_utf8_lossy(&told.stdout);
    assert!(
        told.contains("what remains, by workspace") && told.contains("  two: ") && told.contains("(other names): "),
        "{told}"
    );
    let plain = gc(&path, &["--json"]);
    assert!(lines(&plain).iter().all(|line| line["type"] != "workspace_remains"), "only where it is asked for");
}
