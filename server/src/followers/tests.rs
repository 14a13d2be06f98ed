//! Followers over real services, with a clock that the tests move.

use std::sync::atomic::{AtomicI64, Ordering};

use amalgam_engine::Time;
use amalgam_engine::workspace::{Change, NewWorkspace};

use super::*;
use crate::home::Home;
use crate::service::Service;

const SECOND_NANOSECONDS: i64 = 1_000_000_000;

/// A clock for each test: they run side by side, and a clock is a plain function.
macro_rules! clock {
    () => {{
        static NOW: AtomicI64 = AtomicI64::new(1_000 * SECOND_NANOSECONDS);
        fn now() -> Time {
            Time(NOW.load(Ordering::Relaxed))
        }
        (now as fn() -> Time, |seconds: i64| {
            NOW.fetch_add(seconds * SECOND_NANOSECONDS, Ordering::Relaxed);
        })
    }};
}

struct House {
    service: Service,
    around: tempfile::TempDir,
    cursor: Option<OperationCursor>,
}

fn name(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a name")
}

impl House {
    fn new(clock: fn() -> Time) -> Self {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), clock, &[]).expect("opened");
        let house = Self { service, around, cursor: None };
        let act = house.service.context.act("ann");
        let workspaces = &house.service.context.workspaces;
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        house.write("main", "file", "1\n2\n3\n");
        workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
        house
    }

    fn write(&self, workspace: &str, path: &str, text: &str) {
        let workspaces = &self.service.context.workspaces;
        let mut tree = workspaces.open(&name(workspace)).expect("open");
        tree.write(path, text.as_bytes()).expect("written");
        let act = self.service.context.act("ann");
        workspaces.commit(&name(workspace), &mut tree, &Change::new(text), &act).expect("committed");
    }

    fn read(&self, workspace: &str, path: &str) -> String {
        let tree = self.service.context.workspaces.open(&name(workspace)).expect("open");
        match tree.exists(path).expect("a look") {
            true => String::from_utf8(tree.read(path).expect("a file")).expect("text"),
            false => "absent".to_owned(),
        }
    }

    fn follow(&self, source: v1::follow_source_request::Source, mode: &str, every_seconds: u32) -> Result<()> {
        let request = v1::FollowSourceRequest {
            workspace: "workspaces/try".to_owned(),
            source: Some(source),
            mode: mode.to_owned(),
            every_seconds,
            ..Default::default()
        };
        self.service.followers.follow(&request, &self.service.context.act("ann"), &Caller::default()).map(drop)
    }

    fn follow_main(&self, mode: &str, every_seconds: u32) {
        let source = v1::follow_source_request::Source::SourceWorkspace("workspaces/main".to_owned());
        self.follow(source, mode, every_seconds).expect("followed");
    }

    /// Runs the updates that are due, and returns the last update.
    fn look(&mut self) -> Option<v1::FollowUpdate> {
        self.service.followers.update_all_due(&mut self.cursor);
        let workspace = self.service.views.workspace_message(&name("try")).expect("it is there");
        workspace.following.and_then(|following| following.last)
    }

    fn update(&self) -> LastUpdate {
        let act = self.service.context.act("ann");
        let done = self.service.followers.update(&name("try"), &act, &Caller::default()).expect("updated");
        done.expect("it follows").update
    }
}

fn counts(update: &v1::FollowUpdate) -> (&str, [u64; 4]) {
    (update.how.as_str(), [update.synced, update.skipped, update.total, update.conflicts])
}

#[test]
fn files_that_the_agent_did_not_change_are_updated_and_its_own_stay() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.write("try", "own", "mine\n");
    house.write("try", "both", "the same\n");
    house.follow_main("", 0);
    assert_eq!(counts(&house.look().expect("looked at")), ("already", [0; 4]));
    house.write("main", "file", "one\n2\n3\n");
    house.write("main", "new", "theirs\n");
    house.write("main", "both", "the same\n");
    assert_eq!(house.look().map(|last| last.how), Some("already".to_owned()), "it is not time yet");
    pass(30);
    assert_eq!(counts(&house.look().expect("updated")), ("updated", [2, 1, 3, 0]));
    for (path, text) in [("own", "mine\n"), ("file", "one\n2\n3\n"), ("new", "theirs\n"), ("both", "the same\n")] {
        assert_eq!(house.read("try", path), text, "{path}");
    }
    assert_eq!(house.read("main", "own"), "absent", "nothing goes upstream");
}

