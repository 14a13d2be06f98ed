//! Exports in the view book, and the trees that they have open. An export of a workspace shows its one live view, which mounts show, too.
//!
//! The view book remembers exports, so that the next process serves them again. A tree is opened by the first request of a client, and
//! closed when the export is idle or removed.

use std::collections::BTreeMap;
use std::path::Path;

use amalgam_engine::SnapshotId;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_proto::Reason;
use amalgam_view::View;

use super::book::{ExportRecord, Mode};
use super::{MountedTree, Views};
use crate::error::{Error, Result};

impl Views {
    /// Returns all exports by number.
    pub(crate) fn exports(&self) -> BTreeMap<u64, ExportRecord> {
        self.inner.book.read().exports
    }

    /// Records an export. Returns its number.
    pub(crate) fn add_export(&self, record: ExportRecord) -> Result<u64> {
        // No other call attaches, renames or ends the workspace meanwhile.
        let _turn = self.context.registry.turn();
        if record.mode == Mode::ReadWrite {
            let workspace = WorkspaceName::new(record.workspace.as_str())?;
            self.context.workspaces.get(&workspace)?;
            let instead =
                format!("export the fork: `amalgam fork NAME --from {workspace}`, then `amalgam export nfs NAME`");
            self.refuse_attached(&workspace, &instead)?;
            self.inner.book.ensure_view(workspace.as_str())?;
        }
        self.inner.book.add_export(record)
    }

    /// Removes an export, and closes its tree if nothing else shows it.
    pub(crate) fn remove_export(&self, number: u64) -> Result<()> {
        self.inner.book.change(|pages| drop(pages.exports.remove(&number)))?;
        self.close_export(number)
    }

    /// Returns the port at which exports were served last.
    pub(crate) fn nfs_port(&self) -> Option<u16> {
        self.inner.book.read().nfs_port
    }

    /// Remembers at which port exports are served.
    pub(crate) fn set_nfs_port(&self, port: u16) -> Result<()> {
        self.inner.book.change(|pages| pages.nfs_port = Some(port))
    }

    /// Opens the tree of an export. `handles` is the file for the handles of a snapshot's files; those of a live view are beside its
    /// journal.
    pub(crate) fn open_export(&self, number: u64, handles: &Path) -> Result<View> {
        let gone = || Error::new(Reason::NotFound, "it is no longer exported");
        let record = self.inner.book.read().exports.remove(&number).ok_or_else(gone)?;
        let (view, shows) = match record.mode {
            Mode::ReadWrite => {
                let locked = self.open_for_mount(&WorkspaceName::new(record.workspace)?)?;
                let view = locked.live.view.clone();
                view.keep_handles()?;
                // While the view is locked, so that no other call closes it before this export shows it.
                self.inner.state.lock().exported.insert(number, MountedTree::Live(locked.id));
                return Ok(view);
            }
            Mode::Follow => {
                let (view, head) = self.following_view(&WorkspaceName::new(record.workspace)?)?;
                (view.clone(), MountedTree::Following(view, head))
            }
            Mode::Snapshot => {
                let unreadable = || Error::new(Reason::Corrupt, format!("{} is no snapshot", record.snapshot));
                let snapshot = SnapshotId::from_hex(&record.snapshot).ok_or_else(unreadable)?;
                (self.read_only_view(snapshot)?, MountedTree::Snapshot(snapshot))
            }
        };
        view.keep_handles_at(handles)?;
        self.inner.state.lock().exported.insert(number, shows);
        Ok(view)
    }

    /// Closes the tree of an export. The next request of a client opens it again.
    pub(crate) fn close_export(&self, number: u64) -> Result<()> {
        let closed = self.inner.state.lock().exported.remove(&number);
        match closed {
            Some(MountedTree::Live(id)) => self.close_view_if_unused(id, std::time::Duration::ZERO),
            _ => Ok(()),
        }
    }

    /// Returns whether an export has a view open.
    pub(super) fn is_exported(&self, id: u64) -> bool {
        let state = self.inner.state.lock();
        state.exported.values().any(|shows| matches!(shows, MountedTree::Live(other) if *other == id))
    }

    /// Returns whether an export has its tree open.
    pub(crate) fn is_export_open(&self, number: u64) -> bool {
        self.inner.state.lock().exported.contains_key(&number)
    }

    /// Returns whether the live tree of a workspace is exported, open or not.
    pub(super) fn has_live_export(&self, workspace: &WorkspaceName) -> bool {
        let is_live = |record: &ExportRecord| record.mode == Mode::ReadWrite && record.workspace == workspace.as_str();
        self.inner.book.read().exports.values().any(is_live)
    }

    /// Refuses what cannot be done to a workspace whose live tree is exported.
    pub(super) fn refuse_exported(&self, workspace: &WorkspaceName, what: &str) -> Result<()> {
        if !self.has_live_export(workspace) {
            return Ok(());
        }
        let message =
            format!("workspace {workspace} is exported over NFS, so {what}; `amalgam unexport {workspace}` first");
        Err(Error::new(Reason::Mounted, message))
    }

    /// Refuses what cannot be done while clients of exports use a tree.
    pub(super) fn refuse_open_exports(&self, why: &str) -> Result<()> {
        match self.inner.state.lock().exported.len() {
            0 => Ok(()),
            number => {
                let what = if number == 1 { "1 export is" } else { &format!("{number} exports are") };
                let message =
                    format!("{what} in use, and {why}; `amalgam exports` lists them, `amalgam unexport` ends them");
                Err(Error::new(Reason::Mounted, message))
            }
        }
    }

    /// Brings exports that follow a workspace to its head.
    pub(super) fn show_new_heads_in_exports(&self) -> Result<()> {
        let following: Vec<(u64, View, SnapshotId)> = {
            let state = self.inner.state.lock();
            let following = state.exported.iter().filter_map(|(number, shows)| match shows {
                MountedTree::Following(view, shown) => Some((*number, view.clone(), *shown)),
                _ => None,
            });
            following.collect()
        };
        if following.is_empty() {
            return Ok(());
        }
        let records = self.inner.book.read().exports;
        for (number, view, shown) in following {
            let Some(record) = records.get(&number) else { continue };
            // A workspace that was deleted is shown as it was.
            let Some(found) = self.context.workspaces.find(&WorkspaceName::new(record.workspace.as_str())?)? else {
                continue;
            };
            let Some(head) = found.head.filter(|head| *head != shown) else { continue };
            view.show(head)?;
            if let Some(MountedTree::Following(_, shown)) = self.inner.state.lock().exported.get_mut(&number) {
                *shown = head;
            }
        }
        Ok(())
    }
}
