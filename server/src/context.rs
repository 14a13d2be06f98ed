//! The context that all parts of a service share: the store with its handles, the home, the clock, the registry and the settings.
//!
//! It holds no state of a feature. A part (an owner) keeps its own state and takes the context by `Arc`.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use amalgam_engine::backend::LiveTrees;
use amalgam_engine::conflict::CONFLICTS_KEY;
use amalgam_engine::episode::Episodes;
use amalgam_engine::history::History;
use amalgam_engine::lean::{Lean, hold_tree, lean_tree};
use amalgam_engine::merge::MERGE_RECORD_KEY;
use amalgam_engine::object::Snapshot;
use amalgam_engine::queue::Queue;
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{LabelName, Labels, WorkspaceName, Workspaces};
use amalgam_engine::{Error as EngineError, operation};
use amalgam_engine::{Now, OperationContext, Pin, RequestId, Revision, RootId, SnapshotId, Store, Time, TreePath};
use amalgam_materializer::{FilePool, Identity};
use amalgam_proto::{Identified, Reason, operation_name, v1, workspace_id};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::error::{Error, Result};
use crate::feed::OperationFeed;
use crate::follow_book::FollowBook;
use crate::home::{Home, identity_of};
use crate::host_features::HostFeatures;
use crate::notices::Listeners;
use crate::permissions::Permissions;
use crate::registry::Registry;
use crate::request_results::RequestResults;
use crate::running_requests::RunningRequests;
use crate::settings::{CommandSettings, Settings, SettingsSource};

/// Returns the present time.
pub type Clock = fn() -> Time;

/// The clocks of a service.
#[derive(Clone, Copy)]
pub struct Clocks {
    /// The present time.
    pub wall: Clock,
    /// The time since the machine was started, sleep included. It never jumps.
    pub uptime: fn() -> Duration,
}

impl From<Clock> for Clocks {
    /// Combines a wall clock with the monotonic clock of the standard library.
    fn from(wall: Clock) -> Self {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        Self { wall, uptime: || BEGUN.get_or_init(Instant::now).elapsed() }
    }
}

/// The most names that a listing reads at once.
pub(crate) const PAGE: usize = 256;
/// The notice for a directory whose contents a lean tree leaves out.
const CACHE_NOT_KEPT: &str = "a cache (CACHEDIR.TAG), which only the newest automatic snapshot keeps";
/// The word for the head of a workspace without a snapshot.
const NO_HEAD: &str = "none";
/// The longest wait for exclusive use of the store.
const EXCLUSIVE_WAIT_MAX: Duration = Duration::from_secs(10);

/// The head that a caller expects a workspace to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedHead {
    /// Any head.
    Any,
    /// This snapshot; `None` for a workspace without a snapshot.
    At(Option<SnapshotId>),
}

impl ExpectedHead {
    /// Parses the field of a request: the name of a snapshot, `none`, or nothing for any head.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "" => Self::Any,
            NO_HEAD => Self::At(None),
            name => Self::At(Some(amalgam_proto::snapshot_id(name)?)),
        })
    }
}

/// The store of a service, with the values that every part of the service needs.
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) home: Home,
    /// The directory that the store was opened in; `None` for a store elsewhere.
    store_directory: Option<Identity>,
    pub(crate) clock: Clock,
    pub(crate) workspaces: Workspaces,
    pub(crate) labels: Labels,
    pub(crate) history: History,
    pub(crate) episodes: Episodes,
    pub(crate) queue: Queue,
    pub(crate) permissions: Permissions,
    pub(crate) following: FollowBook,
    pub(crate) overlap_listeners: Listeners,
    pub(crate) registry: Registry,
    pub(crate) settings: SettingsSource,
    /// Directories that are never captured: the home of the store, and the directory of its socket.
    pub(crate) ours: Vec<Identity>,
    pub(crate) operations: Arc<OperationFeed>,
    /// Whether directories, mounts, exports and commands are available.
    pub(crate) host: HostFeatures,
    /// The live trees of a store that several nodes have open; `None` for a store of this process alone.
    pub(crate) live_trees: Option<Arc<dyn LiveTrees>>,
    pub(crate) requests: RunningRequests,
    pub(crate) results: RequestResults,
    pub(crate) started: Time,
    /// Returns the seconds by which local time is ahead of UTC at a time.
    pub(crate) utc_offset: OnceLock<fn(Time) -> i64>,
    /// Locked shared by calls that use the store, and exclusively by calls that need it alone.
    gate: RwLock<()>,
}

