//! The connections of a process to PostgreSQL, shared by all projects that it has open.

use std::sync::Arc;
use std::time::Duration;

use amalgam_engine::{Error, Result};
use tokio::runtime::{Handle, Runtime};

use crate::calls::CloudCalls;
use crate::database::Database;
use crate::hints::{HintTasks, Hints};

/// Threads that drive connections.
const RUNTIME_THREADS: usize = 2;
/// Time that connections get to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Connections to PostgreSQL and the threads that drive them. Cheap to clone; they end with the last clone.
#[derive(Clone)]
pub struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    database: Database,
    hints: Hints,
    /// The tasks that send and receive hints, until the cluster is dropped.
    hint_tasks: Option<HintTasks>,
    runtime: Option<Runtime>,
}

impl Cluster {
    /// Connects to a database, `postgres://USER:PASSWORD@HOST/DATABASE`, and creates or updates its tables. Must not be called by a
    /// thread of an asynchronous runtime.
    ///
    /// Calls that fail because of the connection are repeated for `retry_time`.
    pub fn connect(url: &str, connections: u32, retry_time: Duration) -> Result<Self> {
        let failed = |source: std::io::Error| Error::from_io("start the runtime", &source);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(RUNTIME_THREADS)
            .thread_name("cloud")
            .enable_all()
            .build()
            .map_err(failed)?;
        // One connection listens all the time.
        let database = Database::open(url, connections.max(1) + 1, retry_time, runtime.handle())?;
        let (hints, tasks) = Hints::start(&database, runtime.handle());
        let inner = Inner { database, hints, hint_tasks: Some(tasks), runtime: Some(runtime) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns how many requests this process has sent.
    pub fn calls(&self) -> CloudCalls {
        self.inner.database.counters.read()
    }

    pub(crate) fn database(&self) -> &Database {
        &self.inner.database
    }

    pub(crate) fn hints(&self) -> &Hints {
        &self.inner.hints
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.inner.runtime.as_ref().expect("it ends with the cluster").handle()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        self.hints.end();
        let (done, closed) = std::sync::mpsc::channel();
        let (database, tasks) = (self.database.clone(), self.hint_tasks.take());
        runtime.spawn(async move {
            if let Some(tasks) = tasks {
                tasks.stop().await;
            }
            // The last hint may have left its connection there.
            database.release_idle();
            database.pool.close().await;
            done.send(()).ok();
        });
        closed.recv_timeout(CLOSE_TIMEOUT).ok();
        runtime.shutdown_background();
    }
}
