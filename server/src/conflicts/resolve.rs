//! Resolving: in a workspace's head, and in its directory if it has one.

use std::collections::BTreeSet;

use amalgam_conflicts::{Choice, NotResolved, chosen, file_of, without_draft};
use amalgam_engine::conflict::{CONFLICTS_KEY, Exchange, NewResolution, PlacedConflict, replay};
use amalgam_engine::merge::{DECIDED_KEY, Decision, Matter, OpenMatter};
use amalgam_engine::workspace::{Change, WorkspaceName};
use amalgam_engine::{Act, Entry, ObjectKind, Pin, RootId, SnapshotId, TreePath, WorkingTree};
use amalgam_materializer::{Progress, Times};
use amalgam_proto::{Failure, Reason, v1};

use super::list::{is_wanted, tree_paths};
use super::undecided::decision;
use crate::api::Caller;
use crate::directory::{Saying, Target, notice};
use crate::failure::{Result, of_engine};
use crate::service::{Marks, Service};

/// What the log calls it.
const RESOLVE: &str = "resolve";

/// A tree in which conflicts are resolved.
struct Plan {
    tree: WorkingTree,
    root: RootId,
    /// No name points at it.
    _pin: Pin,
    done: Vec<(PlacedConflict, Option<Entry>)>,
    /// What no entry of the tree was, and which way it is decided; and how the wire says it.
    decided: Vec<(OpenMatter, Decision)>,
    told: Vec<v1::Conflict>,
    /// The paths that differ afterwards.
    touched: Vec<TreePath>,
    left: u64,
}

impl Plan {
    fn is_empty(&self) -> bool {
        self.done.is_empty() && self.decided.is_empty()
    }
}

impl Service {
    /// Resolves conflicts of a workspace.
    pub(crate) fn resolve_conflicts(
        &self,
        request: &v1::ResolveConflictsRequest,
        act: &Act,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let workspace = crate::call_log::workspace_id(&request.workspace).map_err(of_engine)?;
        if request.resolution.is_none() {
            return Err(Failure::new(
                Reason::Invalid,
                "choose how to resolve: a version, contents, or a remembered resolution",
            ));
        }
        if let Some(first) = self.resolved_before(&workspace, act)? {
            return Ok(first);
        }
        let record = self.inner.registry.all().into_iter().find(|record| record.workspace == workspace.as_str());
        match record {
            Some(record) => self.resolve_in_directory(&amalgam_proto::directory_name(&record.id), request, act, caller),
            None => self.resolve_in_head(&workspace, request, act, caller),
        }
    }

    /// What the same request came to before: the snapshot it made. Which conflicts it resolved is not told again.
    fn resolved_before(&self, workspace: &WorkspaceName, act: &Act) -> Result<Option<v1::ResolveConflictsResponse>> {
        let Some(first) = self.done_before(act)? else { return Ok(None) };
        let moved = first.changes.iter().find(|change| change.name == workspace.reference());
        let target = moved.and_then(|change| change.after.as_ref()?.target);
        let Some(target) = target.filter(|target| target.kind == ObjectKind::Snapshot) else { return Ok(None) };
        let snapshot = self.snapshot_message(SnapshotId::from_bytes(target.hash), &Marks::default())?;
        let left = snapshot.conflicts;
        Ok(Some(v1::ResolveConflictsResponse { snapshot: Some(snapshot), left, ..Default::default() }))
    }

    fn resolve_in_head(
        &self,
        workspace: &WorkspaceName,
        request: &v1::ResolveConflictsRequest,
        act: &Act,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let head = self.head(workspace)?;
        let Some(root) = self.head_root(head)? else { return Err(nothing(&[])) };
        let mut plan = caller.walking(|| self.plan_resolving(head, root, request, act))?;
        let mut response = self.response(&plan)?;
        if request.dry_run || plan.is_empty() {
            return Ok(response);
        }
        plan.tree.rebase(head);
        let mut change = change_of(&plan, entries_left(&plan, root, self)?);
        change.resolutions = self.new_resolutions(&plan, request)?;
        let done = self.inner.workspaces.commit_as(workspace, &mut plan.tree, &change, act, RESOLVE);
        let done = done.map_err(of_engine)?;
        response.snapshot = Some(self.snapshot_message(done.snapshot, &Marks::default())?);
        Ok(response)
    }

