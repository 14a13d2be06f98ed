//! The wire form of errors: the one place that turns an [`Error`] into a [`Failure`] and a gRPC status.

use amalgam_exchange::Error as ExchangeError;
use amalgam_proto::{Failure, Reason};
use tonic::Status;

use crate::call_log::hides_host_paths;
use crate::error::Error;
use crate::host_path::has_absolute_path;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { reason: error.reason(), message: error.to_string(), details: error.details() }
    }
}

impl Error {
    /// Returns the error as a gRPC status, without paths of the host for a caller on the network.
    pub(crate) fn into_status(self) -> Status {
        self.into_failure().into_status()
    }

    /// Returns the error for the caller of the running call.
    ///
    /// A caller on the network gets no path of the host: a message with one is only logged, and its replacement refers to the log.
    pub(crate) fn into_failure(self) -> Failure {
        let is_hidden = hides_host_paths() && self.has_host_path();
        let mut failure = Failure::from(self);
        if is_hidden {
            tracing::warn!(message = failure.message, "a call failed");
            failure.message = message_without_path(failure.reason).to_owned();
        }
        failure
    }

    /// Returns whether the message may have a path of the host.
    fn has_host_path(&self) -> bool {
        let message = self.to_string();
        match self.reason() {
            // Errors of the machine: any slash counts.
            Reason::Full | Reason::Fault | Reason::Busy => message.contains('/'),
            // They are about directories and mounts of the host. The names of workspaces in them can have slashes, too.
            Reason::NoDirectory
            | Reason::NestedDirectory
            | Reason::DirectoryReplaced
            | Reason::DirectoryGone
            | Reason::Mounted
            | Reason::MountRefused
            | Reason::MountBusy => has_absolute_path(&message),
            _ => self.is_of_host() && has_absolute_path(&message),
        }
    }

    /// Returns whether a file or a directory of the host caused the error, for example the origin of a workspace that follows it.
    fn is_of_host(&self) -> bool {
        match self {
            Self::Io { .. } | Self::Materializer(_) => true,
            Self::Exchange(error) => matches!(
                error,
                ExchangeError::Host { .. } | ExchangeError::Invalid { .. } | ExchangeError::Unsupported { .. }
            ),
            Self::Hinted { source, .. } => source.is_of_host(),
            Self::Shared(source) => source.is_of_host(),
            _ => false,
        }
    }
}

