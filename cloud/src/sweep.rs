//! The deletion interface of a collection. PostgreSQL decides: a batch of deletions checks, under the lock of the project, that this
//! node is the collector and that no session on any node has checked for the objects since.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use amalgam_engine::backend::{Epoch, IndexRow, KeptRows, Reclaimed, Sweep, WatchReclaim};
use amalgam_engine::{ObjectId, Result};
use sqlx::Row as _;

use crate::identity::{Identity, signed, unsigned};
use crate::node::Cloud;

impl Sweep for Cloud {
    fn advance_epoch(&self) -> Result<Epoch> {
        let Identity { project, node, generation } = self.identity;
        let pool = &self.database.pool;
        // Committed before the epoch starts: a commit of an expelled node came before, and is a root, or is refused.
        self.database.call("expel silent nodes", || async {
            let query = sqlx::query("DELETE FROM nodes WHERE expires < clock_timestamp()");
            query.execute(pool).await.map(drop)
        })?;
        // Moves of packs that began before have ended, and none begins: an object that moves looks new to the sweep.
        let _moving = self.moving.lock();
        let begun = self.database.call("begin a collection", || async {
            let query = sqlx::query("SELECT token, new_epoch FROM begin_collection($1, $2, $3)");
            query.bind(project).bind(&node[..]).bind(generation).fetch_one(pool).await
        })?;
        self.collector_token.store(unsigned(begun.get(0)), Ordering::SeqCst);
        self.pulse.is_collecting.store(true, Ordering::SeqCst);
        self.note_epoch(begun.get(1));
        match self.refresh() {
            Ok(()) => Ok(unsigned(begun.get(1))),
            Err(error) => {
                self.end_collection();
                Err(error)
            }
        }
    }

    /// Gives the collector's lease back. If PostgreSQL cannot be reached, the lease expires.
    fn end_collection(&self) {
        self.pulse.is_collecting.store(false, Ordering::SeqCst);
        let Identity { project, node, .. } = self.identity;
        let ended = self.database.call("end a collection", || async {
            let query = sqlx::query("UPDATE projects SET collector = NULL WHERE project = $1 AND collector = $2");
            query.bind(project).bind(&node[..]).execute(&self.database.pool).await.map(drop)
        });
        if let Err(error) = ended {
            tracing::warn!(%error, "the lease of the collector was not given back");
        }
    }

    fn scan(&self, after: Option<ObjectId>, limit: usize) -> Result<Vec<IndexRow>> {
        let from = after.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.hash));
        Ok(self.index.read().rows(from, limit))
    }

    fn look_up(&self, ids: &[ObjectId]) -> Result<Vec<Option<IndexRow>>> {
        let index = self.index.read();
        Ok(ids.iter().map(|id| index.row(*id)).collect())
    }

    fn objects_estimate(&self) -> Result<u64> {
        Ok(self.index.read().objects())
    }

    fn numbers_end(&self) -> Result<u64> {
        let end: i64 = self.database.call("count objects", || async {
            let query = sqlx::query_scalar("SELECT next_number FROM projects WHERE project = $1");
            query.bind(self.identity.project).fetch_one(&self.database.pool).await
        })?;
        // A pack takes its numbers when it is registered, and is visible at the same moment.
        self.refresh()?;
        Ok(unsigned(end))
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Vec<bool>> {
        let Identity { project, node, generation } = self.identity;
        let token = signed(self.collector_token.load(Ordering::SeqCst));
        let existed: Vec<_> = {
            let index = self.index.read();
            ids.iter().map(|id| index.epoch_of(*id).is_some()).collect()
        };
        loop {
            let (mut items, mut packs, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            // An object that has gone since was deleted by this call, whose first answer was lost: there is no other collector.
            let mut gone = vec![false; ids.len()];
            let seen = {
                let index = self.index.read();
                for (item, id) in (0..).zip(ids) {
                    let copies = index.copies(*id);
                    gone[item as usize] = existed[item as usize] && copies.is_empty();
                    for copy in copies {
                        items.push(item);
                        packs.push(signed(copy.pack.first));
                        slots.push(copy.slot as i32);
                    }
                }
                index.seen()
            };
            let row = self.database.call("delete objects", || async {
                let query = sqlx::query(
                    "SELECT behind, stayed, of_change FROM bury_objects($1, $2, $3, $4, $5, $6, $7, $8, $9)",
                );
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(token).bind(signed(seen));
                let query = query.bind(signed(older_than)).bind(&items[..]).bind(&packs[..]).bind(&slots[..]);
                query.fetch_one(&self.database.pool).await
            })?;
            if row.get::<bool, _>(0) {
                self.refresh()?;
                continue;
            }
            let stayed: HashSet<i32> = row.get::<Vec<i32>, _>(1).into_iter().collect();
            let mut index = self.index.write();
            for ((item, first), slot) in items.iter().zip(&packs).zip(&slots) {
                if !stayed.contains(item) {
                    gone[*item as usize] = true;
                    index.bury(unsigned(*first), [*slot as u32]);
                }
            }
            index.note(unsigned(row.get(2)));
            return Ok(gone);
        }
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        let Identity { project, node, generation } = self.identity;
        let first: i64 = self.database.call("trim the operation log", || async {
            let query = sqlx::query_scalar("SELECT trim_operations($1, $2, $3, $4, $5)");
            let query = query.bind(project).bind(&node[..]).bind(generation);
            query.bind(signed(before)).bind(signed(limit as u64)).fetch_one(&self.database.pool).await
        })?;
        Ok(unsigned(first))
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.reclaim_packs(&named, watch)
    }
}
