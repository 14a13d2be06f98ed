//! Trees as agents see them: without the paths that are hidden from them.

use std::sync::Arc;

use amalgam_engine::{
    Entry, EntryKind, Error as EngineError, Pin, RootId, SnapshotId, Store, TreePath, WorkingTree, entry_at,
};
use amalgam_policy::{AgentPolicy, Guard};
use amalgam_view::TreePermissions;

use super::{Permissions, VISIBLE_TREES_MAX};
use crate::error::Result;

/// A tree without hidden paths, kept in the store while this exists.
pub(crate) struct VisibleTree {
    pub(crate) root: RootId,
    pub(crate) pin: Option<Pin>,
}

impl Permissions {
    /// Returns a stored tree without the paths that are hidden from the agents of a guard. Takes time proportional to the directories
    /// in which rules can match, and remembers the result.
    pub(crate) fn visible_tree(&self, root: RootId, guard: &Guard) -> Result<VisibleTree> {
        if !guard.hides() {
            return Ok(VisibleTree { root, pin: None });
        }
        let key = (root, guard.agents().iter().map(|agent| agent.agent().to_owned()).collect::<Vec<_>>());
        let known = self.current()?.visible.get(&key).copied();
        if let Some(known) = known
            && let Ok(pin) = self.store.hold(known)
        {
            return Ok(VisibleTree { root: known, pin: Some(pin) });
        }
        let mut tree = WorkingTree::open_root(&self.store, root)?;
        for path in hidden_paths(&tree, guard)? {
            tree.remove_all(&path)?;
        }
        let (seen, pin) = tree.freeze().hold()?;
        let mut cached = self.current()?;
        // The policy may have moved while the tree was computed: it is remembered only for the rules that it was computed by.
        let is_current = |agent: &Arc<AgentPolicy>| {
            cached.agents.get(agent.agent()).is_some_and(|current| Arc::ptr_eq(current, agent))
        };
        if guard.agents().iter().all(is_current) {
            if cached.visible.len() >= VISIBLE_TREES_MAX {
                cached.visible.clear();
            }
            cached.visible.insert(key, seen);
        }
        Ok(VisibleTree { root: seen, pin: Some(pin) })
    }
}

/// Decides which entries of stored trees the agents of a guard can see, one by one: for calls that visit a few paths of
/// many snapshots. The result is that of [`Permissions::visible_tree`].
pub(crate) struct VisibleEntries {
    store: Store,
    guard: Guard,
    /// The tree that was asked for last.
    tree: Option<(RootId, WorkingTree)>,
}

impl VisibleEntries {
    pub(crate) fn new(store: &Store, guard: Guard) -> Self {
        Self { store: store.clone(), guard, tree: None }
    }

    /// Returns whether an entry of a snapshot can be seen. A file with several names in the snapshot must be visible
    /// under each of them.
    pub(crate) fn is_visible(&mut self, snapshot: SnapshotId, path: &TreePath, entry: &Entry) -> Result<bool> {
        if !self.guard.is_visible(path.as_bytes(), entry.kind() == EntryKind::Directory) {
            return Ok(false);
        }
        if self.guard.is_open() || entry.link().is_none() {
            return Ok(true);
        }
        let root = self.store.snapshot(snapshot)?.root;
        if self.tree.as_ref().is_none_or(|(opened, _)| *opened != root) {
            self.tree = Some((root, WorkingTree::open_root(&self.store, root)?));
        }
        let Some((_, tree)) = &self.tree else { return Ok(false) };
        let names = tree.names_of(path)?;
        Ok(names.iter().all(|name| self.guard.is_visible(name.as_bytes(), false)))
    }

