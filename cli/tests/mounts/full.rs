//! A store on a full disk: what is mounted can be looked at, unmounted, deleted from and taken back.

use std::fs;
use std::path::PathBuf;

use super::{json, read, until};
use crate::refused::refused;
use crate::scratch::{Scratch, can_mount};

#[path = "../../../tests/src/harness/small_disk.rs"]
#[allow(dead_code, reason = "only a part of it is used here")]
mod small_disk;

/// A place for one test, whose store is on a disk of its own.
struct Small {
    scratch: Scratch,
}

impl Small {
    /// Nothing where it cannot be made.
    fn new(mib: u32) -> Option<Self> {
        let small = Self { scratch: Scratch::new() };
        let store = small.store();
        fs::create_dir(&store).expect("made");
        let size = format!("size={mib}m,mode=700");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &size, "amalgam-small"]).arg(&store).stderr(std::process::Stdio::null());
        mount.status().is_ok_and(|done| done.success()).then_some(small)
    }

    fn store(&self) -> PathBuf {
        self.scratch.path().join("store")
    }

    /// Takes all the room there is.
    fn fill(&self) {
        small_disk::fill_disk(&self.store().join("ballast"));
    }

    fn free_bytes(&self) -> u64 {
        let found = rustix::fs::statvfs(self.store()).expect("a disk");
        found.f_bavail * found.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = self.scratch.output("amalgam stop --force; umount --lazy ../store");
    }
}

fn small(mib: u32) -> Option<Small> {
    let made = can_mount().then(|| Small::new(mib)).flatten();
    amalgam_test_support::has_or_skip("root", made.is_some(), "a small file system cannot be mounted here");
    made
}

#[test]
fn a_mount_on_a_full_disk_is_looked_at_and_unmounted() {
    let Some(small) = small(96) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    // More than the journal can give back of its reserve: a commit has no room for it.
    scratch.run("head -c 30000000 /dev/urandom > ../try/big && amalgam mount base@ ../snapshot");
    small.fill();
    assert!(fs::write(at.join("more"), vec![1; 16 << 20]).is_err(), "there is no room");
    // What the store has given back since is taken again. Later `status` may store the file, and a commit needs no room then.
    small.fill();
    refused(scratch, "cd ../try && amalgam commit", 13, &["amalgam gc"]);
    assert!(!scratch.run("amalgam log try@ -n1").contains("big"), "nothing was committed");
    let listed = json(&scratch.run("amalgam mounts --json"));
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0]["uncommitted"], true);
    assert_eq!(fs::metadata(at.join("big")).expect("it is there").len(), 30_000_000);
    scratch.run("cd ../try && amalgam status | grep 'A big'");
    scratch.run("amalgam umount ../try && amalgam umount ../snapshot");
    assert!(!at.join("a").exists());
    assert_eq!(scratch.run("amalgam mounts"), "");
    fs::remove_file(small.store().join("ballast")).expect("room");
    scratch.run("amalgam mount try ../try");
    assert_eq!(fs::metadata(at.join("big")).expect("nothing is lost").len(), 30_000_000);
}

