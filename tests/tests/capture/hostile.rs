//! Directories that change while they are captured, that cannot be read, that lead elsewhere.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use amalgam_materializer::{Captured, Notice, Scope, Why};
use amalgam_tests::model::contents;
use rustix::fs::{CWD, RenameFlags};
use rustix::process::Uid;

use crate::kit::{World, path, set_mtime, settle};

/// Does something again and again while something else runs.
fn while_running(mut again: impl FnMut(u64) + Send, run: impl FnOnce(&AtomicU64)) {
    let (stop, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                again(turns.fetch_add(1, Ordering::Relaxed));
            }
        });
        run(&turns);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn files_that_change_meanwhile_do_not_fail_it() {
    let world = World::new();
    let (grows, shrinks, replaced) = (world.at("grows"), world.at("shrinks"), world.at("replaced"));
    for name in 0..50 {
        fs::write(world.at(format!("still-{name}")), vec![7; 10_000]).expect("written");
    }
    fs::write(&shrinks, vec![1; 3 << 20]).expect("written");
    let mut index = world.index();
    let change = |turn: u64| {
        use std::io::Write;
        let mut file = fs::OpenOptions::new().append(true).create(true).open(&grows).expect("opened");
        file.write_all(&[1; 10_000]).expect("written");
        file.set_len(if turn.is_multiple_of(50) { 0 } else { file.metadata().expect("there").len() }).expect("set");
        let file = fs::OpenOptions::new().write(true).open(&shrinks).expect("opened");
        file.set_len(if turn.is_multiple_of(2) { 100 } else { 3 << 20 }).expect("set");
        fs::write(world.at("apart"), turn.to_le_bytes()).expect("written");
        fs::rename(world.at("apart"), &replaced).expect("moved");
    };
    while_running(change, |turns| {
        while turns.load(Ordering::Relaxed) < 300 {
            let captured = world.capture(&mut index);
            assert!(captured.notices.iter().all(|notice| notice.why == Why::Changing), "{:?}", captured.notices);
            assert_eq!(captured.tree.read("still-7").expect("read"), vec![7; 10_000]);
        }
    });
    assert_eq!(world.capture(&mut index).root, world.fresh().root);
}

#[test]
fn a_directory_that_becomes_a_symlink_leads_nowhere() {
    let world = World::new();
    let canary = world.temp.path().join("canary");
    fs::create_dir_all(canary.join("below")).expect("made");
    fs::write(canary.join("secret"), b"secret").expect("written");
    fs::write(canary.join("below/secret"), b"secret").expect("written");
    fs::create_dir_all(world.at("flip/below")).expect("made");
    fs::write(world.at("flip/secret"), b"harmless").expect("written");
    fs::write(world.at("flip/below/secret"), b"harmless").expect("written");
    let other = world.temp.path().join("other");
    symlink(&canary, &other).expect("made");
    let flip = world.at("flip");
    let mut index = world.index();
    let exchange = |_| {
        rustix::fs::renameat_with(CWD, &flip, CWD, &other, RenameFlags::EXCHANGE).expect("exchanged");
        std::thread::yield_now();
    };
    while_running(exchange, |turns| {
        let mut captures = 0;
        while turns.load(Ordering::Relaxed) < 5_000 || captures < 50 {
            captures += 1;
            for captured in [world.capture(&mut index), world.fresh()] {
                for (path, seen) in contents(&captured.tree).expect("read").paths {
                    assert_ne!(seen.bytes.0, b"secret", "{path}");
                }
            }
            world.changes(&mut index);
        }
    });
    assert_eq!(world.capture(&mut index).root, world.fresh().root);
}

/// Runs without the right to read what is not one's own, whoever runs the suite.
fn unprivileged(run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let child = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let nobody = Uid::from_raw(65_534);
                rustix::thread::set_thread_res_uid(None, nobody, None).expect("it gives up its rights");
            }
            run();
        });
        if let Err(panic) = child.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

fn failures(captured: &Captured) -> Vec<String> {
    let failures = captured.notices.iter().filter(|notice| notice.why.is_failure());
    failures.map(|notice| notice.path.to_string()).collect()
}

