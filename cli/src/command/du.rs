//! `amalgam du`: shows how much space the store, workspaces and snapshots take.

use amalgam_proto::v1;
use amalgam_proto::v1::measure_usage_response::Event;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};
use tonic::Code;

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::{advance, progress_bar};
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::{Session, current_workspace, missing_field, workspace_name};
use crate::text;

/// Maximum number of snapshots of a workspace that are listed without `--limit`.
const SNAPSHOTS: u32 = 20;
/// Minimum size of a part of the store that is printed on its own line.
const PART_BYTES_MIN: u64 = 1_000_000;

/// Show how much space the store, workspaces and snapshots take
#[derive(Debug, Args)]
#[command(after_help = "\
Workspaces share equal contents, so the store is smaller than the sum of their files. Data of a workspace is \"own\" if no
other workspace or label reaches it, and \"shared\" otherwise. Data of a snapshot is \"own\" if no other snapshot has it,
and \"added\" if none of its parents has it. Sizes are compressed sizes, as stored. To tell own from shared data the command reads the
whole store, without blocking other commands; --growth takes time proportional to the changes.

Examples:
  amalgam du
  amalgam du main                      a workspace, and its newest snapshots
  amalgam du @~3                       a snapshot
  amalgam du main --growth --limit 50  what each snapshot added, newest first
  amalgam du --exact main              space that would be freed without a workspace
  amalgam du --exact @~3               or without the tree of a snapshot
  amalgam du --json")]
pub struct Du {
    /// Measure only this workspace and its snapshots, or this snapshot
    #[arg(value_name = "WORKSPACE|SNAPSHOT", conflicts_with = "exact")]
    subject: Option<String>,
    /// Show only what each snapshot added; needs a workspace or a snapshot
    #[arg(long, requires = "subject")]
    growth: bool,
    /// List at most N snapshots of the workspace [default: 20]
    #[arg(short = 'n', long, value_name = "N", requires = "subject")]
    limit: Option<u32>,
    /// Show how much space would be freed without this workspace, or without the tree of this snapshot
    #[arg(long, value_name = "WORKSPACE|SNAPSHOT")]
    exact: Option<String>,
}

/// The workspace or snapshot to measure.
enum Subject {
    Workspace(String),
    Revision(String),
}

impl Du {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        session.interrupts.say("nothing was changed");
        if let Some(subject) = self.exact {
            return exactly(session, subject).await;
        }
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let here = current_workspace(place.as_ref());
        let subject = match self.subject {
            Some(subject) => Some(find_subject(&mut client, subject).await?),
            None => None,
        };
        let limit = self.limit.unwrap_or(SNAPSHOTS);
        match subject {
            Some(subject) if self.growth => list_growth(session, client, subject, here, limit).await,
            subject => measure(session, client, subject, here, limit).await,
        }
    }
}

/// Returns the workspace that a word names or, if there is no such workspace, the snapshot.
async fn find_subject(client: &mut Client, subject: String) -> Result<Subject, CliError> {
    let name = workspace_name(&subject);
    match client.workspaces.get_workspace(v1::GetWorkspaceRequest { name: name.clone() }).await {
        Ok(_) => Ok(Subject::Workspace(name)),
        // A revision such as `main@` is no valid name.
        Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => {
            Ok(Subject::Revision(subject))
        }
        Err(status) => Err(status.into()),
    }
}

