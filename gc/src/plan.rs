//! A plan: every snapshot of a store, whether its tree stays, and why. Reads records only, and changes nothing.

mod line;

use std::collections::{HashMap, HashSet};

use amalgam_engine::lean::{CacheFinder, forget_lean, lean_tree, make_lean};
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{FORGET, RefValue};
use amalgam_engine::{History, LivedTime, ObjectKind, OperationContext, Result, SnapshotId, Store, SweepScope, Time};

use crate::mark::Retention;
use crate::retention::{AUTOMATIC, Aged, Judge, Part, Passed, Policies, Policy, Span, Verdict};
use line::Line;

const PAGE: usize = 256;

/// What is to become of a snapshot's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes.
    Goes,
    /// It stays, because something names it.
    Named(String),
    /// It stays, by a rule.
    Stays {
        /// In words.
        why: String,
        /// Until when; nothing if no time ends it.
        until: Option<Time>,
    },
}

/// A snapshot of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its id.
    pub id: SnapshotId,
    /// When it was made.
    pub time: Time,
    /// What it says.
    pub message: String,
    /// Whether it was taken automatically.
    pub automatic: bool,
    /// The workspace in whose history it was found first; nothing for those that only labels and the like lead to.
    pub workspace: Option<String>,
    /// What is to become of its tree.
    pub fate: Fate,
    /// Whether the caches in it go although the rest of its tree stays: of automatic ones only the newest of a workspace keeps them.
    pub without_caches: bool,
}

/// What retention would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Every snapshot, newest first within its workspace.
    pub snapshots: Vec<Planned>,
    thinned: HashSet<SnapshotId>,
}

impl Plan {
    /// Those whose trees go.
    pub fn goers(&self) -> impl Iterator<Item = &Planned> {
        self.snapshots.iter().filter(|planned| planned.fate == Fate::Goes)
    }

    /// Makes a lean tree of each that is to stay without its caches and has some, lets the whole trees of those go, and forgets the lean
    /// ones of those that go altogether. How many have become lean. `go_on` is asked
    /// before each snapshot; after a no the others stay whole.
    ///
    /// A whole tree goes only after the lean one was made from it, or compared with it, here: a name alone proves nothing.
    pub fn make_lean(&mut self, store: &Store, act: &OperationContext, go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
        forget_lean(store, self.goers().map(|planned| planned.id), act)?;
        let (mut finder, mut made) = (CacheFinder::default(), 0);
        for planned in self.snapshots.iter().filter(|planned| planned.without_caches) {
            if !go_on() {
                break;
            }
            let lean = lean_tree(store, planned.id)?;
            let root = store.snapshot(planned.id)?.root;
            // One that was thinned before has nothing to look through, and its lean tree nothing to be compared with.
            let Ok(_held) = store.hold(root) else {
                if lean.is_some() {
                    self.thinned.insert(planned.id);
                }
                continue;
            };
            let caches = finder.find(store, root)?.unwrap_or_default();
            if caches.is_empty() {
                // Whatever says to be its lean tree is another's.
                forget_lean(store, lean.is_some().then_some(planned.id), act)?;
                continue;
            }
            let is_new = lean.map(|lean| lean.root) != Some(make_lean(store, planned.id, &caches, act)?.root);
            made += u64::from(is_new);
            self.thinned.insert(planned.id);
        }
        Ok(made)
    }
}

/// Only what the plan lets go, goes: a snapshot that came since is none of it.
impl Retention for Plan {
    fn keeps_tree(&self, id: SnapshotId, _snapshot: &Snapshot) -> bool {
        !self.thinned.contains(&id)
    }
}

/// The number after which operations are younger than a time. Clocks may run backwards: the oldest young one counts, found by reading
/// back from where the young ones begin until a page has none. Operations are as old as the time that the store lived through since.
pub fn operations_before(store: &Store, time: Time, lived: &LivedTime) -> Result<u64> {
    let last = store.last_operation()?;
    let none = store.first_operation()? - 1;
    let is_young = |sequence: u64| {
        let found = store.list_operations(sequence - 1, 1)?;
        Ok::<_, amalgam_engine::Error>(found.first().is_none_or(|operation| lived.place(operation.draft.time) >= time))
    };
    // Where clocks went evenly, the young ones are those behind one place; found by halving.
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

/// Plans what retention does to a store: rules are evaluated at this time, by the time that the store lived through, and what the scope
/// marks from is kept.
pub fn plan(history: &History, policies: &Policies, scope: &SweepScope, at: Time, lived: &LivedTime) -> Result<Plan> {
    let mut planner = Planner {
        store: history.store(),
        at,
        lived,
        named: HashMap::new(),
        found: HashMap::new(),
        order: Vec::new(),
        newest: HashSet::new(),
        walked: HashMap::new(),
        judged: 0,
    };
    let (workspaces, others) = planner.read_names(scope)?;
    for (workspace, head) in &workspaces {
        planner.judge_line(Some(workspace), &[*head], policies)?;
    }
    planner.judge_line(None, &others, policies)?;
    Ok(planner.finish())
}

struct Planner<'a> {
    store: &'a Store,
    at: Time,
    lived: &'a LivedTime,
    named: HashMap<SnapshotId, String>,
    found: HashMap<SnapshotId, (Planned, Verdict, Policy)>,
    order: Vec<SnapshotId>,
    /// The newest automatic one of each history.
    newest: HashSet<SnapshotId>,
    /// From where the default policy judged a line to its end, and what its judge had passed then: what follows is judged already.
    /// With it, whether the newest automatic one had been met.
    walked: HashMap<SnapshotId, (Passed, bool)>,
    /// How often a snapshot was judged.
    judged: u64,
}

