//! Calls of PostgreSQL from threads: a pool of connections, retries, and the errors of the functions there.

use std::future::Future;
use std::io;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amalgam_engine::{Error, Result};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::time::error::Elapsed;

use crate::calls::{Counters, count};
use crate::idle::{IdleConnections, Lent};

const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// Time that an attempt waits for a connection. The pool does not look for an idle one while PostgreSQL refuses a new one, so that the
/// next attempt may have one at once.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// Time that a connection takes which is only made to learn why there is none.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The code of PostgreSQL for a connection that it has no room for.
const TOO_MANY_CONNECTIONS: &str = "53300";

/// The reason of errors after the node was expelled.
const EXPELLED: &str =
    "this node was expelled, because its lease had expired or PostgreSQL had crashed; open the store again";

/// A pool of connections, and the runtime that drives them.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) pool: PgPool,
    idle: Arc<IdleConnections>,
    handle: Handle,
    retry_time: Duration,
    answer_timeout: Duration,
    /// The last time when a connection failed. Older ones are closed instead of being used: their server may be gone, too.
    failed: Arc<Mutex<Option<Instant>>>,
    pub(crate) counters: Arc<Counters>,
}

impl Database {
    /// Connects, and creates or updates the tables.
    pub(crate) fn open(url: &str, connections: u32, retry_time: Duration, handle: &Handle) -> Result<Self> {
        let invalid = |why: sqlx::Error| Error::Invalid { what: "database", why: why.to_string() };
        let options = PgConnectOptions::from_str(url).map_err(invalid)?;
        let failed = Arc::<Mutex<Option<Instant>>>::default();
        let noted = Arc::clone(&failed);
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A broken connection is found by the call itself, which is then sent again.
            .test_before_acquire(false)
            .before_acquire(move |_, meta| {
                let is_usable = noted.lock().is_none_or(|failed| meta.age < failed.elapsed());
                Box::pin(async move { Ok(is_usable) })
            })
            .after_connect(|connection, _| Box::pin(prepare(connection)));
        let inside = handle.enter();
        let counters = Arc::default();
        let pool = pool.connect_lazy_with(options);
        drop(inside);
        let answer_timeout = retry_time * 2 / 3;
        let idle = Arc::new(IdleConnections::new(connections, handle));
        let handle = handle.clone();
        let database = Self { pool, idle, handle, retry_time, answer_timeout, failed, counters };
        database.handle.block_on(database.migrate())?;
        Ok(database)
    }

    /// Creates or updates the tables, again and again while there is no connection.
    async fn migrate(&self) -> Result<()> {
        let action = "prepare the database";
        let started = Instant::now();
        loop {
            match sqlx::migrate!().run(&self.pool).await {
                Ok(()) => return Ok(()),
                Err(sqlx::migrate::MigrateError::Execute(sqlx::Error::PoolTimedOut)) => {
                    if started.elapsed() >= self.retry_time {
                        return Err(self.without_connection(action).await);
                    }
                }
                // Two nodes that start at once take turns, and what one of them did is found done.
                Err(sqlx::migrate::MigrateError::Execute(error))
                    if is_transient(&error) && started.elapsed() < self.retry_time =>
                {
                    tokio::time::sleep(RETRY_DELAY_MAX).await;
                }
                Err(why) => return Err(Error::Fault { action, why: why.to_string() }),
            }
        }
    }

    /// Returns the same connections for statements that may take this long.
    pub(crate) fn with_answer_timeout(&self, answer_timeout: Duration) -> Self {
        Self { answer_timeout, ..self.clone() }
    }