impl Context {
    /// Returns whether other nodes have the store open, too. Its calls then wait for the network, so they need a blocking thread.
    pub(crate) fn is_shared(&self) -> bool {
        self.live_trees.is_some()
    }

    /// Returns whether this node was expelled from a store that other nodes have open: every write fails until the store is opened
    /// again.
    pub(crate) fn is_expelled(&self) -> bool {
        self.live_trees.as_ref().is_some_and(|trees| trees.is_expelled())
    }

    /// Returns whether the directory of the store was removed or replaced since it was opened: the process works on deleted files.
    pub(crate) fn is_store_removed(&self) -> bool {
        let Some(opened) = &self.store_directory else { return false };
        let path = self.home.store_path();
        match identity_of(&path) {
            Ok(found) => found != *opened,
            Err(_) => matches!(path.try_exists(), Ok(false)),
        }
    }

    /// Collects the handles of an open store.
    pub(crate) fn new(
        store: Store,
        home: &Home,
        clock: Clock,
        ours: Vec<Identity>,
        registry: Registry,
        following: FollowBook,
        settings: SettingsSource,
    ) -> Self {
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        Self {
            queue: Queue::of(&workspaces, &history),
            permissions: Permissions::new(&store, &workspaces),
            workspaces,
            labels: Labels::of(&store),
            episodes: Episodes::of(&store),
            history,
            home: home.clone(),
            store_directory: identity_of(&home.store_path()).ok(),
            clock,
            registry,
            following,
            overlap_listeners: Listeners::default(),
            settings,
            ours,
            operations: Arc::default(),
            host: HostFeatures::Enabled,
            live_trees: None,
            requests: RunningRequests::default(),
            results: RequestResults::default(),
            started: clock(),
            utc_offset: OnceLock::new(),
            gate: RwLock::new(()),
            store,
        }
    }

    /// Marks the store as in use until the guard is dropped. A thread takes it at most once.
    pub(crate) fn using(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read()
    }

    /// Marks the store as in use like [`Context::using`]. Returns `None` if a call has it exclusively or waits for that.
    pub(crate) fn try_using(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.gate.try_read()
    }

    /// Waits until no call uses the store, and keeps others out until the guard is dropped. Returns an error after
    /// [`EXCLUSIVE_WAIT_MAX`].
    pub(crate) fn exclusive(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        self.gate.try_write_for(EXCLUSIVE_WAIT_MAX).ok_or_else(|| {
            let message =
                "the store is in use by other calls, and this needs it exclusively; try again when they are done";
            Error::new(Reason::Busy, message)
        })
    }

    pub(crate) fn now(&self) -> Time {
        (self.clock)()
    }

    /// Returns the context of an operation without a request id, with the current time.
    pub(crate) fn act(&self, actor: &str) -> OperationContext {
        OperationContext::new(actor, self.now())
    }

