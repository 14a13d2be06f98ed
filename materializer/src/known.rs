//! Contents that a checkout wrote itself, so that the capture behind it need not read them.

use std::collections::HashMap;

use amalgam_engine::Entry;

use crate::stamp::Stamp;

/// What is known of files by their stamps, without reading them.
#[derive(Debug, Default)]
pub struct Known(HashMap<u64, (Stamp, Entry)>);

impl Known {
    /// Remembers what a file holds. The stamp was taken from the open file after it was written.
    pub fn insert(&mut self, stamp: Stamp, entry: Entry) {
        self.0.insert(stamp.inode, (stamp, entry));
    }

    /// What a file with this very stamp holds.
    pub fn get(&self, stamp: &Stamp) -> Option<&Entry> {
        self.0.get(&stamp.inode).filter(|(known, _)| known == stamp).map(|(_, entry)| entry)
    }

    /// Takes over what another one knows.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}
