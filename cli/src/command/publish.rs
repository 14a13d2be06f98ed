//! `amalgam complete` and `amalgam publish`: merge a workspace into its target through the queue.

use amalgam_proto::{Reason, v1};
use clap::Args;
use jiff::Timestamp;

use super::merge::say_merge;
use super::workspace_arg::WorkspaceArg;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::progress::drive;
use crate::session::{Session, missing_field, workspace_name};
use crate::text;

/// Merge a workspace into its target and remove the workspace
#[derive(Debug, Args)]
#[command(after_help = "\
Uncommitted changes in the workspace's directory, or left by its last mount, are captured first. A mounted workspace
must be unmounted first. The workspace is removed once everything in it has been merged. If the merge has conflicts or
its test fails, the merge waits for a decision (`amalgam review`), the workspace stays, and the command exits with 5.
`amalgam ws undelete` brings a removed workspace back.

Examples:
  amalgam complete
  amalgam complete --dry-run
  amalgam complete try-1 --into main -m 'a better parser'
  amalgam complete try-1 --test 'make check'
  amalgam complete try-1 -- make check")]
pub struct Complete {
    #[command(flatten)]
    what: What,
}

/// Merge a workspace into its target and keep the workspace, now or automatically
#[derive(Debug, Args)]
#[command(after_help = "\
With --every, --on-commit or --on-write the background process publishes the workspace automatically, each new snapshot
once. With --every and --on-write it captures the workspace's directory, mount or live tree first. If a merge has
conflicts or its test fails, it waits for a decision (`amalgam review`), and the workspace is not published again until
then. `amalgam ws show` shows the last result.

Examples:
  amalgam publish
  amalgam publish --dry-run
  amalgam publish try-1 --into main --detach
  amalgam publish try-1 --every 30s --dry-run
  amalgam publish try-1 --on-commit --test 'make check'
  amalgam publish try-1 --on-write=10s
  amalgam publish try-1 --manual")]
pub struct Publish {
    #[command(flatten)]
    what: What,
    /// Publish automatically at this interval: 30s, 5m, 1h, 1d
    #[arg(long, value_name = "SPAN", value_parser = seconds)]
    every: Option<u32>,
    /// Publish automatically after each commit
    #[arg(long)]
    on_commit: bool,
    /// Publish automatically once written files have been quiet for this long [default: 2s]
    #[arg(long, value_name = "QUIET", num_args = 0..=1, require_equals = true, default_missing_value = "2s", value_parser = quiet)]
    on_write: Option<u32>,
    /// Stop publishing automatically
    #[arg(long, conflicts_with_all = ["every", "on_commit", "on_write"])]
    manual: bool,
}

/// The shell that runs a command line.
const SHELL: [&str; 2] = ["sh", "-c"];

/// The longest interval, a year, as the server has it.
const INTERVAL_SECONDS_MAX: u32 = 366 * 24 * 3_600;

/// Returns a test as the user wrote it: the shell command line, or the words of the command.
pub fn test_text(test: &[String]) -> String {
    match test {
        [shell, option, line] if [shell.as_str(), option.as_str()] == SHELL => line.clone(),
        words => words.join(" "),
    }
}

/// Parses a duration such as `30s`, `5m`, `1h` or `1d` into seconds.
pub fn seconds(text: &str) -> Result<u32, String> {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(at);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err("write it as 30s, 5m, 1h or 1d".to_owned()),
    };
    let count: u32 = digits.parse().map_err(|_| "write it as 30s, 5m, 1h or 1d".to_owned())?;
    let seconds = count.checked_mul(unit).filter(|seconds| (1..=INTERVAL_SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| "at least 1s, at most a year".to_owned())
}

/// Parses a quiet time such as `500ms`, `2s` or `5m` into milliseconds.
fn quiet(text: &str) -> Result<u32, String> {
    const WRONG: &str = "write it as 500ms, 2s or 5m";
    let milliseconds = match text.strip_suffix("ms") {
        Some(digits) => digits.parse().map_err(|_| WRONG.to_owned())?,
        None => seconds(text).map_err(|_| WRONG.to_owned())?.saturating_mul(1_000),
    };
    match milliseconds {
        1..=3_600_000 => Ok(milliseconds),
        _ => Err("at least 1ms, at most 1h".to_owned()),
    }
}

