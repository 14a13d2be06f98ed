//! Streams between two stores, backups and purges, through the real command.

use std::path::Path;
use std::process::Output;

use crate::scratch::Scratch;

/// A project with two snapshots, a label, and something long enough to be cut.
fn project() -> Scratch {
    let scratch = Scratch::new();
    scratch.run("seq 60000 > numbers; echo one > a; amalgam init -q; echo two > a; amalgam commit -q --label v1");
    scratch
}

/// A command with another store, whose process ends with it.
fn second(scratch: &Scratch, line: &str) -> Output {
    let script =
        format!("export AMALGAM_STORE=../second; {line}; code=$?; amalgam stop --force > /dev/null 2>&1; exit $code");
    scratch.output(&script)
}

#[track_caller]
fn second_ok(scratch: &Scratch, line: &str) -> String {
    let done = second(scratch, line);
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// A command that fails with this code and says this.
#[track_caller]
fn fails(done: &Output, code: i32, words: &str) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "{said}");
}

/// Whether any file below a directory holds these bytes.
fn holds(directory: &Path, bytes: &[u8]) -> bool {
    let entries = std::fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").path());
    entries.into_iter().any(|path| match path.is_dir() {
        true => holds(&path, bytes),
        false => std::fs::read(&path).is_ok_and(|held| held.windows(bytes.len()).any(|window| window == bytes)),
    })
}

#[test]
fn everything_goes_through_a_pipe_and_verifies_clean() {
    let scratch = project();
    let head = scratch.run("amalgam log --json -n 1");
    scratch.run("amalgam send --all | amalgam --store ../second receive -");
    assert_eq!(second_ok(&scratch, "amalgam show v1:a"), "two\n");
    assert_eq!(second_ok(&scratch, "amalgam log project@ --json -n 1"), head);
    second_ok(&scratch, "amalgam verify --read-data");
    second_ok(&scratch, "amalgam checkout project@ ../again --workspace project");
    scratch.run("cmp numbers ../again/numbers && cmp a ../again/a");
}

#[test]
fn the_difference_to_what_the_other_store_has_is_short() {
    let scratch = project();
    scratch.run("amalgam send --all -o ../all");
    second_ok(&scratch, "amalgam receive ../all");
    scratch.run("echo three > a; amalgam commit -q");
    let line = "amalgam --store ../second receive --have | amalgam send --since - > ../more";
    scratch.run(line);
    let length = |name: &str| std::fs::metadata(scratch.path().join(name)).expect("written").len();
    assert!(length("more") * 10 < length("all"), "{} and {}", length("more"), length("all"));
    second_ok(&scratch, "amalgam receive ../more");
    assert_eq!(second_ok(&scratch, "amalgam show project@:a"), "three\n");
    // A revision says as much as a list.
    scratch.run("amalgam send --since v1 -o ../since");
    assert!(length("since") * 10 < length("all"));
    let other =
        scratch.output("amalgam --store ../third receive ../since; c=$?; amalgam --store ../third stop; exit $c");
    fails(&other, 1, "which this store does not have");
}

#[test]
fn a_stream_that_was_cut_shows_nothing_and_goes_on_the_next_time() {
    let scratch = project();
    scratch.run("amalgam send --all -o ../all");
    let all = std::fs::read(scratch.path().join("all")).expect("read");
    std::fs::write(scratch.path().join("cut"), &all[..all.len() - 40]).expect("written");
    fails(&second(&scratch, "amalgam receive - < ../cut"), 1, "the stream was cut");
    assert_eq!(second_ok(&scratch, "amalgam ws"), "");
    let told = second_ok(&scratch, "amalgam receive --json ../all");
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    let (objects, new) = (told["objects"].as_u64().expect("a number"), told["objects_new"].as_u64().expect("a number"));
    assert!(objects > 10 && new < objects / 2, "{new} of {objects} came anew");
    assert_eq!(second_ok(&scratch, "amalgam show v1:a"), "two\n");
}

