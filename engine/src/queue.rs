//! The queue: merges that wait for their target, and are folded into it one after another.
//!
//! What waits is a reference, so it outlives the process, and keeps what is to be merged from collection. A fold takes all that
//! waits for one target, merges it entry by entry, each into a snapshot of its own, and lands it in one transaction: the
//! target moves, the entries go, what needs a person becomes a review. So a crash leaves either nothing or all of that, and
//! nothing is merged twice. Nobody retries: whoever folds has the target to themselves, or begins again.
//!
//! What is absent: threads and waiting. Who folds and when is decided above, as is what bytes mean and what may land: see
//! [`Judge`].

mod entry;
mod fold;
mod known;
mod quick;
mod review;
mod take;

pub use crate::merge::Regenerated;
pub use entry::{QueueEntry, Side, Take, Wish};
pub use fold::{Fate, Fold, Folded};
pub(crate) use review::check_reference;
pub use review::{Review, ReviewedPath};

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::history::History;
use crate::id::{RootId, SnapshotId};
use crate::merge::{MergeContents, Regenerate};
use crate::name::TreePath;
use crate::operation::{Act, Step, hold_snapshot, move_refs, operation};
use crate::reference::{RefName, RefValue};
use crate::store::Store;
use crate::workspace::{WorkspaceName, Workspaces};
use known::Known;

/// The word of what begins to wait, in the operation log.
const QUEUE: &str = "queue";
/// The word of a review that is tried again.
const REVIEW: &str = "review";
/// Operations that put an entry into the queue to be merged.
const SUBMITTING: [&str; 2] = [QUEUE, REVIEW];
/// Names that a listing reads at once.
const PAGE: usize = 256;
/// The same source at the same moment is tried this often under a later one.
const MOMENTS: usize = 1_000;

/// A reference of the queue or of a review that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The id that an entry of this name has.
    pub id: String,
    /// The reference.
    pub name: RefName,
    /// What is wrong with it.
    pub why: String,
}

/// What decides in a fold: a seam for those who know contents, rules and permissions.
pub trait Judge {
    /// How files are merged that an entry and its target both changed.
    fn contents(&self, entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>>;

    /// Whether a path belongs to a group that merges as a unit.
    fn is_grouped(&self, _path: &TreePath) -> bool {
        false
    }

    /// The groups of paths that merge as units in a merge of these trees.
    fn units(&self, _base: Option<RootId>, _ours: RootId, _theirs: RootId) -> Result<Vec<Vec<TreePath>>> {
        Ok(Vec::new())
    }

    /// Whether what an entry did to a path may land; if not, why. One refusal keeps the whole entry back.
    fn admit(&self, _entry: &QueueEntry, _path: &TreePath) -> Result<Option<String>> {
        Ok(None)
    }

    /// Whether a rule says that a command makes this file.
    fn is_regenerated(&self, _path: &TreePath) -> bool {
        false
    }

    /// Makes such files, which conflict, anew from the merged tree; why not, if they cannot be.
    fn regenerate(&self, _entry: &QueueEntry, _tree: RootId, _paths: &[TreePath]) -> Result<Regenerated> {
        Ok(Err("nobody here runs commands".to_owned()))
    }

    /// Runs the test of an entry on a merged tree before it lands.
    fn test(&self, _entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        Ok(TestVerdict::Failed("nobody here runs tests".to_owned()))
    }
}

/// What the test of an entry came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestVerdict {
    /// The entry may land.
    Passed,
    /// The entry waits for a person, who reads this.
    Failed(String),
    /// The test could not be started, so it says nothing about the tree. The entry leaves the queue, and its submitter is told this.
    NotStarted(String),
}

/// A judge asked about one entry.
struct About<'a> {
    judge: &'a dyn Judge,
    entry: &'a QueueEntry,
}

impl Regenerate for About<'_> {
    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.judge.is_regenerated(path)
    }

    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> Result<Regenerated> {
        self.judge.regenerate(self.entry, tree, paths)
    }
}

/// The merges that wait in a store.
#[derive(Clone)]
pub struct Queue {
    workspaces: Workspaces,
    history: History,
    /// What the heads of targets came of, as far as it was walked.
    known: Arc<Mutex<HashMap<WorkspaceName, Known>>>,
}