/// The head of each workspace by its name, and whatever else is named.
type Lines = (Vec<(String, SnapshotId)>, Vec<SnapshotId>);

impl Planner<'_> {
    fn read_names(&mut self, scope: &SweepScope) -> Result<Lines> {
        let store = self.store;
        let (mut workspaces, mut others, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, value) in page.iter().filter(|(name, _)| !scope.without.contains(name)) {
                let (kind, rest) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
                let head = value.target.filter(|target| target.kind == ObjectKind::Snapshot);
                let head = head.map(|target| SnapshotId::from_bytes(target.hash));
                match head {
                    Some(head) if kind == "workspace" => workspaces.push((rest.to_owned(), head)),
                    other => others.extend(other),
                }
                self.name(value, |is_target| match kind {
                    "workspace" if is_target => format!("head of {rest}"),
                    "workspace" => format!("where {rest} began"),
                    "label" => format!("label {rest}"),
                    "step" => "step of an episode".to_owned(),
                    "deleted" => {
                        format!("deleted workspace {}", rest.rsplit_once('@').map_or(rest, |(name, _)| name))
                    }
                    _ => format!("reference {name}"),
                });
            }
        }
        let mut after = scope.operations_after.map_or_else(|| store.last_operation(), Ok)?;
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
        others.sort_unstable();
        others.dedup();
        others.retain(|id| store.snapshot(*id).is_ok());
        Ok((workspaces, others))
    }

    /// Remembers why what a reference holds stays. `words` is asked for its target, or for what it keeps beside.
    fn name(&mut self, value: &RefValue, words: impl Fn(bool) -> String) {
        let of_target = value.target.iter().map(|id| (id, true));
        for (id, is_target) in of_target.chain(value.keeps.iter().map(|id| (id, false))) {
            if id.kind == ObjectKind::Snapshot {
                self.named.entry(SnapshotId::from_bytes(id.hash)).or_insert_with(|| words(is_target));
            }
        }
    }

    /// Judges the history of these heads, newest first. A snapshot of several histories stays if it stays in one of them.
    ///
    /// Where nothing else is open, and an earlier line was judged from there on by the same policy and with the same past, the rest is
    /// judged already: so forks cost what is their own.
    fn judge_line(&mut self, workspace: Option<&str>, heads: &[SnapshotId], policies: &Policies) -> Result<()> {
        let (store, lived) = (self.store, self.lived);
        let own = workspace.and_then(|workspace| policies.workspaces.get(workspace));
        let policy = own.unwrap_or(&policies.default);
        let is_remembered = workspace.is_some() && own.is_none();
        if let ([head], true) = (heads, is_remembered)
            && self.walked.get(head) == Some(&(Passed::default(), false))
        {
            return Ok(());
        }
        let mut judge = Judge::new(policy, self.at);
        let mut line = Line::from(store, heads)?;
        let mut has_newest = false;
        loop {
            if let (Some((only, time)), true) = (line.only(), is_remembered) {
                let passed = judge.passed(time);
                match self.walked.get(&only) {
                    Some((before, had_newest)) if *before == passed && (has_newest || !had_newest) => return Ok(()),
                    _ => self.walked.insert(only, (passed, has_newest)),
                };
            }
            let Some((id, snapshot)) = line.next(store)? else { return Ok(()) };
            self.judged += 1;
            let automatic = snapshot.metadata.get(AUTOMATIC).is_some_and(|value| value == "true");
            let aged = Aged { time: snapshot.time, placed: lived.place(snapshot.time), automatic };
            if automatic && !has_newest {
                has_newest = true;
                self.newest.insert(id);
            }
            self.note(workspace, id, &snapshot, automatic, judge.judge(&aged), policy);
        }
    }

    fn note(
        &mut self,
        workspace: Option<&str>,
        id: SnapshotId,
        snapshot: &Snapshot,
        automatic: bool,
        verdict: Verdict,
        policy: &Policy,
    ) {
        match self.found.get_mut(&id) {
            // Workspaces come first: a history that only a label leads to ends where theirs begin.
            Some(_) if workspace.is_none() => {}
            Some((_, known, by)) => {
                let both = known.or(verdict);
                if both != *known {
                    (*known, *by) = (both, *policy);
                }
            }
            None => {
                let planned = Planned {
                    id,
                    time: snapshot.time,
                    message: snapshot.message.clone(),
                    automatic,
                    workspace: workspace.map(str::to_owned),
                    fate: Fate::Goes,
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
            planned.fate = match (self.named.get(id), verdict) {
                (Some(name), _) => Fate::Named(name.clone()),
                (None, Verdict::Goes) => Fate::Goes,
                (None, Verdict::Stays { part, until }) => {
                    Fate::Stays { why: words(part, &policy, planned.automatic), until }
                }
            };
            if planned.fate == Fate::Goes {
                plan.thinned.insert(*id);
            }
            let stays_by_rule = matches!(planned.fate, Fate::Stays { .. });
            planned.without_caches = stays_by_rule && planned.automatic && !self.newest.contains(id);
            plan.snapshots.push(planned);
        }
        plan
    }
}

fn words(part: Part, policy: &Policy, automatic: bool) -> String {
    let rule = if automatic { &policy.automatic } else { &policy.people };
    match part {
        Part::Last => format!("one of the last {}", rule.last),
        Part::All if !automatic && rule.all == Span::Forever => "taken by a person".to_owned(),
        Part::All => format!("younger than {}", rule.all),
        Part::Hourly => "the newest of its hour".to_owned(),
        Part::Daily => "the newest of its day".to_owned(),
        Part::Weekly => "the newest of its week".to_owned(),
    }
}

#[cfg(test)]
mod tests;
