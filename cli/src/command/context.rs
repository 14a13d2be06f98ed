//! `amalgam context`: the servers that the user has logged in to, and which one commands work on.

use clap::{Args, Subcommand};

use super::login::json_line;
use crate::contexts::{Contexts, LOCAL};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::style::{self, paint};
use crate::session::Session;

/// List servers, and choose the one that commands work on
#[derive(Debug, Args)]
#[command(after_help = "\
`amalgam login` makes contexts. `local` is the store of this machine. --server and AMALGAM_SERVER name
a context for one command, and --store means the store of this machine.

Examples:
  amalgam context
  amalgam context use prod
  amalgam context use local
  amalgam context rm prod")]
pub struct Context {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List contexts; the default
    #[command(after_help = "Examples:\n  amalgam context ls")]
    Ls,
    /// Make commands work on a server, or on the store of this machine
    #[command(after_help = "Examples:\n  amalgam context use prod\n  amalgam context use local")]
    Use {
        /// The name of the context, or `local`
        name: String,
    },
    /// Forget a context and its key; the key stays valid until the server revokes it
    #[command(after_help = "Examples:\n  amalgam context rm prod")]
    Rm {
        /// The name of the context
        name: String,
    },
}

impl Context {
    /// Runs the command.
    pub fn run(self, session: &mut Session) -> Outcome {
        let mut contexts = Contexts::load()?;
        match self.command.unwrap_or(Verb::Ls) {
            Verb::Ls => list(session, &contexts)?,
            Verb::Use { name } => {
                let server = if name == LOCAL { None } else { Some(contexts.get(&name)?) };
                contexts.set_current(server.as_ref().map(|_| name.as_str()));
                contexts.save()?;
                session.output.emit(&json_line(&name, server.as_ref(), true))?;
                session.output.done(match &server {
                    Some(server) => format!("commands work on {}", paint(style::TITLE, &server.url)),
                    None => "commands work on the store of this machine".to_owned(),
                })?;
            }
            Verb::Rm { name } => {
                if name == LOCAL {
                    return Err(CliError::usage(format!("`{LOCAL}` is the store of this machine, and stays")));
                }
                let server = contexts.get(&name)?;
                contexts.remove(&name);
                contexts.save()?;
                session.output.emit(&json_line(&name, Some(&server), false))?;
                session.output.done(format!("forgot {name} and its key"))?;
            }
        }
        Ok(Exit::OK)
    }
}

fn list(session: &mut Session, contexts: &Contexts) -> Result<(), CliError> {
    let names = contexts.names();
    let width = names.iter().map(String::len).chain([LOCAL.len()]).max().unwrap_or(0);
    let mut say = |name: &str, server: Option<&crate::remote::Server>, is_current: bool| {
        session.output.emit(&json_line(name, server, is_current))?;
        let mark = if is_current { '*' } else { ' ' };
        let place = server.map_or_else(|| "the store of this machine".to_owned(), |server| server.url.to_string());
        session.output.say(format!("{mark} {}  {place}", paint(style::TITLE, format!("{name:width$}"))))
    };
    say(LOCAL, None, contexts.current().is_none())?;
    for name in &names {
        say(name, Some(&contexts.get(name)?), contexts.current() == Some(name.as_str()))?;
    }
    Ok(())
}
