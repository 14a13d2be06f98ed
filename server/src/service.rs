//! The service itself: one store, its workspaces and the directories that belong to them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use amalgam_engine::history::History;
use amalgam_engine::lean::{Lean, hold_tree, lean_tree};
use amalgam_engine::queue::Queue;
use amalgam_engine::reference::Operation;
use amalgam_engine::workspace::{Labels, WorkspaceName, Workspaces};
use amalgam_engine::{Act, Now, Pin, RequestId, Revision, RootId, SnapshotId, Store, Time, TreePath};
use amalgam_materializer::Identity;
use amalgam_proto::{Failure, Identified, Reason, operation_name, v1};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::call_log::warn_problem;
use crate::collection::Collections;
use crate::conflicts::Faces;
use crate::directory::{Live, Watches};
use crate::failure::{Result, of_engine};
use crate::feed::OperationFeed;
use crate::home::Home;
use crate::merging::{Approvals, Merging, Publishing};
use crate::registry::Registry;
use crate::settings::{Settings, SettingsSource};
use crate::views::Views;

/// What time it is.
pub type Clock = fn() -> Time;

/// The clocks of a service.
#[derive(Clone, Copy)]
pub struct Clocks {
    /// What time it is.
    pub wall: Clock,
    /// For how long the machine runs, sleep included. It never jumps.
    pub uptime: fn() -> Duration,
}

impl From<Clock> for Clocks {
    /// With the monotonic clock of the standard library.
    fn from(wall: Clock) -> Self {
        static BEGUN: OnceLock<Instant> = OnceLock::new();
        Self { wall, uptime: || BEGUN.get_or_init(Instant::now).elapsed() }
    }
}

/// Names that a listing reads at once.
pub(crate) const PAGE: usize = 256;
/// What is said of a directory that a lean tree has without what was in it.
const CACHE_NOT_KEPT: &str = "a cache (CACHEDIR.TAG), which only the newest automatic snapshot keeps";
/// So long whoever wants the store alone waits for the others.
const ALONE_WITHIN: Duration = Duration::from_secs(10);

/// One store with all that belongs to it. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) store: Store,
    pub(crate) home: Home,
    pub(crate) clock: Clock,
    pub(crate) workspaces: Workspaces,
    pub(crate) labels: Labels,
    pub(crate) history: History,
    pub(crate) registry: Registry,
    /// Directories that are never captured: the store's own, and where its socket lies.
    pub(crate) ours: Vec<Identity>,
    pub(crate) live: Mutex<HashMap<String, Arc<Mutex<Live>>>>,
    pub(crate) watches: Arc<Watches>,
    pub(crate) collections: Collections,
    pub(crate) operations: Arc<OperationFeed>,
    pub(crate) faces: Faces,
    pub(crate) views: Views,
    pub(crate) merging: Merging,
    pub(crate) started: Time,
    /// Seconds by which local time is ahead of UTC at a time.
    utc_offset: OnceLock<fn(Time) -> i64>,
    /// What could not be read when the service began.
    pub(crate) problems: Vec<String>,
    /// Read by whoever uses the store, written by whoever wants it alone.
    gate: RwLock<()>,
}

/// A tree that was named, kept in the store for as long as this lives.
pub(crate) struct Held {
    pub(crate) root: Option<RootId>,
    pub(crate) snapshot: Option<SnapshotId>,
    /// What retention left out of it, if it is a lean one.
    pub(crate) lean: Option<Lean>,
    pub(crate) _pin: Option<Pin>,
}

impl Held {
    /// Says of every cache that it was not kept.
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

    /// What there is to say of a path that is not there.
    pub(crate) fn not_found(&self, path: &TreePath) -> Failure {
        let is_in = |cache: &&TreePath| path.below(cache).is_some();
        match self.lean.iter().flat_map(|lean| &lean.left_out).find(is_in) {
            Some(cache) => {
                let message = format!("{path} is gone: {cache} was {CACHE_NOT_KEPT}");
                Failure::new(Reason::NotFound, message)
            }
            None => of_engine(amalgam_engine::Error::NotFound { path: path.clone() }),
        }
    }
}

impl Service {
    /// Opens the store of a home and everything beside it. `ours` are directories that are never captured.
    pub fn open(home: &Home, clock: Clock, ours: &[Identity]) -> Result<Self> {
        Self::open_with(home, clock.into(), ours, Arc::new(|| Ok(Settings::default())))
    }

