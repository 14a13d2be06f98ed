//! Mounted workspaces through the command: what is seen, what is kept, what comes back, what is refused.

mod attempts;
mod by_call;
mod conflicts;
mod direct;
mod ended;
mod followed;
mod full;
mod held;
mod local;
mod merged;
mod policy;
mod refused;
#[path = "../command/scratch.rs"]
mod scratch;
#[path = "../command/served.rs"]
#[allow(dead_code, reason = "its other users start servers of data directories")]
mod served;
mod server_doors;

use std::fs;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use scratch::{Scratch, can_mount};
use serde_json::Value;

/// A workspace `base` with a directory, and a fork of it, mounted at the path that is returned.
fn mounted(scratch: &Scratch) -> PathBuf {
    scratch.run("printf 'one\\n' > a; mkdir -p d/e; echo x > d/e/x; amalgam init --workspace base");
    scratch.run("amalgam fork try --mount ../try --backend fuse");
    scratch.path().join("try")
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.as_ref().display()))
}

fn json(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn process(scratch: &Scratch) -> i32 {
    let told = json(&scratch.run("amalgam doctor --json"));
    let id = told.iter().find_map(|line| line.get("process_id")?.as_i64()).expect("a process");
    i32::try_from(id).expect("a number")
}

/// Ends the process that holds the store as a crash would, and waits until it is gone.
fn crash(scratch: &Scratch) {
    let id = process(scratch);
    let pid = rustix::process::Pid::from_raw(id).expect("a number");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    until("it goes", || fs::read_dir(format!("/proc/{id}/fd")).map_or(true, |mut open| open.next().is_none()));
}

#[track_caller]
fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(20), "in 20 seconds: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_mount_is_edited_committed_compared_restored_and_undone() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    assert_eq!(read(at.join("a")), "one\n");
    scratch.run("cd ../try && echo two > a && rm -r d && mkdir new && echo n > new/n");
    let status = scratch.run("cd ../try && amalgam status");
    for line in ["M a", "D d/ (1 file)", "A new/ (1 file)"] {
        assert!(status.lines().any(|other| other == line), "{line} in {status}");
    }
    let diff = scratch.run("cd ../try/new && amalgam diff");
    assert!(diff.contains("-one\n+two\n"), "{diff}");
    // Nothing of it is in the workspace it was forked from.
    assert_eq!(scratch.run("amalgam status --exit-code > /dev/null && cat a"), "one\n");
    let committed = scratch.run("cd ../try && amalgam commit -m two");
    assert!(committed.contains("try"), "{committed}");
    assert_eq!(scratch.output("cd ../try && amalgam status --exit-code").status.code(), Some(0));
    assert_eq!(scratch.run("amalgam show try@:a"), "two\n");

    scratch.run("cd ../try && echo uncommitted > a && amalgam restore @~");
    assert_eq!(read(at.join("a")), "one\n");
    assert_eq!(read(at.join("d/e/x")), "x\n");
    assert!(!at.join("new").exists());
    // What was there first is a snapshot, and comes back.
    scratch.run("cd ../try && amalgam undo");
    assert_eq!(read(at.join("a")), "uncommitted\n");
    assert_eq!(read(at.join("new/n")), "n\n");
    scratch.run("cd ../try && amalgam undo");
    assert_eq!(read(at.join("a")), "two\n");
    scratch.run("cd ../try && amalgam redo");
    assert_eq!(read(at.join("a")), "uncommitted\n");
    scratch.run("cd ../try && echo late > late && amalgam undo");
    assert!(!at.join("late").exists());

    scratch.run("cd ../try && amalgam restore @~ -- d");
    assert_eq!(read(at.join("d/e/x")), "x\n");
    assert_eq!(read(at.join("a")), "uncommitted\n");
    scratch.run("amalgam umount try && amalgam verify --read-data");
    assert!(!at.join("a").exists());
}

