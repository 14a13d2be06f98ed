//! `amalgam commit`: takes a snapshot.

use clap::Args;

use super::capture::{self, SnapshotInfo};
use super::conflicts;
use crate::error::Outcome;
use crate::session::Session;
use crate::text;

/// Take a snapshot of the directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam commit
  amalgam commit -m 'before the migration' --label before-migration")]
pub struct Commit {
    /// The message of the snapshot [default: none]
    #[arg(short, long, value_name = "MESSAGE", default_value = "", hide_default_value = true)]
    message: String,
    /// Put a label on the snapshot; repeatable
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
}

impl Commit {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory().await?;
        let mut client = session.client().await?;
        let about = SnapshotInfo { message: self.message, labels: self.label, ..SnapshotInfo::default() };
        let result = capture::capture(&session.output, &mut client, &place.directory.name, about).await?;
        session.output.emit(&capture::json_line("commit", &result))?;
        if result.changed {
            session.output.done(capture::line(&result))?;
        } else {
            let since = result.snapshot.as_ref().map(|head| text::timestamp(head.time.as_ref()));
            let since = since.map(|time| format!(" since {}", text::ago(time, session.now))).unwrap_or_default();
            session.output.done(format!("nothing to commit: nothing changed{since}"))?;
        }
        conflicts::say(&mut session.output, result.conflicts.as_ref())?;
        capture::warn(&mut session.output, &result.warnings)?;
        capture::report_notices(&mut session.output, &result.notices)
    }
}
