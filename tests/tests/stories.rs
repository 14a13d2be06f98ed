//! Stories of many operations on few workspaces, told to a store and to a plain model of it.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::reference::{RefName, RefValue};
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace};
use amalgam_engine::{
    Error, ErrorKind, OperationContext, PastRefs, SnapshotId, Store, Time, WorkspaceName, Workspaces, operation,
};
use amalgam_tests::harness::Place;
use amalgam_tests::model::cases;
use proptest::prelude::*;

fn ada() -> OperationContext {
    OperationContext::new("ada", Time(1_000)).buffered()
}

fn ws(text: &str) -> WorkspaceName {
    WorkspaceName::new(text).expect("a valid name")
}

fn refs(store: &Store) -> Vec<(RefName, RefValue)> {
    store.list_refs("", None, 10_000).expect("list")
}

#[derive(Clone, Debug)]
enum Op {
    Create(u8, Option<u8>),
    Commit(u8, u8),
    Fork(u8, Vec<u8>),
    Restore(u8, u8),
    Rename(u8, u8),
    Delete(u8),
    Undelete(u8),
    Label(u8, u8),
    Undo(u8),
    Redo(u8),
    UndoThat(u8),
}

const NAMES: u8 = 4;

fn op() -> impl Strategy<Value = Op> {
    let name = 0..NAMES;
    prop_oneof![
        2 => (name.clone(), prop::option::of(any::<u8>())).prop_map(|(n, s)| Op::Create(n, s)),
        6 => (name.clone(), any::<u8>()).prop_map(|(n, v)| Op::Commit(n, v)),
        2 => (name.clone(), prop::collection::vec(0..NAMES, 1..3)).prop_map(|(n, into)| Op::Fork(n, into)),
        2 => (name.clone(), any::<u8>()).prop_map(|(n, s)| Op::Restore(n, s)),
        1 => (name.clone(), 0..NAMES).prop_map(|(n, m)| Op::Rename(n, m)),
        1 => name.clone().prop_map(Op::Delete),
        1 => name.clone().prop_map(Op::Undelete),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(l, s)| Op::Label(l % 2, s)),
        5 => name.clone().prop_map(Op::Undo),
        4 => name.prop_map(Op::Redo),
        1 => any::<u8>().prop_map(Op::UndoThat),
    ]
}

/// What a reference holds in the model: the contents of its head, and which commit it is, for two commits may be alike.
type Held = (Option<SnapshotId>, BTreeMap<String, u8>);

/// What is kept of an operation: each name with what it held before and after.
type Changes = Vec<(String, Option<Held>, Option<Held>)>;

#[derive(Default)]
struct Model {
    refs: BTreeMap<String, Held>,
    log: Vec<Changes>,
    /// For each workspace the operations that can be taken back, and those that can be done again.
    stacks: BTreeMap<String, (Vec<usize>, Vec<usize>)>,
    /// What each operation was, and the last one that moved each name.
    turns: Vec<Turn>,
    last: BTreeMap<String, usize>,
    snapshots: Vec<(SnapshotId, BTreeMap<String, u8>)>,
}

#[derive(Clone, Copy)]
enum Turn {
    New,
    Undo(usize),
    Redo(usize),
}

impl Model {
    fn name(number: u8) -> String {
        format!("workspace/w{number}")
    }

    fn deleted(&self, number: u8) -> (Option<String>, String) {
        let prefix = format!("deleted/w{number}@");
        let numbers = self.refs.keys().filter_map(|name| name.strip_prefix(&prefix)?.parse::<u64>().ok());
        match numbers.max() {
            Some(last) => (Some(format!("{prefix}{last}")), format!("{prefix}{}", last + 1)),
            None => (None, format!("{prefix}1")),
        }
    }

    fn snapshot(&self, number: u8) -> Option<(SnapshotId, BTreeMap<String, u8>)> {
        (!self.snapshots.is_empty()).then(|| self.snapshots[usize::from(number) % self.snapshots.len()].clone())
    }

