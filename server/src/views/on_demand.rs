//! Live views that calls open on demand, without a mount. They stay open for some seconds after the last call.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{TreePath, WorkingTree};
use amalgam_proto::Reason;
use amalgam_view::{StateVersion, TreeEdit, Upload, View, differences};

use super::{LiveView, MountedTree, Replica, Views};
use crate::error::{Error, Result};

/// The most live views that are open at once.
const OPEN_VIEWS_MAX: usize = 512;

/// A live view that stays open while this exists.
pub(crate) struct ViewUse {
    id: u64,
    live: Arc<LiveView>,
    views: Views,
}

/// The open live tree of a workspace.
pub(crate) struct OpenTree {
    pub(crate) workspace: WorkspaceName,
    live: Arc<LiveView>,
}

impl OpenTree {
    /// Returns the version of the tree, which differs after each change.
    pub(crate) fn version(&self) -> StateVersion {
        self.live.view.version()
    }

    /// Returns whether the tree has no uncommitted changes.
    pub(crate) fn is_clean(&self) -> bool {
        self.live.view.is_clean()
    }

    /// Returns the tree as it is now.
    pub(crate) fn fork(&self) -> WorkingTree {
        self.live.view.fork()
    }
}

impl Drop for ViewUse {
    fn drop(&mut self) {
        self.live.uses.leave();
    }
}

impl ViewUse {
    /// Returns the view.
    pub(crate) fn view(&self) -> &View {
        &self.live.view
    }

    /// Returns whether another node has taken the tree.
    pub(crate) fn is_lost(&self) -> bool {
        self.live.replica.as_ref().is_some_and(Replica::is_lost)
    }

    /// Changes the tree by a group of edits, all or none. Mounts of the workspace show the result when this returns.
    pub(crate) fn edit<T>(
        &self,
        uploads: &mut [&mut Upload],
        plan: impl FnOnce(WorkingTree, &[&mut Upload]) -> Result<(Vec<TreeEdit>, T)>,
    ) -> Result<T> {
        let done = match &self.live.replica {
            // One edit at a time: it is acknowledged when the shared journal has it.
            Some(_) => {
                let _gate = self.live.edits.write();
                let done = self.live.view.edit_group(uploads, plan)?;
                self.live.store(self.id, self.views.context.now())?;
                done
            }
            None => {
                // Keeps a merge from replacing the tree meanwhile, which would overrule the edit.
                let _gate = self.live.edits.read();
                self.live.view.edit_group(uploads, plan)?
            }
        };
        let id = self.id;
        self.views.wait_for_kernels(|shows| matches!(shows, MountedTree::Live(shown) if *shown == id));
        Ok(done)
    }
}

impl Views {
    /// Opens the live view of a workspace, which gets one if it has none.
    pub(crate) fn use_view(&self, workspace: &WorkspaceName) -> Result<ViewUse> {
        loop {
            // Fails for a workspace that does not exist.
            self.context.workspaces.get(workspace)?;
            let id = match self.inner.book.view_of(workspace.as_str()) {
                Some(id) if self.is_open(id) => id,
                _ => {
                    let _turn = self.context.registry.turn();
                    let id = self.number_view(workspace)?;
                    self.make_place(id)?;
                    // Opened in the turn, so that no directory is attached meanwhile.
                    self.live_view(id)?;
                    id
                }
            };
            if let Some(used) = self.enter(id, workspace)? {
                return Ok(used);
            }
        }
    }

    /// Returns the live view of a workspace, if it is open or has work that is in no snapshot.
    pub(crate) fn use_view_if_live(&self, workspace: &WorkspaceName) -> Result<Option<ViewUse>> {
        loop {
            let Some(id) = self.find_view(workspace)? else { return Ok(None) };
            self.make_place(id)?;
            if let Some(used) = self.enter(id, workspace)? {
                return Ok(Some(used));
            }
        }
    }

    /// Counts a call on a view, and brings the view to its workspace's head if it has no changes. Returns nothing if the view was closed.
    fn enter(&self, id: u64, workspace: &WorkspaceName) -> Result<Option<ViewUse>> {
        let live = self.live_view(id)?;
        if !live.uses.enter() {
            // The call that closes the view holds its turn.
            drop(live.turn.lock());
            return Ok(None);
        }
        let used = ViewUse { id, live, views: self.clone() };
        self.follow_if_behind(&used.live, id, workspace)?;
        Ok(Some(used))
    }

