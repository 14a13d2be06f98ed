//! Captions of conflicts: the names of the workspaces whose versions compete, and the strategy by which the file is merged.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use amalgam_conflicts::{Caption, terms};
use amalgam_engine::conflict::PlacedConflict;
use amalgam_engine::merge::side_names;
use amalgam_engine::object::{Conflict, Node};
use amalgam_engine::workspace::WorkspaceName;
use amalgam_engine::{Bare, Entry, TreePath, Workspace, entry_at};
use amalgam_merge::Rules;
use amalgam_merge::rules::Content;
use amalgam_proto::Reason;

use super::Conflicts;
use super::owners::Owner;
use crate::error::{Error, Result};

/// The most conflicts without a workspace for which one call searches all workspaces.
const MISSES_MAX: usize = 16;

/// Creates captions for one call. Rules are read once for each workspace.
pub(crate) struct Captioner<'a> {
    conflicts: &'a Conflicts,
    rules: RefCell<HashMap<WorkspaceName, Option<Arc<Rules>>>>,
    /// The workspace of the last conflict, which most likely has the next one, too.
    last: RefCell<Option<Workspace>>,
    /// The number of conflicts that no workspace has.
    misses: Cell<usize>,
}

impl Captioner<'_> {
    fn owner_of(&self, path: &TreePath, conflict: &Conflict) -> Result<Option<Arc<Owner>>> {
        let (conflicts, id) = (self.conflicts, conflict.bare());
        let (key, owners) = ((path.clone(), id), &conflicts.faces.owners);
        if let Some(known) = owners.get(&key) {
            return Ok(Some(known));
        }
        let Some(workspace) = self.workspace_with(path, id)? else { return Ok(None) };
        let head = workspace.head.expect("its head has the conflict");
        let names = side_names(&conflicts.context.history, head, path, conflict)?;
        let owner = Arc::new(Owner { workspace: workspace.name, names });
        owners.insert(key, &owner);
        Ok(Some(owner))
    }

    /// Finds a workspace whose head has a conflict at a path.
    fn workspace_with(&self, path: &TreePath, id: Bare) -> Result<Option<Workspace>> {
        let mut found = self.last.borrow().clone();
        if let Some(last) = found.take()
            && self.conflicts.has_conflict(&last, path, id)?
        {
            return Ok(Some(last));
        }
        // An old tree may have many conflicts that no workspace has any more.
        if self.misses.get() >= MISSES_MAX {
            return Ok(None);
        }
        self.conflicts.context.each_workspace("", |workspace| {
            if found.is_none() && self.conflicts.has_conflict(workspace, path, id)? {
                found = Some(workspace.clone());
            }
            Ok(())
        })?;
        match &found {
            Some(workspace) => *self.last.borrow_mut() = Some(workspace.clone()),
            None => self.misses.set(self.misses.get() + 1),
        }
        Ok(found)
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

    /// Returns whether the head of a workspace has this conflict at a path.
    fn has_conflict(&self, workspace: &Workspace, path: &TreePath, id: Bare) -> Result<bool> {
        let store = &self.context.store;
        let Some(head) = workspace.head else { return Ok(false) };
        let root = store.snapshot(head).and_then(|snapshot| store.root(snapshot.root));
        let entry = root.and_then(|root| entry_at(store, &root, path))?;
        Ok(matches!(entry, Some(Entry { node: Node::Conflict(there), .. }) if there.bare() == id))
    }

    /// Returns the position of the term of a conflict that a word names: by the term's own word, by the name of its workspace, or
    /// by a workspace that has this version now.
    pub(super) fn term_named(&self, placed: &PlacedConflict, word: &str) -> Result<usize> {
        let (store, path) = (&self.context.store, &placed.path);
        let terms = terms(store, &placed.conflict)?;
        let names = self.captioner().caption(path, &placed.conflict).names;
        if let Some(at) = terms.iter().position(|term| term.word == word) {
            return Ok(at);
        }
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
