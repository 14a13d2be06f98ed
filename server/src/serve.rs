//! Listening: on a Unix socket for one user, or over a pipe inside the process.

use std::future::Future;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use amalgam_proto::v1::collection_service_server::CollectionServiceServer;
use amalgam_proto::v1::conflict_service_server::ConflictServiceServer;
use amalgam_proto::v1::directory_service_server::DirectoryServiceServer;
use amalgam_proto::v1::exchange_service_server::ExchangeServiceServer;
use amalgam_proto::v1::merge_service_server::MergeServiceServer;
use amalgam_proto::v1::mount_service_server::MountServiceServer;
use amalgam_proto::v1::operation_service_server::OperationServiceServer;
use amalgam_proto::v1::snapshot_service_server::SnapshotServiceServer;
use amalgam_proto::v1::store_service_server::StoreServiceServer;
use amalgam_proto::v1::transfer_service_server::TransferServiceServer;
use amalgam_proto::v1::workspace_service_server::WorkspaceServiceServer;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_stream::StreamExt as _;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint, Server, Uri};

use crate::api::Api;
use crate::service::Service;

/// Messages may be as large as a large page; contents come in blocks.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How often it is looked whether there is still something to do.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A pipe inside the process holds this much.
const PIPE_BYTES: usize = 1 << 20;

/// The calls under way, and when the last one ended.
pub struct Calls {
    under_way: AtomicU32,
    last: Mutex<Instant>,
    stop: Notify,
}

/// A call under way, until it is dropped.
pub(crate) struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        *self.0.last.lock() = Instant::now();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Calls {
    /// None yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { under_way: AtomicU32::new(0), last: Mutex::new(Instant::now()), stop: Notify::new() })
    }

    pub(crate) fn begin(self: &Arc<Self>) -> Call {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Call(Arc::clone(self))
    }

    /// How many there are.
    pub fn under_way(&self) -> u32 {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Asks the server to end.
    pub fn stop(&self) {
        self.stop.notify_one();
    }

    fn idle_for(&self) -> Duration {
        if self.under_way() > 0 { Duration::ZERO } else { self.last.lock().elapsed() }
    }
}

/// Serves on a Unix socket until nothing happened for `idle`, somebody asks to stop, or `ended` does.
///
/// Whoever calls holds the store, so a socket that is there already is one that a dead process left.
pub async fn serve_unix(
    service: Service,
    socket: &Path,
    idle: Duration,
    ended: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    let user = rustix::process::geteuid().as_raw();
    let same_user = move |stream: &UnixStream| stream.peer_cred().is_ok_and(|peer| peer.uid() == user);
    // The socket's mode keeps others out already; who comes through all the same is refused here.
    let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener)
        .filter(move |stream| stream.as_ref().map_or(true, same_user));
    let calls = Calls::new();
    let until = {
        let (finished, service) = (finished(service.clone(), Arc::clone(&calls), idle, ended), service.clone());
        async move {
            finished.await;
            // Calls that watch would go on for ever, and this process with them.
            let _ = tokio::task::spawn_blocking(move || service.end_watching()).await;
        }
    };
    let collector = {
        let (service, calls) = (service.clone(), Arc::clone(&calls));
        std::thread::spawn(move || service.keep_collecting(&|| calls.idle_for()))
    };
    let keeper = {
        let service = service.clone();
        std::thread::spawn(move || service.keep_views(&|problem| say(problem)))
    };
    service.resume_watches();
    let door = take_devices(&service, &socket.with_extension("door"))?;
    let folder = {
        let service = service.clone();
        std::thread::spawn(move || service.keep_folding())
    };
    let publisher = {
        let service = service.clone();
        std::thread::spawn(move || service.keep_publishing())
    };
    let end_collecting = service.clone();
    let served = router(service, calls).serve_with_incoming_shutdown(incoming, until).await;
    let _ = std::fs::remove_file(socket);
    door.abort();
    let _ = std::fs::remove_file(socket.with_extension("door"));
    let end_mounting = end_collecting.clone();
    let ended = tokio::task::spawn_blocking(move || end_mounting.end_mounting()).await;
    ended.unwrap_or_default().iter().for_each(|problem| say(problem));
    let _ = tokio::task::spawn_blocking(move || keeper.join()).await;
    end_collecting.end_collecting();
    end_collecting.end_folding();
    end_collecting.end_publishing();
    // It ends within some milliseconds, and gives the store back.
    let _ = tokio::task::spawn_blocking(move || (collector.join(), folder.join(), publisher.join())).await;
    served.map_err(io::Error::other)
}

/// Listens where devices are handed over that others have mounted.
fn take_devices(service: &Service, socket: &Path) -> io::Result<tokio::task::JoinHandle<()>> {
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
    service.begin_mounting(socket);
    let service = service.clone();
    Ok(tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            let Ok(stream) = stream.into_std() else { continue };
            // Whoever went away does not wait for an answer.
            tokio::task::spawn_blocking(move || drop(crate::views::answer_handover(&service, stream)));
        }
    }))
}

/// Tells whoever reads the log of the process.
fn say(problem: &str) {
    use std::io::Write as _;
    // Nobody can be told that standard error is closed.
    drop(writeln!(io::stderr(), "mounts: {problem}"));
}

async fn finished(service: Service, calls: Arc<Calls>, idle: Duration, ended: impl Future<Output = ()>) {
    let idle_too_long = async {
        while calls.idle_for() < idle
            || service.is_watching()
            || service.mounted() > 0
            || service.is_collecting()
            || service.is_folding()
            || service.is_publishing()
        {
            tokio::time::sleep(LOOK_EVERY.min(idle)).await;
        }
    };
    tokio::select! {
        () = idle_too_long => {}
        () = calls.stop.notified() => {}
        () = ended => {}
    }
}

/// Serves inside this process, and returns the way to it.
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

fn router(service: Service, calls: Arc<Calls>) -> Router {
    let api = Api::new(service, calls, true);
    Server::builder()
        .add_service(WorkspaceServiceServer::new(api.clone()))
        .add_service(OperationServiceServer::new(api.clone()))
        .add_service(SnapshotServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(DirectoryServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(MergeServiceServer::new(api.clone()))
        .add_service(CollectionServiceServer::new(api.clone()))
        .add_service(ConflictServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(MountServiceServer::new(api.clone()))
        .add_service(StoreServiceServer::new(api.clone()))
        .add_service(ExchangeServiceServer::new(api.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(TransferServiceServer::new(api).max_decoding_message_size(MESSAGE_BYTES_MAX))
}