#[derive(Debug, Args)]
struct What {
    #[command(flatten)]
    workspace: WorkspaceArg,
    /// The workspace to merge into [default: the one it was forked from]
    #[arg(long, value_name = "WORKSPACE")]
    into: Option<String>,
    /// The message of the merge
    #[arg(short, long, default_value = "", hide_default_value = true)]
    message: String,
    /// Shell command that must exit with 0 in a directory with the merged files, or the merge waits for a decision
    #[arg(long, value_name = "LINE")]
    test: Option<String>,
    /// Time limit of the test in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    test_seconds: u32,
    /// Return without waiting for the merge
    #[arg(long)]
    detach: bool,
    /// If the policy refuses some of the changes, leave all for a `review`, or merge the rest (`partial`) [default: as the policy says]
    #[arg(long, value_name = "WHAT", value_parser = ["review", "partial"])]
    on_refused: Option<String>,
    /// Print what would be captured, merged or left for review; change nothing
    #[arg(long, conflicts_with = "detach")]
    dry_run: bool,
    /// Request id: a call with the same id as an earlier one is a retry and does nothing twice
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    request_id: String,
    /// The test as a command with exactly these arguments, run without a shell
    #[arg(last = true, value_name = "TEST", conflicts_with = "test")]
    test_words: Vec<String>,
}

impl What {
    /// Prints that the test was not run, if there is one: a dry run does not run tests.
    fn say_untested(&self, session: &mut Session) -> Result<(), CliError> {
        match self.test_command().is_empty() {
            true => Ok(()),
            false => session.output.remark("the test was not run"),
        }
    }

    /// Returns the command and the arguments of the test; empty without a test.
    fn test_command(&self) -> Vec<String> {
        match &self.test {
            Some(line) => SHELL.iter().map(|word| (*word).to_owned()).chain([line.clone()]).collect(),
            None => self.test_words.clone(),
        }
    }

    async fn submission(&self, session: &mut Session) -> Result<v1::Submission, CliError> {
        let workspace = self.workspace.resolve(session).await?;
        Ok(v1::Submission {
            workspace,
            target: self.into.as_deref().map(workspace_name).unwrap_or_default(),
            message: self.message.clone(),
            test: self.test_command(),
            test_seconds: self.test_seconds,
            detach: self.detach,
            capture: session.server().is_none(),
            dry_run: self.dry_run,
            on_refused: self.on_refused.clone().unwrap_or_default(),
        })
    }
}

impl Complete {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let submission = self.what.submission(session).await?;
        // Read before the call, which removes the workspace. On a retry the first call may have removed it already.
        let before = v1::GetWorkspaceRequest { name: submission.workspace.clone() };
        let before = match client.workspaces.get_workspace(before).await.map_err(CliError::from) {
            Ok(found) => found.into_inner().workspace.unwrap_or_default(),
            Err(error) if error.is(Reason::NotFound) && !self.what.request_id.is_empty() => v1::Workspace::default(),
            Err(error) => return Err(error),
        };
        let request_id = self.what.request_id.clone();
        let request = v1::SubmitWorkspaceRequest { submission: Some(submission), complete: true, request_id };
        let done = drive(&session.output, client.merges.submit_workspace(request)).await?;
        let dry_run = self.what.dry_run;
        let exit = say_merge(&mut session.output, &done.merge.ok_or_else(|| missing_field("merge"))?, dry_run)?;
        if dry_run {
            self.what.say_untested(session)?;
            if exit == Exit::OK {
                session.output.remark(format!("{} would end", text::id(&before.name)))?;
            }
        } else if done.ended {
            let name = done.entry.map(|entry| entry.workspace).unwrap_or_default();
            session.output.done(format!("{} has ended", crate::text::id(&name)))?;
            for directory in &before.directories {
                let path = crate::text::path(&directory.path);
                session.output.remark(format!("{path} stays where it is, and is no workspace's any more"))?;
            }
        } else if exit == Exit::OK {
            session.output.remark("the workspace stays: it changed meanwhile, or its merge waits in the queue")?;
        }
        Ok(exit)
    }
}