#[test]
fn a_damaged_stream_is_refused_and_says_where() {
    let scratch = project();
    scratch.run("amalgam send --all -o ../all");
    let mut all = std::fs::read(scratch.path().join("all")).expect("read");
    let middle = all.len() / 2;
    all[middle] ^= 1;
    std::fs::write(scratch.path().join("bad"), &all).expect("written");
    fails(&second(&scratch, "amalgam receive ../bad"), 1, "the stream is damaged in frame");
    assert_eq!(second_ok(&scratch, "amalgam ws"), "");
    second_ok(&scratch, "amalgam verify --read-data");
}

#[test]
fn a_workspace_that_is_ahead_is_not_moved_back() {
    let scratch = project();
    scratch.run("amalgam send -o ../old; echo three > a; amalgam commit -q");
    let done = scratch.output("amalgam receive ../old");
    fails(&done, 1, "workspace/project is here already");
    fails(&done, 1, "--under WORD");
    assert_eq!(scratch.run("amalgam show project@:a"), "three\n");
    scratch.run("amalgam receive ../old --under old");
    assert_eq!(scratch.run("amalgam show old/project@:a"), "two\n");
    scratch.run("amalgam receive ../old --replace");
    assert_eq!(scratch.run("amalgam show project@:a"), "two\n");
}

#[test]
fn a_snapshot_without_a_name_says_how_to_keep_it() {
    let scratch = project();
    scratch.run("amalgam send v1~ -o ../one");
    let done = second(&scratch, "amalgam receive ../one");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    let id = said.split("amalgam label NAME ").nth(1).and_then(|rest| rest.split('`').next()).expect(&said).to_owned();
    assert_eq!(second_ok(&scratch, &format!("amalgam label kept {id} > /dev/null; amalgam show kept:a")), "one\n");
}

#[test]
fn bad_input_of_a_transfer_is_told() {
    let scratch = project();
    fails(&scratch.output("echo junk junk junk junk | amalgam receive"), 1, "not a stream of snapshots");
    fails(&scratch.output("amalgam receive < /dev/null"), 1, "not a stream of snapshots");
    fails(&scratch.output("amalgam receive ../nowhere"), 1, "../nowhere");
    fails(&scratch.output("amalgam receive .."), 1, "..");
    fails(&scratch.output("echo x | amalgam send --since - -o ../x"), 2, "does not hold a list of what a store has");
    fails(&scratch.output("amalgam send nosuch -o ../x"), 1, "nosuch");
    fails(&scratch.output("amalgam send --all -o /nowhere/x"), 1, "/nowhere/x");
    fails(&scratch.output("amalgam send --all --json"), 2, "-o FILE");
    fails(&scratch.output("amalgam --store ../none send --all -o ../x"), 10, "no store");
    fails(&scratch.output("amalgam receive --under 'a b/' ../none"), 1, "../none");
    // What could not be sent leaves no file behind.
    assert!(!scratch.path().join("x").exists());
    let left = std::fs::read_dir(scratch.path()).expect("listed");
    assert!(left.into_iter().all(|entry| !entry.expect("an entry").file_name().to_string_lossy().ends_with(".new")));
    let done = scratch.output("(amalgam send --all; echo $? > ../code) | true");
    assert_eq!(std::fs::read_to_string(scratch.path().join("code")).expect("written"), "1\n");
    fails(&Output { status: scratch.output("exit 1").status, ..done }, 1, "closed it before its end");
}

