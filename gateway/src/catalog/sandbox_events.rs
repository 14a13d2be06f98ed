//! The newest events of sandboxes in the catalog, for clients that watch sandboxes.

use amalgam_engine::Time;
use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{Connection as _, Row as _};

use super::{Catalog, CatalogError, Result, microseconds, time_of};
use crate::project::ProjectName;

/// Maximum number of events that the catalog keeps, over all projects.
const KEPT: i64 = 20_000;

/// An event of a sandbox.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SandboxEventRow {
    pub(crate) position: i64,
    pub(crate) kind: String,
    /// The sandbox at the time of the event.
    pub(crate) sandbox: Value,
    pub(crate) time: Time,
}

impl Catalog {
    /// Adds an event, and deletes the oldest ones beyond [`KEPT`].
    pub(crate) async fn add_sandbox_event(
        &self,
        project: &ProjectName,
        kind: &str,
        sandbox_id: &str,
        sandbox: &Value,
        now: Time,
    ) -> Result<()> {
        let mut connection = self.pool.acquire().await?;
        let added = self.pool.within(async {
            let mut transaction = connection.begin().await?;
            sqlx::query(
                "INSERT INTO sandbox_events (position, project, kind, sandbox_id, sandbox_json, created_at) \
                 VALUES ((SELECT COALESCE(MAX(position), 0) + 1 FROM sandbox_events), $1, $2, $3, $4, $5)",
            )
            .bind(project.as_str())
            .bind(kind)
            .bind(sandbox_id)
            .bind(sandbox.to_string())
            .bind(microseconds(now))
            .execute(&mut *transaction)
            .await?;
            sqlx::query("DELETE FROM sandbox_events WHERE position <= (SELECT MAX(position) FROM sandbox_events) - $1")
                .bind(KEPT)
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await
        });
        let added = added.await;
        self.pool.take_answer(connection, added)?;
        Ok(())
    }

    /// Returns the positions of the oldest and the newest event in the catalog, or 1 and 0 if there is none.
    pub(crate) async fn sandbox_event_range(&self) -> Result<(i64, i64)> {
        let row = sqlx::query(
            "SELECT COALESCE(MIN(position), 1) AS first, COALESCE(MAX(position), 0) AS last FROM sandbox_events",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok((row.try_get("first")?, row.try_get("last")?))
    }

    /// Returns at most `limit` events of a project, from the position after `after` up to `until`, oldest first.
    pub(crate) async fn sandbox_events(
        &self,
        project: &ProjectName,
        after: i64,
        until: i64,
        limit: u32,
    ) -> Result<Vec<SandboxEventRow>> {
        let rows = sqlx::query(
            "SELECT position, kind, sandbox_json, created_at FROM sandbox_events \
             WHERE project = $1 AND position > $2 AND position <= $3 ORDER BY position LIMIT $4",
        )
        .bind(project.as_str())
        .bind(after)
        .bind(until)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(event_of).collect()
    }
}

fn event_of(row: &AnyRow) -> Result<SandboxEventRow> {
    let position: i64 = row.try_get("position")?;
    let text: String = row.try_get("sandbox_json")?;
    let malformed = |why: serde_json::Error| CatalogError::Malformed {
        table: "sandbox_events",
        name: position.to_string(),
        why: why.to_string(),
    };
    Ok(SandboxEventRow {
        position,
        kind: row.try_get("kind")?,
        sandbox: serde_json::from_str(&text).map_err(malformed)?,
        time: time_of(row.try_get("created_at")?),
    })
}