#[test]
fn changes_of_different_lines_are_merged_and_of_the_same_lines_are_a_stored_conflict() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 10);
    house.write("try", "file", "1\n2\nmine\n");
    house.write("main", "file", "theirs\n2\n3\n");
    assert_eq!(counts(&house.look().expect("updated")), ("updated", [1, 0, 1, 0]));
    assert_eq!(house.read("try", "file"), "theirs\n2\nmine\n");
    house.write("main", "file", "theirs\n2\nalso theirs\n");
    pass(10);
    let last = house.look().expect("updated");
    assert_eq!(counts(&last), ("conflicts", [0, 0, 1, 1]));
    let head = house.service.context.head(&name("try")).expect("a head").expect("a snapshot");
    assert_eq!(house.service.context.one_snapshot(head).expect("read").conflicts, 1);
}

#[test]
fn an_event_updates_at_once_and_each_mode_keeps_its_interval() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.follow_main("event", 0);
    house.look();
    assert!(!house.service.followers.is_following(), "events come through the process, which may end between them");
    house.write("main", "new", "1\n");
    assert_eq!(counts(&house.look().expect("updated")), ("updated", [1, 0, 1, 0]));
    for (mode, least, most) in [("regular", 5, 10), ("lazy", 30, 60)] {
        house.follow_main(mode, 0);
        house.look();
        assert!(house.service.followers.is_following());
        house.write("main", "new", mode);
        pass(least - 1);
        house.look();
        assert_ne!(house.read("try", "new"), mode, "{mode}");
        pass(most - least + 1);
        house.look();
        assert_eq!(house.read("try", "new"), mode);
    }
}

#[test]
fn an_update_that_was_undone_stays_undone_until_the_source_moves_on() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 10);
    house.look();
    house.write("main", "new", "1\n");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "new"), "1\n");
    let act = house.service.context.act("ann");
    house.service.context.workspaces.undo(&name("try"), &act).expect("undone");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "new"), "absent");
    house.write("main", "other", "2\n");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "other"), "2\n");
}

#[test]
fn the_source_survives_a_restart_and_a_rename_and_an_undo_takes_it_back() {
    let (clock, _) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 20);
    house.look();
    let House { service, around, cursor } = house;
    drop((service, cursor));
    let service = Service::open(&Home::new(around.path().join("home")), clock, &[]).expect("opened again");
    let act = service.context.act("ann");
    service.directories.rename_workspace(&name("try"), &name("renamed"), &act).expect("renamed");
    service.directories.rename_workspace(&name("renamed"), &name("try"), &act).expect("renamed back");
    let mut house = House { service, around, cursor: None };
    house.write("main", "new", "1\n");
    assert_eq!(counts(&house.look().expect("updated")), ("updated", [1, 0, 1, 0]));
    let workspaces = &house.service.context.workspaces;
    let follow = workspaces.get(&name("try")).expect("it").follow.expect("it follows");
    assert_eq!((follow.source, follow.mode), (name("main"), FollowMode::Every(20)));
    workspaces.follow(&name("try"), None, &act).expect("unfollowed");
    workspaces.undo(&name("try"), &act).expect("undone");
    assert!(workspaces.get(&name("try")).expect("it").follow.is_some(), "the end of the following was undone");
    let forks = [name("fork")];
    workspaces.fork(&name("try"), &forks, &act).expect("forked");
    assert_eq!(workspaces.get(&forks[0]).expect("it").follow, None, "a fork follows nothing");
}

#[test]
fn a_source_that_is_gone_is_told_and_retried() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 10);
    house.look();
    let act = house.service.context.act("ann");
    house.service.context.workspaces.delete(&name("main"), &act).expect("deleted");
    pass(10);
    let last = house.look().expect("tried");
    assert_eq!(last.how, "failed");
    assert!(last.reason.contains("main does not exist any more"), "{}", last.reason);
    house.service.context.workspaces.undelete(&name("main"), &act).expect("back");
    house.write("main", "new", "1\n");
    pass(59);
    assert_eq!(house.look().expect("tried").how, "failed", "it waits before it tries again");
    pass(1);
    assert_eq!(house.look().expect("updated").how, "updated");
}

#[test]
fn a_follower_that_is_removed_leaves_no_result_and_no_lock() {
    let (clock, _) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 10);
    house.look();
    let file = house.around.path().join("home/following.json");
    let has_result = || std::fs::read_to_string(&file).expect("results").contains("\"try\"");
    let locks = |house: &House| house.service.followers.inner.turns.lock().len();
    assert!(has_result());
    assert_eq!(locks(&house), 1);
    let act = house.service.context.act("ann");
    house.service.context.workspaces.delete(&name("try"), &act).expect("deleted");
    house.service.followers.update_all_due(&mut house.cursor);
    assert!(!has_result());
    assert_eq!(locks(&house), 0);
    // Neither a workspace that is gone nor one that follows nothing gets a lock.
    let gone = house.service.followers.update(&name("try"), &act, &Caller::default());
    assert_eq!(gone.err().expect("it is gone").reason(), Reason::NotFound);
    let main = house.service.followers.update(&name("main"), &act, &Caller::default());
    assert!(main.expect("nothing to do").is_none());
    assert_eq!(locks(&house), 0);
    assert!(!has_result());
}

