//! `amalgam webhook`: the webhooks of a server.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use amalgam_engine::Time;
use amalgam_gateway::{Catalog, Delivery, DeliveryState, NewWebhook, ProjectName, Webhook as Record, WebhookId};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::connect::now;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::network::{catalog_error, open_server_catalog};
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Most time that `test` and `replay` wait for the server.
const RESULT_WITHIN: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Send events of a server to HTTP addresses
#[derive(Debug, Args)]
#[command(after_help = "\
The server signs each delivery with the secret of the webhook, tries it again if the receiver fails,
and calls no private address unless `amalgam serve --webhook-allow` names its network.

Examples:
  amalgam webhook create https://ci.example/hook --kind workspace.merged --data /srv/amalgam
  amalgam webhook create https://ci.example/hook --workspace 'agents/*'
  amalgam webhook ls
  amalgam webhook test abcdefghijklmnop
  amalgam webhook deliveries abcdefghijklmnop --failed
  amalgam webhook replay abcdefghijklmnop 17
  amalgam webhook rm abcdefghijklmnop")]
pub struct Webhook {
    #[command(subcommand)]
    command: WebhookCommand,
}

#[derive(Debug, Subcommand)]
enum WebhookCommand {
    Create(Create),
    Ls(Ls),
    Rm(Rm),
    Test(Test),
    Deliveries(Deliveries),
    Replay(Replay),
}

/// The options that find the catalog of a server.
#[derive(Debug, Args)]
struct CatalogArgs {
    /// The data directory of the server; without it the server of the local store
    #[arg(long, value_name = "DIR", env = "AMALGAM_DATA", hide_env_values = true)]
    data: Option<PathBuf>,
    /// The database of the cluster, for the nodes of one [env: AMALGAM_CLUSTER]
    #[arg(long, value_name = "URL")]
    cluster: Option<String>,
}

/// Create a webhook, and print its secret once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam webhook create https://ci.example/hook --kind workspace.merged --data /srv/amalgam
  amalgam webhook create https://ci.example/hook --workspace 'agents/*'")]
struct Create {
    /// The address, http or https
    url: String,
    /// A kind of events, as in workspace.committed or label.*; repeatable [default: all]
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<String>,
    /// A workspace; a name that ends with * stands for all names with that beginning; repeatable [default: all]
    #[arg(long = "workspace", value_name = "NAME")]
    workspaces: Vec<String>,
    /// The project whose events are sent
    #[arg(long, value_name = "PROJECT", default_value = "default")]
    project: String,
    #[command(flatten)]
    place: CatalogArgs,
}

/// List all webhooks
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam webhook ls\n  amalgam webhook ls --data /srv/amalgam")]
struct Ls {
    #[command(flatten)]
    place: CatalogArgs,
}

/// Delete a webhook with its deliveries
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam webhook rm abcdefghijklmnop")]
struct Rm {
    /// The id of the webhook: 16 characters
    id: String,
    #[command(flatten)]
    place: CatalogArgs,
}

/// Send the event webhook.test, and wait for the result
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam webhook test abcdefghijklmnop")]
struct Test {
    /// The id of the webhook: 16 characters
    id: String,
    /// Queue it, and do not wait for the server
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    place: CatalogArgs,
}

/// List the deliveries of a webhook, newest first
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam webhook deliveries abcdefghijklmnop --failed")]
struct Deliveries {
    /// The id of the webhook: 16 characters
    id: String,
    /// List only failed deliveries
    #[arg(long)]
    failed: bool,
    /// List at most this many
    #[arg(long, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
    #[command(flatten)]
    place: CatalogArgs,
}

/// Make a delivery again, and wait for the result
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam webhook replay abcdefghijklmnop 17")]
struct Replay {
    /// The id of the webhook: 16 characters
    id: String,
    /// The number of the delivery
    number: i64,
    /// Queue it, and do not wait for the server
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    place: CatalogArgs,
}

impl Webhook {
    /// Runs the command. It changes the catalog directly; a running server reads the catalog every second.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            WebhookCommand::Create(create) => create.run(session).await,
            WebhookCommand::Ls(ls) => ls.run(session).await,
            WebhookCommand::Rm(rm) => rm.run(session).await,
            WebhookCommand::Deliveries(deliveries) => deliveries.run(session).await,
            WebhookCommand::Test(test) => {
                let (id, catalog) = (parse_id(&test.id)?, test.place.catalog(session).await?);
                let queued = catalog.queue_test(&id, now()).await.map_err(catalog_error)?;
                tell_result(session, &catalog, &id, queued, test.no_wait).await
            }
            WebhookCommand::Replay(replay) => {
                let (id, catalog) = (parse_id(&replay.id)?, replay.place.catalog(session).await?);
                let queued = catalog.replay_delivery(&id, replay.number, now()).await.map_err(catalog_error)?;
                tell_result(session, &catalog, &id, queued, replay.no_wait).await
            }
        }
    }
}

impl CatalogArgs {
    async fn catalog(&self, session: &Session) -> Result<Catalog, CliError> {
        open_server_catalog(self.cluster.as_deref(), self.data.as_deref().unwrap_or(session.home())).await
    }
}

