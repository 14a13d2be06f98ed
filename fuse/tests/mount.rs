//! A view through this machine's kernel: what only a real mount can show.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, UNIX_EPOCH};

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, SnapshotId, Store, Time};
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

fn can_mount() -> bool {
    let can =
        rustix::process::geteuid().is_root() && fs::File::options().read(true).write(true).open("/dev/fuse").is_ok();
    amalgam_test_support::has_or_skip("fuse", can, "mounting needs root and /dev/fuse here")
}

impl Kit {
    fn new(prepare: impl FnOnce(&Path)) -> Self {
        Self::with(&MountOptions::default(), prepare)
    }

    fn with(options: &MountOptions, prepare: impl FnOnce(&Path)) -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let at = scratch.path().join("mount");
        fs::create_dir(&at).expect("a directory");
        prepare(&at);
        let workspaces = Workspaces::of(&Store::in_memory());
        let name = WorkspaceName::new("main").expect("a name");
        workspaces.create(&name, &NewWorkspace::default(), &OperationContext::new("test", now())).expect("a workspace");
        let tree = workspaces.open(&name).expect("a tree");
        let owner = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let (view, _) =
            View::open(tree, &scratch.path().join("journal"), ViewOptions::new(owner, now)).expect("a view");
        let mount = Mount::at(&view, &at, options).expect("mounted");
        Self { mount: Some(mount), workspaces, at, _scratch: scratch }
    }

    fn commit(&self) -> SnapshotId {
        let (name, act) = (WorkspaceName::new("main").expect("a name"), OperationContext::new("test", now()));
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
        mount.flush_invalidations().recv().expect("told");
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
    mount.view().restore(then, Some(later)).expect("gone there");
    mount.flush_invalidations().recv().expect("told");
    // What getcwd() says of it.
    let place = fs::read_link(format!("/proc/self/fd/{}", changed.as_raw_fd())).expect("a place");
    assert_eq!(place, directory);
    assert_eq!(fs::read_to_string(directory.join("f")).expect("read"), "then");
    assert_ne!(fs::metadata(&directory).expect("there").modified().expect("a time"), UNIX_EPOCH);
    drop(changed);
    mount.unmount().expect("nobody uses it");
}

/// An access control list as the kernel takes it: tags, rights and ids.
fn access_list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&rights.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

