//! Splices at the borders of nodes: a map that grew by commits is the one that was built at once.

use amalgam_engine::{Commit, Expect, RefName, RootId, Store, WorkingTree};

fn add(tree: &mut WorkingTree, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        tree.write(format!("f{number:05}"), b"x").expect("write");
        tree.link(format!("f{number:05}"), format!("l{number:05}")).expect("link");
        tree.set_state(&format!("k{number:05}"), "1").expect("set");
    }
}

fn commit(tree: &mut WorkingTree, name: &str) -> RootId {
    let name = RefName::new(name).expect("a name");
    let done = tree.commit(Commit::new(&name, "").buffered().expecting(Expect::Absent)).expect("commit");
    tree.store().snapshot(done.snapshot).expect("there").root
}

/// What comes before, into the middle of, or after a small map often ends exactly where a node does: nothing of the old map may
/// be lost there. Directory, hard-link map and state map are three maps with three orders.
#[test]
fn what_ends_at_the_border_of_a_node_leaves_the_rest_in_place() {
    let mut grown_differently = 0;
    for start in 1..120_u32 {
        for length in [1, 5, 20, 73, 130] {
            for pivot in [start - 1, start + length / 2, start + length] {
                let rest = || (start..start + length).filter(move |number| *number != pivot);
                let store = Store::in_memory();
                let mut grown = WorkingTree::new(&store);
                add(&mut grown, [pivot]);
                commit(&mut grown, "pivot");
                add(&mut grown, rest());
                let mut built = WorkingTree::new(&store);
                add(&mut built, rest().chain([pivot]));
                let (grown, built) = (commit(&mut grown, "grown"), commit(&mut built, "built"));
                grown_differently += u32::from(grown != built);
            }
        }
    }
    assert_eq!(grown_differently, 0);
}
