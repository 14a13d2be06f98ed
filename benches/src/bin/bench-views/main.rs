//! Measures mounted workspaces, beside the disk's own file system and fuse-overlayfs.
//!
//! Prints a table and writes `target/bench/views.json`. Needs root: caches are dropped and mounts are made. What is mounted is
//! served by a child process, this program again, so that its memory is its own and a pause in it is no pause of the client.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

mod builds;
mod linux;
mod live;
mod serve;
mod sides;
mod trees;

use std::process::ExitCode;

use amalgam_benches::bench::{Bench, Group};

const GROUPS: &[Group] = &[
    Group { figures: linux::FIGURES, run: linux::run },
    Group { figures: builds::FIGURES, run: builds::run },
    Group { figures: live::FIGURES, run: live::run },
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let done = match std::env::args().nth(1).as_deref() {
        Some(serve::WORD) => serve::serve(&arguments.nth(1).unwrap_or_default()),
        _ => Bench::run("views", GROUPS, arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench-views: {error}");
            ExitCode::FAILURE
        }
    }
}
