//! Episodes against a plain list of steps, over both backends: recorded, queried, exported, kept, dropped.
#![expect(clippy::print_stdout, reason = "seeds are printed")]

use std::collections::HashSet;
use std::sync::Arc;

use amalgam_engine::backend::{Fault, FaultPlan, Memory};
use amalgam_engine::episode::{
    Comparison, EpisodeName, EpisodeState, Episodes, METADATA_BYTES_MAX, Metadata, Order, Step, StepDraft, StepId,
    StepUpdate,
};
use amalgam_engine::object::outgoing;
use amalgam_engine::reference::RequestId;
use amalgam_engine::{
    Error, ErrorKind, ObjectId, OperationContext, SnapshotId, Store, StoreOptions, Swept, Time, WorkingTree,
};
use amalgam_tests::harness::{Place, Random, all_refs, check_log, over_all, seed};

fn act() -> OperationContext {
    OperationContext::new("tester", Time(7)).buffered()
}

fn named(name: &str) -> EpisodeName {
    EpisodeName::new(name).expect("tests use valid names")
}

/// Begins an episode with nothing said of it.
fn begin(episodes: &Episodes, name: &str) -> EpisodeName {
    let name = named(name);
    episodes.begin(&name, &Metadata::new(), &act()).expect("a new name");
    name
}

/// What the episode must be: its steps in the order of recording, numbered from 1.
type Model = Vec<Step>;

/// Records a step with a tree of its own, by either of the two ways.
fn record(episodes: &Episodes, name: &EpisodeName, model: &mut Model, random: &mut Random) {
    let parent = match (model.len() as u64, random.below(20)) {
        (0, _) | (_, 0) => None,
        (steps, _) => Some(&model[usize::try_from(random.below(steps)).expect("small")]),
    };
    let mut draft = StepDraft { parent: parent.map(|parent| parent.id), ..StepDraft::default() };
    if !random.one_in(4) {
        draft = draft.reward(random.below(8) as f64 / 4.0 - 1.0);
    }
    draft = draft.say("text", format!("\"{}\"\n\u{7}é", random.below(100)));
    let mut tree = match parent {
        Some(parent) => WorkingTree::open(episodes.store(), parent.snapshot).expect("a step keeps its tree"),
        None => WorkingTree::new(episodes.store()),
    };
    tree.write(format!("f{}", random.below(4)), &random.bytes(50)).expect("an edit");
    let (id, snapshot) = if random.one_in(3) {
        let head = amalgam_tests::harness::name("head/elsewhere");
        let standing = episodes.store().read_ref(&head).expect("read").and_then(|value| value.target);
        let standing = standing.map_or(amalgam_engine::Expect::Absent, |target| {
            amalgam_engine::Expect::At(SnapshotId::from_bytes(target.hash))
        });
        let commit = amalgam_engine::Commit::new(&head, "elsewhere").buffered().expecting(standing);
        let snapshot = tree.commit(commit).expect("commit").snapshot;
        (episodes.record(name, snapshot, &draft, &act()).expect("record"), snapshot)
    } else {
        let done = episodes.commit_step(name, &mut tree, "a step", &draft, &act()).expect("commit");
        assert_eq!(tree.base(), Some(done.snapshot));
        (done.step, done.snapshot)
    };
    assert_eq!(id, StepId(model.len() as u64 + 1), "steps are numbered in order");
    let depth = parent.map_or(0, |parent| parent.depth + 1);
    let StepDraft { parent, reward, visits, total, metadata } = draft;
    model.push(Step { id, snapshot, parent, depth, time: Time(7), reward, visits, total, metadata });
}

