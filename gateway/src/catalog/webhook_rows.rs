//! The rows of webhooks and of their deliveries.

use amalgam_engine::Time;
use amalgam_server::EventFilter;
use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Connection as _, Row as _};

use super::{Catalog, CatalogError, ListPlace, Result, SandboxRecord, microseconds, time_of};
use crate::project::ProjectName;
use crate::webhook::{Delivery, DeliveryState, NewWebhook, Webhook, WebhookId, new_secret};

/// Number of the newest deliveries that are kept for each webhook. Pending ones are always kept.
const KEPT: i64 = 1_000;

/// A `SELECT` of webhooks, completed by the rest of the statement.
macro_rules! webhooks {
    ($rest:literal) => {
        concat!("SELECT id, project, url, secret, kinds, workspaces, created_at, position FROM webhooks ", $rest)
    };
}

/// A `SELECT` of deliveries, completed by the rest of the statement.
macro_rules! deliveries {
    ($rest:literal) => {
        concat!(
            "SELECT number, position, kind, state, attempts, status, error, created_at, attempted_at, next_at, event_json FROM deliveries ",
            $rest
        )
    };
}

/// The result of one attempt to deliver an event.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) state: DeliveryState,
    pub(crate) attempts: u32,
    pub(crate) status: u16,
    pub(crate) error: String,
    pub(crate) time: Time,
    pub(crate) next: Option<Time>,
}

impl Catalog {
    /// Creates a webhook, and returns it with its secret. Its first event is the one after `position`; without a position, the
    /// first one after its creation.
    pub async fn create_webhook(
        &self,
        new: &NewWebhook,
        position: Option<u64>,
        now: Time,
    ) -> Result<(Webhook, String)> {
        let id = WebhookId::generate()?;
        let secret = new.secret.clone().map_or_else(new_secret, Ok)?;
        sqlx::query(
            "INSERT INTO webhooks (id, project, url, secret, kinds, workspaces, created_at, position, next_number) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 1)",
        )
        .bind(id.as_str())
        .bind(new.project.as_str())
        .bind(&new.url)
        .bind(&secret)
        .bind(new.kinds.join(" "))
        .bind(new.workspaces.join("\n"))
        .bind(microseconds(now))
        .bind(position.map(number))
        .execute(&self.pool)
        .await?;
        Ok((self.webhook(&id).await?, secret))
    }

    /// Finds a webhook.
    ///
    /// # Errors
    /// [`CatalogError::NoWebhook`] if there is none of the id.
    pub async fn webhook(&self, id: &WebhookId) -> Result<Webhook> {
        let row = sqlx::query(webhooks!("WHERE id = $1")).bind(id.as_str());
        let row = row.fetch_optional(&self.pool).await?;
        webhook_of(&row.ok_or_else(|| CatalogError::NoWebhook(id.clone()))?)
    }

    /// Lists webhooks by time of creation.
    pub async fn list_webhooks(&self) -> Result<Vec<Webhook>> {
        let rows = sqlx::query(webhooks!("ORDER BY created_at, id"));
        rows.fetch_all(&self.pool).await?.iter().map(webhook_of).collect()
    }

    /// Lists the webhooks of a project, or of all for an empty name, by time of creation, beginning after a place.
    pub async fn list_webhooks_page(&self, project: &str, after: &ListPlace, limit: u32) -> Result<Vec<Webhook>> {
        let rows = sqlx::query(webhooks!(
            "WHERE ($1 = '' OR project = $1) AND (created_at > $2 OR (created_at = $2 AND id > $3)) \
             ORDER BY created_at, id LIMIT $4"
        ))
        .bind(project)
        .bind(after.created)
        .bind(&after.id)
        .bind(i64::from(limit));
        rows.fetch_all(&self.pool).await?.iter().map(webhook_of).collect()
    }

    /// Deletes a webhook with its deliveries.
    ///
    /// # Errors
    /// [`CatalogError::NoWebhook`] if there is none of the id.
    pub async fn delete_webhook(&self, id: &WebhookId) -> Result<Webhook> {
        let webhook = self.webhook(id).await?;
        sqlx::query("DELETE FROM webhooks WHERE id = $1").bind(id.as_str()).execute(&self.pool).await?;
        Ok(webhook)
    }

