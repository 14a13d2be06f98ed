//! What becomes of entries that need a decision: which versions a taken side has.

use amalgam_engine::queue::{QueueOptions, Side, SideChoice};
use amalgam_engine::work::RenameMode;
use amalgam_engine::workspace::Change;
use amalgam_engine::{Time, TreePath};

use super::folds::{Court, House, act, landed, name, path};

/// The lines of a text after its first one.
const OTHER_LINES: &str = "\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";

impl House {
    /// Folds the only review again, with this side of a path or of all conflicts. Returns whether each entry landed.
    fn take(&self, path: Option<TreePath>, side: Side, court: &Court) -> Vec<bool> {
        let review = self.queue.reviews(None).expect("one").remove(0);
        let choices = [SideChoice { path, side }];
        let entry = self.queue.again(&review, false, &choices, "", &act(20)).expect("an entry");
        self.queue.resubmit(&review, &entry, &act(20)).expect("in the queue again");
        landed(&self.fold_by(court))
    }
}

#[test]
fn a_review_takes_the_version_of_a_side_that_has_the_file_at_another_path() {
    for (side, first) in [(Side::Ours, "x"), (Side::Theirs, "y"), (Side::Base, "1")] {
        for mover in ["x", "y"] {
            let house = House::new("other=1");
            let write = |workspace: &str, first: &str| {
                let mut tree = house.workspaces.open(&name(workspace)).expect("open");
                tree.set_now(Time(3));
                let to = if workspace == mover { "b" } else { "a" };
                if workspace == mover {
                    tree.rename("a", to, RenameMode::NoReplace).expect("moved");
                }
                tree.write(to, format!("{first}{OTHER_LINES}").as_bytes()).expect("written");
                house.workspaces.commit(&name(workspace), &mut tree, &Change::new(first), &act(3)).expect("committed");
            };
            write("main", "1");
            for (at, workspace) in ["x", "y"].into_iter().enumerate() {
                house.fork(workspace, "");
                write(workspace, workspace);
                house.submit(workspace, &QueueOptions::default(), 10 + at as i64);
            }
            assert_eq!(landed(&house.fold()), [true, false], "{mover} moved it");
            assert_eq!(house.take(None, side, &Court::default()), [true], "{side:?}, {mover} moved it");
            assert_eq!(house.read("b"), format!("{first}{OTHER_LINES}"), "{side:?}, {mover} moved it");
            assert_eq!(house.read("a"), "absent", "{side:?}, {mover} moved it");
        }
    }
}

/// Two workspaces that both changed the files of a group.
fn house_with_a_contested_group() -> House {
    let house = House::new("lock=1 manifest=1");
    for (at, workspace) in ["x", "y"].into_iter().enumerate() {
        house.fork(workspace, &format!("lock={workspace} manifest={workspace}"));
        house.submit(workspace, &QueueOptions::default(), 10 + at as i64);
    }
    house
}

fn group() -> Vec<Vec<TreePath>> {
    vec![vec![path("lock"), path("manifest")]]
}

#[test]
fn a_group_waits_for_a_decision_when_a_command_made_only_one_of_its_files() {
    let house = house_with_a_contested_group();
    let court = Court { made: Some(Ok("anew")), units: group(), ..Court::default() };
    assert_eq!(landed(&house.fold_by(&court)), [true, false]);
    assert_eq!((house.read("lock").as_str(), house.read("manifest").as_str()), ("x", "x"));
    let review = house.queue.reviews(None).expect("reviews").remove(0);
    let conflicts: Vec<_> = review.conflicts.iter().map(|one| (one.path.clone(), one.kind.as_str())).collect();
    assert_eq!(conflicts, [(path("manifest"), "unit")]);
}

#[test]
fn a_review_takes_all_files_of_a_group_from_one_side() {
    for about in [None, Some(path("manifest"))] {
        for (side, text) in [(Side::Ours, "x"), (Side::Theirs, "y"), (Side::Base, "1")] {
            let house = house_with_a_contested_group();
            let court = Court { units: group(), ..Court::default() };
            assert_eq!(landed(&house.fold_by(&court)), [true, false]);
            assert_eq!(house.take(about.clone(), side, &court), [true], "{side:?} of {about:?}");
            let files = [house.read("lock"), house.read("manifest")];
            assert_eq!(files, [text, text], "{side:?} of {about:?}");
        }
    }
}

#[test]
fn a_conflicting_entry_with_the_longest_message_becomes_a_review_and_the_next_entry_lands() {
    let house = House::new("a=1 b=1");
    house.fork("x", "a=x");
    house.fork("y", "a=y");
    house.fork("z", "b=z");
    let head = house.workspaces.get(&name("y")).expect("y").head;
    // A control character takes six bytes as JSON.
    let options = |length: usize| QueueOptions { message: "\u{1}".repeat(length), ..QueueOptions::default() };
    let is_accepted = |length: &usize| {
        let draft = house.queue.draft(&name("y"), &name("main"), head, &options(*length), &act(11));
        draft.is_ok()
    };
    let lengths: Vec<usize> = (0..=16 << 10).collect();
    let accepted = lengths.partition_point(is_accepted);
    assert!((1..lengths.len()).contains(&accepted), "the limit is one of the note");
    house.submit("x", &QueueOptions::default(), 10);
    house.submit("y", &options(lengths[accepted - 1]), 11);
    house.submit("z", &QueueOptions::default(), 12);
    assert_eq!(landed(&house.fold()), [true, false, true]);
    let review = house.queue.reviews(None).expect("reviews").remove(0);
    let paths: Vec<_> = review.conflicts.iter().map(|one| one.path.clone()).collect();
    assert_eq!((paths, review.left_out), (vec![path("a")], 0));
}
