//! What a fold does with entries: lands them, puts them aside, ends workspaces, and is taken back.

use std::sync::Mutex;

use amalgam_engine::conflict::{CONFLICTS_KEY, remember};
use amalgam_engine::merge::{
    ConflictSubject, ContestedFile, DECIDED_KEY, Decision, MERGE_RECORD_KEY, MergeRecord, MergeRequest, OpenDecision,
    Verdict, undecided_after, undecided_before,
};
use amalgam_engine::object::{Conflict, Node, Owner};
use amalgam_engine::queue::{
    EntryOutcome, MergePolicy, Queue, QueueEntry, QueueOptions, Regenerated, Side, SideChoice, TestVerdict,
};
use amalgam_engine::work::RenameMode;
use amalgam_engine::workspace::{Change, NewWorkspace};
use amalgam_engine::{
    History, MergeContents, OperationContext, RequestId, Result, RootId, SnapshotId, Store, Time, TreePath,
    WorkingTree, WorkspaceName, Workspaces, entry_at,
};

pub(super) struct House {
    pub(super) workspaces: Workspaces,
    pub(super) queue: Queue,
}

/// Decides by what each test says.
#[derive(Default)]
pub(super) struct Court {
    pub(super) refused: Option<&'static str>,
    pub(super) verdict: Option<TestVerdict>,
    pub(super) tested: Mutex<Vec<String>>,
    pub(super) made: Option<std::result::Result<&'static str, &'static str>>,
    pub(super) units: Vec<Vec<TreePath>>,
}

struct Texts;

impl MergeContents for Texts {
    fn merge(&self, contest: &ContestedFile<'_>) -> Result<Verdict> {
        let (ours, theirs) = (contest.ours.read()?, contest.theirs.read()?);
        Ok(match contest.path.as_bytes().ends_with(b".log") {
            true => Verdict::Merged { bytes: [&ours[..], &theirs[..]].concat().into(), strategy: "both".to_owned() },
            false => Verdict::Conflict { strategy: "none".to_owned() },
        })
    }
}

impl MergePolicy for Court {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(Texts))
    }

    fn admit(&self, _entry: &QueueEntry, change: &amalgam_engine::Change) -> Result<Option<String>> {
        Ok(self.refused.filter(|refused| change.path.to_string() == *refused).map(|_| "not for you".to_owned()))
    }

    fn is_grouped(&self, path: &TreePath) -> bool {
        self.units.iter().flatten().any(|unit| unit == path)
    }

    fn units(&self, _base: Option<RootId>, _ours: RootId, _theirs: RootId) -> Result<Vec<Vec<TreePath>>> {
        Ok(self.units.clone())
    }

    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.made.is_some() && path.to_string() == "lock"
    }

    fn regenerate(&self, _entry: &QueueEntry, _tree: RootId, paths: &[TreePath]) -> Result<Regenerated> {
        let made = self.made.expect("it was asked before");
        let files = |bytes: &str| paths.iter().map(|path| (path.clone(), bytes.as_bytes().to_vec())).collect();
        Ok(made.map(files).map_err(str::to_owned))
    }

    fn test(&self, entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        self.tested.lock().expect("no panic").push(entry.options.test.join(" "));
        Ok(self.verdict.clone().unwrap_or(TestVerdict::Passed))
    }
}

pub(super) fn name(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a name")
}

pub(super) fn act(time: i64) -> OperationContext {
    OperationContext::new("ada", Time(time))
}

pub(super) fn path(text: &str) -> TreePath {
    TreePath::new(text).expect("a path")
}

impl House {
    pub(super) fn new(words: &str) -> Self {
        let store = Store::in_memory();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let queue = Queue::of(&workspaces, &history);
        workspaces.create(&name("main"), &NewWorkspace::default(), &act(1)).expect("created");
        let house = Self { workspaces, queue };
        house.write("main", words);
        house
    }

    pub(super) fn fork(&self, to: &str, words: &str) {
        self.workspaces.fork(&name("main"), &[name(to)], &act(2)).expect("forked");
        self.write(to, words);
    }

