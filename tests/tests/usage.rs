//! Who takes what: the sums of workspaces and snapshots, and what each snapshot brought, against sums that are made the slow way.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use amalgam_engine::backend::{Inspect, Memory, StoredObject, Transaction};
use amalgam_engine::object::{Snapshot, refers};
use amalgam_engine::purge::{PurgeOptions, PurgeTarget, plan_purge, purge};
use amalgam_engine::reference::OperationDraft;
use amalgam_engine::work::RenameMode;
use amalgam_engine::workspace::{Change, LabelName, Labels, NewWorkspace};
use amalgam_engine::{
    History, ObjectId, ObjectKind, OperationContext, SnapshotId, Store, StoreOptions, Tally, Time, TreePath,
    WorkingTree, WorkspaceName, Workspaces,
};
use amalgam_gc::{CollectOptions, StoreUsage, collect, measure_snapshots, measure_workspaces};
use amalgam_tests::harness::{Random, over_all, seed};
use amalgam_transfer::{Progress, added_by, growth};

/// Objects with the bytes that are stored for them.
type Reach = BTreeMap<ObjectId, u64>;

fn act() -> OperationContext {
    OperationContext::new("ann", Time(1)).buffered()
}

fn workspace(text: impl Into<String>) -> WorkspaceName {
    WorkspaceName::new(text).expect("a name")
}

/// All that these lead to, one look after another.
fn reach(store: &Store, roots: impl IntoIterator<Item = ObjectId>, with_history: bool) -> Reach {
    let rows = store.rows().expect("rows");
    let (mut found, mut open) = (Reach::new(), roots.into_iter().collect::<Vec<_>>());
    while let Some(id) = open.pop() {
        let Some(row) = rows.look_up(&[id]).expect("a look")[0] else { continue };
        if found.insert(id, row.stored_bytes).is_some() || id.kind == ObjectKind::Chunk {
            continue;
        }
        let canonical = rows.read(id).expect("read").expect("it is there");
        if id.kind == ObjectKind::Snapshot {
            let snapshot = Snapshot::decode(&canonical).expect("a snapshot");
            open.push(snapshot.root.object());
            open.extend(snapshot.parents.iter().filter(|_| with_history).map(|parent| parent.object()));
        } else {
            refers(id.kind, &canonical, &mut |kind, hash| open.push(ObjectId { kind, hash: *hash })).expect("valid");
        }
    }
    found
}

fn tally<'a>(objects: impl IntoIterator<Item = &'a u64>) -> Tally {
    objects
        .into_iter()
        .fold(Tally::default(), |sum, bytes| Tally { objects: sum.objects + 1, bytes: sum.bytes + bytes })
}

/// What of one nobody else has.
fn alone<'a>(reach: &Reach, others: impl IntoIterator<Item = &'a Reach>) -> Tally {
    let others: BTreeSet<_> = others.into_iter().flat_map(|other| other.keys()).collect();
    tally(reach.iter().filter(|(id, _)| !others.contains(id)).map(|(_, bytes)| bytes))
}

fn measure(store: &Store) -> StoreUsage {
    measure_workspaces(store, u64::MAX, &mut |_, _| ControlFlow::Continue(())).expect("measured").expect("to its end")
}

