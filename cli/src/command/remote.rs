//! `amalgam remote`: servers that the local store pushes workspaces to and pulls them from by itself.

mod status;
mod sync;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::login::check;
use super::workspaces::workspaces;
use crate::connect::Client;
use crate::contexts::{Contexts, KEY_VARIABLE, LOCAL};
use crate::edge::{COMMAND_LOCK_TIMEOUT, Remote as Definition, Remotes, SyncMode, check_name, tracking_name};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::remote::{Server, ServerKey, ServerUrl};
use crate::session::Session;

/// Keep workspaces in sync with a server, also after working offline
#[derive(Debug, Args)]
#[command(after_help = "\
The background process of the store pushes what is new here and pulls what is new on the server. Work goes on without a
connection; afterwards both sides are merged here, with conflicts stored in the workspace, and the result is pushed.
Nothing is overwritten on either side. `remote/NAME/WORKSPACE` is the workspace as the server last had it. Labels on
snapshots of these workspaces are synced, too.

Examples:
  amalgam remote add https://state.example.com/demo
  amalgam remote status
  amalgam remote sync")]
pub struct Remote {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Add(Add),
    Ls(Ls),
    Status(status::Status),
    Sync(sync::Sync),
    Rm(Rm),
}

/// Add a server to keep workspaces in sync with
#[derive(Debug, Args)]
#[command(after_help = "\
The key is that of `amalgam login` for the same host, or --key, or AMALGAM_API_KEY; it is stored as `amalgam login`
stores it. A server that cannot be reached now is tried again later. To change a remote, add it again.

Examples:
  amalgam remote add https://state.example.com/demo
  amalgam remote add prod --sync 300                      prod is a context of `amalgam login`
  amalgam remote add prod --workspace main --workspace 'agent/*'
  amalgam remote add prod --workspace '!scratch/*'        all but these
  amalgam remote add prod --name backup --sync manual")]
struct Add {
    /// The server with the project, or a context: https://HOST[:PORT][/PROJECT]
    #[arg(id = "remote_server", value_name = "URL|CONTEXT")]
    server: String,
    /// The name of the remote
    #[arg(long, default_value = "origin")]
    name: String,
    /// When to sync: auto (when either side changes), a number of seconds, or manual
    #[arg(long, value_name = "auto|SECONDS|manual", default_value = "auto", value_parser = SyncMode::parse)]
    sync: SyncMode,
    /// Sync only workspaces with this name; * stands for any characters, ! before it leaves them out; repeatable
    #[arg(long = "workspace", value_name = "PATTERN")]
    workspaces: Vec<String>,
    /// The key; other users of this machine can see arguments, so `amalgam login` is better
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Send contents that look like keys or passwords, too
    #[arg(long)]
    allow_secrets: bool,
}

/// List remotes
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam remote ls")]
struct Ls {}

/// Stop syncing with a server; workspaces stay as they are on both sides
#[derive(Debug, Args)]
#[command(after_help = "\
The workspaces remote/NAME/... are deleted, too; the key stays in its context.

Examples:
  amalgam remote rm origin")]
struct Rm {
    /// The name of the remote
    name: String,
}

impl Remote {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        match self.command.unwrap_or(Verb::Ls(Ls {})) {
            Verb::Add(add) => add.run(session).await,
            Verb::Ls(_) => list(session),
            Verb::Status(status) => status.run(session).await,
            Verb::Sync(sync) => sync.run(session).await,
            Verb::Rm(rm) => rm.run(session).await,
        }
    }
}

impl Add {
    async fn run(self, session: &mut Session) -> Outcome {
        check_name(&self.name)?;
        let mut contexts = Contexts::load()?;
        let environment = || std::env::var(KEY_VARIABLE).ok();
        let key = self.key.clone().or_else(environment).as_deref().and_then(ServerKey::new);
        let (context, server) = self.choose_server(&contexts, key)?;
        match check(&server, &session.connect.actor).await {
            Ok(_) => {}
            Err(error) if error.reason == "UNAVAILABLE" => {
                session.output.remark(format!("{}; it is tried again", error.message))?;
            }
            Err(error) => return Err(error),
        }
        if contexts.find(&context)?.is_none_or(|known| known.key != server.key) {
            contexts.put(&context, &server);
            contexts.save()?;
        }
        // Starts the background process, which reads the new definition within a second.
        session.client_of_new_store().await?;
        let remotes = Remotes::of_home(session.home());
        let remote = Definition {
            name: self.name.clone(),
            url: server.url.to_string(),
            context,
            sync: self.sync,
            workspaces: self.workspaces,
            allow_secrets: self.allow_secrets,
        };
        if remotes.find(&self.name)?.is_some_and(|before| before.url != remote.url) {
            let message = format!("there is a remote {} of another server", self.name);
            let hint = format!("`amalgam remote rm {}` first, or pass another --name", self.name);
            return Err(CliError::usage(message).hint(hint));
        }
        remotes.put(&remote)?;
        session.output.emit(&json_line(&remote))?;
        let (name, url) = (paint(style::TITLE, &remote.name), &remote.url);
        session.output.done(format!("remote {name} is {url}, synced {}", remote.sync.words()))?;
        session.output.remark(match remote.sync {
            SyncMode::Manual => "`amalgam remote sync` syncs with it",
            _ => "`amalgam remote status` shows how far it is",
        })?;
        Ok(Exit::OK)
    }

