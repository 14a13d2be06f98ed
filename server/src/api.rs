//! The gRPC services. Each call is translated, carried out by the service on a blocking thread, and its answer is translated back.

mod collection;
mod conflicts;
mod directories;
mod episodes;
mod events;
mod exchange;
mod exports;
mod files;
mod following;
mod merges;
mod mounts;
mod operations;
mod policy;
mod radar;
mod requests;
mod snapshots;
mod states;
mod status;
mod store;
mod transfer;
mod workspaces;

pub use crate::call_log::{ACTOR_HEADER, ADMIN_HEADER};
pub use crate::caller::Origin;

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use amalgam_materializer::Progress;
use amalgam_proto::{Identified, Reason, v1};
use parking_lot::{Mutex, RwLockReadGuard};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status};

use crate::call_log::{CurrentCall, in_call, keep_running, task_in_call};
use crate::caller::{Caller, ends, gone};
use crate::calls::{Calls, Kind, RuntimePermit};
use crate::error::{Error, Result};
use crate::messages::{Phase, progress_message};
use crate::service::Service;
use crate::subscriber::Subscriber;

/// Interval between the progress messages of a call.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);
/// The most answers of a stream that wait for a slow reader.
const QUEUE: usize = 16;
/// How long a call waits for a client that does not read before it releases its permit.
const SLOW_READER_AFTER: Duration = Duration::from_secs(1);

/// A stream of answers.
pub type Answers<T> = ReceiverStream<Result<T, Status>>;

/// The services, for one listener. Calls with host paths are answered only for local callers.
#[derive(Clone)]
pub struct Api {
    pub(crate) service: Service,
    pub(crate) calls: Arc<Calls>,
    pub(crate) origin: Origin,
}

/// The methods that run the work of a call.
///
/// `short` is for calls that take milliseconds. All others name their kind and wait for its permit. `read` and `stream` are for
/// work that changes nothing: it is interrupted when its client disconnects. Work that changes something checks by itself where it
/// may stop.
impl Api {
    /// Returns the gRPC services of one listener.
    pub fn new(service: Service, calls: Arc<Calls>, origin: Origin) -> Self {
        Self { service, calls, origin }
    }

    /// Returns the caller and the message of a request that may carry an id. A request with an id counts as running from now on.
    pub(crate) fn identified<R: Identified>(&self, request: Request<R>) -> (String, R) {
        let (actor, request) = (actor(&request), request.into_inner());
        self.keep_identified(&actor, &request);
        (actor, request)
    }

    /// Counts a request with an id as running until its call has ended.
    pub(crate) fn keep_identified<R: Identified>(&self, actor: &str, request: &R) {
        if !request.request_id().is_empty() {
            keep_running(self.service.context.requests.begin(actor, R::METHOD, request.request_id()));
        }
    }

