//! Permissions in a mount: a policy that is set while the mount is open applies to the next request of the processes in it.

use std::fs;
use std::io::ErrorKind;

use crate::scratch::{Scratch, can_mount};

#[test]
fn a_policy_applies_to_an_open_mount_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("printf 'one\\n' > a; mkdir -p d/e; echo x > d/e/x; amalgam init --workspace base");
    scratch.run("amalgam fork try --agent ann --mount ../try --backend fuse");
    let at = scratch.path().join("try");
    // The kernel knows everything of the tree, and a process has a file open.
    let held = fs::File::options().read(true).write(true).open(at.join("d/e/x")).expect("opened");
    assert_eq!(fs::read_to_string(at.join("a")).expect("read"), "one\n");
    assert!(!at.join("absent").exists());
    let set = |rules: &str| {
        fs::write(scratch.path().join("policy.toml"), format!("default = \"RW\"\n{rules}")).expect("written");
        scratch.run("amalgam policy set -q ../policy.toml");
    };
    set("[[rule]]\npaths = [\"d\"]\nlevel = \"none\"\n[[rule]]\npaths = [\"/a\"]\nlevel = \"R\"\n");
    assert!(!at.join("d").exists() && !at.join("d/e/x").exists());
    let names: Vec<_> = fs::read_dir(&at).expect("listed").map(|one| one.expect("read").file_name()).collect();
    assert_eq!(names, ["a"]);
    let written = fs::write(at.join("a"), "two").expect_err("it may only be read");
    assert_eq!(written.kind(), ErrorKind::PermissionDenied, "{written}");
    assert_eq!(fs::read_to_string(at.join("a")).expect("read"), "one\n");
    let removed = fs::remove_file(at.join("a")).expect_err("it may only be read");
    assert_eq!(removed.raw_os_error(), Some(1), "{removed}");
    let data = std::os::unix::fs::FileExt::write_at(&held, b"new", 0).expect_err("it is hidden");
    assert_eq!(data.kind(), ErrorKind::PermissionDenied, "{data}");
    let made = fs::create_dir(at.join("d")).expect_err("the name is taken");
    assert_eq!(made.kind(), ErrorKind::PermissionDenied, "{made}");
    fs::write(at.join("mine"), "permitted").expect("written");
    assert!(scratch.run("cd ../try && amalgam commit").contains("try"));
    set("");
    assert_eq!(fs::read_to_string(at.join("d/e/x")).expect("visible again"), "x\n");
    fs::write(at.join("a"), "two").expect("permitted again");
    let operation = scratch.run("amalgam policy log --json | head -1 | sed 's/.*\"sequence\":\\([0-9]*\\).*/\\1/'");
    scratch.run(&format!("amalgam undo -q --op {}", operation.trim()));
    assert!(!at.join("d").exists(), "the undo of the policy applies, too");
    scratch.run("amalgam policy set -q --none");
    assert!(at.join("d/e/x").exists());
}
