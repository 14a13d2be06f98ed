//! Commands that the background process runs: tests of the queue, and those of rules. What they see, what they reach, when they may
//! run, and what is left of them.

use std::path::Path;
use std::process::Command;

use crate::merging::{can_box, forks, said};
use crate::scratch::{Scratch, can_mount};

/// A project whose rules make some files anew, each by its command; `ann` has landed, and `bob` conflicts in all of them.
fn made_by(rules: &[(&str, &str)]) -> Scratch {
    let scratch = forks("mkdir d; echo base > base");
    let text: String = rules
        .iter()
        .map(|(path, command)| format!("[[rule]]\npath = \"/{path}\"\nway = \"regenerate\"\ncommand = {command:?}\n"))
        .collect();
    std::fs::create_dir(scratch.project().join(".amalgam")).expect("made");
    std::fs::write(scratch.project().join(".amalgam/rules.toml"), text).expect("written");
    for agent in ["ann", "bob"] {
        for (path, _) in rules {
            scratch.run(&format!("cd ../{agent}; mkdir -p $(dirname {path}); echo {agent} > {path}"));
        }
    }
    scratch.run("amalgam commit -q; amalgam complete -q ann");
    scratch
}

#[test]
fn a_projects_command_runs_only_after_exactly_it_was_approved() {
    if !can_box() {
        return;
    }
    let scratch = made_by(&[("lock", "echo made > lock")]);
    let told = said(&scratch, "amalgam complete bob; echo $?");
    assert!(told.contains("conflict lock") && told.contains("is not approved") && told.ends_with("\n5\n"), "{told}");
    scratch.run("amalgam review reject -q $(amalgam review --json | sed -n 's/.*\"id\":\"\\([0-9a-f]*\\)\".*/\\1/p')");
    let told = said(&scratch, "amalgam merge bob");
    assert!(told.contains("conflict lock") && told.contains("is not approved"), "{told}");
    let approve = told.split('`').find(|part| part.starts_with("amalgam rules approve"));
    let approve = approve.unwrap_or_else(|| panic!("it does not say how: {told}")).to_owned();
    scratch.run("amalgam undo -q");
    // It shows the command, and asks.
    let shown = said(&scratch, &format!("cd ../bob; {approve}"));
    assert!(shown.contains("    echo made > lock\n") && shown.contains("pass --yes"), "{shown}");
    scratch.run(&format!("{approve} --dry-run"));
    assert!(said(&scratch, "amalgam rules commands").contains("not approved"));
    scratch.run(&format!("cd ../bob; {approve} --yes"));
    assert!(said(&scratch, "amalgam rules commands").contains("approved by ann"));
    let told = said(&scratch, "amalgam merge bob");
    assert!(told.contains("merged lock (regenerate)"), "{told}");
    assert_eq!(scratch.run("cat lock"), "made\n");
    // The approval is the store's, in its home alone: it is not in the tree, and a copy of the tree has none.
    assert_eq!(scratch.run("grep -rl approved-commands . | wc -l"), "0\n");
    scratch.run("amalgam send --all | amalgam --store ../second receive -q -");
    let second = said(&scratch, "amalgam --store ../second rules commands --into main; amalgam --store ../second stop");
    assert!(second.contains("not approved"), "{second}");
    // Another text is another command, and an approval can be taken back.
    let hash = approve.split(' ').nth(3).expect("a hash");
    scratch.run("amalgam undo -q; sed -i 's/echo made/echo  made/' .amalgam/rules.toml; amalgam commit -q");
    assert!(said(&scratch, "amalgam merge bob").contains("is not approved"));
    scratch.run(&format!(
        "amalgam undo -q; amalgam undo -q; amalgam rules revoke --dry-run {hash} && amalgam rules revoke {hash}"
    ));
    assert!(said(&scratch, "amalgam merge bob").contains("is not approved"));
}

