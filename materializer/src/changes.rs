//! Finds the differences between a directory and the stored tree that its index describes. Writes nothing to the store.
//!
//! Names whose stamp differs are candidates. Candidate files are compared with their stored content, by size and then byte by
//! byte. An equal file is no change, and the index gets its new stamp so that it is not read again. Times alone are no change.

use amalgam_engine::object::{Owner, Root};
use amalgam_engine::{Entry, Name, Store, TreePath, entry_at};
use parking_lot::Mutex;
use rustix::fs::FileType;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::capture::{
    Edit, ScannedDirectory, Scanner, Slot, State, batches, check_index, counts, run_jobs, take_edits,
};
use crate::capture_options::{CaptureOptions, Counts};
use crate::compare::{CompareResult, ContentMatch, compare};
use crate::error::Result;
use crate::host::{HostDir, is_absent};
use crate::index::{Index, IndexEntry, Leaf, Trust};
use crate::renames::{DeletedPaths, Rename, find_renames};
use crate::report::{Notice, Why};
use crate::rights::lacks_set_id;
use crate::stamp::Stamp;

/// Differences between a directory and a tree; each list is sorted by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Paths whose bytes, kind, permissions, owner or attributes differ.
    pub modified: Vec<TreePath>,
    /// New paths: a directory, and all below it.
    pub added: Vec<TreePath>,
    /// Deleted paths: a directory, and all below it.
    pub deleted: Vec<TreePath>,
    /// Those of `modified` that differ only in permissions or owner.
    pub attributes: Vec<TreePath>,
    /// Those of `added` and `deleted` that are directories.
    pub directories: Vec<TreePath>,
    /// Files of `deleted` that are in `added` with the same contents.
    pub renamed: Vec<Rename>,
    /// Whether hard links may have been made or broken. Only a capture tells which.
    pub may_be_relinked: bool,
    /// Paths that could not be compared, sorted by path.
    pub notices: Vec<Notice>,
    /// Contents of the stored tree, and the cost of the comparison.
    pub counts: Counts,
}

impl Changes {
    /// Returns whether nothing differs.
    pub fn is_empty(&self) -> bool {
        self.modified.is_empty() && self.added.is_empty() && self.deleted.is_empty()
    }
}

/// Compares a directory with the tree that its index describes.
pub fn detect_changes(
    store: &Store,
    directory: &HostDir,
    index: &mut Index,
    job: &CaptureOptions<'_>,
) -> Result<Changes> {
    let top = check_index(store, directory, index)?;
    let _kept = index.root().map(|root| store.hold(root)).transpose()?;
    let scanner = Scanner::new(directory, index, job, &top);
    scanner.run()?;
    let mut scan = scanner.finish();
    let edits = take_edits(&mut scan.slots, index);
    let base = index.root().map(|root| store.root(root)).transpose()?;
    let comparison = Comparison {
        store,
        host: directory,
        index,
        job,
        base,
        owner: Owner { uid: top.uid, gid: top.gid },
        slots: &scan.slots,
        found: Mutex::new(Differences::default()),
    };
    run_jobs(comparison.jobs(edits), job.progress, |job, _| comparison.work(job))?;
    let (base, Differences { mut changes, learned, read, added_files }) = comparison.finish();
    for (at, name, leaf) in learned {
        if let Some(held) = index.directory_mut(at).get_mut(&name) {
            *held = IndexEntry::Leaf(leaf);
        }
    }
    changes.counts = counts(index, scan.ignored, read);
    changes.notices.append(&mut scan.notices);
    changes.notices.sort_by(|a, b| a.path.cmp(&b.path));
    let Changes { modified, added, deleted, attributes, directories, .. } = &mut changes;
    for list in [modified, added, deleted, attributes, directories] {
        list.sort();
        list.dedup();
    }
    // A directory that exists again wins over an earlier result for its name.
    changes.deleted.retain(|path| changes.added.binary_search(path).is_err());
    if let Some(base) = base {
        changes.renamed = {
            let deleted = DeletedPaths { paths: &changes.deleted, directories: &changes.directories };
            find_renames(store, directory, &base, deleted, added_files, job.progress)?
        };
    }
    Ok(changes)
}

struct Comparison<'a> {
    store: &'a Store,
    host: &'a HostDir,
    index: &'a Index,
    job: &'a CaptureOptions<'a>,
    base: Option<Arc<Root>>,
    owner: Owner,
    slots: &'a [Slot],
    found: Mutex<Differences>,
}

