//! Workspaces as live file systems: which are open, and where they are mounted.
//!
//! A workspace has one live view: all its mounts and all calls about it share that view. It is opened by the first mount, export or
//! call that needs it, and closed some seconds after the last use. Uncommitted work stays in its journal and comes back with the next
//! use. One thing at a time happens to a view as a whole (a commit, a restore, an undo), while files in it are read and written.
//!
//! Absent: answers to the kernel, which [`amalgam_fuse`] gives. No name of a workspace becomes a path of the host: a
//! view has a number, and a book says whose it is.

mod book;
mod conflicted;
mod exported;
mod handover;
mod kernel;
mod leftovers;
pub(crate) mod live;
mod local;
mod maintenance;
mod merged;
mod mount_state;
mod mounting;
mod on_demand;
mod private;
mod quota;
mod quota_measurement;
mod replica;
mod revert;
mod shown_tree;
#[cfg(test)]
mod tests;
mod tree_changes;
mod use_count;
mod workspace_message;
mod writer_rule;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amalgam_conflicts::RenderCache;
use amalgam_engine::object::{Conflict, Owner};
use amalgam_engine::operation::operation;
use amalgam_engine::reference::RefChange;
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{OperationContext, RefName, SnapshotId, Time, TreePath};
use amalgam_fuse::Mount;
use amalgam_proto::Reason;
use amalgam_view::{RecoveryReport, StateVersion, View, ViewOptions};
use parking_lot::{ArcMutexGuard, Mutex, RawMutex, RwLock};

use crate::call_log::warn_failure;
use crate::conflicts::{CaptionSource, Conflicts};
use crate::context::{Clock, Context};
use crate::disk_quota::DiskQuota;
use crate::error::{Error, Result};
use crate::host_features::HostFeatures;
use crate::publishing::Publishing;
use crate::states::States;
use book::{Book, MountRecord};
pub(crate) use book::{ExportRecord, Mode};
pub(crate) use handover::answer as answer_handover;
pub(crate) use mounting::mode_message;
pub(crate) use on_demand::ViewUse;
use quota_measurement::QuotaMeasurement;
use replica::Replica;
pub(crate) use revert::ViewRevert;
use tree_changes::TreeChanges;
use use_count::UseCount;
pub(crate) use writer_rule::WriterRule;

/// The actor in the operation log for checkpoints of uncommitted work.
const KEEPER: &str = "amalgam";
/// The prefix of the names of live views among those of directories.
const VIEW: &str = "view-";
/// The prefix of the names of mounts that only follow.
const FOLLOWER: &str = "follower-";

/// The live views of a store's workspaces, and their mounts.
#[derive(Clone)]
pub(crate) struct Views {
    context: Arc<Context>,
    quota: DiskQuota,
    conflicts: Conflicts,
    states: States,
    publishing: Publishing,
    inner: Arc<Inner>,
}

struct Inner {
    book: Book,
    state: Mutex<State>,
    /// Mounts that a client is about to make by itself, by their tokens.
    expected: Mutex<HashMap<Vec<u8>, mount_state::Expected>>,
    /// The socket at which clients hand over FUSE devices; `None` in a process that ends with one command.
    handover_socket: Mutex<Option<PathBuf>>,
    ending: AtomicBool,
    /// Watches of live trees.
    changes: TreeChanges,
    /// The problems of mounts that an earlier process left.
    problems: Mutex<Vec<(PathBuf, String)>>,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Arc<LiveView>>,
    mounts: BTreeMap<u64, Mounted>,
    /// The trees that exports have open, by the numbers of the exports.
    exported: BTreeMap<u64, MountedTree>,
}

/// The live view of a workspace. `turn` is locked by operations on the whole view; its value tells whether the view is closed.
struct LiveView {
    view: View,
    recovered: RecoveryReport,
    turn: Arc<Mutex<bool>>,
    /// The calls that use it without a mount.
    uses: UseCount,
    /// Shared by edits of calls, exclusive while a merge replaces the tree.
    edits: RwLock<()>,
    /// The head that the view stayed behind, because it had changes of its own.
    behind: Mutex<Option<SnapshotId>>,
    /// The state in which there was no room for a checkpoint that would have made room.
    full_at: Mutex<Option<StateVersion>>,
    /// The last measurement for the quota.
    measured: Mutex<Option<QuotaMeasurement>>,
    /// The shared copy of the journal, in a store that several nodes have open.
    replica: Option<Replica>,
}