    fn resolve_in_directory(
        &self,
        name: &str,
        request: &v1::ResolveConflictsRequest,
        act: &Act,
        caller: &Caller,
    ) -> Result<v1::ResolveConflictsResponse> {
        let progress = Progress::default();
        let mut grasp = self.grasp(name)?;
        if request.dry_run {
            let head = self.head(&grasp.workspace)?;
            let captured = self.look_as(&mut grasp, &progress, true)?;
            let plan = caller.walking(|| self.plan_resolving(head, captured.root, request, act))?;
            return self.response(&plan);
        }
        let safety = self.secure_before(&mut grasp, "resolve", act)?;
        let head = self.head(&grasp.workspace)?;
        let Some(root) = self.head_root(head)? else { return Err(nothing(&[])) };
        let plan = caller.walking(|| self.plan_resolving(head, root, request, act))?;
        let mut response = self.response(&plan)?;
        if !plan.is_empty() {
            let target = Target { root: plan.root, paths: Some(&plan.touched), with_git: true, set_id: false };
            let times = Times::OfBytes(act.time);
            let (brought, mut captured) = self.bring_to(&mut grasp, &target, times, &progress)?;
            // State values are in no directory.
            for (matter, decision) in &plan.decided {
                if matches!(matter.undecided.matter, Matter::State { .. }) {
                    matter.undecided.decide(&mut captured.tree, *decision).map_err(of_engine)?;
                }
            }
            let mut saying = Saying { action: RESOLVE, change: change_of(&plan, 0) };
            saying.change.resolutions = self.new_resolutions(&plan, request)?;
            let (snapshot, _) = self.commit_captured(&mut grasp, &mut captured, &saying, act)?;
            response.snapshot = Some(self.snapshot_message(snapshot, &Marks::default())?);
            response.notices = brought.notices.iter().map(notice).collect();
        }
        grasp.save(self);
        response.safety = safety.map(|safety| self.snapshot_message(safety, &Marks::default())).transpose()?;
        Ok(response)
    }