#[test]
fn a_backup_is_written_twice_and_comes_back() {
    let scratch = project();
    assert!(scratch.run("amalgam backup ../backup").starts_with("part 1, everything"));
    scratch.run("echo three > a; amalgam commit -q");
    assert!(scratch.run("amalgam backup ../backup").starts_with("part 2, what came since"));
    second_ok(&scratch, "amalgam restore-backup ../backup");
    assert_eq!(second_ok(&scratch, "amalgam show project@:a; amalgam show v1:a"), "three\ntwo\n");
    assert!(second_ok(&scratch, "amalgam verify --read-data").contains("all is well"));
    let done = second(&scratch, "amalgam restore-backup ../backup");
    fails(&done, 1, "is not empty");
    fails(&done, 1, "--store NEW");
    fails(&scratch.output("amalgam restore-backup ../nothing"), 1, "is not a backup");
    fails(&scratch.output("amalgam backup a"), 1, "could not");
    fails(&scratch.output("amalgam --store ../none backup ../b"), 10, "no store");
    let part = scratch.path().join("backup/000001.stream");
    let bytes = std::fs::read(&part).expect("read");
    std::fs::write(&part, &bytes[..bytes.len() - 1]).expect("written");
    let done = scratch
        .output("export AMALGAM_STORE=../third; amalgam restore-backup ../backup; code=$?; amalgam stop; exit $code");
    fails(&done, 1, "the backup is damaged: 000001.stream");
}

#[test]
fn purged_bytes_are_gone_and_everything_else_is_there() {
    let scratch = project();
    scratch.run("echo KEY-hunter2-sesame > .env; amalgam commit -q; echo 3 > a; amalgam commit -q");
    let store = scratch.path().join("store");
    assert!(holds(&store, b"hunter2"), "it is stored as it is, so that its absence means something");
    let plan = scratch.run("amalgam purge .env --dry-run");
    assert!(plan.contains("in 2 snapshots") && plan.contains(".env") && plan.contains("nothing was purged"), "{plan}");
    fails(&scratch.output("amalgam purge .env < /dev/null"), 2, "--yes");
    assert_eq!(scratch.run("amalgam show @:.env"), "KEY-hunter2-sesame\n");
    let told = scratch.run("amalgam purge .env --yes -m 'a key'");
    assert!(told.contains("on the disk:") && told.contains("project/.env is still there"), "{told}");
    assert!(!holds(&store, b"hunter2"));
    fails(&scratch.output("amalgam show @:.env"), 1, ".env was purged on ");
    fails(&scratch.output("amalgam show @~:.env"), 1, "by ann: a key");
    assert_eq!(scratch.run("amalgam show @:a"), "3\n");
    assert!(scratch.run("amalgam verify").contains("1 object purged"));
    assert_eq!(scratch.run("cat .env"), "KEY-hunter2-sesame\n");
    // What it was cannot be compared with any more.
    assert!(scratch.run("touch .env; amalgam status").contains(".env"));
}

#[test]
fn what_was_purged_is_listed_and_may_be_stored_again_once_that_is_forgotten() {
    let scratch = project();
    scratch.run("echo KEY=hunter2 > .env; amalgam commit -q; rm .env");
    assert_eq!(scratch.run("amalgam purge --list"), "");
    scratch.run("amalgam purge .env --yes -q -m 'a key'");
    let told = scratch.run("amalgam purge --list");
    assert!(told.starts_with("chunk:") && told.ends_with(": a key\n") && told.lines().count() == 1, "{told}");
    let object = told.split(' ').next().expect("an object").to_owned();
    let line: serde_json::Value = serde_json::from_str(&scratch.run("amalgam purge --list --json")).expect("JSON");
    assert_eq!((&line["object"], &line["reason"]), (&object.as_str().into(), &"a key".into()));
    fails(&scratch.output("echo KEY=hunter2 > again; amalgam commit"), 3, "again: purged on ");

    let forget = format!("amalgam purge --forget {object}");
    fails(&scratch.output(&format!("{forget} < /dev/null")), 2, "--yes");
    assert_eq!(scratch.run("amalgam purge --list"), told, "nothing happens without a yes");
    let line: serde_json::Value = serde_json::from_str(&scratch.run(&format!("{forget} --yes --json"))).expect("JSON");
    assert_eq!((&line["type"], &line["object"]), (&"tombstone_forgotten".into(), &object.as_str().into()));
    assert_eq!(scratch.run("amalgam purge --list"), "");
    scratch.run("echo KEY=hunter2 > again; amalgam commit -q");
    assert_eq!(scratch.run("amalgam show @:again"), "KEY=hunter2\n");
    assert!(scratch.run("amalgam verify --read-data").contains("all is well"));

    fails(&scratch.output(&format!("{forget} --yes")), 1, "was never purged here");
    fails(&scratch.output("amalgam purge --forget chunk:12 --yes"), 1, "`chunk:12` is not chunk:ID with 64 hex digits");
    fails(&scratch.output("amalgam purge --list again"), 2, "cannot be used with");
    fails(&scratch.output("amalgam purge"), 2, "PATH|OBJECT");
}