    /// Returns the context of the operation of a request. With a request id, a retry does not repeat the operation: the id counts
    /// for this caller and this method, and a reuse with other arguments is refused.
    pub(crate) fn act_for<R: Identified>(&self, actor: &str, request: &R) -> Result<OperationContext> {
        let id = request.request_id();
        if id.is_empty() {
            return Ok(self.act(actor));
        }
        crate::call_log::record_request_id(id);
        let wrong = |why| Error::new(Reason::Invalid, format!("request_id: {why}"));
        let older = self.store.find_request(&RequestId::new(id).map_err(wrong)?)?;
        // An older version wrote it without the method and the arguments, so a retry cannot be distinguished from another request.
        if let Some(older) = older.filter(|older| older.draft.actor == actor) {
            let (sequence, action) = (older.sequence, &older.draft.action);
            let message = format!(
                "request id {id:?} belongs to operation {sequence} ({action}) of an older version, which did not record its arguments; if \
                 that is not what you want, use a new id"
            );
            return Err(Error::new(Reason::RequestReused, message).with("operation", operation_name(sequence)));
        }
        let scoped = RequestId::scoped(actor, R::METHOD, id, &request.arguments()).map_err(wrong)?;
        let act = self.act(actor).as_request(scoped);
        // An id that was reused for another request is refused before any work.
        self.done_before(&act)?;
        Ok(act)
    }

    /// Carries out a request that records no operation, once: a retry with the same id returns the first result.
    pub(crate) fn once<R: Identified, T: prost::Message + Default>(
        &self,
        actor: &str,
        request: &R,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.results.once(actor, R::METHOD, request.request_id(), || request.arguments(), work)
    }

    /// Pins a tree while the pin exists; `None` if there is none, or if it is gone. A tree that was only looked up could be
    /// deleted by a running collection before it is read.
    pub(crate) fn held(&self, root: Option<RootId>) -> Option<(RootId, Pin)> {
        root.and_then(|root| Some((root, self.store.hold(root).ok()?)))
    }

    /// Returns the operation that carried out the same request before, if one did.
    pub(crate) fn done_before(&self, act: &OperationContext) -> Result<Option<Operation>> {
        let found = act.request.as_ref().map(|request| self.store.find_request(request)).transpose();
        Ok(found.map(Option::flatten)?)
    }

    /// Returns the operation of an earlier request with this id, for any arguments; `None` if there is none or the log was trimmed.
    pub(crate) fn find_done(&self, caller: &str, method: &str, id: &str) -> Result<Option<Operation>> {
        let wrong = |why| Error::new(Reason::Invalid, format!("request_id: {why}"));
        let scoped = RequestId::scoped(caller, method, id, &[]).map_err(wrong)?;
        match self.store.find_request(&scoped) {
            // The lookup has no arguments, but the request had some.
            Err(EngineError::RequestReused { operation }) => match operation::operation(&self.store, operation) {
                Err(EngineError::Trimmed { .. }) => Ok(None),
                found => Ok(Some(found?)),
            },
            found => Ok(found?),
        }
    }

    /// Returns the workspace that a request names; `None` for an empty name.
    pub(crate) fn here(&self, name: &str) -> Result<Option<WorkspaceName>> {
        if name.is_empty() { Ok(None) } else { Ok(Some(crate::call_log::workspace_id(name)?)) }
    }

    /// Returns the snapshot that a revision names. An empty revision is `@`.
    pub(crate) fn resolve(&self, revision: &str, here: Option<&WorkspaceName>) -> Result<SnapshotId> {
        let revision = Revision::parse(if revision.is_empty() { "@" } else { revision })?;
        let now = match self.utc_offset.get() {
            Some(utc_offset) => Now { time: self.now(), utc_offset: *utc_offset },
            None => Now::utc(self.now()),
        };
        Ok(revision.resolve(&self.store, here, &now)?)
    }

    /// Holds the tree of a revision.
    pub(crate) fn hold_revision(&self, revision: &str, here: Option<&WorkspaceName>) -> Result<HeldTree> {
        let snapshot = self.resolve(revision, here)?;
        // A missing snapshot is reported before a dropped tree.
        self.store.snapshot(snapshot)?;
        let gone = |_| {
            let message =
                format!("the tree of snapshot {} was dropped by retention; only its record is left", snapshot.short());
            Error::new(Reason::NotFound, message)
        };
        let held = hold_tree(&self.store, snapshot).map_err(gone)?;
        let pin = self.store.pin(held.root);
        Ok(HeldTree { root: Some(held.root), snapshot: Some(snapshot), lean: held.lean, _pin: Some(pin) })
    }

