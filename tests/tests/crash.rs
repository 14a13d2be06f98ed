//! A committing process is killed at random moments: acknowledged commits stay, no commit is there by half.
#![expect(clippy::print_stdout, reason = "seeds and figures are printed")]

use std::process::Command;

use amalgam_tests::harness::kill::kill_rounds;
use amalgam_tests::harness::seed;

const ROUNDS: u64 = 12;

#[test]
fn a_kill_loses_no_acknowledged_commit() {
    let seed = seed();
    println!("seed {seed}");
    let summary = kill_rounds(&|| Command::new(env!("CARGO_BIN_EXE_committer")), ROUNDS, seed);
    println!("{summary}");
}
