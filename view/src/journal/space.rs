//! Disk space for the journal: preallocation behind the end of the current file, and the floor of the disk.
//!
//! On a full disk, edits that free space (removals, truncations, the records of a commit or a restore) are still written into a
//! preallocated reserve. All other edits are refused before they would take the reserve.

use std::fs::File;
use std::path::Path;

use amalgam_engine::Error as EngineError;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::edit::Edit;
use super::file::{file_name, release_behind};
use crate::encoding::io_error;
use crate::error::Result;
use crate::options::MeasureDisk;

/// Reserve for edits that free space: room for hundreds of them.
const RESERVE_BYTES: u64 = 64 << 10;
/// Preallocation beyond the reserve, so that not every edit has to preallocate: a part of the file's length, within bounds.
const PREALLOCATE_ONE_IN: u64 = 16;
const PREALLOCATE_BYTES_MIN: u64 = 256 << 10;
const PREALLOCATE_BYTES_MAX: u64 = 8 << 20;
/// A finished file keeps at most this much preallocated space until it is synced or removed: freeing it can wait for other writers of the
/// file system, which a commit should not.
const FINISHED_BYTES_MAX: u64 = 1 << 20;
/// End of the preallocated range on file systems that cannot preallocate.
const UNLIMITED: u64 = u64::MAX;

/// The disk is measured again after this many bytes, or once half of the usable space is taken.
const MEASURE_AFTER_BYTES: u64 = 1 << 20;
/// Space that an edit counts for at least: a block.
const EDIT_BYTES_MIN: u64 = 4 << 10;

/// The preallocated range of the current journal file, and the gauge of the disk.
#[derive(Default)]
pub(super) struct JournalSpace {
    preallocated_end: u64,
    disk: Option<DiskGauge>,
}

/// Measures the disk from time to time, and refuses writes below its floor.
struct DiskGauge {
    measure: MeasureDisk,
    /// Bytes that may be written before the next measurement.
    unmeasured_bytes: u64,
}

impl DiskGauge {
    fn ensure_free(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes.max(EDIT_BYTES_MIN);
        if let Some(left) = self.unmeasured_bytes.checked_sub(bytes) {
            self.unmeasured_bytes = left;
            return Ok(());
        }
        let space = (self.measure)();
        let usable = space.usable_bytes();
        if bytes > usable && space.total_bytes > 0 {
            self.unmeasured_bytes = 0;
            let (free, floor) = (space.free_bytes, space.floor_bytes);
            let why = format!("{free} bytes are free on the store's disk, and its floor is {floor}");
            return Err(EngineError::Full { action: "write in a mount", why }.into());
        }
        self.unmeasured_bytes = (usable.saturating_sub(bytes) / 2).min(MEASURE_AFTER_BYTES);
        Ok(())
    }
}

/// Returns whether an edit creates or enlarges an entry, and so respects the floor of the disk.
fn takes_space(edit: &Edit) -> bool {
    matches!(
        edit,
        Edit::Create { .. }
            | Edit::CreateDirectory { .. }
            | Edit::Symlink { .. }
            | Edit::Special { .. }
            | Edit::Link { .. }
            | Edit::Write { .. }
            | Edit::SetXattr { .. }
            | Edit::UnlinkedData { .. }
            | Edit::Group { .. }
            | Edit::WriteParts { .. }
            | Edit::SetState { .. }
            | Edit::TakeEntries { .. }
    )
}

/// Returns whether an edit may use the reserve.
fn frees_space(edit: &Edit) -> bool {
    match edit {
        Edit::Remove { .. }
        | Edit::RemoveDirectory { .. }
        | Edit::RemoveAll { .. }
        | Edit::Truncate { .. }
        | Edit::Punch { .. }
        | Edit::RemoveXattr { .. }
        | Edit::Committed { .. }
        | Edit::Restore { .. } => true,
        Edit::Create { .. }
        | Edit::CreateDirectory { .. }
        | Edit::Symlink { .. }
        | Edit::Special { .. }
        | Edit::Link { .. }
        | Edit::Rename { .. }
        | Edit::Write { .. }
        | Edit::SetMode { .. }
        | Edit::SetOwner { .. }
        | Edit::SetMtime { .. }
        | Edit::SetXattr { .. }
        | Edit::UnlinkedData { .. }
        | Edit::Group { .. }
        | Edit::WriteParts { .. }
        | Edit::SetState { .. }
        | Edit::TakeEntries { .. } => false,
    }
}

