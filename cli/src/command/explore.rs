//! `amalgam explore`: runs a command in many forks and restores the best result.

mod attempt;
mod sandboxed;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use amalgam_proto::v1;
use clap::Args;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::backend::{Backend, BackendArgs, Purpose};
use super::capture::{SnapshotInfo, capture, changed};
use super::checkout::{Target, checkout};
use super::fork::{fork, free_names, say_copies};
use super::isolated_command::{IsolatedCommand, last_number, shell_command};
use super::mount::{MountArgs, mount_or_else};
use super::restore::{json_line, say_restored};
use super::sandbox_calls::SandboxCalls;
use super::work_folders::{self, FolderLogs, REMOVE_ENDED, UncommittedChanges, WorkFolder, clean_up};
use crate::attached::AttachedDirectory;
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::output::{Output, json as lines};
use crate::session::Session;
use crate::text;
use attempt::Attempt;
use sandboxed::SandboxPlan;

/// Run a command in many forks at once and keep the best result
#[derive(Debug, Args)]
#[command(after_help = "\
Each attempt runs in its own directory, mounted where possible, with AMALGAM_ATTEMPT set to its number. With --sandbox,
each runs in a sandbox of its own, apart from this machine, and so does CMD of --score. An attempt whose command exits with
a code other than 0 has failed and cannot win. With --score, the score of an attempt is the last
number that CMD prints in its directory; the highest wins. Of equal scores, and without --score, the successful attempt
with the lowest number wins. The best result is restored into this directory; `amalgam undo` takes it back. If no
attempt succeeds, nothing changes.

Ctrl-C ends the attempts and removes their forks; `amalgam ws rm --ended` does so after an `explore` was killed.

Examples:
  amalgam explore -n 8 -- ./fix.sh
  amalgam explore -n 4 --sandbox -- make test
  amalgam explore -n 8 --jobs 2 --score './bench | tail -1' -- my-agent --seed-from-env")]
pub struct Explore {
    /// Number of attempts, at most 1000
    #[arg(short = 'n', long = "number", value_name = "N", default_value = "8",
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    number: u32,
    /// Shell command that prints the score of an attempt
    #[arg(long, value_name = "CMD")]
    score: Option<String>,
    /// Number of attempts that run at the same time [default: one per processor]
    #[arg(long, value_name = "J")]
    jobs: Option<usize>,
    /// Keep the forks and their directories
    #[arg(long)]
    keep: bool,
    /// Run each attempt in a sandbox, from a template of `amalgam sandbox templates` [default: host]
    #[arg(long, value_name = "TEMPLATE", num_args = 0..=1, require_equals = true, default_missing_value = "host")]
    sandbox: Option<String>,
    #[command(flatten)]
    backend: BackendArgs,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Explore {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory().await?;
        let mut client = session.client().await?;
        let here = &place.directory.name;
        work_folders::remark_abandoned(session)?;
        let before = capture(&session.output, &mut client, here, SnapshotInfo::message("before exploring")).await?;
        let mut folder = WorkFolder::create(session.home(), "explore")?;
        match self.keep {
            true => session.interrupts.say("the forks stay (--keep); `amalgam ws` lists them"),
            false => session.interrupts.clean_up(folder.path()),
        }
        let mut attempts = Vec::new();
        let outcome = self.attempt(session, &mut client, &place, &mut folder, &before, &mut attempts).await;
        if self.keep {
            folder.keep()?;
            say_kept(session, &attempts)?;
            return outcome;
        }
        // After success all attempts are captured. A failure may mean that the background process ended.
        let unsaved = if outcome.is_ok() { UncommittedChanges::Discard } else { UncommittedChanges::Capture };
        let has_logs = attempts.iter().any(|attempt| attempt.code.is_some());
        let logs = if outcome.is_err() && has_logs { FolderLogs::Keep } else { FolderLogs::Remove };
        if outcome.is_err() {
            session.forget_client();
        }
        match clean_up(session, folder.path(), unsaved, logs).await {
            Ok(_) => outcome,
            Err(error) if outcome.is_ok() => {
                Err(error.hint(format!("`{REMOVE_ENDED}` removes the forks that are left")))
            }
            Err(error) => {
                let message = format!("not all forks could be removed: {}; `{REMOVE_ENDED}` does that", error.message);
                session.output.remark(message)?;
                outcome
            }
        }
    }

