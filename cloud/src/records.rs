//! Reads references, operations and requests. Each is one query of the primary, so that reads are linearizable.

use std::sync::atomic::Ordering;

use amalgam_engine::backend::rows::{RefRow, damaged};
use amalgam_engine::reference::{Operation, RefName, RefValue, RequestId};
use amalgam_engine::{Error, ObjectId, Result, Time};
use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::commit::read_operation;
use crate::database::expelled;
use crate::identity::{Identity, signed, unsigned};
use crate::node::Node;

fn read_name(name: String) -> Result<RefName> {
    RefName::new(name).map_err(|why| damaged("reference", &why))
}

fn read_value(bytes: Vec<u8>) -> Result<RefValue> {
    RefValue::decode(bytes.into()).map_err(|why| damaged("reference", &why))
}

fn operation_at(row: &PgRow, column: usize) -> Result<Option<Operation>> {
    let Some(sequence) = row.get::<Option<i64>, _>(column) else { return Ok(None) };
    let previous: Vec<i64> = row.get(column + 2);
    read_operation(sequence, row.get(column + 1), &previous).map(Some)
}

impl Node {
    /// Returns a reference. The objects that it names are in the index afterwards.
    pub(crate) fn ref_row(&self, name: &RefName) -> Result<Option<RefRow>> {
        let row = self.database.call("read a reference", async |connection| {
            let query = sqlx::query(
                "SELECT p.next_change, f.value, f.last_move FROM projects p
                 LEFT JOIN refs f ON f.project = p.project AND f.name = $2 WHERE p.project = $1",
            );
            query.bind(self.identity.project).bind(name.as_str()).fetch_one(connection).await
        })?;
        self.refresh_until(row.get(0))?;
        let Some(value) = row.get::<Option<Vec<u8>>, _>(1) else { return Ok(None) };
        Ok(Some(RefRow { value: read_value(value)?, operation: unsigned(row.get(2)) }))
    }

    /// Lists references whose name starts with a prefix, after a name.
    pub(crate) fn refs(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(RefName, RefRow)>> {
        // No name with the prefix is greater: a name has at most 512 bytes.
        let end = format!("{prefix}{}", "\u{10ffff}".repeat(128));
        let rows = self.database.call("list references", async |connection| {
            let query = sqlx::query(
                "SELECT (SELECT next_change FROM projects WHERE project = $1), name, value, last_move FROM refs
                 WHERE project = $1 AND name >= greatest($2, coalesce($3, '')) AND name <= $5
                   AND ($3 IS NULL OR name > $3) AND starts_with(name, $2) ORDER BY name LIMIT $4",
            );
            let query = query.bind(self.identity.project).bind(prefix).bind(after).bind(signed(limit as u64));
            query.bind(&end[..]).fetch_all(connection).await
        })?;
        if let Some(row) = rows.first() {
            self.refresh_until(row.get(0))?;
        }
        let read = |row: &PgRow| {
            let value = read_value(row.get(2))?;
            Ok((read_name(row.get(1))?, RefRow { value, operation: unsigned(row.get(3)) }))
        };
        rows.iter().map(read).collect()
    }

    /// Returns the labels and workspaces that point at an object.
    pub(crate) fn names_pointing_at(&self, target: ObjectId) -> Result<Vec<RefName>> {
        let start = RefValue::to(target).encode();
        let rows: Vec<String> = self.database.call("list references", async |connection| {
            let query = sqlx::query_scalar(
                "SELECT name FROM refs WHERE project = $1 AND substring(value FROM 1 FOR $3) = $2
                   AND (starts_with(name, 'label/') OR starts_with(name, 'workspace/')) ORDER BY name",
            );
            let length = i32::try_from(start.len()).unwrap_or(i32::MAX);
            query.bind(self.identity.project).bind(&start[..]).bind(length).fetch_all(connection).await
        })?;
        rows.into_iter().map(read_name).collect()
    }

    /// Lists operations after a number. The beginning of the log is read with them, in one statement.
    pub(crate) fn operations(&self, after: u64, limit: usize) -> Result<Vec<Operation>> {
        let rows = self.database.call("list operations", async |connection| {
            let query = sqlx::query(
                "SELECT p.next_change, p.first_operation, o.seq, o.record, o.previous FROM projects p LEFT JOIN LATERAL (
                   SELECT seq, record, previous FROM operations
                   WHERE project = p.project AND seq > $2 ORDER BY seq LIMIT $3) o ON true
                 WHERE p.project = $1 ORDER BY o.seq",
            );
            let query = query.bind(self.identity.project).bind(signed(after)).bind(signed(limit as u64));
            query.fetch_all(connection).await
        })?;
        let Some(head) = rows.first() else { return Ok(Vec::new()) };
        let first = unsigned(head.get(1));
        if after.saturating_add(1) < first {
            let since = self.operation(first)?.map_or(Time::EPOCH, |operation| operation.draft.time);
            return Err(Error::Trimmed { operation: after + 1, first, since });
        }
        self.refresh_until(head.get(0))?;
        rows.iter().filter_map(|row| operation_at(row, 2).transpose()).collect()
    }

