//! Contents: reading, writing, cutting, holes, copying.

use amalgam_engine::work::LooseFile;
use amalgam_engine::{Error as EngineError, Time, TreePath};
use bytes::Bytes;

use crate::access::Access;
use crate::ahead::Ahead;
use crate::attributes::{Caller, Kind};
use crate::error::{Error, Result};
use crate::inodes::{Ino, Whereabouts};
use crate::journal::{Edit, Unsynced};
use crate::meta::without_privilege;
use crate::neighbours::Fetch;
use crate::notice::Notice;
use crate::view::{Live, View};

/// The most that is copied within one call.
const COPY_BYTES_MAX: u64 = 64 << 20;
const COPY_STEP_BYTES: u64 = 1 << 20;
/// The longest read that is a short one.
const SHORT_BYTES_MAX: usize = 256 << 10;

/// What is looked for behind an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// A range that reads as zeros without having been; the end counts as one.
    Hole,
}

/// Bytes that were asked for.
pub enum Reading {
    /// These.
    AtHand(Bytes),
    /// They have to be fetched.
    Later(LaterRead),
}

/// Bytes that have to be fetched.
pub struct LaterRead {
    view: View,
    ino: Ino,
    file: LooseFile,
    offset: u64,
    length: usize,
    way: Way,
}

/// How bytes are fetched.
enum Way {
    /// As a part of a large file.
    InWindows,
    /// Somebody does it.
    Fetched,
    Alone,
}

impl LaterRead {
    /// Whether it is hardly worth another thread: a short read, one that somebody is at already, or one of a large file, for which a
    /// window or two are read or waited for.
    pub fn is_short(&self) -> bool {
        !matches!(self.way, Way::Alone) || self.length.min(self.file.stat().size as usize) <= SHORT_BYTES_MAX
    }

    /// Fetches them.
    pub fn finish(self) -> Result<Bytes> {
        let Self { view, ino, file, offset, length, way } = self;
        let found = match way {
            Way::InWindows => view.shared.ahead.read(ino, &file, offset, length)?,
            Way::Fetched => view.shared.neighbours.wait(&file, offset, length),
            Way::Alone => None,
        };
        match found {
            Some(bytes) => Ok(bytes),
            None => Ok(file.read_at(offset, length)?.into()),
        }
    }
}

impl View {
    /// Checks that a file may be opened, and cuts it if that is wanted.
    pub fn open_file(&self, caller: &Caller, ino: Ino, access: Access, truncate: bool) -> Result<()> {
        let live = &mut *self.shared.live.write();
        let attributes = live.attributes(self, ino)?;
        if attributes.kind == Kind::Directory && access.0 & Access::WRITE.0 != 0 {
            return Err(EngineError::IsADirectory { path: TreePath::root() }.into());
        }
        if access.0 & Access::WRITE.0 != 0 || truncate {
            live.demand_writable()?;
        }
        live.demand(caller, &attributes, access)?;
        if truncate && attributes.size > 0 {
            let now = self.now();
            self.truncate_in(live, ino, 0, now)?;
            live.touch(ino, now, now);
            self.tell(caller, || Notice::Contents(ino));
        }
        Ok(())
    }

    /// Up to `length` bytes from an offset; fewer at the end.
    pub fn read(&self, ino: Ino, offset: u64, length: usize) -> Result<Bytes> {
        match self.begin_read(ino, offset, length)? {
            Reading::AtHand(bytes) => Ok(bytes),
            Reading::Later(rest) => rest.finish(),
        }
    }

    /// The same for somebody who has others to answer: what is not at hand is for another thread.
    pub fn begin_read(&self, ino: Ino, offset: u64, length: usize) -> Result<Reading> {
        // Taken out under the lock, read without it.
        let file = self.shared.live.read().file(ino)?;
        let later = |file, way| LaterRead { view: self.clone(), ino, file, offset, length, way };
        if Ahead::is_for(&file) {
            let is_at_hand = self.shared.ahead.is_at_hand(&file, offset, length);
            let rest = later(file, Way::InWindows);
            return if is_at_hand { rest.finish().map(Reading::AtHand) } else { Ok(Reading::Later(rest)) };
        }
        let here = || {
            let live = self.shared.live.read();
            Some((live.tree.fork(), live.path(ino).ok()??))
        };
        Ok(match self.shared.neighbours.read(ino, &file, offset, length, here) {
            Fetch::Done(bytes) => Reading::AtHand(bytes),
            Fetch::OnItsWay => Reading::Later(later(file, Way::Fetched)),
            // What was written and not committed lies in the journal.
            Fetch::No if file.stored().is_none() => Reading::AtHand(file.read_at(offset, length)?.into()),
            Fetch::No => Reading::Later(later(file, Way::Alone)),
        })
    }

