//! Tools on a server: the defaults that a directory would give, and calls that no command makes.

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use serde_json::{Map, Value};
use tokio::sync::oneshot;
use tonic::Code;

use super::arguments::Arguments;
use super::program::shortened;
use crate::connect::{CallerChannel, Client, connect_server};
use crate::error::CliError;
use crate::remote::Server;
use crate::session::{revision_state, workspace_name};

/// Most conflicts that a model gets.
const CONFLICTS_MAX: i32 = 500;

/// The server that tools work on, and the workspace that they work in if a call names none.
#[derive(Clone, Debug)]
pub struct RemotePlace {
    /// The server.
    pub server: Server,
    /// The workspace, without `workspaces/`.
    pub workspace: String,
    /// Whether commands can be run in sandboxes there.
    pub has_sandboxes: bool,
}

impl RemotePlace {
    /// Connects to a server, and checks whether it has the workspace and sandboxes.
    ///
    /// # Errors
    /// Fails if the server does not answer or has no such workspace.
    pub async fn open(server: Server, workspace: String, actor: &str) -> Result<Self, CliError> {
        let mut client = connect_server(&server, actor).await?;
        let request = v1::GetWorkspaceRequest { name: workspace_name(&workspace) };
        client.workspaces.get_workspace(request).await?;
        let has_sandboxes = match client.sandboxes.list_templates(v1::ListTemplatesRequest {}).await {
            Ok(_) => true,
            // The server has none, or the key has no scope for them.
            Err(status) if matches!(status.code(), Code::Unimplemented | Code::PermissionDenied) => false,
            Err(status) if status.code() == Code::FailedPrecondition => false,
            Err(status) => return Err(status.into()),
        };
        Ok(Self { server, workspace, has_sandboxes })
    }

    /// Adds the workspace of this place to the arguments of a call that name none.
    pub fn with_defaults(&self, tool: &str, given: &Map<String, Value>) -> Map<String, Value> {
        let mut values = given.clone();
        let mut default = |name: &str, value: String| {
            values.entry(name).or_insert(Value::String(value));
        };
        let name = &self.workspace;
        match tool {
            "snapshot" | "restore" | "run" | "read" | "edit" | "search" => default("workspace", name.clone()),
            "fork" => default("from", name.clone()),
            "merge" => default("into", name.clone()),
            "history" if given.get("all") != Some(&Value::Bool(true)) => default("revision", format!("{name}@")),
            // On a server the current files cannot be compared: the default is the difference that the last snapshot made.
            "diff" if !given.contains_key("from") => {
                default("from", format!("{name}@~"));
                default("to", format!("{name}@"));
            }
            "diff" => default("to", format!("{name}@")),
            _ => {}
        }
        if matches!(tool, "history" | "diff") {
            for name in ["revision", "from", "to"] {
                let named = values.get(name).and_then(Value::as_str).filter(|text| text.starts_with('@'));
                if let Some(named) = named.map(|text| format!("{}{text}", self.workspace)) {
                    values.insert(name.to_owned(), named.into());
                }
            }
        }
        values
    }

    async fn client(&self, actor: &str) -> Result<Client, String> {
        connect_server(&self.server, actor).await.map_err(|error| error.to_string())
    }

    /// Lists conflicts, shows one, or resolves them by a version.
    pub async fn conflicts(&self, arguments: &Arguments<'_>, actor: &str) -> Result<String, String> {
        let mut client = self.client(actor).await?;
        let workspace = workspace_name(&self.workspace);
        let (path, version, take) = (arguments.text("path")?, arguments.text("version")?, arguments.text("take")?);
        let bytes = |path: &str| path.as_bytes().to_vec().into();
        if let Some(take) = take {
            let request = v1::ResolveConflictsRequest {
                workspace,
                // The root selects all conflicts.
                paths: vec![bytes(path.unwrap_or_default())],
                resolution: Some(v1::resolve_conflicts_request::Resolution::Version(take.to_owned())),
                ..Default::default()
            };
            let done = client.conflicts.resolve_conflicts(request).await.map_err(said)?.into_inner();
            return Ok(format!("resolved {}; {} left", done.resolved.len(), done.left));
        }
        if let Some(path) = path {
            let request = v1::ReadConflictRequest {
                state: Some(revision_state("@")),
                workspace,
                path: bytes(path),
                version: version.unwrap_or_default().to_owned(),
            };
            let mut parts = client.conflicts.read_conflict(request).await.map_err(said)?.into_inner();
            let mut text = Vec::new();
            while let Some(part) = parts.message().await.map_err(said)? {
                text.extend_from_slice(&part.data);
            }
            return Ok(shortened(&text));
        }
        let request = v1::ListConflictsRequest {
            state: Some(revision_state("@")),
            workspace,
            page_size: CONFLICTS_MAX,
            ..Default::default()
        };
        let page = client.conflicts.list_conflicts(request).await.map_err(said)?.into_inner();
        let line = |one: &v1::Conflict| String::from_utf8_lossy(&one.path).into_owned();
        let mut lines: Vec<_> = page.conflicts.iter().map(line).collect();
        if !page.next_page_token.is_empty() {
            lines.push(format!("... the first {CONFLICTS_MAX}"));
        }
        Ok(if lines.is_empty() { "no conflicts".to_owned() } else { shortened(lines.join("\n").as_bytes()) })
    }

