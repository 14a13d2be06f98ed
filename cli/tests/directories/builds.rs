//! Builds in forks and after restores: exactly the work that changed files require.

use std::fs;
use std::path::Path;
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
