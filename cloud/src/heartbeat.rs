//! The heartbeat of a node: renews its lease, and that of the collector while it collects, and looks for collections of other nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::database::Database;
use crate::identity::{Identity, signed, unsigned};
use crate::rounds::{Answer, Rounds};

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
    /// The token of the last collection of this node.
    pub(crate) collector_token: AtomicU64,
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
            collector_token: AtomicU64::new(0),
        }
    }

    /// Records an operation that exists.
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
        let renewed = self.database.once(|connection| Box::pin(query.execute(connection))).await?;
        if renewed.rows_affected() == 0 && !self.is_expelled.swap(true, Ordering::SeqCst) {
            tracing::warn!("this node was expelled; it writes again after the project was opened anew");
        }
        Ok(())
    }

    /// Renews the lease of the collector, for the stages of a collection that delete nothing.
    async fn renew_collection(&self) -> sqlx::Result<()> {
        let Identity { project, node, .. } = self.identity;
        let query = sqlx::query(
            "UPDATE projects SET collector_expires = clock_timestamp() + make_interval(secs => collector_lease)
             WHERE project = $1 AND collector = $2 AND collector_token = $3 AND collector_expires > clock_timestamp()",
        );
        let token = signed(self.collector_token.load(Ordering::SeqCst));
        let query = query.bind(project).bind(node.to_vec()).bind(token);
        self.database.once(|connection| Box::pin(query.execute(connection))).await.map(drop)
    }

    /// Returns the token of the collection of another node, or 0.
    async fn collection_elsewhere(&self) -> sqlx::Result<u64> {
        let query = sqlx::query_scalar(
            "SELECT CASE WHEN collector <> $2 AND collector_expires > clock_timestamp() THEN collector_token ELSE 0 END
             FROM projects WHERE project = $1",
        );
        let query = query.bind(self.identity.project).bind(self.identity.node.to_vec());
        let token: i64 = self.database.once(|connection| Box::pin(query.fetch_one(connection))).await?;
        Ok(unsigned(token))
    }
}

/// Renews the lease for ever, and calls `answer` when a collection of another node has begun or ended.
pub(crate) async fn beat(pulse: Arc<Pulse>, rounds: Arc<Rounds>, answer: Arc<Answer>) {
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
        match pulse.collection_elsewhere().await {
            Ok(token) if rounds.is_news(token) => answer(),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "collections of other nodes are not known"),
        }
    }
}
