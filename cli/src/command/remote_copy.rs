//! Copies a workspace or a label between two stores, by difference: the common part of `push`, `pull` and `clone`.
//!
//! The sender leaves out what the receiver has. The receiver moves names only forward, so nothing is ever overwritten. A copy
//! that broke off left whole snapshots in the receiver, and the next one goes on behind them.

use amalgam_proto::{Reason, v1};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Bytes;

use crate::config::{NamedKey, find_key};
use crate::connect::Client;
use crate::contexts::Contexts;
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::progress::drive_pieces;
use crate::output::{Output, json as lines};
use crate::remote::Server;
use crate::session::{Session, workspace_name};
use crate::text;

/// Snapshots of a history that the receiver is asked about.
const CANDIDATES: i32 = 1_000;
/// Pieces of a stream that wait for the receiver.
const QUEUE: usize = 16;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A workspace.
    Workspace,
    /// A label.
    Label,
}

impl NameKind {
    fn word(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Label => "label",
        }
    }
}

/// A workspace or a label, with its snapshot.
#[derive(Clone, Debug)]
pub struct NamedHead {
    /// Which of them it is.
    pub kind: NameKind,
    /// Its name, as people write it.
    pub name: String,
    /// The snapshot, `snapshots/{hex}`; empty for a workspace without one.
    pub head: String,
    /// The directories on this machine that belong to the workspace.
    pub directories: Vec<v1::WorkspaceDirectory>,
}

impl NamedHead {
    /// Kind and name, for people.
    pub fn words(&self) -> String {
        format!("{} {}", self.kind.word(), text::printable(&self.name))
    }

    /// The revision that a stream takes together with its name.
    fn revision(&self) -> String {
        match self.kind {
            NameKind::Workspace => format!("{}@", self.name),
            NameKind::Label => self.name.clone(),
        }
    }
}

/// Finds a workspace or, if there is none, a label. `NAME@` is a workspace.
pub async fn find(client: &mut Client, word: &str) -> Result<Option<NamedHead>, CliError> {
    if let Some(name) = word.strip_suffix('@') {
        return find_kind(client, NameKind::Workspace, name).await;
    }
    match find_kind(client, NameKind::Workspace, word).await? {
        Some(found) => Ok(Some(found)),
        None => find_kind(client, NameKind::Label, word).await,
    }
}

/// Finds a workspace or a label.
pub async fn find_kind(client: &mut Client, kind: NameKind, name: &str) -> Result<Option<NamedHead>, CliError> {
    match kind {
        NameKind::Workspace => {
            let request = v1::GetWorkspaceRequest { name: workspace_name(name) };
            let found = match client.workspaces.get_workspace(request).await.map_err(CliError::from) {
                Ok(found) => found.into_inner().workspace.unwrap_or_default(),
                Err(error) if error.is(Reason::NotFound) => return Ok(None),
                Err(error) => return Err(error),
            };
            let v1::Workspace { head, directories, .. } = found;
            Ok(Some(NamedHead { kind, name: name.to_owned(), head, directories }))
        }
        NameKind::Label => {
            let request = v1::ListLabelsRequest { prefix: name.to_owned(), page_size: 1, page_token: String::new() };
            // The first of those that begin like it is the label itself.
            let labels = client.snapshots.list_labels(request).await?.into_inner().labels;
            let found = labels.into_iter().find(|label| text::id(&label.name) == name);
            Ok(found.map(|label| NamedHead {
                kind,
                name: name.to_owned(),
                head: label.snapshot,
                directories: Vec::new(),
            }))
        }
    }
}

/// The error for a name that the sender does not have.
pub fn not_found(word: &str, place: &str) -> CliError {
    let message = format!("there is no workspace and no label `{}` in {place}", text::printable(word));
    CliError::new(Exit::ERROR, Reason::NotFound.word(), message)
}

/// Adds the next step to the error of a copy that holds purged contents.
pub fn hinted(error: CliError) -> CliError {
    match error.is(Reason::DamagedStream) && error.message.contains("tombstones are welcome") {
        true => error.hint("pass --tombstones"),
        false => error,
    }
}

/// The server to push to or to pull from: the one that is named, that of the workspace, the current context, or the only one.
pub fn choose_server(session: &Session, named: Option<Server>, workspace: &str) -> Result<Server, CliError> {
    if let Some(server) = named {
        return Ok(server);
    }
    let contexts = Contexts::load()?;
    let names = contexts.names();
    let word = match (stored_server(session, workspace)?, contexts.current(), names.as_slice()) {
        (Some(word), ..) => word,
        (None, Some(current), _) => current.to_owned(),
        (None, None, [only]) => only.clone(),
        (None, None, []) => {
            return Err(CliError::usage("no server is known").hint("`amalgam login URL`, or --server URL"));
        }
        (None, None, _) => {
            let message = format!("there are several servers: {}", names.join(", "));
            return Err(CliError::usage(message).hint("name one with --server"));
        }
    };
    let local =
        || CliError::usage(format!("`{word}` is the store of this machine")).hint("name a server with --server");
    contexts.resolve(&word)?.ok_or_else(local)
}

/// The setting with the server of a workspace, or of all.
fn server_key(workspace: Option<&str>) -> Result<NamedKey, CliError> {
    let named = find_key("workspace.server")?;
    Ok(NamedKey { workspace: workspace.map(str::to_owned), ..named })
}

/// The server that the settings name for a workspace.
fn stored_server(session: &Session, workspace: &str) -> Result<Option<String>, CliError> {
    let of_workspace = session.config.shown(&server_key(Some(workspace))?);
    Ok(of_workspace.or(session.config.shown(&server_key(None)?)))
}

