//! A narrated tour of the engine, on a throw-away store: `cargo run --release --example tour`.

#![expect(clippy::print_stdout, reason = "a tour talks")]

use std::error::Error;
use std::time::{Duration, Instant};

use amalgam_engine::backend::Durability;
use amalgam_engine::work::RenameMode;
use amalgam_engine::{Commit, DiffOptions, Expect, RefName, Store, Time, What, WorkingTree, diff, diff_with_renames};

const FILES: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let store = Store::open(directory.path().join("store"))?;
    say("A store, on disk, opened by an ordinary user. Nothing is mounted, nothing needs a capability.");

    let main = RefName::new("head/main")?;
    let mut tree = WorkingTree::new(&store);
    tree.set_now(now());
    let (_, took) = timed(|| fill(&mut tree))?;
    say(&format!("A tree of {FILES} files in {} directories, written in {took:?}.", FILES / 100));

    let (first, took) = timed(|| Ok(tree.commit(Commit::new(&main, "import").by("ada", now()))?))?;
    say(&format!("Committed durably in {took:?}: snapshot {}.", short(&first.snapshot)));

    let (mut fork, took) = timed(|| Ok(tree.fork()))?;
    say(&format!("Forked in {took:?}: a pointer. The agent in the fork goes to work."));
    fork.set_now(now());
    fork.write("d007/f00042.txt", b"forty-two\n")?;
    fork.append("d007/f00043.txt", b"one more line\n")?;
    fork.set_mode("d008/f00001.txt", 0o755)?;
    fork.remove("d009/f00009.txt")?;
    fork.rename("d010", "archive", RenameMode::Replace)?;
    fork.link("d011/f00000.txt", "pinned.txt")?;
    fork.set_state("plan", r#"{"step": 3, "of": 7}"#)?;

    let agent = RefName::new("head/agent")?;
    let committed = Commit::new(&agent, "work").by("agent", now()).expecting(Expect::Absent);
    let (second, took) = timed(|| Ok(fork.commit(committed)?))?;
    say(&format!("Committed durably in {took:?}, in time proportional to those seven edits."));

    let root = |snapshot| store.snapshot(snapshot).map(|snapshot| snapshot.root);
    let (before, after) = (root(first.snapshot)?, root(second.snapshot)?);
    let (changes, took) = timed(|| Ok(diff_with_renames(&store, Some(before), Some(after), DiffOptions::default())?))?;
    say(&format!("The difference, found in {took:?} without opening what is equal:"));
    for change in &changes {
        println!("      {}", line(change));
    }

    let (_, took) = timed(|| Ok(fork.restore(first.snapshot)?))?;
    say(&format!("Rolled back in {took:?}: a pointer again. f00042 says {:?}.", text(&fork, "d007/f00042.txt")?));

    let stale = fork.commit(Commit::new(&agent, "from an old base").by("agent", now()));
    say(&format!("A commit from an old base moves nothing: {}.", stale.err().ok_or("it was not refused")?));

    let mut states = 0_u32;
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(1) {
        fork.write("d050/f00000.txt", format!("guess {states}").as_bytes())?;
        let name = RefName::new(format!("search/{states}"))?;
        let mut guess = Commit::new(&name, "guess").by("search", now()).expecting(Expect::Absent);
        guess.durability = Durability::Buffered;
        let state = fork.commit(guess)?;
        let changed = diff(&store, first.snapshot, state.snapshot, DiffOptions::default())?.count();
        assert_eq!(changed, 1, "one file was edited");
        fork.restore(first.snapshot)?;
        states += 1;
    }
    say(&format!("A search loop (edit, commit, diff to the parent, restore): {states} states in one second."));

    drop((tree, fork, store));
    let (store, took) = timed(|| Ok(Store::open(directory.path().join("store"))?))?;
    let log = store.list_operations(0, 3)?;
    say(&format!("Closed and opened again in {took:?}. The operation log begins:"));
    for operation in &log {
        let moved: Vec<_> = operation.changes.iter().map(|change| change.name.as_str()).collect();
        println!(
            "      {} {} by {}: {}",
            operation.sequence,
            operation.draft.action,
            operation.draft.actor,
            moved.join(", ")
        );
    }
    say("The crate's documentation shows the same in a dozen lines: cargo doc --open -p amalgam-engine.");
    Ok(())
}

fn fill(tree: &mut WorkingTree) -> Result<(), Box<dyn Error>> {
    for directory in 0..FILES / 100 {
        tree.create_directory(format!("d{directory:03}"), 0o755)?;
        for file in 0..100 {
            let bytes = format!("file {file} of directory {directory}\n");
            tree.write(format!("d{directory:03}/f{file:05}.txt"), bytes.as_bytes())?;
        }
    }
    Ok(())
}

fn line(change: &amalgam_engine::Change) -> String {
    match &change.what {
        What::Added => format!("added     {}", change.path),
        What::Removed => format!("removed   {}", change.path),
        What::Modified => format!("modified  {}", change.path),
        What::KindChanged => format!("replaced  {}", change.path),
        What::Metadata if change.metadata.mode => format!("mode      {}", change.path),
        What::Metadata => format!("metadata  {}", change.path),
        What::Renamed { from } => format!("renamed   {from} -> {}", change.path),
    }
}

fn text(tree: &WorkingTree, path: &str) -> Result<String, Box<dyn Error>> {
    Ok(String::from_utf8(tree.read(path)?)?)
}

fn short(id: &amalgam_engine::SnapshotId) -> String {
    id.to_string().chars().take(12).collect()
}

fn say(text: &str) {
    println!("\n  {text}");
}

#[expect(clippy::disallowed_methods, reason = "a program that uses the engine reads the clock for it")]
fn now() -> Time {
    std::time::SystemTime::now().into()
}

fn timed<T>(action: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<(T, Duration), Box<dyn Error>> {
    let started = Instant::now();
    let done = action()?;
    Ok((done, started.elapsed()))
}
