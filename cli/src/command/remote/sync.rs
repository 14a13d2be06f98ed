//! `amalgam remote sync`: syncs with remotes now.

use clap::Args;
use serde_json::{Value, json};

use crate::connect::now;
use crate::edge::{
    COMMAND_LOCK_TIMEOUT, Remote, RemoteState, Remotes, Sides, SyncOutcome, SyncedName, WorkspaceState, connect_remote,
    sync_remote,
};
use crate::error::{CliError, Outcome};
use crate::exit::Exit;
use crate::output::Output;
use crate::output::json as lines;
use crate::output::style::{self, paint};
use crate::session::Session;
use crate::text;

/// Sync with remotes now
#[derive(Debug, Args)]
#[command(after_help = "\
Waits until both sides are the same, and prints what was pushed, pulled and merged. An interrupted sync continues where
it stopped. Exits with 5 if there are conflicts, and with 3 if some workspaces were not synced.

Examples:
  amalgam remote sync
  amalgam remote sync main
  amalgam remote sync --remote backup")]
pub struct Sync {
    /// Workspaces [default: all of the remote]
    #[arg(value_name = "WORKSPACE")]
    workspaces: Vec<String>,
    /// The remote [default: all]
    #[arg(long, value_name = "NAME")]
    remote: Option<String>,
}

impl Sync {
    /// Runs the command.
    pub async fn run(self, session: &mut Session) -> Outcome {
        session.interrupts.say("what has arrived is kept; sync again to continue");
        let remotes = Remotes::of_home(session.home());
        let chosen = match &self.remote {
            Some(name) => vec![remotes.get(name)?],
            None => remotes.list()?,
        };
        if chosen.is_empty() {
            return Err(CliError::usage("there are no remotes").hint("`amalgam remote add URL` adds one"));
        }
        let mut exit = Exit::OK;
        for remote in &chosen {
            exit = exit.or(sync(session, &remotes, remote, &self.workspaces).await?);
        }
        Ok(exit)
    }
}

/// Syncs with one remote, and stores the results in its state.
async fn sync(session: &mut Session, remotes: &Remotes, remote: &Remote, chosen: &[String]) -> Outcome {
    let local = session.client().await?;
    let _lock = remotes.lock(&remote.name, COMMAND_LOCK_TIMEOUT).await?;
    let mut state = RemoteState::load(remotes, &remote.name)?;
    state.tried = now().0;
    let (mut exit, mut is_changed) = (Exit::OK, false);
    let output = &mut session.output;
    let report = |what: SyncedName<'_>, done: &WorkspaceState, state: &RemoteState| {
        is_changed |= done.outcome.is_change();
        exit = std::mem::replace(&mut exit, Exit::OK).or(exit_of(done));
        state.save(remotes, &remote.name)?;
        match what {
            SyncedName::Workspace(workspace) => say(output, remote, workspace, done),
            SyncedName::Label(label) => say_label(output, remote, label, done),
        }
    };
    let synced = match connect_remote(remote, &session.connect.actor).await {
        Ok(there) => sync_remote(&mut Sides { local, remote: there }, remote, &mut state, chosen, report).await,
        Err(error) => Err(error),
    };
    match &synced {
        Ok(()) => {
            let (workspaces, labels) = (std::mem::take(&mut state.workspaces), std::mem::take(&mut state.labels));
            // Only a round over all workspaces updates the time of the last success.
            let succeeded = if chosen.is_empty() { now().0 } else { state.succeeded };
            state = RemoteState { succeeded, tried: state.tried, workspaces, labels, ..RemoteState::default() };
        }
        Err(error) => {
            state.failures = state.failures.saturating_add(1);
            (state.problem, state.hint) = (error.message.clone(), error.hint.clone().unwrap_or_default());
        }
    }
    state.save(remotes, &remote.name)?;
    synced?;
    if !is_changed && exit == Exit::OK {
        session.output.done(format!("{} and this store are the same", paint(style::TITLE, &remote.url)))?;
    }
    Ok(exit)
}

fn exit_of(done: &WorkspaceState) -> Exit {
    match done.outcome {
        SyncOutcome::Failed => Exit::PARTLY,
        _ if done.conflicts > 0 => Exit::CONFLICTS,
        _ => Exit::OK,
    }
}

fn say(output: &mut Output, remote: &Remote, workspace: &str, done: &WorkspaceState) -> Result<(), CliError> {
    output.emit(&workspace_line("synced", &remote.name, workspace, done))?;
    let name = paint(style::WORKSPACE, text::printable(workspace));
    match done.outcome {
        SyncOutcome::Same | SyncOutcome::Empty => Ok(()),
        SyncOutcome::Merged if done.conflicts > 0 => {
            let number = text::plural(done.conflicts, "conflict");
            output.say(format!("{name} merged with {number}; `amalgam conflicts list --rev {workspace}@` shows them"))
        }
        outcome if outcome.is_change() => output.say(format!("{name} {}", outcome.word())),
        _ if done.hint.is_empty() => output.say(format!("{name} {}", text::printable(&done.problem))),
        _ => output.say(format!("{name} {}; {}", text::printable(&done.problem), text::printable(&done.hint))),
    }
}

fn say_label(output: &mut Output, remote: &Remote, label: &str, done: &WorkspaceState) -> Result<(), CliError> {
    output.emit(&label_line("synced_label", &remote.name, label, done))?;
    let name = format!("label {}", paint(style::TITLE, text::printable(label)));
    match done.outcome {
        SyncOutcome::Same => Ok(()),
        outcome if outcome.is_change() => output.say(format!("{name} {}", outcome.word())),
        _ if done.hint.is_empty() => output.say(format!("{name} {}", text::printable(&done.problem))),
        _ => output.say(format!("{name} {}; {}", text::printable(&done.problem), text::printable(&done.hint))),
    }
}

/// Returns the JSON line of a synced label.
pub fn label_line(kind: &str, remote: &str, label: &str, done: &WorkspaceState) -> Value {
    let synced = (!done.synced.is_empty()).then(|| text::id(&done.synced));
    lines::line(
        kind,
        json!({
            "remote": remote,
            "label": label,
            "outcome": done.outcome.word(),
            "snapshot": synced,
            "problem": done.problem,
            "hint": done.hint,
        }),
    )
}

/// Returns the JSON line of a synced workspace.
pub fn workspace_line(kind: &str, remote: &str, workspace: &str, done: &WorkspaceState) -> Value {
    let synced = (!done.synced.is_empty()).then(|| text::id(&done.synced));
    lines::line(
        kind,
        json!({
            "remote": remote,
            "workspace": workspace,
            "outcome": done.outcome.word(),
            "snapshot": synced,
            "conflicts": done.conflicts,
            "problem": done.problem,
            "hint": done.hint,
        }),
    )
}