/// Stores the server that a workspace is pushed to and pulled from.
pub fn store_server(session: &mut Session, workspace: &str, server: &Server) -> Result<(), CliError> {
    session.config.set(&server_key(Some(workspace))?, &[server.url.to_string()])?;
    session.config.save()
}

/// How the snapshots of two sides relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are the same.
    Same,
    /// The sender's comes after the receiver's, or the receiver has none.
    Forward,
    /// The receiver's comes after the sender's.
    Behind,
    /// Each side has snapshots that the other one does not have.
    Diverged,
}

/// How the sender's snapshot relates to the receiver's. Asks the side that may know both.
pub async fn relation(knows: &mut Client, sender: &str, receiver: &str) -> Result<Relation, CliError> {
    if receiver.is_empty() || sender == receiver {
        return Ok(if sender == receiver { Relation::Same } else { Relation::Forward });
    }
    let request = v1::GetHaveRequest { snapshots: vec![sender.to_owned(), receiver.to_owned()] };
    if knows.transfer.get_have(request).await?.into_inner().snapshots.len() < 2 {
        return Ok(Relation::Diverged);
    }
    if is_ancestor(knows, receiver, sender).await? {
        return Ok(Relation::Forward);
    }
    match is_ancestor(knows, sender, receiver).await? {
        true => Ok(Relation::Behind),
        false => Ok(Relation::Diverged),
    }
}

/// Whether a snapshot led to another one.
async fn is_ancestor(client: &mut Client, older: &str, newer: &str) -> Result<bool, CliError> {
    let request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(older).to_owned()],
        exclude: vec![text::id(newer).to_owned()],
        page_size: 1,
        ..Default::default()
    };
    Ok(client.snapshots.list_snapshots(request).await?.into_inner().snapshots.is_empty())
}

/// The latest snapshots of the sender's history that the receiver has, named there or not; without any, all that names hold there.
pub async fn common(from: &mut Client, to: &mut Client, head: &str) -> Result<v1::GetHaveResponse, CliError> {
    let request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(head).to_owned()],
        page_size: CANDIDATES,
        ..Default::default()
    };
    let history = from.snapshots.list_snapshots(request).await?.into_inner().snapshots;
    let snapshots = history.into_iter().map(|snapshot| snapshot.name).collect();
    let have = to.transfer.get_have(v1::GetHaveRequest { snapshots }).await?.into_inner();
    match have.snapshots.is_empty() {
        true => Ok(to.transfer.get_have(v1::GetHaveRequest::default()).await?.into_inner()),
        false => Ok(have),
    }
}

/// The result of a copy.
#[derive(Debug)]
pub struct Copied {
    /// The counts of the sender.
    pub sent: v1::SendResult,
    /// The counts of the receiver, and the names that it set.
    pub received: v1::ReceiveSnapshotsResponse,
}

impl Copied {
    /// The counts of the sender, for people.
    pub fn words(&self) -> String {
        let sent = &self.sent;
        format!(
            "{}, {} ({})",
            text::plural(sent.snapshots, "snapshot"),
            text::plural(sent.objects, "object"),
            text::bytes(sent.bytes)
        )
    }
}

/// The JSON line of a push or a pull. Without a copy nothing was to be sent.
pub fn json_line(kind: &str, named: &NamedHead, server: &Server, copied: Option<&Copied>) -> Value {
    let sent = copied.map(|copied| copied.sent).unwrap_or_default();
    let names = copied.map_or(&[][..], |copied| &copied.received.names);
    lines::line(
        kind,
        json!({
            "kind": named.kind.word(),
            "name": named.name,
            "snapshot": text::id(&named.head),
            "server": server.url.to_string(),
            "changed": !names.is_empty(),
            "names": names,
            "snapshots": sent.snapshots,
            "objects": sent.objects,
            "objects_new": copied.map_or(0, |copied| copied.received.objects_new),
            "bytes": sent.bytes,
        }),
    )
}

/// Sends a workspace or a label from one store to the other, without what the receiver has.
pub async fn copy(
    output: &Output,
    (from, to): (&mut Client, &mut Client),
    named: &NamedHead,
    have: Bytes,
    options: &v1::ReceiveOptions,
) -> Result<Copied, CliError> {
    use v1::receive_snapshots_request::Event;
    let request = v1::SendSnapshotsRequest { revisions: vec![named.revision()], have, ..Default::default() };
    let message = |event| v1::ReceiveSnapshotsRequest { event: Some(event) };
    let (pieces, arriving) = mpsc::channel::<Bytes>(QUEUE);
    let data = ReceiverStream::new(arriving).map(move |piece| message(Event::Data(piece)));
    let messages = tokio_stream::once(message(Event::Options(options.clone()))).chain(data);
    let send = async {
        let sent = drive_pieces(output, from.transfer.send_snapshots(request), &pieces).await;
        // The end of the pieces is the end of the stream.
        drop(pieces);
        sent
    };
    let (sent, received) = tokio::join!(send, to.transfer.receive_snapshots(messages));
    match (sent, received) {
        (Ok(sent), Ok(received)) => Ok(Copied { sent, received: received.into_inner() }),
        // A sender that failed cuts the stream, which the receiver reports in its own words.
        (Err(Some(error)), _) => Err(error),
        (_, Err(status)) => Err(status.into()),
        (Err(None), Ok(_)) => Err(CliError::refused("the stream ended before everything was sent")),
    }
}
