//! `amalgam restore`: makes the directory, or paths of it, what a snapshot holds.

mod choose;
mod hunks;

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};
use tonic::codegen::Bytes;

use super::capture::{report_notices, warn};
use super::conflicts;
use super::diff::style_of;
use super::revisions::{revisions_and_paths, text_of};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive_with;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;
use choose::{Choice, choose};

/// Bring the directory, or paths of it, back to a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
The state before is kept, so nothing is lost: `amalgam undo` brings it back. Restoring everything makes a new snapshot.
Restoring paths changes only these paths and commits nothing. .git is left alone unless it is named, or --with-git is
given.

Examples:
  amalgam restore src/main.rs          as it was in the last snapshot
  amalgam restore @~2 --dry-run
  amalgam restore -p main src          choose hunk by hunk
  amalgam restore -w try-2 @~          a workspace that is mounted or exported
  amalgam restore before-migration -- db schema.sql")]
pub struct Restore {
    /// The revision [default: @], then paths [default: everything]
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Choose interactively which hunks are restored
    #[arg(short, long, conflicts_with = "dry_run")]
    patch: bool,
    /// Include .git
    #[arg(long)]
    with_git: bool,
    /// Restore set-user-ID and set-group-ID bits, capabilities and devices of a tree that was received or imported, too
    #[arg(long)]
    set_id: bool,
    /// Restore all of this workspace, wherever its files are: in a directory, mounted or exported [default: that of this directory]
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["patch", "paths"])]
    workspace: Option<String>,
    /// Restore only these paths and everything below them
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Restore {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let (Some(name), Some(_)) = (self.workspace.as_deref(), session.server()) {
            return restore_on_server(session, workspace_name(name), &self).await;
        }
        let place = session.live_tree(self.workspace.as_deref()).await?;
        let (revisions, paths) = revisions_and_paths(session, Some(&place), &self.words, &self.paths, 1).await?;
        if self.workspace.is_some() && !paths.is_empty() {
            return Err(CliError::usage("with --workspace everything is restored; name a revision, and no paths"));
        }
        let revision = revisions.into_iter().next().unwrap_or_else(|| "@".to_owned());
        let mut client = session.client().await?;
        let choice = match self.patch {
            true if session.no_input || session.output.is_json() => {
                return Err(CliError::usage("--patch asks questions, but prompts are disabled (--no-input, --json)"));
            }
            true => choose(session, &mut client, &place, &revision, &paths, self.with_git).await?,
            false => Choice { paths, ..Choice::default() },
        };
        if self.patch && choice.paths.is_empty() {
            session.output.done("nothing was chosen, nothing was changed")?;
            return Ok(Exit::OK);
        }
        let named = choice.paths.clone();
        let request = v1::RestoreDirectoryRequest {
            name: place.directory.name,
            revision: revision.clone(),
            paths: choice.paths,
            contents: choice.contents,
            dry_run: self.dry_run,
            with_git: self.with_git,
            set_id: self.set_id,
            ..Default::default()
        };
        let mut plan = Vec::new();
        let call = client.directories.restore_directory(request);
        let mut result = drive_with(&session.output, call, |part| plan.extend(part.changes)).await?;
        mark_ignored(&mut result.notices, &named);
        if self.dry_run {
            session.output.page();
            say_plan(&mut session.output, &plan)?;
            say_left_alone(&mut session.output, &result)?;
            return Ok(Exit::OK);
        }
        session.output.emit(&json_line("restored", &result))?;
        say_restored(&mut session.output, &result, &format!("what {revision} holds"))?;
        say_left_alone(&mut session.output, &result)?;
        if result.changed {
            session.output.remark(match &self.workspace {
                Some(name) => format!("`amalgam undo -w {name}` takes this back"),
                None => "`amalgam undo` takes this back".to_owned(),
            })?;
        }
        warn(&mut session.output, &result.warnings)?;
        report_notices(&mut session.output, &result.notices)
    }
}

/// Turns the notices about ignored paths that were named, or contain a named one, into failures: these were not restored.
fn mark_ignored(notices: &mut [v1::Notice], named: &[Bytes]) {
    for notice in notices.iter_mut().filter(|notice| notice.kind() == v1::NoticeKind::Ignored) {
        let mut rests = named.iter().filter_map(|path| path.strip_prefix(&notice.path[..]));
        let is_named = rests.any(|rest| rest.is_empty() || rest.first() == Some(&b'/'));
        notice.failure |= is_named;
    }
}

