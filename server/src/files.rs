//! Files of workspaces by call, without a directory of the host: reads of any state of a tree, and edits of live trees.
//!
//! A live tree is the view that mounts of the workspace show, too; it is opened on demand. Reads take a fork of it, so a call sees one
//! state of the tree. Edits are planned on a fork and applied as one group ([`plan`]). Edits that are committed at once need no live tree
//! ([`commit`]).
//!
//! Absent: edits of a workspace that has a directory of the host. Calls read such a directory, and refuse to change it.

mod commit;
mod glob;
mod grep;
mod list;
mod media_type;
mod patch;
mod path;
mod plan;
mod stat;
mod states;
mod watch;

use std::sync::Arc;

use amalgam_conflicts::{Style, render_entry};
use amalgam_engine::object::Owner;
use amalgam_engine::work::{LooseFile, Stat};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{EntryKind, Error as EngineError, TreePath, WorkingTree, WriteSession};
use amalgam_proto::{Reason, v1};
use amalgam_view::{Guard, TreePermissions, Upload};
use parking_lot::Mutex;

use crate::conflicts::{CaptionSource, Conflicts};
use crate::context::{Context, HeldTree};
use crate::directory::Directories;
use crate::disk_quota::DiskQuota;
use crate::error::{Error, Result};
use crate::states::States;
use crate::views::{ViewUse, Views};
pub(crate) use glob::Glob;
pub(crate) use grep::{FILE_BYTES_MAX, LineMatcher};
pub(crate) use path::{parse_path, show_path};
pub(crate) use plan::{Plan, WriteTarget};
pub(crate) use stat::{Detail, file_stat};
pub(crate) use watch::TreeWatch;

/// The number of locks that serialize commits of edits. All workspaces share them.
const COMMIT_LOCKS: usize = 64;

/// The most attempts of an edit while other nodes take the live tree.
const EDIT_ATTEMPTS_MAX: usize = 5;

/// The files of a store's workspaces.
#[derive(Clone)]
pub(crate) struct Files {
    context: Arc<Context>,
    quota: DiskQuota,
    conflicts: Conflicts,
    states: States,
    views: Views,
    directories: Directories,
    commits: Arc<[Mutex<()>; COMMIT_LOCKS]>,
}

/// A tree at one point in time.
pub(crate) struct ReadTree {
    /// The tree.
    pub(crate) tree: WorkingTree,
    /// The snapshot's tree, for the error about a missing path.
    held: Option<HeldTree>,
    /// The history that names on its conflicts come from.
    source: CaptionSource,
    /// The agents on whose behalf it is read.
    guard: Guard,
}

/// A file that is open for reading.
pub(crate) struct ReadableFile {
    /// The file.
    pub(crate) file: LooseFile,
    /// Keeps the objects of a rendered conflict.
    _session: Option<WriteSession>,
}

