//! Directories of the host: finds them, captures them, and keeps them in step with their workspaces.
//!
//! Calls take turns: only one works in a directory at a time. A directory is identified by its inode. If another directory is at
//! its path, the call is refused, so that nothing is captured or overwritten by mistake.

mod attach;
mod capture;
mod checkout;
mod faces;
mod git_lock;
mod merged;
mod resolve;
mod restore;
mod revert;
mod uncovered;
mod unfinished;
mod unwritten;
mod watch;
mod watcher;
mod writing;
mod written_tree;

pub(crate) use attach::Uncommitted;
pub(crate) use merged::{FilesInMerge, PreviewedHead, SecuredFiles};
pub(crate) use watch::WriteWatch;
pub(crate) use watcher::Watches;

use std::collections::HashMap;
use std::sync::Arc;

use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Pin, TreePath};
use amalgam_materializer::{HostDir, Index, Progress, Rules};
use amalgam_proto::{Reason, v1};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex};

use crate::conflicts::{CapturedConflicts, Conflicts};
use crate::context::{Context, HeldTree};
use crate::disk_quota::DiskQuota;
use crate::error::{Error, Result};
use crate::publishing::Publishing;
use crate::registry::Record;
use crate::states::States;
use crate::views::{Named, Views, named};

/// The state of a directory in memory.
#[derive(Default)]
pub(crate) struct Live {
    index: Option<Index>,
    watch: Option<watcher::Watch>,
    /// Keeps the tree that the index describes, if no snapshot keeps it.
    face: Option<Pin>,
}

impl Live {
    /// Ends the watch of the directory.
    fn end_watch(&mut self) {
        self.watch = None;
    }

    pub(crate) fn release_face(&mut self) {
        self.face = None;
    }
}

/// A directory that no other call uses while this value exists.
pub(crate) struct LockedDirectory {
    pub(crate) record: Record,
    pub(crate) workspace: WorkspaceName,
    /// The conflicts of the last capture.
    pub(crate) seen: CapturedConflicts,
    /// The paths of the tree that the directory is being made into; `None` for all.
    pub(crate) aim_paths: Option<Vec<TreePath>>,
    host: HostDir,
    live: ArcMutexGuard<RawMutex, Live>,
    /// Keeps the tree that the index described when the directory was locked: often no snapshot has it.
    indexed: Option<Pin>,
}

/// The directories of the host that belong to workspaces.
#[derive(Clone)]
pub(crate) struct Directories {
    context: Arc<Context>,
    quota: DiskQuota,
    conflicts: Conflicts,
    states: States,
    publishing: Publishing,
    views: Views,
    live: Arc<Mutex<HashMap<String, Arc<Mutex<Live>>>>>,
    watches: Arc<Watches>,
}

impl Directories {
    pub(crate) fn new(
        context: &Arc<Context>,
        quota: &DiskQuota,
        conflicts: &Conflicts,
        states: &States,
        publishing: &Publishing,
        views: &Views,
    ) -> Self {
        Self {
            context: Arc::clone(context),
            quota: quota.clone(),
            conflicts: conflicts.clone(),
            states: states.clone(),
            publishing: publishing.clone(),
            views: views.clone(),
            live: Arc::default(),
            watches: Arc::default(),
        }
    }

    /// Unpins the trees that only the caches of directories keep.
    pub(crate) fn release_faces(&self) {
        let live: Vec<_> = self.live.lock().values().cloned().collect();
        live.iter().filter_map(|live| live.try_lock()).for_each(|mut live| live.release_face());
    }

    /// Returns the record of a directory by its resource name. Refuses a mount and an unknown directory.
    pub(crate) fn record(&self, name: &str) -> Result<Record> {
        if named(name).is_some() {
            let message = "this is a mount, not a directory; `amalgam umount` unmounts it";
            return Err(Error::new(Reason::Invalid, message));
        }
        let id = amalgam_proto::directory_id(name)?;
        let unknown = || Error::new(Reason::NoDirectory, format!("there is no {name}; `amalgam ws` lists directories"));
        self.context.registry.get(id).ok_or_else(unknown)
    }

    fn live(&self, id: &str) -> Arc<Mutex<Live>> {
        Arc::clone(self.live.lock().entry(id.to_owned()).or_default())
    }

    /// Locks a directory: waits until no other call uses it, opens it, and checks that it is the directory of the record.
    pub(crate) fn lock(&self, name: &str) -> Result<LockedDirectory> {
        let id = self.record(name)?.id;
        let live = Mutex::lock_arc(&self.live(&id));
        // The call before this one may have changed the record.
        let record = self.record(name)?;
        let host = self.open_host(&record)?;
        let workspace = WorkspaceName::new(record.workspace.as_str())?;
        crate::call_log::record_workspace(workspace.as_str());
        let seen = CapturedConflicts::default();
        let mut locked = LockedDirectory { record, workspace, seen, aim_paths: None, host, live, indexed: None };
        locked.indexed = locked.ready_index(&self.context);
        self.remove_leftovers(&locked);
        Ok(locked)
    }