fn is_root_or_skip() -> bool {
    amalgam_test_support::has_or_skip(
        "root",
        rustix::process::geteuid().is_root(),
        "only root can unmount, or be another user",
    )
}

#[test]
fn a_file_that_somebody_else_changes_acts_for_its_owner_no_more() {
    if !can_mount() || !is_root_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("amalgam mount tools ../tools --create --allow-other && chmod 755 .. && echo source > ../tools/source");
    let copies = "import os; os.copy_file_range(os.open('source', 0), os.open('tool', 1), 4)";
    let changes = [
        "fallocate --length 100 tool",
        "fallocate --punch-hole --length 3 tool",
        "fallocate --zero-range --length 9 tool",
        "truncate --size 3 tool",
        "echo x >> tool",
        &format!("python3 -c \"{copies}\""),
    ];
    for change in changes {
        // Where the group may not execute, the bit is gone as well: whoever is not in the group may not leave it there.
        for (user, before, after) in [(0, "6777", "6777"), (65_534, "6777", "777"), (65_534, "6766", "766")] {
            let run = format!("setpriv --reuid {user} --regid {user} --clear-groups sh -c {change:?}");
            let seen = scratch.run(&format!(
                "cd ../tools && rm -f tool && echo abcdef > tool && chmod {before} tool && {run} && stat --format %a tool"
            ));
            assert_eq!(seen.trim(), after, "{change} of {before}, by {user}");
        }
    }
}

/// Each of them holds a page until it is answered, and the other mount's kernel is told of each.
const WRITERS: &str = r#"
import os, sys
def write(mount, user, times):
    if os.fork() == 0:
        os.setgroups([]); os.setgid(user); os.setuid(user)
        tool = os.open(mount + '/tool', os.O_RDWR)
        for _ in range(times):
            if user == 0:
                os.chmod(mount + '/tool', 0o6777)
                os.pwrite(tool, b'r' * 100, 5000)
            else:
                os.pread(tool, 9000, 0)
                os.pwrite(tool, b'u' * 100, 5100)
        os._exit(0)
write('../one', 0, 8000)
for mount in ['../two', '../two', '../one']:
    write(mount, 65534, 8000)
for _ in range(4):
    assert os.wait()[1] == 0
"#;

