//! Measures the network server on loopback: the server and its clients run in this process.
//!
//! Prints a table and writes `target/bench/server.json`. Clients take processor time from the server, so rates are lower bounds.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

mod calls;
mod crowd;
mod files;
mod projects;
mod push;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

/// The allocator of the command.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const GROUPS: &[Group] = &[
    Group { figures: calls::FIGURES, run: calls::run },
    Group { figures: files::FIGURES, run: files::run },
    Group { figures: projects::FIGURES, run: projects::run },
    Group { figures: push::FIGURES, run: push::run },
    Group { figures: crowd::FIGURES, run: crowd::run },
];

fn main() -> ExitCode {
    match Bench::run("server", GROUPS, std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-server: {error}");
            ExitCode::FAILURE
        }
    }
}
