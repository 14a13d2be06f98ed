//! What goes wrong around a checkout: swapped directories, kills, full disks, no privilege.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use amalgam_engine::backend::{Backend as _, Memory, StoredObject, Sweep as _};
use amalgam_engine::object::{Device, Owner};
use amalgam_engine::work::Special;
use amalgam_engine::{ChunkId, ErrorKind, RootId, Store, StoreOptions, TreePath, WorkingTree};
use amalgam_materializer::{
    CheckoutOptions, HostDir, Index, KnownContents, Notice, Scope, Staging, Why, checkout, checkout_staged,
    clean_leftovers,
};
use amalgam_tests::harness::{Random, seed};
use amalgam_tests::model::contents;
use rustix::fs::{CWD, RenameFlags};

use crate::kit::{World, path, paths, see, settle};

/// Runs one of these tests once more in another process.
fn again(test: &str, wrapper: &[&str], variable: &str, value: &Path) -> Command {
    let program = std::env::current_exe().expect("this program");
    let mut command = match wrapper {
        [] => Command::new(&program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(&program);
            command
        }
    };
    command.args(["--exact", test, "--nocapture"]).env(variable, value);
    command
}

/// Runs it to its end; reports a skipped test where it did not even begin, for lack of a capability.
fn run_again(capability: &str, test: &str, wrapper: &[&str], variable: &str, value: &Path) {
    let Ok(done) = again(test, wrapper, variable, value).output() else {
        return amalgam_test_support::skip(capability, &format!("there is no {} here", wrapper[0]));
    };
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    if !done.status.success() && !said.contains("running 1 test") {
        return amalgam_test_support::skip(capability, &format!("{wrapper:?}: {said}"));
    }
    assert!(done.status.success(), "{said}");
}

#[test]
fn a_directory_that_turns_into_a_symlink_leads_nowhere() {
    let world = World::new();
    let (canary, aside) = (world.temp.path().join("canary"), world.temp.path().join("aside"));
    for directory in [&canary, &canary.join("deep")] {
        fs::create_dir(directory).expect("made");
        for name in ["one", "two", "three"] {
            fs::write(directory.join(name), b"mine").expect("written");
        }
    }
    let before = see(&canary);
    let tree_of = |names: &[&str], bytes: &[u8]| {
        let mut tree = world.tree();
        tree.create_directories("d/deep").expect("made");
        for name in names {
            tree.write(format!("d/{name}"), bytes).expect("written");
            tree.write(format!("d/deep/{name}"), bytes).expect("written");
        }
        tree
    };
    let trees = [tree_of(&["one", "two"], b"first"), tree_of(&["two", "three"], b"second"), world.tree()];
    world.checkout(&world.index(), &trees[0]);
    let (flips, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let inside = world.at("d");
            let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
            while !is_over.load(Ordering::Relaxed) {
                if !is_link(&aside) && !is_link(&inside) {
                    fs::remove_dir_all(&aside).ok();
                    symlink(&canary, &aside).ok();
                }
                if rustix::fs::renameat_with(CWD, &aside, CWD, &inside, RenameFlags::EXCHANGE).is_ok() {
                    flips.fetch_add(1, Ordering::Relaxed);
                } else if aside.symlink_metadata().is_ok() {
                    rustix::fs::renameat_with(CWD, &aside, CWD, &inside, RenameFlags::NOREPLACE).ok();
                }
            }
        });
        let mut round = 0;
        while flips.load(Ordering::Relaxed) < 5_000 || round < 200 {
            let mut index = world.index();
            world.capture(&mut index, Scope::All, &KnownContents::default());
            // Whatever comes of it where the directory is not what it was: only the canary counts.
            world.try_checkout(&index, &trees[round % trees.len()]).ok();
            assert_eq!(see(&canary), before, "round {round}");
            round += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(see(&canary), before);
}

