//! `amalgam config`: the settings.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::config::{KEYS, NamedKey, find_key};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::serve_settings::{ServerArgs, ServerSettings, Source, without_password};
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
  amalgam config unset exclude
  amalgam config server                             settings of `amalgam serve`")]
pub struct ConfigCommand {
    #[command(subcommand)]
    command: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List all settings; the default
    #[command(after_help = "Examples:\n  amalgam config list")]
    List,
    /// List the settings of `amalgam serve`, each with its source: flag, environment, file or default
    #[command(
        after_help = "Examples:\n  amalgam config server\n  amalgam config server --config server.toml --rate strict"
    )]
    Server(Box<ServerArgs>),
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
            Verb::Server(options) => list_server(session, &options)?,
            Verb::Get { name } => {
                let named = find_key(&name)?;
                let Some(value) = value(session, &named) else {
                    let error = CliError::new(Exit::ERROR, "NOT_SET", format!("{name} is not set"));
                    return Err(error.hint(format!("the default is {}", default(&named))));
                };
                session.output.emit(&line(session, &named))?;
                session.output.say(value)?;
            }
            Verb::Set { name, values } => {
                let named = find_key(&name)?;
                session.config.update(|config| config.set(&named, &values))?;
                say_changed(session, &named)?;
            }
            Verb::Unset { name } => {
                let named = find_key(&name)?;
                if session.config.shown(&named).is_some() {
                    session.config.update(|config| {
                        config.unset(&named);
                        Ok(())
                    })?;
                }
                say_changed(session, &named)?;
            }
        }
        Ok(Exit::OK)
    }
}

/// Prints the settings of `amalgam serve`, each with its source.
fn list_server(session: &mut Session, options: &ServerArgs) -> Result<(), CliError> {
    let settings = ServerSettings::load(options, false)?;
    for (key, value, source) in settings.iter() {
        let value = value.map(without_password);
        let value = value.as_deref();
        let file = match source {
            Source::File(path) => path.display().to_string(),
            _ => String::new(),
        };
        let fields = json!({
            "name": key.name,
            "value": value,
            "default": key.default,
            "doc": key.doc,
            "file": file,
            "source": source.to_string(),
        });
        session.output.emit(&lines::line("setting", fields))?;
        let value = value.map_or_else(|| key.default.to_owned(), |value| paint(style::TITLE, value));
        session.output.say(format!("{} = {value} {}", key.name, paint(style::FAINT, format!("({source})"))))?;
        session.output.say(paint(style::FAINT, format!("    {}", key.doc)))?;
    }
    Ok(())
}

/// Returns the environment variable that overrides a setting, and its value. Returns `None` if no such variable is set.
fn overriding(named: &NamedKey) -> Option<(&'static str, String)> {
    let variable = match named.key.name {
        "author" => "AMALGAM_AUTHOR",
        "pager" => "AMALGAM_PAGER",
        _ => return None,
    };
    std::env::var(variable).ok().filter(|value| !value.is_empty()).map(|value| (variable, value))
}

/// Returns the value of a setting: that of the environment, or that of the file. Returns `None` if neither has it.
fn value(session: &Session, named: &NamedKey) -> Option<String> {
    overriding(named).map(|(_, value)| value).or_else(|| session.config.shown(named))
}

/// Describes the source of the value of a setting: environment, file or default.
fn source_of(session: &Session, named: &NamedKey) -> String {
    match (overriding(named), session.config.shown(named)) {
        (Some((variable, _)), _) => format!("environment {variable}"),
        (None, Some(_)) => format!("file {}", session.config.path().display()),
        (None, None) => "default".to_owned(),
    }
}

/// Describes the default of a setting.
fn default(named: &NamedKey) -> &'static str {
    if named.workspace.is_some() { "the value for all workspaces" } else { named.key.default }
}

/// Prints a setting that was changed; with `--quiet` only its JSON line.
fn say_changed(session: &mut Session, named: &NamedKey) -> Result<(), CliError> {
    if session.output.is_quiet() { session.output.emit(&line(session, named)) } else { say(session, named) }
}

fn say(session: &mut Session, named: &NamedKey) -> Result<(), CliError> {
    session.output.emit(&line(session, named))?;
    let value = match (overriding(named), session.config.shown(named)) {
        (Some((variable, value)), _) => {
            format!("{} {}", paint(style::TITLE, value), paint(style::FAINT, format!("(environment {variable})")))
        }
        (None, Some(value)) => paint(style::TITLE, value),
        (None, None) => format!("{} {}", default(named), paint(style::FAINT, "(not set)")),
    };
    session.output.say(format!("{} = {value}", named.name()))?;
    session.output.say(paint(style::FAINT, format!("    {}", named.key.doc)))
}

fn line(session: &Session, named: &NamedKey) -> serde_json::Value {
    lines::line(
        "setting",
        json!({
            "name": named.name(),
            "value": value(session, named),
            "default": default(named),
            "doc": named.key.doc,
            "file": session.config.path().display().to_string(),
            "source": source_of(session, named),
        }),
    )
}
