//! The `amalgam` command: the human's door. A client of the API, nothing more: whatever it shows or changes, it asks the process
//! that holds the store.
//!
//! What is absent: no file of a store is read or written here but for `config.toml`, and no tree is compared here.
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "a comment on an argument is its help, where brackets say the default"
)]

mod args;
mod command;
mod config;
mod connect;
mod error;
mod exit;
mod help;
mod namespace;
mod output;
mod place;
mod serve;
mod session;
mod text;

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use tokio::runtime::{Builder, Runtime};

use args::{Arguments, Global};
use command::Command;
use config::Config;
use connect::ConnectOptions;
use error::{CliError, Outcome};
use exit::Exit;
use help::Answer;
use output::{Color, Output, OutputOptions};
use session::Session;

/// How long the store's threads get to put their things away when they run in this process.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    let bare = OutputOptions { json: help::wants_json(&words), ..OutputOptions::default() };
    let arguments = match help::parse(words) {
        Ok(arguments) => arguments,
        Err(answer) => return ExitCode::from(tell(answer, bare).0),
    };
    let outcome = match begin(&arguments.global) {
        Ok(session) => run(arguments, session),
        Err(error) => {
            Output::new(bare).failure(&error);
            error.exit
        }
    };
    ExitCode::from(outcome.0)
}

/// Prints the answer to a command line that asks for help or cannot be read.
fn tell(answer: Answer, options: OutputOptions) -> Exit {
    match answer {
        Answer::Text(text) => {
            let mut output = Output::new(OutputOptions { json: false, ..options });
            // Nobody is there to be told when the output is closed.
            drop(output.say(text).and_then(|()| output.finish()));
            Exit::OK
        }
        Answer::Failure { error, text: Some(text) } if !options.json => {
            Output::new(options).failure_text(&text);
            error.exit
        }
        Answer::Failure { error, .. } => {
            Output::new(options).failure(&error);
            error.exit
        }
    }
}

fn begin(global: &Global) -> Result<Session, CliError> {
    if let Some(directory) = &global.directory {
        env::set_current_dir(directory).map_err(|error| CliError::machine(directory.display(), &error))?;
    }
    let cwd = env::current_dir().map_err(|error| CliError::machine("the current directory", &error))?;
    // One store has one name, whether it is there already or not.
    let home = place::real(&cwd.join(home(global.store.clone())?));
    let config = Config::load(&home)?;
    let configured = config.text("color").and_then(|word| Color::from_str(word, true).ok());
    let options = OutputOptions {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose,
        color: global.color.or(configured).unwrap_or_default(),
        pager: (!global.no_pager).then(|| pager(&config)),
    };
    let connect = ConnectOptions { home, actor: actor(&config), in_process: global.in_process, create: false };
    Ok(Session::new(Output::new(options), config, connect, cwd, global.no_input))
}

/// Where the store lies: as asked, or where the user's data lies.
fn home(asked: Option<PathBuf>) -> Result<PathBuf, CliError> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    asked
        .filter(|path| !path.as_os_str().is_empty())
        .or_else(|| set("XDG_DATA_HOME").filter(|path| path.is_absolute()).map(|data| data.join("amalgam")))
        .or_else(|| set("HOME").map(|home| home.join(".local/share/amalgam")))
        .ok_or_else(|| CliError::usage("HOME is not set").hint("say where the store lies with --store PATH"))
}

/// Who calls, as the log will show it.
fn actor(config: &Config) -> String {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    set("AMALGAM_AUTHOR")
        .or_else(|| config.text("author").map(str::to_owned))
        .or_else(|| set("USER"))
        .or_else(|| set("LOGNAME"))
        .unwrap_or_else(|| "unknown".to_owned())
}

fn pager(config: &Config) -> String {
    let set = |name: &str| env::var(name).ok();
    set("AMALGAM_PAGER")
        .or_else(|| config.text("pager").map(str::to_owned))
        .or_else(|| set("PAGER").filter(|pager| !pager.is_empty()))
        .unwrap_or_else(|| "less -FRX".to_owned())
}

fn run(arguments: Arguments, mut session: Session) -> Exit {
    // The process that holds the store has threads of its own.
    let arguments = match arguments {
        Arguments { command: Command::Serve(serve), .. } => return serve.run(&session),
        // One thread is all that may enter a new namespace.
        Arguments { command: Command::Enter(enter), .. } => {
            let error = enter.run();
            session.output.failure(&error);
            return error.exit;
        }
        other => other,
    };
    let in_process = session.connect.in_process;
    let runtime = match runtime(in_process) {
        Ok(runtime) => runtime,
        Err(error) => {
            session.output.failure(&error);
            return error.exit;
        }
    };
    let outcome = runtime.block_on(until_interrupted(arguments.command, &mut session));
    let finished = session.output.finish();
    let exit = match outcome.and_then(|exit| finished.map(|()| exit)) {
        Ok(exit) => exit,
        Err(error) if error.is_closed_output() => error.exit,
        Err(error) => {
            session.output.failure(&error);
            error.exit
        }
    };
    drop(session);
    // A thread that still waits for a line of input must not keep the shell waiting.
    if in_process {
        runtime.shutdown_timeout(CLOSE_WITHIN)
    } else {
        runtime.shutdown_background()
    }
    exit
}

/// One thread is enough to ask another process.
fn runtime(in_process: bool) -> Result<Runtime, CliError> {
    let mut builder = if in_process { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.enable_all().build().map_err(|error| CliError::machine("could not start", &error))
}

/// Runs a command until it is done or Ctrl-C. A call that is dropped is cancelled on the other side.
async fn until_interrupted(command: Command, session: &mut Session) -> Outcome {
    let interrupts = session.interrupts.clone();
    let mut work = Box::pin(command.run(session));
    loop {
        tokio::select! {
            outcome = &mut work => return outcome,
            pressed = tokio::signal::ctrl_c() => {
                pressed.map_err(|error| CliError::machine("could not listen for Ctrl-C", &error))?;
                if !interrupts.are_left_to_child() {
                    return Err(interrupts.failure());
                }
            }
        }
    }
}

/// Tells whoever reads the background process's log what went wrong.
pub fn say_error(message: &str) {
    // Nobody can be told that standard error is closed.
    drop(writeln!(io::stderr(), "error: {message}"));
}
