//! Handles: how long they live, and what they never lead to.

use std::time::Duration;

use amalgam_engine::{Time, TreePath, WorkingTree};
use amalgam_view::{ROOT, TreeEdit, Upload};
use nfs3_types::nfs3::*;

use crate::kit::{Ask as _, Kit, now};

#[test]
fn handles_follow_renames_through_any_door_and_restarts() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let directory = kit.client.make_directory(&root, "d").expect("made");
    let below = kit.client.make_directory(&directory, "e").expect("made");
    let file = kit.client.make(&below, "f").expect("made");
    kit.client.put(&file, 0, b"here", stable_how::FILE_SYNC).expect("written");
    let number = kit.client.attributes(&file).expect("attributes").fileid;
    kit.client.rename((&root, "d"), (&root, "moved")).expect("renamed");
    let (view, caller) = (kit.home.view.clone(), kit.elsewhere());
    let ino = |directory, name: &[u8]| view.lookup(&caller, directory, name).expect("found").ino;
    let e = ino(ino(ROOT, b"moved"), b"e");
    view.rename(&caller, (e, b"f"), (ROOT, b"g"), amalgam_view::RenameMode::Replace).expect("renamed");
    drop(view);
    for close in [false, true, false] {
        kit = kit.restart(close);
        assert_eq!(kit.client.get(&file, 0, 10), Ok((b"here".to_vec(), true)));
        assert_eq!(
            kit.client.attributes(&file).expect("attributes").fileid,
            number,
            "clients take another number for another file"
        );
        assert_eq!(kit.client.look(&root, "g").expect("found"), file);
        assert_eq!(kit.client.look(&directory, "e").expect("found"), below);
        kit.home.commit();
    }
}

#[test]
fn a_new_file_of_an_old_name_has_another_handle_in_this_life_and_the_next() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let first = kit.client.make(&root, "f").expect("made");
    kit.client.remove(&root, "f").expect("removed");
    // Through another door, so that no handle is known of it.
    kit.home.view.create(&kit.elsewhere(), ROOT, b"f", 0o644).expect("made");
    let mut kit = kit.restart(false);
    assert_eq!(kit.client.attributes(&first).expect_err("gone"), nfsstat3::NFS3ERR_STALE);
    let second = kit.client.look(&root, "f").expect("found");
    assert_ne!(second, first);
    assert_eq!(kit.client.attributes(&first).expect_err("gone"), nfsstat3::NFS3ERR_STALE);
    kit.client.attributes(&second).expect("there");
}

#[test]
fn what_took_the_place_of_a_renamed_file_is_not_taken_for_it() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "a").expect("made");
    kit.client.put(&file, 0, b"first", stable_how::UNSTABLE).expect("written");
    kit.client.rename((&root, "a"), (&root, "b")).expect("renamed");
    let view = kit.home.view.clone();
    let other = view.create(&kit.elsewhere(), ROOT, b"a", 0o644).expect("made").ino;
    view.write(&kit.elsewhere(), other, 0, b"second").expect("written");
    drop(view);
    for look_first in [true, false] {
        kit = kit.restart(false);
        if look_first {
            kit.client.look(&root, "a").expect("found");
        }
        assert_eq!(kit.client.get(&file, 0, 10), Ok((b"first".to_vec(), true)));
        let other = kit.client.look(&root, "a").expect("found");
        assert_ne!(other, file);
        assert_eq!(kit.client.get(&other, 0, 10), Ok((b"second".to_vec(), true)));
    }
}

#[test]
fn a_removed_file_is_readable_for_a_while_and_a_removed_directory_is_not() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let file = kit.client.make(&root, "f").expect("made");
    kit.client.put(&file, 0, b"still here", stable_how::UNSTABLE).expect("written");
    kit.client.remove(&root, "f").expect("removed");
    assert_eq!(kit.client.get(&file, 0, 100), Ok((b"still here".to_vec(), true)));
    kit.client.put(&file, 0, b"STILL", stable_how::UNSTABLE).expect("written");
    assert_eq!(kit.client.attributes(&file).expect("attributes").nlink, 0);
    assert_eq!(kit.home.view.handles().1, 1);
    // Nobody uses it for a minute.
    let minute = Duration::from_secs(61).as_nanos() as i64;
    kit.home.view.expire_handles(Time(now().0 - minute));
    assert_eq!(kit.client.get(&file, 0, 5), Ok((b"STILL".to_vec(), false)), "it was used just now");
    kit.home.view.expire_handles(Time(now().0 + minute));
    assert_eq!(kit.client.get(&file, 0, 5), Err(nfsstat3::NFS3ERR_STALE));
    assert_eq!(kit.home.view.handles().1, 0);
    assert_eq!(kit.home.view.inodes(), 1, "nothing of it is left");
    let directory = kit.client.make_directory(&root, "d").expect("made");
    kit.client.remove_directory(&root, "d").expect("removed");
    assert_eq!(kit.client.attributes(&directory).expect_err("gone"), nfsstat3::NFS3ERR_STALE);
    assert_eq!(kit.client.make(&directory, "x").expect_err("gone"), nfsstat3::NFS3ERR_STALE);
}

