//! What came to its end only partly: a commit whose index cannot be written, checkouts whose client or process was killed, damage in the
//! store, files that a capture before an undo cannot read.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::kit::{Done, Kit, kill, wait};

#[test]
fn a_commit_that_landed_is_a_success_when_its_index_cannot_be_written() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init"]).ends(0);
    let shell =
        |line: &str| assert!(kit.program("sh").args(["-c", line]).status().expect("a shell").success(), "{line}");
    // Neither the index nor the record can be written: directories are in their way, as a full disk would be.
    shell("mkdir ../store/directories/1.index.new ../store/directories/1.tmp");
    for word in ["two", "three", "four"] {
        kit.write("file", format!("{word}\n"));
        let done = kit.run(&["commit", "-m", word]).ends(0);
        assert!(done.err.contains("warning: the index of the directory was not saved"), "{}", done.err);
        assert!(done.err.contains("warning: the record of the directory was not saved"), "{}", done.err);
        assert_eq!(kit.run(&["show", "@:file"]).ends(0).out, format!("{word}\n"));
    }
    kit.run(&["status", "--exit-code"]).ends(0);
    // Another process knows nothing but what was written before.
    kill(kit.process().expect("it runs"));
    kit.write("file", "five\n");
    kit.run(&["commit"]).ends(0);
    shell("rmdir ../store/directories/1.index.new ../store/directories/1.tmp");
    let restored = kit.run(&["restore", "@~2"]).ends(0);
    assert!(!restored.err.contains("warning"), "{}", restored.err);
    assert_eq!(fs::read_to_string(kit.work().join("file")).expect("there"), "three\n");
    kit.run(&["undo"]).ends(0);
    assert_eq!(fs::read_to_string(kit.work().join("file")).expect("there"), "five\n");
    kit.run(&["status", "--exit-code"]).ends(0);
}

#[test]
fn undo_redo_and_restore_report_what_their_capture_skipped() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.write("other", "one\n");
    kit.write("secret", "one\n");
    kit.run(&["init"]).ends(0);
    kit.write("file", "two\n");
    kit.write("secret", "nobody can read this\n");
    fs::set_permissions(kit.work().join("secret"), fs::Permissions::from_mode(0o000)).expect("it is there");
    let is_reported = |done: &Done| done.err.contains("skipped secret: permission denied\n");
    let done = kit.run(&["restore", "file"]).ends(3);
    assert!(is_reported(&done), "{}", done.err);
    kit.write("file", "three\n");
    let done = kit.run(&["undo"]).ends(3);
    assert!(is_reported(&done), "{}", done.err);
    let done = kit.run(&["redo"]).ends(3);
    assert!(is_reported(&done), "{}", done.err);
    let done = kit.run(&["undo", "--json"]).ends(3);
    assert!(done.json().iter().any(|line| line["type"] == "notice" && line["path"] == "secret"), "{}", done.out);
    fs::set_permissions(kit.work().join("secret"), fs::Permissions::from_mode(0o644)).expect("it is there");
    assert_eq!(fs::read_to_string(kit.work().join("secret")).expect("there"), "nobody can read this\n");
}

#[test]
fn files_with_names_like_temporary_ones_come_back_after_their_directory_was_removed() {
    let kit = Kit::new();
    kit.write("file", "one\n");
    kit.run(&["init", "--workspace", "base"]).ends(0);
    kit.run(&["fork", "try", "--dir", "../try"]).ends(0);
    let tree = kit.path("try");
    fs::create_dir(tree.join(".amalgam-tmp.0a1f")).expect("made");
    for name in [".amalgam-tmp.0a1f/inside", ".amalgam-tmp.0a1f0a1f0a1f0a1f"] {
        fs::write(tree.join(name), "mine\n").expect("written");
    }
    kit.own("try".as_ref());
    kit.run(&["ws", "rm", "try", "--dir", "--yes"]).ends(0);
    assert!(!tree.exists());
    kit.run(&["ws", "undelete", "try"]).ends(0);
    for name in [".amalgam-tmp.0a1f/inside", ".amalgam-tmp.0a1f0a1f0a1f0a1f"] {
        assert_eq!(kit.run(&["show", &format!("try@:{name}")]).ends(0).out, "mine\n");
    }
}

fn fill(kit: &Kit) {
    for number in 0..3_000 {
        let file = kit.work().join(format!("d{}/f{number}", number % 37));
        fs::create_dir_all(file.parent().expect("a parent")).expect("directories");
        fs::write(file, format!("{number} {}\n", "x".repeat(number % 3_000))).expect("a file");
    }
    for number in 0..200 {
        fs::write(kit.work().join(format!("top{number}")), format!("{number}\n")).expect("a file");
    }
    kit.own("work".as_ref());
}

