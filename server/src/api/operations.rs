//! Operations, for the API.

use amalgam_engine::operation;
use amalgam_proto::v1::operation_service_server::OperationService;
use amalgam_proto::{Reason, operation_sequence, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::call_log::workspace_id;
use crate::error::{Error, Result};
use crate::messages::{CHANGES_BYTES_MAX, change_bytes, operation_from, operation_message};
use crate::service::Service;

type Answer<T> = Result<Response<T>, Status>;

/// Records read at once on the way back through the log.
const PAGE: u64 = 256;
/// An operation, from a change on.
fn get(service: &Service, request: &v1::GetOperationRequest) -> Result<v1::GetOperationResponse> {
    let sequence = operation_sequence(&request.name)?;
    let found = operation::operation(&service.context.store, sequence)?;
    let first = match request.page_token.as_str() {
        "" => 0,
        token => token.parse::<usize>().map_err(wrong_token)?,
    };
    let operation = operation_from(&found, first);
    let next = first.saturating_add(operation.changes.len());
    let next_page_token = if operation.changes_left_out > 0 { next.to_string() } else { String::new() };
    Ok(v1::GetOperationResponse { operation: Some(operation), next_page_token })
}

fn wrong_token(_: std::num::ParseIntError) -> Error {
    Error::new(Reason::Invalid, "page_token: not one of this call's")
}

fn list(service: &Service, request: &v1::ListOperationsRequest) -> Result<v1::ListOperationsResponse> {
    let only = service.context.here(&request.workspace)?.map(|name| name.reference());
    let end = service.context.store.last_operation()? + 1;
    let mut before = match request.page_token.as_str() {
        "" => end,
        token => token.parse::<u64>().map_err(wrong_token)?.min(end),
    };
    let limit = page_size(request.page_size);
    let (mut operations, mut bytes) = (Vec::new(), 0);
    let first = service.context.store.first_operation()?;
    let mut is_full = false;
    while before > first && !is_full {
        let from = before.saturating_sub(PAGE + 1).max(first - 1);
        let page = service.context.store.list_operations(from, (before - from - 1) as usize)?;
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
            let act = service.context.act_for(&actor, &request)?;
            let done = match request.target {
                Some(Target::Workspace(name)) => {
                    let name = workspace_id(&name)?;
                    service.context.workspaces.undo(&name, &act)
                }
                Some(Target::Operation(name)) => {
                    let sequence = operation_sequence(&name)?;
                    service.views.refuse_to_take_away(sequence, |change| change.before.is_none())?;
                    operation::undo_operation(&service.context.store, sequence, &act)
                }
                None => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done?;
            service.views.heads_moved()?;
            Ok(v1::UndoOperationResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn redo_operation(&self, request: Request<v1::RedoOperationRequest>) -> Answer<v1::RedoOperationResponse> {
        use v1::redo_operation_request::Target;
        let (actor, request) = (actor(&request), request.into_inner());
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let done = match request.target {
                Some(Target::Workspace(name)) => {
                    let name = workspace_id(&name)?;
                    service.context.workspaces.redo(&name, &act)
                }
                Some(Target::Operation(name)) => {
                    let sequence = operation_sequence(&name)?;
                    service.views.refuse_to_take_away(sequence, |change| change.after.is_none())?;
                    operation::redo_operation(&service.context.store, sequence, &act)
                }
                None => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done?;
            service.views.heads_moved()?;
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
            let mut feed = service.context.operations.follow(&service.context.store, after);
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
