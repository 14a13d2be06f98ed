//! The deletion interface of a collection. PostgreSQL decides: a batch of deletions checks, under the lock of the project, that this
//! node is the collector and that no session on any node has checked for the objects since.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_engine::backend::rows::damaged;
use amalgam_engine::backend::{Deletion, Epoch, IndexRow, KeptRows, Reclaimed, SharedCollection, Sweep, WatchReclaim};
use amalgam_engine::{Error, ObjectId, Result};
use sqlx::Row as _;

use crate::identity::{Identity, signed, unsigned};
use crate::node::{Cloud, Node};
use crate::rounds::decode;

/// Delay before a collector looks again whether all nodes have answered.
const ANSWER_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Leases after which a node that is alive and does not answer ends a collection.
const ANSWER_LEASES: u32 = 2;

impl Node {
    /// Returns the token of this node's collection, as PostgreSQL stores it.
    pub(crate) fn token(&self) -> i64 {
        signed(self.pulse.collector_token.load(Ordering::SeqCst))
    }

    fn expel_silent_nodes(&self) -> Result<()> {
        self.database.call("expel silent nodes", async |connection| {
            let query = sqlx::query("DELETE FROM nodes WHERE expires < clock_timestamp()");
            query.execute(connection).await.map(drop)
        })
    }
}

impl Sweep for Cloud {
    fn advance_epoch(&self) -> Result<Epoch> {
        let Identity { project, node, generation } = self.identity;
        // Committed before the epoch starts: a commit of an expelled node came before, and is a root, or is refused.
        self.expel_silent_nodes()?;
        // Moves of packs that began before have ended, and none begins: an object that moves looks new to the sweep.
        let _moving = self.moving.lock();
        let lease = self.options.lease.as_secs_f64();
        let begun = self.database.call("begin a collection", async |connection| {
            let query = sqlx::query("SELECT token, new_epoch FROM begin_collection($1, $2, $3, $4)");
            query.bind(project).bind(&node[..]).bind(generation).bind(lease).fetch_one(connection).await
        })?;
        self.pulse.collector_token.store(unsigned(begun.get(0)), Ordering::SeqCst);
        self.pulse.is_collecting.store(true, Ordering::SeqCst);
        self.holds_seen.store(0, Ordering::SeqCst);
        self.note_epoch(begun.get(1));
        self.hints.tell_collection(project);
        match self.refresh() {
            Ok(()) => Ok(unsigned(begun.get(1))),
            Err(error) => {
                self.end_collection();
                Err(error)
            }
        }
    }

    /// Waits for the answers of all other nodes. A node that is silent for longer than its lease is expelled.
    fn sessions_elsewhere(&self) -> Result<Option<Epoch>> {
        let Identity { project, node, generation } = self.identity;
        let begun = Instant::now();
        let timeout = self.options.lease * ANSWER_LEASES;
        loop {
            let answers = self.database.call("wait for other nodes", async |connection| {
                let query = sqlx::query("SELECT waiting, oldest FROM collection_answers($1, $2, $3, $4)");
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(self.token());
                query.fetch_one(connection).await
            })?;
            if answers.get::<i64, _>(0) == 0 {
                return Ok(answers.get::<Option<i64>, _>(1).map(unsigned));
            }
            if begun.elapsed() > timeout {
                let why =
                    "a node that has the project open does not answer; nodes of an older version cannot".to_owned();
                return Err(Error::UnderWay { what: "collection", why });
            }
            std::thread::sleep(ANSWER_POLL_INTERVAL);
            self.expel_silent_nodes()?;
        }
    }

