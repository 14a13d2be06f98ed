//! Random sequences over three forks, one in a mount: edits, hard links, Git, commits, merges with conflicts, restores of paths,
//! undo and redo. They are held to what must be true after any command, not to a model of each.
//!
//! - A commit changes no file.
//! - A restore of a path changes no other path.
//! - Undo and redo bring back each other's state: contents, modes, hard links and conflicts as they were shown.
//! - `status --exit-code` is 5 exactly when `conflicts` lists one.
//! - The store stands a verification of everything at the end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::model::{Random, first_seed, sequences};
use crate::scratch::{Scratch, can_mount};
use crate::{Copy, assert_same, shell};

const ACTS: usize = 40;

const NAMES: [&str; 7] = ["a", "b", "d/x", "d/y", "e/f/g", "data.json", "run.sh"];

type Files = BTreeMap<String, String>;

struct Sequence<'a> {
    scratch: &'a Scratch,
    /// The workspaces and their places.
    forks: Vec<(&'static str, PathBuf)>,
    random: Random,
    told: Vec<String>,
}

impl Sequence<'_> {
    fn act(&mut self) {
        let at = self.random.below(self.forks.len());
        match self.random.below(14) {
            0..5 => self.edit(at),
            5 => self.git(at),
            6 | 7 => self.commit(at),
            8..10 => self.merge(at),
            10 | 11 => self.restore_path(at),
            12 => self.restore_all(at),
            _ => self.undo_and_redo(at),
        }
        for fork in 0..self.forks.len() {
            self.status_agrees_with_conflicts(fork);
        }
    }

    fn edit(&mut self, at: usize) {
        let (name, other) = (self.random.one(&NAMES), self.random.one(&NAMES));
        let word = self.random.one(&["one", "two", "three"]);
        let mode = self.random.one(&["755", "600", "644"]);
        let line = match self.random.below(8) {
            0 | 1 if name == "data.json" => format!("echo '{{\"{word}\": 1, \"{other}\": \"{word}\"}}' >{name}"),
            0 | 1 => format!("mkdir -p $(dirname {name}) && printf 'top\\n{word}\\nend\\n' >{name}"),
            2 => format!("[ ! -f {name} ] || echo {word} >>{name}"),
            3 => format!("rm -f {name}"),
            4 => format!("[ ! -e {name} ] || chmod {mode} {name}"),
            5 => format!("[ ! -e {name} ] || mv {name} moved-{word}"),
            // A name without its directory, or with the same file, is no link.
            6 => format!("[ ! -f {name} ] || ln -f {name} {other} 2>/dev/null || true"),
            _ => format!("[ ! -f {name} ] || ln {name} $(dirname {name})/linked-{word} 2>/dev/null || true"),
        };
        self.shell(at, &line);
    }

    fn git(&mut self, at: usize) {
        let line = self.random.one(&[
            "git add -A",
            "git add -A && git commit -qm step --allow-empty",
            "git stash -q || true",
            "git stash pop -q 2>/dev/null || git checkout -q -f . 2>/dev/null || true",
            "git gc -q",
        ]);
        self.shell(at, line);
    }

    fn commit(&mut self, at: usize) {
        let before = self.files(at);
        self.amalgam(at, "commit -m step", &[0, 5]);
        self.same(at, &before, "after a commit");
    }

    fn merge(&mut self, at: usize) {
        let other = (at + 1 + self.random.below(self.forks.len() - 1)) % self.forks.len();
        // A merge takes what was committed.
        self.amalgam(other, "commit -m step", &[0, 5]);
        self.amalgam(at, "commit -m step", &[0, 5]);
        let name = self.forks[other].0;
        self.amalgam(at, &format!("merge {name}"), &[0, 5]);
        if self.random.below(2) == 0 {
            self.undo_and_redo(at);
        }
    }

    fn restore_path(&mut self, at: usize) {
        let name = self.random.one(&["a", "b", "d", "d/x", "e", "run.sh", "data.json", "moved-one", "linked-two"]);
        let revision = self.random.one(&["@", "@~"]);
        let before = self.files(at);
        self.amalgam(at, &format!("restore {revision} -- {name}"), &[0, 1]);
        let is_at = |path: &str| path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
        let is_above = |path: &str| name.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        let others = |files: &Files| {
            let kept = files.iter().filter(|(path, _)| !is_at(path) && !is_above(path));
            // Names of one file: a restored name leaves the file to the others.
            kept.map(|(path, text)| (path.clone(), text.split(" = ").last().unwrap_or_default().to_owned())).collect()
        };
        let (before, after): (Files, Files) = (others(&before), others(&self.files(at)));
        assert_same(&after, &before, &format!("of the paths beside {name}{}", self.story()));
    }

    fn restore_all(&mut self, at: usize) {
        let revision = self.random.one(&["@", "@~", "@~2"]);
        self.amalgam(at, &format!("restore {revision}"), &[0, 1]);
    }

    /// Undo, redo, and sometimes undo once more.
    fn undo_and_redo(&mut self, at: usize) {
        let before = self.files(at);
        if self.amalgam(at, "undo", &[0, 1]) == 1 {
            return self.same(at, &before, "after an undo that was refused");
        }
        let undone = self.files(at);
        self.amalgam(at, "redo", &[0]);
        self.same(at, &before, "after undo and redo");
        if self.random.below(2) == 0 {
            self.amalgam(at, "undo", &[0]);
            self.same(at, &undone, "after undo, redo and undo");
        }
    }

    fn status_agrees_with_conflicts(&mut self, at: usize) {
        let code = self.amalgam(at, "status --exit-code", &[0, 4, 5]);
        let listed = self.output(at, "conflicts --json").1;
        let listed = listed.lines().filter(|line| line.contains("\"conflict\"")).count();
        assert_eq!(code == 5, listed > 0, "{listed} conflicts, status {code}{}", self.story());
    }

    /// The files without `.git`; each name of a file with several is marked with the first one.
    fn files(&self, at: usize) -> Files {
        let place = &self.forks[at].1;
        let mut files = Copy::of(place).files;
        let mut first: BTreeMap<u64, String> = BTreeMap::new();
        for (path, text) in &mut files {
            let found = fs::symlink_metadata(place.join(path)).expect("it is there");
            if found.is_file() && found.nlink() > 1 {
                let first = first.entry(found.ino()).or_insert_with(|| path.clone());
                *text = format!("{first} = {text}");
            }
        }
        files
    }

    fn same(&self, at: usize, expected: &Files, when: &str) {
        assert_same(&self.files(at), expected, &format!("{when}{}", self.story()));
    }

    fn amalgam(&mut self, at: usize, arguments: &str, expected: &[i32]) -> i32 {
        let (code, out) = self.output(at, arguments);
        assert!(expected.contains(&code), "exit code {code}: {out}{}", self.story());
        code
    }

    fn output(&mut self, at: usize, arguments: &str) -> (i32, String) {
        let (name, place) = &self.forks[at];
        self.told.push(format!("{name}$ amalgam {arguments}"));
        let done = self.scratch.shell(&format!("exec amalgam {arguments}")).current_dir(place).output();
        let done = done.expect("the command runs");
        let text = [&done.stdout[..], &done.stderr[..]].map(String::from_utf8_lossy).join("");
        (done.status.code().unwrap_or(-1), text)
    }

    fn shell(&mut self, at: usize, line: &str) {
        let (name, place) = &self.forks[at];
        self.told.push(format!("{name}$ {line}"));
        shell(self.scratch, place, line);
    }

    fn story(&self) -> String {
        let acts = self.told.iter().filter(|line| !line.ends_with("--exit-code") && !line.ends_with("--json"));
        format!("\nafter:\n{}", acts.cloned().collect::<Vec<_>>().join("\n"))
    }
}