    /// Returns the server and the name of the context that holds its key.
    fn choose_server(&self, contexts: &Contexts, key: Option<ServerKey>) -> Result<(String, Server), CliError> {
        if !self.server.contains("://") {
            if self.server == LOCAL {
                return Err(CliError::usage(format!("`{LOCAL}` is the store of this machine")).hint("name a server"));
            }
            let known = contexts.get(&self.server)?;
            return Ok((self.server.clone(), Server { key: key.or(known.key.clone()), ..known }));
        }
        let url = ServerUrl::parse(&self.server)?;
        let mut same_host = None;
        for name in contexts.names() {
            let Some(known) = contexts.find(&name)? else { continue };
            if known.url == url {
                return Ok((name, Server { key: key.or(known.key.clone()), ..known }));
            }
            if known.url.origin() == url.origin() && key.is_none() {
                same_host.get_or_insert((name, Server { url: url.clone(), ..known }));
            }
        }
        if let Some(found) = same_host {
            return Ok(found);
        }
        if contexts.find(&self.name)?.is_some() || self.name == LOCAL {
            let message = format!("the name {} belongs to a context of another server", self.name);
            return Err(CliError::usage(message).hint("pass another --name, or `amalgam login` first"));
        }
        let server = contexts.at(url)?;
        Ok((self.name.clone(), Server { key: key.or(server.key.clone()), ..server }))
    }
}

fn list(session: &mut Session) -> Outcome {
    let remotes = Remotes::of_home(session.home()).list()?;
    if remotes.is_empty() {
        session.output.done("no remotes; `amalgam remote add URL` adds one")?;
    }
    for remote in &remotes {
        session.output.emit(&json_line(remote))?;
        let chosen = match remote.workspaces.is_empty() {
            true => "all workspaces".to_owned(),
            false => remote.workspaces.join(", "),
        };
        let name = paint(style::TITLE, &remote.name);
        session.output.say(format!("{name}  {}  {}: {chosen}", remote.url, remote.sync.words()))?;
    }
    Ok(Exit::OK)
}

impl Rm {
    async fn run(self, session: &mut Session) -> Outcome {
        let remotes = Remotes::of_home(session.home());
        let remote = remotes.get(&self.name)?;
        let mut client = session.client().await?;
        let _lock = remotes.lock(&self.name, COMMAND_LOCK_TIMEOUT).await?;
        remotes.remove(&self.name)?;
        for name in tracked(&mut client, &self.name).await? {
            client.workspaces.delete_workspace(v1::DeleteWorkspaceRequest { name, ..Default::default() }).await?;
        }
        for name in tracked_labels(&mut client, &self.name).await? {
            client.snapshots.delete_label(v1::DeleteLabelRequest { name, ..Default::default() }).await?;
        }
        session.output.emit(&json_line(&remote))?;
        session.output.done(format!("removed the remote {}; workspaces stay as they are", self.name))?;
        Ok(Exit::OK)
    }
}

/// Returns the resource names of the workspaces that hold the heads of a remote.
async fn tracked(client: &mut Client, remote: &str) -> Result<Vec<String>, CliError> {
    let prefix = tracking_name(remote, "");
    let found = workspaces(client, &prefix).await?;
    Ok(found.into_iter().map(|found| found.name).collect())
}

/// Returns the resource names of the labels that were kept of a remote because both sides had moved them.
async fn tracked_labels(client: &mut Client, remote: &str) -> Result<Vec<String>, CliError> {
    let mut request = v1::ListLabelsRequest { prefix: tracking_name(remote, ""), ..Default::default() };
    let mut found = Vec::new();
    loop {
        let page = client.snapshots.list_labels(request.clone()).await?.into_inner();
        found.extend(page.labels.into_iter().map(|label| label.name));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// Returns the JSON line of a remote, without its key.
fn json_line(remote: &Definition) -> Value {
    lines::line(
        "remote",
        json!({
            "name": remote.name,
            "url": remote.url,
            "context": remote.context,
            "sync": remote.sync.word(),
            "workspaces": remote.workspaces,
            "allow_secrets": remote.allow_secrets,
        }),
    )
}
