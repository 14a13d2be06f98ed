//! `amalgam clone`: copies a workspace of a server, with its history, into a new directory.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;

use super::checkout::{Target, checkout, report};
use super::remote_copy::{json_line, not_found, store_server};
use crate::connect::connect_server;
use crate::contexts::Contexts;
use crate::error::{CliError, Outcome};
use crate::output::style::{self, paint};
use crate::remote::{Server, ServerUrl};
use crate::session::Session;
use crate::store_copy::{CopySource, NameKind, common, copy, find_kind};

/// Get a workspace of a server into a new directory
#[derive(Debug, Args)]
#[command(after_help = "\
The workspace comes into the local store with its whole history, and DIR belongs to it. `amalgam push`
and `amalgam pull` in DIR go to the same server.

Examples:
  amalgam clone https://state.example.com/demo/main app
  amalgam clone prod/demo/main app       prod is a context of `amalgam login`")]
pub struct Clone {
    /// The server or a context, its project, and the workspace: https://HOST[:PORT]/PROJECT/WORKSPACE
    #[arg(value_name = "SERVER/PROJECT/WORKSPACE")]
    source: String,
    /// The directory; it must be empty or not exist
    dir: OsString,
}

impl Clone {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        session.interrupts.say("what has arrived is kept; clone again to continue");
        // The argument names the server.
        drop(session.take_server());
        let (server, name) = source(&self.source)?;
        let path = session.host_path(&self.dir);
        if path.symlink_metadata().is_ok() && !path.read_dir().is_ok_and(|mut names| names.next().is_none()) {
            return Err(
                CliError::refused(format!("{} exists and is not empty", path.display())).hint("name another directory")
            );
        }
        let mut remote = connect_server(&server, &session.connect.actor).await?;
        let found = find_kind(&mut remote, NameKind::Workspace, &name).await;
        let found = found.map_err(|error| error.of_server(&server.url))?;
        let named = found.ok_or_else(|| not_found(&name, &server.url.to_string()))?;
        if named.head.is_empty() {
            return Err(CliError::refused(format!("{} on {} has no snapshot yet", named.words(), server.url)));
        }
        let mut local = session.client_of_new_store().await?;
        if find_kind(&mut local, NameKind::Workspace, &name).await?.is_some_and(|here| here.head != named.head) {
            return Err(CliError::refused(format!("there is a workspace {name} here already")).hint(format!(
                "`amalgam pull {name} --server {}` updates it, `amalgam ws rename {name} OTHER` makes room",
                server.url
            )));
        }
        let have = common(&mut remote, &mut local, &named.head).await?;
        let copied = copy(
            session.output.shows_progress(),
            (&mut remote, &mut local),
            &CopySource { named: &named, expected: false },
            have.text,
            &v1::ReceiveOptions::default(),
        )
        .await;
        let copied = copied.map_err(|error| error.of_server(&server.url))?;
        store_server(session, &name, &server)?;
        session.output.emit(&json_line("pulled", &named, &server, Some(&copied)))?;
        let words = copied.words();
        session.output.done(format!("cloned {} from {}: {words}", named.words(), paint(style::TITLE, &server.url)))?;
        let target = Target {
            path: &path,
            revision: &format!("{name}@"),
            workspace: "",
            attach: &name,
            source: "",
            conflicts: "",
            read_only: false,
            set_id: false,
        };
        let result = checkout(&session.output, &mut local, &target).await?;
        report(&mut session.output, &path, Some(&name), &result)
    }
}

/// Returns the server and the workspace that an argument names, by URL or by context.
fn source(text: &str) -> Result<(Server, String), CliError> {
    let contexts = Contexts::load()?;
    if text.contains("://") {
        let (url, workspace) = ServerUrl::parse_workspace(text)?;
        return Ok((contexts.at(url)?, workspace));
    }
    let parts: Vec<_> = text.splitn(3, '/').collect();
    let [context, project, workspace] = parts[..] else {
        return Err(CliError::usage(format!("`{text}` is not SERVER/PROJECT/WORKSPACE"))
            .hint("as in https://state.example.com/demo/main, or CONTEXT/demo/main"));
    };
    let local =
        || CliError::usage(format!("`{context}` is the store of this machine")).hint("`amalgam fork` copies there");
    let mut server = contexts.resolve(context)?.ok_or_else(local)?;
    server.url.project = Some(project.to_owned());
    Ok((server, workspace.to_owned()))
}
