//! The gRPC methods of `SnapshotService`: snapshots and labels.

mod compare;
mod content;
mod find;
mod past;
mod paths;

use amalgam_engine::SnapshotId;
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::LabelName;
use amalgam_proto::v1::snapshot_service_server::SnapshotService;
use amalgam_proto::{Reason, label_id, label_name, snapshot_name, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::error::{Error, Result};

type Answer<T> = Result<Response<T>, Status>;

/// Returns the snapshot that an operation set a label on.
fn labelled_by(done: &Operation, label: &LabelName) -> Result<SnapshotId> {
    let reference = label.reference();
    let change = done.changes.iter().find(|change| change.name == reference);
    let target = change.and_then(|change| change.after.as_ref()).and_then(|value| value.target);
    let target = target.ok_or_else(|| {
        Error::new(Reason::RequestReused, "the request id belongs to an operation that did not set this label")
    })?;
    Ok(SnapshotId::from_bytes(target.hash))
}

#[tonic::async_trait]
impl SnapshotService for Api {
    type ListEntriesStream = Answers<v1::ListEntriesResponse>;
    type ReadFileStream = Answers<v1::ReadFileResponse>;
    type SearchFilesStream = Answers<v1::SearchFilesResponse>;
    type FindPathsStream = Answers<v1::FindPathsResponse>;
    type DiffStatesStream = Answers<v1::DiffStatesResponse>;
    type InspectChangeStream = Answers<v1::InspectChangeResponse>;
    type GetPatchStream = Answers<v1::GetPatchResponse>;
    type ListVersionsStream = Answers<v1::ListVersionsResponse>;

    async fn get_snapshot(&self, request: Request<v1::GetSnapshotRequest>) -> Answer<v1::GetSnapshotResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let here = service.context.here(&request.workspace)?;
            let found = service.context.resolve(&request.revision, here.as_ref())?;
            Ok(v1::GetSnapshotResponse { snapshot: Some(service.context.one_snapshot(found)?) })
        })
        .await
    }

    async fn list_snapshots(&self, request: Request<v1::ListSnapshotsRequest>) -> Answer<v1::ListSnapshotsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| past::list(service, &request)).await
    }

    async fn list_entries(&self, request: Request<v1::ListEntriesRequest>) -> Answer<Self::ListEntriesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.state.as_ref())?;
        self.stream(&caller, move |service, sender| content::list(service, &request, sender))
    }

    async fn read_file(&self, request: Request<v1::ReadFileRequest>) -> Answer<Self::ReadFileStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.state.as_ref())?;
        self.stream(&caller, move |service, sender| content::read(service, &request, sender))
    }

    async fn search_files(&self, request: Request<v1::SearchFilesRequest>) -> Answer<Self::SearchFilesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.state.as_ref())?;
        self.stream(&caller, move |service, sender| find::lines(service, &request, sender))
    }

    async fn find_paths(&self, request: Request<v1::FindPathsRequest>) -> Answer<Self::FindPathsStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| find::paths(service, &request, sender))
    }

    async fn diff_states(&self, request: Request<v1::DiffStatesRequest>) -> Answer<Self::DiffStatesStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.before.as_ref())?;
        self.check_state(request.after.as_ref())?;
        self.stream(&caller, move |service, sender| compare::diff(service, &request, sender))
    }

    async fn inspect_change(&self, request: Request<v1::InspectChangeRequest>) -> Answer<Self::InspectChangeStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.before.as_ref())?;
        self.check_state(request.after.as_ref())?;
        self.stream(&caller, move |service, sender| compare::inspect(service, &request, sender))
    }

    async fn get_patch(&self, request: Request<v1::GetPatchRequest>) -> Answer<Self::GetPatchStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.check_state(request.before.as_ref())?;
        self.check_state(request.after.as_ref())?;
        self.stream(&caller, move |service, sender| compare::patch(service, &request, sender))
    }

    async fn list_versions(&self, request: Request<v1::ListVersionsRequest>) -> Answer<Self::ListVersionsStream> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.stream(&caller, move |service, sender| past::versions(service, &request, sender))
    }

    async fn blame_file(&self, request: Request<v1::BlameFileRequest>) -> Answer<v1::BlameFileResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| past::blame(service, &request)).await
    }

    async fn next_bisect_step(
        &self,
        request: Request<v1::NextBisectStepRequest>,
    ) -> Answer<v1::NextBisectStepResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| past::bisect_step(service, &request)).await
    }

    async fn set_label(&self, request: Request<v1::SetLabelRequest>) -> Answer<v1::SetLabelResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let label = LabelName::new(request.label_id.as_str())?;
            let here = service.context.here(&request.workspace)?;
            let act = service.context.act_for(&actor, &request)?;
            let snapshot = match service.context.done_before(&act)? {
                // The revision may name another snapshot by now.
                Some(done) => labelled_by(&done, &label)?,
                None => {
                    let snapshot = service.context.resolve(&request.revision, here.as_ref())?;
                    match request.expected_snapshot.as_deref() {
                        None => service.context.set_label(here.as_ref(), &label, Some(snapshot), &act)?,
                        Some(expected) => {
                            let expected = match expected {
                                "" => None,
                                expected => Some(service.context.resolve(expected, here.as_ref())?),
                            };
                            service.context.labels.set_expecting(&label, expected, snapshot, &act)?;
                        }
                    }
                    snapshot
                }
            };
            let label = v1::Label { name: label_name(&label), snapshot: snapshot_name(snapshot) };
            Ok(v1::SetLabelResponse { label: Some(label) })
        })
        .await
    }

    async fn delete_label(&self, request: Request<v1::DeleteLabelRequest>) -> Answer<v1::DeleteLabelResponse> {
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let label = label_id(&request.name)?;
            let here = service.context.here(&request.workspace)?;
            let act = service.context.act_for(&actor, &request)?;
            service.context.set_label(here.as_ref(), &label, None, &act)?;
            Ok(v1::DeleteLabelResponse {})
        })
        .await
    }

    async fn list_labels(&self, request: Request<v1::ListLabelsRequest>) -> Answer<v1::ListLabelsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let after = match request.page_token.as_str() {
                "" => None,
                token => Some(LabelName::new(token)?),
            };
            let limit = page_size(request.page_size)?;
            let found = service.context.labels.list(&request.prefix, after.as_ref(), limit)?;
            let next = if found.len() == limit { found.last().map(|(last, _)| last.as_str().to_owned()) } else { None };
            let label = |(label, snapshot): &(LabelName, _)| v1::Label {
                name: label_name(label),
                snapshot: snapshot_name(*snapshot),
            };
            Ok(v1::ListLabelsResponse {
                labels: found.iter().map(label).collect(),
                next_page_token: next.unwrap_or_default(),
            })
        })
        .await
    }
}

impl Api {
    /// Refuses a state that is a directory of the host, unless the caller is local.
    pub(super) fn check_state(&self, state: Option<&v1::State>) -> Result<(), Status> {
        match state.and_then(|state| state.state.as_ref()) {
            Some(v1::state::State::Directory(_)) => self.local_only(),
            _ => Ok(()),
        }
    }
}