    fn write(&self, workspace: &str, words: &str) -> SnapshotId {
        let mut tree = self.workspaces.open(&name(workspace)).expect("open");
        tree.set_now(Time(3));
        for word in words.split_whitespace() {
            match word.split_once('=') {
                None => tree.remove(word.trim_start_matches('!')).expect("removed"),
                Some((path, contents)) => {
                    if let Some((above, _)) = path.rsplit_once('/') {
                        tree.create_directories(above).expect("directories");
                    }
                    // A conflict is no file that could be written to.
                    if tree.exists(path).expect("a look") {
                        tree.remove_all(path).expect("removed");
                    }
                    tree.write(path, contents.as_bytes()).expect("written");
                }
            }
        }
        self.workspaces.commit(&name(workspace), &mut tree, &Change::new(words), &act(3)).expect("committed").snapshot
    }

    pub(super) fn submit(&self, from: &str, wish: &QueueOptions, time: i64) -> QueueEntry {
        self.queue.submit(&name(from), &name("main"), wish, &act(time)).expect("in the queue")
    }

    pub(super) fn fold(&self) -> Vec<(String, EntryOutcome)> {
        self.fold_by(&Court::default())
    }

    pub(super) fn fold_by(&self, court: &Court) -> Vec<(String, EntryOutcome)> {
        let fold = self.queue.fold(&name("main"), court, &act(100)).expect("folded");
        fold.done.into_iter().map(|folded| (folded.entry.source.to_string(), folded.outcome)).collect()
    }

    pub(super) fn read(&self, path: &str) -> String {
        let tree: WorkingTree = self.workspaces.open(&name("main")).expect("open");
        match tree.exists(path).expect("a look") {
            true => String::from_utf8(tree.read(path).expect("a file")).expect("text"),
            false => "absent".to_owned(),
        }
    }

    fn head(&self) -> SnapshotId {
        self.workspaces.get(&name("main")).expect("main").head.expect("a head")
    }
}

pub(super) fn landed(fates: &[(String, EntryOutcome)]) -> Vec<bool> {
    fates.iter().map(|(_, outcome)| matches!(outcome, EntryOutcome::Landed(_))).collect()
}

#[test]
fn the_queue_is_listed_in_pages_in_the_order_of_waiting() {
    let house = House::new("a=1");
    let sources = ["x", "y", "z", "u", "v"];
    for (at, source) in sources.into_iter().enumerate() {
        house.fork(source, &format!("new/{source}=1"));
        house.submit(source, &QueueOptions::default(), 10 + at as i64);
    }
    for limit in [1, 2, 5, 100] {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (page, next) = house.queue.list_page(None, after.as_deref(), limit).expect("a page");
            assert!(page.len() <= limit);
            found.extend(page.into_iter().map(|entry| entry.source.to_string()));
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, sources, "pages of {limit}");
    }
    let other = house.queue.list_page(Some(&name("other")), None, 10).expect("a page");
    assert!(other.0.is_empty() && other.1.is_none());
    for wrong in ["", "review/main:x", "workspace/main", "\u{1}"] {
        assert!(house.queue.list_page(None, Some(wrong), 10).is_err(), "{wrong:?} is no position of the queue");
    }
}

#[test]
fn what_waits_for_a_target_lands_in_the_order_of_waiting_in_one_operation() {
    let house = House::new("a=1 b=1 c=1");
    for (at, source) in ["x", "y", "z"].into_iter().enumerate() {
        house.fork(source, &format!("{}=2 new/{source}=1", ["a", "b", "c"][at]));
    }
    for (at, source) in ["z", "x", "y"].into_iter().enumerate() {
        house.submit(source, &QueueOptions::default(), 10 + at as i64);
    }
    let before = house.workspaces.store().last_move(&name("main").reference()).expect("an operation");
    let fold = house.queue.fold(&name("main"), &Court::default(), &act(100)).expect("folded");
    let order: Vec<_> = fold.done.iter().map(|folded| folded.entry.source.to_string()).collect();
    assert_eq!(order, ["z", "x", "y"]);
    assert_eq!(fold.operation, Some(before + 10), "three forks, commits and entries came before it, and it is one");
    for path in ["a", "b", "c"] {
        assert_eq!(house.read(path), "2");
    }
    assert_eq!(house.read("new/x"), "1");
    let store = house.workspaces.store();
    let mut at = house.head();
    for source in ["y", "x", "z"] {
        let snapshot = store.snapshot(at).expect("a snapshot");
        let record = MergeRecord::from_json(&snapshot.metadata[MERGE_RECORD_KEY]).expect("a record");
        assert_eq!(record.sources[0].0, source);
        assert_eq!(snapshot.parents.len(), 2);
        at = snapshot.parents[0];
    }
    assert!(house.queue.list(None).expect("a list").is_empty());
    assert_eq!(house.fold(), [], "nothing waits");
}

