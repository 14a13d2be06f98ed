//! What cannot be mounted, unmounted or done to what is mounted: each is told, with what to do, and changes nothing.

use std::fs;

use super::{mounted, read};
use crate::scratch::{Scratch, can_mount};

/// Runs a command that must fail with this code and say this.
#[track_caller]
pub(crate) fn refused(scratch: &Scratch, line: &str, code: i32, words: &[&str]) {
    let done = scratch.output(line);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    for word in words {
        assert!(said.contains(word), "{line}: `{word}` in {said}");
    }
}

#[test]
fn a_workspace_has_one_live_tree_or_one_directory() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    mounted(&scratch);
    refused(&scratch, "amalgam mount base ../other", 1, &["has its directory at", "amalgam fork --from base --mount"]);
    assert!(!scratch.path().join("other").exists());
    let checkout = "amalgam checkout try@ ../files --workspace try";
    refused(&scratch, checkout, 1, &["workspace try is mounted at", "amalgam umount"]);
    refused(&scratch, "amalgam ws rm try --yes", 1, &["it cannot be removed", "amalgam umount"]);
    // With work left by a mount it is the same, until that is committed.
    scratch.run("echo two > ../try/a; amalgam umount try");
    refused(&scratch, checkout, 1, &["has changes from a mount that are in no snapshot"]);
    scratch.run("amalgam mount try ../try && cd ../try && amalgam commit && cd .. && amalgam umount try");
    scratch.run(checkout);
    assert_eq!(read(scratch.path().join("files/a")), "two\n");
}

#[test]
fn a_quota_is_held_when_a_mount_is_committed() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("amalgam config set workspace.try.quota 30000; head -c 20000 /dev/urandom > ../try/f");
    scratch.run("cd ../try && amalgam commit && head -c 20000 /dev/urandom > g");
    let words = &["try has added 4", " of a quota of 30.0 kB, so nothing is committed"];
    refused(&scratch, "cd ../try && amalgam commit", 13, words);
    assert_eq!(fs::metadata(at.join("g")).expect("it is still there").len(), 20_000);
    scratch.run("cd ../try && rm g && amalgam commit && amalgam config unset workspace.try.quota");
}

#[test]
fn a_mount_point_is_empty_or_new_and_not_inside_what_is_ours() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("mkdir ../full; echo f > ../full/f; echo f > ../file");
    refused(&scratch, "amalgam mount try ../full", 1, &["is not empty"]);
    refused(&scratch, "amalgam mount try ../file", 1, &["is a file"]);
    refused(&scratch, "amalgam mount try ../try", 1, &["is mounted at", "already"]);
    refused(&scratch, "amalgam mount try ../try/below", 1, &["lies in the mount of workspace try"]);
    refused(&scratch, "amalgam mount try ../store/here", 1, &["lies in Amalgam's own store"]);
    refused(&scratch, "amalgam mount nothing ../new", 1, &[]);
    refused(&scratch, "amalgam mount nothing ../new --follow", 1, &["nothing"]);
    assert!(!scratch.path().join("new").exists());
    assert_eq!(read(scratch.path().join("full/f")), "f\n");
    assert!(!at.join("below").exists());
    refused(&scratch, "amalgam --in-process --store ../alone mount x ../new --create", 1, &["background process"]);
}

#[test]
fn what_is_in_use_is_unmounted_only_when_asked_for() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    let held = fs::File::open(at.join("a")).expect("opened");
    refused(&scratch, "amalgam umount ../try", 1, &["is in use", "--lazy"]);
    assert_eq!(read(at.join("a")), "one\n");
    refused(&scratch, "amalgam stop", 11, &["mounted"]);
    scratch.run("amalgam umount --lazy ../try");
    assert!(!at.join("a").exists());
    assert_eq!(std::io::read_to_string(&held).expect("still open"), "one\n");
    drop(held);
    super::until("it is gone", || scratch.run("amalgam mounts").is_empty());
    refused(&scratch, "amalgam umount ../try", 1, &["nothing of ours is mounted"]);
    refused(&scratch, "amalgam umount try", 1, &["is not mounted"]);
}

#[test]
fn what_others_unmounted_is_put_away() {
    if !can_mount() || !crate::is_root_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    fs::write(at.join("a"), "two\n").expect("written");
    // Whoever looks at all mounts is in this one for a moment.
    super::until("it is unmounted", || rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).is_ok());
    super::until("it is noticed", || scratch.run("amalgam mounts").is_empty());
    scratch.run("amalgam mount try ../try");
    assert_eq!(read(at.join("a")), "two\n");
}

#[test]
fn all_that_is_mounted_is_unmounted_but_for_what_is_in_use() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("amalgam fork --from base other --mount ../other; amalgam mount base@ ../before");
    let held = fs::File::open(at.join("a")).expect("opened");
    refused(&scratch, "amalgam umount --all", 1, &["is in use", "--lazy"]);
    assert_eq!(scratch.run("amalgam mounts").lines().count(), 1, "the others are gone");
    drop(held);
    scratch.run("amalgam umount --all");
    assert_eq!(scratch.run("amalgam mounts"), "");
    scratch.run("amalgam umount --all");
    refused(&scratch, "amalgam umount", 2, &["required"]);
}
