//! Entries of which the policy refuses some changes: the permitted part lands, and the rest stays ahead of the target.

use amalgam_engine::queue::{EntryOutcome, MergePolicy, Queue, QueueEntry, QueueOptions};
use amalgam_engine::workspace::{Change, ForkOptions, NewWorkspace};
use amalgam_engine::{
    History, MergeContents, NoContents, OperationContext, Result, Store, Time, TreePath, WorkspaceName, Workspaces,
};

/// Refuses changes below `fixed`, takes the rest, and keeps both of what is added below `drop`.
struct Partial;

impl MergePolicy for Partial {
    fn contents(&self, _entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>> {
        Ok(Box::new(NoContents))
    }

    fn admit(&self, _entry: &QueueEntry, change: &amalgam_engine::Change) -> Result<Option<String>> {
        Ok(change.path.as_bytes().starts_with(b"fixed").then(|| "not for you".to_owned()))
    }

    fn takes_rest(&self, _entry: &QueueEntry) -> bool {
        true
    }

    fn keeps_both(&self, _entry: &QueueEntry, path: &TreePath) -> bool {
        path.as_bytes().starts_with(b"drop/")
    }
}

fn name(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a name")
}

fn act(time: i64) -> OperationContext {
    OperationContext::new("ada", Time(time))
}

struct House {
    workspaces: Workspaces,
    queue: Queue,
}

impl House {
    fn new() -> Self {
        let store = Store::in_memory();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let queue = Queue::of(&workspaces, &history);
        workspaces.create(&name("main"), &NewWorkspace::default(), &act(1)).expect("created");
        let house = Self { workspaces, queue };
        house.write(
            "main",
            &[("fixed/a", Some("1")), ("fixed/b", Some("1")), ("open", Some("1")), ("drop/x", Some("1"))],
        );
        house
    }

    fn fork(&self, to: &str) {
        let options = ForkOptions { agent: Some(to.to_owned()), ..ForkOptions::default() };
        self.workspaces.fork_with(&name("main"), &[name(to)], &options, &act(2)).expect("forked");
    }

    fn write(&self, workspace: &str, files: &[(&str, Option<&str>)]) {
        let mut tree = self.workspaces.open(&name(workspace)).expect("open");
        for (path, text) in files {
            let above = path.rsplit_once('/').map_or("", |(above, _)| above);
            tree.create_directories(above).expect("directories");
            match text {
                Some(text) => tree.write(path, text.as_bytes()).expect("written"),
                None => tree.remove(path).expect("removed"),
            }
        }
        self.workspaces.commit(&name(workspace), &mut tree, &Change::new("work"), &act(3)).expect("committed");
    }

    /// Submits a workspace and folds: the result, and the paths that were refused.
    fn merge(&self, source: &str, ends: bool, time: i64) -> (EntryOutcome, Vec<String>) {
        let options = QueueOptions { ends, ..QueueOptions::default() };
        self.queue.submit(&name(source), &name("main"), &options, &act(time)).expect("in the queue");
        let mut done = self.queue.fold(&name("main"), &Partial, &act(time)).expect("folded").done;
        let folded = done.pop().expect("one entry");
        (folded.outcome, folded.refused.iter().map(|one| one.path.to_string()).collect())
    }

    fn read(&self, workspace: &str, path: &str) -> Option<String> {
        let tree = self.workspaces.open(&name(workspace)).expect("open");
        let is_there = tree.exists(path).expect("a look");
        is_there.then(|| String::from_utf8(tree.read(path).expect("a file")).expect("text"))
    }
}

#[test]
fn the_permitted_part_lands_and_the_rest_is_tried_again() {
    let house = House::new();
    house.fork("x");
    house.write("x", &[("fixed/a", Some("2")), ("fixed/b", None), ("fixed/c", Some("2")), ("open", Some("2"))]);
    let (outcome, refused) = house.merge("x", true, 10);
    assert!(matches!(outcome, EntryOutcome::Landed(_)), "{outcome:?}");
    assert_eq!(refused, ["fixed/a", "fixed/b", "fixed/c"]);
    assert_eq!(house.read("main", "open").as_deref(), Some("2"));
    assert_eq!(house.read("main", "fixed/a").as_deref(), Some("1"));
    assert_eq!(house.read("main", "fixed/b").as_deref(), Some("1"));
    assert_eq!(house.read("main", "fixed/c"), None);
    assert_eq!(house.read("x", "fixed/a").as_deref(), Some("2"), "the workspace did not end and has its work");
    // Nothing new: the same part is merged already, and the rest is refused again.
    let (outcome, refused) = house.merge("x", false, 11);
    assert_eq!((outcome, refused.len()), (EntryOutcome::Already, 3));
    house.write("x", &[("open", Some("3"))]);
    let (outcome, refused) = house.merge("x", false, 12);
    assert!(matches!(outcome, EntryOutcome::Landed(_)), "{outcome:?}");
    assert_eq!((refused.len(), house.read("main", "open").as_deref()), (3, Some("3")));
}

#[test]
fn files_that_two_sources_add_are_both_kept() {
    let house = House::new();
    for source in ["ann", "bob", "cid"] {
        house.fork(source);
        house.write(source, &[("drop/report.md", Some(source)), ("drop/same", Some("same"))]);
    }
    for (time, source) in ["ann", "bob", "cid"].into_iter().enumerate() {
        let (outcome, _) = house.merge(source, false, 20 + time as i64);
        assert!(matches!(outcome, EntryOutcome::Landed(_)), "{source}: {outcome:?}");
    }
    assert_eq!(house.read("main", "drop/report.md").as_deref(), Some("ann"));
    assert_eq!(house.read("main", "drop/report.bob.md").as_deref(), Some("bob"));
    assert_eq!(house.read("main", "drop/report.cid.md").as_deref(), Some("cid"));
    assert_eq!(house.read("main", "drop/same").as_deref(), Some("same"));
    assert_eq!(house.read("main", "drop/same.bob"), None, "equal files are one");
}
