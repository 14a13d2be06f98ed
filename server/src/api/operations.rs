//! The gRPC methods of `OperationService`: the operation log, undo and redo.

use amalgam_engine::reference::{Operation, RefChange, RefValue, Revert};
use amalgam_engine::workspace::{Workspace, WorkspaceName};
use amalgam_engine::{Error as EngineError, OperationContext, operation};
use amalgam_proto::v1::operation_service_server::OperationService;
use amalgam_proto::{Reason, operation_sequence, v1};
use tonic::{Request, Response, Status};

use super::workspaces::{judge_agent, judge_owner};
use super::{Answers, Api, actor, page_size};
use crate::call_log::{is_from_network, restricted_agent, workspace_id};
use crate::error::{Error, Result};
use crate::events::out_of_range;
use crate::messages::{CHANGES_BYTES_MAX, change_bytes, operation_from, operation_message};
use crate::permissions::POLICY_PREFIX;
use crate::service::Service;
use crate::states::{Direction, Renaming};
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

/// Returns the live tree in which an undo or a redo of a workspace takes place; `None` if only references move.
fn live_tree(service: &Service, name: &WorkspaceName) -> Result<Option<u64>> {
    let has_directory = service.context.registry.all().iter().any(|record| record.workspace == name.as_str());
    Ok(service.views.numbered_view(name)?.filter(|_| !has_directory))
}

/// Undoes or redoes the last operation of a workspace with a live tree, uncommitted changes included. Returns the operation that
/// did it, and a description of the operation that it reverted; `None` for a workspace without a live tree, and for a renaming, which concerns more than the tree.
fn revert_live(
    service: &Service,
    name: &WorkspaceName,
    direction: Direction,
    act: &OperationContext,
) -> Result<Option<(v1::Operation, String)>> {
    let Some(id) = live_tree(service, name)? else { return Ok(None) };
    let done = match direction {
        Direction::Undo => service.views.undo_view(id, false, act)?,
        Direction::Redo => service.views.redo_view(id, false, act)?,
    };
    match done {
        ViewRevert::Done(result) => Ok(Some((result.operation.unwrap_or_default(), result.description))),
        ViewRevert::Renaming(_) => Ok(None),
    }
}

/// Refuses an undo or a redo in a workspace that makes changes which the policy does not permit to the caller, in this workspace
/// or in another one of the same operation. Returns the operation that is reverted; `None` if there is none, or if uncommitted
/// changes are undone instead.
fn judge_revert(service: &Service, name: &WorkspaceName, direction: Direction) -> Result<Option<u64>> {
    let (store, reference) = (&service.context.store, name.reference());
    if direction == Direction::Undo
        && let Some(id) = live_tree(service, name)?
        && service.views.judge_undo_of_edits(id, &service.context.permissions.moving(name)?)?
    {
        return Ok(None);
    }
    let next = match direction {
        Direction::Undo => operation::next_to_undo(store, &reference)?,
        Direction::Redo => operation::next_to_redo(store, &reference)?,
    };
    let Some(next) = next else { return Ok(None) };
    judge_operation(service, next.sequence, direction)?;
    // The workspace itself stays where it has a live tree.
    let goes = |change: &RefChange| change.name != reference && is_removed(change, direction);
    service.views.refuse_to_take_away(next.sequence, goes)?;
    Ok(Some(next.sequence))
}

/// Undoes or redoes the last operation of a workspace by moving its references. `next` is that operation, if it is known.
fn revert_references(
    service: &Service,
    name: &WorkspaceName,
    next: Option<u64>,
    direction: Direction,
    act: &OperationContext,
) -> Result<Operation> {
    if let Some(next) = next {
        if let Some(done) = revert_renaming(service, next, direction, act)? {
            return Ok(done);
        }
        service.views.refuse_to_take_away(next, |change| is_removed(change, direction))?;
    }
    let workspaces = &service.context.workspaces;
    Ok(match direction {
        Direction::Undo => workspaces.undo(name, act)?,
        Direction::Redo => workspaces.redo(name, act)?,
    })
}

/// Describes the operation that an undo or a redo reverted; empty if the log has it no more.
fn describe_reverted(service: &Service, done: &Operation) -> Result<String> {
    let Some(Revert::Undo(sequence) | Revert::Redo(sequence)) = done.draft.reverts else { return Ok(String::new()) };
    match operation::operation(&service.context.store, sequence) {
        Ok(reverted) => service.states.describe_operation(&reverted),
        Err(EngineError::Trimmed { .. }) => Ok(String::new()),
        Err(error) => Err(error.into()),
    }
}

