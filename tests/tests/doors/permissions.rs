//! Permissions at every door: whatever an agent tries, only what its policy permits has changed since the last commit, and what is
//! hidden cannot be found.

use std::sync::Arc;

use amalgam_engine::work::RenameMode;
use amalgam_engine::{DiffOptions, EntryKind, TreePath, What, WorkingTree, diff_roots};
use amalgam_policy::{Act, Guard, Level, Policy};
use amalgam_tests::harness::mounting::can_mount;
use amalgam_tests::model::{Fill, Op, Raw, cases, contents, op, ops, write_root};
use proptest::prelude::*;

use crate::door::Door;
use crate::{for_all_doors, fuse, nfs, view};

fn guard(rules: &[(String, Level)], default: Level) -> Arc<Guard> {
    let mut text = format!("default = \"{default}\"\n");
    for (path, level) in rules {
        text += &format!("[[rule]]\npaths = [\"{path}\"]\nlevel = \"{level}\"\n");
    }
    let policy = Arc::new(Policy::read(&text).unwrap_or_else(|bad| panic!("{bad}")));
    Arc::new(Guard::new(vec![Arc::new(policy.agent("ann"))]))
}

fn doors() -> Vec<Box<dyn Door>> {
    let mut doors: Vec<Box<dyn Door>> = vec![Box::new(view::ViewDoor::new()), Box::new(nfs::NfsDoor::new())];
    if can_mount() {
        doors.push(Box::new(fuse::FuseDoor::new()));
    }
    doors
}

/// Panics if something differs from the last commit that the policy does not permit.
fn assert_permitted(guard: &Guard, before: &WorkingTree, after: &WorkingTree, name: &str) {
    let (old, new) = (write_root(before).expect("write"), write_root(after).expect("write"));
    let store = before.store();
    for change in diff_roots(store, Some(old), Some(new), DiffOptions::default()).expect("compared") {
        let change = change.expect("read");
        let act = match change.what {
            What::Added => Act::Add,
            What::Removed => Act::Remove,
            _ => Act::Change,
        };
        let has_directory = change.before.iter().chain(&change.after).any(|entry| entry.kind() == EntryKind::Directory);
        let act = if change.what == What::KindChanged && has_directory { Act::Remove } else { act };
        if let Some(refusal) = guard.refusal(change.path.as_bytes(), act) {
            panic!("{name}: {refusal}: {change:?}");
        }
    }
}

fn try_everything(setup: &[Op], attempts: &[Op], guard: &Arc<Guard>, door: &mut dyn Door) {
    for op in setup {
        if let Some(op) = for_all_doors(op, &door.tree()) {
            let _ = door.perform(&op);
        }
    }
    door.commit();
    let before = door.tree();
    door.set_guard(Arc::clone(guard));
    for op in attempts {
        if let Some(op) = for_all_doors(op, &door.tree()) {
            let _ = door.perform(&op);
            assert_permitted(guard, &before, &door.tree(), &format!("{} after {op:?}", door.name()));
        }
    }
    for path in contents(&before).expect("walk").paths.keys().filter(|path| !path.is_root()) {
        if guard.level(path.as_bytes()) == Level::Hidden {
            let mode = Op::SetMode { path: Raw(path.as_bytes().to_vec()), mode: 0o600 };
            assert!(door.perform(&mode).is_err(), "{}: {path} is hidden", door.name());
        }
    }
    door.set_guard(Arc::default());
    door.end();
}

fn level() -> impl Strategy<Value = Level> {
    prop::sample::select(Level::ALL.to_vec())
}

fn rule() -> impl Strategy<Value = (String, Level)> {
    let paths = ["a", "b", "c-", "a/a", "a/b", "b/a", "/a", "/b", "/a/**", "/b/**", "a/b/**", "/b/c-", "/b/a/a"];
    (prop::sample::select(paths.to_vec()).prop_map(str::to_owned), level())
}

proptest! {
    #![proptest_config(cases(120))]

    #[test]
    fn nothing_changes_that_the_policy_does_not_permit(
        setup in ops(op(), 5..30),
        attempts in ops(op(), 1..30),
        rules in prop::collection::vec(rule(), 0..5),
        default in level(),
    ) {
        let guard = guard(&rules, default);
        for mut door in doors() {
            try_everything(&setup, &attempts, &guard, &mut *door);
        }
    }
}

fn raw(path: &str) -> Raw {
    Raw::from(path)
}

/// What agents do in the directory `d`, and the least level that permits it.
fn acts() -> Vec<(Level, Op)> {
    let rename = |from: &str, to: &str, mode| Op::Rename { from: raw(from), to: raw(to), mode };
    vec![
        (Level::Add, Op::Create { path: raw("d/new"), mode: 0o644 }),
        (Level::Add, Op::CreateDirectory { path: raw("d/new"), mode: 0o755 }),
        (Level::Add, Op::Symlink { path: raw("d/new"), target: raw("file") }),
        (Level::Change, Op::Truncate { path: raw("d/file"), size: 1 }),
        (Level::Change, Op::PunchHole { path: raw("d/file"), start: 0, end: 2 }),
        (Level::Change, Op::SetMode { path: raw("d/file"), mode: 0o600 }),
        (Level::Change, Op::RemoveXattr { path: raw("d/file"), name: raw("user.x") }),
        (Level::Change, Op::Link { existing: raw("d/file"), new: raw("free/link") }),
        (Level::Change, rename("free/file", "d/file", RenameMode::Replace)),
        (Level::Full, Op::Remove { path: raw("d/file") }),
        (Level::Full, Op::RemoveDirectory { path: raw("d/empty") }),
        (Level::Full, rename("d/file", "free/stolen", RenameMode::NoReplace)),
        (Level::Full, rename("d/sub", "free/stolen", RenameMode::NoReplace)),
        (Level::Full, rename("d/file", "free/file", RenameMode::Exchange)),
    ]
}

#[test]
fn each_level_permits_exactly_its_acts_at_every_door() {
    for level in Level::ALL {
        for (least, act) in acts() {
            for mut door in doors() {
                let mut tree = |op: Op| door.perform(&op).unwrap_or_else(|why| panic!("{op:?}: {why}"));
                for directory in ["d", "d/empty", "d/sub", "free"] {
                    tree(Op::CreateDirectory { path: raw(directory), mode: 0o755 });
                }
                for file in ["d/file", "d/sub/file", "free/file"] {
                    tree(Op::Create { path: raw(file), mode: 0o644 });
                    tree(Op::Truncate { path: raw(file), size: 9 });
                }
                tree(Op::SetXattr { path: raw("d/file"), name: raw("user.x"), value: Fill { seed: 1, length: 3 } });
                door.commit();
                let before = door.tree();
                let guard = guard(&[("d/**".to_owned(), level)], Level::Full);
                door.set_guard(Arc::clone(&guard));
                let done = door.perform(&act);
                assert_eq!(done.is_ok(), level >= least, "{}: {act:?} with {level}: {done:?}", door.name());
                assert_permitted(&guard, &before, &door.tree(), door.name());
                let visible = door.tree().stat("d/sub").is_ok();
                assert!(visible, "the tree itself has everything");
                door.set_guard(Arc::default());
                door.end();
            }
        }
    }
    assert!(TreePath::new("d/file").is_ok());
}