fn alive(store: &Store) -> Tally {
    let options = CollectOptions { dry_run: true, ..CollectOptions::default() };
    let done = collect(store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
    done.alive.total()
}

/// Drops the trees of all snapshots with this message.
fn thin(store: &Store, message: &str) {
    let retention = |_: SnapshotId, snapshot: &Snapshot| snapshot.message != message;
    let options = CollectOptions { retention: &retention, ..CollectOptions::default() };
    collect(store, &options, &mut |_| ControlFlow::Continue(())).expect("a collection");
}

fn edit(tree: &mut WorkingTree, random: &mut Random) {
    for _ in 0..=random.below(3) {
        let directory = random.below(4);
        tree.create_directories(format!("d{directory}")).expect("mkdir");
        // Few versions, so that some are met again, and at other places.
        let content = Random::of(&[random.below(12)]).bytes(40 + random.below(3) as usize * 40_000);
        tree.write(format!("d{directory}/{}", random.below(6)), &content).expect("write");
    }
    if random.one_in(3) {
        let (from, to) = (format!("d{}", random.below(4)), format!("e{}", random.below(40)));
        if tree.stat(&from).expect("stat").is_some() && tree.stat(&to).expect("stat").is_none() {
            tree.rename(&from, &to, RenameMode::NoReplace).expect("rename");
        }
    }
}

/// Many workspaces that share some of what they have, more than are told apart in one reading.
fn many(store: &Store, random: &mut Random) -> Vec<SnapshotId> {
    let (workspaces, labels) = (Workspaces::of(store), Labels::of(store));
    let first = workspace("w0");
    workspaces.create(&first, &NewWorkspace::default(), &act()).expect("made");
    let mut made = Vec::new();
    for number in 0..150_u64 {
        let count = number / 2 + 1;
        let from = workspace(format!("w{}", random.below(count.min(70))));
        if number % 2 == 1 && count < 70 {
            workspaces.fork(&from, &[workspace(format!("w{count}"))], &act()).expect("forked");
        }
        let mut tree = workspaces.open(&from).expect("open");
        edit(&mut tree, random);
        let message = if random.one_in(4) { "thin" } else { "stay" };
        let done = workspaces.commit(&from, &mut tree, &Change::new(message), &act()).expect("commit");
        made.push(done.snapshot);
        if random.one_in(12) {
            let label = LabelName::new(format!("l{number}")).expect("a name");
            labels.set(&label, Some(done.snapshot), &act()).expect("labelled");
        }
    }
    workspaces.create(&workspace("empty"), &NewWorkspace::default(), &act()).expect("made");
    made
}

/// What each name leads to; all that are no workspaces together, under no name.
fn by_name(store: &Store) -> BTreeMap<Option<String>, Reach> {
    let mut roots: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, value) in store.list_refs("", None, usize::MAX).expect("names") {
        let workspace = name.as_str().strip_prefix("workspace/").map(str::to_owned);
        roots.entry(workspace).or_default().extend(value.roots());
    }
    roots.into_iter().map(|(name, roots)| (name, reach(store, roots, true))).collect()
}

#[test]
fn what_workspaces_keep_and_share_is_what_the_slow_way_counts() {
    let seed = seed();
    println!("seed {seed}");
    over_all(|place| {
        let store = Store::new(place.backend(), &StoreOptions::default());
        many(&store, &mut Random::new(seed));
        thin(&store, "thin");
        let expected = by_name(&store);
        assert!(expected.len() > 64, "more than one reading: {}", expected.len());
        let measured = measure(&store);
        assert_eq!(measured.names.len(), expected.len());
        for usage in &measured.names {
            let own = &expected[&usage.workspace];
            assert_eq!(usage.reached, tally(own.values()), "{:?}", usage.workspace);
            let others = expected.iter().filter(|(name, _)| **name != usage.workspace).map(|(_, reach)| reach);
            assert_eq!(usage.private, alone(own, others), "{:?}", usage.workspace);
        }
        let empty = measured.names.iter().find(|usage| usage.workspace.as_deref() == Some("empty")).expect("listed");
        assert_eq!((empty.reached, empty.private), (Tally::default(), Tally::default()));
        let own: u64 = measured.names.iter().map(|usage| usage.private.bytes).sum();
        assert_eq!(own + measured.shared().bytes, alive(&store).bytes, "own and shared are what is alive");
        assert_eq!(measured.alive, alive(&store));
    });
}

#[test]
fn what_only_operations_lead_to_is_counted_beside_what_names_do() {
    over_all(|place| {
        let store = Store::new(place.backend(), &StoreOptions::default());
        let (workspaces, main) = (Workspaces::of(&store), workspace("main"));
        workspaces.create(&main, &NewWorkspace::default(), &act()).expect("made");
        let commit = |length: usize| {
            let mut tree = workspaces.open(&main).expect("open");
            tree.write(format!("f{length}"), &Random::of(&[length as u64]).bytes(length)).expect("write");
            workspaces.commit(&main, &mut tree, &Change::new("more"), &act()).expect("commit").snapshot
        };
        commit(20_000);
        let undone = commit(30_000);
        let undone = reach(&store, [undone.object()], false);
        workspaces.undo(&main, &act()).expect("undone");
        let names = by_name(&store);
        let after = |operation: u64| {
            let measured = measure_workspaces(&store, operation, &mut |_, _| ControlFlow::Continue(()));
            measured.expect("measured").expect("to its end")
        };
        let measured = after(0);
        assert_eq!(measured.undo, alone(&undone, names.values()));
        assert!(measured.undo.bytes > 30_000, "{:?}", measured.undo);
        assert_eq!(measured.alive, alive(&store), "what names lead to does not change");
        let late = after(store.last_operation().expect("operations"));
        assert_eq!(late.undo, Tally::default(), "past the grace time nothing is kept for an undo");
    });
}

