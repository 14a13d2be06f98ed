//! `amalgam conflicts resolve`: by a version, by a file, by an editor or by a tool.

use std::ffi::OsString;

use amalgam_proto::v1;
use amalgam_proto::v1::resolve_conflicts_request::Resolution;
use clap::Args;
use serde_json::json;
use tonic::codegen::Bytes;

use super::listing::{json_line, line, list, read, state, tree_paths};
use super::tool::{self, Files};
use crate::attached::AttachedDirectory;
use crate::command::capture::report_notices;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, current_workspace, workspace_name};
use crate::text;

/// Resolve conflicts: commit the result as a new snapshot, and write it into the directory
#[derive(Debug, Args)]
#[command(after_help = "\
A version replaces the whole file: what the other sides changed elsewhere in it, and edits of the file with markers, are not
in the result. --edit and --union keep what merged cleanly.

Uncommitted changes are captured first. The resolution is remembered, and used when the same conflict occurs again, until
`amalgam undo` takes it back or `conflicts forget` deletes it.

A merge tool reads the files $BASE, $LOCAL (ours) and $REMOTE (theirs), and writes the result to $MERGED. If a conflict has
more than two sides, no tool is started; --edit shows all sides.

Examples:
  amalgam conflicts resolve src/main.rs --ours
  amalgam conflicts resolve --all --theirs --dry-run
  amalgam conflicts resolve CHANGES --union
  amalgam conflicts resolve logo.png --file ../logo.png
  amalgam conflicts resolve src/main.rs --edit
  amalgam conflicts resolve src/main.rs --tool 'meld \"$LOCAL\" \"$MERGED\" \"$REMOTE\"'")]
pub struct Resolve {
    /// Paths of conflicts, or of directories with conflicts
    #[arg(required_unless_present = "all")]
    paths: Vec<OsString>,
    /// Resolve all conflicts
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    #[command(flatten)]
    how: How,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not remember the resolution
    #[arg(long)]
    no_remember: bool,
    /// The workspace [default: the one of this directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

/// Resolve conflicts by one version; short for `resolve --version`
#[derive(Debug, Args)]
#[command(after_help = "\
The version is ours, theirs, base or the name of a workspace, as in `amalgam review take`; `conflicts show` lists the
versions of a conflict. It replaces the whole file, without what the other sides changed elsewhere in it. `union` keeps the
lines of all sides; `conflicts resolve --edit` chooses for each region.

Examples:
  amalgam conflicts take theirs src/main.rs
  amalgam conflicts take agent-2 src/main.rs --dry-run
  amalgam conflicts take ours --all")]
pub struct Take {
    /// The version: ours, theirs, base, union, or the name of a workspace
    version: String,
    /// Paths of conflicts, or of directories with conflicts
    #[arg(required_unless_present = "all")]
    paths: Vec<OsString>,
    /// Resolve all conflicts
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Do not remember the resolution
    #[arg(long)]
    no_remember: bool,
    /// The workspace [default: the one of this directory]
    #[arg(short, long, value_name = "NAME")]
    workspace: Option<String>,
}

impl Take {
    pub(super) async fn run(self, session: &mut Session) -> Outcome {
        let Self { version, paths, all, dry_run, no_remember, workspace } = self;
        let how = How { version: Some(version), ..How::default() };
        Resolve { paths, all, how, dry_run, no_remember, workspace }.run(session).await
    }
}

#[derive(Debug, Default, Args)]
#[group(required = true, multiple = false)]
struct How {
    /// Take the version of the workspace that was merged into
    #[arg(long)]
    ours: bool,
    /// Take the version of the workspace that was merged
    #[arg(long)]
    theirs: bool,
    /// Take the version of the common ancestor
    #[arg(long)]
    base: bool,
    /// Keep the lines of all sides, in documents such as JSON, too; if both sides moved a file, keep both names
    #[arg(long)]
    union: bool,
    /// Take this version, named as in `conflicts show` or by its workspace
    #[arg(long, value_name = "NAME", visible_alias = "side")]
    version: Option<String>,
    /// Take the contents of this file
    #[arg(long, value_name = "FILE")]
    file: Option<OsString>,
    /// Edit the file with markers in $VISUAL or $EDITOR
    #[arg(long)]
    edit: bool,
    /// Run a merge tool [default: the setting merge-tool]
    #[arg(long, value_name = "COMMAND", num_args = 0..=1, default_missing_value = "")]
    tool: Option<String>,
    /// Resolve conflicts that were resolved before in the same way; leave the others
    #[arg(long)]
    remembered: bool,
}

impl How {
    /// Returns the name of the version to take. Returns `None` if the user chose a file, a program or remembered resolutions.
    fn version(&self) -> Option<&str> {
        match self {
            Self { ours: true, .. } => Some("ours"),
            Self { theirs: true, .. } => Some("theirs"),
            Self { base: true, .. } => Some("base"),
            Self { union: true, .. } => Some("union"),
            Self { version, .. } => version.as_deref(),
        }
    }
}

impl Resolve {
    pub(super) async fn run(self, session: &mut Session) -> Outcome {
        let place = match &self.workspace {
            Some(_) => session.attached_directory_if_any().await?,
            None => Some(session.attached_directory().await?),
        };
        // Paths are relative to the directory only if it belongs to the workspace.
        let place = place.filter(|place| self.workspace.as_deref().is_none_or(|name| name == place.workspace_id()));
        let workspace = match &self.workspace {
            Some(name) => workspace_name(name),
            None => current_workspace(place.as_ref()),
        };
        let mut client = session.client().await?;
        let paths = tree_paths(session, place.as_ref(), &self.paths)?;
        let request = v1::ResolveConflictsRequest {
            workspace,
            paths,
            resolution: None,
            dry_run: self.dry_run,
            forget: self.no_remember,
            request_id: String::new(),
        };
        if let Some(version) = self.how.version() {
            let resolution = Some(Resolution::Version(version.to_owned()));
            return send(session, &mut client, v1::ResolveConflictsRequest { resolution, ..request }).await;
        }
        if self.how.remembered {
            let resolution = Some(Resolution::Remembered(true));
            return send(session, &mut client, v1::ResolveConflictsRequest { resolution, ..request }).await;
        }
        if let Some(file) = &self.how.file {
            let path = session.host_path(file);
            let bytes = std::fs::read(&path).map_err(|error| CliError::machine(path.display(), &error))?;
            let resolution = Some(Resolution::Content(Bytes::from(bytes)));
            return send(session, &mut client, v1::ResolveConflictsRequest { resolution, ..request }).await;
        }
        self.by_hand(session, &mut client, place.as_ref(), request).await
    }

