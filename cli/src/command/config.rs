//! `amalgam config`: the settings.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{KEYS, Key, known};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;

/// Show and change settings
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam config
  amalgam config get pager
  amalgam config set exclude '*.iso' node_modules
  amalgam config unset exclude")]
pub struct ConfigCommand {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all settings; what `amalgam config` does
    #[command(after_help = "Examples:\n  amalgam config list")]
    List,
    /// Print what a setting is set to; end with 1 if it is not
    #[command(after_help = "Examples:\n  amalgam config get author")]
    Get {
        /// The setting
        name: String,
    },
    /// Set a setting
    #[command(after_help = "Examples:\n  amalgam config set color never\n  amalgam config set exclude '*.o' target")]
    Set {
        /// The setting
        name: String,
        /// What to set it to; several for a list
        #[arg(required = true)]
        values: Vec<String>,
    },
    /// Go back to what holds without a setting
    #[command(after_help = "Examples:\n  amalgam config unset color")]
    Unset {
        /// The setting
        name: String,
    },
}

impl ConfigCommand {
    /// Does it.
    pub fn run(self, session: &mut Session) -> Outcome {
        match self.command.unwrap_or(Verb::List) {
            Verb::List => KEYS.iter().try_for_each(|key| say(session, key))?,
            Verb::Get { name } => {
                let key = known(&name)?;
                let Some(value) = session.config.shown(key) else {
                    let error = CliError::new(Exit::ERROR, "NOT_SET", format!("{name} is not set"));
                    return Err(error.hint(format!("without it {} holds", key.default)));
                };
                session.output.emit(&line(session, key))?;
                session.output.say(value)?;
            }
            Verb::Set { name, values } => {
                session.config.set(&name, &values)?;
                session.config.save()?;
                say(session, known(&name)?)?;
            }
            Verb::Unset { name } => {
                if session.config.unset(&name)? {
                    session.config.save()?;
                }
                say(session, known(&name)?)?;
            }
        }
        Ok(Exit::OK)
    }
}

fn say(session: &mut Session, key: &Key) -> Result<(), CliError> {
    session.output.emit(&line(session, key))?;
    let value = match session.config.shown(key) {
        Some(value) => paint(style::TITLE, value),
        None => format!("{} {}", key.default, paint(style::FAINT, "(not set)")),
    };
    session.output.say(format!("{} = {value}", key.name))?;
    session.output.say(paint(style::FAINT, format!("    {}", key.doc)))
}

fn line(session: &Session, key: &Key) -> serde_json::Value {
    lines::line(
        "setting",
        json!({
            "name": key.name,
            "value": session.config.shown(key),
            "default": key.default,
            "doc": key.doc,
            "file": session.config.path().display().to_string(),
        }),
    )
}