#[test]
fn whoever_writes_to_a_file_that_acts_for_its_owner_does_not_wait_for_another_mount() {
    if !can_mount() || !is_root_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run(
        "amalgam mount tools ../one --create --allow-other && amalgam mount tools ../two --allow-other && chmod 755 ..",
    );
    scratch.run("head -c 20000 /dev/zero > ../one/tool && chmod 6777 ../one/tool");
    fs::write(scratch.path().join("writers.py"), WRITERS).expect("written");
    let mut writers = scratch.shell("python3 ../writers.py").spawn().expect("begun");
    let began = Instant::now();
    let done = loop {
        match writers.try_wait().expect("looked at") {
            Some(done) => break done,
            None if began.elapsed() > Duration::from_secs(60) => {
                // Nothing else ends those who wait.
                crash(&scratch);
                panic!("they wait for each other");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert!(done.success(), "{done}");
}

#[test]
fn a_collection_shortens_the_journal_and_du_says_what_takes_room() {
    const MEGABYTE: u64 = 1_000_000;
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    for _ in 0..8 {
        scratch.run("cd ../try && head -c 1000000 /dev/urandom > big");
    }
    let wanted = fs::read(at.join("big")).expect("read");
    let usage = || json(&scratch.run("amalgam du --json")).remove(0);
    let before = usage();
    assert!(before["journal_bytes"].as_u64() > Some(8 * MEGABYTE), "{before}");
    let told = scratch.run("amalgam du");
    assert!(told.contains("in journals: uncommitted work of mounts"), "{told}");
    let would = json(&scratch.run("amalgam gc --dry-run --json")).remove(0);
    assert_eq!(would["journal_bytes_before"], would["journal_bytes_after"], "a dry run leaves journals alone");
    let done = json(&scratch.run("amalgam gc --json")).remove(0);
    assert!(done["journal_bytes_before"].as_u64() > Some(8 * MEGABYTE), "{done}");
    assert!(done["journal_bytes_after"].as_u64() < Some(MEGABYTE / 10), "{done}");
    let after = usage();
    let stored = after["alive"]["bytes"].as_u64().expect("bytes");
    assert!((MEGABYTE..2 * MEGABYTE).contains(&stored), "the last version alone: {after}");
    assert!(after["disk_bytes"].as_u64() < Some(2 * stored), "{after}");
    assert_eq!(fs::read(at.join("big")).expect("read"), wanted);
    assert!(scratch.run("cd ../try && amalgam status").contains("A big"), "it is no commit");
    crash(&scratch);
    scratch.run("amalgam mount try ../try");
    assert_eq!(fs::read(at.join("big")).expect("read"), wanted);
    scratch.run("cd ../try && amalgam commit -m big");
    scratch.run("amalgam umount try && amalgam verify --read-data");
}

#[test]
fn work_that_was_not_committed_survives_a_crash() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("cd ../try && echo two > a && mkdir new && echo n > new/n");
    crash(&scratch);
    let dead = fs::metadata(&at).expect_err("nobody answers");
    let errors = [rustix::io::Errno::NOTCONN, rustix::io::Errno::CONNABORTED].map(|error| Some(error.raw_os_error()));
    assert!(errors.contains(&dead.raw_os_error()), "{dead}");
    // The next process mounts it again, and says so.
    let told = scratch.output("amalgam mounts");
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(told.contains("the background process had died; workspace try is mounted again"), "{told}");
    assert_eq!(read(at.join("a")), "two\n");
    let again = json(&scratch.run("amalgam mount --json try ../try"));
    assert!(again[0]["recovered_edits"].as_u64().expect("a number") >= 4, "{again:?}");
    assert_eq!(again[0]["uncommitted"], true);
    let told = scratch.output("amalgam mounts");
    assert_eq!(String::from_utf8_lossy(&told.stderr), "", "that is past");
    assert_eq!(read(at.join("a")), "two\n");
    assert_eq!(read(at.join("new/n")), "n\n");
    scratch.run("cd ../try && amalgam commit -m kept");
    crash(&scratch);
    scratch.run("amalgam mount try ../try");
    assert_eq!(scratch.output("cd ../try && amalgam status --exit-code").status.code(), Some(0));
    assert_eq!(read(at.join("new/n")), "n\n");
}

#[test]
fn work_that_was_not_committed_survives_unmounting_and_the_end_of_the_process() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    fs::write(at.join("a"), "two\n").expect("written");
    let said = scratch.output("amalgam umount ../try");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("try has uncommitted changes"), "{said}");
    // The workspace can be forked with them, and they are there with the next mount.
    scratch.run("amalgam fork --from try copy");
    assert_eq!(scratch.run("amalgam show copy@:a"), "two\n");
    scratch.run("amalgam mount try ../try && echo three > ../try/a && amalgam stop --force");
    until("it is unmounted", || !at.join("a").exists());
    scratch.run("amalgam gc --grace none && amalgam mount try ../try");
    assert_eq!(read(at.join("a")), "three\n");
    scratch.run("cd ../try && amalgam commit && cd .. && amalgam umount try && amalgam verify --read-data");
}

#[test]
fn all_mounts_of_a_workspace_show_one_tree() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("amalgam mount try ../second");
    let second = scratch.path().join("second");
    // What the kernel remembers of one is forgotten when it is changed through the other.
    assert_eq!(read(second.join("a")), "one\n");
    assert!(!second.join("new").exists());
    fs::write(at.join("a"), "two\n").expect("written");
    fs::write(at.join("new"), "new\n").expect("written");
    until("the change is seen", || read(second.join("a")) == "two\n" && second.join("new").exists());
    fs::remove_file(second.join("new")).expect("removed");
    until("it is gone", || !at.join("new").exists());
    scratch.run("cd ../second && amalgam commit && amalgam restore @~");
    until("both are back", || read(at.join("a")) == "one\n" && read(second.join("a")) == "one\n");
    scratch.run("amalgam umount ../second");
    assert_eq!(read(at.join("a")), "one\n");
}