fn message_without_path(reason: Reason) -> &'static str {
    match reason {
        Reason::Full => "the server's disk is full; its log says more",
        Reason::DirectoryGone => "the workspace's directory on the server no longer exists; the server's log says more",
        Reason::DirectoryReplaced => {
            "another directory is in the place of the workspace's directory on the server; the server's log says more"
        }
        Reason::Mounted => "the workspace is mounted on the server, so this cannot be done; unmount it there first",
        _ => "the server could not do this; its log says more",
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use amalgam_engine::Time;
    use amalgam_materializer::Error as MaterializerError;
    use amalgam_proto::v1;
    use amalgam_proto::v1::merge_service_client::MergeServiceClient;
    use amalgam_proto::v1::mount_service_client::MountServiceClient;
    use tower::Layer as _;

    use super::*;
    use crate::api::{Api, Origin};
    use crate::call_log::CallLogLayer;
    use crate::calls::Calls;
    use crate::error::PARTLY;
    use crate::home::Home;
    use crate::messages::path_bytes;
    use crate::serve::routes;
    use crate::service::Service;

    /// Returns the merge client of a caller.
    fn merges(
        service: &Service,
        origin: Origin,
    ) -> MergeServiceClient<crate::call_log::CallLog<tonic::service::Routes>> {
        let api = Api::new(service.clone(), Calls::new(), origin);
        MergeServiceClient::new(CallLogLayer(origin).layer(routes(api).prepare()))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_caller_on_the_network_gets_no_path_of_a_lost_directory_or_of_the_rules() {
        let around = tempfile::tempdir().expect("a directory");
        let home = Home::new(around.path().join("home"));
        let service = Service::open(&home, || Time(5), &[]).expect("opened");
        let place = around.path().join("main");
        std::fs::create_dir(&place).expect("made");
        let attach = v1::AttachDirectoryRequest {
            path: path_bytes(&place),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        service.directories.attach(&attach, &service.context.act("ann")).expect("attached");
        let other = amalgam_engine::WorkspaceName::new("other").expect("a name");
        service.context.workspaces.create(&other, &Default::default(), &service.context.act("ann")).expect("created");
        let request = v1::MergeWorkspacesRequest {
            target: "workspaces/main".to_owned(),
            sources: vec!["workspaces/other".to_owned()],
            ..Default::default()
        };
        let above = around.path().to_str().expect("text");
        std::fs::rename(&place, around.path().join("moved")).expect("renamed");
        let refused = merges(&service, Origin::Network).merge_workspaces(request.clone()).await.expect_err("refused");
        let failure = Failure::of_status(&refused).expect("one of ours");
        assert_eq!(failure.reason, Reason::DirectoryGone, "{refused}");
        assert!(!failure.message.contains('/') && !refused.message().contains(above), "{refused}");
        let refused = merges(&service, Origin::Server).merge_workspaces(request.clone()).await.expect_err("refused");
        assert!(!refused.message().contains(above), "this process answers a caller on the network: {refused}");
        let refused = merges(&service, Origin::Local).merge_workspaces(request.clone()).await.expect_err("refused");
        assert!(refused.message().contains(above), "a local caller gets the path: {refused}");

        std::fs::create_dir(&place).expect("made");
        let refused = merges(&service, Origin::Network).merge_workspaces(request).await.expect_err("refused");
        let failure = Failure::of_status(&refused).expect("one of ours");
        assert_eq!(failure.reason, Reason::DirectoryReplaced, "{refused}");
        assert!(!failure.message.contains('/'), "{refused}");

        let rules = v1::GetRulesRequest::default();
        let shown = merges(&service, Origin::Network).get_rules(rules).await.expect("read").into_inner();
        assert_eq!(&shown.path[..], b"merge.toml");
        std::fs::write(home.path().join("merge.toml"), "nonsense = 1\n").expect("written");
        let explain = v1::ExplainRulesRequest { path: "a".into(), ..Default::default() };
        let refused = merges(&service, Origin::Network).explain_rules(explain).await.expect_err("refused");
        assert!(refused.message().contains("merge.toml, line 1") && !refused.message().contains(above), "{refused}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_mount_for_a_caller_on_the_network_that_is_refused_names_no_path_of_the_host() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let place = around.path().join("main");
        std::fs::create_dir(&place).expect("made");
        let attach = v1::AttachDirectoryRequest {
            path: path_bytes(&place),
            workspace_id: "main".to_owned(),
            ..Default::default()
        };
        service.directories.attach(&attach, &service.context.act("ann")).expect("attached");
        service.views.begin_mounting(&around.path().join("door"));
        let request = v1::MountRequest {
            path: path_bytes(&around.path().join("mount")),
            mode: v1::MountMode::ReadWrite.into(),
            workspace: "workspaces/main".to_owned(),
            ..Default::default()
        };
        let above = around.path().to_str().expect("text");
        for (origin, is_named) in [(Origin::Server, false), (Origin::Local, true)] {
            let api = Api::new(service.clone(), Calls::new(), origin);
            let mut mounts = MountServiceClient::new(CallLogLayer(origin).layer(routes(api).prepare()));
            let refused = mounts.mount(request.clone()).await.expect_err("refused");
            assert_eq!(Failure::of_status(&refused).expect("one of ours").reason, Reason::AlreadyExists, "{refused}");
            assert_eq!(refused.message().contains(above), is_named, "{refused}");
        }
    }

    #[test]
    fn messages_with_paths_of_the_host_are_told_from_those_about_files_of_a_workspace() {
        let exchange = |why: &str| ExchangeError::Invalid { what: "repository", why: why.to_owned() };
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        for error in [
            Error::new(Reason::Mounted, "workspace agents/ann is mounted at /srv/ann"),
            Error::new(Reason::Fault, "could not read srv/ann"),
            Error::io("read /srv/ann")(gone()),
            MaterializerError::Host { action: "open", path: "/srv/ann".to_owned(), source: gone() }.into(),
            exchange("/srv/ann: not a repository").into(),
        ] {
            assert!(error.has_host_path(), "{error}");
        }
        for error in [
            Error::new(Reason::Mounted, "workspace agents/ann is exported"),
            Error::new(Reason::Invalid, "`/a` is an absolute path"),
            exchange("there is no branch agents/ann").into(),
        ] {
            assert!(!error.has_host_path(), "{error}");
        }
    }

    #[test]
    fn partial_checkout_names_the_changed_paths_and_the_hint() {
        let full = MaterializerError::Host {
            action: "write",
            path: "a".to_owned(),
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        let partly = MaterializerError::Partial { written: 1, removed: 0, source: Box::new(full) };
        let failure = Failure::from(Error::from(partly).with_hint_if_partly("undo brings them back"));
        assert_eq!(failure.reason, Reason::Full);
        assert_eq!(failure.details.get(PARTLY).map(String::as_str), Some("1"));
        let end = "nothing is lost; 1 path was written before that; undo brings them back";
        assert!(failure.message.ends_with(end), "{}", failure.message);
    }

    #[test]
    fn refusals_keep_reason_message_and_details() {
        let failure = Failure::new(Reason::Busy, "later").with("head", "snapshots/1");
        let error = Error::new(Reason::Busy, "later").with("head", "snapshots/1");
        assert_eq!(Failure::from(error), failure);
        let io = Failure::from(Error::io("read it")(io::ErrorKind::StorageFull.into()));
        assert_eq!(io.reason, Reason::Full);
        assert!(io.message.ends_with("; free some space and try again"), "{}", io.message);
    }
}