    fn open_host(&self, record: &Record) -> Result<HostDir> {
        let path = record.path.display();
        let host = match HostDir::open(&record.path) {
            Ok(host) => host,
            Err(error) if error.kind() == Some(amalgam_engine::ErrorKind::NotFound) => {
                let hint = format!(
                    "`amalgam checkout {}` writes it again; if it was moved, run `amalgam ws attach` in its new place",
                    record.workspace
                );
                return Err(Error::new(Reason::DirectoryGone, format!("{path} no longer exists; {hint}")));
            }
            Err(error) => return Err(error.into()),
        };
        if host.identity() != record.identity() {
            return Err(Error::new(Reason::DirectoryReplaced, replaced(record)));
        }
        Ok(host)
    }

    /// Captures a directory or a live view, and holds the tree. No snapshot is made.
    pub(crate) fn hold_directory(&self, name: &str) -> Result<HeldTree> {
        if let Some(id) = self.live_named(name)? {
            return self.views.hold_view(id);
        }
        let mut locked = self.lock(name)?;
        let captured = self.capture(&mut locked, &Progress::default())?;
        let pin = self.context.store.hold(captured.root)?;
        locked.save(&self.context);
        Ok(HeldTree { root: Some(captured.root), snapshot: None, lean: None, _pin: Some(pin) })
    }

    /// Returns the id of the live view that a name stands for; `None` for a directory of the host. Refuses a mount that only
    /// follows.
    pub(crate) fn live_named(&self, name: &str) -> Result<Option<u64>> {
        match named(name) {
            None => Ok(None),
            Some(Named::View(id)) => {
                crate::call_log::record_workspace(self.views.view_workspace(id)?.as_str());
                Ok(Some(id))
            }
            Some(Named::Follower) => {
                let message = "this mount is read-only and follows its workspace, so it never has changes";
                Err(Error::new(Reason::Invalid, message))
            }
        }
    }

    /// Returns the ignore rules of a directory.
    fn rules(&self, record: &Record) -> Result<Rules> {
        let rules = if record.takes_all { Rules::everything() } else { Rules::new(&record.exclude)? };
        Ok(rules.never(&self.context.ours))
    }
}

impl LockedDirectory {
    /// Loads the index from its file, unless it is in memory. An index of another directory, or of a tree that is gone, is replaced
    /// by an empty one: then everything is read again. Returns the pin of its tree.
    fn ready_index(&mut self, context: &Context) -> Option<Pin> {
        if self.live.index.is_none() {
            let file = context.registry.index_file(&self.record.id);
            self.live.index = Index::load(&file).ok().flatten();
        }
        let index = self.live.index.as_ref().filter(|index| index.identity() == self.host.identity());
        let root = index.and_then(Index::root);
        let held = context.held(root).map(|(_, pin)| pin);
        if index.is_none() || root.is_some() && held.is_none() {
            self.live.index = Some(Index::new(self.host.identity()));
        }
        held
    }

    fn index(&self) -> &Index {
        self.live.index.as_ref().expect("it was made ready when the directory was locked")
    }

    /// Keeps the tree that the index describes until the next one.
    pub(crate) fn keep_face(&mut self, face: Pin) {
        self.live.face = Some(face);
    }

    /// Writes the index and the record for the next process. A failure, for example a full disk, is only a warning: both stay in
    /// memory, the next call writes them, and without an index the files are only read again.
    pub(crate) fn save(&self, context: &Context) -> Vec<String> {
        let mut warnings = Vec::new();
        // While the directory is watched, the index stays in memory: writing it each time would cost more than the capture.
        if self.live.watch.is_none() {
            let file = context.registry.index_file(&self.record.id);
            if let Err(error) = self.index().save(&file) {
                warnings.push(format!("the index of the directory was not saved, so files may be read again: {error}"));
            }
        }
        if let Err(failure) = context.registry.note(&self.record) {
            let message = failure.to_string();
            warnings
                .push(format!("the record of the directory was not saved; the next command tries again: {message}"));
        }
        warnings
    }
}

impl Directories {
    /// Holds the tree of a state, without the paths that are hidden from the caller.
    pub(crate) fn hold_state(&self, state: Option<&v1::State>, here: Option<&WorkspaceName>) -> Result<HeldTree> {
        let held = self.hold_whole_state(state, here)?;
        self.context.without_hidden(held, here)
    }

    /// Holds the tree of a state with everything in it.
    fn hold_whole_state(&self, state: Option<&v1::State>, here: Option<&WorkspaceName>) -> Result<HeldTree> {
        use v1::state::State as Named;
        match state.and_then(|state| state.state.as_ref()) {
            None => self.context.hold_revision("@", here),
            Some(Named::Revision(revision)) => self.context.hold_revision(revision, here),
            Some(Named::Empty(_)) => Ok(HeldTree { root: None, snapshot: None, lean: None, _pin: None }),
            Some(Named::Directory(name)) => self.hold_directory(name),
        }
    }
}

/// Returns the message for another directory at the path of an attached one, with the command that brings the files back.
fn replaced(record: &Record) -> String {
    let workspace = &record.workspace;
    format!(
        "{} is not the directory that was protected as {workspace}; `amalgam checkout {workspace} --here` writes the files of {workspace} \
         into it, `amalgam ws attach` accepts it as it is",
        record.path.display()
    )
}
