//! Live trees in PostgreSQL: a lease of each with a fencing token, and the files of its journal.
//!
//! A node that needs a tree takes it. A node that has just taken it keeps it for a moment, until its first write: so two nodes do not take
//! a tree from each other before either has done its edit, and a dead node stops none.
//!
//! Calls that take, write or release a tree have numbers. One that is executed late, after it was sent again or has failed, has a lower
//! number than the last call, and changes nothing.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use amalgam_engine::Result;
use amalgam_engine::backend::{FilePart, LiveTrees, TakenTree};
use sqlx::Row as _;

use crate::identity::{Identity, signed, unsigned};
use crate::node::Cloud;

/// Time for the first write of a node that has taken a tree.
const HOLD: Duration = Duration::from_millis(50);
/// Time after which a tree is taken in any case.
const TAKE_TIMEOUT: Duration = Duration::from_secs(2);

fn milliseconds(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX)
}

impl LiveTrees for Cloud {
    fn number(&self, workspace: &str) -> Result<u64> {
        if let Some(state) = self.tree_state(workspace)? {
            return Ok(unsigned(state.number));
        }
        let number: i64 = self.database.call("number a live tree", async |connection| {
            let query = sqlx::query_scalar(
                "INSERT INTO live_trees (project, workspace) VALUES ($1, $2)
                 ON CONFLICT (project, workspace) DO UPDATE SET workspace = excluded.workspace RETURNING number",
            );
            query.bind(self.identity.project).bind(workspace).fetch_one(connection).await
        })?;
        Ok(unsigned(number))
    }

    fn find(&self, workspace: &str) -> Result<Option<u64>> {
        let found: Option<i64> = self.database.call("find a live tree", async |connection| {
            let query = sqlx::query_scalar(
                "SELECT number FROM live_trees WHERE project = $1 AND workspace = $2 AND node IS NOT NULL",
            );
            query.bind(self.identity.project).bind(workspace).fetch_optional(connection).await
        })?;
        Ok(found.map(unsigned))
    }

    fn take(&self, workspace: &str) -> Result<TakenTree> {
        let Identity { project, node, generation } = self.identity;
        let begun = Instant::now();
        let call = self.next_tree_call();
        loop {
            let force = begun.elapsed() >= TAKE_TIMEOUT;
            let row = self.database.call("take a live tree", async |connection| {
                let query =
                    sqlx::query("SELECT of_number, of_token, wait FROM take_live_tree($1, $2, $3, $4, $5, $6, $7)");
                let query = query.bind(project).bind(&node[..]).bind(generation).bind(workspace);
                query.bind(milliseconds(HOLD)).bind(force).bind(call).fetch_one(connection).await
            });
            let row = row.inspect_err(|error| self.note_expulsion(error))?;
            let wait: i32 = row.get(2);
            if wait > 0 {
                std::thread::sleep(Duration::from_millis(u64::from(wait.unsigned_abs())).min(HOLD));
                continue;
            }
            let (number, token) = (unsigned(row.get(0)), unsigned(row.get(1)));
            return Ok(TakenTree { number, token, files: self.live_files(number)? });
        }
    }

