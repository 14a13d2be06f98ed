//! The open projects: each is a store of its own, opened on first use or when work is due in it, and closed when it has been idle.

mod schedule;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use amalgam_cloud::CloudCalls;
use amalgam_proto::Reason;
use amalgam_server::{Home, NfsStatistics, OpenStore, Service};
use parking_lot::{Mutex, RwLock};
use tracing::{info, warn};

use crate::catalog::{Catalog, CatalogError, Project};
use crate::cluster::ClusterStores;
use crate::project::ProjectName;
use schedule::{DueTimes, remove_due, write_due};

/// The name of the project that the local store is served as.
pub const DEFAULT_PROJECT: &str = "default";
/// Idle time after which a project is closed.
const CLOSE_AFTER: Duration = Duration::from_secs(60);
/// Idle time after which a project may be closed if more than [`OPEN_MAX`] are open.
const CLOSE_EARLY_AFTER: Duration = Duration::from_secs(1);
/// The number of open projects above which idle ones are closed early.
const OPEN_MAX: usize = 64;
/// Interval of the checks for idle projects.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the checks for projects that another node deleted.
const DELETED_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Difference between the clocks of two nodes up to which a node finds the deletions of the other one.
const CLOCK_DIFFERENCE_MAX_NANOSECONDS: i64 = 3_600 * 1_000_000_000;

/// Opens the store in a home, with the clocks and the settings of this process.
pub type OpenHome = Arc<dyn Fn(&Home) -> amalgam_server::error::Result<Service> + Send + Sync>;

/// Why a project cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    /// The catalog refused or failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The store cannot be opened.
    #[error("the store of project {project} cannot be opened: {source}")]
    Store {
        /// The project.
        project: ProjectName,
        /// The error of the store.
        source: Box<amalgam_server::Error>,
    },
    /// The project was deleted.
    #[error("project {0} was deleted; an admin can undelete it")]
    Deleted(ProjectName),
    /// The server stops.
    #[error("the server is stopping; try again")]
    Stopping,
    /// The server has only the local store.
    #[error("this server serves one store as project `default`; start it with --data DIR to have others")]
    OnlyDefault,
}

/// Where the projects of a server are.
enum Place {
    /// A directory with one home for each project.
    Data { projects: PathBuf, open_home: OpenHome },
    /// One store, which another part of the process has opened.
    Local(Arc<OpenStore>),
}

/// The projects of a server. Cheap to clone.
#[derive(Clone)]
pub struct Projects {
    inner: Arc<Inner>,
}

struct Inner {
    catalog: Catalog,
    place: Place,
    slots: Mutex<HashMap<ProjectName, Arc<Slot>>>,
    /// The cluster that has the stores, if the server is a node of one.
    cluster: OnceLock<ClusterStores>,
    /// Whether all projects were closed for good.
    is_closed: AtomicBool,
    /// When closed projects have to be opened, because work is due in them.
    due: DueTimes,
}

/// The place of one project's open store.
#[derive(Default)]
struct Slot {
    store: RwLock<Option<Arc<OpenStore>>>,
    /// Held while the store is opened or closed.
    changing: Arc<tokio::sync::Mutex<()>>,
}

impl Projects {
    /// Returns the projects below a directory, whose stores `open_home` opens.
    pub fn in_directory(catalog: Catalog, data: &Path, open_home: OpenHome) -> Self {
        let place = Place::Data { projects: data.join("projects"), open_home };
        Self {
            inner: Arc::new(Inner {
                catalog,
                place,
                slots: Mutex::default(),
                cluster: OnceLock::new(),
                is_closed: AtomicBool::new(false),
                due: DueTimes::default(),
            }),
        }
    }

    /// Returns the projects of a cluster, which other nodes may serve at the same time. `open_home` opens their stores in it; the
    /// directory holds only files of this node.
    pub fn in_cluster(catalog: Catalog, data: &Path, stores: ClusterStores, open_home: OpenHome) -> Self {
        let projects = Self::in_directory(catalog, data, open_home);
        projects.inner.cluster.get_or_init(|| stores);
        projects
    }

    /// Returns one project, `default`, whose store this process already has open.
    pub fn local(catalog: Catalog, store: OpenStore) -> Self {
        let place = Place::Local(Arc::new(store));
        Self {
            inner: Arc::new(Inner {
                catalog,
                place,
                slots: Mutex::default(),
                cluster: OnceLock::new(),
                is_closed: AtomicBool::new(false),
                due: DueTimes::default(),
            }),
        }
    }

