//! What becomes of entries that need a decision: which versions a taken side has.

use amalgam_engine::Time;
use amalgam_engine::queue::{QueueOptions, Side, SideChoice};
use amalgam_engine::work::RenameMode;
use amalgam_engine::workspace::Change;

use super::folds::{House, act, landed, name};

/// The lines of a text after its first one.
const OTHER_LINES: &str = "\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";

impl House {
    /// Folds the only review again, with this side of all conflicts. Returns whether each entry landed.
    fn take(&self, side: Side) -> Vec<bool> {
        let review = self.queue.reviews(None).expect("one").remove(0);
        let choices = [SideChoice { path: None, side }];
        let entry = self.queue.again(&review, false, &choices, "", &act(20)).expect("an entry");
        self.queue.resubmit(&review, &entry, &act(20)).expect("in the queue again");
        landed(&self.fold())
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
            assert_eq!(house.take(side), [true], "{side:?}, {mover} moved it");
            assert_eq!(house.read("b"), format!("{first}{OTHER_LINES}"), "{side:?}, {mover} moved it");
            assert_eq!(house.read("a"), "absent", "{side:?}, {mover} moved it");
        }
    }
}
