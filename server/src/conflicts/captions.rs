//! Captions of conflicts: the names of the workspaces whose versions compete, and the strategy by which the file is merged.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use amalgam_conflicts::{Caption, terms};
use amalgam_engine::conflict::PlacedConflict;
use amalgam_engine::merge::{MERGE_RECORD_KEY, side_names};
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Bare, Entry, SnapshotId, TreePath, entry_at};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;
use amalgam_proto::Reason;

use super::Conflicts;
use super::caption_source::CaptionSource;
use super::owners::Owner;
use crate::error::{Error, Result};

/// The most conflicts without a workspace for which one call searches all workspaces.
const MISSES_MAX: usize = 16;

/// How many of the newest operations are searched for heads that workspaces had.
const OPERATIONS_MAX: u64 = 64;

/// How many snapshots behind the head are compared with the one that cached names come from.
const LATER_MAX: usize = 64;

/// A workspace that has a conflict, and a snapshot of it with the conflict.
#[derive(Clone, Debug)]
struct Holder {
    workspace: WorkspaceName,
    head: SnapshotId,
}

/// Creates captions for one call. Rules are read once for each workspace.
pub(crate) struct Captioner<'a> {
    conflicts: &'a Conflicts,
    source: CaptionSource,
    /// Whether names from the histories of these snapshots are those of the source.
    current: RefCell<HashMap<SnapshotId, bool>>,
    /// Whether the histories of these snapshots are related to the source.
    related: RefCell<HashMap<SnapshotId, bool>>,
    rules: RefCell<HashMap<WorkspaceName, Option<Arc<Rules>>>>,
    /// The workspace of the last conflict, which most likely has the next one, too.
    last: RefCell<Option<Holder>>,
    /// The number of conflicts that no workspace has or had.
    misses: Cell<usize>,
}

