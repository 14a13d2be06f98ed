//! A tree that is edited while a freeze of it is being committed: nothing is lost, nothing comes back.

use std::collections::BTreeMap;

use amalgam_engine::work::RenameMode;
use amalgam_engine::{Commit, EntryKind, Expect, RefName, Store, WorkingTree};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Write(u8, u8, Vec<u8>),
    WriteAt(u8, u8, u32, Vec<u8>),
    Truncate(u8, u8, u32),
    Remove(u8, u8),
    Move(u8, u8, u8, u8),
    MoveDirectory(u8, u8),
    State(u8, u8),
    Freeze,
    Land,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let dir = || 0_u8..4;
    let file = || 0_u8..5;
    let bytes =
        || prop_oneof![prop::collection::vec(any::<u8>(), 0..40), any::<u8>().prop_map(|b| vec![b | 1; 90_000])];
    let step = prop_oneof![
        4 => (dir(), file(), bytes()).prop_map(|(d, f, b)| Step::Write(d, f, b)),
        3 => (dir(), file(), 0_u32..100_000, bytes()).prop_map(|(d, f, o, b)| Step::WriteAt(d, f, o, b)),
        2 => (dir(), file(), 0_u32..100_000).prop_map(|(d, f, s)| Step::Truncate(d, f, s)),
        2 => (dir(), file()).prop_map(|(d, f)| Step::Remove(d, f)),
        2 => (dir(), file(), dir(), file()).prop_map(|(d, f, e, g)| Step::Move(d, f, e, g)),
        1 => (dir(), dir()).prop_map(|(d, e)| Step::MoveDirectory(d, e)),
        1 => (0_u8..3, any::<u8>()).prop_map(|(k, v)| Step::State(k, v)),
        2 => Just(Step::Freeze),
        2 => Just(Step::Land),
    ];
    prop::collection::vec(step, 1..60)
}

/// Paths with their bytes, directories without.
type Model = BTreeMap<String, Option<Vec<u8>>>;

fn contents(tree: &WorkingTree) -> Model {
    let mut found = Model::new();
    let mut open = vec![String::new()];
    while let Some(directory) = open.pop() {
        for item in tree.list(&directory).expect("a directory lists") {
            let (name, stat) = item.expect("an entry reads");
            let name = String::from_utf8(name.as_bytes().to_vec()).expect("the test's names are text");
            let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
            if stat.kind == EntryKind::Directory {
                found.insert(path.clone(), None);
                open.push(path);
            } else {
                let bytes = tree.read(&path).expect("a file reads");
                found.insert(path, Some(bytes));
            }
        }
    }
    found
}

fn apply(tree: &mut WorkingTree, model: &mut Model, states: &mut BTreeMap<String, String>, step: &Step) {
    let dir = |d: &u8| format!("d{d}");
    let path = |d: &u8, f: &u8| format!("d{d}/f{f}");
    match step {
        Step::Write(d, f, bytes) => {
            if tree.create_directories(dir(d)).is_ok() {
                tree.write(path(d, f), bytes).expect("its directory is there");
                model.insert(dir(d), None);
                model.insert(path(d, f), Some(bytes.clone()));
            }
        }
        Step::WriteAt(d, f, offset, bytes) => {
            let done = tree.write_at(path(d, f), u64::from(*offset), bytes).is_ok();
            let known = model.get_mut(&path(d, f)).and_then(Option::as_mut);
            assert_eq!(done, known.is_some());
            if let Some(known) = known.filter(|_| !bytes.is_empty()) {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                known.resize(known.len().max(end), 0);
                known[start..end].copy_from_slice(bytes);
            }
        }
        Step::Truncate(d, f, size) => {
            let done = tree.truncate(path(d, f), u64::from(*size)).is_ok();
            let known = model.get_mut(&path(d, f)).and_then(Option::as_mut);
            assert_eq!(done, known.is_some());
            known.into_iter().for_each(|known| known.resize(*size as usize, 0));
        }
        Step::Remove(d, f) => {
            assert_eq!(tree.remove(path(d, f)).is_ok(), model.remove(&path(d, f)).is_some());
        }
        Step::Move(d, f, e, g) => {
            if tree.rename(path(d, f), path(e, g), RenameMode::Replace).is_ok() {
                let moved = model.remove(&path(d, f)).expect("the model has what moved");
                model.insert(path(e, g), moved);
            }
        }
        Step::MoveDirectory(d, e) => {
            if d != e && tree.rename(dir(d), dir(e), RenameMode::NoReplace).is_ok() {
                let below = format!("{}/", dir(d));
                let moved: Vec<_> = model.keys().filter(|p| **p == dir(d) || p.starts_with(&below)).cloned().collect();
                for old in moved {
                    let value = model.remove(&old).expect("it was just listed");
                    model.insert(old.replacen(&dir(d), &dir(e), 1), value);
                }
            }
        }
        Step::State(key, value) => {
            tree.set_state(&format!("k{key}"), &value.to_string()).expect("a small number is JSON");
            states.insert(format!("k{key}"), value.to_string());
        }
        Step::Freeze | Step::Land => unreachable!("handled by the caller"),
    }
}

fn check(store: &Store, steps: &[Step]) {
    let mut tree = WorkingTree::new(store);
    let (mut model, mut states) = (Model::new(), BTreeMap::new());
    let mut frozen = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        match step {
            Step::Freeze => frozen.push((tree.freeze(), model.clone())),
            Step::Land => {
                for (freeze, at_freeze) in frozen.drain(..) {
                    let name = RefName::new(format!("freeze/{number}/{}", at_freeze.len())).expect("a name");
                    let commit = Commit::new(&name, "").buffered().expecting(Expect::Absent);
                    let Ok(landed) = freeze.commit(commit) else { continue };
                    let stored = WorkingTree::open(store, landed.done.snapshot).expect("it was committed");
                    assert_eq!(contents(&stored), at_freeze, "a freeze is the tree at that moment");
                    tree.settle(landed).expect("settles");
                    assert_eq!(contents(&tree), model, "settling changes nothing");
                }
            }
            edit => apply(&mut tree, &mut model, &mut states, edit),
        }
    }
    assert_eq!(contents(&tree), model);
    let name = RefName::new("end").expect("a name");
    let done = tree.commit(Commit::new(&name, "").expecting(Expect::Absent)).expect("commits");
    assert!(tree.is_clean());
    let stored = WorkingTree::open(store, done.snapshot).expect("opens");
    assert_eq!(contents(&stored), model);
    for (key, value) in states {
        assert_eq!(stored.state(&key).expect("reads"), Some(value));
    }
    // The same tree built at one go has the same hash.
    let mut fresh = WorkingTree::new(store);
    for (path, bytes) in &model {
        match bytes {
            None => fresh.create_directory(path, 0o755).expect("parents come first"),
            Some(bytes) => fresh.write(path, bytes).expect("parents come first"),
        }
    }
    let name = RefName::new("fresh").expect("a name");
    let fresh = fresh.commit(Commit::new(&name, "").expecting(Expect::Absent)).expect("commits");
    let directory = |snapshot| {
        let root = store.root(store.snapshot(snapshot).expect("there").root).expect("there");
        root.directory.clone()
    };
    assert!(directory(done.snapshot).equal_but_for_times(&directory(fresh.snapshot)));
}

proptest! {
    #[test]
    fn edits_during_a_commit_are_neither_lost_nor_doubled(steps in steps()) {
        check(&Store::in_memory(), &steps);
    }
}
