//! A view through this machine's kernel: what only a real mount can show.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, UNIX_EPOCH};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{Act, SnapshotId, Store, Time};
use amalgam_fuse::{Mount, MountError, MountOptions};
use amalgam_view::{View, ViewOptions};
use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps};
use rustix::mount::{MountFlags, UnmountFlags};

const SECOND: i64 = 1_000_000_000;

/// An empty workspace, mounted.
struct Kit {
    mount: Option<Mount>,
    workspaces: Workspaces,
    at: PathBuf,
    _scratch: tempfile::TempDir,
}

fn now() -> Time {
    Time(1_700_000_000 * SECOND)
}

#[allow(clippy::print_stderr, reason = "a test that cannot be run here says so")]
fn can_mount() -> bool {
    let can =
        rustix::process::geteuid().is_root() && fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    if !can {
        eprintln!("not run: mounting needs root and /dev/fuse here");
    }
    can
}

impl Kit {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = scratch.path().join("mount");
        fs::create_dir(&at).expect("a directory");
        prepare(&at);
        let workspaces = Workspaces::of(&Store::in_memory());
        let name = WorkspaceName::new("main").expect("a name");
        workspaces.create(&name, &NewWorkspace::default(), &Act::new("test", now())).expect("a workspace");
        let tree = workspaces.open(&name).expect("a tree");
        let owner = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let (view, _) =
            View::open(tree, &scratch.path().join("journal"), ViewOptions::new(owner, now)).expect("a view");
        let mount = Mount::at(&view, &at, &MountOptions::default()).expect("mounted");
        Self { mount: Some(mount), workspaces, at, _scratch: scratch }
    }

    fn commit(&self) -> SnapshotId {
        let (name, act) = (WorkspaceName::new("main").expect("a name"), Act::new("test", now()));
        let view = self.mount.as_ref().expect("it is mounted").view();
        view.commit(&self.workspaces, &name, &Change::new("test"), &act, "commit").expect("committed").snapshot
    }

    fn mount(&mut self) -> Mount {
        self.mount.take().expect("it is mounted")
    }
}

#[test]
fn a_mount_in_use_is_given_back_and_goes_on() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|_| {});
    fs::write(kit.at.join("a"), "one").expect("written");
    let held = fs::File::open(kit.at.join("a")).expect("opened");
    let still = kit.mount().unmount().expect_err("a file is open");
    assert!(matches!(&still.error, MountError::Busy { path, .. } if *path == kit.at), "{still:?}");
    assert!(!still.mount.has_ended());
    assert_eq!(fs::read_to_string(kit.at.join("a")).expect("answered"), "one");
    fs::write(kit.at.join("b"), "two").expect("answered");
    drop(held);
    still.mount.unmount().expect("nobody uses it");
    assert_eq!(fs::read_dir(&kit.at).expect("a directory again").count(), 0);
}

#[test]
fn what_a_mount_covered_is_there_again() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|at| {
        rustix::mount::mount("none", at, "tmpfs", MountFlags::empty(), None).expect("root may");
        fs::set_permissions(at, std::os::unix::fs::PermissionsExt::from_mode(0o751)).expect("ours");
    });
    let covered = || std::os::unix::fs::MetadataExt::mode(&fs::metadata(&kit.at).expect("there")) & 0o7777 == 0o751;
    assert!(!covered());
    kit.mount.take().expect("mounted").unmount().expect("nobody uses it");
    assert!(covered(), "only what was mounted last is unmounted");
    rustix::mount::unmount(&kit.at, UnmountFlags::empty()).expect("still mounted");
    let mut again = Kit::new(|_| {});
    let held = fs::File::open(&again.at).expect("opened");
    drop(again.mount());
    assert_eq!(fs::read_dir(&again.at).expect("a directory again").count(), 0, "one that is dropped goes, too");
    drop(held);
}

