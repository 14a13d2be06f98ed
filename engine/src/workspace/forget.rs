//! Forgetting what was deleted, so that a collection may take what it held.

use super::Workspaces;
use super::name::DELETED_PREFIX;
use crate::error::{Error, Result};
use crate::operation::{Act, Step, move_refs, operation, recorded, trying};
use crate::reference::{FORGET, Operation, RefName};
use crate::time::Time;

const PAGE: usize = 256;

impl Workspaces {
    /// The names under which workspaces that were deleted before this time are still kept.
    pub fn deleted_before(&self, time: Time) -> Result<Vec<RefName>> {
        let mut found = Vec::new();
        let mut after = None;
        loop {
            let page = self.store.list_refs(DELETED_PREFIX, after.as_ref(), PAGE)?;
            let Some((last, _)) = page.last() else { return Ok(found) };
            after = Some(last.clone());
            for (name, _) in page {
                let moved = self.store.last_move(&name)?;
                let deleted = match operation(&self.store, moved) {
                    Ok(found) => found.draft.time,
                    // Before the oldest operation that is left, and nobody knows how long.
                    Err(Error::Trimmed { since, .. }) => since,
                    // Somebody brought it back meanwhile.
                    Err(Error::Absent { .. }) if moved == 0 => continue,
                    Err(error) => return Err(error),
                };
                if deleted < time {
                    found.push(name);
                }
            }
        }
    }

    /// Forgets workspaces that were deleted, under the names of [`deleted_before`](Self::deleted_before). They cannot be brought back,
    /// and what they alone held goes with the next collection. Those that somebody brought back meanwhile are left alone.
    pub fn forget_deleted(&self, names: &[RefName], act: &Act) -> Result<Option<Operation>> {
        // Somebody may bring one back between the look and the transaction.
        trying(|| {
            let mut steps = Vec::new();
            for name in names.iter().filter(|name| name.as_str().starts_with(DELETED_PREFIX)) {
                if let Some(value) = self.store.read_ref(name)? {
                    steps.push(Step { name: name.clone(), before: Some(value), after: None });
                }
            }
            if steps.is_empty() {
                return Ok(None);
            }
            move_refs(&self.store, act, act.draft(FORGET), steps).map(recorded).map(Some)
        })
    }
}
