//! Where directories without changes are stored, by path: so that whoever looks up one name after the other in a directory
//! does not walk to it from the root each time.
//!
//! Forks share what is known until one of them is edited; that one begins anew. An edit may make any directory another one.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::name::TreePath;
use crate::object::DirectoryRef;

/// So many directories are known; one takes the place of another.
const PLACES: usize = 128;

/// A directory, and where its names are stored. One without names is stored nowhere.
type Place = Option<(TreePath, Option<DirectoryRef>)>;

/// What is known of one state of a tree.
#[derive(Clone, Default)]
pub(super) struct CleanDirectories(OnceLock<Arc<Mutex<Vec<Place>>>>);

impl CleanDirectories {
    pub(super) fn get(&self, path: &TreePath) -> Option<Option<DirectoryRef>> {
        let places = self.0.get()?.lock();
        let (found, contents) = places[place_of(path)].as_ref()?;
        (found == path).then_some(*contents)
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }

    pub(super) fn set(&self, path: &TreePath, contents: Option<DirectoryRef>) {
        let places = self.0.get_or_init(|| Arc::new(Mutex::new(vec![None; PLACES])));
        places.lock()[place_of(path)] = Some((path.clone(), contents));
    }

    /// The tree is about to change.
    pub(super) fn forget(&mut self) {
        self.0.take();
    }
}

/// Paths in one directory differ at their ends, and directories on one way in their lengths.
fn place_of(path: &TreePath) -> usize {
    let bytes = path.as_bytes();
    let end =
        bytes.iter().rev().take(8).fold(bytes.len(), |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    end % PLACES
}
