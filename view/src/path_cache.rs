//! A small cache from directory inodes to paths. Most requests are about names in the same few directories.

use amalgam_engine::TreePath;
use parking_lot::Mutex;

use crate::attributes::Ino;

/// Number of slots. A directory replaces another one that maps to the same slot.
const SLOTS: usize = 64;

/// A direct-mapped cache, cleared when a directory is moved or removed.
#[derive(Default)]
pub(crate) struct PathCache(Mutex<Vec<Option<(Ino, TreePath)>>>);

impl PathCache {
    pub(crate) fn get(&self, directory: Ino) -> Option<TreePath> {
        let slots = self.0.lock();
        let (cached, path) = slots.get(slot_of(directory))?.as_ref()?;
        (*cached == directory).then(|| path.clone())
    }

    pub(crate) fn set(&self, directory: Ino, path: &TreePath) {
        let mut slots = self.0.lock();
        slots.resize(SLOTS, None);
        slots[slot_of(directory)] = Some((directory, path.clone()));
    }

    /// Removes a directory that leaves the inode table: a rename of a directory that is not in the table does not call `clear`.
    pub(crate) fn remove(&mut self, directory: Ino) {
        if let Some(slot) = self.0.get_mut().get_mut(slot_of(directory))
            && slot.as_ref().is_some_and(|(cached, _)| *cached == directory)
        {
            *slot = None;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}

fn slot_of(directory: Ino) -> usize {
    // Inode numbers are hashes or consecutive, so they spread over the slots.
    directory as usize % SLOTS
}
