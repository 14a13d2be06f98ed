//! What is left after a process ended without a word: a prefix of what was done, whatever became of the journal's end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use amalgam_engine::{OperationContext, RefName, Store};
use amalgam_view::{RenameMode, SetAttributes, SizeChange, View, XattrSet};

use crate::kit::{ENOSPC, Kit, Small, errno, now, options};

type Everything = BTreeMap<String, Vec<u8>>;

/// Edits of every sort, each one record of the journal; and what there is after each, with the journal's length by then.
fn history(kit: &Kit) -> Vec<(u64, Everything)> {
    let file = kit.journal().join("0.journal");
    let mut states = Vec::new();
    let mut done = |kit: &Kit| {
        let length = fs::metadata(&file).expect("the journal").len();
        states.push((length, kit.everything()));
    };
    done(kit);
    let create = |name: &str| {
        kit.view.create(&kit.caller, amalgam_view::ROOT, name.as_bytes(), 0o644).expect("create");
    };
    let mut step = |act: &dyn Fn(&Kit)| {
        act(kit);
        done(kit);
    };
    step(&|_| create("a"));
    step(&|kit| kit.write(kit.ino("a"), 0, b"the first bytes"));
    step(&|kit| {
        kit.directory("d");
    });
    step(&|kit| {
        kit.link(kit.ino("a"), "d/link");
    });
    step(&|kit| kit.write(kit.ino("d/link"), 4, b"other"));
    step(&|_| create("b"));
    step(&|kit| kit.write(kit.ino("b"), 100, &[b'b'; 300]));
    step(&|kit| kit.view.punch(&kit.caller, kit.ino("b"), 150, 100, SizeChange::Keep).expect("punch"));
    step(&|kit| kit.rename("b", "d/b", RenameMode::Replace).expect("rename"));
    step(&|kit| {
        let set = SetAttributes { size: Some(200), ..SetAttributes::default() };
        kit.view.set_attributes(&kit.caller, kit.ino("d/b"), &set).expect("truncate");
    });
    step(&|kit| {
        kit.view.create_symlink(&kit.caller, amalgam_view::ROOT, b"s", b"d/b").expect("symlink");
    });
    step(&|kit| kit.rename("a", "s", RenameMode::Exchange).expect("exchange"));
    step(&|kit| kit.view.set_xattr(&kit.caller, kit.ino("d/b"), b"user.x", b"1", XattrSet::Either).expect("xattr"));
    step(&|kit| kit.unlink("d/link").expect("unlink"));
    step(&|kit| kit.rename("d", "e", RenameMode::Replace).expect("rename"));
    step(&|_| create("a file with a longer name, and nothing in it"));
    step(&|kit| kit.unlink("e/b").expect("unlink"));
    step(&|kit| kit.rmdir("e").expect("rmdir"));
    states
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("list") {
        let entry = entry.expect("list");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("copy");
    }
}

/// What there must be when so many bytes of the journal are whole.
fn expected(states: &[(u64, Everything)], whole: u64) -> &Everything {
    &states.iter().rev().find(|(length, _)| *length <= whole).unwrap_or(&states[0]).1
}

#[test]
fn a_journal_cut_anywhere_is_a_prefix_of_what_was_done() {
    let kit = Kit::new();
    let states = history(&kit);
    let scratch = tempfile::tempdir().expect("a directory");
    let store = kit.workspaces.store();
    let length = states.last().expect("states").0;
    for cut in 0..=length {
        let at = scratch.path().join(cut.to_string());
        copy(kit.journal(), &at);
        fs::File::options().write(true).open(at.join("0.journal")).and_then(|file| file.set_len(cut)).expect("cut");
        let after = Kit::at(store, &at, options());
        assert_eq!(&after.everything(), expected(&states, cut), "cut at {cut}");
        if cut % 16 == 0 {
            // What is done from there on is kept, too.
            after.file("more", b"done after the cut");
            let before = after.everything();
            assert_eq!(after.kill_and_reopen().everything(), before, "cut at {cut}, and gone on");
        }
        fs::remove_dir_all(&at).expect("scratch");
    }
}

#[test]
fn a_damaged_byte_ends_the_journal_before_it() {
    let kit = Kit::new();
    let states = history(&kit);
    let scratch = tempfile::tempdir().expect("a directory");
    let store = kit.workspaces.store();
    let length = states.last().expect("states").0;
    for damaged in 0..length {
        let at = scratch.path().join(damaged.to_string());
        copy(kit.journal(), &at);
        let path = at.join("0.journal");
        let mut bytes = fs::read(&path).expect("read");
        bytes[damaged as usize] ^= 0x41;
        fs::write(&path, bytes).expect("write");
        let after = Kit::at(store, &at, options());
        assert_eq!(&after.everything(), expected(&states, damaged), "byte {damaged}");
        assert!(after.recovered.cut_bytes > 0, "byte {damaged}: it says that something was left out");
        fs::remove_dir_all(&at).expect("scratch");
    }
}