impl Files {
    pub(crate) fn new(
        context: &Arc<Context>,
        quota: &DiskQuota,
        conflicts: &Conflicts,
        states: &States,
        views: &Views,
        directories: &Directories,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            quota: quota.clone(),
            conflicts: conflicts.clone(),
            states: states.clone(),
            views: views.clone(),
            directories: directories.clone(),
            commits: Arc::new(std::array::from_fn(|_| Mutex::default())),
        }
    }

    /// Returns the live tree of a workspace as it is now, or the tree of a revision.
    pub(crate) fn read_tree(&self, workspace: &str, revision: &str) -> Result<ReadTree> {
        let here = self.context.here(workspace)?;
        let guard = self.context.permissions.reading(here.as_ref())?;
        if !revision.is_empty() {
            let held = self.context.hold_revision(revision, here.as_ref())?;
            let root = held.root.expect("a revision has a tree");
            let tree = WorkingTree::open_root(&self.context.store, root)?;
            let source = CaptionSource::of(held.snapshot, here.as_ref());
            return Ok(ReadTree { tree, held: Some(held), source, guard });
        }
        let Some(workspace) = here else {
            return Err(Error::new(Reason::Invalid, "the request names neither a workspace nor a revision"));
        };
        let source = CaptionSource::Workspace(workspace.clone());
        if let Some(directory) = self.directory_of(&workspace) {
            let held = self.directories.hold_directory(&directory)?;
            let root = held.root.expect("a directory has a tree");
            let tree = WorkingTree::open_root(&self.context.store, root)?;
            return Ok(ReadTree { tree, held: Some(held), source, guard });
        }
        let tree = match self.views.use_view_if_live(&workspace)? {
            Some(used) => used.view().fork(),
            None => self.context.workspaces.open(&workspace)?,
        };
        Ok(ReadTree { tree, held: None, source, guard })
    }

    /// Opens the live tree of a workspace for edits.
    pub(crate) fn open_live(&self, workspace: &str) -> Result<ViewUse> {
        let workspace = crate::call_log::workspace_id(workspace)?;
        self.refuse_directory(&workspace)?;
        self.views.use_view(&workspace)
    }

    /// Applies edits to a live tree, all or none. Returns the entries that they leave, in their order.
    pub(crate) fn edit(&self, workspace: &str, edits: &[v1::FileEdit]) -> Result<Vec<v1::FileStat>> {
        let mut attempts = 0;
        loop {
            let used = self.open_live(workspace)?;
            let done = used.edit(&mut [], |tree, _| {
                let mut plan = self.plan(tree, workspace)?;
                edits.iter().try_for_each(|edit| plan.add(edit))?;
                plan.finish()
            });
            attempts += 1;
            // Another node took the tree in the middle of the edit, which was stored nowhere.
            if done.is_ok() || !used.is_lost() || attempts == EDIT_ATTEMPTS_MAX {
                return done;
            }
        }
    }

    /// Writes a file of a live tree from uploaded data.
    pub(crate) fn write_upload(
        &self,
        used: &ViewUse,
        workspace: &str,
        target: &WriteTarget<'_>,
        upload: &mut Upload,
    ) -> Result<v1::FileStat> {
        used.edit(&mut [upload], |tree, uploads| {
            let mut plan = self.plan(tree, workspace)?;
            plan.write_upload(target, uploads[0])?;
            let (edits, mut files) = plan.finish()?;
            Ok((edits, files.pop().unwrap_or_default()))
        })
    }

    /// Begins a plan of edits in a workspace, on behalf of its agent and of the caller.
    pub(crate) fn plan(&self, tree: WorkingTree, workspace: &str) -> Result<Plan> {
        let guard = self.context.permissions.writing(&crate::call_log::workspace_id(workspace)?)?;
        Ok(Plan::new(tree, self.owner(), guard))
    }

    /// Returns the owner of entries that are stored without one: the user and the group of this process.
    pub(crate) fn owner(&self) -> Owner {
        Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() }
    }

    /// Opens a file for reading. A conflict is read as the file that shows it.
    pub(crate) fn open_file(&self, tree: &ReadTree, path: &TreePath) -> Result<ReadableFile> {
        let found = tree.stat(path)?.ok_or_else(|| tree.not_found(path))?;
        let Some(conflict) = tree.tree.conflict_at(path)? else {
            if found.kind == EntryKind::Directory {
                return Err(EngineError::IsADirectory { path: path.clone() }.into());
            }
            return Ok(ReadableFile { file: tree.tree.loose(path)?, _session: None });
        };
        let store = &self.context.store;
        let session = store.session();
        let caption = self.conflicts.captioner(tree.source.clone()).caption(path, &conflict);
        let shown = render_entry(store, &session, &conflict, Style::Markers, &caption)?;
        session.write_all_ahead()?;
        let shown = shown.ok_or_else(|| {
            let message = format!("{path} is a conflict that no file shows; ConflictService has its versions");
            Error::new(Reason::Invalid, message)
        })?;
        Ok(ReadableFile { file: tree.tree.loose_entry(Some(&shown)), _session: Some(session) })
    }

    /// Returns the resource name of the directory that is attached to a workspace, or `None`.
    fn directory_of(&self, workspace: &WorkspaceName) -> Option<String> {
        let records = self.context.registry.all();
        let found = records.into_iter().find(|record| record.workspace == workspace.as_str())?;
        Some(amalgam_proto::directory_name(&found.id))
    }

    /// Refuses a workspace whose files are in a directory of the host.
    pub(crate) fn refuse_directory(&self, workspace: &WorkspaceName) -> Result<()> {
        if self.directory_of(workspace).is_none() {
            return Ok(());
        }
        let message = format!(
            "workspace {workspace} has a directory on the server's host, and this call does not use it; fork the workspace and use the \
             fork, or CommitEdits, which the directory follows"
        );
        Err(Error::new(Reason::Mounted, message).with("workspace", amalgam_proto::workspace_name(workspace)))
    }
}

impl ReadTree {
    /// Returns the metadata of a path. An entry that is hidden from the agents does not exist for them.
    pub(crate) fn stat(&self, path: &TreePath) -> Result<Option<Stat>> {
        match self.tree.stat(path)? {
            Some(stat) if path.is_root() || self.is_visible(path, &stat)? => Ok(Some(stat)),
            _ => Ok(None),
        }
    }

    /// Returns whether the agents can see an entry.
    pub(crate) fn is_visible(&self, path: &TreePath, stat: &Stat) -> Result<bool> {
        Ok(TreePermissions::new(&self.guard, &self.tree).is_visible(path, stat.kind, stat.links)?)
    }

    /// Returns whether the agents can see something below a directory.
    pub(crate) fn is_entered(&self, path: &TreePath) -> bool {
        self.guard.is_visible(path.as_bytes(), true)
    }

    /// Returns the error for a path that the tree does not have.
    pub(crate) fn not_found(&self, path: &TreePath) -> Error {
        match &self.held {
            Some(held) => held.not_found(path),
            None => EngineError::NotFound { path: path.clone() }.into(),
        }
    }
}
