//! `amalgam bisect`: finds the first snapshot in which a command fails.

use std::ffi::OsString;
use std::path::PathBuf;

use amalgam_proto::v1;
use clap::{Args, Subcommand};
use serde_json::json;

use super::backend::{Backend, BackendArgs, Purpose};
use super::checkout::{Target, checkout};
use super::fork::free_names;
use super::isolated_command::IsolatedCommand;
use super::log::{full, one_line};
use super::mount::{MountArgs, mount_or_else};
use super::revisions::snapshot;
use super::work_folders::{self, FolderLogs, REMOVE_ENDED, UncommittedChanges, WorkFolder, clean_up};
use crate::connect::Client;
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::json as lines;
use crate::output::progress::drive;
use crate::output::style::{self, paint};
use crate::session::{Session, current_workspace};
use crate::text;

/// Find the first snapshot in which a command fails
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  amalgam bisect run --good v1 --bad @ -- make test")]
pub struct Bisect {
    #[command(subcommand)]
    command: BisectCommand,
}

#[derive(Debug, Subcommand)]
enum BisectCommand {
    Run(BisectRun),
}

/// Run a command in snapshots between a good and a bad one, by binary search
#[derive(Debug, Args)]
#[command(after_help = "\
The command runs in a separate directory, mounted where possible; your directory does not change. Its exit code rates
the snapshot: 0 is good, 125 skips the snapshot, any other code up to 127 is bad, and a higher code stops the search.
Ctrl-C ends the command and removes the directory; `amalgam ws rm --ended` does so after a `bisect` was killed.

Examples:
  amalgam bisect run --good v1 --bad @ -- make test
  amalgam bisect run --good @~20 --bad @ -- sh -c '! grep -q oops log.txt'")]
struct BisectRun {
    /// A snapshot that works; repeatable
    #[arg(long, value_name = "REV", required = true)]
    good: Vec<String>,
    /// A snapshot that is broken
    #[arg(long, value_name = "REV", default_value = "@")]
    bad: String,
    #[command(flatten)]
    backend: BackendArgs,
    /// The command
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Bisect {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        let BisectCommand::Run(run) = self.command;
        run.run(session).await
    }
}

/// The snapshots that were found to be good or bad, or were skipped, so far.
#[derive(Clone, Debug, Default)]
struct Ratings {
    good: Vec<String>,
    bad: String,
    skipped: Vec<String>,
}

/// The directory in which snapshots are tried.
struct Bench {
    /// The folder around it, which is removed with its contents at the end.
    folder: WorkFolder,
    path: PathBuf,
    /// Whether the files are mounted at `path` instead of written to the disk.
    mounted: bool,
    workspace: String,
    /// The resource name of the directory; empty until the first snapshot is mounted or written.
    directory: String,
}

impl BisectRun {
    async fn run(self, session: &mut Session) -> Outcome {
        let place = session.attached_directory_if_any().await?;
        let mut client = session.client().await?;
        let mut known =
            Ratings { bad: id_of(&snapshot(&mut client, place.as_ref(), &self.bad).await?), ..Ratings::default() };
        for good in &self.good {
            known.good.push(id_of(&snapshot(&mut client, place.as_ref(), good).await?));
        }
        work_folders::remark_abandoned(session)?;
        let folder = WorkFolder::create(session.home(), "bisect")?;
        session.interrupts.clean_up(folder.path());
        let workspace = free_names(&mut client, "bisect", 1).await?.remove(0);
        let path = folder.path().join("tree");
        let chosen = self.backend.choose(session.home(), Purpose::Shared)?;
        self.backend.say(session, chosen.word(), &chosen.why)?;
        let mounted = chosen.backend == Backend::Fuse;
        let mut bench = Bench { path, mounted, folder, workspace, directory: String::new() };
        let workspace = current_workspace(place.as_ref());
        let source = place.map(|place| place.directory.name).unwrap_or_default();
        let found = self.search(session, &mut client, known, &mut bench, (&workspace, &source)).await;
        if found.is_err() {
            // It may have failed because the background process ended.
            session.forget_client();
            if let Ok(again) = session.client().await {
                client = again;
            }
        }
        // Changes that the command made are not needed.
        if let Err(error) =
            clean_up(session, bench.folder.path(), UncommittedChanges::Discard, FolderLogs::Remove).await
        {
            let message = format!("the search left something behind: {}; `{REMOVE_ENDED}` removes it", error.message);
            session.output.remark(message)?;
        }
        let mut first_bad = Vec::new();
        // Read again, because the removed workspace of the search is no longer among their marks.
        for bad in found? {
            first_bad.push(snapshot(&mut client, None, text::id(&bad.name)).await?);
        }
        let output = &mut session.output;
        let ids: Vec<_> = first_bad.iter().map(id_of).collect();
        output.emit(&lines::line("bisect", json!({"first_bad": ids})))?;
        match first_bad.as_slice() {
            [only] => {
                output.say(paint(style::TITLE, "the first broken snapshot is"))?;
                full(only, session.now).into_iter().try_for_each(|line| output.say(line))?;
            }
            several => {
                output.say(paint(
                    style::TITLE,
                    "one of these is the first broken snapshot; the others could not be tested",
                ))?;
                several.iter().try_for_each(|snapshot| output.say(one_line(snapshot, session.now)))?;
            }
        }
        Ok(Exit::OK)
    }

