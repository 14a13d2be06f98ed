//! Patches against `git apply`: what it makes of one tree must be the other.

use amalgam_engine::insight::{LeftOut, Omission, RenameSearch};
use amalgam_engine::object::{Device, EntryKind, Owner};
use amalgam_engine::work::Special;
use amalgam_engine::{PatchOptions, PatchReport, RenameOptions, RootId, Store, Time, TreePath, WorkingTree, patch};
use amalgam_tests::git::{
    File, Files, files, git, own_history, put, read_back, run, some_edit, some_files, stored, write_out,
};
use amalgam_tests::model::{Raw, cases, write_root};
use proptest::prelude::*;

/// The patch between two trees, as text and report.
fn patch_of(before: &Files, after: &Files, options: &PatchOptions) -> (Vec<u8>, PatchReport) {
    let store = Store::in_memory();
    let (before, after) = (stored(&store, before), stored(&store, after));
    patch_between(&store, before, after, options)
}

fn patch_between(store: &Store, before: RootId, after: RootId, options: &PatchOptions) -> (Vec<u8>, PatchReport) {
    let mut text = Vec::new();
    let report = patch(store, Some(before), Some(after), options, &mut text).expect("a patch");
    assert_eq!(report.bytes, text.len() as u64);
    (text, report)
}

/// Writes a tree out, lets Git apply a patch to it, and reads what came of it.
fn applied(files: &Files, text: &[u8], more: &[&str]) -> Result<Files, String> {
    let directory = tempfile::tempdir().expect("a directory");
    write_out(directory.path(), files);
    if !text.is_empty() {
        let mut command = git(directory.path());
        command.args(["apply", "--whitespace=nowarn"]).args(more);
        run(&mut command, text).map_err(|error| format!("{error}\n{}", text.escape_ascii()))?;
    }
    let (files, empty) = read_back(directory.path());
    if empty.is_empty() { Ok(files) } else { Err(format!("empty directories are left: {empty:?}")) }
}

/// The patch makes one tree of the other, and in reverse the other of the one, with any settings.
fn check(before: &Files, after: &Files) -> Result<(), String> {
    let all = PatchOptions::default();
    let without_renames = PatchOptions { renames: None, ..all.clone() };
    let less_context = PatchOptions { context_lines: 1, ..all.clone() };
    let (text, report) = patch_of(before, after, &all);
    if !report.left_out.is_empty() {
        return Err(format!("left out: {:?}", report.left_out));
    }
    let same = |got: Files, expected: &Files, how: &str| match got == *expected {
        true => Ok(()),
        false => Err(format!("{how}: {got:?} instead of {expected:?}")),
    };
    same(applied(before, &text, &[])?, after, "forth")?;
    let back = applied(after, &text, &["--reverse"])?;
    same(without_lost_modes(back, after), &without_lost_modes(before.clone(), after), "back")?;
    same(applied(before, &patch_of(before, after, &without_renames).0, &[])?, after, "without renames")?;
    same(applied(before, &patch_of(before, after, &less_context).0, &[])?, after, "with less context")
}

/// In reverse, Git (2.47) makes plain files of all that its own patches delete: there only the bytes are compared.
fn without_lost_modes(files: Files, after: &Files) -> Files {
    let kind = |file: &File| matches!(file, File::Symlink(_));
    let plain = |(path, file): (Vec<u8>, File)| match (after.get(&path), file) {
        (Some(there), file) if kind(there) == kind(&file) => (path, file),
        (_, File::Plain(bytes) | File::Executable(bytes) | File::Symlink(bytes)) => (path, File::Plain(bytes)),
    };
    files.into_iter().map(plain).collect()
}

#[track_caller]
fn assert_applies(before: &Files, after: &Files) {
    check(before, after).unwrap_or_else(|error| panic!("{error}"));
    check(after, before).unwrap_or_else(|error| panic!("the other way round: {error}"));
}

fn lines(range: std::ops::Range<u32>) -> String {
    range.map(|line| format!("line {line}\n")).collect()
}

fn text_of(before: &Files, after: &Files) -> String {
    String::from_utf8(patch_of(before, after, &PatchOptions::default()).0).expect("text")
}

