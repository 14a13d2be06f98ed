//! The background process: one for each store, started on demand, ended when it is idle.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use amalgam_proto::{Failure, Reason};
use amalgam_server::{Home, NfsListen, serve};
use tokio::signal::unix::{SignalKind, signal};

use crate::allocator::return_memory_in_background;
use crate::connect::{EXIT_BUSY, EXIT_FULL, make_home, open, runtime_directory, socket_path};
use crate::edge::SyncWorker;
use crate::logging::{LogOptions, LogOwner};
use crate::network::RestListener;

/// Opens the store and serves its socket, by default [`socket_path`], until it has been idle for `idle` or is asked to stop.
/// Returns the exit code.
pub fn run(home: &Home, socket: Option<PathBuf>, idle: Duration, nfs: Option<NfsListen>, log: &LogOptions) -> i32 {
    // A new session, so that Ctrl-C and hang-ups of the terminal do not reach this process.
    let _ = rustix::process::setsid();
    return_memory_in_background();
    if let Err(error) = make_home(home).and_then(|()| log.log_to_file(&home.log_path(), LogOwner::Background)) {
        print_error(&format!("the log cannot be written: {error}"));
    }
    let socket = socket.map_or_else(|| socket_path(home.path()), Ok).map_err(|error| fault(&error));
    match socket.and_then(|socket| serve_store(home, &socket, idle, nfs)) {
        Ok(()) => 0,
        Err(failure) => {
            print_error(&failure.message);
            match failure.reason {
                Reason::Busy => EXIT_BUSY,
                Reason::Full => EXIT_FULL,
                _ => 1,
            }
        }
    }
}

fn fault(error: &io::Error) -> Failure {
    Failure::new(Reason::Fault, error.to_string())
}

fn serve_store(home: &Home, socket: &Path, idle: Duration, nfs: Option<NfsListen>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| fault(&error))?;
    let service = open(home, &runtime_directory().map_err(|error| fault(&error))?)?;
    if let Some(nfs) = nfs {
        let address = service.listen_nfs(nfs)?;
        // A closed output does not stop the server.
        drop(writeln!(io::stdout(), "NFS is served at {address}"));
    }
    let served = runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let ended = async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let calls = serve::Calls::new();
        let rest = RestListener::of_store(&service, &calls, home, socket)?;
        let worker = SyncWorker::start(&service, &calls, home.path());
        let served = serve::serve_unix_counted(service, calls, socket, idle, ended).await;
        worker.end().await;
        rest.end().await;
        served
    });
    // Work that was abandoned must not keep the store open.
    runtime.shutdown_timeout(Duration::from_secs(10));
    served.map_err(|error| fault(&error))
}

/// Prints an error to standard error, which is the log. The command that started the process reads it there.
fn print_error(message: &str) {
    // Nothing can be reported when standard error is closed.
    drop(writeln!(io::stderr(), "error: {message}"));
}