    /// Creates the project `default` on a server that has no project yet.
    ///
    /// # Errors
    /// The catalog failed, or the store cannot be made.
    pub async fn create_default(&self, now: amalgam_engine::Time) -> Result<(), ProjectError> {
        if !self.list(None, 1, true).await?.is_empty() {
            return Ok(());
        }
        match self.create(&ProjectName::new(DEFAULT_PROJECT).expect("the name is valid"), now).await {
            // Another node of the cluster was faster.
            Err(ProjectError::Catalog(CatalogError::ProjectExists(_))) => Ok(()),
            created => created.map(drop),
        }
    }

    /// Creates a project with an empty store.
    ///
    /// # Errors
    /// The name is taken, or the store cannot be made.
    pub async fn create(&self, name: &ProjectName, now: amalgam_engine::Time) -> Result<Project, ProjectError> {
        self.refuse_local()?;
        let project = self.inner.catalog.create_project(name, now).await?;
        self.open(name).await?;
        Ok(project)
    }

    /// Finds a project, even a deleted one.
    pub async fn get(&self, name: &ProjectName) -> Result<Project, ProjectError> {
        match &self.inner.place {
            Place::Data { .. } => Ok(self.inner.catalog.project(name).await?),
            Place::Local(_) if name.as_str() == DEFAULT_PROJECT => Ok(local_project()),
            Place::Local(_) => Err(CatalogError::NoProject(name.clone()).into()),
        }
    }

    /// Lists projects by name, beginning after `after`; deleted ones only if `with_deleted` is set.
    pub async fn list(
        &self,
        after: Option<&ProjectName>,
        limit: u32,
        with_deleted: bool,
    ) -> Result<Vec<Project>, ProjectError> {
        match &self.inner.place {
            Place::Data { .. } => Ok(self.inner.catalog.list_projects(after, limit, with_deleted).await?),
            Place::Local(_) if after.is_none() => Ok(vec![local_project()]),
            Place::Local(_) => Ok(Vec::new()),
        }
    }

    /// Deletes a project. Its calls are refused from then on; its files stay.
    pub async fn delete(&self, name: &ProjectName, now: amalgam_engine::Time) -> Result<Project, ProjectError> {
        self.refuse_local()?;
        let project = self.inner.catalog.delete_project(name, now).await?;
        self.close_deleted(name).await;
        Ok(project)
    }

    /// Closes the store of a deleted project and ends its calls.
    async fn close_deleted(&self, name: &ProjectName) {
        self.inner.due.forget(name);
        let slot = self.slot(name);
        let changing = Arc::clone(&slot.changing).lock_owned().await;
        let store = slot.store.write().take();
        if let Some(store) = store {
            store.drain(Duration::ZERO).await;
            // Until it is closed, the project cannot be opened again.
            let name = name.clone();
            tokio::spawn(async move {
                let _changing = changing;
                close(&name, store).await;
            });
        }
    }

    /// Closes projects that other nodes of a cluster delete. Never completes on a node of a cluster.
    pub(crate) async fn keep_closing_deleted(&self, now: fn() -> amalgam_engine::Time) {
        if !self.inner.catalog.is_shared() {
            return;
        }
        let mut since = amalgam_engine::Time(0);
        loop {
            tokio::time::sleep(DELETED_CHECK_INTERVAL).await;
            match self.inner.catalog.deleted_since(since).await {
                Ok(deleted) => {
                    for (name, at) in deleted {
                        if self.opened(&name).is_some() {
                            self.close_deleted(&name).await;
                        }
                        // Earlier than the newest deletion, because the clocks of nodes differ.
                        let at = at.min(now()).0.saturating_sub(CLOCK_DIFFERENCE_MAX_NANOSECONDS);
                        since = since.max(amalgam_engine::Time(at));
                    }
                }
                Err(error) => warn!(%error, "deleted projects cannot be looked for"),
            }
        }
    }

    /// Restores a deleted project. It is opened soon, because work may be due in it.
    pub async fn undelete(&self, name: &ProjectName) -> Result<Project, ProjectError> {
        self.refuse_local()?;
        let project = self.inner.catalog.undelete_project(name).await?;
        self.inner.due.set(name.clone(), amalgam_engine::Time(0));
        Ok(project)
    }