    /// Resolves conflicts one after another, each with the user's editor or merge tool.
    async fn by_hand(
        &self,
        session: &mut Session,
        client: &mut Client,
        place: Option<&AttachedDirectory>,
        request: v1::ResolveConflictsRequest,
    ) -> Outcome {
        let command = match &self.how.tool {
            None => None,
            Some(command) if command.is_empty() => {
                let unset = || {
                    CliError::usage("no merge tool is set").hint("`amalgam config set merge-tool COMMAND`, or name one")
                };
                Some(session.config.text("merge-tool").ok_or_else(unset)?.to_owned())
            }
            Some(command) => Some(command.clone()),
        };
        let rev = place.is_none().then(|| format!("{}@", text::id(&request.workspace)));
        let found = list(client, place, rev.as_deref(), request.paths.clone()).await?;
        if found.is_empty() {
            return Err(CliError::refused("there are no conflicts"));
        }
        let found: Vec<_> = found.into_iter().filter(|conflict| !conflict.undecided).collect();
        if found.is_empty() {
            return Err(CliError::refused("this conflict is not about contents").hint("pass --ours or --theirs"));
        }
        if let Some(many) = found.iter().find(|conflict| command.is_some() && competing(conflict) > 2) {
            let message = format!("{} has {} sides, and a tool is given two", text::path(&many.path), competing(many));
            let hint = "--edit shows them all; `amalgam conflicts take` takes one";
            return Err(CliError::refused(message).hint(hint));
        }
        if self.dry_run {
            for conflict in &found {
                session.output.emit(&json_line(conflict))?;
                session.output.say(line(conflict))?;
            }
            let done = v1::ResolveConflictsResponse { resolved: found, ..Default::default() };
            say_result(&mut session.output, &done, true)?;
            return Ok(Exit::OK);
        }
        let mut ending = Exit::OK;
        for conflict in found {
            let mut versions = Vec::new();
            for name in ["", "base", "ours", "theirs"] {
                let state = state(place, rev.as_deref());
                let is_there = conflict.versions.iter().any(|version| version.name == name && version.entry.is_some());
                versions.push(match name.is_empty() || is_there {
                    true => read(client, place, state, conflict.path.clone(), name).await?.1,
                    false => Vec::new(),
                });
            }
            let files = Files::write(&conflict.path, &versions)?;
            session.output.flush()?;
            session.interrupts.leave_to_child(true);
            let done = tool::run(&files, command.as_deref()).await;
            session.interrupts.leave_to_child(false);
            let bytes = files.take(done?, &versions[0])?;
            let resolution = Some(Resolution::Content(Bytes::from(bytes)));
            let paths = vec![conflict.path.clone()];
            let one = v1::ResolveConflictsRequest { resolution, paths, ..request.clone() };
            ending = ending.or(send(session, client, one).await?);
        }
        Ok(ending)
    }
}

/// Returns the number of competing versions, without a draft of a resolution.
fn competing(conflict: &v1::Conflict) -> usize {
    conflict.versions.iter().step_by(2).filter(|version| version.name != "draft").count()
}

async fn send(session: &mut Session, client: &mut Client, request: v1::ResolveConflictsRequest) -> Outcome {
    let (dry_run, wants_all) = (request.dry_run, request.paths.is_empty());
    let version = match &request.resolution {
        Some(Resolution::Version(word)) => Some(word.clone()),
        _ => None,
    };
    let is_union = version.as_deref() == Some("union");
    let result = client.conflicts.resolve_conflicts(request).await?.into_inner();
    let output = &mut session.output;
    for conflict in &result.resolved {
        output.emit(&json_line(conflict))?;
        output.say(line(conflict))?;
    }
    say_result(output, &result, dry_run)?;
    if let Some(version) = &version {
        let edited = result.resolved.iter().filter(|conflict| has_draft(conflict));
        say_edited(output, version, edited)?;
    }
    for conflict in result.resolved.iter().filter(|conflict| is_union && is_structured(&conflict.path)) {
        let path = text::path(&conflict.path);
        output.remark(format!("{path} has the lines of all sides: check that it can still be parsed"))?;
    }
    let noticed = report_notices(output, &result.notices)?;
    Ok(if wants_all && result.left > 0 && !dry_run { Exit::CONFLICTS } else { Exit::OK }.or(noticed))
}

/// Returns whether a conflict has a draft: its file was edited, and still has markers.
fn has_draft(conflict: &v1::Conflict) -> bool {
    conflict.versions.iter().any(|version| version.name == "draft")
}

/// Says of edited files what became of the edits: a version replaces the whole file, and a draft keeps its markers.
fn say_edited<'a>(
    output: &mut Output,
    version: &str,
    edited: impl Iterator<Item = &'a v1::Conflict>,
) -> Result<(), CliError> {
    for conflict in edited {
        let path = text::path(&conflict.path);
        output.remark(match version {
            "draft" => format!("{path} keeps its conflict markers"),
            _ => format!("{path} is the version {version} as a whole, without your edits of the file with markers; --edit keeps them"),
        })?;
    }
    Ok(())
}

