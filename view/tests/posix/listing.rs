//! Listings that go on while the directory changes.

use amalgam_view::{Ino, ROOT};

use crate::kit::{ESTALE, Kit, errno};

/// Reads some names from a place on; where it stopped.
fn some(kit: &Kit, ino: Ino, cookie: u64, count: usize) -> (Vec<String>, u64) {
    let (mut names, mut last) = (Vec::new(), cookie);
    let read = kit.view.read_directory(&kit.caller, ino, cookie, |listed| {
        if names.len() == count {
            return false;
        }
        names.push(String::from_utf8_lossy(listed.name).into_owned());
        last = listed.cookie;
        true
    });
    read.expect("list");
    (names, last)
}

fn filled(count: usize) -> Kit {
    let kit = Kit::new();
    for number in 0..count {
        kit.file(&format!("f{number:04}"), b"");
    }
    kit
}

#[test]
fn a_listing_in_pieces_gives_every_name_once() {
    let kit = filled(500);
    let whole = some(&kit, ROOT, 0, usize::MAX).0;
    assert_eq!(&whole[..3], [".", "..", "f0000"]);
    assert_eq!(whole.len(), 502);
    for piece in [1, 2, 7, 100] {
        let (mut all, mut cookie) = (Vec::new(), 0);
        loop {
            let (names, last) = some(&kit, ROOT, cookie, piece);
            if names.is_empty() {
                break;
            }
            all.extend(names);
            cookie = last;
        }
        assert_eq!(all, whole, "in pieces of {piece}");
    }
}

#[test]
fn removing_what_was_listed_hides_nothing() {
    // As rm -r does: list some, remove them, go on.
    let kit = filled(300);
    let (mut removed, mut cookie) = (0, 0);
    loop {
        let (names, last) = some(&kit, ROOT, cookie, 17);
        if names.is_empty() {
            break;
        }
        cookie = last;
        for name in names.iter().filter(|name| name.starts_with('f')) {
            kit.unlink(name).expect("unlink");
            removed += 1;
        }
    }
    assert_eq!(removed, 300);
    assert!(kit.list("").is_empty());
}

#[test]
fn what_comes_and_goes_meanwhile_disturbs_no_other_name() {
    let kit = filled(200);
    let (mut all, mut cookie, mut round) = (Vec::new(), 0, 0);
    loop {
        let (names, last) = some(&kit, ROOT, cookie, 9);
        if names.is_empty() {
            break;
        }
        all.extend(names);
        cookie = last;
        // New names before and behind, and the one just listed goes and comes back.
        kit.file(&format!("a{round:04}"), b"");
        kit.file(&format!("f{:04}x", round * 9), b"");
        if let Some(last) = all.last().filter(|name| name.starts_with('f')) {
            kit.unlink(last).expect("unlink");
            if round % 2 == 0 {
                kit.file(last, b"again");
            }
        }
        round += 1;
    }
    for number in 0..200 {
        let name = format!("f{number:04}");
        assert_eq!(all.iter().filter(|other| **other == name).count(), 1, "{name}");
    }
}

#[test]
fn a_place_in_a_listing_holds_over_a_remount() {
    let kit = filled(50);
    let (first, cookie) = some(&kit, ROOT, 0, 20);
    let kit = kit.close_and_reopen();
    let (rest, _) = some(&kit, ROOT, cookie, usize::MAX);
    assert_eq!(first.len() + rest.len(), 52);
    assert_eq!(rest[0], "f0018");
}

#[test]
fn a_listing_goes_on_behind_a_name_that_went_long_ago() {
    let kit = filled(40);
    let (first, cookie) = some(&kit, ROOT, 0, 20);
    kit.unlink(first.last().expect("a name")).expect("unlink");
    // So much is listed elsewhere that not every name of it is remembered.
    let other = kit.directory("other");
    for number in 0..600 {
        kit.file(&format!("other/{number:04}"), b"");
    }
    for _ in 0..60 {
        some(&kit, other, 0, usize::MAX);
    }
    let (rest, _) = some(&kit, ROOT, cookie, usize::MAX);
    assert_eq!(rest[0], "f0018");
    // In the middle of what was given, such a name is lost: then the listing is not taken for a whole one.
    let lost = some(&kit, ROOT, 0, 10).1;
    some(&kit, ROOT, 0, 20);
    let reopened = kit.close_and_reopen();
    reopened.unlink("f0007").expect("unlink");
    let listed = reopened.view.read_directory(&reopened.caller, ROOT, lost, |_| true);
    assert_eq!(errno(listed), ESTALE);
}
