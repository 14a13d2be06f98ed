//! `amalgam log`: what led to a state, newest first.

use std::collections::BTreeSet;
use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use jiff::Timestamp;
use tonic::codegen::Bytes;

use super::words::revisions_and_paths;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::graph::{Drawing, Drawn};
use crate::output::style::{self, paint};
use crate::output::{Output, json};
use crate::place::Place;
use crate::session::{Session, here};
use crate::text;

const PAGE: i32 = 200;

/// List snapshots, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
A revision is @ (the head of this workspace), NAME@ (the head of another one), a label, or the beginning of an id; ~ or ~3
behind it goes back.

Examples:
  amalgam log -n 10
  amalgam log --graph
  amalgam log main@ try-1@ -- src/main.rs")]
pub struct Log {
    /// Where to begin, then at most one path [default: the head of this workspace]
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    /// Draw how snapshots follow from each other; of all workspaces unless revisions are given
    #[arg(long)]
    graph: bool,
    /// Snapshots of all workspaces and labels
    #[arg(long)]
    all: bool,
    /// At most so many
    #[arg(short = 'n', long = "limit", value_name = "N")]
    limit: Option<usize>,
    /// Only snapshots that changed this path
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Log {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place_if_any().await?;
        let mut client = session.client().await?;
        let (revisions, paths) =
            revisions_and_paths(session, place.as_ref(), &self.words, &self.paths, usize::MAX).await?;
        let all = self.all || (revisions.is_empty() && (self.graph || place.is_none()));
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut request = v1::ListSnapshotsRequest {
            revisions,
            workspace: here(place.as_ref()),
            all,
            page_size: PAGE,
            page_token: String::new(),
            paths: paths.clone(),
        };
        let head = place.as_ref().map(|place| place.workspace.head.clone()).unwrap_or_default();
        // With a path most snapshots are missing, and lines between the rest would be wrong.
        let drawing = (self.graph && paths.is_empty()).then(Drawing::default);
        let mut writer = Writer { drawing, head, now: session.now };
        session.output.page();
        let mut shown = 0_usize;
        while left > 0 {
            request.page_size = PAGE.min(i32::try_from(left).unwrap_or(PAGE));
            let page = client.snapshots.list_snapshots(request.clone()).await?.into_inner();
            for snapshot in page.snapshots.iter().take(left) {
                writer.write(&mut session.output, snapshot)?;
            }
            shown += page.snapshots.len();
            left = left.saturating_sub(page.snapshots.len());
            session.output.flush()?;
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        if shown == 0 {
            session.output.remark(nothing(place.as_ref(), &paths))?;
        }
        Ok(Exit::OK)
    }
}

fn nothing(place: Option<&Place>, paths: &[Bytes]) -> String {
    match (paths.first(), place) {
        (Some(path), _) => format!("no snapshot changed {}", text::path(path)),
        (None, Some(place)) => format!("{} has no snapshot yet; `amalgam commit` takes one", place.workspace_id()),
        (None, None) => "there is no snapshot yet".to_owned(),
    }
}

struct Writer {
    drawing: Option<Drawing>,
    head: String,
    now: Timestamp,
}

impl Writer {
    fn write(&mut self, output: &mut Output, snapshot: &v1::Snapshot) -> Result<(), CliError> {
        output.emit(&json::snapshot(snapshot))?;
        let lines = if output.is_verbose() { full(snapshot, self.now) } else { vec![one_line(snapshot, self.now)] };
        let Some(drawn) = self.draw(snapshot)? else {
            return lines.into_iter().try_for_each(|line| output.say(line));
        };
        let beside = std::iter::once(drawn.first).chain(drawn.turns.clone());
        let mut lines = lines.into_iter();
        // A turn needs a row even where the snapshot has no more to say.
        for left in beside {
            let line = lines.next().unwrap_or_default();
            output.say(format!("{left}{line}").trim_end())?;
        }
        lines.try_for_each(|line| output.say(format!("{}{line}", drawn.rest).trim_end()))
    }

    fn draw(&mut self, snapshot: &v1::Snapshot) -> Result<Option<Drawn>, CliError> {
        let Some(drawing) = &mut self.drawing else { return Ok(None) };
        let wrong = |error: amalgam_engine::Error| CliError::refused(error.to_string());
        let id = amalgam_proto::snapshot_id(&snapshot.name).map_err(wrong)?;
        let parents = snapshot.parents.iter().map(|parent| amalgam_proto::snapshot_id(parent));
        let parents = parents.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
        let mark = if snapshot.name == self.head { '@' } else { '○' };
        Ok(Some(drawing.row(id, &parents, mark)))
    }
}

/// The workspaces and labels that are here.
pub fn marks(snapshot: &v1::Snapshot) -> String {
    let workspaces: BTreeSet<_> = snapshot.workspaces.iter().collect();
    let labels: BTreeSet<_> = snapshot.labels.iter().collect();
    let workspaces = workspaces.into_iter().map(|name| paint(style::WORKSPACE, text::id(name)));
    let labels = labels.into_iter().map(|name| paint(style::LABEL, text::id(name)));
    let marks: Vec<_> = workspaces.chain(labels).collect();
    if marks.is_empty() { String::new() } else { format!("({}) ", marks.join(", ")) }
}

/// A snapshot in one line.
pub fn one_line(snapshot: &v1::Snapshot, now: Timestamp) -> String {
    let id = paint(style::ID, text::short(&snapshot.name));
    let age = paint(style::FAINT, text::ago(text::moment(snapshot.time.as_ref()), now));
    let thinned = match (snapshot.thinned, snapshot.without_caches) {
        (true, _) => " [tree dropped]",
        (_, true) => " [caches not kept]",
        _ => "",
    };
    let message = match text::first_line(&snapshot.message) {
        message if message.is_empty() => paint(style::FAINT, "(no message)"),
        message => message.into_owned(),
    };
    let conflicts = match snapshot.conflicts {
        0 => String::new(),
        count => format!(" [{}]", paint(style::WARNING, text::plural(count, "conflict"))),
    };
    format!("{id}  {}{message}  {age}{thinned}{conflicts}", marks(snapshot))
}

/// A snapshot in full.
pub fn full(snapshot: &v1::Snapshot, now: Timestamp) -> Vec<String> {
    let time = text::moment(snapshot.time.as_ref());
    let mut lines = vec![
        format!("{} {}", paint(style::ID, format!("snapshot {}", text::id(&snapshot.name))), marks(snapshot))
            .trim_end()
            .to_owned(),
        format!("Author:  {}", text::printable(&snapshot.author)),
        format!("Time:    {} ({})", text::wall_clock(time), text::ago(time, now)),
    ];
    let parents: Vec<_> = snapshot.parents.iter().map(|parent| text::short(parent)).collect();
    if !parents.is_empty() {
        lines.push(format!("Parents: {}", parents.join(" ")));
    }
    let metadata: std::collections::BTreeMap<_, _> = snapshot.metadata.iter().collect();
    lines.extend(metadata.iter().map(|(key, value)| format!("{}: {}", text::printable(key), text::printable(value))));
    lines.extend(snapshot.reward.map(|reward| format!("Reward:  {reward}")));
    lines.push(String::new());
    lines.extend(snapshot.message.lines().map(|line| format!("    {}", text::printable(line))));
    if !snapshot.message.is_empty() {
        lines.push(String::new());
    }
    lines
}