    /// Restores a workspace to a snapshot, or only lists the paths that would change.
    pub async fn restore(&self, arguments: &Arguments<'_>, is_dry: bool, actor: &str) -> Result<String, String> {
        let mut client = self.client(actor).await?;
        let request = v1::RestoreWorkspaceRequest {
            name: workspace_name(arguments.text("workspace")?.unwrap_or(&self.workspace)),
            revision: arguments.text("revision")?.unwrap_or_default().to_owned(),
            paths: arguments.texts("paths")?.into_iter().map(|path| path.as_bytes().to_vec().into()).collect(),
            dry_run: is_dry,
            ..Default::default()
        };
        let done = client.workspaces.restore_workspace(request).await.map_err(said)?.into_inner();
        if !is_dry {
            return Ok(if done.changed { "restored" } else { "nothing to restore" }.to_owned());
        }
        let word = |change: &v1::FileChange| {
            let name = change.kind().as_str_name();
            let kind = name.strip_prefix("CHANGE_KIND_").unwrap_or(name).to_ascii_lowercase();
            format!("{kind} {}", change.path)
        };
        let lines: Vec<_> = done.changes.iter().map(word).collect();
        Ok(if lines.is_empty() { "nothing would change".to_owned() } else { shortened(lines.join("\n").as_bytes()) })
    }

    /// Runs a command in a sandbox on a workspace, between two snapshots. Dropping the future ends the command; the sandbox
    /// is deleted in any case.
    pub async fn run(&self, arguments: &Arguments<'_>, within: Duration, actor: &str) -> Result<String, String> {
        let workspace = workspace_name(arguments.text("workspace")?.unwrap_or(&self.workspace));
        let message = arguments.text("message")?.unwrap_or("before a command").to_owned();
        let command = arguments.text("command")?.unwrap_or_default().to_owned();
        let mut client = self.client(actor).await?;
        let before = v1::CommitWorkspaceRequest { name: workspace.clone(), message, ..Default::default() };
        client.workspaces.commit_workspace(before).await.map_err(said)?;
        let create = v1::CreateSandboxRequest {
            template: "host".to_owned(),
            workspace,
            timeout_seconds: i32::try_from(within.as_secs().saturating_add(60)).unwrap_or(i32::MAX).min(86_400),
            ..Default::default()
        };
        let run = v1::RunCommandRequest {
            command,
            timeout: Some(i64::try_from(within.as_millis()).unwrap_or(i64::MAX)),
            ..Default::default()
        };
        // The sender is dropped with this future.
        let (_call, cancelled) = oneshot::channel();
        let task = tokio::spawn(run_in_sandbox(client.sandboxes, create, run, cancelled));
        let done = task.await.map_err(|error| error.to_string())??;
        let parts = [done.stdout.trim_end(), done.stderr.trim_end()];
        let text = parts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
        let end = if done.exit_code == 0 { String::new() } else { format!("\nexit status {}", done.exit_code) };
        Ok(format!("{}{end}", shortened(text.as_bytes())).trim_start().to_owned())
    }
}

/// Creates a sandbox, runs a command in it until the command ends or the sender of `cancelled` is dropped, and deletes the
/// sandbox, which commits the changes of the command.
async fn run_in_sandbox(
    mut sandboxes: SandboxServiceClient<CallerChannel>,
    create: v1::CreateSandboxRequest,
    mut run: v1::RunCommandRequest,
    cancelled: oneshot::Receiver<()>,
) -> Result<v1::RunCommandResponse, String> {
    let made = sandboxes.create_sandbox(create).await.map_err(said)?.into_inner();
    let sandbox_id = made.sandbox.unwrap_or_default().id;
    run.sandbox_id.clone_from(&sandbox_id);
    let ran = tokio::select! {
        biased;
        _ = cancelled => Err("cancelled".to_owned()),
        ran = sandboxes.run_command(run) => ran.map_err(said),
    };
    let end = v1::DeleteSandboxRequest { id: sandbox_id, keep_workspace: true };
    let ended = sandboxes.delete_sandbox(end).await;
    let done = ran?.into_inner();
    ended.map_err(said)?;
    Ok(done)
}

fn said(status: tonic::Status) -> String {
    CliError::from(status).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::remote::ServerUrl;

    #[test]
    fn calls_that_name_no_workspace_are_about_that_of_the_place() {
        let url = ServerUrl::parse("http://127.0.0.1:1").expect("a URL");
        let server = Server { url, key: None, authorities: None, client: None };
        let place = RemotePlace { server, workspace: "main".to_owned(), has_sandboxes: false };
        for (tool, given, expected) in [
            ("snapshot", json!({"message": "m"}), json!({"message": "m", "workspace": "main"})),
            ("read", json!({"path": "a", "workspace": "try"}), json!({"path": "a", "workspace": "try"})),
            ("fork", json!({"count": 2}), json!({"count": 2, "from": "main"})),
            ("merge", json!({"sources": ["try"]}), json!({"sources": ["try"], "into": "main"})),
            ("history", json!({}), json!({"revision": "main@"})),
            ("history", json!({"all": true}), json!({"all": true})),
            ("history", json!({"revision": "@~2"}), json!({"revision": "main@~2"})),
            ("diff", json!({}), json!({"from": "main@~", "to": "main@"})),
            ("diff", json!({"from": "@~3"}), json!({"from": "main@~3", "to": "main@"})),
            ("diff", json!({"from": "v1", "to": "try@"}), json!({"from": "v1", "to": "try@"})),
            ("conflicts", json!({}), json!({})),
        ] {
            let found = place.with_defaults(tool, given.as_object().expect("an object"));
            assert_eq!(Value::Object(found), expected, "{tool} {given}");
        }
    }
}
