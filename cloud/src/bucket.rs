//! The bucket: packs as objects of an S3 store, written by plain puts and read by ranges. No listing, no conditional put.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use amalgam_engine::{Error, Result};
use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::client::SpawnedReqwestConnector;
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _, PutPayload};
use tokio::runtime::{Handle, Runtime};

use crate::calls::{Counters, count};
use crate::pack::PackId;

/// Threads that drive the connections to S3 stores.
const RUNTIME_THREADS: usize = 2;

/// Opens a bucket: `s3://BUCKET` (with the usual `AWS_` variables of the environment), `file:///DIRECTORY`, or `memory:`.
///
/// The bucket may be used by several asynchronous runtimes, one after another or at once: its connections belong to none of them.
pub fn open_bucket(url: &str) -> Result<Arc<dyn ObjectStore>> {
    let failed = |why: object_store::Error| Error::Fault { action: "open the bucket", why: why.to_string() };
    if url == "memory:" {
        return Ok(Arc::new(InMemory::new()));
    }
    if let Some(directory) = url.strip_prefix("file://") {
        std::fs::create_dir_all(directory).map_err(|source| Error::from_io("open the bucket", &source))?;
        let store = LocalFileSystem::new_with_prefix(directory).map_err(failed)?;
        return Ok(Arc::new(store.with_fsync(true)));
    }
    if url.starts_with("s3://") {
        let connector = SpawnedReqwestConnector::new(runtime()?);
        let client = AmazonS3Builder::from_env().with_url(url).with_http_connector(connector);
        return Ok(Arc::new(client.build().map_err(failed)?));
    }
    Err(Error::Invalid { what: "bucket", why: format!("{url}: use s3://BUCKET, file:///DIRECTORY or memory:") })
}

/// Returns the runtime that drives the connections to S3 stores, for as long as the process lives.
///
/// A client keeps idle connections, and each belongs to the runtime that made it. If that one is not driven at the moment, a request
/// over such a connection waits for the time-out of the client.
fn runtime() -> Result<Handle> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle().clone());
    }
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let made = builder.worker_threads(RUNTIME_THREADS).thread_name("bucket").enable_all().build();
    let made = made.map_err(|source| Error::from_io("start the runtime", &source))?;
    Ok(RUNTIME.get_or_init(|| made).handle().clone())
}

/// The packs of one project in a bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    project: i64,
    counters: Arc<Counters>,
}

impl Bucket {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, project: i64, counters: Arc<Counters>) -> Self {
        Self { store, project, counters }
    }

    /// Returns the name of a pack. It begins with random digits, because an S3 store spreads its load by prefix.
    pub(crate) fn name(&self, id: &PackId) -> String {
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}/{}/{digits}", &digits[..2], self.project)
    }

    fn path(&self, id: &PackId) -> Path {
        Path::from(self.name(id))
    }

    pub(crate) async fn put(&self, id: &PackId, parts: [Bytes; 2]) -> object_store::Result<()> {
        // A put with the same bytes under the same name does no harm, so one whose answer was lost is sent again.
        let payload = PutPayload::from_iter(parts);
        let path = self.path(id);
        count(&self.counters.puts);
        match self.store.put(&path, payload.clone()).await {
            Err(error) if is_transient(&error) => {
                count(&self.counters.puts);
                self.store.put(&path, payload).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Reads a range of a pack; `None` if the pack does not exist. The bytes are fewer than asked for if the pack is too short.
    pub(crate) async fn get(&self, id: &PackId, range: Range<u64>) -> object_store::Result<Option<Bytes>> {
        let path = self.path(id);
        let mut attempts = 0;
        loop {
            count(&self.counters.gets);
            let found = self.store.get_range(&path, range.clone()).await;
            attempts += 1;
            match &found {
                Ok(bytes) if bytes.len() as u64 == range.end - range.start => return found.map(Some),
                Err(object_store::Error::NotFound { .. }) => return Ok(None),
                Err(error) if !is_transient(error) => return found.map(Some),
                // S3 stores refuse a range behind the end of an object in different ways: compare the size.
                Ok(_) | Err(_) if attempts >= ATTEMPTS_MAX => {
                    count(&self.counters.gets);
                    let size = self.store.head(&path).await?.size;
                    return match found {
                        found if size < range.end => Ok(Some(found.unwrap_or_default())),
                        Ok(bytes) => {
                            let why = format!("{} of {} bytes of {path} came", bytes.len(), range.end - range.start);
                            Err(object_store::Error::Generic { store: "bucket", source: why.into() })
                        }
                        Err(error) => Err(error),
                    };
                }
                // The request failed, or its body ended early.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Deletes a pack. One that does not exist counts as deleted.
    pub(crate) async fn delete(&self, id: &PackId) -> object_store::Result<()> {
        count(&self.counters.deletes);
        match self.store.delete(&self.path(id)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Number of attempts to read a range, beside those of the S3 client.
const ATTEMPTS_MAX: usize = 3;

fn is_transient(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. } | object_store::Error::JoinError { .. })
}

/// Returns the engine's error for one of the bucket.
pub(crate) fn fault(action: &'static str, source: &object_store::Error) -> Error {
    let why = source.to_string();
    if is_transient(source) { Error::Unreachable { action, why } } else { Error::Fault { action, why } }
}
