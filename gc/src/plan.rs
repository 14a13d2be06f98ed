//! Retention plan: for every snapshot of a store, whether its tree is kept, and why. Reads records only; changes nothing.

use std::collections::{HashMap, HashSet};

use amalgam_engine::history::{LogEntry, LogOrder};
use amalgam_engine::lean::{CacheFinder, forget_lean, lean_tree, make_lean};
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{FORGET, RefValue};
use amalgam_engine::{History, LivedTime, ObjectKind, OperationContext, Result, SnapshotId, Store, SweepScope, Time};

use crate::mark::Retention;
use crate::retention::{
    AUTOMATIC_KEY, EvaluatorState, Policies, Policy, PolicyEvaluator, RulePart, SnapshotAge, Span, Verdict,
};

const PAGE: usize = 256;

/// The decision of a plan about a snapshot's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlannedAction {
    /// Drops it.
    Thin,
    /// Keeps it, because a reference or an undoable operation names the snapshot.
    KeepNamed(String),
    /// Keeps it because of a retention rule.
    KeepByRule {
        /// The rule, as text.
        why: String,
        /// The time at which the rule ends; `None` if it has no end.
        until: Option<Time>,
    },
}

/// A snapshot of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedSnapshot {
    /// The snapshot.
    pub id: SnapshotId,
    /// Its time.
    pub time: Time,
    /// Its message.
    pub message: String,
    /// Whether it was taken automatically.
    pub automatic: bool,
    /// The first workspace, deleted ones last, whose history contains it; `None` if only other names, such as labels, reach it.
    pub workspace: Option<String>,
    /// The decision about its tree.
    pub action: PlannedAction,
    /// Whether caches are dropped from the kept tree: of a workspace's automatic snapshots only the newest keeps them.
    pub without_caches: bool,
}

/// Which trees retention drops and keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Every snapshot, newest first within its workspace.
    pub snapshots: Vec<PlannedSnapshot>,
    /// The snapshots that lose their full tree: those of [`thinned`](Self::thinned), and those that got a lean tree instead.
    without_full_tree: HashSet<SnapshotId>,
}

impl Plan {
    /// Returns the snapshots whose trees the policy drops; not those that got a lean tree instead.
    pub fn thinned(&self) -> impl Iterator<Item = &PlannedSnapshot> {
        self.snapshots.iter().filter(|planned| planned.action == PlannedAction::Thin)
    }

    /// Replaces the tree of each snapshot that loses its caches by a lean tree, and drops the lean trees of thinned snapshots.
    /// Returns how many lean trees are new. `should_continue` is called before each snapshot; after `false` the remaining
    /// snapshots keep their trees.
    ///
    /// A full tree is dropped only after its lean tree was made from it, or compared with it, in this call.
    pub fn make_lean(
        &mut self,
        store: &Store,
        act: &OperationContext,
        should_continue: &mut dyn FnMut() -> bool,
    ) -> Result<u64> {
        forget_lean(store, self.thinned().map(|planned| planned.id), act)?;
        let (mut finder, mut made) = (CacheFinder::default(), 0);
        for planned in self.snapshots.iter().filter(|planned| planned.without_caches) {
            if !should_continue() {
                break;
            }
            let lean = lean_tree(store, planned.id)?;
            let root = store.snapshot(planned.id)?.root;
            // A snapshot that was thinned before has no full tree to compare its lean tree with.
            let Ok(_held) = store.hold(root) else {
                if lean.is_some() {
                    self.without_full_tree.insert(planned.id);
                }
                continue;
            };
            let caches = finder.find(store, root)?.unwrap_or_default();
            if caches.is_empty() {
                // The tree has no caches, so a lean tree under this name is wrong.
                forget_lean(store, lean.is_some().then_some(planned.id), act)?;
                continue;
            }
            let is_new = lean.map(|lean| lean.root) != Some(make_lean(store, planned.id, &caches, act)?.root);
            made += u64::from(is_new);
            self.without_full_tree.insert(planned.id);
        }
        Ok(made)
    }
}

/// Drops only trees that the plan lists: a snapshot made after the plan keeps its tree.
impl Retention for Plan {
    fn keeps_tree(&self, id: SnapshotId, _snapshot: &Snapshot) -> bool {
        !self.without_full_tree.contains(&id)
    }
}

