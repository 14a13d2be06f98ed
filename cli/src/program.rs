//! The course of one run: reads the command line, opens a session, runs the command until it ends or is interrupted.

use std::env;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, ValueEnum};
use rustix::process::Signal;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Arguments, Global};
use crate::attached::{self, StartDirectory};
use crate::command::{Command, FolderLogs, REMOVE_ENDED, Subject, UncommittedChanges, clean_up};
use crate::config::Config;
use crate::connect::ConnectOptions;
use crate::contexts::Contexts;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::help::{self, ParseAnswer};
use crate::logging::{self, LogOptions};
use crate::output::{self, Color, Output, OutputOptions};
use crate::remote::Server;
use crate::session::Session;
use crate::trust;

/// Time for the store's threads to end when they run in this process.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the program with the words of its command line.
pub fn main() -> ExitCode {
    let words: Vec<_> = env::args_os().collect();
    let is_store_named = help::names_store(&words);
    let bare = OutputOptions { json: output::wants_json(&words), ..OutputOptions::default() };
    let arguments = match help::parse(words) {
        Ok(arguments) => arguments,
        Err(answer) => return ExitCode::from(print_answer(answer, bare).0),
    };
    // The environment of a test may name no store.
    if let Command::Supervise(supervise) = &arguments.command {
        return ExitCode::from(supervise.run().0);
    }
    let outcome = match open_session(&arguments, is_store_named) {
        Ok(session) => run(arguments, session),
        Err(error) => {
            Output::new(bare).failure(&error);
            error.exit
        }
    };
    ExitCode::from(outcome.0)
}

/// Prints the answer to a command line that asks for help or cannot be read.
fn print_answer(answer: ParseAnswer, options: OutputOptions) -> Exit {
    match answer {
        ParseAnswer::Text(text) => {
            let mut output = Output::new(OutputOptions { json: false, ..options });
            // A closed output cannot be reported.
            drop(output.say(text).and_then(|()| output.finish()));
            Exit::OK
        }
        ParseAnswer::Failure { error, text: Some(text) } if !options.json => {
            Output::new(options).failure_text(&text);
            error.exit
        }
        ParseAnswer::Failure { error, .. } => {
            Output::new(options).failure(&error);
            error.exit
        }
    }
}

fn open_session(arguments: &Arguments, is_store_named: bool) -> Result<Session, CliError> {
    let global = &arguments.global;
    let standing = StartDirectory::enter(global.directory.as_deref(), env::var_os("PWD").map(PathBuf::from))?;
    let cwd = &standing.cwd;
    // One store has one name, whether it is there already or not.
    let home = attached::resolve_path(&cwd.join(store_home(global.store.clone())?));
    let closed = trust::check_home(&home)?;
    let config = Config::load(&home)?;
    let configured = config.text("color").and_then(|word| Color::from_str(word, true).ok());
    let options = OutputOptions {
        json: global.json,
        quiet: global.quiet,
        verbose: global.verbose,
        color: global.color.or(configured).unwrap_or_default(),
        pager: (!global.no_pager).then(|| pager(&config)),
    };
    let filter = env::var(logging::VARIABLE).ok().filter(|filter| !filter.is_empty());
    let log = LogOptions { filter, file_bytes_max: config.log_bytes_max()?.unwrap_or(logging::FILE_BYTES_MAX) };
    let connect = ConnectOptions { home, actor: actor(&config), in_process: global.in_process, create: false, log };
    let mut output = Output::new(options);
    closed.map_or(Ok(()), |closed| output.remark(closed))?;
    let server = match arguments.command.subject() {
        Subject::Neither => None,
        // Between both: a current context does not stand in for the store of this machine.
        Subject::Both => find_server(global, true)?,
        _ => find_server(global, is_store_named)?,
    };
    Ok(Session::new(output, config, connect, server, standing, global.no_input))
}

/// Returns the server that a command works on: `--server`, or the current context unless a store is named.
fn find_server(global: &Global, is_store_named: bool) -> Result<Option<Server>, CliError> {
    let contexts = Contexts::load()?;
    match global.server.as_deref().filter(|word| !word.is_empty()) {
        Some(word) => contexts.resolve(word),
        None if is_store_named => Ok(None),
        None => contexts.current().map_or(Ok(None), |name| contexts.resolve(name)),
    }
}

/// Returns the home of the store: `--store`, or a directory in the user's data directory.
fn store_home(asked: Option<PathBuf>) -> Result<PathBuf, CliError> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    asked
        .filter(|path| !path.as_os_str().is_empty())
        .or_else(|| set("XDG_DATA_HOME").filter(|path| path.is_absolute()).map(|data| data.join("amalgam")))
        .or_else(|| set("HOME").map(|home| home.join(".local/share/amalgam")))
        .ok_or_else(|| CliError::usage("HOME is not set").hint("say where the store lies with --store PATH"))
}

/// Returns the name of the caller for snapshots and operations.
fn actor(config: &Config) -> String {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    set("AMALGAM_AUTHOR")
        .or_else(|| config.text("author").map(str::to_owned))
        .or_else(|| set("USER"))
        .or_else(|| set("LOGNAME"))
        .unwrap_or_else(login_name)
}

/// Returns the login name of the user, or `uid-N` if the user has no name.
fn login_name() -> String {
    let user = rustix::process::getuid().as_raw();
    let table = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_in_passwd(&table, user).or_else(name_from_id_command).unwrap_or_else(|| format!("uid-{user}"))
}

/// Finds the name of a user in the text of `/etc/passwd`.
fn name_in_passwd(table: &str, user: u32) -> Option<String> {
    let mut users = table.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = users.find(|fields| fields.len() > 2 && fields[2].parse() == Ok(user))?;
    Some(found[0].to_owned()).filter(|name| !name.is_empty())
}

