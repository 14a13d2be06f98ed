//! Streams between two stores, backups and purges, through the real command.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use amalgam_engine::object::{Directories, DirectoryItem, DirectoryRef, Entry, Node, Root, SequenceNode, Snapshot};
use amalgam_engine::queue::{Queue, QueueOptions};
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{DirectoryId, History, Name, ObjectKind, OperationContext, RefMove, Store, Time};
use amalgam_transfer::{Progress, Selection, SendOptions, send};

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
    let line = "echo 'amalgam have 1' > ../long; truncate -s 67000000 ../long; amalgam send --since ../long -o ../x";
    fails(&scratch.output(line), 2, "the list in ../long is longer than");
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
    assert!(scratch.run("amalgam backup ../backup").starts_with("part 2, what is new since the last one"));
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

fn act() -> OperationContext {
    OperationContext::new("eve", Time(1))
}

/// All references of a store as a stream, whatever they are.
fn stream_of(store: &Store) -> Vec<u8> {
    let mut stream = Vec::new();
    let selection = Selection::named(store, |_| true).expect("all");
    send(store, &selection, &SendOptions::default(), &mut stream, &Progress::default()).expect("sent");
    stream
}

#[test]
fn a_stream_that_brings_a_command_is_refused_and_the_command_never_runs() {
    let scratch = Scratch::new();
    let owned = scratch.path().join("owned");
    let store = Store::in_memory();
    let workspaces = Workspaces::of(&store);
    let [main, side] = ["main", "side"].map(|name| WorkspaceName::new(name).expect("a name"));
    workspaces.create(&main, &NewWorkspace::default(), &act()).expect("created");
    let mut tree = workspaces.open(&main).expect("open");
    tree.write("file", b"one").expect("written");
    workspaces.commit(&main, &mut tree, &Change::new("one"), &act()).expect("committed");
    workspaces.fork(&main, std::slice::from_ref(&side), &act()).expect("forked");
    let mut tree = workspaces.open(&side).expect("open");
    tree.write("file", b"two").expect("written");
    workspaces.commit(&side, &mut tree, &Change::new("two"), &act()).expect("committed");
    let test = vec!["sh".to_owned(), "-c".to_owned(), format!("touch {}", owned.display())];
    let wish = QueueOptions { test, ..QueueOptions::default() };
    Queue::of(&workspaces, &History::of(&store)).submit(&side, &main, &wish, &act()).expect("submitted");
    std::fs::write(scratch.path().join("armed.stream"), stream_of(&store)).expect("written");
    scratch.run("amalgam init -q");
    for options in ["", "--under friend", "--replace"] {
        let done = scratch.output(&format!("amalgam receive ../armed.stream {options}"));
        fails(&done, 1, "a stream sets workspaces, labels, notes, rewards, episodes and steps");
    }
    // The names that do travel can still be had from its sender; the objects are here.
    scratch.run(
        "amalgam receive -q ../armed.stream --no-names; amalgam stop > /dev/null; amalgam queue; sleep 1; amalgam ws",
    );
    assert!(!owned.exists(), "the sender's command ran");
    scratch.run("amalgam verify");
}

#[test]
fn rights_that_a_received_tree_would_give_are_withheld_unless_asked_for() {
    let scratch = Scratch::new();
    scratch.run("cp /bin/true tool; chmod 4755 tool; amalgam init -q");
    scratch.run("amalgam checkout -q project@ ../mine && test $(stat -c %a ../mine/tool) = 4755");
    scratch.run("amalgam send --all | amalgam --store ../second receive -q -");
    let told = second_ok(&scratch, "amalgam checkout project@ ../theirs --json");
    assert!(told.contains("withheld"), "{told}");
    assert_eq!(scratch.run("stat -c %a ../theirs/tool"), "755\n");
    second_ok(&scratch, "amalgam checkout -q project@ ../asked --set-id");
    assert_eq!(scratch.run("stat -c %a ../asked/tool"), "4755\n");
    // What is built on it is as foreign, and a restore withholds as well.
    second_ok(
        &scratch,
        "amalgam checkout -q project@ ../edited --workspace project && cd ../edited && echo more > more && amalgam commit -q && rm tool && amalgam restore -q @",
    );
    assert_eq!(scratch.run("stat -c %a ../edited/tool"), "755\n");
}