#[test]
fn what_conflicts_waits_for_a_person_and_keeps_nobody_else_waiting() {
    let house = House::new("a=1 b=1 notes.log=1");
    house.fork("x", "a=x notes.log=x");
    house.fork("y", "a=y b=y");
    house.fork("z", "notes.log=z");
    for (at, source) in ["x", "y", "z"].into_iter().enumerate() {
        house.submit(source, &QueueOptions { ends: true, ..QueueOptions::default() }, 10 + at as i64);
    }
    assert_eq!(landed(&house.fold()), [true, false, true]);
    assert_eq!((house.read("a").as_str(), house.read("b").as_str()), ("x", "1"), "nothing of y is there by half");
    assert_eq!(house.read("notes.log"), "xz");
    let reviews = house.queue.reviews(None).expect("reviews");
    assert_eq!(reviews.len(), 1);
    let review = &reviews[0];
    assert_eq!((review.entry.source.as_str(), review.conflicts[0].kind.as_str()), ("y", "contents"));
    assert_eq!(review.conflicts[0].path, path("a"));
    let store = house.workspaces.store();
    let ours = store.snapshot(review.ours.expect("a head")).expect("a snapshot");
    assert_eq!(ours.message, "merge x", "it was tried against what had landed before it");
    assert_eq!(review.bases.len(), 1);
    for (ended, source) in [(true, "x"), (false, "y"), (true, "z")] {
        assert_eq!(house.workspaces.find(&name(source)).expect("a look").is_none(), ended, "{source}");
    }
}

#[test]
fn a_review_is_taken_accepted_or_rejected() {
    for (decision, a, b, left) in
        [("theirs", "y", "y", 0), ("ours", "x", "y", 0), ("accept", "conflict", "y", 0), ("reject", "x", "1", 0)]
    {
        let house = House::new("a=1 b=1");
        house.fork("x", "a=x");
        house.fork("y", "a=y b=y");
        house.submit("x", &QueueOptions::default(), 10);
        house.submit("y", &QueueOptions { ends: true, ..QueueOptions::default() }, 11);
        house.fold();
        let review = house.queue.find_review(&house.queue.reviews(None).expect("one")[0].entry.id).expect("it");
        let takes = |side| vec![SideChoice { path: Some(path("a")), side }];
        let (keep, takes) = match decision {
            "theirs" => (false, takes(Side::Theirs)),
            "ours" => (false, takes(Side::Ours)),
            "accept" => (true, Vec::new()),
            _ => {
                house.queue.reject(&review, &act(20)).expect("rejected");
                assert!(house.workspaces.find(&name("y")).expect("a look").is_some(), "its workspace is there");
                assert_eq!((house.read("a").as_str(), house.read("b").as_str()), (a, b));
                continue;
            }
        };
        let entry = house.queue.again(&review, keep, &takes, "", &act(20)).expect("an entry");
        let preview = house.queue.preview(&entry, &Court::default(), &act(21)).expect("a look");
        assert!(matches!(preview.outcome, EntryOutcome::Landed(_)));
        assert_eq!(house.read("b"), "1", "a preview changes nothing");
        house.queue.resubmit(&review, &entry, &act(20)).expect("in the queue again");
        assert_eq!(landed(&house.fold()), [true], "{decision}");
        let tree = house.workspaces.open(&name("main")).expect("open");
        match a {
            "conflict" => {
                assert_eq!(tree.stat("a").expect("a look").expect("there").kind, amalgam_engine::EntryKind::Conflict)
            }
            _ => assert_eq!(house.read("a"), a, "{decision}"),
        }
        assert_eq!(house.read("b"), b);
        assert_eq!(house.queue.reviews(None).expect("a list").len(), left);
        assert!(house.workspaces.find(&name("y")).expect("a look").is_none(), "it has landed, and ended");
    }
}

