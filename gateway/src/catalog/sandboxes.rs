//! The sandboxes in the catalog.

use amalgam_engine::Time;
use amalgam_sandbox::{SandboxState, SecretHash};
use serde_json::Value;
use sqlx::Row as _;
use sqlx::any::AnyRow;

use super::{Catalog, CatalogError, Result, microseconds, time_of};
use crate::project::ProjectName;

/// A sandbox in the catalog.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxRecord {
    /// Its id.
    pub id: String,
    /// Its project.
    pub project: ProjectName,
    /// Its name, for people.
    pub name: String,
    /// Its state.
    pub state: SandboxState,
    /// Why it is in its state.
    pub reason: String,
    /// The template it was started from.
    pub template: String,
    /// The name of the runtime that started it.
    pub runtime: String,
    /// The handle by which the runtime finds its processes.
    pub handle: String,
    /// Its workspace.
    pub workspace: String,
    /// The key that created it.
    pub key_id: String,
    /// The actor of its operations.
    pub agent: String,
    /// The hash of the secret with which its agent registers next.
    pub credential: SecretHash,
    /// Limits, network, the mechanism that enforces each limit, and other settings.
    pub config: Value,
    /// When it was created.
    pub created: Time,
    /// When it expires.
    pub expires: Time,
}

/// Filter for the list of sandboxes.
#[derive(Clone, Debug, Default)]
pub struct SandboxFilter {
    /// Only those in this state.
    pub state: Option<SandboxState>,
    /// Only those whose names have this prefix; empty for all.
    pub name_prefix: String,
}

