//! `amalgam review`: merges that wait for a decision, and the decisions.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::merge::say_merge;
use super::queue;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Reviews in one answer of the server.
const PAGE_SIZE: i32 = 500;

/// List, show, accept and reject merges that need a decision
#[derive(Debug, Args)]
#[command(after_help = "\
A merge of `complete` or `publish` needs a decision if it has conflicts or its test fails. `amalgam review` lists such
merges with their ids.

Examples:
  amalgam review
  amalgam review show 4f1c
  amalgam review take 4f1c theirs src/main.rs
  amalgam review accept 4f1c --dry-run
  amalgam review reject 4f1c")]
pub struct Review {
    #[command(subcommand)]
    command: Option<ReviewCommand>,
}

#[derive(Debug, Subcommand)]
enum ReviewCommand {
    List(List),
    Show(Show),
    Accept(Accept),
    Take(Take),
    Reject(Reject),
}

/// List merges that need a decision; the default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam review list\n  amalgam review list main")]
struct List {
    /// List only merges into this target
    target: Option<String>,
}

/// Show a merge: the author of each version, and each conflict with markers
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam review show 4f1c")]
struct Show {
    /// The id of the merge, or the beginning of it
    id: String,
}

/// Merge as it is; conflicts stay conflicts in the target
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam review accept 4f1c")]
struct Accept {
    /// The id of the merge, or the beginning of it
    id: String,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Merge, and resolve conflicts by one version
#[derive(Debug, Args)]
#[command(after_help = "\
The version is ours (of the target), theirs (of the merged workspace), base (of the common ancestor) or the name of one
of the two workspaces, as in `amalgam conflicts take`.

Examples:
  amalgam review take 4f1c theirs
  amalgam review take 4f1c ours src/main.rs
  amalgam review take 4f1c --base src/main.rs")]
struct Take {
    /// The id of the merge, or the beginning of it
    id: String,
    /// The version, unless an option gives it; then the paths to resolve, and everything below them [default: all conflicts]
    #[arg(value_name = "VERSION] [PATHS")]
    words: Vec<OsString>,
    #[command(flatten)]
    version: VersionFlags,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

/// A version by an option, as `amalgam conflicts resolve` takes it.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct VersionFlags {
    /// Take the version of the target
    #[arg(long)]
    ours: bool,
    /// Take the version of the merged workspace
    #[arg(long)]
    theirs: bool,
    /// Take the version of the common ancestor
    #[arg(long)]
    base: bool,
    /// Take the version of this workspace
    #[arg(long, value_name = "NAME", visible_alias = "side")]
    version: Option<String>,
}

impl Take {
    /// Returns the version to take, and the paths to take it for.
    fn split(&self) -> Result<(String, &[OsString]), CliError> {
        let flag = match &self.version {
            VersionFlags { ours: true, .. } => Some("ours"),
            VersionFlags { theirs: true, .. } => Some("theirs"),
            VersionFlags { base: true, .. } => Some("base"),
            VersionFlags { version, .. } => version.as_deref(),
        };
        match (flag, self.words.split_first()) {
            (Some(flag), _) => Ok((flag.to_owned(), &self.words)),
            (None, Some((word, paths))) => Ok((word.to_string_lossy().into_owned(), paths)),
            (None, None) => {
                let usage = CliError::usage("say which version is to be taken: ours, theirs, base or a workspace");
                Err(usage.hint(format!("as in `amalgam review take {} theirs`", self.id)))
            }
        }
    }
}

/// Reject a merge; the workspace stays as it is
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam review reject 4f1c\n  amalgam review reject 4f1c --dry-run")]
struct Reject {
    /// The id of the merge, or the beginning of it
    id: String,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Review {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            None => List { target: None }.run(session).await,
            Some(ReviewCommand::List(list)) => list.run(session).await,
            Some(ReviewCommand::Show(show)) => show.run(session).await,
            Some(ReviewCommand::Accept(accept)) => accept.run(session).await,
            Some(ReviewCommand::Take(take)) => take.run(session).await,
            Some(ReviewCommand::Reject(reject)) => reject.run(session).await,
        }
    }
}

impl List {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let target = self.target.as_deref().map(workspace_name).unwrap_or_default();
        let mut request = v1::ListReviewsRequest { target, page_size: PAGE_SIZE, ..Default::default() };
        let (mut reviews, mut problems) = (Vec::new(), Vec::new());
        loop {
            let page = client.merges.list_reviews(request.clone()).await?.into_inner();
            reviews.extend(page.reviews);
            problems.extend(page.problems);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        session.output.page();
        for review in &reviews {
            let entry = review.entry.as_ref().ok_or_else(|| missing_field("entry"))?;
            session.output.emit(&json_line(review, entry))?;
            let files: BTreeSet<_> = review.conflicts.iter().map(|conflict| &conflict.path).collect();
            let conflicts = text::plural(files.len() as u64, "conflict");
            session.output.say(format!("{}  {conflicts}", queue::line(entry)))?;
        }
        for problem in &problems {
            session.output.remark(text::printable(problem))?;
        }
        if reviews.is_empty() {
            session.output.remark("no merge needs a decision")?;
        }
        Ok(Exit::OK)
    }
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::GetReviewRequest { name: name(&self.id) };
        let review = client.merges.get_review(request).await?.into_inner().review;
        let review = review.ok_or_else(|| missing_field("review"))?;
        let entry = review.entry.as_ref().ok_or_else(|| missing_field("entry"))?;
        let output = &mut session.output;
        output.emit(&json_line(&review, entry))?;
        queue::say_entry(output, entry)?;
        if !review.reason.is_empty() {
            output.say(format!("Because:   {}", review.reason))?;
        }
        for (at, conflict) in review.conflicts.iter().enumerate() {
            let path = paint(style::REMOVED, text::path(&conflict.path));
            output.say(format!("{path} ({})", text::printable(&conflict.result)))?;
            if let Some(versions) = review.versions.get(at) {
                say_versions(output, versions)?;
                say_text(output, &versions.shown)?;
            }
        }
        Ok(Exit::OK)
    }
}

