//! `amalgam key`: the API keys of a server.

use std::path::PathBuf;

use amalgam_engine::Time;
use amalgam_gateway::{KeyId, KeyRecord, KeyText, NewKey, ProjectName, Scopes};
use amalgam_server::retention::Span;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::connect::now;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::network::{catalog_error, open_server_catalog};
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Create, list and revoke the API keys of a server
#[derive(Debug, Args)]
#[command(after_help = "\
A key has scopes: read; write (includes read); merge (includes write); run, to run commands; admin,
which includes everything. Its name is the author of what it commits.

Examples:
  amalgam key create ann --scope write --project demo --data /srv/amalgam
  amalgam key create ci --scope merge --expires 90d
  amalgam key create ann --scope write,run --e2b
  amalgam key ls
  amalgam key revoke abcdefghijklmnop")]
pub struct Key {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    Create(Create),
    Ls(Ls),
    Revoke(Revoke),
    Generate(Generate),
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

/// Create a key, and print it once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam key create ann --scope write --project demo --data /srv/amalgam
  amalgam key create ci --scope merge --expires 90d")]
struct Create {
    /// The agent or person that uses the key
    agent: String,
    /// The scopes of the key: read, write, merge, run, admin; separated by commas, or repeatable
    #[arg(long = "scope", value_name = "SCOPE", required = true, value_delimiter = ',')]
    scopes: Vec<String>,
    /// A project that the key may use; repeatable [default: all]
    #[arg(long = "project", value_name = "PROJECT", value_delimiter = ',')]
    projects: Vec<String>,
    /// When the key expires, such as 12h or 90d
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Print the key in the form that e2b clients require
    #[arg(long)]
    e2b: bool,
    #[command(flatten)]
    place: CatalogArgs,
}

/// List all keys, revoked and expired ones too
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam key ls\n  amalgam key ls --data /srv/amalgam")]
struct Ls {
    #[command(flatten)]
    place: CatalogArgs,
}

/// Revoke a key for ever; its open connections end
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam key revoke abcdefghijklmnop")]
struct Revoke {
    /// The id of the key: 16 characters
    id: String,
    #[command(flatten)]
    place: CatalogArgs,
}

/// Print a new key without storing it, for the API_KEY variable of a server
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam key generate")]
struct Generate {
    /// Print the key in the form that e2b clients require
    #[arg(long)]
    e2b: bool,
}

impl Key {
    /// Runs the command. Opens the catalog without the server, which notices a revocation within a second.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command {
            KeyCommand::Create(create) => create.run(session).await,
            KeyCommand::Ls(ls) => ls.run(session).await,
            KeyCommand::Revoke(revoke) => revoke.run(session).await,
            KeyCommand::Generate(Generate { e2b }) => {
                let text = KeyText::generate()
                    .map_err(|error| CliError::machine("no random numbers", &std::io::Error::other(error)))?;
                let shown = shown(&text, e2b);
                session.output.emit(&lines::line("key_text", json!({"text": shown})))?;
                session.output.say(shown)?;
                Ok(Exit::OK)
            }
        }
    }
}

impl CatalogArgs {
    async fn catalog(&self, session: &Session) -> Result<amalgam_gateway::Catalog, CliError> {
        open_server_catalog(self.cluster.as_deref(), self.data.as_deref().unwrap_or(session.home())).await
    }
}

impl Create {
    async fn run(self, session: &mut Session) -> Outcome {
        let usage = |option: &str, why: String| CliError::usage(format!("{option}: {why}"));
        let scopes: Scopes = self.scopes.join(" ").parse().map_err(|why| usage("--scope", why))?;
        let projects: Result<Vec<_>, _> = self.projects.into_iter().map(ProjectName::new).collect();
        let projects = projects.map_err(|why| usage("--project", why))?;
        let is_visible =
            |agent: &str| !agent.is_empty() && agent.len() <= 128 && agent.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_visible(&self.agent) {
            return Err(CliError::usage("the name of the agent has 1 to 128 visible ASCII characters"));
        }
        let expires = self.expires.as_deref().map(|text| expiry(text, now())).transpose()?;
        let catalog = self.place.catalog(session).await?;
        let new = NewKey { agent: self.agent, scopes, projects, expires };
        let (text, record) = catalog.create_key(&new, now()).await.map_err(catalog_error)?;
        let mut told = key_json(&record);
        let shown = shown(&text, self.e2b);
        told["text"] = shown.as_str().into();
        session.output.emit(&lines::line("key", told))?;
        session.output.say(shown)?;
        session
            .output
            .remark(format!("key {} for {}: {}; it is not shown again", record.id, record.agent, record.scopes))?;
        catalog.close().await;
        Ok(Exit::OK)
    }
}

impl Ls {
    async fn run(self, session: &mut Session) -> Outcome {
        let catalog = self.place.catalog(session).await?;
        let keys = catalog.list_keys().await.map_err(catalog_error)?;
        if keys.is_empty() {
            session.output.remark("there is no key; `amalgam key create NAME --scope SCOPE` makes one")?;
        }
        for key in &keys {
            session.output.emit(&lines::line("key", key_json(key)))?;
            let state = match () {
                () if key.revoked.is_some() => "  revoked",
                () if key.is_expired(now()) => "  expired",
                () => "",
            };
            let projects: Vec<_> = key.projects.iter().map(ToString::to_string).collect();
            let projects = if projects.is_empty() { "all projects".to_owned() } else { projects.join(", ") };
            let expires = key.expires.map_or(String::new(), |time| {
                format!("  expires {}", text::wall_clock(text::timestamp(Some(&amalgam_proto::timestamp(time)))))
            });
            session.output.say(format!("{}  {}  {}  {projects}{expires}{state}", key.id, key.agent, key.scopes))?;
        }
        catalog.close().await;
        Ok(Exit::OK)
    }
}

impl Revoke {
    async fn run(self, session: &mut Session) -> Outcome {
        let id: KeyId = self.id.parse().map_err(|why: String| CliError::usage(why))?;
        let catalog = self.place.catalog(session).await?;
        let record = catalog.revoke_key(&id, now()).await.map_err(catalog_error)?;
        session.output.emit(&lines::line("key", key_json(&record)))?;
        session.output.done(format!("revoked key {} of {}", record.id, record.agent))?;
        catalog.close().await;
        Ok(Exit::OK)
    }
}

/// Returns the text of a key, in the form of e2b clients if `is_for_e2b` is set.
fn shown(text: &KeyText, is_for_e2b: bool) -> String {
    if is_for_e2b { text.reveal_e2b() } else { text.reveal() }
}

fn key_json(key: &KeyRecord) -> Value {
    json!({
        "id": key.id.as_str(),
        "agent": key.agent,
        "scopes": key.scopes.words(),
        "projects": key.projects.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "created": time(Some(key.created)),
        "expires": time(key.expires),
        "revoked": time(key.revoked),
    })
}

fn time(time: Option<Time>) -> Value {
    lines::time(time.map(amalgam_proto::timestamp).as_ref())
}

/// Returns the time at which a key expires that is created at `now`. Refuses zero and `forever`.
fn expiry(text: &str, now: Time) -> Result<Time, CliError> {
    let span: Span = text.parse().map_err(|why| CliError::usage(format!("--expires: {why}")))?;
    let duration = span.duration().filter(|duration| !duration.is_zero());
    let duration = duration.ok_or_else(|| CliError::usage("--expires: write a time such as 12h or 90d"))?;
    Ok(Time(now.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))))
}
