//! Permissions of agents in a view: each level with each act, and the ways around them.

use std::collections::BTreeMap;
use std::sync::Arc;

use amalgam_engine::TreePath;
use amalgam_policy::{Guard, Level, Policy};
use amalgam_view::{
    Access, Error, Invalidation, LocalEntry, RenameMode, Seek, SetAttributes, SizeChange, TimeSet, TreeEdit, XattrSet,
};
use parking_lot::Mutex;

use super::kit::{ENOENT, Kit, errno, options};

const EPERM: i32 = 1;
const EACCES: i32 = 13;
const EROFS: i32 = 30;

fn guard(policy: &str) -> Arc<Guard> {
    let policy = Arc::new(Policy::read(policy).unwrap_or_else(|bad| panic!("{bad}")));
    Arc::new(Guard::new(vec![Arc::new(policy.agent("ann"))]))
}

fn rules(default: &str, rules: &[(&str, &str)]) -> Arc<Guard> {
    let mut text = format!("default = \"{default}\"\n");
    for (path, level) in rules {
        text += &format!("[[rule]]\npaths = [\"{path}\"]\nlevel = \"{level}\"\n");
    }
    guard(&text)
}

/// A committed tree with a few directories, each with a file, and then the guard.
fn kit(guard: &Arc<Guard>) -> Kit {
    let kit = Kit::new();
    for directory in ["a", "b", "open", "shut"] {
        kit.directory(directory);
        kit.file(&format!("{directory}/file"), b"canary");
    }
    kit.directory("a/deep");
    kit.file("a/deep/file", b"canary");
    kit.commit();
    kit.view.set_guard(Arc::clone(guard)).expect("guarded");
    kit
}

type Attempt = fn(&Kit) -> amalgam_view::Result<()>;

/// The inode of `a/file`, found before the guard was set, as a process with an open file has it.
fn file(kit: &Kit) -> u64 {
    kit.view.set_guard(Arc::default()).expect("open");
    kit.ino("a/file")
}

fn act(name: &'static str, least: Level, attempt: Attempt) -> (&'static str, Level, Attempt) {
    (name, least, attempt)
}

/// What agents do with `a/file`, and the least level that permits it.
fn acts() -> Vec<(&'static str, Level, Attempt)> {
    use Level::{Add, Change, Full, Read};
    vec![
        act("look up", Read, |kit| kit.view.lookup(&kit.caller, kit.ino("a"), b"file").map(drop)),
        act("open to read", Read, |kit| kit.view.open_file(&kit.caller, kit.ino("a/file"), Access::READ)),
        act("read", Read, |kit| kit.view.read(kit.ino("a/file"), 0, 9).map(drop)),
        act("seek", Read, |kit| kit.view.seek(kit.ino("a/file"), 0, Seek::Data).map(drop)),
        act("list attributes", Read, |kit| kit.view.xattr_names(kit.ino("a/file")).map(drop)),
        act("set the time of the last read", Read, |kit| {
            let set = SetAttributes { atime: Some(TimeSet::Now), ..Default::default() };
            kit.view.set_attributes(&kit.caller, kit.ino("a/file"), &set).map(drop)
        }),
        act("create", Add, |kit| kit.view.create(&kit.caller, kit.ino("a"), b"new", 0o644).map(drop)),
        act("make a directory", Add, |kit| {
            kit.view.create_directory(&kit.caller, kit.ino("a"), b"new", 0o755).map(drop)
        }),
        act("make a symlink", Add, |kit| kit.view.create_symlink(&kit.caller, kit.ino("a"), b"new", b"file").map(drop)),
        act("create, write, rename and remove it", Add, |kit| {
            let made = kit.view.create(&kit.caller, kit.ino("a"), b"tmp", 0o644)?;
            kit.view.write(&kit.caller, made.ino, 0, b"mine")?;
            kit.rename("a/tmp", "a/other", RenameMode::NoReplace)?;
            kit.unlink("a/other")
        }),
        act("open to write", Change, |kit| kit.view.open_file(&kit.caller, kit.ino("a/file"), Access::WRITE)),
        act("open and truncate", Change, |kit| {
            kit.view.open_file_truncating(&kit.caller, kit.ino("a/file"), Access::WRITE)
        }),
        act("write", Change, |kit| kit.view.write(&kit.caller, kit.ino("a/file"), 0, b"changed")),
        act("append", Change, |kit| kit.view.append(&kit.caller, kit.ino("a/file"), 6, b"changed").map(drop)),
        act("allocate", Change, |kit| kit.view.allocate(&kit.caller, kit.ino("a/file"), 0, 99, SizeChange::Extend)),
        act("punch", Change, |kit| kit.view.punch(&kit.caller, kit.ino("a/file"), 0, 3, SizeChange::Keep)),
        act("chmod", Change, |kit| {
            let set = SetAttributes { mode: Some(0o600), ..Default::default() };
            kit.view.set_attributes(&kit.caller, kit.ino("a/file"), &set).map(drop)
        }),
        act("truncate", Change, |kit| {
            let set = SetAttributes { size: Some(0), ..Default::default() };
            kit.view.set_attributes(&kit.caller, kit.ino("a/file"), &set).map(drop)
        }),
        act("set an attribute", Change, |kit| {
            kit.view.set_xattr(&kit.caller, kit.ino("a/file"), b"user.x", b"y", XattrSet::Either)
        }),
        act("copy into", Change, |kit| {
            kit.view.copy_range(&kit.caller, (kit.ino("open/file"), 0), (kit.ino("a/file"), 0), 6).map(drop)
        }),
        act("save by rename", Change, |kit| {
            kit.view.create(&kit.caller, kit.ino("open"), b"tmp", 0o644)?;
            kit.rename("open/tmp", "a/file", RenameMode::Replace)
        }),
        act("unlink", Full, |kit| kit.unlink("a/file")),
        act("rename away", Full, |kit| kit.rename("a/file", "open/stolen", RenameMode::Replace)),
        act("exchange", Full, |kit| kit.rename("open/file", "a/file", RenameMode::Exchange)),
        act("remove a directory", Full, |kit| {
            kit.view.set_guard(Arc::default()).expect("open");
            kit.unlink("a/deep/file").expect("removed by another");
            kit.commit();
            kit.view.set_guard(rules("RW", &[("a/**", GUARDED.lock().as_str())])).expect("guarded");
            kit.rmdir("a/deep")
        }),
    ]
}

