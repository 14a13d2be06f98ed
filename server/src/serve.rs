//! Listening: on a Unix socket for one user, or over a pipe inside the process.

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use amalgam_proto::v1::collection_service_server::CollectionServiceServer;
use amalgam_proto::v1::conflict_service_server::ConflictServiceServer;
use amalgam_proto::v1::directory_service_server::DirectoryServiceServer;
use amalgam_proto::v1::episode_service_server::EpisodeServiceServer;
use amalgam_proto::v1::event_service_server::EventServiceServer;
use amalgam_proto::v1::exchange_service_server::ExchangeServiceServer;
use amalgam_proto::v1::export_service_server::ExportServiceServer;
use amalgam_proto::v1::file_service_server::FileServiceServer;
use amalgam_proto::v1::follow_service_server::FollowServiceServer;
use amalgam_proto::v1::merge_service_server::MergeServiceServer;
use amalgam_proto::v1::mount_service_server::MountServiceServer;
use amalgam_proto::v1::operation_service_server::OperationServiceServer;
use amalgam_proto::v1::policy_service_server::PolicyServiceServer;
use amalgam_proto::v1::radar_service_server::RadarServiceServer;
use amalgam_proto::v1::request_service_server::RequestServiceServer;
use amalgam_proto::v1::snapshot_service_server::SnapshotServiceServer;
use amalgam_proto::v1::state_service_server::StateServiceServer;
use amalgam_proto::v1::store_service_server::StoreServiceServer;
use amalgam_proto::v1::transfer_service_server::TransferServiceServer;
use amalgam_proto::v1::workspace_service_server::WorkspaceServiceServer;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_stream::StreamExt as _;
use tonic::service::Routes;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tower::layer::util::{Identity, Stack};
use tracing::{error, info, warn};

use crate::api::{Api, Origin};
use crate::background::Background;
use crate::call_log::CallLogLayer;
pub use crate::calls::Calls;
use crate::connection::Connection;
use crate::service::Service;
use crate::socket::{Listening, handover_socket, listen};

/// The largest message that services with large requests accept; contents come in blocks.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How long calls under way may take to finish when the process is to end.
const FINISH_WITHIN: Duration = Duration::from_secs(30);
/// How long cancelled calls may take to end.
const CANCEL_WITHIN: Duration = Duration::from_secs(5);
/// How long clients without a call may take to close their connections.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);
const CLOSE_WITHIN_FORCED: Duration = Duration::from_millis(500);
/// How long a client may take to hand a device over.
const HANDOVER_WITHIN: Duration = Duration::from_secs(10);
/// The most connections on which a device is about to be handed over.
const HANDOVERS_MAX: usize = 256;
/// How often the server checks whether it is still needed.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How often the server checks whether the directory of its store was removed.
const STORE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a connection is accepted again after the kernel refused.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// No more open files than this are asked for, however high the hard limit is: commands that the process starts inherit the limit.
const DESCRIPTORS_MAX: u64 = 1 << 20;
/// The capacity of a pipe inside the process, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// Serves on a Unix socket until there was no call for `idle`, a client asks to stop, or `ended` completes.
///
/// The caller holds the store, so a socket of this user at that path is one that a dead process left. The store's home says where
/// this process listens, for commands that would look for it elsewhere.
pub async fn serve_unix(
    service: Service,
    socket: &Path,
    idle: Duration,
    ended: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_until(service, Calls::new(), socket, idle, ended, StoreLoss::Unnoticed).await
}

/// Serves on a Unix socket like [`serve_unix`], and counts calls together with another listener of this process. The process is
/// killed if the directory of the store is removed or replaced.
pub async fn serve_unix_counted(
    service: Service,
    calls: Arc<Calls>,
    socket: &Path,
    idle: Duration,
    ended: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    serve_until(service, calls, socket, idle, ended, StoreLoss::EndsProcess).await
}

/// What happens when the directory of the store is removed or replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreLoss {
    /// The process is killed: it exists for this store.
    EndsProcess,
    /// Nothing: the process belongs to the caller.
    Unnoticed,
}

