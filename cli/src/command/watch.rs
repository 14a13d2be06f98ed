//! `amalgam watch`: snapshots by themselves.

use std::time::Duration;

use amalgam_proto::v1;
use amalgam_proto::v1::watch_directory_response::Event;
use clap::Args;
use serde_json::json;

use super::capture;
use crate::error::Outcome;
use crate::exit::Exit;
use crate::output::json as lines;
use crate::session::Session;
use crate::text;

/// Watch the directory and take snapshots automatically
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  amalgam watch
  amalgam watch --quiet-for 10s --every 1h --background
  amalgam watch --stop")]
pub struct Watch {
    /// Take a snapshot when nothing has changed for this long; 0 for never
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    quiet_for: Duration,
    /// Take a snapshot at least this often while files change; 0 for never
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    every: Duration,
    /// Watch in the background until --stop
    #[arg(long)]
    background: bool,
    /// Stop watching in the background
    #[arg(long, conflicts_with = "background")]
    stop: bool,
}

impl Watch {
    /// Does it.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.place().await?;
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
        if self.stop {
            session.output.emit(&lines::line("watch_ended", json!({})))?;
            session.output.done(format!("{path} is no longer watched"))?;
        }
        Ok(Exit::OK)
    }
}

/// `500ms`, `2s`, `5m`, `1h`, or seconds.
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