    async fn search(
        &self,
        session: &mut Session,
        client: &mut Client,
        mut known: Ratings,
        bench: &mut Bench,
        (workspace, source): (&str, &str),
    ) -> Result<Vec<v1::Snapshot>, CliError> {
        loop {
            let request = v1::NextBisectStepRequest {
                workspace: workspace.to_owned(),
                good: known.good.clone(),
                bad: known.bad.clone(),
                skipped: known.skipped.clone(),
            };
            let step = client.snapshots.next_bisect_step(request).await?.into_inner();
            let Some(next) = step.next else { return Ok(step.first_bad) };
            let id = id_of(&next);
            bench.put(session, client, &id, source, &self.backend).await?;
            let environment = [(work_folders::FOLDER_VARIABLE, bench.folder.path().to_string_lossy().into_owned())];
            let apart = IsolatedCommand { words: &self.command, directory: &bench.path, environment: &environment };
            let code = apart.onto_stderr().await?;
            let verdict = verdict(code)?;
            session.output.emit(&lines::line(
                "bisect_step",
                json!({"snapshot": id, "exit_code": code, "verdict": verdict, "candidates": step.candidates}),
            ))?;
            let left = text::count(step.candidates);
            session.output.remark(format!("{verdict:>7}  {}  ({left} left)", one_line(&next, session.now)))?;
            match verdict {
                "good" => known.good.push(id),
                "bad" => known.bad = id,
                _ => known.skipped.push(id),
            }
        }
    }
}

impl Bench {
    /// Puts the files of a snapshot into the directory: mounts or writes all of them at first, then changes those that differ.
    async fn put(
        &mut self,
        session: &mut Session,
        client: &mut Client,
        id: &str,
        source: &str,
        backend: &BackendArgs,
    ) -> Result<(), CliError> {
        if !self.directory.is_empty() {
            let request = v1::RestoreDirectoryRequest {
                name: self.directory.clone(),
                revision: id.to_owned(),
                with_git: true,
                ..Default::default()
            };
            drive(&session.output, client.directories.restore_directory(request)).await?;
            return Ok(());
        }
        let request = v1::CreateWorkspaceRequest {
            workspace_id: self.workspace.clone(),
            from: id.to_owned(),
            ..Default::default()
        };
        self.folder.expect(std::slice::from_ref(&self.workspace))?;
        let made = client.workspaces.create_workspace(request).await?.into_inner().workspace;
        self.folder.note_made(made.as_slice())?;
        if self.mounted {
            let (output, options) = (&mut session.output, MountArgs::default());
            let made = mount_or_else(output, client, &self.workspace, &self.path, &options, backend).await?;
            if let Some(mount) = made {
                self.directory = mount.directory;
                return Ok(());
            }
            self.mounted = false;
        }
        let target = Target {
            path: &self.path,
            revision: id,
            workspace: "",
            attach: &self.workspace,
            source,
            conflicts: "",
            read_only: false,
            set_id: false,
        };
        let made = checkout(&session.output, client, &target).await?;
        self.directory = made.directory.map(|directory| directory.name).unwrap_or_default();
        Ok(())
    }
}

fn id_of(snapshot: &v1::Snapshot) -> String {
    text::id(&snapshot.name).to_owned()
}

/// Returns the verdict of an exit code: `good`, `bad` or `skipped`. Refuses a code above 127.
fn verdict(code: u8) -> Result<&'static str, CliError> {
    match code {
        0 => Ok("good"),
        125 => Ok("skipped"),
        1..=127 => Ok("bad"),
        code => Err(CliError::refused(format!("the command ended with {code}, which is neither good nor bad"))
            .hint("use 0 for good, 125 to skip, other codes up to 127 for bad; the search was stopped")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_git_reads_them() {
        for (code, expected) in [(0, "good"), (1, "bad"), (124, "bad"), (125, "skipped"), (126, "bad"), (127, "bad")] {
            assert_eq!(verdict(code).expect("it says something"), expected);
        }
        assert!(verdict(128).is_err());
        assert!(verdict(137).is_err());
    }
}
