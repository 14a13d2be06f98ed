//! `amalgam follow`, `unfollow` and `update`: a workspace that is kept up to date with a source.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use amalgam_proto::v1;
use amalgam_proto::v1::follow_source_request::Source;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::merge::say_merge;
use super::publish::{seconds, span};
use super::workspace_arg::{WorkspaceArg, workspace_or_here};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Keep a workspace up to date with a source while an agent works in it
#[derive(Debug, Args)]
#[command(after_help = "\
New snapshots of the source are merged into the workspace: at once, and from then on by the background process. Files
that the agent did not change are updated in its directory and its mounts. What the agent changed stays, merged where
possible; a conflict is stored in the workspace and shown. Uncommitted changes are captured first. `amalgam undo` takes
the last update back; it is not repeated until the source changes again. `amalgam run --in` and new sandboxes update
first and wait.

A directory, a git branch, an archive or a prefix of an S3 bucket is imported into a workspace of its own
(following/NAME/git), which is followed. Of a bucket only objects whose ETag changed are read. Its credentials come from the
environment of the background process (AWS_ACCESS_KEY_ID, ...), from --credentials, or from ~/.aws/credentials.

Examples:
  amalgam follow main
  amalgam follow main -w try-1 --mode event
  amalgam follow --directory ../shared --every 5s
  amalgam follow --git ~/src/app.git --branch main
  amalgam follow --archive dataset.tar.zst --every 1h
  amalgam follow s3://datasets/reviews --every 5m
  amalgam follow s3://datasets/reviews --endpoint http://127.0.0.1:8333 --credentials keys.ini")]
