//! The story that the README begins with can be told to its end.

use std::path::Path;
use std::process::Command;

#[test]
fn the_demo_comes_to_its_end() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/demo");
    let told = Command::new(script).arg(env!("CARGO_BIN_EXE_amalgam")).output().expect("the script starts");
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
}

/// Three processes, of which one is killed, on PostgreSQL and a directory as the bucket.
#[test]
fn the_demo_of_a_cluster_comes_to_its_end() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let mut command = Command::new(scripts.join("with-postgres"));
    command.arg(scripts.join("demo-cluster")).arg(env!("CARGO_BIN_EXE_amalgam")).env_remove("AMALGAM_TEST_BUCKET");
    let told = command.output().expect("the script starts");
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    if said.contains("PostgreSQL is not installed") {
        return amalgam_test_support::skip("postgres", said.trim());
    }
    assert!(told.status.success(), "{said}");
}

/// A project of a server goes into a cluster and comes back with its history.
#[test]
fn a_store_is_migrated_to_a_cluster_and_back() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts");
    let place = tempfile::tempdir().expect("a directory");
    let script = r#"
        set -e
        cd "$PLACE"
        export XDG_RUNTIME_DIR=$PLACE AMALGAM_STORE=$PLACE/home
        mkdir work && cd work && echo one > a && amalgam init >/dev/null && echo two > a && amalgam commit -m second >/dev/null
        cd .. && amalgam log --json --all > log && amalgam stop --force >/dev/null
        export AMALGAM_CLUSTER=$AMALGAM_TEST_DATABASE AMALGAM_BUCKET=file://$PLACE/bucket
        amalgam store migrate "$PLACE/home" cluster:demo
        ! amalgam store migrate "$PLACE/home" cluster:demo 2>refused
        grep -q 'history of its own' refused
        amalgam store migrate cluster:demo "$PLACE/back"
        export AMALGAM_STORE=$PLACE/back
        amalgam log --json --all > again && amalgam verify --read-data >/dev/null && amalgam stop --force >/dev/null
        cmp log again && grep -q second again
    "#;
    let mut command = Command::new(scripts.join("with-postgres"));
    let programs = Path::new(env!("CARGO_BIN_EXE_amalgam")).parent().expect("a directory");
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    command.args(["bash", "-c", script]).env("PATH", path).env("PLACE", place.path());
    let told = command.output().expect("the script starts");
    let said = String::from_utf8_lossy(&told.stdout).into_owned() + &String::from_utf8_lossy(&told.stderr);
    if said.contains("PostgreSQL is not installed") {
        return amalgam_test_support::skip("postgres", said.trim());
    }
    assert!(told.status.success(), "{said}");
}

#[test]
fn an_installation_has_every_document_and_is_removed_without_a_trace() {
    let place = tempfile::tempdir().expect("a directory");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let script = r#"
        set -euo pipefail
        mkdir "$PLACE/programs"
        for program in amalgam amalgam-agent; do
          printf '#!/bin/sh\nexec %s "$@"\n' "$PROGRAM" >"$PLACE/programs/$program"
        done
        printf '#!/bin/sh\n[ "$*" = --man ] && echo .TH amalgam-gc 8\n' >"$PLACE/programs/amalgam-gc"
        chmod 755 "$PLACE"/programs/*
        scripts/stage "$PLACE/programs" "$PLACE/staged"
        scripts/install-files install "$PLACE/staged" "$PLACE/prefix"
        cd "$PLACE/prefix"
        gzip -t share/man/man1/amalgam.1.gz share/man/man1/amalgam-ws-rm.1.gz share/man/man8/amalgam-gc.8.gz
        bash -n share/bash-completion/completions/amalgam
        test -x bin/amalgam && test -s share/zsh/site-functions/_amalgam && test -s share/fish/vendor_completions.d/amalgam.fish
        test -s share/doc/amalgam/packaging/amalgam.service
        echo mine >share/doc/amalgam/mine
    "#;
    let run = |script: &str| {
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(root);
        command.env("PLACE", place.path()).env("PROGRAM", env!("CARGO_BIN_EXE_amalgam"));
        let done = command.output().expect("bash starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    run(script);
    let documents = place.path().join("prefix/share/doc/amalgam");
    let readme = std::fs::read_to_string(documents.join("README.md")).expect("the README");
    let links = readme.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let links: Vec<_> = links.filter(|link| !link.is_empty() && !link.starts_with("http")).collect();
    assert!(links.len() > 20, "{links:?}");
    for link in links {
        assert!(documents.join(link).exists(), "the installed README links to {link}, which is not installed");
    }
    run(r#"scripts/install-files uninstall "$PLACE/prefix""#);
    let left = Command::new("find").args(["-type", "f"]).current_dir(place.path().join("prefix")).output();
    let left = String::from_utf8(left.expect("find runs").stdout).expect("names");
    assert_eq!(left, "./share/doc/amalgam/mine\n", "the file of the user stays, and nothing else");
}

/// A line without the parts that differ between two runs: ids, sizes, times and the home directory.
fn without_ids(line: &str, home: &Path) -> String {
    let line = line.replace(&home.display().to_string(), "~");
    let word = |word: &str| {
        let is_id = word.len() == 8 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_size = word.trim_start_matches('(').bytes().all(|byte| byte.is_ascii_digit());
        if is_id || is_size { "#".to_owned() } else { word.to_owned() }
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_first_minute_of_the_readme_prints_what_it_shows() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README");
    let (_, section) = readme.split_once("## Sixty seconds").expect("the section");
    let block = section.split("```\n").nth(1).expect("its first block");
    let scratch = crate::scratch::Scratch::new();
    let home = scratch.path();
    let mut script = "set -e; mkdir -p ~/garden/src; cd ~; printf 'roses\\ntulips\\nviolets\\n' >garden/flowers.txt; \
                      echo water >garden/README; echo hello >garden/src/app.py\n"
        .to_owned();
    for command in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
        script.push_str(command);
        script.push('\n');
    }
    let mut shell = scratch.shell(&format!("exec 2>&1\n{script}"));
    let done = shell.env("HOME", &home).env("LC_ALL", "C.UTF-8").output().expect("a shell");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(done.status.success(), "{said}");
    let mut printed = said.lines().map(|line| without_ids(line, &home));
    for shown in block.lines().filter(|line| !line.is_empty() && !line.starts_with("$ ")) {
        let shown = without_ids(shown, &home);
        assert!(printed.any(|line| line == shown), "the README shows {shown:?}, and the command prints:\n{said}");
    }
}
