//! Real directories through the command, as a user without privilege: what is covered, what comes back, what is refused.

mod broken;
mod builds;
mod git_locks;
mod interrupted;
mod kit;
mod mounted;
mod places;
mod unwritten;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use kit::Kit;

#[test]
fn what_a_shell_command_broke_is_undone_and_done_again() {
    let kit = Kit::new();
    kit.write("src/main.c", "int main() { return 0; }\n");
    kit.write("README", "read me\n");
    kit.write("node_modules/a/index.js", "module.exports = 1\n");
    kit.write(".env", "KEY=1\n");
    symlink("README", kit.work().join("link")).expect("a symlink");
    kit.own("work".as_ref());
    kit.run(&["init"]).ends(0);
    let before = kit.tree(&kit.work());
    let shell = "rm -r node_modules README && echo broken > src/main.c && mkdir -p new/dir && echo x > new/dir/file && chmod 600 .env";
    assert!(kit.program("sh").args(["-c", shell]).status().expect("a shell").success());
    let broken = kit.tree(&kit.work());
    kit.run(&["status", "--exit-code"]).ends(4);
    kit.run(&["diff", "--exit-code"]).ends(4);
    kit.run(&["undo"]).ends(0);
    assert_eq!(kit.tree(&kit.work()), before);
    assert_eq!(fs::metadata(kit.work().join(".env")).expect("it is there").mode() & 0o777, 0o644);
    kit.run(&["status", "--exit-code"]).ends(0);
    kit.run(&["redo"]).ends(0);
    assert_eq!(kit.tree(&kit.work()), broken);
    kit.run(&["undo"]).ends(0);
    assert_eq!(kit.tree(&kit.work()), before);
    // The first snapshot is where it begins: a directory is never emptied.
    kit.run(&["undo"]).ends(1);
    assert_eq!(kit.tree(&kit.work()), before);
    kit.run(&["verify", "--read-data"]).ends(0);
}

#[test]
fn a_restore_touches_what_differs_and_leaves_git_alone() {
    let kit = Kit::new();
    for number in 0..50 {
        kit.write(&format!("d{}/f{number}", number % 5), format!("file {number}\n"));
    }
    kit.write(".git/HEAD", "ref: refs/heads/main\n");
    kit.run(&["init"]).ends(0);
    kit.write("d1/f1", "changed\n");
    kit.write(".git/HEAD", "ref: refs/heads/other\n");
    fs::remove_file(kit.work().join("d2/f2")).expect("it is there");
    kit.run(&["commit", "-m", "two files"]).ends(0);
    kit.write("d3/f3", "not committed\n");
    let inode = |path: &str| {
        fs::metadata(kit.work().join(path)).map(|found| (found.ino(), found.ctime_nsec(), found.mtime())).ok()
    };
    let untouched: Vec<_> = (0..50)
        .filter(|number| ![1, 2, 3].contains(number))
        .map(|number| format!("d{}/f{number}", number % 5))
        .collect();
    let stamps: Vec<_> = untouched.iter().map(|path| inode(path)).collect();
    let plan = kit.run(&["restore", "@~", "--dry-run"]).ends(0);
    assert!(plan.out.contains("d1/f1") && plan.out.contains("d2/f2") && plan.out.contains("d3/f3"), "{}", plan.out);
    assert_eq!(fs::read_to_string(kit.work().join("d1/f1")).expect("it is there"), "changed\n");
    kit.run(&["restore", "@~"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("d1/f1")).expect("it is there"), "file 1\n");
    assert_eq!(fs::read_to_string(kit.work().join("d2/f2")).expect("it is there"), "file 2\n");
    assert_eq!(fs::read_to_string(kit.work().join(".git/HEAD")).expect("it is there"), "ref: refs/heads/other\n");
    assert_eq!(stamps, untouched.iter().map(|path| inode(path)).collect::<Vec<_>>(), "the others are as they were");
    kit.run(&["undo"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("d3/f3")).expect("it is there"), "not committed\n");
    // One path, and Git's files if asked for.
    kit.run(&["restore", "@~", "d1/f1"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("d1/f1")).expect("it is there"), "file 1\n");
    assert_eq!(fs::read_to_string(kit.work().join("d3/f3")).expect("it is there"), "not committed\n");
    kit.run(&["restore", "@~", "no/such/file"]).ends(1);
}

#[test]
fn what_is_ignored_is_neither_captured_nor_touched() {
    let kit = Kit::new();
    kit.write(".amalgamignore", "/cache/\n*.tmp\n");
    kit.write("cache/large", "a cache\n");
    kit.write("a.tmp", "temporary\n");
    kit.write("kept", "one\n");
    kit.run(&["init", "--exclude", "secret*"]).ends(0);
    kit.write("secret.key", "a key\n");
    kit.write("cache/large", "another cache\n");
    kit.run(&["status", "--exit-code"]).ends(0);
    kit.write("kept", "two\n");
    kit.run(&["commit"]).ends(0);
    kit.run(&["restore", "@~"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("kept")).expect("it is there"), "one\n");
    assert_eq!(fs::read_to_string(kit.work().join("cache/large")).expect("it is there"), "another cache\n");
    assert_eq!(fs::read_to_string(kit.work().join("secret.key")).expect("it is there"), "a key\n");
    kit.run(&["show", "@:secret.key"]).ends(1);
}

#[test]
fn a_watched_directory_is_committed_by_itself() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init"]).ends(0);
    kit.run(&["watch", "--background", "--quiet-for", "200ms"]).ends(0);
    kit.write("deep/er/file", "two\n");
    let began = std::time::Instant::now();
    let seen = || kit.run(&["show", "@:deep/er/file"]).code == 0;
    while !seen() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "no snapshot was taken");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    fs::remove_dir_all(kit.work().join("deep")).expect("it is there");
    let status = kit.run(&["status", "--json"]).ends(0);
    assert!(status.json().iter().any(|line| line["watched"] == true), "{}", status.out);
    kit.run(&["watch", "--stop"]).ends(0);
    kit.run(&["commit"]).ends(0);
    kit.run(&["show", "@:deep/er/file"]).ends(1);
}

#[test]
fn many_commands_at_once_all_work() {
    let kit = Kit::new();
    for number in 0..200 {
        kit.write(&format!("f{number}"), format!("{number}\n"));
    }
    // Nothing runs yet: they all want to start the process.
    let starts: Vec<_> = (0..6).map(|_| kit.command(&["init", "--json"]).spawn().expect("it starts")).collect();
    let codes: Vec<_> = starts.into_iter().map(|mut child| child.wait().expect("it ends").code()).collect();
    assert_eq!(codes.iter().filter(|code| **code == Some(0)).count(), 1, "one of them makes it a workspace: {codes:?}");
    let words: &[&[&str]] = &[&["commit"], &["status"], &["ws"], &["log"], &["diff"], &["op", "log"]];
    let children: Vec<_> = (0..24)
        .map(|number| {
            kit.write(&format!("f{number}"), format!("{number} again\n"));
            kit.command(words[number % words.len()]).stdout(std::process::Stdio::null()).spawn().expect("it starts")
        })
        .collect();
    for mut child in children {
        assert_eq!(child.wait().expect("it ends").code(), Some(0));
    }
    kit.run(&["commit"]).ends(0);
    kit.run(&["status", "--exit-code"]).ends(0);
}
