//! The stores of a cluster: projects in PostgreSQL and a bucket, which any number of nodes serve at once.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use amalgam_cloud::{Cloud, CloudCalls, CloudOptions, Cluster, open_bucket};
use amalgam_engine::backend::{DiskCache, Inspect, LiveTrees};
use amalgam_engine::{Result, Store, StoreOptions};
use amalgam_server::Home;

/// Time during which calls of PostgreSQL that fail because of the connection are repeated.
const RETRY_TIME: Duration = Duration::from_secs(30);
/// Memory for decoded objects of each open project.
const OBJECT_CACHE_BYTES: u64 = 8 << 20;
/// Memory for the stored bytes of objects of each open project.
const BYTE_CACHE_BYTES: u64 = 64 << 20;

/// Where the projects of a cluster are.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The database: `postgres://USER:PASSWORD@HOST/DATABASE`.
    pub database: String,
    /// The bucket: `s3://BUCKET`, with the usual `AWS_` variables of the environment, or `file:///DIRECTORY` for a trial.
    pub bucket: String,
    /// Connections to PostgreSQL for the stores of all projects of this process.
    pub connections: u32,
    /// The cache of objects on the node's disk, if it has one.
    pub cache: Option<NodeCache>,
}

/// The cache of objects on the disk of a node.
#[derive(Clone, Debug)]
pub struct NodeCache {
    /// Its directory, for this process alone.
    pub directory: PathBuf,
    /// Its size.
    pub bytes_max: u64,
}

/// The stores of a cluster. Cheap to clone.
#[derive(Clone)]
pub struct ClusterStores {
    cluster: Cluster,
    options: CloudOptions,
}

/// A store that other nodes may have open, too.
pub struct SharedStore {
    /// The store.
    pub store: Store,
    /// The live trees of its workspaces.
    pub live_trees: Arc<dyn LiveTrees>,
}

impl ClusterStores {
    /// Connects to the database and the bucket. Must not be called by a thread of an asynchronous runtime.
    ///
    /// # Errors
    /// The database cannot be reached or was written by another version, or the bucket or the cache cannot be used.
    pub fn connect(options: &ClusterOptions) -> Result<Self> {
        let bucket = open_bucket(&options.bucket)?;
        let disk_cache = options.cache.as_ref().map(|cache| DiskCache::open(&cache.directory, cache.bytes_max));
        let disk_cache = disk_cache.transpose()?.map(Arc::new);
        let cluster = Cluster::connect(&options.database, options.connections, RETRY_TIME)?;
        let mut options = CloudOptions::new(&options.database, bucket, "");
        options.cache_bytes = BYTE_CACHE_BYTES;
        options.disk_cache = disk_cache;
        options.retry_time = RETRY_TIME;
        Ok(Self { cluster, options })
    }

    /// Opens the store of a project, by the name of its directory. Must not be called by a thread of an asynchronous runtime.
    ///
    /// # Errors
    /// The database or the bucket cannot be reached.
    pub fn open(&self, home: &Home) -> Result<SharedStore> {
        let name = home.path().file_name().unwrap_or_default().to_string_lossy();
        let options = CloudOptions { project: name.into_owned(), ..self.options.clone() };
        let cloud = Arc::new(Cloud::open_in(&self.cluster, &options)?);
        let store_options = StoreOptions { cache_bytes: OBJECT_CACHE_BYTES, ..StoreOptions::default() };
        let store = Store::new(Arc::clone(&cloud) as Arc<dyn Inspect>, &store_options);
        cloud.wake_by_hints(store.operation_waker());
        Ok(SharedStore { store, live_trees: cloud })
    }

    /// Returns how many requests this process has sent to PostgreSQL and to the bucket.
    pub fn calls(&self) -> CloudCalls {
        self.cluster.calls()
    }
}
