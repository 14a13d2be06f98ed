//! Sandboxes in checkouts: a server that is killed while it writes one, and a server of a user without rights.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use crate::sandboxing::can_sandbox;
use crate::scratch::Scratch;
use crate::served::{Served, key};

const FILES: usize = 4_000;
/// The server is killed when the checkout has so many files; in the last round it is complete, or nearly so.
const KILLED_AT: [usize; 4] = [1, FILES / 4, FILES / 2, FILES - 1];
/// A user of the machine without rights.
const USER: u32 = 65_534;

/// The number of files in the checkouts of workspaces that the server has made.
fn checked_out(data: &Path) -> usize {
    let Ok(sandboxes) = std::fs::read_dir(data.join("sandboxes")) else { return 0 };
    let counts = sandboxes.flatten().map(|sandbox| {
        let files = std::fs::read_dir(sandbox.path().join("workspace"));
        files.map_or(0, |files| files.flatten().filter(|file| is_file_of_test(&file.file_name())).count())
    });
    counts.max().unwrap_or(0)
}

fn is_file_of_test(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("file-"))
}

fn log_in(scratch: &Scratch, server: &Served, key: &str) {
    scratch.run(&format!("echo {key} | amalgam login {} --name dev --use -q", server.url));
}

#[test]
fn a_server_that_is_killed_while_it_writes_a_checkout_loses_no_file() {
    if !can_sandbox() {
        return;
    }
    let scratch = Scratch::new();
    let key = key(&scratch, "merge,run");
    let starter = "env AMALGAM_WORKSPACE_ACCESS=checkout";
    let source = scratch.project().join("src");
    std::fs::create_dir(&source).expect("made");
    for number in 0..FILES {
        std::fs::write(source.join(format!("file-{number:05}")), format!("{number}\n")).expect("written");
    }
    let mut server = Served::prefixed(&scratch, starter, "--data ../data");
    log_in(&scratch, &server, &key);
    scratch.run("tar -cf ../a.tar -C src .; amalgam import tar -q ../a.tar -w main");
    let data = scratch.path().join("data");
    for count in KILLED_AT {
        let mut create = scratch.shell("exec amalgam sandbox create -q --workspace main");
        let mut create = create.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started");
        while checked_out(&data) < count && create.try_wait().expect("a state").is_none() {
            std::thread::yield_now();
        }
        drop(server);
        let _ = create.kill();
        let _ = create.wait();
        server = Served::prefixed(&scratch, starter, "--data ../data");
        log_in(&scratch, &server, &key);
        let listed = scratch.run("amalgam export tar -q main | tar -t");
        let files = listed.lines().filter(|line| line.contains("file-")).count();
        assert_eq!(files, FILES, "killed at {count}");
        let id = scratch.run("amalgam sandbox create -q --workspace main").trim().to_owned();
        let seen = scratch.run(&format!("amalgam exec {id} -- sh -c 'cat file-* | sort -n | uniq | wc -l'"));
        assert_eq!(seen.trim(), FILES.to_string(), "killed at {count}");
        scratch.run("for id in $(amalgam sandbox ls | grep -o 'sbx-[a-z0-9]*'); do amalgam sandbox rm -q $id; done");
    }
    server.stop();
}

#[test]
fn a_server_without_rights_gives_sandboxes_checkouts_and_keeps_their_files() {
    let is_root = rustix::process::geteuid().is_root();
    if !can_sandbox()
        || !amalgam_test_support::has_or_skip("root", is_root, "only root can start a server of another user")
    {
        return;
    }
    let scratch = Scratch::new();
    let programs = scratch.path().join("programs");
    std::fs::create_dir(&programs).expect("made");
    for name in ["amalgam", "amalgam-agent"] {
        let source = Path::new(env!("CARGO_BIN_EXE_amalgam")).with_file_name(name);
        std::fs::copy(source, programs.join(name)).expect("copied");
    }
    for place in [scratch.path(), scratch.project()] {
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).expect("open to all");
    }
    let data = scratch.path().join("data");
    std::fs::create_dir(&data).expect("made");
    std::os::unix::fs::chown(&data, Some(USER), Some(USER)).expect("given away");
    // In a shell of the user without rights, with a directory of its own for sockets.
    let runtime = scratch.path().join("user-runtime");
    std::fs::create_dir(&runtime).expect("made");
    std::os::unix::fs::chown(&runtime, Some(USER), Some(USER)).expect("given away");
    std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o700)).expect("private");
    let user = format!(
        "env XDG_RUNTIME_DIR={runtime} HOME={runtime} PATH={programs}:$PATH setpriv --reuid {USER} --regid {USER} --clear-groups \
         --no-new-privs",
        runtime = runtime.display(),
        programs = programs.display()
    );
    let bwrap = scratch.output(&format!("{user} bwrap --unshare-all --ro-bind / / true"));
    let can = bwrap.status.success();
    if !amalgam_test_support::has_or_skip("userns", can, "a user without rights has no user namespaces here") {
        return;
    }
    let make_key = format!("{user} amalgam key create ann --scope merge,run --data ../data -q");
    let key = scratch.run(&make_key).trim().to_owned();
    let server = Served::prefixed(&scratch, &user, "--data ../data");
    log_in(&scratch, &server, &key);
    let shown = scratch.run("amalgam sandbox create --json --name try");
    assert!(shown.contains("\"checkout\""), "without the capability and without its helper for others: {shown}");
    scratch.run("amalgam exec try -- sh -c 'echo kept > note; echo at home > ~/more'");
    let copy = scratch.run("amalgam sandbox fork try --name copy").trim().to_owned();
    assert_eq!(scratch.run("amalgam exec copy -- sh -c 'cat note ~/more'"), "kept\nat home\n");
    scratch.run(&format!("amalgam exec copy -- rm note; amalgam sandbox rm {copy}"));
    server.stop();
    let server = Served::prefixed(&scratch, &user, "--data ../data");
    log_in(&scratch, &server, &key);
    let workspaces = scratch.run("amalgam ws");
    let workspace = workspaces.split_whitespace().find(|word| word.starts_with("sandboxes/")).expect("it was kept");
    assert_eq!(scratch.run(&format!("amalgam cat {workspace}:note")), "kept\n");
    scratch.run(&format!("amalgam sandbox create -q --workspace {workspace} --name again"));
    assert_eq!(scratch.run("amalgam exec again -- cat note"), "kept\n");
    server.stop();
}