/// Returns whether a path names a document in which repeated lines are probably wrong.
fn is_structured(path: &[u8]) -> bool {
    [".json", ".yaml", ".yml", ".toml", ".lock"].iter().any(|ending| path.ends_with(ending.as_bytes()))
}

fn say_result(output: &mut Output, result: &v1::ResolveConflictsResponse, dry_run: bool) -> Result<(), CliError> {
    output.emit(&lines::line(
        "conflicts_resolved",
        json!({
            "resolved": result.resolved.len(),
            "left": result.left,
            "snapshot": lines::snapshot_id(result.snapshot.as_ref()),
            "safety": lines::snapshot_id(result.safety.as_ref()),
            "dry_run": dry_run,
        }),
    ))?;
    let count = text::plural(result.resolved.len() as u64, "conflict");
    let left = match result.left {
        0 => "none is left".to_owned(),
        left => format!("{} left", text::plural(left, "file")),
    };
    match &result.snapshot {
        _ if dry_run => output.done(format!("{count} to resolve; nothing was changed")),
        Some(snapshot) => {
            let id = paint(style::ID, text::short(&snapshot.name));
            output.done(format!("{count} resolved in {id}, {left}; `amalgam undo` takes this back"))?;
            match &result.safety {
                Some(safety) => {
                    let id = paint(style::ID, text::short(&safety.name));
                    output.done(format!("the changes that were not committed are kept in {id}"))
                }
                None => Ok(()),
            }
        }
        None => output.done(format!("nothing resolved, {left}")),
    }
}
