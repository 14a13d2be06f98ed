//! `amalgam remote status`: how far syncing with remotes is, and what to do about what failed.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_proto::v1;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::workspaces::workspaces;
use super::sync::{label_line, workspace_line};
use crate::connect::Client;
use crate::edge::{Remote, RemoteState, Remotes, SyncMode, WorkspaceState, tracking_name};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Snapshots that one call lists.
const PAGE_SIZE: i32 = 1_000;
/// Snapshots that are counted at most.
const COUNT_MAX: u64 = 100_000;

/// Show the last success of each remote, the snapshots ahead and behind, and failures
#[derive(Debug, Args)]
#[command(after_help = "\
Ahead and behind count snapshots against the server as it was last seen; nothing is asked of the server.

Examples:
  amalgam remote status
  amalgam remote status backup --json")]
pub struct Status {
    /// The remote [default: all]
    remote: Option<String>,
}

/// The distance of a local workspace from the last known head on the server, in snapshots.
#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    ahead: u64,
    behind: u64,
    /// Files in conflict in the local head.
    conflicts: u64,
}

impl Status {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let remotes = Remotes::of_home(session.home());
        let chosen = match &self.remote {
            Some(name) => vec![remotes.get(name)?],
            None => remotes.list()?,
        };
        if chosen.is_empty() {
            session.output.done("no remotes; `amalgam remote add URL` adds one")?;
            return Ok(Exit::OK);
        }
        let mut client = session.client().await?;
        for remote in &chosen {
            let state = RemoteState::load(&remotes, &remote.name)?;
            say_remote(session, remote, &state)?;
            say_workspaces(session, &mut client, remote, &state).await?;
            say_labels(session, remote, &state)?;
        }
        Ok(Exit::OK)
    }
}

fn say_remote(session: &mut Session, remote: &Remote, state: &RemoteState) -> Result<(), CliError> {
    session.output.emit(&status_line(remote, state))?;
    let (name, now) = (paint(style::TITLE, &remote.name), session.now);
    session.output.say(format!("{name}  {}  synced {}", remote.url, remote.sync.words()))?;
    let last = match time(state.succeeded) {
        Some(then) => format!("last success {}", text::ago(then, now)),
        None => "not synced yet".to_owned(),
    };
    if state.problem.is_empty() {
        return session.output.say(format!("  {last}"));
    }
    let retry = match time(state.next_try).filter(|then| *then > now) {
        Some(then) if remote.sync != SyncMode::Manual => format!("; next attempt in {}", text::until(then, now)),
        _ => String::new(),
    };
    let failures = text::plural(state.failures.into(), "failure");
    session.output.say(format!("  {last}; {failures} since{retry}"))?;
    session.output.say(paint(style::FAILURE, format!("  {}", text::printable(&state.problem))))?;
    if !state.hint.is_empty() {
        session.output.say(format!("  {}", text::printable(&state.hint)))?;
    }
    Ok(())
}

async fn say_workspaces(
    session: &mut Session,
    client: &mut Client,
    remote: &Remote,
    state: &RemoteState,
) -> Result<(), CliError> {
    let prefix = tracking_name(&remote.name, "");
    let heads: BTreeMap<_, _> =
        workspaces(client, "").await?.into_iter().map(|found| (text::id(&found.name).to_owned(), found.head)).collect();
    let tracked = heads.keys().filter_map(|name| name.strip_prefix(&prefix));
    let names: BTreeSet<&str> =
        heads.keys().chain(state.workspaces.keys()).map(String::as_str).chain(tracked).collect();
    for name in names.into_iter().filter(|name| remote.selects(name)) {
        let head = |name: &str| heads.get(name).map_or("", String::as_str);
        let known = state.workspaces.get(name).cloned().unwrap_or_default();
        let (local, there) = (head(name), head(&tracking_name(&remote.name, name)));
        let distance = distance(client, local, there).await?;
        let mut line = workspace_line("remote_workspace", &remote.name, name, &known);
        line["ahead"] = distance.ahead.into();
        line["behind"] = distance.behind.into();
        line["conflicts"] = distance.conflicts.into();
        line["changed"] = time(known.changed).map_or(Value::Null, |then| json!(then.to_string()));
        session.output.emit(&line)?;
        let shown = paint(style::WORKSPACE, text::printable(name));
        session.output.say(format!("  {shown}  {}", words(&known, distance)))?;
        if !known.hint.is_empty() {
            session.output.say(format!("    {}", text::printable(&known.hint)))?;
        }
    }
    Ok(())
}

