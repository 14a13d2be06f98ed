//! The paths of directories that names were looked for in last: most requests are about names in the same few.

use amalgam_engine::TreePath;
use parking_lot::Mutex;

use crate::inodes::Ino;

/// So many directories are known; one takes the place of another.
const PLACES: usize = 64;

/// What is known since a directory was last moved or taken away.
#[derive(Default)]
pub(crate) struct KnownPaths(Mutex<Vec<Option<(Ino, TreePath)>>>);

impl KnownPaths {
    pub(crate) fn get(&self, directory: Ino) -> Option<TreePath> {
        let places = self.0.lock();
        let (found, path) = places.get(place_of(directory))?.as_ref()?;
        (*found == directory).then(|| path.clone())
    }

    pub(crate) fn set(&self, directory: Ino, path: &TreePath) {
        let mut places = self.0.lock();
        places.resize(PLACES, None);
        places[place_of(directory)] = Some((directory, path.clone()));
    }

    pub(crate) fn forget(&mut self) {
        self.0.get_mut().clear();
    }
}

fn place_of(directory: Ino) -> usize {
    // Numbers are hashes, or counted.
    directory as usize % PLACES
}
