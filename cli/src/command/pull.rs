//! `amalgam pull`: gets a workspace or a label from a server.

use amalgam_proto::{Reason, v1};
use clap::Args;

use super::capture::{report_notices, warn};
use super::remote_copy::{choose_server, hinted, json_line, not_found};
use super::restore::say_restored;
use crate::connect::{Client, connect_server};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::store_copy::{CopySource, NamedHead, Relation, common, copy, find, find_kind, relation};
use crate::text;

/// Get a workspace or a label from a server
#[derive(Debug, Args)]
#[command(after_help = "\
Only what is not here yet is sent; an interrupted pull continues where it stopped. The directory of the
workspace is updated, and must have no uncommitted changes. Nothing here is overwritten: if the
workspace moved here and there, the pull fails and names the next step.

Examples:
  amalgam pull
  amalgam pull main v1 --server prod
  amalgam pull main --under prod         main arrives as prod/main; `amalgam merge prod/main` merges it")]
pub struct Pull {
    /// Workspaces or labels [default: the workspace of this directory]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Prefix the name here: main arrives as WORD/main
    #[arg(long, value_name = "WORD")]
    under: Option<String>,
    /// Purge here the contents that were purged there, and refuse the same bytes from now on
    #[arg(long)]
    tombstones: bool,
}

impl Pull {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        session.interrupts.say("what has arrived is kept; pull again to continue");
        let server = session.take_server();
        let names = match self.names.is_empty() {
            true => vec![format!("{}@", session.attached_directory().await?.workspace_id())],
            false => self.names.clone(),
        };
        let mut local = session.client_of_new_store().await?;
        let mut exit = Exit::OK;
        for word in &names {
            let server = choose_server(session, server.clone(), word.strip_suffix('@').unwrap_or(word))?;
            let mut remote = connect_server(&server, &session.connect.actor).await?;
            let pulled = self.pull(session, (&mut remote, &mut local), word, &server).await;
            exit = exit.or(pulled.map_err(|error| error.of_server(&server.url))?);
        }
        Ok(exit)
    }

    fn options(&self) -> v1::ReceiveOptions {
        let under = self.under.clone().unwrap_or_default();
        v1::ReceiveOptions { under, tombstones: self.tombstones, ..Default::default() }
    }

    async fn pull(
        &self,
        session: &mut Session,
        (remote, local): (&mut Client, &mut Client),
        word: &str,
        server: &crate::remote::Server,
    ) -> Outcome {
        let named = find(remote, word).await?.ok_or_else(|| not_found(word, &server.url.to_string()))?;
        if named.head.is_empty() {
            return Err(CliError::refused(format!("{} on {} has no snapshot yet", named.words(), server.url)));
        }
        let name_here = match &self.under {
            Some(word) => format!("{word}/{}", named.name),
            None => named.name.clone(),
        };
        let here = find_kind(local, named.kind, &name_here).await?;
        let before = here.as_ref().map_or("", |here| here.head.as_str());
        // For a snapshot that the local store does not have, the receiver finds out whether it is a descendant of the local head.
        match relation(local, &named.head, before).await? {
            Relation::Forward | Relation::Diverged => {}
            Relation::Same | Relation::Behind => {
                session.output.emit(&json_line("pulled", &named, server, None))?;
                session.output.done(match before == named.head {
                    true => format!("nothing to pull: {} is what {} has", named.words(), server.url),
                    false => format!("nothing to pull: {} is ahead; `amalgam push` sends it", named.words()),
                })?;
                return Ok(Exit::OK);
            }
        }
        if let Some(here) = &here {
            refuse_uncommitted(session, local, here).await?;
        }
        let have = common(remote, local, &named.head).await?;
        let copied = copy(
            session.output.shows_progress(),
            (remote, local),
            &CopySource { named: &named, expected: false },
            have.text,
            &self.options(),
        )
        .await;
        let copied = copied.map_err(|error| match error.is(Reason::AlreadyExists) {
            true => diverged(&named, &server.url),
            false => hinted(error),
        })?;
        session.output.emit(&json_line("pulled", &named, server, Some(&copied)))?;
        let words = copied.words();
        session.output.done(format!("pulled {} from {}: {words}", named.words(), paint(style::TITLE, &server.url)))?;
        match here {
            Some(here) => update_directories(session, local, &here).await,
            None => Ok(Exit::OK),
        }
    }
}

/// Returns the error of a pull into a name that holds snapshots which the server does not have.
fn diverged(named: &NamedHead, url: &dyn std::fmt::Display) -> CliError {
    let message = format!("{} has snapshots that {url} does not have, and the other way round", named.words());
    let name = &named.name;
    CliError::new(Exit::STALE, Reason::StaleHead.word(), message).hint(format!(
        "`amalgam pull {name} --under theirs`, then `amalgam merge theirs/{name} --into {name}`, then `amalgam push {name}`"
    ))
}

/// Fails if a directory of the workspace has uncommitted changes: they would look like changes to the pulled files.
async fn refuse_uncommitted(session: &mut Session, client: &mut Client, here: &NamedHead) -> Result<(), CliError> {
    for directory in &here.directories {
        let request = v1::DetectChangesRequest { name: directory.name.clone(), parts: true };
        let status = drive(&session.output, client.directories.detect_changes(request)).await?;
        let changed = status.modified.len() + status.added.len() + status.deleted.len();
        if changed > 0 {
            let path = text::path(&directory.path);
            let message = format!("{path} has {} that are in no snapshot", text::plural(changed as u64, "change"));
            let error = CliError::new(Exit::ERROR, Reason::UncommittedChanges.word(), message);
            return Err(error.hint("`amalgam commit` keeps them, `amalgam restore @` drops them; then pull again"));
        }
    }
    Ok(())
}

/// Brings the directories of a workspace to its new head.
async fn update_directories(session: &mut Session, client: &mut Client, here: &NamedHead) -> Outcome {
    let mut exit = Exit::OK;
    for directory in &here.directories {
        let request = v1::RestoreDirectoryRequest {
            name: directory.name.clone(),
            revision: format!("{}@", here.name),
            ..Default::default()
        };
        let result = drive(&session.output, client.directories.restore_directory(request)).await?;
        say_restored(&mut session.output, &result, "what was pulled")?;
        warn(&mut session.output, &result.warnings)?;
        exit = exit.or(report_notices(&mut session.output, &result.notices)?);
    }
    Ok(exit)
}
