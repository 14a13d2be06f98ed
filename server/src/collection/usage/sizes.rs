//! Files of trees and their bytes, each distinct directory read once: neighbours share most of theirs, and one directory may lie at
//! very many paths of a tree.

use std::collections::{HashMap, HashSet};

use amalgam_engine::history::LogOrder;
use amalgam_engine::object::{DirectoryRef, Node};
use amalgam_engine::{DirectoryId, Error, History, LinkGroup, Result, RootId, SnapshotId, Store, list_directory};

/// Files and their bytes of trees and directories that were looked at. Numbers saturate.
#[derive(Default)]
pub(super) struct Sizes {
    pub(super) trees: HashMap<RootId, (u64, u64)>,
    directories: HashMap<DirectoryId, (u64, u64)>,
    /// How many snapshots led to one, itself included.
    lengths: HashMap<SnapshotId, u64>,
}

/// A directory that is being looked through.
struct Open {
    directory: DirectoryRef,
    below: std::vec::IntoIter<DirectoryRef>,
    files: u64,
    bytes: u64,
}

impl Open {
    /// The bytes of a file with several names count where it is met first.
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
    /// How many snapshots led to one, itself included. Along a line each is looked at once, however many forks it has; at a merge its
    /// whole history is counted.
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
                // Its record is gone; history ends here.
                Err(Error::Missing { .. }) if id != head => break,
                Err(error) => return Err(error),
            };
            if snapshot.parents.len() > 1 {
                length = history.log(&[id], LogOrder::Generation)?.count() as u64;
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

    /// Measures a tree; one that is gone has nothing.
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
                // A directory with hard links counts differently where another of their names was met. Each of their paths is listed
                // in the tree, so there are no more of them than it has bytes.
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
