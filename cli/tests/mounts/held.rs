//! What is held of a mount while its workspace is committed and restored.

use std::path::Path;

use super::mounted;
use crate::scratch::{Scratch, can_mount};

#[test]
fn mappings_locks_and_directories_are_held_through_commits_and_restores() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    if !scratch.output("python3 -c 'import mmap, fcntl'").status.success() {
        return amalgam_test_support::skip("python3", "there is no python3");
    }
    mounted(&scratch);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounts/held.py");
    // A mapping of what is gone would end the script by a signal.
    let done = scratch.output(&format!("cd ../try && python3 {}", script.display()));
    assert!(done.status.success(), "{}: {}", done.status, String::from_utf8_lossy(&done.stderr));
}
