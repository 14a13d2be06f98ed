//! What a user expects of edits, commits, restores, undo and redo, as a small model, and random sequences that hold the command to
//! it, in a directory and in a mount.
//!
//! The model: a workspace has a *line* of snapshots with a head, and *recorded* files. Each operation that was asked for goes from
//! one recorded state to the next. Edits are recorded only when an undo or a restore is about to replace them, and are then a step
//! of their own. Undo goes one step back, redo one forward, and both leave `.git` as it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use amalgam_engine::SplitMix64;

use crate::scratch::{Scratch, can_mount};
use crate::{Copy, assert_same, shell};

type Files = BTreeMap<String, String>;

/// Names that the sequences play with; some are directories for others.
const NAMES: [&str; 6] = ["a", "b", "d/x", "d/y", "e/f/g", "run.sh"];

/// A state that undo and redo lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    /// Which snapshot of the line is the head.
    head: usize,
    files: Files,
}

/// What the workspace is expected to be.
struct Model {
    /// The files of every snapshot that ever was a head, and the one below it.
    line: Vec<(Files, Option<usize>)>,
    now: State,
    undo: Vec<State>,
    redo: Vec<State>,
}

impl Model {
    fn new(files: Files) -> Self {
        let now = State { head: 0, files: files.clone() };
        Self { line: vec![(files, None)], now, undo: Vec::new(), redo: Vec::new() }
    }

    /// Something new was done: what was undone before cannot be redone.
    fn step(&mut self, next: State) {
        self.undo.push(std::mem::replace(&mut self.now, next));
        self.redo.clear();
    }

    fn record_edits(&mut self, there: &Files) {
        if *there != self.now.files {
            self.step(State { head: self.now.head, files: there.clone() });
        }
    }

    /// A new snapshot on top of the head.
    fn commit(&mut self, files: Files) {
        self.line.push((files.clone(), Some(self.now.head)));
        self.step(State { head: self.line.len() - 1, files });
    }

    /// The files of `@~back`.
    fn back(&self, back: usize) -> Option<&Files> {
        let mut at = self.now.head;
        for _ in 0..back {
            at = self.line[at].1?;
        }
        Some(&self.line[at].0)
    }

    fn head(&self) -> &Files {
        &self.line[self.now.head].0
    }

    /// What a restore leaves; whether a path is given decides whether the head moves.
    fn restore(&mut self, there: &Files, after: Files, whole: bool) {
        self.record_edits(there);
        if whole && after != *self.head() {
            self.commit(after);
        } else if after != self.now.files {
            self.step(State { head: self.now.head, files: after });
        }
    }
}

/// Random choices of a seed.
pub struct Random(SplitMix64);

impl Random {
    /// The choices of a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// A number below a limit.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.0.below(limit as u64)).expect("below the limit")
    }

    /// One of these words.
    pub fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }
}

/// A sequence that goes on in one place.
struct Sequence<'a> {
    scratch: &'a Scratch,
    place: PathBuf,
    model: Model,
    random: Random,
    told: Vec<String>,
}

