//! Resolves conflicts in a workspace's head, or in its directory if it has one.

use std::collections::BTreeSet;

use amalgam_conflicts::{Choice, NotResolved, resolution_file, resolution_of, without_draft};
use amalgam_engine::conflict::{CONFLICTS_KEY, Exchange, NewResolution, PlacedConflict, replay};
use amalgam_engine::merge::{DECIDED_KEY, Decision, OpenDecision};
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Entry, ObjectKind, OperationContext, Pin, RootId, SnapshotId, TreePath, WorkingTree};
use amalgam_proto::{Reason, v1};

use super::Conflicts;
use super::caption_source::CaptionSource;
use super::captions::Captioner;
use super::list::{is_wanted, tree_paths};
use super::undecided::decision;
use crate::caller::Caller;
use crate::context::ShownNames;
use crate::error::{Error, Result};
use crate::messages::words_of;

/// The action in the operation log.
pub(crate) const RESOLVE: &str = "resolve";

/// A tree in which conflicts are resolved.
pub(crate) struct Plan {
    source: CaptionSource,
    tree: WorkingTree,
    pub(crate) root: RootId,
    /// Keeps the tree, which no reference names.
    _pin: Pin,
    done: Vec<(PlacedConflict, Option<Entry>)>,
    /// Decided matters that are not entries of the tree, with their decisions. `told` has their messages.
    pub(crate) decided: Vec<(OpenDecision, Decision)>,
    told: Vec<v1::Conflict>,
    /// The paths that differ afterwards.
    pub(crate) touched: Vec<TreePath>,
    left: u64,
}

impl Plan {
    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty() && self.decided.is_empty()
    }
}

impl Conflicts {
    /// Returns the result of an earlier call with the same request id: the snapshot that it made, without the resolved conflicts.
    /// Returns `None` if there was none.
    pub(crate) fn resolved_before(
        &self,
        workspace: &WorkspaceName,
        act: &OperationContext,
    ) -> Result<Option<v1::ResolveConflictsResponse>> {
        let Some(first) = self.context.done_before(act)? else { return Ok(None) };
        let moved = first.changes.iter().find(|change| change.name == workspace.reference());
        let target = moved.and_then(|change| change.after.as_ref()?.target);
        let Some(target) = target.filter(|target| target.kind == ObjectKind::Snapshot) else { return Ok(None) };
        let snapshot = self.context.snapshot_message(SnapshotId::from_bytes(target.hash), &ShownNames::default())?;
        let left = snapshot.conflicts;
        Ok(Some(v1::ResolveConflictsResponse { snapshot: Some(snapshot), left, ..Default::default() }))
    }

    pub(crate) fn resolve_in_head(
        &self,
        workspace: &WorkspaceName,
        request: &v1::ResolveConflictsRequest,
        act: &OperationContext,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let head = self.context.head(workspace)?;
        let Some(root) = self.context.head_root(head)? else { return Err(nothing(&[])) };
        let mut plan = caller.walking(|| self.plan_resolving(head, root, request, act))?;
        let mut response = self.response(&plan)?;
        if request.dry_run || plan.is_empty() {
            return Ok(response);
        }
        plan.tree.rebase(head);
        let mut change = change_of(&plan, self.entries_left(&plan, root)?);
        change.resolutions = self.new_resolutions(&plan, request)?;
        let done = self.context.workspaces.commit_as(workspace, &mut plan.tree, &change, act, RESOLVE);
        let done = done?;
        response.snapshot = Some(self.context.snapshot_message(done.snapshot, &ShownNames::default())?);
        Ok(response)
    }

    pub(crate) fn plan_resolving(
        &self,
        head: Option<SnapshotId>,
        root: RootId,
        request: &v1::ResolveConflictsRequest,
        act: &OperationContext,
    ) -> Result<Plan> {
        use v1::resolve_conflicts_request::Resolution;
        let store = &self.context.store;
        let paths = tree_paths(&request.paths)?;
        let placed = self.conflicts_of(root, None)?;
        let wanted: Vec<_> = placed.iter().filter(|placed| is_wanted(&paths, &placed.path)).collect();
        let matters = self.matters_of(head, root)?;
        let undecided: Vec<_> =
            matters.iter().filter(|matter| is_wanted(&paths, &matter.undecided.path)).cloned().collect();
        if wanted.is_empty() && undecided.is_empty() {
            return Err(nothing(&paths));
        }
        if matches!(request.resolution, Some(Resolution::Content(_))) && wanted.is_empty() {
            return Err(Error::new(Reason::Invalid, "this conflict is not about contents; choose ours or theirs"));
        }
        if matches!(request.resolution, Some(Resolution::Content(_))) && wanted.len() != 1 {
            return Err(Error::new(Reason::Invalid, "contents resolve one conflict only; name its path"));
        }
        let mut exchange = Exchange::new(store, root, &[])?;
        let source = CaptionSource::of(head, None);
        let captioner = self.captioner(source.clone());
        let mut done = Vec::new();
        for placed in wanted {
            let entry = match request.resolution.as_ref().expect("it was asked for") {
                Resolution::Content(bytes) => {
                    Some(resolution_file(exchange.session(), &placed.conflict, bytes, act.time)?)
                }
                Resolution::Remembered(_) => {
                    let whole = without_draft(store, &placed.conflict)?;
                    match replay(store, &whole)? {
                        Some(entry) => entry,
                        None => continue,
                    }
                }
                Resolution::Version(word) => {
                    let choice = self.choice(placed, word, &captioner)?;
                    let session = exchange.session();
                    resolution_of(store, session, &placed.conflict, choice, act.time)
                        .map_err(|why| unable(placed, why))?
                }
            };
            exchange.set(&placed.path, entry.as_ref())?;
            done.push((placed.clone(), entry));
        }
        let decided = decisions(undecided, &done, request.resolution.as_ref())?;
        let before = root;
        let (mut tree, mut root) = exchange.finish()?;
        let mut touched: Vec<_> = done.iter().map(|(placed, _)| placed.path.clone()).collect();
        for (matter, decision) in &decided {
            touched.extend(matter.undecided.decide(&mut tree, *decision)?);
        }
        if !decided.is_empty() {
            let session = store.session();
            root = tree.freeze().write(&session)?;
            session.write_all_ahead()?;
        }
        let pin = store.hold(root)?;
        // A version that removes a file also ends the matters about its name.
        let is_decided = |matter: &&OpenDecision| decided.iter().any(|(decided, _)| decided.id() == matter.id());
        let still_open = self.matters_of(head, root)?;
        let is_open = |matter: &&OpenDecision| still_open.iter().any(|open| open.id() == matter.id());
        let ended = matters.iter().filter(|matter| is_decided(matter) || !is_open(matter));
        let told = ended.map(|matter| self.matter_message(matter, before)).collect::<Result<_>>()?;
        // A file counts as one conflict, even with several undecided matters.
        let is_done = |path: &TreePath| done.iter().any(|(done, _)| done.path == *path);
        let left = placed.iter().map(|placed| &placed.path).filter(|path| !is_done(path));
        let open = still_open.iter().filter(|matter| !is_decided(matter)).map(|matter| &matter.undecided.path);
        let left = left.chain(open).collect::<BTreeSet<_>>().len() as u64;
        Ok(Plan { source, tree, root, _pin: pin, done, decided, told, touched, left })
    }

