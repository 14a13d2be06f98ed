//! `amalgam run`: a command between two snapshots.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::capture::{About, capture, changed, report_notices};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Run a command between two snapshots
#[derive(Debug, Args)]
#[command(after_help = "\
The command gets the terminal and Ctrl-C. This ends as the command ends, with its code, or 128 and the number of the signal
that ended it.

Examples:
  amalgam run -- make test
  amalgam run -m 'let the agent fix it' -- my-agent --task 17")]
pub struct Run {
    /// Why
    #[arg(short, long, value_name = "MESSAGE")]
    message: Option<String>,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Run {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place().await?;
        let mut client = session.client().await?;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let line = words.join(" ");
        let directory = place.directory.name;
        let before =
            capture(&session.output, &mut client, &directory, About::message(format!("before: {line}"))).await?;
        report_notices(&mut session.output, &before.notices)?;
        session.output.flush()?;
        session.interrupts.leave_to_child(true);
        let status = run_child(&self.command).await;
        session.interrupts.leave_to_child(false);
        let code = code_of(status?);
        let about = About {
            message: self.message.unwrap_or_else(|| line.clone()),
            metadata: HashMap::from([("command".to_owned(), line.clone()), ("exit_code".to_owned(), code.to_string())]),
            ..About::default()
        };
        let after = capture(&session.output, &mut client, &directory, about).await?;
        let output = &mut session.output;
        output.emit(&lines::line(
            "run",
            json!({
                "exit_code": code,
                "before": lines::snapshot_id(before.snapshot.as_ref()),
                "after": lines::snapshot_id(after.snapshot.as_ref()),
                "changed": after.changed,
                "added": after.added,
                "modified": after.modified,
                "removed": after.removed,
            }),
        ))?;
        let id = |snapshot: &Option<_>| snapshot.as_ref().map_or(String::new(), id_of);
        let words = if after.changed {
            let steps = format!("{} -> {}", id(&before.snapshot), id(&after.snapshot));
            format!("{steps}  {}; `amalgam diff @~ @` shows it, `amalgam undo` takes it back", changed(&after))
        } else {
            "nothing changed".to_owned()
        };
        output.remark(format!("{} {words}", paint(style::FAINT, "amalgam:")))?;
        report_notices(output, &after.notices)?;
        Ok(Exit(code))
    }
}

fn id_of(snapshot: &amalgam_proto::v1::Snapshot) -> String {
    paint(style::ID, text::short(&snapshot.name))
}

/// The code that a shell would give.
pub fn code_of(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

async fn run_child(words: &[OsString]) -> Result<ExitStatus, CliError> {
    let failed = |error: io::Error| {
        // What a shell ends with when it cannot start a command.
        let exit = if error.kind() == io::ErrorKind::NotFound { Exit(127) } else { Exit(126) };
        CliError::new(exit, "NOT_STARTED", format!("{}: {error}", words[0].to_string_lossy()))
    };
    let mut child = Command::new(&words[0]).args(&words[1..]).spawn().map_err(failed)?;
    let listen = |kind| signal(kind).map_err(|error| CliError::machine("could not listen for signals", &error));
    let mut asked_to_end = listen(SignalKind::terminate())?;
    let mut hung_up = listen(SignalKind::hangup())?;
    loop {
        // Ctrl-C reaches the child from the terminal; what is sent to this program alone is handed on.
        let signal = tokio::select! {
            status = child.wait() => return status.map_err(failed),
            _ = asked_to_end.recv() => Signal::TERM,
            _ = hung_up.recv() => Signal::HUP,
        };
        let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(id) = id {
            // The child may have ended in this moment; then there is nobody to tell.
            let _ = kill_process(id, signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_those_of_a_shell() {
        assert_eq!(code_of(ExitStatus::from_raw(0)), 0);
        assert_eq!(code_of(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_of(ExitStatus::from_raw(9)), 137);
    }
}