/// A mount that is there.
struct Mounted {
    mount: Mount,
    shows: MountedTree,
    record: MountRecord,
    leaving: bool,
    /// The kernel's number of the file system; `None` for a private mount, which this namespace does not have.
    device: Option<String>,
    /// Where a private mount is.
    private: Option<mount_state::PrivateMount>,
    /// Mounted again by this process, because an earlier one died; no client has asked for it since.
    is_unclaimed: bool,
}

/// The tree that a mount or an export shows.
enum MountedTree {
    /// The live view of this number.
    Live(u64),
    /// A snapshot.
    Snapshot(SnapshotId),
    /// A workspace's head; the snapshot that is shown now.
    Following(View, SnapshotId),
}

/// A live view that no other call commits or restores while this lives.
pub(crate) struct LockedView {
    id: u64,
    live: Arc<LiveView>,
    workspace: WorkspaceName,
    turn: ArcMutexGuard<RawMutex, bool>,
    clock: Clock,
}

impl Drop for LockedView {
    /// Stores the journal that the call leaves. If that fails, the next edit tries again.
    fn drop(&mut self) {
        if *self.turn {
            return;
        }
        if let Err(failure) = self.live.store(self.id, (self.clock)()) {
            warn_failure(&failure, "the journal of a live tree was not stored");
        }
    }
}

impl LiveView {
    /// Stores the journal in the shared store, if there is one. Edits made before are safe when this returns.
    fn store(&self, id: u64, now: Time) -> Result<()> {
        let act = || OperationContext::new(KEEPER, now);
        self.replica.as_ref().map_or(Ok(()), |replica| replica.store(&self.view, &checkpoint_reference(id), &act()))
    }

    /// Returns whether this node has the tree. It always has where no other node has the store open.
    fn is_held(&self) -> Result<bool> {
        self.replica.as_ref().map_or(Ok(true), Replica::is_held)
    }
}

/// The meaning of a directory's name that is no directory of the host.
pub(crate) enum Named {
    /// A live view.
    View(u64),
    /// A mount that only follows.
    Follower,
}

impl Inner {
    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Relaxed)
    }
}

/// Parses a directory's name; `None` for a directory of the host.
pub(crate) fn named(name: &str) -> Option<Named> {
    let id = amalgam_proto::directory_id(name).ok()?;
    if let Some(number) = id.strip_prefix(VIEW) {
        return number.parse().ok().map(Named::View);
    }
    id.starts_with(FOLLOWER).then_some(Named::Follower)
}

fn view_name(id: u64) -> String {
    amalgam_proto::directory_name(&format!("{VIEW}{id}"))
}

fn follower_name(mount: u64) -> String {
    amalgam_proto::directory_name(&format!("{FOLLOWER}{mount}"))
}

/// Returns the name of the reference that keeps a view's tree in the store between commits.
fn checkpoint_reference(id: u64) -> RefName {
    RefName::new(format!("view/{id}")).expect("a number is a part of a reference's name")
}

impl Views {
    /// Reads the view book of a home.
    pub(crate) fn open(
        context: &Arc<Context>,
        quota: &DiskQuota,
        conflicts: &Conflicts,
        states: &States,
        publishing: &Publishing,
    ) -> Result<Self> {
        let inner = Inner {
            book: Book::open(&context.home.mounts_path())?,
            state: Mutex::default(),
            expected: Mutex::default(),
            handover_socket: Mutex::default(),
            ending: AtomicBool::new(false),
            changes: TreeChanges::default(),
            problems: Mutex::default(),
        };
        Ok(Self {
            context: Arc::clone(context),
            quota: quota.clone(),
            conflicts: conflicts.clone(),
            states: states.clone(),
            publishing: publishing.clone(),
            inner: Arc::new(inner),
        })
    }

    /// Lets this process mount: it takes FUSE devices at `handover_socket`, and keeps running while something is mounted. Remounts the
    /// mounts that an earlier process left. Does nothing if the features of the host are disabled.
    pub(crate) fn begin_mounting(&self, handover_socket: &Path) {
        if self.context.host == HostFeatures::Disabled {
            return;
        }
        *self.inner.handover_socket.lock() = Some(handover_socket.to_owned());
        self.report_lost();
        self.remount_left();
    }

