//! A bucket for tests that loses answers, fails, delays, truncates and damages on order, and counts its requests.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt as _};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

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
    /// The get is answered as by a store that does not know the object yet.
    StaleGet,
    /// The put is answered after [`SLOW`].
    SlowPut,
    /// The get is answered after [`SLOW`].
    SlowGet,
}

/// The delay of a slow request.
pub const SLOW: Duration = Duration::from_millis(50);

impl Fault {
    fn is_of_put(self) -> bool {
        matches!(self, Self::LosePutAnswer | Self::FailPut | Self::SlowPut)
    }
}

/// A bucket in memory, or one before another bucket, with faults.
#[derive(Debug)]
pub struct FaultyBucket {
    inner: Arc<dyn ObjectStore>,
    faults: Mutex<VecDeque<Fault>>,
    injected: AtomicUsize,
    gets: AtomicUsize,
    puts: AtomicUsize,
    is_held: AtomicBool,
    is_failing: AtomicBool,
}

fn lost() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "the connection was closed".into() }
}

impl FaultyBucket {
    /// Returns an empty bucket in memory.
    pub fn new() -> Arc<Self> {
        Self::before(Arc::new(InMemory::new()))
    }

    /// Returns a bucket that passes requests on to another one.
    pub fn before(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
            injected: AtomicUsize::default(),
            gets: AtomicUsize::default(),
            puts: AtomicUsize::default(),
            is_held: AtomicBool::default(),
            is_failing: AtomicBool::default(),
        })
    }

    /// Answers every request with an error, as a store with too much load does, until it is told otherwise.
    pub fn fail_all(&self, is_failing: bool) {
        self.is_failing.store(is_failing, Ordering::SeqCst);
    }

    fn check(&self) -> Result<()> {
        if self.is_failing.load(Ordering::SeqCst) {
            self.injected.fetch_add(1, Ordering::SeqCst);
            return Err(object_store::Error::Generic { store: "faulty", source: "503 Slow Down".into() });
        }
        Ok(())
    }

    /// Adds a fault for the next request of its kind.
    pub fn inject(&self, fault: Fault) {
        self.faults().push_back(fault);
    }

    /// Forgets a fault that no request has met. Returns whether there was one.
    pub fn take_fault(&self) -> bool {
        self.faults().pop_front().is_some()
    }

    /// Returns the number of requests that met a fault.
    pub fn injected(&self) -> usize {
        self.injected.load(Ordering::SeqCst)
    }

    /// Returns the number of gets.
    pub fn gets(&self) -> usize {
        self.gets.load(Ordering::SeqCst)
    }

    /// Returns the number of puts.
    pub fn puts(&self) -> usize {
        self.puts.load(Ordering::SeqCst)
    }

    /// Holds all gets back.
    pub fn hold_gets(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    /// Lets gets through again.
    pub fn release_gets(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }

    fn faults(&self) -> MutexGuard<'_, VecDeque<Fault>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, is_of_put: bool) -> Option<Fault> {
        let mut faults = self.faults();
        let at = faults.iter().position(|fault| fault.is_of_put() == is_of_put)?;
        self.injected.fetch_add(1, Ordering::SeqCst);
        faults.remove(at)
    }

    fn wait<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
    }

    /// Lists the names of all packs.
    ///
    /// # Panics
    /// The bucket behind this one fails.
    pub fn names(&self) -> Vec<String> {
        let list = self.inner.list(None).map(|meta| meta.expect("memory").location.to_string());
        Self::wait(list.collect())
    }

    /// Flips a bit of a stored pack.
    ///
    /// # Panics
    /// There is no such pack.
    pub fn flip(&self, name: &str, at: usize) {
        let path = Path::from(name);
        Self::wait(async {
            let mut bytes = self.inner.get(&path).await.expect("there").bytes().await.expect("memory").to_vec();
            bytes[at] ^= 1;
            self.inner.put(&path, bytes.into()).await.expect("memory");
        });
    }

    /// Returns the size of a stored pack.
    ///
    /// # Panics
    /// There is no such pack.
    pub fn size(&self, name: &str) -> usize {
        let found = Self::wait(self.inner.head(&Path::from(name))).expect("there");
        usize::try_from(found.size).expect("a small pack")
    }

    /// Exchanges the contents of two stored packs.
    ///
    /// # Panics
    /// One of them is missing.
    pub fn swap(&self, [one, other]: [&str; 2]) {
        let (one, other) = (Path::from(one), Path::from(other));
        Self::wait(async {
            let first = self.inner.get(&one).await.expect("there").bytes().await.expect("memory");
            let second = self.inner.get(&other).await.expect("there").bytes().await.expect("memory");
            self.inner.put(&one, second.into()).await.expect("memory");
            self.inner.put(&other, first.into()).await.expect("memory");
        });
    }

    /// Removes a stored pack.
    ///
    /// # Panics
    /// The bucket behind this one fails.
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
        self.check()?;
        let fault = self.take(true);
        if fault == Some(Fault::SlowPut) {
            tokio::time::sleep(SLOW).await;
        }
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
        self.check()?;
        let fault = self.take(false);
        match fault {
            Some(Fault::FailGet) => return Err(lost()),
            Some(Fault::StaleGet) => {
                let why = "the object is not known yet".into();
                return Err(object_store::Error::NotFound { path: location.to_string(), source: why });
            }
            Some(Fault::SlowGet) => tokio::time::sleep(SLOW).await,
            _ => {}
        }
        let mut found = self.inner.get_opts(location, options).await?;
        let Some(fault) = fault.filter(|fault| matches!(fault, Fault::TruncateGet | Fault::FlipGet)) else {
            return Ok(found);
        };
        let range: Range<u64> = found.range.clone();
        let (meta, attributes, extensions) = (found.meta.clone(), found.attributes.clone(), found.extensions.clone());
        let mut bytes = found.bytes().await?.to_vec();
        match fault {
            Fault::TruncateGet => bytes.truncate(bytes.len() / 2),
            // The answer of a request for the size alone has no body.
            _ => bytes.first_mut().into_iter().for_each(|byte| *byte ^= 1),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_the_size_alone_is_answered_when_its_body_would_be_damaged() {
        let (bucket, path) = (FaultyBucket::new(), Path::from("pack"));
        FaultyBucket::wait(bucket.put(&path, Bytes::from_static(b"bytes").into())).expect("put");
        for fault in [Fault::FlipGet, Fault::TruncateGet] {
            bucket.inject(fault);
            assert_eq!(FaultyBucket::wait(bucket.head(&path)).expect("there").size, 5);
        }
        assert_eq!(bucket.injected(), 2);
    }
}
