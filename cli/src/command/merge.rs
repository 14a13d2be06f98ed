//! `amalgam merge`: workspaces into another, at once.

use std::collections::BTreeSet;

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};

use super::capture::report_notices;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Most paths that one line lists.
const PATHS_MAX: usize = 10;

/// Merge workspaces into another one
#[derive(Debug, Args)]
#[command(after_help = "\
Files that both sides changed are merged by the rules (`amalgam rules`). Conflicts are stored in the target, and the
command exits with 5. If the target has a directory, its uncommitted changes are captured first. A conflict that was
resolved before is resolved in the same way, and the output says so.

Examples:
  amalgam merge try-1
  amalgam merge try-1 try-2 --into main --dry-run
  amalgam merge try-1 --way 'docs/**=theirs'")]
pub struct Merge {
    /// The workspaces to merge
    #[arg(required = true, value_name = "WORKSPACE")]
    sources: Vec<String>,
    /// The workspace to merge into [default: the one of this directory]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Fail unless the merge is a fast-forward, which only moves the head of the target
    #[arg(long)]
    ff_only: bool,
    /// The message of the snapshot
    #[arg(short, long, default_value = "", hide_default_value = true)]
    message: String,
    /// Merge matching paths in this way, in this call only: text, union, ours, theirs and others (docs/MERGE.md); repeatable
    #[arg(long = "way", value_name = "PATH=WAY")]
    ways: Vec<String>,
    /// Do not resolve conflicts in the same way as before
    #[arg(long)]
    no_remembered: bool,
}

impl Merge {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let target = match &self.into {
            Some(target) => workspace_name(target),
            None => session.attached_directory().await?.workspace.name,
        };
        let request = v1::MergeWorkspacesRequest {
            sources: self.sources.iter().map(|name| workspace_name(name)).collect(),
            target,
            dry_run: self.dry_run,
            fast_forward_only: self.ff_only,
            message: self.message,
            rules: Some(v1::CallRules { ways: ways(&self.ways)? }),
            // Directories are on the machine of the store, not of the server.
            capture: session.server().is_none(),
            request_id: String::new(),
            no_remembered: self.no_remembered,
        };
        let merge = client.merges.merge_workspaces(request).await?.into_inner().merge;
        let merge = merge.ok_or_else(|| missing_field("merge"))?;
        say_merge(&mut session.output, &merge, self.dry_run)
    }
}

/// Parses the merge rules of one call, each written as `PATH=WAY`.
pub fn ways(words: &[String]) -> Result<Vec<v1::PathWay>, CliError> {
    let way = |word: &String| match word.rsplit_once('=') {
        Some((path, way)) if !path.is_empty() => Ok(v1::PathWay { path: path.to_owned(), way: way.to_owned() }),
        _ => Err(CliError::usage(format!("`{word}` is not PATH=WAY")).hint("as in --way 'docs/**=theirs'")),
    };
    words.iter().map(way).collect()
}

