//! The steps of the shared scenario, each as calls of the API.

use amalgam_proto::v1;
use amalgam_proto::v1::file_service_client::FileServiceClient;
use amalgam_proto::v1::merge_service_client::MergeServiceClient;
use amalgam_proto::v1::operation_service_client::OperationServiceClient;
use amalgam_proto::v1::snapshot_service_client::SnapshotServiceClient;
use amalgam_proto::v1::state_service_client::StateServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use serde_json::Value;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

type Done = Result<(), String>;

/// Adds the key to each call.
#[derive(Clone)]
struct WithKey(MetadataValue<Ascii>);

impl Interceptor for WithKey {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("x-api-key", self.0.clone());
        Ok(request)
    }
}

/// Tells the scenario to one server.
pub struct Teller {
    line: InterceptedService<Channel, WithKey>,
}

impl Teller {
    /// Calls a server with a key.
    pub fn new(channel: Channel, key: &str) -> Result<Self, String> {
        let key = key.parse().map_err(|_| "the key is not ASCII".to_owned())?;
        Ok(Self { line: InterceptedService::new(channel, WithKey(key)) })
    }

    /// Takes all steps of a scenario in a workspace. An error names the step that went wrong.
    pub async fn tell(&self, scenario: &str, workspace: &str, who: &str) -> Done {
        let text = scenario.replace("{who}", who);
        for line in text.lines().filter_map(|line| line.strip_prefix("- ")) {
            let step: Value = serde_json::from_str(line).map_err(|error| format!("{line}: {error}"))?;
            let place = step["in"].as_str().unwrap_or(workspace);
            self.take(&step, &format!("workspaces/{place}")).await.map_err(|why| format!("{line}: {why}"))?;
        }
        Ok(())
    }

    async fn take(&self, step: &Value, workspace: &str) -> Done {
        let workspace = workspace.to_owned();
        let text = |name: &str| step[name].as_str().unwrap_or_default().to_owned();
        match step["do"].as_str().unwrap_or_default() {
            "write" => {
                let content = Some(v1::write_edit::Content::Text(text("text")));
                let (path, create_parents) = (text("path"), true);
                let write = v1::WriteEdit { path, content, create_parents, ..Default::default() };
                let edits = vec![v1::FileEdit { edit: Some(v1::file_edit::Edit::Write(write)) }];
                let request = v1::ApplyEditsRequest { workspace, edits, ..Default::default() };
                self.files().apply_edits(request).await.map(drop).map_err(|status| words(&status))
            }
            "edit" => {
                let (path, old_text, new_text) = (text("path"), text("old"), text("new"));
                let replace = v1::ReplaceEdit { path, old_text, new_text, ..Default::default() };
                let edit = Some(v1::edit_file_request::Edit::Replace(replace));
                let request = v1::EditFileRequest { workspace, edit, ..Default::default() };
                self.files().edit_file(request).await.map(drop).map_err(|status| words(&status))
            }
            "remove" => {
                let request = v1::RemoveFileRequest { workspace, path: text("path"), ..Default::default() };
                self.files().remove_file(request).await.map(drop).map_err(|status| words(&status))
            }
            "commit" => {
                let request =
                    v1::CommitWorkspaceRequest { name: workspace, message: text("message"), ..Default::default() };
                self.workspaces().commit_workspace(request).await.map(drop).map_err(|status| words(&status))
            }
            "undo" => {
                let target = Some(v1::undo_operation_request::Target::Workspace(workspace));
                let request = v1::UndoOperationRequest { target, ..Default::default() };
                let mut operations = OperationServiceClient::new(self.line.clone());
                operations.undo_operation(request).await.map(drop).map_err(|status| words(&status))
            }
            "fork" => {
                let request = v1::ForkWorkspaceRequest {
                    name: workspace,
                    workspace_ids: vec![text("name")],
                    ..Default::default()
                };
                self.workspaces().fork_workspace(request).await.map(drop).map_err(|status| words(&status))
            }
            "state" => {
                let (key, json) = (text("key"), step["value"].to_string());
                let request = v1::SetStateRequest { workspace, key, json, ..Default::default() };
                StateServiceClient::new(self.line.clone())
                    .set_state(request)
                    .await
                    .map(drop)
                    .map_err(|status| words(&status))
            }
            "merge" => self.merge(workspace, &text("from")).await,
            "read" => {
                let found = self.read(workspace, text("path")).await?;
                expect(&found.as_deref(), &Ok(text("text").as_str()))
            }
            "missing" => expect(&self.read(workspace, text("path")).await?, &Err("NOT_FOUND".to_owned())),
            "changes" => self.changes(workspace, step).await,
            "diff" => self.diff(workspace, step).await,
            "log" => self.log(workspace, step).await,
            other => Err(format!("nobody knows the step {other}")),
        }
    }