/// Returns the number of the newest operation that is older than `time` together with all operations before it; if there is none,
/// the number before the first operation of the log. Clocks may run backwards, so the search goes back page by page until a page
/// has no young operation. Ages are counted in lived time.
pub fn last_operation_before(store: &Store, time: Time, lived: &LivedTime) -> Result<u64> {
    let last = store.last_operation()?;
    let none = store.first_operation()? - 1;
    let is_young = |sequence: u64| {
        let found = store.list_operations(sequence - 1, 1)?;
        Ok::<_, amalgam_engine::Error>(found.first().is_none_or(|operation| lived.place(operation.draft.time) >= time))
    };
    // Binary search for the boundary, which is exact if no clock ran backwards.
    let (mut old, mut young) = (none, last + 1);
    while young - old > 1 {
        let middle = old + (young - old) / 2;
        if is_young(middle)? { young = middle } else { old = middle }
    }
    let (mut end, mut oldest_young) = (young - 1, young);
    while end > none {
        let start = end.saturating_sub(PAGE as u64).max(none);
        let page = store.list_operations(start, usize::try_from(end - start).unwrap_or(PAGE))?;
        match page.iter().find(|operation| lived.place(operation.draft.time) >= time) {
            Some(young) => oldest_young = young.sequence,
            None => break,
        }
        end = start;
    }
    Ok(oldest_young - 1)
}

/// Plans retention for a store: evaluates the policies at time `at`, with ages in lived time, and keeps everything that
/// `scope` marks from.
pub fn plan(history: &History, policies: &Policies, scope: &SweepScope, at: Time, lived: &LivedTime) -> Result<Plan> {
    let mut planner = Planner::new(history, at, lived);
    let NamedHeads { workspaces, deleted, others } = planner.read_names(scope)?;
    for (workspace, head) in workspaces.iter().chain(&deleted) {
        planner.judge_history(Some(workspace), &[*head], policies)?;
    }
    planner.judge_history(None, &others, policies)?;
    Ok(planner.finish())
}

struct Planner<'a> {
    history: &'a History,
    at: Time,
    lived: &'a LivedTime,
    named: HashMap<SnapshotId, String>,
    found: HashMap<SnapshotId, (PlannedSnapshot, Verdict, Policy)>,
    order: Vec<SnapshotId>,
    /// The newest automatic snapshot of each history.
    newest: HashSet<SnapshotId>,
    /// Snapshots from which the default policy has evaluated a history to its end, with the evaluator's state there and
    /// whether the newest automatic snapshot had been seen. An equal state gives equal verdicts.
    walked: HashMap<SnapshotId, (EvaluatorState, bool)>,
    /// Number of evaluated snapshots.
    judged: u64,
}

/// The named snapshots of a store.
#[derive(Default)]
struct NamedHeads {
    /// The name and the head of each workspace.
    workspaces: Vec<(String, SnapshotId)>,
    /// The name and the head of each deleted workspace. Its history is kept by the policy of the workspace, so that an undelete
    /// brings back what the workspace had.
    deleted: Vec<(String, SnapshotId)>,
    /// The snapshots of all other names.
    others: Vec<SnapshotId>,
}

impl<'a> Planner<'a> {
    fn new(history: &'a History, at: Time, lived: &'a LivedTime) -> Self {
        Self {
            history,
            at,
            lived,
            named: HashMap::new(),
            found: HashMap::new(),
            order: Vec::new(),
            newest: HashSet::new(),
            walked: HashMap::new(),
            judged: 0,
        }
    }

