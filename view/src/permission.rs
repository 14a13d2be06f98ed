//! Permissions of agents in a tree: what a guard permits, given the entries that exist.
//!
//! A guard decides by path and act. This module adds what only the tree knows: all names of a file with hard links are judged, an entry
//! that is not in the last commit counts as added when it is changed or removed again, and a directory is moved or removed only if the
//! same may be done with each entry below it. Views ask it for each request, and planned edits of calls ask it for each edit.

use amalgam_engine::work::RenameMode;
use amalgam_engine::{Error as EngineError, TreePath, WorkingTree, entry_at};
use amalgam_policy::{Act, Guard, Refusal};

use crate::attributes::Kind;
use crate::error::{Error, Result};

/// The permissions of a guard in one state of a tree.
#[derive(Clone, Copy)]
pub struct TreePermissions<'a> {
    guard: &'a Guard,
    tree: &'a WorkingTree,
}

impl<'a> TreePermissions<'a> {
    /// Returns the permissions of a guard in a tree.
    pub fn new(guard: &'a Guard, tree: &'a WorkingTree) -> Self {
        Self { guard, tree }
    }

    /// Returns whether an entry can be seen. A file with several names must be visible under each of them.
    pub fn is_visible(&self, path: &TreePath, kind: Kind, links: u64) -> Result<bool> {
        if self.guard.is_open() {
            return Ok(true);
        }
        if kind == Kind::Directory || links <= 1 {
            return Ok(self.guard.is_visible(path.as_bytes(), kind == Kind::Directory));
        }
        let names = self.tree.names_of(path)?;
        Ok(names.iter().all(|name| self.guard.is_visible(name.as_bytes(), false)))
    }

    /// Refuses to read an entry that cannot be seen, as if it did not exist.
    pub fn read(&self, path: &TreePath) -> Result<()> {
        if self.guard.is_open() || path.is_root() {
            return Ok(());
        }
        // Whether something exists below a hidden directory is hidden, too.
        let Some(stat) = self.tree.stat(path)? else { return Ok(()) };
        match self.is_visible(path, stat.kind, stat.links)? {
            true => Ok(()),
            false => Err(EngineError::NotFound { path: path.clone() }.into()),
        }
    }

    /// Refuses to add an entry.
    pub fn add(&self, path: &TreePath) -> Result<()> {
        self.refuse(self.guard.refusal(path.as_bytes(), Act::Add))
    }

    /// Refuses to change the contents or the attributes of an entry.
    pub fn change(&self, path: &TreePath) -> Result<()> {
        if self.guard.is_open() {
            return Ok(());
        }
        let names = match self.tree.stat(path)? {
            Some(stat) if stat.links > 1 && stat.kind != Kind::Directory => self.tree.names_of(path)?,
            _ => return self.existing(path, Act::Change),
        };
        names.iter().try_for_each(|name| self.existing(name, Act::Change))
    }

    /// Refuses to remove a name, with everything below it.
    pub fn remove(&self, path: &TreePath) -> Result<()> {
        if self.guard.is_open() {
            return Ok(());
        }
        // Below a directory with one level only files with names elsewhere can be refused.
        let is_uniform = |path: &TreePath| !self.tree.has_hard_links() && self.guard.is_uniform_below(path.as_bytes());
        self.each_below(path, is_uniform, |path| self.remove_name(path))
    }

    /// Refuses to add a name for an existing file, whose number of names changes.
    pub fn link(&self, existing: &TreePath, new: &TreePath) -> Result<()> {
        self.read(existing)?;
        self.change(existing)?;
        self.add(new)
    }

    /// Refuses to move an entry, with everything below it, and to replace or exchange the entry at the target.
    pub fn rename(&self, from: &TreePath, to: &TreePath, mode: RenameMode) -> Result<()> {
        if self.guard.is_open() || from == to {
            return Ok(());
        }
        self.remove(from)?;
        match (self.tree.stat(to)?, mode) {
            (None, _) => self.add(to)?,
            // The refusal is that of a path where nothing exists.
            (Some(stat), _) if !self.is_visible(to, stat.kind, stat.links)? => {
                self.add(to)?;
                self.change(to)?;
            }
            (Some(_), RenameMode::Exchange) => {
                self.remove(to)?;
                self.moved_below(to, from)?;
            }
            // A replaced file is a changed one: programs save files so.
            (Some(_), _) => self.change(to)?,
        }
        self.moved_below(from, to)
    }

    /// Refuses every change if nothing may be changed.
    pub fn change_state(&self) -> Result<()> {
        match self.guard.is_read_only() {
            true => self.refuse(self.guard.refusal(TreePath::root().as_bytes(), Act::Change)),
            false => Ok(()),
        }
    }

