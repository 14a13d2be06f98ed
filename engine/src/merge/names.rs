//! Names the workspaces that the versions of a conflict came from, using the merge records.

use super::record::{MERGE_RECORD_KEY, MergeRecord};
use crate::directory::entry_at;
use crate::error::Result;
use crate::history::{History, LogOrder};
use crate::id::SnapshotId;
use crate::name::TreePath;
use crate::object::{Conflict, Entry, Node};
use crate::store::Store;

/// Maximum number of ancestor snapshots that are searched for the merges that introduced the versions.
const SNAPSHOTS_MAX: usize = 2_000;

/// Returns the names of the workspaces of the competing versions of a conflict, in the order of its added terms. A version that
/// no merge introduced under this path has an empty name: a draft, a moved file, or one whose merge was deleted by retention.
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
            // A version that is a conflict was introduced by an earlier merge.
            if matches!(version, Some(Entry { node: Node::Conflict(_), .. })) {
                continue;
            }
            let version = version.map(|entry| entry.node);
            // Of equal sides the last one was merged last, and the walk meets its merge first.
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
