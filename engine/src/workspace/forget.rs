//! Forgets deleted workspaces, so that a collection may delete their objects.

use super::Workspaces;
use super::name::DELETED_PREFIX;
use crate::error::{Error, Result};
use crate::operation::{OperationContext, Step, move_refs, operation, recorded, trying};
use crate::reference::{FORGET, Operation, RefName};
use crate::time::{LivedTime, Time};

const PAGE: usize = 256;
/// Workspaces that one operation forgets.
const FORGET_AT_ONCE: usize = 512;

impl Workspaces {
    /// Returns the references of workspaces that were deleted before this time, in lived time, and are still kept, each with the
    /// operation that deleted the workspace.
    pub fn deleted_before(&self, time: Time, lived: &LivedTime) -> Result<Vec<(RefName, u64)>> {
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
                    // Deleted before the oldest operation in the log, at an unknown time.
                    Err(Error::Trimmed { since, .. }) => since,
                    // It was undeleted meanwhile.
                    Err(Error::Absent { .. }) if moved == 0 => continue,
                    Err(error) => return Err(error),
                };
                if lived.place(deleted) < time {
                    found.push((name, moved));
                }
            }
        }
    }

    /// Forgets deleted workspaces, given by the references and operations from [`deleted_before`](Self::deleted_before). They
    /// cannot be restored, and the next collection deletes the objects that only they kept alive. Workspaces that were undeleted
    /// meanwhile are skipped, also if they were deleted again. One operation forgets at most 512 workspaces; returns the last
    /// operation.
    pub fn forget_deleted(&self, deleted: &[(RefName, u64)], context: &OperationContext) -> Result<Option<Operation>> {
        let mut last = None;
        for some in deleted.chunks(FORGET_AT_ONCE) {
            // Another caller can undelete one between the read and the transaction.
            let done = trying(|| {
                let mut steps = Vec::new();
                for (name, moved) in some.iter().filter(|(name, _)| name.as_str().starts_with(DELETED_PREFIX)) {
                    // A second deletion can get the number of one that was undeleted, and so its name.
                    if let Some(value) = self.store.read_ref(name)?
                        && self.store.last_move(name)? == *moved
                    {
                        steps.push(Step { name: name.clone(), before: Some(value), after: None });
                    }
                }
                if steps.is_empty() {
                    return Ok(None);
                }
                move_refs(&self.store, context, context.draft(FORGET), steps).map(recorded).map(Some)
            })?;
            last = done.or(last);
        }
        Ok(last)
    }
}