#[test]
fn of_an_attribute_a_name_or_a_state_value_a_review_takes_the_side_that_was_asked_for() {
    for (side, owner, note, gone, state, there) in [
        (Side::Ours, 1, Some("1"), Some("1"), "1", ["x", "absent"]),
        (Side::Theirs, 2, Some("2"), None, "2", ["absent", "x"]),
    ] {
        let house = House::new("a=1 moved=x");
        let set = |workspace: &str, number: u32| {
            house.workspaces.fork(&name("main"), &[name(workspace)], &act(2)).expect("forked");
            let mut tree = house.workspaces.open(&name(workspace)).expect("open");
            tree.set_now(Time(3));
            tree.set_owner("a", Some(Owner { uid: number, gid: 7 })).expect("set");
            tree.set_xattr("a", b"user.note", number.to_string().as_bytes()).expect("set");
            match number {
                1 => tree.set_xattr("a", b"user.gone", b"1").expect("set"),
                _ => drop(tree.remove_xattr("a", b"user.gone").expect("removed")),
            }
            tree.set_state("key", &number.to_string()).expect("set");
            tree.rename("moved", format!("moved-{number}"), RenameMode::NoReplace).expect("moved");
            house.workspaces.commit(&name(workspace), &mut tree, &Change::new("set"), &act(3)).expect("committed");
        };
        let mut tree = house.workspaces.open(&name("main")).expect("open");
        tree.set_xattr("a", b"user.gone", b"0").expect("set");
        house.workspaces.commit(&name("main"), &mut tree, &Change::new("set"), &act(2)).expect("committed");
        set("x", 1);
        set("y", 2);
        house.submit("x", &QueueOptions::default(), 10);
        house.submit("y", &QueueOptions::default(), 11);
        house.fold();
        let review = house.queue.reviews(None).expect("one").remove(0);
        let mut kinds: Vec<_> = review.conflicts.iter().map(|one| format!("{} {}", one.path, one.kind)).collect();
        kinds.sort();
        let expected = [
            "(root) state value (key, theirs 2)",
            "a attribute (owner, theirs 2:7)",
            "a attribute (user.gone, removed by theirs)",
            "a attribute (user.note, theirs 2)",
            "moved-1 moved twice",
        ];
        assert_eq!(kinds, expected);
        let entry =
            house.queue.again(&review, false, &[SideChoice { path: None, side }], "", &act(20)).expect("an entry");
        house.queue.resubmit(&review, &entry, &act(20)).expect("in the queue again");
        assert_eq!(landed(&house.fold()), [true], "{side:?}");
        let tree = house.workspaces.open(&name("main")).expect("open");
        let value = |name: &str| tree.xattr("a", name.as_bytes()).expect("a look").map(|value| value.to_vec());
        let bytes = |text: Option<&str>| text.map(|text| text.as_bytes().to_vec());
        let stat = tree.stat("a").expect("a look").expect("there");
        assert_eq!(stat.owner, Some(Owner { uid: owner, gid: 7 }), "{side:?}");
        assert_eq!((value("user.note"), value("user.gone")), (bytes(note), bytes(gone)), "{side:?}");
        assert_eq!(tree.state("key").expect("a look").as_deref(), Some(state), "{side:?}");
        assert_eq!([house.read("moved-1"), house.read("moved-2")], there, "{side:?}");
        let left = undecided_before(&History::of(house.workspaces.store()), house.head()).expect("a look");
        assert_eq!(left, [], "what was taken is decided");
    }
}