/// Prints the result of a merge. Returns exit code 5 if decisions are left.
pub fn say_merge(output: &mut Output, merge: &v1::Merge, dry_run: bool) -> Outcome {
    output.emit(&json_line(merge, dry_run))?;
    let target = text::id(&merge.target);
    // Conflicts are printed once, below.
    for file in merge.files.iter().filter(|file| file.result != "conflict") {
        output.say(format!("{} {} ({})", word_of(file), text::path(&file.path), text::printable(&file.way)))?;
    }
    say_remembered(output, &merge.files, dry_run)?;
    for conflict in &merge.conflicts {
        let words = paint(style::REMOVED, format!("conflict {}", text::path(&conflict.path)));
        let tried = merge.files.iter().find(|file| file.path == conflict.path).map(|file| format!(", {}", file.way));
        let tried = tried.or_else(|| (!conflict.way.is_empty()).then(|| format!(": {}", conflict.way)));
        let why = format!("{}{}", conflict.result, tried.unwrap_or_default());
        output.say(format!("{words} ({})", text::printable(&why)))?;
    }
    for capture in &merge.captures {
        let v1::MergeCapture { workspace, added, modified, removed } = capture;
        let counts = format!("{added} added, {modified} modified, {removed} removed");
        output.say(format!("would capture the directory of {} first: {counts}", text::id(workspace)))?;
    }
    for source in merge.sources.iter().filter(|source| !source.clashes.is_empty()) {
        say_left(output, source)?;
    }
    for refused in &merge.refused {
        let words = paint(style::REMOVED, format!("refused {}", text::path(&refused.path)));
        output.say(format!("{words}: {}", text::printable(&refused.why)))?;
    }
    if !merge.reason.is_empty() {
        output.say(text::printable(&merge.reason))?;
    }
    output.done(words(merge, target, dry_run))?;
    if let Some(safety) = &merge.safety {
        output.done(format!("what was in its directory is kept in {}", paint(style::ID, text::short(&safety.name))))?;
    }
    let exit = match is_left(merge) {
        true => Exit::CONFLICTS,
        false => Exit::OK,
    };
    Ok(exit.or(report_notices(output, &merge.notices)?))
}

/// Prints which conflicts remembered resolutions decided, and how to decide them again.
fn say_remembered(output: &mut Output, files: &[v1::MergedPath], dry_run: bool) -> Result<(), CliError> {
    let remembered: Vec<_> = files.iter().filter(|file| !file.remembered.is_empty()).collect();
    let Some(first) = remembered.first() else { return Ok(()) };
    let count = text::plural(remembered.len() as u64, "conflict");
    let ids: Vec<_> = remembered.iter().map(|file| &file.remembered[..file.remembered.len().min(8)]).collect();
    let (were, back) = match dry_run {
        true => ("would be", ""),
        false => ("was", "`amalgam undo`, then "),
    };
    let were = if remembered.len() == 1 || dry_run { were } else { "were" };
    output.done(format!(
        "{count} {were} resolved as before, without asking ({}); to decide anew: {back}`amalgam merge --no-remembered`, or \
         `amalgam conflicts forget {}`",
        remembered.iter().take(PATHS_MAX).map(|file| text::path(&file.path).to_string()).collect::<Vec<_>>().join(", "),
        if ids.len() <= PATHS_MAX { ids.join(" ") } else { first.remembered[..8].to_owned() },
    ))
}

/// Returns the number of files with conflicts.
fn conflict_files(merge: &v1::Merge) -> u64 {
    merge.conflicts.iter().map(|conflict| &conflict.path).collect::<BTreeSet<_>>().len() as u64
}

fn is_left(merge: &v1::Merge) -> bool {
    let how = merge.how();
    how == v1::MergeHow::Review || how == v1::MergeHow::Refused || !merge.conflicts.is_empty()
}

fn say_left(output: &mut Output, source: &v1::MergeSource) -> Result<(), CliError> {
    for clash in &source.clashes {
        let with = if clash.workspace.is_empty() { "the target" } else { text::id(&clash.workspace) };
        let paths: Vec<_> = clash.paths.iter().map(|path| text::path(path)).collect();
        output.say(format!("{} conflicts with {with}: {}", text::id(&source.workspace), paths.join(", ")))?;
    }
    Ok(())
}

fn word_of(file: &v1::MergedPath) -> &str {
    &file.result
}