fn play(scratch: &Scratch, seed: u64) {
    let project = scratch.project();
    let start =
        "git init -q . && printf 'top\\nmiddle\\nend\\n' | tee a b run.sh >/dev/null && echo '{\"one\": 0}' >data.json";
    shell(scratch, &project, &format!("{start} && git add . && git commit -qm first"));
    shell(scratch, &project, "amalgam init --workspace main && amalgam fork ann --dir ../ann");
    let mount = if can_mount() { "--backend fuse --mount" } else { "--dir" };
    shell(scratch, &project, &format!("amalgam fork ben {mount} ../ben"));
    let around = |name: &str| -> PathBuf { Path::join(&scratch.path(), name) };
    let forks = vec![("main", project), ("ann", around("ann")), ("ben", around("ben"))];
    let told = vec![format!("seed {seed} (AMALGAM_DAILY_SEED)")];
    let mut sequence = Sequence { scratch, forks, random: Random::new(2_000_000 + seed), told };
    for _ in 0..ACTS {
        sequence.act();
    }
    let story = sequence.story();
    let done =
        scratch.output("cd / && (amalgam umount ben >/dev/null 2>&1 || true) && amalgam verify --read-data 2>&1");
    assert!(done.status.success(), "{}{story}", String::from_utf8_lossy(&done.stdout));
}

#[test]
fn random_sequences_over_forks_keep_what_must_be_true_after_any_command() {
    for seed in first_seed()..first_seed() + sequences() {
        play(&Scratch::new(), seed);
    }
}
