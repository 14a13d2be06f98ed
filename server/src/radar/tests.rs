//! The radar over real services.

use std::sync::atomic::{AtomicI64, Ordering};

use amalgam_engine::Time;
use amalgam_engine::workspace::{Change, NewWorkspace};

use super::*;
use crate::events::{EventFilter, EventStream};
use crate::home::Home;
use crate::service::Service;
use crate::views::{ExportRecord, Mode};

struct House {
    service: Service,
    around: tempfile::TempDir,
}

fn name(name: &str) -> WorkspaceName {
    WorkspaceName::new(name).expect("a name")
}

/// Returns a new time at each call.
fn now() -> Time {
    static NOW: AtomicI64 = AtomicI64::new(1);
    Time(NOW.fetch_add(1, Ordering::Relaxed))
}

impl House {
    /// Creates `main` with a text and a document, and the forks `ann` and `bob`.
    fn new() -> Self {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), now, &[]).expect("opened");
        let house = Self { service, around };
        let act = house.service.context.act("root");
        let workspaces = &house.service.context.workspaces;
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        house.write("main", &[("text", "1\n2\n3\n4\n5\n"), ("data.json", "{\"a\": 1, \"b\": 2}")]);
        workspaces.fork(&name("main"), &[name("ann"), name("bob")], &act).expect("forked");
        house
    }

    fn write(&self, workspace: &str, files: &[(&str, &str)]) {
        self.change(workspace, |tree| {
            for (path, text) in files {
                tree.write(*path, text.as_bytes()).expect("written");
            }
        });
    }

    /// Replaces a symlink, or makes it.
    fn link(&self, workspace: &str, path: &str, target: &str) {
        self.change(workspace, |tree| {
            if tree.exists(path).expect("a look") {
                tree.remove(path).expect("removed");
            }
            tree.symlink(path, target).expect("linked");
        });
    }

    fn change(&self, workspace: &str, change: impl FnOnce(&mut WorkingTree)) {
        let workspaces = &self.service.context.workspaces;
        let mut tree = workspaces.open(&name(workspace)).expect("open");
        change(&mut tree);
        let act = self.service.context.act(workspace);
        workspaces.commit(&name(workspace), &mut tree, &Change::new("work"), &act).expect("committed");
    }

    fn overlaps(&self) -> Vec<v1::Overlap> {
        let act = self.service.context.act("root");
        self.service.radar.get(&v1::GetRadarRequest::default(), 100, &act).expect("read").overlaps
    }

    /// Describes each overlap by its path, its workspaces, and the first pair's kind and advice.
    fn seen(&self) -> Vec<String> {
        let one = |overlap: &v1::Overlap| {
            let sides: Vec<_> = overlap.sides.iter().map(|side| side.workspace.replace("workspaces/", "")).collect();
            let pair = overlap.pairs.first().expect("a pair");
            format!("{}: {} {} {}", overlap.path, sides.join("+"), pair.kind, pair.merge)
        };
        self.overlaps().iter().map(one).collect()
    }

    fn merge_into_main(&self, source: &str) {
        let request = v1::MergeWorkspacesRequest {
            target: "workspaces/main".to_owned(),
            sources: vec![format!("workspaces/{source}")],
            ..Default::default()
        };
        let act = self.service.context.act(source);
        self.service.merging.merge_workspaces(&request, &act, &crate::caller::Caller::default()).expect("merged");
    }
}