pub struct Follow {
    /// The workspace to follow, or s3://BUCKET[/PREFIX]
    #[arg(required_unless_present_any = ["directory", "git", "archive"], conflicts_with_all = ["directory", "git", "archive"])]
    source: Option<String>,
    /// Follow a directory; it belongs to a workspace from then on
    #[arg(long, value_name = "DIR", conflicts_with_all = ["git", "archive"])]
    directory: Option<std::path::PathBuf>,
    /// Follow a branch of this git repository
    #[arg(long, value_name = "REPOSITORY", conflicts_with = "archive")]
    git: Option<std::path::PathBuf>,
    /// The branch or tag of the git repository [default: HEAD]
    #[arg(long, value_name = "REF", requires = "git", default_value = "", hide_default_value = true)]
    branch: String,
    /// Follow a tar or zip archive
    #[arg(long, value_name = "FILE")]
    archive: Option<std::path::PathBuf>,
    /// The URL of the S3 store [default: AWS_ENDPOINT_URL of the background process, or AWS]
    #[arg(long, value_name = "URL", requires = "source", default_value = "", hide_default_value = true)]
    endpoint: String,
    /// The region of the S3 store [default: AWS_REGION of the background process, or us-east-1]
    #[arg(long, value_name = "NAME", requires = "source", default_value = "", hide_default_value = true)]
    region: String,
    /// A file with credentials for the S3 store, in the form of ~/.aws/credentials
    #[arg(long, value_name = "FILE", requires = "source")]
    credentials: Option<std::path::PathBuf>,
    /// The workspace that follows [default: the one of this directory]
    #[arg(short, long, value_name = "WORKSPACE")]
    workspace: Option<String>,
    /// When to update
    #[arg(long, value_enum, conflicts_with = "every")]
    mode: Option<Mode>,
    /// Update at this interval: 30s, 5m, 1h, 1d [default: 30s]
    #[arg(long, value_name = "SPAN", value_parser = seconds)]
    every: Option<u32>,
    /// Check the arguments, print what would be followed; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Request id: a call with the same id as an earlier one is a retry and does nothing twice
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mode {
    /// Every 30 to 60 seconds
    Lazy,
    /// Every 5 to 10 seconds
    Regular,
    /// As soon as the source has a new snapshot
    Event,
}

/// Stop following a source; the files stay as they are
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam unfollow\n  amalgam unfollow try-1")]
pub struct Unfollow {
    #[command(flatten)]
    workspace: WorkspaceArg,
}

/// Update a workspace from the source that it follows, now
#[derive(Debug, Args)]
#[command(after_help = "\
Waits until the files are updated. Prints how many files were synced, skipped (the workspace had the change, or one of
its own) and changed by the source in total. Exits with 5 if there are conflicts.

Examples:
  amalgam update
  amalgam update try-1 --dry-run
  amalgam update -w try-1")]
pub struct Update {
    #[command(flatten)]
    workspace: WorkspaceArg,
    /// Print what would be merged; change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Makes a path absolute and returns its bytes.
fn host_path(path: &Path) -> Result<Vec<u8>, CliError> {
    let path = std::path::absolute(path).map_err(|error| CliError::machine(path.display(), &error))?;
    Ok(path.as_os_str().as_bytes().to_vec())
}

impl Follow {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let workspace = workspace_or_here(session, self.workspace.as_deref()).await?;
        let source = match (&self.directory, &self.git, &self.archive, &self.source) {
            (Some(directory), ..) => Source::Directory(host_path(directory)?.into()),
            (_, Some(git), ..) => {
                Source::Git(v1::GitOrigin { path: host_path(git)?.into(), reference: self.branch.clone() })
            }
            (_, _, Some(archive), _) => Source::Archive(host_path(archive)?.into()),
            (.., Some(url)) if url.starts_with("s3://") => Source::S3(v1::S3Origin {
                url: url.clone(),
                endpoint: self.endpoint.clone(),
                region: self.region.clone(),
                credentials: self.credentials.as_deref().map(host_path).transpose()?.unwrap_or_default().into(),
            }),
            (.., source) => Source::SourceWorkspace(workspace_name(source.as_deref().unwrap_or_default())),
        };
        let is_s3 = matches!(source, Source::S3(_));
        if !is_s3 && (self.credentials.is_some() || !self.endpoint.is_empty() || !self.region.is_empty()) {
            return Err(CliError::usage("--endpoint, --region and --credentials are about s3://BUCKET/PREFIX"));
        }
        let mode = match self.mode {
            None => "",
            Some(Mode::Lazy) => "lazy",
            Some(Mode::Regular) => "regular",
            Some(Mode::Event) => "event",
        };
        let request = v1::FollowSourceRequest {
            workspace: workspace.clone(),
            source: Some(source),
            mode: mode.to_owned(),
            every_seconds: self.every.unwrap_or(0),
            dry_run: self.dry_run,
            request_id: self.request_id,
        };
        let done = client.follows.follow_source(request).await?.into_inner();
        let found = done.workspace.ok_or_else(|| missing_field("workspace"))?;
        session.output.emit(&lines::of_dry_run(lines::workspace(&found), self.dry_run))?;
        let following = found.following.ok_or_else(|| missing_field("following"))?;
        let (name, how) = (text::id(&found.name), when(&following));
        if self.dry_run {
            session.output.done(format!("{name} would follow {how}; nothing was changed"))?;
            return Ok(Exit::OK);
        }
        session.output.done(format!("{name} follows {how}"))?;
        match done.update {
            Some(update) => say_update(session, &workspace, &update, done.merge.as_ref()),
            None => Ok(Exit::OK),
        }
    }
}

impl Unfollow {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let workspace = self.workspace.resolve(session).await?;
        let request = v1::UnfollowSourceRequest { workspace, ..Default::default() };
        let done = client.follows.unfollow_source(request).await?.into_inner();
        let found = done.workspace.ok_or_else(|| missing_field("workspace"))?;
        session.output.emit(&lines::workspace(&found))?;
        session.output.done(format!("{} follows nothing", text::id(&found.name)))?;
        Ok(Exit::OK)
    }
}