/// Emits the labels of the last round as JSON, and prints those that wait for a decision.
fn say_labels(session: &mut Session, remote: &Remote, state: &RemoteState) -> Result<(), CliError> {
    for (name, known) in &state.labels {
        session.output.emit(&label_line("remote_label", &remote.name, name, known))?;
        if known.problem.is_empty() {
            continue;
        }
        let shown = paint(style::TITLE, text::printable(name));
        session.output.say(format!("  label {shown}  {}", text::printable(&known.problem)))?;
        if !known.hint.is_empty() {
            session.output.say(format!("    {}", text::printable(&known.hint)))?;
        }
    }
    Ok(())
}

fn words(known: &WorkspaceState, distance: Distance) -> String {
    let mut parts = Vec::new();
    if distance.ahead > 0 {
        parts.push(format!("{} ahead", text::count(distance.ahead)));
    }
    if distance.behind > 0 {
        parts.push(format!("{} behind", text::count(distance.behind)));
    }
    if parts.is_empty() && known.problem.is_empty() {
        parts.push("up to date".to_owned());
    }
    if distance.conflicts > 0 {
        parts.push(text::plural(distance.conflicts, "conflict"));
    }
    if !known.problem.is_empty() {
        parts.push(text::printable(&known.problem).into_owned());
    }
    parts.join(", ")
}

/// Counts the snapshots that only one side has.
async fn distance(client: &mut Client, local: &str, there: &str) -> Result<Distance, CliError> {
    let conflicts = match local.is_empty() {
        true => 0,
        false => list(client, local, "", 1).await?.snapshots.first().map_or(0, |head| head.conflicts),
    };
    if local == there {
        return Ok(Distance { conflicts, ..Distance::default() });
    }
    Ok(Distance { ahead: count(client, local, there).await?, behind: count(client, there, local).await?, conflicts })
}

async fn list(
    client: &mut Client,
    head: &str,
    without: &str,
    page_size: i32,
) -> Result<v1::ListSnapshotsResponse, CliError> {
    let exclude = if without.is_empty() { Vec::new() } else { vec![text::id(without).to_owned()] };
    let revisions = vec![text::id(head).to_owned()];
    let request = v1::ListSnapshotsRequest { revisions, exclude, page_size, ..Default::default() };
    Ok(client.snapshots.list_snapshots(request).await?.into_inner())
}

/// Counts the snapshots in the history of `head` that are not in the history of `without`. Stops at about [`COUNT_MAX`].
async fn count(client: &mut Client, head: &str, without: &str) -> Result<u64, CliError> {
    if head.is_empty() {
        return Ok(0);
    }
    let exclude = if without.is_empty() { Vec::new() } else { vec![text::id(without).to_owned()] };
    let revisions = vec![text::id(head).to_owned()];
    let mut request = v1::ListSnapshotsRequest { revisions, exclude, page_size: PAGE_SIZE, ..Default::default() };
    let mut number = 0;
    loop {
        let page = client.snapshots.list_snapshots(request.clone()).await?.into_inner();
        number += page.snapshots.len() as u64;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || number >= COUNT_MAX {
            return Ok(number);
        }
    }
}

/// Converts nanoseconds since the epoch to a time, or returns `None` for 0: the event has not happened yet.
fn time(nanoseconds: i64) -> Option<Timestamp> {
    (nanoseconds > 0).then(|| Timestamp::from_nanosecond(nanoseconds.into()).ok()).flatten()
}

fn status_line(remote: &Remote, state: &RemoteState) -> Value {
    let shown = |nanoseconds| time(nanoseconds).map_or(Value::Null, |then| json!(then.to_string()));
    lines::line(
        "remote_status",
        json!({
            "name": remote.name,
            "url": remote.url,
            "sync": remote.sync.word(),
            "succeeded": shown(state.succeeded),
            "tried": shown(state.tried),
            "failures": state.failures,
            "next_try": shown(state.next_try),
            "problem": state.problem,
            "hint": state.hint,
        }),
    )
}
