//! Sends events to webhooks: each webhook has a task, which follows the events of its project from a cursor in the catalog.
//!
//! A delivery is a row in the catalog with the position of its event, queued in the same transaction that moves the cursor. So a server that
//! is killed sends an event twice at worst, with the same id, and never skips one. Deliveries of a webhook are made one after another.

mod sender;
mod signature;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::Reason;
use amalgam_server::{EventFilter, EventStream, OpenStore};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use crate::catalog::{Attempt, Catalog, CatalogError};
use crate::projects::{ProjectError, Projects};
use crate::webhook::{Delivery, DeliveryState, LOST_KIND, TEST_KIND, Webhook, WebhookId, parse_url};
use sender::Sender;
pub use sender::WebhookOptions;
use signature::{MessageHead, signed_headers};

/// Interval of the checks for webhooks, tests and replays that another process queued.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a webhook is served again after its project or the catalog failed.
const FAILURE_DELAY: Duration = Duration::from_secs(5);
/// Maximum length of an error message that the catalog keeps, in bytes.
const ERROR_BYTES_MAX: usize = 500;

/// Why a webhook cannot be served at the moment.
#[derive(Debug, thiserror::Error)]
enum DispatchError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    Project(#[from] ProjectError),
    #[error(transparent)]
    Store(#[from] amalgam_server::Error),
}

/// Sends events to webhooks. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Dispatcher {
    catalog: Catalog,
    projects: Projects,
    sender: Arc<Sender>,
    now: fn() -> Time,
    wake: Arc<Notify>,
}

impl Dispatcher {
    pub(crate) fn new(catalog: Catalog, projects: Projects, options: WebhookOptions, now: fn() -> Time) -> Self {
        Self { catalog, projects, sender: Arc::new(Sender::new(options)), now, wake: Arc::default() }
    }

    /// Wakes the dispatcher, so that it reads the catalog at once.
    pub(crate) fn wake(&self) {
        self.wake.notify_waiters();
    }

    /// Serves all webhooks until the future is dropped; in a cluster, only while this node is the leader.
    pub(crate) async fn run(&self) {
        loop {
            let mut leadership = self.catalog.lead().await;
            tokio::select! {
                () = self.serve_all() => {}
                () = leadership.lost() => warn!("another node sends webhooks from now on"),
            }
        }
    }

    async fn serve_all(&self) {
        let mut tasks = JoinSet::new();
        let mut running: HashMap<WebhookId, AbortHandle> = HashMap::new();
        loop {
            match self.catalog.list_webhooks().await {
                Ok(webhooks) => {
                    running.retain(|id, task| {
                        let stays = !task.is_finished() && webhooks.iter().any(|webhook| webhook.id == *id);
                        if !stays {
                            task.abort();
                        }
                        stays
                    });
                    for webhook in webhooks {
                        running.entry(webhook.id.clone()).or_insert_with(|| {
                            let dispatcher = self.clone();
                            tasks.spawn(async move { dispatcher.serve(webhook).await })
                        });
                    }
                }
                Err(error) => warn!(%error, "webhooks cannot be read"),
            }
            while tasks.try_join_next().is_some() {}
            self.pause(CHECK_INTERVAL).await;
        }
    }

    async fn pause(&self, at_most: Duration) {
        let _ = tokio::time::timeout(at_most, self.wake.notified()).await;
    }

    /// Serves one webhook until the task is aborted.
    async fn serve(&self, webhook: Webhook) {
        let mut work =
            Work { dispatcher: self.clone(), position: webhook.position, webhook, events: None, is_new: true };
        loop {
            if let Err(error) = work.step().await {
                work.events = None;
                warn!(webhook = %work.webhook.id, %error, "a webhook cannot be served at the moment");
                tokio::time::sleep(FAILURE_DELAY).await;
            }
        }
    }