#[test]
fn a_mount_that_is_refused_for_lack_of_room_is_not_there() {
    let Some(small) = small(64) else { return };
    let scratch = &small.scratch;
    scratch.run("echo one > a; amalgam init --workspace base; amalgam fork try");
    small.fill();
    let done = scratch.output("amalgam mount try ../try");
    let is_mounted = scratch.path().join("try/a").exists();
    assert_eq!(is_mounted, done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    if !is_mounted {
        assert_eq!(done.status.code(), Some(13));
        assert!(!scratch.path().join("try").exists(), "nor is its directory");
    }
    fs::remove_file(small.store().join("ballast")).expect("room");
    scratch.run("amalgam umount try; amalgam mount try ../try && cat ../try/a");
}

#[test]
fn deleting_in_a_mount_works_without_room_and_makes_room() {
    let Some(small) = small(96) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    scratch.run("mkdir ../try/many && cd ../try/many && for i in $(seq 200); do echo $i > $i; done");
    scratch.run("head -c 40000000 /dev/urandom > ../try/big");
    small.fill();
    assert!(small.free_bytes() < 1 << 20);
    assert!(fs::write(at.join("more"), vec![1; 16 << 20]).is_err(), "there is no room");
    fs::remove_dir_all(at.join("many")).expect("removing works");
    fs::remove_file(at.join("big")).expect("removing works");
    until("there is room again", || small.free_bytes() > 35_000_000);
    fs::write(at.join("more"), vec![1; 1 << 20]).expect("there is room");
    assert_eq!(read(at.join("a")), "one\n");
    scratch.run("cd ../try && amalgam commit && cd .. && amalgam umount try && amalgam verify --read-data");
}

#[test]
fn commits_are_undone_without_room() {
    let Some(small) = small(64) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    scratch.run("cd ../try && echo two > a && amalgam commit && echo three > a && amalgam commit");
    small.fill();
    scratch.run("cd ../try && amalgam undo");
    assert_eq!(read(at.join("a")), "two\n");
    scratch.run("cd ../try && amalgam redo");
    assert_eq!(read(at.join("a")), "three\n");
    scratch.run("amalgam umount try");
    fs::remove_file(small.store().join("ballast")).expect("room");
    scratch.run("amalgam mount try ../try && cd ../try && amalgam status --exit-code && amalgam verify");
}

#[test]
fn a_mount_leaves_the_free_floor_alone_and_what_was_written_is_undone() {
    let Some(small) = small(96) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    scratch.run("amalgam config set store.free-floor 40MB && amalgam umount ../try && amalgam mount try ../try");
    let filled = fs::write(at.join("big"), vec![7; 200 << 20]).expect_err("there is no room for it");
    assert_eq!(filled.kind(), std::io::ErrorKind::StorageFull);
    let free = small.free_bytes();
    // What the journal has set aside is given back when it is closed.
    assert!(free > 30_000_000, "{free} bytes are left of a floor of 40 MB");
    assert!(fs::write(at.join("more"), vec![7; 4 << 20]).is_err());
    scratch.run("cd ../try && amalgam undo");
    assert!(!at.join("big").exists());
    assert_eq!(read(at.join("a")), "one\n");
    until("there is room again", || small.free_bytes() > 45_000_000);
    fs::write(at.join("more"), "x").expect("there is room");
}

#[test]
fn uncommitted_changes_are_undone_without_room_and_make_room() {
    let Some(small) = small(128) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    scratch.run("cd ../try && echo two > a && rm d/e/x && head -c 25000000 /dev/urandom > big");
    small.fill();
    let done = json(&scratch.run("cd ../try && amalgam undo --json")).remove(0);
    assert_eq!((&done["took_back_changes"], &done["cannot_redo"]), (&true.into(), &true.into()), "{done}");
    assert_eq!((&done["written"], &done["removed"]), (&2.into(), &1.into()), "{done}");
    assert_eq!(read(at.join("a")), "one\n");
    assert_eq!(read(at.join("d/e/x")), "x\n");
    assert!(!at.join("big").exists());
    until("there is room again", || small.free_bytes() > 20_000_000);
    scratch.run("cd ../try && amalgam status --exit-code && echo more > more && amalgam commit");
    scratch.run("amalgam umount try && amalgam verify --read-data");
}

#[test]
fn small_changes_are_compared_undone_and_redone_without_room() {
    let Some(small) = small(64) else { return };
    let scratch = &small.scratch;
    let at = super::mounted(scratch);
    scratch.run("cd ../try && echo two > a");
    small.fill();
    let told = scratch.run("cd ../try && amalgam diff");
    assert!(told.contains("+two"), "{told}");
    let told = scratch.output("cd ../try && amalgam undo");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    assert_eq!(read(at.join("a")), "one\n");
    scratch.run("cd ../try && amalgam redo");
    assert_eq!(read(at.join("a")), "two\n");
}
