//! Syncs workspaces with a remote: reads the heads of both sides, and carries out steps until they are the same.
//!
//! Nothing is overwritten: the server moves names only forward, and what both sides changed is merged here, with conflicts as
//! entries of the tree. A step that another process overtook is chosen anew.

use std::collections::{BTreeMap, BTreeSet};

use amalgam_engine::ChunkId;
use amalgam_proto::{Reason, v1};

use super::decide::{HeadOrder, Heads, Step, next_step};
use super::definition::Remote;
use super::labels::sync_labels;
use super::sides::{Report, Sides, is_fatal, tracking_name};
use super::state::{RemoteState, SyncOutcome, SyncedName, WorkspaceState};
use crate::connect::{Client, now};
use crate::error::CliError;
use crate::exit::Exit;
use crate::secrets::find_secrets;
use crate::session::{missing_field, workspace_name};
use crate::store_copy::{CopySource, NameKind, NamedHead, common_since, copy, find_kind, is_ancestor};
use crate::text;

/// Workspaces that one call lists.
const PAGE_SIZE: i32 = 1_000;
/// Most steps for a workspace in one round. Without other writers four are enough.
const STEPS_MAX: usize = 12;
/// Likely secrets that a message lists; the others are counted.
const SECRETS_SHOWN_MAX: usize = 3;

/// Syncs the workspaces of a remote and their labels, or the chosen workspaces without labels, and calls `report` with each result.
/// A workspace that fails does not keep the others from being synced; a server that cannot be reached does.
pub async fn sync_remote(
    sides: &mut Sides,
    remote: &Remote,
    state: &mut RemoteState,
    chosen: &[String],
    mut report: impl Report,
) -> Result<(), CliError> {
    let prefix = tracking_name(&remote.name, "");
    let local = list_heads(&mut sides.local).await?;
    let there = list_heads(&mut sides.remote).await.map_err(|error| error.of_server(&remote.url))?;
    let tracked = local.keys().filter_map(|name| name.strip_prefix(&prefix)).map(str::to_owned);
    let names: BTreeSet<_> = local.keys().chain(there.keys()).cloned().chain(tracked).collect();
    for name in names.into_iter().filter(|name| remote.selects(name)) {
        if !chosen.is_empty() && !chosen.contains(&name) {
            continue;
        }
        let heads = Heads {
            local: local.get(&name).cloned(),
            remote: there.get(&name).cloned(),
            tracked: local.get(&format!("{prefix}{name}")).cloned(),
            synced: state.workspaces.get(&name).map(|known| known.synced.clone()).unwrap_or_default(),
        };
        let done = match SyncRun::new(sides, remote, &name).run(heads).await {
            Ok(done) => done,
            Err(error) if is_fatal(&error) => return Err(error.of_server(&remote.url)),
            Err(error) => Some(WorkspaceState {
                outcome: SyncOutcome::Failed,
                problem: error.message.clone(),
                hint: error.hint.clone().unwrap_or_default(),
                ..state.workspaces.get(&name).cloned().unwrap_or_default()
            }),
        };
        let Some(mut done) = done else {
            state.workspaces.remove(&name);
            continue;
        };
        let before = state.workspaces.get(&name);
        done.changed = if done.outcome.is_change() { now().0 } else { before.map_or(0, |before| before.changed) };
        state.workspaces.insert(name.clone(), done.clone());
        report(SyncedName::Workspace(&name), &done, state)?;
    }
    match chosen.is_empty() {
        true => sync_labels(sides, remote, state, &mut report).await,
        false => Ok(()),
    }
}

/// Returns the heads of all workspaces of a store, by name.
async fn list_heads(client: &mut Client) -> Result<BTreeMap<String, String>, CliError> {
    let mut request = v1::ListWorkspacesRequest { page_size: PAGE_SIZE, ..Default::default() };
    let mut found = BTreeMap::new();
    loop {
        let page = client.workspaces.list_workspaces(request.clone()).await?.into_inner();
        found.extend(page.workspaces.into_iter().map(|found| (text::id(&found.name).to_owned(), found.head)));
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return Ok(found);
        }
    }
}

/// The sync of one workspace.
struct SyncRun<'a> {
    sides: &'a mut Sides,
    remote: &'a Remote,
    name: &'a str,
    is_pushed: bool,
    is_pulled: bool,
    is_merged: bool,
    conflicts: u64,
}

impl<'a> SyncRun<'a> {
    fn new(sides: &'a mut Sides, remote: &'a Remote, name: &'a str) -> Self {
        Self { sides, remote, name, is_pushed: false, is_pulled: false, is_merged: false, conflicts: 0 }
    }

