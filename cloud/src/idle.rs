//! Connections that stay with this process between calls.
//!
//! The pool of `sqlx` sends a statement over every connection that it gets back, and a task of the runtime waits for the answer: as much
//! work as a small call, and the next call finds that connection in use. A connection that succeeded needs no test.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::Postgres;
use sqlx::pool::PoolConnection;
use sqlx::postgres::PgPool;
use tokio::runtime::Handle;

/// Connections that are kept at most, beside those that the pool has itself.
const KEPT_MAX: u32 = 4;
/// Connections that are never kept: one that listens, and one for other users of the pool.
const LEFT_TO_POOL: u32 = 2;
/// Time after which a connection goes back to the pool, which closes old ones.
const KEEP_TIME: Duration = Duration::from_secs(600);

/// A connection of the pool.
pub(crate) struct Lent {
    pub(crate) connection: PoolConnection<Postgres>,
    /// A moment before the pool gave the connection out.
    since: Instant,
}

#[derive(Default)]
struct State {
    kept: Vec<Lent>,
    /// Calls that wait for a connection of the pool.
    waiting: usize,
}

/// The connections of a process that no call uses at the moment.
pub(crate) struct IdleConnections {
    state: Mutex<State>,
    kept_max: usize,
    handle: Handle,
}

/// Counts a call that waits for the pool.
struct Waiting<'a>(&'a IdleConnections);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

impl IdleConnections {
    pub(crate) fn new(connections: u32, handle: &Handle) -> Self {
        let kept_max = connections.saturating_sub(LEFT_TO_POOL).min(KEPT_MAX) as usize;
        Self { state: Mutex::default(), kept_max, handle: handle.clone() }
    }

    /// Returns a connection that was kept, or else one of the pool. One that is older than the last failure of a connection counts as
    /// broken.
    pub(crate) async fn acquire(&self, pool: &PgPool, failed: Option<Instant>) -> sqlx::Result<Lent> {
        let since = Instant::now();
        let mut broken = Vec::new();
        let waiting = {
            let mut state = self.state.lock();
            while let Some(lent) = state.kept.pop() {
                if failed.is_none_or(|failed| failed < lent.since) {
                    return Ok(lent);
                }
                broken.push(lent);
            }
            // Under the same lock: a call that ends from now on gives its connection to the pool.
            state.waiting += 1;
            Waiting(self)
        };
        drop(broken);
        let connection = pool.acquire().await?;
        drop(waiting);
        Ok(Lent { connection, since })
    }

    /// Keeps a connection over which a call succeeded. Must be called inside of the runtime.
    pub(crate) fn give_back(&self, lent: Lent) {
        let mut state = self.state.lock();
        if state.waiting == 0 && state.kept.len() < self.kept_max && lent.since.elapsed() < KEEP_TIME {
            state.kept.push(lent);
            return;
        }
        drop(state);
        drop(lent);
    }

    /// Gives all connections to the pool.
    pub(crate) fn release(&self) {
        // The pool takes a connection back in a task.
        let _inside = self.handle.enter();
        drop(std::mem::take(&mut self.state.lock().kept));
    }
}

impl Drop for IdleConnections {
    fn drop(&mut self) {
        self.release();
    }
}