#[test]
fn what_an_accepted_review_leaves_undecided_is_known_until_a_snapshot_decides_it() {
    let house = House::new("moved=x");
    for (workspace, to) in [("x", "left=x"), ("y", "right=x")] {
        house.fork(workspace, &format!("!moved {to}"));
        house.submit(workspace, &QueueOptions::default(), 10);
    }
    house.fold();
    let review = house.queue.reviews(None).expect("one").remove(0);
    let entry = house.queue.again(&review, true, &[], "", &act(20)).expect("an entry");
    house.queue.resubmit(&review, &entry, &act(20)).expect("in the queue again");
    assert_eq!(landed(&house.fold()), [true]);
    let history = History::of(house.workspaces.store());
    let merge = house.head();
    let found = undecided_before(&history, merge).expect("a look");
    let places = ConflictSubject::Place { ours: Some(path("left")), theirs: Some(path("right")) };
    assert_eq!((found.len(), &found[0].undecided.subject, found[0].merge), (1, &places, merge));
    // Later snapshots have it, and so has one that took this one in; a tree without one of the names is decided.
    house.write("main", "more=1");
    let after = |before: &[OpenDecision], head| {
        undecided_after(before, head, &house.workspaces.store().snapshot(head).expect("a snapshot"))
    };
    assert_eq!(after(&found, house.head()), found);
    house.fork("z", "other=1");
    for head in [house.head(), house.workspaces.get(&name("z")).expect("z").head.expect("a head")] {
        assert_eq!(undecided_before(&history, head).expect("a look"), found);
    }
    let merged = WorkingTree::open(house.workspaces.store(), merge).expect("open");
    let mut tree = house.workspaces.open(&name("main")).expect("open");
    assert!(found[0].undecided.is_as(&merged, &tree).expect("a look"));
    let mut without = house.workspaces.open(&name("z")).expect("open");
    without.remove("left").expect("removed");
    assert!(!found[0].undecided.is_as(&merged, &without).expect("a look"));
    // Both names may be right: a snapshot says so though its tree is the same.
    assert_eq!(found[0].undecided.decide(&mut tree, Decision::Both).expect("decided"), []);
    let mut change = Change::new("both");
    change.metadata.insert(DECIDED_KEY.to_owned(), found[0].id());
    assert!(!house.workspaces.commit(&name("main"), &mut tree, &change, &act(30)).expect("nothing to do").is_new);
    change.even_unchanged = true;
    assert!(house.workspaces.commit(&name("main"), &mut tree, &change, &act(30)).expect("committed").is_new);
    assert_eq!(undecided_before(&history, house.head()).expect("a look"), []);
    assert_eq!(after(&found, house.head()), []);
    assert_eq!(after(&[], merge), found);
    house.workspaces.undo(&name("main"), &act(31)).expect("undone");
    assert_eq!(undecided_before(&history, house.head()).expect("a look"), found);
}

#[test]
fn a_workspace_that_went_on_does_not_end() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    house.submit("x", &QueueOptions { ends: true, ..QueueOptions::default() }, 10);
    house.write("x", "b=3");
    assert_eq!(landed(&house.fold()), [true]);
    assert!(house.workspaces.find(&name("x")).expect("a look").is_some());
    assert_eq!(house.read("b"), "absent");
    house.submit("x", &QueueOptions { ends: true, ..QueueOptions::default() }, 11);
    assert_eq!(landed(&house.fold()), [true]);
    assert_eq!(house.read("b"), "3");
    assert!(house.workspaces.find(&name("x")).expect("a look").is_none());
}

#[test]
fn a_request_that_is_made_again_is_not_merged_again() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    let again = act(10).as_request(RequestId::new("once").expect("an id"));
    let first = house.queue.submit(&name("x"), &name("main"), &QueueOptions::default(), &again).expect("in the queue");
    let second = house.queue.submit(&name("x"), &name("main"), &QueueOptions::default(), &again).expect("the same");
    assert_eq!(first.id, second.id);
    assert_eq!(house.fold().len(), 1);
    let third = house.queue.submit(&name("x"), &name("main"), &QueueOptions::default(), &again).expect("the same");
    assert_eq!(first.id, third.id);
    assert_eq!(house.fold(), []);
    house.submit("x", &QueueOptions::default(), 12);
    assert_eq!(house.fold(), [("x".to_owned(), EntryOutcome::Already)]);
}

