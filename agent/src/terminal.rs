//! Terminals: a shell on a pseudo-terminal. Two threads move its bytes.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::{Arc, mpsc};

use amalgam_sandbox::agent_v1::connect_request::Payload;
use amalgam_sandbox::agent_v1::{CreatePtyRequest, PtyOutput, pty_output};
use bytes::Bytes;
use parking_lot::Mutex;
use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};
use rustix::process::Pid;

use crate::outbox::Outbox;
use crate::process_tree::{self, COMMAND_VARIABLE};
use crate::reaper::Reaper;
use crate::secrets::Secrets;

/// The shell of a terminal that names none, and the one that every template has.
const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];
const WORKSPACE: &str = "/workspace";
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;
/// Blocks that wait for room.
const QUEUE: usize = 4;
/// Parts of input that wait for a shell that does not read. More are dropped, as a keyboard does.
const INPUT_QUEUE: usize = 256;

/// The terminals of the sandbox.
pub(crate) struct Terminals {
    reaper: Arc<Reaper>,
    outbox: Arc<Outbox>,
    open: Arc<Mutex<HashMap<String, Open>>>,
}

struct Open {
    pty: Arc<Pty>,
    leader: Pid,
    input: mpsc::SyncSender<Bytes>,
}

impl Terminals {
    pub(crate) fn new(reaper: Arc<Reaper>, outbox: Arc<Outbox>) -> Self {
        Self { reaper, outbox, open: Arc::default() }
    }

    /// Starts a shell on a new terminal.
    pub(crate) fn create(&self, request: CreatePtyRequest) {
        if let Err(error) = self.start(&request) {
            let payload = Some(pty_output::Payload::Error(error.to_string()));
            self.outbox.push(Payload::PtyOutput(PtyOutput { pty_id: request.pty_id, payload }), 0);
        }
    }

    fn start(&self, request: &CreatePtyRequest) -> std::io::Result<()> {
        let (pty, pts) = open().map_err(std::io::Error::other)?;
        pty.resize(size(request.cols, request.rows)).map_err(std::io::Error::other)?;
        let named = Some(request.shell.as_str()).filter(|shell| !shell.is_empty());
        let shell = named.unwrap_or(if std::path::Path::new(SHELLS[0]).exists() { SHELLS[0] } else { SHELLS[1] });
        let cwd = if request.cwd.is_empty() { WORKSPACE } else { request.cwd.as_str() };
        let id = request.pty_id.clone();
        let mut command = Command::new(shell).args(&request.args).current_dir(cwd);
        command = command.env("TERM", "xterm-256color").env("PWD", cwd);
        for name in crate::OWN_VARIABLES {
            command = command.env_remove(name);
        }
        let secrets = Secrets::write(&id, &request.secrets)?;
        let command = command.envs(&request.envs).envs(secrets.variables()).env(COMMAND_VARIABLE, &id);
        let (started, _child) = self.reaper.spawn(move || command.spawn(pts).map_err(std::io::Error::other))?;
        let pty = Arc::new(pty);
        let (input, inputs) = mpsc::sync_channel::<Bytes>(INPUT_QUEUE);
        let (send, mut receive) = tokio::sync::mpsc::channel::<Bytes>(QUEUE);
        std::thread::spawn({
            let pty = Arc::clone(&pty);
            move || {
                // Ends when the terminal is forgotten.
                while let Ok(data) = inputs.recv() {
                    if (&*pty).write_all(&data).is_err() {
                        return;
                    }
                }
            }
        });
        std::thread::spawn({
            let pty = Arc::clone(&pty);
            move || {
                let mut block = vec![0; READ_BYTES];
                // An error says that no process has the terminal open any more.
                while let Ok(read) = (&*pty).read(&mut block) {
                    if read == 0 || send.blocking_send(Bytes::copy_from_slice(&block[..read])).is_err() {
                        return;
                    }
                }
            }
        });
        self.open.lock().insert(id.clone(), Open { pty, leader: started.pid, input });
        let (outbox, open) = (Arc::clone(&self.outbox), Arc::clone(&self.open));
        tokio::spawn(async move {
            let tell = |payload, bytes| {
                outbox.push(Payload::PtyOutput(PtyOutput { pty_id: id.clone(), payload: Some(payload) }), bytes);
            };
            while let Some(data) = receive.recv().await {
                outbox.room().await;
                let bytes = data.len();
                tell(pty_output::Payload::Data(data), bytes);
            }
            let code = started.exit.await.unwrap_or(-1);
            drop(secrets);
            tell(pty_output::Payload::ExitCode(code), 0);
            open.lock().remove(&id);
        });
        Ok(())
    }

    /// Passes input on.
    pub(crate) fn write(&self, id: &str, data: Bytes) {
        if let Some(open) = self.open.lock().get(id) {
            // It may have ended in this moment, or does not read.
            let _ = open.input.try_send(data);
        }
    }

    /// Sets the size of a terminal.
    pub(crate) fn resize(&self, id: &str, cols: i32, rows: i32) {
        if let Some(open) = self.open.lock().get(id) {
            let _ = open.pty.resize(size(cols, rows));
        }
    }

    /// Ends a terminal and its processes.
    pub(crate) fn kill(&self, id: &str) {
        let leader = self.open.lock().get(id).map(|open| open.leader);
        if let Some(leader) = leader {
            let id = id.to_owned();
            tokio::spawn(async move { process_tree::kill(leader, &id).await });
        }
    }
}

fn size(cols: i32, rows: i32) -> Size {
    let one = |count: i32| u16::try_from(count).unwrap_or(80).max(1);
    Size::new(one(rows), one(cols))
}