/// Prints the contents that a path would have in the target, with conflict markers.
fn say_text(output: &mut Output, shown: &[u8]) -> Result<(), CliError> {
    let lines = String::from_utf8_lossy(shown);
    lines.lines().try_for_each(|line| output.say(format!("    {}", text::printable(line))))
}

fn say_versions(output: &mut Output, versions: &v1::ReviewVersions) -> Result<(), CliError> {
    for (word, version) in [("base  ", &versions.base), ("ours  ", &versions.ours), ("theirs", &versions.theirs)] {
        let Some(version) = version else { continue };
        let what = match version.content.as_str() {
            "" => "not there".to_owned(),
            "file" => text::bytes(version.size),
            other => other.to_owned(),
        };
        let by = match version.snapshot.is_empty() {
            true => String::new(),
            false => format!(", {} by {}", text::short(&version.snapshot), text::printable(&version.author)),
        };
        let by = match version.workspace.is_empty() {
            true => by,
            false => format!("{by} in {}", text::printable(&version.workspace)),
        };
        let by = match version.operation {
            0 => by,
            number => format!("{by}, operation {number} ({})", text::printable(&version.action)),
        };
        output.say(format!("  {word}  {what}{by}"))?;
    }
    Ok(())
}

impl Accept {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request =
            v1::AcceptReviewRequest { name: name(&self.id), dry_run: self.dry_run, request_id: String::new() };
        let merge = client.merges.accept_review(request).await?.into_inner().merge;
        say_merge(&mut session.output, &merge.ok_or_else(|| missing_field("merge"))?, self.dry_run)
    }
}

impl Take {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let (version, paths) = self.split()?;
        let request = v1::TakeReviewRequest {
            name: name(&self.id),
            side: v1::MergeSide::Unspecified.into(),
            version,
            paths: paths.iter().map(|path| path.clone().into_vec().into()).collect(),
            dry_run: self.dry_run,
            request_id: String::new(),
        };
        let merge = client.merges.take_review(request).await?.into_inner().merge;
        say_merge(&mut session.output, &merge.ok_or_else(|| missing_field("merge"))?, self.dry_run)
    }
}

impl Reject {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let dry_run = self.dry_run;
        let request = v1::RejectReviewRequest { name: name(&self.id), request_id: String::new(), dry_run };
        let done = client.merges.reject_review(request).await?.into_inner();
        let workspace = done.workspace.as_ref().map(|workspace| text::id(&workspace.name).to_owned());
        let fields = json!({"id": self.id, "workspace": workspace, "dry_run": dry_run});
        session.output.emit(&lines::line("review_rejected", fields))?;
        session.output.done(match workspace {
            Some(workspace) => queue::not_merged(&workspace, dry_run),
            None if dry_run => "it would not be merged; nothing was changed".to_owned(),
            None => "not merged".to_owned(),
        })?;
        Ok(Exit::OK)
    }
}

fn name(id: &str) -> String {
    format!("reviews/{id}")
}

fn json_line(review: &v1::Review, entry: &v1::QueueEntry) -> Value {
    let ids = |names: &[String]| names.iter().map(|name| text::id(name).to_owned()).collect::<Vec<_>>();
    let conflict = |conflict: &v1::MergedPath| lines::with_path(json!({"kind": conflict.result}), &conflict.path);
    let version = |version: &Option<v1::PathVersion>| {
        let or_null = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        version.as_ref().map(|version| {
            json!({
                "content": or_null(&version.content),
                "size": version.size,
                "snapshot": or_null(text::id(&version.snapshot)),
                "author": version.author,
                "time": lines::time(version.time.as_ref()),
                "workspace": or_null(&version.workspace),
                "operation": (version.operation != 0).then_some(version.operation),
                "action": or_null(&version.action),
            })
        })
    };
    let versions = |one: &v1::ReviewVersions| {
        let mut three = json!({"base": version(&one.base), "ours": version(&one.ours), "theirs": version(&one.theirs)});
        if !one.shown.is_empty() {
            lines::put_bytes(&mut three, "text", &one.shown);
        }
        lines::with_path(three, &one.path)
    };
    let mut object = queue::json_line("review", entry);
    object["ours"] = json!((!review.ours.is_empty()).then(|| text::id(&review.ours)));
    object["bases"] = json!(ids(&review.bases));
    object["conflicts"] = json!(review.conflicts.iter().map(conflict).collect::<Vec<_>>());
    object["reason"] = json!(review.reason);
    object["versions"] = json!(review.versions.iter().map(versions).collect::<Vec<_>>());
    object
}
