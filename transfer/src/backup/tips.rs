//! List beside each part of a backup: the tips of its stream, and the chunks that a restore knows as purged.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use amalgam_engine::{ChunkId, Store};

use crate::error::Result;
use crate::have::Have;

/// Word before the id of a purged chunk.
const PURGED: &str = "purged ";
/// Chunks that are read from the store at once.
const BATCH_CHUNKS: usize = 64;

/// The snapshots and chunks of a backup that its next part can build on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tips {
    pub(super) have: Have,
    /// Chunks in whose place this part, or one that it builds on, has a tombstone.
    pub(super) purged: BTreeSet<ChunkId>,
}

impl Tips {
    /// Encodes as text: the list of snapshots, then one line for each purged chunk.
    pub(super) fn encode(&self) -> String {
        let mut text = self.have.encode();
        for id in &self.purged {
            writeln!(text, "{PURGED}{id}").expect("a string takes all text");
        }
        text
    }

    /// Decodes the text; `None` if it has another form.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let (have, purged) = text.split_at(text.find(PURGED).unwrap_or(text.len()));
        let purged = purged.lines().map(|line| line.strip_prefix(PURGED).and_then(ChunkId::from_hex));
        Some(Self { have: Have::decode(have).ok()?, purged: purged.collect::<Option<_>>()? })
    }

    /// Returns whether the store has bytes of a chunk that the parts have as purged: after its tombstone was removed they were stored
    /// again. A difference would omit them, because trees of the base refer to the chunk.
    pub(super) fn is_outdated(&self, store: &Store) -> Result<bool> {
        let ids: Vec<_> = self.purged.iter().map(|id| id.object()).collect();
        for ids in ids.chunks(BATCH_CHUNKS) {
            if store.stored_many(ids)?.iter().any(Option::is_some) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use amalgam_engine::SnapshotId;

    #[test]
    fn a_list_is_read_back() {
        let have = Have { snapshots: vec![SnapshotId::from_bytes([3; 32]), SnapshotId::from_bytes([1; 32])] };
        for purged in [BTreeSet::new(), BTreeSet::from([ChunkId::of(b"a"), ChunkId::of(b"b")])] {
            let tips = Tips { have: have.clone(), purged };
            assert_eq!(Tips::decode(&tips.encode()), Some(tips));
        }
        assert_eq!(Tips::decode(&Tips::default().encode()), Some(Tips::default()));
        assert_eq!(Tips::decode("amalgam have 1\npurged 00\n"), None);
        assert_eq!(Tips::decode(""), None);
    }
}
