//! Paths that could not be written: no commit takes them for edits of the user.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::time::{Duration, Instant};

use super::kit::Kit;

/// A directory with `build/x`, and a fork that changed it and made `build/new`. Then `build` is given to root.
fn with_a_closed_build() -> Option<Kit> {
    if !rustix::process::geteuid().is_root() {
        amalgam_test_support::skip("root", "only root can give a directory to another user");
        return None;
    }
    let kit = Kit::new();
    kit.write("build/x", "1\n");
    kit.write("g", "1\n");
    kit.run(&["init", "-q"]).ends(0);
    let fork = kit.path("fork");
    kit.run(&["fork", "-q", "agent", "--dir", &fork.display().to_string()]).ends(0);
    for (path, text) in [("build/x", "2\n"), ("build/new", "new\n"), ("g", "2\n")] {
        fs::write(fork.join(path), text).expect("written");
    }
    kit.own("fork".as_ref());
    kit.run_in(&fork, &["commit", "-q", "-m", "agent"]).ends(0);
    give_build(&kit, 0);
    Some(kit)
}

fn give_build(kit: &Kit, user: u32) {
    let build = kit.work().join("build");
    let files = fs::read_dir(&build).expect("listed").map(|name| name.expect("a name").path());
    for path in files.chain([build]) {
        chown(path, Some(user), Some(user)).expect("root may");
    }
}

fn cat(kit: &Kit, path: &str) -> String {
    kit.run(&["show", &format!("@:{path}")]).ends(0).out
}

#[test]
fn a_path_that_a_merge_could_not_write_is_no_edit_of_the_user() {
    let Some(kit) = with_a_closed_build() else { return };
    let merged = kit.run(&["merge", "agent"]).ends(3);
    assert!(merged.err.contains("skipped build/x"), "{}", merged.err);
    assert_eq!(fs::read(kit.work().join("g")).expect("there"), b"2\n");
    let status = kit.run(&["status", "--exit-code"]).ends(0);
    let said = status.out.clone() + &status.err;
    assert!(said.contains("not written here: build/new, build/x (") && said.contains("permission denied"), "{said}");
    let told = kit.run(&["status", "--json"]).ends(0).json();
    let paths: Vec<_> = told.iter().filter(|line| line["kind"] == "unwritten").map(|line| &line["path"]).collect();
    assert_eq!(paths, ["build/new", "build/x"]);
    assert_eq!(told.iter().find(|line| line["type"] == "status").expect("a status")["unwritten"], 2);

    kit.write_unowned("o", "other\n");
    chown(kit.work().join("o"), Some(65_534), Some(65_534)).expect("root may");
    let committed = kit.run(&["commit", "-m", "other"]).ends(0);
    assert!((committed.out + &committed.err).contains("1 changed (+1 ~0 -0)"));
    assert_eq!((cat(&kit, "build/x"), cat(&kit, "build/new")), ("2\n".to_owned(), "new\n".to_owned()));

    // The process knows it after a restart, and a restore writes what it could not write before.
    kit.run(&["stop"]).ends(0);
    kit.run(&["status", "--exit-code"]).ends(0);
    // Who corrects the permissions has not changed the files.
    give_build(&kit, 65_534);
    kit.run(&["commit", "-q", "-m", "owner"]).ends(0);
    assert_eq!((cat(&kit, "build/x"), cat(&kit, "build/new")), ("2\n".to_owned(), "new\n".to_owned()));
    kit.run(&["restore", "build/x"]).ends(0);
    assert_eq!(fs::read(kit.work().join("build/x")).expect("there"), b"2\n");
    let status = kit.run(&["status"]).ends(0);
    assert!(
        (status.out.clone() + &status.err).contains("not written here: build/new ("),
        "{}",
        status.out + &status.err
    );

    // A path that the user changes is the user's.
    kit.write("build/new", "mine\n");
    let status = kit.run(&["status", "--exit-code"]).ends(4);
    assert!(!(status.out + &status.err).contains("not written"));
    kit.run(&["commit", "-q"]).ends(0);
    assert_eq!(cat(&kit, "build/new"), "mine\n");
    kit.run(&["verify", "--read-data"]).ends(0);
}

