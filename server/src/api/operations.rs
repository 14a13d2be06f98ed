//! Operations, for the API.

use amalgam_engine::reference::{RefChange, RefValue};
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{DiffOptions, Error as EngineError, OperationContext, diff_roots, operation};
use amalgam_proto::v1::operation_service_server::OperationService;
use amalgam_proto::{Reason, operation_sequence, v1};
use tonic::{Request, Response, Status};

use super::{Answers, Api, actor, page_size};
use crate::call_log::{restricted_agent, workspace_id};
use crate::error::{Error, Result};
use crate::events::out_of_range;
use crate::messages::{CHANGES_BYTES_MAX, change_bytes, operation_from, operation_message};
use crate::permissions::POLICY_PREFIX;
use crate::service::Service;
use crate::states::Direction;
use crate::views::ViewRevert;

type Answer<T> = Result<Response<T>, Status>;

/// The most records that a listing reads at once on its way back through the log.
const PAGE: u64 = 256;
/// Returns an operation with its changes from the position of the page token on.
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
    let limit = page_size(request.page_size)?;
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

/// Replaces the error of a watch whose position was trimmed from the log by one that says where the log begins.
fn trimmed(service: &Service, after: u64, failure: Error) -> Error {
    match failure {
        Error::Engine(EngineError::Trimmed { .. }) => out_of_range(&service.context, after),
        failure => failure,
    }
}

/// Undoes or redoes the last operation of a workspace with a live tree, uncommitted changes included. Returns the operation that
/// did it; `None` for a workspace without a live tree, and for a renaming, which concerns more than the tree.
fn revert_live(
    service: &Service,
    name: &WorkspaceName,
    direction: Direction,
    act: &OperationContext,
) -> Result<Option<v1::Operation>> {
    let has_directory = service.context.registry.all().iter().any(|record| record.workspace == name.as_str());
    let Some(id) = service.views.numbered_view(name)?.filter(|_| !has_directory) else { return Ok(None) };
    let done = match direction {
        Direction::Undo => service.views.undo_view(id, false, act)?,
        Direction::Redo => service.views.redo_view(id, false, act)?,
    };
    match done {
        ViewRevert::Done(result) => Ok(Some(result.operation.unwrap_or_default())),
        ViewRevert::Renaming(_) => Ok(None),
    }
}

/// Refuses an undo or a redo in a workspace that makes changes which the policy does not permit to the caller.
fn judge_revert(service: &Service, name: &WorkspaceName, direction: Direction) -> Result<()> {
    let context = &service.context;
    let guard = context.permissions.moving(name)?;
    if guard.is_open() {
        return Ok(());
    }
    let state = context.head_root(context.workspaces.get(name)?.state())?;
    let live = service.views.use_view_if_live(name)?.map(|used| used.view().fork().freeze().hold()).transpose()?;
    let now = live.as_ref().map(|(root, _)| *root).or(state);
    let reference = name.reference();
    let to = match diff_roots(&context.store, state, now, DiffOptions::default())?.next().transpose()? {
        // Uncommitted changes are undone first.
        Some(_) => state,
        None => {
            let next = match direction {
                Direction::Undo => operation::next_to_undo(&context.store, &reference)?,
                Direction::Redo => operation::next_to_redo(&context.store, &reference)?,
            };
            let Some(next) = next else { return Ok(()) };
            let change = next.changes.iter().find(|change| change.name == reference);
            match change.and_then(|change| value_of(change, direction)) {
                Some(value) => context.head_root(Workspace::read(name.clone(), value)?.state())?,
                None => None,
            }
        }
    };
    context.permissions.judge(&guard, now, to, "this")
}

/// Refuses to undo or redo an operation if that makes changes which the policy does not permit to the caller, or moves the policy.
fn judge_operation(service: &Service, sequence: u64, direction: Direction) -> Result<()> {
    let context = &service.context;
    if restricted_agent().is_none() {
        return Ok(());
    }
    for change in &operation::operation(&context.store, sequence)?.changes {
        if change.name.as_str().starts_with(POLICY_PREFIX) {
            let message = "the policy is set, undone and redone by keys with the scope `admin`";
            return Err(Error::new(Reason::Forbidden, message));
        }
        let Ok(name) = WorkspaceName::of_reference(&change.name) else { continue };
        let guard = context.permissions.moving(&name)?;
        let now = context.workspaces.find(&name)?.and_then(|found| found.state());
        let to = value_of(change, direction).map(|value| Workspace::read(name.clone(), value)).transpose()?;
        let to = to.and_then(|to| to.state());
        context.permissions.judge(&guard, context.head_root(now)?, context.head_root(to)?, "this")?;
    }
    Ok(())
}

/// Returns the value that an undo or a redo gives to a reference; `None` if it removes the reference.
fn value_of(change: &RefChange, direction: Direction) -> Option<RefValue> {
    match direction {
        Direction::Undo => change.before.clone(),
        Direction::Redo => change.after.clone(),
    }
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
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let done = match (service.context.done_before(&act)?, request.target) {
                (Some(done), _) => Ok(done),
                (None, Some(Target::Workspace(name))) => {
                    let name = workspace_id(&name)?;
                    judge_revert(service, &name, Direction::Undo)?;
                    if let Some(operation) = revert_live(service, &name, Direction::Undo, &act)? {
                        return Ok(v1::UndoOperationResponse { operation: Some(operation) });
                    }
                    service.context.workspaces.undo(&name, &act)
                }
                (None, Some(Target::Operation(name))) => {
                    let sequence = operation_sequence(&name)?;
                    judge_operation(service, sequence, Direction::Undo)?;
                    service.views.refuse_to_take_away(sequence, |change| change.before.is_none())?;
                    operation::undo_operation(&service.context.store, sequence, &act)
                }
                (None, None) => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done?;
            service.views.apply_policy()?;
            service.views.heads_moved()?;
            Ok(v1::UndoOperationResponse { operation: Some(operation_message(&done)) })
        })
        .await
    }

    async fn redo_operation(&self, request: Request<v1::RedoOperationRequest>) -> Answer<v1::RedoOperationResponse> {
        use v1::redo_operation_request::Target;
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let done = match (service.context.done_before(&act)?, request.target) {
                (Some(done), _) => Ok(done),
                (None, Some(Target::Workspace(name))) => {
                    let name = workspace_id(&name)?;
                    judge_revert(service, &name, Direction::Redo)?;
                    if let Some(operation) = revert_live(service, &name, Direction::Redo, &act)? {
                        return Ok(v1::RedoOperationResponse { operation: Some(operation) });
                    }
                    service.context.workspaces.redo(&name, &act)
                }
                (None, Some(Target::Operation(name))) => {
                    let sequence = operation_sequence(&name)?;
                    judge_operation(service, sequence, Direction::Redo)?;
                    service.views.refuse_to_take_away(sequence, |change| change.after.is_none())?;
                    operation::redo_operation(&service.context.store, sequence, &act)
                }
                (None, None) => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            let done = done?;
            service.views.apply_policy()?;
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
                    next = feed.next() => next.map_err(|failure| trimmed(&service, after, failure))?,
                    why = subscriber.ended() => return Err(why),
                };
                for operation in next {
                    subscriber.send(v1::WatchOperationsResponse { operation: Some(operation) }).await?;
                }
            }
        })
    }
}