impl Captioner<'_> {
    fn owner_of(&self, path: &TreePath, conflict: &Conflict) -> Result<Option<Arc<Owner>>> {
        let (conflicts, id) = (self.conflicts, conflict.bare());
        let (key, owners) = ((self.source.clone(), path.clone(), id), &conflicts.faces.owners);
        if let Some(known) = owners.get(&key)
            && self.is_current(known.named_by)?
        {
            return Ok(Some(known));
        }
        let holder = self.holder_of(path, id)?;
        let named_by = match self.source {
            CaptionSource::Snapshot(snapshot) if conflicts.has_conflict(snapshot, path, id)? => Some(snapshot),
            _ => holder.as_ref().map(|holder| holder.head),
        };
        let Some(named_by) = named_by else { return Ok(None) };
        let names = side_names(&conflicts.context.history, named_by, path, conflict)?;
        let owner = Arc::new(Owner { workspace: holder.map(|holder| holder.workspace), named_by, names });
        owners.insert(key, &owner);
        Ok(Some(owner))
    }

    /// Returns whether names from the history of a snapshot are those that the source gives now: no merge and no step back came
    /// between that snapshot and the head. A later merge may have brought an equal conflict of other workspaces.
    fn is_current(&self, named_by: SnapshotId) -> Result<bool> {
        let CaptionSource::Workspace(workspace) = &self.source else { return Ok(true) };
        if let Some(known) = self.current.borrow().get(&named_by) {
            return Ok(*known);
        }
        let context = &self.conflicts.context;
        let mut at = context.head(workspace)?;
        let mut is_current = false;
        for _ in 0..LATER_MAX {
            is_current = at == Some(named_by);
            let Some(id) = at.filter(|_| !is_current) else { break };
            let snapshot = context.store.snapshot(id)?;
            let is_merge = snapshot.parents.len() != 1 || snapshot.metadata.contains_key(MERGE_RECORD_KEY);
            at = snapshot.parents.first().copied().filter(|_| !is_merge);
        }
        self.current.borrow_mut().insert(named_by, is_current);
        Ok(is_current)
    }

    /// Finds a workspace whose head has a conflict at a path, or had it lately: a merge that is about to be redone has none yet. The
    /// workspace of the source comes first; others must have a history that is related to the source.
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
        let found = match self.own_holder_of(path, id)? {
            Some(own) => Some(own),
            None => self.related_holder_of(path, id)?,
        };
        match &found {
            Some(holder) => *self.last.borrow_mut() = Some(holder.clone()),
            None => self.misses.set(self.misses.get() + 1),
        }
        Ok(found)
    }

    /// Returns the workspace of the source if it has the conflict, or had it lately.
    fn own_holder_of(&self, path: &TreePath, id: Bare) -> Result<Option<Holder>> {
        let CaptionSource::Workspace(workspace) = &self.source else { return Ok(None) };
        if let Some(head) = self.conflicts.context.head(workspace)?
            && self.conflicts.has_conflict(head, path, id)?
        {
            return Ok(Some(Holder { workspace: workspace.clone(), head }));
        }
        self.past_holder_of(path, id, |past, _| Ok(past == workspace))
    }

    fn related_holder_of(&self, path: &TreePath, id: Bare) -> Result<Option<Holder>> {
        let mut found = None;
        self.conflicts.context.each_workspace("", |workspace| {
            if let (None, Some(head)) = (&found, workspace.head)
                && self.conflicts.has_conflict(head, path, id)?
                && self.is_related(head)?
            {
                found = Some(Holder { workspace: workspace.name.clone(), head });
            }
            Ok(())
        })?;
        match found {
            Some(found) => Ok(Some(found)),
            None => self.past_holder_of(path, id, |_, head| self.is_related(head)),
        }
    }

    /// Returns whether a snapshot has an ancestor in common with the source.
    fn is_related(&self, snapshot: SnapshotId) -> Result<bool> {
        let context = &self.conflicts.context;
        let own = match &self.source {
            CaptionSource::Any => return Ok(true),
            CaptionSource::Workspace(workspace) => context.head(workspace)?,
            CaptionSource::Snapshot(snapshot) => Some(*snapshot),
        };
        let Some(own) = own else { return Ok(false) };
        if let Some(known) = self.related.borrow().get(&snapshot) {
            return Ok(*known);
        }
        let is_related = !context.history.merge_bases(own, snapshot)?.is_empty();
        self.related.borrow_mut().insert(snapshot, is_related);
        Ok(is_related)
    }

    /// Finds a head that a workspace had lately, with a conflict, and of which `accepts` is true.
    fn past_holder_of(
        &self,
        path: &TreePath,
        id: Bare,
        accepts: impl Fn(&WorkspaceName, SnapshotId) -> Result<bool>,
    ) -> Result<Option<Holder>> {
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
                if matches!(self.conflicts.has_conflict(head, path, id), Ok(true)) && accepts(&workspace, head)? {
                    return Ok(Some(Holder { workspace, head }));
                }
            }
        }
        Ok(None)
    }

    /// Returns the caption of a conflict. Parts that cannot be found are left out: a caption is only for people.
    pub(crate) fn caption(&self, path: &TreePath, conflict: &Conflict) -> Caption {
        let Ok(Some(owner)) = self.owner_of(path, conflict) else { return Caption::of(path) };
        let plain = Caption { names: owner.names.clone(), ..Caption::of(path) };
        let Some(workspace) = &owner.workspace else { return plain };
        let mut rules = self.rules.borrow_mut();
        let rules = rules.entry(workspace.clone()).or_insert_with(|| {
            // A merge reports rules that cannot be read.
            self.conflicts.rules.merge_rules(Some(workspace), None).ok()
        });
        match rules {
            Some(rules) => Caption { strategy: rules.choose(path.as_bytes(), Content::Text).cloned(), ..plain },
            None => plain,
        }
    }
}

impl Conflicts {
    /// Returns a captioner for one call, with names from a history.
    pub(crate) fn captioner(&self, source: CaptionSource) -> Captioner<'_> {
        Captioner {
            conflicts: self,
            source,
            current: RefCell::default(),
            related: RefCell::default(),
            rules: RefCell::default(),
            last: RefCell::default(),
            misses: Cell::new(0),
        }
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