    fn apply(&mut self, changes: Changes, turn: Turn) {
        for (name, _, after) in &changes {
            match after {
                Some(held) => self.refs.insert(name.clone(), held.clone()),
                None => self.refs.remove(name),
            };
        }
        let number = self.log.len();
        let names: BTreeSet<_> = changes.iter().map(|(name, ..)| name.clone()).collect();
        self.turns.push(turn);
        for name in names {
            self.last.insert(name.clone(), number);
            let (undo, redo) = self.stacks.entry(name).or_default();
            match turn {
                Turn::New => {
                    undo.push(number);
                    redo.clear();
                }
                Turn::Undo(of) => {
                    undo.retain(|other| *other != of);
                    redo.push(of);
                }
                Turn::Redo(of) => {
                    redo.retain(|other| *other != of);
                    undo.push(of);
                }
            }
        }
        self.log.push(changes);
    }

    /// The changes that take an operation back, or nothing when something moved since.
    fn reverse(&self, of: usize) -> Option<Changes> {
        let fits = self.log[of].iter().all(|(name, ..)| self.stacks[name].0.last() == Some(&of));
        fits.then(|| self.log[of].iter().map(|(n, before, after)| (n.clone(), after.clone(), before.clone())).collect())
    }

    fn again(&self, of: usize) -> Option<Changes> {
        let fits = self.log[of].iter().all(|(name, ..)| self.stacks[name].1.last() == Some(&of));
        fits.then(|| self.log[of].clone())
    }
}

struct Story<'a> {
    store: &'a Store,
    workspaces: Workspaces,
    model: Model,
}

