//! The operator's guide: its commands are run, and the files of the packaging checked.

use std::net::TcpListener;
use std::path::Path;

use crate::scratch::Scratch;

/// The blocks of the page that need neither root nor another machine.
fn blocks(page: &str) -> Vec<&str> {
    page.split("```sh\n").skip(1).map(|rest| rest.split_once("```").expect("the end of a block").0).collect()
}

/// A port that nothing listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

#[test]
fn the_commands_of_the_guide_work() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/OPERATING.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let blocks = blocks(&page);
    assert!(blocks.len() >= 6, "{} blocks", blocks.len());
    let scratch = Scratch::new();
    let srv = scratch.path().join("srv");
    std::fs::create_dir(&srv).expect("made");
    let script = format!("set -e; trap 'kill $server 2>/dev/null || true' EXIT; {}", blocks.concat());
    let script = script.replace("/srv", &srv.display().to_string()).replace("8080", &free_port().to_string());
    let done = scratch.shell(&script).env_remove("AMALGAM_STORE").env("HOME", &srv).output().expect("a shell");
    let (said, failed) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let log = std::fs::read_to_string(srv.join("server.log")).unwrap_or_default();
    assert!(done.status.success(), "{said}\n{failed}\n{log}");
    assert!(said.contains("rate = strict (file ") && said.contains("listen = 127.0.0.1:"), "{said}");
    assert!(said.contains("(flag --listen)") && said.contains("(environment AMALGAM_DATA)"), "{said}");
}

#[test]
fn the_files_of_the_packaging_are_valid() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/check-packaging");
    let done = std::process::Command::new(script).output().expect("the script");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    for line in said.lines().filter_map(|line| line.strip_prefix("skipped: ")) {
        amalgam_test_support::skip("packaging", line);
    }
}