    /// The same with two clocks, and with settings, which are asked for whenever they are needed.
    pub fn open_with(home: &Home, clocks: Clocks, ours: &[Identity], settings: SettingsSource) -> Result<Self> {
        let clock = clocks.wall;
        let store = home.open()?;
        let (registry, mut problems) = Registry::open(&home.directories_path())?;
        let (publishing, problem) = Publishing::open(home)?;
        problems.extend(problem);
        let ours = ours.iter().copied().chain([home.identity()?]).collect();
        let (workspaces, history) = (Workspaces::of(&store), History::of(&store));
        let inner = Inner {
            merging: Merging::new(Queue::of(&workspaces, &history), publishing, Approvals::open(home)?),
            workspaces,
            labels: Labels::of(&store),
            history,
            home: home.clone(),
            clock,
            registry,
            ours,
            live: Mutex::default(),
            watches: Arc::default(),
            collections: Collections::open(home, &store, clocks, settings)?,
            operations: Arc::default(),
            faces: Faces::default(),
            views: Views::open(home)?,
            started: clock(),
            utc_offset: OnceLock::new(),
            problems,
            gate: RwLock::new(()),
            store,
        };
        tracing::info!("store opened");
        inner.problems.iter().for_each(|problem| warn_problem(problem, "a record beside the store cannot be read"));
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Says by how many seconds local time is ahead of UTC at a time, for revisions such as `@{yesterday 14:00}`; UTC until then.
    pub fn set_utc_offset(&self, utc_offset: fn(Time) -> i64) {
        self.inner.utc_offset.get_or_init(|| utc_offset);
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Says that the store is in use, for as long as the guard lives. Nobody takes it twice.
    pub(crate) fn using(&self) -> RwLockReadGuard<'_, ()> {
        self.inner.gate.read()
    }

    /// The store without anybody else, as soon as the calls under way are done.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.inner.gate.try_write_for(ALONE_WITHIN).ok_or_else(|| {
            let message =
                "the store is in use by other calls, and this needs it exclusively; try again when they are done";
            Failure::new(Reason::Busy, message)
        })?;
        self.let_go_of_faces();
        Ok(guard)
    }

    pub(crate) fn now(&self) -> Time {
        (self.inner.clock)()
    }

    /// An act of the service's own, or one that its caller gave no id; now.
    pub(crate) fn act(&self, actor: &str) -> Act {
        Act::new(actor, self.now())
    }

    /// The act of a request, which its id makes one that is done once: the id counts for this caller and this method, and a reuse
    /// with other arguments is refused.
    pub(crate) fn act_for<R: Identified>(&self, actor: &str, request: &R) -> Result<Act> {
        let id = request.request_id();
        if id.is_empty() {
            return Ok(self.act(actor));
        }
        crate::call_log::record_request_id(id);
        let wrong = |why| Failure::new(Reason::Invalid, format!("request_id: {why}"));
        let older = self.inner.store.find_request(&RequestId::new(id).map_err(wrong)?).map_err(of_engine)?;
        // Written by a version that knew neither the method nor the arguments: whether this is a retry cannot be told.
        if let Some(older) = older.filter(|older| older.draft.actor == actor) {
            let (sequence, action) = (older.sequence, &older.draft.action);
            let message = format!(
                "request id {id:?} belongs to operation {sequence} ({action}) of an older version, which did not record its arguments; if \
                 that is not what you want, use a new id"
            );
            return Err(Failure::new(Reason::RequestReused, message).with("operation", operation_name(sequence)));
        }
        let scoped = RequestId::scoped(actor, R::METHOD, id, &request.arguments()).map_err(wrong)?;
        let act = self.act(actor).as_request(scoped);
        // One that was reused for something else is refused before anything is looked at.
        self.done_before(&act)?;
        Ok(act)
    }

    /// What the same request came to before.
    pub(crate) fn done_before(&self, act: &Act) -> Result<Option<Operation>> {
        let found = act.request.as_ref().map(|request| self.inner.store.find_request(request)).transpose();
        found.map(Option::flatten).map_err(of_engine)
    }

    /// The workspace that a request is about, if it names one.
    pub(crate) fn here(&self, name: &str) -> Result<Option<WorkspaceName>> {
        if name.is_empty() { Ok(None) } else { crate::call_log::workspace_id(name).map(Some).map_err(of_engine) }
    }

    /// A snapshot as people write it.
    pub(crate) fn resolve(&self, revision: &str, here: Option<&WorkspaceName>) -> Result<SnapshotId> {
        let revision = Revision::parse(if revision.is_empty() { "@" } else { revision }).map_err(of_engine)?;
        let now = match self.inner.utc_offset.get() {
            Some(utc_offset) => Now { time: self.now(), utc_offset: *utc_offset },
            None => Now::utc(self.now()),
        };
        revision.resolve(&self.inner.store, here, &now).map_err(of_engine)
    }

    /// A state however it is named, but for live directories, which are captured by whoever may.
    pub(crate) fn hold_revision(&self, revision: &str, here: Option<&WorkspaceName>) -> Result<Held> {
        let snapshot = self.resolve(revision, here)?;
        // That there is one of this name comes before what became of its tree.
        self.inner.store.snapshot(snapshot).map_err(of_engine)?;
        let gone = |_| {
            let message =
                format!("the tree of snapshot {} was dropped by retention; only its record is left", snapshot.short());
            Failure::new(Reason::NotFound, message)
        };
        let held = hold_tree(&self.inner.store, snapshot).map_err(gone)?;
        let pin = self.inner.store.pin(held.root);
        Ok(Held { root: Some(held.root), snapshot: Some(snapshot), lean: held.lean, _pin: Some(pin) })
    }

    /// A state of a request.
    pub(crate) fn hold_state(&self, state: Option<&v1::State>, here: Option<&WorkspaceName>) -> Result<Held> {
        use v1::state::State as Named;
        match state.and_then(|state| state.state.as_ref()) {
            None => self.hold_revision("@", here),
            Some(Named::Revision(revision)) => self.hold_revision(revision, here),
            Some(Named::Empty(_)) => Ok(Held { root: None, snapshot: None, lean: None, _pin: None }),
            Some(Named::Directory(name)) => self.hold_directory(name),
        }
    }

    /// A workspace for the wire.
    pub(crate) fn workspace_message(&self, name: &WorkspaceName) -> Result<v1::Workspace> {
        let workspace = self.inner.workspaces.get(name).map_err(of_engine)?;
        let moved = self.inner.store.last_move(&name.reference()).map_err(of_engine)?;
        let text = name.as_str();
        let here = self.inner.registry.all().into_iter().filter(|record| record.workspace == text);
        let directories = here.map(|record| v1::WorkspaceDirectory {
            name: amalgam_proto::directory_name(&record.id),
            path: crate::directory::path_bytes(&record.path),
        });
        let (live, mounts) = self.live_of(name);
        let publishing = self.publishing_message(&workspace)?;
        Ok(v1::Workspace {
            name: amalgam_proto::workspace_name(name),
            head: workspace.head.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            base: workspace.base.map(amalgam_proto::snapshot_name).unwrap_or_default(),
            agent: workspace.agent,
            project: workspace.project,
            create_time: Some(amalgam_proto::timestamp(workspace.created)),
            etag: moved.to_string(),
            directories: directories.collect(),
            live,
            mounts,
            target: workspace.target.as_ref().map(amalgam_proto::workspace_name).unwrap_or_default(),
            publishing,
        })
    }

    /// A snapshot for the wire, with what points at it.
    pub(crate) fn snapshot_message(&self, id: SnapshotId, marks: &Marks) -> Result<v1::Snapshot> {
        let snapshot = self.inner.store.snapshot(id).map_err(of_engine)?;
        let labels = &self.inner.labels;
        let names = if marks.are_shown { self.names_of(id)? } else { Names::default() };
        let is_thinned = self.inner.history.is_thinned(id).map_err(of_engine)?;
        let lean = if is_thinned { lean_tree(&self.inner.store, id).map_err(of_engine)? } else { None };
        Ok(v1::Snapshot {
            name: amalgam_proto::snapshot_name(id),
            parents: snapshot.parents.iter().copied().map(amalgam_proto::snapshot_name).collect(),
            author: snapshot.author.clone(),
            time: Some(amalgam_proto::timestamp(snapshot.time)),
            message: snapshot.message.clone(),
            metadata: snapshot.metadata.clone().into_iter().collect(),
            labels: names.labels,
            workspaces: names.workspaces,
            thinned: is_thinned && lean.is_none(),
            without_caches: is_thinned && lean.is_some(),
            tree: snapshot.root.to_string(),
            note: labels.note(id).map_err(of_engine)?.unwrap_or_default(),
            reward: labels.reward(id).map_err(of_engine)?,
            conflicts: crate::conflicts::counted(&snapshot),
        })
    }

    /// A snapshot alone, with the labels and heads of the moment.
    pub(crate) fn one_snapshot(&self, id: SnapshotId) -> Result<v1::Snapshot> {
        self.snapshot_message(id, &self.marks())
    }

    /// That snapshots are shown with what points at them.
    pub(crate) fn marks(&self) -> Marks {
        Marks { are_shown: true }
    }

    /// What points at a snapshot now.
    fn names_of(&self, id: SnapshotId) -> Result<Names> {
        let mut names = Names::default();
        for name in self.inner.store.names_of(id).map_err(of_engine)? {
            match name.as_str().split_once('/') {
                Some(("label", label)) => names.labels.push(label.to_owned()),
                Some(("workspace", workspace)) => names.workspaces.push(workspace.to_owned()),
                _ => {}
            }
        }
        Ok(names)
    }

    /// The heads of all workspaces and all that labels point at, each once.
    pub(crate) fn named_snapshots(&self) -> Result<Vec<SnapshotId>> {
        let (mut found, mut after) = (Vec::new(), None);
        self.each_workspace("", |workspace| {
            found.extend(workspace.head);
            Ok(())
        })?;
        loop {
            let page = self.inner.labels.list("", after.as_ref(), PAGE).map_err(of_engine)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            found.extend(page.into_iter().map(|(_, snapshot)| snapshot));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Every workspace, by name.
    pub(crate) fn each_workspace(
        &self,
        prefix: &str,
        mut visit: impl FnMut(&amalgam_engine::Workspace) -> Result<()>,
    ) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.inner.workspaces.list(prefix, after.as_ref(), PAGE).map_err(of_engine)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            page.iter().try_for_each(&mut visit)?;
        }
    }
}

/// Whether snapshots are shown with what points at them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Marks {
    are_shown: bool,
}

/// What points at a snapshot.
#[derive(Default)]
struct Names {
    labels: Vec<String>,
    workspaces: Vec<String>,
}
