//! `amalgam find`: finds paths in all snapshots, deleted ones included.

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::revisions::{RevisionLimits, split_revisions_and_paths};
use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace};
use crate::text;

/// Find files by name in all snapshots, deleted files included
#[derive(Debug, Args)]
#[command(after_help = "\
A pattern without a slash is matched against file names, a pattern with a slash against whole paths from the root.
* matches any part of a name, ** any number of directories. Each path is listed once, with the newest snapshot that has
it. The command searches the history of this workspace or, with --all, of all workspaces and labels of the store. It
exits with 1 if nothing is found.

Examples:
  amalgam find '*.sql'
  amalgam find 'src/**/old_*'
  amalgam find notes.txt --gone")]
pub struct Find {
    /// The pattern
    #[arg(value_name = "GLOB")]
    pattern: String,
    /// Search the history of these revisions [default: @]
    #[arg(value_name = "REV")]
    revisions: Vec<std::ffi::OsString>,
    /// Search the histories of all workspaces and labels
    #[arg(long, conflicts_with = "revisions")]
    all: bool,
    /// List only files that were deleted
    #[arg(long)]
    gone: bool,
    /// Search .git, too
    #[arg(long)]
    with_git: bool,
}

impl Find {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let wanted = RevisionLimits { revisions_max: usize::MAX, ranges: false };
        let words =
            split_revisions_and_paths(session, place.as_ref(), &self.revisions, &[], wanted).await?.require_known()?;
        let request = v1::FindPathsRequest {
            without_git: !self.with_git && text::git_part(self.pattern.as_bytes()).is_none(),
            pattern: self.pattern,
            all: self.all || (words.revisions.is_empty() && place.is_none()),
            revisions: words.revisions,
            workspace: current_workspace(place.as_ref()),
            project: false,
        };
        let mut client = session.client().await?;
        let mut stream = client.snapshots.find_paths(request).await?.into_inner();
        session.output.page();
        let mut count = 0_u64;
        while let Some(found) = stream.message().await? {
            if self.gone && found.removed_in.is_none() {
                continue;
            }
            count += 1;
            let entry = found.entry.clone().unwrap_or_default();
            let line = lines::line(
                "found",
                json!({
                    "kind": text::kind_word(entry.kind()),
                    "size": entry.size,
                    "snapshot": lines::snapshot_id(found.snapshot.as_ref()),
                    "removed_in": lines::snapshot_id(found.removed_in.as_ref()),
                }),
            );
            session.output.emit(&lines::with_path(line, &entry.path))?;
            let newest = found.snapshot.unwrap_or_default();
            let id = paint(style::ID, text::short(&newest.name));
            let slash = if entry.kind() == v1::EntryKind::Directory { "/" } else { "" };
            let path = format!("{}{slash}", text::path(&entry.path));
            session.output.say(match &found.removed_in {
                None => format!("{id}  {path}"),
                Some(removed) => {
                    let age = text::ago(text::timestamp(removed.time.as_ref()), session.now);
                    let gone = format!("gone since {}, {age}", text::short(&removed.name));
                    format!("{id}  {path}  {}", paint(style::FAINT, gone))
                }
            })?;
        }
        if count == 0 {
            session.output.remark("nothing found")?;
        }
        Ok(if count == 0 { Exit::ERROR } else { Exit::OK })
    }
}