proptest! {
    #![proptest_config(cases(20))]

    #[test]
    fn git_makes_one_tree_of_the_other(
        before in some_files(),
        edits in prop::collection::vec(some_edit(), 0..12),
    ) {
        let mut after = before.clone();
        edits.iter().for_each(|edit| edit.apply(&mut after));
        check(&before, &after).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn git_makes_one_tree_of_any_other(before in some_files(), after in some_files()) {
        check(&before, &after).map_err(TestCaseError::fail)?;
    }
}

#[test]
fn files_are_added_changed_and_deleted() {
    let base =
        files([("keep", File::text("same\n")), ("d/change", File::text(&lines(0..40))), ("d/gone", File::text("x\n"))]);
    let mut after = base.clone();
    after.remove(&b"d/gone"[..]);
    put(&mut after, b"d/change", File::text(&lines(0..40).replace("line 5\n", "").replace("line 30\n", "thirty\n")));
    put(&mut after, b"new/deep/file", File::text("new\n"));
    assert_applies(&base, &after);
    let (text, _) = patch_of(&base, &after, &PatchOptions { context_lines: 0, ..PatchOptions::default() });
    assert_eq!(applied(&base, &text, &["--unidiff-zero"]), Ok(after));
}

#[test]
fn everything_can_go_and_come() {
    let tree =
        files([("a", File::text("a\n")), ("d/b", File::Plain(Raw(vec![0, 1, 2]))), ("d/l", File::Symlink("b".into()))]);
    assert_applies(&tree, &Files::new());
    assert!(text_of(&tree, &tree).is_empty());
}

#[test]
fn renames_with_and_without_edits() {
    let before = files([("old", File::text(&lines(0..50))), ("d/edited.rs", File::text(&lines(100..150)))]);
    let after = files([
        ("new name", File::text(&lines(0..50))),
        ("e/edited too.rs", File::text(&lines(100..150).replace("line 120\n", "another\n"))),
    ]);
    assert_applies(&before, &after);
    let text = text_of(&before, &after);
    assert!(text.contains("similarity index 100%\nrename from old\nrename to new name\n"), "{text}");
    assert!(text.contains("rename from d/edited.rs\nrename to e/edited too.rs\nindex "), "{text}");
    let limit = RenameOptions { percent_min: 100, ..RenameOptions::default() };
    let exact = PatchOptions { renames: Some(limit), ..PatchOptions::default() };
    let (text, report) = patch_of(&before, &after, &exact);
    let text = String::from_utf8(text).expect("text");
    assert_eq!((text.matches("rename from").count(), report.renames), (1, RenameSearch::Complete));
}

#[test]
fn a_directory_that_moved_is_renamed_file_by_file() {
    let before = files([
        ("d/a", File::text("a\n")),
        ("d/e/b", File::Executable("b\n".into())),
        ("d/e/empty", File::text("")),
        ("d/l", File::Symlink("e/b".into())),
    ]);
    let after = before.iter().map(|(path, file)| ([b"moved/".as_slice(), path].concat(), file.clone())).collect();
    assert_applies(&before, &after);
    assert_eq!(text_of(&before, &after).matches("rename from d/").count(), 3);
}

#[test]
fn the_executable_bit_is_kept() {
    let plain = files([("run", File::text("#!/bin/sh\n")), ("both", File::text("one\n"))]);
    let executable =
        files([("run", File::Executable("#!/bin/sh\n".into())), ("both", File::Executable("two\n".into()))]);
    assert_applies(&plain, &executable);
    assert!(text_of(&plain, &executable).contains("diff --git a/run b/run\nold mode 100644\nnew mode 100755\n"));
    let moved = files([("ran", File::Executable("#!/bin/sh\n".into())), ("both", File::text("one\n"))]);
    assert_applies(&plain, &moved);
}

#[test]
fn symlinks_and_changes_of_kind() {
    let file = files([("x", File::text("text\n")), ("l", File::Symlink("x".into()))]);
    let symlink = files([("x", File::Symlink("elsewhere/\nthere".into())), ("l", File::Symlink("y".into()))]);
    assert_applies(&file, &symlink);
    let directory = files([("x/y", File::text("below\n")), ("l/z", File::text("below too\n"))]);
    assert_applies(&file, &directory);
    assert_applies(&symlink, &directory);
}

#[test]
fn binary_files_are_whole() {
    let noise = |seed: u64, length: u64| -> Vec<u8> {
        (0..length).map(|at| ((seed ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    };
    let before = files([
        ("small", File::Plain(Raw(vec![0]))),
        ("image", File::Plain(Raw(noise(1, 100_000)))),
        ("late", File::text(&lines(0..2_000))),
    ]);
    let mut late = lines(0..2_000).into_bytes();
    late.extend_from_slice(b"\0after the first 8,000 bytes");
    let after = files([
        ("small", File::Executable(Raw(vec![0, 0, 7]))),
        ("image", File::Plain(Raw(noise(2, 70_001)))),
        ("late", File::Plain(Raw(late))),
        ("new", File::Plain(Raw(noise(3, 52)))),
    ]);
    assert_applies(&before, &after);
}

#[test]
fn what_is_too_large_for_lines_is_written_as_binary() {
    let (before, after) = (files([("f", File::text(&lines(0..90)))]), files([("f", File::text(&lines(1..90)))]));
    let options = PatchOptions { text_bytes_max: 100, ..PatchOptions::default() };
    let (text, _) = patch_of(&before, &after, &options);
    assert!(String::from_utf8_lossy(&text).contains("GIT binary patch"));
    assert_eq!(applied(&before, &text, &[]), Ok(after.clone()));
    let options = PatchOptions { file_bytes_max: 100, ..PatchOptions::default() };
    let (text, report) = patch_of(&before, &after, &options);
    let bytes = lines(0..90).len() as u64;
    assert_eq!((text.len(), report.left_out), (0, vec![left_out("f", Omission::TooLarge { bytes })]));
}

#[test]
fn last_lines_without_newline_and_empty_files() {
    let contents = ["", "a", "a\n", "a\nb", "a\nb\n", "\n", "a\r\nb\r\n"];
    let (mut before, mut after) = (Files::new(), Files::new());
    for (from, old) in contents.iter().enumerate() {
        for (to, new) in contents.iter().enumerate() {
            put(&mut before, format!("{from} to {to}").as_bytes(), File::text(old));
            put(&mut after, format!("{from} to {to}").as_bytes(), File::text(new));
        }
    }
    assert_applies(&before, &after);
    assert_applies(&Files::new(), &files([("empty", File::text("")), ("run", File::Executable("".into()))]));
}

#[test]
fn odd_names_are_quoted() {
    let names: [&[u8]; 9] =
        [b"a b", b"quo\"te", b"tab\t", b"new\nline", b"\xff", "\u{e4}".as_bytes(), b"back\\slash", b" ", b"b/ b/c"];
    let mut before = Files::new();
    let mut after = Files::new();
    for (number, name) in names.iter().enumerate() {
        put(&mut before, name, File::text(&lines(0..20)));
        put(
            &mut after,
            name,
            if number % 2 == 0 { File::text(&lines(1..20)) } else { File::Executable(lines(0..20).as_str().into()) },
        );
    }
    assert_applies(&before, &after);
    assert_applies(&Files::new(), &after);
    let renamed: Files = before.iter().map(|(path, file)| ([b"to ", &path[..]].concat(), file.clone())).collect();
    assert_applies(&before, &renamed);
}

#[test]
fn only_the_paths_asked_for() {
    let before = files([
        ("in/a", File::text(&lines(0..9))),
        ("in/b", File::text(&lines(20..40))),
        ("out", File::text(&lines(50..70))),
    ]);
    let after = files([
        ("in/a", File::text(&lines(1..9))),
        ("away", File::text(&lines(20..40))),
        ("in/c", File::text(&lines(50..70))),
    ]);
    let paths = vec![TreePath::new("in").expect("a path")];
    let (text, report) = patch_of(&before, &after, &PatchOptions { paths, ..PatchOptions::default() });
    assert_eq!(report.files, 3);
    let mut expected = after;
    expected.remove(&b"away"[..]);
    expected.insert(b"out".to_vec(), before[&b"out"[..]].clone());
    assert_eq!(applied(&before, &text, &[]), Ok(expected));
}

#[test]
fn consecutive_commits_of_this_repository() {
    let history = own_history(5);
    if history.len() < 2 {
        return amalgam_test_support::skip("history", "the sources are no checkout with history");
    }
    for pair in history.windows(2) {
        let (before, after) = (&pair[1], &pair[0]);
        let (text, report) = patch_of(before, after, &PatchOptions::default());
        assert_eq!(report.left_out, []);
        assert_eq!(applied(before, &text, &[]).as_ref(), Ok(after));
    }
    let (first, last) = (history.last().expect("one"), &history[0]);
    check(first, last).unwrap_or_else(|error| panic!("{error}"));
}

fn left_out(path: &str, why: Omission) -> LeftOut {
    LeftOut { path: TreePath::new(path).expect("a path"), why }
}

/// What is left out of the patch from a small tree to the same after some edits.
fn omissions(edit: impl FnOnce(&mut WorkingTree)) -> Vec<(String, Omission)> {
    let store = Store::in_memory();
    let mut tree = WorkingTree::new(&store);
    tree.write("f", b"text\n").expect("write");
    tree.write("g", b"text\n").expect("write");
    tree.write("h", b"text\n").expect("write");
    tree.set_mode("h", 0o640).expect("mode");
    tree.create_directories("d/e").expect("directories");
    tree.write("d/e/only", b"alone\n").expect("write");
    tree.create_directory("hollow", 0o755).expect("mkdir");
    let before = write_root(&tree).expect("stored");
    edit(&mut tree);
    let after = write_root(&tree).expect("stored");
    let (_, report) = patch_between(&store, before, after, &PatchOptions { times: true, ..PatchOptions::default() });
    let words = report.left_out.into_iter().filter(|out| !out.path.is_root());
    words.map(|out| (out.path.to_string(), out.why)).collect()
}

#[test]
fn what_git_cannot_express_is_listed() {
    let check = |edit: &dyn Fn(&mut WorkingTree), expected: &[(&str, Omission)]| {
        let expected: Vec<_> = expected.iter().map(|(path, why)| ((*path).to_owned(), *why)).collect();
        assert_eq!(omissions(edit), expected);
    };
    check(&|tree| tree.create_directory("empty", 0o755).expect("mkdir"), &[("empty", Omission::EmptyDirectory)]);
    check(&|tree| tree.remove_directory("hollow").expect("rmdir"), &[("hollow", Omission::EmptyDirectory)]);
    check(&|tree| tree.remove("d/e/only").expect("remove"), &[("d/e", Omission::EmptyDirectory)]);
    check(&|tree| tree.remove_all("d").expect("remove"), &[]);
    check(
        &|tree| tree.create_special("p", Special::Fifo, 0o644).expect("mkfifo"),
        &[("p", Omission::Kind(EntryKind::Fifo))],
    );
    let device = Special::CharDevice(Device { major: 1, minor: 3 });
    check(
        &|tree| tree.create_special("n", device, 0o644).expect("mknod"),
        &[("n", Omission::Kind(EntryKind::CharDevice))],
    );
    check(&|tree| tree.set_mode("f", 0o600).expect("mode"), &[("f", Omission::Mode)]);
    check(&|tree| tree.set_mode("f", 0o4755).expect("mode"), &[("f", Omission::Mode)]);
    check(&|tree| tree.set_mode("f", 0o755).expect("mode"), &[]);
    check(
        &|tree| {
            tree.set_mode("g", 0o640).expect("mode");
            tree.write("g", b"other\n").expect("write");
        },
        &[("g", Omission::Mode)],
    );
    check(&|tree| tree.write("h", b"other\n").expect("write"), &[("h", Omission::Mode)]);
    check(&|tree| tree.set_mode("d", 0o700).expect("mode"), &[("d", Omission::Mode)]);
    check(&|tree| tree.set_mtime("f", Time(7)).expect("time"), &[("f", Omission::Time)]);
    check(&|tree| tree.set_owner("f", Some(Owner { uid: 1, gid: 1 })).expect("owner"), &[("f", Omission::Owner)]);
    check(&|tree| tree.set_xattr("f", b"user.x", b"y").expect("xattr"), &[("f", Omission::Xattrs)]);
    check(&|tree| tree.link("f", "i").expect("link"), &[("f", Omission::HardLink), ("i", Omission::HardLink)]);
    check(
        &|tree| {
            tree.create_directories(".git").expect("directories");
            tree.write(".git/config", b"[core]\n").expect("write");
        },
        &[(".git/config", Omission::GitDirectory)],
    );
}
