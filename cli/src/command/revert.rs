//! `amalgam undo` and `amalgam redo`.

use amalgam_proto::{Reason, operation_name, v1};
use clap::Args;
use serde_json::json;

use super::capture::{report_notices, warn};
use super::restore::{json_line, say_left_alone, say_restored};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Undo uncommitted changes or, if there are none, the last operation
#[derive(Debug, Args)]
#[command(after_help = "\
Nothing is lost: the undone state stays in a snapshot, and `amalgam redo` brings it back. Git changes its own files, so
.git is left alone and does not count as a change, unless --with-git or the setting `workspace.git` includes it.

Examples:
  amalgam undo
  amalgam undo --with-git              .git included, for example after `git reset --hard`
  amalgam --server prod undo -w main
  amalgam undo --op 17                 an operation of any workspace, by its number in `op log`")]
pub struct Undo {
    /// Undo the operation with this number instead; files on the disk stay as they are
    #[arg(long, value_name = "N")]
    op: Option<u64>,
    /// Undo uncommitted changes or the last operation of this workspace, on a server too; a mount of it follows, a directory does not
    #[arg(short, long, value_name = "NAME", conflicts_with = "op")]
    workspace: Option<String>,
    /// Include .git
    #[arg(long, conflicts_with_all = ["op", "workspace"])]
    with_git: bool,
    /// Restore set-user-ID and set-group-ID bits, capabilities and devices of a tree that was received or imported, too
    #[arg(long, conflicts_with_all = ["op", "workspace"])]
    set_id: bool,
}

/// Redo what the last undo took back
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam redo
  amalgam redo --with-git
  amalgam redo --op 18                 18 is the number of an undo in `op log`, or of what it undid")]
pub struct Redo {
    /// Redo what the undo with this operation number took back; files on the disk stay as they are
    #[arg(long, value_name = "N")]
    op: Option<u64>,
    /// Redo what the last undo in this workspace took back, on a server too; a mount of it follows, a directory does not
    #[arg(short, long, value_name = "NAME", conflicts_with = "op")]
    workspace: Option<String>,
    /// Include .git
    #[arg(long, conflicts_with_all = ["op", "workspace"])]
    with_git: bool,
    /// Restore set-user-ID and set-group-ID bits, capabilities and devices of a tree that was received or imported, too
    #[arg(long, conflicts_with_all = ["op", "workspace"])]
    set_id: bool,
}

impl Undo {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let Some(number) = self.op {
            let mut client = session.client().await?;
            let target = v1::undo_operation_request::Target::Operation(operation_name(number));
            let request = v1::UndoOperationRequest { target: Some(target), ..Default::default() };
            let done = client.operations.undo_operation(request).await?.into_inner();
            let what = format!("undid operation {number}{}", described(&done.description));
            return say_operation(&mut session.output, done.operation, &done.description, &what);
        }
        if let Some(name) = &self.workspace {
            let mut client = session.client().await?;
            let target = v1::undo_operation_request::Target::Workspace(workspace_name(name));
            let request = v1::UndoOperationRequest { target: Some(target), ..Default::default() };
            let done = client.operations.undo_operation(request).await?.into_inner();
            let what = format!("undid the last step of {name}{}", described(&done.description));
            return say_operation(&mut session.output, done.operation, &done.description, &what);
        }
        let place = session.attached_directory().await?;
        let mut client = session.client().await?;
        let (with_git, set_id) = (self.with_git, self.set_id);
        let request = v1::UndoDirectoryRequest { name: place.directory.name, with_git, set_id, ..Default::default() };
        session.interrupts.say("`amalgam undo` goes on with it, and `amalgam redo` takes it back");
        let result = drive(&session.output, client.directories.undo_directory(request)).await?;
        let what = format!("undid {}", result.description);
        say_reverted(session, &result, "undone", &what, "`amalgam redo` does it again")
    }
}

