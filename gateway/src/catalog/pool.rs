//! The connections of the catalog. Those to PostgreSQL survive a restart and a failover of the server: a broken connection, or one
//! without an answer, is dropped together with all older ones, and the next call opens another one.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use sqlx::any::{AnyPoolOptions, AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo};
use sqlx::pool::PoolConnection;
use sqlx::{Any, AnyConnection, AnyPool, Connection as _, Either, Execute, Executor, SqlStr};
use tokio::time::error::Elapsed;

/// Maximum time that a call waits for a connection before it fails.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a PostgreSQL statement may take: the server may disappear without closing the connection.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time that the check of an idle connection may take.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECTIONS_MAX: u32 = 8;
const IS_STANDBY: &str = "SELECT pg_is_in_recovery() AS is_standby";

/// An error of statements on one connection.
pub(super) trait StatementError: From<sqlx::Error> {
    /// Returns whether the connection broke.
    fn is_connection_failure(&self) -> bool;
}

impl StatementError for sqlx::Error {
    fn is_connection_failure(&self) -> bool {
        is_connection_failure(self)
    }
}

/// The connections of a catalog. Cheap to clone.
#[derive(Clone)]
pub(super) struct CatalogPool {
    pool: AnyPool,
    is_shared: bool,
    /// When a connection was last found broken. Older ones are not used again.
    failed: Arc<Mutex<Option<Instant>>>,
}

impl fmt::Debug for CatalogPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogPool").field("is_shared", &self.is_shared).finish_non_exhaustive()
    }
}

impl CatalogPool {
    /// Connects to a database. Each new connection gets these settings.
    pub(super) async fn connect(url: &str, settings: &'static str, is_shared: bool) -> sqlx::Result<Self> {
        let failed = Arc::<Mutex<Option<Instant>>>::default();
        let noted = Arc::clone(&failed);
        let options = AnyPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(move |connection, meta| {
                let is_usable = noted.lock().is_none_or(|failed| meta.age < failed.elapsed());
                let noted = Arc::clone(&noted);
                Box::pin(async move {
                    if !is_usable {
                        return Err(broken("it is older than one that broke"));
                    }
                    let checked = tokio::time::timeout(CHECK_TIMEOUT, connection.ping()).await;
                    let checked = checked.unwrap_or_else(|_| Err(broken("it does not answer")));
                    if checked.is_err() {
                        *noted.lock() = Some(Instant::now());
                    }
                    checked.map(|()| true)
                })
            })
            .after_connect(move |connection, _| Box::pin(prepare(connection, settings, is_shared)));
        Ok(Self { pool: options.connect(url).await?, is_shared, failed })
    }

    pub(super) fn pool(&self) -> &AnyPool {
        &self.pool
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Returns whether a connection was found broken after `time`.
    pub(super) fn has_failed_since(&self, time: Instant) -> bool {
        self.failed.lock().is_some_and(|failed| failed > time)
    }

    /// Returns a connection. The caller limits the time of its statements with [`CatalogPool::within`].
    pub(super) async fn acquire(&self) -> sqlx::Result<PoolConnection<Any>> {
        let acquired = self.pool.acquire().await;
        if acquired.as_ref().is_err_and(is_connection_failure) {
            *self.failed.lock() = Some(Instant::now());
        }
        acquired
    }

    /// Waits for the result of statements, at most [`ANSWER_TIMEOUT`] for PostgreSQL. SQLite has its own time limit for locks.
    pub(super) async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Elapsed> {
        match self.is_shared {
            true => tokio::time::timeout(ANSWER_TIMEOUT, work).await,
            false => Ok(work.await),
        }
    }

    /// Unwraps the result of statements, and records the time if a connection broke. A connection whose statement timed out is
    /// closed: the next call would read the late answer.
    pub(super) fn take_answer<T, E: StatementError>(
        &self,
        connection: PoolConnection<Any>,
        answer: Result<Result<T, E>, Elapsed>,
    ) -> Result<T, E> {
        let answer = answer.unwrap_or_else(|_| {
            drop(connection.detach());
            Err(broken("PostgreSQL did not answer").into())
        });
        if answer.as_ref().is_err_and(E::is_connection_failure) {
            *self.failed.lock() = Some(Instant::now());
        }
        answer
    }

    async fn fetch_rows<'q, E: Execute<'q, Any> + 'q>(
        self,
        query: E,
    ) -> sqlx::Result<Vec<Either<AnyQueryResult, AnyRow>>> {
        let mut connection = self.acquire().await?;
        let answer = self.within(connection.fetch_many(query).try_collect()).await;
        self.take_answer(connection, answer)
    }
}

/// Runs each statement within a time limit. All rows are read before the first one is returned.
impl<'p> Executor<'p> for &'_ CatalogPool {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, sqlx::Result<Either<AnyQueryResult, AnyRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let rows = self.clone().fetch_rows(query);
        stream::once(rows).map_ok(|rows| stream::iter(rows.into_iter().map(Ok))).try_flatten().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, sqlx::Result<Option<AnyRow>>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let pool = self.clone();
        Box::pin(async move {
            let mut connection = pool.acquire().await?;
            let answer = pool.within(connection.fetch_optional(query)).await;
            pool.take_answer(connection, answer)
        })
    }

    fn prepare_with<'e>(self, sql: SqlStr, parameters: &'e [AnyTypeInfo]) -> BoxFuture<'e, sqlx::Result<AnyStatement>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move { pool.pool.prepare_with(sql, parameters).await })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, sqlx::Result<sqlx::Describe<Any>>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        Box::pin(async move { pool.pool.describe(sql).await })
    }
}

/// Applies the settings to a new connection, and refuses a standby server: its answers may be old, and it takes no writes.
async fn prepare(connection: &mut AnyConnection, settings: &'static str, is_shared: bool) -> sqlx::Result<()> {
    use sqlx::Row as _;

    connection.execute(settings).await?;
    if is_shared && connection.fetch_one(IS_STANDBY).await?.try_get("is_standby")? {
        return Err(broken("this PostgreSQL server is a standby"));
    }
    Ok(())
}

fn broken(why: &'static str) -> sqlx::Error {
    sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why))
}

/// Returns whether an error means that a connection cannot be used or made: the server stops, starts, is a standby, or is
/// unreachable.
pub(super) fn is_connection_failure(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed | sqlx::Error::PoolTimedOut => true,
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            code.starts_with("08") || ["57P01", "57P02", "57P03", "25006", "53300"].contains(&&*code)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, CatalogError};
    use crate::webhook::WebhookId;

    #[tokio::test]
    async fn a_connection_that_breaks_in_a_transaction_is_recorded() {
        let directory = tempfile::tempdir().expect("a directory");
        let catalog = Catalog::open(&directory.path().join("catalog.db")).await.expect("a catalog");
        let pool = &catalog.pool;
        let begun = Instant::now();
        let missing = CatalogError::NoWebhook(WebhookId::generate().expect("an id"));
        let connection = pool.acquire().await.expect("a connection");
        assert!(pool.take_answer::<(), CatalogError>(connection, Ok(Err(missing))).is_err());
        assert!(!pool.has_failed_since(begun), "the connection is good");
        let connection = pool.acquire().await.expect("a connection");
        assert!(pool.take_answer::<(), CatalogError>(connection, Ok(Err(broken("a test").into()))).is_err());
        assert!(pool.has_failed_since(begun));
    }
}