fn update(episodes: &Episodes, name: &EpisodeName, model: &mut Model, random: &mut Random) {
    let mut updates = Vec::new();
    for step in model {
        if !random.one_in(5) {
            continue;
        }
        step.visits += 1 + random.below(5);
        step.total += random.below(100) as f64 / 8.0;
        step.reward = (!random.one_in(5)).then(|| random.below(8) as f64 / 4.0);
        updates.push(StepUpdate { step: step.id, reward: step.reward, visits: step.visits, total: step.total });
    }
    if !updates.is_empty() {
        episodes.update(name, &updates, &act()).expect("update");
    }
}

/// Asks everything of the episode and of the list.
fn compare_with_model(episodes: &Episodes, name: &EpisodeName, model: &Model, random: &mut Random) {
    let all = episodes.steps(name, None, usize::MAX).expect("steps");
    assert_eq!(&all, model);
    assert_eq!(episodes.count(name).expect("count"), model.len() as u64);
    let is_leaf = |step: &&Step| !model.iter().any(|other| other.parent == Some(step.id));
    let best_first = |mut steps: Vec<Step>, value: fn(&Step) -> Option<f64>| {
        steps.retain(|step| value(step).is_some());
        steps.sort_by(|one, other| {
            let by = value(other).partial_cmp(&value(one)).expect("finite");
            by.then((one.depth, one.id).cmp(&(other.depth, other.id)))
        });
        steps
    };
    let leaves = model.iter().filter(is_leaf).cloned().collect();
    let reward = |step: &Step| step.reward;
    assert_eq!(episodes.best_leaf(name).expect("best leaf"), best_first(leaves, reward).first().cloned());
    for k in [0, 1, 3, model.len() + 1] {
        for (order, value) in [(Order::Reward, reward as fn(&Step) -> Option<f64>), (Order::Mean, Step::mean)] {
            let mut expected = best_first(model.clone(), value);
            expected.truncate(k);
            assert_eq!(episodes.top(name, k, order).expect("top"), expected);
        }
    }
    let roots: Vec<_> = model.iter().filter(|step| step.parent.is_none()).cloned().collect();
    assert_eq!(episodes.children(name, None, None, usize::MAX).expect("roots"), roots);
    for _ in 0..4.min(model.len()) {
        let mut any = || &model[usize::try_from(random.below(model.len() as u64)).expect("small")];
        let (one, other) = (any(), any());
        let children: Vec<_> = model.iter().filter(|step| step.parent == Some(one.id)).cloned().collect();
        assert_eq!(episodes.children(name, Some(one.id), None, usize::MAX).expect("children"), children);
        if let [first, rest @ ..] = &children[..] {
            let after = episodes.children(name, Some(one.id), Some(first.id), 1).expect("children");
            assert_eq!(after, rest.iter().take(1).cloned().collect::<Vec<_>>());
        }
        assert_eq!(episodes.step(name, one.id).expect("step"), *one);
        assert_eq!(episodes.path_to(name, one.id).expect("path"), path(model, one));
        check_comparison(&episodes.compare(name, one.id, other.id).expect("compare"), model, one, other);
    }
}

fn path(model: &Model, to: &Step) -> Vec<Step> {
    let mut path = vec![to.clone()];
    while let Some(parent) = path[0].parent {
        path.insert(0, model[usize::try_from(parent.0).expect("small") - 1].clone());
    }
    path
}

fn check_comparison(found: &Comparison, model: &Model, one: &Step, other: &Step) {
    let (left, right) = (path(model, one), path(model, other));
    let shared = left.iter().filter(|step| right.contains(step)).count();
    assert_eq!(found.common.as_ref(), left[..shared].last());
    assert_eq!((&found.before[..], &found.after[..]), (&left[shared..], &right[shared..]));
    assert_eq!(found.reward, one.reward.and_then(|before| other.reward.map(|after| after - before)));
    assert_eq!(found.change.score() == 0, one.snapshot == other.snapshot, "every step has bytes of its own");
}