    fn read_names(&mut self, scope: &SweepScope) -> Result<NamedHeads> {
        let store = self.history.store();
        let (mut heads, mut after) = (NamedHeads::default(), None);
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, value) in page.iter().filter(|(name, _)| !scope.without.contains(name)) {
                let (kind, rest) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
                let head = value.target.filter(|target| target.kind == ObjectKind::Snapshot);
                let head = head.map(|target| SnapshotId::from_bytes(target.hash));
                match head {
                    Some(head) if kind == "workspace" => heads.workspaces.push((rest.to_owned(), head)),
                    Some(head) if kind == "deleted" => heads.deleted.push((deleted_name(rest).to_owned(), head)),
                    other => heads.others.extend(other),
                }
                self.name(value, |is_target| match kind {
                    "workspace" if is_target => format!("head of {rest}"),
                    "workspace" => format!("where {rest} began"),
                    "label" => format!("label {rest}"),
                    "step" => "step of an episode".to_owned(),
                    "deleted" => format!("deleted workspace {}", deleted_name(rest)),
                    _ => format!("reference {name}"),
                });
            }
        }
        let mut after = scope.undoable_after.map_or_else(|| store.last_operation(), Ok)?;
        loop {
            let page = store.list_operations(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.sequence;
            for operation in page.iter().filter(|operation| operation.draft.action != FORGET) {
                let changes = operation.changes.iter().filter(|change| !scope.without.contains(&change.name));
                for value in changes.flat_map(|change| [&change.before, &change.after]).flatten() {
                    self.name(value, |_| format!("operation {} can be undone", operation.sequence));
                }
            }
        }
        heads.others.sort_unstable();
        heads.others.dedup();
        heads.others.retain(|id| store.snapshot(*id).is_ok());
        heads.deleted.retain(|(_, id)| store.snapshot(*id).is_ok());
        Ok(heads)
    }

    /// Records why the snapshots of a reference are kept. `words` gets whether the snapshot is the target of the reference.
    fn name(&mut self, value: &RefValue, words: impl Fn(bool) -> String) {
        let of_target = value.target.iter().map(|id| (id, true));
        for (id, is_target) in of_target.chain(value.keeps.iter().map(|id| (id, false))) {
            if id.kind == ObjectKind::Snapshot {
                self.named.entry(SnapshotId::from_bytes(id.hash)).or_insert_with(|| words(is_target));
            }
        }
    }

    /// Evaluates the history of these heads, newest first. A snapshot of several histories is kept if one of them keeps it.
    ///
    /// Stops at a snapshot from which an earlier history was evaluated with an equal state, so a fork costs only its own
    /// snapshots.
    fn judge_history(&mut self, workspace: Option<&str>, heads: &[SnapshotId], policies: &Policies) -> Result<()> {
        let lived = self.lived;
        let own = workspace.and_then(|workspace| policies.workspaces.get(workspace));
        let policy = own.unwrap_or(&policies.default);
        let is_remembered = workspace.is_some() && own.is_none();
        if let ([head], true) = (heads, is_remembered)
            && self.walked.get(head) == Some(&(EvaluatorState::default(), false))
        {
            return Ok(());
        }
        let mut evaluator = PolicyEvaluator::new(policy, self.at);
        for head in heads {
            self.history.store().snapshot(*head)?;
        }
        let mut log = self.history.log(heads, LogOrder::Time)?;
        let mut has_newest = false;
        loop {
            if let (Some(LogEntry { id: only, snapshot }), true) = (log.only_open(), is_remembered) {
                let state = evaluator.state_at(snapshot.time);
                match self.walked.get(&only) {
                    Some((before, had_newest)) if *before == state && (has_newest || !had_newest) => return Ok(()),
                    _ => self.walked.insert(only, (state, has_newest)),
                };
            }
            let Some(LogEntry { id, snapshot }) = log.next().transpose()? else { return Ok(()) };
            self.judged += 1;
            let automatic = snapshot.metadata.get(AUTOMATIC_KEY).is_some_and(|value| value == "true");
            let aged = SnapshotAge { time: snapshot.time, placed: lived.place(snapshot.time), automatic };
            if automatic && !has_newest {
                has_newest = true;
                self.newest.insert(id);
            }
            self.record(workspace, id, &snapshot, automatic, evaluator.evaluate(&aged), policy);
        }
    }

    fn record(
        &mut self,
        workspace: Option<&str>,
        id: SnapshotId,
        snapshot: &Snapshot,
        automatic: bool,
        verdict: Verdict,
        policy: &Policy,
    ) {
        match self.found.get_mut(&id) {
            // Workspaces come first: a history that only a label reaches ends where theirs begin.
            Some(_) if workspace.is_none() => {}
            Some((_, known, by)) => {
                let both = known.or(verdict);
                if both != *known {
                    (*known, *by) = (both, *policy);
                }
            }
            None => {
                let planned = PlannedSnapshot {
                    id,
                    time: snapshot.time,
                    message: snapshot.message.clone(),
                    automatic,
                    workspace: workspace.map(str::to_owned),
                    action: PlannedAction::Thin,
                    without_caches: false,
                };
                self.order.push(id);
                self.found.insert(id, (planned, verdict, *policy));
            }
        }
    }

    fn finish(mut self) -> Plan {
        let mut plan = Plan::default();
        for id in &self.order {
            let Some((mut planned, verdict, policy)) = self.found.remove(id) else { continue };
            planned.action = match (self.named.get(id), verdict) {
                (Some(name), _) => PlannedAction::KeepNamed(name.clone()),
                (None, Verdict::Drop) => PlannedAction::Thin,
                (None, Verdict::Keep { part, until }) => {
                    PlannedAction::KeepByRule { why: reason(part, &policy, planned.automatic), until }
                }
            };
            if planned.action == PlannedAction::Thin {
                plan.without_full_tree.insert(*id);
            }
            let stays_by_rule = matches!(planned.action, PlannedAction::KeepByRule { .. });
            planned.without_caches = stays_by_rule && planned.automatic && !self.newest.contains(id);
            plan.snapshots.push(planned);
        }
        plan
    }
}

/// Returns the workspace name in the reference of a deleted workspace, which ends with `@` and a number.
fn deleted_name(rest: &str) -> &str {
    rest.rsplit_once('@').map_or(rest, |(name, _)| name)
}

fn reason(part: RulePart, policy: &Policy, automatic: bool) -> String {
    let rule = if automatic { &policy.automatic } else { &policy.people };
    match part {
        RulePart::Last => format!("one of the last {}", rule.last),
        RulePart::All if !automatic && rule.all == Span::Forever => "taken by a person".to_owned(),
        RulePart::All => format!("younger than {}", rule.all),
        RulePart::Hourly => "the newest of its hour".to_owned(),
        RulePart::Daily => "the newest of its day".to_owned(),
        RulePart::Weekly => "the newest of its week".to_owned(),
    }
}

#[cfg(test)]
mod tests;