/// The level that a case is about, for acts that set the guard themselves.
static GUARDED: Mutex<String> = Mutex::new(String::new());

#[test]
fn each_level_permits_exactly_its_acts() {
    for level in Level::ALL {
        *GUARDED.lock() = level.word().to_owned();
        for (what, least, attempt) in acts() {
            let kit = kit(&rules("RW", &[("a/**", level.word())]));
            let before = kit.view.version();
            if level == Level::Hidden && least == Level::Read {
                assert!(kit.look("a/file").is_none(), "{what}");
                assert_eq!(kit.list("a"), Vec::<String>::new());
                continue;
            }
            // A hidden file cannot even be looked up: the process had it before.
            let done = match level == Level::Hidden && least >= Level::Change {
                true => {
                    let ino = file(&kit);
                    kit.view.set_guard(rules("RW", &[("a/**", "none")])).expect("guarded");
                    assert_eq!(errno(kit.view.read(ino, 0, 9)), EACCES, "{what}");
                    kit.view.write(&kit.caller, ino, 0, b"changed")
                }
                false => attempt(&kit),
            };
            match level >= least {
                true => done.unwrap_or_else(|error| panic!("{what} with {level}: {error}")),
                false => {
                    let number = errno(done);
                    let expected = if least == Level::Full && level > Level::Hidden { EPERM } else { EACCES };
                    assert_eq!(number, expected, "{what} with {level}");
                    if what != "remove a directory" && what != "save by rename" {
                        assert_eq!(kit.view.version(), before, "{what} with {level}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_agent_that_may_change_nothing_gets_a_read_only_file_system() {
    let kit = kit(&rules("R", &[]));
    assert_eq!(errno(kit.view.create(&kit.caller, kit.ino("a"), b"new", 0o644)), EROFS);
    assert_eq!(errno(kit.view.write(&kit.caller, kit.ino("a/file"), 0, b"x")), EROFS);
    assert_eq!(errno(kit.unlink("a/file")), EROFS);
}

#[test]
fn what_is_hidden_is_absent_and_its_name_cannot_be_taken() {
    let kit = kit(&rules("RW", &[("shut", "none")]));
    assert_eq!(kit.list(""), ["a", "b", "open"]);
    assert_eq!(errno(kit.view.lookup(&kit.caller, kit.ino(""), b"shut")), ENOENT);
    for name in [&b"shut"[..], b"Shut", b"SHUT"] {
        assert_eq!(errno(kit.view.create_directory(&kit.caller, kit.ino(""), name, 0o755)), EACCES, "{name:?}");
    }
    let made = kit.view.create(&kit.caller, kit.ino(""), b"mine", 0o644).expect("made");
    assert_eq!(errno(kit.rename("mine", "shut", RenameMode::Replace)), EACCES);
    assert_eq!(errno(kit.view.link(&kit.caller, made.ino, kit.ino(""), b"shut")), EACCES);
}

#[test]
fn a_directory_is_shown_for_what_is_visible_below_it() {
    let kit = kit(&rules("none", &[("a/deep/**", "R")]));
    assert_eq!(kit.list(""), ["a"]);
    assert_eq!(kit.list("a"), ["deep"]);
    assert_eq!(kit.read_path("a/deep/file"), b"canary");
}

#[test]
fn a_hard_link_is_judged_under_all_its_names() {
    let kit = Kit::new();
    for directory in ["open", "shut", "fixed"] {
        kit.directory(directory);
    }
    let hidden = kit.file("shut/file", b"canary");
    kit.link(hidden, "open/hidden");
    let fixed = kit.file("fixed/file", b"canary");
    kit.link(fixed, "open/fixed");
    kit.commit();
    kit.view.set_guard(rules("RW", &[("/shut", "none"), ("/fixed", "R")])).expect("guarded");
    assert_eq!(kit.list("open"), ["fixed"], "the other name is hidden");
    assert!(kit.look("open/hidden").is_none());
    assert_eq!(errno(kit.view.write(&kit.caller, kit.ino("open/fixed"), 0, b"x")), EACCES);
    // A new name, or one less, changes the file.
    let ino = kit.ino("fixed/file");
    assert_eq!(errno(kit.view.link(&kit.caller, ino, kit.ino("open"), b"another")), EACCES);
    assert_eq!(errno(kit.unlink("open/fixed")), EACCES);
    assert_eq!(kit.read_path("fixed/file"), b"canary");
}

#[test]
fn a_directory_does_not_move_if_an_entry_below_it_may_not() {
    let kit = kit(&rules("RW", &[("a/deep", "R")]));
    assert_eq!(errno(kit.rename("a", "moved", RenameMode::Replace)), EPERM);
    assert_eq!(errno(kit.rename("b", "a", RenameMode::Exchange)), EPERM);
    kit.view.set_guard(rules("RW", &[("a/deep", "none")])).expect("guarded");
    assert_eq!(errno(kit.rename("a", "moved", RenameMode::Replace)), EPERM, "with hidden contents");
    assert_eq!(errno(kit.unlink("a/file").and_then(|()| kit.rmdir("a"))), EPERM, "with hidden contents");
    // The new paths count, too.
    kit.view.set_guard(rules("RW", &[("moved/deep", "R")])).expect("guarded");
    kit.view.create_directory(&kit.caller, kit.ino("b"), b"deep", 0o755).expect("made");
    assert_eq!(errno(kit.rename("b", "moved", RenameMode::Replace)), EACCES);
}

#[test]
fn data_of_hidden_files_is_not_copied() {
    let kit = kit(&rules("RW", &[]));
    let (hidden, open) = (kit.ino("shut/file"), kit.ino("open/file"));
    kit.view.set_guard(rules("RW", &[("shut", "none")])).expect("guarded");
    assert_eq!(errno(kit.view.copy_range(&kit.caller, (hidden, 0), (open, 0), 6)), EACCES);
    assert_eq!(errno(kit.view.read(hidden, 0, 6)), EACCES);
    assert_eq!(errno(kit.view.attributes(hidden)), EACCES);
    assert_eq!(errno(kit.view.xattr_names(hidden)), EACCES);
}

#[test]
fn a_changed_policy_is_applied_in_a_view_with_a_local_directory() {
    let kit = kit(&rules("RW", &[]));
    let local = TreePath::new("local").expect("a path");
    kit.view.set_local_entries(BTreeMap::from([(local, LocalEntry::Directory)])).expect("placed");
    assert!(kit.look("local").is_some() && kit.look("shut").is_some());
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    kit.view.watch(Arc::new(move |one| sink.lock().push(one)));
    kit.view.set_guard(rules("RW", &[("shut", "none")])).expect("guarded");
    let is_of_shut = |one: &Invalidation| matches!(one, Invalidation::Entry { name, .. } if name.as_bytes() == b"shut");
    assert!(told.lock().iter().any(is_of_shut));
    assert!(kit.look("local").is_some() && kit.look("shut").is_none());
}

#[test]
fn a_changed_policy_invalidates_what_became_visible_hidden_or_fixed() {
    let kit = kit(&rules("RW", &[("shut", "none")]));
    assert!(kit.look("shut").is_none() && kit.look("a/file").is_some());
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    kit.view.watch(Arc::new(move |one| sink.lock().push(one)));
    kit.view.set_guard(rules("RW", &[("a/file", "R")])).expect("guarded");
    let told = std::mem::take(&mut *told.lock());
    let names: Vec<_> = told
        .iter()
        .filter_map(|one| match one {
            Invalidation::Entry { name, .. } => Some(String::from_utf8_lossy(name.as_bytes()).into_owned()),
            _ => None,
        })
        .collect();
    assert!(names.contains(&"shut".to_owned()), "a remembered absence: {names:?}");
    assert!(names.contains(&"file".to_owned()), "{names:?}");
    assert!(!names.contains(&"open".to_owned()), "{names:?}");
    assert!(told.contains(&Invalidation::Contents(kit.ino("a/file"))));
    assert_eq!(kit.read_path("shut/file"), b"canary");
}

#[test]
fn a_refused_write_invalidates_the_data_of_the_mount_that_it_came_from() {
    let kit = kit(&rules("RW", &[("a/file", "R")]));
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&told);
    let origin = kit.view.watch(Arc::new(move |one| sink.lock().push(one)));
    let caller = amalgam_view::Caller { origin: Some(origin), ..kit.caller.clone() };
    let ino = kit.ino("a/file");
    assert_eq!(errno(kit.view.write(&caller, ino, 0, b"from a shared mapping")), EACCES);
    assert_eq!(*told.lock(), [Invalidation::Contents(ino)]);
}

#[test]
fn a_handle_to_a_hidden_file_is_stale_or_refused() {
    let kit = kit(&rules("RW", &[]));
    kit.view.keep_handles().expect("handles");
    let held = kit.view.lookup(&kit.caller, kit.ino("shut"), b"file").expect("found");
    let handle = kit.view.issue_handles(&[held.ino])[0].expect("a handle");
    kit.view.set_guard(rules("RW", &[("shut", "none")])).expect("guarded");
    let read = kit.view.resolve(handle).and_then(|ino| kit.view.read(ino, 0, 6));
    assert!(matches!(read, Err(Error::Access | Error::Stale(_))), "{read:?}");
}

#[test]
fn a_view_opens_with_the_guard_of_its_options() {
    let first = kit(&Arc::default());
    let scratch = tempfile::tempdir().expect("a directory");
    let mut options = options();
    options.guard = rules("none", &[("open/**", "RW")]);
    let kit = Kit::at(first.workspaces.store(), &scratch.path().join("journal"), options);
    assert_eq!(kit.list(""), ["open"]);
}

#[test]
fn groups_of_edits_are_refused_as_a_whole() {
    let kit = kit(&rules("RW", &[("a", "R")]));
    let path = |text: &str| amalgam_engine::TreePath::new(text).expect("a path");
    let edit = |edits: Vec<TreeEdit>| {
        kit.view.edit_group(&mut [], |mut tree, _| {
            let guard = rules("RW", &[("a", "R")]);
            for edit in &edits {
                edit.ensure_permitted(&amalgam_view::TreePermissions::new(&guard, &tree))?;
                edit.apply(&mut tree)?;
            }
            Ok::<_, Error>((edits, ()))
        })
    };
    let before = kit.view.version();
    let refused = edit(vec![
        TreeEdit::Create { path: path("open/new"), mode: 0o644 },
        TreeEdit::Truncate { path: path("a/file"), size: 0 },
    ]);
    assert_eq!(errno(refused), EACCES);
    assert_eq!(kit.view.version(), before);
    let (from, to) = (path("open/file"), path("a/file"));
    assert_eq!(errno(edit(vec![TreeEdit::Rename { from, to, mode: RenameMode::Replace }])), EACCES);
}