#[test]
fn a_snapshot_is_mounted_read_only_and_stays_what_it_is() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("printf 'one\\n' > a; amalgam init --workspace base; amalgam mount @ ../then");
    scratch.run("amalgam mount base ../head --read-only; echo two > a; amalgam commit");
    for name in ["then", "head"] {
        let at = scratch.path().join(name);
        assert_eq!(read(at.join("a")), "one\n");
        for refused in [fs::write(at.join("a"), "x"), fs::write(at.join("b"), "x"), fs::remove_file(at.join("a"))] {
            assert_eq!(refused.expect_err("read-only").kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
    }
    let inside = scratch.output("cd ../then && amalgam commit");
    assert_eq!(inside.status.code(), Some(1));
    let said = String::from_utf8_lossy(&inside.stderr).into_owned();
    assert!(said.contains("shows a snapshot and belongs to no workspace"), "{said}");
}

#[test]
fn a_mount_that_follows_shows_each_new_head() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch
        .run("printf 'one\\n' > a; echo s > same; amalgam init --workspace base; amalgam mount base ../live --follow");
    let at = scratch.path().join("live");
    let mut held = fs::File::open(at.join("a")).expect("opened");
    assert_eq!(read(at.join("a")), "one\n");
    scratch.run("echo two > a; echo n > new; amalgam commit");
    until("the new head is shown", || read(at.join("a")) == "two\n" && at.join("new").exists());
    assert_eq!(read(at.join("same")), "s\n");
    // Whoever holds the old file goes on with it.
    let mut text = String::new();
    held.read_to_string(&mut text).expect("read");
    assert_eq!(text, "one\n");
    scratch.run("amalgam undo");
    until("it goes back, too", || read(at.join("a")) == "one\n" && !at.join("new").exists());
    assert!(fs::write(at.join("a"), "x").is_err());
    let said = scratch.output("cd ../live && amalgam commit");
    assert_eq!(said.status.code(), Some(1));
}

#[test]
fn a_restore_while_files_are_open_gives_the_path_a_new_file() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("cd ../try && echo two > a && amalgam commit");
    let mut held = fs::File::options().read(true).write(true).open(at.join("a")).expect("opened");
    let directory = fs::File::open(at.join("d")).expect("opened");
    let (inode_before, directory_before) = (inode(&held), inode(&directory));
    scratch.run("cd ../try && amalgam restore @~");
    assert_eq!(read(at.join("a")), "one\n");
    // The old file lives on for whoever holds it, and what is written to it is in no snapshot.
    let mut text = String::new();
    held.read_to_string(&mut text).expect("read");
    assert_eq!(text, "two\n");
    held.write_all(b"more\n").expect("written");
    held.rewind().expect("rewound");
    text.clear();
    held.read_to_string(&mut text).expect("read");
    assert_eq!(text, "two\nmore\n");
    assert_eq!(read(at.join("a")), "one\n");
    assert_ne!(inode(&fs::File::open(at.join("a")).expect("opened")), inode_before);
    assert_eq!(inode(&fs::File::open(at.join("d")).expect("opened")), directory_before);
    assert_eq!(scratch.output("cd ../try && amalgam status --exit-code").status.code(), Some(0));
}

#[test]
fn the_number_of_hard_links_is_right_after_undo_and_redo() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    mounted(&scratch);
    scratch.run("cd ../try; ln a b; amalgam commit -q -m two");
    // Names in the same directory and in another one, looked at before and after each step.
    for name in ["c", "d/c"] {
        scratch.run(&format!("cd ../try; ln a {name}"));
        let count = "stat -c %h a";
        let seen = scratch.run(&format!("cd ../try; {count}; amalgam undo -q; {count}; amalgam redo -q; {count}"));
        assert_eq!(seen, "3\n2\n3\n", "{name}");
        scratch.run("cd ../try; amalgam undo -q");
    }
    scratch.run("amalgam umount try");
}