impl Create {
    async fn run(self, session: &mut Session) -> Outcome {
        let project = ProjectName::new(self.project).map_err(|why| CliError::usage(format!("--project: {why}")))?;
        let workspaces = self.workspaces.into_iter().map(|name| format!("workspaces/{name}")).collect();
        let new = NewWebhook { project, url: self.url, kinds: self.kinds, workspaces, secret: None };
        new.check().map_err(CliError::usage)?;
        let catalog = self.place.catalog(session).await?;
        let (webhook, secret) = catalog.create_webhook(&new, None, now()).await.map_err(catalog_error)?;
        let mut told = webhook_json(&webhook);
        told["secret"] = secret.as_str().into();
        session.output.emit(&lines::line("webhook", told))?;
        session.output.say(format!("{}  {secret}", webhook.id))?;
        session.output.remark(format!("webhook {} for {}; its secret is not shown again", webhook.id, webhook.url))?;
        catalog.close().await;
        Ok(Exit::OK)
    }
}

impl Ls {
    async fn run(self, session: &mut Session) -> Outcome {
        let catalog = self.place.catalog(session).await?;
        let webhooks = catalog.list_webhooks().await.map_err(catalog_error)?;
        if webhooks.is_empty() {
            session.output.remark("there is no webhook; `amalgam webhook create URL` makes one")?;
        }
        for webhook in &webhooks {
            session.output.emit(&lines::line("webhook", webhook_json(webhook)))?;
            let words = |words: &[String], all: &str| if words.is_empty() { all.to_owned() } else { words.join(", ") };
            let (kinds, workspaces) =
                (words(&webhook.kinds, "all events"), words(&webhook.workspaces, "all workspaces"));
            session
                .output
                .say(format!("{}  {}  {}  {kinds}  {workspaces}", webhook.id, webhook.project, webhook.url))?;
        }
        catalog.close().await;
        Ok(Exit::OK)
    }
}

impl Rm {
    async fn run(self, session: &mut Session) -> Outcome {
        let (id, catalog) = (parse_id(&self.id)?, self.place.catalog(session).await?);
        let webhook = catalog.delete_webhook(&id).await.map_err(catalog_error)?;
        session.output.emit(&lines::line("webhook", webhook_json(&webhook)))?;
        session.output.done(format!("deleted webhook {} for {}", webhook.id, webhook.url))?;
        catalog.close().await;
        Ok(Exit::OK)
    }
}

impl Deliveries {
    async fn run(self, session: &mut Session) -> Outcome {
        let (id, catalog) = (parse_id(&self.id)?, self.place.catalog(session).await?);
        catalog.webhook(&id).await.map_err(catalog_error)?;
        let found = catalog.list_deliveries(&id, i64::MAX, self.limit, self.failed).await.map_err(catalog_error)?;
        if found.is_empty() {
            session.output.remark("there is no delivery")?;
        }
        for delivery in &found {
            tell(session, delivery)?;
        }
        catalog.close().await;
        Ok(Exit::OK)
    }
}

/// Waits until the server has made a delivery, and prints the result.
async fn tell_result(
    session: &mut Session,
    catalog: &Catalog,
    id: &WebhookId,
    queued: Delivery,
    no_wait: bool,
) -> Outcome {
    if no_wait {
        tell(session, &queued)?;
        catalog.close().await;
        return Ok(Exit::OK);
    }
    let began = Instant::now();
    let delivery = loop {
        let delivery = catalog.delivery(id, queued.number).await.map_err(catalog_error)?;
        if delivery.state != DeliveryState::Pending || began.elapsed() > RESULT_WITHIN {
            break delivery;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    tell(session, &delivery)?;
    catalog.close().await;
    match delivery.state {
        DeliveryState::Delivered => Ok(Exit::OK),
        DeliveryState::Failed => Ok(Exit::ERROR),
        DeliveryState::Pending if delivery.attempts == 0 => {
            let message = "the delivery is queued, and no server has tried it yet";
            Err(CliError::new(Exit::BUSY, "BUSY", message).hint("it is made when `amalgam serve` runs"))
        }
        DeliveryState::Pending => {
            Err(CliError::new(Exit::BUSY, "BUSY", "the delivery failed so far and is tried again"))
        }
    }
}

fn tell(session: &mut Session, delivery: &Delivery) -> Result<(), CliError> {
    session.output.emit(&lines::line("delivery", delivery_json(delivery)))?;
    let time = delivery.attempted.unwrap_or(delivery.created);
    let time = text::wall_clock(text::timestamp(Some(&amalgam_proto::timestamp(time))));
    let result = match (delivery.status, delivery.error.as_str()) {
        (0, "") => String::new(),
        (status, "") => format!("  {status}"),
        (_, error) => format!("  {error}"),
    };
    let (number, kind, state) = (delivery.number, &delivery.kind, delivery.state.word());
    session.output.say(format!("{number}  {time}  {kind}  {state}{result}"))?;
    Ok(())
}

fn parse_id(text: &str) -> Result<WebhookId, CliError> {
    text.parse().map_err(|why: String| CliError::usage(why))
}

fn webhook_json(webhook: &Record) -> Value {
    json!({
        "id": webhook.id.as_str(),
        "project": webhook.project.as_str(),
        "url": webhook.url,
        "kinds": webhook.kinds,
        "workspaces": webhook.workspaces,
        "created": time(Some(webhook.created)),
    })
}

fn delivery_json(delivery: &Delivery) -> Value {
    json!({
        "number": delivery.number,
        "kind": delivery.kind,
        "position": delivery.position,
        "state": delivery.state.word(),
        "attempts": delivery.attempts,
        "status": delivery.status,
        "error": delivery.error,
        "created": time(Some(delivery.created)),
        "attempted": time(delivery.attempted),
        "next": time(delivery.next),
    })
}

fn time(time: Option<Time>) -> Value {
    lines::time(time.map(amalgam_proto::timestamp).as_ref())
}
