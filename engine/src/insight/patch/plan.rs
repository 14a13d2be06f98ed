//! Decides which files of a change go into a patch and which are omitted.

use std::collections::BTreeSet;

use super::options::{LeftOut, Omission, PatchOptions};
use crate::diff::{Change, MetadataChange, What};
use crate::directory;
use crate::error::Result;
use crate::id::RootId;
use crate::insight::body;
use crate::insight::similar::DetectedChange;
use crate::name::TreePath;
use crate::object::{DirectoryRef, Entry, Node, Xattrs};
use crate::store::Store;

/// One `diff --git` section of a patch.
pub(super) struct Step {
    pub(super) before: Option<Side>,
    pub(super) after: Option<Side>,
    /// The similarity of a rename in percent.
    pub(super) similarity: Option<u8>,
}

/// One side of a section: a file or a symlink.
pub(super) struct Side {
    pub(super) path: TreePath,
    pub(super) entry: Entry,
}

impl Step {
    /// Returns the path that determines the order in the patch.
    fn path(&self) -> Option<&TreePath> {
        self.after.as_ref().or(self.before.as_ref()).map(|side| &side.path)
    }

    /// Returns the number of bytes that must be read and rendered.
    pub(super) fn bytes(&self) -> u64 {
        [&self.before, &self.after].into_iter().flatten().map(|side| body::size(&side.entry)).sum()
    }
}

impl Side {
    /// Returns the mode as Git writes it.
    pub(super) fn mode(&self) -> &'static str {
        match (&self.entry.node, is_executable(&self.entry)) {
            (Node::Symlink(_), _) => "120000",
            (_, true) => "100755",
            (_, false) => "100644",
        }
    }
}

fn is_executable(entry: &Entry) -> bool {
    entry.mode & 0o100 != 0
}

/// Converts changes into steps and omissions.
pub(super) struct Plan<'a> {
    store: &'a Store,
    after: Option<RootId>,
    options: &'a PatchOptions,
    pub(super) steps: Vec<Step>,
    left_out: Vec<LeftOut>,
    /// Directories from which an entry was removed.
    emptied: BTreeSet<TreePath>,
}

impl<'a> Plan<'a> {
    pub(super) fn new(store: &'a Store, after: Option<RootId>, options: &'a PatchOptions) -> Self {
        Self { store, after, options, steps: Vec::new(), left_out: Vec::new(), emptied: BTreeSet::new() }
    }

    /// Adds a change.
    pub(super) fn take(&mut self, found: DetectedChange) -> Result<()> {
        let DetectedChange { change, similarity } = found;
        let Change { path, what, metadata, before, after } = change;
        match (what, before, after) {
            (What::Renamed { from }, Some(before), Some(after)) => match (&before.node, &after.node) {
                (Node::Directory(_), Node::Directory(contents)) => self.moved(&from, &path, *contents, &after)?,
                _ => {
                    self.lost(&path, true, Some(&before), &after, metadata);
                    self.step(Some((from, before)), Some((path, after)), similarity);
                }
            },
            (What::KindChanged, before, after) => {
                if let Some(before) = before {
                    self.one(&path, before, false);
                }
                if let Some(after) = after {
                    self.one(&path, after, true);
                }
            }
            (_, Some(before), None) => self.one(&path, before, false),
            (_, None, Some(after)) => self.one(&path, after, true),
            (_, Some(before), Some(after)) => {
                let differ = before.node != after.node && !matches!(after.node, Node::Directory(_));
                self.lost(&path, differ, Some(&before), &after, metadata);
                match after.node {
                    Node::File { .. } | Node::Symlink(_)
                        if differ || is_executable(&before) != is_executable(&after) =>
                    {
                        self.step(Some((path.clone(), before)), Some((path, after)), None);
                    }
                    Node::File { .. } | Node::Symlink(_) | Node::Directory(_) => {}
                    _ if differ => self.omit(&path, Omission::Kind(after.kind())),
                    _ => {}
                }
            }
            (_, None, None) => {}
        }
        Ok(())
    }

    /// Returns the omissions, sorted by path.
    pub(super) fn finish(mut self) -> Result<Vec<LeftOut>> {
        for path in std::mem::take(&mut self.emptied) {
            // Git removes a directory with its last file.
            if let Some(Entry { node: Node::Directory(None), .. }) = self.find(&path)? {
                self.omit(&path, Omission::EmptyDirectory);
            }
        }
        self.left_out.sort_by(|a, b| a.path.cmp(&b.path));
        self.left_out.dedup();
        Ok(self.left_out)
    }

    /// Returns an entry of the tree after.
    fn find(&self, path: &TreePath) -> Result<Option<Entry>> {
        let Some(root) = self.after else { return Ok(None) };
        let mut entry = self.store.root(root)?.directory.clone();
        for name in path.names() {
            let Node::Directory(contents) = entry.node else { return Ok(None) };
            match directory::get(self.store, contents, &name)? {
                Some(below) => entry = below,
                None => return Ok(None),
            }
        }
        Ok(Some(entry))
    }

    /// Adds a single added or removed entry.
    fn one(&mut self, path: &TreePath, entry: Entry, came: bool) {
        match entry.node {
            Node::Directory(None) => self.omit(path, Omission::EmptyDirectory),
            Node::Directory(Some(_)) | Node::File { .. } | Node::Symlink(_) => {}
            _ => return self.omit(path, Omission::Kind(entry.kind())),
        }
        if came {
            self.lost(path, true, None, &entry, MetadataChange::default());
        }
        if matches!(entry.node, Node::Directory(_)) {
            return;
        }
        let side = Some((path.clone(), entry));
        let (before, after) = if came { (None, side) } else { (side, None) };
        self.step(before, after, None);
    }