    async fn attempt(
        &self,
        session: &mut Session,
        client: &mut Client,
        place: &AttachedDirectory,
        folder: &mut WorkFolder,
        before: &v1::CaptureResult,
        attempts: &mut Vec<Attempt>,
    ) -> Outcome {
        let plan = match &self.sandbox {
            Some(template) => Some(sandbox_plan(session, client, folder, template).await?),
            None => None,
        };
        self.fork(client, place, folder, attempts).await?;
        if plan.is_none() {
            self.prepare(session, client, place, before.counts.as_ref(), attempts).await?;
        }
        let around = folder.path();
        self.work(&mut session.output, around, attempts, plan.as_ref()).await?;
        for attempt in attempts.iter_mut().filter(|attempt| attempt.result.is_none()) {
            attempt.result = Some(capture(&session.output, client, &attempt.directory, self.about(attempt)).await?);
        }
        let best = best(attempts).map(|attempt| attempt.number);
        table(&mut session.output, attempts, best)?;
        match attempts.iter().find(|attempt| Some(attempt.number) == best) {
            Some(winner) => take(session, client, place, winner).await,
            None if self.score.is_some() && attempts.iter().any(|attempt| attempt.code == Some(0)) => {
                let line = self.score.as_deref().unwrap_or_default();
                let failed = attempts.iter().find_map(|attempt| attempt.score_code.filter(|code| *code != 0));
                let why = match failed {
                    Some(code) => format!("`{}` ended with {code}", text::printable(line)),
                    None => format!("the score is the last line that `{}` prints, a number", text::printable(line)),
                };
                let message = format!("no attempt has a score; no file was changed{}", committed(before));
                Err(CliError::refused(message).hint(format!("{why}; the outputs are in {}", around.display())))
            }
            None => Err(CliError::refused(format!("no attempt succeeded; no file was changed{}", committed(before)))
                .hint(format!("their output is in {}", around.display()))),
        }
    }

    /// Forks the workspace, once for each attempt.
    async fn fork(
        &self,
        client: &mut Client,
        place: &AttachedDirectory,
        folder: &mut WorkFolder,
        attempts: &mut Vec<Attempt>,
    ) -> Result<(), CliError> {
        let names = free_names(client, &format!("{}-try", place.workspace_id()), self.number as usize).await?;
        folder.expect(&names)?;
        folder.note_made(&fork(client, place.workspace_id(), &names, None).await?)?;
        let around = folder.path();
        attempts.extend((1..).zip(names).map(|(number, workspace)| Attempt {
            number,
            workspace,
            directory: String::new(),
            path: around.join(number.to_string()),
            mounted: false,
            log: around.join(format!("{number}.log")),
            code: None,
            score: None,
            score_code: None,
            result: None,
        }));
        Ok(())
    }

    /// Mounts the forks, or writes their files.
    async fn prepare(
        &self,
        session: &mut Session,
        client: &mut Client,
        place: &AttachedDirectory,
        counts: Option<&v1::Counts>,
        attempts: &mut [Attempt],
    ) -> Result<(), CliError> {
        let chosen = self.backend.choose(session.home(), Purpose::Shared)?;
        self.backend.say(session, chosen.word(), &chosen.why)?;
        if chosen.is_fallback {
            say_copies(&mut session.output, &chosen.why, self.number as usize, counts)?;
        }
        for attempt in attempts {
            attempt.mounted = chosen.backend == Backend::Fuse;
            if attempt.mounted {
                let (output, options) = (&mut session.output, MountArgs::default());
                let (name, path) = (&attempt.workspace, &attempt.path);
                if let Some(mount) = mount_or_else(output, client, name, path, &options, &self.backend).await? {
                    attempt.directory = mount.directory;
                    continue;
                }
                attempt.mounted = false;
            }
            let target = Target {
                path: &attempt.path,
                revision: &format!("{}@", attempt.workspace),
                workspace: "",
                attach: &attempt.workspace,
                source: &place.directory.name,
                conflicts: "",
                read_only: false,
                set_id: false,
            };
            let made = checkout(&session.output, client, &target).await?;
            attempt.directory = made.directory.map(|directory| directory.name).unwrap_or_default();
        }
        Ok(())
    }

