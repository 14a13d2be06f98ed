//! Killed, out of room, not allowed: nothing is lost, and what to do is said.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use super::kit::{Kit, kill, wait};

const FILES: usize = 1_500;

fn fill(kit: &Kit, word: &str) {
    for number in 0..FILES {
        let file = kit.work().join(format!("d{}/f{number}", number % 37));
        fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
        fs::write(file, format!("{word} {number} {}\n", "x".repeat(number % 500))).expect("a file");
    }
    kit.own("work".as_ref());
}

#[test]
fn a_process_killed_in_the_middle_loses_nothing() {
    let kit = Kit::new();
    fill(&kit, "one");
    kit.run(&["init"]).ends(0);
    let one = kit.tree(&kit.work());
    fill(&kit, "two");
    kit.run(&["commit", "--label", "two"]).ends(0);
    let two = kit.tree(&kit.work());
    kit.run(&["label", "one", "@~"]).ends(0);
    let mut killed = 0;
    for round in 0..12_u64 {
        let (label, wanted) = if round % 2 == 0 { ("one", &one) } else { ("two", &two) };
        let process = kit.process().expect("it runs");
        let mut child =
            kit.command(&["restore", label]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(3 + round * 9));
        kill(process);
        if wait(&mut child, Duration::from_secs(30)).expect("it does not hang") != 0 {
            killed += 1;
        }
        // Each file is one of the two, whole; what was being written has another name, and is gone after the next command.
        let unfinished = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with(".amalgam-tmp."));
        for (path, bytes) in kit.tree(&kit.work()).into_iter().filter(|(path, _)| !unfinished(path)) {
            let is = |tree: &[(String, Vec<u8>)]| tree.iter().any(|(name, held)| *name == path && *held == bytes);
            assert!(is(&one) || is(&two), "{path} is neither as it was nor as it should be");
        }
        kit.run(&["restore", label]).ends(0);
        assert_eq!(kit.tree(&kit.work()), *wanted, "run again, it finishes");
    }
    assert!(killed > 0, "no round was interrupted");
    for round in 0..6_u64 {
        fill(&kit, &format!("more {round}"));
        let process = kit.process().expect("it runs");
        let mut child =
            kit.command(&["commit"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_millis(2 + round * 12));
        kill(process);
        wait(&mut child, Duration::from_secs(30)).expect("it does not hang");
        kit.run(&["commit"]).ends(0);
        kit.run(&["status", "--exit-code"]).ends(0);
    }
    kit.run(&["verify", "--read-data"]).ends(0);
}

#[test]
fn what_cannot_be_read_is_reported_and_the_rest_is_done() {
    let kit = Kit::new();
    kit.write("readable", "one\n");
    kit.write("closed/inside", "two\n");
    kit.write("unreadable", "three\n");
    kit.run(&["init"]).ends(0);
    let set = |path: &str, mode| {
        fs::set_permissions(kit.work().join(path), fs::Permissions::from_mode(mode)).expect("it is there")
    };
    kit.write("readable", "one more\n");
    kit.write("unreadable", "three more\n");
    set("unreadable", 0o000);
    set("closed", 0o000);
    let partly = kit.run(&["commit"]).ends(3);
    for path in ["unreadable", "closed"] {
        assert!(partly.err.contains(&format!("skipped {path}: permission denied\n")), "{}", partly.err);
    }
    assert_eq!(kit.run(&["show", "@:readable"]).ends(0).out, "one more\n");
    // What cannot be seen is no deletion.
    assert_eq!(kit.run(&["show", "@:closed/inside"]).ends(0).out, "two\n");
    set("unreadable", 0o644);
    set("closed", 0o755);
    kit.run(&["commit"]).ends(0);
    assert_eq!(kit.run(&["show", "@:unreadable"]).ends(0).out, "three more\n");
}