    /// Returns the store of a project, and opens it if it is closed.
    ///
    /// # Errors
    /// There is no such project, it was deleted, or its store cannot be opened.
    pub async fn open(&self, name: &ProjectName) -> Result<Arc<OpenStore>, ProjectError> {
        let (projects, open_home) = match &self.inner.place {
            Place::Local(store) if name.as_str() == DEFAULT_PROJECT => return Ok(Arc::clone(store)),
            Place::Local(_) => return Err(CatalogError::NoProject(name.clone()).into()),
            Place::Data { projects, open_home } => (projects, open_home),
        };
        let known = self.inner.slots.lock().get(name).cloned();
        let open = known.as_ref().and_then(|slot| slot.store.read().clone());
        if let Some(store) = open.filter(|store| !store.service().is_expelled()) {
            return Ok(store);
        }
        // Asked before a slot is created, so that names of projects that do not exist take no memory.
        let project = self.inner.catalog.project(name).await?;
        if project.deleted.is_some() {
            return Err(ProjectError::Deleted(name.clone()));
        }
        let slot = self.slot(name);
        let _changing = slot.changing.lock().await;
        let open = slot.store.read().clone();
        match open {
            Some(store) if !store.service().is_expelled() => return Ok(store),
            Some(expelled) => {
                // Running calls can still read from it. It is closed when they have ended.
                drop(slot.store.write().take());
                let name = name.clone();
                tokio::spawn(async move { close(&name, expelled).await });
            }
            None => {}
        }
        // The server may have stopped, or the project may have been deleted, while this call waited for the lock.
        if self.inner.is_closed.load(Ordering::SeqCst) {
            return Err(ProjectError::Stopping);
        }
        let project = self.inner.catalog.project(name).await?;
        if project.deleted.is_some() {
            return Err(ProjectError::Deleted(name.clone()));
        }
        let (home, open_home) = (Home::new(projects.join(&project.directory)), Arc::clone(open_home));
        let opened = open_released(home, open_home).await;
        let service =
            opened.map_err(|source| ProjectError::Store { project: name.clone(), source: Box::new(source) })?;
        if self.inner.cluster.get().is_none() {
            remove_due(service.home_directory());
        }
        let store = Arc::new(OpenStore::start(service));
        *slot.store.write() = Some(Arc::clone(&store));
        self.inner.due.forget(name);
        info!(project = %name, "project opened");
        Ok(store)
    }

    /// Returns the store of a project if it is open. Does not open it.
    pub(crate) fn opened(&self, name: &ProjectName) -> Option<Arc<OpenStore>> {
        match &self.inner.place {
            Place::Local(store) => (name.as_str() == DEFAULT_PROJECT).then(|| Arc::clone(store)),
            Place::Data { .. } => self.inner.slots.lock().get(name).and_then(|slot| slot.store.read().clone()),
        }
    }

    /// Returns all projects whose stores are open, with their stores.
    pub(crate) fn all_opened(&self) -> Vec<(ProjectName, Arc<OpenStore>)> {
        match &self.inner.place {
            Place::Local(store) => {
                ProjectName::new(DEFAULT_PROJECT.to_owned()).map(|name| (name, Arc::clone(store))).into_iter().collect()
            }
            Place::Data { .. } => {
                let slots = self.inner.slots.lock();
                slots.iter().filter_map(|(name, slot)| Some((name.clone(), slot.store.read().clone()?))).collect()
            }
        }
    }

    /// Returns the store that is served as project `default`, or `None` on a server with a directory of projects.
    pub(crate) fn local_store(&self) -> Option<&Arc<OpenStore>> {
        match &self.inner.place {
            Place::Local(store) => Some(store),
            Place::Data { .. } => None,
        }
    }

    /// Returns the counters of the NFS server, or `None` if none runs: only a local store has exports.
    pub(crate) fn nfs_statistics(&self) -> Option<NfsStatistics> {
        self.local_store()?.service().nfs_statistics()
    }

    /// Returns the number of requests to the cluster's database and bucket, or `None` if the server is no node of a cluster.
    pub(crate) fn cluster_calls(&self) -> Option<CloudCalls> {
        self.inner.cluster.get().map(ClusterStores::calls)
    }

    /// Returns the directory with the projects, or that of the local store.
    pub(crate) fn data_directory(&self) -> PathBuf {
        match &self.inner.place {
            Place::Data { projects, .. } => projects.clone(),
            Place::Local(store) => store.service().home_directory().to_owned(),
        }
    }

    /// Returns the number of open projects.
    pub fn open_count(&self) -> usize {
        match &self.inner.place {
            Place::Local(_) => 1,
            Place::Data { .. } => self.inner.slots.lock().values().filter(|slot| slot.store.read().is_some()).count(),
        }
    }

