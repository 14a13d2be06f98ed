//! Tells the command which commit it was built from, for `amalgam --version`.
//!
//! `AMALGAM_COMMIT` names the commit where there is no Git, as in a source archive or a container build. A debug build names none, so
//! that a commit does not compile the command again.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=AMALGAM_COMMIT");
    println!("cargo:rerun-if-changed=build.rs");
    let given = env::var("AMALGAM_COMMIT").ok().filter(|commit| !commit.is_empty());
    let commit = given.or_else(|| if is_debug_build() { None } else { commit_of_checkout() });
    let commit = commit.unwrap_or_else(|| "unknown commit".to_owned());
    let target = env::var("TARGET").unwrap_or_default();
    let network = if env::var_os("CARGO_FEATURE_NETWORK").is_some() { "" } else { " without network" };
    println!("cargo:rustc-env=AMALGAM_BUILD={commit}, {} build{network}, {target}", profile());
}

fn is_debug_build() -> bool {
    env::var("PROFILE").is_ok_and(|profile| profile == "debug")
}

/// Returns the abbreviated commit of the checkout that holds this crate, and asks for a rebuild when it moves.
fn commit_of_checkout() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).parent()?.to_path_buf();
    // A source archive inside somebody else's repository is not that repository's commit.
    if !root.join(".git").exists() {
        return None;
    }
    let git = |arguments: &[&str]| {
        let answer = Command::new("git").arg("-C").arg(&root).args(arguments).output().ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    // The log of HEAD grows with every commit, checkout and reset.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={}", root.join(log).display());
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// Returns the name of the cargo profile: the folder of `target` that this build goes to.
fn profile() -> String {
    let out = env::var("OUT_DIR").unwrap_or_default();
    let mut folders = Path::new(&out).components().rev().map(|part| part.as_os_str().to_string_lossy().into_owned());
    folders.find(|folder| folder == "build").and_then(|_| folders.next()).unwrap_or_default()
}
