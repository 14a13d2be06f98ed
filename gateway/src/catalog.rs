//! The catalog: the database of everything that exists once per server, beside the stores of its projects.
//!
//! SQLite in a file for a server of its own, PostgreSQL for the nodes of a cluster. The statements use only features that both have.
//! Times are arguments.

mod leadership;
mod list_place;
mod pool;
mod sandbox_events;
mod sandboxes;
mod webhook_rows;

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use amalgam_engine::Time;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Connection as _, Executor as _, PgConnection, Row as _};

use crate::key::{KeyId, KeyText, Scopes, SecretHash};
use crate::project::ProjectName;
use crate::webhook::WebhookId;
use pool::{CatalogPool, StatementError};
pub(crate) use sandbox_events::SandboxEventRow;
pub(crate) use webhook_rows::Attempt;

pub use list_place::ListPlace;
pub use sandboxes::{SandboxFilter, SandboxRecord};

/// The settings of a connection to SQLite. A writer that finds the database locked waits for ten seconds. A key that was shown, or a
/// revocation that was answered, survives a power cut.
const SQLITE_SETTINGS: &str =
    "PRAGMA busy_timeout = 10000; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON";
/// The settings of a connection to PostgreSQL: the tables are in a schema of their own, beside those of the stores.
const POSTGRES_SETTINGS: &str = "SET search_path TO amalgam_catalog";
const CREATE_SCHEMA: &str = "CREATE SCHEMA IF NOT EXISTS amalgam_catalog";
/// Attempts to create the schema. When two nodes start at once, both may try to create it; the one that fails finds it on retry.
const SCHEMA_ATTEMPTS_MAX: u32 = 5;
const SCHEMA_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Characters of a path that are percent-encoded in a database URL, because they have another meaning there.
const OUTSIDE_OF_PATHS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');
const NANOSECONDS_IN_MICROSECOND: i64 = 1_000;

/// Why the catalog refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The database could not be read or written.
    #[error("the catalog: {0}")]
    Database(#[from] sqlx::Error),
    /// The tables could not be brought to this version.
    #[error("the catalog was written by another version of amalgam, or its migration failed: {0}")]
    Migration(#[from] sqlx::migrate::MigrateError),
    /// A row is malformed.
    #[error("the catalog holds a malformed {table} row `{name}`: {why}")]
    Malformed {
        /// The table.
        table: &'static str,
        /// The row's key.
        name: String,
        /// The problem.
        why: String,
    },
    /// The name is taken.
    #[error("project {0} exists already")]
    ProjectExists(ProjectName),
    /// There is no such project.
    #[error("there is no project {0}")]
    NoProject(ProjectName),
    /// There is no such key.
    #[error("there is no key {0}")]
    NoKey(KeyId),
    /// There is no such webhook.
    #[error("there is no webhook {0}")]
    NoWebhook(WebhookId),
    /// There is no such delivery.
    #[error("webhook {0} has no delivery {1}; the server remembers the newest 1,000")]
    NoDelivery(WebhookId, i64),
    /// The system has no random source.
    #[error("no random numbers: {0}")]
    Random(#[from] getrandom::Error),
}

impl CatalogError {
    /// Returns whether the database cannot be reached now, so that the same call may succeed later.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Database(error) if pool::is_connection_failure(error))
    }
}

impl StatementError for CatalogError {
    fn is_connection_failure(&self) -> bool {
        self.is_unreachable()
    }
}

/// The result of a call to the catalog.
pub type Result<T, E = CatalogError> = std::result::Result<T, E>;

/// A project in the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its name.
    pub name: ProjectName,
    /// The name of its directory below `projects`.
    pub directory: String,
    /// When it was created.
    pub created: Time,
    /// When it was deleted, if it was.
    pub deleted: Option<Time>,
}

/// The parameters of a new key.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The actor of operations that this key makes.
    pub agent: String,
    /// The scopes that it grants.
    pub scopes: Scopes,
    /// The projects that it may use; empty for all.
    pub projects: Vec<ProjectName>,
    /// When it stops working.
    pub expires: Option<Time>,
}