    /// Records the position up to which the events of a project were processed.
    pub(crate) async fn set_webhook_position(&self, id: &WebhookId, position: u64) -> Result<()> {
        sqlx::query("UPDATE webhooks SET position = $1 WHERE id = $2")
            .bind(number(position))
            .bind(id.as_str())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    /// Queues the delivery of an event and moves the position of the webhook there, in one transaction.
    pub(crate) async fn queue_event(&self, id: &WebhookId, position: u64, kind: &str, now: Time) -> Result<Delivery> {
        self.queue(id, Some(position), kind, None, now).await
    }

    /// Queues a delivery of a test event.
    ///
    /// # Errors
    /// [`CatalogError::NoWebhook`] if there is none of the id.
    pub async fn queue_test(&self, id: &WebhookId, now: Time) -> Result<Delivery> {
        self.queue(id, None, crate::webhook::TEST_KIND, None, now).await
    }

    /// Queues an event of a sandbox for all webhooks of its project whose filters match. The event has one id for all of them.
    pub(crate) async fn queue_sandbox_event(
        &self,
        kind: &str,
        sandbox: &SandboxRecord,
        data: &Value,
        now: Time,
    ) -> Result<()> {
        let event = json!({"id": format!("evt-{}-{}", sandbox.project, WebhookId::generate()?), "data": data});
        for webhook in self.list_webhooks().await? {
            let filter = EventFilter::new(&webhook.workspaces, &webhook.kinds);
            let is_wanted = filter.is_ok_and(|filter| filter.wants_named(kind, &sandbox.workspace));
            if webhook.project == sandbox.project && is_wanted {
                match self.queue(&webhook.id, None, kind, Some(&event), now).await {
                    // It was deleted meanwhile.
                    Ok(_) | Err(CatalogError::NoWebhook(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    async fn queue(
        &self,
        id: &WebhookId,
        position: Option<u64>,
        kind: &str,
        event: Option<&Value>,
        now: Time,
    ) -> Result<Delivery> {
        let mut connection = self.pool.acquire().await?;
        let queued = self.pool.within(queue_in(&mut connection, id, position, kind, event, now)).await;
        let new = self.pool.take_answer(connection, queued)?;
        self.delivery(id, new).await
    }

    /// Finds a delivery.
    ///
    /// # Errors
    /// [`CatalogError::NoDelivery`] if there is none of the number.
    pub async fn delivery(&self, id: &WebhookId, number: i64) -> Result<Delivery> {
        let row = sqlx::query(deliveries!("WHERE webhook_id = $1 AND number = $2"))
            .bind(id.as_str())
            .bind(number)
            .fetch_optional(&self.pool)
            .await?;
        delivery_of(&row.ok_or_else(|| CatalogError::NoDelivery(id.clone(), number))?)
    }

    /// Lists deliveries of a webhook before a number, newest first; only failed ones if asked for.
    pub async fn list_deliveries(
        &self,
        id: &WebhookId,
        before: i64,
        limit: u32,
        failed: bool,
    ) -> Result<Vec<Delivery>> {
        let rows = sqlx::query(deliveries!(
            "WHERE webhook_id = $1 AND number < $2 AND (state = 'failed' OR NOT $3) ORDER BY number DESC LIMIT $4"
        ))
        .bind(id.as_str())
        .bind(before)
        .bind(failed)
        .bind(i64::from(limit));
        rows.fetch_all(&self.pool).await?.iter().map(delivery_of).collect()
    }

    /// Returns the pending delivery of a webhook that is due first, or `None` if none is pending.
    pub(crate) async fn first_pending(&self, id: &WebhookId) -> Result<Option<Delivery>> {
        let row =
            sqlx::query(deliveries!("WHERE webhook_id = $1 AND state = 'pending' ORDER BY next_at, number LIMIT 1"))
                .bind(id.as_str());
        row.fetch_optional(&self.pool).await?.as_ref().map(delivery_of).transpose()
    }

    /// Records the result of an attempt.
    pub(crate) async fn record_attempt(&self, id: &WebhookId, number: i64, attempt: &Attempt) -> Result<()> {
        sqlx::query(
            "UPDATE deliveries SET state = $1, attempts = $2, status = $3, error = $4, attempted_at = $5, next_at = $6 \
             WHERE webhook_id = $7 AND number = $8",
        )
        .bind(attempt.state.word())
        .bind(i64::from(attempt.attempts))
        .bind(i64::from(attempt.status))
        .bind(&attempt.error)
        .bind(microseconds(attempt.time))
        .bind(attempt.next.map(microseconds))
        .bind(id.as_str())
        .bind(number)
        .execute(&self.pool)
        .await?;
        Ok(())
    }

    /// Queues a delivery again, with its number of attempts set to zero.
    ///
    /// # Errors
    /// [`CatalogError::NoDelivery`] if there is none of the number.
    pub async fn replay_delivery(&self, id: &WebhookId, number: i64, now: Time) -> Result<Delivery> {
        sqlx::query(
            "UPDATE deliveries SET state = 'pending', attempts = 0, next_at = $1 WHERE webhook_id = $2 AND number = $3",
        )
        .bind(microseconds(now))
        .bind(id.as_str())
        .bind(number)
        .execute(&self.pool)
        .await?;
        self.delivery(id, number).await
    }
}

fn number(position: u64) -> i64 {
    i64::try_from(position).unwrap_or(i64::MAX)
}

fn webhook_of(row: &AnyRow) -> Result<Webhook> {
    let id: String = row.try_get("id")?;
    let malformed = |why| CatalogError::Malformed { table: "webhooks", name: id.clone(), why };
    let words = |text: String, separator: char| {
        text.split(separator).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let project: String = row.try_get("project")?;
    Ok(Webhook {
        id: id.parse().map_err(malformed)?,
        project: ProjectName::new(project).map_err(malformed)?,
        url: row.try_get("url")?,
        kinds: words(row.try_get("kinds")?, ' '),
        workspaces: words(row.try_get("workspaces")?, '\n'),
        secret: row.try_get("secret")?,
        created: time_of(row.try_get("created_at")?),
        position: row.try_get::<Option<i64>, _>("position")?.and_then(|position| u64::try_from(position).ok()),
    })
}

fn delivery_of(row: &AnyRow) -> Result<Delivery> {
    let number: i64 = row.try_get("number")?;
    let state: String = row.try_get("state")?;
    let malformed =
        || CatalogError::Malformed { table: "deliveries", name: number.to_string(), why: format!("no state {state}") };
    Ok(Delivery {
        number,
        position: row.try_get::<Option<i64>, _>("position")?.and_then(|position| u64::try_from(position).ok()),
        kind: row.try_get("kind")?,
        state: DeliveryState::of_word(&state).ok_or_else(malformed)?,
        attempts: u32::try_from(row.try_get::<i64, _>("attempts")?).unwrap_or(0),
        status: u16::try_from(row.try_get::<i64, _>("status")?).unwrap_or(0),
        error: row.try_get("error")?,
        created: time_of(row.try_get("created_at")?),
        attempted: row.try_get::<Option<i64>, _>("attempted_at")?.map(time_of),
        next: row.try_get::<Option<i64>, _>("next_at")?.map(time_of),
        event: row.try_get("event_json")?,
    })
}

/// Adds a delivery, deletes old finished ones, and returns the number of the new one.
async fn queue_in(
    connection: &mut AnyConnection,
    id: &WebhookId,
    position: Option<u64>,
    kind: &str,
    event: Option<&Value>,
    now: Time,
) -> Result<i64> {
    let mut transaction = connection.begin().await?;
    let moved = sqlx::query(
        "UPDATE webhooks SET next_number = next_number + 1, position = COALESCE($1, position) WHERE id = $2 RETURNING next_number",
    )
    .bind(position.map(number))
    .bind(id.as_str())
    .fetch_optional(&mut *transaction)
    .await?;
    let row = moved.ok_or_else(|| CatalogError::NoWebhook(id.clone()))?;
    let new: i64 = row.try_get::<i64, _>("next_number")? - 1;
    sqlx::query(
        "INSERT INTO deliveries (webhook_id, number, position, kind, state, attempts, status, error, created_at, next_at, event_json) \
         VALUES ($1, $2, $3, $4, 'pending', 0, 0, '', $5, $5, $6)",
    )
    .bind(id.as_str())
    .bind(new)
    .bind(position.map(number))
    .bind(kind)
    .bind(microseconds(now))
    .bind(event.map(ToString::to_string))
    .execute(&mut *transaction)
    .await?;
    sqlx::query("DELETE FROM deliveries WHERE webhook_id = $1 AND number <= $2 AND state <> 'pending'")
        .bind(id.as_str())
        .bind(new - KEPT)
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await?;
    Ok(new)
}