#[test]
fn a_rules_command_sees_neither_home_nor_sockets_nor_environment() {
    if !can_box() {
        return;
    }
    let command = "{ env | cut -d= -f1 | sort | tr '\\n' ' '; echo; ls -A / | tr '\\n' ' '; echo; ls -A /tmp /etc; \
                   ulimit -t; ulimit -n; touch /usr/x /x 2>&1 | wc -l; find / -type s 2>/dev/null; true; } > lock";
    let scratch = made_by(&[("lock", command)]);
    scratch.run("amalgam stop -q; SECRET_TOKEN=hunter2 amalgam rules approve --yes");
    let told = said(&scratch, "SECRET_TOKEN=hunter2 amalgam merge bob");
    assert!(told.contains("merged lock (regenerate)"), "{told}");
    let seen = scratch.run("cat lock");
    let mut lines = seen.lines();
    assert_eq!(lines.next(), Some("HOME LANG PATH PWD SHELL TMPDIR "), "{seen}");
    let root: Vec<_> = lines.next().expect("the root").split_ascii_whitespace().collect();
    for name in &root {
        let expected = ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "tree", "usr"];
        assert!(expected.contains(name), "{name} is visible: {seen}");
    }
    assert!(root.contains(&"tree") && !seen.contains("passwd") && !seen.contains(".sock"), "{seen}");
    assert!(seen.contains("\n600\n4096\n2\n"), "limits hold, and nothing but the tree can be written: {seen}");
}

#[test]
fn a_rules_command_cannot_lead_the_server_out_of_its_directory() {
    if !can_box() {
        return;
    }
    let around = tempfile::tempdir().expect("a directory");
    let outside = around.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("two"), "precious\n").expect("written");
    let leads_out = format!("echo 1 > a; rm -r d; ln -s {} d", outside.display());
    let scratch = made_by(&[("a", &leads_out), ("d/two", "echo 2 > d/two")]);
    scratch.run("amalgam rules approve --yes");
    let told = said(&scratch, "amalgam merge bob");
    assert_eq!(std::fs::read_to_string(outside.join("two")).expect("it is there"), "precious\n", "{told}");
    assert_eq!(scratch.run("cat a d/two"), "1\n2\n", "each command has a checkout of its own: {told}");
    // A file that is a symlink is not read through it.
    let scratch = made_by(&[("stolen", &format!("ln -s {}/two stolen", outside.display()))]);
    scratch.run("amalgam rules approve --yes");
    let told = said(&scratch, "amalgam merge bob");
    assert!(told.contains("did not make stolen") && !told.contains("precious"), "{told}");
}

#[test]
fn a_test_gets_only_variables_that_are_named() {
    let scratch = forks("echo 1 > notes");
    let seen = scratch.path().join("seen");
    let complete = |agent: &str| {
        scratch.run(&format!("cd ../{agent}; echo {agent} > {agent}"));
        scratch.run(&format!("amalgam complete -q {agent} --test 'env > {}'", seen.display()));
        std::fs::read_to_string(&seen).expect("it ran")
    };
    scratch.run("amalgam stop -q; API_KEY=hunter2 AMALGAM_MOUNT_TOKEN=aa CI=1 LC_TIME=C amalgam ws");
    let first = complete("ann");
    for name in ["PATH=", "LC_TIME=C\n"] {
        assert!(first.contains(name), "{first}");
    }
    for name in ["API_KEY", "CI=", "AMALGAM_"] {
        assert!(!first.contains(name), "{first}");
    }
    scratch.run("amalgam config set commands.environment CI");
    let second = complete("bob");
    assert!(second.contains("CI=1\n") && !second.contains("API_KEY"), "{second}");
}

/// Whether a process is there; its id is in a file.
fn runs(file: &Path) -> bool {
    let id = std::fs::read_to_string(file).expect("it was started");
    Path::new("/proc").join(id.trim()).exists()
}

