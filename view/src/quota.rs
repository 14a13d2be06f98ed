//! The quota of a view: the limit of its uncommitted bytes.

use crate::journal::Journal;
use crate::options::{DiskSpace, Quota};
use crate::view::View;

impl View {
    /// Returns the space that files can use: that of the quota, or of the disk if there is no quota.
    pub fn file_space(&self) -> DiskSpace {
        let disk = self.disk_space();
        let Some(Quota { max_bytes, used_bytes }) = self.quota() else { return disk };
        let free_bytes = max_bytes.saturating_sub(used_bytes);
        // Of the quota no more can be used than the disk has.
        let usable_bytes = free_bytes.min(if disk.total_bytes > 0 { disk.usable_bytes() } else { u64::MAX });
        DiskSpace { total_bytes: max_bytes, free_bytes, floor_bytes: free_bytes - usable_bytes }
    }

    /// Replaces the limit of uncommitted bytes.
    pub fn set_quota(&self, quota_bytes: Option<u64>) {
        self.shared.fs.write().quota_bytes = quota_bytes;
    }

    /// Returns the limit of uncommitted bytes and how much of it is used. `None` if there is no limit.
    pub fn quota(&self) -> Option<Quota> {
        let fs = self.shared.fs.read();
        let used_bytes = fs.journal.as_ref().map_or(0, Journal::uncommitted_bytes);
        fs.quota_bytes.map(|max_bytes| Quota { max_bytes, used_bytes })
    }

    /// Replaces the count of uncommitted bytes in the last checkpoint. The count is of bytes that were written; a caller that has measured
    /// the checkpoint gives back the bytes that were overwritten or removed before it.
    pub fn set_checkpointed_bytes(&self, bytes: u64) {
        if let Some(journal) = self.shared.fs.write().journal.as_mut() {
            journal.set_checkpointed_bytes(bytes);
        }
    }
}
