//! `amalgam config`: the settings.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{KEYS, NamedKey, find_key};
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
  amalgam config set retention.automatic.daily 90d
  amalgam config set workspace.main.quota 2GB       for one workspace
  amalgam config unset exclude")]
pub struct ConfigCommand {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all settings; the default
    #[command(after_help = "Examples:\n  amalgam config list")]
    List,
    /// Print the value of a setting; exit with 1 if it is not set
    #[command(after_help = "Examples:\n  amalgam config get author")]
    Get {
        /// The setting
        name: String,
    },
    /// Change a setting
    #[command(after_help = "Examples:\n  amalgam config set color never\n  amalgam config set exclude '*.o' target")]
    Set {
        /// The setting
        name: String,
        /// The value; several for a list
        #[arg(required = true)]
        values: Vec<String>,
    },
    /// Remove a setting, so that its default applies
    #[command(after_help = "Examples:\n  amalgam config unset color")]
    Unset {
        /// The setting
        name: String,
    },
}

impl ConfigCommand {
    /// Runs the command.
    pub fn run(self, session: &mut Session) -> Outcome {
        match self.command.unwrap_or(Verb::List) {
            Verb::List => {
                KEYS.iter().try_for_each(|key| say(session, &NamedKey { key, workspace: None }))?;
                session.config.of_workspaces().iter().try_for_each(|named| say(session, named))?;
            }
            Verb::Get { name } => {
                let named = find_key(&name)?;
                let Some(value) = session.config.shown(&named) else {
                    let error = CliError::new(Exit::ERROR, "NOT_SET", format!("{name} is not set"));
                    return Err(error.hint(format!("the default is {}", default(&named))));
                };
                session.output.emit(&line(session, &named))?;
                session.output.say(value)?;
            }
            Verb::Set { name, values } => {
                let named = find_key(&name)?;
                session.config.set(&named, &values)?;
                session.config.save()?;
                say_changed(session, &named)?;
            }
            Verb::Unset { name } => {
                let named = find_key(&name)?;
                if session.config.unset(&named) {
                    session.config.save()?;
                }
                say_changed(session, &named)?;
            }
        }
        Ok(Exit::OK)
    }
}

/// The default, in words.
fn default(named: &NamedKey) -> &'static str {
    if named.workspace.is_some() { "the value for all workspaces" } else { named.key.default }
}

/// A setting that was changed.
fn say_changed(session: &mut Session, named: &NamedKey) -> Result<(), CliError> {
    if session.output.is_quiet() { session.output.emit(&line(session, named)) } else { say(session, named) }
}

fn say(session: &mut Session, named: &NamedKey) -> Result<(), CliError> {
    session.output.emit(&line(session, named))?;
    let value = match session.config.shown(named) {
        Some(value) => paint(style::TITLE, value),
        None => format!("{} {}", default(named), paint(style::FAINT, "(not set)")),
    };
    session.output.say(format!("{} = {value}", named.name()))?;
    session.output.say(paint(style::FAINT, format!("    {}", named.key.doc)))
}

fn line(session: &Session, named: &NamedKey) -> serde_json::Value {
    lines::line(
        "setting",
        json!({
            "name": named.name(),
            "value": session.config.shown(named),
            "default": default(named),
            "doc": named.key.doc,
            "file": session.config.path().display().to_string(),
        }),
    )
}
