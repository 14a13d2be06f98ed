//! Files of a sandbox over Connect.

use std::sync::Arc;

use http::Response;
use http::request::Parts;
use tonic::Code;
use tonic::body::Body;

use crate::calls::Calls;
use crate::connect::{Events, Rpc, Shape, refuse};
use crate::entry::{entries, one_entry};
use crate::program::{self, Operation};
use crate::refusal::Refusal;
use crate::state::State;
use crate::target::{Target, check_user};
use crate::watchers::{Lines, event_of};
use crate::wire::filesystem as wire;

/// Answers a call of `filesystem.Filesystem`.
pub(crate) async fn answer(
    state: &Arc<State>,
    calls: &Calls,
    method: &str,
    head: &Parts,
    body: Body,
) -> Response<Body> {
    let shape = match method {
        "WatchDir" => Shape::Stream,
        "Stat" | "MakeDir" | "Move" | "ListDir" | "Remove" | "CreateWatcher" | "GetWatcherEvents" | "RemoveWatcher" => {
            Shape::Unary
        }
        _ => {
            calls.of(&head.headers).record_unknown().await;
            return Refusal::not_served(&format!("filesystem.Filesystem/{}", method.escape_debug())).into_connect();
        }
    };
    let found = match check_user(&head.headers, None) {
        Ok(()) => Target::find(calls, head).await,
        Err(refusal) => Err(refusal),
    };
    let target = match found {
        Ok((target, _)) => target,
        Err(refusal) => return refuse(shape, head, refusal),
    };
    let rpc = match Rpc::new(shape, head, body) {
        Ok(rpc) => rpc,
        Err(response) => return *response,
    };
    let (keepalive, timeout) = (rpc.keepalive, rpc.timeout);
    let target = &target;
    match method {
        "Stat" => {
            rpc.unary(async |request: wire::StatRequest| {
                Ok(wire::StatResponse { entry: Some(one(target, &["stat", &request.path]).await?) })
            })
            .await
        }
        "MakeDir" => {
            rpc.unary(async |request: wire::MakeDirRequest| {
                Ok(wire::MakeDirResponse { entry: Some(one(target, &["mkdir", &request.path]).await?) })
            })
            .await
        }
        "Move" => {
            rpc.unary(async |request: wire::MoveRequest| {
                let moved = one(target, &["move", &request.source, &request.destination]).await?;
                Ok(wire::MoveResponse { entry: Some(moved) })
            })
            .await
        }
        "Remove" => {
            rpc.unary(async |request: wire::RemoveRequest| {
                program::run(target, &["remove", &request.path]).await?;
                Ok(wire::RemoveResponse {})
            })
            .await
        }
        "ListDir" => {
            rpc.unary(async |request: wire::ListDirRequest| {
                let listed = program::run(target, &["list", &request.path, &request.depth.max(1).to_string()]).await?;
                Ok(wire::ListDirResponse { entries: entries(&listed)? })
            })
            .await
        }
        "CreateWatcher" => {
            rpc.unary(async |request: wire::CreateWatcherRequest| {
                let (recursive, entry) = (request.recursive, request.include_entry);
                let operation = start_watch(target, &request.path, recursive, entry).await?;
                Ok(wire::CreateWatcherResponse { watcher_id: state.watchers.add(&target.id, operation)? })
            })
            .await
        }
        "GetWatcherEvents" => {
            rpc.unary(async |request: wire::GetWatcherEventsRequest| {
                let events = state.watchers.take(&target.id, &request.watcher_id)?;
                Ok(wire::GetWatcherEventsResponse { events })
            })
            .await
        }
        "RemoveWatcher" => {
            rpc.unary(async |request: wire::RemoveWatcherRequest| {
                state.watchers.remove(&target.id, &request.watcher_id)?;
                Ok(wire::RemoveWatcherResponse {})
            })
            .await
        }
        _ => {
            let target = target.clone();
            rpc.stream(move |request: wire::WatchDirRequest, events| async move {
                let late = async {
                    match timeout {
                        Some(timeout) => tokio::time::sleep(timeout).await,
                        None => std::future::pending().await,
                    }
                };
                let message = "the time-out of the call was reached";
                tokio::select! {
                    ended = watch(&target, &request, &events, keepalive) => ended,
                    () = late => Err(Refusal::new(Code::DeadlineExceeded, message)),
                }
            })
            .await
        }
    }
}

/// Runs an operation that returns one entry.
async fn one(target: &Target, words: &[&str]) -> Result<wire::EntryInfo, Refusal> {
    let output = program::run(target, words).await?;
    one_entry(&output)
}

/// Starts to watch a directory. Returns when the kernel watches.
async fn start_watch(target: &Target, path: &str, is_recursive: bool, has_entries: bool) -> Result<Lines, Refusal> {
    let mut words = vec!["watch", path];
    words.extend(is_recursive.then_some("recursive"));
    words.extend(has_entries.then_some("entries"));
    let options = program::Options { is_endless: true, ..program::Options::default() };
    let mut lines = Lines::new(Operation::start(target, &words, options).await?);
    // The first line says that the kernel reports changes from now on.
    lines.next().await?;
    Ok(lines)
}

async fn watch(
    target: &Target,
    request: &wire::WatchDirRequest,
    events: &Events<wire::WatchDirResponse>,
    keepalive: std::time::Duration,
) -> Result<(), Refusal> {
    use wire::watch_dir_response::{Event, KeepAlive, StartEvent};
    let message = |event| wire::WatchDirResponse { event: Some(event) };
    let mut lines = start_watch(target, &request.path, request.recursive, request.include_entry).await?;
    events.send(&message(Event::Start(StartEvent {}))).await;
    loop {
        let event = tokio::select! {
            line = lines.next() => match line? {
                Some(line) => Event::Filesystem(event_of(&line)?),
                None => return Ok(()),
            },
            () = tokio::time::sleep(keepalive) => Event::Keepalive(KeepAlive {}),
            () = events.closed() => return Ok(()),
        };
        if !events.send(&message(event)).await {
            return Ok(());
        }
    }
}
