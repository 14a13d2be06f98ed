//! The journal on a disk that fails, and journals that were damaged.

use super::*;
use crate::{Caller, ROOT, View, ViewOptions};
use amalgam_engine::object::Owner;
use amalgam_engine::reference::RefName;
use amalgam_engine::{DEPTH_MAX, NAME_BYTES_MAX, OperationContext};

fn options() -> ViewOptions {
    ViewOptions::new(Owner { uid: 0, gid: 0 }, || Time(1_000_000_000))
}

fn opened(directory: &Path) -> View {
    View::open(WorkingTree::new(&Store::in_memory()), directory, options()).expect("a view opens").0
}

/// Returns a file that cannot be synced to disk.
fn unsyncable() -> Arc<JournalFile> {
    Arc::new(JournalFile::new(File::open("/dev/null").expect("it is everywhere")))
}

#[test]
fn a_sync_that_failed_is_never_done_again() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    view.create(&caller, ROOT, b"a", 0o644).expect("made");
    view.sync().expect("on disk");
    let journal = |work: &mut dyn FnMut(&mut Journal)| work(view.shared.fs.write().journal.as_mut().expect("there"));
    journal(&mut |journal| journal.unsynced.push(unsyncable()));
    assert!(view.sync().is_err());
    // The disk has come back, as far as the kernel reports.
    journal(&mut |journal| journal.unsynced.clear());
    assert!(matches!(view.sync(), Err(Error::Journal(_))));
    assert!(view.has_failed());
    assert!(matches!(view.create(&caller, ROOT, b"b", 0o644), Err(Error::Journal(_))));
    let reference = RefName::new("view/main").expect("a name");
    let checkpoint = view.checkpoint(&reference, &OperationContext::new("test", Time(0)));
    assert!(matches!(checkpoint, Err(Error::Journal(_))), "nothing is read from it for good");
}

#[test]
fn files_that_are_no_longer_written_give_their_space_back_with_the_next_sync() {
    use std::os::unix::fs::MetadataExt as _;
    let scratch = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::create(scratch.path(), None).expect("a journal");
    let taken = |number: u64| {
        let file = scratch.path().join(file_name(number)).metadata().expect("it is there");
        file.blocks() * 512
    };
    for number in 0..4_u64 {
        let edit = Edit::SetState { key: "k".to_owned(), value: None };
        journal.append(&edit, Time(1), &[]).expect("written");
        assert_eq!(journal.rotate().expect("a new file").file, number + 1);
    }
    if taken(0) <= 64 << 10 {
        // This file system preallocates nothing.
        return;
    }
    assert!((0..4).all(|number| taken(number) <= 1 << 20));
    journal.unsynced().expect("a list").sync().expect("on disk");
    assert!((0..4).all(|number| taken(number) <= 8 << 10), "{:?}", (0..4).map(taken).collect::<Vec<_>>());
    assert!(taken(4) > 8 << 10, "the file that is written keeps its reserve");
}

#[test]
fn a_journal_that_failed_is_let_go_of_and_left_for_the_next_view() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    view.create(&caller, ROOT, b"a", 0o644).expect("made");
    view.shared.fs.write().journal.as_mut().expect("there").fail("as a test".to_owned());
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
    // A failure to save inode numbers does not prevent closing.
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
    let (at, length) = (HEADER_BYTES as u64, journal.end);
    let found = replay::read_record(&journal.current, at, length).expect("read");
    assert!(matches!(found, replay::RecordAt::Complete { edit, .. } if edit == longest));
    let refused = Edit::SetXattr { path: path("a"), name: b"user.a".to_vec(), value: vec![0; EDIT_BYTES_MAX] };
    assert!(journal.append(&refused, Time(0), &[]).is_err(), "what would not be read back is not written");
    assert_eq!(journal.end, length);
}

#[test]
fn turns_that_come_to_nothing_leave_no_files_behind() {
    let scratch = tempfile::tempdir().expect("a directory");
    let mut journal = Journal::create(scratch.path(), None).expect("begun");
    let files = || std::fs::read_dir(scratch.path()).expect("list").count();
    let place = journal.rotate().expect("a place");
    let before = files();
    for _ in 0..20 {
        assert_eq!(journal.rotate().expect("a place"), place, "nothing was written since");
    }
    assert_eq!((files(), journal.unsynced.len(), journal.earlier.len()), (before, 1, 1));
    journal.append(&Edit::UnlinkedData { length: 0 }, Time(0), &[]).expect("written");
    assert_eq!(journal.rotate().expect("a place").file, place.file + 1);
    // A commit is only found again behind the base.
    let (landed, state) = (JournalPlace { file: journal.number, ..place }, Some(SnapshotId::from_bytes([7; 32])));
    journal.set_pending_base(landed, state, state);
    let (directory, base) = journal.take_pending_base().expect("a base");
    base.write(&directory).expect("written");
    journal.base_moved(&base);
    assert_eq!(journal.rotate().expect("a place").file, place.file + 2);
}

/// Returns a path with one name more than the limit, as an earlier version could make it.
fn too_deep() -> amalgam_engine::TreePath {
    let deepest = amalgam_engine::TreePath::new(vec!["d"; DEPTH_MAX].join("/")).expect("as deep as can be");
    deepest.join(&amalgam_engine::Name::new(b"x").expect("a name"))
}

