//! The heartbeat of a node: renews its lease, and that of the collector while it collects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::database::Database;
use crate::identity::Identity;

/// A lease is renewed this many times before it would expire.
const BEATS_PER_LEASE: u32 = 6;

pub(crate) struct Pulse {
    database: Database,
    identity: Identity,
    lease: Duration,
    /// The newest epoch that this node has seen.
    pub(crate) epoch: AtomicU64,
    /// The newest operation that this node has seen.
    pub(crate) operation: AtomicU64,
    /// Whether this node was expelled.
    pub(crate) is_expelled: AtomicBool,
    /// Whether this node collects the project.
    pub(crate) is_collecting: AtomicBool,
}

impl Pulse {
    pub(crate) fn new(database: Database, identity: Identity, lease: Duration) -> Self {
        Self {
            database,
            identity,
            lease,
            epoch: AtomicU64::new(0),
            operation: AtomicU64::new(0),
            is_expelled: AtomicBool::new(false),
            is_collecting: AtomicBool::new(false),
        }
    }

    /// Notes an operation that exists.
    pub(crate) fn note_operation(&self, sequence: u64) {
        self.operation.fetch_max(sequence, Ordering::SeqCst);
    }

    /// Renews the lease. An expelled node stays expelled: nothing matches its generation.
    async fn renew(&self) -> sqlx::Result<()> {
        let Identity { node, generation, .. } = self.identity;
        let query = sqlx::query(
            "UPDATE nodes SET expires = clock_timestamp() + make_interval(secs => $3)
             WHERE node = $1 AND generation = $2",
        );
        let query = query.bind(node.to_vec()).bind(generation).bind(self.lease.as_secs_f64());
        let renewed = query.execute(&self.database.pool).await?;
        if renewed.rows_affected() == 0 && !self.is_expelled.swap(true, Ordering::SeqCst) {
            tracing::warn!("this node was expelled; it writes again after the project was opened anew");
        }
        Ok(())
    }

    /// Renews the lease of the collector, for the stages of a collection that delete nothing.
    async fn renew_collection(&self) -> sqlx::Result<()> {
        let Identity { project, node, .. } = self.identity;
        let query = sqlx::query(
            "UPDATE projects SET collector_expires = clock_timestamp() + interval '30 seconds'
             WHERE project = $1 AND collector = $2",
        );
        query.bind(project).bind(node.to_vec()).execute(&self.database.pool).await.map(drop)
    }
}

/// Renews the lease for ever.
pub(crate) async fn beat(pulse: Arc<Pulse>) {
    loop {
        tokio::time::sleep(pulse.lease / BEATS_PER_LEASE).await;
        if let Err(error) = pulse.renew().await {
            tracing::warn!(%error, "the lease of this node was not renewed");
        }
        if pulse.is_collecting.load(Ordering::SeqCst)
            && let Err(error) = pulse.renew_collection().await
        {
            tracing::warn!(%error, "the lease of the collector was not renewed");
        }
    }
}