    /// Runs a future on the runtime. On a thread of another runtime, that runtime moves its other tasks away first; it must have
    /// several threads.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        match Handle::try_current().map(|current| current.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| self.handle.block_on(work)),
            _ => self.handle.block_on(work),
        }
    }

    /// Calls PostgreSQL, again and again while the connection fails. The call must be idempotent, and must do no harm when an earlier
    /// attempt of it arrives late.
    #[expect(clippy::needless_pass_by_value, reason = "callers write the closure in place")]
    pub(crate) fn call<T>(
        &self,
        action: &'static str,
        make: impl AsyncFn(&mut PgConnection) -> sqlx::Result<T>,
    ) -> Result<T> {
        self.wait(async {
            let started = Instant::now();
            let mut delay = RETRY_DELAY_MIN;
            loop {
                count(&self.counters.statements);
                match self.attempt(&make).await {
                    Ok(value) => return Ok(value),
                    Err(error) if is_transient(&error) && started.elapsed() < self.retry_time => {
                        tracing::debug!(action, %error, "PostgreSQL is called again");
                        tokio::time::sleep(delay).await;
                        delay = (delay * 2).min(RETRY_DELAY_MAX);
                    }
                    Err(sqlx::Error::PoolTimedOut) => return Err(self.without_connection(action).await),
                    Err(error) => return Err(fault(action, &error)),
                }
            }
        })
    }

    /// Sends a statement once, for tasks that repeat it by themselves.
    pub(crate) async fn once<T>(
        &self,
        make: impl for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, sqlx::Result<T>>,
    ) -> sqlx::Result<T> {
        let mut lent = self.acquire().await?;
        let answer = tokio::time::timeout(self.answer_timeout, make(&mut lent.connection)).await;
        self.take_answer(lent, answer)
    }

    async fn acquire(&self) -> sqlx::Result<Lent> {
        let failed = *self.failed.lock();
        self.idle.acquire(&self.pool, failed).await
    }

    /// Gives idle connections to the pool, before it is closed.
    pub(crate) fn release_idle(&self) {
        self.idle.release();
    }

    async fn attempt<T>(&self, make: &impl AsyncFn(&mut PgConnection) -> sqlx::Result<T>) -> sqlx::Result<T> {
        let mut lent = self.acquire().await?;
        let answer = tokio::time::timeout(self.answer_timeout, make(&mut lent.connection)).await;
        self.take_answer(lent, answer)
    }

    /// Gives a connection back. One without an answer does not go back into the pool, where the next call would wait for the same
    /// answer: its server may be gone without a word, or may have been replaced.
    fn take_answer<T>(&self, lent: Lent, answer: std::result::Result<sqlx::Result<T>, Elapsed>) -> sqlx::Result<T> {
        let Ok(result) = answer else {
            drop(lent.connection.detach());
            *self.failed.lock() = Some(Instant::now());
            let why = format!("PostgreSQL did not answer within {:?}", self.answer_timeout);
            return Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, why)));
        };
        match &result {
            Err(error) if is_connection_failure(error) => *self.failed.lock() = Some(Instant::now()),
            // The pool tests a connection that it gets back.
            Err(_) => {}
            Ok(_) => self.idle.give_back(lent),
        }
        result
    }

    /// Returns the error of a call that got no connection, with the reason that PostgreSQL gives now.
    async fn without_connection(&self, action: &'static str) -> Error {
        let options = self.pool.connect_options();
        let why = match tokio::time::timeout(PROBE_TIMEOUT, options.connect()).await {
            Ok(Ok(mut connection)) => match prepare(&mut connection).await {
                Ok(()) => "all connections of this node are in use; give it more".to_owned(),
                Err(error) => error.to_string(),
            },
            Ok(Err(sqlx::Error::Database(error))) if error.code().as_deref() == Some(TOO_MANY_CONNECTIONS) => {
                format!("{}; raise its max_connections, or give the nodes fewer", error.message())
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        Error::Unreachable { action, why: format!("no connection to PostgreSQL: {why}") }
    }
}

/// Prepares a new connection, and refuses one to a standby: its answers may be old.
async fn prepare(connection: &mut PgConnection) -> sqlx::Result<()> {
    // Without JIT compilation, which costs more than these small queries.
    let query = sqlx::query_scalar(
        "SELECT pg_is_in_recovery(), set_config('jit', 'off', false), set_config('application_name', 'amalgam', false)",
    );
    match query.fetch_one(connection).await? {
        true => Err(sqlx::Error::Protocol("this PostgreSQL server is a standby".to_owned())),
        false => Ok(()),
    }
}

/// Returns whether the same call may succeed later: there was no connection, it broke, or the call lost a race.
fn is_transient(error: &sqlx::Error) -> bool {
    let is_refused = |code: &str| [TOO_MANY_CONNECTIONS, "40001", "40P01"].contains(&code);
    matches!(error, sqlx::Error::PoolTimedOut) || is_connection_failure(error) || has_code(error, is_refused)
}

/// Returns whether a connection is of no more use: it broke, or PostgreSQL stops, starts or is a standby.
fn is_connection_failure(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => true,
        error => has_code(error, |code| code.starts_with("08") || ["57P01", "57P02", "57P03", "25006"].contains(&code)),
    }
}

fn has_code(error: &sqlx::Error, is_meant: impl Fn(&str) -> bool) -> bool {
    matches!(error, sqlx::Error::Database(error) if error.code().is_some_and(|code| is_meant(&code)))
}

/// Returns the error of a write by a node that was expelled.
pub(crate) fn expelled(action: &'static str) -> Error {
    Error::Unreachable { action, why: EXPELLED.to_owned() }
}

/// Returns whether an error says that the node was expelled.
pub(crate) fn is_expulsion(error: &Error) -> bool {
    matches!(error, Error::Unreachable { why, .. } if why == EXPELLED)
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
        _ if is_transient(source) => Error::Unreachable { action, why: source.to_string() },
        _ => Error::Fault { action, why: source.to_string() },
    }
}
