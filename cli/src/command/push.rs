//! `amalgam push`: sends a workspace or a label to a server.

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::json;

use super::remote_copy::{choose_server, hinted, json_line, not_found};
use crate::connect::{Client, connect_server};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::secrets::find_secrets;
use crate::session::Session;
use crate::store_copy::{CopySource, NamedHead, Relation, common, copy, find, find_kind, relation};
use crate::text;

/// Most likely secrets that are listed; the others are counted.
const SECRETS_MAX: usize = 50;

/// Send a workspace or a label to a server
#[derive(Debug, Args)]
#[command(after_help = "\
Only what the server does not have is sent; an interrupted push continues where it stopped. Uncommitted
changes are not sent. Nothing on the server is overwritten: if the workspace moved there, the push
fails and names the next step. If contents of a workspace look like keys or passwords, the push lists
them and sends nothing of that workspace.

Examples:
  amalgam push
  amalgam push main v1 --server prod
  amalgam push main --under laptop       main arrives as laptop/main")]
pub struct Push {
    /// Workspaces or labels [default: the workspace of this directory]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Prefix the name on the server: main arrives as WORD/main
    #[arg(long, value_name = "WORD")]
    under: Option<String>,
    /// Purge there the contents that were purged here, and refuse the same bytes from now on
    #[arg(long)]
    tombstones: bool,
    /// Send contents that look like keys or passwords, too
    #[arg(long)]
    allow_secrets: bool,
}

impl Push {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        session.interrupts.say("what has arrived is kept; push again to continue");
        let server = session.take_server();
        let names = match self.names.is_empty() {
            true => vec![format!("{}@", session.attached_directory().await?.workspace_id())],
            false => self.names.clone(),
        };
        let mut local = session.client().await?;
        for word in &names {
            let named = find(&mut local, word).await?.ok_or_else(|| not_found(word, &session.store_words()))?;
            let server = choose_server(session, server.clone(), &named.name)?;
            let mut remote = connect_server(&server, &session.connect.actor).await?;
            let pushed = self.push(session, (&mut local, &mut remote), &named, &server).await;
            pushed.map_err(|error| error.of_server(&server.url))?;
        }
        Ok(Exit::OK)
    }

    async fn push(
        &self,
        session: &mut Session,
        (local, remote): (&mut Client, &mut Client),
        named: &NamedHead,
        server: &crate::remote::Server,
    ) -> Result<(), CliError> {
        if named.head.is_empty() {
            let message = format!("{} has no snapshot yet", named.words());
            return Err(CliError::refused(message).hint("`amalgam commit` takes one"));
        }
        let there = match &self.under {
            Some(word) => format!("{word}/{}", named.name),
            None => named.name.clone(),
        };
        let before = find_kind(remote, named.kind, &there).await?.map_or(String::new(), |found| found.head);
        match relation(local, &named.head, &before).await? {
            Relation::Forward => {}
            Relation::Diverged => return Err(self.moved(named, &server.url, &before)),
            Relation::Same | Relation::Behind => {
                session.output.emit(&json_line("pushed", named, server, None))?;
                return session.output.done(match before == named.head {
                    true => format!("nothing to push: {} has {} as it is", server.url, named.words()),
                    false => format!("nothing to push: {} is ahead; `amalgam pull` gets it", server.url),
                });
            }
        }
        let have = common(local, remote, &named.head).await?;
        if !self.allow_secrets {
            refuse_secrets(session, local, named, &have.snapshots).await?;
        }
        let copied = copy(
            session.output.shows_progress(),
            (local, remote),
            &CopySource { named, expected: true },
            have.text,
            &self.options(),
        )
        .await;
        let copied = copied.map_err(|error| match error.is(Reason::AlreadyExists) {
            true => self.moved(named, &server.url, ""),
            false => hinted(error),
        })?;
        session.output.emit(&json_line("pushed", named, server, Some(&copied)))?;
        let words = copied.words();
        session.output.done(format!("pushed {} to {}: {words}", named.words(), paint(style::TITLE, &server.url)))
    }

    fn options(&self) -> v1::ReceiveOptions {
        let under = self.under.clone().unwrap_or_default();
        v1::ReceiveOptions { under, tombstones: self.tombstones, ..Default::default() }
    }

    /// Returns the error of a push to a name that moved on the server to a snapshot outside of the sent history.
    fn moved(&self, named: &NamedHead, url: &dyn std::fmt::Display, before: &str) -> CliError {
        let at = if before.is_empty() { String::new() } else { format!(" to {}", text::short(before)) };
        let message = format!("{} moved{at} on {url}; nothing was sent", named.words());
        let name = &named.name;
        CliError::new(Exit::STALE, Reason::StaleHead.word(), message).hint(format!(
            "`amalgam pull {name}` gets it or says how to merge, then push again; --under WORD sends it under another name"
        ))
    }
}

/// Lists contents of the snapshots to send that look like keys or passwords, and fails if there are any.
async fn refuse_secrets(
    session: &mut Session,
    client: &mut Client,
    named: &NamedHead,
    had: &[String],
) -> Result<(), CliError> {
    let found = find_secrets(client, &named.head, had).await?;
    if found.is_empty() {
        return Ok(());
    }
    for secret in found.iter().take(SECRETS_MAX) {
        let line = lines::line("secret", json!({"message": secret.message, "snapshot": text::id(&secret.snapshot)}));
        session.output.emit(&lines::with_path(line, &secret.path))?;
        session.output.say(secret)?;
    }
    let number = text::plural(found.len() as u64, "likely secret");
    let error = CliError::refused(format!("{number} in {}; nothing was sent", named.words()));
    Err(error.hint("`amalgam purge PATH` forgets a content for good; --allow-secrets sends everything"))
}
