//! The `amalgam` program. The library of this crate holds all of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    amalgam_cli::main()
}