    /// Runs a read of microseconds, from memory or from a few records that are usually cached, in the task of its call: a hop to a
    /// blocking thread would cost several times as much. Uses a blocking thread if the store is held exclusively or shared with
    /// other nodes.
    pub(crate) async fn quick<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        if !self.service.context.is_shared()
            && let Some(using) = self.service.try_using()
        {
            return self.run_here(using, work);
        }
        self.short(work).await
    }

    /// Runs work of some hundred microseconds in the task of its call if the runtime has a thread to spare. Otherwise returns the
    /// work, which then needs a blocking thread.
    pub(crate) fn brief<T, W: FnOnce(&Service) -> Result<T>>(
        &self,
        work: W,
    ) -> std::result::Result<Result<tonic::Response<T>, Status>, W> {
        if self.service.context.is_shared() {
            return Err(work);
        }
        match (self.service.try_using(), RuntimePermit::take()) {
            (Some(using), Some(_place)) => Ok(self.run_here(using, work)),
            _ => Err(work),
        }
    }

    fn run_here<T>(
        &self,
        _using: RwLockReadGuard<'_, ()>,
        work: impl FnOnce(&Service) -> Result<T>,
    ) -> Result<tonic::Response<T>, Status> {
        let _call = self.calls.begin();
        // A panic ends this call and no other one on its connection, as on a blocking thread.
        let done = catch_unwind(AssertUnwindSafe(|| work(&self.service)));
        let done = done.map_err(|_| Status::internal("a bug in the server; its log says more"))?;
        done.map(tonic::Response::new).map_err(Error::into_status)
    }

    /// Runs a short call on a blocking thread, without a limit. Does not begin if the client has disconnected.
    pub(crate) async fn short<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Service) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let (service, call, caller) = (self.service.clone(), self.calls.begin(), Caller::default());
        let _gone = GoneOnDrop(caller.clone());
        let done = tokio::task::spawn_blocking(in_call(move || {
            let _call = call;
            let _using = service.using();
            caller.check()?;
            work(&service)
        }));
        let done = done.await.map_err(|error| panicked(&error))?;
        done.map(tonic::Response::new).map_err(Error::into_status)
    }

    /// Runs a long read on a blocking thread. It is interrupted when the client disconnects.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        caller: &str,
        work: impl FnOnce(&Service) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        self.slow(caller, Kind::Work, |service, caller| caller.walking(|| work(service))).await
    }

    /// Runs a long call on a blocking thread, within the limits for its kind and for the streams of its caller.
    pub(crate) async fn slow<T: Send + 'static>(
        &self,
        caller: &str,
        kind: Kind,
        work: impl FnOnce(&Service, &Caller) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        self.in_turn(caller, kind, |service, caller| {
            let _using = service.using();
            // The store may have been held exclusively for long.
            caller.check()?;
            work(service, caller)
        })
        .await
    }

    /// Runs work on a blocking thread as soon as its kind has a permit. The work must mark the store as in use by itself.
    async fn in_turn<T: Send + 'static>(
        &self,
        caller: &str,
        kind: Kind,
        work: impl FnOnce(&Service, &Caller) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        let stream = self.calls.open_stream(caller).map_err(Error::into_status)?;
        let permit = tokio::select! {
            permit = self.calls.permit(kind) => permit,
            () = self.calls.cancelled() => return Err(ends().into_status()),
        };
        let (service, caller) = (self.service.clone(), Caller::default());
        // Dropped with this future, which the runtime drops when the client disconnects.
        let _gone = GoneOnDrop(caller.clone());
        let mut done = {
            let caller = caller.clone();
            tokio::task::spawn_blocking(in_call(move || {
                let _held = (permit, stream);
                caller.check()?;
                work(&service, &caller)
            }))
        };
        let done = tokio::select! {
            done = &mut done => done,
            () = self.calls.cancelled() => {
                caller.leave();
                done.await
            }
        };
        done.map_err(|error| panicked(&error))?.map(tonic::Response::new).map_err(Error::into_status)
    }

    /// Runs work that has exclusive use of the store.
    pub(crate) async fn alone<T: Send + 'static>(
        &self,
        caller: &str,
        work: impl FnOnce(&Service) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<T>, Status> {
        self.in_turn(caller, Kind::Work, |service, caller| {
            let _alone = service.alone()?;
            caller.check()?;
            work(service)
        })
        .await
    }

    /// Runs a read that sends its answers one by one. It is interrupted when the client disconnects.
    pub(crate) fn stream<T: Send + 'static>(
        &self,
        caller: &str,
        work: impl FnOnce(&Service, &Sender<T>) -> Result<()> + Send + 'static,
    ) -> Result<tonic::Response<Answers<T>>, Status> {
        self.run(caller, Kind::Work, move |service, sender| {
            let _using = service.using();
            sender.check()?;
            sender.caller.walking(|| work(service, sender))
        })
    }

    /// Runs work that sends its answers one by one. It must ask the sender whether the client is still connected.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        caller: &str,
        kind: Kind,
        work: impl FnOnce(&Service, &Sender<T>) -> Result<()> + Send + 'static,
    ) -> Result<tonic::Response<Answers<T>>, Status> {
        self.begin(caller, kind, |_| {}, move |service, sender| work(service, sender))
    }

    /// Runs a long call that uses the store, sends its progress to the client, and stops it when the client disconnects.
    pub(crate) fn long<T: Send + 'static>(
        &self,
        caller: &str,
        phase: Phase,
        tell: fn(v1::Progress) -> T,
        work: impl FnOnce(&Service, &Progress, &Sender<T>) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<Answers<T>>, Status> {
        self.watch(caller, Kind::Work, phase, tell, move |service, progress, sender| {
            let _using = service.using();
            sender.check()?;
            work(service, progress, sender)
        })
    }

    /// Runs a long call that counts its own kind of progress. The work must mark the store as in use by itself.
    pub(crate) fn watch<P: Watched, T: Send + 'static>(
        &self,
        caller: &str,
        kind: Kind,
        phase: Phase,
        tell: fn(v1::Progress) -> T,
        work: impl FnOnce(&Service, &P, &Sender<T>) -> Result<T> + Send + 'static,
    ) -> Result<tonic::Response<Answers<T>>, Status> {
        let progress = Arc::new(P::default());
        let (told, stopped) = (Arc::clone(&progress), Arc::clone(&progress));
        let follow = move |step: Step<'_, T>| match step {
            Step::Tick(send) => drop(send.try_send(Ok(tell(told.message(phase))))),
            Step::Gone => stopped.stop(),
        };
        self.begin(caller, kind, follow, move |service, sender| sender.send(work(service, &progress, sender)?))
    }

    /// Runs the work of a call once its kind has a permit, and interrupts it when the client disconnects or the process ends.
    fn begin<T: Send + 'static>(
        &self,
        caller: &str,
        kind: Kind,
        follow: impl Fn(Step<'_, T>) + Send + 'static,
        work: impl FnOnce(&Service, &Sender<T>) -> Result<()> + Send + 'static,
    ) -> Result<tonic::Response<Answers<T>>, Status> {
        let stream = self.calls.open_stream(caller).map_err(Error::into_status)?;
        let (service, calls) = (self.service.clone(), Arc::clone(&self.calls));
        let (send, receive) = mpsc::channel(QUEUE);
        let served = async move {
            let permit = tokio::select! {
                permit = calls.permit(kind) => permit,
                () = send.closed() => return,
                () = calls.cancelled() => return drop(send.send(Err(ends().into_status())).await),
            };
            let caller = Caller::default();
            let turn = Mutex::new(Some(permit));
            let sender = Sender { send: send.clone(), caller: caller.clone(), calls: Arc::clone(&calls), kind, turn };
            let mut done = tokio::task::spawn_blocking(in_call(move || {
                let _stream = stream;
                let done = sender.check().and_then(|()| work(&service, &sender));
                if let Err(failure) = done {
                    let told = sender.send.send_timeout(Err(failure.into_status()), SLOW_READER_AFTER);
                    let _ = tokio::runtime::Handle::current().block_on(told);
                }
            }));
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            loop {
                tokio::select! {
                    done = &mut done => {
                        if let Err(error) = done {
                            let _ = send.send(Err(panicked(&error))).await;
                        }
                        return;
                    }
                    _ = tick.tick() => follow(Step::Tick(&send)),
                    () = send.closed() => break,
                    () = calls.cancelled() => break,
                }
            }
            caller.leave();
            follow(Step::Gone);
        };
        tokio::spawn(task_in_call(CurrentCall::get(), served));
        Ok(tonic::Response::new(ReceiverStream::new(receive)))
    }

    /// Sends answers as they come, without a thread, until the client disconnects, the process ends or there are no more.
    pub(crate) fn subscribe<T: Send + 'static, F>(
        &self,
        caller: &str,
        follow: impl FnOnce(Service, Subscriber<T>) -> F,
    ) -> Result<tonic::Response<Answers<T>>, Status>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let stream = self.calls.open_stream(caller).map_err(Error::into_status)?;
        let (send, receive) = mpsc::channel(QUEUE);
        let subscriber = Subscriber::new(send.clone(), &self.calls);
        let following = follow(self.service.clone(), subscriber);
        let following = task_in_call(CurrentCall::get(), async move { following.await.map_err(Error::into_status) });
        tokio::spawn(async move {
            let _stream = stream;
            if let Err(status) = following.await {
                // A client that does not read gets no error.
                let _ = send.send_timeout(Err(status), SLOW_READER_AFTER).await;
            }
        });
        Ok(tonic::Response::new(ReceiverStream::new(receive)))
    }

    /// Refuses a call that names paths of the host, unless the caller is local or this process and the service uses its host.
    pub(crate) fn host_paths_only_local(&self) -> Result<(), Status> {
        self.local_only()?;
        self.service.context.host.check("paths of the host").map_err(Error::into_status)
    }

    /// Refuses a call from the network.
    pub(crate) fn local_only(&self) -> Result<(), Status> {
        if self.origin != Origin::Network {
            return Ok(());
        }
        let message = "calls with paths of the host exist only on the Unix socket, for the same user";
        Err(Error::new(Reason::LocalOnly, message).into_status())
    }
}

