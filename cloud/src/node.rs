//! An open project of the cloud store on this node: its connections, its index, its identity.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use amalgam_engine::backend::{Committed, DiskCache, Group};
use amalgam_engine::{Error, OperationWaker, Result};
use object_store::ObjectStore;
use parking_lot::{Mutex, RwLock};

use crate::bucket::Bucket;
use crate::calls::CloudCalls;
use crate::cluster::Cluster;
use crate::database::{Database, expelled, is_expulsion};
use crate::fetch::Fetcher;
use crate::heartbeat::{Pulse, beat};
use crate::hints::{Hints, Registration};
use crate::identity::{Identity, random_name, unsigned};
use crate::index::Index;
use crate::prepared::Prepared;
use crate::rounds::{Answer, Rounds};
use crate::upload::Uploader;

/// Time that a closing node takes to say so.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a cloud store.
#[derive(Clone)]
pub struct CloudOptions {
    /// The database: `postgres://USER:PASSWORD@HOST/DATABASE`.
    pub database: String,
    /// The bucket; see [`open_bucket`](crate::open_bucket).
    pub bucket: Arc<dyn ObjectStore>,
    /// The name of the project, which is created if it does not exist.
    pub project: String,
    /// The name of the node. Opening a project a second time under the same name fences the first opening. `None` takes a new name.
    pub node: Option<[u8; 16]>,
    /// Time after which a silent node may be expelled.
    pub lease: Duration,
    /// Connections to PostgreSQL.
    pub connections: u32,
    /// Memory for bytes of objects.
    pub cache_bytes: u64,
    /// A cache of objects on disk, which several projects of a process may share.
    pub disk_cache: Option<Arc<DiskCache>>,
    /// New objects up to this many bytes travel with their transaction instead of through the bucket.
    pub inline_bytes_max: usize,
    /// Size of a pack from which on the next one begins.
    pub pack_bytes: usize,
    /// Inline packs are moved to the bucket when they take more than this many bytes.
    pub inline_total_bytes_max: u64,
    /// Time between the end of a pack's use and its deletion. Longer than a lease and the longest retry of a put.
    pub grace: Duration,
    /// Time during which failing calls of PostgreSQL are repeated. A call that has no answer after two thirds of it counts as failed.
    pub retry_time: Duration,
}

impl CloudOptions {
    /// Returns the default settings for a project.
    pub fn new(database: impl Into<String>, bucket: Arc<dyn ObjectStore>, project: impl Into<String>) -> Self {
        Self {
            database: database.into(),
            bucket,
            project: project.into(),
            node: None,
            lease: Duration::from_secs(30),
            connections: 16,
            cache_bytes: 256 << 20,
            disk_cache: None,
            inline_bytes_max: 128 << 10,
            pack_bytes: 16 << 20,
            inline_total_bytes_max: 32 << 20,
            grace: Duration::from_secs(3_600),
            retry_time: Duration::from_secs(30),
        }
    }
}

impl fmt::Debug for CloudOptions {
    /// Leaves out the address of the database, which may contain a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudOptions").field("project", &self.project).field("node", &self.node).finish_non_exhaustive()
    }
}

/// A project on PostgreSQL and a bucket, open on this node. Any number of nodes may have it open.
///
/// A node that was expelled, because it was silent for longer than its lease or because PostgreSQL crashed, can still read; every
/// write fails until the project is opened again.
pub struct Cloud {
    node: Arc<Node>,
    heartbeat: tokio::task::AbortHandle,
    /// The store that hints of other nodes wake.
    woken: Mutex<Option<Registration>>,
    /// Called by hints of collections while this value lives.
    _answer: Arc<Answer>,
    cluster: Cluster,
}

