//! Questions on the terminal.

use std::io::{self, IsTerminal as _, Write as _};

use crate::error::CliError;
use crate::session::Session;

/// Asks for a confirmation. Fails where no terminal can answer.
pub async fn confirm(session: &mut Session, question: &str) -> Result<(), CliError> {
    if session.no_input || session.output.is_json() || !io::stdin().is_terminal() {
        let why = match (session.no_input, session.output.is_json()) {
            (true, _) => "prompts are disabled (--no-input)",
            (_, true) => "--json asks nothing",
            _ => "standard input is no terminal",
        };
        return Err(CliError::usage(format!("{question} Confirmation is needed, but {why}")).hint("pass --yes"));
    }
    session.output.flush()?;
    write!(io::stderr(), "{question} [y/N] ")?;
    let read = || {
        let mut line = String::new();
        io::stdin().read_line(&mut line).map(|_| line)
    };
    let line = tokio::task::spawn_blocking(read).await.expect("reading a line does not panic");
    match line?.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(CliError::refused("nothing was changed")),
    }
}
