//! Prevents Git and an operation that writes `.git` from working in one repository at the same time.

use std::collections::BTreeSet;

use amalgam_engine::object::Node;
use amalgam_engine::{Entry, RootId, TreePath, entry_at};
use amalgam_materializer::{GitLocks, Plan, Staging, find_git_lock};

use super::{Directories, LockedDirectory};
use crate::error::Result;
use crate::states::{GitScope, git_locked};

/// The name of a repository.
const GIT: &[u8] = b".git";

impl Directories {
    /// Refuses an operation that writes `.git` while a Git command works in the repository at the top of a directory.
    pub(super) fn refuse_git_at_work(&self, locked: &LockedDirectory, git: GitScope) -> Result<()> {
        let repository = TreePath::new(GIT).expect("a name is a path");
        match git.includes() {
            true => refuse_lock_in(locked, &repository),
            false => Ok(()),
        }
    }

    /// Takes the `index.lock` of each repository that a plan writes. Refuses if a Git command works in one.
    pub(super) fn lock_repositories(
        &self,
        locked: &LockedDirectory,
        plan: &Plan,
        target: RootId,
        staging: &Staging<'_>,
    ) -> Result<GitLocks> {
        let written: BTreeSet<TreePath> =
            plan.changes.iter().filter_map(|change| repository_of(&change.path)).collect();
        let target = self.context.store.root(target)?;
        let mut kept = Vec::new();
        for repository in written {
            refuse_lock_in(locked, &repository)?;
            // A repository that is removed completely must be empty in the end.
            let entry = entry_at(&self.context.store, &target, &repository)?;
            if matches!(entry, Some(Entry { node: Node::Directory(_), .. })) {
                kept.push(repository);
            }
        }
        GitLocks::take(&locked.host, &kept, staging)?.map_err(|lock| git_locked(&lock))
    }
}

fn refuse_lock_in(locked: &LockedDirectory, repository: &TreePath) -> Result<()> {
    match find_git_lock(&locked.host, repository)? {
        Some(lock) => Err(git_locked(&lock)),
        None => Ok(()),
    }
}

/// Returns the outermost `.git` that a path is or lies in; `None` if there is none.
fn repository_of(path: &TreePath) -> Option<TreePath> {
    let mut here = TreePath::root();
    for name in path.names() {
        here = here.join(&name);
        if name.as_bytes() == GIT {
            return Some(here);
        }
    }
    None
}
