//! Differences as upper directories: read back by the importer, and mounted by the kernel.

#[path = "kit/listing.rs"]
mod listing;
#[path = "kit/snapshots.rs"]
mod snapshots;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use amalgam_engine::object::{Device, Owner};
use amalgam_engine::work::Special;
use amalgam_engine::{RootId, SnapshotId, Store, WorkingTree};
use amalgam_exchange::{
    Error, OverlayExport, OverlayImport, Progress, Report, Whiteouts, export_overlay, import_overlay,
};
use amalgam_test_support::skip;
use listing::{assert_same, of_directory, of_tree};
use snapshots::{commit, two_snapshots};

fn root(store: &Store, snapshot: SnapshotId) -> RootId {
    store.snapshot(snapshot).expect("there").root
}

fn export(store: &Store, base: Option<SnapshotId>, after: SnapshotId, to: &Path, whiteouts: Whiteouts) -> Report {
    let base = base.map(|base| root(store, base));
    let options = OverlayExport { base, whiteouts, ..OverlayExport::default() };
    export_overlay(store, root(store, after), to, &options, &Progress::default()).expect("export")
}

#[test]
fn an_exported_upper_directory_is_imported_as_the_same_tree() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let [first, second] = two_snapshots(&store);
    for (number, whiteouts) in [Whiteouts::Devices, Whiteouts::Xattrs, Whiteouts::Aufs].into_iter().enumerate() {
        let upper = home.path().join(format!("upper{number}"));
        let report = export(&store, Some(first), second, &upper, whiteouts);
        assert_eq!((report.removed, &report.notices[..]), (2, &[][..]), "{whiteouts:?}");
        let options = OverlayImport { base: Some(first), aufs: whiteouts == Whiteouts::Aufs, ..Default::default() };
        let imported = import_overlay(&store, &upper, options, &Progress::default()).expect("import");
        assert_same(&of_tree(&store, imported.root), &of_tree(&store, root(&store, second)));
    }
    assert!(fs::symlink_metadata(home.path().join("upper0/gone")).expect("there").file_type().is_char_device());
    assert_eq!(fs::symlink_metadata(home.path().join("upper1/gone")).expect("there").len(), 0);
    assert!(home.path().join("upper2/.wh.gone").is_file());
}

#[test]
fn a_whole_tree_is_exported_without_a_base() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let [_, second] = two_snapshots(&store);
    let upper = home.path().join("new/upper");
    export(&store, None, second, &upper, Whiteouts::Devices);
    assert_same(&of_directory(&upper), &of_tree(&store, root(&store, second)));
    // Holes stay holes.
    assert!(fs::metadata(upper.join("keep/in/f")).expect("there").blocks() * 512 < 1_000_000);
    assert_eq!(fs::read_dir(home.path().join("new")).expect("list").count(), 1, "nothing temporary is left");
}

/// The capability to bind low ports, as the kernel keeps it in `security.capability`.
const BIND_CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn privileges_are_withheld_unless_asked_for() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("program", b"p").expect("write");
    tree.write("device", b"a file first").expect("write");
    let base = commit(&store, &mut tree, 1);
    tree.set_owner("program", Some(Owner { uid: 12, gid: 34 })).expect("owner");
    tree.set_mode("program", 0o6755).expect("mode");
    tree.set_xattr("program", b"security.capability", &BIND_CAPABILITY).expect("attribute");
    tree.set_xattr("program", b"user.overlay.redirect", b"/etc").expect("attribute");
    tree.remove("device").expect("remove");
    tree.create_special("device", Special::CharDevice(Device { major: 1, minor: 3 }), 0o666).expect("special");
    let after = commit(&store, &mut tree, 2);
    let upper = home.path().join("upper");
    let report = export(&store, Some(base), after, &upper, Whiteouts::Xattrs);
    assert_eq!(fs::metadata(upper.join("program")).expect("there").mode() & 0o7777, 0o755);
    // The file of the base must not show in the place of the device.
    assert_eq!(fs::metadata(upper.join("device")).expect("there").len(), 0);
    assert_eq!(report.removed, 1);
    let notices: Vec<_> = report.notices.iter().map(|notice| notice.what).collect();
    assert!(
        ["devices", "set-user-ID", "belong to the overlay"]
            .iter()
            .all(|part| notices.iter().any(|notice| notice.contains(part))),
        "{notices:?}"
    );
    if !rustix::process::geteuid().is_root() {
        return skip("root", "devices are made by root only");
    }
    let (base, whiteouts) = (Some(root(&store, base)), Whiteouts::Devices);
    let options = OverlayExport { base, whiteouts, set_id: true, ..OverlayExport::default() };
    let asked = home.path().join("asked");
    let exported = export_overlay(&store, root(&store, after), &asked, &options, &Progress::default());
    let report = match exported {
        Err(Error::Host { source, .. }) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("root", "this root may make no devices");
        }
        exported => exported.expect("export"),
    };
    assert_eq!(fs::metadata(asked.join("program")).expect("there").mode() & 0o7777, 0o6755);
    assert_eq!(fs::symlink_metadata(asked.join("device")).expect("there").rdev(), 0x103);
    if report.notices.iter().any(|notice| notice.what.contains("extended attributes were left out")) {
        return skip("root", "this root may give no capabilities");
    }
    let mut value = [0_u8; 64];
    let length = rustix::fs::getxattr(asked.join("program"), "security.capability", &mut value[..]).expect("kept");
    assert_eq!(value[..length], BIND_CAPABILITY[..]);
}

