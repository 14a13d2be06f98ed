//! Answers the collections of other nodes: tells what the sessions and pins of this node hold, and announces new pins while one runs. The
//! collector deletes nothing before every node has answered, and nothing while there is a pin that it has not seen.
//!
//! A node answers when a hint wakes it, and at each heartbeat. A collection has ended for this node when its index has every deletion of
//! it: outside of collections a pin needs no call.

use std::sync::atomic::Ordering;

use amalgam_engine::{ObjectId, Result};
use sqlx::Row as _;

use crate::identity::{Identity, signed, unsigned};
use crate::node::Node;
use crate::rounds::encode;

impl Node {
    /// Answers the collection of another node that has begun, and ends the one that has ended.
    pub(crate) fn answer_collections(&self) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        let mut answered = self.rounds.answered.lock();
        let current = self.database.call("look for a collection", async |connection| {
            let query = sqlx::query("SELECT of_collector, of_token, of_epoch FROM current_collection($1)");
            query.bind(project).fetch_one(connection).await
        })?;
        let collector: Option<Vec<u8>> = current.get(0);
        let token = match &collector {
            Some(collector) if collector[..] != node => unsigned(current.get(1)),
            _ => 0,
        };
        if *answered == token {
            return Ok(());
        }
        // Every deletion of the collection before is in the index from now on.
        self.refresh()?;
        if token == 0 {
            self.rounds.set(0);
            *answered = 0;
            return Ok(());
        }
        // Sessions that are not counted below have the new epoch, and pins that are not counted are announced.
        self.note_epoch(current.get(2));
        self.rounds.set(token);
        let (oldest, pins) = self.rounds.held();
        let pins: Vec<_> = pins.iter().map(encode).collect();
        self.database.call("answer a collection", async |connection| {
            let query = sqlx::query("SELECT answer_collection($1, $2, $3, $4, $5, $6)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(signed(token));
            query.bind(oldest.map(signed)).bind(&pins[..]).execute(connection).await.map(drop)
        })?;
        *answered = token;
        Ok(())
    }

    /// Tells the collector of another node that an object is pinned, and brings the index up to date with all earlier deletions.
    pub(crate) fn announce(&self, id: ObjectId) -> Result<()> {
        let token = self.rounds.token.load(Ordering::SeqCst);
        if token == 0 || self.rounds.announced.lock().contains(&id) {
            return Ok(());
        }
        let Identity { project, node, generation } = self.identity;
        let announced = self.database.call("announce a pin", async |connection| {
            let query = sqlx::query("SELECT is_over, next FROM announce_pins($1, $2, $3, $4, $5)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(signed(token));
            query.bind(&[encode(&id)][..]).fetch_one(connection).await
        });
        let announced = announced.inspect_err(|error| {
            tracing::warn!(%error, "a pin was not announced to the collector; this node writes no more");
            self.pulse.is_expelled.store(true, Ordering::SeqCst);
        })?;
        self.refresh_until(announced.get(1))?;
        if announced.get(0) {
            return self.answer_collections();
        }
        let mut known = self.rounds.announced.lock();
        // Another collection may have begun: it has not seen this announcement.
        if self.rounds.token.load(Ordering::SeqCst) == token {
            known.insert(id);
        }
        Ok(())
    }
}