impl Story<'_> {
    fn step(&mut self, op: &Op) {
        let act = ada();
        let name = |number: u8| ws(&format!("w{number}"));
        let held = |model: &Model, number: u8| model.refs.get(&Model::name(number)).cloned();
        match op {
            Op::Create(number, from) => {
                let from = from.and_then(|from| self.model.snapshot(from));
                let new = NewWorkspace { from: from.as_ref().map(|(id, _)| *id), ..NewWorkspace::default() };
                let done = self.workspaces.create(&name(*number), &new, &act);
                if held(&self.model, *number).is_some() {
                    assert_eq!(done.expect_err("taken").kind(), ErrorKind::Exists);
                    return;
                }
                done.expect("create");
                let after = from.map_or((None, BTreeMap::new()), |(id, files)| (Some(id), files));
                self.model.apply(vec![(Model::name(*number), None, Some(after))], Turn::New);
            }
            Op::Commit(number, value) => {
                let Some(before) = held(&self.model, *number) else {
                    assert_eq!(self.workspaces.open(&name(*number)).err().expect("absent").kind(), ErrorKind::NotFound);
                    return;
                };
                let mut tree = self.workspaces.open(&name(*number)).expect("open");
                let file = format!("f{}", value % 3);
                tree.write(&file, &[*value]).expect("write");
                let done = self.workspaces.commit(&name(*number), &mut tree, &Change::new("c"), &act).expect("commit");
                let mut files = before.1.clone();
                if before.0.is_some() && files.get(&file) == Some(value) {
                    assert_eq!((done.is_new, Some(done.snapshot)), (false, before.0), "a commit of nothing");
                    return;
                }
                files.insert(file, *value);
                self.model.snapshots.push((done.snapshot, files.clone()));
                let after = Some((Some(done.snapshot), files));
                self.model.apply(vec![(Model::name(*number), Some(before), after)], Turn::New);
            }
            Op::Fork(number, into) => {
                let into: BTreeSet<_> = into.iter().copied().collect();
                let names: Vec<_> = into.iter().map(|number| name(*number)).collect();
                let done = self.workspaces.fork(&name(*number), &names, &act);
                let Some(from) = held(&self.model, *number) else {
                    assert_eq!(done.expect_err("absent").kind(), ErrorKind::NotFound);
                    return;
                };
                if into.iter().any(|number| held(&self.model, *number).is_some()) {
                    assert_eq!(done.expect_err("taken").kind(), ErrorKind::Exists);
                    return;
                }
                done.expect("fork");
                let changes = into.iter().map(|number| (Model::name(*number), None, Some(from.clone()))).collect();
                self.model.apply(changes, Turn::New);
            }
            Op::Restore(number, snapshot) => {
                let (Some(before), Some((id, files))) = (held(&self.model, *number), self.model.snapshot(*snapshot))
                else {
                    return;
                };
                let done = self.workspaces.restore(&name(*number), id, &act).expect("restore");
                let is_same = before.0.is_some() && before.1 == files;
                assert_eq!(done.is_new, !is_same);
                if done.is_new {
                    self.model.snapshots.push((done.snapshot, files.clone()));
                    let after = Some((Some(done.snapshot), files));
                    self.model.apply(vec![(Model::name(*number), Some(before), after)], Turn::New);
                }
            }
            Op::Rename(from, to) => {
                let done = self.workspaces.rename(&name(*from), &name(*to), &act);
                let Some(before) = held(&self.model, *from) else {
                    assert_eq!(done.expect_err("absent").kind(), ErrorKind::NotFound);
                    return;
                };
                if held(&self.model, *to).is_some() {
                    assert_eq!(done.expect_err("taken").kind(), ErrorKind::Exists);
                    return;
                }
                done.expect("rename");
                let changes =
                    vec![(Model::name(*from), Some(before.clone()), None), (Model::name(*to), None, Some(before))];
                self.model.apply(changes, Turn::New);
            }
            Op::Delete(number) => {
                let done = self.workspaces.delete(&name(*number), &act);
                let Some(before) = held(&self.model, *number) else {
                    assert_eq!(done.expect_err("absent").kind(), ErrorKind::NotFound);
                    return;
                };
                done.expect("delete");
                let (_, next) = self.model.deleted(*number);
                let changes = vec![(Model::name(*number), Some(before.clone()), None), (next, None, Some(before))];
                self.model.apply(changes, Turn::New);
            }
            Op::Undelete(number) => {
                let done = self.workspaces.undelete(&name(*number), &act);
                if held(&self.model, *number).is_some() {
                    assert_eq!(done.expect_err("taken").kind(), ErrorKind::Exists);
                    return;
                }
                let Some(last) = self.model.deleted(*number).0 else {
                    assert_eq!(done.expect_err("absent").kind(), ErrorKind::NotFound);
                    return;
                };
                done.expect("undelete");
                let value = self.model.refs[&last].clone();
                let changes = vec![(Model::name(*number), None, Some(value.clone())), (last, Some(value), None)];
                self.model.apply(changes, Turn::New);
            }
            Op::Label(label, snapshot) => {
                let Some((id, files)) = self.model.snapshot(*snapshot) else { return };
                let label = format!("l{label}");
                Labels::of(self.store).set(&LabelName::new(&*label).expect("a name"), Some(id), &act).expect("label");
                let name = format!("label/{label}");
                let before = self.model.refs.get(&name).cloned();
                self.model.apply(vec![(name, before, Some((Some(id), files)))], Turn::New);
            }
            Op::Undo(number) => {
                let done = self.workspaces.undo(&name(*number), &act);
                let stack = self.model.stacks.entry(Model::name(*number)).or_default();
                let Some(of) = stack.0.last().copied() else {
                    assert_eq!(done.expect_err("nothing to undo").kind(), ErrorKind::NotFound);
                    return;
                };
                match self.model.reverse(of) {
                    Some(changes) => {
                        done.unwrap_or_else(|error| panic!("undo of {}: {error}", of + 1));
                        self.model.apply(changes, Turn::Undo(of));
                    }
                    None => assert_eq!(done.expect_err("it moved since").kind(), ErrorKind::Stale),
                }
            }
            Op::Redo(number) => {
                let done = self.workspaces.redo(&name(*number), &act);
                let stack = self.model.stacks.entry(Model::name(*number)).or_default();
                let Some(of) = stack.1.last().copied() else {
                    assert_eq!(done.expect_err("nothing to redo").kind(), ErrorKind::NotFound);
                    return;
                };
                match self.model.again(of) {
                    Some(changes) => {
                        done.unwrap_or_else(|error| panic!("redo of {}: {error}", of + 1));
                        self.model.apply(changes, Turn::Redo(of));
                    }
                    None => assert_eq!(done.expect_err("it moved since").kind(), ErrorKind::Stale),
                }
            }
            Op::UndoThat(number) => {
                if self.model.log.is_empty() {
                    return;
                }
                let of = usize::from(*number) % self.model.log.len();
                let done = operation::undo_operation(self.store, of as u64 + 1, &act);
                let untouched = self.model.log[of].iter().all(|(name, ..)| self.model.last[name] == of);
                let changes = match self.model.turns[of] {
                    Turn::New => self.model.reverse(of).map(|changes| (changes, Turn::Undo(of))),
                    Turn::Undo(target) if untouched => {
                        self.model.again(target).map(|changes| (changes, Turn::Redo(target)))
                    }
                    Turn::Redo(target) if untouched => {
                        self.model.reverse(target).map(|changes| (changes, Turn::Undo(target)))
                    }
                    Turn::Undo(_) | Turn::Redo(_) => None,
                };
                match changes {
                    Some((changes, turn)) => {
                        done.unwrap_or_else(|error| panic!("undo of {}: {error}", of + 1));
                        self.model.apply(changes, turn);
                    }
                    None => match done.expect_err("it moved since") {
                        Error::MovedSince { moved, .. } => assert!(!moved.is_empty(), "it names what moved"),
                        other => panic!("{other}"),
                    },
                }
            }
        }
    }

    /// Every reference is what the model says, and reads as the model says.
    fn check(&self) {
        let stored: BTreeMap<_, _> = refs(self.store).into_iter().map(|(n, v)| (n.to_string(), v)).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = (stored.keys().collect(), self.model.refs.keys().collect());
        assert_eq!(ours, theirs);
        for (name, (head, files)) in &self.model.refs {
            assert_eq!(stored[name].target, head.map(|head| head.object()), "{name}");
            if let Some(number) = name.strip_prefix("workspace/") {
                let tree = self.workspaces.open(&ws(number)).expect("open");
                for (file, value) in files {
                    assert_eq!(tree.read(file).expect("read"), [*value], "{name} {file}");
                }
                assert_eq!(tree.list("").expect("list").count(), files.len(), "{name}");
            }
        }
        assert_eq!(self.store.last_operation().expect("log"), self.model.log.len() as u64);
    }
}