/// Whether another user may read a file; nothing where a command cannot be run as one.
fn may_read(path: &Path, uid: u32, gid: u32) -> Option<bool> {
    let (user, group) = (format!("--reuid={uid}"), format!("--regid={gid}"));
    let run = |words: &[&std::ffi::OsStr]| {
        let mut command = std::process::Command::new("setpriv");
        command.args([&user, &group]).arg("--clear-groups").args(words).stderr(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).status().is_ok_and(|done| done.success())
    };
    run(&["true".as_ref()]).then(|| run(&["cat".as_ref(), path.as_os_str()]))
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const ANY: u32 = u32::MAX;
const NAMED_USER: u32 = 4_321;
const OTHER_USER: u32 = 4_322;
const GROUP: u32 = 4_400;

/// `u::rw-,u:4321:rw-,g::---,m::rw-,o::---`
fn list_for_one() -> Vec<u8> {
    access_list(&[(1, 6, ANY), (2, 6, NAMED_USER), (4, 0, ANY), (0x10, 6, ANY), (0x20, 0, ANY)])
}

#[test]
fn access_control_lists_of_a_snapshot_are_enforced() {
    if !can_mount() {
        return;
    }
    let kit = Kit::with(&MountOptions { allow_other: true, ..MountOptions::default() }, |_| {});
    fs::set_permissions(kit._scratch.path(), fs::Permissions::from_mode(0o755)).expect("set");
    let path = kit.at.join("file");
    // As a capture took it: the group's bits are the mask.
    let view = kit.mount.as_ref().expect("mounted").view();
    let mut tree = view.fork();
    tree.create("file", 0o660).expect("made");
    tree.set_owner("file", Some(Owner { uid: 0, gid: GROUP })).expect("set");
    tree.set_xattr("file", ACCESS.as_bytes(), &list_for_one()).expect("set");
    let (name, act) = (WorkspaceName::new("main").expect("a name"), OperationContext::new("test", now()));
    let state = kit.workspaces.commit(&name, &mut tree, &Change::new("captured"), &act).expect("committed").snapshot;
    view.restore(state, Some(state)).expect("gone there");
    kit.mount.as_ref().expect("mounted").flush_invalidations().recv().expect("told");
    let Some(named) = may_read(&path, NAMED_USER, NAMED_USER) else {
        return amalgam_test_support::skip("root", "no command can be run as another user (setpriv)");
    };
    assert!(named, "the list names this user");
    assert_eq!(
        may_read(&path, OTHER_USER, GROUP),
        Some(false),
        "the owning group has no rights, whatever the mask says"
    );
    assert_eq!(may_read(&path, OTHER_USER, OTHER_USER), Some(false));
    // The mask follows the permission bits, and what the list says of others with them.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o614)).expect("set");
    assert_eq!(may_read(&path, NAMED_USER, NAMED_USER), Some(false));
    assert_eq!(may_read(&path, OTHER_USER, OTHER_USER), Some(true));
    // A list that goes is enforced no more, by an undo, too.
    view.restore(state, Some(state)).expect("gone there");
    kit.mount.as_ref().expect("mounted").flush_invalidations().recv().expect("told");
    assert_eq!(may_read(&path, NAMED_USER, NAMED_USER), Some(true));
    rustix::fs::removexattr(&path, ACCESS).expect("removed");
    assert_eq!(may_read(&path, NAMED_USER, NAMED_USER), Some(false));
}

#[test]
fn access_control_lists_are_set_read_and_inherited() {
    if !can_mount() {
        return;
    }
    let kit = Kit::new(|_| {});
    let get = |path: &Path, name: &str| {
        let mut buffer = vec![0; 1_024];
        let got = rustix::fs::getxattr(path, name, &mut buffer[..]);
        got.map(|bytes| buffer[..bytes].to_vec()).ok()
    };
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o7777;
    let set =
        |path: &Path, name: &str, list: &[u8]| rustix::fs::setxattr(path, name, list, rustix::fs::XattrFlags::empty());
    let file = kit.at.join("file");
    fs::write(&file, "").expect("made");
    set(&file, ACCESS, &list_for_one()).expect("set");
    assert_eq!(get(&file, ACCESS), Some(list_for_one()));
    assert_eq!(mode(&file), 0o660, "the bits of the group are the mask");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("set");
    let narrowed = access_list(&[(1, 6, ANY), (2, 6, NAMED_USER), (4, 0, ANY), (0x10, 4, ANY), (0x20, 0, ANY)]);
    assert_eq!(get(&file, ACCESS), Some(narrowed), "chmod sets the mask");
    let plain = access_list(&[(1, 7, ANY), (4, 5, ANY), (0x20, 1, ANY)]);
    set(&file, ACCESS, &plain).expect("set");
    assert_eq!((get(&file, ACCESS), mode(&file)), (None, 0o751), "what permission bits say is not kept as a list");
    assert!(set(&file, DEFAULT, &list_for_one()).is_err(), "only a directory has a default");
    // What is made in a directory takes its default over, in place of the umask.
    let directory = kit.at.join("directory");
    fs::create_dir(&directory).expect("made");
    let default = access_list(&[(1, 7, ANY), (2, 7, NAMED_USER), (4, 5, ANY), (0x10, 7, ANY), (0x20, 0, ANY)]);
    set(&directory, DEFAULT, &default).expect("set");
    let (inner, below) = (directory.join("file"), directory.join("below"));
    fs::write(&inner, "").expect("made");
    fs::create_dir(&below).expect("made");
    let inherited = access_list(&[(1, 6, ANY), (2, 7, NAMED_USER), (4, 5, ANY), (0x10, 6, ANY), (0x20, 0, ANY)]);
    assert_eq!((get(&inner, ACCESS), mode(&inner)), (Some(inherited), 0o660));
    assert_eq!(
        (get(&below, ACCESS), get(&below, DEFAULT), mode(&below)),
        (Some(default.clone()), Some(default), 0o770)
    );
    // Elsewhere the umask counts.
    let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
    fs::create_dir(kit.at.join("masked")).expect("made");
    rustix::process::umask(umask);
    assert_eq!(mode(&kit.at.join("masked")), 0o750);
    kit.commit();
}