impl Sequence<'_> {
    fn act(&mut self) {
        let before = Copy::of(&self.place);
        match self.random.below(12) {
            0..4 => self.edit(),
            4 => self.git(),
            5 | 6 => self.commit(&before),
            7 => self.restore_path(&before),
            8 => self.restore_all(&before),
            9 | 10 => self.undo(&before),
            _ => self.redo(&before),
        }
        let there = Copy::of(&self.place).files;
        let expected = if there == *self.model.head() { 0 } else { 4 };
        let (code, out) = self.amalgam("status --exit-code");
        assert_eq!(code, expected, "status: {out}{}", self.story());
    }

    fn edit(&mut self) {
        let (name, word) = (self.random.one(&NAMES), self.random.one(&["one", "two", "three"]));
        let line = match self.random.below(6) {
            0..3 => format!("mkdir -p $(dirname {name}) && echo {word} >{name}"),
            3 => format!("rm -f {name}"),
            4 => format!("[ ! -e {name} ] || chmod {} {name}", if self.random.below(2) == 0 { "755" } else { "600" }),
            _ => format!("[ ! -e {name} ] || mv {name} moved-{word}"),
        };
        self.shell(&line);
    }

    fn git(&mut self) {
        let line = self.random.one(&[
            "git add -A",
            "git add -A && git commit -qm step --allow-empty",
            "git stash -q || true",
            "git stash pop -q 2>/dev/null || git checkout -q -f . 2>/dev/null || true",
            "git gc -q",
            "git checkout -q -B side",
        ]);
        self.shell(line);
    }

    fn commit(&mut self, before: &Copy) {
        let head = self.head_id();
        let (code, out) = self.amalgam("commit -m step");
        assert_eq!(code, 0, "{out}{}", self.story());
        self.unchanged(before);
        // Times and `.git` make a snapshot, too; other files must.
        let is_new = self.head_id() != head;
        assert!(is_new || before.files == *self.model.head(), "nothing was committed{}", self.story());
        if is_new {
            self.model.commit(before.files.clone());
        }
    }

    fn restore_path(&mut self, before: &Copy) {
        let (name, back) = (self.random.one(&["a", "b", "d", "d/x", "e", "run.sh", "moved-one"]), self.random.below(2));
        let revision = if back == 0 { "@" } else { "@~" };
        let from = self.model.back(back).cloned();
        let (code, out) = self.amalgam(&format!("restore {revision} -- {name}"));
        let is_at = |path: &str| path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        let known = from.filter(|from| from.keys().chain(before.files.keys()).any(|path| is_at(path)));
        let Some(from) = known else {
            assert_eq!(code, 1, "{out}{}", self.story());
            return self.unchanged(before);
        };
        assert_eq!(code, 0, "{out}{}", self.story());
        let mut after = before.files.clone();
        after.retain(|path, _| !is_at(path));
        let taken: Vec<_> = from.iter().filter(|(path, _)| is_at(path)).collect();
        // The directories above come along.
        if !taken.is_empty() {
            let mut above = Path::new(name).parent();
            while let Some(directory) = above.filter(|directory| !directory.as_os_str().is_empty()) {
                after.entry(directory.display().to_string()).or_insert_with(|| "directory".to_owned());
                above = directory.parent();
            }
        }
        after.extend(taken.into_iter().map(|(path, text)| (path.clone(), text.clone())));
        self.model.restore(&before.files, after.clone(), false);
        self.became(before, &after);
    }

    fn restore_all(&mut self, before: &Copy) {
        let back = self.random.below(3);
        let from = self.model.back(back).cloned();
        let (code, out) = self.amalgam(&format!("restore @~{back}"));
        let Some(after) = from else {
            assert_eq!(code, 1, "{out}{}", self.story());
            return self.unchanged(before);
        };
        assert_eq!(code, 0, "{out}{}", self.story());
        self.model.restore(&before.files, after.clone(), true);
        self.became(before, &after);
    }

    fn undo(&mut self, before: &Copy) {
        self.model.record_edits(&before.files);
        let (code, out) = self.amalgam("undo");
        let Some(previous) = self.model.undo.pop() else {
            assert!(code == 1 && out.contains("nothing to undo"), "{out}{}", self.story());
            return self.unchanged(before);
        };
        assert_eq!(code, 0, "{out}{}", self.story());
        let undone = std::mem::replace(&mut self.model.now, previous);
        self.model.redo.push(undone);
        self.became(before, &self.model.now.files.clone());
    }

    fn redo(&mut self, before: &Copy) {
        let (code, out) = self.amalgam("redo");
        let state = &self.model.now.files;
        // A path that was edited since the undo, to what the redo writes there, is no obstacle.
        let is_free = |next: &Files| {
            let mut paths = before.files.keys().chain(state.keys());
            paths.all(|path| before.files.get(path) == state.get(path) || before.files.get(path) == next.get(path))
        };
        match self.model.redo.pop() {
            Some(next) if is_free(&next.files) => {
                assert_eq!(code, 0, "{out}{}", self.story());
                let now = std::mem::replace(&mut self.model.now, next);
                self.model.undo.push(now);
                self.became(before, &self.model.now.files.clone());
            }
            Some(next) => {
                self.model.redo.push(next);
                assert!(code == 1 && out.contains("changed since the undo"), "{out}{}", self.story());
                self.unchanged(before);
            }
            None => {
                assert!(code == 1 && out.contains("nothing to redo"), "{out}{}", self.story());
                self.unchanged(before);
            }
        }
    }

    fn unchanged(&self, before: &Copy) {
        self.became(before, &before.files);
    }

    fn became(&self, before: &Copy, files: &Files) {
        let found = Copy::of(&self.place);
        assert_same(&found.files, files, &format!("of the files{}", self.story()));
        assert_same(&found.git, &before.git, &format!("of .git{}", self.story()));
    }

    fn head_id(&mut self) -> String {
        let (code, out) = self.amalgam("log -n 1 --json");
        assert_eq!(code, 0, "{out}");
        let line: serde_json::Value = serde_json::from_str(out.lines().next().expect("a snapshot")).expect("JSON");
        line["id"].as_str().or(line["snapshot"].as_str()).expect("an id").to_owned()
    }

    fn amalgam(&mut self, arguments: &str) -> (i32, String) {
        self.told.push(format!("amalgam {arguments}"));
        let done = self.scratch.shell(&format!("exec amalgam {arguments}")).current_dir(&self.place).output();
        let done = done.expect("the command runs");
        let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).join("");
        (done.status.code().unwrap_or(-1), text)
    }

    fn shell(&mut self, line: &str) {
        self.told.push(line.to_owned());
        shell(self.scratch, &self.place, line);
    }

    fn story(&self) -> String {
        let acts = self.told.iter().filter(|line| !line.ends_with("--exit-code") && !line.ends_with("--json"));
        format!("\nafter:\n{}", acts.cloned().collect::<Vec<_>>().join("\n"))
    }
}

