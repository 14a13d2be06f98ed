//! Listing of a directory, or of everything below it, in an order from which any place can be taken up again.

use amalgam_engine::work::Stat;
use amalgam_engine::{EntryKind, Error as EngineError, Name, TreePath, WorkingTree};
use amalgam_proto::v1;

use super::path::parse_path;
use super::stat::{Detail, file_stat};
use super::{Files, Glob};
use crate::error::Result;

impl Files {
    /// Returns a page of the entries in a directory, or of all below it.
    pub(crate) fn list(&self, request: &v1::ListFilesRequest, limit: usize) -> Result<v1::ListFilesResponse> {
        let directory = parse_path(&request.path)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(parse_path(token)?),
        };
        let read = self.read_tree(&request.workspace, &request.revision)?;
        let found = read.stat(&directory)?.ok_or_else(|| read.not_found(&directory))?;
        if found.kind != EntryKind::Directory {
            return Err(EngineError::NotADirectory { path: directory }.into());
        }
        let is_listed = |path: &TreePath| !(request.without_git && path.is_in_git());
        let (mut files, mut next, mut count) = (Vec::new(), String::new(), self.context.store.path_count());
        let enter = |path: &TreePath| request.recursive && is_listed(path) && read.is_entered(path);
        walk(&read.tree, &directory, after.as_ref(), enter, |path, stat| {
            count.add(1)?;
            if !is_listed(path) || !read.is_visible(path, stat)? {
                return Ok(true);
            }
            if files.len() == limit {
                next = files.last().map(|last: &v1::FileStat| last.path.clone()).unwrap_or_default();
                return Ok(false);
            }
            files.push(file_stat(&read.tree, path, stat, self.owner(), Detail::Listed)?);
            Ok(true)
        })?;
        Ok(v1::ListFilesResponse { files, next_page_token: next })
    }

    /// Calls `found` for each entry that matches a glob.
    pub(crate) fn glob(
        &self,
        request: &v1::GlobFilesRequest,
        glob: &Glob,
        mut found: impl FnMut(v1::FileStat) -> Result<()>,
    ) -> Result<()> {
        let top = parse_path(&request.path)?;
        let read = self.read_tree(&request.workspace, &request.revision)?;
        read.stat(&top)?.ok_or_else(|| read.not_found(&top))?;
        let mut left = if request.limit == 0 { u32::MAX } else { request.limit };
        let is_searched = |path: &TreePath| !(request.without_git && path.is_in_git());
        let mut count = self.context.store.path_count();
        let enter = |path: &TreePath| is_searched(path) && read.is_entered(path);
        walk(&read.tree, &top, None, enter, |path, stat| {
            count.add(1)?;
            if is_searched(path) && glob.matches(path) && read.is_visible(path, stat)? {
                found(file_stat(&read.tree, path, stat, self.owner(), Detail::Listed)?)?;
                left -= 1;
            }
            Ok(left > 0)
        })
    }
}

/// A directory that is being listed.
struct OpenDirectory {
    path: TreePath,
    /// The last name that was visited.
    after: Option<Name>,
}

/// Visits the entries below a directory, each directory before its contents, until `visit` returns false. `after` is a path below the
/// directory behind which the walk begins; it need not exist any more. `enter` decides which directories are entered.
pub(super) fn walk(
    tree: &WorkingTree,
    directory: &TreePath,
    after: Option<&TreePath>,
    mut enter: impl FnMut(&TreePath) -> bool,
    mut visit: impl FnMut(&TreePath, &Stat) -> Result<bool>,
) -> Result<()> {
    let mut open = open_at(tree, directory, after, &mut enter)?;
    'directories: while let Some(here) = open.last_mut() {
        let path = here.path.clone();
        let listing = match &here.after {
            Some(after) => tree.list_from(&path, after)?,
            None => tree.list(&path)?,
        };
        let last = here.after.clone();
        for found in listing {
            let (name, stat) = found?;
            if last.as_ref() == Some(&name) {
                continue;
            }
            let child = path.join(&name);
            if !visit(&child, &stat)? {
                return Ok(());
            }
            if stat.kind == EntryKind::Directory && enter(&child) {
                here.after = Some(name);
                open.push(OpenDirectory { path: child, after: None });
                continue 'directories;
            }
        }
        open.pop();
    }
    Ok(())
}

/// Returns the directories that are open when a walk has visited a path.
fn open_at(
    tree: &WorkingTree,
    directory: &TreePath,
    after: Option<&TreePath>,
    enter: &mut impl FnMut(&TreePath) -> bool,
) -> Result<Vec<OpenDirectory>> {
    let mut open = vec![OpenDirectory { path: directory.clone(), after: None }];
    let rest = after.and_then(|after| after.below(directory)).and_then(|rest| TreePath::new(rest).ok());
    let mut here = directory.clone();
    for name in rest.iter().flat_map(TreePath::names) {
        if let Some(last) = open.last_mut() {
            last.after = Some(name.clone());
        }
        here = here.join(&name);
        let is_directory = tree.stat(&here)?.is_some_and(|stat| stat.kind == EntryKind::Directory);
        if !is_directory || !enter(&here) {
            break;
        }
        open.push(OpenDirectory { path: here.clone(), after: None });
    }
    Ok(open)
}

#[cfg(test)]
mod tests {
    use amalgam_engine::Store;

    use super::*;

    fn listed(tree: &WorkingTree, after: Option<&str>, limit: usize) -> Vec<String> {
        let (mut found, after) = (Vec::new(), after.map(|after| TreePath::new(after).expect("a path")));
        let visit = |path: &TreePath, _: &Stat| {
            found.push(path.to_string());
            Ok(found.len() < limit)
        };
        walk(tree, &TreePath::root(), after.as_ref(), |_| true, visit).expect("listed");
        found
    }

    #[test]
    fn pages_of_a_recursive_list_are_the_list_whatever_their_size() {
        let mut tree = WorkingTree::new(&Store::in_memory());
        for path in ["a/b/c", "a/d", "a-b/x", "z", "a/b/e"] {
            let parent = TreePath::new(path).expect("a path").split_last().expect("not the root").0;
            tree.create_directories(&parent).expect("made");
            tree.write(path, b"").expect("written");
        }
        let all = listed(&tree, None, usize::MAX);
        assert_eq!(all, ["a", "a/b", "a/b/c", "a/b/e", "a/d", "a-b", "a-b/x", "z"]);
        for size in 1..=all.len() {
            let (mut paged, mut after) = (Vec::new(), None::<String>);
            loop {
                let page = listed(&tree, after.as_deref(), size);
                let Some(last) = page.last().cloned() else { break };
                after = Some(last);
                paged.extend(page);
            }
            assert_eq!(paged, all, "pages of {size}");
        }
        tree.remove_all("a/b").expect("removed");
        assert_eq!(listed(&tree, Some("a/b/c"), 9), ["a/d", "a-b", "a-b/x", "z"], "behind a path that is gone");
    }
}
