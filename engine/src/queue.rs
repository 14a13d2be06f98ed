//! The merge queue: merges that wait for their target and are applied to it one after another.
//!
//! A waiting entry is a reference, so it survives the process and protects its snapshot from garbage collection. A fold takes all
//! entries that wait for one target, merges each into a snapshot of its own, and commits the result in one transaction: the
//! target's head moves, merged entries are removed, and entries that need a decision become reviews. So a crash leaves either
//! nothing or all of that, and no entry is merged twice. The submitter never retries: if the target moves during a fold, the fold
//! starts again.
//!
//! Not in this module: threads and waiting. The caller decides when to fold; a [`MergePolicy`] decides how to merge contents and which
//! changes may be merged.

mod admission;
mod ancestors;
mod entry;
mod fast_path;
mod fold;
mod line;
mod outcome;
mod review;
mod side_choices;

pub use crate::merge::Regenerated;
pub use entry::{QueueEntry, QueueOptions, Side, SideChoice};
pub use fold::Fold;
pub use outcome::{EntryOutcome, Folded};
pub(crate) use review::check_reference;
pub use review::{Review, ReviewedPath};

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::backend::FoldLeases;
use crate::diff::Change;
use crate::error::{Error, Result};
use crate::history::History;
use crate::id::{RootId, SnapshotId};
use crate::merge::{AdmitMove, MergeContents, Regenerate};
use crate::name::TreePath;
use crate::operation::{OperationContext, Step, hold_snapshot, move_refs, operation};
use crate::reference::{RefName, RefValue};
use crate::store::Store;
use crate::workspace::{WorkspaceName, Workspaces};
use ancestors::Ancestors;

/// The action name of a submission in the operation log.
const QUEUE: &str = "queue";
/// The action name of a resubmitted review in the operation log.
const REVIEW: &str = "review";
/// Actions of operations that put an entry into the queue to be merged.
const SUBMIT_ACTIONS: [&str; 2] = [QUEUE, REVIEW];
/// Page size of a listing of references.
const PAGE: usize = 256;
/// Maximum number of attempts to find a free name for an entry. Each attempt uses a time one nanosecond later, because the same
/// source may submit twice at the same time.
const NAME_ATTEMPTS_MAX: usize = 1_000;

/// A queue or review reference that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The id of the entry with this name.
    pub id: String,
    /// The reference.
    pub name: RefName,
    /// The reason.
    pub why: String,
}

/// Makes the decisions of a fold that need knowledge of contents, rules and permissions.
pub trait MergePolicy {
    /// Returns the strategy for files that an entry and its target both changed.
    fn contents(&self, entry: &QueueEntry) -> Result<Box<dyn MergeContents + '_>>;

    /// Returns whether a path belongs to a group that merges as a unit.
    fn is_grouped(&self, _path: &TreePath) -> bool {
        false
    }

    /// Returns the groups of paths that merge as units in a merge of these trees.
    fn units(&self, _base: Option<RootId>, _ours: RootId, _theirs: RootId) -> Result<Vec<Vec<TreePath>>> {
        Ok(Vec::new())
    }

    /// Returns which entries follow a directory that the other side renamed; all of them if there is none.
    fn moves(&self) -> Option<Arc<dyn AdmitMove>> {
        None
    }

    /// Returns `None` if an entry's change of a path may be merged, otherwise the reason for the refusal. One refusal holds back
    /// the whole entry, unless the policy [takes the rest](Self::takes_rest).
    fn admit(&self, _entry: &QueueEntry, _change: &Change) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns whether an entry of which some changes are refused is merged without them. They stay in the source workspace, and
    /// the next merge of it tries them again.
    fn takes_rest(&self, _entry: &QueueEntry) -> bool {
        false
    }

    /// Returns whether a file that the entry and the target both added is kept twice: the entry's under another name.
    fn keeps_both(&self, _entry: &QueueEntry, _path: &TreePath) -> bool {
        false
    }

    /// Returns whether a rule states that a command generates this file.
    fn is_regenerated(&self, _path: &TreePath) -> bool {
        false
    }

    /// Regenerates conflicting files from the merged tree. The inner error is the reason if that is not possible.
    fn regenerate(&self, _entry: &QueueEntry, _tree: RootId, _paths: &[TreePath]) -> Result<Regenerated> {
        Ok(Err("this queue runs no commands".to_owned()))
    }

    /// Runs the test of an entry on the merged tree before it is committed.
    fn test(&self, _entry: &QueueEntry, _tree: RootId) -> Result<TestVerdict> {
        Ok(TestVerdict::Failed("this queue runs no tests".to_owned()))
    }
}

/// A change of an entry that the policy refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedChange {
    /// The path.
    pub path: TreePath,
    /// The reason.
    pub why: String,
}