    /// Writes at an offset. `append` writes at the end instead, wherever that is by now; if that is not at the offset, whoever asked
    /// is told as everybody else is. Returns where the bytes went.
    pub fn write(&self, caller: &Caller, ino: Ino, offset: u64, data: &[u8], append: bool) -> Result<u64> {
        let live = &mut *self.shared.live.write();
        live.demand_writable()?;
        self.demand_quota(live, data.len() as u64)?;
        let now = self.now();
        let (asked, length) = (offset, data.len() as u64);
        let offset = match live.loose_mut(ino)? {
            Some(file) => {
                let offset = if append { file.stat().size } else { offset };
                let range = live.write_down(&Edit::Loose { length }, now, data)?;
                if let (Some(file), Some(range)) = (live.loose_mut(ino)?, range) {
                    file.write_range(offset, range, length, now)?;
                }
                offset
            }
            None => {
                let path = live.directory_path(ino)?;
                let offset = match append {
                    true => live.attributes(self, ino)?.size,
                    false => offset,
                };
                if length > 0 {
                    live.edit(&Edit::Write { path, offset, length }, now, data)?;
                }
                offset
            }
        };
        if length > 0 {
            live.touch_bytes(ino, now, offset + length);
            self.sync_early(live, length);
        }
        let door = if offset == asked { caller.door } else { None };
        self.shared.watchers.tell(door, || Notice::Contents(ino));
        Ok(offset)
    }

    /// Takes away what lets a file act for its owner, after somebody else has written to it. Returns whether there was anything.
    pub fn drop_privilege(&self, caller: &Caller, ino: Ino) -> Result<bool> {
        let attributes = self.attributes(ino)?;
        let mode = without_privilege(caller, &attributes);
        let has_any = mode != attributes.mode && attributes.kind == Kind::File;
        if has_any {
            let trusted = Caller { checked: false, ..caller.clone() };
            self.set_attributes(&trusted, ino, &crate::Set { mode: Some(mode), ..Default::default() })?;
        }
        Ok(has_any)
    }

    /// Lengthens a file so that a range is within it. Refused where the disk has no room for what of the range is no data yet. Nothing
    /// is set aside: others may take the room before it is written to.
    pub fn allocate(&self, caller: &Caller, ino: Ino, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let live = &mut *self.shared.live.write();
        let (size, end) = self.writable_range(live, ino, offset, length)?;
        let missing = length - data_bytes(&live.file(ino)?, offset, end.min(size))?;
        self.demand_quota(live, missing)?;
        self.demand_room(missing)?;
        if keep_size || end <= size {
            return Ok(());
        }
        let now = self.now();
        self.truncate_in(live, ino, end, now)?;
        live.touch(ino, now, now);
        self.tell(caller, || Notice::Contents(ino));
        Ok(())
    }

    /// Makes a range zeros. With `keep_size` the file stays as long as it is, else it reaches to the end of the range.
    pub fn punch(&self, caller: &Caller, ino: Ino, offset: u64, length: u64, keep_size: bool) -> Result<()> {
        let live = &mut *self.shared.live.write();
        let (size, end) = self.writable_range(live, ino, offset, length)?;
        let now = self.now();
        match live.loose_mut(ino)? {
            Some(file) => file.punch_hole(offset..end, now)?,
            None => {
                let path = live.directory_path(ino)?;
                live.edit(&Edit::Punch { path, start: offset, end }, now, &[])?;
            }
        }
        if !keep_size && end > size {
            self.truncate_in(live, ino, end, now)?;
        }
        live.touch(ino, now, now);
        self.tell(caller, || Notice::Contents(ino));
        Ok(())
    }

