//! The gRPC methods of `TransferService`: transfers, backups and purges.
//!
//! The library reads and writes plain streams on a blocking thread. Their pieces pass through a bounded channel, so the faster side
//! waits for the slower one.

pub(super) mod bridge;
mod purge;

use std::collections::HashSet;
use std::sync::atomic::Ordering::Relaxed;

use amalgam_engine::SnapshotId;
use amalgam_engine::reference::RefName;
use amalgam_engine::workspace::LabelName;
use amalgam_materializer::remove_tree;
use amalgam_proto::v1::transfer_service_server::TransferService;
use amalgam_proto::{Reason, snapshot_name, v1};
use amalgam_transfer::{
    Have, Names, Progress, ReceiveOptions, ReceiveReport, Selection, SendOptions, SendReport, backup, have, have_of,
    receive, restore_backup, send, verify_backup,
};
use bytes::Bytes;
use tonic::{Request, Response, Status, Streaming};

use super::{Answers, Api, Sender, Watched, actor};
use crate::calls::Kind;
use crate::error::{Error, Result};
use crate::host_path::host_path;
use crate::messages::Phase;
use crate::service::Service;
use bridge::{Pieces, STALL_MAX, arriving};

type Answer<T> = Result<Response<T>, Status>;

impl Watched for Progress {
    fn message(&self, phase: Phase) -> v1::Progress {
        v1::Progress { phase: phase.word().to_owned(), bytes: self.bytes.load(Relaxed), ..v1::Progress::default() }
    }

    fn stop(&self) {
        self.cancel();
    }
}

#[tonic::async_trait]
impl TransferService for Api {
    type SendSnapshotsStream = Answers<v1::SendSnapshotsResponse>;
    type BackUpStoreStream = Answers<v1::BackUpStoreResponse>;
    type RestoreBackupStream = Answers<v1::RestoreBackupResponse>;
    type PlanPurgeStream = Answers<v1::PlanPurgeResponse>;
    type PurgeContentStream = Answers<v1::PurgeContentResponse>;