#[test]
fn an_undone_fold_comes_back_into_the_queue_and_waits_to_be_released() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    house.submit("x", &QueueOptions { ends: true, ..QueueOptions::default() }, 10);
    house.fold();
    house.workspaces.undo(&name("main"), &act(20)).expect("undone");
    assert_eq!(house.read("a"), "1");
    assert!(house.workspaces.find(&name("x")).expect("a look").is_some(), "its workspace is back, too");
    let waiting = house.queue.list(None).expect("a list");
    assert_eq!((waiting.len(), waiting[0].is_held), (1, true));
    assert!(house.queue.targets().expect("targets").is_empty());
    assert_eq!(house.fold(), [], "somebody did not want it");
    house.queue.release(&waiting[0], &act(21)).expect("released");
    assert_eq!(landed(&house.fold()), [true]);
    assert_eq!(house.read("a"), "2");
}

#[test]
fn what_may_not_land_waits_with_the_reason() {
    let house = House::new("a=1 secret=1");
    house.fork("x", "secret=2 a=2");
    house.fork("y", "b=2");
    house.submit("x", &QueueOptions::default(), 10);
    house.submit("y", &QueueOptions::default(), 11);
    let court = Court { refused: Some("secret"), ..Court::default() };
    assert_eq!(landed(&house.fold_by(&court)), [false, true]);
    assert_eq!((house.read("a").as_str(), house.read("secret").as_str()), ("1", "1"));
    assert_eq!(house.queue.reviews(None).expect("reviews")[0].reason, "secret: not for you");
}

#[test]
fn an_entry_whose_test_cannot_be_started_leaves_the_queue_and_changes_nothing() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    let tested = QueueOptions { test: vec!["make".to_owned()], ends: true, ..QueueOptions::default() };
    house.submit("x", &tested, 10);
    let before = house.head();
    let court = Court { verdict: Some(TestVerdict::NotStarted("no make".to_owned())), ..Court::default() };
    assert_eq!(house.fold_by(&court), [("x".to_owned(), EntryOutcome::Refused("no make".to_owned()))]);
    assert_eq!(house.head(), before);
    assert!(
        house.queue.list(None).expect("a list").is_empty() && house.queue.reviews(None).expect("reviews").is_empty()
    );
    assert!(house.workspaces.find(&name("x")).expect("a look").is_some(), "it goes on");
    house.submit("x", &tested, 20);
    assert_eq!(landed(&house.fold()), [true], "it can be tried again");
}

#[test]
fn a_test_that_fails_keeps_the_target_where_it_is() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    house.fork("y", "b=2");
    let tested = QueueOptions { test: vec!["make".to_owned(), "check".to_owned()], ..QueueOptions::default() };
    house.submit("y", &QueueOptions::default(), 10);
    house.submit("x", &tested, 11);
    let verdict = Some(TestVerdict::Failed("it does not build".to_owned()));
    let court = Court { verdict, ..Court::default() };
    assert_eq!(landed(&house.fold_by(&court)), [true], "others do not wait for a test");
    let before = house.head();
    assert_eq!(landed(&house.fold_by(&court)), [false]);
    assert_eq!(house.head(), before);
    assert_eq!(*court.tested.lock().expect("no panic"), ["make check"]);
    let review = house.queue.reviews(None).expect("reviews").remove(0);
    assert_eq!(review.reason, "it does not build");
    let entry = house.queue.again(&review, false, &[], "", &act(30)).expect("an entry");
    house.queue.resubmit(&review, &entry, &act(30)).expect("again");
    assert_eq!(landed(&house.fold()), [true]);
    assert_eq!(house.read("a"), "2");
}

#[test]
fn a_test_that_fails_leaves_a_target_without_a_snapshot_as_it_is() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    house.workspaces.create(&name("empty"), &NewWorkspace::default(), &act(4)).expect("created");
    let tested = QueueOptions { test: vec!["make".to_owned()], ..QueueOptions::default() };
    house.queue.submit(&name("x"), &name("empty"), &tested, &act(10)).expect("in the queue");
    let failed = "it does not build".to_owned();
    let court = Court { verdict: Some(TestVerdict::Failed(failed.clone())), ..Court::default() };
    let fold = house.queue.fold(&name("empty"), &court, &act(100)).expect("folded");
    assert_eq!(fold.done[0].outcome, EntryOutcome::Review(failed));
    assert_eq!(house.workspaces.get(&name("empty")).expect("empty").head, None);
    assert_eq!(*court.tested.lock().expect("no panic"), ["make"]);
}

