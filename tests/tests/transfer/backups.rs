//! Backups: what was at one moment, again in a new store; a damaged part is named.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use amalgam_engine::operation::set_reference;
use amalgam_engine::reference::RefValue;
use amalgam_engine::{Commit, ErrorKind, PastRefs, Store, Time, WorkingTree};
use amalgam_tests::harness::lives::{assert_sound, contents, live};
use amalgam_tests::harness::{Random, check_log, name, seed};
use amalgam_transfer::{Error, Have, Progress, backup, restore_backup};

use super::kit::{by, refs, send_all, take};

fn restored(directory: &std::path::Path) -> Result<Store, Error> {
    let store = Store::in_memory();
    restore_backup(directory, &store, &by(), &Progress::default()).map(|_| store)
}

#[test]
fn every_further_backup_is_a_difference_and_brings_everything_back() {
    let seed = seed();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::in_memory();
    let mut lengths = Vec::new();
    for round in 1..=5 {
        live(&store, &mut random, 10).expect("a life");
        let done = backup(&store, &place, Time(round), &Progress::default()).expect("backup");
        assert_eq!((done.part, done.is_difference), (round as u64, round > 1));
        assert_eq!(done.operation, store.last_operation().expect("last"));
        lengths.push(done.sent.bytes);
        let again = restored(&place).expect("restore");
        assert_eq!(refs(&store), refs(&again));
        assert_sound(&again);
        check_log(&again).expect("the log fits the names");
    }
    let nothing = backup(&store, &place, Time(9), &Progress::default()).expect("backup");
    assert_eq!(nothing.sent.objects, 0, "nothing came since");
    println!("parts of {lengths:?} bytes");
}

#[test]
fn a_backup_of_a_store_in_use_is_a_state_that_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::open(directory.path().join("store")).expect("open");
    let ends = AtomicBool::new(false);
    let mut operations = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, ends) = (&store, &ends);
            scope.spawn(move || {
                let (head, mut random) = (name(format!("workspace/{thread}")), Random::new(thread));
                let mut tree = WorkingTree::new(store);
                for step in 0.. {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    tree.write(format!("f{}", random.below(9)), &random.bytes(2_000)).expect("write");
                    tree.write("step", format!("{step}").as_bytes()).expect("write");
                    tree.commit(Commit::new(&head, "a step").buffered()).expect("commit");
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            });
        }
        for round in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(60));
            operations.push(backup(&store, &place, Time(round), &Progress::default()).expect("backup").operation);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(operations.windows(2).all(|pair| pair[0] < pair[1]), "the store went on meanwhile: {operations:?}");
    let again = restored(&place).expect("restore");
    let last = *operations.last().expect("five");
    let past = PastRefs::at(&store, last).expect("the past");
    let then: Vec<_> = past.refs("").map(|(name, value)| (name.clone(), value.clone())).collect();
    assert_eq!(refs(&again).into_iter().collect::<Vec<_>>(), then, "it is the state after operation {last}");
    for (_, value) in &then {
        let id = amalgam_engine::SnapshotId::from_bytes(value.target.expect("a snapshot").hash);
        let files = |store| contents(&WorkingTree::open(store, id).expect("open")).expect("files");
        assert_eq!(files(&store), files(&again));
    }
    assert_sound(&again);
}