#[test]
fn a_clock_that_is_set_back_delays_no_update() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    house.follow_main("", 10);
    house.look();
    house.write("main", "new", "1\n");
    pass(-500);
    assert_eq!(house.service.followers.next_due(), Some(Time(0)), "it is due at once");
    assert_eq!(house.look().expect("updated").how, "updated");
    pass(10);
    house.look();
    assert_eq!(house.service.followers.next_due(), Some(Time(520 * SECOND_NANOSECONDS)), "the interval goes on");
    // A failed update is delayed by a minute at most.
    let act = house.service.context.act("ann");
    house.service.context.workspaces.delete(&name("main"), &act).expect("deleted");
    pass(10);
    assert_eq!(house.look().expect("tried").how, "failed");
    assert_eq!(house.service.followers.next_due(), Some(Time(580 * SECOND_NANOSECONDS)));
    house.service.context.workspaces.undelete(&name("main"), &act).expect("back");
    house.write("main", "new", "2\n");
    pass(-300);
    assert_eq!(house.service.followers.next_due(), Some(Time(0)));
    assert_eq!(house.look().expect("updated").how, "updated");
    assert_eq!(house.read("try", "new"), "2\n");
}

#[test]
fn a_directory_and_an_archive_are_followed_like_a_workspace() {
    let (clock, pass) = clock!();
    let mut house = House::new(clock);
    let source = house.around.path().join("source");
    std::fs::create_dir(&source).expect("made");
    std::fs::write(source.join("data"), "1\n").expect("written");
    let path = |path: &std::path::Path| crate::messages::path_bytes(path);
    house.follow(v1::follow_source_request::Source::Directory(path(&source)), "", 10).expect("followed");
    assert_eq!(counts(&house.look().expect("updated")), ("updated", [1, 0, 1, 0]));
    std::fs::write(source.join("data"), "2, and longer\n").expect("written");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "data"), "2, and longer\n");
    assert_eq!(house.read("try", "file"), "1\n2\n3\n", "what the source never had stays");

    let archive = house.around.path().join("files.tar");
    let pack = |text: &str| {
        std::fs::write(source.join("packed"), text).expect("written");
        let done =
            std::process::Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg("packed").status();
        assert!(done.expect("tar runs").success());
    };
    pack("1\n");
    house.follow(v1::follow_source_request::Source::Archive(path(&archive)), "", 10).expect("followed");
    house.look();
    assert_eq!(house.read("try", "packed"), "1\n");
    pack("2, and longer\n");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "packed"), "2, and longer\n");
    // A pipe in the place of the archive fails at once: no process writes into it.
    std::fs::remove_file(&archive).expect("removed");
    rustix::fs::mkfifoat(rustix::fs::CWD, &archive, rustix::fs::Mode::from(0o600)).expect("made");
    pass(10);
    house.look();
    assert_eq!(house.read("try", "packed"), "2, and longer\n");
    let wrong = house.follow(v1::follow_source_request::Source::Archive(path(&archive)), "event", 0);
    assert_eq!(wrong.expect_err("an archive has no events").reason(), Reason::Invalid);
}

#[test]
fn uncommitted_changes_of_a_live_tree_stay_and_its_other_files_are_updated() {
    let (clock, _) = clock!();
    let house = House::new(clock);
    house.follow_main("", 10);
    let used = house.service.views.use_view(&name("try")).expect("opened");
    let plan = |_: amalgam_engine::WorkingTree, _: &[&mut amalgam_view::Upload]| {
        let path = amalgam_engine::TreePath::new("mine").expect("a path");
        Ok((vec![amalgam_view::TreeEdit::Create { path, mode: 0o644 }], ()))
    };
    used.edit(&mut [], plan).expect("edited");
    house.write("main", "file", "one\n2\n3\n");
    let update = house.update();
    assert_eq!((update.how, update.synced), (UpdateOutcome::Updated, 1));
    let tree = used.view().fork();
    assert_eq!(tree.read("file").expect("read"), b"one\n2\n3\n");
    assert!(tree.exists("mine").expect("a look"), "the agent's file stays");
    assert_eq!(house.read("try", "file"), "one\n2\n3\n");
}