impl Publish {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        if self.every.is_some() || self.on_commit || self.on_write.is_some() || self.manual {
            return self.schedule(session).await;
        }
        let mut client = session.client().await?;
        let submission = Some(self.what.submission(session).await?);
        let request_id = self.what.request_id.clone();
        let request = v1::SubmitWorkspaceRequest { submission, complete: false, request_id };
        let done = drive(&session.output, client.merges.submit_workspace(request)).await?;
        let dry_run = self.what.dry_run;
        let exit = say_merge(&mut session.output, &done.merge.ok_or_else(|| missing_field("merge"))?, dry_run)?;
        if dry_run {
            self.what.say_untested(session)?;
        }
        Ok(exit)
    }
}

impl Publish {
    async fn schedule(self, session: &mut Session) -> Outcome {
        let mut client = session.client().await?;
        let request = v1::SchedulePublishingRequest {
            submission: Some(self.what.submission(session).await?),
            every_seconds: self.every.unwrap_or(0),
            on_commit: self.on_commit,
            on_write: self.on_write.is_some(),
            quiet_milliseconds: self.on_write.unwrap_or(0),
            request_id: self.what.request_id.clone(),
        };
        let dry_run = self.what.dry_run;
        let done = client.merges.schedule_publishing(request).await?.into_inner();
        let workspace = done.workspace.ok_or_else(|| missing_field("workspace"))?;
        session.output.emit(&lines::of_dry_run(lines::workspace(&workspace), dry_run))?;
        let name = text::id(&workspace.name);
        let how = match &workspace.publishing {
            Some(publishing) => when(publishing),
            None => "when somebody asks for it".to_owned(),
        };
        session.output.done(match dry_run {
            true => format!("{name} would be published {how}; nothing was changed"),
            false => format!("{name} is published {how}"),
        })?;
        Ok(Exit::OK)
    }
}

/// Describes when a workspace is published automatically, and into which target.
fn when(publishing: &v1::Publishing) -> String {
    let every = (publishing.every_seconds > 0).then(|| format!("every {}", span(publishing.every_seconds)));
    let on_commit = publishing.on_commit.then(|| "after each commit".to_owned());
    let on_write = publishing.on_write.then(|| {
        let quiet = f64::from(publishing.quiet_milliseconds) / 1_000.0;
        format!("when written files have been quiet for {quiet} s")
    });
    let when: Vec<_> = every.into_iter().chain(on_commit).chain(on_write).collect();
    format!("into {} {}", text::id(&publishing.target), when.join(" and "))
}

/// Formats a number of seconds in the largest unit that divides it: `1 d`, `5 min`, `30 s`.
pub fn span(seconds: u32) -> String {
    match seconds {
        _ if seconds.is_multiple_of(86_400) => format!("{} d", seconds / 86_400),
        _ if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        _ if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        _ => format!("{seconds} s"),
    }
}

/// Describes the schedule of a workspace's publishing and the last result in one line.
pub fn publishing_line(publishing: &v1::Publishing, now: Timestamp) -> String {
    let last = match (&publishing.last_time, publishing.last_how.as_str()) {
        (Some(time), how) => {
            let ago = text::ago(text::timestamp(Some(time)), now);
            match how {
                "merged" => format!("; last {ago}"),
                "already" => format!("; {ago} there was nothing new"),
                "review" => format!("; {ago} it was left to a person"),
                _ => format!("; {ago} it failed: {}", text::first_line(&publishing.reason)),
            }
        }
        (None, _) => "; not yet".to_owned(),
    };
    let waits = match publishing.review.is_empty() {
        true => String::new(),
        false => format!("; waits for `amalgam review show {}`", text::id(&publishing.review)),
    };
    format!("{}{last}{waits}", when(publishing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_of_more_than_a_year_is_refused() {
        assert_eq!((seconds("30s"), seconds("366d")), (Ok(30), Ok(366 * 86_400)));
        for text in ["0s", "367d", "800d", "8785h", "99999d"] {
            assert_eq!(seconds(text), Err("at least 1s, at most a year".to_owned()), "{text}");
        }
        assert!(["", "30", "-1s", "+1s", "1w", "99999999999s"].iter().all(|text| seconds(text).is_err()));
    }
}
