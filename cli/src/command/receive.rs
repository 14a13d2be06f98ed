//! `amalgam receive`: a stream of snapshots from another store.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::pipe;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::count_bytes;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;

/// Most names that are listed; the others are counted.
const NAMES_MAX: usize = 20;

/// Receive snapshots that another store sends
#[derive(Debug, Args)]
#[command(after_help = "\
Everything is verified, and nothing becomes visible before the stream has ended. If a stream breaks off, send it again:
the objects that arrived are kept. Existing workspaces and labels only move
forward to descendants of their snapshots. The store is created if it does not
exist.

Examples:
  amalgam send --all | ssh HOST amalgam receive -
  ssh HOST amalgam receive --have | amalgam send --all --since - | ssh HOST amalgam receive -
                                   only what HOST does not have
  amalgam receive main.stream
  amalgam receive main.stream --under laptop
                                   main arrives as laptop/main")]
pub struct Receive {
    /// The file to read; - is standard input
    #[arg(value_name = "FILE|-", default_value = "-")]
    file: OsString,
    /// Print a list of what this store has, for `send --since` of the sender
    #[arg(long, conflicts_with_all = ["file", "under", "no_names", "replace", "tombstones"])]
    have: bool,
    /// Prefix the names of workspaces and labels: main arrives as WORD/main
    #[arg(long, value_name = "WORD")]
    under: Option<String>,
    /// Store the snapshots, but create and move no workspaces and labels
    #[arg(long, conflicts_with = "under")]
    no_names: bool,
    /// Overwrite workspaces and labels of the same name, even if that does not move them forward
    #[arg(long)]
    replace: bool,
    /// Purge what the sender has purged, and refuse the same bytes from now on
    #[arg(long)]
    tombstones: bool,
}

impl Receive {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if self.have {
            return have(session).await;
        }
        if self.file == "-" && io::stdin().is_terminal() {
            return Err(CliError::usage("a stream is not read from a terminal")
                .hint("name a file, or pipe one: `amalgam send --all | ssh HOST amalgam receive -`"));
        }
        let path = if self.file == "-" { self.file.clone() } else { session.cwd.join(&self.file).into_os_string() };
        let source = pipe::source(&path)?;
        let mut client = session.client_of_new_store().await?;
        session.interrupts.say("what has arrived is kept; send it again to continue");
        let (pieces, reading) = pipe::pieces(source);
        let passed = Arc::new(AtomicU64::new(0));
        let result = {
            use v1::receive_snapshots_request::Event;
            let options = v1::ReceiveOptions {
                under: self.under.unwrap_or_default(),
                no_names: self.no_names,
                replace: self.replace,
                tombstones: self.tombstones,
                ..Default::default()
            };
            let message = |event| v1::ReceiveSnapshotsRequest { event: Some(event) };
            let counted = Arc::clone(&passed);
            let data = ReceiverStream::new(pieces).map(move |piece| {
                counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
                message(Event::Data(piece))
            });
            let messages = tokio_stream::once(message(Event::Options(options))).chain(data);
            count_bytes(&session.output, "receive", &passed, client.transfer.receive_snapshots(messages)).await
        };
        // To the server, a source that could not be read looks like a truncated stream: report the read error instead.
        if reading.is_finished() {
            let read = reading.await.expect("reading does not panic");
            read.map_err(|error| CliError::machine(self.file.to_string_lossy(), &error))?;
        }
        let received = result.map_err(|status| hinted(CliError::from(status)))?.into_inner();
        report(&mut session.output, &received)?;
        Ok(Exit::OK)
    }
}

async fn have(session: &mut Session) -> Outcome {
    let mut client = session.client_of_new_store().await?;
    let have = client.transfer.get_have(v1::GetHaveRequest::default()).await?.into_inner();
    let ids: Vec<_> = have.snapshots.iter().map(|name| text::id(name)).collect();
    session.output.emit(&lines::line("have", json!({"snapshots": ids})))?;
    if !session.output.is_json() {
        session.output.raw(&have.text)?;
    }
    Ok(Exit::OK)
}

fn hinted(error: CliError) -> CliError {
    if error.is(Reason::AlreadyExists) {
        return error.hint("--under WORD receives it under another name, --replace overwrites what is here");
    }
    if error.is(Reason::DamagedStream) && error.message.contains("tombstones are welcome") {
        return error.hint("pass --tombstones");
    }
    error
}

/// Returns the JSON line of a receive.
pub fn json_line(received: &v1::ReceiveSnapshotsResponse) -> Value {
    let tips: Vec<_> = received.tips.iter().map(|name| text::id(name)).collect();
    let fields = json!({
        "objects": received.objects,
        "objects_new": received.objects_new,
        "snapshots": received.snapshots,
        "names": received.names,
        "tips": tips,
        "bytes": received.bytes,
        "left_out": received.left_out.iter().map(|left| json!({"what": left.what, "why": left.why})).collect::<Vec<_>>(),
        "left_out_more": received.left_out_more,
    });
    lines::line("received", fields)
}

/// Splits a reference into its kind and its name, or returns `None` if it is neither a workspace nor a label.
fn shown_name(reference: &str) -> Option<(&str, &str)> {
    reference.split_once('/').filter(|(kind, _)| matches!(*kind, "workspace" | "label"))
}

/// Prints the result of a receive.
pub fn report(output: &mut Output, received: &v1::ReceiveSnapshotsResponse) -> Result<(), CliError> {
    output.emit(&json_line(received))?;
    output.done(format!(
        "received {}, {} ({} new, {})",
        text::plural(received.snapshots, "snapshot"),
        text::plural(received.objects, "object"),
        text::count(received.objects_new),
        text::bytes(received.bytes),
    ))?;
    let named: Vec<_> = received.names.iter().filter_map(|name| shown_name(name)).collect();
    for (kind, name) in named.iter().take(NAMES_MAX) {
        output.done(format!("  {kind} {}", paint(style::WORKSPACE, text::printable(name))))?;
    }
    if named.len() > NAMES_MAX {
        output.done(format!("  ... and {} more", text::count((named.len() - NAMES_MAX) as u64)))?;
    }
    let records = (received.names.len() - named.len()) as u64;
    if records > 0 {
        output.done(format!("  {}: notes, queued merges and the like", text::plural(records, "record")))?;
    }
    for left in &received.left_out {
        output.remark(format!("left out {}: {}", text::printable(&left.what), text::printable(&left.why)))?;
    }
    if received.left_out_more > 0 {
        output.remark(format!("left out {} more", text::count(received.left_out_more)))?;
    }
    let workspace = received.names.iter().find_map(|name| name.strip_prefix("workspace/"));
    match (workspace, received.tips.first()) {
        (Some(name), _) => output.remark(format!("`amalgam checkout {name}@ DIR --workspace {name}` gets its files")),
        (None, Some(tip)) if received.names.is_empty() && received.objects_new > 0 => {
            output.remark(format!("it has no name here: `amalgam label NAME {}` keeps it", text::short(tip)))
        }
        _ => Ok(()),
    }
}
