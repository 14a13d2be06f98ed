//! Mounts that end in the middle of work, and go elsewhere while in use. The long runs are in `soak views`.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::path::Path;
use std::process::Command;

use amalgam_tests::harness::mounting::can_mount;
use amalgam_tests::harness::seed;
use amalgam_tests::harness::views::{rollback_rounds, view_kill_rounds};

fn mounter() -> Command {
    Command::new(env!("CARGO_BIN_EXE_mounter"))
}

#[test]
fn a_killed_mount_has_lost_nothing_that_was_done() {
    if !can_mount() {
        return;
    }
    let seed = seed();
    println!("seed {seed}");
    println!("{}", view_kill_rounds(&mounter, 12, seed));
}

#[test]
fn a_mount_goes_elsewhere_under_load_and_shows_no_wrong_byte() {
    if !can_mount() {
        return;
    }
    let load = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/rollback.py");
    let (rounds, said) = rollback_rounds(&mounter, &load, 100);
    println!("{rounds} rollbacks; {said}");
}