#[test]
fn a_test_leaves_no_process_however_it_ends() {
    for (test, end) in [("true", 0), ("false", 5)] {
        let scratch = forks("echo 1 > notes");
        scratch.run("cd ../ann; echo ann > ann");
        let [first, second] = ["first", "second"].map(|name| scratch.path().join(name));
        // One stays in the background, one makes a session of its own and loses its parent.
        let line = format!(
            "sleep 1000 & echo $! > {}; (setsid sh -c \"echo \\$\\$ > {}; exec sleep 1000\" &); while ! test -s {}; do sleep 0.01; done; {test}",
            first.display(),
            second.display(),
            second.display()
        );
        let done = scratch.output(&format!("amalgam complete ann --test '{line}'"));
        assert_eq!(done.status.code(), Some(end), "{}", String::from_utf8_lossy(&done.stderr));
        assert!(!runs(&first) && !runs(&second), "{test}");
    }
}

#[test]
fn a_test_that_takes_too_long_or_loses_its_process_leaves_nothing() {
    let scratch = forks("echo 1 > notes");
    let file = scratch.path().join("id");
    scratch.run("cd ../ann; echo ann > ann");
    let line = format!("setsid sh -c \"echo \\$\\$ > {}; exec sleep 1000\" & sleep 1000", file.display());
    let mut child = scratch.shell(&format!("amalgam complete ann --test '{line}'")).spawn().expect("started");
    crate::watching::until("the test runs", || std::fs::read_to_string(&file).is_ok_and(|id| !id.trim().is_empty()));
    let told = scratch.run("amalgam doctor --json");
    let id = told
        .lines()
        .find_map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON").get("process_id")?.as_i64());
    let id = i32::try_from(id.expect("it runs")).expect("a number");
    let id = rustix::process::Pid::from_raw(id).expect("not 0");
    rustix::process::kill_process(id, rustix::process::Signal::KILL).expect("sent");
    crate::watching::until("what the test started ends with the background process", || !runs(&file));
    let _ = child.kill();
    let _ = child.wait();
}

#[test]
fn what_is_mounted_in_a_place_of_a_test_or_in_a_fork_stays() {
    let scratch = forks("echo 1 > notes");
    let outside = scratch.path().join("outside");
    std::fs::create_dir(&outside).expect("made");
    std::fs::write(outside.join("kept"), "kept").expect("written");
    let mount = |at: &Path| Command::new("mount").arg("--bind").args([&outside, at]).output();
    let trial = scratch.path().join("trial");
    std::fs::create_dir(&trial).expect("made");
    if !mount(&trial).is_ok_and(|done| done.status.success()) {
        return amalgam_test_support::skip("root", "only root can mount a directory over another here");
    }
    let unmount = |at: &Path| assert!(Command::new("umount").arg(at).status().expect("a program").success());
    unmount(&trial);
    scratch.run("cd ../ann; echo ann > ann");
    let line = format!("mkdir m; mount --bind {} m", outside.display());
    scratch.run(&format!("amalgam complete -q ann --test '{line}'"));
    let kept = || std::fs::read_to_string(outside.join("kept")).ok();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("the table");
    let place = scratch.path().display().to_string();
    let left: Vec<_> = mounts.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let left: Vec<_> = left.into_iter().filter(|path| path.starts_with(&place) && path.ends_with("/m")).collect();
    let contents = kept();
    left.iter().for_each(|at| unmount(Path::new(at)));
    assert_eq!((contents.as_deref(), left.len()), (Some("kept"), 1), "the contents of a mount were removed");
    // A directory that a checkout made.
    let inside = scratch.path().join("bob/m");
    scratch.run("cd ../bob; echo bob > bob; mkdir m; amalgam commit -q");
    assert!(mount(&inside).expect("a program").status.success());
    let told = said(&scratch, "amalgam ws rm bob --dir --yes; echo $?");
    let contents = kept();
    unmount(&inside);
    assert_eq!(contents.as_deref(), Some("kept"), "{told}");
}

#[test]
fn a_command_in_a_mount_of_its_own_does_not_get_the_token() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo a > a; amalgam init -q; amalgam fork -q try");
    let seen = scratch.run("amalgam run -q --in try --backend fuse -- env");
    assert!(seen.contains("PWD=") && !seen.contains("AMALGAM_MOUNT_TOKEN"), "{seen}");
}