#[test]
fn edits_behind_a_gap_are_left_out() {
    // A power cut may keep a younger file and lose the end of an older one.
    let kit = Kit::new();
    let states = history(&kit);
    let kit = kit.kill_and_reopen();
    kit.file("second-life", b"x");
    let older = kit.journal().join("0.journal");
    let (before, last) = (&states[states.len() - 2], &states[states.len() - 1]);
    fs::File::options().write(true).open(older).and_then(|file| file.set_len(last.0 - 1)).expect("cut");
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.everything(), before.1, "the second life stood on what is gone");
    kit.file("third-life", b"x");
    let mut expected = before.1.clone();
    expected.insert("third-life".to_owned(), b"x".to_vec());
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.everything(), expected);
    // A commit makes an end of it.
    kit.commit();
    let kit = kit.kill_and_reopen();
    assert_eq!(kit.everything(), expected);
    assert_eq!(kit.recovered.cut_bytes, 0);
}

#[test]
fn a_commit_or_a_checkpoint_makes_the_journal_short_and_loses_nothing() {
    let kit = Kit::new();
    let reference = RefName::new("view/main").expect("a name");
    let mut expected = Everything::new();
    let mut kit = kit;
    for round in 0..12 {
        let name = format!("f{round}");
        kit.file(&name, name.as_bytes());
        expected.insert(name.clone(), name.into_bytes());
        match round % 4 {
            1 => {
                kit.commit();
            }
            3 => kit.view.checkpoint(&reference, &OperationContext::new("test", now())).expect("checkpoint"),
            _ => {}
        }
        // One more behind it, which is in the journal alone.
        let name = format!("g{round}");
        kit.file(&name, b"behind");
        expected.insert(name, b"behind".to_vec());
        kit = if round % 3 == 0 { kit.close_and_reopen() } else { kit.kill_and_reopen() };
        assert_eq!(kit.everything(), expected, "round {round}");
        if round % 4 == 1 || round % 4 == 3 {
            assert!(kit.recovered.edits <= 3, "round {round}: {:?}", kit.recovered);
        }
    }
    kit.commit();
    kit.view.close().expect("close");
    assert!(!View::has_work(kit.journal()), "nothing is left of a journal without work");
}

#[test]
fn a_journal_of_another_form_is_refused_and_kept() {
    let kit = Kit::new();
    kit.file("f", b"x");
    let base = kit.journal().join("base");
    fs::write(&base, b"something else").expect("write");
    let tree = amalgam_engine::WorkingTree::new(kit.workspaces.store());
    assert!(View::open(tree, kit.journal(), options()).is_err());
    assert!(kit.journal().join("0.journal").exists(), "nothing was thrown away");
    assert!(View::has_work(kit.journal()), "and it is not taken for nothing");
}

#[test]
fn a_full_disk_refuses_and_everything_goes_on_when_there_is_room() {
    let Some(small) = Small::new(1 << 20) else {
        return amalgam_test_support::skip("root", "a small file system cannot be mounted here");
    };
    let store = Store::in_memory();
    let kit = Kit::at(&store, &small.path().join("journal"), options());
    let ballast = small.path().join("ballast");
    fs::write(&ballast, vec![0; 512 << 10]).expect("write");
    let ino = kit.file("f", &[1; 100_000]);
    let before = kit.everything();
    let mut refused = 0;
    for length in [600_000, 500_000, 450_000, 400_000] {
        if let Err(error) = kit.view.write(&kit.caller, ino, 0, &vec![2; length]) {
            assert_eq!(error.errno(), ENOSPC, "{error}");
            refused += 1;
            assert_eq!(kit.everything(), before, "a refused write changes nothing");
        } else {
            break;
        }
    }
    assert!(refused >= 2, "the disk was full {refused} times");
    // Fill what is left with small edits until names are refused, too.
    let mut made = 0;
    let last = loop {
        match kit.view.create(&kit.caller, amalgam_view::ROOT, format!("n{made:0200}").as_bytes(), 0o644) {
            Ok(_) => made += 1,
            Err(error) => break error.errno(),
        }
        assert!(made < 100_000, "a full disk refuses some time");
    };
    assert_eq!(last, ENOSPC);
    let before = kit.everything();
    assert_eq!(errno(kit.view.create_directory(&kit.caller, amalgam_view::ROOT, &[b'd'; 255], 0o755)), ENOSPC);
    assert_eq!(kit.everything(), before);
    fs::remove_file(&ballast).expect("make room");
    kit.write(ino, 50_000, &[3; 200_000]);
    kit.view.sync().expect("sync");
    let after = kit.everything();
    assert_eq!(after["f"][50_000..250_000], [3; 200_000]);
    drop(kit);
    let kit = Kit::at(&store, &small.path().join("journal"), options());
    assert_eq!(kit.everything(), after, "and all of it is there after a kill");
}

