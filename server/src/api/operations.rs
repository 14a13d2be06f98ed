//! Operations, for the API.

use amalgam_engine::reference::{Operation, RefValue};
use amalgam_engine::{ObjectKind, SnapshotId, operation};
use amalgam_proto::v1::operation_service_server::OperationService;
use amalgam_proto::{Failure, Reason};
use amalgam_proto::{operation_name, operation_sequence, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::call_log::workspace_id;
use crate::failure::{Result, of_engine};
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// Records read at once on the way back through the log.
const PAGE: u64 = 256;
/// The most bytes of changes in one message; clients take 4 MiB.
const CHANGES_BYTES_MAX: usize = 1 << 20;

/// An operation for the wire. One that changed very much has the first changes, and how many follow.
pub(crate) fn operation_message(operation: &Operation) -> v1::Operation {
    operation_from(operation, 0)
}

/// An operation for the wire, with its changes from one on, as many as a message takes.
fn operation_from(operation: &Operation, first: usize) -> v1::Operation {
    let target = |value: &Option<RefValue>| {
        let target = value.as_ref().and_then(|value| value.target);
        match target {
            Some(id) if id.kind == ObjectKind::Snapshot => {
                amalgam_proto::snapshot_name(SnapshotId::from_bytes(id.hash))
            }
            Some(id) => id.to_string(),
            None => String::new(),
        }
    };
    let (mut changes, mut bytes) = (Vec::new(), 0);
    for change in operation.changes.iter().skip(first) {
        let change = v1::ReferenceChange {
            reference: change.name.to_string(),
            before: target(&change.before),
            after: target(&change.after),
        };
        bytes += change_bytes(&change);
        if bytes > CHANGES_BYTES_MAX && !changes.is_empty() {
            break;
        }
        changes.push(change);
    }
    let reverts = operation.draft.reverts.and_then(|revert| revert.undone().or(revert.redone()));
    v1::Operation {
        name: operation_name(operation.sequence),
        sequence: operation.sequence,
        actor: operation.draft.actor.clone(),
        time: Some(amalgam_proto::timestamp(operation.draft.time)),
        action: operation.draft.action.clone(),
        reverts: reverts.unwrap_or(0),
        changes_left_out: operation.changes.len().saturating_sub(first + changes.len()) as u64,
        changes,
    }
}

/// About how much of a message a change takes.
fn change_bytes(change: &v1::ReferenceChange) -> usize {
    change.reference.len() + change.before.len() + change.after.len() + 12
}

/// An operation, from a change on.
fn get(service: &Service, request: &v1::GetOperationRequest) -> Result<v1::GetOperationResponse> {
    let sequence = operation_sequence(&request.name).map_err(of_engine)?;
    let found = operation::operation(&service.inner.store, sequence).map_err(of_engine)?;
    let first = match request.page_token.as_str() {
        "" => 0,
        token => token.parse::<usize>().map_err(wrong_token)?,
    };
    let operation = operation_from(&found, first);
    let next = first.saturating_add(operation.changes.len());
    let next_page_token = if operation.changes_left_out > 0 { next.to_string() } else { String::new() };
    Ok(v1::GetOperationResponse { operation: Some(operation), next_page_token })
}

fn wrong_token(_: std::num::ParseIntError) -> Failure {
    Failure::new(Reason::Invalid, "page_token: not one of this call's")
}

fn list(service: &Service, request: &v1::ListOperationsRequest) -> Result<v1::ListOperationsResponse> {
    let only = service.here(&request.workspace)?.map(|name| name.reference());
    let end = service.inner.store.last_operation().map_err(of_engine)? + 1;
    let mut before = match request.page_token.as_str() {
        "" => end,
        token => token.parse::<u64>().map_err(wrong_token)?.min(end),
    };
    let limit = page_size(request.page_size);
    let (mut operations, mut bytes) = (Vec::new(), 0);
    let first = service.inner.store.first_operation().map_err(of_engine)?;
    let mut is_full = false;
    while before > first && !is_full {
        let from = before.saturating_sub(PAGE + 1).max(first - 1);
        let page = service.inner.store.list_operations(from, (before - from - 1) as usize).map_err(of_engine)?;
        for found in page.iter().rev() {
            before = found.sequence;
            let touches = only.as_ref().is_none_or(|only| found.changes.iter().any(|change| change.name == *only));
            if !touches {
                continue;
            }
            let operation = operation_message(found);
            bytes += operation.changes.iter().map(change_bytes).sum::<usize>();
            operations.push(operation);
            is_full = operations.len() == limit || bytes >= CHANGES_BYTES_MAX;
            if is_full {
                break;
            }
        }
        if !is_full {
            before = from + 1;
        }
    }
    let next_page_token = if before > first { before.to_string() } else { String::new() };
    Ok(v1::ListOperationsResponse { operations, next_page_token })
}

#[tonic::async_trait]
impl OperationService for Api {
    type WatchOperationsStream = Answers<v1::WatchOperationsResponse>;

    async fn list_operations(&self, request: Request<v1::ListOperationsRequest>) -> Answer<v1::ListOperationsResponse> {
        let (caller, request) = (actor(&request), request.into_inner());
        self.read(&caller, move |service| list(service, &request)).await
    }

    async fn get_operation(&self, request: Request<v1::GetOperationRequest>) -> Answer<v1::GetOperationResponse> {
        let request = request.into_inner();
        self.short(move |service| get(service, &request)).await
    }

    async fn undo_operation(&self, request: Request<v1::UndoOperationRequest>) -> Answer<v1::UndoOperationResponse> {
        use v1::undo_operation_request::Target;
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let act = service.act_for(&actor, &request)?;
            let done = match request.target {
                Some(Target::Workspace(name)) => {
                    let name = workspace_id(&name).map_err(of_engine)?;
                    service.inner.workspaces.undo(&name, &act)
                }
                Some(Target::Operation(name)) => {
                    let sequence = operation_sequence(&name).map_err(of_engine)?;
                    service.refuse_to_take_away(sequence, |change| change.before.is_none())?;
                    operation::undo_operation(&service.inner.store, sequence, &act)
                }
                None => return Err(Failure::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done.map_err(of_engine)?;
            service.heads_moved()?;
            Ok(v1::UndoOperationResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn redo_operation(&self, request: Request<v1::RedoOperationRequest>) -> Answer<v1::RedoOperationResponse> {
        use v1::redo_operation_request::Target;
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let act = service.act_for(&actor, &request)?;
            let done = match request.target {
                Some(Target::Workspace(name)) => {
                    let name = workspace_id(&name).map_err(of_engine)?;
                    service.inner.workspaces.redo(&name, &act)
                }
                Some(Target::Operation(name)) => {
                    let sequence = operation_sequence(&name).map_err(of_engine)?;
                    service.refuse_to_take_away(sequence, |change| change.after.is_none())?;
                    operation::redo_operation(&service.inner.store, sequence, &act)
                }
                None => return Err(Failure::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done.map_err(of_engine)?;
            service.heads_moved()?;
            Ok(v1::RedoOperationResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn watch_operations(
        &self,
        request: Request<v1::WatchOperationsRequest>,
    ) -> Answer<Self::WatchOperationsStream> {
        let (caller, after) = (actor(&request), request.into_inner().after);
        self.subscribe(&caller, move |service, subscriber| async move {
            let mut feed = service.inner.operations.follow(&service.inner.store, after);
            loop {
                let next = tokio::select! {
                    next = feed.next() => next?,
                    why = subscriber.ended() => return Err(why),
                };
                for operation in next {
                    subscriber.send(v1::WatchOperationsResponse { operation: Some(operation) }).await?;
                }
            }
        })
    }
}
