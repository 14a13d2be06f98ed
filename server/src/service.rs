//! The service of one store: composes its parts and opens them.
//!
//! Each part owns one piece of state and its methods; parts know only parts that were opened before them. A process can hold
//! many services, one for each store.

use std::sync::Arc;

use amalgam_engine::{Store, Time};
use amalgam_materializer::Identity;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::call_log::warn_problem;
use crate::collection::Collections;
use crate::conflicts::Conflicts;
use crate::context::{Clock, Clocks, Context};
use crate::directory::Directories;
use crate::disk_quota::DiskQuota;
use crate::error::Result;
use crate::home::Home;
use crate::merge_rules::MergeRules;
use crate::merging::Merging;
use crate::publishing::Publishing;
use crate::registry::Registry;
use crate::settings::{Settings, SettingsSource};
use crate::states::States;
use crate::views::Views;

/// One store and the parts that work on it. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    pub(crate) context: Arc<Context>,
    pub(crate) rules: MergeRules,
    pub(crate) conflicts: Conflicts,
    pub(crate) publishing: Publishing,
    pub(crate) views: Views,
    pub(crate) directories: Directories,
    pub(crate) merging: Merging,
    pub(crate) collections: Collections,
    /// Files beside the store that could not be read when the service was opened.
    pub(crate) problems: Arc<Vec<String>>,
}

impl Service {
    /// Opens the store of a home, with default settings. `ours` are directories that are never captured.
    pub fn open(home: &Home, clock: Clock, ours: &[Identity]) -> Result<Self> {
        Self::open_with(home, clock.into(), ours, Arc::new(|| Ok(Settings::default())))
    }

    /// Opens the store of a home with two clocks. `settings` is called whenever settings are needed.
    pub fn open_with(home: &Home, clocks: Clocks, ours: &[Identity], settings: SettingsSource) -> Result<Self> {
        Self::with_store(home.open()?, home, clocks, ours, settings)
    }

    /// Opens the parts of a service over an open store.
    pub(crate) fn with_store(
        store: Store,
        home: &Home,
        clocks: Clocks,
        ours: &[Identity],
        settings: SettingsSource,
    ) -> Result<Self> {
        let (registry, mut problems) = Registry::open(&home.directories_path())?;
        let ours = ours.iter().copied().chain([home.identity()?]).collect();
        let context = Arc::new(Context::new(store, home, clocks.wall, ours, registry, settings));
        let quota = DiskQuota::new(&context);
        let rules = MergeRules::new(&context);
        let conflicts = Conflicts::new(&context, &rules);
        let states = States::new(&context, &rules, &conflicts);
        let (publishing, problem) = Publishing::open(&context)?;
        problems.extend(problem);
        let views = Views::open(&context, &quota, &conflicts, &states, &publishing)?;
        let directories = Directories::new(&context, &quota, &conflicts, &states, &publishing, &views);
        let merging = Merging::open(&context, &rules, &publishing, &views, &directories)?;
        let collections = Collections::open(&context, &quota, &views, clocks)?;
        tracing::info!("store opened");
        problems.iter().for_each(|problem| warn_problem(problem, "a record beside the store cannot be read"));
        let problems = Arc::new(problems);
        Ok(Self { context, rules, conflicts, publishing, views, directories, merging, collections, problems })
    }

    /// Sets the function that returns by how many seconds local time is ahead of UTC, for revisions such as
    /// `@{yesterday 14:00}`. Until then times are in UTC.
    pub fn set_utc_offset(&self, utc_offset: fn(Time) -> i64) {
        self.context.utc_offset.get_or_init(|| utc_offset);
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.context.store
    }

    /// Marks the store as in use until the guard is dropped. A thread takes it at most once.
    pub(crate) fn using(&self) -> RwLockReadGuard<'_, ()> {
        self.context.using()
    }

    /// Waits until no call uses the store, keeps others out until the guard is dropped, and drops the caches that pin objects.
    pub(crate) fn alone(&self) -> Result<RwLockWriteGuard<'_, ()>> {
        let guard = self.context.exclusive()?;
        self.conflicts.clear_caches();
        self.directories.release_faces();
        Ok(guard)
    }
}
