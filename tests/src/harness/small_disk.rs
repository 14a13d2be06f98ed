//! A small file system for a test, without privilege: the test runs once more in a mount namespace of its own. Included by source where
//! this package cannot be imported.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const DIRECTORY_VARIABLE: &str = "AMALGAM_SMALL_DISK";

/// Runs a test once more with so many MiB at hand. Returns their directory inside, and nothing outside once the inner run has passed.
pub fn on_a_small_disk(test: &str, mib: usize) -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY_VARIABLE) {
        let directory = PathBuf::from(directory);
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "amalgam"]).arg(&directory).status();
        assert!(mounted.expect("mount starts").success(), "a tmpfs can be mounted in a namespace of one's own");
        return Some(directory);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let inner = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--"])
        .arg(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", test, "--nocapture"])
        .env(DIRECTORY_VARIABLE, directory.path())
        .status()
        .expect("unshare starts");
    assert!(inner.success(), "the inner run failed (or user namespaces are not allowed on this machine)");
    None
}

/// Takes all the room there is.
pub fn fill_disk(path: &Path) {
    let mut file = fs::File::options().create(true).append(true).open(path).expect("a file");
    for length in [1 << 20, 4 << 10, 64] {
        while file.write_all(&vec![1; length]).is_ok() {}
    }
}
