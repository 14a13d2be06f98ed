//! A terminal in a sandbox: what its screen got so far, and its end.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::agent_v1 as wire;
use crate::output::{Output, Part, Stream};

/// Output that is kept for readers.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// The most bytes that one read returns, roughly.
const READ_BYTES_MAX: usize = 256 << 10;

/// The size of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A terminal that runs or has ended.
#[derive(Debug)]
pub struct Terminal {
    /// Its id.
    pub id: String,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    output: Output,
    end: Option<Result<i32, String>>,
}

impl Terminal {
    pub(crate) fn new(id: String) -> Self {
        let state = State { output: Output::new(KEPT_BYTES_MAX), end: None };
        Self { id, state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// The exit code of the shell or the reason why there is none, if the terminal has ended.
    pub fn end(&self) -> Option<Result<i32, String>> {
        self.state.lock().end.clone()
    }

    /// Waits until there is output after an offset, or the end.
    pub async fn next(&self, from: u64) -> (Part, Option<Result<i32, String>>) {
        let mut changes = self.changes.subscribe();
        loop {
            {
                let state = self.state.lock();
                let part = state.output.read(from, READ_BYTES_MAX);
                let is_all = part.next == state.output.end();
                let end = state.end.clone().filter(|_| is_all);
                if !part.chunks.is_empty() || part.skipped > 0 || end.is_some() {
                    return (part, end);
                }
            }
            let _ = changes.changed().await;
        }
    }

    pub(crate) fn take(&self, payload: wire::pty_output::Payload) {
        use wire::pty_output::Payload;
        let mut state = self.state.lock();
        match payload {
            Payload::Data(data) => state.output.push(Stream::Stdout, data),
            Payload::ExitCode(code) => state.end = Some(Ok(code)),
            Payload::Error(why) => state.end = Some(Err(why)),
        }
        drop(state);
        self.changes.send_replace(());
    }

    pub(crate) fn lose(&self, why: &str) {
        self.take(wire::pty_output::Payload::Error(why.to_owned()));
    }

    /// The input of a terminal as a message.
    pub(crate) fn input(&self, data: Bytes) -> wire::PtyInput {
        wire::PtyInput { pty_id: self.id.clone(), data }
    }
}
