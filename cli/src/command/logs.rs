//! `amalgam logs`: the log of the background process.

use std::time::Duration;

use amalgam_server::Home;
use clap::Args;
use serde_json::json;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::logging::last_lines;
use crate::output::json as lines;
use crate::session::Session;

/// Delay between two reads of a log that is followed.
const FOLLOW_DELAY: Duration = Duration::from_millis(200);

/// Show the log of the background process
#[derive(Debug, Args)]
#[command(after_help = "\
AMALGAM_LOG=debug, set when the background process starts, logs every call; `amalgam stop` ends a
process that runs without it. The log never holds contents of files, keys or values of environment
variables. docs/LOGGING.md describes it.

Examples:
  amalgam logs
  amalgam logs -n 20 -f
  amalgam stop; AMALGAM_LOG=debug amalgam status; amalgam logs")]
pub struct Logs {
    /// Print at most this many of the last lines; 0 with --follow prints new lines only
    #[arg(short = 'n', long = "number", value_name = "N", default_value_t = 100)]
    number: usize,
    /// Go on printing lines as they are added, until interrupted
    #[arg(short, long)]
    follow: bool,
}

impl Logs {
    /// Prints the log. It is read without the background process, which may not run or not answer.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let path = Home::new(session.home()).log_path();
        let failed = |error: std::io::Error| CliError::machine(path.display(), &error);
        if !session.has_store() && !path.exists() {
            return Err(crate::connect::ConnectError::NoStore(session.home().to_owned()).into());
        }
        let (found, mut tail) = last_lines(&path, Some(self.number)).map_err(failed)?;
        if !self.follow {
            session.output.page();
        }
        print(session, &found)?;
        if !self.follow {
            if found.is_empty() {
                session.output.remark("the log is empty")?;
            }
            return Ok(Exit::OK);
        }
        loop {
            tokio::time::sleep(FOLLOW_DELAY).await;
            print(session, &tail.new_lines().map_err(failed)?)?;
        }
    }
}

fn print(session: &mut Session, found: &[String]) -> Result<(), CliError> {
    for line in found {
        session.output.emit(&lines::line("log_line", json!({"text": line})))?;
        session.output.say(line)?;
    }
    session.output.flush()
}