async fn measure(
    session: &mut Session,
    mut client: Client,
    subject: Option<Subject>,
    here: String,
    snapshots: u32,
) -> Outcome {
    use v1::measure_usage_request::Target;
    let target = subject.map(|subject| match subject {
        Subject::Workspace(name) => Target::Workspace(name),
        Subject::Revision(revision) => Target::Revision(revision),
    });
    let request = v1::MeasureUsageRequest { target, here, snapshots };
    let bar = progress_bar(&session.output);
    let mut stream = client.collections.measure_usage(request).await?.into_inner();
    let mut found = Vec::new();
    while let Some(message) = stream.message().await? {
        match message.event {
            Some(Event::Progress(progress)) => {
                if let Some(bar) = &bar {
                    advance(bar, progress.done, progress.total, progress.stage);
                }
            }
            Some(event) => found.push(event),
            None => {}
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if found.is_empty() {
        return Err(missing_field("result"));
    }
    session.output.page();
    let (home, now) = (session.store_words(), session.now);
    let output = &mut session.output;
    let names = found.iter().map(|event| match event {
        Event::Workspace(account) => name_of(account).len(),
        _ => 0,
    });
    let width = names.max().unwrap_or(0);
    let (mut listed, mut all) = (0, 0);
    for event in &found {
        match event {
            Event::Store(store) => say_store(output, store, &home)?,
            Event::Workspace(account) => {
                say_workspace(output, account, width)?;
                all = account.files.as_ref().map_or(0, |files| files.snapshots);
            }
            Event::Snapshot(account) => {
                listed += 1;
                say_snapshot(output, account, now)?;
            }
            Event::Progress(_) => {}
        }
    }
    if listed > 0 && listed < all {
        output.remark(format!("{}; --limit N lists more", text::plural(all - listed, "more snapshot")))?;
    }
    Ok(Exit::OK)
}

async fn list_growth(session: &mut Session, mut client: Client, subject: Subject, here: String, limit: u32) -> Outcome {
    use v1::list_growth_request::Target;
    let target = match subject {
        Subject::Workspace(name) => Target::Workspace(name),
        Subject::Revision(revision) => Target::Revision(revision),
    };
    if limit == 0 {
        return Ok(Exit::OK);
    }
    let request = v1::ListGrowthRequest { target: Some(target), here, limit };
    let mut stream = client.collections.list_growth(request).await?.into_inner();
    session.output.page();
    while let Some(message) = stream.message().await? {
        let account = message.snapshot.ok_or_else(|| missing_field("snapshot"))?;
        say_snapshot(&mut session.output, &account, session.now)?;
        session.output.flush()?;
    }
    Ok(Exit::OK)
}

fn say_store(output: &mut Output, store: &v1::StoreAccount, home: &str) -> Result<(), CliError> {
    output.emit(&lines::line(
        "store_usage",
        json!({
            "disk_bytes": store.disk_bytes,
            "free_bytes": store.free_bytes,
            "alive": tally(store.alive),
            "shared": tally(store.shared),
            "others": tally(store.others),
            "undo": tally(store.undo),
            "journal_bytes": store.journal_bytes,
            "log_bytes": store.log_bytes,
            "reserve_bytes": store.reserve_bytes,
            "directory_bytes": store.directory_bytes,
        }),
    ))?;
    let (disk, free) = (text::bytes(store.disk_bytes), text::bytes(store.free_bytes));
    output.say(format!("{} in {home}, {free} free", paint(style::TITLE, disk)))?;
    let bytes = |tally: Option<v1::ObjectTally>| text::bytes(tally.unwrap_or_default().bytes);
    let mut line = format!("{} stored, of it {} shared", bytes(store.alive), bytes(store.shared));
    if store.others.unwrap_or_default().bytes > 0 {
        line += &format!(" and {} for labels and other names alone", bytes(store.others));
    }
    output.say(line)?;
    parts(store).into_iter().try_for_each(|line| output.say(line))
}

/// Describes the parts of the store beside reachable data: undo data, journals, indexes, log, reserve and the rest. Leaves out
/// parts below [`PART_BYTES_MIN`].
fn parts(store: &v1::StoreAccount) -> Vec<String> {
    let stored = store.alive.unwrap_or_default().bytes;
    let undo = store.undo.unwrap_or_default().bytes;
    let (journals, indexes) = (store.journal_bytes, store.directory_bytes);
    let (log, reserve) = (store.log_bytes, store.reserve_bytes);
    let known = [stored, undo, journals, indexes, log, reserve].iter().sum();
    let rest = store.disk_bytes.saturating_sub(known);
    let parts = [
        (undo, "kept for undo and redo until the grace time is over; `amalgam gc --grace none` frees it"),
        (journals, "in journals: uncommitted work of mounts; `amalgam gc` or a commit moves it into the store"),
        (indexes, "for the indexes of directories"),
        (log, "in the log of the database; `amalgam gc` empties it"),
        (reserve, "set aside for a collection on a full disk"),
        (rest, "for the tables of the database, and what nothing leads to, which `amalgam gc` frees"),
    ];
    let lines = parts.into_iter().filter(|(bytes, _)| *bytes >= PART_BYTES_MIN);
    lines.map(|(bytes, words)| format!("{} {words}", text::bytes(bytes))).collect()
}

fn name_of(account: &v1::WorkspaceAccount) -> &str {
    account.files.as_ref().map(|files| text::id(&files.workspace)).unwrap_or_default()
}

fn say_workspace(output: &mut Output, account: &v1::WorkspaceAccount, width: usize) -> Result<(), CliError> {
    let files = account.files.clone().unwrap_or_default();
    let name = name_of(account);
    output.emit(&lines::line(
        "workspace_usage",
        json!({
            "workspace": name,
            "files": files.files,
            "bytes": files.bytes,
            "snapshots": files.snapshots,
            "reached": tally(account.reached),
            "private": tally(account.private),
            "shared": tally(rest(account.reached, account.private)),
        }),
    ))?;
    output.say(format!(
        "  {}  {:>8} in {}, {}; {}",
        paint(style::WORKSPACE, format!("{name:width$}")),
        text::bytes(files.bytes),
        text::plural(files.files, "file"),
        text::plural(files.snapshots, "snapshot"),
        stored(account.reached, account.private),
    ))
}

/// Describes stored bytes, for example `12 kB stored: 2.0 kB its own, 10 kB shared`.
fn stored(reached: Option<v1::ObjectTally>, private: Option<v1::ObjectTally>) -> String {
    let bytes = |tally: Option<v1::ObjectTally>| text::bytes(tally.unwrap_or_default().bytes);
    format!("{} stored: {} its own, {} shared", bytes(reached), bytes(private), bytes(rest(reached, private)))
}

fn say_snapshot(output: &mut Output, account: &v1::SnapshotAccount, now: Timestamp) -> Result<(), CliError> {
    let snapshot = account.snapshot.clone().unwrap_or_default();
    output.emit(&lines::line(
        "snapshot_usage",
        json!({
            "snapshot": text::id(&snapshot.name),
            "time": lines::time(snapshot.time.as_ref()),
            "message": snapshot.message,
            "thinned": snapshot.thinned,
            "growth": tally_or_null(account.growth),
            "reached": tally_or_null(account.reached),
            "private": tally_or_null(account.private),
            "shared": tally_or_null(account.reached.and_then(|reached| rest(Some(reached), account.private))),
        }),
    ))?;
    let grown = match account.growth {
        Some(growth) => format!("+{}", text::bytes(growth.bytes)),
        None => "gone".to_owned(),
    };
    let line = super::log::one_line(&snapshot, now);
    let taken = match (account.reached, account.growth) {
        (Some(_), Some(_)) => format!("  {}", paint(style::FAINT, stored(account.reached, account.private))),
        _ => String::new(),
    };
    output.say(format!("{grown:>10}  {line}{taken}"))
}

fn rest(reached: Option<v1::ObjectTally>, private: Option<v1::ObjectTally>) -> Option<v1::ObjectTally> {
    let (reached, private) = (reached.unwrap_or_default(), private.unwrap_or_default());
    Some(v1::ObjectTally {
        objects: reached.objects.saturating_sub(private.objects),
        bytes: reached.bytes.saturating_sub(private.bytes),
    })
}

fn tally(tally: Option<v1::ObjectTally>) -> Value {
    let tally = tally.unwrap_or_default();
    json!({"objects": tally.objects, "bytes": tally.bytes})
}

fn tally_or_null(known: Option<v1::ObjectTally>) -> Value {
    if known.is_some() { tally(known) } else { Value::Null }
}

/// Prints how many bytes would be freed without a workspace, or without the tree of a snapshot.
async fn exactly(session: &mut Session, subject: String) -> Outcome {
    use v1::measure_exactly_request::Target;
    let place = session.attached_directory_if_any().await?;
    let mut client = session.client().await?;
    let target = match find_subject(&mut client, subject).await? {
        Subject::Workspace(name) => Target::Workspace(name),
        Subject::Revision(revision) => Target::Revision(revision),
    };
    let is_workspace = matches!(target, Target::Workspace(_));
    let request = v1::MeasureExactlyRequest { target: Some(target), here: current_workspace(place.as_ref()) };
    let measured = client.collections.measure_exactly(request).await?.into_inner();
    let freed = measured.freed.unwrap_or_default();
    let kind = if is_workspace { "workspace" } else { "snapshot" };
    session.output.emit(&lines::line(
        "exact_usage",
        json!({"kind": kind, "subject": measured.subject, "objects": freed.objects, "bytes": freed.bytes}),
    ))?;
    let size = paint(style::TITLE, text::bytes(freed.bytes));
    let objects = text::plural(freed.objects, "object");
    session.output.say(format!("{size} in {objects} would come free without {kind} {}", measured.subject))?;
    if freed.objects == 0 && !is_workspace {
        session.output.remark("a workspace or a label keeps it, or other snapshots share all of its data")?;
    }
    Ok(Exit::OK)
}