    /// Returns an operation by its number.
    pub(crate) fn operation(&self, sequence: u64) -> Result<Option<Operation>> {
        let row = self.database.call("read an operation", async |connection| {
            let query = sqlx::query("SELECT seq, record, previous FROM operations WHERE project = $1 AND seq = $2");
            let query = query.bind(self.identity.project).bind(signed(sequence));
            query.fetch_optional(connection).await
        })?;
        row.map_or(Ok(None), |row| operation_at(&row, 0))
    }

    /// Returns the numbers of the oldest and the newest operation.
    pub(crate) fn log_range(&self) -> Result<(u64, u64)> {
        let row = self.database.call("read the operation log", async |connection| {
            let query = sqlx::query("SELECT first_operation, next_operation FROM projects WHERE project = $1");
            query.bind(self.identity.project).fetch_one(connection).await
        })?;
        let last = unsigned(row.get(1)) - 1;
        self.pulse.note_operation(last);
        Ok((unsigned(row.get(0)), last))
    }

    /// Returns the operation of a request.
    pub(crate) fn request(&self, request: &RequestId) -> Result<Option<Operation>> {
        let row = self.database.call("find a request", async |connection| {
            let query = sqlx::query(
                "SELECT q.request, o.seq, o.record, o.previous FROM requests q
                 JOIN operations o ON o.project = q.project AND o.seq = q.seq WHERE q.project = $1 AND q.scope = $2",
            );
            let query = query.bind(self.identity.project).bind(request.scope());
            query.fetch_optional(connection).await
        })?;
        let Some(row) = row else { return Ok(None) };
        let operation = operation_at(&row, 1)?;
        match (row.get::<Vec<u8>, _>(0) == request.as_bytes(), operation) {
            (false, Some(operation)) => Err(Error::RequestReused { operation: operation.sequence }),
            (_, operation) => Ok(operation),
        }
    }

    /// Writes something durably: everything that was acknowledged before is durable then too. Fails if this node was expelled, because a
    /// crash of PostgreSQL, which expels all nodes, may have lost commits that were acknowledged before.
    pub(crate) fn write_through(&self) -> Result<()> {
        let Identity { project, node, generation } = self.identity;
        // The node has had a row among the writers since it joined the project.
        let written = self.database.call("sync", async |connection| {
            let query = sqlx::query(
                "UPDATE writers SET batch = batch WHERE project = $1 AND node = $2 AND generation = $3
                   AND EXISTS (SELECT 1 FROM nodes m WHERE m.node = $2 AND m.generation = $3)",
            );
            query.bind(project).bind(&node[..]).bind(generation).execute(connection).await
        })?;
        if written.rows_affected() == 0 {
            self.pulse.is_expelled.store(true, Ordering::SeqCst);
            return Err(expelled("sync"));
        }
        Ok(())
    }

    pub(crate) fn tombstone_row(&self, key: &[u8]) -> Option<Bytes> {
        self.index.read().tombstone(key)
    }
}
