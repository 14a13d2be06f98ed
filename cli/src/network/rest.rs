//! REST on a Unix socket beside that of the commands, for SDKs in programs of the same user.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use amalgam_gateway::{LocalOptions, SandboxOptions, serve_local};
use amalgam_server::serve::Calls;
use amalgam_server::{Home, Service, SocketFile, listen};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::settings::{CATALOG, sandbox_options};
use crate::connect::{now, rest_socket};

/// A REST listener on a Unix socket.
pub struct RestListener {
    socket_file: SocketFile,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl RestListener {
    /// Starts a listener beside the socket of the process of a store, with sandboxes if the program of their agent is there.
    pub fn of_store(service: &Service, calls: &Arc<Calls>, home: &Home, socket: &Path) -> io::Result<Self> {
        Self::start(service, calls, home.path().join(CATALOG), socket, sandbox_options(None, home).ok())
    }

    /// Starts a listener beside the socket of a process. Creates the catalog if it does not exist.
    pub fn start(
        service: &Service,
        calls: &Arc<Calls>,
        catalog: PathBuf,
        socket: &Path,
        sandboxes: Option<SandboxOptions>,
    ) -> io::Result<Self> {
        let path = rest_socket(socket);
        let (listener, socket_file) = listen(&path)?;
        let options = LocalOptions {
            catalog,
            service: service.clone(),
            calls: Arc::clone(calls),
            user: rustix::process::geteuid().as_raw(),
            sandboxes,
            now,
        };
        let (stop, stopped) = watch::channel(false);
        Ok(Self { socket_file, stop, serving: tokio::spawn(serve_local(options, listener, stopped)) })
    }

    /// Removes the socket, and stops the listener.
    pub async fn end(self) {
        drop(self.socket_file);
        self.stop.send_replace(true);
        let _ = self.serving.await;
    }
}