    async fn get_have(&self, request: Request<v1::GetHaveRequest>) -> Answer<v1::GetHaveResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| {
            let have = match request.snapshots.as_slice() {
                [] => have(&service.context.store)?,
                names if names.len() > Have::CANDIDATES_MAX => {
                    let message = format!("ask about at most {} snapshots at once", Have::CANDIDATES_MAX);
                    return Err(Error::new(Reason::Invalid, message));
                }
                names => have_of(&service.context.store, &snapshot_ids(names)?)?,
            };
            let snapshots = have.snapshots.iter().copied().map(snapshot_name).collect();
            Ok(v1::GetHaveResponse { snapshots, text: Bytes::from(have.encode()) })
        })
        .await
    }

    async fn send_snapshots(&self, request: Request<v1::SendSnapshotsRequest>) -> Answer<Self::SendSnapshotsStream> {
        use v1::send_snapshots_response::Event;
        let (caller, request) = (actor(&request), request.into_inner());
        let tell = |progress| v1::SendSnapshotsResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, progress: &Progress, sender: &Sender<_>| {
            let _using = service.using();
            let options = SendOptions { had: had(service, &request)?, verify: false };
            let selection = select(service, &request)?;
            let piece = |data| v1::SendSnapshotsResponse { event: Some(Event::Data(data)) };
            let out = Pieces::new(sender, piece);
            let sent = send(&service.context.store, &selection, &options, out, progress)?;
            Ok(v1::SendSnapshotsResponse { event: Some(Event::Result(sent_message(&sent))) })
        };
        self.watch(&caller, Kind::Transfer, Phase::Send, tell, work)
    }

    async fn receive_snapshots(
        &self,
        request: Request<Streaming<v1::ReceiveSnapshotsRequest>>,
    ) -> Answer<v1::ReceiveSnapshotsResponse> {
        use v1::receive_snapshots_request::Event;
        let (actor, mut stream) = (actor(&request), request.into_inner());
        let first = stream.message().await?.and_then(|message| message.event);
        let Some(Event::Options(options)) = first else {
            let message = "the first message of a stream says how to receive it";
            return Err(Error::new(Reason::Invalid, message).into_status());
        };
        self.keep_identified(&actor, &options);
        let stream = arriving(stream, STALL_MAX);
        self.slow(&actor.clone(), Kind::Transfer, move |service, _| {
            if (options.replace || options.tombstones) && crate::call_log::restricted_agent().is_some() {
                let message = "to replace names or to take over purges needs a key with the scope `admin`";
                return Err(Error::new(Reason::Forbidden, message));
            }
            let names = match (options.no_names, options.under.as_str()) {
                (true, "") => Names::None,
                (true, _) => {
                    return Err(Error::new(Reason::Invalid, "choose either no names or names under a prefix"));
                }
                (false, "") => Names::AsSent,
                (false, word) => Names::Under(checked_word(word)?),
            };
            let how = ReceiveOptions { names, replace: options.replace, tombstones: options.tombstones };
            let act = service.context.act(&actor);
            let progress = Progress::default();
            let quota = &service.collections.quota;
            service.context.once(&actor, &options, || {
                let received = quota.read_checking_space(stream, &|| progress.cancel(), |stream| {
                    Ok(receive(&service.context.store, stream, &how, &act, &progress)?)
                })?;
                Ok(received_message(&received))
            })
        })
        .await
    }

    async fn back_up_store(&self, request: Request<v1::BackUpStoreRequest>) -> Answer<Self::BackUpStoreStream> {
        use v1::back_up_store_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let caller = actor.clone();
        let tell = |progress| v1::BackUpStoreResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, progress: &Progress, _: &Sender<_>| {
            let _using = service.using();
            let result = service.context.once(&actor, &request, || {
                let directory = host_path(&request.directory)?;
                let done = backup(&service.context.store, &directory, service.context.now(), progress)?;
                if request.verify {
                    verify_backup(&directory, &service.context.act("backup"), progress, remove_tree)?;
                }
                Ok(v1::BackupResult {
                    part: done.part,
                    difference: done.is_difference,
                    operation: done.operation,
                    sent: Some(sent_message(&done.sent)),
                })
            })?;
            Ok(v1::BackUpStoreResponse { event: Some(Event::Result(result)) })
        };
        self.watch(&caller, Kind::Transfer, Phase::Send, tell, work)
    }

    async fn restore_backup(&self, request: Request<v1::RestoreBackupRequest>) -> Answer<Self::RestoreBackupStream> {
        use v1::restore_backup_response::Event;
        self.local_only()?;
        let (actor, request) = self.identified(request);
        let caller = actor.clone();
        let tell = |progress| v1::RestoreBackupResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, progress: &Progress, _: &Sender<_>| {
            let _using = service.using();
            let result = service.context.once(&actor, &request, || {
                let (directory, store) = (host_path(&request.directory)?, &service.context.store);
                if store.last_operation()? != 0 {
                    let home = service.context.home.path().display();
                    let message = format!("the store at {home} is not empty; a backup comes back into a new one");
                    return Err(Error::new(Reason::AlreadyExists, message));
                }
                let act = service.context.act(&actor);
                let restore = || Ok(restore_backup(&directory, store, &act, progress)?);
                let received = service.collections.quota.checking_space(&|| progress.cancel(), restore)?;
                Ok(received_message(&received))
            })?;
            Ok(v1::RestoreBackupResponse { event: Some(Event::Result(result)) })
        };
        self.watch(&caller, Kind::Transfer, Phase::Receive, tell, work)
    }

    async fn plan_purge(&self, request: Request<v1::PlanPurgeRequest>) -> Answer<Self::PlanPurgeStream> {
        use v1::plan_purge_response::Event;
        let (caller, request) = (actor(&request), request.into_inner());
        let tell = |progress| v1::PlanPurgeResponse { event: Some(Event::Progress(progress)) };
        self.long(&caller, Phase::Plan, tell, move |service, _, sender| {
            let plan = sender.caller.walking(|| purge::plan(service, &request))?;
            Ok(v1::PlanPurgeResponse { event: Some(Event::Plan(plan)) })
        })
    }

    async fn purge_content(&self, request: Request<v1::PurgeContentRequest>) -> Answer<Self::PurgeContentStream> {
        use v1::purge_content_response::Event;
        let (actor, request) = self.identified(request);
        let caller = actor.clone();
        let tell = |progress| v1::PurgeContentResponse { event: Some(Event::Progress(progress)) };
        let work = move |service: &Service, _: &Progress, _: &Sender<_>| {
            let result = service.context.once(&actor, &request, || {
                service.views.refuse_mounted("a purge needs the store for itself")?;
                let _alone = service.alone()?;
                let result = purge::purge(service, &request, &actor)?;
                service.clear_served_repositories()?;
                Ok(result)
            })?;
            Ok(v1::PurgeContentResponse { event: Some(Event::Result(result)) })
        };
        self.watch(&caller, Kind::Work, Phase::Purge, tell, work)
    }

    async fn list_tombstones(&self, request: Request<v1::ListTombstonesRequest>) -> Answer<v1::ListTombstonesResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| purge::list(service, &request)).await
    }

    async fn forget_tombstone(
        &self,
        request: Request<v1::ForgetTombstoneRequest>,
    ) -> Answer<v1::ForgetTombstoneResponse> {
        let (actor, request) = self.identified(request);
        self.alone(&actor.clone(), move |service| {
            service.context.once(&actor, &request, || purge::forget(service, &request, &actor))
        })
        .await
    }
}