    /// Returns a tree without the paths that are hidden from the agent of the call and from that of the workspace.
    pub(crate) fn without_hidden(&self, held: HeldTree, here: Option<&WorkspaceName>) -> Result<HeldTree> {
        let guard = self.permissions.reading(here)?;
        let Some(root) = held.root.filter(|_| guard.hides()) else { return Ok(held) };
        let seen = self.permissions.visible_tree(root, &guard)?;
        // The caches that retention dropped are not secret, but their paths may be.
        Ok(HeldTree { root: Some(seen.root), snapshot: held.snapshot, lean: None, _pin: seen.pin.or(held._pin) })
    }

    /// Returns a snapshot, for the wire. `shown` decides whether it has the labels and workspaces that point at it.
    pub(crate) fn snapshot_message(&self, id: SnapshotId, shown: &ShownNames) -> Result<v1::Snapshot> {
        let snapshot = self.store.snapshot(id)?;
        let labels = &self.labels;
        let names = if shown.are_shown { self.names_of(id)? } else { Names::default() };
        let is_thinned = self.history.is_thinned(id)?;
        let lean = if is_thinned { lean_tree(&self.store, id)? } else { None };
        Ok(v1::Snapshot {
            name: amalgam_proto::snapshot_name(id),
            parents: snapshot.parents.iter().copied().map(amalgam_proto::snapshot_name).collect(),
            author: snapshot.author.clone(),
            time: Some(amalgam_proto::timestamp(snapshot.time)),
            message: snapshot.message.clone(),
            metadata: self.visible_metadata(&snapshot)?,
            labels: names.labels,
            workspaces: names.workspaces,
            thinned: is_thinned && lean.is_none(),
            without_caches: is_thinned && lean.is_some(),
            tree: snapshot.root.to_string(),
            note: labels.note(id)?.unwrap_or_default(),
            reward: labels.reward(id)?,
            conflicts: counted(&snapshot),
        })
    }

    /// Refuses a path that is hidden from the agent of the call, as one that does not exist.
    pub(crate) fn ensure_visible(&self, path: &TreePath, here: Option<&WorkspaceName>) -> Result<()> {
        match self.permissions.reading(here)?.is_visible(path.as_bytes(), false) {
            true => Ok(()),
            false => Err(amalgam_engine::Error::NotFound { path: path.clone() }.into()),
        }
    }

    /// Returns the metadata of a snapshot. Leaves out the record of a merge, which names paths, if paths are hidden from the
    /// caller.
    fn visible_metadata(&self, snapshot: &Snapshot) -> Result<HashMap<String, String>> {
        let mut metadata: HashMap<_, _> = snapshot.metadata.clone().into_iter().collect();
        if metadata.contains_key(MERGE_RECORD_KEY) && self.permissions.reading(None)?.hides() {
            metadata.remove(MERGE_RECORD_KEY);
        }
        Ok(metadata)
    }

    /// Returns a snapshot with the labels and workspaces that point at it now.
    pub(crate) fn one_snapshot(&self, id: SnapshotId) -> Result<v1::Snapshot> {
        self.snapshot_message(id, &self.shown_names())
    }

    /// Returns the option that shows the labels and workspaces that point at a snapshot.
    pub(crate) fn shown_names(&self) -> ShownNames {
        ShownNames { are_shown: true }
    }

