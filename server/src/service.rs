//! The service of one store: composes its parts and opens them.
//!
//! Each part owns one piece of state and its methods; parts know only parts that were opened before them. A process can hold
//! many services, one for each store.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use amalgam_engine::backend::LiveTrees;
use amalgam_engine::{Store, Time, operation};
use amalgam_exchange::GitCache;
use amalgam_materializer::Identity;
use amalgam_nfs::{MountWatcher, Statistics};
use parking_lot::{Mutex, RwLockReadGuard, RwLockWriteGuard};

use crate::call_log::warn_problem;
use crate::collection::{CollectionReason, CollectionRequest, Collections};
use crate::conflicts::Conflicts;
use crate::context::{Clock, Clocks, Context};
use crate::directory::Directories;
use crate::disk_quota::DiskQuota;
use crate::error::Result;
use crate::exports::{Exports, NfsListen};
use crate::files::Files;
use crate::follow_book::FollowBook;
use crate::followers::Followers;
use crate::home::Home;
use crate::host_features::HostFeatures;
use crate::merge_rules::MergeRules;
use crate::merging::Merging;
use crate::publishing::Publishing;
use crate::radar::Radar;
use crate::registry::Registry;
use crate::settings::{Settings, SettingsSource};
use crate::states::States;
use crate::views::Views;

/// How much a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreUsage {
    /// The size of its files on the disk.
    pub disk_bytes: u64,
    /// The number of workspaces.
    pub workspaces: u64,
    /// The number of operations so far.
    pub operations: u64,
}

/// How a service is opened.
#[derive(Clone)]
pub struct ServiceOptions {
    /// The clocks.
    pub clocks: Clocks,
    /// Directories that are never captured.
    pub ours: Vec<Identity>,
    /// Called whenever settings are needed.
    pub settings: SettingsSource,
    /// Whether directories, mounts, exports and commands are available.
    pub host: HostFeatures,
}

impl ServiceOptions {
    /// Creates options with default settings and all features.
    pub fn new(clocks: Clocks) -> Self {
        Self { clocks, ours: Vec::new(), settings: Arc::new(|| Ok(Settings::default())), host: HostFeatures::Enabled }
    }
}

/// One store and the parts that work on it. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub(crate) context: Arc<Context>,
    pub(crate) rules: MergeRules,
    pub(crate) conflicts: Conflicts,
    pub(crate) states: States,
    pub(crate) publishing: Publishing,
    pub(crate) views: Views,
    pub(crate) exports: Exports,
    pub(crate) directories: Directories,
    pub(crate) files: Files,
    pub(crate) merging: Merging,
    pub(crate) followers: Followers,
    pub(crate) radar: Radar,
    pub(crate) collections: Collections,
    /// The repositories for git clients; `None` until the first request.
    pub(crate) git: Arc<Mutex<Option<Arc<GitCache>>>>,
    /// Files beside the store that could not be read when the service was opened.
    pub(crate) problems: Arc<Vec<String>>,
}

impl Service {
    /// Opens the store of a home, with default settings. `ours` are directories that are never captured.
    pub fn open(home: &Home, clock: Clock, ours: &[Identity]) -> Result<Self> {
        Self::open_with(home, ServiceOptions { ours: ours.to_vec(), ..ServiceOptions::new(clock.into()) })
    }

    /// Opens the store of a home.
    pub fn open_with(home: &Home, options: ServiceOptions) -> Result<Self> {
        Self::compose(home.open()?, None, home, options)
    }

    /// Opens a store that several nodes have open. `home` is a directory of this node, which holds nothing that another node needs;
    /// files that an earlier process left there are removed.
    pub fn open_shared(
        store: Store,
        live_trees: Arc<dyn LiveTrees>,
        home: &Home,
        options: ServiceOptions,
    ) -> Result<Self> {
        home.make_for_node()?;
        Self::compose(store, Some(live_trees), home, options)
    }

    /// Opens the parts of a service over an open store.
    pub(crate) fn compose(
        store: Store,
        live_trees: Option<Arc<dyn LiveTrees>>,
        home: &Home,
        options: ServiceOptions,
    ) -> Result<Self> {
        let ServiceOptions { clocks, ours, settings, host } = options;
        let (registry, mut problems) = Registry::open(&home.directories_path())?;
        let ours = ours.into_iter().chain([home.identity()?]).collect();
        let (following, problem) = FollowBook::open(home)?;
        problems.extend(problem);
        let mut context = Context::new(store, home, clocks.wall, ours, registry, following, settings);
        if let Some(shared) = &live_trees {
            context.queue = context.queue.with_leases(Arc::clone(shared) as Arc<_>);
        }
        context.live_trees = live_trees;
        context.host = host;
        let context = Arc::new(context);
        let quota = DiskQuota::new(&context);
        let rules = MergeRules::new(&context);
        let conflicts = Conflicts::new(&context, &rules);
        let states = States::new(&context, &rules, &conflicts);
        let (publishing, problem) = Publishing::open(&context)?;
        problems.extend(problem);
        let views = Views::open(&context, &quota, &conflicts, &states, &publishing)?;
        let exports = Exports::new(&context, &views);
        let directories = Directories::new(&context, &quota, &conflicts, &states, &publishing, &views);
        let files = Files::new(&context, &quota, &conflicts, &states, &views, &directories);
        let merging = Merging::open(&context, &rules, &publishing, &views, &directories)?;
        let followers = Followers::new(&context, &merging, &directories, &views, &quota);
        let radar = Radar::new(&context, &rules, &directories, &views);
        let collections = Collections::open(&context, &quota, &views, clocks)?;
        tracing::info!("store opened");
        problems.iter().for_each(|problem| warn_problem(problem, "a record beside the store cannot be read"));
        let problems = Arc::new(problems);
        Ok(Self {
            context,
            rules,
            conflicts,
            states,
            publishing,
            views,
            exports,
            directories,
            files,
            merging,
            followers,
            radar,
            collections,
            git: Arc::default(),
            problems,
        })
    }