    fn pins_elsewhere(&self) -> Result<Vec<ObjectId>> {
        let seen = self.holds_seen.load(Ordering::SeqCst);
        let rows = self.database.call("read pins of other nodes", async |connection| {
            let query = sqlx::query(
                "SELECT number, ids FROM holds WHERE project = $1 AND token = $2 AND number > $3 ORDER BY number",
            );
            let query = query.bind(self.identity.project).bind(self.token()).bind(signed(seen));
            query.fetch_all(connection).await
        })?;
        let mut pins = Vec::new();
        for row in &rows {
            let ids: Vec<Vec<u8>> = row.get(1);
            for id in ids {
                pins.push(decode(&id).ok_or_else(|| damaged("list of pins", &"an id of the wrong form"))?);
            }
        }
        if let Some(last) = rows.last() {
            self.holds_seen.store(unsigned(last.get(0)), Ordering::SeqCst);
        }
        Ok(pins)
    }

    fn last_collection(&self) -> Result<Option<SharedCollection>> {
        let row = self.database.call("read the last collection", async |connection| {
            let query = sqlx::query(
                "SELECT extract(epoch FROM clock_timestamp() - collected_at)::double precision, collected_bytes,
                   (SELECT coalesce(sum(k.bytes), 0)::bigint FROM packs k WHERE k.project = $1 AND k.state = 'l'),
                   collector IS NOT NULL AND collector_expires > clock_timestamp()
                 FROM projects WHERE project = $1",
            );
            query.bind(self.identity.project).fetch_one(connection).await
        })?;
        let seconds: Option<f64> = row.get(0);
        Ok(Some(SharedCollection {
            age: seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()),
            bytes_after: unsigned(row.get(1)),
            bytes: unsigned(row.get(2)),
            is_under_way: row.get(3),
        }))
    }

    /// Gives the collector's lease back. If PostgreSQL cannot be reached, the lease expires.
    fn end_collection(&self) {
        self.pulse.is_collecting.store(false, Ordering::SeqCst);
        let Identity { project, node, .. } = self.identity;
        let ended = self.database.call("end a collection", async |connection| {
            let query = sqlx::query(
                "UPDATE projects SET collector = NULL, collector_token = collector_token + 1
                 WHERE project = $1 AND collector = $2 AND collector_token = $3",
            );
            query.bind(project).bind(&node[..]).bind(self.token()).execute(connection).await.map(drop)
        });
        self.hints.tell_collection(project);
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
        let end: i64 = self.database.call("count objects", async |connection| {
            let query = sqlx::query_scalar("SELECT next_number FROM projects WHERE project = $1");
            query.bind(self.identity.project).fetch_one(connection).await
        })?;
        // A pack takes its numbers when it is registered, and is visible at the same moment.
        self.refresh()?;
        Ok(unsigned(end))
    }

    fn delete(&self, ids: &[ObjectId], older_than: Epoch) -> Result<Deletion> {
        let Identity { project, node, generation } = self.identity;
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
            let row = self.database.call("delete objects", async |connection| {
                let query = sqlx::query(
                    "SELECT behind, stayed, of_change, pinned FROM bury_objects($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
                );
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(self.token()).bind(signed(seen));
                let query = query.bind(signed(self.holds_seen.load(Ordering::SeqCst)));
                let query = query.bind(signed(older_than)).bind(&items[..]).bind(&packs[..]).bind(&slots[..]);
                query.fetch_one(connection).await
            })?;
            if row.get::<bool, _>(0) {
                self.refresh()?;
                continue;
            }
            if row.get(3) {
                return self.pins_elsewhere().map(Deletion::Pinned);
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
            return Ok(Deletion::Done(gone));
        }
    }

    fn trim_operations(&self, before: u64, limit: usize) -> Result<u64> {
        let Identity { project, node, generation } = self.identity;
        let first: i64 = self.database.call("trim the operation log", async |connection| {
            let query = sqlx::query_scalar("SELECT trim_operations($1, $2, $3, $4, $5)");
            let query = query.bind(project).bind(&node[..]).bind(generation);
            query.bind(signed(before)).bind(signed(limit as u64)).fetch_one(connection).await
        })?;
        Ok(unsigned(first))
    }

    fn reclaim(&self, named: KeptRows, watch: WatchReclaim<'_>) -> Result<Reclaimed> {
        self.reclaim_packs(&named, watch)
    }
}
