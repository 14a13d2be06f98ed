//! Watches that only count changes, for publishing on writes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use amalgam_engine::workspace::WorkspaceName;

use crate::call_log::warn_failure;
use crate::directory::Directories;
use crate::directory::watcher::SharedWatcher;
use crate::error::Result;
use crate::registry::Record;

/// A watch of a directory that counts changes. It ends when it is dropped.
pub(crate) struct WriteWatch {
    directories: Directories,
    name: String,
    session: u64,
    eye: Arc<SharedWatcher>,
}

impl WriteWatch {
    /// Reads new events, and returns a number that grows with each read that found some.
    pub(crate) fn changes(&self) -> u64 {
        self.eye.gather();
        *self.eye.events.borrow()
    }

    /// Returns whether the watcher has ended, for example because the directory was detached or attached again.
    pub(crate) fn is_ended(&self) -> bool {
        self.eye.is_ended()
    }
}

impl Drop for WriteWatch {
    fn drop(&mut self) {
        if let Err(failure) = self.directories.end_session(&self.name, self.session) {
            warn_failure(&failure, "the index of a watched directory was not saved");
        }
    }
}

impl Directories {
    /// Returns whether a workspace has a directory of the host.
    pub(crate) fn has_directory(&self, workspace: &WorkspaceName) -> bool {
        self.record_of(workspace).is_some()
    }

    fn record_of(&self, workspace: &WorkspaceName) -> Option<Record> {
        self.context.registry.all().into_iter().find(|record| record.workspace == workspace.as_str())
    }

    /// Watches the directory of a workspace for changes; returns `None` if it has none or the process ends. The caller uses the
    /// store.
    pub(crate) fn watch_writes(&self, workspace: &WorkspaceName) -> Result<Option<WriteWatch>> {
        let Some(record) = self.record_of(workspace).filter(|_| !self.watches.is_ending()) else { return Ok(None) };
        let name = amalgam_proto::directory_name(&record.id);
        let session = self.watches.last_session.fetch_add(1, Ordering::Relaxed) + 1;
        let eye = self.begin_session(&name, session)?;
        Ok(Some(WriteWatch { directories: self.clone(), name, session, eye }))
    }
}
