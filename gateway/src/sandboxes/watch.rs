//! Streams the events of a project's sandboxes, from a position on.

use amalgam_engine::Time;
use amalgam_proto::{Failure, Reason, timestamp, v1};
use amalgam_server::EventFilter;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::Sandboxes;
use crate::catalog::{SandboxEventRow, SandboxRecord};
use crate::project::ProjectName;

/// Maximum number of messages that are queued for a slow client.
const QUEUE: usize = 16;
/// Maximum number of events that are read at once.
const PAGE: u32 = 200;
/// The word for the position before the oldest event.
const FIRST: &str = "first";

/// The value of the event counter that means that the server stops.
const STOPPING: u64 = u64::MAX;

type Answers = ReceiverStream<Result<v1::WatchSandboxesResponse, Status>>;

/// The filter of a watch stream.
struct Wanted {
    project: ProjectName,
    kinds: EventFilter,
    sandbox_id: String,
}

impl Wanted {
    fn wants(&self, row: &SandboxEventRow) -> bool {
        let is_of_sandbox = self.sandbox_id.is_empty() || row.sandbox["sandboxId"] == self.sandbox_id.as_str();
        is_of_sandbox && self.kinds.wants_named(&row.kind, "")
    }
}

impl Sandboxes {
    /// Wakes all watch streams, because there is a new event.
    pub(super) fn wake_watchers(&self) {
        self.inner.events.send_if_modified(|count| {
            let goes_on = *count != STOPPING;
            *count = if goes_on { (*count + 1) % STOPPING } else { STOPPING };
            goes_on
        });
    }

    /// Ends all watch streams, because the server stops.
    pub(super) fn end_watchers(&self) {
        self.inner.events.send_replace(STOPPING);
    }

    /// Streams the events after a position, without a gap, until the client disconnects or the server stops.
    pub(super) async fn watch_events(
        &self,
        project: ProjectName,
        request: v1::WatchSandboxesRequest,
    ) -> Result<Answers, Status> {
        let kinds = EventFilter::new(&[], &request.kinds);
        let kinds = kinds.map_err(|error| Failure::new(error.reason(), error.to_string()).into_status())?;
        let wanted = Wanted { project, kinds, sandbox_id: request.sandbox_id };
        let changes = self.inner.events.subscribe();
        let (first, last) = self.inner.catalog.sandbox_event_range().await?;
        let position = match request.after.as_str() {
            "" => last,
            FIRST => first - 1,
            text => match text.parse() {
                Ok(position) if (first - 1..=last).contains(&position) => position,
                Ok(_) => return Err(out_of_range(first)),
                Err(_) => {
                    let message = "after: not a position of an event";
                    return Err(Failure::new(Reason::Invalid, message).into_status());
                }
            },
        };
        let (send, receive) = mpsc::channel(QUEUE);
        let sandboxes = self.clone();
        tokio::spawn(async move {
            if let Err(status) = sandboxes.follow_events(&wanted, position, changes, &send).await {
                let _ = send.send(Err(status)).await;
            }
        });
        Ok(ReceiverStream::new(receive))
    }

    async fn follow_events(
        &self,
        wanted: &Wanted,
        mut position: i64,
        mut changes: tokio::sync::watch::Receiver<u64>,
        send: &mpsc::Sender<Result<v1::WatchSandboxesResponse, Status>>,
    ) -> Result<(), Status> {
        let begun = v1::WatchSandboxesResponse { position: position.to_string(), event: None };
        if send.send(Ok(begun)).await.is_err() {
            return Ok(());
        }
        loop {
            changes.mark_unchanged();
            let (first, last) = self.inner.catalog.sandbox_event_range().await?;
            if position + 1 < first {
                return Err(out_of_range(first));
            }
            loop {
                let page = self.inner.catalog.sandbox_events(&wanted.project, position, last, PAGE).await?;
                let is_last = page.len() < PAGE as usize;
                for row in &page {
                    position = row.position;
                    if wanted.wants(row) && send.send(Ok(message(row))).await.is_err() {
                        return Ok(());
                    }
                }
                if is_last {
                    // Skips events of other projects.
                    position = position.max(last);
                    break;
                }
            }
            let changed = tokio::select! {
                changed = changes.changed() => changed,
                () = send.closed() => return Ok(()),
            };
            if changed.is_err() || *changes.borrow() == STOPPING {
                let message = "the server is stopping; go on after the position";
                let failure = Failure::new(Reason::Busy, message).with("position", position.to_string());
                return Err(failure.into_status());
            }
        }
    }
}

fn out_of_range(first: i64) -> Status {
    let message = format!(
        "the events after this position are not kept any more; list the sandboxes, and go on after {}",
        first - 1
    );
    Failure::new(Reason::OutOfRange, message).with("first", (first - 1).to_string()).into_status()
}

/// Returns a sandbox as the event log stores it: the data of a webhook, with exact times.
pub(super) fn stored(record: &SandboxRecord, data: &Value) -> Value {
    let mut stored = data.clone();
    stored["createdNs"] = record.created.0.into();
    stored["expiresNs"] = record.expires.0.into();
    stored
}

fn message(row: &SandboxEventRow) -> v1::WatchSandboxesResponse {
    let text = |name: &str| row.sandbox[name].as_str().unwrap_or_default().to_owned();
    let time = |name: &str| row.sandbox[name].as_i64().map(|time| timestamp(Time(time)));
    let sandbox = v1::Sandbox {
        id: text("sandboxId"),
        name: text("name"),
        state: text("state"),
        reason: text("reason"),
        template: text("template"),
        runtime: text("runtime"),
        workspace: text("workspace"),
        project: text("project"),
        created_at: time("createdNs"),
        expires_at: time("expiresNs"),
        ..v1::Sandbox::default()
    };
    let position = row.position.to_string();
    let event = v1::SandboxEvent {
        position: position.clone(),
        kind: row.kind.clone(),
        time: Some(timestamp(row.time)),
        sandbox: Some(sandbox),
        actor: text("actor"),
    };
    v1::WatchSandboxesResponse { position, event: Some(event) }
}
