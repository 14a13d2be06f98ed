//! Operations on file data: write, truncate, allocate, punch holes, seek, copy. Reads are in [`prefetch`](crate::prefetch).

use amalgam_engine::work::LooseFile;
use amalgam_engine::{Error as EngineError, Time, TreePath};

use crate::access::{Access, Caller};
use crate::attributes::{Attributes, Ino, Kind};
use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::invalidation::Invalidation;
use crate::journal::Edit;

/// Limit of bytes that one call copies.
pub(crate) const COPY_BYTES_MAX: u64 = 64 << 20;
/// Bytes that are copied without releasing the view's lock.
pub(crate) const COPY_STEP_BYTES: u64 = 1 << 20;

/// The target of a seek: the next data or the next hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Data that was written.
    Data,
    /// A range of zeros that was not written. The end of the file counts as one.
    Hole,
}

/// Whether an operation on a range beyond the end of a file extends the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    /// The size stays.
    Keep,
    /// The file is extended to the end of the range.
    Extend,
}

/// Where a write goes.
#[derive(Clone, Copy)]
pub(crate) enum WriteAt {
    Offset(u64),
    /// The end of the file. The caller expects it at this offset.
    End {
        expected: u64,
    },
}

/// Checks that a file may be opened.
pub(crate) fn open(fs: &FileSystem, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
    let attributes = attributes_to_open(fs, ino, access)?;
    if access.has_write() {
        fs.ensure_writable()?;
        fs.ensure_change_permitted(ino)?;
    } else {
        fs.ensure_read_permitted(ino)?;
    }
    fs.check_access(caller, &attributes, access)
}

/// Checks that a file may be opened, and truncates it to zero bytes.
pub(crate) fn open_truncating(fs: &mut FileSystem, caller: &Caller, ino: Ino, access: Access) -> Result<()> {
    let attributes = attributes_to_open(fs, ino, access)?;
    fs.ensure_writable()?;
    fs.ensure_change_permitted(ino)?;
    fs.check_access(caller, &attributes, access)?;
    if attributes.size > 0 {
        let now = fs.now();
        truncate(fs, ino, 0, now)?;
        fs.attributes_changed(ino, now, now);
        fs.notify(caller, || Invalidation::Contents(ino));
    }
    Ok(())
}

/// Returns the attributes of an inode. Refuses to open a directory for writing.
fn attributes_to_open(fs: &FileSystem, ino: Ino, access: Access) -> Result<Attributes> {
    let attributes = fs.attributes(ino)?;
    if attributes.kind == Kind::Directory && access.has_write() {
        return Err(EngineError::IsADirectory { path: TreePath::root() }.into());
    }
    Ok(attributes)
}

/// Writes data, and returns the offset that it went to. If an append does not go to the expected offset, the origin of the call is
/// notified like all others.
pub(crate) fn write(fs: &mut FileSystem, caller: &Caller, ino: Ino, at: WriteAt, data: &[u8]) -> Result<u64> {
    fs.ensure_writable()?;
    if let Err(refused) = fs.ensure_change_permitted(ino) {
        // A process that wrote into a shared mapping has changed the kernel's cache already, which all readers of the mount share.
        fs.watchers.notify(None, || Invalidation::Contents(ino));
        return Err(refused);
    }
    let length = data.len() as u64;
    fs.ensure_quota(length)?;
    let now = fs.now();
    let offset = match fs.unlinked_mut(ino)? {
        Some(file) => {
            let offset = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::End { .. } => file.stat().size,
            };
            let range = fs.append_to_journal(&Edit::UnlinkedData { length }, now, data)?;
            if let (Some(file), Some(range)) = (fs.unlinked_mut(ino)?, range) {
                file.write_range(offset, range, length, now)?;
            }
            offset
        }
        None => {
            let path = fs.linked_path(ino)?;
            let offset = match at {
                WriteAt::Offset(offset) => offset,
                WriteAt::End { .. } => fs.attributes(ino)?.size,
            };
            if length > 0 {
                fs.edit(&Edit::Write { path, offset, length }, now, data)?;
            }
            offset
        }
    };
    if length > 0 {
        fs.data_changed(ino, now, offset + length);
    }
    let is_expected = !matches!(at, WriteAt::End { expected } if expected != offset);
    let origin = if is_expected { caller.origin } else { None };
    fs.watchers.notify(origin, || Invalidation::Contents(ino));
    Ok(offset)
}