    /// Carries out steps until both sides have the same head, or the user has to decide. Returns `None` if neither side has the
    /// workspace any more.
    async fn run(mut self, mut heads: Heads) -> Result<Option<WorkspaceState>, CliError> {
        // If a push or a merge succeeds and changes nothing, it is a retry of a request whose result was undone since.
        let mut answered = None;
        for _ in 0..STEPS_MAX {
            let step = next_step(&heads, self.order(&heads).await?);
            let is_repeated = answered.as_ref() == Some(&(step, heads.clone()));
            match step {
                Step::Done => {
                    let synced = heads.local.unwrap_or_default();
                    return Ok(Some(WorkspaceState { synced, ..self.result(self.outcome()) }));
                }
                Step::Push if is_repeated => return Ok(Some(self.held(SyncOutcome::UndoneThere, heads))),
                Step::Merge if is_repeated => return Ok(Some(self.held(SyncOutcome::UndoneHere, heads))),
                Step::Empty => return Ok(Some(self.held(SyncOutcome::Empty, heads))),
                Step::DeletedHere => return Ok(Some(self.held(SyncOutcome::DeletedHere, heads))),
                Step::DeletedThere => return Ok(Some(self.held(SyncOutcome::DeletedThere, heads))),
                Step::UndoneHere => return Ok(Some(self.held(SyncOutcome::UndoneHere, heads))),
                Step::UndoneThere => return Ok(Some(self.held(SyncOutcome::UndoneThere, heads))),
                Step::Forget => {
                    self.forget(&heads).await?;
                    return Ok(None);
                }
                Step::Create => self.create(&heads).await?,
                Step::Fetch => self.fetch(&heads).await?,
                Step::Merge => self.merge(&heads).await?,
                Step::Push => self.push(&heads).await?,
            }
            answered = Some((step, heads.clone()));
            heads = self.read(heads.synced).await?;
        }
        let message = format!("{} moved on both sides again and again", self.name);
        Err(CliError::new(Exit::STALE, Reason::StaleHead.word(), message).hint("it is tried again in the next round"))
    }

    fn outcome(&self) -> SyncOutcome {
        match (self.is_pushed, self.is_pulled) {
            _ if self.is_merged => SyncOutcome::Merged,
            (true, true) => SyncOutcome::Merged,
            (true, false) => SyncOutcome::Pushed,
            (false, true) => SyncOutcome::Pulled,
            (false, false) => SyncOutcome::Same,
        }
    }

    fn result(&self, outcome: SyncOutcome) -> WorkspaceState {
        WorkspaceState { outcome, conflicts: self.conflicts, ..WorkspaceState::default() }
    }

    /// Builds the result for a workspace that is left unchanged on both sides.
    fn held(&self, outcome: SyncOutcome, heads: Heads) -> WorkspaceState {
        let (problem, hint) = outcome.advice(self.name, &self.remote.context).unwrap_or_default();
        WorkspaceState { synced: heads.synced, problem: problem.to_owned(), hint, ..self.result(outcome) }
    }

    async fn read(&mut self, synced: String) -> Result<Heads, CliError> {
        let tracking = tracking_name(&self.remote.name, self.name);
        let head = |found: Option<NamedHead>| found.map(|found| found.head);
        let local = find_kind(&mut self.sides.local, NameKind::Workspace, self.name).await?;
        let tracked = find_kind(&mut self.sides.local, NameKind::Workspace, &tracking).await?;
        let remote = find_kind(&mut self.sides.remote, NameKind::Workspace, self.name).await?;
        Ok(Heads { local: head(local), remote: head(remote), tracked: head(tracked), synced })
    }

    /// Determines how the local and the remote head relate. Returns `Unknown` if the local store does not have the remote head.
    async fn order(&mut self, heads: &Heads) -> Result<HeadOrder, CliError> {
        let (Some(local), Some(remote)) = (&heads.local, &heads.remote) else { return Ok(HeadOrder::Unknown) };
        if local.is_empty() || remote.is_empty() || local == remote {
            return Ok(HeadOrder::Unknown);
        }
        let request = v1::GetHaveRequest { snapshots: vec![remote.clone()] };
        if self.sides.local.transfer.get_have(request).await?.into_inner().snapshots.is_empty() {
            return Ok(HeadOrder::Unknown);
        }
        if is_ancestor(&mut self.sides.local, remote, local).await? {
            return Ok(HeadOrder::Ahead);
        }
        match is_ancestor(&mut self.sides.local, local, remote).await? {
            true => Ok(HeadOrder::Behind),
            false => Ok(HeadOrder::Diverged),
        }
    }

    /// Copies the workspace of the server into the local store.
    async fn receive(&mut self, head: &str, options: &v1::ReceiveOptions) -> Result<(), CliError> {
        let source = CopySource { named: &self.named(head), expected: false };
        let Sides { local, remote } = &mut *self.sides;
        let have = common_since(remote, local, head, "").await?;
        copy(false, (remote, local), &source, have.text, options).await?;
        Ok(())
    }

    fn named(&self, head: &str) -> NamedHead {
        let (name, head) = (self.name.to_owned(), head.to_owned());
        NamedHead { kind: NameKind::Workspace, name, head, directories: Vec::new() }
    }