impl Redo {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let Some(number) = self.op {
            let mut client = session.client().await?;
            let (done, redone) = redo_operation(&mut client, number).await?;
            let what = format!("redid operation {redone}{}", described(&done.description));
            return say_operation(&mut session.output, done.operation, &done.description, &what);
        }
        if let Some(name) = &self.workspace {
            let mut client = session.client().await?;
            let target = v1::redo_operation_request::Target::Workspace(workspace_name(name));
            let request = v1::RedoOperationRequest { target: Some(target), ..Default::default() };
            let done = client.operations.redo_operation(request).await?.into_inner();
            let what = format!("redid what was undone last in {name}{}", described(&done.description));
            return say_operation(&mut session.output, done.operation, &done.description, &what);
        }
        let place = session.attached_directory().await?;
        let mut client = session.client().await?;
        let (with_git, set_id) = (self.with_git, self.set_id);
        let request = v1::RedoDirectoryRequest { name: place.directory.name, with_git, set_id, ..Default::default() };
        session.interrupts.say("`amalgam redo` goes on with it");
        let result = drive(&session.output, client.directories.redo_directory(request)).await?;
        let what = format!("redid {}", result.description);
        say_reverted(session, &result, "redone", &what, "`amalgam undo` takes it back")
    }
}

/// Redoes an operation, or the operation that the undo of this number reverted. Returns the number of the redone operation as well.
async fn redo_operation(client: &mut Client, number: u64) -> Result<(v1::RedoOperationResponse, u64), CliError> {
    let request = v1::GetOperationRequest { name: operation_name(number), ..Default::default() };
    let found = client.operations.get_operation(request).await?.into_inner().operation;
    let found = found.ok_or_else(|| missing_field("operation"))?;
    let is_undo = found.action == "undo" && found.reverts > 0;
    let redone = if is_undo { found.reverts } else { number };
    let target = Some(v1::redo_operation_request::Target::Operation(operation_name(redone)));
    let request = v1::RedoOperationRequest { target, ..Default::default() };
    let done = client.operations.redo_operation(request).await.map_err(CliError::from);
    match done {
        Err(error) if !is_undo && error.is(Reason::MovedSince) => {
            let message = format!("operation {number} is not an undo, and is not the last operation that was undone");
            Err(CliError::new(error.exit, &error.reason, message).hint("`amalgam op log` lists undos"))
        }
        done => done.map(|done| (done.into_inner(), redone)),
    }
}

/// Returns a description of an operation as the end of a sentence.
fn described(description: &str) -> String {
    if description.is_empty() { String::new() } else { format!(": {}", text::printable(description)) }
}

fn say_operation(output: &mut Output, operation: Option<v1::Operation>, description: &str, words: &str) -> Outcome {
    let operation = operation.ok_or_else(|| missing_field("operation"))?;
    let mut line = lines::operation(&operation);
    line["description"] = json!(description);
    output.emit(&line)?;
    output.done(words)?;
    output.remark(format!("`amalgam op log` shows it, as operation {}", operation.sequence))?;
    Ok(Exit::OK)
}

fn say_reverted(session: &mut Session, result: &v1::RevertResult, kind: &str, what: &str, next: &str) -> Outcome {
    let output = &mut session.output;
    let restored = result.restored.clone().unwrap_or_default();
    let mut line = json_line(kind, &restored);
    line["reverted"] = json!(result.reverted.as_ref().map(|operation| operation.sequence));
    line["operation"] = json!(result.operation.as_ref().map(|operation| operation.sequence));
    line["took_back_changes"] = json!(result.took_back_changes);
    line["description"] = json!(result.description);
    line["cannot_redo"] = json!(result.cannot_redo);
    output.emit(&line)?;
    output.done(paint(style::TITLE, text::printable(what)))?;
    match restored.changed {
        true => say_restored(output, &restored, "what it was")?,
        false => output.done("the contents of all files stay as they are")?,
    }
    say_left_alone(output, &restored)?;
    match result.cannot_redo {
        true => {
            output.remark("the disk has no room to keep these changes, so `amalgam redo` cannot bring them back")?
        }
        false => output.remark(next)?,
    }
    warn(output, &restored.warnings)?;
    report_notices(output, &restored.notices)
}