/// The lines of the README and of `send --help`, with a stand-in for ssh that runs the words after the host here.
#[test]
fn one_line_sends_everything_through_ssh_and_another_only_what_is_new() {
    let scratch = project();
    let ssh = "#!/bin/sh\nshift\nAMALGAM_STORE=../second exec sh -c \"$*\"\n";
    std::fs::create_dir(scratch.path().join("bin")).expect("made");
    std::fs::write(scratch.path().join("bin/ssh"), ssh).expect("written");
    let run = |line: &str| scratch.run(&format!("chmod +x ../bin/ssh; PATH=\"$PWD/../bin:$PATH\"; {line}"));
    run("amalgam send --all | ssh HOST amalgam receive -");
    assert_eq!(run("ssh HOST amalgam show v1:a"), "two\n");
    scratch.run("echo three > a; amalgam commit -q");
    run("ssh HOST amalgam receive --have | amalgam send --all --since - | ssh HOST amalgam receive -");
    assert_eq!(run("ssh HOST amalgam show project@:a"), "three\n");
    assert!(run("ssh HOST amalgam verify --read-data").contains("all is well"));
    second_ok(&scratch, "true");
}

#[test]
fn reads_of_many_paths_go_on_around_what_was_purged() {
    let scratch = project();
    scratch.run("echo KEY-hunter2-sesame > .env; echo b > b; amalgam commit -q --label env");
    scratch.run("amalgam purge .env --yes -q && rm .env");
    let done = scratch.output("cd .. && amalgam checkout project@ out");
    fails(&done, 3, ".env: purged on ");
    scratch.run("cmp ../out/b b && cmp ../out/numbers numbers && test ! -e ../out/.env");
    let done = scratch.output("amalgam restore");
    fails(&done, 3, ".env: purged on ");
    let done = scratch.output("amalgam diff env~ env --patch");
    fails(&Output { status: scratch.output("exit 1").status, ..done.clone() }, 1, ".env: purged on ");
    assert!(String::from_utf8_lossy(&done.stdout).contains("+b"), "the rest is in the patch");
    scratch.run("amalgam diff env~ env --insight");
    // The same bytes do not come back with the next capture; what was committed stays as it is.
    let done = scratch.output("echo KEY-hunter2-sesame > elsewhere; echo c > c; amalgam commit");
    fails(&done, 3, "elsewhere: purged on ");
    assert_eq!(scratch.run("amalgam show @:c"), "c\n");
    fails(&scratch.output("amalgam show @:elsewhere"), 1, "elsewhere");
}

#[test]
fn what_other_files_hold_stays_unless_it_goes_everywhere() {
    let scratch = project();
    scratch.run("echo same-bytes > one; echo same-bytes > two; amalgam commit -q");
    let done = scratch.output("amalgam purge one --yes");
    fails(&done, 1, "--everywhere");
    assert!(String::from_utf8_lossy(&done.stdout).contains("two"), "it says who holds it");
    assert_eq!(scratch.run("amalgam show @:one"), "same-bytes\n");
    scratch.run("amalgam purge one --everywhere --yes");
    fails(&scratch.output("amalgam show @:two"), 1, "two was purged on ");
    fails(&scratch.output("amalgam purge nothing-there --yes"), 1, "no snapshot has bytes of a file at nothing-there");
    fails(&scratch.output("amalgam purge chunk:12 --yes"), 1, "64 hex digits");
    fails(&scratch.output(&format!("amalgam purge chunk:{} --yes", "0".repeat(64))), 1, "the store has no chunk");
    fails(&scratch.output("amalgam --store ../none purge a --yes"), 10, "no store");
}
