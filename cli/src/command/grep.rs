//! `amalgam grep`: lines of a snapshot's files that match a pattern.

use std::collections::BTreeSet;
use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::revisions::{RevisionLimits, split_revisions_and_paths};
use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace, revision_state};
use crate::text;

/// Search the files of a snapshot for a pattern
#[derive(Debug, Args)]
#[command(after_help = "\
The pattern is a regular expression, matched line by line. Without a revision, the last snapshot is searched. As in
`git grep`, .git is skipped, and only the name of a matching binary file is printed. The command exits with 1 if nothing
matches.

Examples:
  amalgam grep deprecated
  amalgam grep 'fn \\w+_all' main src
  amalgam grep -F 'a[0]' '@{yesterday}'")]
pub struct Grep {
    /// The pattern
    pattern: String,
    /// The revision [default: @], then paths [default: all]
    #[arg(value_name = "REV|PATH")]
    words: Vec<OsString>,
    /// Match the pattern as plain text, not as a regular expression
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Ignore the difference between upper and lower case
    #[arg(short, long)]
    ignore_case: bool,
    /// Print only the names of files that match
    #[arg(long)]
    files_with_matches: bool,
    /// Search .git, too
    #[arg(long)]
    with_git: bool,
    /// Search only these paths and everything below them
    #[arg(last = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Grep {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let wanted = RevisionLimits { revisions_max: 1, ranges: false };
        let words = split_revisions_and_paths(session, place.as_ref(), &self.words, &self.paths, wanted).await?;
        let words = if words.revisions.is_empty() { words.require_known()? } else { words };
        let request = v1::SearchFilesRequest {
            state: Some(revision_state(words.revisions.first().map_or("@", String::as_str))),
            workspace: current_workspace(place.as_ref()),
            without_git: !self.with_git && !words.paths.iter().any(|path| text::git_part(path).is_some()),
            paths: words.paths,
            pattern: self.pattern,
            fixed: self.fixed_strings,
            ignore_case: self.ignore_case,
        };
        let mut client = session.client().await?;
        let mut stream = client.snapshots.search_files(request).await?.into_inner();
        session.output.page();
        let mut names = BTreeSet::new();
        while let Some(part) = stream.message().await? {
            for found in &part.matches {
                let is_first = names.insert(found.path.clone());
                let line = lines::line(
                    "match",
                    json!({"line": (!found.binary).then_some(found.line), "binary": found.binary}),
                );
                let mut line = lines::with_path(line, &found.path);
                lines::put_bytes(&mut line, "text", &found.text);
                session.output.emit(&line)?;
                if !self.files_with_matches {
                    session.output.say(shown(found))?;
                } else if is_first {
                    session.output.say(paint(style::TITLE, text::path(&found.path)))?;
                }
            }
        }
        Ok(if names.is_empty() { Exit::ERROR } else { Exit::OK })
    }
}

fn shown(found: &v1::MatchedLine) -> String {
    let path = paint(style::TITLE, text::path(&found.path));
    if found.binary {
        return format!("{path}: a binary file matches");
    }
    let line = String::from_utf8_lossy(&found.text);
    format!("{path}:{}: {}", paint(style::HUNK, found.line), text::printable(&line))
}