    /// Returns the number of mounted file systems.
    pub(crate) fn mounted(&self) -> usize {
        self.inner.state.lock().mounts.len()
    }

    /// Returns the number of a workspace's view, if it is open or exported, or has work that is in no snapshot.
    pub(crate) fn find_view(&self, workspace: &WorkspaceName) -> Result<Option<u64>> {
        if let Some(trees) = &self.context.live_trees {
            let Some(id) = trees.find(workspace.as_str())? else { return Ok(None) };
            self.inner.book.set_view(id, workspace.as_str())?;
            return Ok(Some(id));
        }
        let Some(id) = self.inner.book.view_of(workspace.as_str()) else { return Ok(None) };
        let is_open = self.inner.state.lock().open.contains_key(&id);
        let is_live = is_open || View::has_work(&self.view_directory(id)) || self.has_live_export(workspace);
        Ok(is_live.then_some(id))
    }

    /// Returns the number of a workspace's view, if it ever had one.
    pub(crate) fn numbered_view(&self, workspace: &WorkspaceName) -> Result<Option<u64>> {
        match &self.context.live_trees {
            Some(_) => self.find_view(workspace),
            None => Ok(self.inner.book.view_of(workspace.as_str())),
        }
    }

    /// Locks the view of a workspace, or returns `None` if it has none now.
    pub(crate) fn lock_view_of(&self, workspace: &WorkspaceName) -> Result<Option<LockedView>> {
        self.find_view(workspace)?.map(|id| self.lock_view(id)).transpose()
    }

    /// Locks a view: opens it if necessary, waits for other calls, and moves it to its workspace's head if it has no changes.
    pub(crate) fn lock_view(&self, id: u64) -> Result<LockedView> {
        loop {
            let live = self.live_view(id)?;
            let turn = Mutex::lock_arc(&live.turn);
            // The holder of the lock before may have closed it.
            if !*turn {
                let workspace = self.view_workspace(id)?;
                let locked = LockedView { id, live, workspace, turn, clock: self.context.clock };
                self.bring_in_step(&locked)?;
                return Ok(locked);
            }
        }
    }

    pub(crate) fn view_workspace(&self, id: u64) -> Result<WorkspaceName> {
        let unknown = || {
            let message = format!("there is no {}; `amalgam mounts` lists what is mounted", view_name(id));
            Error::new(Reason::NoDirectory, message)
        };
        let name = self.inner.book.workspace_of(id).ok_or_else(unknown)?;
        Ok(WorkspaceName::new(name)?)
    }

    fn view_directory(&self, id: u64) -> PathBuf {
        self.context.home.views_path().join(id.to_string())
    }

    /// Returns the view with this number. Opens it if necessary, which replays its journal.
    fn live_view(&self, id: u64) -> Result<Arc<LiveView>> {
        let workspace = self.view_workspace(id)?;
        let replica = match &self.context.live_trees {
            Some(trees) => {
                let open = self.inner.state.lock().open.get(&id).cloned();
                if let Some(live) = open {
                    if live.is_held()? {
                        return Ok(live);
                    }
                    self.abandon_view(id, &live);
                }
                self.refuse_while_ending()?;
                Some(Replica::take(trees, workspace.as_str(), &self.context.home.views_path())?)
            }
            None => None,
        };
        let mut state = self.inner.state.lock();
        if let Some(live) = state.open.get(&id) {
            return Ok(Arc::clone(live));
        }
        self.refuse_while_ending()?;
        let tree = self.context.workspaces.open(&workspace)?;
        let mut options = self.view_options(&workspace)?;
        options.journaled_commit = self.context.workspaces.get(&workspace)?.journaled;
        let changes = self.inner.changes.clone();
        options.on_change = Some(Arc::new(move || changes.notify(id)));
        let directory = replica.as_ref().map_or_else(|| self.view_directory(id), |taken| taken.directory().to_owned());
        let (view, recovered) = View::open(tree, &directory, options)?;
        tracing::info!(%workspace, edits = recovered.edits, "view opened");
        let live = Arc::new(LiveView {
            view,
            recovered,
            turn: Arc::default(),
            uses: UseCount::new(),
            edits: RwLock::default(),
            behind: Mutex::default(),
            full_at: Mutex::default(),
            measured: Mutex::default(),
            replica,
        });
        state.open.insert(id, Arc::clone(&live));
        Ok(live)
    }

