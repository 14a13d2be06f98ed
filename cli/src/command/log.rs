//! `amalgam log`: lists snapshots, newest first.

use std::collections::BTreeSet;
use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use jiff::Timestamp;
use tonic::codegen::Bytes;

use super::diff::{self, Comparison, DiffFormat};
use super::revisions::{RevisionLimits, neither_error, snapshot, split_revisions_and_paths};
use crate::attached::AttachedDirectory;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::hooks::payload::AGENT_KEY;
use crate::output::graph::{Drawing, Drawn};
use crate::output::style::{self, paint};
use crate::output::{Output, json};
use crate::session::{Session, current_workspace};
use crate::text;

const PAGE_SIZE: i32 = 200;

/// List snapshots, newest first
#[derive(Debug, Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "\
Without a revision, the command lists the last snapshot of this workspace and its ancestors. With --graph, it lists
those of all workspaces that share history with this one. A range A..B lists B and its ancestors, without A and the
ancestors of A. `amalgam help revisions` explains how snapshots are named.

Examples:
  amalgam log -5
  amalgam log --stat main..
  amalgam log -p src/main.rs
  amalgam log --graph"
)]
pub struct Log {
    /// Where to begin [default: the head of this workspace], or a range; then at most one path
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    /// Draw a graph of snapshots and their parents; without a revision, of all workspaces that share history
    #[arg(long)]
    graph: bool,
    /// List snapshots of all workspaces and labels of the store
    #[arg(long)]
    all: bool,
    /// List only snapshots that the hooks of coding agents took
    #[arg(long, conflicts_with = "graph")]
    agent: bool,
    /// List at most N snapshots [default: all]; -5 is short for -n 5
    #[arg(short = 'n', long = "limit", value_name = "N")]
    limit: Option<usize>,
    /// Print one line for each snapshot; the default without -v, --stat, --patch and the like
    #[arg(long)]
    oneline: bool,
    #[command(flatten)]
    form: DiffFormat,
    /// List only snapshots that changed this path
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Log {
    /// Runs the command.
    pub async fn run(mut self, session: &mut Session) -> Outcome {
        self.take_number()?;
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let wanted = RevisionLimits { revisions_max: usize::MAX, ranges: true };
        let words = split_revisions_and_paths(session, place.as_ref(), &self.words, &self.paths, wanted).await?;
        let mut revisions = words.revisions;
        revisions.extend(words.ranges.iter().map(|range| range.to.clone()));
        let mut exclude = Vec::new();
        for range in &words.ranges {
            // By its id, so that a workspace that moves meanwhile does not shift the pages.
            exclude.push(text::id(&snapshot(&mut client, place.as_ref(), &range.from).await?.name).to_owned());
        }
        let is_free = revisions.is_empty() && !self.all;
        let mut request = v1::ListSnapshotsRequest {
            all: self.all || (is_free && place.is_none()),
            project: is_free && self.graph && place.is_some(),
            revisions,
            workspace: current_workspace(place.as_ref()),
            page_size: PAGE_SIZE,
            page_token: String::new(),
            paths: words.paths.clone(),
            exclude,
        };
        let head = place.as_ref().map(|place| place.workspace.head.clone()).unwrap_or_default();
        // With a path most snapshots are missing, and lines between the rest would be wrong.
        let drawing = (self.graph && words.paths.is_empty()).then(Drawing::default);
        let shows_changes = self.form.is_asked_for();
        let in_full = !self.oneline && (session.output.is_verbose() || shows_changes);
        let mut writer = Writer { drawing, head, in_full, now: session.now };
        session.output.page();
        let mut left = self.limit.unwrap_or(usize::MAX);
        let mut shown = 0_usize;
        while left > 0 {
            if !self.agent {
                request.page_size = PAGE_SIZE.min(i32::try_from(left).unwrap_or(PAGE_SIZE));
            }
            let page = client.snapshots.list_snapshots(request.clone()).await?.into_inner();
            let is_wanted = |snapshot: &&v1::Snapshot| !self.agent || snapshot.metadata.contains_key(AGENT_KEY);
            let wanted: Vec<_> = page.snapshots.iter().filter(is_wanted).take(left).collect();
            shown += wanted.len();
            left -= wanted.len();
            for snapshot in wanted {
                writer.write(&mut session.output, snapshot)?;
                if shows_changes && !snapshot.thinned {
                    let sides = Comparison::of_snapshot(snapshot, words.paths.clone());
                    diff::show(&mut session.output, &mut client, &sides, &self.form).await?;
                    session.output.say("")?;
                }
            }
            session.output.flush()?;
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() {
                break;
            }
        }
        match words.doubtful {
            Some((word, error)) if shown == 0 => return Err(neither_error(&word, &error)),
            _ if shown == 0 && self.limit != Some(0) => {
                session.output.remark(nothing(place.as_ref(), &words.paths, !request.exclude.is_empty()))?
            }
            _ => {}
        }
        Ok(Exit::OK)
    }

    /// Takes a word such as `-5` as the number of snapshots.
    fn take_number(&mut self) -> Result<(), CliError> {
        let number = |word: &OsString| word.to_str()?.strip_prefix('-')?.parse::<usize>().ok();
        let mut numbers = self.words.iter().filter_map(number);
        let Some(found) = numbers.next() else { return Ok(()) };
        if let Some(other) = numbers.find(|other| *other != found) {
            return Err(CliError::usage(format!("-{found} and -{other} are two numbers")));
        }
        self.words.retain(|word| number(word).is_none());
        match self.limit {
            Some(limit) if limit != found => Err(CliError::usage(format!("-n {limit} and -{found} are two numbers"))),
            _ => {
                self.limit = Some(found);
                Ok(())
            }
        }
    }
}

fn nothing(place: Option<&AttachedDirectory>, paths: &[Bytes], is_range: bool) -> String {
    match (paths.first(), place) {
        (None, _) if is_range => "no snapshot is in this range".to_owned(),
        (Some(path), _) => format!("no snapshot changed {}", text::path(path)),
        (None, Some(place)) => format!("{} has no snapshot yet; `amalgam commit` takes one", place.workspace_id()),
        (None, None) => "there is no snapshot yet".to_owned(),
    }
}

struct Writer {
    drawing: Option<Drawing>,
    head: String,
    /// Whether each snapshot is printed in full instead of in one line.
    in_full: bool,
    now: Timestamp,
}

impl Writer {
    fn write(&mut self, output: &mut Output, snapshot: &v1::Snapshot) -> Result<(), CliError> {
        output.emit(&json::snapshot(snapshot))?;
        let lines = if self.in_full { full(snapshot, self.now) } else { vec![one_line(snapshot, self.now)] };
        let Some(drawn) = self.draw(snapshot)? else {
            return lines.into_iter().try_for_each(|line| output.say(line));
        };
        let beside = std::iter::once(drawn.first).chain(drawn.turns.clone());
        let mut lines = lines.into_iter();
        // A turn of the graph needs a row even if the snapshot has no line left for it.
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

/// Maximum number of workspaces, and of labels, that a line names.
const MARKS_MAX: usize = 5;

/// Lists the workspaces and labels of a snapshot, at most [`MARKS_MAX`] of each. Returns an empty string if there are none.
pub fn marks(snapshot: &v1::Snapshot) -> String {
    let workspaces: BTreeSet<_> = snapshot.workspaces.iter().collect();
    let labels: BTreeSet<_> = snapshot.labels.iter().collect();
    let more = (workspaces.len().saturating_sub(MARKS_MAX) + labels.len().saturating_sub(MARKS_MAX)) as u64;
    let workspaces = workspaces.into_iter().take(MARKS_MAX).map(|name| paint(style::WORKSPACE, name));
    let labels = labels.into_iter().take(MARKS_MAX).map(|name| paint(style::LABEL, name));
    let more = (more > 0).then(|| format!("+{} more", text::count(more)));
    let marks: Vec<_> = workspaces.chain(labels).chain(more).collect();
    if marks.is_empty() { String::new() } else { format!("({}) ", marks.join(", ")) }
}

/// Describes a snapshot in one line.
pub fn one_line(snapshot: &v1::Snapshot, now: Timestamp) -> String {
    let id = paint(style::ID, text::short(&snapshot.name));
    let age = paint(style::FAINT, text::ago(text::timestamp(snapshot.time.as_ref()), now));
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

/// Describes a snapshot in full: id, author, time, parents, metadata and message.
pub fn full(snapshot: &v1::Snapshot, now: Timestamp) -> Vec<String> {
    let time = text::timestamp(snapshot.time.as_ref());
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
