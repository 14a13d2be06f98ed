//! `amalgam send`: snapshots as a stream, for another store.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};

use amalgam_proto::v1;
use clap::Args;
use serde_json::{Value, json};
use tonic::codegen::Bytes;

use super::pipe::{self, Target};
use super::revisions::text_of;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::progress::drive_pieces;
use crate::session::{Session, current_workspace};
use crate::text;

/// Most bytes of a list of a receiver's snapshots. The list and the other fields are one message, of at most 64 MiB. That is
/// a little less than the 2^20 lines that the sender reads.
const HAVE_BYTES_MAX: u64 = 63 << 20;

/// Send snapshots to another store, as a stream of bytes
#[derive(Debug, Args)]
#[command(after_help = "\
A workspace (main@) or a label is sent with its name and its whole history. Without arguments, the workspace of this
directory is sent. Other revisions are sent with their history, but without a name.

Examples:
  amalgam send --all | ssh HOST amalgam receive -
  ssh HOST amalgam receive --have | amalgam send --all --since - | ssh HOST amalgam receive -
                                   only what HOST does not have
  amalgam send main@ v1 -o main.stream
  amalgam send main@ --since v1 -o since-v1.stream")]
pub struct Send {
    /// Workspaces, labels or other revisions to send [default: @]
    #[arg(value_name = "REV")]
    revisions: Vec<String>,
    /// Send everything: all workspaces, labels, and notes on snapshots
    #[arg(long, conflicts_with = "revisions")]
    all: bool,
    /// Leave out what the receiver has: a file (- is standard input) with its `receive --have`, or a revision; repeatable
    #[arg(long, value_name = "FILE|REV")]
    since: Vec<OsString>,
    /// The file to write [default: standard output]
    #[arg(short, long, value_name = "FILE|-")]
    output: Option<OsString>,
}

impl Send {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let target = self.output.clone().unwrap_or_else(|| "-".into());
        let is_piped = target == "-";
        if is_piped && self.output.is_none() && io::stdout().is_terminal() {
            return Err(CliError::usage("a stream is not written to a terminal")
                .hint("pass -o FILE, or pipe it: `amalgam send --all | ssh HOST amalgam receive -`"));
        }
        if is_piped && session.output.is_json() {
            return Err(
                CliError::usage("the stream takes standard output, where JSON lines would go").hint("pass -o FILE")
            );
        }
        let place = session.attached_directory_if_any().await?;
        let mut request = v1::SendSnapshotsRequest {
            revisions: self.revisions,
            workspace: current_workspace(place.as_ref()),
            all: self.all,
            ..Default::default()
        };
        if !request.all && request.revisions.is_empty() {
            if place.is_none() {
                return Err(CliError::usage("nothing is named, and this directory belongs to no workspace")
                    .hint("name workspaces or labels, or pass --all"));
            }
            request.revisions.push("@".to_owned());
        }
        for since in &self.since {
            match have(session, since).await? {
                Some(_) if !request.have.is_empty() => {
                    return Err(CliError::usage("one list of what the receiver has is enough"));
                }
                Some(have) => request.have = have,
                None => request.since_revisions.push(text_of(since)?.to_owned()),
            }
        }
        let mut client = session.client().await?;
        let (pieces, target) = Target::open(&target)?;
        let sent =
            drive_pieces(session.output.shows_progress(), client.transfer.send_snapshots(request), &pieces).await;
        drop(pieces);
        let finished = target.finish(sent.is_ok()).await;
        let sent = match (sent, finished) {
            (Err(Some(error)), _) | (_, Err(error)) => return Err(error),
            (Err(None), Ok(())) => return Err(CliError::refused("the stream could not be written")),
            (Ok(sent), Ok(())) => sent,
        };
        session.output.emit(&json_line(&sent))?;
        let words = format!("sent {}", words(&sent));
        if is_piped {
            session.output.remark(words)?
        } else {
            session.output.done(words)?
        }
        Ok(Exit::OK)
    }
}

/// Reads the list of the receiver's snapshots, if an argument names a file and no revision.
async fn have(session: &Session, word: &OsStr) -> Result<Option<Bytes>, CliError> {
    let path = session.cwd.join(word);
    let from = match word {
        word if word == "-" => pipe::source(word)?,
        _ if path.is_file() => pipe::source(path.as_os_str())?,
        _ => return Ok(None),
    };
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        from.take(HAVE_BYTES_MAX + 1).read_to_end(&mut bytes).map(|_| bytes)
    });
    let shown = if word == "-" { "standard input".into() } else { word.to_string_lossy() };
    let bytes = read.await.expect("reading does not panic").map_err(|error| CliError::machine(&shown, &error))?;
    if !bytes.starts_with(b"amalgam have ") {
        return Err(CliError::usage(format!("{shown} does not hold a list of what a store has"))
            .hint("`amalgam receive --have` prints one on the other side"));
    }
    if bytes.len() as u64 > HAVE_BYTES_MAX {
        let message = format!("the list in {shown} is longer than {}", text::bytes(HAVE_BYTES_MAX));
        return Err(CliError::usage(message).hint("leave lines out; the snapshots of those lines are sent"));
    }
    Ok(Some(Bytes::from(bytes)))
}

/// Returns the JSON line of a send.
pub fn json_line(sent: &v1::SendResult) -> Value {
    let fields = json!({
        "objects": sent.objects,
        "snapshots": sent.snapshots,
        "thinned": sent.thinned,
        "names": sent.names,
        "bytes": sent.bytes,
    });
    lines::line("sent", fields)
}

/// Describes the result of a send.
pub fn words(sent: &v1::SendResult) -> String {
    format!(
        "{}, {}, {} ({})",
        text::plural(sent.snapshots, "snapshot"),
        text::plural(sent.names, "name"),
        text::plural(sent.objects, "object"),
        text::bytes(sent.bytes),
    )
}