#[test]
fn an_episode_answers_as_a_plain_list_does() {
    let seed = seed();
    println!("AMALGAM_SEED={seed}");
    over_all(|place| {
        let mut random = Random::of(&[seed]);
        let mut store = place.store();
        let mut episodes = Episodes::of(&store);
        let name = begin(&episodes, "run/of a-kind".replace(' ', "-").as_str());
        let neighbour = begin(&episodes, "run/of-a");
        let mut model = Model::new();
        for round in 0..6 {
            for _ in 0..25 {
                record(&episodes, &name, &mut model, &mut random);
            }
            update(&episodes, &name, &mut model, &mut random);
            if round == 3 && place != Place::Memory {
                // Everything survives closing, and numbers go on where they were.
                drop(episodes);
                drop(store);
                store = place.store();
                episodes = Episodes::of(&store);
            }
            compare_with_model(&episodes, &name, &model, &mut random);
        }
        assert_eq!(episodes.count(&neighbour).expect("count"), 0);
        check_log(&store).expect("the log");
    });
}

#[test]
fn two_handles_and_many_threads_give_every_step_a_number_of_its_own() {
    over_all(|place| {
        let store = place.store();
        let handles = [Episodes::of(&store), Episodes::of(&store)];
        let name = begin(&handles[0], "together");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (episodes, name) = (&handles[thread % 2], &name);
                scope.spawn(move || {
                    for step in 0..20 {
                        let mut tree = WorkingTree::new(episodes.store());
                        tree.write("f", format!("{thread} {step}").as_bytes()).expect("write");
                        loop {
                            match episodes.commit_step(name, &mut tree, "step", &StepDraft::default(), &act()) {
                                Ok(_) => break,
                                Err(Error::Stale { .. }) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                    }
                });
            }
        });
        let steps = handles[0].steps(&name, None, usize::MAX).expect("steps");
        let snapshots: HashSet<_> = steps.iter().map(|step| step.snapshot).collect();
        assert_eq!((steps.len(), snapshots.len()), (80, 80));
    });
}

#[test]
fn a_request_is_recorded_once() {
    over_all(|place| {
        let store = place.store();
        let episodes = Episodes::of(&store);
        let name = begin(&episodes, "once");
        let request = act().as_request(RequestId::new("a").expect("short"));
        let mut tree = WorkingTree::new(&store);
        tree.write("f", b"1").expect("write");
        let first = episodes.commit_step(&name, &mut tree, "step", &StepDraft::default(), &request).expect("commit");
        let again = episodes.commit_step(&name, &mut tree, "step", &StepDraft::default(), &request).expect("commit");
        assert_eq!(again, first);
        let request = act().as_request(RequestId::new("b").expect("short"));
        let draft = StepDraft::after(first.step);
        let step = episodes.record(&name, first.snapshot, &draft, &request).expect("record");
        assert_eq!(episodes.record(&name, first.snapshot, &draft, &request).expect("record"), step);
        assert_eq!(episodes.count(&name).expect("count"), 2);
    });
}

#[test]
fn a_repeated_drop_leaves_a_new_episode_of_the_same_name() {
    over_all(|place| {
        let store = place.store();
        let episodes = Episodes::of(&store);
        let request = act().as_request(RequestId::new("drop").expect("short"));
        let mut random = Random::new(9);
        let name = begin(&episodes, "name");
        record(&episodes, &name, &mut Model::new(), &mut random);
        assert_eq!(episodes.drop_episode(&name, &request).expect("drop"), 1);
        assert_eq!(episodes.drop_episode(&name, &request).expect("the same request"), 0);
        let name = begin(&episodes, "name");
        record(&episodes, &name, &mut Model::new(), &mut random);
        assert_eq!(episodes.drop_episode(&name, &request).expect("the same request"), 0);
        assert_eq!(episodes.get(&name).expect("get").state, EpisodeState::Open);
        assert_eq!(episodes.count(&name).expect("count"), 1);
        assert_eq!(episodes.drop_episode(&name, &act()).expect("drop"), 1);
    });
}