/// Runs a command again that was interrupted. What the process does for the first one ends in a moment.
fn again(kit: &Kit, arguments: &[&str]) -> Done {
    let began = Instant::now();
    loop {
        let done = kit.run(arguments);
        if !done.err.contains("is being written by another checkout") || began.elapsed() > Duration::from_secs(20) {
            return done;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Begins a checkout and waits until some of it is there. Says whether that was all.
fn begin_checkout(kit: &Kit, arguments: &[&str], out: &Path, end: impl FnOnce(&mut std::process::Child)) -> bool {
    let mut child = kit.command(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let began = Instant::now();
    while !out.join("d1").exists() && began.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    end(&mut child);
    let code = wait(&mut child, Duration::from_secs(30)).expect("it does not hang");
    let mut said = String::new();
    child.stderr.take().expect("asked for").read_to_string(&mut said).expect("read");
    code == 0
}

/// The number of paths below a directory that a process may still be writing: a temporary file that it renamed
/// between the listing and the look at it does not count.
fn count_paths(directory: &Path) -> usize {
    let names = fs::read_dir(directory).into_iter().flatten().flatten();
    let count = |path: &Path| match path.symlink_metadata() {
        Ok(found) if found.is_dir() => 1 + count_paths(path),
        Ok(_) => 1,
        Err(_) => 0,
    };
    names.map(|name| count(&name.path())).sum()
}

#[test]
fn a_checkout_that_was_killed_is_done_by_the_same_command() {
    let kit = Kit::new();
    fill(&kit);
    kit.run(&["init", "--workspace", "base"]).ends(0);
    let wanted = kit.tree(&kit.work());
    let mut interrupted = 0;
    for (round, dies) in ["client", "process", "client", "process"].into_iter().enumerate() {
        let out = kit.path(format!("out{round}"));
        let (path, name) = (out.display().to_string(), format!("of{round}"));
        let mut arguments = vec!["checkout", "@", &path];
        if round < 2 {
            arguments.extend(["--workspace", &name]);
        }
        let process = kit.process().expect("it runs");
        let is_whole = begin_checkout(&kit, &arguments, &out, |child| match dies {
            "client" => child.kill().expect("it is killed"),
            _ => kill(process),
        });
        if is_whole {
            continue;
        }
        let is_half = count_paths(&out) < wanted.len();
        interrupted += usize::from(is_half);
        // A file that the user put there is not removed, and stands in the way.
        if is_half {
            fs::write(out.join("mine"), "mine\n").expect("written");
            kit.own(format!("out{round}").as_ref());
            let refused = again(&kit, &arguments);
            assert_ne!(refused.code, 0);
            let was_finished = refused.err.contains("is not empty");
            assert!(
                was_finished || refused.err.contains("holds mine, which did not come from the checkout"),
                "{}",
                refused.err
            );
            assert_eq!(fs::read_to_string(out.join("mine")).expect("there"), "mine\n");
            fs::remove_file(out.join("mine")).expect("removed");
        }
        // The process may have written the last file before it noticed that its client was gone. Then nothing is left to do.
        let done = again(&kit, &arguments);
        if !(dies == "client" && done.err.contains("is not empty")) {
            done.ends(0);
        }
        assert_eq!(kit.tree(&out), wanted);
        if round < 2 {
            kit.run_in(&out, &["status", "--exit-code"]).ends(0);
        }
    }
    assert!(interrupted > 0, "no checkout was interrupted");
}

/// Turns one bit of the stored bytes of a file, while no process holds the store.
fn damage(kit: &Kit, bytes: &[u8]) {
    kit.run(&["stop"]).ends(0);
    let needle = &bytes[bytes.len() / 2..][..64];
    let mut open = vec![kit.path("store")];
    let mut turned = 0;
    while let Some(here) = open.pop() {
        for name in fs::read_dir(&here).expect("it can be listed") {
            let path = name.expect("a name").path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let mut held = fs::read(&path).expect("it can be read");
            if let Some(at) = held.windows(needle.len()).position(|window| window == needle) {
                held[at] ^= 1;
                fs::write(&path, held).expect("written");
                turned += 1;
            }
        }
    }
    assert!(turned > 0, "the bytes are not in the store as they are");
}

#[test]
fn one_damaged_file_costs_that_file_and_is_named() {
    let kit = Kit::new();
    let mut state = 88_172_645_463_325_252_u64;
    let random: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(8_000)
    .flatten()
    .collect();
    for number in 0..280 {
        kit.write_unowned(&format!("d{}/f{number}", number % 7), format!("{number}\n"));
    }
    kit.write_unowned("d3/damaged", &random);
    kit.own("work".as_ref());
    kit.run(&["init"]).ends(0);
    kit.run(&["gc"]).ends(0);
    damage(&kit, &random);
    let out = kit.path("out");
    let path = out.display().to_string();
    // Not from the directory itself: files are copied from there where it has them.
    let done = kit.run_in(&kit.path(""), &["checkout", "work@", &path]).ends(3);
    assert!(done.err.contains("skipped d3/damaged: not written: "), "{}", done.err);
    assert!(done.err.contains("`amalgam verify`"), "{}", done.err);
    let missing = 281 - (kit.tree(&out).len() - 7);
    assert_eq!(done.err.matches("skipped ").count(), missing, "{}", done.err);
    assert!(missing < 20, "{missing} files are missing: {}", done.err);
    // What is on the disk stays where the store has nothing better.
    kit.write("d3/damaged", "edited\n");
    kit.run(&["restore", "d3/damaged"]).ends(3);
    assert_eq!(fs::read_to_string(kit.work().join("d3/damaged")).expect("there"), "edited\n");
}
