//! `amalgam conflicts`: lists, shows and resolves conflicts.

mod listing;
mod resolve;
mod tool;

use std::collections::BTreeSet;
use std::ffi::OsString;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;
use tonic::codegen::Bytes;

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, revision_state, workspace_name};
use crate::text;
use listing::{json_line, line, list, read, state, tree_paths};

const PAGE_SIZE: i32 = 500;
/// Maximum number of resolved paths, and of edited ones, that a summary names.
const PATHS_MAX: usize = 10;

/// List, show and resolve conflicts
#[derive(Debug, Args)]
#[command(after_help = "\
A conflict is part of a snapshot: it is committed and forked like any file until it is resolved. In a directory a
conflict in a text file is shown with markers that name the workspaces. To resolve it, edit the file until no marker is
left, then commit. An edit elsewhere in the file does not resolve it.

\"Ours\" is the version of the workspace that was merged into, \"theirs\" the version of the workspace that was merged,
\"base\" the common ancestor. Conflicts about names or attributes are listed, too. If both sides moved a file, --ours or
--theirs keeps one name and --union keeps both.

Examples:
  amalgam conflicts
  amalgam conflicts show src/main.rs
  amalgam conflicts show src/main.rs --version theirs > theirs.rs
  amalgam conflicts take theirs src/main.rs
  amalgam conflicts take agent-2 src/main.rs
  amalgam conflicts resolve src/main.rs --ours
  amalgam conflicts resolve --all --remembered")]
pub struct Conflicts {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(List),
    Show(Show),
    Take(resolve::Take),
    Resolve(resolve::Resolve),
    Remembered(Remembered),
    Forget(Forget),
}

/// List conflicts; the default
#[derive(Debug, Default, Args)]
#[command(after_help = "\
Examples:
  amalgam conflicts list
  amalgam conflicts list --rev main@ src
  amalgam conflicts list --exit-code || echo some are left")]
struct List {
    /// List only these paths and everything below them
    paths: Vec<OsString>,
    /// The revision [default: the files on the disk, or the head of a workspace without a directory]
    #[arg(long, value_name = "REV")]
    rev: Option<String>,
    /// Exit with 5 if there are conflicts
    #[arg(long)]
    exit_code: bool,
}

/// Show one conflict: the file with markers, or one version
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam conflicts show src/main.rs
  amalgam conflicts show logo.png --version theirs > theirs.png")]
struct Show {
    /// The path of the conflict
    path: OsString,
    /// Print this version instead: ours, base, theirs, draft, side-2 and so on, or the name of a workspace
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    version: String,
    /// The revision [default: the files on the disk, or the head of a workspace without a directory]
    #[arg(long, value_name = "REV")]
    rev: Option<String>,
}

/// List remembered resolutions
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam conflicts remembered")]
struct Remembered {}

/// Forget remembered resolutions, so that the same conflict has to be resolved again
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam conflicts forget 3f9a2c1e
  amalgam conflicts forget --all --dry-run")]
struct Forget {
    /// The ids of the resolutions, or the first digits of them
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Forget all of them
    #[arg(long)]
    all: bool,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Conflicts {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command.unwrap_or_else(|| Verb::List(List::default())) {
            Verb::List(list) => list.run(session).await,
            Verb::Show(show) => show.run(session).await,
            Verb::Take(take) => take.run(session).await,
            Verb::Resolve(resolve) => resolve.run(session).await,
            Verb::Remembered(remembered) => remembered.run(session).await,
            Verb::Forget(forget) => forget.run(session).await,
        }
    }
}

impl List {
    async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let paths = tree_paths(session, place.as_ref(), &self.paths)?;
        let found = list(&mut client, place.as_ref(), self.rev.as_deref(), paths).await?;
        session.output.page();
        for conflict in &found {
            session.output.emit(&json_line(conflict))?;
            session.output.say(line(conflict))?;
        }
        if found.is_empty() {
            session.output.remark("no conflicts")?;
        }
        Ok(if self.exit_code && !found.is_empty() { Exit::CONFLICTS } else { Exit::OK })
    }
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let path = tree_paths(session, place.as_ref(), &[self.path])?.remove(0);
        let state = state(place.as_ref(), self.rev.as_deref());
        let (conflict, data) = read(&mut client, place.as_ref(), state, path, &self.version).await?;
        let output = &mut session.output;
        if output.is_json() {
            let mut line = json_line(&conflict);
            line["type"] = "conflict_content".into();
            line["version"] = json!(self.version);
            lines::put_bytes(&mut line, "text", &data);
            output.emit(&line)?;
            return Ok(Exit::OK);
        }
        if self.version.is_empty() {
            line_by_line(&conflict).into_iter().try_for_each(|line| output.remark(line))?;
        }
        output.raw(&data)?;
        Ok(Exit::OK)
    }
}