fn tell(place: Place<'_>, ops: &[Op]) {
    let store = place.store();
    let mut story = Story { store: &store, workspaces: Workspaces::of(&store), model: Model::default() };
    for op in ops {
        story.step(op);
    }
    story.check();
    // However far back, all of it comes again.
    let before = refs(&store);
    for number in 0..NAMES {
        let name = ws(&format!("w{number}"));
        let mut undone = 0;
        while story.workspaces.undo(&name, &ada()).is_ok() {
            undone += 1;
        }
        for _ in 0..undone {
            story.workspaces.redo(&name, &ada()).expect("what was undone can be redone");
        }
        assert_eq!(refs(&store), before);
    }
    // And every moment of the past can be looked at.
    let mut now: BTreeMap<RefName, RefValue> = BTreeMap::new();
    for operation in store.list_operations(0, usize::MAX).expect("log") {
        for change in &operation.changes {
            assert_eq!(now.get(&change.name), change.before.as_ref());
            match &change.after {
                Some(value) => now.insert(change.name.clone(), value.clone()),
                None => now.remove(&change.name),
            };
        }
        if operation.sequence % 7 == 0 {
            let past = PastRefs::at(&store, operation.sequence).expect("the past");
            let then: Vec<_> = past.refs("").map(|(name, value)| (name.clone(), value.clone())).collect();
            assert_eq!(then, now.clone().into_iter().collect::<Vec<_>>());
        }
    }
    assert_eq!(now.into_iter().collect::<Vec<_>>(), before);
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn histories_go_as_the_model_in_memory(ops in prop::collection::vec(op(), 1..60)) {
        tell(Place::Memory, &ops);
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn histories_go_as_the_model_on_disk(ops in prop::collection::vec(op(), 1..40)) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        tell(Place::Disk(&directory.path().join("store")), &ops);
    }
}