fn words(merge: &v1::Merge, target: &str, dry_run: bool) -> String {
    let head = merge.head.as_ref().map_or("nothing", |head| text::short(&head.name));
    let head = paint(style::ID, head);
    let changed = text::plural(merge.changed, "path");
    let conflicts = text::plural(conflict_files(merge), "conflict");
    match merge.how() {
        v1::MergeHow::Already => format!("{target} already has it"),
        v1::MergeHow::Forward if dry_run => format!("{target} would move on; nothing was changed"),
        v1::MergeHow::Forward => format!("{target} moved on to {head}"),
        v1::MergeHow::Merged if dry_run && merge.conflicts.is_empty() => {
            format!("would change {changed} of {target}; nothing was changed")
        }
        v1::MergeHow::Merged if dry_run => {
            format!("would change {changed} of {target}, with {conflicts}; nothing was changed")
        }
        v1::MergeHow::Merged if merge.conflicts.is_empty() => format!("merged into {target}: {changed}; now at {head}"),
        v1::MergeHow::Merged => match merge.head.as_ref().map_or(0, |head| head.conflicts) {
            all if all > conflict_files(merge) => {
                format!("merged into {target} with {conflicts}, {all} left in all; now at {head}")
            }
            _ => format!("merged into {target} with {conflicts} left; now at {head}"),
        },
        v1::MergeHow::Replayed => format!("this was done before; {target} is at {head}"),
        v1::MergeHow::Waiting => format!("waits in the queue of {target}"),
        v1::MergeHow::Review if dry_run => format!("would wait for a person, with {conflicts}; nothing was changed"),
        v1::MergeHow::Review => format!("not merged into {target}: it waits for a person; `amalgam review` shows it"),
        v1::MergeHow::Refused | v1::MergeHow::Unspecified => format!("nothing was changed in {target}"),
    }
}

/// Returns the JSON line of a merge.
pub fn json_line(merge: &v1::Merge, dry_run: bool) -> Value {
    let path = |path: &v1::MergedPath| {
        let mut object = json!({"way": path.way, "result": path.result});
        if !path.remembered.is_empty() {
            object["remembered"] = json!(path.remembered);
        }
        lines::with_path(object, &path.path)
    };
    let clash = |clash: &v1::MergeClash| {
        let paths: Vec<_> = clash.paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
        let with = (!clash.workspace.is_empty()).then(|| text::id(&clash.workspace));
        json!({"workspace": with, "paths": paths})
    };
    let source = |source: &v1::MergeSource| {
        json!({
            "workspace": text::id(&source.workspace),
            "place": source.place,
            "clashes": source.clashes.iter().map(clash).collect::<Vec<_>>(),
        })
    };
    let capture = |capture: &v1::MergeCapture| {
        json!({
            "workspace": text::id(&capture.workspace),
            "added": capture.added,
            "modified": capture.modified,
            "removed": capture.removed,
        })
    };
    let refused = |refused: &v1::RefusedChange| {
        lines::with_path(json!({"agent": refused.agent, "why": refused.why}), &refused.path)
    };
    lines::line(
        "merge",
        json!({
            "how": how_word(merge.how()),
            "dry_run": dry_run,
            "target": text::id(&merge.target),
            "head": lines::snapshot_id(merge.head.as_ref()),
            "changed": merge.changed,
            "files": merge.files.iter().map(path).collect::<Vec<_>>(),
            "conflicts": merge.conflicts.iter().map(path).collect::<Vec<_>>(),
            "conflict_files": conflict_files(merge),
            "refused": merge.refused.iter().map(refused).collect::<Vec<_>>(),
            "sources": merge.sources.iter().map(source).collect::<Vec<_>>(),
            "safety": lines::snapshot_id(merge.safety.as_ref()),
            "written": merge.written,
            "removed": merge.removed,
            "reason": merge.reason,
            "captures": merge.captures.iter().map(capture).collect::<Vec<_>>(),
        }),
    )
}

fn how_word(how: v1::MergeHow) -> &'static str {
    match how {
        v1::MergeHow::Already => "already",
        v1::MergeHow::Forward => "forward",
        v1::MergeHow::Merged => "merged",
        v1::MergeHow::Refused => "refused",
        v1::MergeHow::Replayed => "replayed",
        v1::MergeHow::Waiting => "waiting",
        v1::MergeHow::Review => "review",
        v1::MergeHow::Unspecified => "unknown",
    }
}
