//! Mounts that a process left when it died. No process answers for them: each is unmounted and mounted again, with its uncommitted work.
//! The result for each is kept as a message, for `mounts` and for calls from inside the mount.

use std::path::Path;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_fuse::unmount_lazily;
use amalgam_proto::{Reason, v1};

use super::Views;
use super::book::{LostMount, MountRecord};
use super::kernel;
use super::mounting::{mode_message, words_of};
use crate::call_log::{warn_failure, warn_problem};
use crate::error::{Error, Result};
use crate::messages::path_bytes;

/// A mount that died within this time after it was remounted is not remounted again: it may be the cause of the crash.
const REMOUNT_PAUSE_NANOSECONDS: i64 = 60_000_000_000;

/// How long a mount that was not mounted again is reported by later processes.
const LOST_KEPT_NANOSECONDS: i64 = 7 * 24 * 3_600 * 1_000_000_000;

/// The result for a mount that an earlier process left.
enum Leftover {
    /// The mount has ended, and a user has to mount it again.
    Lost(String),
    /// Nothing is left to do; the message says what happened.
    Done(String),
}

impl Views {
    /// Reports mounts that an earlier process found and could not mount again. Forgets those that are too old, and those without a
    /// workspace or a directory to mount at.
    pub(super) fn report_lost(&self) {
        let now = self.context.now().0;
        let is_over = |mount: &LostMount| {
            let has_workspace = || match WorkspaceName::new(mount.workspace.as_str()) {
                _ if mount.workspace.is_empty() => true,
                Ok(name) => !matches!(self.context.workspaces.find(&name), Ok(None)),
                Err(_) => false,
            };
            let is_old = now.saturating_sub(mount.since) > LOST_KEPT_NANOSECONDS;
            is_old || !mount.path.is_dir() || !has_workspace()
        };
        if let Err(failure) = self.inner.book.forget_lost(is_over) {
            warn_failure(&failure, "could not forget lost mounts");
        }
        let lost = self.inner.book.read().lost;
        self.inner.problems.lock().extend(lost.into_iter().map(|mount| (mount.path, mount.message)));
    }

    /// Ends the reports about a path, because something is mounted there again or was unmounted. Returns whether there were any.
    pub(super) fn forget_problems(&self, path: &Path) -> bool {
        let mut problems = self.inner.problems.lock();
        let before = problems.len();
        problems.retain(|(place, _)| place != path);
        let had_any = problems.len() < before;
        drop(problems);
        if let Err(failure) = self.inner.book.forget_lost(|mount| mount.path == path) {
            warn_failure(&failure, "could not forget a lost mount");
        }
        had_any
    }

    /// Remounts the mounts that an earlier process left. The caller holds the store, so no other process answers for them.
    pub(super) fn remount_left(&self) {
        for (number, record) in self.inner.book.read().mounts {
            let left = self.remount_one(&record);
            if let Leftover::Lost(message) = &left {
                let (path, workspace) = (record.path.clone(), record.workspace.clone());
                let lost = LostMount { path, workspace, since: self.context.now().0, message: message.clone() };
                if let Err(failure) = self.inner.book.add_lost(lost) {
                    warn_failure(&failure, "could not record a lost mount");
                }
            }
            let (Leftover::Lost(words) | Leftover::Done(words)) = left;
            // Only now: a process that dies in between leaves the record to the next one.
            let removed = self.inner.book.remove_mount(number);
            let words = std::iter::once(words).chain(removed.err().map(|failure| failure.to_string()));
            let told: Vec<_> = words.map(|words| (record.path.clone(), words)).collect();
            told.iter().for_each(|(_, words)| warn_problem(words, "an earlier process left a mount"));
            self.inner.problems.lock().extend(told);
        }
    }

    /// Remounts one mount that an earlier process left. Returns the message about the result.
    fn remount_one(&self, record: &MountRecord) -> Leftover {
        let (path, what) = (record.path.display(), words_of(record));
        if record.private {
            return Leftover::Done(format!(
                "a command ran in a private mount of {what} when the background process ended; what was not committed is kept: `amalgam \
                 run --in {} -- CMD` goes on with it",
                record.workspace
            ));
        }
        let by_hand = match record.workspace.as_str() {
            "" => format!("; `amalgam umount {path}` ends this message"),
            workspace => format!(
                "; `amalgam mount {workspace} {path}` brings it back, with what was not committed, `amalgam umount {path}` ends this message"
            ),
        };
        if kernel::device_at(&record.path).is_none() {
            return Leftover::Lost(format!(
                "{path} was mounted when the background process ended, and is not any more{by_hand}"
            ));
        }
        if !kernel::is_dead(&record.path) {
            return Leftover::Done(format!(
                "{path} was ours when the background process ended; another process answers for it now, so it was left alone"
            ));
        }
        let since = self.context.now().0.saturating_sub(record.since);
        if record.remounted && since < REMOUNT_PAUSE_NANOSECONDS {
            let done = unmount_lazily(&record.path);
            let done =
                done.map_or_else(|error| format!("could not be unmounted: {error}"), |()| "was unmounted".to_owned());
            return Leftover::Lost(format!(
                "the background process died soon after it had mounted {path} again, so it {done}{by_hand}"
            ));
        }
        match self.remount(record) {
            Ok(()) => Leftover::Done(format!(
                "the background process had died; {what} is mounted again at {path}, with what was not committed (`cd .` takes a shell \
                 in there along)"
            )),
            Err(failure) => {
                let why = failure.to_string();
                Leftover::Lost(format!(
                    "the background process had died, and {what} could not be mounted again at {path}: {why}{by_hand}"
                ))
            }
        }
    }

    fn remount(&self, record: &MountRecord) -> Result<()> {
        let path = &record.path;
        unmount_lazily(path).map_err(Error::io(format!("unmount {}", path.display())))?;
        let workspace = match record.workspace.as_str() {
            "" => String::new(),
            name => format!("workspaces/{name}"),
        };
        let request = v1::MountRequest {
            path: path_bytes(path),
            mode: mode_message(record.mode).into(),
            workspace,
            revision: record.snapshot.clone(),
            options: Some(record.options.message()),
            ..Default::default()
        };
        self.mount_at(&request, path, true).map(drop)
    }

    /// Returns an error for a path in a mount that an earlier process left and that could not be remounted.
    pub(crate) fn refuse_left(&self, path: &Path) -> Result<()> {
        let problems = self.inner.problems.lock();
        match problems.iter().find(|(place, _)| path.starts_with(place)) {
            Some((_, words)) => Err(Error::new(Reason::NoDirectory, words.clone())),
            None => Ok(()),
        }
    }
}