    fn is_held(&self, number: u64, token: u64) -> Result<bool> {
        let Identity { project, node, generation } = self.identity;
        self.database.call("check a live tree", async |connection| {
            let query = sqlx::query_scalar(
                "SELECT EXISTS (SELECT 1 FROM live_trees
                 WHERE project = $1 AND node = $2 AND generation = $3 AND number = $4 AND token = $5)",
            );
            let query = query.bind(project).bind(&node[..]).bind(generation);
            query.bind(signed(number)).bind(signed(token)).fetch_one(connection).await
        })
    }

    fn write(&self, number: u64, token: u64, names: &[String], parts: &[FilePart]) -> Result<bool> {
        let Identity { project, node, generation } = self.identity;
        let part_names: Vec<_> = parts.iter().map(|part| part.name.clone()).collect();
        let starts: Vec<_> = parts.iter().map(|part| signed(part.start)).collect();
        let bytes: Vec<_> = parts.iter().map(|part| &part.bytes[..]).collect();
        let call = self.next_tree_call();
        let stored: Result<bool> = self.database.call("store the journal of a live tree", async |connection| {
            let query = sqlx::query_scalar("SELECT write_live_tree($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)");
            let query = query.bind(project).bind(&node[..]).bind(generation).bind(signed(number)).bind(signed(token));
            let query = query.bind(call).bind(names).bind(&part_names[..]).bind(&starts[..]).bind(&bytes[..]);
            query.fetch_one(connection).await
        });
        stored.inspect_err(|error| self.note_expulsion(error))
    }

    fn release(&self, number: u64, token: u64) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        let call = self.next_tree_call();
        let released = self.database.call("release a live tree", async |connection| {
            let query = sqlx::query("SELECT release_live_tree($1, $2, $3, $4, $5, $6)");
            let query = query.bind(project).bind(&node[..]).bind(generation);
            query.bind(signed(number)).bind(signed(token)).bind(call).execute(connection).await.map(drop)
        });
        released.inspect_err(|error| self.note_expulsion(error))
    }

    fn forget(&self, workspace: &str) -> Result<()> {
        while let Some(TreeState { number, token, last_call }) = self.tree_state(workspace)? {
            let is_forgotten: bool = self.database.call("forget a live tree", async |connection| {
                let query = sqlx::query_scalar("SELECT forget_live_tree($1, $2, $3, $4, $5)");
                let query = query.bind(self.identity.project).bind(workspace);
                query.bind(number).bind(token).bind(last_call).fetch_one(connection).await
            })?;
            // Otherwise the tree has changed since, or this call was executed before and its answer was lost.
            if is_forgotten {
                break;
            }
        }
        Ok(())
    }

    fn is_expelled(&self) -> bool {
        Cloud::is_expelled(self)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let Some(TreeState { number, .. }) = self.tree_state(from)? else { return Ok(()) };
        self.database.call("rename a live tree", async |connection| {
            // By its number: executed late, it leaves the tree of a later workspace with that name alone.
            let query = sqlx::query(
                "UPDATE live_trees SET workspace = $3 WHERE project = $1 AND workspace = $2 AND number = $4",
            );
            let query = query.bind(self.identity.project).bind(from).bind(to).bind(number);
            query.execute(connection).await.map(drop)
        })
    }
}

/// The state of a live tree, as PostgreSQL stores it.
struct TreeState {
    number: i64,
    token: i64,
    last_call: i64,
}

impl Cloud {
    /// Returns the number of the next call that takes, writes or releases a live tree.
    fn next_tree_call(&self) -> i64 {
        signed(self.last_tree_call.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn tree_state(&self, workspace: &str) -> Result<Option<TreeState>> {
        let row = self.database.call("find a live tree", async |connection| {
            let query =
                sqlx::query("SELECT number, token, last_call FROM live_trees WHERE project = $1 AND workspace = $2");
            query.bind(self.identity.project).bind(workspace).fetch_optional(connection).await
        })?;
        Ok(row.map(|row| TreeState { number: row.get(0), token: row.get(1), last_call: row.get(2) }))
    }

    /// Returns the workspaces whose live trees are open on a node or have uncommitted work.
    pub fn uncommitted_workspaces(&self) -> Result<Vec<String>> {
        self.database.call("list live trees", async |connection| {
            let query = sqlx::query_scalar(
                "SELECT workspace FROM live_trees WHERE project = $1 AND node IS NOT NULL ORDER BY workspace",
            );
            query.bind(self.identity.project).fetch_all(connection).await
        })
    }

    /// Returns the files of a tree. No other node writes them while this one has the tree.
    fn live_files(&self, number: u64) -> Result<Vec<(String, Vec<u8>)>> {
        let rows = self.database.call("read the journal of a live tree", async |connection| {
            let query = sqlx::query(
                "SELECT name, bytes FROM live_files WHERE project = $1 AND number = $2 ORDER BY name, start",
            );
            query.bind(self.identity.project).bind(signed(number)).fetch_all(connection).await
        })?;
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        for row in rows {
            let (name, bytes): (String, Vec<u8>) = (row.get(0), row.get(1));
            match files.last_mut() {
                Some((last, content)) if *last == name => content.extend_from_slice(&bytes),
                _ => files.push((name, bytes)),
            }
        }
        Ok(files)
    }
}