/// Work that reports progress to its client and that the client can stop.
pub(crate) trait Watched: Default + Send + Sync + 'static {
    /// Returns the progress so far, for the wire.
    fn message(&self, phase: Phase) -> v1::Progress;
    /// Asks the work to stop.
    fn stop(&self);
}

impl Watched for Progress {
    fn message(&self, phase: Phase) -> v1::Progress {
        progress_message(phase, self)
    }

    fn stop(&self) {
        self.cancel();
    }
}

/// An event while work runs.
enum Step<'a, T> {
    /// It is time to report progress.
    Tick(&'a mpsc::Sender<Result<T, Status>>),
    /// The client disconnected, or the process ends.
    Gone,
}

/// Marks the caller as gone when the future of its call is dropped.
struct GoneOnDrop(Caller);

impl Drop for GoneOnDrop {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Sends the answers of a call to its client.
pub(crate) struct Sender<T> {
    send: mpsc::Sender<Result<T, Status>>,
    pub(crate) caller: Caller,
    calls: Arc<Calls>,
    kind: Kind,
    turn: Mutex<Option<OwnedSemaphorePermit>>,
}

impl<T> Sender<T> {
    /// Sends one answer. Returns an error when the client disconnected. While a client does not read, its permit goes to other
    /// calls.
    pub(crate) fn send(&self, answer: T) -> Result<()> {
        let answer = match self.send.try_send(Ok(answer)) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(_)) => return Err(gone()),
            Err(TrySendError::Full(answer)) => answer,
        };
        tokio::runtime::Handle::current().block_on(async {
            if let Ok(place) = tokio::time::timeout(SLOW_READER_AFTER, self.send.reserve()).await {
                place.map_err(|_| gone())?.send(answer);
                return Ok(());
            }
            let waiting = self.calls.wait_for_reader()?;
            drop(self.turn.lock().take());
            tokio::select! {
                place = self.send.reserve() => place.map_err(|_| gone())?.send(answer),
                () = self.calls.cancelled() => return Err(ends()),
            }
            drop(waiting);
            let turn = self.calls.permit(self.kind).await;
            *self.turn.lock() = Some(turn);
            Ok(())
        })
    }

    /// Returns an error when the client disconnected.
    fn check(&self) -> Result<()> {
        if self.is_closed() { Err(gone()) } else { Ok(()) }
    }

    /// Returns whether the client disconnected.
    pub(crate) fn is_closed(&self) -> bool {
        self.send.is_closed() || self.caller.is_gone()
    }
}