    /// Refuses an act on an existing entry. One that is not in the last commit may be changed and removed by those who may add it.
    fn existing(&self, path: &TreePath, act: Act) -> Result<()> {
        let Some(refusal) = self.guard.refusal(path.as_bytes(), act) else { return Ok(()) };
        if self.guard.refusal(path.as_bytes(), Act::Add).is_none() && self.is_new(path)? {
            return Ok(());
        }
        self.refuse(Some(refusal))
    }

    /// Refuses to remove a name. The other names of the file change: they become fewer.
    fn remove_name(&self, path: &TreePath) -> Result<()> {
        self.existing(path, Act::Remove)?;
        let is_linked = self.tree.has_hard_links()
            && self.tree.stat(path)?.is_some_and(|stat| stat.links > 1 && stat.kind != Kind::Directory);
        if !is_linked {
            return Ok(());
        }
        let names = self.tree.names_of(path)?;
        names.iter().filter(|name| *name != path).try_for_each(|name| self.existing(name, Act::Change))
    }

    fn is_new(&self, path: &TreePath) -> Result<bool> {
        let Some(base) = self.tree.base() else { return Ok(true) };
        let store = self.tree.store();
        let root = store.root(store.snapshot(base)?.root)?;
        Ok(entry_at(store, &root, path)?.is_none())
    }

    /// Refuses the paths that the entries below a moved one get.
    fn moved_below(&self, from: &TreePath, to: &TreePath) -> Result<()> {
        if self.guard.is_uniform_below(to.as_bytes()) {
            return Ok(());
        }
        self.each_below(
            from,
            |_| false,
            |path| match path.below(from) {
                Some(b"") | None => Ok(()),
                Some(rest) => {
                    let path = TreePath::new([to.as_bytes(), b"/", rest].concat()).map_err(EngineError::from)?;
                    self.add(&path)
                }
            },
        )
    }

    /// Visits a path and everything below it, except the entries below a directory that `skips` accepts. Fails if there are more
    /// paths than the store's limit.
    fn each_below(
        &self,
        path: &TreePath,
        skips: impl Fn(&TreePath) -> bool,
        mut visit: impl FnMut(&TreePath) -> Result<()>,
    ) -> Result<()> {
        let mut waiting = vec![path.clone()];
        let mut count = self.tree.store().held_path_count();
        while let Some(path) = waiting.pop() {
            count.add(1)?;
            visit(&path)?;
            let is_directory = self.tree.stat(&path)?.is_some_and(|stat| stat.kind == Kind::Directory);
            if !is_directory || skips(&path) {
                continue;
            }
            for item in self.tree.list(&path)? {
                waiting.push(path.join(&item?.0));
            }
        }
        Ok(())
    }

    fn refuse(&self, refusal: Option<Refusal>) -> Result<()> {
        match refusal {
            None => Ok(()),
            Some(refusal) => {
                self.guard.report(&refusal);
                Err(Error::Refused { refusal: Box::new(refusal), is_read_only: self.guard.is_read_only() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amalgam_engine::backend::Memory;
    use amalgam_engine::{Store, StoreOptions};
    use amalgam_policy::Policy;

    use super::*;

    fn guard(text: &str) -> Guard {
        Guard::new(vec![Arc::new(Arc::new(Policy::read(text).expect("a policy")).agent("ann"))])
    }

    fn path(text: &str) -> TreePath {
        TreePath::new(text).expect("a path")
    }

    #[test]
    fn a_directory_with_too_many_paths_is_not_moved() {
        let options = StoreOptions { paths_max: 40, ..StoreOptions::default() };
        let store = Store::new(Arc::new(Memory::default()), &options);
        let mut tree = WorkingTree::new(&store);
        tree.create_directories("d").expect("made");
        let guard = guard("default = \"RW\"\n[[rule]]\npaths = [\"x\"]\nlevel = \"none\"\n");
        for number in 0..9 {
            tree.write(format!("d/{number}"), b"").expect("written");
        }
        let rename =
            |tree: &WorkingTree| TreePermissions::new(&guard, tree).rename(&path("d"), &path("e"), RenameMode::Replace);
        rename(&tree).expect("few enough");
        tree.write("d/more", b"").expect("written");
        assert!(rename(&tree).is_err());
    }

    #[test]
    fn a_refused_rename_does_not_tell_whether_a_hidden_target_exists() {
        let mut tree = WorkingTree::new(&Store::in_memory());
        tree.create_directories("secret").expect("made");
        tree.write("secret/file", b"").expect("written");
        tree.write("mine", b"").expect("written");
        let guard = guard("default = \"RW\"\n[[rule]]\npaths = [\"secret\"]\nlevel = \"none\"\n");
        for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
            let refused = |to: &str| {
                let permissions = TreePermissions::new(&guard, &tree);
                permissions.rename(&path("mine"), &path(to), mode).expect_err("refused").to_string()
            };
            assert_eq!(refused("secret/file").replace("file", "none"), refused("secret/none"), "{mode:?}");
        }
    }
}