    /// Closes idle projects at an interval. Never completes.
    pub(crate) async fn keep_closing(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.close_idle().await;
        }
    }

    async fn close_idle(&self) {
        let slots: Vec<_> =
            self.inner.slots.lock().iter().map(|(name, slot)| (name.clone(), Arc::clone(slot))).collect();
        let mut open: Vec<_> = slots
            .into_iter()
            .filter_map(|(name, slot)| {
                let idle = slot.store.read().as_ref().map(|store| store.idle_for())?;
                Some((idle, name, slot))
            })
            .collect();
        open.sort_by_key(|(idle, ..)| std::cmp::Reverse(*idle));
        let mut too_many = open.len().saturating_sub(OPEN_MAX);
        for (idle, name, slot) in open {
            let is_too_many = too_many > 0 && idle >= CLOSE_EARLY_AFTER;
            if idle < CLOSE_AFTER && !is_too_many {
                continue;
            }
            let Ok(_changing) = slot.changing.try_lock() else { continue };
            let store = {
                let mut place = slot.store.write();
                // A call that has just received the store holds a reference to it.
                let is_free =
                    place.as_ref().is_some_and(|store| Arc::strong_count(store) == 1 && !store.idle_for().is_zero());
                if is_free { place.take() } else { None }
            };
            if let Some(store) = store {
                too_many = too_many.saturating_sub(1);
                let (home, due) = (store.service().home_directory().to_owned(), store.next_due());
                let now = store.service().now();
                close(&name, store).await;
                self.inner.due.closed(&name, &home, due, now);
            }
        }
    }

    /// Waits at most `within` for running calls, and closes all projects for good.
    pub(crate) async fn close_all(&self, within: Duration) {
        // Without this, a call that passed the gate before could open its project again.
        self.inner.is_closed.store(true, Ordering::SeqCst);
        let slots: Vec<_> = self.inner.slots.lock().drain().collect();
        let mut closing = tokio::task::JoinSet::new();
        for (name, slot) in slots {
            closing.spawn(async move {
                let _changing = slot.changing.lock().await;
                let store = slot.store.write().take();
                if let Some(store) = store {
                    store.drain(within).await;
                    let (home, due) = (store.service().home_directory().to_owned(), store.next_due());
                    close(&name, store).await;
                    write_due(&home, due);
                }
            });
        }
        if let Place::Local(store) = &self.inner.place {
            store.drain(within).await;
        }
        while closing.join_next().await.is_some() {}
    }

    /// Fails on a server that has only the local store: its project can be neither created nor deleted.
    pub(crate) fn refuse_local(&self) -> Result<(), ProjectError> {
        match &self.inner.place {
            Place::Local(_) => Err(ProjectError::OnlyDefault),
            Place::Data { .. } => Ok(()),
        }
    }

    fn slot(&self, name: &ProjectName) -> Arc<Slot> {
        Arc::clone(self.inner.slots.lock().entry(name.clone()).or_default())
    }
}

/// Opens a store, and retries while it is busy: a store that was just closed is released when the last thread that reads its log
/// ends.
async fn open_released(home: Home, open_home: OpenHome) -> amalgam_server::error::Result<Service> {
    const TRIES_MAX: u32 = 60;
    const TRY_EVERY: Duration = Duration::from_millis(50);
    let mut tries = 0;
    loop {
        let (home, open_home) = (home.clone(), Arc::clone(&open_home));
        let opened = tokio::task::spawn_blocking(move || open_home(&home)).await;
        let opened = opened.unwrap_or_else(|_| Err(amalgam_server::Error::io("open a store")(panicked())));
        match opened {
            Err(error) if error.reason() == Reason::Busy && tries < TRIES_MAX => tokio::time::sleep(TRY_EVERY).await,
            opened => return opened,
        }
        tries += 1;
    }
}

/// Closes a store that was removed from its slot. Waits until the calls that still hold it have ended.
async fn close(name: &ProjectName, mut store: Arc<OpenStore>) {
    const LOOK_EVERY: Duration = Duration::from_millis(10);
    const WARN_AFTER_LOOKS: u32 = 1_000;
    let mut looks = 0;
    loop {
        store = match Arc::try_unwrap(store) {
            Ok(store) => {
                store.close().await;
                info!(project = %name, "project closed");
                return;
            }
            Err(shared) => shared,
        };
        looks += 1;
        if looks == WARN_AFTER_LOOKS {
            warn!(project = %name, "a call does not end; its project is closed when it does");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn local_project() -> Project {
    let name = ProjectName::new(DEFAULT_PROJECT).expect("the name is valid");
    Project { name, directory: String::new(), created: amalgam_engine::Time(0), deleted: None }
}

fn panicked() -> std::io::Error {
    std::io::Error::other("a bug in the server; its log says more")
}