#[test]
fn an_episode_is_exported_as_lines_of_json() {
    let store = Store::in_memory();
    let episodes = Episodes::of(&store);
    let name = named("export");
    let metadata = Metadata::from([("who".to_owned(), "\"quoted\"\u{1}\n".to_owned())]);
    episodes.begin(&name, &metadata, &act()).expect("begin");
    let (mut model, mut random) = (Model::new(), Random::new(3));
    for _ in 0..40 {
        record(&episodes, &name, &mut model, &mut random);
    }
    let mut text = Vec::new();
    assert_eq!(episodes.export(&name, &mut text).expect("export"), 40);
    let text = String::from_utf8(text).expect("JSON is text");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("every line is JSON")).collect();
    assert_eq!((lines.len(), text.ends_with('\n')), (41, true));
    assert_eq!(lines[0]["episode"], "export");
    assert_eq!((&lines[0]["format"], &lines[0]["state"]), (&serde_json::json!(1), &serde_json::json!("open")));
    assert_eq!(lines[0]["metadata"]["who"], "\"quoted\"\u{1}\n");
    for (line, step) in lines[1..].iter().zip(&model) {
        assert_eq!(line["step"], step.id.0);
        assert_eq!(line["parent"].as_u64(), step.parent.map(|parent| parent.0));
        assert_eq!(line["snapshot"], step.snapshot.to_string());
        assert_eq!((line["reward"].as_f64(), line["total"].as_f64()), (step.reward, Some(step.total)));
        assert_eq!((&line["visits"], &line["depth"]), (&step.visits.into(), &step.depth.into()));
        assert_eq!(line["metadata"]["text"], step.metadata["text"]);
    }
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let store = Store::in_memory();
    let episodes = Episodes::of(&store);
    let name = begin(&episodes, "run/1");
    let mut tree = WorkingTree::new(&store);
    tree.write("f", b"1").expect("write");
    let first = episodes.commit_step(&name, &mut tree, "step", &StepDraft::default(), &act()).expect("commit");
    let before = all_refs(&store).expect("refs");
    let refused = |result: Result<StepId, Error>, kind: ErrorKind, words: &[&str]| {
        let error = result.expect_err("it is refused");
        assert_eq!(error.kind(), kind, "{error}");
        words.iter().for_each(|word| assert!(error.to_string().contains(word), "{error}"));
    };
    let record = |name: &EpisodeName, draft: &StepDraft| episodes.record(name, first.snapshot, draft, &act());

    refused(record(&named("run/2"), &StepDraft::default()), ErrorKind::NotFound, &["run/2", "nearest by name: run/1"]);
    refused(record(&name, &StepDraft::after(StepId(9))), ErrorKind::NotFound, &["step 9", "its last one is 1"]);
    refused(record(&name, &StepDraft::after(StepId(0))), ErrorKind::NotFound, &["step 0"]);
    refused(record(&name, &StepDraft::default().reward(f64::NAN)), ErrorKind::Invalid, &["reward", "finite"]);
    refused(record(&name, &StepDraft::default().reward(f64::INFINITY)), ErrorKind::Invalid, &["finite"]);
    let large = StepDraft::default().say("k", "x".repeat(METADATA_BYTES_MAX));
    refused(record(&name, &large), ErrorKind::Invalid, &["metadata", "16384"]);
    refused(record(&name, &StepDraft::default().say("", "x")), ErrorKind::Invalid, &["metadata"]);
    let nothing = SnapshotId::from_bytes([1; 32]);
    refused(episodes.record(&name, nothing, &StepDraft::default(), &act()), ErrorKind::NotFound, &["snapshot"]);
    let numbers = StepUpdate { step: first.step, reward: None, visits: 1, total: 0.0 };
    let update = |updates: &[StepUpdate]| episodes.update(&name, updates, &act()).map(|_| StepId(0));
    refused(update(&[numbers, numbers]), ErrorKind::Invalid, &["twice"]);
    refused(update(&[numbers, StepUpdate { step: StepId(2), ..numbers }]), ErrorKind::NotFound, &["step 2"]);
    refused(update(&[StepUpdate { total: f64::NAN, ..numbers }]), ErrorKind::Invalid, &["finite"]);
    refused(update(&[]), ErrorKind::Invalid, &["no step"]);
    let begun = episodes.begin(&name, &Metadata::new(), &act()).map(|_| StepId(0));
    refused(begun, ErrorKind::Exists, &["run/1"]);
    assert!(EpisodeName::new("a b").is_err() && EpisodeName::new("a@").is_err());

    // The tree whose step was refused is still there to be committed.
    tree.write("f", b"2").expect("write");
    assert!(episodes.commit_step(&name, &mut tree, "step", &StepDraft::after(StepId(9)), &act()).is_err());
    assert_eq!(all_refs(&store).expect("refs"), before);
    assert_eq!(tree.read("f").expect("read"), b"2");
    episodes.commit_step(&name, &mut tree, "step", &StepDraft::after(first.step), &act()).expect("commit");
    assert_eq!(episodes.count(&name).expect("count"), 2);
}

