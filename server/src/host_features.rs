//! The features of a service that work on its host, which a server on the network can do without.

use amalgam_proto::Reason;

use crate::error::{Error, Result};

/// Whether a service works on its host: attaches and checks out directories, mounts and exports workspaces, starts the commands that
/// tests of merges and merge rules name, and reads or writes paths of the host that a caller names.
///
/// Backups by the operator and clones by Git clients do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFeatures {
    /// Callers of the store's own user, and sandboxes of the server, may use them.
    Enabled,
    /// No caller may use them, not even one that the API's own checks permit. Directories that an earlier process attached are
    /// captured and updated as before, so that a merge loses none of their files.
    Disabled,
}

impl HostFeatures {
    /// Refuses a feature of the host if these are disabled. `features` is a plural that begins the message.
    pub(crate) fn check(self, features: &str) -> Result<()> {
        match self {
            Self::Enabled => Ok(()),
            Self::Disabled => {
                let message = format!(
                    "{features} are not available: this server does not use directories, mounts or commands of its host"
                );
                Err(Error::new(Reason::Unsupported, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Time;
    use amalgam_engine::workspace::{Change, NewWorkspace, WorkspaceName};
    use amalgam_materializer::Progress;
    use amalgam_proto::v1;

    use super::*;
    use crate::caller::Caller;
    use crate::context::Clock;
    use crate::home::Home;
    use crate::merging::AfterMerge;
    use crate::service::{Service, ServiceOptions};

    /// Opens a service with a workspace `main` that has a file, and its fork `try` with another one.
    fn opened(home: &Home, host: HostFeatures) -> Service {
        let clock: Clock = || Time(5);
        let service = Service::open_with(home, ServiceOptions { host, ..ServiceOptions::new(clock.into()) });
        let service = service.expect("opened");
        let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
        let name = |name: &str| WorkspaceName::new(name).expect("a name");
        let write = |workspace: &str| {
            let mut tree = workspaces.open(&name(workspace)).expect("open");
            tree.write(workspace, b"text").expect("written");
            workspaces.commit(&name(workspace), &mut tree, &Change::new("text"), &act).expect("committed");
        };
        workspaces.create(&name("main"), &NewWorkspace::default(), &act).expect("made");
        write("main");
        workspaces.fork(&name("main"), &[name("try")], &act).expect("forked");
        write("try");
        service
    }

    fn submission(test: &[&str]) -> v1::Submission {
        let test = test.iter().map(|word| (*word).to_owned()).collect();
        v1::Submission { workspace: "workspaces/try".to_owned(), test, ..v1::Submission::default() }
    }

    #[test]
    fn a_service_with_host_features_disabled_refuses_each_of_them_and_merges_all_the_same() {
        let around = tempfile::tempdir().expect("a directory");
        let service = opened(&Home::new(around.path().join("home")), HostFeatures::Disabled);
        let act = service.context.act("ann");
        let place = around.path().join("place");
        std::fs::create_dir(&place).expect("made");
        let path = bytes::Bytes::copy_from_slice(place.as_os_str().as_encoded_bytes());
        let refused = |what: &str, done: Result<()>| {
            let error = done.expect_err(what);
            assert_eq!(error.reason(), Reason::Unsupported, "{what}: {error}");
            assert!(error.to_string().contains("this server does not use"), "{what}: {error}");
        };
        let attach = v1::AttachDirectoryRequest { path: path.clone(), ..Default::default() };
        refused("attach", service.directories.attach(&attach, &act).map(drop));
        let workspace = "workspaces/main".to_owned();
        let checkout =
            v1::CheckoutDirectoryRequest { path: path.clone(), workspace: workspace.clone(), ..Default::default() };
        refused("checkout", service.directories.checkout_directory(&checkout, &act, &Progress::default()).map(drop));
        service.views.begin_mounting(&around.path().join("door"));
        let mount = v1::MountRequest { path, workspace: workspace.clone(), ..Default::default() };
        refused("mount", service.views.mount(&mount).map(drop));
        let prepare = v1::PrepareMountRequest { workspace, ..Default::default() };
        refused("private mount", service.views.prepare_mount(&prepare).map(drop));
        service.exports.resume();
        refused("export", service.exports.create(&v1::CreateExportRequest::default()).map(drop));
        let listen = crate::exports::NfsListen { address: "127.0.0.1:0".parse().expect("one"), allow: Vec::new() };
        refused("NFS", service.listen_nfs(listen).map(drop));
        assert_eq!(std::fs::read_dir(&place).expect("it is there").count(), 0);

        let submit = |test: &[&str]| {
            let done = service.merging.submit(&submission(test), AfterMerge::KeepWorkspace, &act, &Caller::default());
            done.map(|done| done.merge)
        };
        refused("test", submit(&["true"]).map(drop));
        let merge = submit(&[]).expect("a merge needs nothing of the host");
        assert!(merge.head.is_some());
    }

    #[test]
    fn a_test_that_an_entry_brought_along_does_not_run_with_host_features_disabled() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let ran = around.path().join("ran");
        let words = ["touch", ran.to_str().expect("text")];
        let queued = opened(&home, HostFeatures::Enabled);
        let act = queued.context.act("ann");
        let detached = v1::Submission { detach: true, ..submission(&words) };
        queued.merging.submit(&detached, AfterMerge::KeepWorkspace, &act, &Caller::default()).expect("queued");
        drop(queued);

        let clock: Clock = || Time(5);
        let options = ServiceOptions { host: HostFeatures::Disabled, ..ServiceOptions::new(clock.into()) };
        let service = Service::open_with(&home, options).expect("opened again");
        service.merging.fold_all().expect("tried");
        assert!(!ran.exists(), "the test ran");
        let reviews = service.context.queue.reviews(None).expect("reviews");
        assert!(format!("{reviews:?}").contains("this server does not use"), "{reviews:?}");
    }

    #[test]
    fn a_command_of_the_own_rules_does_not_run_with_host_features_disabled() {
        for is_queued in [false, true] {
            let around = tempfile::tempdir().expect("a directory");
            let home = Home::new(around.path().join("home"));
            let rule = "[[rule]]\npath = \"lock\"\nway = \"regenerate\"\ncommand = \"echo made > lock\"\n";
            let service = opened(&home, HostFeatures::Disabled);
            std::fs::write(around.path().join("home/merge.toml"), rule).expect("written");
            let (workspaces, act) = (&service.context.workspaces, service.context.act("ann"));
            for workspace in ["main", "try"] {
                let workspace = WorkspaceName::new(workspace).expect("a name");
                let mut tree = workspaces.open(&workspace).expect("open");
                tree.write("lock", workspace.as_str().as_bytes()).expect("written");
                workspaces.commit(&workspace, &mut tree, &Change::new("lock"), &act).expect("committed");
            }
            let merge = match is_queued {
                true => {
                    let caller = Caller::default();
                    service
                        .merging
                        .submit(&submission(&[]), AfterMerge::KeepWorkspace, &act, &caller)
                        .expect("tried")
                        .merge
                }
                false => {
                    let request = v1::MergeWorkspacesRequest {
                        target: "workspaces/main".to_owned(),
                        sources: vec!["workspaces/try".to_owned()],
                        ..Default::default()
                    };
                    let done = service.merging.merge_workspaces(&request, &act, &Caller::default());
                    done.expect("merged")
                }
            };
            let told = format!("{merge:?}");
            assert!(told.contains("this server does not use") && !merge.conflicts.is_empty(), "{told}");
        }
    }

    #[test]
    fn an_export_of_an_earlier_process_is_not_served_with_host_features_disabled() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let service = opened(&home, HostFeatures::Enabled);
        service.exports.resume();
        let export = v1::CreateExportRequest {
            mode: v1::MountMode::Follow.into(),
            workspace: "workspaces/main".to_owned(),
            ..Default::default()
        };
        service.exports.create(&export).expect("exported");
        service.exports.end();
        drop(service);
        let open = |host| {
            let clock: Clock = || Time(5);
            Service::open_with(&home, ServiceOptions { host, ..ServiceOptions::new(clock.into()) }).expect("opened")
        };
        let service = open(HostFeatures::Disabled);
        service.exports.resume();
        assert!(service.nfs_statistics().is_none(), "nothing listens");
        assert_eq!(service.views.exports().len(), 1, "the record stays");
        drop(service);
        let service = open(HostFeatures::Enabled);
        service.exports.resume();
        assert!(service.nfs_statistics().is_some());
        service.exports.end();
    }
}
