//! An entry that a checkout made and that has not got its final name yet.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use super::recorder::Origin;
use crate::stamp::Stamp;

/// A new entry, held by a handle until it is installed: the rename changes its stamp.
pub(super) struct NewEntry {
    pub(super) handle: NewHandle,
    pub(super) origin: Origin,
}

pub(super) enum NewHandle {
    File(File),
    /// Opened with `O_PATH`.
    PathOnly(OwnedFd),
    /// It has its final name already.
    Installed(Stamp),
}

impl NewEntry {
    /// Returns its stamp now.
    pub(super) fn stamp(&self) -> std::io::Result<Stamp> {
        match &self.handle {
            NewHandle::File(file) => Stamp::of(file.as_fd()),
            NewHandle::PathOnly(handle) => Stamp::of(handle.as_fd()),
            NewHandle::Installed(stamp) => Ok(*stamp),
        }
    }
}