impl Remembered {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let mut request = v1::ListResolutionsRequest { page_size: PAGE_SIZE, page_token: String::new() };
        session.output.page();
        loop {
            let page = client.conflicts.list_resolutions(request.clone()).await?.into_inner();
            for found in &page.resolutions {
                say_resolution(&mut session.output, found)?;
            }
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                return Ok(Exit::OK);
            }
        }
    }
}

impl Forget {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let Self { ids, all, dry_run } = self;
        let request = v1::ForgetResolutionsRequest { ids, all, request_id: String::new(), dry_run };
        let done = client.conflicts.forget_resolutions(request).await?.into_inner();
        for found in &done.resolutions {
            say_resolution(&mut session.output, found)?;
        }
        let fields = json!({"forgotten": done.forgotten, "dry_run": dry_run});
        session.output.emit(&lines::line("resolutions_forgotten", fields))?;
        let count = text::plural(done.forgotten, "resolution");
        session.output.done(match dry_run {
            true => format!("{count} to forget; nothing was changed"),
            false => format!("{count} forgotten"),
        })?;
        Ok(Exit::OK)
    }
}

fn say_resolution(output: &mut Output, found: &v1::Resolution) -> Result<(), CliError> {
    let kind = found.entry.as_ref().map(|entry| text::kind_word(entry.kind()));
    let line = lines::line("resolution", json!({"id": found.id, "kind": kind}));
    output.emit(&lines::with_path(line, &found.path))?;
    let id = paint(style::ID, &found.id[..found.id.len().min(8)]);
    output.say(format!("{id}  {} -> {}", text::path(&found.path), kind.unwrap_or("gone")))
}

/// Prints the number of conflicts, and which ones edits resolved.
pub fn say(output: &mut Output, summary: Option<&v1::ConflictSummary>) -> Result<(), CliError> {
    let Some(summary) = summary else { return Ok(()) };
    for path in summary.resolved.iter().take(PATHS_MAX) {
        output.remark(format!("resolved: {}", text::path(path)))?;
    }
    for edited in summary.edited.iter().take(PATHS_MAX) {
        let path = text::path(&edited.path);
        let why = match edited.regions {
            0 => "was edited, but other versions are not in the file; `amalgam conflicts take` decides".to_owned(),
            regions => format!("has markers in {}", text::plural(u64::from(regions), "region")),
        };
        output.remark(format!("still a conflict: {path} {why}"))?;
    }
    if summary.count > 0 {
        let count = paint(style::WARNING, text::plural(summary.count, "conflict"));
        output.say(format!("{count}; `amalgam conflicts` lists them"))?;
    }
    Ok(())
}

/// Returns the paths with conflicts at a revision of a workspace.
pub async fn paths_at(client: &mut Client, workspace: &str, revision: &str) -> Result<BTreeSet<Bytes>, CliError> {
    let found = listing::list_at(client, workspace_name(workspace), revision_state(revision), Vec::new()).await?;
    Ok(found.into_iter().map(|conflict| conflict.path).collect())
}

/// Describes a conflict and each of its versions, one line each.
fn line_by_line(conflict: &v1::Conflict) -> Vec<String> {
    let mut words = vec![line(conflict)];
    for version in &conflict.versions {
        let what = match &version.entry {
            None => version.value.as_ref().map_or("nothing".to_owned(), |value| text::path(value).to_string()),
            Some(entry) => {
                format!("{}, {:04o}, {}", text::kind_word(entry.kind()), entry.mode, text::bytes(entry.size))
            }
        };
        let of = match version.workspace.is_empty() {
            true => String::new(),
            false => format!(", of {}", text::printable(&version.workspace)),
        };
        words.push(format!("  {:10} {what}{of}", version.name));
    }
    words
}