    /// Sets the function that returns by how many seconds local time is ahead of UTC, for revisions such as
    /// `@{yesterday 14:00}`. Until then times are in UTC.
    pub fn set_utc_offset(&self, utc_offset: fn(Time) -> i64) {
        self.context.utc_offset.get_or_init(|| utc_offset);
    }

    /// Listens for NFS clients at an address. Without this, the first export decides where. Returns the address.
    pub fn listen_nfs(&self, listen: NfsListen) -> Result<SocketAddr> {
        self.exports.listen(listen)
    }

    /// Returns the counters of the NFS server (operations by name, bytes by direction, connections), or `None` if it does not
    /// run.
    pub fn nfs_statistics(&self) -> Option<Statistics> {
        self.exports.statistics()
    }

    /// Calls a function with each mount, unmount and refusal of an NFS client from now on. Request threads call it, so it must not
    /// block for long. Only the first function counts.
    pub fn observe_nfs_mounts(&self, observe: MountWatcher) {
        self.exports.observe_mounts(observe);
    }

    /// Returns whether this node was expelled from a store that several nodes have open: it must be opened again.
    pub fn is_expelled(&self) -> bool {
        self.context.is_expelled()
    }

    /// Returns the directory of the store and of the records beside it.
    pub fn home_directory(&self) -> &Path {
        self.context.home.path()
    }

    /// Returns the current time of the service's clock.
    pub fn now(&self) -> Time {
        self.context.now()
    }

    /// Returns the store.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Returns how much the store holds.
    pub fn usage(&self) -> Result<StoreUsage> {
        let _using = self.using();
        let mut workspaces = 0;
        self.context.each_workspace("", |_| {
            workspaces += 1;
            Ok(())
        })?;
        let operations = self.context.store.last_operation()?;
        Ok(StoreUsage { disk_bytes: self.collections.disk_bytes()?, workspaces, operations })
    }

    /// Collects the store now, with the grace time of its settings. Returns by how much its files became smaller.
    ///
    /// # Errors
    /// A collection is under way, or it failed.
    pub fn collect(&self) -> Result<u64> {
        let _using = self.using();
        let how = CollectionRequest { actor: "amalgam", dry_run: false, grace: None, why: CollectionReason::Asked };
        let done = self.collections.collect(&how, &mut |_| ControlFlow::Continue(()))?;
        Ok(done.disk_bytes_before.saturating_sub(done.disk_bytes_after))
    }

    /// Returns the position of the newest event before a time; that before the first event if all are newer.
    pub fn position_before(&self, time: Time) -> Result<u64> {
        let store = &self.context.store;
        let (mut low, mut high) = (store.first_operation()? - 1, store.last_operation()?);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match operation::operation(store, middle)?.draft.time < time {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        Ok(low)
    }

    /// Returns whether the process must keep running: the store is busy, or has plans or followers that need a process.
    pub(crate) fn is_at_work(&self) -> bool {
        self.is_busy() || self.publishing.is_publishing() || self.followers.is_following()
    }

    /// Returns whether the store has a watch, a mount, a served export, a collection, a merge, or writes to be published.
    pub(crate) fn is_busy(&self) -> bool {
        self.directories.is_watching()
            || self.views.mounted() > 0
            || self.exports.is_serving()
            || self.collections.is_collecting()
            || self.merging.is_folding()
            || self.merging.has_pending_writes()
    }

    /// Returns when the next scheduled publish or update of a follower is due, or `None`.
    pub(crate) fn next_scheduled(&self) -> Option<Time> {
        let (publish, update) = (self.publishing.next_due(self.context.now()), self.followers.next_due());
        publish.into_iter().chain(update).min()
    }

    /// Marks the store as in use until the guard is dropped. A thread takes it at most once.
    pub(crate) fn using(&self) -> RwLockReadGuard<'_, ()> {
        self.context.using()
    }

    /// Marks the store as in use, unless a call has it exclusively or waits for that.
    pub(crate) fn try_using(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.context.try_using()
    }

    /// Waits until no call uses the store, keeps others out until the guard is dropped, and drops the caches that pin objects.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.context.exclusive()?;
        self.conflicts.clear_caches();
        self.directories.release_faces();
        Ok(guard)
    }
}