#[test]
fn any_time_can_be_set_and_the_nearest_is_kept() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|_| {});
    let path = kit.at.join("a");
    fs::write(&path, "").expect("written");
    let (first, last) = (i64::MIN / SECOND - 1, i64::MAX / SECOND);
    for (seconds, kept) in [(i64::MIN, first), (i64::MIN + 1, first), (-2, -2), (0, 0), (i64::MAX, last)] {
        let (told, done) = channel();
        let at = path.clone();
        std::thread::spawn(move || {
            let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            told.send(rustix::fs::utimensat(CWD, &at, &times, AtFlags::empty())).expect("somebody waits");
        });
        let done = done.recv_timeout(Duration::from_secs(60)).expect("whoever sets a time gets an answer");
        done.unwrap_or_else(|error| panic!("{seconds}: {error}"));
        let found = fs::metadata(&path).expect("answered");
        assert_eq!(std::os::unix::fs::MetadataExt::mtime(&found), kept, "{seconds}");
        assert_eq!(std::os::unix::fs::MetadataExt::atime(&found), kept, "{seconds}");
    }
    kit.mount().unmount().expect("nobody uses it");
}

#[test]
fn a_rename_that_leaves_a_whiteout_is_refused_and_changes_nothing() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|_| {});
    fs::write(kit.at.join("a"), "one").expect("written");
    let (from, to) = (kit.at.join("a"), kit.at.join("b"));
    let renamed = rustix::fs::renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT);
    assert_eq!(renamed, Err(rustix::io::Errno::INVAL));
    assert_eq!(fs::read_to_string(&from).expect("it is there"), "one");
    assert!(!to.exists());
    kit.mount().unmount().expect("nobody uses it");
}

#[test]
fn what_is_appended_through_two_mounts_is_all_there() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|_| {});
    let (first, scratch) = (kit.mount(), tempfile::tempdir().expect("a directory"));
    let second = Mount::at(first.view(), scratch.path(), &MountOptions::default()).expect("mounted");
    fs::write(kit.at.join("log"), "").expect("written");
    let open = |at: &Path| fs::File::options().append(true).open(at.join("log")).expect("opened");
    let (mut one, mut other) = (open(&kit.at), open(scratch.path()));
    let mut expected = String::new();
    for round in 0..200 {
        for (name, file) in [("one", &mut one), ("other", &mut other)] {
            // Of several lengths, so that pages are written in part and as a whole.
            let line = format!("{name} {round} {}\n", "x".repeat(round % 7 * 1_000));
            file.write_all(line.as_bytes()).expect("written");
            expected += &line;
        }
    }
    for mount in [&first, &second] {
        mount.told().recv().expect("told");
        let found = fs::read_to_string(mount.path().join("log")).expect("read");
        assert!(found == expected, "{} bytes of {}", found.len(), expected.len());
    }
    drop((one, other));
    for mount in [first, second] {
        mount.unmount().expect("nobody uses it");
    }
}

#[test]
fn whoever_is_in_a_directory_that_stays_knows_where() {
    if !can_mount() {
        return;
    }
    let mut kit = Kit::new(|_| {});
    let directory = kit.at.join("d");
    fs::create_dir(&directory).expect("made");
    fs::write(directory.join("f"), "then").expect("written");
    let then = kit.commit();
    let changed = fs::File::open(&directory).expect("opened");
    changed.set_modified(UNIX_EPOCH).expect("touched");
    fs::write(directory.join("f"), "now").expect("written");
    let later = kit.commit();
    let mount = kit.mount();
    mount.view().go_to(then, Some(later)).expect("gone there");
    mount.told().recv().expect("told");
    // What getcwd() says of it.
    let place = fs::read_link(format!("/proc/self/fd/{}", changed.as_raw_fd())).expect("a place");
    assert_eq!(place, directory);
    assert_eq!(fs::read_to_string(directory.join("f")).expect("read"), "then");
    assert_ne!(fs::metadata(&directory).expect("there").modified().expect("a time"), UNIX_EPOCH);
    drop(changed);
    mount.unmount().expect("nobody uses it");
}