    async fn merge(&self, target: String, source: &str) -> Done {
        let request =
            v1::MergeWorkspacesRequest { sources: vec![format!("workspaces/{source}")], target, ..Default::default() };
        let mut merges = MergeServiceClient::new(self.line.clone());
        let merge = merges
            .merge_workspaces(request)
            .await
            .map_err(|status| words(&status))?
            .into_inner()
            .merge
            .unwrap_or_default();
        expect(&merge.conflicts.len(), &0)
    }

    /// The text of a file, or the reason for which there is none.
    async fn read(&self, workspace: String, path: String) -> Result<Result<String, String>, String> {
        let request = v1::ReadFilesRequest { workspace, paths: vec![path], ..Default::default() };
        let found = self.files().read_files(request).await.map_err(|status| words(&status))?.into_inner();
        match found.results.into_iter().next().and_then(|one| one.result) {
            Some(v1::read_result::Result::Contents(contents)) => {
                Ok(Ok(String::from_utf8_lossy(&contents.data).into_owned()))
            }
            Some(v1::read_result::Result::Failure(failure)) => Ok(Err(failure.reason)),
            None => Err("no result".to_owned()),
        }
    }

    /// The uncommitted changes contain these paths.
    async fn changes(&self, workspace: String, step: &Value) -> Done {
        let status = self
            .workspaces()
            .get_status(v1::GetStatusRequest { name: workspace })
            .await
            .map_err(|status| words(&status))?;
        let found: Vec<_> = status.into_inner().changes.into_iter().map(|change| change.path).collect();
        match list(step, "paths").into_iter().find(|path| !found.contains(path)) {
            Some(missing) => Err(format!("{missing} is not in {found:?}")),
            None => Ok(()),
        }
    }

    /// The last commit has changes of these kinds.
    async fn diff(&self, workspace: String, step: &Value) -> Done {
        let state = |revision: &str| Some(v1::State { state: Some(v1::state::State::Revision(revision.to_owned())) });
        let (before, after) = (state("@~"), state("@"));
        let request = v1::DiffStatesRequest { before, after, workspace, ..Default::default() };
        let mut parts = self.snapshots().diff_states(request).await.map_err(|status| words(&status))?.into_inner();
        let mut kinds = Vec::new();
        while let Some(part) = parts.message().await.map_err(|status| words(&status))? {
            let word = |change: &v1::Change| {
                let name = change.kind().as_str_name();
                name.strip_prefix("CHANGE_KIND_").unwrap_or(name).to_ascii_lowercase()
            };
            kinds.extend(part.changes.iter().map(word));
        }
        expect(&kinds, &list(step, "kinds"))
    }

    /// The newest snapshots have these messages.
    async fn log(&self, workspace: String, step: &Value) -> Done {
        let messages = list(step, "messages");
        let request = v1::ListSnapshotsRequest { workspace, ..Default::default() };
        let found = self.snapshots().list_snapshots(request).await.map_err(|status| words(&status))?.into_inner();
        let newest = found.snapshots.into_iter().take(messages.len()).map(|snapshot| snapshot.message);
        expect(&newest.collect(), &messages)
    }

    fn files(&self) -> FileServiceClient<InterceptedService<Channel, WithKey>> {
        FileServiceClient::new(self.line.clone())
    }

    fn workspaces(&self) -> WorkspaceServiceClient<InterceptedService<Channel, WithKey>> {
        WorkspaceServiceClient::new(self.line.clone())
    }

    fn snapshots(&self) -> SnapshotServiceClient<InterceptedService<Channel, WithKey>> {
        SnapshotServiceClient::new(self.line.clone())
    }
}

fn words(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

fn list(step: &Value, name: &str) -> Vec<String> {
    let words = step[name].as_array().into_iter().flatten();
    words.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn expect<T: PartialEq + std::fmt::Debug>(found: &T, wanted: &T) -> Done {
    if found == wanted { Ok(()) } else { Err(format!("{found:?}, and not {wanted:?}")) }
}
