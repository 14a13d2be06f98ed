//! A proxy before PostgreSQL's socket that forwards a request and swallows its answer, or holds everything back.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

const SOCKET: &str = ".s.PGSQL.5432";
/// The end of every answer: ReadyForQuery, idle.
const READY: &[u8] = b"Z\0\0\0\x05I";
/// The beginning of a row of less than 64 KiB.
const ROW: &[u8] = b"D\0\0";

#[derive(Default)]
struct State {
    is_armed: bool,
    is_held: bool,
    swallowed: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub struct Proxy {
    directory: TempDir,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy before the server whose socket is in this directory.
    pub fn start(server: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join(SOCKET)).expect("a socket");
        let shared = Arc::<Shared>::default();
        let (server, state) = (server.join(SOCKET), Arc::clone(&shared));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let (from, to) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
                let held = Arc::clone(&state);
                std::thread::spawn(move || forward(from, to, &held));
                let answers = Arc::clone(&state);
                std::thread::spawn(move || answer(server, client, &answers));
            }
        });
        Self { directory, shared }
    }

    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Lets the next request through, and closes its connection instead of answering.
    pub fn swallow_next_answer(&self) {
        self.shared.state.lock().is_armed = true;
    }

    pub fn swallowed(&self) -> usize {
        self.shared.state.lock().swallowed
    }

    /// Holds all requests back.
    pub fn hold(&self) {
        self.shared.state.lock().is_held = true;
    }

    pub fn release(&self) {
        self.shared.state.lock().is_held = false;
        self.shared.changed.notify_all();
    }
}

fn forward(mut client: UnixStream, mut server: UnixStream, shared: &Shared) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = client.read(&mut buffer) {
        let mut state = shared.state.lock();
        while state.is_held {
            shared.changed.wait(&mut state);
        }
        drop(state);
        if server.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    server.shutdown(std::net::Shutdown::Write).ok();
}

fn answer(mut server: UnixStream, mut client: UnixStream, shared: &Shared) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        let is_whole = buffer[..length].ends_with(READY);
        let mut state = shared.state.lock();
        // A statement that is new to a connection is parsed first: only an answer with a row is that of an execution.
        let has_row = buffer[..length].windows(ROW.len()).any(|window| window == ROW);
        if state.is_armed && is_whole && has_row {
            state.is_armed = false;
            state.swallowed += 1;
            drop(state);
            client.shutdown(std::net::Shutdown::Both).ok();
            return;
        }
        drop(state);
        if client.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    client.shutdown(std::net::Shutdown::Both).ok();
}
