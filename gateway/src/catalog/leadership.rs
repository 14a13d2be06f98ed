//! Work that one node of a cluster does for all: the node that holds an advisory lock of PostgreSQL. The lock ends with its connection.

use std::time::{Duration, Instant};

use sqlx::{AnyConnection, Executor as _, Row as _};

use super::Catalog;

/// Statement that tries to take the advisory lock. Other locks in the same database use other numbers.
const TRY_LOCK: &str = "SELECT pg_try_advisory_lock(7018770163146187009) AS leads";
/// Delay between two attempts of a node to become the leader.
const TRY_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the checks of the leader's connection, and the time that one check may take.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The right to do the work. It ends when this is dropped, or when the connection is lost.
pub(crate) struct Leadership {
    /// `None` for a catalog that only this server uses.
    connection: Option<AnyConnection>,
    begun: Instant,
    catalog: Catalog,
}

impl Catalog {
    /// Waits until this node is the leader. The only server of a catalog always is.
    pub(crate) async fn lead(&self) -> Leadership {
        if !self.is_shared() {
            return self.leadership(None);
        }
        loop {
            match self.try_lead().await {
                Ok(Some(connection)) => return self.leadership(Some(connection)),
                Ok(None) => {}
                Err(error) => tracing::warn!(%error, "which node sends webhooks cannot be decided"),
            }
            tokio::time::sleep(TRY_INTERVAL).await;
        }
    }

    fn leadership(&self, connection: Option<AnyConnection>) -> Leadership {
        Leadership { connection, begun: Instant::now(), catalog: self.clone() }
    }

    async fn try_lead(&self) -> sqlx::Result<Option<AnyConnection>> {
        // Detached from the pool: a pooled connection would keep the lock after it was given back.
        let mut connection = self.pool.acquire().await?.detach();
        let row = tokio::time::timeout(CHECK_INTERVAL, connection.fetch_one(TRY_LOCK)).await;
        let leads: bool = row.map_err(|_| sqlx::Error::PoolTimedOut)??.try_get("leads")?;
        Ok(leads.then_some(connection))
    }
}

impl Leadership {
    /// Completes when this node is no longer the leader. A PostgreSQL server that was replaced may still answer over the connection
    /// with the lock, so a node that has lost another connection meanwhile gives up the lead.
    pub(crate) async fn lost(&mut self) {
        let Some(connection) = &mut self.connection else { return std::future::pending().await };
        while let Ok(Ok(_)) = tokio::time::timeout(CHECK_INTERVAL, connection.execute("SELECT 1")).await
            && !self.catalog.pool.has_failed_since(self.begun)
        {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}