    /// Returns the number of entries that are conflicts after a plan, which the log counts.
    fn entries_left(&self, plan: &Plan, root: RootId) -> Result<u64> {
        Ok((self.conflicts_of(root, None)?.len() - plan.done.len()) as u64)
    }

    fn choice(&self, placed: &PlacedConflict, word: &str, captioner: &Captioner<'_>) -> Result<Choice> {
        match word {
            "union" => Ok(Choice::Union),
            word => self.term_named(placed, word, captioner).map(Choice::Term),
        }
    }

    pub(crate) fn response(&self, plan: &Plan) -> Result<v1::ResolveConflictsResponse> {
        let captioner = self.captioner(plan.source.clone());
        let resolved = plan.done.iter().map(|(placed, _)| self.conflict_message(placed, &captioner));
        let resolved = resolved.chain(plan.told.iter().cloned().map(Ok)).collect::<Result<_>>()?;
        Ok(v1::ResolveConflictsResponse { resolved, left: plan.left, ..Default::default() })
    }

    /// Returns the resolutions of a plan, for the operation that carries it out to record; none if the request forgets them.
    pub(crate) fn new_resolutions(
        &self,
        plan: &Plan,
        request: &v1::ResolveConflictsRequest,
    ) -> Result<Vec<NewResolution>> {
        let store = &self.context.store;
        let mut new = Vec::new();
        for (placed, entry) in plan.done.iter().filter(|_| !request.forget) {
            let whole = without_draft(store, &placed.conflict)?;
            let found = NewResolution::new(store, &whole, &placed.path, entry.as_ref(), plan.root);
            new.extend(found?);
        }
        Ok(new)
    }
}

/// Returns the decisions of matters that are not entries of the tree. If the request also resolves other conflicts, a matter that
/// lacks the requested version stays open.
fn decisions(
    undecided: Vec<OpenDecision>,
    done: &[(PlacedConflict, Option<Entry>)],
    resolution: Option<&v1::resolve_conflicts_request::Resolution>,
) -> Result<Vec<(OpenDecision, Decision)>> {
    let Some(v1::resolve_conflicts_request::Resolution::Version(word)) = resolution else { return Ok(Vec::new()) };
    let mut decided = Vec::new();
    for matter in undecided {
        match decision(&matter, word) {
            Ok(decision) => decided.push((matter, decision)),
            Err(failure) if done.is_empty() => return Err(failure),
            Err(_) => {}
        }
    }
    Ok(decided)
}

pub(crate) fn change_of(plan: &Plan, left: u64) -> Change {
    let paths = plan.done.iter().map(|(placed, _)| &placed.path);
    let paths: Vec<_> = paths.chain(plan.decided.iter().map(|(matter, _)| &matter.undecided.path)).cloned().collect();
    let mut change = Change::new(format!("resolve {}", words_of(&paths)));
    if !plan.decided.is_empty() {
        let ids: Vec<_> = plan.decided.iter().map(|(matter, _)| matter.id()).collect();
        change.metadata.insert(DECIDED_KEY.to_owned(), ids.join(" "));
        change.even_unchanged = true;
    }
    if left > 0 {
        change.metadata.insert(CONFLICTS_KEY.to_owned(), left.to_string());
    }
    change
}

fn unable(placed: &PlacedConflict, why: NotResolved) -> Error {
    match why {
        NotResolved::Store(error) => error.into(),
        why => Error::new(Reason::Invalid, format!("{}: {why}", placed.path)),
    }
}

pub(crate) fn nothing(paths: &[TreePath]) -> Error {
    let message = match paths.first() {
        Some(path) => format!("there is no conflict at {path}"),
        None => "there is no conflict".to_owned(),
    };
    Error::new(Reason::NotFound, message)
}