/// The state of an open project, shared with background threads. Not part of the interface.
pub struct Node {
    pub(crate) database: Database,
    pub(crate) hints: Hints,
    pub(crate) bucket: Bucket,
    pub(crate) identity: Identity,
    pub(crate) index: RwLock<Index>,
    /// Held while the index is brought up to date. When broken packs were last read again.
    pub(crate) refreshing: Mutex<Option<Instant>>,
    pub(crate) fetcher: Fetcher,
    pub(crate) uploader: Uploader,
    pub(crate) commits: Group<Prepared, Result<Committed>>,
    /// The number of the last batch. Only the leader of a group uses it.
    pub(crate) last_batch: AtomicU64,
    /// The number of the last call that took, wrote or released a live tree.
    pub(crate) last_tree_call: AtomicU64,
    pub(crate) pulse: Arc<Pulse>,
    /// Collections of other nodes.
    pub(crate) rounds: Arc<Rounds>,
    /// The last pin of another node that this collector has seen.
    pub(crate) holds_seen: AtomicU64,
    /// Held while objects move from one pack to another, and while a collection begins.
    pub(crate) moving: Mutex<()>,
    /// The thread that moves inline packs to the bucket.
    pub(crate) packing: Mutex<Option<JoinHandle<()>>>,
    pub(crate) options: CloudOptions,
}

impl Deref for Cloud {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Cloud {
    /// Opens a project, and creates it if it does not exist. Must not be called by a thread of an asynchronous runtime.
    pub fn open(options: &CloudOptions) -> Result<Self> {
        Self::open_in(&Cluster::connect(&options.database, options.connections, options.retry_time)?, options)
    }

    /// Opens a project over connections that several projects share. The address of the database and the number of connections in
    /// `options` do not count. Must not be called by a thread of an asynchronous runtime.
    pub fn open_in(cluster: &Cluster, options: &CloudOptions) -> Result<Self> {
        let database = cluster.database().clone();
        let (identity, round) = join(&database, options)?;
        let Identity { project, .. } = identity;
        let bucket = Bucket::new(Arc::clone(&options.bucket), project, Arc::clone(&database.counters));
        let node = Arc::new(Node {
            index: RwLock::default(),
            refreshing: Mutex::default(),
            fetcher: Fetcher::new(
                database.clone(),
                bucket.clone(),
                project,
                options.cache_bytes,
                options.disk_cache.clone(),
            ),
            uploader: Uploader::new(database.clone(), bucket.clone(), identity, options.pack_bytes),
            commits: Group::new(),
            last_batch: AtomicU64::new(0),
            last_tree_call: AtomicU64::new(0),
            pulse: Arc::new(Pulse::new(database.clone(), identity, options.lease)),
            rounds: Arc::new(Rounds::joined(round)),
            holds_seen: AtomicU64::new(0),
            moving: Mutex::default(),
            packing: Mutex::default(),
            options: options.clone(),
            hints: cluster.hints().clone(),
            database,
            bucket,
            identity,
        });
        node.refresh()?;
        let answer = answer_in_background(&node, cluster);
        node.hints.register_answer(project, &answer);
        let beats = beat(Arc::clone(&node.pulse), Arc::clone(&node.rounds), Arc::clone(&answer));
        let heartbeat = cluster.handle().spawn(beats).abort_handle();
        Ok(Self { node, heartbeat, woken: Mutex::default(), _answer: answer, cluster: cluster.clone() })
    }

    /// Wakes the threads of a store that wait for operations when another node commits. Only the last store counts.
    pub fn wake_by_hints(&self, waker: OperationWaker) {
        *self.woken.lock() = Some(self.node.hints.register(self.node.identity.project, waker));
    }

    /// Returns whether this node was expelled: every write fails until the project is opened again.
    pub fn is_expelled(&self) -> bool {
        self.node.pulse.is_expelled.load(Ordering::SeqCst)
    }

    /// Returns how many requests the process has sent over the connections of this node.
    pub fn calls(&self) -> CloudCalls {
        self.node.database.counters.read()
    }

