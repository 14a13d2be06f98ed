//! A plan: every snapshot of a store, whether its tree stays, and why. Reads records only, and changes nothing.

use std::collections::{HashMap, HashSet};

use amalgam_engine::history::LogOrder;
use amalgam_engine::lean::{CacheFinder, forget_lean, lean_tree, make_lean};
use amalgam_engine::object::Snapshot;
use amalgam_engine::reference::{FORGET, RefValue};
use amalgam_engine::{Act, History, ObjectKind, Result, SnapshotId, Store, SweepScope, Time};

use crate::mark::Retention;
use crate::retention::{AUTOMATIC, Aged, Part, Policies, Policy, Span, Verdict, judge};

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
    pub fn make_lean(&mut self, store: &Store, act: &Act, go_on: &mut dyn FnMut() -> bool) -> Result<u64> {
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
/// back until a page has none.
pub fn operations_before(store: &Store, time: Time) -> Result<u64> {
    let last = store.last_operation()?;
    let (mut end, mut oldest_young) = (last, last + 1);
    let none = store.first_operation()? - 1;
    while end > none {
        let start = end.saturating_sub(PAGE as u64).max(none);
        let page = store.list_operations(start, usize::try_from(end - start).unwrap_or(PAGE))?;
        match page.iter().find(|operation| operation.draft.time >= time) {
            Some(young) => oldest_young = young.sequence,
            None => break,
        }
        end = start;
    }
    Ok(oldest_young - 1)
}

/// Plans what retention does to a store: rules are evaluated at this time, and what the scope marks from is kept.
pub fn plan(history: &History, policies: &Policies, scope: &SweepScope, at: Time) -> Result<Plan> {
    let mut planner = Planner {
        history,
        at,
        named: HashMap::new(),
        found: HashMap::new(),
        order: Vec::new(),
        newest: HashSet::new(),
    };
    let (workspaces, others) = planner.read_names(scope)?;
    for (workspace, head) in &workspaces {
        planner.judge_line(Some(workspace), &[*head], policies.of(workspace))?;
    }
    planner.judge_line(None, &others, &policies.default)?;
    Ok(planner.finish())
}

struct Planner<'a> {
    history: &'a History,
    at: Time,
    named: HashMap<SnapshotId, String>,
    found: HashMap<SnapshotId, (Planned, Verdict, Policy)>,
    order: Vec<SnapshotId>,
    /// The newest automatic one of each history.
    newest: HashSet<SnapshotId>,
}

/// The head of each workspace by its name, and whatever else is named.
type Lines = (Vec<(String, SnapshotId)>, Vec<SnapshotId>);

impl Planner<'_> {
    fn read_names(&mut self, scope: &SweepScope) -> Result<Lines> {
        let store = self.history.store();
        let (mut workspaces, mut others, mut after) = (Vec::new(), Vec::new(), None);
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, value) in page.iter().filter(|(name, _)| !scope.without.contains(name)) {
                let (kind, rest) = name.as_str().split_once('/').unwrap_or(("", name.as_str()));
                let head = value.target.filter(|target| target.kind == ObjectKind::Snapshot);
                let head = head.map(|target| SnapshotId::from_bytes(target.hash));
                let (target_words, keeps_words) = match kind {
                    "workspace" => (format!("head of {rest}"), format!("where {rest} began")),
                    "label" => (format!("label {rest}"), format!("label {rest}")),
                    "step" => ("step of an episode".to_owned(), "step of an episode".to_owned()),
                    "deleted" => {
                        let words =
                            format!("deleted workspace {}", rest.rsplit_once('@').map_or(rest, |(name, _)| name));
                        (words.clone(), words)
                    }
                    _ => (format!("reference {name}"), format!("reference {name}")),
                };
                match head {
                    Some(head) if kind == "workspace" => workspaces.push((rest.to_owned(), head)),
                    other => others.extend(other),
                }
                self.name(value, &target_words, &keeps_words);
            }
        }
        let mut after = scope.operations_after.map_or_else(|| store.last_operation(), Ok)?;
        loop {
            let page = store.list_operations(after, PAGE)?;
            let Some(last) = page.last() else { break };
            after = last.sequence;
            for operation in page.iter().filter(|operation| operation.draft.action != FORGET) {
                let words = format!("operation {} can be undone", operation.sequence);
                let changes = operation.changes.iter().filter(|change| !scope.without.contains(&change.name));
                for value in changes.flat_map(|change| [&change.before, &change.after]).flatten() {
                    self.name(value, &words, &words);
                }
            }
        }
        others.retain(|id| store.snapshot(*id).is_ok());
        others.sort_unstable();
        others.dedup();
        Ok((workspaces, others))
    }

    fn name(&mut self, value: &RefValue, target: &str, keeps: &str) {
        let words = value.target.iter().map(|_| target).chain(value.keeps.iter().map(|_| keeps));
        for (id, words) in value.roots().zip(words).filter(|(id, _)| id.kind == ObjectKind::Snapshot) {
            self.named.entry(SnapshotId::from_bytes(id.hash)).or_insert_with(|| words.to_owned());
        }
    }

    /// A snapshot of several histories stays if it stays in one of them.
    fn judge_line(&mut self, workspace: Option<&str>, heads: &[SnapshotId], policy: &Policy) -> Result<()> {
        let log = self.history.log(heads, LogOrder::Time)?.collect::<Result<Vec<_>>>()?;
        let aged = |snapshot: &Snapshot| Aged {
            time: snapshot.time,
            automatic: snapshot.metadata.get(AUTOMATIC).is_some_and(|value| value == "true"),
        };
        let line: Vec<_> = log.iter().map(|entry| aged(&entry.snapshot)).collect();
        let newest = log.iter().zip(&line).filter(|(_, aged)| aged.automatic).max_by_key(|(_, aged)| aged.time);
        self.newest.extend(newest.map(|(entry, _)| entry.id));
        for ((entry, aged), verdict) in log.iter().zip(&line).zip(judge(policy, &line, self.at)) {
            match self.found.get_mut(&entry.id) {
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
                        id: entry.id,
                        time: aged.time,
                        message: entry.snapshot.message.clone(),
                        automatic: aged.automatic,
                        workspace: workspace.map(str::to_owned),
                        fate: Fate::Goes,
                        without_caches: false,
                    };
                    self.order.push(entry.id);
                    self.found.insert(entry.id, (planned, verdict, *policy));
                }
            }
        }
        Ok(())
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
