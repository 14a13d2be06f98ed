//! `amalgam status`: whether the directory is protected, and which changes are in no snapshot yet.

mod fold;
mod live_tree;

use std::collections::{HashMap, HashSet};

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::capture::{report_notices, warn};
use super::conflicts;
use super::follow::following_line;
use super::gc;
use super::publish::publishing_line;
use super::watch::warn_unwatched;
use crate::attached::AttachedDirectory;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;
use fold::Changes;

/// Most lines that are printed without `-v`.
const LINES_MAX: usize = 100;
/// Most unwritten paths that are listed for one reason without `-v`.
const UNWRITTEN_MAX: usize = 5;

/// Show what changed since the last snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
M: contents changed; A: added; D: deleted; R: renamed; m: only permissions, owner, attributes or hard links changed.
A directory that was added, deleted or renamed as a whole is one line. Changes in .git are counted in one line. The
command prints at most 100 lines; -v lists every path.

Examples:
  amalgam status
  amalgam status --exit-code && echo nothing changed
  amalgam --server prod status -w main")]
pub struct Status {
    /// Exit with 4 if something changed outside of .git, with 5 if there are conflicts
    #[arg(long)]
    exit_code: bool,
    /// Show this workspace, wherever its files are: in a directory, mounted, exported or on a server [default: that of this directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

impl Status {
    /// Returns whether `-w` names the workspace, so that no directory is needed.
    pub fn names_workspace(&self) -> bool {
        self.workspace.is_some()
    }

    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if let (Some(name), Some(_)) = (self.workspace.as_deref(), session.server()) {
            return live_tree::show(session, name, self.exit_code).await;
        }
        let place = session.live_tree(self.workspace.as_deref()).await?;
        if !place.directory.problem.is_empty() {
            return unusable(&mut session.output, &place);
        }
        let mut client = session.client().await?;
        let request = v1::DetectChangesRequest { name: place.directory.name.clone(), parts: true };
        let status = drive(&session.output, client.directories.detect_changes(request)).await?;
        let collection = client.collections.get_collection(v1::GetCollectionRequest {}).await?.into_inner();
        let output = &mut session.output;
        say_where(output, &place, status.head.as_ref())?;
        let changes = Changes::new(&status);
        emit_status(output, &place, &status, &changes)?;
        emit_paths(output, &status)?;
        say_changes(output, &changes)?;
        match &status.head {
            _ if changes.count > 0 => {
                let (changes, them) = (text::plural(changes.count, "change"), text::them(changes.count));
                output.remark(format!("{changes}; `amalgam diff` shows {them}"))?;
            }
            Some(head) => {
                let since = text::ago(text::timestamp(head.time.as_ref()), session.now);
                output.say(format!("nothing changed since {since}"))?;
            }
            None => output.say("nothing here, and no snapshot yet")?,
        }
        say_uncovered(output, &status.uncovered)?;
        say_unwritten(output, &status.unwritten)?;
        conflicts::say(output, status.conflicts.as_ref())?;
        warn_unwatched(output, &place.directory, session.now)?;
        if let Some(publishing) = &place.workspace.publishing {
            output.remark(format!("published {}", publishing_line(publishing, session.now)))?;
        }
        if let Some(following) = &place.workspace.following {
            output.remark(format!("follows {}", following_line(following, session.now)))?;
        }
        gc::emit_state(output, &collection)?;
        if !status.warnings.is_empty() || output.is_verbose() {
            output.remark(format!("room: {}", gc::state_words(&collection, session.now)))?;
        }
        warn(output, &status.warnings)?;
        let noticed = report_notices(output, &status.notices)?;
        let has_conflicts = status.conflicts.as_ref().is_some_and(|conflicts| conflicts.count > 0);
        let differs = match self.exit_code {
            true if has_conflicts => Exit::CONFLICTS,
            true if changes.count > 0 => Exit::DIFFERS,
            _ => Exit::OK,
        };
        Ok(differs.or(noticed))
    }
}

/// Prints the lines of the listing: folded, or every path with `-v`.
fn say_changes(output: &mut Output, changes: &Changes) -> Result<(), CliError> {
    let is_verbose = output.is_verbose();
    let lines = if is_verbose { &changes.every_path } else { &changes.folded };
    let shown = if is_verbose { usize::MAX } else { LINES_MAX };
    for line in lines.iter().take(shown) {
        let style = match line.letter {
            'A' => style::ADDED,
            'D' => style::REMOVED,
            _ => style::MODIFIED,
        };
        output.say(format!("{} {}", paint(style, line.letter), line.text))?;
    }
    if lines.len() > shown {
        output.say(format!("... and {} more; -v shows all", text::count((lines.len() - shown) as u64)))?;
    }
    if !is_verbose {
        for (path, count) in &changes.git {
            let changes = text::plural(*count, "change");
            output.say(format!("{}: {changes} (-v lists them)", text::path(path)))?;
        }
    }
    Ok(())
}

