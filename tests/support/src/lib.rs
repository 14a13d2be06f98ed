//! Skipping of tests that need more than the machine has: FUSE, user namespaces, root, programs.
//!
//! A test that cannot run calls [`skip`], or [`has_or_skip`] with the result of a check, and returns. The message goes to standard
//! error and to the file that the variable `AMALGAM_SKIPPED` names, because libtest hides the output of tests that pass; `make test`
//! prints that file at its end. The variable `AMALGAM_REQUIRE` lists the capabilities that must be there, for example
//! `fuse,userns,root`: a test that would be skipped for lack of one fails instead.

#[cfg(feature = "bucket")]
pub mod faulty_bucket;
pub mod http;
pub mod postgres;
pub mod postgres_proxy;

use std::fs::File;
use std::io::Write as _;

/// The capabilities that a test may need.
pub const CAPABILITIES: [&str; 20] = [
    "btrfs",      // a file system that shares blocks between files
    "bwrap",      // bubblewrap, and the namespaces that it needs
    "cgroup",     // control groups that the test may divide
    "direct-io",  // files opened with `O_DIRECT`
    "filesystem", // a second file system beside the temporary directory
    "fuse",       // `/dev/fuse`, and root or `fusermount3`
    "history",    // the sources as a Git repository with its whole history
    "docker",     // a Docker engine that answers
    "inotify",    // a kernel whose queue of events can be filled
    "landlock",   // a kernel with Landlock
    "openssl",    // the program, to make certificates
    "overlay",    // overlay mounts with attributes of users
    "packaging",  // systemd-analyze and `docker compose`
    "postgres",   // the programs of a PostgreSQL server, as Debian installs them
    "python3",
    "root",
    "s3",      // a bucket of an S3 store, in `AMALGAM_TEST_BUCKET`
    "setpriv", // the test program run as another user
    "userns",  // user and mount namespaces without privilege
    "xattr",   // extended attributes in the temporary directory
];

const REQUIRE_VARIABLE: &str = "AMALGAM_REQUIRE";
const FILE_VARIABLE: &str = "AMALGAM_SKIPPED";

/// Reports that the calling test is skipped because a capability is missing. The caller returns.
///
/// # Panics
///
/// If `AMALGAM_REQUIRE` names the capability: the test fails.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
pub fn skip(capability: &str, why: &str) {
    assert!(CAPABILITIES.contains(&capability), "{capability} is no capability; add it here");
    let why = why.lines().next().unwrap_or_default();
    let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
    assert!(!is_listed(&required, capability), "{REQUIRE_VARIABLE} names {capability}, which is missing: {why}");
    // libtest runs each test in a thread with its name.
    let thread = std::thread::current();
    let line = format!("skipped: {}: {capability}: {why}", thread.name().unwrap_or("a test"));
    eprintln!("{line}");
    if let Some(path) = std::env::var_os(FILE_VARIABLE) {
        // A test that runs as another user cannot write there; its message is on standard error.
        let file = File::options().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    }
}

/// Returns whether a capability is there, and reports that the calling test is skipped if it is not. See [`skip`].
pub fn has_or_skip(capability: &str, is_there: bool, why: &str) -> bool {
    if !is_there {
        skip(capability, why);
    }
    is_there
}

fn is_listed(required: &str, capability: &str) -> bool {
    required.split(',').any(|name| name.trim() == capability)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_capabilities_are_a_list_of_names() {
        assert!(is_listed("fuse,userns", "userns") && is_listed(" root , fuse", "root"));
        assert!(!is_listed("fuse,userns", "user") && !is_listed("", "root"));
    }

    #[test]
    fn every_required_capability_has_a_known_name() {
        let required = std::env::var(REQUIRE_VARIABLE).unwrap_or_default();
        for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            assert!(CAPABILITIES.contains(&name), "{REQUIRE_VARIABLE} names {name}; there are {CAPABILITIES:?}");
        }
    }

    #[test]
    fn a_capability_that_is_there_skips_nothing() {
        assert!(has_or_skip("root", true, "never said"));
    }

    #[test]
    #[should_panic(expected = "is no capability")]
    fn an_unknown_capability_is_refused() {
        skip("luck", "there is none");
    }
}
