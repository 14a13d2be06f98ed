//! A proxy before PostgreSQL's socket, for tests: it forwards a request and swallows its answer, holds everything back, delays, or cuts
//! all connections.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const SOCKET: &str = ".s.PGSQL.5432";
/// The end of every answer: ReadyForQuery, idle.
const READY: &[u8] = b"Z\0\0\0\x05I";
/// The beginning of a row of less than 64 KiB.
const ROW: &[u8] = b"D\0\0";

#[derive(Default)]
struct State {
    is_armed: bool,
    is_held: bool,
    /// The connections with lower numbers are held.
    held_below: u64,
    connections: u64,
    delay: Duration,
    swallowed: usize,
    answers: usize,
    clients: Vec<UnixStream>,
    /// The socket of the server.
    server: PathBuf,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy, which ends with its process.
pub struct PostgresProxy {
    directory: PathBuf,
    shared: Arc<Shared>,
}

impl PostgresProxy {
    /// Starts a proxy before the server whose socket is in this directory.
    ///
    /// # Panics
    /// No socket can be made in the temporary directory.
    pub fn start(server: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("amalgam-proxy-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let listener = UnixListener::bind(directory.join(SOCKET)).expect("a socket");
        let shared = Arc::<Shared>::default();
        shared.lock().server = server.join(SOCKET);
        let state = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let server = state.lock().server.clone();
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let (from, to) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
                let number = {
                    let mut state = state.lock();
                    state.clients.push(client.try_clone().expect("clone"));
                    state.connections += 1;
                    state.connections - 1
                };
                let held = Arc::clone(&state);
                std::thread::spawn(move || forward(from, to, number, &held));
                let answers = Arc::clone(&state);
                std::thread::spawn(move || answer(server, client, &answers));
            }
        });
        Self { directory, shared }
    }

    /// Returns the directory of the proxy's socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Lets the next request through, and closes its connection instead of answering.
    pub fn swallow_next_answer(&self) {
        self.shared.lock().is_armed = true;
    }

    /// Returns the number of swallowed answers.
    pub fn swallowed(&self) -> usize {
        self.shared.lock().swallowed
    }

    /// Returns the number of answers of the server, that is, of round trips.
    pub fn answers(&self) -> usize {
        self.shared.lock().answers
    }

    /// Holds all requests back.
    pub fn hold(&self) {
        self.shared.lock().is_held = true;
    }

    /// Holds the requests of the present connections back; those of new ones go through.
    pub fn hold_present(&self) {
        let mut state = self.shared.lock();
        state.held_below = state.connections;
    }

    /// Lets requests through again, those of connections that their client has closed meanwhile too.
    pub fn release(&self) {
        {
            let mut state = self.shared.lock();
            state.is_held = false;
            state.held_below = 0;
        }
        self.shared.changed.notify_all();
    }

    /// Sends new connections to the server whose socket is in this directory.
    pub fn redirect(&self, server: &Path) {
        self.shared.lock().server = server.join(SOCKET);
    }

    /// Delays each request from now on.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Closes all connections, whatever is under way on them.
    pub fn cut(&self) {
        for client in std::mem::take(&mut self.shared.lock().clients) {
            client.shutdown(Shutdown::Both).ok();
        }
    }
}

impl Drop for PostgresProxy {
    fn drop(&mut self) {
        self.release();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

fn forward(mut client: UnixStream, mut server: UnixStream, number: u64, shared: &Shared) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = client.read(&mut buffer) {
        let mut state = shared.lock();
        while state.is_held || number < state.held_below {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let delay = state.delay;
        drop(state);
        std::thread::sleep(delay);
        if server.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    server.shutdown(Shutdown::Write).ok();
}

fn answer(mut server: UnixStream, mut client: UnixStream, shared: &Shared) {
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = server.read(&mut buffer) {
        let is_whole = buffer[..length].ends_with(READY);
        let mut state = shared.lock();
        state.answers += usize::from(is_whole);
        // A statement that is new to a connection is parsed first: only an answer with a row is that of an execution.
        let has_row = buffer[..length].windows(ROW.len()).any(|window| window == ROW);
        if state.is_armed && is_whole && has_row {
            state.is_armed = false;
            state.swallowed += 1;
            drop(state);
            client.shutdown(Shutdown::Both).ok();
            return;
        }
        drop(state);
        if client.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    client.shutdown(Shutdown::Both).ok();
}
