//! Bytes: holes, copies, sizes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_view::{DiskSpace, ROOT, RenameMode, Seek, SetAttributes, SizeChange};

use crate::kit::{EDQUOT, EINVAL, ENOSPC, ENXIO, Kit, errno, now, options};
use amalgam_engine::{OperationContext, RefName, Store};

const PIECE: usize = 64 << 10;

#[test]
fn holes_and_data_are_found_where_they_are() {
    let kit = Kit::new();
    let ino = kit.file("f", b"");
    kit.write(ino, 4 * PIECE as u64, &[7; PIECE]);
    let seek = |offset, what| kit.view.seek(ino, offset, what).map_err(|error| error.errno());
    let size = 5 * PIECE as u64;
    assert_eq!(seek(0, Seek::Hole), Ok(0));
    assert_eq!(seek(0, Seek::Data), Ok(4 * PIECE as u64));
    assert_eq!(seek(4 * PIECE as u64 + 5, Seek::Data), Ok(4 * PIECE as u64 + 5));
    assert_eq!(seek(4 * PIECE as u64, Seek::Hole), Ok(size), "the end counts as a hole");
    assert_eq!(seek(size, Seek::Data), Err(ENXIO));
    assert_eq!(seek(size, Seek::Hole), Err(ENXIO));
    // The same once it is stored.
    kit.commit();
    assert_eq!((seek(0, Seek::Hole), seek(0, Seek::Data)), (Ok(0), Ok(4 * PIECE as u64)));
    let empty = kit.file("empty", b"");
    assert_eq!(errno(kit.view.seek(empty, 0, Seek::Data)), ENXIO);
}

#[test]
fn a_punched_range_is_zeros_and_the_size_stays() {
    let kit = Kit::new();
    let ino = kit.file("f", &[1; 3 * PIECE]);
    kit.commit();
    let mut expected = vec![1; 3 * PIECE];
    kit.view.punch(&kit.caller, ino, 1_000, PIECE as u64, SizeChange::Keep).expect("punch");
    expected[1_000..1_000 + PIECE].fill(0);
    assert_eq!(kit.read(ino), expected);
    // Beyond the end: cut off where the file ends.
    kit.view.punch(&kit.caller, ino, 3 * PIECE as u64 - 10, 1 << 20, SizeChange::Keep).expect("punch");
    expected[3 * PIECE - 10..].fill(0);
    assert_eq!(kit.read(ino), expected);
    // Without keeping the size it grows.
    kit.view.punch(&kit.caller, ino, 3 * PIECE as u64, 100, SizeChange::Extend).expect("zero");
    expected.resize(3 * PIECE + 100, 0);
    assert_eq!(kit.read(ino), expected);
    assert_eq!(errno(kit.view.punch(&kit.caller, ino, 0, 0, SizeChange::Keep)), EINVAL);
    assert_eq!(kit.kill_and_reopen().read_path("f"), expected);
}

#[test]
fn a_range_is_copied_between_files_and_within_one() {
    let kit = Kit::new();
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    let (from, to) = (kit.file("from", &bytes), kit.file("to", b"0123456789"));
    let copy = |from, to, length| kit.view.copy_range(&kit.caller, from, to, length).expect("copy");
    assert_eq!(copy((from, 100), (to, 5), 150_000), 150_000);
    let mut expected = b"01234".to_vec();
    expected.extend_from_slice(&bytes[100..150_100]);
    assert_eq!(kit.read(to), expected);
    // What overlaps is copied as it was before, whatever order it happens in.
    for (source, target) in [(0, 50_000), (50_000, 0)] {
        let ino = kit.file(&format!("within-{source}"), &bytes);
        assert_eq!(copy((ino, source as u64), (ino, target as u64), 100_000), 100_000);
        let mut expected = bytes.clone();
        expected[target..target + 100_000].copy_from_slice(&bytes[source..source + 100_000]);
        assert_eq!(kit.read(ino), expected, "{source} -> {target}");
    }
    assert_eq!(copy((from, 199_990), (to, 0), 100), 10, "no more than there is");
    assert_eq!(copy((from, 300_000), (to, 0), 100), 0);
}

