//! `amalgam commit`: takes a snapshot.

use amalgam_proto::v1;
use clap::Args;

use super::capture::{self, SnapshotInfo};
use super::conflicts;
use crate::error::Outcome;
use crate::exit::Exit;
use crate::session::{Session, workspace_name};
use crate::text;

/// Take a snapshot of the directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam commit
  amalgam commit -m 'before the migration' --label before-migration
  amalgam commit -w try-2              a workspace that is mounted or exported")]
pub struct Commit {
    /// The message of the snapshot [default: none]
    #[arg(short, long, value_name = "MESSAGE", default_value = "", hide_default_value = true)]
    message: String,
    /// Put a label on the snapshot; repeatable
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// Commit this workspace, wherever its files are: in a directory, mounted or exported [default: that of this directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

impl Commit {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let (Some(name), Some(_)) = (self.workspace.as_deref(), session.server()) {
            let name = workspace_name(name);
            return commit_on_server(session, name, self.message, self.label).await;
        }
        let place = session.live_tree(self.workspace.as_deref()).await?;
        let mut client = session.client().await?;
        let about = SnapshotInfo { message: self.message, labels: self.label, ..SnapshotInfo::default() };
        let result = capture::capture(&session.output, &mut client, &place.directory.name, about).await?;
        session.output.emit(&capture::json_line("commit", &result))?;
        if result.changed {
            session.output.done(capture::line(&result))?;
        } else {
            let since = result.snapshot.as_ref().map(|head| text::timestamp(head.time.as_ref()));
            let since = since.map(|time| format!(" since {}", text::ago(time, session.now))).unwrap_or_default();
            session.output.done(format!("nothing to commit: nothing changed{since}"))?;
        }
        conflicts::say(&mut session.output, result.conflicts.as_ref())?;
        capture::warn(&mut session.output, &result.warnings)?;
        capture::report_notices(&mut session.output, &result.notices)
    }
}

/// Commits the live tree of a workspace on a server.
async fn commit_on_server(session: &mut Session, name: String, message: String, labels: Vec<String>) -> Outcome {
    let mut client = session.client().await?;
    let request =
        v1::CommitWorkspaceRequest { name: name.clone(), message, labels, with_changes: true, ..Default::default() };
    let done = client.workspaces.commit_workspace(request).await?.into_inner();
    let count = |kind: v1::ChangeKind| done.changes.iter().filter(|change| change.kind() == kind).count() as u64;
    let (added, removed) = (count(v1::ChangeKind::Added), count(v1::ChangeKind::Removed));
    let result = v1::CaptureResult {
        added,
        modified: done.changes.len() as u64 - added - removed,
        removed,
        workspace: Some(v1::Workspace { name, ..Default::default() }),
        snapshot: done.snapshot.clone(),
        changed: done.changed,
        ..Default::default()
    };
    session.output.emit(&capture::json_line("commit", &result))?;
    session.output.done(match (done.changed, done.merged) {
        (true, true) => format!("{}; merged with the changes of others", capture::line(&result)),
        (true, false) => capture::line(&result),
        (false, _) => "nothing to commit: nothing changed".to_owned(),
    })?;
    Ok(Exit::OK)
}