impl Queue {
    /// That of a store.
    pub fn of(workspaces: &Workspaces, history: &History) -> Self {
        Self { workspaces: workspaces.clone(), history: history.clone(), known: Arc::default() }
    }

    fn store(&self) -> &Store {
        self.workspaces.store()
    }

    /// Puts what a workspace's head holds into the queue of a target. The entry is there, as surely as the act says, when this
    /// returns; a request that was made before gets the entry that it made.
    pub fn submit(&self, source: &WorkspaceName, target: &WorkspaceName, wish: &Wish, act: &Act) -> Result<QueueEntry> {
        if let Some(entry) = self.find_submitted(act)? {
            return Ok(entry);
        }
        let head = self.workspaces.get(source)?.head;
        let _pins = head.map(|head| hold_snapshot(self.store(), head)).transpose()?;
        let mut act = act.clone();
        for _ in 0..MOMENTS {
            let entry = self.draft(source, target, head, wish, &act)?;
            let step = Step { name: entry.name.clone(), before: None, after: Some(entry.value.clone()) };
            match move_refs(self.store(), &act, act.draft(QUEUE), vec![step]) {
                Ok(_) => return Ok(entry),
                Err(Error::Stale { .. }) => act.time.0 += 1,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Taken { what: format!("a place of {source} in the queue of {target}") })
    }

    /// What the first call with this request put into the queue, whatever became of it.
    pub fn find_submitted(&self, act: &Act) -> Result<Option<QueueEntry>> {
        let Some(request) = &act.request else { return Ok(None) };
        let Some(done) = self.store().find_request(request)? else { return Ok(None) };
        let made = done.changes.iter().find_map(|change| Some((change.name.clone(), change.after.clone()?)));
        let (name, value) = made.ok_or_else(other_request)?;
        QueueEntry::read(&name, &value)?.ok_or_else(other_request).map(Some)
    }

    /// The entry that a workspace with this head would be; it waits nowhere.
    pub fn draft(
        &self,
        source: &WorkspaceName,
        target: &WorkspaceName,
        head: Option<SnapshotId>,
        wish: &Wish,
        act: &Act,
    ) -> Result<QueueEntry> {
        if source == target {
            let why = format!("{source} cannot be merged into itself");
            return Err(Error::Invalid { what: "target", why });
        }
        self.workspaces.get(target)?;
        let agent = self.workspaces.get(source)?.agent;
        let Some(snapshot) = head else {
            let why = format!("workspace {source} has no snapshot yet");
            return Err(Error::Invalid { what: "source", why });
        };
        QueueEntry::new(source, target, snapshot, wish, &agent, act)
    }

    /// What waits: for one target or for all, the oldest of each first.
    pub fn list(&self, target: Option<&WorkspaceName>) -> Result<Vec<QueueEntry>> {
        let mut entries = self.read_all(entry::QUEUE_PREFIX, target, usize::MAX)?;
        for entry in &mut entries {
            entry.is_held = self.is_held(entry)?;
        }
        Ok(entries)
    }

    /// The targets for which something waits that no undo has brought back.
    pub fn targets(&self) -> Result<Vec<WorkspaceName>> {
        let mut targets: Vec<_> =
            self.list(None)?.into_iter().filter(|entry| !entry.is_held).map(|entry| entry.target).collect();
        targets.dedup();
        Ok(targets)
    }

    /// The entry of the queue whose id begins so.
    pub fn find(&self, id: &str) -> Result<QueueEntry> {
        let mut entry = only(self.list(None)?, id, |entry| &entry.id, "entry of the queue")?;
        entry.is_held = self.is_held(&entry)?;
        Ok(entry)
    }

    /// Takes an entry out of the queue, unmerged.
    pub fn withdraw(&self, entry: &QueueEntry, act: &Act) -> Result<()> {
        let step = Step { name: entry.name.clone(), before: Some(entry.value.clone()), after: None };
        move_refs(self.store(), act, act.draft("withdraw"), vec![step]).map(drop)
    }

    /// Lets an entry that is held be merged again.
    pub fn release(&self, entry: &QueueEntry, act: &Act) -> Result<QueueEntry> {
        let again = QueueEntry::new(&entry.source, &entry.target, entry.snapshot, &entry.wish, &entry.agent, act)?;
        let _pins = hold_snapshot(self.store(), entry.snapshot)?;
        let steps = vec![
            Step { name: again.name.clone(), before: None, after: Some(again.value.clone()) },
            Step { name: entry.name.clone(), before: Some(entry.value.clone()), after: None },
        ];
        move_refs(self.store(), act, act.draft(QUEUE), steps)?;
        Ok(again)
    }

    /// Whether an entry waits to be released. Only what somebody put into the queue of this store is merged by itself: not what an
    /// undo brought back, which somebody did not want, not what a restored backup brought, and not what nobody knows the
    /// origin of, because its operation was trimmed from the log.
    fn is_held(&self, entry: &QueueEntry) -> Result<bool> {
        let moved = self.store().last_move(&entry.name)?;
        if moved == 0 {
            return Ok(false);
        }
        if moved < self.store().first_operation()? {
            return Ok(true);
        }
        let draft = operation(self.store(), moved)?.draft;
        Ok(draft.reverts.is_some() || !SUBMITTING.contains(&draft.action.as_str()))
    }

    /// The entries under a prefix, oldest first for each target.
    fn read_all(&self, prefix: &str, target: Option<&WorkspaceName>, limit: usize) -> Result<Vec<QueueEntry>> {
        let prefix = match target {
            Some(target) => format!("{prefix}{target}{}", entry::SEPARATOR),
            None => prefix.to_owned(),
        };
        let mut found = Vec::new();
        let mut after: Option<RefName> = None;
        while found.len() < limit {
            let page = self.store().list_refs(&prefix, after.as_ref(), PAGE.min(limit - found.len()))?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            // One that cannot be read keeps no other from its turn; it is told by `unreadable`.
            found.extend(page.iter().filter_map(|(name, value)| QueueEntry::read(name, value).ok().flatten()));
        }
        Ok(found)
    }

    /// Whether the next fold of a target runs a test.
    pub fn is_next_tested(&self, target: &WorkspaceName) -> Result<bool> {
        for entry in self.read_all(entry::QUEUE_PREFIX, Some(target), PAGE)? {
            if !self.is_held(&entry)? {
                return Ok(!entry.wish.test.is_empty());
            }
        }
        Ok(self.batch(target)?.iter().any(|entry| !entry.wish.test.is_empty()))
    }

    /// The references of entries that cannot be read, and why. They are left out wherever entries are listed or merged.
    pub fn unreadable_entries(&self) -> Result<Vec<Unreadable>> {
        self.unreadable(entry::QUEUE_PREFIX)
    }

    /// The references of reviews that cannot be read, and why.
    pub fn unreadable_reviews(&self) -> Result<Vec<Unreadable>> {
        self.unreadable(entry::REVIEW_PREFIX)
    }

    fn unreadable(&self, prefix: &str) -> Result<Vec<Unreadable>> {
        let mut found = Vec::new();
        let mut after: Option<RefName> = None;
        loop {
            let page = self.store().list_refs(prefix, after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = Some(last.clone());
            for (name, value) in page {
                if let Err(why) = check_reference(&name, &value) {
                    found.push(Unreadable { id: entry::id(&name), name, why: why.to_string() });
                }
            }
        }
    }

    fn value_of(&self, name: &RefName) -> Result<Option<RefValue>> {
        self.store().read_ref(name)
    }
}

fn other_request() -> Error {
    Error::Invalid { what: "request id", why: "it belongs to another kind of request".to_owned() }
}

/// The one thing whose id begins so.
fn only<T>(all: Vec<T>, id: &str, id_of: impl Fn(&T) -> &str, what: &str) -> Result<T> {
    let mut found: Vec<_> = all.into_iter().filter(|one| id_of(one).starts_with(id)).collect();
    match (found.len(), id.is_empty()) {
        (1, false) => Ok(found.remove(0)),
        (0, _) | (_, true) => Err(Error::Absent {
            what: format!("{what} {id}"),
            hint: "it may have landed, or been rejected, since it was listed".to_owned(),
        }),
        _ => {
            let candidates = found.iter().map(|one| id_of(one).to_owned()).collect();
            Err(Error::Ambiguous { text: id.to_owned(), candidates })
        }
    }
}