/// The result of an entry's test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestVerdict {
    /// The entry may be merged.
    Passed,
    /// The test failed. The entry becomes a review with this message.
    Failed(String),
    /// The test could not be started, so it says nothing about the tree. The entry leaves the queue, and its submitter receives
    /// this message.
    NotStarted(String),
}

/// A policy together with the entry it decides on.
struct EntryPolicy<'a> {
    policy: &'a dyn MergePolicy,
    entry: &'a QueueEntry,
}

impl Regenerate for EntryPolicy<'_> {
    fn is_regenerated(&self, path: &TreePath) -> bool {
        self.policy.is_regenerated(path)
    }

    fn regenerate(&self, tree: RootId, paths: &[TreePath]) -> Result<Regenerated> {
        self.policy.regenerate(self.entry, tree, paths)
    }
}

/// The merge queue of a store.
#[derive(Clone)]
pub struct Queue {
    workspaces: Workspaces,
    history: History,
    /// Cached ancestors of the targets' heads.
    ancestors: Arc<Mutex<HashMap<WorkspaceName, Ancestors>>>,
    /// The leases of targets, if several processes have the store open.
    leases: Option<Arc<dyn FoldLeases>>,
}

impl Queue {
    /// Returns the queue of a store.
    pub fn of(workspaces: &Workspaces, history: &History) -> Self {
        Self { workspaces: workspaces.clone(), history: history.clone(), ancestors: Arc::default(), leases: None }
    }

    /// Returns this queue for a store that several processes have open: a process takes the lease of a target before it folds it.
    #[must_use]
    pub fn with_leases(self, leases: Arc<dyn FoldLeases>) -> Self {
        Self { leases: Some(leases), ..self }
    }

    fn store(&self) -> &Store {
        self.workspaces.store()
    }

    /// Puts the head of a workspace into the queue of a target. When this returns, the entry is stored with the durability of the
    /// context. A repeated request returns the entry of the first one.
    pub fn submit(
        &self,
        source: &WorkspaceName,
        target: &WorkspaceName,
        options: &QueueOptions,
        context: &OperationContext,
    ) -> Result<QueueEntry> {
        if let Some(entry) = self.find_submitted(context)? {
            return Ok(entry);
        }
        let head = self.workspaces.get(source)?.head;
        let _pins = head.map(|head| hold_snapshot(self.store(), head)).transpose()?;
        let mut context = context.clone();
        for _ in 0..NAME_ATTEMPTS_MAX {
            let entry = self.draft(source, target, head, options, &context)?;
            let step = Step { name: entry.name.clone(), before: None, after: Some(entry.value.clone()) };
            match move_refs(self.store(), &context, context.draft(QUEUE), vec![step]) {
                // The same request came in twice at once, and the other one was first.
                Ok(done) if done.replayed => return self.find_submitted(&context)?.ok_or_else(other_request),
                Ok(_) => return Ok(entry),
                Err(Error::Stale { .. }) => context.time.0 += 1,
                Err(error) => return Err(error),
            }
        }
        Err(Error::Taken { what: format!("a place of {source} in the queue of {target}") })
    }

    /// Returns the entry that the first call with this request id created, even if it has left the queue.
    pub fn find_submitted(&self, context: &OperationContext) -> Result<Option<QueueEntry>> {
        let Some(request) = &context.request else { return Ok(None) };
        let Some(done) = self.store().find_request(request)? else { return Ok(None) };
        let made = done.changes.iter().find_map(|change| Some((change.name.clone(), change.after.clone()?)));
        let (name, value) = made.ok_or_else(other_request)?;
        QueueEntry::read(&name, &value)?.ok_or_else(other_request).map(Some)
    }

    /// Creates the entry that a workspace with this head would submit, without storing it.
    pub fn draft(
        &self,
        source: &WorkspaceName,
        target: &WorkspaceName,
        head: Option<SnapshotId>,
        options: &QueueOptions,
        context: &OperationContext,
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
        QueueEntry::new(source, target, snapshot, options, &agent, context)
    }

    /// Lists the waiting entries of one target or of all, oldest first for each target.
    pub fn list(&self, target: Option<&WorkspaceName>) -> Result<Vec<QueueEntry>> {
        let mut entries = self.read_all(entry::QUEUE_PREFIX, target, usize::MAX)?;
        for entry in &mut entries {
            entry.is_held = self.is_held(entry)?;
        }
        Ok(entries)
    }

    /// Lists up to `limit` waiting entries of one target or of all, oldest first for each target, behind a position. Returns the position
    /// of the next page with them; none after the last page.
    ///
    /// # Errors
    /// The position is not one of this list, or the store cannot be read.
    pub fn list_page(
        &self,
        target: Option<&WorkspaceName>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<QueueEntry>, Option<String>)> {
        let (mut entries, next) = self.read_page(entry::QUEUE_PREFIX, target, after, limit)?;
        for entry in &mut entries {
            entry.is_held = self.is_held(entry)?;
        }
        Ok((entries, next))
    }