fn emit_paths(output: &mut Output, status: &v1::DirectoryStatus) -> Result<(), CliError> {
    let renamed: HashMap<_, _> = status.renamed.iter().map(|rename| (&rename.path, &rename.from_path)).collect();
    let (attributes, directories): (HashSet<_>, HashSet<_>) =
        (status.attributes.iter().collect(), status.directories.iter().collect());
    let lists = [("modified", &status.modified), ("added", &status.added), ("deleted", &status.deleted)];
    for (word, path) in lists.into_iter().flat_map(|(word, paths)| paths.iter().map(move |path| (word, path))) {
        let fields = json!({
            "kind": word,
            "attributes_only": word == "modified" && attributes.contains(path),
            "directory": directories.contains(path),
            "in_git": text::git_part(path).is_some(),
        });
        let mut line = lines::with_path(lines::line("status_path", fields), path);
        if let Some(from) = renamed.get(path).filter(|_| word == "added") {
            lines::put_bytes(&mut line, "from_path", from);
        }
        output.emit(&line)?;
    }
    Ok(())
}

fn say_where(output: &mut Output, place: &AttachedDirectory, head: Option<&v1::Snapshot>) -> Result<(), CliError> {
    let head = match head {
        Some(head) => paint(style::ID, text::short(&head.name)),
        None => "no snapshot yet".to_owned(),
    };
    let watched = match (place.directory.watched, place.directory.mounted) {
        (_, true) => ", mounted",
        (true, _) => ", watched",
        _ => "",
    };
    let workspace = paint(style::WORKSPACE, place.workspace_id());
    // The live tree of a workspace that was unmounted with uncommitted changes.
    if place.directory.path.is_empty() {
        return output.say(format!("workspace {workspace} at {head}, not mounted"));
    }
    output.say(format!("{} in workspace {workspace} at {head}{watched}", text::path(&place.directory.path)))
}

fn emit_status(
    output: &mut Output,
    place: &AttachedDirectory,
    status: &v1::DirectoryStatus,
    changes: &Changes,
) -> Result<(), CliError> {
    let line = lines::line(
        "status",
        json!({
            "workspace": place.workspace_id(),
            "head": lines::snapshot_id(status.head.as_ref()),
            "watched": place.directory.watched,
            "watch_wanted": place.directory.watch_wanted,
            "watch_problem": place.directory.watch_problem,
            "problem": place.directory.problem,
            "modified": status.modified.len(),
            "added": status.added.len(),
            "deleted": status.deleted.len(),
            "uncovered": status.uncovered.len(),
            "unwritten": status.unwritten.len(),
            "renamed": status.renamed.len(),
            "attributes_only": status.attributes.len(),
            "git_changes": changes.git.values().sum::<u64>(),
            "counts": status.counts.as_ref().map(lines::counts),
            "conflicts": status.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
            "mounted": place.directory.mounted,
        }),
    );
    output.emit(&lines::with_path(line, &place.directory.path))
}

/// Prints the outermost paths of the head that ignore rules exclude by now, and emits a JSON line for each path.
fn say_uncovered(output: &mut Output, paths: &[Bytes]) -> Result<(), CliError> {
    let mut outermost: Vec<&Bytes> = Vec::new();
    for path in paths {
        let fields = json!({"kind": "uncovered", "attributes_only": false, "directory": false, "in_git": false});
        output.emit(&lines::with_path(lines::line("status_path", fields), path))?;
        let is_below = |above: &&Bytes| path.strip_prefix(&above[..]).is_some_and(|rest| rest.first() == Some(&b'/'));
        if !outermost.last().is_some_and(is_below) {
            outermost.push(path);
        }
    }
    for path in outermost {
        output.remark(format!(
            "{} is no longer covered: ignore rules leave it out; it stays on the disk",
            text::path(path)
        ))?;
    }
    Ok(())
}

/// Prints the paths that could not be written here, in one line for each reason, and the command that retries them.
fn say_unwritten(output: &mut Output, unwritten: &[v1::Notice]) -> Result<(), CliError> {
    let mut by_reason: Vec<(&v1::Notice, Vec<&Bytes>)> = Vec::new();
    for notice in unwritten {
        let fields = json!({
            "kind": "unwritten",
            "attributes_only": false,
            "directory": false,
            "in_git": text::git_part(&notice.path).is_some(),
            "message": notice.message,
        });
        output.emit(&lines::with_path(lines::line("status_path", fields), &notice.path))?;
        match by_reason.iter_mut().find(|(first, _)| first.message == notice.message) {
            Some((_, paths)) => paths.push(&notice.path),
            None => by_reason.push((notice, vec![&notice.path])),
        }
    }
    let shown = if output.is_verbose() { usize::MAX } else { UNWRITTEN_MAX };
    for (first, paths) in by_reason {
        let mut names = paths.iter().take(shown).map(|path| text::path(path)).collect::<Vec<_>>().join(", ");
        if paths.len() > shown {
            names.push_str(&format!(" and {} more", text::count((paths.len() - shown) as u64)));
        }
        let retry = match (first.failure, paths.len()) {
            (false, _) => String::new(),
            (true, 1) => format!("; `amalgam restore {}` tries again", text::path(paths[0])),
            (true, _) => "; `amalgam restore PATH` tries again".to_owned(),
        };
        output.remark(format!("not written here: {names} ({}){retry}", text::printable(&first.message)))?;
    }
    Ok(())
}

/// Prints the status of a directory that cannot be captured, and fails with the reason.
fn unusable(output: &mut Output, place: &AttachedDirectory) -> Outcome {
    emit_status(output, place, &v1::DirectoryStatus::default(), &Changes::default())?;
    Err(CliError::refused(format!("not protected: {}", place.directory.problem)))
}
