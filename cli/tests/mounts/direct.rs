//! Writes past the kernel's cache, and reads through it.

use std::path::Path;

use super::mounted;
use crate::scratch::{Scratch, can_mount};

/// What the script ends with where there are no asynchronous direct writes to be had.
const NOT_HERE: i32 = 77;

#[test]
fn what_was_written_directly_is_read_through_the_cache_at_once() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    mounted(&scratch);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mounts/direct.py");
    let done = scratch.output(&format!("cd ../try && python3 {}", script.display()));
    let told = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(NOT_HERE) {
        return amalgam_test_support::skip("direct-io", &told);
    }
    assert!(done.status.success(), "{}: {told}", done.status);
}