/// Returns the name that `id -un` prints, which also knows users of directory services.
fn name_from_id_command() -> Option<String> {
    let told = std::process::Command::new("id").arg("-un").output().ok().filter(|told| told.status.success())?;
    let name = String::from_utf8(told.stdout).ok()?.trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

fn pager(config: &Config) -> String {
    let set = |name: &str| env::var(name).ok();
    set("AMALGAM_PAGER")
        .or_else(|| config.text("pager").map(str::to_owned))
        .or_else(|| set("PAGER").filter(|pager| !pager.is_empty()))
        .unwrap_or_else(|| "less -FRX".to_owned())
}

fn run(arguments: Arguments, mut session: Session) -> Exit {
    let needs_no_directory = matches!(
        arguments.command,
        Command::Serve(_)
            | Command::Stop(_)
            | Command::Enter(_)
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Help(_)
    );
    if needs_no_directory && let Err(error) = session.refuse_missing_directory() {
        return conclude(&mut session, Err(error));
    }
    let command = match arguments.command {
        // The background process has a runtime of its own.
        Command::Serve(serve) => {
            let outcome = serve.run(&session);
            return conclude(&mut session, outcome);
        }
        // Only a process with one thread can enter a new namespace.
        Command::Enter(enter) => return conclude(&mut session, Err(enter.run())),
        Command::Completions(completions) => {
            let outcome = completions.run(&mut session, &Arguments::command());
            return conclude(&mut session, outcome);
        }
        Command::Man(man) => {
            let outcome = man.run(&mut session, Arguments::command());
            return conclude(&mut session, outcome);
        }
        Command::Help(help) => {
            let outcome = help.run(&mut session, help::page);
            return conclude(&mut session, outcome);
        }
        other => other,
    };
    if let Subject::ThisMachine { name, instead } = command.subject()
        && let Err(error) = session.refuse_server(&format!("`amalgam {name}`"), instead)
    {
        return conclude(&mut session, Err(error));
    }
    let in_process = session.connect.in_process;
    if !in_process {
        session.connect.log.log_to_stderr();
    }
    let runtime = match runtime(in_process) {
        Ok(runtime) => runtime,
        Err(error) => return conclude(&mut session, Err(error)),
    };
    let outcome = runtime.block_on(until_interrupted(command, &mut session));
    let exit = conclude(&mut session, outcome);
    drop(session);
    // A thread that waits for a line of input must not delay the exit.
    if in_process {
        runtime.shutdown_timeout(CLOSE_TIMEOUT)
    } else {
        runtime.shutdown_background()
    }
    exit
}

/// Ends the output and prints the error of an outcome. Returns the exit code.
fn conclude(session: &mut Session, outcome: Outcome) -> Exit {
    let finished = session.output.finish();
    match outcome.and_then(|exit| finished.map(|()| exit)) {
        Ok(exit) => exit,
        Err(error) if error.is_closed_output() => error.exit,
        Err(error) => {
            let error = match session.server() {
                Some(server) => error.of_server(&server.url),
                None => error,
            };
            session.output.failure(&error);
            error.exit
        }
    }
}

/// Builds the async runtime: multi-threaded for a store in this process, else one thread, which is enough for calls.
fn runtime(in_process: bool) -> Result<Runtime, CliError> {
    let mut builder = if in_process { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    builder.enable_all().build().map_err(|error| CliError::machine("could not start", &error))
}

/// Runs a command until it is done or interrupted. Dropping a call cancels it in the background process. Temporary forks
/// are removed.
async fn until_interrupted(command: Command, session: &mut Session) -> Outcome {
    let interrupts = session.interrupts.clone();
    let mut signals = Signals::listen().map_err(|error| CliError::machine("could not listen for signals", &error))?;
    let signal = {
        let mut work = Box::pin(async {
            session.enter_dead_mount().await?;
            session.refuse_lost_directory().await?;
            command.run(session).await
        });
        loop {
            tokio::select! {
                outcome = &mut work => return outcome,
                signal = signals.next() => {
                    if !interrupts.are_left_to_child() {
                        break signal;
                    }
                }
            }
        }
    };
    let failure = interrupts.failure(signal);
    let Some(folder) = interrupts.work_folder() else { return Err(failure) };
    session.output.remark("the commands are ended; their forks are being removed")?;
    let left = format!("`{REMOVE_ENDED}` removes the forks that are left");
    tokio::select! {
        cleaned = clean_up(session, folder, UncommittedChanges::Capture, FolderLogs::Remove) => match cleaned {
            Ok(_) => Err(failure.hint("its forks were removed")),
            Err(error) => Err(failure.hint(format!("{left}: {}", error.message))),
        },
        _ = signals.next() => Err(failure.hint(left)),
    }
}

/// The signals that ask a command to end.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    /// `None` if SIGHUP is ignored, as under `nohup`.
    hang_up: Option<tokio::signal::unix::Signal>,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        let hang_up = match is_ignored(Signal::HUP) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hang_up })
    }

    async fn next(&mut self) -> Signal {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => {
                    hang_up.recv().await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            () = hang_up => Signal::HUP,
        }
    }
}

/// Returns whether the parent process made this program ignore a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> (signal.as_raw() - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_name_is_found_by_the_users_number() {
        let table = "root:x:0:0:root:/root:/bin/sh\n# a comment\n\nann:x:1000:1000::/users/ann:/bin/sh\n:x:7::::\n";
        assert_eq!(name_in_passwd(table, 0).as_deref(), Some("root"));
        assert_eq!(name_in_passwd(table, 1_000).as_deref(), Some("ann"));
        assert_eq!(name_in_passwd(table, 7), None, "it has no name");
        assert_eq!(name_in_passwd(table, 1), None);
    }
}