    fn plan_resolving(
        &self,
        head: Option<SnapshotId>,
        root: RootId,
        request: &v1::ResolveConflictsRequest,
        act: &Act,
    ) -> Result<Plan> {
        use v1::resolve_conflicts_request::Resolution;
        let store = &self.inner.store;
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
            return Err(Failure::new(Reason::Invalid, "this conflict is not about contents; choose ours or theirs"));
        }
        if matches!(request.resolution, Some(Resolution::Content(_))) && wanted.len() != 1 {
            return Err(Failure::new(Reason::Invalid, "contents resolve one conflict only; name its path"));
        }
        let mut exchange = Exchange::new(store, root, &[]).map_err(of_engine)?;
        let mut done = Vec::new();
        for placed in wanted {
            let entry = match request.resolution.as_ref().expect("it was asked for") {
                Resolution::Content(bytes) => {
                    Some(file_of(exchange.session(), &placed.conflict, bytes, act.time).map_err(of_engine)?)
                }
                Resolution::Remembered(_) => {
                    let whole = without_draft(store, &placed.conflict).map_err(of_engine)?;
                    match replay(store, &whole).map_err(of_engine)? {
                        Some(entry) => entry,
                        None => continue,
                    }
                }
                Resolution::Version(word) => {
                    let choice = self.choice(placed, word)?;
                    let session = exchange.session();
                    chosen(store, session, &placed.conflict, choice, act.time).map_err(|why| unable(placed, why))?
                }
            };
            exchange.set(&placed.path, entry.as_ref()).map_err(of_engine)?;
            done.push((placed.clone(), entry));
        }
        let decided = decisions(undecided, &done, request.resolution.as_ref())?;
        let told = decided.iter().map(|(matter, _)| self.matter_message(matter, root)).collect::<Result<_>>()?;
        // A file is one conflict, whatever is undecided about it.
        let is_done = |path: &TreePath| done.iter().any(|(done, _)| done.path == *path);
        let open = matters.iter().filter(|matter| !decided.iter().any(|(decided, _)| decided.id() == matter.id()));
        let left = placed.iter().map(|placed| &placed.path).filter(|path| !is_done(path));
        let left = left.chain(open.map(|matter| &matter.undecided.path)).collect::<BTreeSet<_>>().len() as u64;
        let (mut tree, mut root) = exchange.finish().map_err(of_engine)?;
        let mut touched: Vec<_> = done.iter().map(|(placed, _)| placed.path.clone()).collect();
        for (matter, decision) in &decided {
            touched.extend(matter.undecided.decide(&mut tree, *decision).map_err(of_engine)?);
        }
        if !decided.is_empty() {
            let session = store.session();
            root = tree.freeze().write(&session).map_err(of_engine)?;
            session.write_all_ahead().map_err(of_engine)?;
        }
        let pin = store.hold(root).map_err(of_engine)?;
        Ok(Plan { tree, root, _pin: pin, done, decided, told, touched, left })
    }

    fn choice(&self, placed: &PlacedConflict, word: &str) -> Result<Choice> {
        match word {
            "union" => Ok(Choice::Union),
            word => self.term_named(placed, word).map(Choice::Term),
        }
    }

    fn response(&self, plan: &Plan) -> Result<v1::ResolveConflictsResponse> {
        let resolved = plan.done.iter().map(|(placed, _)| self.conflict_message(placed));
        let resolved = resolved.chain(plan.told.iter().cloned().map(Ok)).collect::<Result<_>>()?;
        Ok(v1::ResolveConflictsResponse { resolved, left: plan.left, ..Default::default() })
    }

    /// What is to be remembered of a plan, in the operation that carries it out.
    fn new_resolutions(&self, plan: &Plan, request: &v1::ResolveConflictsRequest) -> Result<Vec<NewResolution>> {
        let store = &self.inner.store;
        let mut new = Vec::new();
        for (placed, entry) in plan.done.iter().filter(|_| !request.forget) {
            let whole = without_draft(store, &placed.conflict).map_err(of_engine)?;
            let found = NewResolution::new(store, &whole, &placed.path, entry.as_ref(), plan.root);
            new.extend(found.map_err(of_engine)?);
        }
        Ok(new)
    }
}

/// What is decided of what no entry of the tree is. Where other conflicts are resolved along with it by a version that it has not,
/// it stays.
fn decisions(
    undecided: Vec<OpenMatter>,
    done: &[(PlacedConflict, Option<Entry>)],
    resolution: Option<&v1::resolve_conflicts_request::Resolution>,
) -> Result<Vec<(OpenMatter, Decision)>> {
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

fn change_of(plan: &Plan, left: u64) -> Change {
    let paths = plan.done.iter().map(|(placed, _)| &placed.path);
    let paths: Vec<_> = paths.chain(plan.decided.iter().map(|(matter, _)| &matter.undecided.path)).cloned().collect();
    let mut change = Change::new(format!("resolve {}", crate::directory::words_of(&paths)));
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

/// How many entries of the tree are conflicts afterwards: what the log counts.
fn entries_left(plan: &Plan, root: RootId, service: &Service) -> Result<u64> {
    Ok((service.conflicts_of(root, None)?.len() - plan.done.len()) as u64)
}

fn unable(placed: &PlacedConflict, why: NotResolved) -> Failure {
    match why {
        NotResolved::Store(error) => of_engine(error),
        why => Failure::new(Reason::Invalid, format!("{}: {why}", placed.path)),
    }
}

fn nothing(paths: &[TreePath]) -> Failure {
    let message = match paths.first() {
        Some(path) => format!("there is no conflict at {path}"),
        None => "there is no conflict".to_owned(),
    };
    Failure::new(Reason::NotFound, message)
}