#[test]
fn an_undo_and_a_redo_that_could_not_write_everything_go_on_afterwards() {
    let Some(kit) = with_a_closed_build() else { return };
    kit.run(&["merge", "agent"]).ends(3);
    kit.run(&["undo"]).ends(0);
    let status = kit.run(&["status", "--exit-code"]).ends(0);
    assert!(!(status.out + &status.err).contains("not written"), "the files are those of before the merge");
    assert_eq!(cat(&kit, "build/x"), "1\n");
    kit.run(&["redo"]).ends(3);
    assert_eq!(cat(&kit, "build/x"), "2\n");
    kit.run(&["status", "--exit-code"]).ends(0);
    give_build(&kit, 65_534);
    kit.run(&["restore", "build"]).ends(0);
    assert_eq!(fs::read(kit.work().join("build/new")).expect("there"), b"new\n");
    kit.run(&["commit", "-q", "-m", "written"]).ends(0);

    // An undo that cannot write a file leaves it as no edit, and the next undo goes on.
    kit.write("build/x", "3\n");
    kit.write("build/more", "more\n");
    kit.run(&["commit", "-q", "-m", "three"]).ends(0);
    give_build(&kit, 0);
    kit.run(&["commit", "-q", "-m", "owner"]).ends(0);
    kit.run(&["undo"]).ends(0);
    kit.run(&["undo"]).ends(3);
    assert_eq!(fs::read(kit.work().join("build/x")).expect("there"), b"3\n");
    kit.run(&["status", "--exit-code"]).ends(0);
    kit.run(&["commit", "-q"]).ends(0);
    assert_eq!(cat(&kit, "build/x"), "2\n");
    kit.run(&["show", "@:build/more"]).ends(1);
}

#[test]
fn a_merge_reports_only_unwritten_paths_that_it_concerns() {
    let Some(kit) = with_a_closed_build() else { return };
    kit.run(&["merge", "agent"]).ends(3);
    let fork = kit.path("fork");
    fs::write(fork.join("g"), "3\n").expect("written");
    kit.own("fork".as_ref());
    kit.run_in(&fork, &["commit", "-q", "-m", "g"]).ends(0);
    kit.run(&["merge", "agent"]).ends(0);
    assert_eq!(fs::read(kit.work().join("g")).expect("there"), b"3\n");
    fs::write(fork.join("build/x"), "4\n").expect("written");
    kit.own("fork".as_ref());
    kit.run_in(&fork, &["commit", "-q", "-m", "x"]).ends(0);
    let merged = kit.run(&["merge", "agent"]).ends(3);
    assert!(merged.err.contains("skipped build/x") && !merged.err.contains("build/new"), "{}", merged.err);
    assert_eq!((cat(&kit, "build/x"), cat(&kit, "build/new")), ("4\n".to_owned(), "new\n".to_owned()));
    kit.run(&["restore", "@"]).ends(3);
}

#[test]
fn a_directory_that_the_user_removed_is_removed_with_its_unwritten_paths() {
    let Some(kit) = with_a_closed_build() else { return };
    kit.run(&["merge", "agent"]).ends(3);
    fs::remove_dir_all(kit.work().join("build")).expect("root may");
    kit.run(&["commit", "-q"]).ends(0);
    let listed = kit.run(&["ls", "@"]).ends(0).out;
    assert!(!listed.contains("build"), "{listed}");
}

#[test]
fn a_watch_records_no_path_that_a_merge_could_not_write() {
    let Some(kit) = with_a_closed_build() else { return };
    kit.run(&["watch", "--background", "--every", "100ms"]).ends(0);
    kit.run(&["merge", "agent"]).ends(3);
    kit.write_unowned("o", "other\n");
    chown(kit.work().join("o"), Some(65_534), Some(65_534)).expect("root may");
    let began = Instant::now();
    while kit.run(&["show", "@:o"]).code != 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the watch takes no snapshot");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((cat(&kit, "build/x"), cat(&kit, "build/new")), ("2\n".to_owned(), "new\n".to_owned()));
    kit.run(&["watch", "--stop"]).ends(0);
}

