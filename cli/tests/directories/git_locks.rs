//! Operations that write `.git` and Git commands keep out of each other's way.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::kit::Kit;

fn git(kit: &Kit, arguments: &[&str]) -> (bool, String) {
    let names = ["-c", "user.name=t", "-c", "user.email=t@t"];
    let done = kit.program("git").args(names).args(arguments).output().expect("git runs");
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (done.status.success(), said)
}

/// A repository with a commit, protected.
fn repository() -> Kit {
    let kit = Kit::new();
    kit.write("a", "1\n");
    for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "1"]] {
        let (is_done, said) = git(&kit, arguments);
        assert!(is_done, "{said}");
    }
    kit.run(&["init", "-q"]).ends(0);
    kit
}

#[test]
fn an_undo_of_git_is_refused_while_a_git_command_runs() {
    let kit = repository();
    // The hook runs while `git commit` holds its lock.
    let command = kit.command(&[]);
    let binary = command.get_args().last().unwrap_or_else(|| command.get_program()).display().to_string();
    let hook = format!(
        "#!/bin/sh\nfor what in 'undo' 'restore @~' 'redo'; do {binary} $what --with-git >>hook.out 2>&1; echo ended $? >>hook.out; done\n"
    );
    let path = kit.work().join(".git/hooks/pre-commit");
    fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    fs::write(&path, hook).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
    kit.own("work".as_ref());
    kit.run(&["commit", "-q", "-m", "hook"]).ends(0);
    kit.write("a", "three\n");
    let (is_done, said) = git(&kit, &["commit", "-q", "-a", "-m", "3"]);
    let told = fs::read_to_string(kit.work().join("hook.out")).expect("the hook ran");
    assert!(is_done, "{said}\n{told}");
    assert_eq!(told.matches(".lock is there: a git command works in this repository").count(), 3, "{told}");
    assert_eq!(told.matches("ended 1").count(), 3, "{told}");
    assert_eq!(git(&kit, &["show", "HEAD:a"]).1, "three\n");
    assert_eq!(git(&kit, &["status", "--short"]).1, "?? hook.out\n");
    // Nothing was recorded by what was refused, and it works now.
    assert!(!kit.run(&["op", "log", "-n", "3"]).ends(0).out.contains("undo"));
    kit.run(&["undo", "--with-git"]).ends(0);
    assert_eq!(git(&kit, &["show", "HEAD:a"]).1, "1\n");
    assert!(!kit.work().join(".git/index.lock").exists());
}

#[test]
fn a_lock_of_a_reference_keeps_a_restore_from_git_and_not_from_the_files() {
    let kit = repository();
    kit.write("a", "2\n");
    git(&kit, &["commit", "-q", "-a", "-m", "2"]);
    kit.run(&["commit", "-q", "-m", "two"]).ends(0);
    kit.write(".git/refs/heads/x.lock", "");
    let refused = kit.run(&["restore", "@~", "--with-git"]).ends(1);
    assert!(refused.err.contains(".git/refs/heads/x.lock is there"), "{}", refused.err);
    assert_eq!(fs::read(kit.work().join("a")).expect("there"), b"2\n");
    kit.run(&["restore", "@~"]).ends(0);
    assert_eq!(fs::read(kit.work().join("a")).expect("there"), b"1\n");
    fs::remove_file(kit.work().join(".git/refs/heads/x.lock")).expect("there");
    // What a killed checkout left is no lock of Git.
    kit.write(".git/index.lock", "amalgam 00000000000000aa\n");
    kit.run(&["undo", "--with-git"]).ends(0);
    assert!(!kit.work().join(".git/index.lock").exists());
}
