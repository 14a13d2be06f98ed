//! Attempts in sandboxes: each fork gets one, in which the command and the score run.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use amalgam_proto::v1;
use amalgam_proto::v1::sandbox_service_client::SandboxServiceClient;
use amalgam_proto::v1::workspace_service_client::WorkspaceServiceClient;
use tonic::Streaming;

use super::attempt::Attempt;
use crate::command::capture::SnapshotInfo;
use crate::command::isolated_command::last_number;
use crate::command::sandbox_calls::{command_line, failure};
use crate::connect::CallerChannel;
use crate::error::CliError;
use crate::exit::Exit;
use crate::session::{missing_field, workspace_name};

/// Maximum lifetime of the sandbox of an attempt: one day.
const LIFETIME_SECONDS: i32 = 86_400;
/// Maximum bytes of the output of the `--score` command that are kept.
const SCORE_BYTES_MAX: usize = 64 << 10;

/// The parts that all attempts of one exploration share.
#[derive(Clone)]
pub(super) struct SandboxPlan {
    /// Calls about sandboxes.
    pub(super) sandboxes: SandboxServiceClient<CallerChannel>,
    /// Calls about workspaces.
    pub(super) workspaces: WorkspaceServiceClient<CallerChannel>,
    /// The template of the sandboxes.
    pub(super) template: String,
    /// The name of all sandboxes, by which they are found after this program was killed.
    pub(super) name: String,
}

/// A command that ended: its code and the end of its standard output.
struct Ended {
    code: u8,
    stdout: Vec<u8>,
}

impl SandboxPlan {
    /// Runs one attempt in a sandbox, scores it, and commits its fork.
    pub(super) async fn run(
        mut self,
        mut attempt: Attempt,
        words: &[OsString],
        score: Option<&str>,
        about: impl FnOnce(&Attempt) -> SnapshotInfo,
    ) -> Result<Attempt, CliError> {
        let request = v1::CreateSandboxRequest {
            template: self.template.clone(),
            name: self.name.clone(),
            envs: HashMap::from([("AMALGAM_ATTEMPT".to_owned(), attempt.number.to_string())]),
            timeout_seconds: LIFETIME_SECONDS,
            workspace: workspace_name(&attempt.workspace),
            ..v1::CreateSandboxRequest::default()
        };
        let made = self.sandboxes.create_sandbox(request).await.map_err(failure)?.into_inner();
        let id = made.sandbox.ok_or_else(|| missing_field("sandbox"))?.id;
        let ran = self.run_in(&id, &mut attempt, words, score).await;
        let committed = match ran {
            Ok(()) => self.commit(&attempt, about(&attempt)).await.map(Some),
            Err(error) => Err(error),
        };
        // The sandbox did not create the fork, so the fork stays.
        let request = v1::DeleteSandboxRequest { id, keep_workspace: false };
        let ended = self.sandboxes.delete_sandbox(request).await.map_err(failure);
        attempt.result = committed?;
        ended.map(|_| attempt)
    }

    async fn run_in(
        &mut self,
        id: &str,
        attempt: &mut Attempt,
        words: &[OsString],
        score: Option<&str>,
    ) -> Result<(), CliError> {
        let log = attempt.log.clone();
        let done = self.command(id, command_line(words)?, &log, Sink::Log).await?;
        attempt.code = Some(done.code);
        attempt.score = match score {
            _ if done.code != 0 => None,
            None => Some(1.0),
            Some(line) => {
                let done = self.command(id, line.to_owned(), &log, Sink::Kept).await?;
                attempt.score_code = Some(done.code);
                last_number(&String::from_utf8_lossy(&done.stdout)).filter(|_| done.code == 0)
            }
        };
        Ok(())
    }

    /// Runs a command to its end.
    async fn command(&mut self, id: &str, command: String, log: &Path, stdout: Sink) -> Result<Ended, CliError> {
        let request = v1::StreamCommandRequest {
            sandbox_id: id.to_owned(),
            command,
            binary: true,
            ..v1::StreamCommandRequest::default()
        };
        let events = self.sandboxes.stream_command(request).await.map_err(failure)?.into_inner();
        read(events, log, stdout).await
    }

    /// Commits the changes of an attempt.
    async fn commit(&mut self, attempt: &Attempt, about: SnapshotInfo) -> Result<v1::CaptureResult, CliError> {
        let request = v1::CommitWorkspaceRequest {
            name: workspace_name(&attempt.workspace),
            message: about.message,
            metadata: about.metadata.into_iter().collect(),
            labels: about.labels,
            with_changes: true,
            ..v1::CommitWorkspaceRequest::default()
        };
        let done = self.workspaces.commit_workspace(request).await?.into_inner();
        let count = |kind: v1::ChangeKind| done.changes.iter().filter(|change| change.kind() == kind).count() as u64;
        let (added, removed) = (count(v1::ChangeKind::Added), count(v1::ChangeKind::Removed));
        Ok(v1::CaptureResult {
            changed: done.changed,
            added,
            removed,
            modified: done.changes.len() as u64 - added - removed,
            snapshot: done.snapshot,
            ..v1::CaptureResult::default()
        })
    }
}

/// The destination of the standard output of a command. Standard error goes to the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sink {
    Log,
    Kept,
}

async fn read(mut events: Streaming<v1::StreamCommandResponse>, path: &Path, stdout: Sink) -> Result<Ended, CliError> {
    let failed = |error: std::io::Error| CliError::machine(path.display(), &error);
    let mut log = File::options().create(true).append(true).open(path).map_err(failed)?;
    let mut kept = Vec::new();
    while let Some(event) = events.message().await.map_err(failure)? {
        match event.r#type.as_str() {
            "stdout" if stdout == Sink::Kept => {
                kept.extend_from_slice(&event.output);
                let surplus = kept.len().saturating_sub(SCORE_BYTES_MAX);
                kept.drain(..surplus);
            }
            "stdout" | "stderr" => log.write_all(&event.output).map_err(failed)?,
            "exit" => return Ok(Ended { code: u8::try_from(event.exit_code).unwrap_or(1), stdout: kept }),
            "error" => return Err(CliError::new(Exit::ERROR, "COMMAND_FAILED", event.message)),
            _ => {}
        }
    }
    let message = "the server ended the output of a command before its end";
    Err(CliError::new(Exit::ERROR, "UNAVAILABLE", message).hint("`amalgam logs` may say why"))
}
