//! `amalgam help`: the list of commands, a command's page, or a page about a topic.

use clap::Args;

use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::session::Session;

/// Explain a command, or how snapshots are named (`help revisions`)
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam help\n  amalgam help restore\n  amalgam help revisions")]
pub struct Help {
    /// A command, or `revisions`
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

impl Help {
    /// Prints the page that `page` returns for the words.
    pub fn run(self, session: &mut Session, page: fn(&[String]) -> Result<String, CliError>) -> Outcome {
        let page = page(&self.words)?;
        session.output.page();
        session.output.say(page.trim_end())?;
        Ok(Exit::OK)
    }
}
