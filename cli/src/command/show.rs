//! `amalgam show`: a snapshot, a file of it, or a directory of it.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;

use super::cat::PathAtRevision;
use super::diff::{self, Comparison, DiffFormat};
use super::log::full;
use super::revisions::{revision_and_path, snapshot, text_of};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json;
use crate::session::{Session, current_workspace, revision_state};
use crate::text;

/// Show a snapshot and its changes, or a file or directory of it
#[derive(Debug, Args)]
#[command(after_help = "\
A path after the colon is relative to the root of the snapshot; a path that begins with ./ or ../ is relative to the
current directory. A directory is listed, a file is printed.

Examples:
  amalgam show
  amalgam show --stat main@~2
  amalgam show @~:src/main.rs > old-main.rs
  amalgam show v1:src")]
pub struct Show {
    /// A revision, or a file or directory of it
    #[arg(value_name = "REV[:PATH]", default_value = "@")]
    what: OsString,
    #[command(flatten)]
    form: DiffFormat,
}

impl Show {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        match revision_and_path(session, place.as_ref(), &self.what)? {
            Some((name, path)) => {
                let at =
                    PathAtRevision { state: revision_state(&name), workspace: current_workspace(place.as_ref()), path };
                at.show(session, &mut client).await
            }
            None => {
                let snapshot = snapshot(&mut client, place.as_ref(), text_of(&self.what)?).await?;
                show_snapshot(session, &mut client, &snapshot, &self.form).await
            }
        }
    }
}

async fn show_snapshot(
    session: &mut Session,
    client: &mut Client,
    snapshot: &v1::Snapshot,
    form: &DiffFormat,
) -> Outcome {
    session.output.page();
    session.output.emit(&json::snapshot(snapshot))?;
    full(snapshot, session.now).into_iter().try_for_each(|line| session.output.say(line))?;
    if snapshot.thinned {
        let message =
            format!("the tree of {} was dropped by retention; only its record is left", text::short(&snapshot.name));
        return Err(CliError::refused(message));
    }
    diff::show(&mut session.output, client, &Comparison::of_snapshot(snapshot, Vec::new()), form).await?;
    Ok(Exit::OK)
}