    /// Returns the targets that have at least one entry that is not held.
    pub fn targets(&self) -> Result<Vec<WorkspaceName>> {
        let mut targets: Vec<_> =
            self.list(None)?.into_iter().filter(|entry| !entry.is_held).map(|entry| entry.target).collect();
        targets.dedup();
        Ok(targets)
    }

    /// Returns the entry whose id starts with this prefix.
    pub fn find(&self, id: &str) -> Result<QueueEntry> {
        let mut entry = only(self.list(None)?, id, |entry| &entry.id, "entry of the queue")?;
        entry.is_held = self.is_held(&entry)?;
        Ok(entry)
    }

    /// Removes an entry from the queue without merging it.
    pub fn withdraw(&self, entry: &QueueEntry, context: &OperationContext) -> Result<()> {
        let step = Step { name: entry.name.clone(), before: Some(entry.value.clone()), after: None };
        move_refs(self.store(), context, context.draft("withdraw"), vec![step]).map(drop)
    }

    /// Releases a held entry, so that it is merged.
    pub fn release(&self, entry: &QueueEntry, context: &OperationContext) -> Result<QueueEntry> {
        let again =
            QueueEntry::new(&entry.source, &entry.target, entry.snapshot, &entry.options, &entry.agent, context)?;
        let _pins = hold_snapshot(self.store(), entry.snapshot)?;
        let steps = vec![
            Step { name: again.name.clone(), before: None, after: Some(again.value.clone()) },
            Step { name: entry.name.clone(), before: Some(entry.value.clone()), after: None },
        ];
        move_refs(self.store(), context, context.draft(QUEUE), steps)?;
        Ok(again)
    }

    /// Returns whether an entry waits to be released. Only an entry that was submitted to the queue of this store is merged
    /// automatically. Held are entries that an undo or a restored backup brought back, and entries of unknown origin because
    /// their operation was trimmed from the log.
    fn is_held(&self, entry: &QueueEntry) -> Result<bool> {
        let moved = self.store().last_move(&entry.name)?;
        if moved == 0 {
            return Ok(false);
        }
        if moved < self.store().first_operation()? {
            return Ok(true);
        }
        let draft = operation(self.store(), moved)?.draft;
        Ok(draft.reverts.is_some() || !SUBMIT_ACTIONS.contains(&draft.action.as_str()))
    }

    /// Returns the entries under a prefix, oldest first for each target.
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
            // An entry that cannot be read does not block the others; `unreadable` lists it.
            found.extend(page.iter().filter_map(|(name, value)| QueueEntry::read(name, value).ok().flatten()));
        }
        Ok(found)
    }

    /// Returns up to `limit` entries under a prefix behind a position, and the position of the next page.
    fn read_page(
        &self,
        prefix: &str,
        target: Option<&WorkspaceName>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<QueueEntry>, Option<String>)> {
        let prefix = match target {
            Some(target) => format!("{prefix}{target}{}", entry::SEPARATOR),
            None => prefix.to_owned(),
        };
        let mut after = match after {
            None => None,
            Some(position) => {
                let name = RefName::new(position).ok().filter(|name| name.as_str().starts_with(&prefix));
                let no_position = || Error::Invalid {
                    what: "page token",
                    why: format!("{} is no position of this list", position.escape_debug()),
                };
                Some(name.ok_or_else(no_position)?)
            }
        };
        let mut found = Vec::new();
        loop {
            let page = self.store().list_refs(&prefix, after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { return Ok((found, None)) };
            after = Some(last.clone());
            for (name, value) in &page {
                found.extend(QueueEntry::read(name, value).ok().flatten());
                if found.len() == limit {
                    return Ok((found, Some(name.to_string())));
                }
            }
        }
    }

    /// Returns whether the next fold of a target runs a test.
    pub fn is_next_tested(&self, target: &WorkspaceName) -> Result<bool> {
        for entry in self.read_all(entry::QUEUE_PREFIX, Some(target), PAGE)? {
            if !self.is_held(&entry)? {
                return Ok(!entry.options.test.is_empty());
            }
        }
        Ok(self.batch(target)?.iter().any(|entry| !entry.options.test.is_empty()))
    }

    /// Returns the references of entries that cannot be read, and why. Lists and merges leave these entries out.
    pub fn unreadable_entries(&self) -> Result<Vec<Unreadable>> {
        self.unreadable(entry::QUEUE_PREFIX)
    }

    /// Returns the references of reviews that cannot be read, and why.
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

/// Returns the single item whose id starts with this prefix.
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
