//! Measures exports over NFS on loopback: the real command serves, a client of the protocol in this process asks.
//!
//! Prints a table and writes `target/bench/nfs.json`. The client is no kernel: it has no cache and no read-ahead, so the figures are those of
//! the server. The ratios to a FUSE mount need FUSE, and are left out where nothing can be mounted.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

mod bytes;
mod calls;
mod idle;
mod pipeline;
mod served;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: bytes::FIGURES, run: bytes::run },
    Group { figures: calls::FIGURES, run: calls::run },
    Group { figures: idle::FIGURES, run: idle::run },
];

fn main() -> ExitCode {
    match Bench::run("nfs", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-nfs: {error}");
            ExitCode::FAILURE
        }
    }
}
