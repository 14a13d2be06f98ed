//! Tracks snapshots from other stores. A received stream leaves a reference for each line of history, named after its newest
//! snapshot: its ancestors and descendants may contain data from an untrusted source.

use std::collections::HashSet;

use super::{History, LogOrder};
use crate::error::Result;
use crate::id::{RootId, SnapshotId};
use crate::operation::Act;
use crate::reference::{REFS_PER_TRANSACTION_MAX, RefName, RefValue};
use crate::store::{RefMove, Store};

const PREFIX: &str = "foreign/";
const PAGE: usize = 1_024;
/// The note of a reference that marks snapshots from another store.
const NOTE: &[u8] = b"stream";

/// Records that these snapshots and their ancestors came from another store.
pub fn mark_foreign(store: &Store, newest: impl IntoIterator<Item = SnapshotId>, act: &Act) -> Result<()> {
    let mut new = Vec::new();
    for name in newest.into_iter().map(reference) {
        if store.read_ref(&name)?.is_none() {
            new.push(name);
        }
    }
    for part in new.chunks(REFS_PER_TRANSACTION_MAX) {
        let refs = RefMove {
            expect: part.iter().map(|name| (name.clone(), None)).collect(),
            set: part.iter().map(|name| (name.clone(), Some(RefValue::noting(NOTE)))).collect(),
            operation: act.draft("receive"),
            durability: act.durability,
        };
        let session = store.session();
        let nothing = crate::id::ObjectId::of(crate::id::ObjectKind::Chunk, b"");
        session.commit(nothing, refs)?;
    }
    Ok(())
}

fn reference(snapshot: SnapshotId) -> RefName {
    RefName::new(format!("{PREFIX}{snapshot}")).expect("short and printable")
}

fn marks(store: &Store) -> Result<HashSet<SnapshotId>> {
    let (mut found, mut after) = (HashSet::new(), None);
    loop {
        let page = store.list_refs(PREFIX, after.as_ref(), PAGE)?;
        let Some((last, _)) = page.last() else { return Ok(found) };
        after = Some(last.clone());
        found.extend(page.iter().filter_map(|(name, _)| SnapshotId::from_hex(name.as_str().strip_prefix(PREFIX)?)));
    }
}

impl History {
    /// Returns whether one of these snapshots came from another store or has an ancestor that did, or whether a tree is that of
    /// such a snapshot. Free in a store that never received a stream; otherwise walks the history.
    pub fn is_foreign(&self, snapshots: &[SnapshotId], root: Option<RootId>) -> Result<bool> {
        let mut marked = marks(&self.store)?;
        if marked.is_empty() {
            return Ok(false);
        }
        // The record of a snapshot may have been deleted.
        marked.retain(|id| self.store.snapshot(*id).is_ok());
        let heads: Vec<_> = marked.iter().copied().collect();
        for entry in self.log(&heads, LogOrder::Generation)? {
            let entry = entry?;
            if snapshots.contains(&entry.id) || root == Some(entry.snapshot.root) {
                return Ok(true);
            }
        }
        for entry in self.log(snapshots, LogOrder::Generation)? {
            if marked.contains(&entry?.id) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