/// Takes all the room there is.
fn fill(path: &Path) {
    use std::io::Write as _;
    let mut file = fs::File::create(path).expect("a file");
    for length in [1 << 20, 4 << 10, 64] {
        while file.write_all(&vec![1; length]).is_ok() {}
    }
}

#[test]
fn what_frees_room_is_written_down_on_a_full_disk() {
    let Some(small) = Small::new(4 << 20) else {
        return amalgam_test_support::skip("root", "a small file system cannot be mounted here");
    };
    let store = Store::in_memory();
    let kit = Kit::at(&store, &small.path().join("journal"), options());
    for number in 0..200 {
        kit.file(&format!("n{number}"), b"x");
    }
    let big = kit.file("big", &[1; 500_000]);
    let first = kit.commit();
    let other = kit.file("other", &[2; 500_000]);
    let second = kit.commit();
    fill(&small.path().join("ballast"));
    // What is set aside for some edits more may be used up first.
    let mut made = 0;
    let refused = loop {
        match kit.view.create(&kit.caller, amalgam_view::ROOT, format!("m{made}").as_bytes(), 0o644) {
            Ok(_) => made += 1,
            Err(error) => break error.errno(),
        }
        assert!(made < 100_000, "a full disk refuses some time");
    };
    assert_eq!(refused, ENOSPC);
    for number in 0..200 {
        kit.unlink(&format!("n{number}")).expect("removing works");
    }
    let cut = amalgam_view::SetAttributes { size: Some(10), ..Default::default() };
    kit.view.set_attributes(&kit.caller, big, &cut).expect("cutting works");
    kit.view.punch(&kit.caller, other, 0, 100_000, SizeChange::Keep).expect("punching works");
    assert_eq!(
        errno(kit.view.create(&kit.caller, amalgam_view::ROOT, b"more", 0o644)),
        ENOSPC,
        "other edits are refused"
    );
    let expected = kit.everything();
    assert_eq!(expected["big"].len(), 10);
    let kit = Kit::at(&store, &small.path().join("journal"), options());
    assert_eq!(kit.everything(), expected, "all of it is there after a kill");
    // Going elsewhere and back, and ending, need no more.
    kit.view.restore(first, Some(first)).expect("it goes");
    kit.view.finish_restore(first).expect("settled");
    kit.view.restore(second, Some(second)).expect("it goes");
    kit.view.finish_restore(second).expect("settled");
    kit.view.close().expect("closed");
    let kit = Kit::at(&store, &small.path().join("journal"), options());
    assert_eq!(kit.everything()["other"], [2; 500_000]);
}

#[test]
fn a_closed_journal_holds_no_room_that_it_does_not_use() {
    let kit = Kit::new();
    kit.file("f", b"x");
    let taken = |kit: &Kit| {
        use std::os::unix::fs::MetadataExt as _;
        let files = fs::read_dir(kit.journal()).expect("a directory");
        files.map(|file| file.expect("read").metadata().expect("looked at").blocks() * 512).sum::<u64>()
    };
    let used = taken(&kit);
    kit.view.close().expect("closed");
    assert!(taken(&kit) <= 32 << 10, "{} of {used} bytes are still taken", taken(&kit));
}

#[test]
fn a_file_whose_beginning_is_lost_takes_what_stood_on_it_along() {
    let kit = Kit::new();
    kit.file("first-life", b"x");
    let kit = kit.kill_and_reopen();
    kit.file("second-life", b"x");
    let damaged = kit.journal().join("0.journal");
    fs::File::options().write(true).open(damaged).and_then(|file| file.set_len(10)).expect("cut");
    let kit = kit.kill_and_reopen();
    assert!(kit.everything().is_empty(), "the second life stood on the first");
    // What is done from here on stands on the base alone.
    kit.file("third-life", b"x");
    let kit = kit.kill_and_reopen();
    kit.file("fourth-life", b"x");
    let names: Vec<_> = kit.kill_and_reopen().everything().into_keys().collect();
    assert_eq!(names, ["fourth-life", "third-life"]);
}

#[test]
fn large_writes_that_go_to_disk_early_are_all_there_whoever_syncs_commits_or_dies() {
    let kit = Kit::new();
    let ino = kit.file("large", b"");
    let piece = |number: u64| vec![number as u8; 1 << 20];
    // Twice as much as goes early, with a sync and a commit in between.
    for number in 0..136 {
        kit.write(ino, number << 20, &piece(number));
        if number == 70 {
            kit.view.sync().expect("sync");
        }
        if number == 90 {
            kit.commit();
        }
    }
    let kit = kit.kill_and_reopen();
    let ino = kit.ino("large");
    for number in 0..136 {
        let bytes = kit.view.read(ino, number << 20, 1 << 20).expect("read");
        assert!(bytes == piece(number), "piece {number}");
    }
    // Nothing holds the store once the view is closed.
    kit.file("small", b"x");
    kit.close_and_reopen();
}