#[test]
fn paths_that_two_workspaces_changed_are_overlaps_with_lines_keys_and_advice() {
    let house = House::new();
    assert!(house.overlaps().is_empty());
    house.write("ann", &[("text", "one\n2\n3\n4\n5\n"), ("own", "x")]);
    assert!(house.overlaps().is_empty(), "one workspace alone overlaps with nothing");
    house.write("bob", &[("text", "1\n2\n3\n4\nfive\n"), ("data.json", "{\"a\": 9, \"b\": 2}")]);
    assert_eq!(house.seen(), ["text: ann+bob file clean"]);
    house.write("bob", &[("text", "uno\n2\n3\n4\nfive\n")]);
    house.write("ann", &[("data.json", "{\"a\": 7, \"b\": 2}")]);
    assert_eq!(house.seen(), ["data.json: bob+ann keys conflict", "text: ann+bob lines conflict"]);
    let overlaps = house.overlaps();
    assert_eq!(overlaps[0].pairs[0].keys, ["/a"]);
    assert_eq!(overlaps[1].pairs[0].lines, [v1::LineRange { first: 1, last: 1 }]);
    assert_eq!(overlaps[1].since, overlaps[1].sides[1].since, "it began with the second workspace");
}

#[test]
fn large_files_and_symlinks_are_compared() {
    let house = House::new();
    let large = |text: &str| text.repeat(detail::COMPARED_BYTES_MAX);
    house.write("ann", &[("large", &large("a\0"))]);
    house.write("bob", &[("large", &large("b\0"))]);
    house.link("ann", "link", "a");
    house.link("bob", "link", "b");
    assert_eq!(house.seen(), ["large: ann+bob file conflict", "link: ann+bob file conflict"]);
    house.write("bob", &[("large", &large("a\0"))]);
    house.link("bob", "link", "a");
    assert_eq!(house.seen(), ["large: ann+bob same clean", "link: ann+bob same clean"]);
}

#[test]
fn a_trial_merge_follows_the_groups_of_the_rules_as_they_are_now() {
    let house = House::new();
    house.write("ann", &[("text", "one\n2\n3\n4\n5\n"), ("data.json", "{\"a\": 7, \"b\": 2}")]);
    house.write("bob", &[("text", "1\n2\n3\n4\nfive\n"), ("data.json", "{\"a\": 1, \"b\": 8}")]);
    let clean = ["data.json: ann+bob file clean", "text: ann+bob file clean"];
    assert_eq!(house.seen(), clean);
    let rules = house.around.path().join("home/merge.toml");
    std::fs::write(&rules, "[[group]]\nname = \"both\"\npaths = [\"text\", \"data.json\"]\n").expect("written");
    assert_eq!(house.seen(), ["data.json: ann+bob file conflict", "text: ann+bob file conflict"]);
    std::fs::remove_file(&rules).expect("removed");
    assert_eq!(house.seen(), clean);
}

#[test]
fn a_change_that_is_taken_back_or_merged_is_no_overlap_any_more() {
    let house = House::new();
    house.write("ann", &[("text", "one\n2\n3\n4\n5\n")]);
    house.write("bob", &[("text", "uno\n2\n3\n4\n5\n")]);
    assert_eq!(house.overlaps().len(), 1);
    house.write("bob", &[("text", "1\n2\n3\n4\n5\n")]);
    assert!(house.overlaps().is_empty(), "bob's file is as main has it");
    house.write("bob", &[("text", "uno\n2\n3\n4\n5\n")]);
    assert_eq!(house.overlaps().len(), 1);
    house.merge_into_main("ann");
    assert!(house.overlaps().is_empty(), "ann's change is in main");
    house.write("ann", &[("text", "two\n2\n3\n4\n5\n")]);
    assert_eq!(house.overlaps().len(), 1);
    let act = house.service.context.act("root");
    house.service.context.workspaces.delete(&name("bob"), &act).expect("deleted");
    assert!(house.overlaps().is_empty(), "bob has ended");
    house.service.context.workspaces.undelete(&name("bob"), &act).expect("back");
    assert_eq!(house.overlaps().len(), 1);
}