/// How many sequences are played; more in a long run.
pub fn sequences() -> u64 {
    std::env::var("AMALGAM_DAILY_SEQUENCES").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// The seed of the first sequence; the others follow.
pub fn first_seed() -> u64 {
    std::env::var("AMALGAM_DAILY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

const ACTS: usize = 30;

fn play(scratch: &Scratch, place: PathBuf, seed: u64) {
    let model = Model::new(Copy::of(&place).files);
    let told = vec![format!("seed {seed} (AMALGAM_DAILY_SEED)")];
    let mut sequence = Sequence { scratch, place, model, random: Random::new(seed), told };
    for _ in 0..ACTS {
        sequence.act();
    }
}

#[test]
fn random_sequences_in_a_git_directory_go_as_in_the_model() {
    for seed in first_seed()..first_seed() + sequences() {
        let scratch = Scratch::new();
        let place = scratch.project();
        shell(&scratch, &place, "git init -q . && echo one >a && git add a && git commit -qm first");
        shell(&scratch, &place, "amalgam init");
        play(&scratch, place, seed);
        scratch.run("amalgam verify");
    }
}

#[test]
fn random_sequences_in_a_mount_go_as_in_the_model() {
    if !can_mount() {
        return;
    }
    for seed in first_seed()..first_seed() + sequences() {
        let scratch = Scratch::new();
        shell(&scratch, &scratch.project(), "git init -q . && echo one >a && git add a && git commit -qm first");
        scratch.run("amalgam init --workspace base && amalgam fork try --mount ../try --backend fuse");
        play(&scratch, scratch.path().join("try"), 1_000_000 + seed);
        scratch.run("cd / && amalgam umount try && amalgam verify");
    }
}
