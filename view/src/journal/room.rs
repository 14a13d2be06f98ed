//! Room that is set aside behind the end of a journal file. On a full disk what frees room can still be written down there: removals,
//! cuts, and the steps of a commit or a restore. Everything else is refused before it would take that room.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use amalgam_engine::Error as EngineError;

use super::{Edit, Journal, file_name, io};
use crate::error::Result;
use crate::meta::Room;

/// What is kept for edits that free room: hundreds of them.
const RESERVE_BYTES: u64 = 64 << 10;
/// More is set aside at once, so that it is not done for each edit: a part of what the file has, within bounds.
const AHEAD_ONE_IN: u64 = 16;
const AHEAD_BYTES_MIN: u64 = 256 << 10;
const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// Stands for the end of what is set aside where the file system cannot do it.
const UNLIMITED: u64 = u64::MAX;

/// After so many bytes the disk is measured anew, or as soon as half of what may be taken is taken.
const MEASURE_AFTER_BYTES: u64 = 1 << 20;
/// What an edit counts for at least: a block.
const EDIT_BYTES_MIN: u64 = 4 << 10;

/// Measures the disk below.
type MeasureRoom = Arc<dyn Fn() -> Room + Send + Sync>;

/// The disk below, and how much may be written before it is measured again.
pub(super) struct Disk {
    measure: MeasureRoom,
    unmeasured_bytes: u64,
}

impl Disk {
    /// Refuses what would take the floor.
    fn demand(&mut self, bytes: u64) -> Result<()> {
        let bytes = bytes.max(EDIT_BYTES_MIN);
        if let Some(left) = self.unmeasured_bytes.checked_sub(bytes) {
            self.unmeasured_bytes = left;
            return Ok(());
        }
        let room = (self.measure)();
        let usable = room.usable_bytes();
        if bytes > usable && room.total_bytes > 0 {
            self.unmeasured_bytes = 0;
            let (free, floor) = (room.free_bytes, room.floor_bytes);
            let why = format!("{free} bytes are free on the store's disk, and its floor is {floor}");
            return Err(EngineError::Full { action: "write in a mount", why }.into());
        }
        self.unmeasured_bytes = (usable.saturating_sub(bytes) / 2).min(MEASURE_AFTER_BYTES);
        Ok(())
    }
}

impl Edit {
    /// Whether it makes something new or larger, and leaves the floor of the disk alone. What only moves or sets something takes little.
    fn takes_room(&self) -> bool {
        matches!(
            self,
            Self::Create { .. }
                | Self::CreateDirectory { .. }
                | Self::Symlink { .. }
                | Self::Special { .. }
                | Self::Link { .. }
                | Self::Write { .. }
                | Self::SetXattr { .. }
                | Self::Loose { .. }
        )
    }

    /// Whether it may take the room that is set aside.
    fn frees_room(&self) -> bool {
        match self {
            Self::Remove { .. }
            | Self::RemoveDirectory { .. }
            | Self::Truncate { .. }
            | Self::Punch { .. }
            | Self::RemoveXattr { .. }
            | Self::Landed { .. }
            | Self::Restore { .. } => true,
            Self::Create { .. }
            | Self::CreateDirectory { .. }
            | Self::Symlink { .. }
            | Self::Special { .. }
            | Self::Link { .. }
            | Self::Rename { .. }
            | Self::Write { .. }
            | Self::SetMode { .. }
            | Self::SetOwner { .. }
            | Self::SetMtime { .. }
            | Self::SetXattr { .. }
            | Self::Loose { .. } => false,
        }
    }
}

impl Journal {
    /// Makes sure that there is room for a record of so many bytes, and for the reserve behind it if the edit must leave that alone.
    pub(super) fn demand_room(&mut self, edit: &Edit, bytes: u64) -> Result<()> {
        if let Some(disk) = self.disk.as_mut().filter(|_| edit.takes_room()) {
            disk.demand(bytes)?;
        }
        let needed = self.end + bytes + RESERVE_BYTES;
        if edit.frees_room() || needed <= self.aside_end {
            return Ok(());
        }
        let ahead = (self.end / AHEAD_ONE_IN).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let done = self.set_aside(needed + ahead).or_else(|_| self.set_aside(needed));
        done.map_err(|error| io("write the journal")(error.into()))
    }

    /// Leaves the floor of the disk alone from now on.
    pub(crate) fn watch_room(&mut self, measure: Arc<dyn Fn() -> Room + Send + Sync>) {
        self.disk = Some(Disk { measure, unmeasured_bytes: 0 });
    }

    /// Sets the reserve aside in a file that was just begun, if there is room.
    pub(super) fn begin_reserve(&mut self) {
        self.aside_end = self.end;
        // Without it edits are refused as soon as there is no room.
        self.set_aside(self.end + RESERVE_BYTES).ok();
    }

    fn set_aside(&mut self, until: u64) -> Result<(), Errno> {
        let from = self.aside_end.max(self.end);
        match fallocate(&self.current.file, FallocateFlags::KEEP_SIZE, from, until.saturating_sub(from)) {
            Ok(()) => self.aside_end = until,
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error),
            // Tried again with the next edit.
            Err(Errno::INTR) => {}
            Err(_) => self.aside_end = UNLIMITED,
        }
        Ok(())
    }

    /// Gives back what is set aside: nothing more is written to this file, or something else needs it more.
    pub(crate) fn release_room(&mut self) {
        if self.aside_end == UNLIMITED || self.aside_end <= self.end {
            return;
        }
        if release_behind(&self.current.file, self.end).is_ok() {
            self.aside_end = self.end;
        }
    }

    /// The file ends here now, and nothing is set aside behind it.
    pub(super) fn was_cut(&mut self) {
        if self.aside_end != UNLIMITED {
            self.aside_end = self.end;
        }
    }
}

/// Gives back what is set aside behind the end of a file. Some file systems do so only when the end moves: a byte too many is no record,
/// and is overwritten.
fn release_behind(file: &File, end: u64) -> std::io::Result<()> {
    file.set_len(end + 1)?;
    file.set_len(end)
}

/// Gives back what a process that died had set aside.
pub(super) fn release_left(directory: &Path, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let file = File::options().write(true).open(directory.join(file_name(number)));
        // Where it cannot be done there is no more room than before.
        file.and_then(|file| release_behind(&file, file.metadata()?.len())).ok();
    }
}
