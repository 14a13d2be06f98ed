//! The PostgreSQL server and the S3 store that a benchmark uses, with a delay before both.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use amalgam_benches::Result;
use amalgam_cloud::{Cloud, CloudOptions};
use amalgam_engine::{Store, StoreOptions};
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use tempfile::TempDir;

use crate::delay;

const DATABASE_VARIABLE: &str = "AMALGAM_TEST_DATABASE";
const BUCKET_VARIABLE: &str = "AMALGAM_TEST_BUCKET";
const ENDPOINT_VARIABLE: &str = "AWS_ENDPOINT_URL";
const SOCKET: &str = ".s.PGSQL.5432";

pub(crate) struct Place {
    pub(crate) delay: Duration,
    /// The address of the database, through the delay.
    pub(crate) database: String,
    pub(crate) bucket: Arc<dyn ObjectStore>,
    _socket: TempDir,
}

fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| format!("{name} is not set: `make bench-cloud` starts the servers").into())
}

impl Place {
    pub(crate) fn new(delay: Duration) -> Result<Self> {
        let (mut database, mut endpoint) = (variable(DATABASE_VARIABLE)?, variable(ENDPOINT_VARIABLE)?);
        let socket = tempfile::tempdir()?;
        if !delay.is_zero() {
            let directory = database.split(['?', '&']).find_map(|part| part.strip_prefix("host="));
            let directory = directory.ok_or("the address of the database names no socket")?.to_owned();
            delay::before_socket(&socket.path().join(SOCKET), Path::new(&directory).join(SOCKET), delay)?;
            database = database.replace(&directory, &socket.path().display().to_string());
            let address: SocketAddr = endpoint.trim_start_matches("http://").trim_end_matches('/').parse()?;
            endpoint = format!("http://{}", delay::before_port(address, delay)?);
        }
        let bucket = AmazonS3Builder::from_env().with_url(variable(BUCKET_VARIABLE)?).with_endpoint(endpoint);
        Ok(Self { delay, database, bucket: Arc::new(bucket.build()?), _socket: socket })
    }

    /// The settings of a new project.
    pub(crate) fn options(&self) -> CloudOptions {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let project = format!("bench {} {number}", std::process::id());
        CloudOptions::new(&self.database, Arc::clone(&self.bucket), project)
    }
}

/// A node with its store.
pub(crate) struct Node {
    pub(crate) cloud: Arc<Cloud>,
    pub(crate) store: Store,
}

impl Node {
    pub(crate) fn open(options: &CloudOptions) -> Result<Self> {
        let cloud = Arc::new(Cloud::open(options)?);
        let store = Store::new(Arc::clone(&cloud) as Arc<_>, &StoreOptions::default());
        cloud.wake_by_hints(store.operation_waker());
        Ok(Self { cloud, store })
    }
}
