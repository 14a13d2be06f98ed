//! The API's face: each call is translated, done by the service on a thread that may block, and its answer translated back.

mod collection;
mod conflicts;
mod description;
mod directories;
mod exchange;
mod merges;
mod mounts;
mod operations;
mod snapshots;
mod store;
mod transfer;
mod workspaces;

pub(crate) use operations::operation_message;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::Interrupt;
use amalgam_materializer::Progress;
use amalgam_proto::{Failure, Reason, v1};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::failure::Result;
use crate::serve::Calls;
use crate::service::Service;

/// Who calls, in the metadata of a request.
pub const ACTOR_HEADER: &str = "amalgam-actor";

/// How often progress is told.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// Messages that wait for a slow reader.
const QUEUE: usize = 16;

/// A stream of answers.
pub type Answers<T> = ReceiverStream<Result<T, Status>>;

/// The services, for one listener. Calls with host paths are answered only where `local` says so.
#[derive(Clone)]
pub struct Api {
    pub(crate) service: Service,
    pub(crate) calls: Arc<Calls>,
    pub(crate) local: bool,
}

impl Api {
    /// The face of a service.
    pub fn new(service: Service, calls: Arc<Calls>, local: bool) -> Self {
        Self { service, calls, local }
    }

    /// Does something short on a thread that may block.
    pub(crate) fn short<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<tonic::Response<T>, Status>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&Service) -> Result<T> + Send + 'static,
    {
        self.call(move |service| {
            let _using = service.using();
            work(service)
        })
    }

    /// The same for what needs the store without anybody else.
    pub(crate) fn short_alone<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<tonic::Response<T>, Status>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&Service) -> Result<T> + Send + 'static,
    {
        self.call(move |service| {
            let _alone = service.alone()?;
            work(service)
        })
    }

    fn call<T, W>(&self, work: W) -> impl Future<Output = Result<tonic::Response<T>, Status>> + Send + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&Service) -> Result<T> + Send + 'static,
    {
        let (service, call) = (self.service.clone(), self.calls.begin());
        let done = tokio::task::spawn_blocking(move || work(&service));
        async move {
            let done = done.await.map_err(|error| panicked(&error))?;
            drop(call);
            done.map(tonic::Response::new).map_err(Failure::into_status)
        }
    }

    /// Does something whose answers come one by one. It ends early when nobody listens any more.
    pub(crate) fn stream<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service, &Sender<T>) -> Result<()> + Send + 'static,
    ) -> tonic::Response<Answers<T>> {
        self.follow(move |service, sender| {
            let _using = service.using();
            work(service, sender)
        })
    }

    /// The same for what goes on until somebody ends it, and so says itself when it uses the store.
    pub(crate) fn follow<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service, &Sender<T>) -> Result<()> + Send + 'static,
    ) -> tonic::Response<Answers<T>> {
        let (service, call) = (self.service.clone(), self.calls.begin());
        let (send, receive) = mpsc::channel(QUEUE);
        let (seen, sender) = (send.clone(), Sender::new(send));
        let interrupt = sender.interrupt.clone();
        let (finished, is_finished) = oneshot::channel::<()>();
        tokio::task::spawn_blocking(move || {
            let done = work(&service, &sender);
            if let Err(failure) = done {
                let _ = sender.send.blocking_send(Err(failure.into_status()));
            }
            drop((call, finished));
        });
        tokio::spawn(async move {
            tokio::select! {
                () = seen.closed() => interrupt.interrupt(),
                _ = is_finished => {}
            }
        });
        tonic::Response::new(ReceiverStream::new(receive))
    }

    /// The same for long work: tells its progress, and stops it when nobody listens any more.
    pub(crate) fn long<T: Send + 'static>(
        &self,
        phase: &'static str,
        tell: fn(v1::Progress) -> T,
        work: impl FnOnce(&Service, &Progress, &Sender<T>) -> Result<T> + Send + 'static,
    ) -> tonic::Response<Answers<T>> {
        self.watch(phase, tell, move |service, progress, sender| {
            let _using = service.using();
            work(service, progress, sender)
        })
    }

    /// The same for work that counts in its own words, and says itself when it uses the store.
    pub(crate) fn watch<P: Watched, T: Send + 'static>(
        &self,
        phase: &'static str,
        tell: fn(v1::Progress) -> T,
        work: impl FnOnce(&Service, &P, &Sender<T>) -> Result<T> + Send + 'static,
    ) -> tonic::Response<Answers<T>> {
        let (service, call) = (self.service.clone(), self.calls.begin());
        let (send, receive) = mpsc::channel(QUEUE);
        let progress = Arc::new(P::default());
        let (working, seen, sender) = (Arc::clone(&progress), send.clone(), Sender::new(send));
        let interrupt = sender.interrupt.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&service, &working, &sender);
            let _ = sender.send.blocking_send(done.map_err(Failure::into_status));
            drop(call);
        });
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            while !done.is_finished() {
                tokio::select! {
                    _ = tick.tick() => {
                        let _ = seen.try_send(Ok(tell(progress.message(phase))));
                    }
                    () = seen.closed() => {
                        progress.stop();
                        interrupt.interrupt();
                        break;
                    }
                }
            }
        });
        tonic::Response::new(ReceiverStream::new(receive))
    }

    /// Refuses calls that name paths of the host where they are not allowed.
    pub(crate) fn local_only(&self) -> Result<(), Status> {
        if self.local {
            return Ok(());
        }
        let message = "calls with paths of the host exist only on the Unix socket, for the same user";
        Err(Failure::new(Reason::LocalOnly, message).into_status())
    }
}

/// Work that somebody watches and may stop.
pub(crate) trait Watched: Default + Send + Sync + 'static {
    /// How far it is.
    fn message(&self, phase: &str) -> v1::Progress;
    /// Asks it to stop.
    fn stop(&self);
}

impl Watched for Progress {
    fn message(&self, phase: &str) -> v1::Progress {
        crate::directory::progress_message(phase, self)
    }

    fn stop(&self) {
        self.cancel();
    }
}

/// Where answers go.
pub(crate) struct Sender<T> {
    send: mpsc::Sender<Result<T, Status>>,
    interrupt: Interrupt,
}

impl<T> Sender<T> {
    fn new(send: mpsc::Sender<Result<T, Status>>) -> Self {
        Self { send, interrupt: Interrupt::default() }
    }

    /// Does what only reads. It ends when nobody listens any more.
    pub(crate) fn walking<R>(&self, walk: impl FnOnce() -> R) -> R {
        self.interrupt.during(walk)
    }

    /// Sends one; an error when nobody listens any more.
    pub(crate) fn send(&self, answer: T) -> Result<()> {
        self.send.blocking_send(Ok(answer)).map_err(|_| Failure::new(Reason::Cancelled, "the caller went away"))
    }

    /// Whether nobody listens any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.send.is_closed()
    }
}

/// Who calls.
pub(crate) fn actor<T>(request: &Request<T>) -> String {
    let told = request.metadata().get(ACTOR_HEADER).and_then(|value| value.to_str().ok());
    told.unwrap_or("unknown").to_owned()
}

/// How many of a page are wanted.
pub(crate) fn page_size(asked: i32) -> usize {
    const DEFAULT: usize = 100;
    const MAX: usize = 1_000;
    match usize::try_from(asked) {
        Ok(0) | Err(_) => DEFAULT,
        Ok(asked) => asked.min(MAX),
    }
}

fn panicked(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("a bug in the server: {error}; its log says more"))
}