#[test]
fn what_cannot_be_read_stays_as_it_was() {
    let world = World::new();
    fs::create_dir(world.at("dir")).expect("made");
    for (name, text) in [("file", "old"), ("other", "old"), ("dir/inside", "old")] {
        fs::write(world.at(name), text).expect("written");
    }
    for open in [world.temp.path(), world.host.path()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o755)).expect("set");
    }
    settle();
    let mut index = world.index();
    world.capture(&mut index);
    for (name, text) in [("file", "new!"), ("other", "new!"), ("dir/inside", "new!"), ("unseen", "new!")] {
        fs::write(world.at(name), text).expect("written");
    }
    let set = |mode: u32| {
        for name in ["file", "dir", "unseen"] {
            fs::set_permissions(world.at(name), fs::Permissions::from_mode(mode)).expect("set");
        }
    };
    set(0);
    unprivileged(|| {
        let captured = world.capture(&mut index);
        assert_eq!(failures(&captured), ["dir", "file", "unseen"]);
        let read = |name: &str| captured.tree.read(name).expect("read");
        assert_eq!(
            (&read("file")[..], &read("dir/inside")[..], &read("other")[..]),
            (&b"old"[..], &b"old"[..], &b"new!"[..])
        );
        assert!(!captured.tree.exists("unseen").expect("read"));
        let changes = world.changes(&mut index);
        assert!(changes.deleted.is_empty(), "{:?}", changes.deleted);
        // A directory that may be listed but not entered says as little.
        assert_eq!(failures(&world.capture(&mut index)), ["dir", "file", "unseen"]);
    });
    set(0o444);
    unprivileged(|| {
        let captured = world.capture(&mut index);
        assert_eq!(failures(&captured), ["dir"]);
        assert_eq!(captured.tree.read("dir/inside").expect("read"), b"old");
        assert_eq!(captured.tree.read("file").expect("read"), b"new!");
    });
    set(0o755);
    assert_eq!(world.capture(&mut index).root, world.fresh().root);
}

#[test]
fn hard_links_that_cannot_be_read_stay_a_group_or_become_none() {
    let world = World::new();
    for open in [world.temp.path(), world.host.path()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o777)).expect("set");
    }
    fs::write(world.at("a"), "old").expect("written");
    fs::hard_link(world.at("a"), world.at("b")).expect("linked");
    fs::hard_link(world.at("a"), world.at("c")).expect("linked");
    let mut index = world.index();
    world.capture(&mut index);
    fs::set_permissions(world.at("a"), fs::Permissions::from_mode(0o000)).expect("set");
    for (removed, groups) in [("b", 1), ("a", 0)] {
        fs::remove_file(world.at(removed)).expect("removed");
        unprivileged(|| {
            let captured = world.capture(&mut index);
            assert_eq!(captured.tree.read("c").expect("read"), b"old");
            assert_eq!(amalgam_tests::model::link_classes(&captured.tree).expect("read").len(), groups);
            assert!(!failures(&captured).is_empty());
        });
    }
}

#[test]
fn another_file_system_is_an_empty_directory() {
    const INSIDE: &str = "AMALGAM_TEST_MOUNTED";
    if std::env::var_os(INSIDE).is_none() {
        let test = std::env::current_exe().expect("this program");
        let script = r#"mount -t tmpfs none "$1/tree/mounted" && touch "$1/tree/mounted/inside" && \
            mount --bind "$1/tree/plain" "$1/tree/bound" && exec "$0" --exact hostile::another_file_system_is_an_empty_directory"#;
        let world = World::new();
        for name in ["mounted", "plain", "bound"] {
            fs::create_dir(world.at(name)).expect("made");
        }
        fs::write(world.at("plain/file"), b"x").expect("written");
        let mut command = Command::new("unshare");
        command.args(["-Urm", "sh", "-c", script]).arg(&test).arg(world.temp.path()).env(INSIDE, world.temp.path());
        let Ok(done) = command.output() else {
            return amalgam_test_support::skip("userns", "there is no unshare here");
        };
        let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
        if !done.status.success() && !said.contains("running 1 test") {
            return amalgam_test_support::skip("userns", &format!("nothing can be mounted here: {said}"));
        }
        assert!(done.status.success(), "{said}");
        return;
    }
    let mut world = World::new();
    let real = std::path::PathBuf::from(std::env::var_os(INSIDE).expect("it is set"));
    world.host = amalgam_materializer::HostDir::open(real.join("tree")).expect("it opens");
    let mut index = world.index();
    for _ in 0..2 {
        let captured = world.try_capture(&mut index, Scope::All).expect("captured");
        let notice = |at: &str| Notice { path: path(at), why: Why::OtherFileSystem };
        assert_eq!(captured.notices, [notice("bound"), notice("mounted")]);
        let paths: Vec<_> =
            contents(&captured.tree).expect("read").paths.into_keys().map(|path| path.to_string()).collect();
        assert_eq!(paths, ["(root)", "bound", "mounted", "plain", "plain/file"]);
    }
}

#[test]
fn a_sparse_file_whose_time_changed_is_compared_by_its_data() {
    let world = World::new();
    let sparse = fs::File::create(world.at("sparse")).expect("made");
    sparse.set_len(4 << 40).expect("long");
    sparse.write_all_at(b"data", 3 << 40).expect("written");
    let mut index = world.index();
    world.capture(&mut index);
    set_mtime(&world.at("sparse"), 1_000_000);
    let found = world.changes(&mut index);
    assert!(found.modified.is_empty() && found.notices.is_empty());
    assert!((1..1 << 20).contains(&found.counts.bytes_read), "{}", found.counts.bytes_read);
    sparse.write_all_at(b"date", 3 << 40).expect("written");
    assert_eq!(world.changes(&mut index).modified, [path("sparse")]);
}
