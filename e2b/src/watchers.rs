//! Watchers that clients poll, and the lines that the program for files writes about changes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Buf as _, Bytes, BytesMut};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::AbortHandle;
use tonic::Code;

use crate::entry::entry_of;
use crate::program::Operation;
use crate::refusal::Refusal;
use crate::wire::filesystem as wire;

/// Limit on watchers of one sandbox.
const WATCHERS_MAX: usize = 64;
/// Limit on changes that wait for a client.
const EVENTS_MAX: usize = 16_384;
const LINE_BYTES_MAX: usize = 1 << 20;

/// The lines that an operation writes.
pub(crate) struct Lines {
    operation: Operation,
    buffer: BytesMut,
}

impl Lines {
    pub(crate) fn new(operation: Operation) -> Self {
        Self { operation, buffer: BytesMut::new() }
    }

    /// Waits for the next complete line. Returns `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end).freeze();
                self.buffer.advance(1);
                return Ok(Some(line));
            }
            if self.buffer.len() > LINE_BYTES_MAX {
                return Err(Refusal::new(Code::Internal, "the sandbox tells a change in too many words"));
            }
            match self.operation.next().await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

/// Converts a change, as the agent's program for files writes it.
pub(crate) fn event_of(line: &[u8]) -> Result<wire::FilesystemEvent, Refusal> {
    let malformed = |error| Refusal::new(Code::Internal, format!("the sandbox tells a change in other words: {error}"));
    let value: Value = serde_json::from_slice(line).map_err(malformed)?;
    let kind = match value["type"].as_str() {
        Some("create") => wire::EventType::Create,
        Some("write") => wire::EventType::Write,
        Some("remove") => wire::EventType::Remove,
        Some("rename") => wire::EventType::Rename,
        Some("chmod") => wire::EventType::Chmod,
        _ => wire::EventType::Unspecified,
    };
    Ok(wire::FilesystemEvent {
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        r#type: kind.into(),
        entry: value["entry"].is_object().then(|| entry_of(&value["entry"])),
    })
}

/// A watcher.
struct Watcher {
    sandbox: String,
    state: Arc<Mutex<Waiting>>,
    following: AbortHandle,
}

/// Changes that wait for the client.
#[derive(Default)]
struct Waiting {
    events: VecDeque<wire::FilesystemEvent>,
    /// Why no more changes follow; `None` while the watcher runs.
    end: Option<Refusal>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The operation is dropped with its task, and killed.
        self.following.abort();
    }
}

/// All watchers.
#[derive(Default)]
pub(crate) struct Watchers {
    all: Mutex<HashMap<String, Watcher>>,
}

impl Watchers {
    /// Adds a watcher. Returns its id.
    pub(crate) fn add(&self, sandbox: &str, mut lines: Lines) -> Result<String, Refusal> {
        let mut random = [0; 10];
        getrandom::fill(&mut random).map_err(|error| Refusal::new(Code::Internal, error.to_string()))?;
        let id = format!("watch-{}", data_encoding::BASE32_NOPAD.encode(&random).to_ascii_lowercase());
        let mut all = self.all.lock();
        // Forget those whose sandbox has ended.
        all.retain(|_, watcher| watcher.state.lock().end.is_none());
        if all.values().filter(|watcher| watcher.sandbox == sandbox).count() >= WATCHERS_MAX {
            let message = format!("a sandbox has at most {WATCHERS_MAX} watchers");
            return Err(Refusal::new(Code::ResourceExhausted, message));
        }
        let state = Arc::new(Mutex::new(Waiting::default()));
        let filled = Arc::clone(&state);
        let following = tokio::spawn(async move {
            let end = loop {
                let event = match lines.next().await {
                    Ok(Some(line)) => event_of(&line),
                    Ok(None) => break Refusal::not_found("the directory that was watched is gone"),
                    Err(refusal) => break refusal,
                };
                let mut waiting = filled.lock();
                match event {
                    Ok(_) if waiting.events.len() >= EVENTS_MAX => {
                        break Refusal::new(Code::ResourceExhausted, "changes came faster than they were taken");
                    }
                    Ok(event) => waiting.events.push_back(event),
                    Err(refusal) => break refusal,
                }
            };
            filled.lock().end = Some(end);
        });
        let watcher = Watcher { sandbox: sandbox.to_owned(), state, following: following.abort_handle() };
        all.insert(id.clone(), watcher);
        Ok(id)
    }

    /// Removes and returns the changes that wait. Fails with the reason of the end if there are none and the watcher has ended.
    pub(crate) fn take(&self, sandbox: &str, id: &str) -> Result<Vec<wire::FilesystemEvent>, Refusal> {
        let all = self.all.lock();
        let watcher = all.get(id).filter(|watcher| watcher.sandbox == sandbox).ok_or_else(|| missing(id))?;
        let mut waiting = watcher.state.lock();
        match (waiting.events.is_empty(), &waiting.end) {
            (true, Some(end)) => Err(end.clone()),
            _ => Ok(waiting.events.drain(..).collect()),
        }
    }

    /// Ends a watcher.
    pub(crate) fn remove(&self, sandbox: &str, id: &str) -> Result<(), Refusal> {
        let mut all = self.all.lock();
        match all.get(id).is_some_and(|watcher| watcher.sandbox == sandbox) {
            true => {
                all.remove(id);
                Ok(())
            }
            false => Err(missing(id)),
        }
    }

    /// Ends the watchers of a sandbox that is gone.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.all.lock().retain(|_, watcher| watcher.sandbox != sandbox);
    }
}

fn missing(id: &str) -> Refusal {
    Refusal::not_found(format!("watcher {} not found", id.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_and_other_words_are_refused() {
        let event = event_of(br#"{"name":"a/b","type":"write","entry":{"name":"b"}}"#).expect("a change");
        assert_eq!((event.name.as_str(), event.r#type()), ("a/b", wire::EventType::Write));
        assert_eq!(event.entry.expect("an entry").name, "b");
        assert!(event_of(br#"{"name":"a","type":"create","entry":null}"#).expect("a change").entry.is_none());
        assert!(event_of(b"oops").is_err());
    }

    #[test]
    fn an_unknown_watcher_is_not_found() {
        let watchers = Watchers::default();
        assert_eq!(watchers.take("a", "watch-x").expect_err("unknown").code, Code::NotFound);
        assert_eq!(watchers.remove("a", "").expect_err("unknown").code, Code::NotFound);
    }
}