#[test]
fn a_dry_run_counts_and_a_directory_with_files_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let [first, second] = two_snapshots(&store);
    let (base, after) = (Some(root(&store, first)), root(&store, second));
    let upper = home.path().join("upper");
    let dry = OverlayExport { base, dry_run: true, ..OverlayExport::default() };
    let counted = export_overlay(&store, after, &upper, &dry, &Progress::default()).expect("count");
    assert!(!upper.exists());
    assert_eq!(export(&store, Some(first), second, &upper, Whiteouts::Devices), counted);
    let error = export_overlay(&store, after, &upper, &dry, &Progress::default()).expect_err("not empty");
    assert!(error.to_string().contains("is not empty"), "{error}");
    let stopped = Progress::default();
    stopped.cancel();
    let other = home.path().join("other");
    let error = export_overlay(&store, after, &other, &OverlayExport::default(), &stopped).expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled), "{error}");
    assert_eq!(fs::read_dir(home.path()).expect("list").count(), 1, "a cancelled export leaves nothing");
}

/// An overlay mount that ends with the value.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn mount(at: PathBuf, options: &str) -> Option<Mounted> {
    fs::create_dir_all(&at).expect("mkdir");
    let done = Command::new("mount").args(["-t", "overlay", "overlay", "-o", options]).arg(&at).output();
    match done {
        Ok(done) if done.status.success() => Some(Mounted(at)),
        Ok(done) => {
            skip("overlay", &format!("mount failed: {}", String::from_utf8_lossy(&done.stderr)));
            None
        }
        Err(error) => {
            skip("overlay", &format!("mount did not start: {error}"));
            None
        }
    }
}

#[test]
fn the_kernel_shows_the_snapshot_above_its_base() {
    let home = tempfile::tempdir().expect("a directory");
    let store = Store::in_memory();
    let [first, second] = two_snapshots(&store);
    let path = |name: &str| home.path().join(name);
    export(&store, None, first, &path("lower"), Whiteouts::Devices);
    let upper = export(&store, Some(first), second, &path("upper"), Whiteouts::Devices);
    export(&store, Some(first), second, &path("layer"), Whiteouts::Xattrs);
    assert_eq!(upper.removed, 2);
    fs::create_dir(path("work")).expect("mkdir");
    let shown = |name: &str| path(name).display().to_string();
    let (lower, layer) = (shown("lower"), shown("layer"));
    let as_upper = format!("userxattr,lowerdir={lower},upperdir={},workdir={}", shown("upper"), shown("work"));
    let expected = of_tree(&store, root(&store, second));
    for options in [as_upper, format!("userxattr,lowerdir={layer}:{lower}")] {
        let Some(mounted) = mount(path("merged"), &options) else { return };
        let shown = of_directory(&mounted.0);
        drop(mounted);
        assert_same(&shown, &expected);
    }
}
