//! Whose the versions of a conflict are, as the records of merges tell.

use super::record::{MERGE_RECORD_KEY, MergeRecord};
use crate::directory::entry_at;
use crate::error::Result;
use crate::history::{History, LogOrder};
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::object::{Conflict, Entry, Node};
use crate::store::Store;

/// So many snapshots before one are looked through for the merges that brought the versions together.
const SNAPSHOTS_MAX: usize = 2_000;

/// The names of the workspaces whose versions compete in a conflict of a snapshot, in the order of its added terms. A version that no
/// merge brought under this path has no name: a draft, a file that was moved, one whose merge retention has dropped.
pub fn side_names(history: &History, head: SnapshotId, path: &TreePath, conflict: &Conflict) -> Result<Vec<String>> {
    let store = history.store();
    let sides: Vec<_> = conflict.added().map(|entry| entry.map(|entry| entry.node.clone())).collect();
    let mut names = vec![String::new(); sides.len()];
    for entry in history.log(&[head], LogOrder::Generation)?.take(SNAPSHOTS_MAX) {
        if names.iter().all(|name| !name.is_empty()) {
            break;
        }
        let entry = entry?;
        let record = entry.snapshot.metadata.get(MERGE_RECORD_KEY).and_then(|text| MergeRecord::from_json(text));
        let Some(record) = record else { continue };
        let sources = record.sources.iter().filter_map(|(name, id)| Some((name, SnapshotId::from_hex(id)?)));
        let target = entry.snapshot.parents.first().map(|parent| (&record.target, *parent));
        for (name, snapshot) in sources.chain(target) {
            let Ok(version) = version_at(store, snapshot, path) else { continue };
            // What is a conflict there was brought together by an earlier merge.
            if matches!(version, Some(Entry { node: Node::Conflict(_), .. })) {
                continue;
            }
            let version = version.map(|entry| entry.node);
            // Of equal sides the last one was merged last, and its merge is met first.
            let mut unnamed = sides.iter().zip(&mut names).rev();
            let unnamed = unnamed.find(|(side, known)| known.is_empty() && **side == version);
            if let Some((_, unnamed)) = unnamed {
                unnamed.clone_from(name);
            }
        }
    }
    Ok(names)
}

fn version_at(store: &Store, snapshot: SnapshotId, path: &TreePath) -> Result<Option<Entry>> {
    let root = store.snapshot(snapshot)?.root;
    entry_at(store, &*store.root(root)?, path)
}
