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
