//! Counts the files of trees and their bytes. Each distinct directory is read once: neighbouring trees share most directories, and
//! one directory may occur at very many paths of a tree.

use std::collections::{HashMap, HashSet};

use amalgam_engine::history::LogOrder;
use amalgam_engine::object::{DirectoryRef, Node};
use amalgam_engine::{DirectoryId, Error, History, LinkGroup, Result, RootId, SnapshotId, Store, list_directory};

/// The numbers of files and bytes of the trees and directories that were read. Numbers saturate.
#[derive(Default)]
pub(super) struct Sizes {
    pub(super) trees: HashMap<RootId, (u64, u64)>,
    directories: HashMap<DirectoryId, (u64, u64)>,
    /// The number of snapshots in the history of a snapshot, itself included.
    lengths: HashMap<SnapshotId, u64>,
}

/// A directory whose children are being counted.
struct Open {
    directory: DirectoryRef,
    below: std::vec::IntoIter<DirectoryRef>,
    files: u64,
    bytes: u64,
}

impl Open {
    /// Reads a directory and counts its own files. The bytes of a file with several names count only at the first of them.
    fn new(store: &Store, directory: DirectoryRef, linked: &mut HashSet<LinkGroup>) -> Result<Self> {
        let (mut below, mut files, mut bytes) = (Vec::new(), 0, 0_u64);
        for item in list_directory(store, Some(directory))? {
            let (_, entry) = item?;
            match &entry.node {
                Node::File { size, .. } => {
                    files += 1;
                    let is_counted = entry.link().is_none_or(|group| linked.insert(group));
                    bytes = bytes.saturating_add(if is_counted { *size } else { 0 });
                }
                Node::Directory(Some(directory)) => below.push(*directory),
                _ => {}
            }
        }
        Ok(Self { directory, below: below.into_iter(), files, bytes })
    }

    fn add(&mut self, (files, bytes): (u64, u64)) {
        self.files = self.files.saturating_add(files);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Sizes {
    /// Returns the number of snapshots in the history of a snapshot, itself included. A linear history is walked once for all its
    /// forks; at a merge, the whole history before it is counted.
    pub(super) fn length(&mut self, history: &History, head: SnapshotId) -> Result<u64> {
        let (mut line, mut here) = (Vec::new(), Some(head));
        let mut length = 0;
        while let Some(id) = here {
            if let Some(known) = self.lengths.get(&id) {
                length = *known;
                break;
            }
            let snapshot = match history.store().snapshot(id) {
                Ok(snapshot) => snapshot,
                // Its record was collected: the history ends here.
                Err(Error::Missing { .. }) if id != head => break,
                Err(error) => return Err(error),
            };
            if snapshot.parents.len() > 1 {
                let mut log = history.log(&[id], LogOrder::Generation)?;
                length = log.try_fold(0, |count: u64, entry| entry.map(|_| count + 1))?;
                self.lengths.insert(id, length);
                break;
            }
            line.push(id);
            here = snapshot.parents.first().copied();
        }
        for id in line.into_iter().rev() {
            length += 1;
            self.lengths.insert(id, length);
        }
        Ok(length)
    }

    /// Measures a tree. Returns zeros for a tree that was dropped.
    pub(super) fn measure(&mut self, store: &Store, root: RootId) -> Result<(u64, u64)> {
        let size = match store.root(root) {
            Ok(root) => match root.directory.node {
                Node::Directory(Some(top)) => self.directory(store, top)?,
                _ => (0, 0),
            },
            Err(Error::Missing { .. }) => (0, 0),
            Err(error) => return Err(error),
        };
        self.trees.insert(root, size);
        Ok(size)
    }

    fn directory(&mut self, store: &Store, top: DirectoryRef) -> Result<(u64, u64)> {
        let mut linked = HashSet::new();
        let mut open = vec![Open::new(store, top, &mut linked)?];
        loop {
            let here = open.last_mut().expect("it ends with the first one");
            let Some(below) = here.below.next() else {
                let Open { directory, files, bytes, .. } = open.pop().expect("it is the last one");
                // The count of a directory with hard links depends on the names that were found before it. Each of their paths is
                // listed in the tree, so there are no more of them than it has bytes.
                if directory.linked == 0 {
                    self.directories.insert(directory.id, (files, bytes));
                }
                match open.last_mut() {
                    Some(above) => above.add((files, bytes)),
                    None => return Ok((files, bytes)),
                }
                continue;
            };
            match self.directories.get(&below.id) {
                Some(size) => here.add(*size),
                None => open.push(Open::new(store, below, &mut linked)?),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use amalgam_engine::backend::{Fault, FaultPlan, Inspect, Memory};
    use amalgam_engine::object::Snapshot;
    use amalgam_engine::{StoreOptions, Time, WorkingTree};

    use super::*;

    #[test]
    fn the_length_of_a_history_that_cannot_be_read_is_an_error() {
        let plan = Arc::new(FaultPlan::default());
        let backend: Arc<dyn Inspect> = Arc::new(Fault::new(Memory::default(), Arc::clone(&plan)));
        let open = || Store::new(Arc::clone(&backend), &StoreOptions::default());
        let store = open();
        let session = store.session();
        let root = WorkingTree::new(&store).freeze().write(&session).expect("written");
        let put = |message: &str, parents: &[SnapshotId], generation| {
            let snapshot = Snapshot {
                root,
                parents: parents.to_vec(),
                author: "ann".to_owned(),
                time: Time(5),
                message: message.to_owned(),
                metadata: Default::default(),
                generation,
            };
            session.put_snapshot(snapshot).expect("put")
        };
        let first = put("first", &[], 0);
        let (ours, theirs) = (put("ours", &[first], 1), put("theirs", &[first], 1));
        let merge = put("merge", &[ours, theirs], 2);
        session.write_all_ahead().expect("written");
        let mut errors = 0;
        for reads in 0..10 {
            // A store without cached snapshots.
            let history = History::of(&open());
            plan.fail_after_reads(reads);
            match Sizes::default().length(&history, merge) {
                Ok(length) => assert_eq!(length, 4, "after {reads} reads"),
                Err(_) => errors += 1,
            }
            plan.heal();
        }
        assert!((1..10).contains(&errors), "{errors}");
    }
}
