//! Syncs labels with a remote, after the workspaces: a label travels when the other side has its snapshot, that is, when it belongs
//! to a workspace that is synced.
//!
//! A label that one side moved is moved on the other side. One that both sides moved stays as it is on both; the server's is kept
//! here as `remote/NAME/LABEL`. A label is set only if it is where it was seen, so nothing is overwritten.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_proto::{Reason, v1};

use super::decide::{LabelStep, next_label_step};
use super::definition::{Remote, is_tracking};
use super::sides::{Report, Sides, is_fatal, tracking_name};
use super::state::{RemoteState, SyncOutcome, SyncedName, WorkspaceState};
use crate::connect::{Client, now};
use crate::error::CliError;
use crate::text;

/// Labels that one call lists.
const PAGE_SIZE: i32 = 1_000;
/// Most snapshots that one call asks about.
const HAVE_MAX: usize = 1_000;

/// Syncs the labels of a remote, and calls `report` with each result. A label that fails does not keep the others from being
/// synced.
pub async fn sync_labels(
    sides: &mut Sides,
    remote: &Remote,
    state: &mut RemoteState,
    report: &mut impl Report,
) -> Result<(), CliError> {
    let here = list_labels(&mut sides.local).await?;
    let there = list_labels(&mut sides.remote).await.map_err(|error| error.of_server(&remote.url))?;
    if here.is_empty() && there.is_empty() && state.labels.is_empty() {
        return Ok(());
    }
    let known_here = known(&mut sides.local, there.values()).await?;
    let known_there = known(&mut sides.remote, here.values()).await.map_err(|error| error.of_server(&remote.url))?;
    let names: BTreeSet<_> = here.keys().chain(there.keys()).chain(state.labels.keys()).cloned().collect();
    for name in names.into_iter().filter(|name| !is_tracking(name)) {
        let synced = state.labels.get(&name).map(|known| known.synced.clone()).unwrap_or_default();
        let run = LabelRun {
            remote,
            name: &name,
            local: here.get(&name).map(String::as_str),
            there: there.get(&name).map(String::as_str),
            kept: here.get(&tracking_name(&remote.name, &name)).map(String::as_str),
            synced: &synced,
            is_known_here: there.get(&name).is_some_and(|snapshot| known_here.contains(snapshot)),
            is_known_there: here.get(&name).is_some_and(|snapshot| known_there.contains(snapshot)),
        };
        let done = match run.run(sides).await {
            Ok(done) => done,
            Err(error) if is_fatal(&error) => return Err(error.of_server(&remote.url)),
            Err(error) => Some(WorkspaceState {
                outcome: SyncOutcome::Failed,
                synced: synced.clone(),
                problem: error.message.clone(),
                hint: error.hint.clone().unwrap_or_default(),
                ..WorkspaceState::default()
            }),
        };
        let Some(mut done) = done else {
            state.labels.remove(&name);
            continue;
        };
        let before = state.labels.get(&name);
        done.changed = if done.outcome.is_change() { now().0 } else { before.map_or(0, |before| before.changed) };
        state.labels.insert(name.clone(), done.clone());
        report(SyncedName::Label(&name), &done, state)?;
    }
    Ok(())
}

