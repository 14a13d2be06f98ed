//! The names of a store and the objects that they point at: the roots of a measurement.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use amalgam_engine::reference::{FORGET, RefValue};
use amalgam_engine::{ObjectId, Result, SnapshotId, Store};

const PAGE: usize = 256;
const WORKSPACE: &str = "workspace/";
const LEAN: &str = "lean/";

/// Sort key of a name: workspaces by name, then all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NameKey {
    pub(super) is_other: bool,
    pub(super) workspace: Option<String>,
}

/// Names with equal roots, for example forks without changes. They are measured once.
pub(super) struct RootGroup {
    pub(super) roots: Vec<ObjectId>,
    pub(super) names: Vec<NameKey>,
}

/// The roots of a measurement.
pub(super) struct NamedRoots {
    pub(super) by_name: BTreeMap<NameKey, Vec<ObjectId>>,
    /// Lean trees of snapshots whose caches were dropped; they have the owners of the snapshot.
    pub(super) lean: HashMap<SnapshotId, Vec<ObjectId>>,
}

impl NamedRoots {
    /// Groups names with equal roots.
    pub(super) fn groups(&self) -> Vec<RootGroup> {
        let mut by_roots: BTreeMap<&[ObjectId], Vec<NameKey>> = BTreeMap::new();
        for (name, roots) in &self.by_name {
            by_roots.entry(roots).or_default().push(name.clone());
        }
        by_roots.into_iter().map(|(roots, names)| RootGroup { roots: roots.to_vec(), names }).collect()
    }

    pub(super) fn read(store: &Store) -> Result<Self> {
        let (mut names, mut after) = (Self { by_name: BTreeMap::new(), lean: HashMap::new() }, None);
        loop {
            let page = store.list_refs("", after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (name, value) in page {
                if let Some(snapshot) = name.as_str().strip_prefix(LEAN).and_then(SnapshotId::from_hex) {
                    names.lean.insert(snapshot, value.roots().collect());
                    continue;
                }
                let workspace = name.as_str().strip_prefix(WORKSPACE).map(str::to_owned);
                let key = NameKey { is_other: workspace.is_none(), workspace };
                names.by_name.entry(key).or_default().extend(value.roots());
            }
        }
        // Many labels may point at few snapshots.
        if let Some(others) = names.by_name.get_mut(&NameKey { is_other: true, workspace: None }) {
            others.sort_unstable();
            others.dedup();
        }
        Ok(names)
    }
}

/// Returns the targets of all operations after `after`, except those that were forgotten on purpose.
pub(super) fn undo_roots(store: &Store, mut after: u64) -> Result<Vec<ObjectId>> {
    let mut roots = BTreeSet::new();
    loop {
        let page = store.list_operations(after, PAGE)?;
        let Some(last) = page.last() else { return Ok(roots.into_iter().collect()) };
        after = last.sequence;
        let kept = page.iter().filter(|operation| operation.draft.action != FORGET);
        let values = kept.flat_map(|operation| &operation.changes).flat_map(|change| [&change.before, &change.after]);
        roots.extend(values.flatten().flat_map(RefValue::roots));
    }
}
