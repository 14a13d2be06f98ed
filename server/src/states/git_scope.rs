//! The paths that restores, undo and redo leave alone: `.git`, at any depth.
//!
//! Git moves its index and its references by itself, so they are outside of every comparison that decides what undo, redo, restore
//! and status do. Snapshots hold them all the same. `--with-git`, or the setting `workspace.git`, takes them in.

use amalgam_engine::workspace::{Taken, WorkspaceName, with_paths_of};
use amalgam_engine::{Change, DiffOptions, Entry, EntryKind, RootId, TreePath, WorkingTree, diff_roots, entry_at};

use amalgam_proto::Reason;

use super::States;
use crate::error::{Error, Result};

/// The lock files of Git commands that are looked for in a mount.
const LOCKS: [&str; 4] = [".git/index.lock", ".git/HEAD.lock", ".git/packed-refs.lock", ".git/config.lock"];

/// Whether `.git` is compared and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitScope {
    /// It is neither compared nor written.
    LeaveAlone,
    /// It is a directory like any other.
    Include,
}

impl GitScope {
    pub(crate) fn includes(self) -> bool {
        self == Self::Include
    }

    pub(crate) fn covers(self, path: &TreePath) -> bool {
        self.includes() || !path.is_in_git()
    }
}

/// Returns the error for an operation that would write a repository in which a Git command works.
pub(crate) fn git_locked(lock: &TreePath) -> Error {
    let message = format!(
        "{lock} is there: a git command works in this repository, and this would write its .git; run it again when git has ended (if \
         none runs, remove {lock}); nothing was changed"
    );
    Error::new(Reason::GitLocked, message)
}

impl States {
    /// Refuses an operation that writes `.git` if a tree holds the lock of a Git command that works there.
    pub(crate) fn refuse_git_locks(&self, tree: RootId, git: GitScope) -> Result<()> {
        if !git.includes() {
            return Ok(());
        }
        let root = self.context.store.root(tree)?;
        for lock in LOCKS {
            let lock = TreePath::new(lock).expect("a path");
            if entry_at(&self.context.store, &root, &lock)?.is_some() {
                return Err(git_locked(&lock));
            }
        }
        Ok(())
    }

    /// Returns the scope of a call: `.git` is included if the request or the workspace's setting includes it.
    pub(crate) fn git_scope(&self, workspace: &WorkspaceName, with_git: bool) -> Result<GitScope> {
        let is_included = with_git || self.context.settings()?.includes_git(workspace.as_str());
        Ok(if is_included { GitScope::Include } else { GitScope::LeaveAlone })
    }

    /// Returns the scope that a workspace's setting selects.
    pub(crate) fn default_git_scope(&self, workspace: &WorkspaceName) -> Result<GitScope> {
        self.git_scope(workspace, false)
    }

    /// Returns whether two trees differ in this scope, except for times. A directory with nothing but a `.git` in it counts as
    /// part of the `.git`.
    pub(crate) fn differs(&self, before: Option<RootId>, after: Option<RootId>, git: GitScope) -> Result<bool> {
        self.differs_except(before, after, git, |_| Ok(false))
    }

    /// Returns whether two trees differ like [`differs`](Self::differs), apart from changes that do not count.
    pub(crate) fn differs_except(
        &self,
        before: Option<RootId>,
        after: Option<RootId>,
        git: GitScope,
        mut is_excepted: impl FnMut(&Change) -> Result<bool>,
    ) -> Result<bool> {
        if before == after {
            return Ok(false);
        }
        // Directories that came or went, for which nothing in `.git` has been seen yet.
        let mut unexplained: Vec<TreePath> = Vec::new();
        for change in diff_roots(&self.context.store, before, after, DiffOptions::default())? {
            let change = change?;
            if is_excepted(&change)? {
                continue;
            }
            // Paths come in order: what lies in a directory follows it.
            if unexplained.last().is_some_and(|last| change.path.below(last).is_none()) {
                return Ok(true);
            }
            if !git.covers(&change.path) {
                unexplained.clear();
                continue;
            }
            let is_directory = |entry: &Entry| entry.kind() == EntryKind::Directory;
            match (&change.before, &change.after) {
                (None, Some(entry)) | (Some(entry), None) if !git.includes() && is_directory(entry) => {
                    unexplained.push(change.path);
                }
                _ => return Ok(true),
            }
        }
        Ok(!unexplained.is_empty())
    }