    /// Brings a view without changes to its workspace's head.
    fn follow_if_behind(&self, live: &LiveView, id: u64, workspace: &WorkspaceName) -> Result<()> {
        let head = self.context.head(workspace)?;
        if live.view.head() != head && *live.behind.lock() != head {
            drop(self.lock_view(id)?);
        }
        Ok(())
    }

    /// Notifies the watches of a workspace's live tree that the head moved. Brings the view to the head if it is open and has no
    /// changes.
    pub(crate) fn head_moved(&self, workspace: &WorkspaceName) -> Result<()> {
        let Some(id) = self.inner.book.view_of(workspace.as_str()) else { return Ok(()) };
        self.inner.changes.notify(id);
        let live = self.inner.state.lock().open.get(&id).cloned();
        live.map_or(Ok(()), |live| self.follow_if_behind(&live, id, workspace))
    }

    /// Returns whether the open live view of a workspace follows a snapshot other than the workspace's head.
    pub(crate) fn is_behind(&self, workspace: &WorkspaceName) -> Result<bool> {
        let Some(id) = self.inner.book.view_of(workspace.as_str()) else { return Ok(false) };
        let live = self.inner.state.lock().open.get(&id).cloned();
        let head = self.context.head(workspace)?;
        Ok(live.is_some_and(|live| live.view.head() != head))
    }

    /// Returns the open live trees.
    pub(crate) fn open_trees(&self) -> Vec<OpenTree> {
        let open: Vec<_> = self.inner.state.lock().open.iter().map(|(id, live)| (*id, Arc::clone(live))).collect();
        let tree = |(id, live): (u64, Arc<LiveView>)| Some(OpenTree { workspace: self.view_workspace(id).ok()?, live });
        open.into_iter().filter_map(tree).collect()
    }

    /// Returns the live tree of a workspace, if it is open.
    pub(crate) fn open_tree(&self, workspace: &WorkspaceName) -> Option<OpenTree> {
        let id = self.inner.book.view_of(workspace.as_str())?;
        let live = self.inner.state.lock().open.get(&id).cloned()?;
        Some(OpenTree { workspace: workspace.clone(), live })
    }

    /// Returns whether the live tree of a workspace has uncommitted changes, open or not. One that another node has open counts as
    /// changed.
    pub(crate) fn has_uncommitted(&self, workspace: &WorkspaceName) -> Result<bool> {
        let Some(id) = self.find_view(workspace)? else { return Ok(false) };
        let open = self.inner.state.lock().open.get(&id).cloned();
        Ok(match open {
            Some(live) => !live.view.is_clean(),
            None => self.context.live_trees.is_some() || View::has_work(&self.view_directory(id)),
        })
    }

    /// Returns the paths in which an open live tree differs from the snapshot that it follows.
    pub(crate) fn uncommitted_paths(&self, tree: &OpenTree) -> Result<Vec<TreePath>> {
        let view = &tree.live.view;
        if view.is_clean() {
            return Ok(Vec::new());
        }
        let before = self.working_tree(view.head())?;
        Ok(differences(&before, &view.fork())?.into_iter().map(|(path, _)| path).collect())
    }

    /// Registers a watch of a workspace's live tree: the receiver changes whenever the tree may have changed.
    pub(crate) fn watch_tree(&self, workspace: &WorkspaceName) -> Result<tokio::sync::watch::Receiver<u64>> {
        let id = {
            let _turn = self.context.registry.turn();
            self.number_view(workspace)?
        };
        Ok(self.inner.changes.watch(id))
    }

    fn is_open(&self, id: u64) -> bool {
        self.inner.state.lock().open.contains_key(&id)
    }

    /// Makes room for one more open view: closes the one that has been unused for the longest time.
    fn make_place(&self, id: u64) -> Result<()> {
        let mut unused: Vec<(Duration, u64)> = {
            let state = self.inner.state.lock();
            if state.open.contains_key(&id) || state.open.len() < OPEN_VIEWS_MAX {
                return Ok(());
            }
            state.open.iter().filter_map(|(id, live)| Some((live.uses.unused_for()?, *id))).collect()
        };
        unused.sort_unstable_by(|one, other| other.cmp(one));
        for (_, id) in unused {
            self.close_view_if_unused(id, Duration::ZERO)?;
            if !self.is_open(id) {
                return Ok(());
            }
        }
        let message = format!("{OPEN_VIEWS_MAX} live trees are in use, which is the most; try again in some seconds");
        Err(Error::new(Reason::TooMany, message))
    }
}