impl Update {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let workspace = self.workspace.resolve(session).await?;
        if self.dry_run {
            let request =
                v1::UpdateFollowerRequest { workspace, dry_run: true, if_following: false, ..Default::default() };
            let done = client.follows.update_follower(request).await?.into_inner();
            return say_merge(&mut session.output, &done.merge.ok_or_else(|| missing_field("merge"))?, true);
        }
        update_now(session, &mut client, &workspace, false).await
    }
}

/// Updates a workspace from its source and prints the result. With `if_following`, skips a workspace that follows nothing.
pub async fn update_now(session: &mut Session, client: &mut Client, workspace: &str, if_following: bool) -> Outcome {
    let request = v1::UpdateFollowerRequest {
        workspace: workspace.to_owned(),
        dry_run: false,
        if_following,
        ..Default::default()
    };
    let done = client.follows.update_follower(request).await?.into_inner();
    match done.update {
        Some(update) => say_update(session, workspace, &update, done.merge.as_ref()),
        None => Ok(Exit::OK),
    }
}

fn say_update(session: &mut Session, workspace: &str, update: &v1::FollowUpdate, merge: Option<&v1::Merge>) -> Outcome {
    let output = &mut session.output;
    output.emit(&json_line(workspace, update))?;
    for conflict in merge.iter().flat_map(|merge| &merge.conflicts) {
        output.say(paint(style::REMOVED, format!("conflict {}", text::path(&conflict.path))))?;
    }
    let name = text::id(workspace);
    let counts = counts(update);
    output.done(match update.how.as_str() {
        "already" => format!("{name} is up to date"),
        "conflicts" => format!("{name} is updated with conflicts: {counts}; `amalgam conflicts` shows them"),
        "refused" | "failed" => format!("{name} was not updated: {}", text::printable(&update.reason)),
        _ => format!("{name} is updated: {counts}"),
    })?;
    Ok(match update.how.as_str() {
        "conflicts" | "refused" => Exit::CONFLICTS,
        "failed" => Exit::ERROR,
        _ => Exit::OK,
    })
}

fn counts(update: &v1::FollowUpdate) -> String {
    let conflicts = match update.conflicts {
        0 => String::new(),
        conflicts => format!("{}, ", text::plural(conflicts, "conflict")),
    };
    format!("{} synced, {} skipped, {conflicts}{} in total", update.synced, update.skipped, update.total)
}

/// Describes what a workspace follows and when.
fn when(following: &v1::Following) -> String {
    let source = match following.origin.split_once(':') {
        // Without the parameters of the S3 store.
        Some(("s3", place)) => format!("s3:{}", text::printable(place.split('?').next().unwrap_or(place))),
        Some((kind, place)) => format!("the {kind} {}", text::printable(place.trim_end_matches('#'))),
        None => text::id(&following.source).to_owned(),
    };
    match following.mode.as_str() {
        "event" => format!("{source} at once"),
        _ => format!("{source} every {}", span(following.every_seconds)),
    }
}

/// Describes what a workspace follows and the last update in one line.
pub fn following_line(following: &v1::Following, now: Timestamp) -> String {
    let last = match &following.last {
        None => "not updated yet".to_owned(),
        Some(update) => {
            let ago = text::ago(text::timestamp(update.time.as_ref()), now);
            match update.how.as_str() {
                "already" => format!("{ago} there was nothing new"),
                "updated" | "conflicts" => format!("last {ago}: {}", counts(update)),
                "refused" => format!("{ago} it was refused: {}", text::first_line(&update.reason)),
                _ => format!("{ago} it failed: {}", text::first_line(&update.reason)),
            }
        }
    };
    format!("{}; {last}", when(following))
}

fn json_line(workspace: &str, update: &v1::FollowUpdate) -> Value {
    let mut object = lines::follow_update(update);
    object["workspace"] = json!(text::id(workspace));
    lines::line("update", object)
}
