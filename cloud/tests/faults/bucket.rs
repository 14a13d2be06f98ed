//! A bucket in memory that loses answers, fails, truncates and damages on order, and counts its requests.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The put is done, and its answer is an error.
    LosePutAnswer,
    /// The put is not done.
    FailPut,
    /// The get is refused.
    FailGet,
    /// The body of the get ends early.
    TruncateGet,
    /// A byte of the body is another one.
    FlipGet,
}

impl Fault {
    fn is_of_put(self) -> bool {
        matches!(self, Self::LosePutAnswer | Self::FailPut)
    }
}

#[derive(Debug, Default)]
pub struct FaultyBucket {
    inner: InMemory,
    faults: Mutex<VecDeque<Fault>>,
    injected: AtomicUsize,
    gets: AtomicUsize,
    puts: AtomicUsize,
    is_held: AtomicBool,
}

fn lost() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "the connection was closed".into() }
}

impl FaultyBucket {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds a fault for the next request of its kind.
    pub fn inject(&self, fault: Fault) {
        self.faults.lock().push_back(fault);
    }

    /// Forgets a fault that no request has met. Returns whether there was one.
    pub fn take_fault(&self) -> bool {
        self.faults.lock().pop_front().is_some()
    }

    pub fn injected(&self) -> usize {
        self.injected.load(Ordering::SeqCst)
    }

    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    pub fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }

    pub fn hold_gets(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    pub fn release_gets(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }

    fn take(&self, is_of_put: bool) -> Option<Fault> {
        let mut faults = self.faults.lock();
        let at = faults.iter().position(|fault| fault.is_of_put() == is_of_put)?;
        self.injected.fetch_add(1, Ordering::SeqCst);
        faults.remove(at)
    }

    fn wait<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
    }

    /// Lists the names of all packs.
    pub fn names(&self) -> Vec<String> {
        let list = self.inner.list(None).map(|meta| meta.expect("memory").location.to_string());
        Self::wait(list.collect())
    }

    /// Flips a bit of a stored pack.
    pub fn flip(&self, name: &str, at: usize) {
        let path = Path::from(name);
        Self::wait(async {
            let mut bytes = self.inner.get(&path).await.expect("there").bytes().await.expect("memory").to_vec();
            bytes[at] ^= 1;
            self.inner.put(&path, bytes.into()).await.expect("memory");
        });
    }

    pub fn size(&self, name: &str) -> usize {
        let found = Self::wait(self.inner.head(&Path::from(name))).expect("there");
        usize::try_from(found.size).expect("a small pack")
    }

    pub fn remove(&self, name: &str) {
        Self::wait(self.inner.delete(&Path::from(name))).expect("memory");
    }
}

impl fmt::Display for FaultyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a faulty bucket")
    }
}

#[async_trait::async_trait]
impl ObjectStore for FaultyBucket {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.puts.fetch_add(1, Ordering::SeqCst);
        let fault = self.take(true);
        if fault == Some(Fault::FailPut) {
            return Err(lost());
        }
        let done = self.inner.put_opts(location, payload, options).await?;
        if fault == Some(Fault::LosePutAnswer) { Err(lost()) } else { Ok(done) }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        while self.is_held.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
        let fault = self.take(false);
        if fault == Some(Fault::FailGet) {
            return Err(lost());
        }
        let mut found = self.inner.get_opts(location, options).await?;
        let Some(fault) = fault else { return Ok(found) };
        let range: Range<u64> = found.range.clone();
        let (meta, attributes, extensions) = (found.meta.clone(), found.attributes.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        match fault {
            Fault::TruncateGet => bytes.truncate(bytes.len() / 2),
            _ => bytes[0] ^= 1,
        }
        let body = futures_util::stream::once(async move { Ok(Bytes::from(bytes)) }).boxed();
        found = GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions };
        Ok(found)
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