    /// Where the next data or the next hole begins, at an offset or behind it.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let file = self.shared.live.read().file(ino)?;
        let size = file.stat().size;
        if offset >= size {
            return Err(Error::NothingThere);
        }
        match what {
            Seek::Data => {
                let data = offset + file.hole_at(offset)?;
                if data >= size { Err(Error::NothingThere) } else { Ok(data) }
            }
            Seek::Hole => Ok(offset + file.data_at(offset)?),
        }
    }

    /// Copies a range from one file to another, or within one; returns how much was copied, which is less where the rest was refused.
    pub fn copy_range(&self, caller: &Caller, from: (Ino, u64), to: (Ino, u64), length: u64) -> Result<u64> {
        // One state of the source, whatever happens meanwhile, and whether or not the two are one file.
        let source: LooseFile = self.shared.live.read().file(from.0)?;
        let length = length.min(source.stat().size.saturating_sub(from.1)).min(COPY_BYTES_MAX);
        let mut done = 0;
        while done < length {
            let step = (length - done).min(COPY_STEP_BYTES);
            match self.copy_step(caller, &source, from.1 + done, (to.0, to.1 + done), step) {
                Ok(0) => break,
                Ok(copied) => done += copied,
                // Whoever asks for the rest is told why.
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn copy_step(&self, caller: &Caller, from: &LooseFile, offset: u64, to: (Ino, u64), length: u64) -> Result<u64> {
        let bytes = from.read_at(offset, length as usize)?;
        if !bytes.is_empty() {
            self.write(caller, to.0, to.1, &bytes, false)?;
        }
        Ok(bytes.len() as u64)
    }

    /// Puts everything that was changed through this view on disk. Once that failed it is never said to be done again.
    pub fn sync(&self) -> Result<()> {
        // The kernel says of an error once: whoever syncs meanwhile would not hear of it.
        let _one = self.shared.syncing.lock();
        let unsynced = match &self.shared.live.read().journal {
            Some(journal) => journal.unsynced()?,
            None => return Ok(()),
        };
        if unsynced.needs_store {
            let store = self.shared.live.read().tree.store().clone();
            store.sync()?;
        }
        let synced = unsynced.sync();
        let live = &mut *self.shared.live.write();
        live.end_sync(&unsynced, synced)
    }

    pub(crate) fn truncate_in(&self, live: &mut Live, ino: Ino, size: u64, now: Time) -> Result<()> {
        match live.loose_mut(ino)? {
            Some(file) => Ok(file.truncate(size, now)?),
            None => {
                let path = live.directory_path(ino)?;
                live.edit(&Edit::Truncate { path, size }, now, &[])
            }
        }
    }

    /// Refuses what the disk has no room for.
    fn demand_room(&self, bytes: u64) -> Result<()> {
        let Some(room) = &self.shared.options.room else { return Ok(()) };
        let usable = room().usable_bytes();
        if bytes <= usable {
            return Ok(());
        }
        let why = format!("{bytes} bytes are wanted and {usable} may be used");
        Err(EngineError::Full { action: "allocate room for a file", why }.into())
    }

    /// The size of a file that may be changed, and where a range in it ends.
    fn writable_range(&self, live: &Live, ino: Ino, offset: u64, length: u64) -> Result<(u64, u64)> {
        live.demand_writable()?;
        let attributes = live.attributes(self, ino)?;
        if attributes.kind != Kind::File {
            return Err(Error::Invalid("not a file"));
        }
        let end = offset.checked_add(length).filter(|end| *end <= i64::MAX as u64);
        let end = end.ok_or(EngineError::TooLarge { what: "a file", value: offset, max: i64::MAX as u64 })?;
        if length == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        Ok((attributes.size, end))
    }
}

/// How many bytes of a range are data and not holes.
fn data_bytes(file: &LooseFile, mut offset: u64, end: u64) -> Result<u64> {
    let mut bytes = 0;
    while offset < end {
        let data = file.data_at(offset)?.min(end - offset);
        bytes += data;
        offset += data;
        if offset < end {
            // At least one: whatever is neither is passed over.
            offset += file.hole_at(offset)?.max(1);
        }
    }
    Ok(bytes)
}

impl Live {
    /// What a sync came to.
    pub(crate) fn end_sync(&mut self, unsynced: &Unsynced, synced: std::io::Result<()>) -> Result<()> {
        match (synced, self.journal.as_mut()) {
            (Ok(()), Some(journal)) => journal.synced(unsynced),
            (Ok(()), None) => {}
            (Err(source), journal) => {
                journal.into_iter().for_each(|journal| journal.fail(source.to_string()));
                return Err(EngineError::from_io("sync the journal", &source).into());
            }
        }
        Ok(())
    }

    /// A file without a name, to be changed.
    pub(crate) fn loose_mut(&mut self, ino: Ino) -> Result<Option<&mut LooseFile>> {
        Ok(match &mut self.inodes.get_mut(ino)?.whereabouts {
            Whereabouts::Loose(file) => Some(file),
            _ => None,
        })
    }
}