#[test]
fn what_snapshots_keep_and_share_is_what_the_slow_way_counts() {
    let seed = seed();
    println!("seed {seed}");
    let store = Store::in_memory();
    let mut made = many(&store, &mut Random::new(seed));
    thin(&store, "thin");
    made.sort_unstable();
    made.dedup();
    let reaches: BTreeMap<_, _> = made.iter().map(|id| (*id, reach(&store, [id.object()], false))).collect();
    let wanted: Vec<_> = made.iter().copied().step_by(2).collect();
    assert!(wanted.len() > 63, "more than one reading");
    let measured = measure_snapshots(&store, &wanted, &mut |_, _| ControlFlow::Continue(()));
    let measured = measured.expect("measured").expect("to its end");
    assert_eq!(measured.iter().map(|usage| usage.snapshot).collect::<Vec<_>>(), wanted);
    let mut own = 0;
    for usage in measured {
        let reach = &reaches[&usage.snapshot];
        assert_eq!(usage.reached, tally(reach.values()));
        let others = reaches.iter().filter(|(id, _)| **id != usage.snapshot).map(|(_, reach)| reach);
        assert_eq!(usage.private, alone(reach, others));
        own += usage.private.objects;
    }
    assert!(own > wanted.len() as u64, "some have more than their record for themselves");
}

