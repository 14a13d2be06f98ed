//! `amalgam queue`: what waits to be merged.

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::merge::say_merge;
use super::publish::{publishing_line, test_text};
use super::workspaces::workspaces;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Entries in one answer of the server.
const PAGE_SIZE: i32 = 500;

/// List, show, release and withdraw queued merges
#[derive(Debug, Args)]
#[command(after_help = "\
`complete` and `publish` add a merge to the queue of its target. A merge with conflicts or a failed test leaves the
queue and waits for a decision (`amalgam review`).

Examples:
  amalgam queue
  amalgam queue list main
  amalgam queue show 4f1c")]
pub struct Queue {
    #[command(subcommand)]
    command: Option<QueueCommand>,
}

#[derive(Debug, Subcommand)]
enum QueueCommand {
    List(List),
    Show(Show),
    Release(Release),
    Withdraw(Withdraw),
}

/// List queued merges, the oldest of each target first; the default
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam queue list\n  amalgam queue list main")]
struct List {
    /// List only merges into this target
    target: Option<String>,
}

/// Show one queued merge
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam queue show 4f1c")]
struct Show {
    /// The id of the entry, or the beginning of it
    id: String,
}

/// Release a merge that is on hold, after an undo or a restored backup
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam queue release 4f1c\n  amalgam queue release 4f1c --dry-run")]
struct Release {
    /// The id of the entry, or the beginning of it
    id: String,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Remove a merge from the queue without merging
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam queue withdraw 4f1c\n  amalgam queue withdraw 4f1c --dry-run")]
struct Withdraw {
    /// The id of the entry, or the beginning of it
    id: String,
    /// Print what would be done, change nothing
    #[arg(long)]
    dry_run: bool,
}

impl Queue {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            None => List { target: None }.run(session).await,
            Some(QueueCommand::List(list)) => list.run(session).await,
            Some(QueueCommand::Show(show)) => show.run(session).await,
            Some(QueueCommand::Release(release)) => release.run(session).await,
            Some(QueueCommand::Withdraw(withdraw)) => withdraw.run(session).await,
        }
    }
}

impl List {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let target = self.target.as_deref().map(workspace_name).unwrap_or_default();
        let mut request = v1::ListQueueRequest { target: target.clone(), page_size: PAGE_SIZE, ..Default::default() };
        let (mut entries, mut problems) = (Vec::new(), Vec::new());
        loop {
            let page = client.merges.list_queue(request.clone()).await?.into_inner();
            entries.extend(page.entries);
            problems.extend(page.problems);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        let is_shown = |workspace: &v1::Workspace| {
            let into = workspace.publishing.as_ref().map(|publishing| publishing.target.as_str());
            target.is_empty() || into == Some(target.as_str())
        };
        session.output.page();
        for entry in &entries {
            session.output.emit(&json_line("queue_entry", entry))?;
            session.output.say(line(entry))?;
        }
        for problem in &problems {
            session.output.remark(text::printable(problem))?;
        }
        if entries.is_empty() {
            session.output.remark("the queue is empty")?;
        }
        for workspace in workspaces(&mut client, "").await? {
            let Some(publishing) = workspace.publishing.as_ref().filter(|_| is_shown(&workspace)) else { continue };
            let name = paint(style::WORKSPACE, text::id(&workspace.name));
            session.output.remark(format!("{name} is published {}", publishing_line(publishing, session.now)))?;
        }
        Ok(Exit::OK)
    }
}

impl Show {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::GetQueueEntryRequest { name: format!("queue/{}", self.id) };
        let entry = client.merges.get_queue_entry(request).await?.into_inner().entry;
        let entry = entry.ok_or_else(|| missing_field("entry"))?;
        session.output.emit(&json_line("queue_entry", &entry))?;
        say_entry(&mut session.output, &entry)?;
        Ok(Exit::OK)
    }
}

impl Release {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let (name, dry_run) = (format!("queue/{}", self.id), self.dry_run);
        let request = v1::ReleaseQueueEntryRequest { name, request_id: String::new(), dry_run };
        let merge = client.merges.release_queue_entry(request).await?.into_inner().merge;
        say_merge(&mut session.output, &merge.ok_or_else(|| missing_field("merge"))?, dry_run)
    }
}

impl Withdraw {
    async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let (name, dry_run) = (format!("queue/{}", self.id), self.dry_run);
        let request = v1::WithdrawQueueEntryRequest { name, request_id: String::new(), dry_run };
        let entry = client.merges.withdraw_queue_entry(request).await?.into_inner().entry;
        let entry = entry.ok_or_else(|| missing_field("entry"))?;
        session.output.emit(&lines::of_dry_run(json_line("queue_entry", &entry), dry_run))?;
        if dry_run {
            session.output.say(line(&entry))?;
        }
        session.output.done(not_merged(text::id(&entry.workspace), dry_run))?;
        Ok(Exit::OK)
    }
}

/// Returns the message for a workspace that is not merged, or would not be merged.
pub fn not_merged(workspace: &str, dry_run: bool) -> String {
    match dry_run {
        true => format!("it would not be merged, and {workspace} would stay what it is; nothing was changed"),
        false => format!("not merged; {workspace} stays what it is"),
    }
}

/// Returns a queue entry as one line of a listing.
pub fn line(entry: &v1::QueueEntry) -> String {
    let held = if entry.held { "  (brought back by an undo)" } else { "" };
    format!(
        "{}  {} -> {}  {}{held}",
        paint(style::ID, text::id(&entry.name)),
        paint(style::WORKSPACE, text::id(&entry.workspace)),
        text::id(&entry.target),
        text::first_line(&entry.message),
    )
    .trim_end()
    .to_owned()
}

/// Prints all fields of a queue entry.
pub fn say_entry(output: &mut Output, entry: &v1::QueueEntry) -> Result<(), CliError> {
    let time = text::timestamp(entry.time.as_ref());
    output.say(paint(style::ID, text::id(&entry.name)))?;
    output.say(format!("From:      {} ({})", text::id(&entry.workspace), text::printable(&entry.actor)))?;
    output.say(format!("Into:      {}", text::id(&entry.target)))?;
    output.say(format!("Snapshot:  {}", text::id(&entry.snapshot)))?;
    output.say(format!("Time:      {}", text::wall_clock(time)))?;
    if !entry.test.is_empty() {
        output.say(format!("Test:      {}", text::printable(&test_text(&entry.test))))?;
    }
    Ok(())
}

/// Returns the JSON line of a queue entry.
pub fn json_line(kind: &str, entry: &v1::QueueEntry) -> Value {
    lines::line(
        kind,
        json!({
            "id": text::id(&entry.name),
            "workspace": text::id(&entry.workspace),
            "target": text::id(&entry.target),
            "snapshot": text::id(&entry.snapshot),
            "agent": entry.agent,
            "actor": entry.actor,
            "time": lines::time(entry.time.as_ref()),
            "message": entry.message,
            "ends": entry.ends,
            "held": entry.held,
            "test": entry.test,
        }),
    )
}
