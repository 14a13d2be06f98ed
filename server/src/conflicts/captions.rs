//! Captions of conflicts: the names of the workspaces whose versions compete, and the strategy by which the file is merged.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use amalgam_conflicts::{Caption, terms};
use amalgam_engine::conflict::PlacedConflict;
use amalgam_engine::merge::side_names;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Bare, Entry, SnapshotId, TreePath, entry_at};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;
use amalgam_proto::Reason;

use super::Conflicts;
use super::owners::Owner;
use crate::error::{Error, Result};

/// The most conflicts without a workspace for which one call searches all workspaces.
const MISSES_MAX: usize = 16;

/// How many of the newest operations are searched for heads that workspaces had.
const OPERATIONS_MAX: u64 = 64;

/// A workspace that has a conflict, and its head with it.
#[derive(Clone, Debug)]
struct Holder {
    workspace: WorkspaceName,
    head: SnapshotId,
}

/// Creates captions for one call. Rules are read once for each workspace.
pub(crate) struct Captioner<'a> {
    conflicts: &'a Conflicts,
    rules: RefCell<HashMap<WorkspaceName, Option<Arc<Rules>>>>,
    /// The workspace of the last conflict, which most likely has the next one, too.
    last: RefCell<Option<Holder>>,
    /// The number of conflicts that no workspace has or had.
    misses: Cell<usize>,
}

impl Captioner<'_> {
    fn owner_of(&self, path: &TreePath, conflict: &Conflict) -> Result<Option<Arc<Owner>>> {
        let (conflicts, id) = (self.conflicts, conflict.bare());
        let (key, owners) = ((path.clone(), id), &conflicts.faces.owners);
        if let Some(known) = owners.get(&key) {
            return Ok(Some(known));
        }
        let Some(holder) = self.holder_of(path, id)? else { return Ok(None) };
        let names = side_names(&conflicts.context.history, holder.head, path, conflict)?;
        let owner = Arc::new(Owner { workspace: holder.workspace, names });
        owners.insert(key, &owner);
        Ok(Some(owner))
    }

    /// Finds a workspace whose head has a conflict at a path, or had it lately: a merge that is about to be redone has none yet.
    fn holder_of(&self, path: &TreePath, id: Bare) -> Result<Option<Holder>> {
        let last = self.last.borrow().clone();
        if let Some(last) = last
            && self.conflicts.has_conflict(last.head, path, id)?
        {
            return Ok(Some(last));
        }
        // An old tree may have many conflicts that no workspace has any more.
        if self.misses.get() >= MISSES_MAX {
            return Ok(None);
        }
        let mut found = None;
        self.conflicts.context.each_workspace("", |workspace| {
            if let (None, Some(head)) = (&found, workspace.head)
                && self.conflicts.has_conflict(head, path, id)?
            {
                found = Some(Holder { workspace: workspace.name.clone(), head });
            }
            Ok(())
        })?;
        if found.is_none() {
            found = self.past_holder_of(path, id)?;
        }
        match &found {
            Some(holder) => *self.last.borrow_mut() = Some(holder.clone()),
            None => self.misses.set(self.misses.get() + 1),
        }
        Ok(found)
    }

    fn past_holder_of(&self, path: &TreePath, id: Bare) -> Result<Option<Holder>> {
        let store = &self.conflicts.context.store;
        // The first operations may be trimmed.
        let first = store.first_operation()?.saturating_sub(1);
        let from = store.last_operation()?.saturating_sub(OPERATIONS_MAX).max(first);
        let operations = store.list_operations(from, usize::try_from(OPERATIONS_MAX).unwrap_or(usize::MAX))?;
        for change in operations.iter().rev().flat_map(|operation| &operation.changes) {
            let Ok(workspace) = WorkspaceName::of_reference(&change.name) else { continue };
            let values = [&change.after, &change.before].into_iter().flatten();
            for head in values.filter_map(|value| Some(SnapshotId::from_bytes(value.target?.hash))) {
                // A snapshot of the past may be deleted.
                if matches!(self.conflicts.has_conflict(head, path, id), Ok(true)) {
                    return Ok(Some(Holder { workspace, head }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the caption of a conflict. Parts that cannot be found are left out: a caption is only for people.
    pub(crate) fn caption(&self, path: &TreePath, conflict: &Conflict) -> Caption {
        let Ok(Some(owner)) = self.owner_of(path, conflict) else { return Caption::of(path) };
        let mut rules = self.rules.borrow_mut();
        let rules = rules.entry(owner.workspace.clone()).or_insert_with(|| {
            // A merge reports rules that cannot be read.
            self.conflicts.rules.merge_rules(Some(&owner.workspace), None).ok()
        });
        let plain = Caption { names: owner.names.clone(), ..Caption::of(path) };
        match rules {
            Some(rules) => Caption { strategy: rules.choose(path.as_bytes(), Content::Text).cloned(), ..plain },
            None => plain,
        }
    }
}

impl Conflicts {
    /// Returns a source of captions for one call.
    pub(crate) fn captioner(&self) -> Captioner<'_> {
        Captioner { conflicts: self, rules: RefCell::default(), last: RefCell::default(), misses: Cell::new(0) }
    }

    /// Returns whether a snapshot has this conflict at a path.
    fn has_conflict(&self, snapshot: SnapshotId, path: &TreePath, id: Bare) -> Result<bool> {
        let store = &self.context.store;
        let root = store.snapshot(snapshot).and_then(|snapshot| store.root(snapshot.root));
        let entry = root.and_then(|root| entry_at(store, &root, path))?;
        Ok(matches!(entry, Some(Entry { node: Node::Conflict(there), .. }) if there.bare() == id))
    }

    /// Returns the position of the term of a conflict that a word names: by the term's own word, by the name of its workspace, or
    /// by a workspace that has this version now.
    pub(super) fn term_named(&self, placed: &PlacedConflict, word: &str, captioner: &Captioner<'_>) -> Result<usize> {
        let (store, path) = (&self.context.store, &placed.path);
        let terms = terms(store, &placed.conflict)?;
        if let Some(at) = terms.iter().position(|term| term.word == word) {
            return Ok(at);
        }
        let names = captioner.caption(path, &placed.conflict).names;
        let mut named = names.iter().enumerate().filter(|(_, name)| *name == word).map(|(at, _)| at * 2);
        if let (Some(at), None) = (named.next(), named.next()) {
            return Ok(at);
        }
        if let Some(at) = self.term_of_head(placed, word)? {
            return Ok(at);
        }
        let words = terms.iter().enumerate().map(|(at, term)| match names.get(at / 2).filter(|_| at % 2 == 0) {
            Some(name) if !name.is_empty() => format!("{} ({name})", term.word),
            _ => term.word.clone(),
        });
        let words: Vec<_> = words.collect();
        Err(Error::new(Reason::Invalid, format!("{path} has no version {word}; it has {}", words.join(", "))))
    }

    fn term_of_head(&self, placed: &PlacedConflict, word: &str) -> Result<Option<usize>> {
        let Ok(name) = WorkspaceName::new(word) else { return Ok(None) };
        let Some(workspace) = self.context.workspaces.find(&name)? else { return Ok(None) };
        let Some(root) = self.context.head_root(workspace.head)? else { return Ok(None) };
        let store = &self.context.store;
        let root = store.root(root)?;
        let entry = entry_at(store, &root, &placed.path)?.map(|entry| entry.node);
        let sides = placed.conflict.added().map(|side| side.map(|side| side.node.clone()));
        let mut same = sides.enumerate().filter(|(_, side)| *side == entry).map(|(at, _)| at * 2);
        Ok(same.next())
    }
}