#[test]
fn withheld_rights_stay_in_the_tree_and_restore_and_undo_set_them_when_asked() {
    let scratch = Scratch::new();
    scratch.run("cp /bin/true tool; chmod 4755 tool; echo one > notes; amalgam init -q; amalgam send --all | amalgam --store ../second receive -q -");
    second_ok(&scratch, "amalgam checkout -q project@ ../theirs --workspace project");
    let mode = || scratch.run("stat -c %a ../theirs/tool");
    let recorded = || {
        second_ok(&scratch, "amalgam checkout -q project@ ../look --set-id");
        scratch.run("stat -c %a ../look/tool; rm -r ../look")
    };
    // What was withheld is no change, and a commit keeps it, also of a file that was touched.
    let status = second_ok(&scratch, "cd ../theirs; amalgam status --json");
    assert!(!status.contains(r#""path":"tool""#), "{status}");
    second_ok(&scratch, "cd ../theirs; sleep 0.1; touch tool; echo two > notes; amalgam commit -q");
    assert_eq!((mode(), recorded()), ("755\n".to_owned(), "4755\n".to_owned()));
    second_ok(&scratch, "cd ../theirs; amalgam restore -q @");
    assert_eq!(mode(), "755\n");
    second_ok(&scratch, "cd ../theirs; amalgam restore -q --set-id @ -- notes");
    assert_eq!(mode(), "755\n", "it was not among the paths");
    second_ok(&scratch, "cd ../theirs; amalgam restore -q --set-id @");
    assert_eq!(mode(), "4755\n");
    // An undo withholds and grants in the same way.
    second_ok(&scratch, "cd ../theirs; rm tool; amalgam commit -q; amalgam undo -q");
    assert_eq!(mode(), "755\n");
    second_ok(&scratch, "cd ../theirs; amalgam redo -q; amalgam undo -q --set-id");
    assert_eq!(mode(), "4755\n");
    // A person who takes the bit away, or edits the file, does so in the tree, too.
    second_ok(&scratch, "cd ../theirs; chmod 755 tool; amalgam commit -q");
    assert_eq!(recorded(), "755\n");
}

#[test]
fn a_backup_is_verified_by_restoring_it() {
    let scratch = project();
    let told = scratch.run("amalgam backup ../backup --verify --json");
    assert!(told.contains(r#""verified":true"#), "{told}");
    assert!(!scratch.path().join("backup/verify.new").exists());
}

/// A stream of some kilobytes with a tree of 3^40 paths.
fn wide_stream() -> Vec<u8> {
    let store = Store::in_memory();
    let session = store.session();
    let item = |name: &str, node: Node, mode: u32| DirectoryItem {
        name: Name::new(name.as_bytes()).expect("a name"),
        entry: Entry::new(node, mode, Time::EPOCH),
    };
    let reference = |node: &SequenceNode<Directories>| DirectoryRef {
        id: DirectoryId::of(&node.encode()),
        bare: node.bare(),
        linked: 0,
    };
    let mut node = SequenceNode::<Directories>::Leaf(vec![item("pipe", Node::Fifo, 0o600)]);
    for _ in 0..40 {
        session.admit(ObjectKind::Directory, node.encode()).expect("valid");
        let below = Node::Directory(Some(reference(&node)));
        node = SequenceNode::Leaf(["a", "b", "c"].map(|name| item(name, below.clone(), 0o755)).to_vec());
    }
    session.admit(ObjectKind::Directory, node.encode()).expect("valid");
    let directory = Entry::new(Node::Directory(Some(reference(&node))), 0o755, Time::EPOCH);
    let root = session.put_root(&Root { directory, links: None, state: None }).expect("put");
    let snapshot = session
        .put_snapshot(Snapshot {
            root,
            parents: Vec::new(),
            author: "eve".to_owned(),
            time: Time(1),
            message: "wide".to_owned(),
            metadata: Default::default(),
            generation: 0,
        })
        .expect("put");
    session.commit(snapshot, RefMove::default()).expect("committed");
    let new = NewWorkspace { from: Some(snapshot), ..NewWorkspace::default() };
    Workspaces::of(&store).create(&WorkspaceName::new("wide").expect("a name"), &new, &act()).expect("created");
    stream_of(&store)
}

#[test]
fn a_tree_wider_than_any_disk_stops_nobody() {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("wide.stream"), wide_stream()).expect("written");
    scratch.run("echo mine > file; amalgam init -q; amalgam receive -q ../wide.stream");
    let begun = Instant::now();
    scratch.run("amalgam du > /dev/null; amalgam du wide@ > /dev/null; amalgam conflicts wide@ > /dev/null; amalgam gc > /dev/null");
    fails(&scratch.output("amalgam checkout wide@ ../never"), 1, "paths");
    assert_eq!(std::fs::read_dir(scratch.path().join("never")).map_or(0, Iterator::count), 0);
    // Whoever has enough of it goes away, and the process has nothing left to do.
    for line in ["show wide@", "diff @ wide@", "diff @ wide@ --stat"] {
        scratch.output(&format!("timeout -s INT 2 amalgam {line} > /dev/null"));
    }
    scratch.run("amalgam stop > /dev/null; amalgam status > /dev/null; amalgam verify > /dev/null");
    assert!(begun.elapsed() < Duration::from_secs(120), "{:?}", begun.elapsed());
}