/// Returns the actor that a request names in its header; `unknown` if there is none.
pub(crate) fn actor<T>(request: &Request<T>) -> String {
    let named = request.metadata().get(ACTOR_HEADER).and_then(|value| value.to_str().ok());
    named.unwrap_or("unknown").to_owned()
}

/// Returns the size of a page: 100 by default, at most 1,000.
pub(crate) fn page_size(asked: i32) -> Result<usize> {
    const DEFAULT: usize = 100;
    const MAX: usize = 1_000;
    match usize::try_from(asked) {
        Ok(0) => Ok(DEFAULT),
        Ok(asked) => Ok(asked.min(MAX)),
        Err(_) => Err(Error::new(Reason::Invalid, format!("page_size: {asked} is negative"))),
    }
}

fn panicked(error: &tokio::task::JoinError) -> Status {
    Status::internal(format!("a bug in the server: {error}; its log says more"))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use amalgam_engine::Time;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::home::Home;

    fn api(around: &std::path::Path) -> Api {
        let service = Service::open(&Home::new(around.join("home")), || Time(5), &[]).expect("opened");
        Api::new(service, Calls::new(), Origin::Local)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn callers_that_do_not_read_keep_no_others_waiting() {
        let around = tempfile::tempdir().expect("a directory");
        let api = api(around.path());
        let mut unread = Vec::new();
        for _ in 0..100 {
            let many = |_: &Service, sender: &Sender<u32>| (0..100).try_for_each(|number| sender.send(number));
            unread.push(api.run("ada", Kind::Work, many).expect("open").into_inner());
        }
        let began = Instant::now();
        let answer = tokio::time::timeout(Duration::from_secs(20), api.read("ada", |_| Ok(7))).await;
        assert_eq!(answer.expect("in time").expect("answered").into_inner(), 7, "{:?}", began.elapsed());
        // A client that begins to read gets everything.
        let all: Vec<_> = unread.pop().expect("one").collect::<Vec<_>>().await;
        assert_eq!(all.into_iter().map(|one| one.expect("a number")).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_is_told_when_its_caller_goes_away() {
        let around = tempfile::tempdir().expect("a directory");
        let api = api(around.path());
        let (told, noticed) = tokio::sync::oneshot::channel();
        let work = move |_: &Service, caller: &Caller| {
            let began = Instant::now();
            while !caller.is_gone() && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = told.send(caller.is_gone());
            caller.check()
        };
        let call = api.slow("ada", Kind::Merge, work);
        // The client disconnects: its future is dropped.
        assert!(tokio::time::timeout(Duration::from_millis(100), call).await.is_err());
        assert!(noticed.await.expect("told"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn work_does_not_begin_after_its_caller_went_away() {
        let around = tempfile::tempdir().expect("a directory");
        let api = api(around.path());
        // A purge has the store to itself, so calls wait for it.
        let (held, is_held) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let service = api.service.clone();
        let holder = std::thread::spawn(move || {
            let _alone = service.alone().expect("nobody uses it");
            held.send(()).expect("heard");
            let _ = ended.recv();
        });
        is_held.recv().expect("held");
        let began = Arc::new(Mutex::new(Vec::new()));
        let note = |word: &'static str| {
            let began = Arc::clone(&began);
            move || {
                began.lock().push(word);
                word.len()
            }
        };
        let wait = Duration::from_millis(50);
        let (quick, short, slow, read) = (note("quick"), note("short"), note("slow"), note("read"));
        let quick = api.quick(move |_| Ok(quick()));
        assert!(tokio::time::timeout(wait, quick).await.is_err());
        let short = api.short(move |_| Ok(short()));
        assert!(tokio::time::timeout(wait, short).await.is_err());
        let slow = api.slow("ada", Kind::Merge, move |_, _| Ok(slow()));
        assert!(tokio::time::timeout(wait, slow).await.is_err());
        let read = api.read("ada", move |_| Ok(read()));
        assert!(tokio::time::timeout(wait, read).await.is_err());
        let stream = note("stream");
        let stream = move |_: &Service, _: &Sender<u32>| {
            stream();
            Ok(())
        };
        drop(api.stream("ada", stream).expect("open"));
        let stays = note("stays");
        let stays = tokio::spawn({
            let api = api.clone();
            async move { api.short(move |_| Ok(stays())).await }
        });
        end.send(()).expect("told");
        holder.join().expect("no panic");
        stays.await.expect("no panic").expect("done");
        assert!(api.calls.drained(Duration::from_secs(20)).await);
        assert_eq!(*began.lock(), ["stays"], "only the call whose caller stayed did its work");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn half_of_the_threads_of_the_runtime_do_brief_work_at_most() {
        // Another test of this process may hold a place at the same time.
        let places: Vec<_> = std::iter::from_fn(RuntimePermit::take).collect();
        assert!((1..=2).contains(&places.len()), "{}", places.len());
        drop(places);
        assert!(RuntimePermit::take().is_some());
    }

    #[tokio::test]
    async fn a_runtime_with_one_thread_does_no_brief_work() {
        let around = tempfile::tempdir().expect("a directory");
        let api = api(around.path());
        assert!(api.brief(|_| Ok(7)).is_err());
        assert_eq!(api.quick(|_| Ok(7)).await.expect("read").into_inner(), 7);
        let panicked = api.quick(|_| -> Result<u32> { panic!("a bug") }).await.expect_err("told");
        assert_eq!(panicked.code(), tonic::Code::Internal);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn long_calls_leave_threads_for_short_ones() {
        let around = tempfile::tempdir().expect("a directory");
        let api = api(around.path());
        let (open, gate) = tokio::sync::watch::channel(false);
        for kind in [Kind::Work, Kind::Merge, Kind::Transfer] {
            for _ in 0..300 {
                let (api, gate) = (api.clone(), gate.clone());
                tokio::spawn(async move {
                    let wait = move |_: &Service, _: &Caller| {
                        while !*gate.borrow() {
                            std::thread::sleep(Duration::from_millis(10));
                        }
                        Ok(())
                    };
                    api.slow("ada", kind, wait).await
                });
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        let answer = tokio::time::timeout(Duration::from_secs(10), api.short(|_| Ok(7))).await;
        assert_eq!(answer.expect("in time").expect("answered").into_inner(), 7);
        open.send_replace(true);
        assert!(api.calls.drained(Duration::from_secs(20)).await);
    }
}
