//! `amalgam show`: a snapshot, a file of it, or a directory of it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use amalgam_proto::{Reason, v1};
use clap::Args;
use tonic::codegen::Bytes;

use super::diff::{self, Form, Sides};
use super::log::full;
use super::words::{snapshot, text_of};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json;
use crate::output::style::{self, paint};
use crate::place::path_behind_revision;
use crate::session::{Session, empty, here, revision};
use crate::text;

/// Show a snapshot and what it changed, or a file or directory of it
#[derive(Debug, Args)]
#[command(after_help = "\
A path behind the colon goes from the root of the snapshot; one that begins with ./ or ../ from where you are.

Examples:
  amalgam show
  amalgam show --stat main@~2
  amalgam show @~:src/main.rs > old-main.rs
  amalgam show v1:src")]
pub struct Show {
    /// A revision, or REV:PATH
    #[arg(value_name = "REV[:PATH]", default_value = "@")]
    what: OsString,
    #[command(flatten)]
    form: Form,
}

impl Show {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place_if_any().await?;
        let mut client = session.client().await?;
        let bytes = self.what.as_bytes();
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
            let snapshot = snapshot(&mut client, place.as_ref(), text_of(&self.what)?).await?;
            return show_snapshot(session, &mut client, &snapshot, &self.form).await;
        };
        let name = text_of(OsStr::from_bytes(&bytes[..colon]))?;
        let name = if name.is_empty() { "@" } else { name };
        let path = path_behind_revision(place.as_ref(), &session.cwd, OsStr::from_bytes(&bytes[colon + 1..]))?;
        let at = At { state: revision(name), workspace: here(place.as_ref()), path };
        // One question less for what is asked most: a file is read at once, and only what is none is listed.
        match at.read(session, &mut client).await {
            Err(error) if error.is(Reason::Invalid) || at.path.is_empty() => at.list(session, &mut client).await,
            outcome => outcome,
        }
    }
}

/// A path of a snapshot.
struct At {
    state: v1::State,
    workspace: String,
    path: Bytes,
}

impl At {
    async fn read(&self, session: &mut Session, client: &mut Client) -> Outcome {
        let request = v1::ReadFileRequest {
            state: Some(self.state.clone()),
            workspace: self.workspace.clone(),
            path: self.path.clone(),
            offset: 0,
            length: 0,
        };
        let mut stream = client.snapshots.read_file(request).await?.into_inner();
        let mut gathered = Vec::new();
        let mut entry = None;
        while let Some(part) = stream.message().await? {
            entry = entry.or(part.entry);
            if session.output.is_json() {
                gathered.extend_from_slice(&part.data);
            } else {
                session.output.raw(&part.data)?;
            }
        }
        if session.output.is_json() {
            let mut line = json::entry(&entry.unwrap_or_default());
            line["type"] = "file_content".into();
            json::put_bytes(&mut line, "text", &gathered);
            session.output.emit(&line)?;
        }
        Ok(Exit::OK)
    }

    async fn list(&self, session: &mut Session, client: &mut Client) -> Outcome {
        let request = v1::ListEntriesRequest {
            state: Some(self.state.clone()),
            workspace: self.workspace.clone(),
            path: self.path.clone(),
            recursive: false,
        };
        let mut stream = client.snapshots.list_entries(request).await?.into_inner();
        session.output.page();
        while let Some(part) = stream.message().await? {
            for entry in &part.entries {
                session.output.emit(&json::entry(entry))?;
                session.output.say(listed(entry))?;
            }
        }
        Ok(Exit::OK)
    }
}

fn listed(entry: &v1::Entry) -> String {
    let letter = match entry.kind() {
        v1::EntryKind::Directory => 'd',
        v1::EntryKind::Symlink => 'l',
        v1::EntryKind::Fifo => 'p',
        v1::EntryKind::Socket => 's',
        v1::EntryKind::CharDevice => 'c',
        v1::EntryKind::BlockDevice => 'b',
        v1::EntryKind::Conflict => '!',
        v1::EntryKind::File | v1::EntryKind::Unspecified => '-',
    };
    let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = match entry.kind() {
        v1::EntryKind::Directory => paint(style::WORKSPACE, format!("{}/", text::path(name))),
        v1::EntryKind::Symlink => format!("{} -> {}", text::path(name), text::path(&entry.symlink_target)),
        _ => text::path(name).into_owned(),
    };
    let time = text::wall_clock(text::moment(entry.modify_time.as_ref()));
    format!("{letter} {:04o} {:>10}  {time}  {name}", entry.mode, text::count(entry.size))
}

async fn show_snapshot(session: &mut Session, client: &mut Client, snapshot: &v1::Snapshot, form: &Form) -> Outcome {
    session.output.page();
    session.output.emit(&json::snapshot(snapshot))?;
    full(snapshot, session.now).into_iter().try_for_each(|line| session.output.say(line))?;
    if snapshot.thinned {
        let message = format!("the tree of {} was dropped; its record is all there is", text::short(&snapshot.name));
        return Err(CliError::refused(message));
    }
    let before = snapshot.parents.first().map_or_else(empty, |parent| revision(text::id(parent)));
    let after = revision(text::id(&snapshot.name));
    let sides = Sides { before, after, workspace: String::new(), paths: Vec::new() };
    diff::show(&mut session.output, client, &sides, form).await?;
    Ok(Exit::OK)
}