#[test]
fn a_damaged_or_missing_part_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::in_memory();
    let mut random = Random::new(4);
    for round in 0..3 {
        live(&store, &mut random, 6).expect("a life");
        backup(&store, &place, Time(round), &Progress::default()).expect("backup");
    }
    let second = place.join("000002.stream");
    let whole = fs::read(&second).expect("read");
    let told = |what: &str| {
        let error = restored(&place).err().unwrap_or_else(|| panic!("{what}: it was taken"));
        assert!(matches!(error, Error::Backup { .. }), "{what}: {error:?}");
        assert_eq!(error.kind(), Some(ErrorKind::Corrupt));
        error.to_string()
    };
    fs::remove_file(&second).expect("remove");
    assert!(told("missing").contains("000002.stream: it is missing"));
    let next = backup(&store, &place, Time(9), &Progress::default());
    assert!(matches!(next, Err(Error::Backup { .. })), "nothing is built on a part that is missing");
    fs::write(&second, &whole[..whole.len() - 1]).expect("write");
    assert!(told("cut").contains("000002.stream: it has"));
    fs::write(&second, fs::read(place.join("000001.stream")).expect("read")).expect("write");
    assert!(told("another part").contains("000002.stream"));
    fs::write(&second, &whole).expect("write");
    let manifest = fs::read_to_string(place.join("BACKUP")).expect("read");
    fs::write(place.join("BACKUP"), manifest.replace("part 2", "part 3")).expect("write");
    assert!(told("manifest").contains("BACKUP"));
    fs::write(place.join("BACKUP"), &manifest).expect("write");
    assert_eq!(refs(&restored(&place).expect("restore")), refs(&store));
}

/// Flips one bit of a part at many places. Everything that did not need the damaged frame comes back, and the report names the part.
#[test]
fn damaged_bytes_of_a_backup_cost_only_what_needs_them() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::in_memory();
    let mut random = Random::new(seed());
    for round in 0..3 {
        live(&store, &mut random, 6).expect("a life");
        backup(&store, &place, Time(round), &Progress::default()).expect("backup");
    }
    let names = refs(&store);
    let (mut came_back, mut refused) = (0, 0);
    for part in ["000001.stream", "000002.stream", "000003.stream"] {
        let path = place.join(part);
        let whole = fs::read(&path).expect("read");
        for _ in 0..60 {
            let mut damaged = whole.clone();
            let at = random.below(whole.len() as u64) as usize;
            damaged[at] ^= 1 << random.below(8);
            fs::write(&path, &damaged).expect("write");
            let again = Store::in_memory();
            match restore_backup(&place, &again, &by(), &Progress::default()) {
                Ok(received) => {
                    came_back += 1;
                    let listed = received.left_out.listed();
                    assert!(listed.iter().any(|(what, _)| what.starts_with(part)), "{part}, byte {at}: {listed:?}");
                    assert_sound(&again);
                    let reported = |name: &str| listed.iter().any(|(what, _)| what == name || what.contains("frame"));
                    for (name, value) in &names {
                        let here = again.read_ref(name).expect("read");
                        let is_back = here.as_ref() == Some(value) || reported(name.as_str());
                        assert!(
                            is_back || part == "000003.stream",
                            "{part}, byte {at}: {name} is {here:?}: {listed:?}"
                        );
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains(part), "{part}, byte {at}: {error}");
                }
            }
        }
        fs::write(&path, &whole).expect("write");
    }
    println!("{came_back} of {} damaged backups came back in part", came_back + refused);
    assert!(came_back > 10 * refused, "{came_back} came back, {refused} were refused");
}

#[test]
fn a_lost_list_makes_the_next_part_a_whole_one() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::in_memory();
    live(&store, &mut Random::new(5), 6).expect("a life");
    backup(&store, &place, Time(1), &Progress::default()).expect("backup");
    fs::write(place.join("000001.tips"), "amalgam have 1\n").expect("write");
    let done = backup(&store, &place, Time(2), &Progress::default()).expect("backup");
    assert!(!done.is_difference && done.sent.objects > 0);
    assert_eq!(refs(&restored(&place).expect("restore")), refs(&store));
}

