//! Mounts that end otherwise than by `amalgam umount`: taken away by others, left by a process that died, gone with the command that
//! they were made for.

use std::fs;

use super::{crash, json, mounted, read, until};
use crate::refused::refused;
use crate::scratch::{Scratch, can_mount};

fn said(scratch: &Scratch, line: &str) -> (String, String) {
    let done = scratch.output(line);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(done.status.success(), "{line}: {}", text(&done.stderr));
    (text(&done.stdout), text(&done.stderr))
}

#[test]
fn a_path_that_others_unmounted_can_be_mounted_again_at_once() {
    if !can_mount() || !crate::is_root_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    for round in 0..20 {
        fs::write(at.join("a"), format!("{round}\n")).expect("written");
        // Whoever looks at all mounts is in this one for a moment.
        until("it is unmounted", || rustix::mount::unmount(&at, rustix::mount::UnmountFlags::empty()).is_ok());
        match round % 4 {
            0 => assert_eq!(scratch.run("amalgam mounts"), "", "it is not listed"),
            1 => refused(&scratch, "amalgam umount try", 1, &["try is not mounted"]),
            2 => refused(&scratch, "amalgam ws rm try --yes", 1, &["has changes from a mount"]),
            _ => {}
        }
        scratch.run("amalgam mount try ../try");
        assert_eq!(read(at.join("a")), format!("{round}\n"));
    }
}

#[test]
fn a_path_that_is_unmounted_and_in_use_can_be_mounted_again() {
    if !can_mount() || !crate::is_root_or_skip() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    let held = fs::File::open(at.join("a")).expect("opened");
    rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH).expect("root may");
    scratch.run("amalgam mount try ../try && echo two > ../try/a");
    assert_eq!(std::io::read_to_string(&held).expect("still open"), "two\n", "it is the same file");
    scratch.run("amalgam umount ../try");
    assert!(!at.join("a").exists());
}

#[test]
fn a_command_in_a_dead_mount_brings_it_back() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    scratch.run("mkdir ../try/sub && echo two > ../try/sub/b");
    let process = super::process(&scratch);
    // One shell stays in there all the time.
    let (out, err) = said(
        &scratch,
        &format!(
            "cd ../try/sub && kill -9 {process} && while kill -0 {process} 2> /dev/null; do sleep 0.01; done
            amalgam status && amalgam status --json > {}/again && ls . 2> /dev/null; cd . && cat b",
            scratch.path().display()
        ),
    );
    assert!(out.contains("A sub/ (1 file)") && out.ends_with("two\n"), "{out}");
    let words = format!("the background process had died; {}/sub is mounted again", at.display());
    assert!(err.contains(&words) && err.contains("`cd .`"), "{err}");
    assert!(read(scratch.path().join("again")).contains("sub/b"), "also while the shell stands in what is gone");
    let err = said(&scratch, "cd ../try/sub && amalgam status").1;
    assert!(!err.contains("had died"), "for whoever comes anew all is well: {err}");
}

#[test]
fn a_command_at_a_dead_mount_brings_it_back() {
    if !can_mount() {
        return;
    }
    for line in ["amalgam -C ../try status", "amalgam mounts", "amalgam mount try ../try", "amalgam umount ../try"] {
        let scratch = Scratch::new();
        let at = mounted(&scratch);
        fs::write(at.join("new"), "new\n").expect("written");
        crash(&scratch);
        let (out, err) = said(&scratch, line);
        assert!(out.contains("new") || out.contains("try"), "{line}: {out}");
        assert!(!err.contains("not connected"), "{line}: {err}");
        if line == "amalgam umount ../try" {
            assert!(!at.join("a").exists());
            continue;
        }
        assert_eq!(read(at.join("new")), "new\n", "{line}");
        assert_eq!(json(&scratch.run("amalgam mounts --json"))[0]["uncommitted"], true, "{line}");
    }
}

#[test]
fn a_mount_comes_back_as_it_was_asked_for() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base; amalgam fork try");
    scratch.run("amalgam mount try ../try --local target --threads 3 && echo o > ../try/target/o");
    scratch.run("amalgam mount base@ ../snapshot && amalgam mount base ../follow --follow");
    let before = scratch.run("amalgam mounts --json | sed 's/\"mount_time\":[^,]*,//'");
    crash(&scratch);
    let after = scratch.run("amalgam mounts --json | grep '\"mount\"' | sed 's/\"mount_time\":[^,]*,//'");
    assert_eq!(after, before);
    assert_eq!(read(scratch.path().join("try/target/o")), "o\n");
    assert!(fs::write(scratch.path().join("snapshot/a"), "no").is_err());
    scratch.run("echo two > a && amalgam commit");
    until("it follows", || read(scratch.path().join("follow/a")) == "two\n");
    assert_eq!(read(scratch.path().join("snapshot/a")), "one\n");
}