    /// Returns the labels and workspaces that point at a snapshot now.
    fn names_of(&self, id: SnapshotId) -> Result<Names> {
        let mut names = Names::default();
        for name in self.store.names_of(id)? {
            match name.as_str().split_once('/') {
                Some(("label", label)) => names.labels.push(label.to_owned()),
                Some(("workspace", workspace)) => names.workspaces.push(workspace.to_owned()),
                _ => {}
            }
        }
        Ok(names)
    }

    /// Returns the heads of all workspaces and the snapshots of all labels, without duplicates.
    pub(crate) fn named_snapshots(&self) -> Result<Vec<SnapshotId>> {
        let (mut found, mut after) = (Vec::new(), None);
        self.each_workspace("", |workspace| {
            found.extend(workspace.head);
            Ok(())
        })?;
        loop {
            let page = self.labels.list("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            found.extend(page.into_iter().map(|(_, snapshot)| snapshot));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Calls `visit` with every workspace whose name starts with a prefix, by name.
    pub(crate) fn each_workspace(
        &self,
        prefix: &str,
        mut visit: impl FnMut(&amalgam_engine::Workspace) -> Result<()>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.workspaces.list(prefix, after.as_ref(), PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            page.iter().try_for_each(&mut visit)?;
        }
    }

    /// Returns the root of a snapshot; `None` without one.
    pub(crate) fn head_root(&self, head: Option<SnapshotId>) -> Result<Option<RootId>> {
        Ok(head.map(|head| self.store.snapshot(head).map(|snapshot| snapshot.root)).transpose()?)
    }

    pub(crate) fn head(&self, workspace: &WorkspaceName) -> Result<Option<SnapshotId>> {
        Ok(self.workspaces.get(workspace)?.head)
    }

    /// Returns the head of a workspace, if it is the expected one.
    pub(crate) fn expect_head(&self, workspace: &WorkspaceName, expected: ExpectedHead) -> Result<Option<SnapshotId>> {
        let head = self.head(workspace)?;
        match expected {
            ExpectedHead::At(wanted) if wanted != head => Err(other_head(workspace, head)),
            _ => Ok(head),
        }
    }

    /// Returns the expectation of a commit after edits of files may have been committed before it: the snapshot of these edits, if it
    /// was made on the head that the caller expects.
    pub(crate) fn expect_after(
        &self,
        workspace: &WorkspaceName,
        expected: ExpectedHead,
        safety: Option<SnapshotId>,
    ) -> Result<ExpectedHead> {
        let (ExpectedHead::At(wanted), Some(safety)) = (expected, safety) else { return Ok(expected) };
        let parent = self.store.snapshot(safety)?.parents.first().copied();
        if wanted == Some(safety) || wanted == parent {
            return Ok(ExpectedHead::At(Some(safety)));
        }
        Err(other_head(workspace, Some(safety)))
    }

    pub(crate) fn settings(&self) -> Result<Settings> {
        (self.settings)()
    }

    /// Returns how commands are started. Refuses them if the features of the host are disabled.
    pub(crate) fn command_settings(&self) -> Result<CommandSettings> {
        self.host.check("commands")?;
        Ok(self.settings()?.commands)
    }

    /// Returns the workspace to merge into: the requested one, or else the target of `source`. Refuses a workspace without a
    /// target.
    pub(crate) fn target_of(&self, source: &WorkspaceName, asked: &str) -> Result<WorkspaceName> {
        if !asked.is_empty() {
            return Ok(workspace_id(asked)?);
        }
        self.workspaces.get(source)?.target.ok_or_else(|| {
            let message = format!("{source} has no target to merge into; name one with --into");
            Error::new(Reason::Invalid, message)
        })
    }

    pub(crate) fn known_root(&self, known: Option<SnapshotId>) -> Result<Option<RootId>> {
        match self.head_root(known) {
            // The snapshot that the directory was in step with is gone; then the head decides.
            Err(failure) if failure.reason() == Reason::Corrupt => Ok(None),
            other => other,
        }
    }

    /// Returns the number of conflicts that the metadata of a snapshot records; 0 without one, or if it cannot be read.
    pub(crate) fn recorded_conflicts(&self, snapshot: SnapshotId) -> u64 {
        self.store.snapshot(snapshot).map_or(0, |snapshot| counted(&snapshot))
    }

    /// Sets a label on a snapshot, or removes it. With a workspace, an undo in that workspace reverts it.
    pub(crate) fn set_label(
        &self,
        here: Option<&WorkspaceName>,
        label: &LabelName,
        snapshot: Option<SnapshotId>,
        act: &OperationContext,
    ) -> Result<()> {
        let labels = &self.labels;
        let done = match here {
            Some(workspace) => labels.set_in(workspace, label, snapshot, act),
            None => labels.set(label, snapshot, act),
        };
        Ok(done.map(drop)?)
    }

    /// Opens the pool of files that read-only directories share.
    pub(crate) fn pool(&self) -> Result<FilePool> {
        FilePool::open(&self.home.pool_path()).map_err(Error::io("open the files that directories share"))
    }
}

/// The tree of a state, kept in the store while this value exists.
pub(crate) struct HeldTree {
    pub(crate) root: Option<RootId>,
    pub(crate) snapshot: Option<SnapshotId>,
    /// The paths that retention dropped, if the tree is lean.
    pub(crate) lean: Option<Lean>,
    pub(crate) _pin: Option<Pin>,
}

impl HeldTree {
    /// Returns notices for all caches that retention dropped.
    pub(crate) fn notices(&self) -> Vec<v1::Notice> {
        let Some(lean) = &self.lean else { return Vec::new() };
        let more = (lean.left_out_more > 0).then(|| format!("{CACHE_NOT_KEPT}; so are {} more", lean.left_out_more));
        let notice = |path: &TreePath| v1::Notice {
            path: bytes::Bytes::copy_from_slice(path.as_bytes()),
            kind: v1::NoticeKind::CacheNotKept.into(),
            message: CACHE_NOT_KEPT.to_owned(),
            failure: true,
        };
        let mut notices: Vec<_> = lean.left_out.iter().map(notice).collect();
        if let (Some(more), Some(last)) = (more, notices.last_mut()) {
            last.message = more;
        }
        notices
    }

    /// Returns the error for a path that the tree does not have. It says so if retention dropped the path with a cache.
    pub(crate) fn not_found(&self, path: &TreePath) -> Error {
        let is_in = |cache: &&TreePath| path.below(cache).is_some();
        match self.lean.iter().flat_map(|lean| &lean.left_out).find(is_in) {
            Some(cache) => {
                let message = format!("{path} is gone: {cache} was {CACHE_NOT_KEPT}");
                Error::new(Reason::NotFound, message)
            }
            None => amalgam_engine::Error::NotFound { path: path.clone() }.into(),
        }
    }
}

/// Whether snapshots are shown with the labels and workspaces that point at them.
#[derive(Clone, Copy, Default)]
pub(crate) struct ShownNames {
    are_shown: bool,
}

/// The labels and workspaces that point at a snapshot.
#[derive(Default)]
struct Names {
    labels: Vec<String>,
    workspaces: Vec<String>,
}

/// Returns the error for a workspace whose head is not the expected one.
fn other_head(workspace: &WorkspaceName, head: Option<SnapshotId>) -> Error {
    let now = head.map_or_else(|| NO_HEAD.to_owned(), amalgam_proto::snapshot_name);
    let message = format!("the head of workspace {workspace} is {now}; look at what it has, then decide");
    Error::new(Reason::StaleHead, message).with("head", now)
}

/// Returns the number of conflicts that a snapshot's metadata records; 0 without one.
fn counted(snapshot: &Snapshot) -> u64 {
    snapshot.metadata.get(CONFLICTS_KEY).and_then(|count| count.parse().ok()).unwrap_or(0)
}
