//! Builds in forks and after restores: exactly the work that changed files require.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::kit::Kit;

const MAKEFILE: &str = "\
all: out/a out/b
out/%: src/%
\t@mkdir -p out
\t@echo built $* >> log
\t@cat $< > $@
";

/// What a build did, since the last time it was asked.
fn build(kit: &Kit, directory: &Path) -> Vec<String> {
    let done = kit.program("make").arg("-s").current_dir(directory).output().expect("make runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let log = directory.join("log");
    let lines = fs::read_to_string(&log).unwrap_or_default().lines().map(str::to_owned).collect();
    let _ = fs::remove_file(log);
    lines
}

fn project(kit: &Kit) {
    kit.write("Makefile", MAKEFILE);
    kit.write("src/a", "a\n");
    kit.write("src/b", "b\n");
}

/// Times of files tell before from after only when they differ.
fn pause() {
    std::thread::sleep(Duration::from_millis(30));
}

#[test]
fn a_fork_does_not_start_from_zero() {
    let kit = Kit::new();
    project(&kit);
    assert_eq!(build(&kit, &kit.work()), ["built a", "built b"]);
    kit.run(&["init"]).ends(0);
    let fork = kit.path("fork");
    kit.run(&["fork", "other", "--dir", &fork.display().to_string()]).ends(0);
    assert!(build(&kit, &fork).is_empty(), "everything is built already");
    pause();
    assert!(
        kit.program("sh").args(["-c", "echo changed > src/b"]).current_dir(&fork).status().expect("a shell").success()
    );
    assert_eq!(build(&kit, &fork), ["built b"]);
    assert!(build(&kit, &kit.work()).is_empty(), "the original is not touched");
}

#[test]
fn after_a_whole_restore_everything_fits_together() {
    let kit = Kit::new();
    project(&kit);
    build(&kit, &kit.work());
    kit.run(&["init"]).ends(0);
    pause();
    kit.write("src/a", "another a\n");
    assert_eq!(build(&kit, &kit.work()), ["built a"]);
    kit.run(&["commit"]).ends(0);
    kit.run(&["restore", "@~"]).ends(0);
    assert!(build(&kit, &kit.work()).is_empty(), "sources and outputs went back together, with their times");
    assert_eq!(fs::read_to_string(kit.work().join("out/a")).expect("it is there"), "a\n");
}

#[test]
fn sources_that_go_back_alone_are_built_again() {
    let kit = Kit::new();
    project(&kit);
    kit.write(".amalgamignore", "/out/\n/log\n");
    build(&kit, &kit.work());
    kit.run(&["init"]).ends(0);
    pause();
    kit.write("src/a", "another a\n");
    assert_eq!(build(&kit, &kit.work()), ["built a"]);
    kit.run(&["commit"]).ends(0);
    pause();
    kit.run(&["restore", "@~"]).ends(0);
    assert_eq!(build(&kit, &kit.work()), ["built a"], "the output that stayed is newer than the old source was");
    assert_eq!(fs::read_to_string(kit.work().join("out/a")).expect("it is there"), "a\n");
    // The same for a part of the tree.
    pause();
    kit.write("src/b", "another b\n");
    build(&kit, &kit.work());
    kit.run(&["commit"]).ends(0);
    pause();
    kit.run(&["restore", "@~", "src/b"]).ends(0);
    assert_eq!(build(&kit, &kit.work()), ["built b"]);
}

/// A workspace of two packages, built by cargo; by whoever runs the tests, because nobody else has a toolchain.
struct Crates {
    temp: tempfile::TempDir,
}

impl Crates {
    fn new() -> Self {
        let crates = Self { temp: tempfile::tempdir().expect("a directory") };
        let package = |name: &str, more: &str| {
            format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{more}")
        };
        crates.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"word\", \"other\", \"tool\"]\n");
        crates.write("word/Cargo.toml", &package("word", ""));
        crates.write("word/src/lib.rs", "pub const WORD: &str = \"one\";\n");
        crates.write("other/Cargo.toml", &package("other", ""));
        crates.write("other/src/lib.rs", "");
        crates.write("tool/Cargo.toml", &package("tool", "[dependencies]\nword = { path = \"../word\" }\n"));
        crates.write("tool/src/main.rs", "fn main() { print!(\"{}\", word::WORD) }\n");
        crates
    }

    fn work(&self) -> PathBuf {
        self.temp.path().join("work")
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        fs::create_dir_all(path.parent().expect("it has one")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn amalgam(&self, arguments: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_amalgam"));
        command.env("AMALGAM_STORE", self.temp.path().join("store")).arg("--in-process").args(arguments);
        let done = command.current_dir(self.work()).output().expect("it runs");
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// The packages that cargo compiles, and what the program says then.
fn cargo_build(directory: &Path) -> (Vec<String>, String) {
    let cargo = || {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.env_remove("CARGO_TARGET_DIR").env_remove("CARGO_BUILD_TARGET_DIR").env_remove("RUSTFLAGS");
        command.args(["--offline", "--color", "never"]).current_dir(directory);
        command
    };
    let built = cargo().arg("build").output().expect("cargo runs");
    let said = String::from_utf8(built.stderr).expect("text");
    assert!(built.status.success(), "{said}");
    let compiled = said.lines().filter_map(|line| line.trim_start().strip_prefix("Compiling ")?.split(' ').next());
    let mut compiled: Vec<_> = compiled.map(str::to_owned).collect();
    compiled.sort();
    let program = Command::new(directory.join("target/debug/tool")).output().expect("it was built");
    (compiled, String::from_utf8(program.stdout).expect("text"))
}

#[test]
fn cargo_compiles_what_changed_in_a_fork_and_after_a_restore() {
    let crates = Crates::new();
    let all = ["other", "tool", "word"].map(str::to_owned).to_vec();
    let some = ["tool", "word"].map(str::to_owned).to_vec();
    assert_eq!(cargo_build(&crates.work()), (all, "one".to_owned()));
    crates.amalgam(&["init"]);
    let fork = crates.temp.path().join("fork");
    crates.amalgam(&["fork", "fork", "--dir", &fork.display().to_string()]);
    assert_eq!(cargo_build(&fork), (vec![], "one".to_owned()), "a fork does not start from zero");
    pause();
    fs::write(fork.join("word/src/lib.rs"), "pub const WORD: &str = \"two\";\n").expect("written");
    assert_eq!(cargo_build(&fork), (some.clone(), "two".to_owned()));
    assert_eq!(cargo_build(&crates.work()), (vec![], "one".to_owned()), "the original is not touched");

    pause();
    crates.write("word/src/lib.rs", "pub const WORD: &str = \"three\";\n");
    assert_eq!(cargo_build(&crates.work()), (some.clone(), "three".to_owned()));
    crates.amalgam(&["commit"]);
    crates.amalgam(&["restore", "@~"]);
    assert_eq!(cargo_build(&crates.work()), (vec![], "one".to_owned()), "sources and outputs went back together");
    // Sources alone: what was built from the newer ones must not pass for theirs.
    crates.amalgam(&["restore", "@~", "word"]);
    assert_eq!(cargo_build(&crates.work()), (some, "three".to_owned()));
}