async fn serve_until(
    service: Service,
    calls: Arc<Calls>,
    socket: &Path,
    idle: Duration,
    ended: impl Future<Output = ()> + Send,
    loss: StoreLoss,
) -> io::Result<()> {
    raise_descriptor_limit();
    // Before the socket for calls: a client that reaches that one may hand over a device.
    let handover = take_devices(&service, &handover_socket(socket))?;
    let (listener, socket_file) = listen(socket)?;
    let listening = Listening::record(&service.context.home, socket)?;
    info!(process = std::process::id(), version = env!("CARGO_PKG_VERSION"), "listening");
    let user = rustix::process::geteuid().as_raw();
    let same_user = move |stream: &UnixStream| stream.peer_cred().is_ok_and(|peer| peer.uid() == user);
    // The socket's mode keeps other users out; a connection of another user is refused here all the same.
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener)
        .then(|stream| async {
            if let Err(error) = &stream {
                warn!(%error, "no connection can be accepted at the moment");
                // Out of descriptors or memory: others give some back. An error would end the server.
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
            stream
        })
        .filter(move |stream| stream.as_ref().is_ok_and(same_user));
    let closing = watch::Sender::new(false);
    let connections = closing.clone();
    let incoming = incoming.map(move |stream| stream.map(|stream| Connection::new(stream, connections.subscribe())));
    let told = Arc::new(Notify::new());
    let until = {
        let (finished, service) = (finished(service.clone(), Arc::clone(&calls), idle, ended, loss), service.clone());
        let (calls, told) = (Arc::clone(&calls), Arc::clone(&told));
        async move {
            finished.await;
            // Watches would keep their calls, and this process, running for ever.
            calls.end_watches();
            told.notify_one();
            let _ = tokio::task::spawn_blocking(move || service.directories.end_watching()).await;
        }
    };
    let drain = {
        let (calls, service) = (Arc::clone(&calls), service.clone());
        async move {
            told.notified().await;
            drain(&service, &calls, &closing).await;
        }
    };
    let background = Background::start(&service, &calls);
    service.directories.resume_watches();
    let ending = service.clone();
    let serving = router(service, calls).serve_with_incoming_shutdown(incoming, until);
    let served = tokio::select! {
        served = serving => served,
        // Connections that are still open end with the process.
        () = drain => Ok(()),
    };
    die_without_store(&ending, loss);
    drop((listening, socket_file));
    handover.abort();
    // It holds the service, and its socket.
    let _ = handover.await;
    background.end(&ending).await;
    info!("stopped");
    served.map_err(io::Error::other)
}

/// Lets the process open as many files as it may: tables, mounts and connections take descriptors.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.map_or(DESCRIPTORS_MAX, |most| most.min(DESCRIPTORS_MAX));
    if limit.current.is_some_and(|current| current < wanted) {
        // The limit is optional.
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit }).ok();
    }
}

/// Gives calls under way time to finish, then cancels them, and closes the connections that are left.
async fn drain(service: &Service, calls: &Calls, closing: &watch::Sender<bool>) {
    let finish_within = if calls.is_forced() { Duration::ZERO } else { FINISH_WITHIN };
    if !calls.drained(finish_within).await {
        info!(calls = calls.under_way(), "cancelling calls that did not finish in time");
        calls.cancel();
        service.merging.cancel_tests();
        calls.drained(CANCEL_WITHIN).await;
    }
    // Clients that are not stuck have closed their connections before, and then nothing waits here.
    tokio::time::sleep(if calls.is_forced() { CLOSE_WITHIN_FORCED } else { CLOSE_WITHIN }).await;
    closing.send_replace(true);
    tokio::time::sleep(CLOSE_WITHIN).await;
}

/// Listens on the socket at which clients hand over the devices of their private mounts.
fn take_devices(service: &Service, socket: &Path) -> io::Result<tokio::task::JoinHandle<()>> {
    let (listener, socket_file) = listen(socket)?;
    service.views.begin_mounting(socket);
    let (service, permits) = (service.clone(), Arc::new(Semaphore::new(HANDOVERS_MAX)));
    Ok(tokio::spawn(async move {
        let _socket_file = socket_file;
        loop {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors or memory: others give some back.
                    warn!(%error, "no device of a private mount can be accepted at the moment");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            };
            // A connection beyond the limit is closed; its client tries again.
            let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
            tokio::spawn(take_device(service.clone(), stream, permit));
        }
    }))
}

