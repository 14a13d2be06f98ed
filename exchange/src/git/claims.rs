//! Checks the claim of a snapshot that it was imported from a git commit.
//!
//! The claim is metadata, which anyone who commits can write. It holds if the repository has the commit, and if the
//! commit's tree has the entries that an export of the snapshot would write.

use std::collections::{HashMap, HashSet};

use amalgam_engine::object::{Content, DirectoryRef};
use amalgam_engine::{Name, ObjectId, Progress, Store, TreePath, content, list_directory};

use super::commit::Commit;
use super::git_entry::{GitEntry, contents, git_entry};
use super::objects::{BlobHasher, MODE_GITLINK, MODE_SYMLINK, MODE_TREE, Oid, Reader, TreeEntries};
use crate::error::Result;
use crate::report::Report;

const READ_BYTES: u64 = 4 << 20;
const EXECUTABLE: u32 = 0o100;
/// Ids of blobs and pairs of equal trees that are remembered.
const REMEMBERED_MAX: usize = 1_000_000;

/// Compares trees of a store with trees of a repository. Remembers equal ones, so that snapshots that share them are
/// quick.
pub(super) struct ClaimCheck<'a> {
    store: &'a Store,
    reader: Reader,
    equal: HashSet<(ObjectId, Oid)>,
    blobs: HashMap<(Content, u64), Oid>,
}

impl<'a> ClaimCheck<'a> {
    pub(super) fn new(store: &'a Store, reader: Reader) -> Self {
        Self { store, reader, equal: HashSet::new(), blobs: HashMap::new() }
    }

    /// Returns whether a commit of the repository has the tree of a snapshot. False also for a commit that is absent or
    /// damaged.
    pub(super) fn has_tree_of(
        &mut self,
        commit: Oid,
        root: amalgam_engine::RootId,
        progress: &Progress,
    ) -> Result<bool> {
        let Ok(tree) = self.reader.commit(commit).and_then(|raw| Commit::parse(commit, &raw)).map(|found| found.tree)
        else {
            return Ok(false);
        };
        let directory = contents(&self.store.root(root)?.directory);
        let mut open = vec![(TreePath::root(), directory, tree)];
        let (mut count, mut compared) = (self.store.path_count(), HashSet::new());
        while let Some((path, directory, tree)) = open.pop() {
            progress.check()?;
            let key = directory.map(|directory| (directory.id.object(), tree));
            if key.is_some_and(|key| self.equal.contains(&key) || compared.contains(&key)) {
                continue;
            }
            let Ok(wanted) = self.reader.tree(tree) else { return Ok(false) };
            let mut missing = self.not_empty(&wanted);
            for item in list_directory(self.store, directory)? {
                let (name, entry) = item?;
                count.add(1)?;
                let path = path.join(&name);
                let Some(entry) = git_entry(self.store, &path, &name, &entry, &mut Report::default())? else {
                    continue;
                };
                let found = wanted.get(&name).filter(|_| missing.remove(&name));
                match (entry, found) {
                    (GitEntry::Directory(below), Some(found)) if found.mode == MODE_TREE => {
                        open.push((path, below, found.oid));
                    }
                    // A directory of nothing that git can hold.
                    (GitEntry::Directory(below), None) if !self.has_entries(&path, below, progress)? => {}
                    (GitEntry::Directory(_), _) | (_, None) => return Ok(false),
                    (entry, Some(found)) => {
                        if !self.is_entry(&entry, found.mode, found.oid, progress)? {
                            return Ok(false);
                        }
                    }
                }
            }
            if !missing.is_empty() {
                return Ok(false);
            }
            compared.extend(key);
        }
        if self.equal.len() + compared.len() > REMEMBERED_MAX {
            self.equal.clear();
        }
        // Only now: a directory is equal if everything below it is.
        self.equal.extend(compared);
        Ok(true)
    }

    /// Returns the names in a tree, without those of empty trees: an export leaves empty directories out.
    fn not_empty(&self, tree: &TreeEntries) -> HashSet<Name> {
        let is_empty = |oid: Oid| self.reader.tree(oid).is_ok_and(|below| below.is_empty());
        let entries = tree.iter().filter(|(_, entry)| entry.mode != MODE_TREE || !is_empty(entry.oid));
        entries.map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether an export would write an entry below a directory.
    fn has_entries(&self, path: &TreePath, directory: Option<DirectoryRef>, progress: &Progress) -> Result<bool> {
        let mut open = vec![(path.clone(), directory)];
        let mut count = self.store.path_count();
        while let Some((path, directory)) = open.pop() {
            progress.check()?;
            for item in list_directory(self.store, directory)? {
                let (name, entry) = item?;
                count.add(1)?;
                let path = path.join(&name);
                match git_entry(self.store, &path, &name, &entry, &mut Report::default())? {
                    None => {}
                    Some(GitEntry::Directory(below)) => open.push((path, below)),
                    Some(_) => return Ok(true),
                }
            }
        }
        Ok(false)
    }

    fn is_entry(&mut self, entry: &GitEntry, mode: u32, oid: Oid, progress: &Progress) -> Result<bool> {
        let is_file = mode & 0o170_000 == 0o100_000;
        match entry {
            GitEntry::File { is_executable, size, content } => Ok(is_file
                && *is_executable == (mode & EXECUTABLE != 0)
                && self.is_blob(*content, *size, oid, progress)?),
            GitEntry::OddSymlink { size, content } => {
                Ok(mode == MODE_SYMLINK && self.is_blob(*content, *size, oid, progress)?)
            }
            GitEntry::Symlink(target) => {
                let mut hasher = BlobHasher::new(target.len() as u64);
                hasher.update(target);
                Ok(mode == MODE_SYMLINK && hasher.finish() == oid)
            }
            GitEntry::Gitlink(commit) => Ok(mode == MODE_GITLINK && *commit == oid),
            GitEntry::Directory(_) => Ok(false),
        }
    }

    /// Returns whether a blob of the repository has the bytes of a file. Sizes are compared first: a file may be a hole
    /// of exabytes.
    fn is_blob(&mut self, content: Content, size: u64, oid: Oid, progress: &Progress) -> Result<bool> {
        if let Some(known) = self.blobs.get(&(content, size)) {
            return Ok(*known == oid);
        }
        if self.reader.size(oid).ok() != Some(size) {
            return Ok(false);
        }
        let (mut hasher, mut done) = (BlobHasher::new(size), 0);
        while done < size {
            progress.check()?;
            let length = (size - done).min(READ_BYTES);
            hasher.update(&content::read(self.store, &content, size, done, length)?);
            done += length;
        }
        let found = hasher.finish();
        if self.blobs.len() >= REMEMBERED_MAX {
            self.blobs.clear();
        }
        self.blobs.insert((content, size), found);
        Ok(found == oid)
    }
}