    pub(crate) fn shared(&self) -> &Arc<Node> {
        &self.node
    }
}

impl Drop for Cloud {
    /// Leaves the cluster, so that no collector waits for this node. A node that cannot say so is expelled after its lease.
    fn drop(&mut self) {
        let packing = self.node.packing.lock().take();
        if packing.is_some_and(|packing| packing.join().is_err()) {
            tracing::warn!("moving inline packs ended early");
        }
        self.heartbeat.abort();
        drop(self.woken.lock().take());
        let (done, left) = std::sync::mpsc::channel();
        let (database, Identity { node, generation, .. }) = (self.node.database.clone(), self.node.identity);
        self.cluster.handle().spawn(async move {
            let query = sqlx::query("DELETE FROM nodes WHERE node = $1 AND generation = $2");
            let query = query.bind(node.to_vec()).bind(generation);
            let result = database.once(|connection| Box::pin(query.execute(connection))).await;
            done.send(result.is_ok()).ok();
        });
        left.recv_timeout(LEAVE_TIMEOUT).ok();
    }
}

/// Returns a function that answers collections of other nodes, in a thread that may block.
fn answer_in_background(node: &Arc<Node>, cluster: &Cluster) -> Arc<Answer> {
    let (node, handle) = (Arc::downgrade(node), cluster.handle().clone());
    Arc::new(move || {
        let Some(node) = node.upgrade() else { return };
        handle.spawn_blocking(move || {
            if let Err(error) = node.answer_collections() {
                tracing::warn!(%error, "the collection of another node was not answered");
            }
        });
    })
}

/// Finds or creates the project, and registers the node with a new generation. Returns the token of a collection that is under way, or 0.
fn join(database: &Database, options: &CloudOptions) -> Result<(Identity, u64)> {
    let action = "join the cluster";
    let name = &options.project;
    database.call(action, async |connection| {
        let query = sqlx::query("INSERT INTO projects (name) VALUES ($1) ON CONFLICT DO NOTHING");
        query.bind(name).execute(connection).await.map(drop)
    })?;
    let project: i64 = database.call(action, async |connection| {
        let query = sqlx::query_scalar("SELECT project FROM projects WHERE name = $1");
        query.bind(name).fetch_one(connection).await
    })?;
    let node = options.node.map_or_else(random_name, Ok)?;
    let lease = options.lease.as_secs_f64();
    let generation: i64 = database.call(action, async |connection| {
        let query = sqlx::query_scalar(
            "INSERT INTO nodes (node, generation, expires)
             VALUES ($1, nextval('node_generations'), clock_timestamp() + make_interval(secs => $2))
             ON CONFLICT (node) DO UPDATE SET generation = excluded.generation, expires = excluded.expires
             RETURNING generation",
        );
        query.bind(node.to_vec()).bind(lease).fetch_one(connection).await
    })?;
    let round: i64 = database.call(action, async |connection| {
        let query = sqlx::query_scalar("SELECT join_project($1, $2, $3)");
        query.bind(project).bind(node.to_vec()).bind(generation).fetch_one(connection).await
    })?;
    Ok((Identity { project, node, generation }, unsigned(round)))
}

impl Node {
    pub(crate) fn epoch_now(&self) -> u64 {
        self.pulse.epoch.load(Ordering::SeqCst)
    }

    /// Refuses a write of a node that was expelled, or that failed to announce a pin.
    pub(crate) fn refuse_if_expelled(&self, action: &'static str) -> Result<()> {
        if self.pulse.is_expelled.load(Ordering::SeqCst) { Err(expelled(action)) } else { Ok(()) }
    }

    /// Records that this node was expelled, if an error says so.
    pub(crate) fn note_expulsion(&self, error: &Error) {
        if is_expulsion(error) {
            self.pulse.is_expelled.store(true, Ordering::SeqCst);
        }
    }

    /// Records the epoch that PostgreSQL returned, unless a later one is known.
    pub(crate) fn note_epoch(&self, epoch: i64) {
        self.pulse.epoch.fetch_max(unsigned(epoch), Ordering::SeqCst);
    }
}