#[test]
fn content_that_is_stored_again_after_a_purge_comes_back() {
    use amalgam_engine::ChunkId;
    use amalgam_engine::purge::{PurgeOptions, PurgeTarget, forget_tombstone, plan_purge, purge};

    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let (store, head) = (Store::in_memory(), name("workspace/main"));
    let back_up = |round| backup(&store, &place, Time(round), &Progress::default()).expect("backup");
    let mut tree = WorkingTree::new(&store);
    tree.write("secret", b"hunter2").expect("write");
    let first = tree.commit(Commit::new(&head, "one")).expect("commit").snapshot;
    drop(tree);
    let secret = ChunkId::of(b"hunter2").object();
    let plan = plan_purge(&store, &PurgeTarget::Object(secret), &PurgeOptions::default()).expect("a plan");
    purge(&store, &plan, "a key", &by()).expect("purge");
    back_up(1);
    let mut tree = WorkingTree::open(&store, first).expect("open");
    tree.write("other", b"other").expect("write");
    tree.commit(Commit::new(&head, "two")).expect("commit");
    assert!(back_up(2).is_difference, "the content is still purged");
    let again = restored(&place).expect("restore");
    assert!(again.tombstone(secret).expect("look").is_some());

    assert!(forget_tombstone(&store, secret, &by()).expect("forget"));
    tree.write("again", b"hunter2").expect("write");
    let last = tree.commit(Commit::new(&head, "three")).expect("commit").snapshot;
    assert!(!back_up(3).is_difference);
    for _ in 0..2 {
        let again = restored(&place).expect("restore");
        for (snapshot, path) in [(first, "secret"), (last, "again")] {
            let tree = WorkingTree::open(&again, snapshot).expect("open");
            assert_eq!(tree.read(path).expect("it is there"), b"hunter2");
        }
        assert_eq!(again.tombstone(secret).expect("look"), None);
        assert_eq!(refs(&again), refs(&store));
        assert_sound(&again);
        assert!(back_up(4).is_difference, "the whole part has it");
    }
}

#[test]
fn a_backup_goes_into_a_new_store_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("backup");
    let store = Store::in_memory();
    live(&store, &mut Random::new(6), 3).expect("a life");
    backup(&store, &place, Time(1), &Progress::default()).expect("backup");
    let error = restore_backup(&place, &store, &by(), &Progress::default()).expect_err("it is in use");
    assert_eq!(error.kind(), Some(ErrorKind::Invalid));
    let nothing = restored(&directory.path().join("nowhere")).err().expect("there is no backup");
    assert!(nothing.to_string().contains("BACKUP"), "{nothing}");
}

/// A backup holds private files: only its owner reads it, and nothing outside of its directory is written.
#[test]
fn a_backup_is_private_and_follows_no_planted_symlinks() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    let directory = tempfile::tempdir().expect("a directory");
    let (place, outside) = (directory.path().join("backup"), directory.path().join("outside"));
    fs::write(&outside, "precious").expect("written");
    let store = Store::in_memory();
    live(&store, &mut Random::new(6), 6).expect("a life");
    fs::create_dir(&place).expect("made");
    for name in ["000001.stream.new", "000001.tips.new", "BACKUP.new", "LOCK"] {
        symlink(&outside, place.join(name)).expect("planted");
    }
    backup(&store, &place, Time(1), &Progress::default()).expect("backup");
    assert_eq!(fs::read_to_string(&outside).expect("there"), "precious");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    for name in ["000001.stream", "000001.tips", "BACKUP"] {
        assert_eq!(mode(&place.join(name)), 0o600, "{name}");
    }
    let new = directory.path().join("new");
    backup(&store, &new, Time(1), &Progress::default()).expect("backup");
    assert_eq!((mode(&new), mode(&new.join("LOCK"))), (0o700, 0o600));
    assert_eq!(refs(&restored(&place).expect("restore")), refs(&store));
}

#[test]
fn a_policy_comes_with_a_backup_and_with_no_stream() {
    let directory = tempfile::tempdir().expect("a directory");
    let (place, store) = (directory.path().join("backup"), Store::in_memory());
    let mut tree = WorkingTree::new(&store);
    tree.write("policy.toml", b"default = \"R\"").expect("write");
    let (root, _pin) = tree.freeze().hold().expect("held");
    let policy = name("policy/project");
    let value = RefValue::to(root);
    set_reference(&store, &policy, Some(&value), &by(), "set policy").expect("set");
    tree.commit(Commit::new(&name("workspace/main"), "one")).expect("commit");
    backup(&store, &place, Time(1), &Progress::default()).expect("backup");
    assert_eq!(refs(&restored(&place).expect("restore")).get(&policy), Some(&value));
    let (stream, _) = send_all(&store, &Have::default());
    let other = Store::in_memory();
    take(&other, &stream).expect("received");
    assert_eq!(refs(&other).get(&policy), None);
}
