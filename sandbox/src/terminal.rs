//! A terminal in a sandbox: its output so far, and its end.

use std::io;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::warn;

use crate::agent_v1 as wire;
use crate::output::{Output, Part, Stream};
use crate::spool::{Content, Frame, Spool, SpoolWriter, Spooled};

/// Limit on output that is kept in memory for readers.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// Approximate limit on the bytes that one read returns.
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
    spool: Option<SpoolWriter>,
}

impl Terminal {
    /// Creates a terminal whose output is also written to disk.
    pub(crate) fn begin(spool: &Spool, id: String) -> io::Result<Self> {
        let writer = spool.begin(&id, b"")?;
        Ok(Self::new(id, Output::new(KEPT_BYTES_MAX), None, writer))
    }

    /// Restores a terminal that an earlier server has opened, from its output on disk.
    pub(crate) fn restore(spool: &Spool, spooled: Spooled) -> io::Result<Self> {
        let (mut output, mut end) = (Output::new(KEPT_BYTES_MAX), None);
        for frame in spooled.frames {
            match frame.content {
                Content::Output(stream, offset, data) => {
                    output.skip_to(offset);
                    output.push(stream, data);
                }
                Content::End(text) => {
                    let text = String::from_utf8_lossy(&text).into_owned();
                    end = Some(text.parse().map_err(|_| text));
                }
            }
        }
        let writer = spool.go_on(&spooled.id)?;
        Ok(Self::new(spooled.id, output, end, writer))
    }

    fn new(id: String, output: Output, end: Option<Result<i32, String>>, spool: SpoolWriter) -> Self {
        let state = State { output, end, spool: Some(spool) };
        Self { id, state: Mutex::new(state), changes: watch::Sender::new(()) }
    }

    /// Returns the exit code of the shell, or the reason why there is none; `None` while the terminal runs.
    pub fn end(&self) -> Option<Result<i32, String>> {
        self.state.lock().end.clone()
    }

    /// Waits until there is output after an offset, or the terminal has ended.
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

    pub(crate) fn take(&self, sequence: u64, payload: wire::pty_output::Payload) {
        use wire::pty_output::Payload;
        let mut state = self.state.lock();
        let offset = state.output.end();
        let content = match payload {
            Payload::Data(data) => {
                state.output.push(Stream::Stdout, data.clone());
                Content::Output(Stream::Stdout, offset, data)
            }
            Payload::ExitCode(code) => {
                state.end = Some(Ok(code));
                Content::End(code.to_string().into())
            }
            Payload::Error(why) => {
                state.end = Some(Err(why.clone()));
                Content::End(why.into())
            }
        };
        // A full disk costs the next server output, not this one.
        if let Some(spool) = &mut state.spool
            && let Err(error) = spool.write(&Frame { sequence, content })
        {
            warn!(terminal = self.id, %error, "output cannot be kept for the next server");
            state.spool = None;
        }
        drop(state);
        self.changes.send_replace(());
    }

    pub(crate) fn lose(&self, why: &str) {
        self.state.lock().end = Some(Err(why.to_owned()));
        self.changes.send_replace(());
    }

    /// Builds the message that sends input to the terminal.
    pub(crate) fn input(&self, data: Bytes) -> wire::PtyInput {
        wire::PtyInput { pty_id: self.id.clone(), data }
    }
}
