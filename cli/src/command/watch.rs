//! `amalgam watch`: snapshots by themselves.

mod unit;

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::watch_directory_response::Event;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::capture;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;

/// Watch the directory and take snapshots automatically
#[derive(Debug, Args)]
#[command(after_help = "\
With --background the watch goes on until --stop. It survives `amalgam stop`, a crash and a restart of the machine: the
next `amalgam` command resumes it, or with --at-login the next log-in. Ctrl-C ends only the watch that it is pressed in.

Examples:
  amalgam watch
  amalgam watch --quiet-for 10s --every 1h --background
  amalgam watch --background --at-login
  amalgam watch --stop")]
pub struct Watch {
    /// Take a snapshot when nothing has changed for this long (500ms, 2s, 5m, 1h); 0 for never
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    quiet_for: Duration,
    /// Take a snapshot at least this often while files keep changing; 0 for never
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    every: Duration,
    /// Watch in the background until --stop
    #[arg(long)]
    background: bool,
    /// Start the background process when you log in, with a systemd user unit
    #[arg(long, requires = "background")]
    at_login: bool,
    /// Stop watching in the background
    #[arg(long, conflicts_with = "background")]
    stop: bool,
}

impl Watch {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory().await?;
        let mut client = session.client().await?;
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = v1::WatchDirectoryRequest {
            name: place.directory.name.clone(),
            quiet_milliseconds: milliseconds(self.quiet_for),
            interval_milliseconds: milliseconds(self.every),
            detach: self.background,
            stop: self.stop,
        };
        let mut stream = client.directories.watch_directory(request).await?.into_inner();
        if !self.background {
            session.interrupts.say_instead("stopped watching; no further snapshots are taken automatically");
        }
        let path = text::path(&place.directory.path).into_owned();
        while let Some(message) = stream.message().await? {
            let output = &mut session.output;
            match message.event {
                Some(Event::Begun(begun)) => {
                    let line = lines::line("watching", json!({"directories": begun.directories}));
                    output.emit(&lines::with_path(line, &place.directory.path))?;
                    let number = text::plural(begun.directories, "directory");
                    let end = if self.background { "`amalgam watch --stop` ends it" } else { "Ctrl-C ends it" };
                    output.remark(format!("watching {path} ({number}); {end}"))?;
                }
                Some(Event::Captured(result)) => {
                    output.emit(&capture::json_line("commit", &result))?;
                    output.done(capture::line(&result))?;
                    capture::report_notices(output, &result.notices)?;
                }
                Some(Event::Problem(problem)) => {
                    output.emit(&lines::line("problem", json!({"message": problem})))?;
                    output.remark(text::printable(&problem))?;
                }
                None => {}
            }
            output.flush()?;
        }
        if self.background {
            say_survival(session, self.at_login)?;
        }
        if self.stop {
            let was_watched = place.directory.watch_wanted;
            session.output.emit(&lines::line("watch_ended", json!({"was_watched": was_watched})))?;
            session.output.done(match was_watched {
                true => format!("{path} is no longer watched in the background"),
                false => format!("{path} was not watched in the background"),
            })?;
            if !is_any_watched(&mut client).await? && unit::remove(session.home())? {
                session.output.remark("the background process is not started at log-in any more")?;
            }
        }
        Ok(Exit::OK)
    }
}

/// Installs the systemd unit if `at_login` is set, and prints how the watch continues after a restart of the machine.
fn say_survival(session: &mut Session, at_login: bool) -> Result<(), CliError> {
    if at_login {
        let unit = unit::install(session.home())?;
        session.output.emit(&lines::line("unit", json!({"path": unit.to_string_lossy()})))?;
        return session.output.remark(format!("{} starts it when you log in", unit.display()));
    }
    let home = session.home().to_owned();
    session.output.remark(match unit::is_installed(&home) {
        true => "it goes on after a restart, when you log in",
        false if unit::is_offered() => {
            "after a restart the next `amalgam` command takes it up; --at-login has systemd do so when you log in"
        }
        false => "after a restart the next `amalgam` command takes it up",
    })
}

/// Returns whether any directory of the store is to be watched in the background.
async fn is_any_watched(client: &mut Client) -> Result<bool, CliError> {
    Ok(directories(client).await?.iter().any(|directory| directory.watch_wanted))
}

/// Returns all directories that belong to workspaces.
pub async fn directories(client: &mut Client) -> Result<Vec<v1::Directory>, CliError> {
    let mut request = v1::ListDirectoriesRequest { page_size: 500, page_token: String::new() };
    let mut all = Vec::new();
    loop {
        let page = client.directories.list_directories(request.clone()).await?.into_inner();
        all.extend(page.directories);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(all);
        }
    }
}

/// Seconds after a new process has resumed a watch during which commands mention the gap.
const RESUMED_SECONDS: i64 = 60;

/// Warns if a directory should be watched and is not, or if its watch was resumed a moment ago.
pub fn warn_unwatched(output: &mut Output, directory: &v1::Directory, now: Timestamp) -> Result<(), CliError> {
    if !directory.watch_problem.is_empty() {
        let warning = format!(
            "not watched as `amalgam watch --background` asked for: {}; `amalgam watch --stop` gives it up",
            directory.watch_problem
        );
        return capture::warn(output, &[warning]);
    }
    let Some(resumed) = directory.watch_resume_time.as_ref() else { return Ok(()) };
    let since = text::timestamp(Some(resumed));
    if now.as_second() - since.as_second() > RESUMED_SECONDS {
        return Ok(());
    }
    output.remark(format!(
        "watched again since {}: no background process ran before; all changes until then go into one snapshot",
        text::ago(since, now)
    ))
}

/// Parses a duration such as `500ms`, `2s`, `5m` or `1h`; a number without a unit is in seconds.
fn duration(words: &str) -> Result<Duration, String> {
    let digits = words.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &words[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        other => return Err(format!("`{other}` is not a unit of time; use ms, s, m or h")),
    };
    let number: u64 = digits.parse().map_err(|_| "a whole number and a unit are needed, such as 2s".to_owned())?;
    number.checked_mul(unit).map(Duration::from_millis).ok_or_else(|| "that is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("2s"), Ok(Duration::from_secs(2)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("5d").is_err());
        assert!(duration("s").is_err());
        assert!(duration("99999999999999999999h").is_err());
    }
}