#[test]
fn uncommitted_changes_of_live_trees_are_seen_and_the_same_change_is_clean() {
    let house = House::new();
    let used = house.service.views.use_view(&name("ann")).expect("opened");
    let plan = |_: WorkingTree, _: &[&mut amalgam_view::Upload]| {
        let path = TreePath::new("new").expect("a path");
        Ok((vec![amalgam_view::TreeEdit::Create { path, mode: 0o644 }], ()))
    };
    used.edit(&mut [], plan).expect("edited");
    house.write("bob", &[("new", "")]);
    assert_eq!(house.seen(), ["new: bob+ann same clean"]);
    assert!(house.overlaps()[0].sides.iter().any(|side| side.uncommitted), "ann's file is in no snapshot");
    house.write("bob", &[("new", "text\n")]);
    assert_eq!(house.seen().len(), 1);
}

#[test]
fn committed_changes_of_an_export_are_not_uncommitted() {
    let house = House::new();
    let Service { views, directories, context, .. } = &house.service;
    let used = views.use_view(&name("ann")).expect("opened");
    let plan = |_: WorkingTree, _: &[&mut amalgam_view::Upload]| {
        let path = TreePath::new("new").expect("a path");
        Ok((vec![amalgam_view::TreeEdit::Create { path, mode: 0o644 }], ()))
    };
    used.edit(&mut [], plan).expect("edited");
    house.write("bob", &[("new", "text\n")]);
    let uncommitted =
        || house.overlaps().iter().flat_map(|overlap| &overlap.sides).filter(|side| side.uncommitted).count();
    assert_eq!(uncommitted(), 1);
    directories.capture_of(&name("ann"), "a test", &context.act("ann")).expect("committed");
    drop(used);
    // Closes the view.
    views.refuse_live(&name("ann"), "it is exported").expect("all is committed");
    let export = ExportRecord {
        path: "/ann".to_owned(),
        mode: Mode::ReadWrite,
        workspace: "ann".to_owned(),
        snapshot: String::new(),
        read_only: false,
        allow: Vec::new(),
        secret: None,
        trusts_users: false,
        since: 0,
    };
    views.add_export(export).expect("recorded");
    assert_eq!((house.overlaps().len(), uncommitted()), (1, 0));
}

#[test]
fn an_index_that_follows_the_log_equals_one_that_is_read_anew() {
    let house = House::new();
    house.overlaps();
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..60 {
        let workspace = ["ann", "bob"][random(2) as usize];
        let path = ["text", "x", "y"][random(3) as usize];
        match random(8) {
            0 => house.merge_into_main(workspace),
            1 => {
                let workspaces = &house.service.context.workspaces;
                let record = workspaces.get(&name(workspace)).expect("it is there");
                // An undo beyond the first commit would undo the fork.
                if record.head != record.base {
                    let act = house.service.context.act(workspace);
                    workspaces.undo(&name(workspace), &act).expect("undone");
                }
            }
            _ => house.write(workspace, &[(path, &format!("{}\n", random(3)))]),
        }
        let followed: Vec<_> = house.overlaps().into_iter().map(|overlap| overlap.path).collect();
        house.service.radar.inner.scan.lock().cursor = None;
        let anew: Vec<_> = house.overlaps().into_iter().map(|overlap| overlap.path).collect();
        assert_eq!(followed, anew);
    }
}

#[test]
fn operations_are_not_lost_when_a_caller_leaves_while_they_are_read() {
    let house = House::new();
    let Service { radar, context, .. } = &house.service;
    let gone = crate::caller::Caller::default();
    gone.leave();
    let interrupted = || {
        let get = || radar.get(&v1::GetRadarRequest::default(), 100, &context.act("root"));
        gone.walking(get).expect_err("the caller is gone");
    };
    let recorded = || context.store.list_refs(crate::notices::OVERLAP_PREFIX, None, 10).expect("listed").len();
    let mut is_told = false;
    radar.tell_changes(&mut is_told).expect("told");
    house.write("ann", &[("text", "a")]);
    house.write("bob", &[("text", "b")]);
    interrupted();
    assert_eq!(house.overlaps().len(), 1);
    radar.tell_changes(&mut is_told).expect("told");
    assert_eq!(recorded(), 1);
    // The page begins with an operation that is read from trees, which the caller's leave interrupts.
    house.write("bob", &[("x", "b")]);
    house.merge_into_main("ann");
    interrupted();
    radar.tell_changes(&mut is_told).expect("told");
    assert_eq!(recorded(), 0, "the overlap has ended");
}