/// Extends a file to contain a range, unless the size is kept. Refused if the disk has no space for the part of the range that is not
/// data yet. Does not reserve the space: others may take it before it is written.
pub(crate) fn allocate(
    fs: &mut FileSystem,
    caller: &Caller,
    ino: Ino,
    (offset, length): (u64, u64),
    size_change: SizeChange,
) -> Result<()> {
    let (size, end) = writable_range(fs, ino, offset, length)?;
    let missing = length - data_bytes(&fs.file(ino)?, offset, end.min(size))?;
    fs.ensure_quota(missing)?;
    ensure_disk_space(fs, missing)?;
    if size_change == SizeChange::Keep || end <= size {
        return Ok(());
    }
    let now = fs.now();
    truncate(fs, ino, end, now)?;
    fs.attributes_changed(ino, now, now);
    fs.notify(caller, || Invalidation::Contents(ino));
    Ok(())
}

/// Makes a range read as zeros.
pub(crate) fn punch(
    fs: &mut FileSystem,
    caller: &Caller,
    ino: Ino,
    (offset, length): (u64, u64),
    size_change: SizeChange,
) -> Result<()> {
    let (size, end) = writable_range(fs, ino, offset, length)?;
    let now = fs.now();
    match fs.unlinked_mut(ino)? {
        Some(file) => file.punch_hole(offset..end, now)?,
        None => {
            let path = fs.linked_path(ino)?;
            fs.edit(&Edit::Punch { path, start: offset, end }, now, &[])?;
        }
    }
    if size_change == SizeChange::Extend && end > size {
        truncate(fs, ino, end, now)?;
    }
    fs.attributes_changed(ino, now, now);
    fs.notify(caller, || Invalidation::Contents(ino));
    Ok(())
}

/// Returns where the next data or the next hole begins, at an offset or behind it.
pub(crate) fn seek(file: &LooseFile, offset: u64, target: Seek) -> Result<u64> {
    let size = file.stat().size;
    if offset >= size {
        return Err(Error::NothingThere);
    }
    match target {
        Seek::Data => {
            let data = offset + file.hole_at(offset)?;
            if data >= size { Err(Error::NothingThere) } else { Ok(data) }
        }
        Seek::Hole => Ok(offset + file.data_at(offset)?),
    }
}

/// Sets the size of a file.
pub(crate) fn truncate(fs: &mut FileSystem, ino: Ino, size: u64, now: Time) -> Result<()> {
    match fs.unlinked_mut(ino)? {
        Some(file) => Ok(file.truncate(size, now)?),
        None => {
            let path = fs.linked_path(ino)?;
            fs.edit(&Edit::Truncate { path, size }, now, &[])
        }
    }
}

fn ensure_disk_space(fs: &FileSystem, bytes: u64) -> Result<()> {
    let Some(measure) = &fs.options.disk else { return Ok(()) };
    let usable = measure().usable_bytes();
    if bytes <= usable {
        return Ok(());
    }
    let why = format!("{bytes} bytes are wanted and {usable} may be used");
    Err(EngineError::Full { action: "allocate room for a file", why }.into())
}

/// Returns the size of a file that may be changed, and the end of a range in it.
fn writable_range(fs: &FileSystem, ino: Ino, offset: u64, length: u64) -> Result<(u64, u64)> {
    fs.ensure_writable()?;
    fs.ensure_change_permitted(ino)?;
    let attributes = fs.attributes(ino)?;
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

/// Returns how many bytes of a range are data, not holes.
fn data_bytes(file: &LooseFile, mut offset: u64, end: u64) -> Result<u64> {
    let mut bytes = 0;
    while offset < end {
        let data = file.data_at(offset)?.min(end - offset);
        bytes += data;
        offset += data;
        if offset < end {
            // At least one byte, so that the loop always ends.
            offset += file.hole_at(offset)?.max(1);
        }
    }
    Ok(bytes)
}