/// Parses the resource names of snapshots.
fn snapshot_ids(names: &[String]) -> Result<Vec<SnapshotId>> {
    let id = |name: &String| name.strip_prefix("snapshots/").and_then(SnapshotId::from_hex);
    let wrong = |name: &String| Error::new(Reason::Invalid, format!("`{name}` is not snapshots/{{hex}}"));
    names.iter().map(|name| id(name).ok_or_else(|| wrong(name))).collect()
}

/// Returns the snapshots that the receiver has: those of its list, and those that the request names.
fn had(service: &Service, request: &v1::SendSnapshotsRequest) -> Result<Vec<SnapshotId>> {
    let mut had = match &request.have[..] {
        [] => Vec::new(),
        text => {
            let wrong = |_| Error::new(Reason::Invalid, "the receiver's list is not valid UTF-8");
            Have::decode(str::from_utf8(text).map_err(wrong)?)?.snapshots
        }
    };
    let here = service.context.here(&request.workspace)?;
    for revision in &request.since_revisions {
        had.push(service.context.resolve(revision, here.as_ref())?);
    }
    Ok(had)
}

/// Returns the selection to send: everything, or the requested revisions, with their references where they are one.
fn select(service: &Service, request: &v1::SendSnapshotsRequest) -> Result<Selection> {
    let store = &service.context.store;
    match (request.all, request.revisions.is_empty()) {
        (true, true) => return Ok(Selection::everything(store)?),
        (true, false) => return Err(Error::new(Reason::Invalid, "choose either everything or some revisions")),
        (false, true) => return Err(Error::new(Reason::Invalid, "say what to send")),
        (false, false) => {}
    }
    let here = service.context.here(&request.workspace)?;
    let (mut snapshots, mut names) = (Vec::new(), HashSet::new());
    for revision in &request.revisions {
        let snapshot = service.context.resolve(revision, here.as_ref())?;
        match name_of(service, revision, here.as_ref())? {
            Some(name) => drop(names.insert(name)),
            None => snapshots.push(snapshot),
        }
    }
    let selection = Selection::chosen(store, &snapshots, |name: &RefName| names.contains(name.as_str()))?;
    if !request.expected_head.is_empty() {
        let expected = snapshot_ids(std::slice::from_ref(&request.expected_head))?;
        let found: Vec<_> = selection
            .names()
            .iter()
            .filter_map(|(_, value)| value.target)
            .map(|id| SnapshotId::from_bytes(id.hash))
            .collect();
        if found.iter().chain(&snapshots).any(|found| *found != expected[0]) {
            let message = "the workspace moved on since its head was read, so nothing was sent; try again";
            return Err(Error::new(Reason::StaleHead, message));
        }
    }
    Ok(selection)
}

/// Returns the reference that a revision names; `None` if it names a snapshot in another way.
fn name_of(
    service: &Service,
    revision: &str,
    here: Option<&amalgam_engine::workspace::WorkspaceName>,
) -> Result<Option<String>> {
    if let Some(workspace) = revision.strip_suffix('@') {
        return Ok(match workspace {
            "" => here.map(|here| here.reference().as_str().to_owned()),
            name => Some(format!("workspace/{name}")),
        });
    }
    // As everywhere, a label takes precedence over a workspace of the same name.
    if let Ok(label) = LabelName::new(revision)
        && service.context.labels.find(&label)?.is_some()
    {
        return Ok(Some(format!("label/{revision}")));
    }
    let Ok(workspace) = amalgam_engine::WorkspaceName::new(revision) else { return Ok(None) };
    let found = service.context.workspaces.find(&workspace)?;
    Ok(found.map(|_| workspace.reference().as_str().to_owned()))
}

/// Checks that a word can be one component of a workspace's name.
fn checked_word(word: &str) -> Result<String> {
    LabelName::new(word)?;
    Ok(word.to_owned())
}

fn sent_message(sent: &SendReport) -> v1::SendResult {
    v1::SendResult {
        objects: sent.objects,
        snapshots: sent.snapshots,
        thinned: sent.thinned,
        names: sent.names,
        bytes: sent.bytes,
    }
}

fn received_message(received: &ReceiveReport) -> v1::ReceiveSnapshotsResponse {
    v1::ReceiveSnapshotsResponse {
        objects: received.objects,
        objects_new: received.objects_new,
        snapshots: received.snapshots,
        names: received.names.iter().map(ToString::to_string).collect(),
        tips: received.tips.iter().copied().map(snapshot_name).collect(),
        bytes: received.bytes,
        left_out: received.left_out.listed().iter().cloned().map(|(what, why)| v1::LeftOut { what, why }).collect(),
        left_out_more: received.left_out.more(),
    }
}
