//! A store that this process serves to callers on the network: its API without a listener, and its background threads.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Time;
use amalgam_proto::v1;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::{Layer as _, Service as _};

use crate::api::{Api, Origin};
use crate::background::Background;
use crate::call_log::{CallLog, CallLogLayer, restricted_agent_of};
use crate::calls::Calls;
use crate::error::Result;
use crate::events::{EventFilter, EventStream, event_at};
use crate::serve::routes;
use crate::service::Service;

/// A store in which something is scheduled for the next five minutes counts as at work: to close it would not be worth it.
const SCHEDULED_SOON_NANOSECONDS: i64 = 300 * 1_000_000_000;
/// How long cancelled calls may take to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);

/// An open store. Calls come as gRPC requests, from a listener that authenticates their callers.
///
/// The listener names the caller of a call in the header [`crate::api::ACTOR_HEADER`], and says in [`crate::api::ADMIN_HEADER`] whether
/// the policy of the project applies to it.
pub struct OpenStore {
    service: Service,
    calls: Arc<Calls>,
    routes: CallLog<Routes>,
    background: Option<Background>,
}

impl OpenStore {
    /// Serves a store of its own: starts the background threads. [`OpenStore::close`] ends them.
    pub fn start(service: Service) -> Self {
        let mut store = Self::beside(service);
        // No client of the network hands over a FUSE device, so nothing listens at this socket.
        store.service.views.begin_mounting(&store.service.context.home.path().join("door"));
        store.background = Some(Background::start(&store.service, &store.calls));
        store
    }

    /// Serves a store that a listener of this process serves too: the listener runs the background threads.
    pub fn beside(service: Service) -> Self {
        Self::beside_counted(service, Calls::new())
    }

    /// Serves a store like [`OpenStore::beside`], and counts calls together with the listener.
    pub fn beside_counted(service: Service, calls: Arc<Calls>) -> Self {
        let origin = Origin::Network;
        let routes =
            CallLogLayer(origin).layer(routes(Api::new(service.clone(), Arc::clone(&calls), origin)).prepare());
        Self { service, calls, routes, background: None }
    }

    /// Answers one call from the network. Refuses a method that cannot enforce the policy to agents that the policy restricts; all other
    /// methods check the policy themselves, for each path.
    pub async fn call(&self, request: Request<Body>) -> Response<Body> {
        if let Some(agent) = restricted_agent_of(request.headers())
            && let Err(refused) = self.check_policy(request.uri().path(), agent)
        {
            return refused.into_http();
        }
        match self.routes.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Refuses a gRPC method (`path`) to an agent if the method cannot enforce the policy of the store. Not for callers with the
    /// scope `admin`.
    pub fn check_policy(&self, path: &str, agent: &str) -> Result<(), tonic::Status> {
        let checked = self.service.context.permissions.check_method(path, agent);
        checked.map_err(crate::error::Error::into_status)
    }

    /// Answers one call of the store's own user on the same machine, who may name paths of the host.
    pub async fn call_local(&self, request: Request<Body>) -> Response<Body> {
        self.call_from(Origin::Local, request).await
    }

    /// Answers one call that this process makes for a caller on the network. It may name paths of the host, but its errors do not
    /// have them.
    pub async fn call_for_server(&self, request: Request<Body>) -> Response<Body> {
        self.call_from(Origin::Server, request).await
    }

    async fn call_from(&self, origin: Origin, request: Request<Body>) -> Response<Body> {
        let api = Api::new(self.service.clone(), Arc::clone(&self.calls), origin);
        match CallLogLayer(origin).layer(routes(api).prepare()).call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    /// Completes when every call is to end, because the store is closed.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + 'static {
        let calls = Arc::clone(&self.calls);
        async move { calls.cancelled().await }
    }

    /// Opens the events of the store after a position, for a subscriber inside this process. It must let go of them when
    /// [`OpenStore::watches_end`] completes.
    ///
    /// # Errors
    /// The log does not have the position.
    pub fn events(&self, after: &str, filter: EventFilter) -> Result<EventStream> {
        EventStream::open(&self.service.context, after, filter, false)
    }

    /// Returns the event at a position, or `None` if the log does not have it any more. Reads from the disk.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn event_at(&self, position: u64) -> Result<Option<v1::Event>> {
        event_at(&self.service.context, position)
    }

    /// Completes when subscriptions are to end, because the store is closed.
    pub fn watches_end(&self) -> impl Future<Output = ()> + Send + 'static {
        let calls = Arc::clone(&self.calls);
        async move { calls.watches_end().await }
    }

    /// Returns the service of the store.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Returns the number of running calls.
    pub fn calls_under_way(&self) -> u32 {
        self.calls.under_way()
    }

    /// Returns for how long the store has had nothing to do: no call, no open view, no collection, no merge, and nothing that is
    /// scheduled for the next minutes.
    pub fn idle_for(&self) -> Duration {
        let soon = self.service.context.now().0.saturating_add(SCHEDULED_SOON_NANOSECONDS);
        let is_soon = self.service.next_scheduled().is_some_and(|time| time.0 <= soon);
        if is_soon || self.service.is_busy() { Duration::ZERO } else { self.calls.idle_for() }
    }

    /// Returns when the store has to be open again, if it is closed now: for a scheduled publish, an update of a follower, or the daily
    /// collection. Nothing if nothing is scheduled.
    pub fn next_due(&self) -> Option<Time> {
        self.service.next_scheduled().into_iter().chain(self.service.collections.next_due()).min()
    }

    /// Ends subscriptions, and gives other calls some time to finish. Calls that did not are cancelled.
    pub async fn drain(&self, within: Duration) {
        self.calls.end_watches();
        if !self.calls.drained(within).await {
            self.calls.cancel();
            self.service.merging.cancel_tests();
            self.calls.drained(CANCEL_WITHIN).await;
        }
    }

    /// Ends the background threads and closes the store. Calls that still run are cancelled.
    pub async fn close(mut self) {
        self.drain(Duration::ZERO).await;
        if let Some(background) = self.background.take() {
            background.end(&self.service).await;
        }
    }
}