    /// Runs the command in all forks, at most `--jobs` of them at a time.
    async fn work(
        &self,
        output: &mut Output,
        around: &Path,
        attempts: &mut [Attempt],
        plan: Option<&SandboxPlan>,
    ) -> Result<(), CliError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let places = Arc::new(Semaphore::new(self.jobs.unwrap_or(processors).max(1)));
        let mut running = JoinSet::new();
        for attempt in attempts.iter().cloned() {
            let (places, words, score) = (places.clone(), self.command.clone(), self.score.clone());
            let (around, plan, command) = (around.to_string_lossy().into_owned(), plan.cloned(), self.command_text());
            running.spawn(async move {
                let _turn = places.acquire_owned().await.expect("nobody closes it");
                let score = score.as_deref();
                match plan {
                    Some(plan) => plan.run(attempt, &words, score, |attempt| about(attempt, &command)).await,
                    None => one(attempt, &words, score, around).await,
                }
            });
        }
        while let Some(done) = running.join_next().await {
            let done = done.expect("an attempt does not panic")?;
            output.remark(format!("attempt {}: {}", done.number, outcome_words(&done)))?;
            let at = done.number - 1;
            attempts[at] = done;
        }
        Ok(())
    }

    fn command_text(&self) -> String {
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        words.join(" ")
    }

    fn about(&self, attempt: &Attempt) -> SnapshotInfo {
        about(attempt, &self.command_text())
    }
}

/// Returns the message and the metadata of the snapshot of an attempt.
fn about(attempt: &Attempt, command: &str) -> SnapshotInfo {
    let mut metadata = HashMap::from([("attempt".to_owned(), attempt.number.to_string())]);
    metadata.extend(attempt.code.map(|code| ("exit_code".to_owned(), code.to_string())));
    metadata.extend(attempt.score.map(|score| ("score".to_owned(), score.to_string())));
    let message = format!("attempt {}: {command}", attempt.number);
    SnapshotInfo { message, metadata, labels: Vec::new() }
}

/// Prepares attempts in sandboxes. All sandboxes get one name, which is derived from the folder.
async fn sandbox_plan(
    session: &mut Session,
    client: &Client,
    folder: &mut WorkFolder,
    template: &str,
) -> Result<SandboxPlan, CliError> {
    let sandboxes = SandboxCalls::connect(session).await?.client;
    let name = folder.note_sandboxes()?;
    Ok(SandboxPlan { sandboxes, workspaces: client.workspaces.clone(), template: template.to_owned(), name })
}

/// Runs one attempt and scores it. A failed attempt has no score.
async fn one(
    mut attempt: Attempt,
    words: &[OsString],
    score: Option<&str>,
    around: String,
) -> Result<Attempt, CliError> {
    let environment = [("AMALGAM_ATTEMPT", attempt.number.to_string()), (work_folders::FOLDER_VARIABLE, around)];
    let apart = IsolatedCommand { words, directory: &attempt.path, environment: &environment };
    let code = apart.with_log(&attempt.log).await?;
    attempt.code = Some(code);
    attempt.score = match score {
        _ if code != 0 => None,
        None => Some(1.0),
        Some(line) => {
            let words = shell_command(line);
            let apart = IsolatedCommand { words: &words, directory: &attempt.path, environment: &environment };
            let (code, printed) = apart.read(&attempt.log).await?;
            attempt.score_code = Some(code);
            if code == 0 { last_number(&printed) } else { None }
        }
    };
    Ok(attempt)
}

/// Returns the first attempt with the highest score, or `None` if no attempt has a score.
fn best(attempts: &[Attempt]) -> Option<&Attempt> {
    let mut best: Option<&Attempt> = None;
    for attempt in attempts.iter().filter(|attempt| attempt.score.is_some()) {
        if best.is_none_or(|best| attempt.score > best.score) {
            best = Some(attempt);
        }
    }
    best
}

fn outcome_words(attempt: &Attempt) -> String {
    let code = attempt.code.map_or("did not run".to_owned(), |code| format!("ended with {code}"));
    match attempt.score {
        Some(score) => format!("{code}, score {score}"),
        None => match attempt.score_code {
            None => format!("{code}, no score"),
            Some(0) => format!("{code}, no score: the last line of its command's output is no number"),
            Some(failed) => format!("{code}, no score: its command ended with {failed}"),
        },
    }
}

