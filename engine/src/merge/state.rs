//! Merges state values key by key. A key that both sides set to different values is a conflict: ours is kept, theirs is reported.

use std::collections::BTreeMap;

use super::{ConflictKind, Merge, PathConflict};
use crate::diff::{StateChange, diff_state};
use crate::error::Result;
use crate::name::TreePath;
use crate::object::{Entry, Root};
use crate::time::Time;
use crate::work::WorkingTree;

impl Merge<'_> {
    pub(super) fn merge_state(&mut self, tree: &mut WorkingTree) -> Result<()> {
        let none = Root { directory: Entry::empty_directory(0o755, Time::EPOCH), links: None, state: None };
        let base = self.trees.base.as_deref().unwrap_or(&none);
        if base.state == self.trees.theirs.state {
            return Ok(());
        }
        let store = &self.trees.store;
        let changes = |side: &Root| -> Result<BTreeMap<String, StateChange>> {
            diff_state(store, base, side)?.map(|change| change.map(|change| (change.key.clone(), change))).collect()
        };
        let (ours, theirs) = (changes(&self.trees.ours)?, changes(&self.trees.theirs)?);
        for (key, StateChange { after, .. }) in theirs {
            match ours.get(&key) {
                None => {
                    self.report.changed += 1;
                    match &after {
                        Some(value) => tree.set_state(&key, value)?,
                        None => drop(tree.remove_state(&key)?),
                    }
                }
                Some(ours) if is_same_json(ours.after.as_deref(), after.as_deref()) => {}
                Some(_) => self.conflicts.push(PathConflict {
                    path: TreePath::root(),
                    kind: ConflictKind::State { key, theirs: after },
                    others: Vec::new(),
                    is_entry: false,
                    places: [None, None],
                }),
            }
        }
        Ok(())
    }
}

/// Returns whether two values are equal as JSON, regardless of formatting.
fn is_same_json(left: Option<&str>, right: Option<&str>) -> bool {
    let parsed = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    match (left, right) {
        (Some(left), Some(right)) => left == right || parsed(left).is_some_and(|left| parsed(right) == Some(left)),
        (left, right) => left.is_none() && right.is_none(),
    }
}