    /// Attempts a delivery, and records the result.
    async fn attempt(&self, webhook: &Webhook, delivery: &Delivery) -> Result<(), DispatchError> {
        let tried = match self.payload(webhook, delivery).await? {
            Some((id, body)) => self.send(webhook, &id, &delivery.kind, &body).await,
            None => Err((0, "the event is not in the log any more".to_owned())),
        };
        let (time, attempts) = ((self.now)(), delivery.attempts.saturating_add(1));
        let attempt = match tried {
            Ok(status) => {
                let (state, error) = (DeliveryState::Delivered, String::new());
                Attempt { state, attempts, status, error, time, next: None }
            }
            Err((status, mut error)) => {
                error.truncate(error.floor_char_boundary(ERROR_BYTES_MAX));
                let next = self.sender.options.next_try(attempts).map(|delay| later(time, delay));
                let state = if next.is_some() { DeliveryState::Pending } else { DeliveryState::Failed };
                info!(webhook = %webhook.id, number = delivery.number, attempts, status, %error, "a delivery failed");
                Attempt { state, attempts, status, error, time, next }
            }
        };
        Ok(self.catalog.record_attempt(&webhook.id, delivery.number, &attempt).await?)
    }

    /// Returns the id and the body of a delivery, or `None` if the log does not have the event any more.
    async fn payload(
        &self,
        webhook: &Webhook,
        delivery: &Delivery,
    ) -> Result<Option<(String, Vec<u8>)>, DispatchError> {
        let project = webhook.project.as_str();
        if let Some(event) = &delivery.event {
            let event: Value = serde_json::from_str(event).unwrap_or_default();
            let id = event["id"].as_str().unwrap_or_default().to_owned();
            return Ok(Some((id, body(&delivery.kind, delivery.created, &event["data"]))));
        }
        let (id, time, data) = match (delivery.position, delivery.kind.as_str()) {
            (None, _) | (_, TEST_KIND) => {
                let id = format!("test-{}-{}", webhook.id, delivery.number);
                (id, delivery.created, json!({"project": project, "webhook": webhook.id.as_str()}))
            }
            (Some(position), LOST_KIND) => {
                let id = format!("lost-{project}-{position}");
                (id, delivery.created, json!({"project": project, "position": position.to_string()}))
            }
            (Some(position), _) => {
                let store = self.projects.open(&webhook.project).await?;
                let Some(event) = blocking(move || store.event_at(position)).await? else { return Ok(None) };
                let mut data = json!({
                    "project": project,
                    "position": event.position,
                    "workspaces": event.workspaces,
                    "snapshot": event.snapshot,
                    "labels": event.labels,
                    "actor": event.actor,
                });
                if !event.paths.is_empty() {
                    data["paths"] = json!(event.paths);
                }
                if !event.agent.is_empty() {
                    data["agent"] = json!(event.agent);
                    data["detail"] = json!(event.detail);
                }
                (format!("evt-{project}-{position}"), event.time.as_ref().map_or(Time(0), amalgam_proto::instant), data)
            }
        };
        Ok(Some((id, body(&delivery.kind, time, &data))))
    }

    async fn send(&self, webhook: &Webhook, id: &str, kind: &str, body: &[u8]) -> Result<u16, (u16, String)> {
        let url = parse_url(&webhook.url).map_err(|why| (0, why))?;
        let head = MessageHead { id, kind, time: (self.now)(), secret: &webhook.secret };
        let headers = signed_headers(&head, body).map_err(|why| (0, why))?;
        match self.sender.post(&url, headers, body.to_vec().into()).await {
            Ok(status) if status.is_success() => Ok(status.as_u16()),
            Ok(status) if status.is_redirection() => {
                Err((status.as_u16(), format!("the receiver answered {status}; redirects are not followed")))
            }
            Ok(status) => Err((status.as_u16(), format!("the receiver answered {status}"))),
            Err(error) => Err((0, error.to_string())),
        }
    }
}

/// The event stream of a webhook's project, while the project is open.
struct Followed {
    events: EventStream,
    /// Completes when the project is closed.
    closed: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// The state of the task that serves a webhook.
struct Work {
    dispatcher: Dispatcher,
    webhook: Webhook,
    /// The position up to which deliveries were queued.
    position: Option<u64>,
    events: Option<Followed>,
    /// Whether the log was not read since the start: then it may have new events, even if its project is closed.
    is_new: bool,
}

impl Work {
    /// Makes a delivery, queues one, or waits for new work.
    async fn step(&mut self) -> Result<(), DispatchError> {
        let dispatcher = self.dispatcher.clone();
        if let Some(delivery) = dispatcher.catalog.first_pending(&self.webhook.id).await? {
            let wait = delivery.next.map_or(0, |next| next.0.saturating_sub((dispatcher.now)().0));
            return match u64::try_from(wait) {
                Ok(wait) if wait > 0 => {
                    // Another process may queue a test meanwhile.
                    dispatcher.pause(Duration::from_nanos(wait).min(CHECK_INTERVAL)).await;
                    Ok(())
                }
                _ => dispatcher.attempt(&self.webhook, &delivery).await,
            };
        }
        if self.events.is_none() {
            return self.follow().await;
        }
        self.queue_next().await
    }

