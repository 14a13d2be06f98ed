//! `amalgam status`: whether the directory is protected, and what is in no snapshot yet.

use amalgam_proto::v1;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;
use tonic::codegen::Bytes;

use super::capture::{report_notices, warn};
use super::conflicts;
use super::gc;
use super::publish::publishing_line;
use super::watch::warn_unwatched;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, drive, json as lines};
use crate::place::Place;
use crate::session::Session;
use crate::text;

/// So many paths are listed unless more are asked for.
const PATHS_MAX: usize = 100;

/// Say whether the directory is protected, and what changed since the last snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
M: other contents or attributes; A: new; D: gone.

Examples:
  amalgam status
  amalgam status --exit-code && echo nothing changed")]
pub struct Status {
    /// End with 4 if something changed, with 5 if there are conflicts
    #[arg(long)]
    exit_code: bool,
}

impl Status {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place().await?;
        if !place.directory.problem.is_empty() {
            return unusable(&mut session.output, &place);
        }
        let mut client = session.client().await?;
        let request = v1::DetectChangesRequest { name: place.directory.name.clone() };
        let status = drive(&session.output, client.directories.detect_changes(request)).await?;
        let collection = client.collections.get_collection(v1::GetCollectionRequest {}).await?.into_inner();
        let output = &mut session.output;
        say_where(output, &place, status.head.as_ref())?;
        let lists = [
            ("modified", 'M', style::MODIFIED, &status.modified),
            ("added", 'A', style::ADDED, &status.added),
            ("deleted", 'D', style::REMOVED, &status.deleted),
        ];
        let all: usize = lists.iter().map(|(.., paths)| paths.len()).sum();
        emit_status(output, &place, &status)?;
        let mut left = if output.is_verbose() { usize::MAX } else { PATHS_MAX };
        for (word, letter, style, paths) in lists {
            for path in paths {
                output.emit(&lines::with_path(lines::line("status_path", json!({"kind": word})), path))?;
            }
            for path in paths.iter().take(left) {
                output.say(format!("{} {}", paint(style, letter), text::path(path)))?;
            }
            left = left.saturating_sub(paths.len());
        }
        if all > PATHS_MAX && !output.is_verbose() {
            output.say(format!("... and {} more; -v shows all", text::count((all - PATHS_MAX) as u64)))?;
        }
        match &status.head {
            _ if all > 0 => {
                output.remark(format!("{}; `amalgam diff` shows them", text::plural(all as u64, "change")))?;
            }
            Some(head) => {
                let since = text::ago(text::moment(head.time.as_ref()), session.now);
                output.say(format!("nothing changed since {since}"))?;
            }
            None => output.say("nothing here, and no snapshot yet")?,
        }
        say_uncovered(output, &status.uncovered)?;
        conflicts::say(output, status.conflicts.as_ref())?;
        warn_unwatched(output, &place.directory, session.now)?;
        if let Some(publishing) = &place.workspace.publishing {
            output.remark(format!("published {}", publishing_line(publishing, session.now)))?;
        }
        say_collection(output, &collection, session.now)?;
        warn(output, &status.warnings)?;
        let noticed = report_notices(output, &status.notices)?;
        let has_conflicts = status.conflicts.as_ref().is_some_and(|conflicts| conflicts.count > 0);
        let differs = match self.exit_code {
            true if has_conflicts => Exit::CONFLICTS,
            true if lists.iter().any(|(.., paths)| paths.iter().any(|path| !is_in_git(path))) => Exit::DIFFERS,
            _ => Exit::OK,
        };
        Ok(differs.or(noticed))
    }
}

fn say_where(output: &mut Output, place: &Place, head: Option<&v1::Snapshot>) -> Result<(), CliError> {
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
    output.say(format!("{} in workspace {workspace} at {head}{watched}", text::path(&place.directory.path)))
}

fn emit_status(output: &mut Output, place: &Place, status: &v1::DirectoryStatus) -> Result<(), CliError> {
    let count = |paths: &[Bytes]| paths.len();
    let line = lines::line(
        "status",
        json!({
            "workspace": place.workspace_id(),
            "head": lines::snapshot_id(status.head.as_ref()),
            "watched": place.directory.watched,
            "watch_wanted": place.directory.watch_wanted,
            "watch_problem": place.directory.watch_problem,
            "problem": place.directory.problem,
            "modified": count(&status.modified),
            "added": count(&status.added),
            "deleted": count(&status.deleted),
            "uncovered": count(&status.uncovered),
            "counts": status.counts.as_ref().map(lines::counts),
            "conflicts": status.conflicts.as_ref().map_or(0, |conflicts| conflicts.count),
            "mounted": place.directory.mounted,
        }),
    );
    output.emit(&lines::with_path(line, &place.directory.path))
}

/// Whether a path is a `.git`, or lies in one: what undo and restore leave alone.
fn is_in_git(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

/// Names the paths of the head that ignore rules leave out by now: the outermost of them, sorted.
fn say_uncovered(output: &mut Output, paths: &[Bytes]) -> Result<(), CliError> {
    let mut outermost: Vec<&Bytes> = Vec::new();
    for path in paths {
        output.emit(&lines::with_path(lines::line("status_path", json!({"kind": "uncovered"})), path))?;
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

/// When room came back last, and when it does next. Nothing for people in a store that is too young for either.
fn say_collection(output: &mut Output, collection: &v1::GetCollectionResponse, now: Timestamp) -> Result<(), CliError> {
    gc::emit_state(output, collection)?;
    let is_news = collection.last.is_some() || collection.paused || collection.under_way;
    if is_news { output.remark(format!("room: {}", gc::state_words(collection, now))) } else { Ok(()) }
}

/// The directory is known, but not as it is now.
fn unusable(output: &mut Output, place: &Place) -> Outcome {
    let status = v1::DirectoryStatus::default();
    emit_status(output, place, &status)?;
    Err(CliError::refused(format!("not protected: {}", place.directory.problem)))
}