#[derive(Default)]
struct Differences {
    changes: Changes,
    learned: Vec<(usize, Name, Leaf)>,
    read: (u64, u64),
    added_files: Vec<(TreePath, Stamp)>,
}

struct Job {
    slot: usize,
    /// Whether the directory itself is compared.
    itself: bool,
    edits: Vec<Edit>,
}

impl Comparison<'_> {
    /// Returns the stored tree, and the differences.
    fn finish(self) -> (Option<Arc<Root>>, Differences) {
        (self.base, self.found.into_inner())
    }

    fn jobs(&self, edits: Vec<Vec<Edit>>) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (slot, edits) in edits.into_iter().enumerate() {
            let is_found = matches!(self.slots[slot].state, State::Scanned(_));
            if !is_found && (edits.is_empty() || !matches!(self.slots[slot].state, State::NotScanned)) {
                continue;
            }
            let mut itself = is_found;
            for edits in batches(edits) {
                jobs.push(Job { slot, itself, edits });
                itself = false;
            }
        }
        jobs
    }

    fn work(&self, job: Job) -> Result<()> {
        let slot = &self.slots[job.slot];
        if let (true, State::Scanned(found)) = (job.itself, &slot.state) {
            self.directory(slot, found)?;
        }
        let known = slot.known.map(|known| self.index.directory(known));
        let mut open = None;
        for Edit { name, now } in job.edits {
            let path = slot.path.join(&name);
            let held = known.and_then(|known| known.get(&name));
            if let Some(IndexEntry::Directory(below)) = held {
                self.deleted_below(*below as usize, &path);
            }
            match (held, now) {
                (None, None) => {}
                (None, Some(stamp)) => {
                    let mut found = self.found.lock();
                    found.added_files.push((path.clone(), stamp));
                    found.changes.added.push(path);
                }
                (Some(held), None) => {
                    let mut found = self.found.lock();
                    if matches!(held, IndexEntry::Directory(_)) {
                        found.changes.directories.push(path.clone());
                    }
                    found.changes.deleted.push(path);
                }
                (Some(IndexEntry::Directory(_)), Some(_)) => self.found.lock().changes.modified.push(path),
                (Some(IndexEntry::Leaf(leaf)), Some(stamp)) => {
                    if leaf.trust == Trust::BytesOnly && leaf.stamp == stamp {
                        continue;
                    }
                    let open = match &*open.get_or_insert_with(|| self.host.directory(&slot.path)) {
                        Ok(open) => open.as_fd(),
                        Err(error) if is_absent(error) => continue,
                        Err(error) => {
                            let why = Why::Failed { action: "open the directory of", error: error.to_string() };
                            self.found.lock().changes.notices.push(Notice { path, why });
                            continue;
                        }
                    };
                    let outcome = self.compare(open, &name, &path, leaf, stamp)?;
                    let is_attributes =
                        outcome == ContentMatch::Differs && self.is_attributes((open, &name), leaf, stamp, &path)?;
                    let mut found = self.found.lock();
                    match outcome {
                        // Not learned: the next comparison has to find it, too.
                        ContentMatch::Equal(stamp) if may_be_relinked(&leaf.stamp, &stamp) => {
                            found.changes.may_be_relinked = true;
                        }
                        ContentMatch::Equal(stamp) => {
                            let at = slot.known.expect("it holds a leaf");
                            found.learned.push((at, name, self.learned(leaf, stamp, &path)?));
                        }
                        ContentMatch::Differs => {
                            if is_attributes {
                                found.changes.attributes.push(path.clone());
                            }
                            found.changes.modified.push(path);
                        }
                        ContentMatch::Gone => found.changes.deleted.push(path),
                        ContentMatch::Unknown => {}
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether a differing file has other permissions or another owner, and the same bytes. A file that may have been
    /// written is read.
    fn is_attributes(
        &self,
        (directory, name): (BorrowedFd<'_>, &Name),
        leaf: &Leaf,
        stamp: Stamp,
        path: &TreePath,
    ) -> Result<bool> {
        let known = &leaf.stamp;
        let Some(entry) = self.stored(path)? else { return Ok(false) };
        let is_same = entry.mode == stamp.permissions() && entry.owner() == self.owner_of(&stamp);
        if is_same || known.kind() != stamp.kind() || known.size != stamp.size {
            return Ok(false);
        }
        if known.inode == stamp.inode && known.mtime == stamp.mtime && leaf.trust == Trust::Clean {
            return Ok(true);
        }
        let CompareResult { outcome, read, .. } =
            compare(self.store, directory, name, &entry, stamp, self.job.progress)?;
        if let Some(bytes) = read {
            self.count(bytes);
        }
        Ok(matches!(outcome, ContentMatch::Equal(_)))
    }

    /// Returns the new index entry of a name whose contents are equal.
    fn learned(&self, before: &Leaf, stamp: Stamp, path: &TreePath) -> Result<Leaf> {
        let same_times = self.stored(path)?.is_some_and(|entry| entry.mtime == stamp.mtime);
        let trust = match Trust::of(&stamp, self.job.now) {
            // The tree has other times, or perhaps other names of the file.
            Trust::Clean if !same_times || before.stamp.links != stamp.links || stamp.links > 1 => Trust::BytesOnly,
            trust => trust,
        };
        Ok(Leaf { stamp, trust })
    }

    fn directory(&self, slot: &Slot, found: &ScannedDirectory) -> Result<()> {
        let is_modified = match slot.known {
            None => {
                let parent = slot.parent.and_then(|parent| self.slots[parent].known);
                let name = slot.path.split_last().map(|(_, name)| name);
                let held = parent.zip(name).and_then(|(at, name)| self.index.directory(at).get(&name));
                if held.is_none() && !slot.path.is_root() {
                    let mut found = self.found.lock();
                    found.changes.added.push(slot.path.clone());
                    found.changes.directories.push(slot.path.clone());
                }
                held.is_some()
            }
            Some(_) if !found.is_new => false,
            Some(_) => match self.stored(&slot.path)? {
                Some(entry) => {
                    entry.mode != found.stamp.permissions()
                        || entry.owner() != self.owner_of(&found.stamp)
                        || self.store.xattrs(entry.xattrs())? != found.xattrs
                }
                None => true,
            },
        };
        if is_modified {
            let mut found = self.found.lock();
            found.changes.modified.push(slot.path.clone());
            if slot.known.is_some() {
                found.changes.attributes.push(slot.path.clone());
            }
        }
        Ok(())
    }

    fn deleted_below(&self, at: usize, path: &TreePath) {
        let mut open = vec![(at, path.clone())];
        let (mut deleted, mut directories) = (Vec::new(), Vec::new());
        while let Some((at, path)) = open.pop() {
            for item in &self.index.directory(at).names {
                let path = path.join(&item.name);
                if let IndexEntry::Directory(below) = item.held {
                    open.push((below as usize, path.clone()));
                    directories.push(path.clone());
                }
                deleted.push(path);
            }
        }
        let mut found = self.found.lock();
        found.changes.deleted.append(&mut deleted);
        found.changes.directories.append(&mut directories);
    }

    fn stored(&self, path: &TreePath) -> Result<Option<Entry>> {
        match &self.base {
            Some(base) => Ok(entry_at(self.store, base, path)?),
            None => Ok(None),
        }
    }

    fn owner_of(&self, stamp: &Stamp) -> Option<Owner> {
        let owner = Owner { uid: stamp.uid, gid: stamp.gid };
        (owner != self.owner).then_some(owner)
    }

    fn compare(
        &self,
        open: BorrowedFd<'_>,
        name: &Name,
        path: &TreePath,
        leaf: &Leaf,
        stamp: Stamp,
    ) -> Result<ContentMatch> {
        let Some(entry) = self.stored(path)? else { return Ok(ContentMatch::Differs) };
        let is_link = stamp.kind() == FileType::Symlink;
        let is_withheld = leaf.stamp.mode == stamp.mode && lacks_set_id(&stamp, &entry);
        let same_mode = is_link || is_withheld || entry.mode == stamp.permissions();
        if !same_mode || entry.owner() != self.owner_of(&stamp) {
            return Ok(ContentMatch::Differs);
        }
        let CompareResult { outcome, read, why } = compare(self.store, open, name, &entry, stamp, self.job.progress)?;
        if let Some(bytes) = read {
            self.job.progress.count_file(bytes);
            self.count(bytes);
        }
        if let Some(why) = why {
            self.found.lock().changes.notices.push(Notice { path: path.clone(), why });
        }
        Ok(outcome)
    }

    fn count(&self, bytes: u64) {
        let mut found = self.found.lock();
        found.read = (found.read.0 + 1, found.read.1 + bytes);
    }
}

/// Returns whether a name may belong to another group of hard links than before.
fn may_be_relinked(before: &Stamp, now: &Stamp) -> bool {
    before.links.max(now.links) > 1 && (before.links != now.links || before.inode != now.inode)
}
