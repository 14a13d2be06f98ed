//! `amalgam push`: sends a workspace or a label to a server.

use std::collections::BTreeSet;

use amalgam_proto::{Reason, v1};
use clap::Args;
use serde_json::json;

use super::diff::Comparison;
use super::remote_copy::{
    NamedHead, Relation, choose_server, common, copy, find, find_kind, hinted, json_line, not_found, relation,
};
use crate::connect::{Client, connect_server};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, empty_state};
use crate::text;

/// Snapshots that one call lists.
const PAGE_SIZE: i32 = 500;
/// The kinds of risk that a push refuses: contents and names of files that look like credentials.
const SECRET_KINDS: [&str; 2] = ["credential", "credential-name"];
/// Most likely secrets that are listed; the others are counted.
const SECRETS_MAX: usize = 50;

/// Send a workspace or a label to a server
#[derive(Debug, Args)]
#[command(after_help = "\
Only what the server does not have is sent; a push that broke off goes on where it ended. Uncommitted
changes are not sent. Nothing on the server is overwritten: if the workspace moved there, the push
fails and names the next step. Contents that look like keys or passwords are listed and not sent.

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
        let copied = copy(&session.output, (local, remote), named, have.text, &self.options()).await;
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

    /// The error of a push to a name that holds something else.
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
    let mut request = v1::ListSnapshotsRequest {
        revisions: vec![text::id(&named.head).to_owned()],
        exclude: known(client, had).await?,
        page_size: PAGE_SIZE,
        ..Default::default()
    };
    let mut found = BTreeSet::new();
    loop {
        let page = client.snapshots.list_snapshots(request.clone()).await?.into_inner();
        for snapshot in &page.snapshots {
            for (path, message) in secrets(client, snapshot).await? {
                found.insert((path, message, snapshot.name.clone()));
            }
        }
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    for (path, message, snapshot) in found.iter().take(SECRETS_MAX) {
        let line = lines::line("secret", json!({"message": message, "snapshot": text::id(snapshot)}));
        session.output.emit(&lines::with_path(line, path))?;
        session.output.say(format!(
            "{}: {} (in {})",
            text::path(path),
            text::printable(message),
            text::short(snapshot)
        ))?;
    }
    let number = text::plural(found.len() as u64, "likely secret");
    let error = CliError::refused(format!("{number} in {}; nothing was sent", named.words()));
    Err(error.hint("`amalgam purge PATH` forgets a content for good; --allow-secrets sends everything"))
}

/// Those of the receiver's snapshots that the sender has too, as revisions.
async fn known(client: &mut Client, had: &[String]) -> Result<Vec<String>, CliError> {
    if had.is_empty() {
        return Ok(Vec::new());
    }
    let request = v1::GetHaveRequest { snapshots: had.to_vec() };
    let found = client.transfer.get_have(request).await?.into_inner().snapshots;
    Ok(found.iter().map(|name| text::id(name).to_owned()).collect())
}

/// The likely secrets that a snapshot brought, by path.
async fn secrets(
    client: &mut Client,
    snapshot: &v1::Snapshot,
) -> Result<Vec<(tonic::codegen::Bytes, String)>, CliError> {
    let sides = Comparison::of_snapshot(snapshot, Vec::new());
    match inspect(client, sides.before, sides.after.clone()).await {
        // The parent's files were thinned: everything counts as new.
        Err(error) if error.is(Reason::NotFound) => inspect(client, empty_state(), sides.after).await,
        found => found,
    }
}

async fn inspect(
    client: &mut Client,
    before: v1::State,
    after: v1::State,
) -> Result<Vec<(tonic::codegen::Bytes, String)>, CliError> {
    let request = v1::InspectChangeRequest { before: Some(before), after: Some(after), ..Default::default() };
    let mut stream = client.snapshots.inspect_change(request).await?.into_inner();
    let mut found = Vec::new();
    while let Some(part) = stream.message().await? {
        for file in part.files {
            let Some(change) = file.change else { continue };
            let risks = file.risks.into_iter().filter(|risk| SECRET_KINDS.contains(&risk.kind.as_str()));
            found.extend(risks.map(|risk| (change.path.clone(), risk.message)));
        }
    }
    Ok(found)
}
