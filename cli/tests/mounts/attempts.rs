//! `explore` and `bisect` in mounts and in directories: the same comes of both, and nothing is left.

use serde_json::Value;

use super::{json, read};
use crate::scratch::{Scratch, can_mount};

const BACKENDS: [&str; 2] = ["fuse", "checkout"];

/// Lines of this kind, without what differs from run to run.
fn lines(told: &[Value], kind: &str) -> Vec<Value> {
    let of_kind = told.iter().filter(|line| line["type"] == kind);
    let without = of_kind.map(|line| {
        let mut line = line.clone();
        for field in ["log", "snapshot", "workspace"] {
            line.as_object_mut().expect("an object").remove(field);
        }
        line
    });
    without.collect()
}

/// The backend that was said to be chosen.
fn chosen(told: &[Value]) -> Value {
    told.iter().find(|line| line["type"] == "backend").expect("it was asked for")["backend"].clone()
}

fn nothing_is_left(scratch: &Scratch) {
    assert_eq!(scratch.run("amalgam mounts"), "");
    assert_eq!(json(&scratch.run("amalgam ws --json")).len(), 1);
    assert_eq!(scratch.run("ls ../store/forks"), "");
}

#[test]
fn explore_finds_the_same_in_mounts_and_in_directories() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("mkdir d; echo 0 > d/result; echo x > gone; amalgam init --workspace base");
    let mut found = Vec::new();
    for backend in BACKENDS {
        let line = format!(
            "amalgam explore -n 3 --json --explain --backend {backend} --score 'cat d/result' -- \
             sh -c 'rm gone; expr $AMALGAM_ATTEMPT \\* 2 > d/result; mkdir n; echo $AMALGAM_ATTEMPT > n/new; test $AMALGAM_ATTEMPT != 2'"
        );
        let told = json(&scratch.run(&line));
        assert_eq!(chosen(&told), backend);
        assert_eq!(scratch.run("cat d/result n/new; ls"), "6\n3\nd\nn\n");
        let attempts = lines(&told, "attempt");
        assert_eq!(
            attempts.iter().map(|line| line["exit_code"].as_u64()).collect::<Vec<_>>(),
            [Some(0), Some(1), Some(0)]
        );
        assert_eq!(
            attempts.iter().map(|line| line["score"].as_f64()).collect::<Vec<_>>(),
            [Some(2.0), None, Some(6.0)],
            "one that failed has no score"
        );
        found.push(attempts);
        nothing_is_left(&scratch);
        scratch.run("amalgam undo");
        assert_eq!(read(scratch.project().join("d/result")), "0\n");
    }
    assert_eq!(found[0], found[1]);
}

#[test]
fn bisect_finds_the_same_in_mounts_and_in_directories() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo 0 > number; amalgam init --workspace base; amalgam label first");
    scratch
        .run("for n in 1 2 3 4 5 6 7; do echo $n > number; mkdir d$n; echo $n > d$n/f; amalgam commit -q -m $n; done");
    let mut found = Vec::new();
    for backend in BACKENDS {
        // What a try leaves behind is not in the way of the next one.
        let line = format!(
            "amalgam bisect run --json --explain --backend {backend} --good first --bad @ -- \
             sh -c 'test ! -e left || exit 200; touch left; test $(cat number) -lt 5'"
        );
        let told = json(&scratch.run(&line));
        assert_eq!(chosen(&told), backend);
        let first_bad = told.iter().find(|line| line["type"] == "bisect").expect("an end")["first_bad"].clone();
        let first_bad = first_bad[0].as_str().expect("one").to_owned();
        assert_eq!(scratch.run(&format!("amalgam show {first_bad}:number")), "5\n");
        found.push((first_bad, lines(&told, "bisect_step")));
        nothing_is_left(&scratch);
    }
    assert!(found[0].1.len() > 1, "{found:?}");
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_score_is_read_when_its_command_leaves_a_process_that_holds_the_output() {
    let scratch = Scratch::new();
    scratch.run("echo 0 > a; amalgam init --workspace base");
    // The limit ends a command that waits for the process; it is far above the time that the command needs.
    let score = "sleep 1000 & echo 1";
    let line =
        format!("timeout 300 amalgam explore -n 1 --json --backend checkout --score '{score}' -- sh -c 'echo new > a'");
    let printed = scratch.run(&line);
    assert!(printed.contains("\"score\":1.0"), "{printed}");
    assert_eq!(read(scratch.project().join("a")), "new\n");
}

#[test]
fn an_attempt_that_failed_does_not_win_by_its_score() {
    let scratch = Scratch::new();
    scratch.run("echo 0 > score; amalgam init --workspace base");
    let attempt = "echo $AMALGAM_ATTEMPT > score; test $AMALGAM_ATTEMPT != 3";
    let line = format!("amalgam explore -n 3 --backend checkout --score 'cat score' -- sh -c '{attempt}'");
    scratch.run(&line);
    assert_eq!(read(scratch.project().join("score")), "2\n");
    let none = scratch.output("amalgam explore -n 2 --backend checkout --score 'echo 7' -- false");
    assert!(String::from_utf8_lossy(&none.stderr).contains("no attempt succeeded; no file was changed;"));
}

#[test]
fn attempts_without_a_score_name_its_command_and_the_commit_of_the_edits() {
    let scratch = Scratch::new();
    scratch.run("echo 0 > a; amalgam init --workspace base; echo edit > a");
    let done = scratch.output("amalgam explore -n 1 --backend checkout --score ./missing -- true");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("no score: its command ended with 127"), "{said}");
    assert!(
        said.contains("no attempt has a score; no file was changed, and your edits were committed before"),
        "{said}"
    );
    assert!(said.contains("`./missing` ended with 127"), "{said}");
    assert_eq!(scratch.run("amalgam show @:a"), "edit\n");
    let done = scratch.output("amalgam explore -n 1 --backend checkout --score 'echo good' -- true");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(said.contains("no file was changed; the score is the last line that `echo good` prints"), "{said}");
}