    /// Opens the event stream of the project. A closed project has no new events, unless another node has it open.
    async fn follow(&mut self) -> Result<(), DispatchError> {
        let projects = &self.dispatcher.projects;
        let opened = match self.is_new || self.dispatcher.catalog.is_shared() {
            true => Some(projects.open(&self.webhook.project).await?),
            false => projects.opened(&self.webhook.project),
        };
        let Some(store) = opened else {
            self.dispatcher.pause(CHECK_INTERVAL).await;
            return Ok(());
        };
        let position = match self.position {
            Some(position) => position,
            None => {
                let (store, created) = (Arc::clone(&store), self.webhook.created);
                blocking(move || store.service().position_before(created)).await?
            }
        };
        let filter = EventFilter::new(&self.webhook.workspaces, &self.webhook.kinds)?;
        let events = match store.events(&position.to_string(), filter.clone()) {
            Err(failure) if failure.reason() == Reason::OutOfRange => {
                self.skip_lost(&store).await?;
                return Ok(());
            }
            opened => opened?,
        };
        if self.position.is_none() {
            self.dispatcher.catalog.set_webhook_position(&self.webhook.id, position).await?;
        }
        (self.position, self.is_new) = (Some(position), false);
        let closed = Box::pin(store.watches_end());
        self.events = Some(Followed { events, closed });
        Ok(())
    }

    /// Skips events that the log does not have any more, and queues an event that reports the loss to the receiver.
    async fn skip_lost(&mut self, store: &OpenStore) -> Result<(), DispatchError> {
        let position = store.events("first", EventFilter::default())?.position();
        let webhook = &self.webhook.id;
        warn!(%webhook, position, "events were trimmed before they were sent to a webhook");
        self.dispatcher.catalog.queue_event(webhook, position, LOST_KIND, (self.dispatcher.now)()).await?;
        self.position = Some(position);
        Ok(())
    }

    /// Waits for the next event, and queues its delivery.
    async fn queue_next(&mut self) -> Result<(), DispatchError> {
        let Some(followed) = &mut self.events else { return Ok(()) };
        let next = tokio::select! {
            next = followed.events.next() => next,
            () = &mut followed.closed => {
                self.events = None;
                return Ok(());
            }
            () = self.dispatcher.pause(CHECK_INTERVAL) => return Ok(()),
        };
        let next = match next {
            // The log was trimmed. The next call of `follow` finds where it begins.
            Err(failure) if failure.reason() == Reason::OutOfRange => {
                (self.events, self.is_new) = (None, true);
                return Ok(());
            }
            next => next?,
        };
        let (catalog, position) = (&self.dispatcher.catalog, followed.events.position());
        match next.event {
            Some(event) => {
                drop(catalog.queue_event(&self.webhook.id, position, &event.kind, (self.dispatcher.now)()).await?)
            }
            None if self.position == Some(position) => {}
            None => catalog.set_webhook_position(&self.webhook.id, position).await?,
        }
        self.position = Some(position);
        Ok(())
    }
}

/// Builds the body of a delivery. It has the kind as `type`, as in Standard Webhooks, and also as `event`.
fn body(kind: &str, time: Time, data: &Value) -> Vec<u8> {
    let timestamp = crate::audit::timestamp(time);
    json!({"type": kind, "event": kind, "timestamp": timestamp, "data": data}).to_string().into_bytes()
}

fn later(time: Time, delay: Duration) -> Time {
    Time(time.0.saturating_add(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX)))
}

/// Runs a function that reads from the disk on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> amalgam_server::error::Result<T> + Send + 'static,
) -> Result<T, DispatchError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => Ok(done?),
        Err(error) => Err(amalgam_server::Error::io("read an event")(std::io::Error::other(error)).into()),
    }
}
