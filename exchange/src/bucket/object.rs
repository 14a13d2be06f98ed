//! Objects of a bucket, the source that lists and reads them, and their counts.

use std::io::Read;

use amalgam_engine::Time;

use crate::error::Result;

/// An object of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedObject {
    /// The key behind the prefix.
    pub key: Vec<u8>,
    /// The ETag, as the store returns it.
    pub etag: String,
    /// The number of bytes.
    pub size: u64,
    /// When it was last written.
    pub modified: Time,
}

/// Lists and reads the objects below a prefix.
pub trait BucketSource {
    /// Returns the next objects of the listing; `None` after the last ones.
    fn next_page(&mut self) -> Result<Option<Vec<ListedObject>>>;

    /// Reads small objects, each as the version with its ETag; `None` for one that has another version by now, or is gone.
    fn read_many(&mut self, objects: &[ListedObject]) -> Result<Vec<Option<Vec<u8>>>>;

    /// Opens a large object like [`BucketSource::read_many`].
    fn read_one(&mut self, object: &ListedObject) -> Result<Option<Box<dyn Read + Send + '_>>>;
}

/// Counts of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCounts {
    /// Objects that were read.
    pub synced: u64,
    /// Objects that had the same ETag as before.
    pub skipped: u64,
    /// Objects that are gone.
    pub removed: u64,
    /// Keys and objects that were left out.
    pub left_out: u64,
    /// Objects of the listing.
    pub total: u64,
}

impl BucketCounts {
    /// Formats the counts as text.
    pub(super) fn words(&self) -> String {
        let Self { synced, skipped, removed, left_out, total } = self;
        let left_out = if *left_out == 0 { String::new() } else { format!(", {left_out} left out") };
        format!("{synced} synced, {skipped} skipped, {removed} removed{left_out}, {total} in total")
    }
}
