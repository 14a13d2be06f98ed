//! `amalgam radar`: which open workspaces change the same files.

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};

use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, workspace_name};
use crate::text;

/// The most ranges or keys in one line.
const SHOWN_MAX: usize = 5;
/// Overlaps in one answer of the server.
const PAGE: i32 = 500;

/// Show which open workspaces change the same files, while agents still work
#[derive(Debug, Args)]
#[command(after_help = "\
An overlap is a path that two or more workspaces have changed, in snapshots or uncommitted in a mount. Changes count since
the merge base of a workspace and its target, the workspace that it is merged into. For each pair the command shows the
common lines (or the common keys of JSON), and whether the file would merge cleanly now. Uncommitted changes in a directory
are seen once they are captured (`amalgam watch`). Nothing is changed.

Examples:
  amalgam radar
  amalgam radar -w try-1
  amalgam radar src/
  amalgam radar --watch")]
pub struct Radar {
    /// Show only paths that start with this
    #[arg(default_value = "", hide_default_value = true)]
    path: String,
    /// Show only overlaps of this workspace
    #[arg(short, long, value_name = "WORKSPACE")]
    workspace: Option<String>,
    /// Do not compare contents: no lines, no keys, no trial merges
    #[arg(long)]
    paths_only: bool,
    /// Keep running, and print overlaps as they begin and end
    #[arg(long)]
    watch: bool,
}

impl Radar {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let mut events = match self.watch {
            // Subscribe before the first listing, so that no change in between is missed.
            true => Some(self.subscribe(&mut client).await?),
            false => None,
        };
        let count = self.show(session, &mut client).await?;
        if count == 0 {
            session.output.remark("no overlaps")?;
        }
        let Some(events) = &mut events else { return Ok(Exit::OK) };
        session.output.flush()?;
        while let Some(message) = events.message().await? {
            let Some(event) = message.event else { continue };
            self.say_event(session, &event)?;
            session.output.flush()?;
        }
        Ok(Exit::OK)
    }

    async fn subscribe(&self, client: &mut Client) -> Result<tonic::Streaming<v1::SubscribeResponse>, CliError> {
        let request = v1::SubscribeRequest {
            workspaces: self.workspace.as_deref().map(workspace_name).into_iter().collect(),
            kinds: vec!["overlap.began".to_owned(), "overlap.ended".to_owned()],
            ..v1::SubscribeRequest::default()
        };
        Ok(client.events.subscribe(request).await?.into_inner())
    }

    /// Prints all overlaps. Returns their number.
    async fn show(&self, session: &mut Session, client: &mut Client) -> Result<usize, CliError> {
        let (mut count, mut page_token) = (0, String::new());
        loop {
            let request = v1::GetRadarRequest {
                workspace: self.workspace.as_deref().map(workspace_name).unwrap_or_default(),
                path_prefix: self.path.clone(),
                paths_only: self.paths_only,
                page_size: PAGE,
                page_token,
            };
            let found = client.radar.get_radar(request).await?.into_inner();
            for overlap in &found.overlaps {
                session.output.emit(&json_line(overlap))?;
                say(session, overlap)?;
            }
            count += found.overlaps.len();
            page_token = found.next_page_token;
            if page_token.is_empty() {
                for name in &found.incomplete {
                    let words = format!("{} changed more paths than the radar remembers", text::id(name));
                    session.output.remark(words)?;
                }
                return Ok(count);
            }
        }
    }

    fn say_event(&self, session: &mut Session, event: &v1::Event) -> Result<(), CliError> {
        let is_shown = |path: &&String| path.starts_with(&self.path);
        let Some(path) = event.paths.first().filter(is_shown) else { return Ok(()) };
        let workspaces: Vec<_> = event.workspaces.iter().map(|name| text::id(name)).collect();
        session.output.emit(&lines::line(
            "overlap_event",
            json!({
                "kind": event.kind,
                "path": path,
                "workspaces": workspaces,
                "time": lines::time(event.time.as_ref()),
                "position": event.position,
            }),
        ))?;
        let began = event.kind == "overlap.began";
        let (style, word) = if began { (style::REMOVED, "overlap") } else { (style::ADDED, "ended  ") };
        session.output.say(format!("{} {}  {}", paint(style, word), text::printable(path), workspaces.join(", ")))
    }
}

fn say(session: &mut Session, overlap: &v1::Overlap) -> Result<(), CliError> {
    let now = session.now;
    let output = &mut session.output;
    output.say(paint(style::WORKSPACE, text::printable(&overlap.path)))?;
    for side in &overlap.sides {
        let agent = match side.agent.is_empty() {
            true => String::new(),
            false => format!(" ({})", text::printable(&side.agent)),
        };
        let ago = text::ago(text::timestamp(side.since.as_ref()), now);
        let state = if side.uncommitted { ", uncommitted" } else { "" };
        output.say(format!("  {}{agent}  since {ago}{state}", text::id(&side.workspace)))?;
    }
    for pair in &overlap.pairs {
        let (left, right) = (text::id(&pair.left), text::id(&pair.right));
        let words = format!("  {left} and {right}: {}; {}", common(pair), merges(&pair.merge));
        let style = if pair.merge == "conflict" { style::REMOVED } else { style::FAINT };
        output.say(paint(style, words))?;
    }
    Ok(())
}

fn common(pair: &v1::OverlapPair) -> String {
    let listed = |all: Vec<String>| {
        let more = if all.len() > SHOWN_MAX { ", ..." } else { "" };
        format!("{}{more}", all.into_iter().take(SHOWN_MAX).collect::<Vec<_>>().join(", "))
    };
    match pair.kind.as_str() {
        "lines" => {
            let range = |range: &v1::LineRange| match range {
                v1::LineRange { first, last } if last > first => format!("{first}-{last}"),
                v1::LineRange { first, .. } => first.to_string(),
            };
            format!("the same lines ({})", listed(pair.lines.iter().map(range).collect()))
        }
        "keys" => format!(
            "the same keys ({})",
            listed(pair.keys.iter().map(|key| text::printable(key).to_string()).collect())
        ),
        "same" => "the same change".to_owned(),
        _ => "different parts of the file".to_owned(),
    }
}

fn merges(word: &str) -> &'static str {
    match word {
        "clean" => "would merge cleanly",
        "conflict" => "would conflict",
        _ => "it is not known whether they would merge",
    }
}

fn json_line(overlap: &v1::Overlap) -> Value {
    let side = |side: &v1::OverlapSide| {
        json!({
            "workspace": text::id(&side.workspace),
            "agent": side.agent,
            "since": lines::time(side.since.as_ref()),
            "uncommitted": side.uncommitted,
        })
    };
    let range = |range: &v1::LineRange| json!({"first": range.first, "last": range.last});
    let pair = |pair: &v1::OverlapPair| {
        json!({
            "left": text::id(&pair.left),
            "right": text::id(&pair.right),
            "kind": pair.kind,
            "lines": pair.lines.iter().map(range).collect::<Vec<_>>(),
            "keys": pair.keys,
            "merge": pair.merge,
        })
    };
    lines::line(
        "overlap",
        json!({
            "path": overlap.path,
            "since": lines::time(overlap.since.as_ref()),
            "sides": overlap.sides.iter().map(side).collect::<Vec<_>>(),
            "pairs": overlap.pairs.iter().map(pair).collect::<Vec<_>>(),
        }),
    )
}