    /// Returns whether a path of a snapshot can be seen. A path that does not exist there is judged by its name, and so
    /// is one of a snapshot whose tree was dropped.
    pub(crate) fn is_path_visible(&mut self, snapshot: SnapshotId, path: &TreePath) -> Result<bool> {
        if !self.guard.is_visible(path.as_bytes(), false) {
            return Ok(false);
        }
        if self.guard.is_open() {
            return Ok(true);
        }
        let found = self.store.snapshot(snapshot).and_then(|found| self.store.root(found.root));
        match found.and_then(|root| entry_at(&self.store, &root, path)) {
            Ok(Some(entry)) => self.is_visible(snapshot, path, &entry),
            Ok(None) | Err(EngineError::Missing { .. }) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns whether the agents of a guard can see a path whose entry differs between trees. A file with several names in one of the
/// trees must be visible under each of them.
pub(crate) fn is_visible_in(guard: &Guard, trees: &[&WorkingTree], path: &TreePath) -> Result<bool> {
    if !guard.is_visible(path.as_bytes(), false) {
        return Ok(false);
    }
    for tree in trees.iter().filter(|tree| guard.hides() && tree.has_hard_links()) {
        let Some(stat) = tree.stat(path)?.filter(|stat| stat.links > 1) else { continue };
        if !TreePermissions::new(guard, tree).is_visible(path, stat.kind, stat.links)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the paths that are hidden from the agents of a guard, without those below others. Fails if it has to visit more paths than
/// the store's limit.
pub(crate) fn hidden_paths(tree: &WorkingTree, guard: &Guard) -> Result<Vec<TreePath>> {
    let (mut hidden, mut waiting) = (Vec::new(), vec![TreePath::root()]);
    let (mut visited, mut held) = (tree.store().path_count(), tree.store().held_path_count());
    if !guard.hides() {
        return Ok(hidden);
    }
    let permissions = TreePermissions::new(guard, tree);
    // A file in a directory with one level may have a hidden name elsewhere.
    let is_uniform = |path: &TreePath| !tree.has_hard_links() && guard.is_uniform_below(path.as_bytes());
    while let Some(directory) = waiting.pop() {
        for item in tree.list(&directory)? {
            let (name, stat) = item?;
            visited.add(1)?;
            let path = directory.join(&name);
            if !permissions.is_visible(&path, stat.kind, stat.links)? {
                held.add(1)?;
                hidden.push(path);
            } else if stat.kind == EntryKind::Directory && !is_uniform(&path) {
                waiting.push(path);
            }
        }
    }
    Ok(hidden)
}

#[cfg(test)]
mod tests {
    use amalgam_engine::backend::Memory;
    use amalgam_engine::workspace::Workspaces;
    use amalgam_engine::{OperationContext, Store, StoreOptions, Time};

    use super::*;

    fn rule(path: &str) -> String {
        format!("default = \"RW\"\n[[rule]]\npaths = [\"{path}\"]\nlevel = \"none\"\n")
    }

    #[test]
    fn a_tree_that_was_computed_by_an_earlier_policy_is_not_remembered() {
        let store = Store::in_memory();
        let permissions = Permissions::new(&store, &Workspaces::of(&store));
        let act = OperationContext::new("root", Time::EPOCH);
        let mut tree = WorkingTree::new(&store);
        tree.write("a", b"1").expect("written");
        tree.write("b", b"2").expect("written");
        let (root, _pin) = tree.freeze().hold().expect("stored");
        permissions.set(&rule("a"), &act).expect("set");
        let before = permissions.guard(&["ann"]).expect("a guard");
        permissions.set(&rule("b"), &act).expect("set");
        // A call that began before the change ends after it.
        permissions.visible_tree(root, &before).expect("computed");
        let now = permissions.guard(&["ann"]).expect("a guard");
        let seen = permissions.visible_tree(root, &now).expect("computed");
        let seen = WorkingTree::open_root(&store, seen.root).expect("opened");
        assert!(seen.exists("a").expect("read"));
        assert!(!seen.exists("b").expect("read"), "the rule of the present policy hides it");
    }

    #[test]
    fn a_tree_with_too_many_paths_is_refused() {
        let options = StoreOptions { paths_max: 10, ..StoreOptions::default() };
        let store = Store::new(Arc::new(Memory::default()), &options);
        let permissions = Permissions::new(&store, &Workspaces::of(&store));
        permissions.set(&rule("x"), &OperationContext::new("root", Time::EPOCH)).expect("set");
        let guard = permissions.guard(&["ann"]).expect("a guard");
        let mut tree = WorkingTree::new(&store);
        for number in 0..10 {
            tree.write(format!("f{number}"), b"").expect("written");
        }
        assert!(hidden_paths(&tree, &guard).expect("as many as may be").is_empty());
        tree.write("f10", b"").expect("written");
        assert!(hidden_paths(&tree, &guard).is_err());
    }
}
