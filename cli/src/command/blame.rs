//! `amalgam blame`: which snapshot each line of a file comes from.

use std::ffi::OsString;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;

use super::revisions::{revision_and_path, text_of, tree_path};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace};
use crate::text;

/// Show which snapshot each line of a file comes from
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam blame src/main.rs\n  amalgam blame v1 src/main.rs")]
pub struct Blame {
    /// The revision [default: @], and the file; or REV:PATH
    #[arg(value_name = "[REV] PATH", required = true, num_args = 1..=2)]
    words: Vec<OsString>,
}

impl Blame {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let (revision, path) = match self.words.as_slice() {
            [path] if session.cwd.join(path).symlink_metadata().is_ok() => {
                (None, tree_path(session, place.as_ref(), path)?)
            }
            [path] => match revision_and_path(session, place.as_ref(), path)? {
                Some((revision, path)) => (Some(revision), path),
                None => (None, tree_path(session, place.as_ref(), path)?),
            },
            [revision, path] => (Some(text_of(revision)?.to_owned()), tree_path(session, place.as_ref(), path)?),
            _ => return Err(CliError::usage("a file is needed")),
        };
        let mut client = session.client().await?;
        let request = v1::BlameFileRequest {
            revision: revision.unwrap_or_else(|| "@".to_owned()),
            workspace: current_workspace(place.as_ref()),
            path,
        };
        let blame = client.snapshots.blame_file(request).await?.into_inner();
        session.output.page();
        let file: Vec<_> = blame.text.split_inclusive(|byte| *byte == b'\n').collect();
        let digits = file.len().to_string().len();
        for run in &blame.runs {
            let snapshot = run.snapshot.clone().unwrap_or_default();
            let time = text::timestamp(snapshot.time.as_ref());
            let id = paint(style::ID, text::short(&snapshot.name));
            let who = format!("{} {:>14}", text::printable(&snapshot.author), text::ago(time, session.now));
            let mut line = lines::line(
                "blame",
                json!({
                    "first_line": run.first_line + 1,
                    "lines": run.lines,
                    "snapshot": text::id(&snapshot.name),
                    "author": snapshot.author,
                    "time": lines::time(snapshot.time.as_ref()),
                    "original_first_line": run.original_first_line + 1,
                }),
            );
            lines::put_bytes(&mut line, "path", &run.path);
            session.output.emit(&line)?;
            if session.output.is_json() {
                continue;
            }
            for number in run.first_line..run.first_line + run.lines {
                let bytes =
                    usize::try_from(number).ok().and_then(|number| file.get(number)).copied().unwrap_or_default();
                let shown = String::from_utf8_lossy(bytes);
                let shown = text::printable(shown.trim_end_matches(['\n', '\r']));
                session.output.say(format!("{id} {} {:>digits$} {shown}", paint(style::FAINT, &who), number + 1))?;
            }
        }
        Ok(Exit::OK)
    }
}
