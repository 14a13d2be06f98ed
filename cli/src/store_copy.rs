//! Copies a workspace or a label between two stores, by difference: the common part of `push`, `pull`, `clone` and the sync with
//! remotes.
//!
//! The sender leaves out what the receiver has. The receiver moves names only forward, so nothing is ever overwritten. A copy
//! that broke off left whole snapshots in the receiver, and the next one goes on behind them.

use amalgam_proto::{Reason, v1};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::Bytes;

use crate::connect::Client;
use crate::error::CliError;
use crate::output::progress::drive_pieces;
use crate::session::workspace_name;
use crate::text;

/// Snapshots of a history in one question to the receiver.
const CANDIDATES: i32 = 1_000;
/// Most questions to the receiver about one history. An interrupted copy that is further back starts again.
const QUESTIONS_MAX: usize = 100;
/// Most pieces of a stream that wait for the receiver.
const QUEUE: usize = 16;

/// The kind of a named head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameKind {
    /// A workspace.
    Workspace,
    /// A label.
    Label,
}

impl NameKind {
    /// Returns the word for the kind.
    pub fn word(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Label => "label",
        }
    }
}

/// A workspace or a label, with its snapshot.
#[derive(Clone, Debug)]
pub struct NamedHead {
    /// Whether it is a workspace or a label.
    pub kind: NameKind,
    /// The name without `workspaces/` or `labels/`.
    pub name: String,
    /// The snapshot, `snapshots/{hex}`; empty for a workspace without one.
    pub head: String,
    /// The directories on this machine that belong to the workspace.
    pub directories: Vec<v1::WorkspaceDirectory>,
}

impl NamedHead {
    /// Describes kind and name for people.
    pub fn words(&self) -> String {
        format!("{} {}", self.kind.word(), text::printable(&self.name))
    }

    /// Returns the revision that makes a stream carry the name, too.
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
            // Labels are sorted, so an exact match is the first one with the prefix.
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

/// How the snapshots of two sides relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// They are the same.
    Same,
    /// The sender's snapshot is a descendant of the receiver's, or the receiver has none.
    Forward,
    /// The receiver's snapshot is a descendant of the sender's.
    Behind,
    /// Each side has snapshots that the other one does not have.
    Diverged,
}

/// Determines how the sender's snapshot relates to the receiver's, by the history of `knows`; `Diverged` if it lacks one of them.
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

/// Returns whether `older` is `newer` or one of its ancestors.
pub async fn is_ancestor(client: &mut Client, older: &str, newer: &str) -> Result<bool, CliError> {
    let request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(older).to_owned()],
        exclude: vec![text::id(newer).to_owned()],
        page_size: 1,
        ..Default::default()
    };
    Ok(client.snapshots.list_snapshots(request).await?.into_inner().snapshots.is_empty())
}

/// Returns the latest snapshots of the sender's history that the receiver has, named there or not. If it has none of them, returns
/// all snapshots that have names there.
pub async fn common(from: &mut Client, to: &mut Client, head: &str) -> Result<v1::GetHaveResponse, CliError> {
    common_since(from, to, head, "").await
}

/// Returns the latest snapshots of the sender's history that the receiver has, like [`common`], among those after the snapshot
/// `shared`, which both have. Walks back until the receiver has a snapshot, so that an interrupted copy continues where it stopped.
pub async fn common_since(
    from: &mut Client,
    to: &mut Client,
    head: &str,
    shared: &str,
) -> Result<v1::GetHaveResponse, CliError> {
    let shared = (!shared.is_empty()).then(|| shared.to_owned());
    let mut request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(head).to_owned()],
        exclude: shared.iter().map(|shared| text::id(shared).to_owned()).collect(),
        page_size: CANDIDATES,
        ..Default::default()
    };
    let mut have = v1::GetHaveResponse::default();
    for _ in 0..QUESTIONS_MAX {
        let page = from.snapshots.list_snapshots(request.clone()).await?.into_inner();
        let snapshots: Vec<_> =
            page.snapshots.into_iter().map(|snapshot| snapshot.name).chain(shared.clone()).collect();
        // An empty request would ask for all named snapshots.
        if !snapshots.is_empty() {
            have = to.transfer.get_have(v1::GetHaveRequest { snapshots }).await?.into_inner();
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() || have.snapshots.iter().any(|found| Some(found) != shared.as_ref()) {
            break;
        }
    }
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
    /// Describes the numbers of sent snapshots, objects and bytes.
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

/// The workspace or the label to copy.
#[derive(Clone, Copy, Debug)]
pub struct CopySource<'a> {
    /// Its name and its snapshot.
    pub named: &'a NamedHead,
    /// Whether the copy fails with STALE_HEAD if the name has moved to another snapshot meanwhile.
    pub expected: bool,
}

/// Sends a workspace or a label from one store to another, without the objects that the receiver has.
pub async fn copy(
    shows_progress: bool,
    (from, to): (&mut Client, &mut Client),
    source: &CopySource<'_>,
    have: Bytes,
    options: &v1::ReceiveOptions,
) -> Result<Copied, CliError> {
    use v1::receive_snapshots_request::Event;
    let request = v1::SendSnapshotsRequest {
        revisions: vec![source.named.revision()],
        have,
        expected_head: if source.expected { source.named.head.clone() } else { String::new() },
        ..Default::default()
    };
    let message = |event| v1::ReceiveSnapshotsRequest { event: Some(event) };
    let (pieces, arriving) = mpsc::channel::<Bytes>(QUEUE);
    let data = ReceiverStream::new(arriving).map(move |piece| message(Event::Data(piece)));
    let messages = tokio_stream::once(message(Event::Options(options.clone()))).chain(data);
    let send = async {
        let sent = drive_pieces(shows_progress, from.transfer.send_snapshots(request), &pieces).await;
        // Dropping the sender of pieces ends the stream.
        drop(pieces);
        sent
    };
    let (sent, received) = tokio::join!(send, to.transfer.receive_snapshots(messages));
    match (sent, received) {
        (Ok(sent), Ok(received)) => Ok(Copied { sent, received: received.into_inner() }),
        // A failed sender truncates the stream, about which the receiver complains, too: the first error is the cause.
        (Err(Some(error)), _) => Err(error),
        (_, Err(status)) => Err(status.into()),
        // The receiver answers a retried request without reading its stream.
        (Err(None), Ok(received)) if !options.request_id.is_empty() => {
            Ok(Copied { sent: v1::SendResult::default(), received: received.into_inner() })
        }
        (Err(None), Ok(_)) => Err(CliError::refused("the stream ended before everything was sent")),
    }
}