/// Undoes or redoes an operation of this number.
fn revert_operation(
    service: &Service,
    sequence: u64,
    direction: Direction,
    act: &OperationContext,
) -> Result<Operation> {
    judge_operation(service, sequence, direction)?;
    if let Some(done) = revert_renaming(service, sequence, direction, act)? {
        return Ok(done);
    }
    service.views.refuse_to_take_away(sequence, |change| is_removed(change, direction))?;
    let store = &service.context.store;
    Ok(match direction {
        Direction::Undo => operation::undo_operation(store, sequence, act)?,
        Direction::Redo => operation::redo_operation(store, sequence, act)?,
    })
}

/// Undoes or redoes the renaming of a workspace: its directories, its live tree and its publishing plan follow. Returns nothing
/// for other operations.
fn revert_renaming(
    service: &Service,
    sequence: u64,
    direction: Direction,
    act: &OperationContext,
) -> Result<Option<Operation>> {
    // The revert itself refuses an operation that cannot be read.
    let Ok(found) = operation::operation(&service.context.store, sequence) else { return Ok(None) };
    let renaming = Renaming::of(&found, direction);
    renaming.map(|renaming| service.directories.rename_back(&renaming, act)).transpose()
}

/// Refuses to undo or redo an operation if that makes changes which the policy does not permit to the caller, or moves the policy.
fn judge_operation(service: &Service, sequence: u64, direction: Direction) -> Result<()> {
    let context = &service.context;
    // Callers who are not on the network have all rights.
    if !is_from_network() {
        return Ok(());
    }
    let is_restricted = restricted_agent().is_some();
    for change in &operation::operation(&context.store, sequence)?.changes {
        if is_restricted && change.name.as_str().starts_with(POLICY_PREFIX) {
            let message = "the policy is set, undone and redone by keys with the scope `admin`";
            return Err(Error::new(Reason::Forbidden, message));
        }
        let Ok(name) = WorkspaceName::of_reference(&change.name) else { continue };
        let now = context.workspaces.find(&name)?;
        let to = value_of(change, direction).map(|value| Workspace::read(name.clone(), value)).transpose()?;
        refuse_origin(now.as_ref(), to.as_ref())?;
        if !is_restricted {
            continue;
        }
        match (&now, &to) {
            (Some(now), Some(to)) => judge_agent(service, &now.agent, &to.agent)?,
            (Some(one), None) | (None, Some(one)) => judge_owner(service, &name, &one.agent)?,
            (None, None) => {}
        }
        let guard = context.permissions.moving(&name)?;
        let root = |found: Option<Workspace>| context.head_root(found.and_then(|found| found.state()));
        context.permissions.judge(&guard, root(now)?, root(to)?, "this")?;
    }
    Ok(())
}

/// Refuses to let a workspace follow an origin on the host again: only callers on the host name paths of it.
fn refuse_origin(now: Option<&Workspace>, to: Option<&Workspace>) -> Result<()> {
    let origin = |found: Option<&Workspace>| found.and_then(|found| found.follow.clone()).map(|follow| follow.origin);
    let restored = origin(to).filter(|origin| !origin.is_empty());
    if restored.is_none() || restored == origin(now) {
        return Ok(());
    }
    let message = "this lets a workspace follow files of the host again, which takes a call on the Unix socket";
    Err(Error::new(Reason::LocalOnly, message))
}

/// Returns the value that an undo or a redo gives to a reference; `None` if it removes the reference.
fn value_of(change: &RefChange, direction: Direction) -> Option<RefValue> {
    match direction {
        Direction::Undo => change.before.clone(),
        Direction::Redo => change.after.clone(),
    }
}

