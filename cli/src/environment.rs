//! The environment of tests of the queue, and the program that supervises them.
//!
//! Only names of this list are passed on: an environment holds tokens and keys that no test was meant to see. The setting
//! `commands.environment` adds names.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::Path;

use crate::config::Config;

/// Variables that a test gets: for the user, the language, the terminal, toolchains and the runtime directory.
const PASSED: [&str; 18] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "LANG",
    "LANGUAGE",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "RUSTUP_TOOLCHAIN",
    "GOPATH",
    "GOROOT",
    "JAVA_HOME",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
];
/// Variables with this prefix are passed, too.
const PASSED_START: &str = "LC_";
/// The executable of this process, even if its file has been replaced.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Returns the variables of this process that a test gets.
pub fn for_commands(config: &Config) -> BTreeMap<OsString, OsString> {
    let more = config.command_environment();
    let is_passed =
        |name: &str| PASSED.contains(&name) || name.starts_with(PASSED_START) || more.iter().any(|other| other == name);
    env::vars_os().filter(|(name, _)| name.to_str().is_some_and(is_passed)).collect()
}

/// Returns the program and the arguments that run a command and end all processes that it started; empty if `/proc` is not
/// available.
pub fn supervisor() -> Vec<OsString> {
    match Path::new(THIS_PROGRAM).exists() {
        true => [THIS_PROGRAM, "supervise", "--"].map(OsString::from).to_vec(),
        false => Vec::new(),
    }
}
