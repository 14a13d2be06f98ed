//! Files that become covered because an operation took away the rule that ignored them. The operation says so.

use std::collections::HashMap;

use amalgam_engine::{DiffOptions, RootId, TreePath, What, diff_roots, entry_at};

use super::Directories;
use crate::error::Result;

impl Directories {
    /// Returns the paths that a directory has after it was brought to a tree, and that neither this tree nor the capture before has.
    /// A directory that holds others is not among them. The paths are sorted.
    pub(super) fn uncovered(&self, before: RootId, target: RootId, there: RootId) -> Result<Vec<TreePath>> {
        let store = &self.context.store;
        if target == there {
            return Ok(Vec::new());
        }
        let mut added = Vec::new();
        for change in diff_roots(store, Some(target), Some(there), DiffOptions::default())? {
            let change = change?;
            if change.what == What::Added {
                added.push(change.path);
            }
        }
        let before = store.root(before)?;
        // The number of added paths in each directory, and how many of them are not covered. What lies in a directory comes first.
        let mut counts: HashMap<TreePath, (usize, usize)> = HashMap::new();
        let mut uncovered = Vec::new();
        for path in added.into_iter().rev() {
            let holds_others_only = counts.get(&path).is_some_and(|(all, others)| all == others);
            let is_uncovered = holds_others_only || entry_at(store, &before, &path)?.is_none();
            if let Some((parent, _)) = path.split_last() {
                let (all, others) = counts.entry(parent).or_default();
                *all += 1;
                *others += usize::from(is_uncovered);
            }
            if is_uncovered && !counts.contains_key(&path) {
                uncovered.push(path);
            }
        }
        uncovered.reverse();
        Ok(uncovered)
    }
}

/// Returns the warning about uncovered paths, if there are any; `now` says what they are now.
pub(super) fn uncovered_warning(uncovered: &[TreePath], now: &str) -> Option<String> {
    let first = uncovered.first()?;
    let rest = match uncovered.len() - 1 {
        0 => " is no longer ignored: it is".to_owned(),
        1 => " and 1 more path are no longer ignored: they are".to_owned(),
        more => format!(" and {more} more paths are no longer ignored: they are"),
    };
    Some(format!("{first}{rest} {now}"))
}