/// Returns whether an undo or a redo removes a reference.
fn is_removed(change: &RefChange, direction: Direction) -> bool {
    match direction {
        Direction::Undo => change.before.is_none(),
        Direction::Redo => change.after.is_none(),
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
                (Some(done), _) => done,
                (None, Some(Target::Workspace(name))) => {
                    let name = workspace_id(&name)?;
                    let next = judge_revert(service, &name, Direction::Undo)?;
                    if let Some((operation, description)) = revert_live(service, &name, Direction::Undo, &act)? {
                        return Ok(v1::UndoOperationResponse { operation: Some(operation), description });
                    }
                    revert_references(service, &name, next, Direction::Undo, &act)?
                }
                (None, Some(Target::Operation(name))) => {
                    revert_operation(service, operation_sequence(&name)?, Direction::Undo, &act)?
                }
                (None, None) => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            service.views.apply_policy()?;
            service.views.heads_moved()?;
            let description = describe_reverted(service, &done)?;
            Ok(v1::UndoOperationResponse { operation: Some(operation_message(&done)), description })
        })
        .await
    }

    async fn redo_operation(&self, request: Request<v1::RedoOperationRequest>) -> Answer<v1::RedoOperationResponse> {
        use v1::redo_operation_request::Target;
        let (actor, request) = self.identified(request);
        self.short(move |service| {
            let act = service.context.act_for(&actor, &request)?;
            let done = match (service.context.done_before(&act)?, request.target) {
                (Some(done), _) => done,
                (None, Some(Target::Workspace(name))) => {
                    let name = workspace_id(&name)?;
                    let next = judge_revert(service, &name, Direction::Redo)?;
                    if let Some((operation, description)) = revert_live(service, &name, Direction::Redo, &act)? {
                        return Ok(v1::RedoOperationResponse { operation: Some(operation), description });
                    }
                    revert_references(service, &name, next, Direction::Redo, &act)?
                }
                (None, Some(Target::Operation(name))) => {
                    revert_operation(service, operation_sequence(&name)?, Direction::Redo, &act)?
                }
                (None, None) => return Err(Error::new(Reason::Invalid, "target: name a workspace or an operation")),
            };
            service.views.apply_policy()?;
            service.views.heads_moved()?;
            let description = describe_reverted(service, &done)?;
            Ok(v1::RedoOperationResponse { operation: Some(operation_message(&done)), description })
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

#[cfg(test)]
mod tests {
    use amalgam_engine::reference::{OperationDraft, RefName};
    use amalgam_engine::workspace::{Follow, FollowMode};
    use amalgam_engine::{RefMove, Time, WorkingTree};
    use amalgam_proto::Failure;
    use amalgam_proto::v1::operation_service_client::OperationServiceClient;
    use tower::Layer as _;

    use super::*;
    use crate::api::Origin;
    use crate::call_log::CallLogLayer;
    use crate::calls::Calls;
    use crate::home::Home;
    use crate::serve::routes;

    /// Undoes the last operation of a workspace, for a caller on the network whom the policy restricts.
    async fn undo(service: &Service, workspace: &str) -> Answer<v1::UndoOperationResponse> {
        let api = Api::new(service.clone(), Calls::new(), Origin::Network);
        let mut operations = OperationServiceClient::new(CallLogLayer(Origin::Network).layer(routes(api).prepare()));
        let target = v1::undo_operation_request::Target::Workspace(format!("workspaces/{workspace}"));
        operations.undo_operation(v1::UndoOperationRequest { target: Some(target), ..Default::default() }).await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_undo_in_a_workspace_is_refused_if_its_operation_moved_the_policy_too() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (context, act) = (&service.context, service.context.act("root"));
        let (store, policy) = (&context.store, RefName::new("policy/project").expect("a name"));
        let main = WorkspaceName::new("main").expect("a name");
        let value = |name: &RefName| store.read_ref(name).expect("read");
        context.permissions.set("default = \"RW\"", &act).expect("set");
        let open = value(&policy);
        context.permissions.set("default = \"RW\"\nreviewers = [\"lea\"]", &act).expect("set");
        context.workspaces.create(&main, &Default::default(), &act).expect("created");
        let created = value(&main.reference());
        context.workspaces.describe(&main, "", "project", &act).expect("described");
        // One operation moves both, as a restored backup does.
        let expect = vec![(policy.clone(), value(&policy)), (main.reference(), value(&main.reference()))];
        let set = vec![(policy.clone(), open.clone()), (main.reference(), created)];
        let operation = OperationDraft { action: "move both".to_owned(), ..OperationDraft::default() };
        let (root, _pin) = WorkingTree::new(store).freeze().hold().expect("stored");
        let moves = RefMove { expect, set, operation, ..RefMove::default() };
        store.session().commit(root, moves).expect("moved");

        let refused = undo(&service, "main").await.expect_err("refused");
        assert_eq!(Failure::of_status(&refused).expect("one of ours").reason, Reason::Forbidden, "{refused}");
        assert_eq!(store.read_ref(&policy).expect("read"), open, "the policy stays");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_undo_over_the_network_lets_no_workspace_follow_files_of_the_host_again() {
        let around = tempfile::tempdir().expect("a directory");
        let service = Service::open(&Home::new(around.path().join("home")), || Time(5), &[]).expect("opened");
        let (workspaces, act) = (&service.context.workspaces, service.context.act("root"));
        let (main, source) = (WorkspaceName::new("main").expect("a name"), WorkspaceName::new("app").expect("a name"));
        workspaces.create(&main, &Default::default(), &act).expect("created");
        workspaces.create(&source, &Default::default(), &act).expect("created");
        let follow = Follow { source, mode: FollowMode::Lazy, origin: "git:/srv/app.git#main".to_owned() };
        workspaces.follow(&main, Some(&follow), &act).expect("follows");
        workspaces.follow(&main, None, &act).expect("follows nothing");
        let refused = undo(&service, "main").await.expect_err("refused");
        assert_eq!(Failure::of_status(&refused).expect("one of ours").reason, Reason::LocalOnly, "{refused}");
        assert!(workspaces.get(&main).expect("read").follow.is_none());
    }
}