#[test]
fn sizes_come_and_go_and_what_comes_is_zeros() {
    let kit = Kit::new();
    let ino = kit.file("f", &[9; 1_000]);
    let cut = |size| {
        let set = amalgam_view::SetAttributes { size: Some(size), ..Default::default() };
        kit.view.set_attributes(&kit.caller, ino, &set).expect("truncate").size
    };
    assert_eq!(cut(10), 10);
    assert_eq!(cut(20), 20);
    assert_eq!(kit.read(ino), [[9; 10], [0; 10]].concat());
    kit.view.allocate(&kit.caller, ino, 15, 15, SizeChange::Keep).expect("allocate");
    assert_eq!(kit.attributes(ino).size, 20);
    kit.view.allocate(&kit.caller, ino, 15, 15, SizeChange::Extend).expect("allocate");
    assert_eq!(kit.attributes(ino).size, 30);
    let end = kit.view.append(&kit.caller, ino, 0, b"!").expect("append");
    assert_eq!((end, kit.attributes(ino).size), (30, 31));
    let far = kit.view.write(&kit.caller, ino, i64::MAX as u64, b"x");
    assert_eq!(errno(far), 27, "too far for a file");
    assert_eq!(kit.attributes(ino).size, 31);
    let expected = kit.read(ino);
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.read_path("f"), expected, "what was refused is refused again in a recovery");
}

#[test]
fn allocating_more_than_there_is_room_for_is_refused() {
    let scratch = tempfile::tempdir().expect("a directory");
    let room = DiskSpace { total_bytes: 1 << 40, free_bytes: 1_100_000, floor_bytes: 100_000 };
    let options = amalgam_view::ViewOptions { disk: Some(Arc::new(move || room)), ..options() };
    let kit = Kit::at(&Store::in_memory(), scratch.path(), options);
    let ino = kit.file("f", &[1; 60_000]);
    for size_change in [SizeChange::Extend, SizeChange::Keep] {
        assert_eq!(errno(kit.view.allocate(&kit.caller, ino, 0, 500 << 30, size_change)), ENOSPC);
        assert_eq!(errno(kit.view.allocate(&kit.caller, ino, 50_000, 1_010_001, size_change)), ENOSPC);
        assert_eq!(kit.attributes(ino).size, 60_000);
    }
    // What is data already needs no room.
    kit.view.allocate(&kit.caller, ino, 50_000, 1_010_000, SizeChange::Extend).expect("there is room");
    assert_eq!(kit.attributes(ino).size, 1_060_000);
    kit.view.allocate(&kit.caller, ino, 0, 1_060_000, SizeChange::Extend).expect("there is room");
    assert_eq!(errno(kit.view.allocate(&kit.caller, ino, 0, 1_060_001, SizeChange::Extend)), ENOSPC);
}

#[test]
fn at_the_free_floor_nothing_new_is_taken_and_everything_else_goes_on() {
    let scratch = tempfile::tempdir().expect("a directory");
    let free = Arc::new(AtomicU64::new(3 << 20));
    let measured = Arc::clone(&free);
    let room =
        move || DiskSpace { total_bytes: 1 << 30, free_bytes: measured.load(Ordering::Relaxed), floor_bytes: 2 << 20 };
    let kit = Kit::at(
        &Store::in_memory(),
        scratch.path(),
        amalgam_view::ViewOptions { disk: Some(Arc::new(room)), ..options() },
    );
    let ino = kit.file("f", b"bytes");
    // What is written takes room, and it is measured often enough for the floor to stay.
    let mut written = 0_u64;
    let refused = loop {
        match kit.view.write(&kit.caller, ino, written, &[1; 32 << 10]) {
            Ok(_) => written += 32 << 10,
            Err(error) => break error,
        }
        free.fetch_sub(32 << 10, Ordering::Relaxed);
        assert!(written < 2 << 20, "the floor is never reached");
    };
    assert_eq!(refused.errno(), ENOSPC);
    assert!(refused.to_string().contains("floor"), "{refused}");
    assert!(free.load(Ordering::Relaxed) >= 2 << 20, "the floor is left alone");
    assert!(written > 512 << 10, "{written} of a megabyte were taken");
    free.store(2 << 20, Ordering::Relaxed);
    assert_eq!(errno(kit.view.create(&kit.caller, ROOT, b"new", 0o644)), ENOSPC);
    assert_eq!(errno(kit.view.create_directory(&kit.caller, ROOT, b"new", 0o755)), ENOSPC);
    kit.rename("f", "g", RenameMode::Replace).expect("moved");
    kit.view
        .set_attributes(&kit.caller, ino, &SetAttributes { mode: Some(0o600), ..SetAttributes::default() })
        .expect("set");
    kit.view
        .set_attributes(&kit.caller, ino, &SetAttributes { size: Some(1), ..SetAttributes::default() })
        .expect("cut");
    kit.unlink("g").expect("removed");
    assert_eq!(errno(kit.view.create(&kit.caller, ROOT, b"new", 0o644)), ENOSPC);
    free.store(4 << 20, Ordering::Relaxed);
    kit.file("new", b"there is room again");
    kit.commit();
}