#[test]
fn a_shell_stays_in_its_directory_through_a_restore() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    mounted(&scratch);
    let said = scratch.run("cd ../try/d/e && echo y > x && amalgam commit -q && amalgam restore -q @~ && cat x && pwd");
    assert_eq!(said, format!("x\n{}\n", scratch.path().join("try/d/e").display()));
}

fn inode(file: &fs::File) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    file.metadata().expect("it is open").ino()
}

#[test]
fn a_command_runs_in_a_workspace_of_its_own() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("printf 'one\\n' > a; amalgam init --workspace base; amalgam fork try");
    let ran = scratch.output("amalgam run --in try --backend fuse -- sh -c 'cat a; echo two > a; pwd; exit 7'");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(7), "{said}");
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(printed.starts_with("one\n"), "{printed}");
    assert_eq!(scratch.run("amalgam show try@:a; cat a"), "two\none\n");
    let log = scratch.run("amalgam log -n 1 try@");
    assert!(log.contains("sh -c cat a"), "{log}");
    // Nobody else sees the mount, and it is gone with the command.
    let place = printed.lines().nth(1).expect("where it ran");
    assert_eq!(fs::read_dir(place).expect("the place").count(), 0);
    until("nothing is mounted", || scratch.run("amalgam mounts").is_empty());
    // The same path again, so that what a build wrote about paths stays true.
    assert_eq!(scratch.run("amalgam run --in try -- pwd").trim(), place);
    let missing = scratch.output("amalgam run --in try -- no-such-program");
    assert_eq!(missing.status.code(), Some(127));
}

#[test]
fn commands_in_a_private_mount_find_their_workspace() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("printf 'one\\n' > a; amalgam init --workspace base; amalgam fork try");
    let said = scratch
        .run("amalgam run --in try --backend fuse -- sh -c 'echo two > a; amalgam commit -m inner; amalgam status'");
    assert!(said.contains("in workspace try") && said.contains("nothing changed"), "{said}");
}

#[test]
fn the_process_stays_while_something_is_mounted() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init; amalgam config set idle-seconds 1; amalgam stop; amalgam mount @ ../then");
    let before = process(&scratch);
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(read(scratch.path().join("then/a")), "a\n");
    assert_eq!(process(&scratch), before);
}

#[test]
fn a_moved_head_takes_a_clean_mount_along_and_leaves_a_changed_one() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("cd ../try && echo two > a && amalgam commit");
    let last = json(&scratch.run("cd ../try && amalgam op log --json -n 1"));
    let number = last[0]["sequence"].as_u64().or_else(|| last[0]["operation"].as_u64()).expect("a number");
    scratch.run(&format!("amalgam undo --op {number}"));
    assert_eq!(read(at.join("a")), "one\n");
    scratch.run(&format!("amalgam redo --op {number}"));
    assert_eq!(read(at.join("a")), "two\n");
}

#[test]
fn mounts_are_taken_over_again_after_descriptors_ran_out() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base && amalgam fork try && amalgam stop --force");
    // The process raises its limit as far as it may, so the hard limit counts.
    scratch.run("ulimit -n 160; amalgam ws");
    let door = scratch.run("find ../runtime ../store -name '*.door' -type s | head -n 1");
    let door = scratch.project().join(door.trim());
    let door = fs::canonicalize(&door).unwrap_or(door);
    let connections: Vec<_> = (0..400).map_while(|_| UnixStream::connect(&door).ok()).collect();
    assert!(connections.len() > 100, "{} connections to {}", connections.len(), door.display());
    std::thread::sleep(Duration::from_secs(2));
    drop(connections);
    assert_eq!(scratch.run("amalgam run --in try --backend fuse -- cat a"), "one\n");
}
