//! Which directory belongs to which workspace, and what is refused.

use std::fs;
use std::path::Path;

use super::kit::Kit;

#[test]
fn a_home_that_holds_the_store_can_be_protected() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    let store = kit.work().join(".local/share/amalgam");
    let with_store = |arguments: &[&str]| {
        let mut command = kit.command(arguments);
        command.env("AMALGAM_STORE", &store);
        command.output().expect("it runs")
    };
    assert!(with_store(&["init"]).status.success());
    let listed = with_store(&["show", "@:.local/share"]);
    assert!(!String::from_utf8_lossy(&listed.stdout).contains("amalgam"), "the store is not part of its own snapshot");
    assert!(with_store(&["commit"]).status.success());
    let status = with_store(&["status", "--exit-code"]);
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    with_store(&["stop", "--force"]);
}

#[test]
fn nested_directories_are_refused_with_a_hint() {
    let kit = Kit::new();
    kit.write("inner/file", "one\n");
    kit.run(&["init"]).ends(0);
    let refused = kit.run(&["init", "inner"]).ends(1);
    assert!(refused.err.contains("is inside") && refused.err.contains("already protected"), "{}", refused.err);
    let refused = kit.run(&["init", "..", "--yes"]).ends(1);
    assert!(refused.err.contains("contains") && refused.err.contains("detach"), "{}", refused.err);
    let refused = kit.run(&["init"]).ends(1);
    assert!(refused.err.contains("already"), "{}", refused.err);
}

#[test]
fn a_directory_that_moved_is_recognised_and_another_one_refused() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init"]).ends(0);
    fs::rename(kit.work(), kit.path("elsewhere")).expect("it moves");
    fs::create_dir(kit.work()).expect("a directory");
    kit.write("file", "another directory\n");
    let refused = kit.run(&["commit"]).ends(1);
    assert!(refused.err.contains("is not the directory that was protected"), "{}", refused.err);
    let refused = kit.run_in(&kit.path("elsewhere"), &["status"]).ends(1);
    assert!(refused.err.contains("attach"), "{}", refused.err);
    kit.run_in(&kit.path("elsewhere"), &["ws", "attach"]).ends(0);
    kit.run_in(&kit.path("elsewhere"), &["status", "--exit-code"]).ends(0);
}

#[test]
fn a_workspace_that_moved_behind_its_directory_is_not_overwritten() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init"]).ends(0);
    kit.write("file", "two\n");
    kit.run(&["commit"]).ends(0);
    let newest = kit.run(&["op", "log", "-n", "1", "--json"]).ends(0).json()[0]["sequence"].as_u64().expect("a number");
    // Taken back in the store alone: the directory does not know.
    kit.run(&["undo", "--op", &newest.to_string()]).ends(0);
    kit.write("file", "three\n");
    let refused = kit.run(&["commit"]).ends(6);
    assert!(refused.err.contains("restore @"), "{}", refused.err);
    kit.run(&["restore", "@"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("file")).expect("it is there"), "one\n");
    kit.run(&["undo"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("file")).expect("it is there"), "three\n");
}

#[test]
fn there_must_be_a_store_and_a_workspace() {
    let kit = Kit::new();
    kit.run(&["log"]).ends(10);
    kit.run(&["ws"]).ends(10);
    kit.write("file", "one\n");
    kit.run(&["init"]).ends(0);
    let outside = kit.run_in(&kit.path(""), &["status"]).ends(1);
    assert!(outside.err.contains("amalgam init"), "{}", outside.err);
    kit.run(&["no-such-command"]).ends(2);
    kit.run(&["show", "no-such-snapshot"]).ends(1);
}

#[test]
fn the_directory_of_a_workspace_that_ended_is_nobodys_and_its_name_is_free() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init", "--workspace", "main"]).ends(0);
    for place in ["first", "second"] {
        kit.run(&["fork", "ann", "--dir", &format!("../{place}")]).ends(0);
        let directory = kit.path(place);
        fs::write(directory.join(place), "new\n").expect("written");
        let done = kit.run(&["complete", "ann"]).ends(0);
        assert!(done.out.contains("1 path;"), "{}", done.out);
        assert!(done.out.contains("no workspace's any more") || done.err.contains("no workspace's any more"));
        assert!(directory.join(place).exists() && kit.work().join(place).exists(), "it stays, and its file is merged");
        let refused = kit.run_in(&directory, &["status"]).ends(1);
        assert!(refused.err.contains("is in no workspace"), "{}", refused.err);
    }
    kit.run_in(&kit.path("first"), &["init", "--workspace", "ann"]).ends(0);
    kit.run_in(&kit.path("first"), &["ws", "rm", "ann", "--yes"]).ends(0);
    kit.run(&["fork", "ann", "--dir", "../third"]).ends(0);
}

#[test]
fn a_new_workspace_does_not_get_the_directory_of_one_that_was_undone() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init", "--workspace", "main"]).ends(0);
    kit.run(&["fork", "ann", "--dir", "../first"]).ends(0);
    let forked = kit.run(&["op", "log", "--json"]).ends(0).json();
    let forked = forked.iter().find(|operation| operation["action"] == "fork").expect("it is in the log");
    kit.run(&["undo", "--op", &forked["sequence"].to_string()]).ends(0);
    assert!(!kit.run(&["ws"]).ends(0).out.contains("ann"), "the fork is undone");
    kit.run(&["fork", "ann", "--dir", "../second"]).ends(0);
    fs::write(kit.path("second").join("file"), "two\n").expect("written");
    let done = kit.run_in(&kit.path("second"), &["status"]).ends(0);
    assert!(done.out.contains("file"), "{}", done.out);
}

#[test]
fn a_commit_of_a_newly_attached_directory_is_refused_and_the_files_of_the_workspace_stay() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init", "--workspace", "main"]).ends(0);
    kit.write("other", "two\n");
    kit.run(&["commit"]).ends(0);
    kit.run(&["ws", "detach", "main"]).ends(0);
    let empty = kit.path("empty");
    fs::create_dir(&empty).expect("a directory");
    kit.own(Path::new("empty"));
    kit.run_in(&empty, &["ws", "attach", "--workspace", "main"]).ends(0);
    let refused = kit.run_in(&empty, &["commit"]).ends(6);
    assert!(refused.err.contains("restore @"), "{}", refused.err);
    assert_eq!(kit.run_in(&empty, &["show", "@:file"]).ends(0).out, "one\n");
    kit.run_in(&empty, &["restore", "@"]).ends(0);
    assert_eq!(fs::read_to_string(empty.join("other")).expect("it is there"), "two\n");
    fs::write(empty.join("file"), "three\n").expect("written");
    kit.run_in(&empty, &["commit"]).ends(0);
    assert_eq!(kit.run_in(&empty, &["show", "@:file"]).ends(0).out, "three\n");
}
