//! Numbers of inodes: the same over a remount, never used twice, and no more in memory than are held.

use std::collections::HashSet;

use amalgam_view::{ROOT, RenameMode};

use crate::kit::{ESTALE, Kit, errno};

#[test]
fn numbers_are_the_same_after_a_remount() {
    let kit = Kit::new();
    kit.directory("d");
    kit.directory("d/e");
    kit.file("d/e/f", b"1");
    kit.file("g", b"2");
    // One that moved, one that took its place, one that came where another had been.
    kit.rename("g", "d/h", RenameMode::Replace).expect("rename");
    kit.file("g", b"3");
    kit.file("tmp", b"4");
    kit.unlink("tmp").expect("unlink");
    kit.file("tmp", b"5");
    let paths = ["d", "d/e", "d/e/f", "d/h", "g", "tmp"];
    let before: Vec<_> = paths.iter().map(|path| kit.look(path).expect("there")).collect();
    let numbers: HashSet<_> = before.iter().map(|found| found.ino).collect();
    assert_eq!(numbers.len(), paths.len());
    for commit in [false, true] {
        if commit {
            kit.commit();
        }
    }
    let kit = kit.close_and_reopen();
    for (path, before) in paths.iter().zip(&before) {
        let after = kit.look(path).expect("there");
        assert_eq!(after.ino, before.ino, "{path}");
        assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime), "{path}");
    }
}

#[test]
fn a_file_with_several_names_has_one_number_whichever_is_looked_up_first() {
    type Acts<'a> = &'a [&'a dyn Fn(&Kit)];
    let link = |from: &'static str, to: &'static str| {
        move |kit: &Kit| {
            kit.link(kit.ino(from), to);
        }
    };
    let (first, second, third) = (link("a", "0"), link("a", "b"), link("b", "0"));
    let moves = |kit: &Kit| kit.rename("a", "0z", RenameMode::Replace).expect("renamed");
    let unlinks = |kit: &Kit| kit.unlink("a").expect("unlinked");
    // The names in the end, and what is done before a commit and after it.
    let cases: [(&[&str], Acts<'_>, Acts<'_>); 5] = [
        (&["0", "a"], &[], &[&first]),
        (&["0z", "b"], &[&second], &[&moves]),
        (&["b"], &[&second], &[&unlinks]),
        (&["0", "a"], &[&first], &[]),
        (&["0", "a", "b"], &[&second], &[&third]),
    ];
    for (number, (names, before, after)) in cases.into_iter().enumerate() {
        for forgotten in [false, true] {
            let kit = Kit::new();
            let ino = kit.file("a", b"1");
            before.iter().for_each(|act| act(&kit));
            kit.commit();
            after.iter().for_each(|act| act(&kit));
            let seen = kit.look(names[names.len() - 1]).expect("there");
            assert_eq!(seen.ino, ino, "case {number}");
            if forgotten {
                kit.view.forget([(ino, u64::MAX)]);
            }
            let kit = kit.close_and_reopen();
            for name in names {
                let now = kit.look(name).expect("there");
                assert_eq!((now.ino, now.ctime), (ino, seen.ctime), "case {number}: {name}, forgotten: {forgotten}");
            }
        }
    }
}

#[test]
fn no_number_is_used_for_two_things() {
    let kit = Kit::new();
    let mut seen = HashSet::new();
    for round in 0..200 {
        let ino = kit.file("same-name", b"");
        assert!(seen.insert(ino), "round {round}: {ino} was used before");
        match round % 3 {
            0 => kit.unlink("same-name").expect("unlink"),
            1 => {
                kit.file("over", b"");
                let over = kit.ino("over");
                assert!(seen.insert(over));
                kit.rename("over", "same-name", RenameMode::Replace).expect("rename");
                kit.unlink("same-name").expect("unlink");
            }
            _ => {
                kit.rename("same-name", &format!("kept-{round}"), RenameMode::Replace).expect("rename");
            }
        }
        // Forgotten or not makes no difference.
        if round % 2 == 0 {
            kit.view.forget([(ino, u64::MAX)]);
        }
    }
}

#[test]
fn a_directory_created_where_a_forgotten_one_was_is_another() {
    let kit = Kit::new();
    let first = kit.directory("b");
    // The view caches the path of a directory in which something was created.
    let inside = kit.file("b/old", b"1");
    kit.rename("b", "c", RenameMode::Replace).expect("rename");
    let moved = kit.file("c/new", b"2");
    kit.view.forget([(inside, u64::MAX), (moved, u64::MAX), (first, u64::MAX)]);
    assert_eq!(kit.view.inodes(), 1, "nothing but the root is held");
    let second = kit.directory("b");
    assert_ne!(second, first, "the number is reserved for the directory that was moved");
    kit.file("b/x", b"3");
    assert_eq!(kit.list("b"), ["x"]);
    assert_eq!(kit.list("c"), ["new", "old"]);
    assert_eq!(kit.ino("c"), first);
    // Moved back to where it was first, it keeps its number too.
    kit.rename("b", "d", RenameMode::Replace).expect("rename");
    kit.rename("c", "b", RenameMode::Replace).expect("rename");
    for path in ["b", "d"] {
        let ino = kit.ino(path);
        kit.view.forget([(ino, u64::MAX)]);
    }
    assert_eq!((kit.ino("b"), kit.ino("d")), (first, second));
}

#[test]
fn edits_go_to_the_directory_at_the_path_whatever_the_caller_forgets() {
    let kit = Kit::new();
    let hold = |path: &str| (kit.ino(path), u64::MAX);
    // Each round moves the directory away and creates another one at its place; the kernel forgets both at random times.
    for round in 0_u32..64 {
        kit.directory("a");
        kit.file(&format!("a/in-{round}"), b"");
        let kept = format!("a-{round}");
        if round % 2 == 0 {
            kit.view.forget([hold(&format!("a/in-{round}")), hold("a")]);
        }
        kit.rename("a", &kept, RenameMode::Replace).expect("rename");
        kit.file(&format!("{kept}/later"), b"");
        if round % 3 == 0 {
            kit.view.forget([hold(&format!("{kept}/later")), hold(&format!("{kept}/in-{round}")), hold(&kept)]);
        }
    }
    for round in 0..64 {
        assert_eq!(kit.list(&format!("a-{round}")), [format!("in-{round}"), "later".to_owned()], "round {round}");
    }
}

#[test]
fn what_nobody_holds_takes_no_memory() {
    let kit = Kit::new();
    for number in 0..2_000 {
        let name = format!("f{number}");
        kit.file(&name, b"x");
    }
    let held = kit.view.inodes();
    assert!(held >= 2_000, "{held} are held");
    for number in 0..2_000 {
        let ino = kit.ino(&format!("f{number}"));
        // Once by creating, once by looking.
        kit.view.forget([(ino, 2)]);
    }
    assert_eq!(kit.view.inodes(), 1, "only the root is left");
    // A listing without holding leaves nothing behind either.
    kit.list("");
    assert_eq!(kit.view.inodes(), 1);
    assert_eq!(errno(kit.view.attributes(12_345)), ESTALE);
    kit.view.forget([(12_345, 7), (ROOT, u64::MAX)]);
    assert_eq!(kit.attributes(ROOT).ino, ROOT, "the root cannot be forgotten");
}
