//! Mounts by a user without any privilege.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::kit::Kit;

/// Whether a user without privilege can open the device; root, who runs tests in a bare machine, makes it what it is on most.
fn can_open_device() -> bool {
    let device = "/dev/fuse";
    if rustix::process::geteuid().is_root()
        && fs::metadata(device).is_ok_and(|found| found.permissions().mode() & 0o666 != 0o666)
    {
        let _ = fs::set_permissions(device, fs::Permissions::from_mode(0o666));
    }
    let can = fs::metadata(device).is_ok_and(|found| found.permissions().mode() & 0o666 == 0o666);
    amalgam_test_support::has_or_skip("fuse", can, "/dev/fuse is not there, or not for every user")
}

#[test]
fn a_command_runs_in_a_mount_without_any_privilege() {
    let kit = Kit::new();
    let namespaces = kit.program("unshare").args(["--user", "--mount", "true"]).output();
    let has_namespaces = namespaces.is_ok_and(|done| done.status.success());
    if !can_open_device()
        || !amalgam_test_support::has_or_skip("userns", has_namespaces, "this machine allows no user namespaces")
    {
        return;
    }
    kit.write("a", "one\n");
    kit.run(&["init", "--workspace", "base"]).ends(0);
    kit.run(&["fork", "try"]).ends(0);
    let line = "cat a; echo two > a; mkdir d; echo x > d/x; grep CapPrm /proc/$PPID/status; exit 5";
    let ran = kit.run(&["run", "--in", "try", "--backend", "fuse", "--", "sh", "-c", line]).ends(5);
    assert!(ran.out.starts_with("one\n"), "{}", ran.out);
    // Whoever started it had no capability at all.
    assert!(ran.out.contains("CapPrm:\t0000000000000000"), "{}", ran.out);
    assert_eq!(kit.run(&["show", "try@:a"]).ends(0).out, "two\n");
    assert_eq!(kit.run(&["show", "try@:d/x"]).ends(0).out, "x\n");
    assert_eq!(kit.run(&["show", "base@:a"]).ends(0).out, "one\n");
    kit.run(&["verify", "--read-data"]).ends(0);
}