/// Takes one device. Waits for it without a thread.
async fn take_device(service: Service, stream: UnixStream, permit: OwnedSemaphorePermit) {
    let ready = tokio::time::timeout(HANDOVER_WITHIN, stream.readable()).await;
    let (Ok(Ok(())), Ok(stream)) = (ready, stream.into_std()) else { return };
    // A disconnected client needs no answer.
    let answered = tokio::task::spawn_blocking(move || drop(crate::views::answer_handover(&service.views, stream)));
    let _ = answered.await;
    drop(permit);
}

/// Waits until the end of the process: it is idle, a client or a signal asks for it, or the store was removed.
async fn finished(
    service: Service,
    calls: Arc<Calls>,
    idle: Duration,
    ended: impl Future<Output = ()>,
    loss: StoreLoss,
) {
    let idle_too_long = async {
        while calls.idle_for() < idle || service.is_at_work() || calls.is_kept() {
            tokio::time::sleep(IDLE_CHECK_INTERVAL.min(idle)).await;
        }
    };
    let store_removed = async {
        while loss == StoreLoss::Unnoticed || !service.context.is_store_removed() {
            tokio::time::sleep(STORE_CHECK_INTERVAL).await;
        }
    };
    tokio::select! {
        biased;
        () = store_removed => {}
        () = calls.store_removed(), if loss == StoreLoss::EndsProcess => {}
        () = idle_too_long => info!(idle_seconds = idle.as_secs(), "stopping: idle"),
        () = calls.asked_to_stop() => info!(force = calls.is_forced(), "stopping: a client asked for it"),
        () = ended => info!("stopping: a signal arrived"),
    }
    die_without_store(&service, loss);
}

/// Kills the process if the directory of its store was removed or replaced. To close the store would write files into the directory
/// that has its path now, and remove files there. What was acknowledged is in the log of the store, wherever its directory is.
fn die_without_store(service: &Service, loss: StoreLoss) {
    if loss == StoreLoss::EndsProcess && service.context.is_store_removed() {
        error!("the directory of the store was removed or replaced; the process ends at once");
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).ok();
        std::process::abort();
    }
}

/// Serves inside this process, and returns a channel to the services.
pub async fn in_process(service: Service) -> Result<Channel, tonic::transport::Error> {
    let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
    let incoming = tokio_stream::once(Ok::<_, io::Error>(ours));
    tokio::spawn(router(service, Calls::new()).serve_with_incoming(incoming));
    let mut theirs = Some(TokioIo::new(theirs));
    let connector = tower::service_fn(move |_: Uri| {
        let pipe = theirs.take().ok_or_else(|| io::Error::other("a pipe can be taken once"));
        std::future::ready(pipe)
    });
    Endpoint::from_static("http://in-process").connect_with_connector(connector).await
}

fn router(service: Service, calls: Arc<Calls>) -> Router<Stack<CallLogLayer, Identity>> {
    let origin = Origin::Local;
    Server::builder().layer(CallLogLayer(origin)).add_routes(routes(Api::new(service, calls, origin)))
}

/// Returns the routes of all services of one store.
pub(crate) fn routes(api: Api) -> Routes {
    Routes::new(WorkspaceServiceServer::new(api.clone()))
        .add_service(OperationServiceServer::new(api.clone()))
        .add_service(EventServiceServer::new(api.clone()))
        .add_service(RequestServiceServer::new(api.clone()))
        .add_service(SnapshotServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(DirectoryServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(MergeServiceServer::new(api.clone()))
        .add_service(CollectionServiceServer::new(api.clone()))
        .add_service(ConflictServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(MountServiceServer::new(api.clone()))
        .add_service(ExportServiceServer::new(api.clone()))
        .add_service(StateServiceServer::new(api.clone()))
        .add_service(PolicyServiceServer::new(api.clone()))
        .add_service(FollowServiceServer::new(api.clone()))
        .add_service(RadarServiceServer::new(api.clone()))
        .add_service(EpisodeServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(FileServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(StoreServiceServer::new(api.clone()))
        .add_service(ExchangeServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(TransferServiceServer::new(api).max_decoding_message_size(MESSAGE_BYTES_MAX))
}