#[test]
fn a_kept_episode_is_not_dropped() {
    let store = Store::in_memory();
    let episodes = Episodes::of(&store);
    let name = begin(&episodes, "kept");
    episodes.commit_step(&name, &mut WorkingTree::new(&store), "s", &StepDraft::default(), &act()).expect("commit");
    episodes.keep(&name, &act()).expect("keep");
    assert_eq!(episodes.get(&name).expect("get").state, EpisodeState::Kept);
    let error = episodes.drop_episode(&name, &act()).expect_err("it is kept");
    assert!(error.to_string().contains("release it first"), "{error}");
    // Steps go on being recorded after its record moved.
    episodes.commit_step(&name, &mut WorkingTree::new(&store), "s", &StepDraft::default(), &act()).expect("commit");
    episodes.release(&name, &act()).expect("release");
    assert_eq!(episodes.drop_episode(&name, &act()).expect("drop"), 2);
    assert!(all_refs(&store).expect("refs").is_empty());
}

#[test]
fn a_drop_that_was_interrupted_is_finished_by_another() {
    over_all(|place| {
        let mut store = place.store();
        let mut episodes = Episodes::of(&store);
        let (name, other) = (begin(&episodes, "a"), begin(&episodes, "a/b"));
        let mut random = Random::new(5);
        let (mut model, mut untouched) = (Model::new(), Model::new());
        for _ in 0..30 {
            record(&episodes, &name, &mut model, &mut random);
            record(&episodes, &other, &mut untouched, &mut random);
        }
        for gone in [0, 7, 7] {
            let dropped = episodes.drop_part(&name, 7, &act()).expect("drop");
            assert_eq!((dropped.steps, dropped.is_done), (gone, false));
        }
        if place != Place::Memory {
            drop(episodes);
            drop(store);
            store = place.store();
            episodes = Episodes::of(&store);
        }
        let listed: Vec<_> = episodes.list("", None, 9).expect("list").into_iter().map(|e| (e.name, e.state)).collect();
        assert_eq!(listed, [(name.clone(), EpisodeState::Dropping), (other.clone(), EpisodeState::Open)]);
        assert_eq!(episodes.count(&name).expect("count"), 16);
        let last = model[29].snapshot;
        let refused = [
            episodes.record(&name, last, &StepDraft::default(), &act()).expect_err("no more steps"),
            episodes.begin(&name, &Metadata::new(), &act()).expect_err("not gone yet"),
            episodes.keep(&name, &act()).expect_err("too late"),
        ];
        refused.iter().for_each(|error| assert!(error.to_string().contains("drop it again"), "{error}"));
        assert_eq!(episodes.drop_episode(&name, &act()).expect("drop"), 16);
        assert_eq!(episodes.drop_episode(&name, &act()).expect_err("it is gone").kind(), ErrorKind::NotFound);
        assert!(all_refs(&store).expect("refs").iter().all(|(name, _)| !name.as_str().starts_with("step/a@")));
        assert_eq!(episodes.steps(&other, None, usize::MAX).expect("steps"), untouched);
        let name = begin(&episodes, "a");
        record(&episodes, &name, &mut Model::new(), &mut random);
        check_log(&store).expect("the log");
    });
}