/// Restores the live tree of a workspace on a server.
async fn restore_on_server(session: &mut Session, name: String, asked: &Restore) -> Outcome {
    if asked.dry_run || asked.with_git || asked.set_id {
        return Err(CliError::usage("--dry-run, --with-git and --set-id work only in the store of this machine"));
    }
    let revision = match asked.words.as_slice() {
        [] => "@",
        [revision] => text_of(revision)?,
        _ => return Err(CliError::usage("with --workspace everything is restored; name a revision, and no paths")),
    };
    let mut client = session.client().await?;
    let request = v1::RestoreWorkspaceRequest { name, revision: revision.to_owned(), ..Default::default() };
    let done = client.workspaces.restore_workspace(request).await?.into_inner();
    let workspace = done.workspace.ok_or_else(|| missing_field("workspace"))?;
    let (name, head) = (text::id(&workspace.name).to_owned(), text::short(&workspace.head).to_owned());
    let snapshot = done.changed.then(|| v1::Snapshot { name: workspace.head.clone(), ..Default::default() });
    let restored = v1::RestoreResult { changed: done.changed, snapshot, ..Default::default() };
    session.output.emit(&json_line("restored", &restored))?;
    session.output.done(match done.changed {
        true => format!(
            "{name} holds what {revision} holds; now at {}; `amalgam undo -w {name}` takes this back",
            paint(style::ID, head)
        ),
        false => format!("nothing to do: {name} holds what {revision} holds"),
    })?;
    Ok(Exit::OK)
}

fn say_plan(output: &mut Output, plan: &[v1::PlannedChange]) -> Result<(), CliError> {
    let (mut write, mut remove, mut bytes) = (0, 0, 0);
    for change in plan {
        let kind = change.kind();
        let line = lines::line("plan", json!({"kind": text::change_word(kind), "bytes": change.bytes}));
        output.emit(&lines::with_path(line, &change.path))?;
        output.say(format!("{} {}", paint(style_of(kind), text::change_letter(kind)), text::path(&change.path)))?;
        match kind {
            v1::ChangeKind::Removed => remove += 1,
            // Only files are counted: directories and attributes are restored with them.
            _ if change.directory || kind == v1::ChangeKind::Metadata => {}
            _ => {
                write += 1;
                bytes += change.bytes;
            }
        }
    }
    let words = match plan.len() {
        0 => "nothing to do".to_owned(),
        _ => format!(
            "{} to write ({}), {} to remove; nothing was changed",
            text::plural(write, "path"),
            text::bytes(bytes),
            text::plural(remove, "path"),
        ),
    };
    output.say(words)
}

/// Returns the JSON line of a restore.
pub fn json_line(kind: &str, result: &v1::RestoreResult) -> Value {
    lines::line(
        kind,
        json!({
            "changed": result.changed,
            "safety": lines::snapshot_id(result.safety.as_ref()),
            "snapshot": lines::snapshot_id(result.snapshot.as_ref()),
            "written": result.written,
            "removed": result.removed,
            "bytes": result.bytes,
            "conflicts": result.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
            "left_alone": result.left_alone,
        }),
    )
}

/// Prints how many changes in .git were left alone.
pub fn say_left_alone(output: &mut Output, result: &v1::RestoreResult) -> Result<(), CliError> {
    match result.left_alone {
        0 => Ok(()),
        count => {
            output.remark(format!("{} in .git left alone (--with-git includes it)", text::plural(count, "change")))
        }
    }
}

/// Prints the result of a restore.
pub fn say_restored(output: &mut Output, result: &v1::RestoreResult, holds: &str) -> Result<(), CliError> {
    if !result.changed && result.notices.iter().any(|notice| notice.failure) {
        return output.done("nothing was changed");
    }
    if !result.changed {
        let but = if result.left_alone > 0 { "apart from .git, " } else { "" };
        return output.done(format!("nothing to do: {but}the directory is {holds}"));
    }
    let now = result
        .snapshot
        .as_ref()
        .map_or(String::new(), |head| format!("; now at {}", paint(style::ID, text::short(&head.name))));
    output.done(format!(
        "{} written ({}), {} removed{now}",
        text::plural(result.written, "path"),
        text::bytes(result.bytes),
        text::plural(result.removed, "path"),
    ))?;
    if let Some(safety) = &result.safety {
        let id = paint(style::ID, text::short(&safety.name));
        output.done(format!("the changes that were not committed are kept in {id}"))?;
    }
    conflicts::say(output, result.conflicts.as_ref())
}