#[test]
fn a_directory_that_cannot_be_read_after_a_killed_restore_refuses_no_command() {
    let kit = Kit::new();
    kit.write("closed/inside", "one\n");
    kit.write("other/file", "two\n");
    kit.run(&["init"]).ends(0);
    kit.run(&["stop"]).ends(0);
    let left = "other/.amalgam-tmp.0000000000000001-00000000";
    kit.write(left, "half\n");
    let note = kit.path("store/directories/1.writing");
    fs::write(&note, "token 0000000000000001\0closed\0other").expect("written");
    kit.own("store".as_ref());
    let set = |mode| {
        fs::set_permissions(kit.work().join("closed"), fs::Permissions::from_mode(mode)).expect("it is there");
    };
    set(0o000);
    let partly = kit.run(&["status"]).ends(3);
    assert!(partly.err.contains("skipped closed: permission denied\n"), "{}", partly.err);
    assert!(!kit.work().join(left).exists(), "the others are cleaned up");
    assert!(note.exists(), "the rest follows");
    set(0o755);
    kit.run(&["status"]).ends(0);
    assert!(!note.exists());
}

/// A small file system of its own, without privilege: a user and mount namespace.
fn on_a_small_disk(kit: &Kit, script: &str) -> Option<(i32, String)> {
    let unshare = ["-c", "unshare --user --map-root-user --mount true"];
    if !kit.program("sh").args(unshare).status().expect("a shell").success() {
        return None;
    }
    let command = kit.command(&[]);
    let binary = command.get_args().last().unwrap_or_else(|| command.get_program()).to_owned();
    let script = format!("set -u; mkdir -p small && mount -t tmpfs -o size=24m,mode=700 none small && {script}");
    let mut shell = kit.program("unshare");
    shell
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .env("AMALGAM", binary)
        .current_dir(kit.path(""));
    let output = shell.output().expect("a shell");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Some((output.status.code().unwrap_or(-1), said))
}

#[test]
fn a_full_disk_is_said_and_the_old_state_stays() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    // The store is on the small disk; contents that cannot be compressed fill it.
    let script = "
        export AMALGAM_STORE=$PWD/small/store
        cd work
        $AMALGAM --in-process init || exit 90
        echo two > file && $AMALGAM --in-process commit || exit 91
        head -c 40000000 /dev/urandom > large
        $AMALGAM --in-process commit; code=$?
        [ $code = 13 ] || exit $code
        $AMALGAM --in-process show @:file || exit 92
        rm large
        echo three > file
        $AMALGAM --in-process status || exit 93
        exit 77
    ";
    let Some((code, said)) = on_a_small_disk(&kit, script) else {
        return amalgam_test_support::skip("userns", "this machine allows no user namespaces");
    };
    assert_eq!(code, 77, "{said}");
    assert!(said.contains("two"), "the old state is there: {said}");

    let kit = Kit::new();
    kit.write("large", vec![7_u8; 3_000_000]);
    kit.write("file", "one\n");
    // The store has room; the directory that is written to has not.
    let script = "
        cd work
        head -c 40000000 /dev/urandom > large
        $AMALGAM --in-process init || exit 90
        $AMALGAM --in-process checkout @ ../small/out; code=$?
        [ $code = 13 ] || exit $code
        rm -r ../small/out
        rm large && $AMALGAM --in-process commit || exit 91
        $AMALGAM --in-process checkout @ ../small/out --detached || exit 92
        cat ../small/out/file
        exit 77
    ";
    let (code, said) = on_a_small_disk(&kit, script).expect("it was possible before");
    assert_eq!(code, 77, "{said}");
}

#[test]
fn a_restore_that_stops_in_the_middle_says_how_to_get_back() {
    let kit = Kit::new();
    // The directory is on the small disk; the restore removes two files and has no room for the third.
    let script = "
        mkdir small/work && cd small/work
        head -c 16000000 /dev/urandom > a
        $AMALGAM --in-process init || exit 90
        rm a; echo b > b
        $AMALGAM --in-process commit || exit 91
        echo mine > mine
        head -c 16000000 /dev/urandom > ../ballast
        $AMALGAM --in-process restore @~; code=$?
        [ $code = 13 ] || exit $code
        [ -e mine ] && exit 92
        rm ../ballast
        $AMALGAM --in-process undo || exit 93
        cat b mine
        exit 77
    ";
    let Some((code, said)) = on_a_small_disk(&kit, script) else {
        return amalgam_test_support::skip("userns", "this machine allows no user namespaces");
    };
    assert_eq!(code, 77, "{said}");
    assert!(said.contains("0 paths were written and 2 removed before that; "), "{said}");
    assert!(said.contains("what was there before is recorded: `amalgam undo` brings it back"), "{said}");
    assert!(said.contains("b\nmine\n"), "{said}");
}
