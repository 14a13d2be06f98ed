//! Backups of a whole server, and their restore, through the real command.

use crate::scratch::Scratch;
use crate::served::{Served, key};

/// A server with two projects of one workspace each, and the command's options for each.
fn served() -> (Scratch, Served, [String; 2]) {
    let scratch = Scratch::new();
    let key = key(&scratch, "admin");
    let server = Served::start(&scratch);
    let url = server.url.clone();
    scratch.run(&format!("echo {key} | amalgam login {url} -q"));
    scratch.run(&format!(
        "curl -sS --fail-with-body -o /dev/null -X POST -H 'X-API-Key: {key}' -d '{{\"projectId\": \"other\"}}' {url}/api/v1/projects"
    ));
    let projects = ["default", "other"].map(|name| format!("--server {url}/{name}"));
    scratch.run("echo one > a; amalgam init -q");
    for project in &projects {
        scratch.run(&format!("amalgam push -q {project}"));
    }
    (scratch, server, projects)
}

/// What a project shows of its workspace.
fn shown(scratch: &Scratch, project: &str) -> String {
    scratch.run(&format!("amalgam {project} log project --json; amalgam {project} cat project:a"))
}

#[test]
fn a_running_server_is_backed_up_and_comes_back_with_its_keys_and_projects() {
    let (scratch, server, projects) = served();
    let first = scratch.run("amalgam backup ../backup --data ../data");
    assert!(first.contains("default: part 1") && first.contains("2 projects"), "{first}");
    scratch.run(&format!("echo two > a; amalgam commit -q; amalgam push -q {}", projects[1]));
    let second = scratch.run("amalgam backup ../backup --data ../data --verify");
    assert!(second.contains("other: part 2"), "{second}");
    let before = projects.each_ref().map(|project| shown(&scratch, project));
    let keys = scratch.run("amalgam key ls --data ../data");
    let old = server.url.clone();
    server.stop();
    scratch.run("amalgam restore-backup ../backup --data ../restored");
    assert_eq!(scratch.run("amalgam key ls --data ../restored"), keys);
    let server = Served::with(&scratch, "--data ../restored");
    // The same key, at another address.
    scratch.run(&format!("sed -i 's|{old}|{}|' ../config/amalgam/contexts.toml", server.url));
    for (project, before) in projects.iter().zip(before) {
        let project = project.replace(&old, &server.url);
        assert_eq!(shown(&scratch, &project), before, "{project}");
        scratch.run(&format!("amalgam {project} verify --read-data"));
    }
    let again = scratch.output("amalgam restore-backup ../backup --data ../data");
    assert!(String::from_utf8_lossy(&again.stderr).contains("nothing was changed"));
    assert_eq!(again.status.code(), Some(1));
}

#[test]
fn a_stopped_server_is_backed_up_too_and_no_file_is_for_others() {
    use std::os::unix::fs::PermissionsExt as _;
    let (scratch, server, _) = served();
    server.stop();
    scratch.run("umask 022; amalgam backup ../backup --data ../data");
    for name in ["catalog.db", "SERVER"] {
        let mode = std::fs::metadata(scratch.path().join("backup").join(name)).expect("written").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name}");
    }
    let said = |line: &str| String::from_utf8(scratch.output(line).stderr).expect("text");
    assert!(said("amalgam backup ../backup --data ../nowhere").contains("not the data directory"));
    assert!(said("amalgam restore-backup ../nowhere --data ../new").contains("not the backup of a server"));
    scratch.run("rm ../backup/SERVER");
    assert!(said("amalgam restore-backup ../backup --data ../new").contains("not complete"));
}
