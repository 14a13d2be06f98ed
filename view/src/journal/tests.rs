//! What a journal does when the disk below it fails.

use super::*;
use crate::{Caller, ROOT, View, ViewOptions};
use amalgam_engine::Act;
use amalgam_engine::object::Owner;
use amalgam_engine::reference::RefName;

fn options() -> ViewOptions {
    ViewOptions::new(Owner { uid: 0, gid: 0 }, || Time(1_000_000_000))
}

fn opened(directory: &Path) -> View {
    View::open(WorkingTree::new(&Store::in_memory()), directory, options()).expect("a view opens").0
}

/// A file that cannot be put on disk.
fn unsyncable() -> Arc<JournalFile> {
    Arc::new(JournalFile { file: File::open("/dev/null").expect("it is everywhere") })
}

#[test]
fn a_sync_that_failed_is_never_done_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    view.create(&caller, ROOT, b"a", 0o644).expect("made");
    view.sync().expect("on disk");
    let journal = |work: &mut dyn FnMut(&mut Journal)| work(view.shared.live.write().journal.as_mut().expect("there"));
    journal(&mut |journal| journal.unsynced.push(unsyncable()));
    assert!(view.sync().is_err());
    // The disk has come back, as far as anybody is told.
    journal(&mut |journal| journal.unsynced.clear());
    assert!(matches!(view.sync(), Err(Error::Journal(_))));
    assert!(view.has_failed());
    assert!(matches!(view.create(&caller, ROOT, b"b", 0o644), Err(Error::Journal(_))));
    let reference = RefName::new("view/main").expect("a name");
    let checkpoint = view.checkpoint(&reference, &Act::new("test", Time(0)));
    assert!(matches!(checkpoint, Err(Error::Journal(_))), "nothing is read from it for good");
}

#[test]
fn a_journal_that_failed_is_let_go_of_and_left_for_the_next_view() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    view.create(&caller, ROOT, b"a", 0o644).expect("made");
    view.shared.live.write().journal.as_mut().expect("there").fail("as a test".to_owned());
    view.close().expect("let go");
    assert!(view.is_read_only());
    let next = opened(scratch.path());
    next.lookup(&caller, ROOT, b"a").expect("it was written down");
    next.create(&caller, ROOT, b"b", 0o644).expect("it goes on");
}

#[test]
fn a_view_that_cannot_be_closed_goes_on() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    // Nothing is needed of it, and it cannot be removed.
    let (base, aside) = (scratch.path().join("base"), scratch.path().join("aside"));
    std::fs::rename(&base, &aside).expect("renamed");
    std::fs::create_dir(&base).expect("made");
    assert!(view.close().is_err());
    assert!(!view.is_read_only());
    std::fs::remove_dir(&base).expect("removed");
    std::fs::rename(&aside, &base).expect("renamed");
    view.create(&caller, ROOT, b"a", 0o644).expect("it goes on");
    // What it would have remembered cannot be written: that is no reason to stay.
    std::fs::create_dir(scratch.path().join("inodes.new")).expect("made");
    view.rename(&caller, (ROOT, b"a"), (ROOT, b"b"), crate::RenameMode::Replace).expect("moved");
    view.close().expect("closed");
    assert!(view.is_read_only());
    opened(scratch.path()).lookup(&caller, ROOT, b"b").expect("all is there");
}

#[test]
fn the_longest_edit_reads_back() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::create(scratch.path(), None).expect("begun");
    let path = |letter: &str| {
        let names = vec![letter.repeat(NAME_BYTES_MAX); DEPTH_MAX];
        amalgam_engine::TreePath::new(names.join("/")).expect("as long as can be")
    };
    let longest = Edit::Rename { from: path("a"), to: path("b"), mode: crate::RenameMode::Exchange };
    journal.append(&longest, Time(0), &[]).expect("written");
    let (at, length) = (BEGINNING_BYTES as u64, journal.end);
    let found = read_record(&journal.current, at, length).expect("read");
    assert_eq!(found.map(|(edit, ..)| edit), Some(longest));
    let refused = Edit::SetXattr { path: path("a"), name: b"user.a".to_vec(), value: vec![0; EDIT_BYTES_MAX] };
    assert!(journal.append(&refused, Time(0), &[]).is_err(), "what would not be read back is not written");
    assert_eq!(journal.end, length);
}

#[test]
fn turns_that_come_to_nothing_leave_no_files_behind() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::create(scratch.path(), None).expect("begun");
    let files = || std::fs::read_dir(scratch.path()).expect("list").count();
    let place = journal.turn().expect("a place");
    let before = files();
    for _ in 0..20 {
        assert_eq!(journal.turn().expect("a place"), place, "nothing was written since");
    }
    assert_eq!((files(), journal.unsynced.len(), journal.earlier.len()), (before, 1, 1));
    journal.append(&Edit::Loose { length: 0 }, Time(0), &[]).expect("written");
    assert_eq!(journal.turn().expect("a place").file, place.file + 1);
    // A commit is only found again behind the base.
    let (landed, state) = (JournalPlace { file: journal.number, ..place }, Some(SnapshotId::from_bytes([7; 32])));
    journal.landed(landed, state, state);
    let (directory, base) = journal.take_move().expect("a base");
    base.write(&directory).expect("written");
    journal.moved(&base);
    assert_eq!(journal.turn().expect("a place").file, place.file + 2);
}