#[test]
fn removed_files_beyond_the_bound_make_room_oldest_first() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let size = |size| sattr3 { size: set_size3::Some(size), ..sattr3::default() };
    let mut files = Vec::new();
    for number in 0..4 {
        let name = format!("f{number}");
        let file = kit.client.make(&root, &name).expect("made");
        // Sparse: the bound is of what could be read.
        kit.client.set(&file, size(100 << 20)).expect("grown");
        kit.client.remove(&root, &name).expect("removed");
        kit.client.attributes(&file).expect("the newest is kept");
        files.push(file);
    }
    let is_there: Vec<bool> = files.iter().map(|file| kit.client.attributes(file).is_ok()).collect();
    assert_eq!(is_there, [false, false, true, true]);
    let file = kit.client.make(&root, "huge").expect("made");
    kit.client.set(&file, size(300 << 20)).expect("grown");
    kit.client.remove(&root, "huge").expect("removed");
    assert_eq!(kit.client.attributes(&file).expect_err("too large to keep"), nfsstat3::NFS3ERR_STALE);
}

#[test]
fn a_removed_file_that_was_not_used_since_is_newer_than_one_used_before_its_removal() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let mut files = Vec::new();
    for name in ["used", "unused", "newest"] {
        let file = kit.client.make(&root, name).expect("made");
        let size = sattr3 { size: set_size3::Some(100 << 20), ..sattr3::default() };
        kit.client.set(&file, size).expect("grown");
        kit.client.remove(&root, name).expect("removed");
        if name == "used" {
            kit.client.attributes(&file).expect("kept");
        }
        files.push(file);
    }
    let is_there: Vec<bool> = files.iter().map(|file| kit.client.attributes(file).is_ok()).collect();
    assert_eq!(is_there, [false, true, true]);
}

#[test]
fn the_handle_of_a_file_outlives_the_name_that_it_was_issued_for() {
    for look_first in [true, false] {
        let mut kit = Kit::new();
        let root = kit.root.clone();
        let file = kit.client.make(&root, "a").expect("made");
        let (view, caller) = (kit.home.view.clone(), kit.elsewhere());
        let ino = view.lookup(&caller, ROOT, b"a").expect("found").ino;
        view.link(&caller, ino, ROOT, b"b").expect("linked");
        drop(view);
        kit = kit.restart(false);
        if look_first {
            assert_eq!(kit.client.look(&root, "b").expect("found"), file);
        }
        let edit = TreeEdit::Remove { path: TreePath::new("a").expect("a path") };
        let plan = |mut tree: WorkingTree, _: &[&mut Upload]| {
            edit.apply(&mut tree)?;
            Ok::<_, amalgam_view::Error>((vec![edit.clone()], ()))
        };
        kit.home.view.edit_group(&mut [], plan).expect("removed");
        assert_eq!(kit.client.attributes(&file).expect("it has another name").nlink, 1);
        kit = kit.restart(false);
        assert_eq!(kit.client.attributes(&file).expect("it has another name").nlink, 1);
        assert_eq!(kit.client.look(&root, "b").expect("found"), file);
        let new = kit.client.make(&root, "a").expect("made");
        assert_ne!(new, file);
    }
}

#[test]
fn a_rollback_is_seen_and_handles_of_what_stayed_go_on() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let directory = kit.client.make_directory(&root, "d").expect("made");
    let same = kit.client.make(&directory, "same").expect("made");
    let changed = kit.client.make(&directory, "changed").expect("made");
    kit.client.put(&same, 0, b"same", stable_how::UNSTABLE).expect("written");
    kit.client.put(&changed, 0, b"before", stable_how::UNSTABLE).expect("written");
    let snapshot = kit.home.commit();
    kit.client.put(&changed, 0, b"after!", stable_how::UNSTABLE).expect("written");
    let new = kit.client.make(&directory, "new").expect("made");
    kit.home.commit();
    kit.home.view.restore(snapshot, Some(snapshot)).expect("gone back");
    assert_eq!(kit.client.get(&same, 0, 10), Ok((b"same".to_vec(), true)));
    assert_eq!(kit.client.look(&directory, "same").expect("found"), same);
    let now_there = kit.client.look(&directory, "changed").expect("found");
    assert_eq!(kit.client.get(&now_there, 0, 10), Ok((b"before".to_vec(), true)));
    assert_eq!(kit.client.look(&directory, "new"), Err(nfsstat3::NFS3ERR_NOENT));
    // Who has a file open reads on what was there.
    assert_eq!(kit.client.get(&changed, 0, 10), Ok((b"after!".to_vec(), true)));
    assert_eq!(kit.client.attributes(&new).expect("open").nlink, 0);
}

#[test]
fn handles_are_found_again_when_many_others_were_used() {
    let mut kit = Kit::new();
    let root = kit.root.clone();
    let (view, caller) = (kit.home.view.clone(), kit.elsewhere());
    let directory = view.create_directory(&caller, ROOT, b"d", 0o755).expect("made").ino;
    for number in 0..70_000_u32 {
        let made = view.create(&caller, directory, format!("f{number}").as_bytes(), 0o644).expect("made");
        view.forget([(made.ino, 1)]);
    }
    let d = kit.client.look(&root, "d").expect("found");
    let first = kit.client.look(&d, "f0").expect("found");
    let names = crate::listing::list_plus(&mut kit.client, &d, 1 << 20);
    assert_eq!(names.len(), 70_000);
    assert!(view.inodes() < 66_000, "not all are held: {}", view.inodes());
    assert_eq!(kit.client.attributes(&first).expect("found again").size, 0);
    for (name, handle, _) in names.iter().step_by(7_001) {
        assert_eq!(kit.client.look(&d, name).expect("found"), *handle, "{name}");
    }
    drop(view);
    let mut kit = kit.restart(false);
    for (name, handle, number) in names.iter().step_by(5_003) {
        assert_eq!(kit.client.attributes(handle).expect("found after a restart").fileid, *number, "{name}");
    }
}