    async fn create(&mut self, heads: &Heads) -> Result<(), CliError> {
        self.is_pulled = true;
        let head = heads.remote.clone().unwrap_or_default();
        match self.receive(&head, &v1::ReceiveOptions::default()).await {
            // Another process has just created the workspace.
            Err(error) if error.is(Reason::AlreadyExists) => Ok(()),
            done => done,
        }
    }

    /// Moves the tracking workspace to the head of the server. If the server went back, moves it only if the local workspace
    /// contains the tracked head.
    async fn fetch(&mut self, heads: &Heads) -> Result<(), CliError> {
        let head = heads.remote.clone().unwrap_or_default();
        let under = tracking_name(&self.remote.name, "");
        let under = under.trim_end_matches('/').to_owned();
        let options = v1::ReceiveOptions { under, ..Default::default() };
        match self.receive(&head, &options).await {
            Err(error) if error.is(Reason::AlreadyExists) => {}
            done => return done,
        }
        let (local, tracked) =
            (heads.local.as_deref().unwrap_or_default(), heads.tracked.as_deref().unwrap_or_default());
        if local.is_empty() || tracked.is_empty() || !is_ancestor(&mut self.sides.local, tracked, local).await? {
            let tracking = tracking_name(&self.remote.name, self.name);
            let message = format!("the server went back behind {tracking}, which {} does not have", self.name);
            return Err(CliError::refused(message).hint(format!(
                "`amalgam merge {tracking} --into {}` takes it over, `amalgam ws rm {tracking}` drops it",
                self.name
            )));
        }
        self.receive(&head, &v1::ReceiveOptions { replace: true, ..options }).await
    }

    /// Merges the tracking workspace into the local one. The store captures uncommitted changes first, and stores conflicts.
    async fn merge(&mut self, heads: &Heads) -> Result<(), CliError> {
        let tracking = tracking_name(&self.remote.name, self.name);
        let request = v1::MergeWorkspacesRequest {
            target: workspace_name(self.name),
            sources: vec![workspace_name(&tracking)],
            message: format!("merge {} of {}", self.name, self.remote.name),
            request_id: self.request_id("merge", heads),
            ..Default::default()
        };
        let merged = self.sides.local.merges.merge_workspaces(request).await?.into_inner();
        let merge = merged.merge.ok_or_else(|| missing_field("merge"))?;
        self.is_pulled = true;
        match merge.how() {
            v1::MergeHow::Refused => {
                let message = format!("the merge into {} was refused: {}", self.name, text::printable(&merge.reason));
                Err(CliError::refused(message)
                    .hint(format!("`amalgam merge {tracking} --into {}` says more", self.name)))
            }
            v1::MergeHow::Merged => {
                self.is_merged = true;
                self.conflicts = merge.conflicts.len() as u64;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sends the local head. If a head moved meanwhile on either side, that is no failure: the next step is chosen from the new
    /// heads.
    async fn push(&mut self, heads: &Heads) -> Result<(), CliError> {
        let head = heads.local.clone().unwrap_or_default();
        let before = heads.remote.clone().unwrap_or_default();
        let request_id = self.request_id("push", heads);
        let Sides { local, remote } = &mut *self.sides;
        let have = common_since(local, remote, &head, &before).await?;
        if !self.remote.allow_secrets {
            let found = find_secrets(local, &head, &have.snapshots).await?;
            if !found.is_empty() {
                let shown: Vec<_> = found.iter().take(SECRETS_SHOWN_MAX).map(ToString::to_string).collect();
                let number = text::plural(found.len() as u64, "likely secret");
                let error = CliError::refused(format!("{number}, so nothing was sent: {}", shown.join("; ")));
                return Err(error.hint(format!(
                    "`amalgam purge PATH` forgets a content for good, `amalgam push {} --allow-secrets` sends everything",
                    self.name
                )));
            }
        }
        let options = v1::ReceiveOptions { request_id, ..Default::default() };
        let source = CopySource { named: &self.named(&head), expected: true };
        let Sides { local, remote } = &mut *self.sides;
        match copy(false, (local, remote), &source, have.text, &options).await {
            Ok(_) => self.is_pushed = true,
            Err(error) if error.is(Reason::AlreadyExists) || error.is(Reason::StaleHead) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Deletes the tracking workspace of a workspace that neither side has any more.
    async fn forget(&mut self, heads: &Heads) -> Result<(), CliError> {
        if heads.tracked.is_none() {
            return Ok(());
        }
        let name = workspace_name(&tracking_name(&self.remote.name, self.name));
        self.sides.local.workspaces.delete_workspace(v1::DeleteWorkspaceRequest { name, ..Default::default() }).await?;
        Ok(())
    }

    /// Returns the id of a request. Retries between the same heads have equal ids.
    fn request_id(&self, act: &str, heads: &Heads) -> String {
        let head = |head: &Option<String>| head.clone().unwrap_or_default();
        let parts = [act, &self.remote.url, self.name, &head(&heads.local), &head(&heads.remote)].join("\n");
        format!("sync-{}", ChunkId::of(parts.as_bytes()))
    }
}
