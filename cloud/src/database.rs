//! Calls of PostgreSQL from threads: a pool of connections, retries, and the errors of the functions there.

use std::future::Future;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::{Error, Result};
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::calls::{Counters, count};

const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);

/// The reason of errors after the node was expelled.
const EXPELLED: &str =
    "this node was expelled, because its lease had expired or PostgreSQL had crashed; open the store again";

/// A pool of connections, and the runtime that drives them.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) pool: PgPool,
    handle: Handle,
    retry_time: Duration,
    pub(crate) counters: Arc<Counters>,
}

impl Database {
    /// Connects, and creates or updates the tables.
    pub(crate) fn open(url: &str, connections: u32, retry_time: Duration, handle: &Handle) -> Result<Self> {
        let invalid = |why: sqlx::Error| Error::Invalid { what: "database", why: why.to_string() };
        let options = PgConnectOptions::from_str(url).map_err(invalid)?;
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A broken connection is found by the call itself, which is then sent again.
            .test_before_acquire(false)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // Without JIT compilation, which costs more than these small queries.
                    sqlx::query(
                        "SELECT set_config('jit', 'off', false), set_config('application_name', 'amalgam', false)",
                    )
                    .execute(connection)
                    .await
                    .map(drop)
                })
            });
        let _inside = handle.enter();
        let counters = Arc::default();
        let database = Self { pool: pool.connect_lazy_with(options), handle: handle.clone(), retry_time, counters };
        let migrated = database.handle.block_on(sqlx::migrate!().run(&database.pool));
        migrated.map_err(|why| Error::Fault { action: "prepare the database", why: why.to_string() })?;
        Ok(database)
    }

    /// Runs a future on the runtime. On a thread of another runtime, that runtime moves its other tasks away first; it must have
    /// several threads.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        match Handle::try_current().map(|current| current.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| self.handle.block_on(work)),
            _ => self.handle.block_on(work),
        }
    }

    /// Calls PostgreSQL, again and again while the connection fails. The call must be idempotent.
    pub(crate) fn call<T, F: Future<Output = sqlx::Result<T>>>(
        &self,
        action: &'static str,
        make: impl Fn() -> F,
    ) -> Result<T> {
        self.wait(self.call_async(action, make))
    }

    pub(crate) async fn call_async<T, F: Future<Output = sqlx::Result<T>>>(
        &self,
        action: &'static str,
        make: impl Fn() -> F,
    ) -> Result<T> {
        let started = Instant::now();
        let mut delay = RETRY_DELAY_MIN;
        loop {
            count(&self.counters.statements);
            match make().await {
                Ok(value) => return Ok(value),
                Err(error) if is_transient(&error) && started.elapsed() < self.retry_time => {
                    tracing::debug!(action, %error, "PostgreSQL is called again");
                    tokio::time::sleep(delay).await;
                    delay = (delay * 2).min(RETRY_DELAY_MAX);
                }
                Err(error) => return Err(fault(action, &error)),
            }
        }
    }
}

/// Returns whether the same call may succeed later: the connection broke, or PostgreSQL restarts or is a standby.
fn is_transient(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            // Connection failures, shutdowns and starts, a read-only standby, too many connections, lost races.
            code.starts_with("08") || ["57P01", "57P02", "57P03", "25006", "53300", "40001", "40P01"].contains(&&*code)
        }),
        _ => false,
    }
}

/// Returns the error of a write by a node that was expelled.
pub(crate) fn expelled(action: &'static str) -> Error {
    Error::Fault { action, why: EXPELLED.to_owned() }
}

/// Returns whether an error says that the node was expelled.
pub(crate) fn is_expulsion(error: &Error) -> bool {
    matches!(error, Error::Fault { why, .. } if why == EXPELLED)
}

/// Returns the engine's error for one of PostgreSQL.
pub(crate) fn fault(action: &'static str, source: &sqlx::Error) -> Error {
    let code = match source {
        sqlx::Error::Database(error) => error.code(),
        _ => None,
    };
    match code.as_deref() {
        Some("AM001") => expelled(action),
        Some("AM004") => Error::UnderWay {
            what: "collection",
            why: "another node collects this project; wait for its end".to_owned(),
        },
        Some("AM005") => {
            let why = "this node lost the lease of the collector, because it was silent for too long; collect again";
            Error::UnderWay { what: "collection", why: why.to_owned() }
        }
        Some("AM007") => {
            let why = "a pack was written too late, and its name was given up; try again".to_owned();
            Error::Fault { action, why }
        }
        Some("AM006") => Error::Invalid {
            what: "target of a migration",
            why: "it has a history of its own; name a project without one".to_owned(),
        },
        Some("53100") => Error::Full { action, why: source.to_string() },
        _ => Error::Fault { action, why: source.to_string() },
    }
}