/// A key in the catalog, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// Its public part.
    pub id: KeyId,
    /// The hash of its secret.
    pub secret_hash: SecretHash,
    /// The actor of operations that this key makes.
    pub agent: String,
    /// The scopes that it grants.
    pub scopes: Scopes,
    /// The projects that it may use; empty for all.
    pub projects: Vec<ProjectName>,
    /// When it was made.
    pub created: Time,
    /// When it stops working.
    pub expires: Option<Time>,
    /// When it was revoked.
    pub revoked: Option<Time>,
}

impl KeyRecord {
    /// Returns whether the key may use a project.
    pub fn reaches(&self, project: &ProjectName) -> bool {
        self.projects.is_empty() || self.projects.contains(project)
    }

    /// Returns whether the key has expired at the time `now`.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// The catalog. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Catalog {
    pool: CatalogPool,
}

impl Catalog {
    /// Opens the catalog in a file, and creates it if it does not exist.
    ///
    /// # Errors
    /// The file is no catalog, is of a newer version, or cannot be written.
    pub async fn open(path: &Path) -> Result<Self> {
        // SQLite gives its other files the mode of this one: only the server's user reads them.
        let made = std::fs::File::options().append(true).create(true).mode(0o600).open(path);
        made.map_err(sqlx::Error::Io)?;
        let path = percent_encode(path.as_os_str().as_bytes(), OUTSIDE_OF_PATHS);
        Self::connect_with(&format!("sqlite://{path}?mode=rwc"), SQLITE_SETTINGS, false).await
    }

    /// Opens the catalog that the nodes of a cluster share in a PostgreSQL database, and creates it if it does not exist.
    ///
    /// # Errors
    /// The database cannot be reached, or the catalog there is of a newer version.
    pub async fn connect(url: &str) -> Result<Self> {
        let mut attempts = 0;
        while let Err(error) = create_schema(url).await {
            attempts += 1;
            if attempts == SCHEMA_ATTEMPTS_MAX {
                return Err(error.into());
            }
            tokio::time::sleep(SCHEMA_RETRY_DELAY).await;
        }
        Self::connect_with(url, POSTGRES_SETTINGS, true).await
    }

    async fn connect_with(url: &str, settings: &'static str, is_shared: bool) -> Result<Self> {
        sqlx::any::install_default_drivers();
        // A pool retries failed connections. This first one reports a file that is no database, or a wrong password, at once.
        let mut first = AnyConnection::connect(url).await?;
        first.execute(settings).await?;
        first.close().await?;
        let pool = CatalogPool::connect(url, settings, is_shared).await?;
        sqlx::migrate!().run(pool.pool()).await?;
        Ok(Self { pool })
    }

    /// Returns whether the nodes of a cluster share the catalog.
    pub fn is_shared(&self) -> bool {
        self.pool.is_shared()
    }

    /// Closes all connections. SQLite then writes its write-ahead log into the file.
    pub async fn close(&self) {
        self.pool.pool().close().await;
    }

    /// Writes a copy of the catalog, as it is at one moment, into a new file. Others may change the catalog meanwhile.
    pub async fn copy_to(&self, path: &Path) -> Result<()> {
        if self.is_shared() {
            let why = "the catalog of a cluster is backed up with the tools of PostgreSQL";
            return Err(sqlx::Error::Configuration(why.into()).into());
        }
        let path = path.to_str().ok_or_else(|| sqlx::Error::Configuration("the path is not UTF-8".into()))?;
        sqlx::query("VACUUM INTO $1").bind(path).execute(&self.pool).await?;
        Ok(())
    }