/// Two trees of some hundred files, most of which differ; half of the directories of the second are new.
fn two_large_trees(store: &Store) -> [WorkingTree; 2] {
    [1, 2].map(|which: u64| {
        let mut tree = WorkingTree::new(store);
        let mut random = Random::new(which);
        for directory in 0..24_u64 {
            let name = if directory % 2 == 0 { format!("d{directory}") } else { format!("d{directory}-{which}") };
            tree.create_directory(&name, 0o755).expect("made");
            for file in 0..16 {
                let length = random.below(60_000) as usize;
                tree.write(format!("{name}/f{file}"), &random.bytes(length)).expect("written");
            }
            tree.link(format!("{name}/f0"), format!("{name}/linked")).expect("linked");
        }
        let kind = if which == 1 { "a file" } else { "a directory" };
        tree.create_directory(if which == 1 { "turns 1" } else { "turns 2" }, 0o755).expect("made");
        tree.write(if which == 1 { "turns 2" } else { "turns 1" }, kind.as_bytes()).expect("written");
        tree
    })
}

#[test]
fn killed_at_any_moment_it_leaves_old_or_new_and_can_be_finished() {
    const INSIDE: &str = "AMALGAM_TEST_KILLED_CHECKOUT";
    if let Some(job) = std::env::var_os(INSIDE) {
        return check_out_until_killed(&fs::read_to_string(job).expect("the job"));
    }
    let seed = seed();
    eprintln!("AMALGAM_SEED={seed}");
    let mut random = Random::new(seed);
    let mut world = World::new();
    let directory = world.temp.path().join("store");
    let job = world.temp.path().join("job");
    world.store = Store::open(&directory).expect("it opens");
    let mut trees = two_large_trees(&world.store);
    let mut roots = Vec::new();
    for tree in &mut trees {
        let snapshot = amalgam_tests::model::commit(tree).expect("committed");
        roots.push(world.store.snapshot(snapshot).expect("there").root);
    }
    let views = trees.each_ref().map(|tree| contents(tree).expect("read").paths);
    world.checkout(&world.index(), &trees[0]);
    drop(trees);
    let mut died_in_the_middle = 0;
    for round in 0..30 {
        let target = (round + 1) % 2;
        let digits: String = roots[target].as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let lines = format!("{}\n{}\n{digits}", directory.display(), world.host.path().display());
        fs::write(&job, lines).expect("written");
        world.store = Store::in_memory();
        let test = "faults::killed_at_any_moment_it_leaves_old_or_new_and_can_be_finished";
        let mut command = again(test, &[], INSIDE, &job);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.map_while(Result::ok).find(|line| line.contains("ready")).expect("it gets ready");
        let token = ready.rsplit(' ').next().expect("a word").to_owned();
        std::thread::sleep(Duration::from_micros(random.below(25_000)));
        child.kill().expect("it is killed");
        child.wait().expect("it ended");
        let found = see(world.host.path());
        for (path, old) in &views[1 - target] {
            let (Some(new), Some(found)) = (views[target].get(path), found.get(path)) else { continue };
            assert!(found.bytes == old.bytes || found.bytes == new.bytes, "round {round}: {path} is neither");
        }
        died_in_the_middle += usize::from(found.keys().any(|path| !views[target].contains_key(path)));
        world.store = Store::open(&directory).expect("it opens");
        let tree = WorkingTree::open_root(&world.store, roots[target]).expect("it opens");
        let directories: Vec<TreePath> = paths(world.host.path()).into_iter().collect();
        clean_leftovers(&world.host, &directories, &token).expect("cleaned");
        let done = world.checkout(&world.look(), &tree);
        assert_eq!(done.notices, [], "round {round}");
        world.expect(&tree);
    }
    eprintln!("{died_in_the_middle} of 30 died in the middle");
    assert!(died_in_the_middle > 0, "no kill came in time");
}