    /// Counts the paths in `.git` that differ between two trees; 0 if `.git` is in scope.
    pub(crate) fn count_left_alone(&self, wanted: RootId, there: RootId, git: GitScope) -> Result<u64> {
        if git.includes() || wanted == there {
            return Ok(0);
        }
        let mut count = 0;
        for change in diff_roots(&self.context.store, Some(wanted), Some(there), DiffOptions::default())? {
            count += u64::from(change?.path.is_in_git());
        }
        Ok(count)
    }

    /// Counts the paths in `.git` below some paths that differ between two trees, except in a `.git` that is one of these paths or
    /// holds one; 0 if `.git` is in scope.
    pub(crate) fn count_left_alone_below(
        &self,
        paths: &[TreePath],
        wanted: RootId,
        there: RootId,
        git: GitScope,
    ) -> Result<u64> {
        if git.includes() || wanted == there {
            return Ok(0);
        }
        let mut count = 0;
        for change in diff_roots(&self.context.store, Some(wanted), Some(there), DiffOptions::default())? {
            let path = change?.path;
            let mut above = paths.iter().filter(|asked| path.below(asked).is_some()).peekable();
            let is_left = path.is_in_git() && above.peek().is_some();
            count += u64::from(is_left && !above.any(TreePath::is_in_git));
        }
        Ok(count)
    }

    /// Returns a tree with every `.git` as another tree has it; `None` if the two do not differ there, or `.git` is in scope.
    pub(crate) fn with_git_of(&self, tree: RootId, other: RootId, git: GitScope) -> Result<Option<WorkingTree>> {
        if git.includes() || tree == other {
            return Ok(None);
        }
        let store = &self.context.store;
        let mut paths: Vec<TreePath> = Vec::new();
        for change in diff_roots(store, Some(tree), Some(other), DiffOptions::default())? {
            let path = change?.path;
            // Paths come in order: what lies in a `.git` follows it.
            if path.is_in_git() && paths.last().is_none_or(|last| path.below(last).is_none()) {
                paths.push(outermost_git(&path));
            }
        }
        match paths.is_empty() {
            true => Ok(None),
            false => Ok(with_paths_of(store, tree, other, &paths, Taken::AsItWas).map(Some)?),
        }
    }
}

/// Removes directories from a sorted list of paths if they are listed only because of a `.git` in the list: they come and go with
/// it.
pub(crate) fn without_holders_of_git(paths: &mut Vec<TreePath>) {
    let in_git: Vec<_> = paths.iter().filter(|path| path.is_in_git()).cloned().collect();
    if in_git.is_empty() {
        return;
    }
    paths.retain(|path| {
        let next = in_git.get(in_git.partition_point(|git| git < path));
        path.is_in_git() || next.is_none_or(|next| next.below(path).is_none())
    });
}

/// Returns the outermost `.git` that contains a path.
fn outermost_git(path: &TreePath) -> TreePath {
    path.ancestors().take_while(TreePath::is_in_git).last().unwrap_or_else(|| path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_is_a_whole_name_at_any_depth() {
        let path = |text: &str| TreePath::new(text).expect("a path");
        for (text, outermost) in [(".git/index", ".git"), ("a/.git/modules/b/.git/HEAD", "a/.git"), (".git", ".git")] {
            assert!(!GitScope::LeaveAlone.covers(&path(text)) && GitScope::Include.covers(&path(text)), "{text}");
            assert_eq!(outermost_git(&path(text)), path(outermost));
        }
        for text in [".gitignore", "a/.github/x", "git", "a.git/HEAD"] {
            assert!(GitScope::LeaveAlone.covers(&path(text)), "{text}");
        }
    }
}