    fn refuse_while_ending(&self) -> Result<()> {
        match self.inner.is_ending() {
            true => Err(Error::new(Reason::Busy, "the background process is ending; try again")),
            false => Ok(()),
        }
    }

    /// Drops a view whose tree another node has taken. The other node has its edits already.
    fn abandon_view(&self, id: u64, live: &Arc<LiveView>) {
        let mut state = self.inner.state.lock();
        if state.open.get(&id).is_some_and(|open| Arc::ptr_eq(open, live)) {
            tracing::info!(view = id, "another node has taken a live tree");
            state.open.remove(&id);
        }
    }

    /// Drops an open view if another node has taken its tree. Returns whether it did.
    fn abandon_if_taken(&self, id: u64) -> Result<bool> {
        let open = self.inner.state.lock().open.get(&id).cloned();
        let Some(live) = open else { return Ok(false) };
        let is_taken = !live.is_held()?;
        if is_taken {
            self.abandon_view(id, &live);
        }
        Ok(is_taken)
    }

    fn view_options(&self, workspace: &WorkspaceName) -> Result<ViewOptions> {
        let settings = self.context.settings()?;
        let owner = Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() };
        let mut options = ViewOptions::new(owner, self.context.clock);
        options.quota_bytes = settings.quotas_bytes.get(workspace.as_str()).copied().or(settings.quota_bytes);
        let quota = self.quota.clone();
        options.disk = Some(Arc::new(move || quota.room()));
        let (stage, conflicts) = (RenderCache::default(), self.conflicts.clone());
        let source = CaptionSource::Workspace(workspace.clone());
        options.show_conflict = Some(Arc::new(move |store, path, conflict| {
            let captioner = conflicts.captioner(source.clone());
            let captions = |path: &TreePath, conflict: &Conflict| captioner.caption(path, conflict);
            stage.render(store, path, conflict, &captions)
        }));
        options.guard = Arc::new(self.context.permissions.workspace_guard(workspace)?);
        Ok(options)
    }

    /// Applies the policy as it is now to all views that are open. When this returns, their mounts
    /// show the permitted paths.
    pub(crate) fn apply_policy(&self) -> Result<()> {
        let exports = self.inner.book.read().exports;
        let (open, following) = {
            let state = self.inner.state.lock();
            let open: Vec<_> = state.open.iter().map(|(id, live)| (*id, Arc::clone(live))).collect();
            let mounts = state.mounts.values().filter_map(|mounted| match &mounted.shows {
                MountedTree::Following(view, _) => Some((view.clone(), mounted.record.workspace.clone())),
                _ => None,
            });
            let exported = state.exported.iter().filter_map(|(number, shows)| match shows {
                MountedTree::Following(view, _) => Some((view.clone(), exports.get(number)?.workspace.clone())),
                _ => None,
            });
            (open, mounts.chain(exported).collect::<Vec<_>>())
        };
        let apply = |view: &View, workspace: &WorkspaceName| -> Result<()> {
            let guard = self.context.permissions.workspace_guard(workspace)?;
            Ok(view.set_guard(Arc::new(guard))?)
        };
        let to_open = open.into_iter().map(|(id, live)| apply(&live.view, &self.view_workspace(id)?));
        let to_following = following.into_iter().map(|(view, name)| apply(&view, &WorkspaceName::new(name)?));
        // A view that fails does not keep the others from getting the policy.
        let applied = to_open.chain(to_following).fold(Ok(()), Result::and);
        self.wait_for_kernels(|_| true);
        applied
    }

    /// Moves the view, the exports and the mounts of a workspace to its new name.
    pub(crate) fn rename_views(&self, from: &WorkspaceName, to: &WorkspaceName) -> Result<()> {
        if let Some(trees) = &self.context.live_trees {
            trees.rename(from.as_str(), to.as_str())?;
        }
        self.inner.book.change(|pages| {
            for workspace in pages.views.values_mut().filter(|workspace| *workspace == from.as_str()) {
                *workspace = to.to_string();
            }
            for export in pages.exports.values_mut().filter(|export| export.workspace == from.as_str()) {
                export.workspace = to.to_string();
            }
            for mount in pages.mounts.values_mut().filter(|mount| mount.workspace == from.as_str()) {
                mount.workspace = to.to_string();
            }
        })?;
        for mounted in self.inner.state.lock().mounts.values_mut() {
            if mounted.record.workspace == from.as_str() {
                mounted.record.workspace = to.to_string();
            }
        }
        Ok(())
    }

    /// Refuses what cannot be done to a workspace that is mounted, or whose mount left work behind.
    pub(crate) fn refuse_live(&self, workspace: &WorkspaceName, what: &str) -> Result<()> {
        self.refuse_exported(workspace, what)?;
        let Some(id) = self.find_view(workspace)? else { return Ok(()) };
        self.await_ended_mounts(id)?;
        self.refuse_shown(id, workspace, what)?;
        let locked = self.lock_view(id)?;
        // A mount call holds the lock until the view is mounted.
        self.refuse_shown(id, workspace, what)?;
        if !self.is_uncommitted(&locked)? {
            drop(locked);
            return self.close_view_if_unused(id, Duration::ZERO);
        }
        let message = format!(
            "workspace {workspace} has changes from a mount that are in no snapshot, so {what}; `amalgam mount {workspace} DIR` shows \
             them, and `amalgam commit` there keeps them"
        );
        Err(Error::new(Reason::Mounted, message))
    }

    /// Readies a workspace to be removed with changes that are in no snapshot. Refuses one that is mounted, exported or used by calls.
    pub(crate) fn discard_live(&self, workspace: &WorkspaceName, what: &str) -> Result<()> {
        self.refuse_exported(workspace, what)?;
        let Some(id) = self.find_view(workspace)? else { return Ok(()) };
        self.await_ended_mounts(id)?;
        self.refuse_shown(id, workspace, what)?;
        let locked = self.lock_view(id)?;
        self.refuse_shown(id, workspace, what)?;
        drop(locked);
        self.close_view_if_unused(id, Duration::ZERO)
    }

    fn refuse_shown(&self, id: u64, workspace: &WorkspaceName, what: &str) -> Result<()> {
        let mounted = self.inner.state.lock().mounts.values().find_map(|mounted| match mounted.shows {
            MountedTree::Live(other) if other == id => Some((mounted.record.path.clone(), mounted.private.clone())),
            _ => None,
        });
        let message = match mounted {
            Some((_, Some(private))) => {
                format!("{} in workspace {workspace}, so {what}; wait until that has ended", private.words())
            }
            Some((path, None)) => {
                let path = path.display();
                format!(
                    "workspace {workspace} is mounted at {path}, so {what}; `amalgam umount {path}` first, or `amalgam fork` it"
                )
            }
            None if self.is_expected(id) => {
                format!("workspace {workspace} is being mounted, so {what}; try again in a minute")
            }
            None if self.inner.state.lock().open.get(&id).is_some_and(|live| live.uses.is_used()) => {
                let message = format!("file calls are under way in workspace {workspace}, so {what}; try again");
                return Err(Error::new(Reason::Busy, message));
            }
            None => return Ok(()),
        };
        Err(Error::new(Reason::Mounted, message))
    }

    /// Refuses to undo or redo an operation if that removes a workspace that is mounted.
    pub(crate) fn refuse_to_take_away(&self, sequence: u64, goes: impl Fn(&RefChange) -> bool) -> Result<()> {
        // The undo itself refuses an operation that cannot be read.
        let Ok(found) = operation(&self.context.store, sequence) else { return Ok(()) };
        for name in self.inner.book.read().views.values() {
            let workspace = WorkspaceName::new(name.as_str())?;
            let reference = workspace.reference();
            if found.changes.iter().any(|change| change.name == reference && goes(change)) {
                self.refuse_live(&workspace, "it cannot be taken away")?;
            }
        }
        Ok(())
    }

    /// Removes the view of an earlier workspace with this name, so that the name can be given again. Refuses if the view is in
    /// use or has work that is in no snapshot.
    pub(crate) fn forget_ended_view(&self, name: &WorkspaceName) -> Result<()> {
        let Some(id) = self.numbered_view(name)? else { return Ok(()) };
        let what = "its name cannot be given to another one";
        self.refuse_exported(name, what)?;
        self.await_ended_mounts(id)?;
        self.refuse_shown(id, name, what)?;
        let is_open = self.inner.state.lock().open.contains_key(&id);
        let has_work = match is_open {
            true => self.is_uncommitted(&self.lock_view(id)?)?,
            false if self.context.live_trees.is_some() => true,
            false => View::has_work(&self.view_directory(id)),
        };
        if has_work {
            let message = format!(
                "workspace {name} was taken away while it had changes from a mount that are in no snapshot, so {what}; `amalgam redo` or \
                 `amalgam ws undelete {name}` brings it back"
            );
            return Err(Error::new(Reason::Mounted, message));
        }
        self.forget_view(name)
    }

    /// Refuses what cannot be done while anything is mounted.
    pub(crate) fn refuse_mounted(&self, why: &str) -> Result<()> {
        self.refuse_open_exports(why)?;
        match self.mounted() {
            0 => Ok(()),
            number => {
                let what = if number == 1 { "1 file system is" } else { &format!("{number} file systems are") };
                let message = format!("{what} mounted, and {why}; `amalgam mounts` lists them");
                Err(Error::new(Reason::Mounted, message))
            }
        }
    }

    /// Closes a view that no mount and no export shows, and that no call has used for `unused_for`. Uncommitted work is kept for
    /// the next one.
    fn close_view_if_unused(&self, id: u64, unused_for: Duration) -> Result<()> {
        let open = self.inner.state.lock().open.get(&id).cloned();
        let is_unused = open.is_some_and(|live| live.uses.unused_for().is_some_and(|unused| unused >= unused_for));
        if !is_unused || self.is_shown(id) || self.abandon_if_taken(id)? {
            return Ok(());
        }
        let locked = self.lock_view(id)?;
        if self.is_shown(id) || !locked.live.uses.begin_closing(unused_for) {
            return Ok(());
        }
        let live = Arc::clone(&locked.live);
        self.close_view(locked).inspect_err(|_| live.uses.cancel_closing())
    }

    /// Closes a view. Uncommitted work goes into the store first, so that the next one is opened quickly; where there is no space
    /// for that, it stays in the journal.
    fn close_view(&self, mut locked: LockedView) -> Result<()> {
        if self.is_uncommitted(&locked)? {
            match self.checkpoint(&locked) {
                Err(failure) if failure.reason() == Reason::Full => {}
                done => done?,
            }
        }
        locked.live.view.close()?;
        *locked.turn = true;
        if let Some(replica) = &locked.live.replica {
            replica.close()?;
        }
        tracing::info!(workspace = %locked.workspace, "view closed");
        self.inner.state.lock().open.remove(&locked.id);
        Ok(())
    }

    /// Returns whether a mount or an export shows a view, or a client is about to mount it.
    fn is_shown(&self, id: u64) -> bool {
        self.is_mounted(id) || self.is_exported(id)
    }

    /// Returns whether a mount shows a view, or a client is about to mount it.
    fn is_mounted(&self, id: u64) -> bool {
        let is_of_it = |shows: &MountedTree| matches!(shows, MountedTree::Live(other) if *other == id);
        self.inner.state.lock().mounts.values().any(|mounted| is_of_it(&mounted.shows)) || self.is_expected(id)
    }

    /// Removes the view of a workspace that is removed, with its changes that are in no snapshot.
    pub(crate) fn forget_view(&self, workspace: &WorkspaceName) -> Result<()> {
        let what = "what it has cannot be put away";
        let id = self.inner.book.view_of(workspace.as_str());
        if let Some(id) = id {
            self.refuse_shown(id, workspace, what)?;
        }
        if let Some(trees) = &self.context.live_trees {
            trees.forget(workspace.as_str())?;
        }
        let Some(id) = id else { return Ok(()) };
        self.close_view_if_unused(id, Duration::ZERO)?;
        // A call may have begun meanwhile.
        self.refuse_shown(id, workspace, what)?;
        self.inner.book.change(|pages| drop(pages.views.remove(&id)))?;
        self.drop_checkpoint(id)?;
        // Leftovers do no harm: the next view has another number.
        let _ = amalgam_materializer::remove_tree(&self.view_directory(id));
        self.remove_local(id)
    }
}
