//! The inputs of one checkout, shared by its threads: trees, directory, options and the recorder of results.

use std::io;
use std::sync::Arc;

use amalgam_engine::object::Root;
use amalgam_engine::{Entry, ErrorKind, Name, RootId, Store, Time, TreePath};
use rustix::io::Errno;

use super::process::Process;
use super::recorder::Recorder;
use crate::checkout_options::{CheckoutOptions, Times};
use crate::error::{Error, Result};
use crate::host::HostDir;
use crate::index::Index;
use crate::plan::CheckoutScope;
use crate::report::{Notice, Why};
use crate::staging::Staging;

/// A checkout in progress. Only the recorder changes.
pub(super) struct Context<'a> {
    pub(super) store: &'a Store,
    pub(super) directory: &'a HostDir,
    pub(super) index: &'a Index,
    pub(super) options: &'a CheckoutOptions<'a>,
    pub(super) scope: CheckoutScope<'a>,
    /// The tree that the index describes.
    pub(super) before: Option<Arc<Root>>,
    /// The target.
    pub(super) after: Arc<Root>,
    pub(super) process: Process,
    pub(super) staging: &'a Staging<'a>,
    pub(super) recorder: Recorder,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        store: &'a Store,
        directory: &'a HostDir,
        index: &'a Index,
        target: RootId,
        options: &'a CheckoutOptions<'a>,
        staging: &'a Staging<'a>,
    ) -> Result<Self> {
        Ok(Self {
            store,
            directory,
            index,
            options,
            scope: CheckoutScope::new(store, options, index.root(), target)?,
            before: index.root().map(|root| store.root(root)).transpose()?,
            after: store.root(target)?,
            process: Process::of(directory)?,
            staging,
            recorder: Recorder::default(),
        })
    }

    /// Fails if another thread failed or the caller cancelled the checkout.
    pub(super) fn check(&self) -> Result<()> {
        if self.recorder.is_stopped() {
            return Err(Error::Cancelled);
        }
        self.options.progress.check()
    }

    /// Records a notice, unless the path is skipped on purpose.
    pub(super) fn notice(&self, path: &TreePath, why: Why) {
        // The `.git` in it is kept on purpose.
        if why == Why::NotEmpty && self.scope.holds_git(path) {
            return;
        }
        // The index does not describe excluded paths, so they always look changed.
        let why = if why == Why::ChangedSince && self.scope.is_uncovered(path) { Why::Uncovered } else { why };
        self.recorder.notice(Notice { path: path.clone(), why });
    }

    pub(super) fn touch(&self, directory: &TreePath) {
        self.recorder.touch(directory);
    }

    /// Turns an error that concerns only this path into a notice and `None`; returns all other errors.
    pub(super) fn tolerate<T>(&self, path: &TreePath, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Error::Host { action, source, .. }) if concerns_one_path(&source) => {
                let why = match Errno::from_io_error(&source) {
                    Some(Errno::XDEV) => Why::OtherFileSystem,
                    Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Why::ChangedSince,
                    _ => Why::Failed { action, error: source.to_string() },
                };
                self.notice(path, why);
                Ok(None)
            }
            Err(Error::Engine(amalgam_engine::Error::Purged { tombstone, .. })) => {
                self.notice(path, Why::Purged(tombstone.to_string()));
                Ok(None)
            }
            Err(Error::Engine(error)) if error.kind() == ErrorKind::Corrupt => {
                self.notice(path, Why::Damaged(error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the modification time that a new file with this entry gets.
    pub(super) fn time_of(&self, entry: &Entry) -> Time {
        match self.options.times {
            Times::Exact => entry.mtime,
            Times::OfBytes(now) => now,
        }
    }

    /// Returns a new temporary name, which no other file has.
    pub(super) fn temporary_name(&self) -> Name {
        self.staging.next_name()
    }
}

/// Returns whether the checkout can continue after this error: neither disk nor process has run out of a resource.
fn concerns_one_path(error: &io::Error) -> bool {
    let fatal = [Errno::NOSPC, Errno::DQUOT, Errno::IO, Errno::ROFS, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    !fatal.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
