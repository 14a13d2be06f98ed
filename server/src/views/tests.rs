//! Views of a store that several nodes share, and of a service with the features of its host disabled.

use amalgam_engine::Store;
use amalgam_engine::backend::{FilePart, FoldLeases, LiveTrees, TakenTree};
use amalgam_engine::workspace::NewWorkspace;

use super::*;
use crate::context::Clocks;
use crate::home::Home;
use crate::service::{Service, ServiceOptions};

/// The live tree of one workspace, which this process has until it is forgotten.
#[derive(Default)]
struct OneTree {
    forgotten: Mutex<Vec<String>>,
}

impl FoldLeases for OneTree {
    fn take_fold_lease(&self, _: &str) -> amalgam_engine::Result<bool> {
        Ok(true)
    }

    fn release_fold_lease(&self, _: &str) -> amalgam_engine::Result<()> {
        Ok(())
    }
}

impl LiveTrees for OneTree {
    fn number(&self, _: &str) -> amalgam_engine::Result<u64> {
        Ok(1)
    }

    fn find(&self, _: &str) -> amalgam_engine::Result<Option<u64>> {
        Ok(Some(1))
    }

    fn take(&self, _: &str) -> amalgam_engine::Result<TakenTree> {
        Ok(TakenTree { number: 1, token: 1, files: Vec::new() })
    }

    fn is_held(&self, _: u64, _: u64) -> amalgam_engine::Result<bool> {
        Ok(self.forgotten.lock().is_empty())
    }

    fn write(&self, _: u64, _: u64, _: &[String], _: &[FilePart]) -> amalgam_engine::Result<bool> {
        Ok(self.forgotten.lock().is_empty())
    }

    fn release(&self, _: u64, _: u64) -> amalgam_engine::Result<()> {
        Ok(())
    }

    fn forget(&self, workspace: &str) -> amalgam_engine::Result<()> {
        self.forgotten.lock().push(workspace.to_owned());
        Ok(())
    }

    fn is_expelled(&self) -> bool {
        false
    }

    fn rename(&self, _: &str, _: &str) -> amalgam_engine::Result<()> {
        Ok(())
    }
}

#[test]
fn a_shared_tree_that_is_in_use_is_not_forgotten() {
    let around = tempfile::tempdir().expect("a directory");
    let trees = Arc::new(OneTree::default());
    let shared = Arc::clone(&trees) as Arc<dyn LiveTrees>;
    let (home, clocks) = (Home::new(around.path().join("home")), Clocks::from((|| Time(1)) as Clock));
    let opened = Service::open_shared(Store::in_memory(), shared, &home, ServiceOptions::new(clocks));
    let service = opened.expect("opened");
    let name = WorkspaceName::new("main").expect("a name");
    service.context.workspaces.create(&name, &NewWorkspace::default(), &service.context.act("ann")).expect("made");
    let used = service.views.use_view(&name).expect("opened");
    let refused = service.views.forget_view(&name).expect_err("a call uses it");
    assert_eq!(refused.reason(), Reason::Busy);
    assert!(trees.forgotten.lock().is_empty());
    drop(used);
    service.views.forget_view(&name).expect("forgotten");
    assert_eq!(*trees.forgotten.lock(), ["main"]);
}

#[test]
fn a_mount_of_an_earlier_process_stays_on_record_while_host_features_are_disabled() {
    let around = tempfile::tempdir().expect("a directory");
    let home = Home::new(around.path().join("home"));
    let open = |host| {
        let clocks = Clocks::from((|| Time(1)) as Clock);
        Service::open_with(&home, ServiceOptions { host, ..ServiceOptions::new(clocks) }).expect("opened")
    };
    let record = book::MountRecord {
        path: around.path().join("mount"),
        mode: Mode::ReadWrite,
        workspace: "main".to_owned(),
        since: 1,
        private: false,
        snapshot: String::new(),
        options: book::RecordedOptions::default(),
        remounted: false,
    };
    open(HostFeatures::Enabled).views.inner.book.add_mount(record).expect("recorded");
    let recorded = |service: &Service| service.views.inner.book.read().mounts.len();
    let service = open(HostFeatures::Disabled);
    service.views.begin_mounting(&around.path().join("door"));
    assert_eq!(recorded(&service), 1);
    drop(service);
    let service = open(HostFeatures::Enabled);
    service.views.begin_mounting(&around.path().join("door"));
    assert_eq!(recorded(&service), 0, "it was gone, and the next process says so");
}