#[test]
fn a_quota_that_is_used_up_refuses_and_loses_nothing() {
    let scratch = tempfile::tempdir().expect("a directory");
    let options = amalgam_view::ViewOptions { quota_bytes: Some(100_000), ..options() };
    let kit = Kit::at(&Store::in_memory(), scratch.path(), options);
    let ino = kit.file("f", &[1; 60_000]);
    assert_eq!(errno(kit.view.write(&kit.caller, ino, 0, &[2; 60_000])), EDQUOT);
    assert_eq!(kit.read(ino), [1; 60_000]);
    // Removing needs no room, and a commit gives it back.
    kit.unlink("f").expect("unlink");
    kit.commit();
    kit.file("g", &[3; 60_000]);
    assert_eq!(kit.read_path("g"), [3; 60_000]);
}

#[test]
fn a_checkpoint_is_no_commit_to_a_quota() {
    let (store, scratch) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
    let options = amalgam_view::ViewOptions { quota_bytes: Some(100_000), ..options() };
    let kit = Kit::at(&store, scratch.path(), options.clone());
    let ino = kit.file("f", &[1; 60_000]);
    let reference = RefName::new("view/main").expect("a name");
    for _ in 0..2 {
        kit.view.checkpoint(&reference, &OperationContext::new("test", now())).expect("checkpoint");
        assert_eq!(errno(kit.view.write(&kit.caller, ino, 0, &[2; 60_000])), EDQUOT);
    }
    kit.view.close().expect("closed");
    let kit = Kit::at(&store, scratch.path(), options);
    let ino = kit.ino("f");
    assert_eq!(errno(kit.view.write(&kit.caller, ino, 0, &[2; 60_000])), EDQUOT, "nor is a remount");
    kit.commit();
    kit.write(ino, 0, &[2; 60_000]);
}

#[test]
fn a_measured_checkpoint_gives_removed_bytes_back() {
    let (store, scratch) = (Store::in_memory(), tempfile::tempdir().expect("a directory"));
    let kit = Kit::at(&store, scratch.path(), options());
    assert!(kit.view.quota().is_none());
    kit.view.set_quota(Some(100_000));
    kit.file("f", &[1; 60_000]);
    let space = kit.view.file_space();
    assert!(space.total_bytes == 100_000 && (30_000..40_000).contains(&space.free_bytes), "{space:?}");
    kit.unlink("f").expect("unlink");
    let checkpoint = || {
        let reference = RefName::new("view/main").expect("a name");
        kit.view.checkpoint(&reference, &OperationContext::new("test", now())).expect("checkpoint");
    };
    checkpoint();
    let g = kit.file("g", b"");
    assert_eq!(errno(kit.view.write(&kit.caller, g, 0, &[2; 60_000])), EDQUOT, "bytes count as they were written");
    checkpoint();
    kit.view.set_checkpointed_bytes(0);
    kit.write(g, 0, &[2; 60_000]);
    assert_eq!(errno(kit.view.write(&kit.caller, g, 60_000, &[2; 60_000])), EDQUOT);
    // After a commit nothing is uncommitted, whatever was measured before.
    kit.commit();
    kit.view.set_checkpointed_bytes(90_000);
    kit.write(g, 0, &[3; 60_000]);
}

#[test]
fn a_copy_that_is_refused_on_its_way_says_how_much_was_copied() {
    const MIB: usize = 1 << 20;
    let scratch = tempfile::tempdir().expect("a directory");
    let options = amalgam_view::ViewOptions { quota_bytes: Some(3 * MIB as u64), ..options() };
    let kit = Kit::at(&Store::in_memory(), scratch.path(), options);
    let source = kit.file("f", &[1; 2 * MIB]);
    kit.commit();
    kit.write(source, 2 * MIB as u64, &[2; 2 * MIB]);
    kit.commit();
    let target = kit.file("g", b"");
    let copy = |at: u64| kit.view.copy_range(&kit.caller, (source, at), (target, at), 4 * MIB as u64 - at);
    assert_eq!(copy(0).expect("some of it"), 2 * MIB as u64);
    assert_eq!(kit.read(target), [1; 2 * MIB]);
    assert_eq!(errno(copy(2 * MIB as u64)), EDQUOT, "and then why it does not go on");
    kit.commit();
    assert_eq!(copy(2 * MIB as u64).expect("the rest"), 2 * MIB as u64);
    assert_eq!(kit.read(target), kit.read(source));
}
