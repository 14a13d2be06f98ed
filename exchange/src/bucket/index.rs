//! The index of an import of a bucket: for each key the version, both as hashes, and the tree that holds the objects.

use amalgam_engine::{ChunkId, RootId};

use super::object::ListedObject;

const TITLE: &[u8] = b"amalgam bucket index 1\n";
const ROOT_BYTES: usize = 32;
const RECORD_BYTES: usize = 32;

/// The first half of the hash of a text.
pub(super) type ShortHash = [u8; 16];

/// Returns the hash of a key or a version.
pub(super) fn short_hash(bytes: &[u8]) -> ShortHash {
    let mut short = ShortHash::default();
    short.copy_from_slice(&ChunkId::of(bytes).as_bytes()[..16]);
    short
}

/// The keys and versions that a tree holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketIndex {
    root: [u8; ROOT_BYTES],
    /// Whether each object of the listing is recorded.
    pub(super) is_complete: bool,
    /// Sorted by key once the index is settled.
    records: Vec<(ShortHash, ShortHash)>,
}

impl BucketIndex {
    /// Creates an index without records, to be filled and settled.
    pub(super) fn new() -> Self {
        Self { is_complete: true, ..Self::default() }
    }

    /// Encodes the index.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TITLE.len() + 1 + ROOT_BYTES + self.records.len() * RECORD_BYTES);
        bytes.extend_from_slice(TITLE);
        bytes.push(u8::from(self.is_complete));
        bytes.extend_from_slice(&self.root);
        for (key, version) in &self.records {
            bytes.extend_from_slice(key);
            bytes.extend_from_slice(version);
        }
        bytes
    }

    /// Decodes an index. Returns `None` if the bytes are not one.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (is_complete, rest) = bytes.strip_prefix(TITLE)?.split_first()?;
        let (root, rest) = rest.split_at_checked(ROOT_BYTES)?;
        if !rest.len().is_multiple_of(RECORD_BYTES) {
            return None;
        }
        let half = |bytes: &[u8]| <ShortHash>::try_from(bytes).ok();
        let record = |bytes: &[u8]| Some((half(&bytes[..16])?, half(&bytes[16..])?));
        let records: Vec<_> = rest.chunks_exact(RECORD_BYTES).map(record).collect::<Option<_>>()?;
        let is_sorted = records.windows(2).all(|pair| pair[0].0 < pair[1].0);
        is_sorted.then(|| Some(Self { root: root.try_into().ok()?, is_complete: *is_complete == 1, records }))?
    }

    /// Returns whether the index describes this tree.
    pub(super) fn describes(&self, root: RootId) -> bool {
        self.root == *root.as_bytes()
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Returns whether the tree holds this version of an object.
    pub(super) fn has(&self, key: &ShortHash, version: &ShortHash) -> bool {
        let found = self.records.binary_search_by(|record| record.0.cmp(key));
        found.is_ok_and(|at| self.records[at].1 == *version)
    }

    pub(super) fn record(&mut self, object: &ListedObject) {
        self.records.push((short_hash(&object.key), version(object)));
    }

    pub(super) fn record_hashes(&mut self, key: ShortHash, version: ShortHash) {
        self.records.push((key, version));
    }

    /// Drops the records of some keys. Returns their number.
    pub(super) fn drop_keys(&mut self, is_dropped: impl Fn(&ShortHash) -> bool) -> u64 {
        let before = self.records.len();
        self.records.retain(|(key, _)| !is_dropped(key));
        (before - self.records.len()) as u64
    }

    /// Completes the index and records the tree that it describes.
    pub(super) fn settle(&mut self, root: RootId) {
        self.root = *root.as_bytes();
        self.records.sort_unstable();
        self.records.dedup_by(|later, earlier| later.0 == earlier.0);
    }
}

/// Returns the hash of the version of an object, which is its ETag and size.
pub(super) fn version(object: &ListedObject) -> ShortHash {
    short_hash(format!("{}\n{}", object.etag, object.size).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_back_and_damage_is_noticed() {
        let mut index = BucketIndex::new();
        for number in 0..100 {
            let object =
                ListedObject { key: format!("k{number}").into_bytes(), etag: "e".to_owned(), ..Default::default() };
            index.record(&object);
        }
        index.settle(RootId::from_bytes([7; 32]));
        let bytes = index.encode();
        assert_eq!(BucketIndex::decode(&bytes), Some(index.clone()));
        assert!(index.describes(RootId::from_bytes([7; 32])) && !index.describes(RootId::from_bytes([8; 32])));
        assert_eq!(BucketIndex::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(BucketIndex::decode(b"other"), None);
        let mut unsorted = bytes.clone();
        let records = bytes.len() - 100 * RECORD_BYTES;
        unsorted[records..].rotate_left(RECORD_BYTES);
        assert_eq!(BucketIndex::decode(&unsorted), None);
    }
}