#[tokio::test]
async fn a_subscriber_that_names_overlaps_is_told_when_they_begin_and_end() {
    let house = House::new();
    let context = &house.service.context;
    let told = |told: &mut bool| house.service.radar.tell_changes(told).expect("told");
    let kinds = ["overlap.*".to_owned()];
    let filter = EventFilter::new(&[], &kinds).expect("a filter");
    assert!(!context.overlap_listeners.is_any());
    let mut events = EventStream::open(context, "", filter, false).expect("opened");
    assert!(context.overlap_listeners.is_any());
    events.next().await.expect("the position");
    let mut is_told = false;
    told(&mut is_told);
    house.write("ann", &[("text", "a")]);
    house.write("bob", &[("text", "b")]);
    told(&mut is_told);
    told(&mut is_told);
    let began = events.next().await.expect("an event").event.expect("an event");
    assert_eq!((began.kind.as_str(), &began.paths[..]), ("overlap.began", &["text".to_owned()][..]));
    assert_eq!(began.workspaces, ["workspaces/ann", "workspaces/bob"]);
    house.merge_into_main("ann");
    told(&mut is_told);
    let ended = events.next().await.expect("an event").event.expect("an event");
    assert_eq!((ended.kind.as_str(), &ended.paths[..]), ("overlap.ended", &["text".to_owned()][..]));
    drop(events);
    assert!(!context.overlap_listeners.is_any());
}

#[test]
fn an_overlap_with_a_long_path_keeps_no_other_from_being_told() {
    let house = House::new();
    let directory = vec!["d".repeat(250); 270].join("/");
    for workspace in ["ann", "bob"] {
        house.change(workspace, |tree| {
            tree.create_directories(directory.as_str()).expect("made");
            tree.write(format!("{directory}/file"), workspace.as_bytes()).expect("written");
            tree.write("text", workspace.as_bytes()).expect("written");
        });
    }
    assert_eq!(house.overlaps().len(), 2);
    house.service.radar.tell_changes(&mut false).expect("told");
    let recorded = house.service.context.store.list_refs(crate::notices::OVERLAP_PREFIX, None, 10).expect("listed");
    assert_eq!(recorded.len(), 1);
}

#[test]
fn pages_of_paths_that_are_not_text_have_each_overlap_once() {
    let house = House::new();
    let paths = [&b"caf\xe9"[..], b"caf\xea", b"f\xff", b"f\xff2"];
    for workspace in ["ann", "bob"] {
        house.change(workspace, |tree| {
            paths.iter().for_each(|path| tree.write(*path, workspace.as_bytes()).expect("written"));
        });
    }
    let act = house.service.context.act("root");
    let (mut found, mut page_token) = (Vec::new(), String::new());
    for _ in 0..10 {
        let request = v1::GetRadarRequest { page_token, paths_only: true, ..Default::default() };
        let page = house.service.radar.get(&request, 1, &act).expect("read");
        found.extend(page.overlaps.into_iter().map(|overlap| overlap.path));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, ["caf\\xe9", "caf\\xea", "f\\xff", "f\\xff2"]);
}

#[test]
fn the_index_is_bounded() {
    let house = House::new();
    let workspaces = &house.service.context.workspaces;
    let mut tree = workspaces.open(&name("ann")).expect("open");
    for number in 0..10_050 {
        tree.write(format!("f{number}"), b"x").expect("written");
    }
    let act = house.service.context.act("ann");
    workspaces.commit(&name("ann"), &mut tree, &Change::new("many"), &act).expect("committed");
    let response = house.service.radar.get(&v1::GetRadarRequest::default(), 100, &act).expect("read");
    assert_eq!(response.incomplete, ["workspaces/ann"]);
    assert!(house.service.radar.inner.scan.lock().index.len() <= 10_000);
}