#[test]
fn a_file_that_a_command_makes_is_made_anew_or_waits_with_the_reason() {
    for (made, lock, reason) in [(Ok("anew"), "anew", None), (Err("no bwrap"), "x", Some("no bwrap"))] {
        let house = House::new("lock=1");
        house.fork("x", "lock=x");
        house.fork("y", "lock=y other=y");
        house.submit("x", &QueueOptions::default(), 10);
        house.submit("y", &QueueOptions::default(), 11);
        let court = Court { made: Some(made), ..Court::default() };
        assert_eq!(landed(&house.fold_by(&court)), [true, made.is_ok()]);
        assert_eq!(house.read("lock"), lock);
        assert_eq!(house.read("other"), if made.is_ok() { "y" } else { "absent" });
        let reviews = house.queue.reviews(None).expect("reviews");
        assert_eq!(reviews.first().map(|review| review.reason.as_str()), reason);
    }
}

#[test]
fn a_source_that_is_in_the_target_already_is_told_so() {
    let house = House::new("a=1");
    house.fork("x", "a=2");
    house.submit("x", &QueueOptions::default(), 10);
    house.submit("x", &QueueOptions::default(), 11);
    let fates = house.fold();
    assert!(matches!(fates[0].1, EntryOutcome::Landed(_)));
    assert_eq!(fates[1].1, EntryOutcome::Already);
    assert!(house.queue.submit(&name("main"), &name("main"), &QueueOptions::default(), &act(12)).is_err());
    assert!(house.queue.submit(&name("x"), &name("nobody"), &QueueOptions::default(), &act(12)).is_err());
}

#[test]
fn renames_and_removals_meet_in_a_fold_as_in_a_merge() {
    let house = House::new("d/a=one-long-enough-line d/b=two-long-enough-line e=1");
    house.fork("mover", "");
    let mut tree = house.workspaces.open(&name("mover")).expect("open");
    tree.rename("d", "moved", amalgam_engine::work::RenameMode::Replace).expect("moved");
    house.workspaces.commit(&name("mover"), &mut tree, &Change::new("moved"), &act(4)).expect("committed");
    house.fork("writer", "d/new=3");
    house.fork("remover", "!e");
    for (at, source) in ["mover", "writer", "remover"].into_iter().enumerate() {
        house.submit(source, &QueueOptions::default(), 10 + at as i64);
    }
    assert_eq!(landed(&house.fold()), [true, true, true]);
    assert_eq!(house.read("moved/new"), "3", "it follows the directory");
    assert_eq!((house.read("d/a").as_str(), house.read("e").as_str()), ("absent", "absent"));
}

#[test]
fn the_number_of_changed_paths_is_that_of_the_target() {
    let changed = |words: &str, keep_conflicts: bool, takes: &[SideChoice]| {
        let house = House::new("a=1 b=1 c=1 notes.log=1");
        house.fork("x", "a=x c=x notes.log=x");
        house.fork("y", words);
        house.submit("x", &QueueOptions::default(), 10);
        house.submit("y", &QueueOptions { keep_conflicts, choices: takes.to_vec(), ..QueueOptions::default() }, 11);
        let fold = house.queue.fold(&name("main"), &Court::default(), &act(100)).expect("folded");
        assert!(fold.done.iter().all(|folded| matches!(folded.outcome, EntryOutcome::Landed(_))), "{:?}", fold.done);
        let taken = fold.done[1].files.iter().filter(|file| file.strategy == "taken").map(|file| file.result.word());
        let side = takes.first().map(|take| if take.side == Side::Ours { "ours" } else { "theirs" });
        assert!(
            taken.clone().all(|word| Some(word) == side) && (taken.count() > 0) == side.is_some(),
            "{:?}",
            fold.done[1]
        );
        (fold.done[0].changed, fold.done[1].changed)
    };
    let all = |side| vec![SideChoice { path: None, side }];
    assert_eq!(changed("b=y", false, &[]), (3, 1), "nobody else touched it");
    assert_eq!(changed("notes.log=y", false, &[]), (3, 1), "its bytes are those of both");
    assert_eq!(changed("notes.log=y b=y new=y", false, &[]), (3, 3));
    assert_eq!(changed("a=y b=y", true, &[]), (3, 2), "a conflict is another entry than ours");
    assert_eq!(changed("a=y b=y c=y", false, &all(Side::Theirs)), (3, 3));
    assert_eq!(changed("a=y b=y c=y", false, &all(Side::Ours)), (3, 1), "where ours was taken nothing changed");
}