/// Returns the end of a message about attempts that brought nothing: edits that were committed before they began stay so.
fn committed(before: &v1::CaptureResult) -> String {
    match before.snapshot.as_ref().filter(|_| before.changed) {
        Some(snapshot) => format!(", and your edits were committed before, as {}", text::short(&snapshot.name)),
        None => String::new(),
    }
}

fn table(output: &mut Output, attempts: &[Attempt], best: Option<usize>) -> Result<(), CliError> {
    output.say(paint(style::TITLE, "attempt  code       score  snapshot  changes"))?;
    for attempt in attempts {
        let result = attempt.result.clone().unwrap_or_default();
        let snapshot = result.snapshot.clone().unwrap_or_default();
        let is_best = best == Some(attempt.number);
        output.emit(&lines::line(
            "attempt",
            json!({
                "attempt": attempt.number,
                "workspace": attempt.workspace,
                "exit_code": attempt.code,
                "score": attempt.score,
                "snapshot": lines::snapshot_id(result.snapshot.as_ref()),
                "added": result.added,
                "modified": result.modified,
                "removed": result.removed,
                "best": is_best,
                "log": attempt.log.to_string_lossy(),
            }),
        ))?;
        let code = attempt.code.map_or("-".to_owned(), |code| code.to_string());
        let score = attempt.score.map_or("-".to_owned(), |score| format!("{score}"));
        let line = format!(
            "{:>7}  {code:>4}  {score:>10}  {}  {}",
            attempt.number,
            text::short(&snapshot.name),
            changed(&result)
        );
        output.say(if is_best { paint(style::GOOD, format!("{line}  best")) } else { line })?;
    }
    Ok(())
}

/// Restores the winner's files into the directory.
async fn take(session: &mut Session, client: &mut Client, place: &AttachedDirectory, winner: &Attempt) -> Outcome {
    let snapshot = winner.result.as_ref().and_then(|result| result.snapshot.clone()).unwrap_or_default();
    let request = v1::RestoreDirectoryRequest {
        name: place.directory.name.clone(),
        revision: text::id(&snapshot.name).to_owned(),
        ..Default::default()
    };
    let result = drive(&session.output, client.directories.restore_directory(request)).await?;
    session.output.emit(&json_line("restored", &result))?;
    say_restored(&mut session.output, &result, &format!("what attempt {} left", winner.number))?;
    if result.changed {
        session.output.remark("`amalgam undo` takes this back")?;
    }
    super::capture::report_notices(&mut session.output, &result.notices)
}

/// Prints which forks are kept, and the command that removes them.
fn say_kept(session: &mut Session, attempts: &[Attempt]) -> Result<(), CliError> {
    if attempts.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = attempts.iter().map(|attempt| attempt.workspace.as_str()).collect();
    let how = match attempts.iter().any(|attempt| attempt.mounted) {
        true => {
            let mounted =
                attempts.iter().filter(|attempt| attempt.mounted).map(|attempt| attempt.path.display().to_string());
            let mounted: Vec<_> = mounted.collect();
            format!("`amalgam umount {} && amalgam ws rm {}` removes them", mounted.join(" "), names.join(" "))
        }
        false if attempts.iter().all(|attempt| attempt.directory.is_empty()) => {
            format!("`amalgam ws rm {}` removes them", names.join(" "))
        }
        false => format!("`amalgam ws rm --dir {}` removes them", names.join(" ")),
    };
    session.output.remark(format!("the forks are kept; {how}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn the_first_of_the_best_wins() {
        let attempt = |number, score| Attempt {
            number,
            workspace: String::new(),
            directory: String::new(),
            path: PathBuf::new(),
            mounted: false,
            log: PathBuf::new(),
            code: Some(0),
            score,
            score_code: None,
            result: None,
        };
        let attempts = [attempt(1, None), attempt(2, Some(0.5)), attempt(3, Some(2.0)), attempt(4, Some(2.0))];
        assert_eq!(best(&attempts).map(|attempt| attempt.number), Some(3));
        assert!(best(&attempts[..1]).is_none());
        assert_eq!(best(&[attempt(1, Some(-3.0))]).map(|attempt| attempt.number), Some(1));
    }
}
