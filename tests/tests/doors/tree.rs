//! The working tree itself.

use amalgam_engine::{Store, WorkingTree};
use amalgam_tests::model::{Op, commit, perform};

use crate::door::Door;

pub(crate) struct TreeDoor(WorkingTree);

impl TreeDoor {
    pub(crate) fn new() -> Self {
        Self(WorkingTree::new(&Store::in_memory()))
    }
}

impl Door for TreeDoor {
    fn name(&self) -> &'static str {
        "tree"
    }

    fn perform(&mut self, op: &Op) -> Result<(), String> {
        perform(&mut self.0, op).map(|_| ()).map_err(|refusal| format!("{refusal:?}"))
    }

    fn commit(&mut self) {
        commit(&mut self.0).expect("commit");
    }

    fn tree(&mut self) -> WorkingTree {
        self.0.fork()
    }
}
