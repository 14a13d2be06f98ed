//! The daily path: edits, Git commands, commits, restores, undo and redo through the command, compared at each step with a plain
//! copy of the files.
//!
//! `model.rs` is the expectation, written down: random sequences go through the command and through the model. `forks.rs` has
//! random sequences over several forks with merges, `stories.rs` stories on real repositories, `undo.rs`, `merges.rs` and `names.rs` single
//! promises.

mod forks;
mod merges;
mod model;
mod names;
#[path = "../command/scratch.rs"]
mod scratch;
mod stories;
mod uncovered;
mod undo;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use scratch::Scratch;

/// Every path of a directory with its kind, mode and contents. `.git`, at any depth, is apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copy {
    /// All but `.git`.
    pub files: BTreeMap<String, String>,
    /// Every `.git` and what is in it.
    pub git: BTreeMap<String, String>,
}

impl Copy {
    /// A copy of a directory as it is now.
    pub fn of(directory: &Path) -> Self {
        let mut copy = Self::default();
        copy.add(directory, directory, false);
        copy
    }

    fn add(&mut self, top: &Path, directory: &Path, in_git: bool) {
        for name in fs::read_dir(directory).expect("a directory") {
            let path = name.expect("a name").path();
            let in_git = in_git || path.file_name().is_some_and(|name| name == ".git");
            let found = path.symlink_metadata().expect("it is there");
            let text = if found.is_dir() {
                "directory".to_owned()
            } else if found.is_symlink() {
                format!("-> {}", fs::read_link(&path).expect("a symlink").display())
            } else {
                let bytes = fs::read(&path).expect("it can be read");
                format!("{:o} {}", found.permissions().mode() & 0o777, String::from_utf8_lossy(&bytes))
            };
            let name = path.strip_prefix(top).expect("below").display().to_string();
            let part = if in_git { &mut self.git } else { &mut self.files };
            // A repository's own directory stays as long as its `.git` does.
            if in_git || !path.join(".git").exists() {
                part.insert(name, text);
            }
            if found.is_dir() {
                self.add(top, &path, in_git);
            }
        }
    }
}

/// Runs a line of the shell in a directory. Returns what it prints on both channels, and its exit code.
pub fn say(scratch: &Scratch, place: &Path, line: &str) -> (String, i32) {
    let done = scratch.shell(&format!("exec 2>&1; {line}")).current_dir(place).output().expect("a shell");
    (String::from_utf8_lossy(&done.stdout).into_owned(), done.status.code().unwrap_or(-1))
}

/// Runs a line of the shell in a directory, with a name and a clock for Git. It must succeed.
pub fn shell(scratch: &Scratch, directory: &Path, line: &str) -> String {
    let done = scratch
        .shell(line)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_COUNT", "2")
        .env("GIT_CONFIG_KEY_0", "protocol.file.allow")
        .env("GIT_CONFIG_VALUE_0", "always")
        .env("GIT_CONFIG_KEY_1", "safe.directory")
        .env("GIT_CONFIG_VALUE_1", "*")
        .env("GIT_AUTHOR_NAME", "ann")
        .env("GIT_AUTHOR_EMAIL", "ann@example.org")
        .env("GIT_COMMITTER_NAME", "ann")
        .env("GIT_COMMITTER_EMAIL", "ann@example.org")
        .output()
        .expect("a shell");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{line}: {out}{err}");
    out.into_owned()
}

/// The first difference between two copies, for a message that can be read.
#[track_caller]
pub fn assert_same(found: &BTreeMap<String, String>, expected: &BTreeMap<String, String>, when: &str) {
    for name in found.keys().chain(expected.keys()) {
        assert_eq!(found.get(name), expected.get(name), "{name}, {when}");
    }
}
