//! Contents of files that a checkout wrote, so that the next capture need not read them.

use std::collections::HashMap;

use amalgam_engine::Entry;

use crate::stamp::Stamp;

/// Contents of files by their stamps.
#[derive(Debug, Default)]
pub struct KnownContents(HashMap<u64, (Stamp, Entry)>);

impl KnownContents {
    /// Adds a file's entry. The stamp was taken from the open file after it was written.
    pub fn insert(&mut self, stamp: Stamp, entry: Entry) {
        self.0.insert(stamp.inode, (stamp, entry));
    }

    /// Returns the entry of a file with exactly this stamp.
    pub fn get(&self, stamp: &Stamp) -> Option<&Entry> {
        self.0.get(&stamp.inode).filter(|(known, _)| known == stamp).map(|(_, entry)| entry)
    }

    /// Adds all entries of another set.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}
