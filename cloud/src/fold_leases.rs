//! Leases of the targets of the merge queue in PostgreSQL. A lease ends with its node, so it needs no clock of its own.
//!
//! A release that arrives late, after the same node has taken the lease again, frees it too early: two nodes may then fold the target at
//! once, and the transaction that lands first wins.

use std::sync::atomic::Ordering;

use amalgam_engine::Result;
use amalgam_engine::backend::FoldLeases;

use crate::database::is_expulsion;
use crate::identity::Identity;
use crate::node::Cloud;

impl FoldLeases for Cloud {
    fn take_fold_lease(&self, target: &str) -> Result<bool> {
        let Identity { project, node, generation } = self.identity;
        let taken = self.database.call("take the lease of a target", async |connection| {
            let query = sqlx::query_scalar("SELECT take_fold_lease($1, $2, $3, $4)");
            query.bind(project).bind(&node[..]).bind(generation).bind(target).fetch_one(connection).await
        });
        taken.inspect_err(|error| {
            if is_expulsion(error) {
                self.pulse.is_expelled.store(true, Ordering::SeqCst);
            }
        })
    }

    fn release_fold_lease(&self, target: &str) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        self.database.call("give the lease of a target back", async |connection| {
            let query = sqlx::query("SELECT release_fold_lease($1, $2, $3, $4)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(target);
            query.execute(connection).await.map(drop)
        })
    }
}
