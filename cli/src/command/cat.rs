//! `amalgam ls` and `amalgam cat`: list and print the files of a snapshot.

use std::ffi::OsString;

use amalgam_proto::{Reason, v1};
use clap::Args;
use tonic::codegen::Bytes;

use super::revisions::{RevisionLimits, revision_and_path, split_revisions_and_paths, tree_path};
use crate::attached::AttachedDirectory;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace, revision_state};
use crate::text;

/// List the files of a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
Without a revision, the last snapshot is used. `amalgam help revisions` explains how snapshots are named.

Examples:
  amalgam ls
  amalgam ls main src
  amalgam ls '@{yesterday}:src' --recursive")]
pub struct Ls {
    /// The revision [default: @], then paths; or REV:PATH
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    /// List the files in subdirectories, too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List only these paths
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// Print files of a snapshot
#[derive(Debug, Args)]
#[command(after_help = "\
Without a revision, the last snapshot is used. `amalgam help revisions` explains how snapshots are named.

Examples:
  amalgam cat src/main.rs
  amalgam cat @~3 src/main.rs
  amalgam cat v1:src/main.rs > old-main.rs")]
pub struct Cat {
    /// The revision [default: @], then files; or REV:PATH
    #[arg(value_name = "REV|PATH", required_unless_present = "paths")]
    words: Vec<OsString>,
    /// Print these files
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Ls {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let mut places = at(session, place.as_ref(), &self.words, &self.paths).await?;
        if places.paths.is_empty() {
            places.paths.push(Bytes::new());
        }
        let mut client = session.client().await?;
        for at in places.each() {
            at.list(session, &mut client, self.recursive).await?;
        }
        Ok(Exit::OK)
    }
}

impl Cat {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let places = at(session, place.as_ref(), &self.words, &self.paths).await?;
        if places.paths.is_empty() {
            return Err(CliError::usage("name a file").hint("`amalgam ls` lists the files of a snapshot"));
        }
        let mut client = session.client().await?;
        for at in places.each() {
            at.read(session, &mut client).await?;
        }
        Ok(Exit::OK)
    }
}

/// A revision, and paths of it.
struct Places {
    revision: String,
    workspace: String,
    paths: Vec<Bytes>,
}

impl Places {
    fn each(&self) -> impl Iterator<Item = PathAtRevision> + '_ {
        let at = |path: &Bytes| PathAtRevision {
            state: revision_state(&self.revision),
            workspace: self.workspace.clone(),
            path: path.clone(),
        };
        self.paths.iter().map(at)
    }
}

/// Returns the revision and the paths that the words on the command line name. `behind_dashes` are the paths behind `--`.
async fn at(
    session: &mut Session,
    place: Option<&AttachedDirectory>,
    words: &[OsString],
    behind_dashes: &[OsString],
) -> Result<Places, CliError> {
    let workspace = current_workspace(place);
    if let [word] = words
        && session.cwd.join(word).symlink_metadata().is_err()
        && let Some((revision, path)) = revision_and_path(session, place, word)?
    {
        let more = behind_dashes.iter().map(|path| tree_path(session, place, path));
        let paths = std::iter::once(Ok(path)).chain(more).collect::<Result<_, _>>()?;
        return Ok(Places { revision, workspace, paths });
    }
    let wanted = RevisionLimits { revisions_max: 1, ranges: false };
    let found = split_revisions_and_paths(session, place, words, behind_dashes, wanted).await?;
    let found = if found.revisions.is_empty() { found.require_known()? } else { found };
    let revision = found.revisions.into_iter().next().unwrap_or_else(|| "@".to_owned());
    Ok(Places { revision, workspace, paths: found.paths })
}

/// A path of a snapshot.
pub struct PathAtRevision {
    /// The snapshot.
    pub state: v1::State,
    /// The workspace that `@` stands for.
    pub workspace: String,
    /// The path.
    pub path: Bytes,
}

impl PathAtRevision {
    /// Prints a file, or lists a directory.
    pub async fn show(&self, session: &mut Session, client: &mut Client) -> Outcome {
        // Most paths are files: reading first saves a call, and only a directory is listed.
        match self.read(session, client).await {
            Err(error) if error.is(Reason::Invalid) || self.path.is_empty() => self.list(session, client, false).await,
            outcome => outcome,
        }
    }

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

    async fn list(&self, session: &mut Session, client: &mut Client, recursive: bool) -> Outcome {
        let request = v1::ListEntriesRequest {
            state: Some(self.state.clone()),
            workspace: self.workspace.clone(),
            path: self.path.clone(),
            recursive,
        };
        let mut stream = client.snapshots.list_entries(request).await?.into_inner();
        session.output.page();
        while let Some(part) = stream.message().await? {
            for entry in &part.entries {
                session.output.emit(&json::entry(entry))?;
                session.output.say(listed(entry, recursive))?;
            }
        }
        Ok(Exit::OK)
    }
}

fn listed(entry: &v1::Entry, whole_path: bool) -> String {
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
    let name = match whole_path {
        true => &entry.path[..],
        false => entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default(),
    };
    let name = match entry.kind() {
        v1::EntryKind::Directory => paint(style::WORKSPACE, format!("{}/", text::path(name))),
        v1::EntryKind::Symlink => format!("{} -> {}", text::path(name), text::path(&entry.symlink_target)),
        _ => text::path(name).into_owned(),
    };
    let time = text::wall_clock(text::timestamp(entry.modify_time.as_ref()));
    format!("{letter} {:04o} {:>10}  {time}  {name}", entry.mode, text::count(entry.size))
}