#[test]
fn a_dead_mount_that_cannot_be_mounted_again_is_told_of() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    mounted(&scratch);
    crash(&scratch);
    refused(
        &scratch,
        "amalgam --in-process -C ../try status",
        1,
        &["whose background process has died", "--in-process"],
    );
    scratch.run("amalgam --in-process ws rm try --yes");
    let words = ["the background process had died, and workspace try could not be mounted again", "`amalgam mount try"];
    refused(&scratch, "amalgam -C ../try status", 1, &words);
    refused(&scratch, "cd ../try && amalgam status", 1, &words);
    assert!(String::from_utf8_lossy(&scratch.output("amalgam mounts").stderr).contains(words[0]));
}

#[test]
fn a_mount_that_ends_the_process_again_is_not_mounted_again_and_again() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    let at = mounted(&scratch);
    fs::write(at.join("a"), "two\n").expect("written");
    crash(&scratch);
    scratch.run("amalgam mounts");
    assert_eq!(read(at.join("a")), "two\n");
    crash(&scratch);
    let told = said(&scratch, "amalgam mounts").1;
    assert!(told.contains("died soon after it had mounted") && told.contains("`amalgam mount try"), "{told}");
    assert_eq!(fs::read_dir(&at).expect("a directory again").count(), 0);
    // Later processes know of it, too, until it is mounted again.
    for _ in 0..2 {
        crash(&scratch);
        refused(&scratch, "amalgam -C ../try status", 1, &["died soon after it had mounted", "`amalgam mount try"]);
    }
    refused(&scratch, "cd ../try && amalgam status", 1, &["died soon after it had mounted"]);
    scratch.run("amalgam umount ../try");
    refused(&scratch, "amalgam -C ../try status", 1, &["is in no workspace"]);
    scratch.run("amalgam mount try ../try");
    assert_eq!(read(at.join("a")), "two\n");
    scratch.run("amalgam umount ../try && amalgam stop");
    assert!(!said(&scratch, "amalgam mounts").1.contains("died"));
}

#[test]
fn a_private_mount_is_gone_when_its_command_has_ended() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base");
    let names: Vec<_> = (0..12).map(|number| format!("w{number}")).collect();
    scratch.run(&format!("for name in {}; do amalgam fork $name || exit 1; done", names.join(" ")));
    let line = |name: &String| {
        scratch.shell(&format!("amalgam run --in {name} -- sh -c 'echo x > {name}' && amalgam complete {name}"))
    };
    let running: Vec<_> = names.iter().map(|name| (name, line(name).spawn().expect("a shell"))).collect();
    for (name, mut child) in running {
        assert!(child.wait().expect("it ends").success(), "{name}");
    }
    for name in &names {
        assert_eq!(read(scratch.project().join(name)), "x\n");
    }
    assert_eq!(scratch.run("amalgam mounts"), "");
}

#[test]
fn whoever_is_left_in_a_private_mount_is_named() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("echo one > a; amalgam init --workspace base; amalgam fork try");
    let (out, err) = said(&scratch, "amalgam run --in try -- sh -c 'sleep 1000 > /dev/null 2>&1 & echo $!'");
    let left = out.lines().next().expect("a number").to_owned();
    let words = format!("process {left} runs in the private mount of workspace try");
    assert!(err.contains(&words), "{err}");
    let words = format!("process {left} runs in workspace try, so it cannot be completed");
    refused(&scratch, "amalgam complete try", 1, &[&words]);
    scratch.run(&format!("kill {left} && amalgam complete try"));
    // One whose command cannot be run at all is no mount that somebody is about to make.
    scratch.run("amalgam fork other");
    refused(&scratch, "amalgam run --in other -- ./nothing-of-this-name", 127, &[]);
    scratch.run("amalgam complete other");
}

/// Memory of a process that is its own, in KiB.
fn anonymous_kib(process: i32) -> u64 {
    let status = read(format!("/proc/{process}/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it is told");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn the_memory_of_a_large_mount_is_given_back() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::new();
    scratch.run("amalgam mount large ../large --create");
    let (at, process) = (scratch.path().join("large"), super::process(&scratch));
    let idle_kib = anonymous_kib(process);
    for number in 0..40_000 {
        let directory = at.join(format!("d{}", number / 1_000));
        if number % 1_000 == 0 {
            fs::create_dir(&directory).expect("made");
        }
        fs::write(directory.join(number.to_string()), number.to_string()).expect("written");
    }
    let most_kib = anonymous_kib(process);
    assert!(most_kib > idle_kib + (24 << 10), "it takes much while it is there: {most_kib} KiB after {idle_kib}");
    scratch.run("amalgam umount large");
    let began = std::time::Instant::now();
    // What it takes to find something out is taken, too.
    while anonymous_kib(process) > idle_kib + (12 << 10) {
        let now_kib = anonymous_kib(process);
        assert!(
            began.elapsed().as_secs() < 60,
            "{now_kib} KiB a minute later, {idle_kib} before and {most_kib} at most"
        );
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}
