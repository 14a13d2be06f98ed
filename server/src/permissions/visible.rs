//! Trees as agents see them: without the paths that are hidden from them.

use amalgam_engine::{EntryKind, Pin, RootId, TreePath, WorkingTree};
use amalgam_policy::Guard;
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
        if cached.visible.len() >= VISIBLE_TREES_MAX {
            cached.visible.clear();
        }
        cached.visible.insert(key, seen);
        Ok(VisibleTree { root: seen, pin: Some(pin) })
    }
}

/// Returns the paths that are hidden from the agents of a guard, without those below others.
pub(crate) fn hidden_paths(tree: &WorkingTree, guard: &Guard) -> Result<Vec<TreePath>> {
    let (mut hidden, mut waiting) = (Vec::new(), vec![TreePath::root()]);
    if !guard.hides() {
        return Ok(hidden);
    }
    let permissions = TreePermissions::new(guard, tree);
    // A file in a directory with one level may have a hidden name elsewhere.
    let is_uniform = |path: &TreePath| !tree.has_hard_links() && guard.is_uniform_below(path.as_bytes());
    while let Some(directory) = waiting.pop() {
        for item in tree.list(&directory)? {
            let (name, stat) = item?;
            let path = directory.join(&name);
            if !permissions.is_visible(&path, stat.kind, stat.links)? {
                hidden.push(path);
            } else if stat.kind == EntryKind::Directory && !is_uniform(&path) {
                waiting.push(path);
            }
        }
    }
    Ok(hidden)
}