    /// Adds a directory that moved as a whole: each file below it is a rename.
    fn moved(&mut self, from: &TreePath, to: &TreePath, contents: Option<DirectoryRef>, entry: &Entry) -> Result<()> {
        let first = self.steps.len();
        self.lost(to, true, None, entry, MetadataChange::default());
        let mut open = vec![(from.clone(), to.clone(), contents)];
        let mut count = self.store.held_path_count();
        while let Some((from, to, contents)) = open.pop() {
            for item in directory::list(self.store, contents)? {
                let item = item?;
                count.add(1)?;
                let (from, to) = (from.join(&item.name), to.join(&item.name));
                match item.entry.node {
                    Node::Directory(Some(below)) => {
                        self.lost(&to, true, None, &item.entry, MetadataChange::default());
                        open.push((from, to, Some(below)));
                    }
                    Node::File { size: 1.., .. } | Node::Symlink(_) => {
                        self.lost(&to, true, None, &item.entry, MetadataChange::default());
                        self.step(Some((from, item.entry.clone())), Some((to, item.entry)), Some(100));
                    }
                    // A rename in Git needs contents.
                    _ => {
                        self.one(&from, item.entry.clone(), false);
                        self.one(&to, item.entry, true);
                    }
                }
            }
        }
        self.steps[first..].sort_by(|a, b| a.path().cmp(&b.path()));
        Ok(())
    }

    /// Adds a step with those sides that belong into the patch.
    fn step(&mut self, before: Option<(TreePath, Entry)>, after: Option<(TreePath, Entry)>, similarity: Option<u8>) {
        let (before, after) = (self.admit(before), self.admit(after));
        let moved = match (&before, &after) {
            (Some(before), Some(after)) => before.path != after.path,
            (None, None) => return,
            _ => false,
        };
        let bytes = [&before, &after].into_iter().flatten().map(|side| body::size(&side.entry)).max().unwrap_or(0);
        let differ = before.as_ref().map(|side| &side.entry.node) != after.as_ref().map(|side| &side.entry.node);
        if differ && bytes > self.options.file_bytes_max {
            if let Some(side) = after.as_ref().or(before.as_ref()) {
                self.omit(&side.path.clone(), Omission::TooLarge { bytes });
            }
            return;
        }
        if let Some(before) = before.as_ref().filter(|_| moved || after.is_none()) {
            let parents = std::iter::successors(before.path.split_last(), |(parent, _)| parent.split_last());
            self.emptied.extend(parents.map(|(parent, _)| parent).filter(|parent| !parent.is_root()));
        }
        self.steps.push(Step { before, after, similarity: similarity.filter(|_| moved) });
    }

    /// Returns a side if its path is selected and Git accepts it.
    fn admit(&mut self, side: Option<(TreePath, Entry)>) -> Option<Side> {
        let (path, entry) = side?;
        if !self.wanted(&path) {
            return None;
        }
        if path.names().any(|name| is_git_directory(name.as_bytes())) {
            self.omit(&path, Omission::GitDirectory);
            return None;
        }
        Some(Side { path, entry })
    }

    fn wanted(&self, path: &TreePath) -> bool {
        self.options.paths.is_empty() || self.options.paths.iter().any(|prefix| path.below(prefix).is_some())
    }

    fn omit(&mut self, path: &TreePath, why: Omission) {
        if self.wanted(path) {
            self.left_out.push(LeftOut { path: path.clone(), why });
        }
    }

    /// Lists attributes that Git does not store and that changed or are lost because Git creates the entry anew.
    fn lost(&mut self, path: &TreePath, anew: bool, before: Option<&Entry>, after: &Entry, metadata: MetadataChange) {
        let kept_mode = match after.node {
            Node::File { .. } if is_executable(after) => 0o755,
            Node::File { .. } => 0o644,
            Node::Directory(_) => 0o755,
            _ => after.mode,
        };
        let unseen = before.is_some_and(|before| {
            matches!(after.node, Node::Directory(_)) || is_executable(before) == is_executable(after)
        });
        let mode = (anew || metadata.mode) && after.mode != kept_mode || metadata.mode && unseen;
        for (lost, why) in [
            (mode, Omission::Mode),
            (metadata.mtime, Omission::Time),
            (metadata.owner || anew && after.owner().is_some(), Omission::Owner),
            (metadata.xattrs || anew && *after.xattrs() != Xattrs::None, Omission::Xattrs),
            (metadata.link || anew && after.link().is_some(), Omission::HardLink),
        ] {
            if lost {
                self.omit(path, why);
            }
        }
    }
}

/// Returns whether Git treats a name as its own directory on any platform: `.git`, `GIT~1`, `.git . .`, `.git:stream`.
fn is_git_directory(name: &[u8]) -> bool {
    let lower = name.to_ascii_lowercase();
    let rest = lower.strip_prefix(b".git").or_else(|| lower.strip_prefix(b"git~1"));
    rest.is_some_and(|rest| {
        let behind = rest.iter().position(|byte| !matches!(byte, b' ' | b'.'));
        behind.is_none_or(|at| rest[at] == b':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gits_own_directory_are_known() {
        for name in [".git", ".GIT", "git~1", ".git ", ".git..", ".git::$INDEX_ALLOCATION"] {
            assert!(is_git_directory(name.as_bytes()), "{name}");
        }
        for name in [".gitignore", "git", ".github", ".gitx ", "a.git", "git~2"] {
            assert!(!is_git_directory(name.as_bytes()), "{name}");
        }
    }
}