#[test]
fn a_full_disk_in_the_middle_of_a_drop_loses_nothing() {
    let plan = Arc::new(FaultPlan::default());
    let backend = Fault::new(Memory::default(), Arc::clone(&plan));
    let store = Store::new(Arc::new(backend), &StoreOptions::default());
    let episodes = Episodes::of(&store);
    let name = begin(&episodes, "full");
    let mut model = Model::new();
    for _ in 0..10 {
        record(&episodes, &name, &mut model, &mut Random::new(1));
    }
    plan.full_after_writes(1);
    assert_eq!(episodes.drop_episode(&name, &act()).expect_err("full").kind(), ErrorKind::Full);
    assert_eq!(episodes.get(&name).expect("get").state, EpisodeState::Dropping);
    assert_eq!(episodes.count(&name).expect("count"), 10);
    plan.heal();
    assert_eq!(episodes.drop_episode(&name, &act()).expect("drop"), 10);
    assert!(episodes.find(&name).expect("find").is_none());
}

/// One collection, without anybody beside it; returns how many objects went.
fn collect(store: &Store) -> u64 {
    let mut round = store.begin_sweep().expect("a round");
    let mut marked = HashSet::new();
    let mark = |roots: Vec<ObjectId>, marked: &mut HashSet<ObjectId>| {
        let mut open = roots;
        while let Some(id) = open.pop() {
            if marked.insert(id) {
                let bytes = store.canonical(id).expect("what is referred to is there");
                open.extend(outgoing(id.kind, &bytes).expect("a stored object is valid").strong);
            }
        }
    };
    loop {
        let new: Vec<_> = round.roots().expect("roots").into_iter().filter(|root| !marked.contains(root)).collect();
        if new.is_empty() {
            break;
        }
        mark(new, &mut marked);
    }
    loop {
        match round.sweep(&|id| marked.contains(&id)).expect("a sweep") {
            Swept::Done { objects } => return objects,
            Swept::Unmarked(roots) => mark(roots, &mut marked),
            Swept::Some { .. } => unreachable!("a whole sweep goes to its end"),
        }
    }
}

#[test]
fn steps_keep_their_snapshots_until_the_episode_is_dropped() {
    over_all(|place| {
        let store = place.store();
        let episodes = Episodes::of(&store);
        let name = begin(&episodes, "kept-alive");
        let mut model = Model::new();
        for number in 0..12_u64 {
            let mut tree = WorkingTree::new(&store);
            tree.write("f", &Random::new(number).bytes(300)).expect("write");
            let draft = StepDraft::default();
            let done = episodes.commit_step(&name, &mut tree, "s", &draft, &act()).expect("commit");
            model.push(episodes.step(&name, done.step).expect("step"));
        }
        collect(&store);
        for (number, step) in (0..).zip(&model) {
            let tree = WorkingTree::open(&store, step.snapshot).expect("it is kept");
            assert_eq!(tree.read("f").expect("read"), Random::new(number).bytes(300));
        }
        episodes.drop_episode(&name, &act()).expect("drop");
        assert!(collect(&store) >= 12 * 4, "a chunk, a directory, a root and a snapshot for each");
        for step in &model {
            assert!(WorkingTree::open(&store, step.snapshot).is_err(), "nothing keeps it any more");
        }
    });
}