impl JournalSpace {
    /// Respects the floor of the disk from now on.
    pub(super) fn set_disk(&mut self, measure: MeasureDisk) {
        self.disk = Some(DiskGauge { measure, unmeasured_bytes: 0 });
    }

    /// Makes sure that a record of `bytes` bytes fits at the end of the file, and the reserve behind it unless the edit may use
    /// that.
    pub(super) fn ensure(&mut self, file: &File, end: u64, edit: &Edit, bytes: u64) -> Result<()> {
        if let Some(disk) = self.disk.as_mut().filter(|_| takes_space(edit)) {
            disk.ensure_free(bytes)?;
        }
        let needed = end + bytes + RESERVE_BYTES;
        if frees_space(edit) || needed <= self.preallocated_end {
            return Ok(());
        }
        let extra = (end / PREALLOCATE_ONE_IN).clamp(PREALLOCATE_BYTES_MIN, PREALLOCATE_BYTES_MAX);
        let done = self.preallocate(file, end, needed + extra).or_else(|_| self.preallocate(file, end, needed));
        done.map_err(|error| io_error("write the journal")(error.into()))
    }

    /// Preallocates the reserve behind the end of a new or truncated file, if the disk has space.
    pub(super) fn begin_file(&mut self, file: &File, end: u64) {
        self.preallocated_end = end;
        self.preallocate_reserve(file, end);
    }

    /// Returns whether the preallocated range of a finished file can be freed later, rather than at once.
    pub(super) fn can_release_later(&self, end: u64) -> bool {
        self.preallocated_end > end && self.preallocated_end - end <= FINISHED_BYTES_MAX
    }

    /// Returns whether there is a preallocated range behind an offset, or the file system has none.
    pub(super) fn has_reserve(&self, end: u64) -> bool {
        self.preallocated_end > end
    }

    /// Frees the preallocated range, the reserve included.
    pub(super) fn release(&mut self, file: &File, end: u64) {
        if self.preallocated_end == UNLIMITED || self.preallocated_end <= end {
            return;
        }
        if release_behind(file, end).is_ok() {
            self.preallocated_end = end;
        }
    }

    /// Frees the preallocated range beyond the reserve. Returns whether there was one.
    pub(super) fn release_beyond_reserve(&mut self, file: &File, end: u64) -> bool {
        if self.preallocated_end == UNLIMITED || self.preallocated_end <= end + RESERVE_BYTES {
            return false;
        }
        self.release(file, end);
        self.preallocate_reserve(file, end);
        true
    }

    fn preallocate_reserve(&mut self, file: &File, end: u64) {
        // Without the reserve, edits are refused as soon as the disk is full.
        self.preallocate(file, end, end + RESERVE_BYTES).ok();
    }

    fn preallocate(&mut self, file: &File, end: u64, until: u64) -> Result<(), Errno> {
        let from = self.preallocated_end.max(end);
        match fallocate(file, FallocateFlags::KEEP_SIZE, from, until.saturating_sub(from)) {
            Ok(()) => self.preallocated_end = until,
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error),
            // The next edit tries again.
            Err(Errno::INTR) => {}
            Err(_) => self.preallocated_end = UNLIMITED,
        }
        Ok(())
    }
}

/// Frees the space that a killed process had preallocated.
pub(super) fn release_leftover(directory: &Path, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let file = File::options().write(true).open(directory.join(file_name(number)));
        // A file that cannot be changed keeps its space.
        file.and_then(|file| release_behind(&file, file.metadata()?.len())).ok();
    }
}