/// What a merge of two workspaces leaves as a conflict at a path.
fn conflict_of(house: &House, ours: &str, theirs: &str, at: &str) -> std::sync::Arc<Conflict> {
    let (ours, theirs) = (name(ours), name(theirs));
    house.workspaces.fork(&ours, &[name("trial")], &act(4)).expect("forked");
    let history = History::of(house.workspaces.store());
    let (trial, sources) = (name("trial"), [theirs]);
    let request = MergeRequest::new(&trial, &sources, &Texts);
    house.workspaces.merge(&history, &request, &act(5)).expect("merged");
    let tree = house.workspaces.open(&name("trial")).expect("open");
    match tree.stat(at).expect("a look").and_then(|stat| stat.entry).map(|entry| entry.node) {
        Some(Node::Conflict(conflict)) => conflict,
        other => panic!("{at} is no conflict: {other:?}"),
    }
}

#[test]
fn a_conflict_that_was_resolved_before_lands() {
    let house = House::new("a=1 b=1");
    house.fork("x", "a=x");
    house.fork("y", "a=y b=y");
    let conflict = conflict_of(&house, "x", "y", "a");
    let decided = house.write("trial", "a=both");
    let store = house.workspaces.store();
    let root = store.snapshot(decided).expect("a snapshot").root;
    let entry = entry_at(store, &store.root(root).expect("a root"), &path("a")).expect("a look");
    remember(store, &conflict, &path("a"), entry.as_ref(), root, &act(6)).expect("remembered");
    house.workspaces.delete(&name("trial"), &act(7)).expect("deleted");
    house.submit("x", &QueueOptions::default(), 10);
    house.submit("y", &QueueOptions::default(), 11);
    let fold = house.queue.fold(&name("main"), &Court::default(), &act(100)).expect("folded");
    assert!(fold.done.iter().all(|folded| matches!(folded.outcome, EntryOutcome::Landed(_))), "{:?}", fold.done);
    let files: Vec<_> = fold.done[1].files.iter().map(|file| (file.path.to_string(), file.strategy.as_str())).collect();
    assert_eq!(files, [("a".to_owned(), "remembered")]);
    assert_eq!((house.read("a").as_str(), house.read("b").as_str()), ("both", "y"));
    assert!(!store.snapshot(house.head()).expect("a snapshot").metadata.contains_key(CONFLICTS_KEY));
}

#[test]
fn conflicts_that_land_are_counted() {
    let house = House::new("a=1 b=1 c=1");
    house.fork("x", "a=x");
    house.fork("y", "a=y");
    house.fork("z", "c=z");
    house.submit("x", &QueueOptions::default(), 10);
    house.submit("y", &QueueOptions { keep_conflicts: true, ..QueueOptions::default() }, 11);
    house.submit("z", &QueueOptions::default(), 12);
    assert_eq!(landed(&house.fold()), [true, true, true]);
    let store = house.workspaces.store();
    let count = |id: SnapshotId| store.snapshot(id).expect("a snapshot").metadata.get(CONFLICTS_KEY).cloned();
    let parent = |id: SnapshotId| store.snapshot(id).expect("a snapshot").parents[0];
    let head = house.head();
    assert_eq!(count(head).as_deref(), Some("1"), "it is still there");
    assert_eq!(count(parent(head)).as_deref(), Some("1"), "it came with y");
    assert_eq!(count(parent(parent(head))), None, "x met nobody");
    house.fork("w", "a=done");
    house.submit("w", &QueueOptions::default(), 20);
    assert_eq!(landed(&house.fold()), [true]);
    assert_eq!(count(house.head()).as_deref(), Some("0"));
}