fn git(kit: &Kit, directory: &Path, arguments: &[&str]) -> String {
    let names =
        ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always", "-c", "safe.directory=*"];
    let done = kit.program("git").args(names).args(arguments).current_dir(directory).output().expect("git runs");
    assert!(done.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A repository with one commit.
fn repository(kit: &Kit, name: &str) {
    let place = kit.path(name);
    fs::create_dir_all(&place).expect("made");
    kit.own(name.as_ref());
    git(kit, &place, &["init", "-q"]);
    fs::write(place.join("a"), "1\n").expect("written");
    kit.own(name.as_ref());
    git(kit, &place, &["add", "."]);
    git(kit, &place, &["commit", "-q", "-m", "one"]);
}

#[test]
fn a_submodule_works_in_a_fork() {
    let kit = Kit::new();
    repository(&kit, "library");
    repository(&kit, "work");
    let library = kit.path("library").display().to_string();
    git(&kit, &kit.work(), &["submodule", "add", "-q", &library, "sub"]);
    kit.run(&["init", "-q"]).ends(0);
    let fork = kit.path("fork");
    kit.run(&["fork", "agent", "--dir", &fork.display().to_string()]).ends(0);
    let directory = git(&kit, &fork.join("sub"), &["rev-parse", "--absolute-git-dir"]);
    assert_eq!(Path::new(&directory), fork.canonicalize().expect("there").join(".git/modules/sub"));
    kit.run_in(&fork, &["status", "--exit-code"]).ends(0);
}

#[test]
fn a_git_file_that_is_left_out_of_a_fork_is_told_and_not_recorded_as_deleted() {
    let kit = Kit::new();
    repository(&kit, "main");
    fs::remove_dir(kit.work()).expect("empty");
    git(&kit, &kit.path("main"), &["worktree", "add", "-q", "--detach", &kit.work().display().to_string()]);
    kit.run(&["init", "-q"]).ends(0);
    let fork = kit.path("fork");
    let forked = kit.run(&["fork", "agent", "--dir", &fork.display().to_string()]).ends(0);
    assert!(forked.err.contains("left out: .git: it names a Git repository outside of this tree"), "{}", forked.err);
    assert!(!fork.join(".git").exists());
    let status = kit.run_in(&fork, &["status", "--exit-code"]).ends(0);
    assert!((status.out + &status.err).contains("not written here: .git ("));
    fs::write(fork.join("a"), "w\n").expect("written");
    kit.own("fork".as_ref());
    let committed = kit.run_in(&fork, &["commit", "-m", "w"]).ends(0);
    assert!((committed.out + &committed.err).contains("1 changed (+0 ~1 -0)"));
    kit.run(&["merge", "agent"]).ends(0);
    assert!(kit.run(&["ls", "@"]).ends(0).out.contains(".git"));
    assert!(kit.work().join(".git").exists());
    // A checkout into a new directory tells the same.
    let out = kit.path("out").display().to_string();
    let checked = kit.run(&["checkout", "@", &out, "--detached"]).ends(0);
    assert!(checked.err.contains("left out: .git"), "{}", checked.err);
}

#[test]
fn a_path_that_a_checkout_could_not_write_is_not_recorded_as_deleted() {
    let kit = Kit::new();
    kit.write("a", "1\n");
    kit.run(&["init", "-q"]).ends(0);
    // A tar header of a sparse file that no file system holds, with its size in base 256 (GNU).
    let tar = kit.path("huge.tar");
    fs::write(&tar, huge_tar()).expect("written");
    kit.own("huge.tar".as_ref());
    kit.run(&["import", "tar", &tar.display().to_string(), "-w", "huge", "-q"]).ends(0);
    let out = kit.path("out");
    let checked = kit.run(&["checkout", "huge@", &out.display().to_string(), "--workspace", "huge"]).ends(3);
    assert!(checked.err.contains("skipped huge"), "{}", checked.err);
    fs::write(out.join("hi"), "hi\n").expect("written");
    kit.own("out".as_ref());
    let committed = kit.run_in(&out, &["commit", "-m", "hi"]).ends(0);
    assert!(
        (committed.out.clone() + &committed.err).contains("1 changed (+1 ~0 -0)"),
        "{}",
        committed.out + &committed.err
    );
}

/// An archive with one sparse file of 2^63 - 1 bytes, in the format of GNU tar.
fn huge_tar() -> Vec<u8> {
    let mut header = vec![0_u8; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"huge");
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, b"00000000000\0");
    put(136, b"00000000000\0");
    put(156, b"S");
    put(257, b"ustar  \0");
    // No extents; the real size.
    let mut size = [0_u8; 12];
    size[0] = 0x80;
    size[4..].copy_from_slice(&i64::MAX.to_be_bytes());
    put(483, &size);
    put(148, b"        ");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header.resize(512 * 3, 0);
    header
}