#[test]
fn a_measuring_can_be_ended_and_goes_on_beside_commits_and_collections() {
    let store = Store::in_memory();
    many(&store, &mut Random::new(7));
    let mut asked = 0;
    let ended = measure_workspaces(&store, u64::MAX, &mut |_, _| {
        asked += 1;
        if asked == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!(ended.expect("ended, not failed"), None);
    let before = measure(&store);
    let (workspaces, first) = (Workspaces::of(&store), workspace("w0"));
    let mut number = 0_u64;
    let beside = measure_workspaces(&store, u64::MAX, &mut |_, _| {
        number += 1;
        let mut tree = workspaces.open(&first).expect("open");
        tree.write("beside", &Random::of(&[number]).bytes(3_000)).expect("write");
        workspaces.commit(&first, &mut tree, &Change::new("beside"), &act()).expect("commits go on");
        collect(&store, &CollectOptions::default(), &mut |_| ControlFlow::Continue(())).expect("and collections");
        ControlFlow::Continue(())
    });
    assert_eq!(beside.expect("measured").expect("to its end"), before, "as it was when it began");
    assert!(number > 2);
}

/// The same sums when what refers was written before what it refers to.
#[test]
fn the_order_of_writing_does_not_matter_to_the_sums() {
    let source = Store::in_memory();
    many(&source, &mut Random::new(11));
    let expected = measure(&source);
    let names = source.list_refs("", None, usize::MAX).expect("names");
    let all = reach(&source, names.iter().flat_map(|(_, value)| value.roots()), true);
    let backend: Arc<dyn Inspect> = Arc::new(Memory::default());
    let rows = source.rows().expect("rows");
    let mut objects: Vec<_> = all.keys().copied().collect();
    objects.sort_by_key(|id| std::cmp::Reverse(rows.look_up(&[*id]).expect("a look")[0].expect("there").number));
    let stored = source.stored_many(&objects).expect("read");
    let object = |(id, stored): (_, Option<_>)| StoredObject { id, bytes: stored.expect("it is there") };
    for object in objects.into_iter().zip(stored).map(object) {
        backend.put_ahead(vec![object]).expect("put");
    }
    let transaction = Transaction {
        expect: names.iter().map(|(name, _)| (name.clone(), None)).collect(),
        set: names.into_iter().map(|(name, value)| (name, Some(value))).collect(),
        operation: Some(OperationDraft::default()),
        ..Transaction::default()
    };
    backend.transact(transaction).expect("named");
    let turned = Store::new(backend, &StoreOptions::default());
    assert_eq!(measure(&turned), expected);
}

#[test]
fn growth_is_what_the_parents_have_not_wherever_it_lies() {
    let seed = seed();
    println!("seed {seed}");
    over_all(|place| {
        let store = Store::new(place.backend(), &StoreOptions::default());
        let made = many(&store, &mut Random::new(seed));
        for at in made {
            let parents = store.snapshot(at).expect("there").parents.clone();
            let parents: Vec<_> = parents.iter().map(|parent| reach(&store, [parent.object()], false)).collect();
            let expected = alone(&reach(&store, [at.object()], false), &parents);
            assert_eq!(growth(&store, at, &Progress::default()).expect("measured"), Some(expected));
        }
    });
}

#[test]
fn growth_in_a_simple_history_is_what_becomes_alive_with_each_commit() {
    let store = Store::in_memory();
    let (workspaces, main) = (Workspaces::of(&store), workspace("main"));
    workspaces.create(&main, &NewWorkspace::default(), &act()).expect("made");
    let mut before = alive(&store);
    for number in 0..8_u64 {
        let mut tree = workspaces.open(&main).expect("open");
        tree.write(format!("f{}", number % 3), &Random::of(&[number]).bytes(1_000 << number)).expect("write");
        let done = workspaces.commit(&main, &mut tree, &Change::new("more"), &act()).expect("commit");
        let after = alive(&store);
        let brought = Tally { objects: after.objects - before.objects, bytes: after.bytes - before.bytes };
        assert_eq!(growth(&store, done.snapshot, &Progress::default()).expect("measured"), Some(brought));
        before = after;
    }
}

#[test]
fn what_comes_back_from_the_past_is_growth_and_adds_nothing() {
    let store = Store::in_memory();
    let (workspaces, main) = (Workspaces::of(&store), workspace("main"));
    workspaces.create(&main, &NewWorkspace::default(), &act()).expect("made");
    let commit = |length: usize| {
        let mut tree = workspaces.open(&main).expect("open");
        tree.write("f", &Random::of(&[length as u64]).bytes(length)).expect("write");
        workspaces.commit(&main, &mut tree, &Change::new("x"), &act()).expect("commit").snapshot
    };
    let [first, second, back] = [40_000, 30_000, 40_000].map(commit);
    let brought = |id| growth(&store, id, &Progress::default()).expect("measured").expect("a tree").bytes;
    let added = |id| added_by(&store, id, &Progress::default()).expect("measured").bytes;
    assert!(brought(first) > 40_000 && added(first) > 40_000);
    assert!(brought(second) > 30_000 && (30_000..40_000).contains(&added(second)));
    assert!(brought(back) > 40_000 && added(back) < 5_000, "{} {}", brought(back), added(back));
}

#[test]
fn growth_passes_over_what_was_thinned_and_does_not_count_what_was_purged() {
    let store = Store::in_memory();
    let (workspaces, main) = (Workspaces::of(&store), workspace("main"));
    workspaces.create(&main, &NewWorkspace::default(), &act()).expect("made");
    let commit = |message: &str, file: &str, length: usize| {
        let mut tree = workspaces.open(&main).expect("open");
        tree.write(file, &Random::of(&[length as u64]).bytes(length)).expect("write");
        workspaces.commit(&main, &mut tree, &Change::new(message), &act()).expect("commit").snapshot
    };
    let base = commit("stay", "base", 30_000);
    let thinned = [commit("thin", "a", 10_000), commit("thin", "b", 11_000)];
    let last = commit("stay", "c", 12_000);
    let brought = |id| growth(&store, id, &Progress::default()).expect("measured");
    thin(&store, "thin");
    assert!(History::of(&store).is_thinned(thinned[0]).expect("a record"));
    assert_eq!(thinned.map(brought), [None, None]);
    // What the two brought is still in the last, and in nothing that is there before it.
    let expected = alone(&reach(&store, [last.object()], false), [&reach(&store, [base.object()], false)]);
    assert_eq!(brought(last), Some(expected));
    assert!(expected.bytes > 33_000, "{expected:?}");

    let target = PurgeTarget::Path(TreePath::new("c").expect("a path"));
    let plan = plan_purge(&store, &target, &PurgeOptions::default()).expect("a plan");
    purge(&store, &plan, "a secret", &act()).expect("purged");
    let left = brought(last).expect("its tree is there");
    assert!(left.bytes > 21_000 && left.bytes < expected.bytes - 11_000, "{left:?}");
    let usage = measure(&store);
    assert_eq!(usage.alive, alive(&store));
}
