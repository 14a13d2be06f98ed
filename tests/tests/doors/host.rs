//! A view over a workspace in a temporary place, for the doors that stand on one.

use std::time::SystemTime;

use amalgam_engine::object::Owner;
use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName, Workspaces};
use amalgam_engine::{OperationContext, Store, Time};
use amalgam_view::{View, ViewOptions};

pub(crate) struct Host {
    pub(crate) view: View,
    pub(crate) scratch: tempfile::TempDir,
    workspaces: Workspaces,
    name: WorkspaceName,
}

#[expect(clippy::disallowed_methods, reason = "what is mounted shows the time that it is")]
pub(crate) fn now() -> Time {
    Time::from(SystemTime::now())
}

impl Host {
    pub(crate) fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let workspaces = Workspaces::of(&Store::in_memory());
        let name = WorkspaceName::new("main").expect("a name");
        workspaces.create(&name, &NewWorkspace::default(), &OperationContext::new("test", now())).expect("a workspace");
        let options = ViewOptions::new(Owner { uid: 0, gid: 0 }, now);
        let tree = workspaces.open(&name).expect("a tree");
        let (view, _) = View::open(tree, &scratch.path().join("journal"), options).expect("a view");
        Self { view, scratch, workspaces, name }
    }

    pub(crate) fn commit(&self) {
        let act = OperationContext::new("test", now());
        self.view.commit(&self.workspaces, &self.name, &Change::new(""), &act, "commit").expect("commit");
    }
}