/// Returns the snapshots of all labels of a store, by label.
async fn list_labels(client: &mut Client) -> Result<BTreeMap<String, String>, CliError> {
    let mut request = v1::ListLabelsRequest { page_size: PAGE_SIZE, ..Default::default() };
    let mut found = BTreeMap::new();
    loop {
        let page = client.snapshots.list_labels(request.clone()).await?.into_inner();
        found.extend(page.labels.into_iter().map(|label| (text::id(&label.name).to_owned(), label.snapshot)));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// Returns the snapshots among `snapshots` that a store has.
async fn known(client: &mut Client, snapshots: impl Iterator<Item = &String>) -> Result<BTreeSet<String>, CliError> {
    let all: BTreeSet<_> = snapshots.cloned().collect();
    let all: Vec<_> = all.into_iter().collect();
    let mut found = BTreeSet::new();
    for snapshots in all.chunks(HAVE_MAX) {
        let request = v1::GetHaveRequest { snapshots: snapshots.to_vec() };
        found.extend(client.transfer.get_have(request).await?.into_inner().snapshots);
    }
    Ok(found)
}

/// The sync of one label.
struct LabelRun<'a> {
    remote: &'a Remote,
    name: &'a str,
    /// The snapshot of the label in the local store.
    local: Option<&'a str>,
    /// The snapshot of the label on the server.
    there: Option<&'a str>,
    /// The snapshot of the label that was kept of the server because both sides had moved it.
    kept: Option<&'a str>,
    /// The last snapshot that both sides had in common; empty before the first sync.
    synced: &'a str,
    is_known_here: bool,
    is_known_there: bool,
}

impl LabelRun<'_> {
    /// Moves the label to the same snapshot on both sides, or reports that the user has to decide. Returns `None` for a label that
    /// neither side has, or that belongs to no synced workspace.
    async fn run(&self, sides: &mut Sides) -> Result<Option<WorkspaceState>, CliError> {
        let (local, there) = (self.local.unwrap_or_default(), self.there.unwrap_or_default());
        match next_label_step(self.local, self.there, self.synced) {
            LabelStep::Forget => {
                self.drop_kept(sides).await?;
                Ok(None)
            }
            LabelStep::Done => {
                self.drop_kept(sides).await?;
                Ok(Some(self.result(SyncOutcome::Same, local)))
            }
            LabelStep::Push if self.is_known_there => {
                let is_set = set(&mut sides.remote, self.name, local, there).await?;
                self.drop_kept(sides).await?;
                Ok(Some(match is_set {
                    true => self.result(SyncOutcome::Pushed, local),
                    false => self.result(SyncOutcome::Same, self.synced),
                }))
            }
            LabelStep::Pull if self.is_known_here => {
                let is_set = set(&mut sides.local, self.name, there, local).await?;
                self.drop_kept(sides).await?;
                Ok(Some(match is_set {
                    true => self.result(SyncOutcome::Pulled, there),
                    false => self.result(SyncOutcome::Same, self.synced),
                }))
            }
            LabelStep::Push | LabelStep::Pull if self.synced.is_empty() => Ok(None),
            LabelStep::Push | LabelStep::Pull => Ok(Some(self.result(SyncOutcome::Same, self.synced))),
            LabelStep::DeletedHere => Ok(Some(self.held(SyncOutcome::DeletedHere))),
            LabelStep::DeletedThere => Ok(Some(self.held(SyncOutcome::DeletedThere))),
            LabelStep::Diverged => {
                if self.is_known_here && self.kept != Some(there) {
                    set(&mut sides.local, &self.kept_name(), there, self.kept.unwrap_or_default()).await?;
                }
                Ok(Some(self.held(SyncOutcome::Diverged)))
            }
        }
    }

    /// Returns the local name under which a conflicting label of the server is kept.
    fn kept_name(&self) -> String {
        tracking_name(&self.remote.name, self.name)
    }

    /// Removes the label that was kept of the server, now that both sides agree.
    async fn drop_kept(&self, sides: &mut Sides) -> Result<(), CliError> {
        if self.kept.is_some() {
            let name = format!("labels/{}", self.kept_name());
            sides.local.snapshots.delete_label(v1::DeleteLabelRequest { name, ..Default::default() }).await?;
        }
        Ok(())
    }

    fn result(&self, outcome: SyncOutcome, synced: &str) -> WorkspaceState {
        WorkspaceState { outcome, synced: synced.to_owned(), ..WorkspaceState::default() }
    }

    fn held(&self, outcome: SyncOutcome) -> WorkspaceState {
        let (name, context) = (self.name, &self.remote.context);
        let snapshot = |snapshot: Option<&str>| text::id(snapshot.unwrap_or_default()).to_owned();
        let (problem, hint) = match outcome {
            SyncOutcome::DeletedHere => (
                "deleted here, and kept on the server",
                format!(
                    "`amalgam label {name} {}` puts it back, `amalgam label {name} --delete --server {context}` deletes it there",
                    snapshot(self.there)
                ),
            ),
            SyncOutcome::DeletedThere => (
                "deleted on the server, and kept here",
                format!(
                    "`amalgam label {name} {} --server {context}` puts it back, `amalgam label {name} --delete` deletes it here",
                    snapshot(self.local)
                ),
            ),
            _ => (
                "moved on both sides",
                format!(
                    "`amalgam label {name} {}` takes the server's, which is kept as {}; `amalgam label {name} {} --server \
                     {context}` takes the one of this store",
                    snapshot(self.there),
                    self.kept_name(),
                    snapshot(self.local)
                ),
            ),
        };
        WorkspaceState { problem: problem.to_owned(), hint, ..self.result(outcome, self.synced) }
    }
}

/// Moves a label to a snapshot if it still is at `seen`. Returns whether it was; if not, the next round decides again.
async fn set(client: &mut Client, label: &str, snapshot: &str, seen: &str) -> Result<bool, CliError> {
    let request = v1::SetLabelRequest {
        label_id: label.to_owned(),
        revision: text::id(snapshot).to_owned(),
        expected_snapshot: Some(text::id(seen).to_owned()),
        ..Default::default()
    };
    match client.snapshots.set_label(request).await.map_err(CliError::from) {
        Ok(_) => Ok(true),
        Err(error) if error.is(Reason::StaleHead) => Ok(false),
        Err(error) => Err(error),
    }
}