impl Catalog {
    /// Adds a sandbox.
    pub async fn add_sandbox(&self, sandbox: &SandboxRecord) -> Result<()> {
        sqlx::query(
            "INSERT INTO sandboxes (id, project, name, state, reason, template, runtime, handle, workspace, key_id, agent, credential, \
             config_json, created_at, expires_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $14)",
        )
        .bind(&sandbox.id)
        .bind(sandbox.project.as_str())
        .bind(&sandbox.name)
        .bind(sandbox.state.word())
        .bind(&sandbox.reason)
        .bind(&sandbox.template)
        .bind(&sandbox.runtime)
        .bind(&sandbox.handle)
        .bind(&sandbox.workspace)
        .bind(&sandbox.key_id)
        .bind(&sandbox.agent)
        .bind(sandbox.credential.as_hex())
        .bind(sandbox.config.to_string())
        .bind(microseconds(sandbox.created))
        .bind(microseconds(sandbox.expires))
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Finds a sandbox by its id. Returns `None` if there is none.
    pub async fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>> {
        let row = sqlx::query("SELECT * FROM sandboxes WHERE id = $1").bind(id).fetch_optional(&self.pool).await?;
        row.as_ref().map(sandbox_of).transpose()
    }

    /// Returns one page of the sandboxes of a project, newest first, and the number of all that match the filter.
    pub async fn list_sandboxes(
        &self,
        project: &ProjectName,
        filter: &SandboxFilter,
        skip: u32,
        limit: u32,
    ) -> Result<(Vec<SandboxRecord>, i64)> {
        let state = filter.state.map_or("", SandboxState::word);
        let rows = sqlx::query(
            "SELECT * FROM sandboxes WHERE project = $1 AND ($2 = '' OR state = $2) AND substr(name, 1, length($3)) = $3 \
             ORDER BY created_at DESC, id LIMIT $4 OFFSET $5",
        )
        .bind(project.as_str())
        .bind(state)
        .bind(&filter.name_prefix)
        .bind(i64::from(limit))
        .bind(i64::from(skip))
        .fetch_all(&self.pool)
        .await?;
        let counted = sqlx::query(
            "SELECT COUNT(*) AS found FROM sandboxes \
             WHERE project = $1 AND ($2 = '' OR state = $2) AND substr(name, 1, length($3)) = $3",
        )
        .bind(project.as_str())
        .bind(state)
        .bind(&filter.name_prefix)
        .fetch_one(&self.pool)
        .await?;
        let found: Result<Vec<_>> = rows.iter().map(sandbox_of).collect();
        Ok((found?, counted.try_get("found")?))
    }

    /// Returns the sandboxes of all projects that may have processes.
    pub async fn living_sandboxes(&self) -> Result<Vec<SandboxRecord>> {
        let rows = sqlx::query("SELECT * FROM sandboxes WHERE state IN ('starting', 'running', 'stopping')")
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(sandbox_of).collect()
    }

    /// Returns the sandboxes of all projects that are stopped or failed.
    pub async fn ended_sandboxes(&self) -> Result<Vec<SandboxRecord>> {
        let rows = sqlx::query("SELECT * FROM sandboxes WHERE state IN ('stopped', 'error')").fetch_all(&self.pool);
        rows.await?.iter().map(sandbox_of).collect()
    }

    /// Returns the ids of all sandboxes.
    pub async fn sandbox_ids(&self) -> Result<Vec<String>> {
        let rows = sqlx::query("SELECT id FROM sandboxes").fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    /// Returns the workspaces of the sandboxes of a project, in all states.
    pub async fn sandbox_workspaces(&self, project: &ProjectName) -> Result<Vec<String>> {
        let rows = sqlx::query("SELECT workspace FROM sandboxes WHERE project = $1")
            .bind(project.as_str())
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(|row| Ok(row.try_get("workspace")?)).collect()
    }

    /// Counts the sandboxes of each project in each state.
    pub async fn count_sandboxes(&self) -> Result<Vec<(ProjectName, SandboxState, i64)>> {
        let rows = sqlx::query("SELECT project, state, COUNT(*) AS found FROM sandboxes GROUP BY project, state")
            .fetch_all(&self.pool)
            .await?;
        let count = |row: &AnyRow| {
            let (project, state): (String, String) = (row.try_get("project")?, row.try_get("state")?);
            let malformed = |why: String| CatalogError::Malformed { table: "sandboxes", name: project.clone(), why };
            let name = ProjectName::new(project.clone()).map_err(malformed)?;
            Ok((name, state.parse().map_err(malformed)?, row.try_get("found")?))
        };
        rows.iter().map(count).collect()
    }

    /// Returns the running sandboxes that have expired at the time `now`.
    pub async fn expired_sandboxes(&self, now: Time) -> Result<Vec<SandboxRecord>> {
        let rows = sqlx::query("SELECT * FROM sandboxes WHERE state = 'running' AND expires_at <= $1")
            .bind(microseconds(now))
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(sandbox_of).collect()
    }

    /// Returns when the next running sandbox expires, or `None` if none runs.
    pub async fn next_sandbox_expiry(&self) -> Result<Option<Time>> {
        let row = sqlx::query("SELECT MIN(expires_at) AS next FROM sandboxes WHERE state = 'running'")
            .fetch_one(&self.pool)
            .await?;
        Ok(row.try_get::<Option<i64>, _>("next")?.map(time_of))
    }

    /// Returns the running sandboxes that expire by `until` and for whose expiry time no warning was sent yet.
    pub async fn expiring_sandboxes(&self, until: Time) -> Result<Vec<SandboxRecord>> {
        let rows = sqlx::query(
            "SELECT * FROM sandboxes WHERE state = 'running' AND expires_at <= $1 AND (warned_of IS NULL OR warned_of <> expires_at)",
        )
        .bind(microseconds(until))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(sandbox_of).collect()
    }

    /// Records that a warning was sent for the expiry time `of`.
    pub async fn set_sandbox_warned(&self, id: &str, of: Time) -> Result<()> {
        sqlx::query("UPDATE sandboxes SET warned_of = $1 WHERE id = $2")
            .bind(microseconds(of))
            .bind(id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Changes the state of a sandbox. Returns `false`, and changes nothing, if its present state does not permit the new one.
    pub async fn set_sandbox_state(&self, id: &str, state: SandboxState, reason: &str, now: Time) -> Result<bool> {
        let mut before =
            SandboxState::ALL.into_iter().filter(|before| before.may_become(state)).map(SandboxState::word);
        // No state can be reached from more than three.
        let before = [(); 3].map(|()| before.next().unwrap_or(""));
        let changed = sqlx::query(
            "UPDATE sandboxes SET state = $1, reason = $2, updated_at = $3 WHERE id = $4 AND state IN ($5, $6, $7)",
        )
        .bind(state.word())
        .bind(reason)
        .bind(microseconds(now))
        .bind(id)
        .bind(before[0])
        .bind(before[1])
        .bind(before[2])
        .execute(&self.pool)
        .await?;
        Ok(changed.rows_affected() > 0)
    }

    /// Stores the handle of the processes and the configuration of a sandbox.
    pub async fn set_sandbox_handle(&self, id: &str, handle: &str, config: &Value) -> Result<()> {
        sqlx::query("UPDATE sandboxes SET handle = $1, config_json = $2 WHERE id = $3")
            .bind(handle)
            .bind(config.to_string())
            .bind(id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Stores the hash of the secret with which the agent of a sandbox registers next.
    pub async fn set_sandbox_credential(&self, id: &str, credential: &SecretHash) -> Result<()> {
        sqlx::query("UPDATE sandboxes SET credential = $1 WHERE id = $2")
            .bind(credential.as_hex())
            .bind(id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Sets when a sandbox expires.
    pub async fn set_sandbox_expiry(&self, id: &str, expires: Time) -> Result<()> {
        sqlx::query("UPDATE sandboxes SET expires_at = $1 WHERE id = $2")
            .bind(microseconds(expires))
            .bind(id)
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Deletes the record of a sandbox.
    pub async fn remove_sandbox(&self, id: &str) -> Result<()> {
        sqlx::query("DELETE FROM sandboxes WHERE id = $1").bind(id).execute(&self.pool).await?;
        Ok(())
    }
}

fn sandbox_of(row: &AnyRow) -> Result<SandboxRecord> {
    let id: String = row.try_get("id")?;
    let malformed = |why: String| CatalogError::Malformed { table: "sandboxes", name: id.clone(), why };
    let (project, state): (String, String) = (row.try_get("project")?, row.try_get("state")?);
    let config: String = row.try_get("config_json")?;
    Ok(SandboxRecord {
        project: ProjectName::new(project).map_err(malformed)?,
        state: state.parse().map_err(malformed)?,
        config: serde_json::from_str(&config).map_err(|error| malformed(error.to_string()))?,
        credential: SecretHash::from_hex(row.try_get::<String, _>("credential")?),
        name: row.try_get("name")?,
        reason: row.try_get("reason")?,
        template: row.try_get("template")?,
        runtime: row.try_get("runtime")?,
        handle: row.try_get("handle")?,
        workspace: row.try_get("workspace")?,
        key_id: row.try_get("key_id")?,
        agent: row.try_get("agent")?,
        created: time_of(row.try_get("created_at")?),
        expires: time_of(row.try_get("expires_at")?),
        id,
    })
}
