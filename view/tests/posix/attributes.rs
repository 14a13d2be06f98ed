//! Attributes: times, extended attributes, and who may.

use amalgam_engine::Time;
use amalgam_engine::work::Special;
use amalgam_view::{Attributes, Caller, Device, ROOT, RenameMode, SetAttributes, TimeSet, XattrSet};

use crate::kit::{EEXIST, EINVAL, ENODATA, Kit, errno};

/// Which times of an inode moved: of reading, of writing, of any change.
fn moved(before: &Attributes, after: &Attributes) -> (bool, bool, bool) {
    (before.atime != after.atime, before.mtime != after.mtime, before.ctime != after.ctime)
}

#[test]
fn each_change_moves_the_times_that_posix_says() {
    let kit = Kit::new();
    let (file, directory) = (kit.file("f", b"one"), kit.directory("d"));
    type OperationContext<'a> = &'a dyn Fn(&Kit);
    type Moved = (bool, bool, bool);
    let set = |kit: &Kit, set: SetAttributes| {
        kit.view.set_attributes(&kit.caller, file, &set).expect("set");
    };
    let cases: &[(&str, OperationContext<'_>, Moved, Moved)] = &[
        (
            "read",
            &|kit| {
                kit.read(file);
            },
            (false, false, false),
            (false, false, false),
        ),
        ("write", &|kit| kit.write(file, 0, b"two"), (false, true, true), (false, false, false)),
        (
            "chmod",
            &|kit| set(kit, SetAttributes { mode: Some(0o600), ..SetAttributes::default() }),
            (false, false, true),
            (false, false, false),
        ),
        (
            "chown",
            &|kit| set(kit, SetAttributes { uid: Some(5), ..SetAttributes::default() }),
            (false, false, true),
            (false, false, false),
        ),
        (
            "truncate",
            &|kit| set(kit, SetAttributes { size: Some(1), ..SetAttributes::default() }),
            (false, true, true),
            (false, false, false),
        ),
        (
            "link",
            &|kit| {
                kit.link(file, "d/l");
            },
            (false, false, true),
            (false, true, true),
        ),
        ("unlink", &|kit| kit.unlink("d/l").expect("unlink"), (false, false, true), (false, true, true)),
        (
            "rename",
            &|kit| kit.rename("f", "d/f", RenameMode::Replace).expect("rename"),
            (false, false, true),
            (false, true, true),
        ),
        (
            "setxattr",
            &|kit| kit.view.set_xattr(&kit.caller, file, b"user.a", b"1", XattrSet::Either).expect("set"),
            (false, false, true),
            (false, false, false),
        ),
        (
            "create beside",
            &|kit| {
                kit.file("d/other", b"");
            },
            (false, false, false),
            (false, true, true),
        ),
    ];
    for (what, act, of_file, of_directory) in cases {
        let before = (kit.attributes(file), kit.attributes(directory));
        act(&kit);
        let after = (kit.attributes(file), kit.attributes(directory));
        // That of a file that is not set and not read may follow the time of writing.
        let atime_follows = |moved: (bool, bool, bool)| (false, moved.1, moved.2);
        assert_eq!(atime_follows(moved(&before.0, &after.0)), *of_file, "{what}: the file");
        assert_eq!(moved(&before.1, &after.1), *of_directory, "{what}: the directory");
    }
    let before = kit.attributes(directory);
    let kit = kit.close_and_reopen();
    let after = kit.look("d").expect("it is there");
    assert_eq!((after.atime, after.mtime), (before.atime, before.mtime), "after a remount");
}

#[test]
fn whatever_changes_hands_acts_for_its_owner_no_more() {
    let kit = Kit::new();
    let owner = Caller { groups: vec![7, 8], ..Caller::owner(5, 7) };
    let device = Device { major: 1, minor: 3 };
    let special = |name: &str, special| kit.view.create_special(&kit.caller, ROOT, name.as_bytes(), special, 0o644);
    let made = [
        kit.view.create(&kit.caller, ROOT, b"file", 0o644),
        special("fifo", Special::Fifo),
        special("socket", Special::Socket),
        special("character", Special::CharDevice(device)),
        special("block", Special::BlockDevice(device)),
    ];
    for made in made {
        let Attributes { ino, kind, .. } = made.expect("made");
        for (mode, expected) in [(0o6777, 0o777), (0o6766, 0o2766), (0o644, 0o644)] {
            let set = SetAttributes { uid: Some(5), gid: Some(7), mode: Some(mode), ..SetAttributes::default() };
            kit.view.set_attributes(&kit.caller, ino, &set).expect("root may");
            let after = kit
                .view
                .set_attributes(&owner, ino, &SetAttributes { gid: Some(8), ..SetAttributes::default() })
                .expect("its owner may");
            assert_eq!((after.mode, after.gid), (expected, 8), "{kind:?} with {mode:o}");
        }
    }
    let directory = kit.directory("directory");
    let set = SetAttributes { uid: Some(5), gid: Some(7), mode: Some(0o6777), ..SetAttributes::default() };
    kit.view.set_attributes(&kit.caller, directory, &set).expect("root may");
    let after = kit
        .view
        .set_attributes(&owner, directory, &SetAttributes { gid: Some(8), ..SetAttributes::default() })
        .expect("its owner may");
    assert_eq!(after.mode, 0o6777, "a directory acts for nobody");
}

#[test]
fn times_that_are_set_stay_and_ctime_cannot_be_set() {
    let kit = Kit::new();
    let ino = kit.file("f", b"x");
    let before = kit.attributes(ino);
    let set = SetAttributes {
        atime: Some(TimeSet::At(Time(-5))),
        mtime: Some(TimeSet::At(Time(1_234_567_890_123_456_789))),
        ..SetAttributes::default()
    };
    let after = kit.view.set_attributes(&kit.caller, ino, &set).expect("utimes");
    assert_eq!((after.atime, after.mtime), (Time(-5), Time(1_234_567_890_123_456_789)));
    assert!(after.ctime > before.ctime);
    let kit = kit.close_and_reopen();
    let found = kit.look("f").expect("it is there");
    assert_eq!((found.atime, found.mtime, found.ctime), (after.atime, after.mtime, after.ctime), "as before a remount");
    let only = SetAttributes { atime: Some(TimeSet::Now), ..SetAttributes::default() };
    let after = kit.view.set_attributes(&kit.caller, found.ino, &only).expect("utimes");
    assert_eq!(after.mtime, found.mtime);
    assert!(after.atime > found.ctime);
}

#[test]
fn extended_attributes_are_set_as_their_flags_say() {
    let kit = Kit::new();
    let ino = kit.file("f", b"");
    let set = |name: &[u8], value: &[u8], how| kit.view.set_xattr(&kit.caller, ino, name, value, how);
    assert_eq!(errno(set(b"user.a", b"1", XattrSet::Replace)), ENODATA);
    set(b"user.a", b"1", XattrSet::Create).expect("create");
    assert_eq!(errno(set(b"user.a", b"2", XattrSet::Create)), EEXIST);
    assert_eq!(kit.view.xattr(ino, b"user.a").expect("get"), b"1");
    set(b"user.a", b"2", XattrSet::Replace).expect("replace");
    set(b"user.b", &[7; 60_000], XattrSet::Either).expect("a large one");
    set(b"user.c", b"", XattrSet::Either).expect("an empty one");
    assert_eq!(errno(set(b"", b"", XattrSet::Either)), EINVAL);
    assert_eq!(kit.view.xattr_names(ino).expect("list"), [&b"user.a"[..], b"user.b", b"user.c"]);
    kit.view.remove_xattr(&kit.caller, ino, b"user.a").expect("remove");
    assert_eq!(errno(kit.view.remove_xattr(&kit.caller, ino, b"user.a")), ENODATA);
    assert_eq!(errno(kit.view.xattr(ino, b"user.a")), ENODATA);
    kit.commit();
    let kit = kit.kill_and_reopen();
    let ino = kit.ino("f");
    assert_eq!(kit.view.xattr(ino, b"user.b").expect("get"), [7; 60_000]);
    assert_eq!(kit.view.xattr(ino, b"user.c").expect("get"), b"");
}

#[test]
fn a_view_that_checks_lets_in_whom_the_bits_let_in() {
    let kit = Kit::new();
    let file = kit.file("f", b"secret");
    let stranger = Caller { uid: 7, gid: 7, enforce: true, ..Caller::default() };
    let mode = |mode| {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        kit.view.set_attributes(&kit.caller, file, &set).expect("chmod");
    };
    mode(0o600);
    assert_eq!(errno(kit.view.access(&stranger, file, amalgam_view::Access::READ)), 13);
    mode(0o604);
    kit.view.access(&stranger, file, amalgam_view::Access::READ).expect("others may read");
    let chmod = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
    assert_eq!(errno(kit.view.set_attributes(&stranger, file, &chmod)), 1, "only the owner may");
    assert_eq!(errno(kit.view.unlink(&stranger, amalgam_view::ROOT, b"f")), 13, "the directory is not theirs");
    assert_eq!(kit.attributes(file).mode, 0o604);
}

#[test]
fn what_is_said_of_a_file_of_zeros_is_so_after_each_change() {
    let kit = Kit::new();
    let file = kit.file("zeros", &[0; 65_537]);
    kit.commit();
    let sets = [
        SetAttributes { uid: Some(7), ..SetAttributes::default() },
        SetAttributes { mode: Some(0o600), ..SetAttributes::default() },
        SetAttributes { mtime: Some(TimeSet::At(Time(5))), ..SetAttributes::default() },
    ];
    for set in sets {
        kit.view.attributes(file).expect("it is there");
        let told = kit.view.set_attributes(&Caller::owner(0, 0), file, &set).expect("set");
        assert_eq!(kit.view.attributes(file).expect("it is there"), told);
        kit.commit();
    }
}