    /// Adds a project.
    ///
    /// # Errors
    /// [`CatalogError::ProjectExists`] if the name is taken, also by a deleted project.
    pub async fn create_project(&self, name: &ProjectName, now: Time) -> Result<Project> {
        let added = sqlx::query(
            "INSERT INTO projects (name, directory, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        )
        .bind(name.as_str())
        .bind(name.as_str())
        .bind(microseconds(now))
        .execute(&self.pool)
        .await?;
        if added.rows_affected() == 0 {
            return Err(CatalogError::ProjectExists(name.clone()));
        }
        self.project(name).await
    }

    /// Finds a project, deleted ones too.
    ///
    /// # Errors
    /// [`CatalogError::NoProject`] if there is none of the name.
    pub async fn project(&self, name: &ProjectName) -> Result<Project> {
        let row = sqlx::query("SELECT name, directory, created_at, deleted_at FROM projects WHERE name = $1")
            .bind(name.as_str())
            .fetch_optional(&self.pool)
            .await?;
        project_of(&row.ok_or_else(|| CatalogError::NoProject(name.clone()))?)
    }

    /// Lists projects by name, beginning after a name; deleted ones only if asked for.
    pub async fn list_projects(
        &self,
        after: Option<&ProjectName>,
        limit: u32,
        with_deleted: bool,
    ) -> Result<Vec<Project>> {
        let rows = sqlx::query(
            "SELECT name, directory, created_at, deleted_at FROM projects \
             WHERE name > $1 AND (deleted_at IS NULL OR $3) ORDER BY name LIMIT $2",
        )
        .bind(after.map_or("", ProjectName::as_str))
        .bind(i64::from(limit))
        .bind(with_deleted)
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(project_of).collect()
    }

    /// Marks a project as deleted; its directory stays. Deleting a deleted project changes nothing.
    pub async fn delete_project(&self, name: &ProjectName, now: Time) -> Result<Project> {
        sqlx::query("UPDATE projects SET deleted_at = $1 WHERE name = $2 AND deleted_at IS NULL")
            .bind(microseconds(now))
            .bind(name.as_str())
            .execute(&self.pool)
            .await?;
        self.project(name).await
    }

    /// Returns the projects that were deleted at `since` or later and not restored, each with the time of its deletion.
    pub async fn deleted_since(&self, since: Time) -> Result<Vec<(ProjectName, Time)>> {
        let rows = sqlx::query("SELECT name, directory, created_at, deleted_at FROM projects WHERE deleted_at >= $1")
            .bind(microseconds(since))
            .fetch_all(&self.pool)
            .await?;
        let projects: Vec<Project> = rows.iter().map(project_of).collect::<Result<_>>()?;
        Ok(projects.into_iter().filter_map(|project| Some((project.name, project.deleted?))).collect())
    }

    /// Restores a deleted project.
    pub async fn undelete_project(&self, name: &ProjectName) -> Result<Project> {
        sqlx::query("UPDATE projects SET deleted_at = NULL WHERE name = $1")
            .bind(name.as_str())
            .execute(&self.pool)
            .await?;
        self.project(name).await
    }

    /// Creates a key. The returned text is the only copy of its secret.
    pub async fn create_key(&self, key: &NewKey, now: Time) -> Result<(KeyText, KeyRecord)> {
        let text = KeyText::generate()?;
        let record = self.store_key(&text, key, now).await?;
        Ok((text, record))
    }

    /// Stores a key whose text is known, for example the first one, from the environment. Storing it again changes nothing.
    pub async fn store_key(&self, text: &KeyText, key: &NewKey, now: Time) -> Result<KeyRecord> {
        let projects: Vec<_> = key.projects.iter().map(ProjectName::as_str).collect();
        sqlx::query(
            "INSERT INTO keys (id, secret_hash, agent, scopes, projects, created_at, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(text.id().as_str())
        .bind(text.secret_hash().to_hex())
        .bind(&key.agent)
        .bind(key.scopes.to_string())
        .bind(projects.join(" "))
        .bind(microseconds(now))
        .bind(key.expires.map(microseconds))
        .execute(&self.pool)
        .await?;
        self.key(text.id()).await
    }

    /// Finds a key, revoked and expired ones too.
    ///
    /// # Errors
    /// [`CatalogError::NoKey`] if there is none of the id.
    pub async fn key(&self, id: &KeyId) -> Result<KeyRecord> {
        let row = sqlx::query(
            "SELECT id, secret_hash, agent, scopes, projects, created_at, expires_at, revoked_at FROM keys WHERE id = $1",
        )
        .bind(id.as_str())
        .fetch_optional(&self.pool)
        .await?;
        key_of(&row.ok_or_else(|| CatalogError::NoKey(id.clone()))?)
    }

    /// Lists keys by time of creation, revoked and expired ones too.
    pub async fn list_keys(&self) -> Result<Vec<KeyRecord>> {
        let rows = sqlx::query(
            "SELECT id, secret_hash, agent, scopes, projects, created_at, expires_at, revoked_at FROM keys \
             ORDER BY created_at, id",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(key_of).collect()
    }

    /// Lists one page of keys by time of creation, beginning after `after`, revoked and expired ones too.
    pub async fn list_keys_page(&self, after: &ListPlace, limit: u32) -> Result<Vec<KeyRecord>> {
        let rows = sqlx::query(
            "SELECT id, secret_hash, agent, scopes, projects, created_at, expires_at, revoked_at FROM keys \
             WHERE created_at > $1 OR (created_at = $1 AND id > $2) ORDER BY created_at, id LIMIT $3",
        )
        .bind(after.created)
        .bind(&after.id)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(key_of).collect()
    }

    /// Returns the keys that were revoked at `since` or later, each with the time of its revocation.
    pub async fn revoked_since(&self, since: Time) -> Result<Vec<(KeyId, Time)>> {
        let rows = sqlx::query("SELECT id, revoked_at FROM keys WHERE revoked_at >= $1")
            .bind(microseconds(since))
            .fetch_all(&self.pool)
            .await?;
        let key = |row: &AnyRow| {
            let id: String = row.try_get("id")?;
            let malformed = |why| CatalogError::Malformed { table: "keys", name: id.clone(), why };
            Ok((id.parse().map_err(malformed)?, time_of(row.try_get("revoked_at")?)))
        };
        rows.iter().map(key).collect()
    }

    /// Revokes a key. Revoking a revoked key changes nothing.
    pub async fn revoke_key(&self, id: &KeyId, now: Time) -> Result<KeyRecord> {
        sqlx::query("UPDATE keys SET revoked_at = $1 WHERE id = $2 AND revoked_at IS NULL")
            .bind(microseconds(now))
            .bind(id.as_str())
            .execute(&self.pool)
            .await?;
        self.key(id).await
    }
}

async fn create_schema(url: &str) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    connection.execute(CREATE_SCHEMA).await?;
    connection.close().await
}

fn microseconds(time: Time) -> i64 {
    time.0.div_euclid(NANOSECONDS_IN_MICROSECOND)
}

fn time_of(microseconds: i64) -> Time {
    Time(microseconds.saturating_mul(NANOSECONDS_IN_MICROSECOND))
}

fn project_of(row: &AnyRow) -> Result<Project> {
    let name: String = row.try_get("name")?;
    let malformed = |why| CatalogError::Malformed { table: "projects", name: name.clone(), why };
    Ok(Project {
        name: ProjectName::new(name.clone()).map_err(malformed)?,
        directory: row.try_get("directory")?,
        created: time_of(row.try_get("created_at")?),
        deleted: row.try_get::<Option<i64>, _>("deleted_at")?.map(time_of),
    })
}

fn key_of(row: &AnyRow) -> Result<KeyRecord> {
    let id: String = row.try_get("id")?;
    let malformed = |why: &str| CatalogError::Malformed { table: "keys", name: id.clone(), why: why.to_owned() };
    let hash: String = row.try_get("secret_hash")?;
    let scopes: String = row.try_get("scopes")?;
    let projects: String = row.try_get("projects")?;
    let projects: Result<Vec<_>, _> =
        projects.split(' ').filter(|name| !name.is_empty()).map(ProjectName::new).collect();
    Ok(KeyRecord {
        id: id.parse().map_err(|why: String| malformed(&why))?,
        secret_hash: SecretHash::from_hex(&hash)
            .ok_or_else(|| malformed("its secret's hash is not 64 hexadecimal digits"))?,
        agent: row.try_get("agent")?,
        scopes: scopes.parse().map_err(|why: String| malformed(&why))?,
        projects: projects.map_err(|why| malformed(&why))?,
        created: time_of(row.try_get("created_at")?),
        expires: row.try_get::<Option<i64>, _>("expires_at")?.map(time_of),
        revoked: row.try_get::<Option<i64>, _>("revoked_at")?.map(time_of),
    })
}
