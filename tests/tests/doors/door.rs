//! What a door has to be able to do, and how two trees are compared.

use std::sync::Arc;

use amalgam_engine::WorkingTree;
use amalgam_policy::Guard;
use amalgam_tests::model::{Op, contents, write_root};

/// A way into a tree.
pub(crate) trait Door {
    fn name(&self) -> &'static str;

    /// Does an operation. A refusal says why, in the door's own words.
    fn perform(&mut self, op: &Op) -> Result<(), String>;

    /// Commits what there is, and goes on.
    fn commit(&mut self);

    /// The tree as it is now.
    fn tree(&mut self) -> WorkingTree;

    /// Sets the agents on whose behalf the door is used from now on. The door of a plain tree knows none.
    fn set_guard(&mut self, _guard: Arc<Guard>) {}

    /// Closes the door.
    fn end(&mut self) {}
}

/// The hash of a tree without its times.
pub(crate) fn bare(tree: &WorkingTree) -> [u8; 32] {
    let root = write_root(tree).expect("write");
    *tree.store().root(root).expect("root").bare().as_bytes()
}

/// Panics with what differs.
pub(crate) fn explain(expected: &WorkingTree, found: &WorkingTree, name: &str) -> ! {
    let (expected, found) = (contents(expected).expect("walk").timeless(), contents(found).expect("walk").timeless());
    for (path, seen) in &expected.paths {
        assert_eq!(found.paths.get(path), Some(seen), "{name}: {path}");
    }
    for path in found.paths.keys() {
        assert!(expected.paths.contains_key(path), "{name}: {path} should not be there");
    }
    panic!("{name}: the trees look alike, and their hashes differ");
}