#[test]
fn edits_behind_one_that_cannot_be_done_are_done_and_it_is_reported() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    view.create(&caller, ROOT, b"before", 0o644).expect("made");
    {
        let mut fs = view.shared.fs.write();
        let journal = fs.journal.as_mut().expect("there");
        journal.append(&Edit::Create { path: too_deep(), mode: 0o644, owner: None }, Time(1), &[]).expect("written");
        let write = Edit::Write { path: too_deep(), offset: 0, length: 5 };
        journal.append(&write, Time(1), b"bytes").expect("written");
        let absent = amalgam_engine::TreePath::new("absent").expect("a path");
        journal.append(&Edit::Remove { path: absent }, Time(1), &[]).expect("written");
    }
    let made = view.create(&caller, ROOT, b"after", 0o644).expect("made");
    view.write(&caller, made.ino, 0, b"synced").expect("written");
    view.sync().expect("synced");
    let (next, recovered) =
        View::open(WorkingTree::new(&Store::in_memory()), scratch.path(), options()).expect("opens");
    next.lookup(&caller, ROOT, b"before").expect("before it");
    let after = next.lookup(&caller, ROOT, b"after").expect("behind it");
    assert_eq!(next.read(after.ino, 0, 10).expect("read").to_vec(), b"synced");
    assert_eq!((recovered.edits, recovered.skipped_edits, recovered.cut_bytes), (3, 3, 0));
    let kept = recovered.kept.clone().expect("the file is kept");
    assert_eq!(std::fs::read_dir(&kept).expect("list").count(), 1);
    let warning = recovered.warning().expect("it is told");
    assert!(warning.contains("3 changes") && warning.contains(&kept.display().to_string()), "{warning}");
}

#[test]
fn whole_records_behind_damage_or_a_lost_file_are_kept() {
    let scratch = tempfile::tempdir().expect("a directory");
    let (view, caller) = (opened(scratch.path()), Caller::owner(0, 0));
    let place = |view: &View| view.shared.fs.read().journal.as_ref().expect("there").position();
    view.create(&caller, ROOT, b"first", 0o644).expect("made");
    let (_, damaged) = place(&view);
    for name in [b"second", b"third!"] {
        view.create(&caller, ROOT, name, 0o644).expect("made");
    }
    let path = scratch.path().join("0.journal");
    let whole = std::fs::read(&path).expect("read");
    let mut bytes = whole.clone();
    bytes[damaged as usize + RECORD_HEAD_BYTES + 2] ^= 1;
    std::fs::write(&path, &bytes).expect("written");
    let open = || View::open(WorkingTree::new(&Store::in_memory()), scratch.path(), options()).expect("opens");
    let (next, recovered) = open();
    next.lookup(&caller, ROOT, b"first").expect("before the damage");
    assert!(next.lookup(&caller, ROOT, b"third!").is_err(), "behind a gap there is no state that ever was");
    let kept = recovered.kept.clone().expect("what is behind it is kept");
    let file = std::fs::read_dir(&kept).expect("list").next().expect("a file").expect("list").path();
    assert_eq!(std::fs::read(file).expect("read"), bytes);
    assert!(recovered.warning().expect("it is told").contains("damaged"));
    // Damage at the end, as a cut of the power makes it, is nothing to tell of.
    std::fs::remove_dir_all(&kept).expect("removed");
    std::fs::write(&path, &whole[..whole.len() - 1]).expect("written");
    std::fs::remove_file(scratch.path().join("1.journal")).expect("removed");
    let (next, recovered) = open();
    assert_eq!((&recovered.kept, recovered.edits), (&None, 2));
    // A file that is gone.
    next.create(&caller, ROOT, b"gone", 0o644).expect("made");
    next.shared.fs.write().journal.as_mut().expect("there").rotate().expect("turned");
    next.create(&caller, ROOT, b"lost", 0o644).expect("made");
    std::fs::remove_file(scratch.path().join("1.journal")).expect("removed");
    let (_, recovered) = open();
    assert!(recovered.kept.is_some(), "the file behind the one that is gone is kept");
}

#[test]
fn a_sync_after_a_restore_syncs_the_store_that_it_rests_on() {
    use amalgam_engine::StoreOptions;
    use amalgam_engine::backend::{Fault, FaultPlan, Memory};
    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};

    let plan = Arc::new(FaultPlan::default());
    let backend = Arc::new(Fault::new(Memory::default(), Arc::clone(&plan)));
    let store = Store::new(backend, &StoreOptions::default());
    let (workspaces, name) = (Workspaces::of(&store), WorkspaceName::new("main").expect("a name"));
    let act = OperationContext::new("test", Time(0)).buffered();
    workspaces.create(&name, &NewWorkspace::default(), &act).expect("a workspace");
    let scratch = tempfile::tempdir().expect("a directory");
    let tree = workspaces.open(&name).expect("a tree");
    let (view, _) = View::open(tree, scratch.path(), options()).expect("a view");
    let caller = Caller::owner(0, 0);
    view.create(&caller, ROOT, b"a", 0o644).expect("made");
    let then = view.commit(&workspaces, &name, &Change::new("a"), &act, "commit").expect("a commit").snapshot;
    view.create(&caller, ROOT, b"b", 0o644).expect("made");
    view.restore(then, Some(then)).expect("restored");
    plan.full_after_writes(0);
    assert!(view.sync().is_err(), "the snapshot may not be on disk, so nothing behind it is");
    plan.heal();
    view.sync().expect("synced");
    plan.full_after_writes(0);
    view.sync().expect("it was synced before");
    // A store that never had the snapshot: what came before is there, and what stood on it is kept.
    let (next, recovered) = {
        let tree = WorkingTree::new(&Store::in_memory());
        View::open(tree, scratch.path(), options()).expect("it opens")
    };
    next.lookup(&caller, ROOT, b"b").expect("from before the restore");
    assert!(recovered.kept.is_some() && !recovered.restored, "{recovered:?}");
}