fn check_out_until_killed(job: &str) {
    let [store, directory, root] = job.lines().collect::<Vec<_>>()[..] else { panic!("three lines: {job}") };
    let mut world = World::new();
    world.store = Store::open(store).expect("it opens");
    world.host = HostDir::open(directory).expect("it opens");
    let bytes = (0..32).map(|at| u8::from_str_radix(&root[at * 2..at * 2 + 2], 16).expect("two digits"));
    let root = RootId::from_bytes(bytes.collect::<Vec<_>>().try_into().expect("32 bytes"));
    let index = world.look();
    let staging = Staging::new();
    println!("ready {}", staging.token());
    checkout_staged(&world.store, &world.host, &index, root, &world.job(), &staging).expect("it is checked out");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_full_disk_is_said_clearly_and_the_rest_stays() {
    const INSIDE: &str = "AMALGAM_TEST_FULL_CHECKOUT";
    let Some(mount) = std::env::var_os(INSIDE).map(PathBuf::from) else {
        let temp = tempfile::tempdir().expect("a directory");
        let script = r#"mount -t tmpfs -o size=4m none "$AMALGAM_TEST_FULL_CHECKOUT" && exec "$0" "$@""#;
        let test = "faults::a_full_disk_is_said_clearly_and_the_rest_stays";
        return run_again("userns", test, &["unshare", "-Urm", "sh", "-c", script], INSIDE, temp.path());
    };
    let world = World::in_directory(tempfile::tempdir_in(mount).expect("a directory"));
    let ballast = world.temp.path().join("ballast");
    fs::write(&ballast, vec![1; 2 << 20]).expect("there is room");
    let (mut old, mut new) = (world.tree(), world.tree());
    new.create_directory("fresh", 0o755).expect("made");
    for number in 0..40_u64 {
        old.write(format!("f{number}"), b"old").expect("written");
        let bytes = Random::new(number).bytes(40_000);
        new.write(format!("f{number}"), &bytes).expect("written");
        new.write(format!("fresh/f{number}"), &bytes[..20_000]).expect("written");
    }
    world.checkout(&world.index(), &old);
    settle();
    let error = world.try_checkout(&world.look(), &new).expect_err("there is no room");
    assert_eq!(error.kind(), Some(ErrorKind::Full), "{error}");
    let seen = see(world.host.path());
    for (path, expected) in contents(&new).expect("read").paths {
        let Some(found) = seen.get(&path) else { continue };
        assert!(found.bytes == expected.bytes || found.bytes.0 == b"old", "{path} is neither old nor new");
    }
    assert!((0..40).all(|number| seen.contains_key(&path(format!("f{number}")))), "nothing is lost");
    assert!(!seen.keys().any(|path| path.to_string().contains("amalgam-tmp")));
    fs::remove_file(&ballast).expect("removed");
    let done = world.checkout(&world.look(), &new);
    assert_eq!(done.notices, []);
    world.expect(&new);
}

/// One chunk is missing, one has the bytes of another, and a large file has a damaged piece: these three files are named and left as
/// they are, and all others are written.
#[test]
fn damaged_contents_are_named_and_the_rest_is_written() {
    let mut world = World::new();
    let memory = Arc::new(Memory::default());
    world.store = Store::new(Arc::clone(&memory) as _, &StoreOptions::default());
    let (mut tree, large) = (world.tree(), Random::new(3).bytes(3_000_000));
    tree.create_directory("d", 0o755).expect("made");
    for number in 0..300 {
        tree.write(format!("d/f{number}"), format!("file {number}").as_bytes()).expect("written");
    }
    tree.write("large", &large).expect("written");
    let snapshot = amalgam_tests::model::commit(&mut tree).expect("committed");
    let root = world.store.snapshot(snapshot).expect("there").root;
    let views = contents(&tree).expect("read").paths;
    drop(tree);
    let damaged = Memory::default();
    let of = |number: u64| ChunkId::of(format!("file {number}").as_bytes()).object();
    let mut is_large_hit = false;
    for row in memory.scan(None, 10_000).expect("listed") {
        let mut bytes = memory.get(row.id).expect("read").expect("there");
        if row.id == of(7) {
            continue;
        }
        if row.id == of(250) {
            bytes = memory.get(of(251)).expect("read").expect("there");
        }
        if !is_large_hit && row.id.kind == of(1).kind && bytes.len() > 10_000 {
            let mut other = bytes.to_vec();
            other.swap(5_000, 5_001);
            is_large_hit = other != bytes;
            bytes = other.into();
        }
        damaged.put_ahead(vec![StoredObject { id: row.id, bytes }]).expect("put");
    }
    assert!(is_large_hit, "the large file has pieces");
    world.store = Store::new(Arc::new(damaged), &StoreOptions::default());
    let done = checkout(&world.store, &world.host, &world.index(), root, &world.job()).expect("the rest is written");
    let is_damage = |notice: &Notice| matches!(notice.why, Why::Damaged(_)) && notice.why.is_failure();
    let told: Vec<_> = done.notices.iter().filter(|notice| is_damage(notice)).map(|notice| &notice.path).collect();
    assert_eq!(told, [&path("d/f250"), &path("d/f7"), &path("large")], "{:?}", done.notices);
    let seen = see(world.host.path());
    for (at, expected) in views.iter().filter(|(at, _)| !at.is_root() && !told.contains(at)) {
        assert_eq!(seen.get(at).map(|found| &found.bytes), Some(&expected.bytes), "{at}");
    }
    assert_eq!(seen.len(), views.len() - 3);
}

#[test]
fn files_are_cloned_where_the_file_system_can() {
    const INSIDE: &str = "AMALGAM_TEST_CLONING_CHECKOUT";
    let Some(mount) = std::env::var_os(INSIDE).map(PathBuf::from) else {
        let temp = tempfile::tempdir().expect("a directory");
        let script = r#"cd "$AMALGAM_TEST_CLONING_CHECKOUT" && truncate -s 256M image && mkfs.btrfs -q image && \
            mkdir mount && mount -o loop image mount && exec "$0" "$@""#;
        let test = "faults::files_are_cloned_where_the_file_system_can";
        return run_again("btrfs", test, &["unshare", "-m", "sh", "-c", script], INSIDE, temp.path());
    };
    let mount = mount.join("mount");
    let source = World::in_directory(tempfile::tempdir_in(&mount).expect("a directory"));
    let mut world = World::in_directory(tempfile::tempdir_in(&mount).expect("a directory"));
    world.store = source.store.clone();
    let mut tree = source.tree();
    tree.create_directory("d", 0o755).expect("made");
    for name in ["one", "d/two", "changed", "d/other", "empty"] {
        tree.write(name, &Random::new(name.len() as u64).bytes(100_000)).expect("written");
    }
    tree.write("empty", b"").expect("written");
    source.checkout(&source.index(), &tree);
    settle();
    let index = source.look();
    fs::write(source.at("changed"), b"mine").expect("written");
    tree.write("d/other", b"another than in the source").expect("written");
    let job = CheckoutOptions { source: Some((&source.host, &index)), ..world.job() };
    let done = checkout(&world.store, &world.host, &world.index(), world.root(&tree), &job).expect("checked out");
    assert_eq!((&done.notices[..], done.written, done.reflinked), (&[][..], 5, 2));
    world.expect(&tree);
}

#[test]
fn files_are_copied_from_a_directory_that_proves_them_and_from_no_other() {
    let world = World::new();
    for number in 0..40_u8 {
        fs::write(world.at(format!("file-{number}")), [number; 5_000]).expect("written");
    }
    fs::write(world.at("large"), (0..900_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<_>>()).expect("written");
    fs::File::create(world.at("sparse")).and_then(|file| file.set_len(1 << 20)).expect("made");
    settle();
    let index = world.look();
    let tree = WorkingTree::open_root(&world.store, index.root().expect("looked at")).expect("it opens");
    // The same length and the same times, but other bytes: only the ctime tells.
    let changed = world.at("file-7");
    let times = fs::metadata(&changed).expect("there").modified().expect("known");
    fs::write(&changed, [99; 5_000]).expect("written");
    fs::File::options().write(true).open(&changed).and_then(|file| file.set_modified(times)).expect("set");
    fs::remove_file(world.at("file-8")).expect("removed");

    let target = world.temp.path().join("copy");
    fs::create_dir(&target).expect("made");
    let host = HostDir::open(&target).expect("it opens");
    let job = CheckoutOptions { source: Some((&world.host, &index)), ..world.job() };
    let done = checkout(&world.store, &host, &Index::new(host.identity()), world.root(&tree), &job).expect("done");
    assert_eq!((&done.notices[..], done.written), (&[][..], 42));
    // All but the one that changed, the one that is gone and the sparse one.
    assert_eq!(done.reflinked + done.copied, 39);
    for number in 0..40_u8 {
        assert_eq!(fs::read(target.join(format!("file-{number}"))).expect("there"), [number; 5_000]);
    }
    assert_eq!(fs::read(target.join("large")).expect("there"), tree.read("large").expect("read"));
    assert_eq!(
        fs::metadata(target.join("sparse")).map(|found| (found.len(), found.blocks())).expect("there"),
        (1 << 20, 0)
    );
}

#[test]
fn a_source_that_changes_meanwhile_gives_no_wrong_bytes() {
    let world = World::new();
    let names: Vec<_> = (0..200).map(|number| world.at(format!("file-{number}"))).collect();
    for name in &names {
        fs::write(name, [1; 20_000]).expect("written");
    }
    settle();
    let index = world.look();
    let root = index.root().expect("looked at");
    let is_over = AtomicBool::new(false);
    let mut copied = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for name in names.iter().rev() {
                std::thread::sleep(Duration::from_micros(300));
                fs::write(name, [2; 20_000]).expect("written");
            }
            is_over.store(true, Ordering::Relaxed);
        });
        for round in 0.. {
            let target = world.temp.path().join(format!("copy-{round}"));
            fs::create_dir(&target).expect("made");
            let host = HostDir::open(&target).expect("it opens");
            let job = CheckoutOptions { source: Some((&world.host, &index)), ..world.job() };
            let done = checkout(&world.store, &host, &Index::new(host.identity()), root, &job).expect("done");
            copied += done.reflinked + done.copied;
            for name in fs::read_dir(&target).expect("listed") {
                let bytes = fs::read(name.expect("listed").path()).expect("there");
                assert_eq!((bytes.len(), bytes.iter().filter(|byte| **byte != 1).count()), (20_000, 0));
            }
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    assert!(copied > 0, "no file was taken from the directory");
}

#[test]
fn without_privilege_all_that_can_be_done_is_done() {
    const INSIDE: &str = "AMALGAM_TEST_UNPRIVILEGED_CHECKOUT";
    if rustix::process::geteuid().is_root() {
        let test = "faults::without_privilege_all_that_can_be_done_is_done";
        let wrapper = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
        return run_again("setpriv", test, &wrapper, INSIDE, Path::new("."));
    }
    let world = World::new();
    let mut tree = world.tree();
    let own = rustix::process::geteuid().as_raw();
    for (name, mode) in [("locked", 0o555), ("locked/below", 0o500), ("hidden", 0o700)] {
        tree.create_directory(name, 0o755).expect("made");
        tree.write(format!("{name}/file"), b"old").expect("written");
        tree.set_mode(name, mode).expect("set");
    }
    tree.write("unreadable", b"old").expect("written");
    tree.set_mode("unreadable", 0).expect("set");
    let done = world.checkout(&world.index(), &tree);
    assert_eq!(done.notices, []);
    let mode = |name: &str| world.at(name).metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!([mode("locked"), mode("locked/below"), mode("unreadable")], [0o555, 0o500, 0]);

    fs::set_permissions(world.at("unreadable"), PermissionsExt::from_mode(0o600)).expect("set");
    let index = world.look();
    fs::set_permissions(world.at("hidden"), PermissionsExt::from_mode(0o300)).expect("set");
    let mut other = tree.fork();
    other.write("locked/file", b"new").expect("written");
    other.write("locked/below/more", b"new").expect("written");
    other.write("hidden/file", b"new").expect("written");
    other.set_mode("locked/below", 0o555).expect("set");
    other.write("given away", b"new").expect("written");
    other.set_owner("given away", Some(Owner { uid: own + 1, gid: own + 1 })).expect("set");
    other.create_special("device", Special::CharDevice(Device { major: 1, minor: 3 }), 0o600).expect("made");
    let done = world.checkout(&index, &other);
    let [device, owner] = &done.notices[..] else { panic!("{:?}", done.notices) };
    assert!(matches!(device, Notice { path: at, why: Why::Failed { .. } } if *at == path("device")), "{device:?}");
    assert_eq!(owner, &Notice { path: path("given away"), why: Why::OwnerNotSet });
    assert!(!owner.why.is_failure());
    assert_eq!([mode("locked"), mode("locked/below"), mode("hidden")], [0o555, 0o555, 0o300]);
    fs::set_permissions(world.at("hidden"), PermissionsExt::from_mode(0o700)).expect("set");
    for name in ["locked/file", "locked/below/more", "hidden/file", "given away"] {
        assert_eq!(fs::read(world.at(name)).expect("there"), b"new", "{name}");
    }
    assert_eq!(world.at("given away").metadata().expect("there").uid(), own);
    // What was opened for the time must not keep the directory from being removed.
    for name in ["locked", "locked/below"] {
        fs::set_permissions(world.at(name), PermissionsExt::from_mode(0o700)).expect("set");
    }
}
