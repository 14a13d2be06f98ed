//! Compares a name on the host with a stored entry by reading it, for stamps that prove nothing.

use std::os::fd::BorrowedFd;

use amalgam_engine::content::{ByteSource, hole_at, read_at};
use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, Name, Store};
use rustix::fs::FileType;

use crate::capture::{FileBytes, FileRead, read_file, read_special};
use crate::error::Result;
use crate::progress::Progress;
use crate::report::Why;
use crate::stamp::Stamp;

/// Bytes of a file that are compared at once.
const BLOCK_BYTES: usize = 256 << 10;

/// Result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentMatch {
    /// Equal to the entry, as of this stamp.
    Equal(Stamp),
    Differs,
    Gone,
    /// It could not be read, or kept changing.
    Unknown,
}

/// Result and cost of a comparison.
pub(crate) struct CompareResult {
    pub(crate) outcome: ContentMatch,
    /// Bytes of a file that were read.
    pub(crate) read: Option<u64>,
    /// Reason for a notice.
    pub(crate) why: Option<Why>,
}

impl From<ContentMatch> for CompareResult {
    fn from(outcome: ContentMatch) -> Self {
        Self { outcome, read: None, why: None }
    }
}

/// Compares bytes, symlink targets, devices and extended attributes; the caller has compared the stamp.
pub(crate) fn compare(
    store: &Store,
    directory: BorrowedFd<'_>,
    name: &Name,
    entry: &Entry,
    stamp: Stamp,
    progress: &Progress,
) -> Result<CompareResult> {
    let (size, content) = match (&entry.node, stamp.kind()) {
        (Node::File { size, content }, FileType::RegularFile) => (*size, *content),
        (_, FileType::RegularFile) => return Ok(ContentMatch::Differs.into()),
        (node, _) => {
            let is_equal = matches!(read_special(directory, name, &stamp), Ok(Some(now)) if now == *node);
            return Ok(if is_equal { ContentMatch::Equal(stamp) } else { ContentMatch::Differs }.into());
        }
    };
    if size != stamp.size {
        return Ok(ContentMatch::Differs.into());
    }
    let opened = read_file(directory, name, progress, |source, _| is_equal(store, source, size, &content, progress))?;
    Ok(match opened {
        FileRead::File { value: (is_equal, bytes), stamp, xattrs, is_changing } => {
            let is_equal = is_equal && store.xattrs(entry.xattrs())? == xattrs;
            let outcome = match (is_equal, is_changing) {
                (true, false) => ContentMatch::Equal(stamp),
                (true, true) => ContentMatch::Unknown,
                (false, _) => ContentMatch::Differs,
            };
            CompareResult { outcome, read: Some(bytes), why: is_changing.then_some(Why::Changing) }
        }
        FileRead::Gone => ContentMatch::Gone.into(),
        FileRead::Other => ContentMatch::Differs.into(),
        FileRead::Failed(why) => CompareResult { outcome: ContentMatch::Unknown, read: None, why: Some(why) },
    })
}

/// Compares a file's bytes with a content. Returns whether they are equal, and how many were read. Ranges that are holes on both
/// sides are not read.
fn is_equal(
    store: &Store,
    source: &FileBytes<'_>,
    size: u64,
    content: &Content,
    progress: &Progress,
) -> Result<(bool, u64)> {
    if source.length() != size {
        return Ok((false, 0));
    }
    let length = BLOCK_BYTES.min(usize::try_from(size).unwrap_or(BLOCK_BYTES));
    let (mut ours, mut theirs) = (vec![0; length], vec![0; length]);
    let (mut offset, mut bytes) = (0, 0);
    while offset < size {
        progress.check()?;
        let hole = match source.known_zeros(offset)? {
            0 => 0,
            zeros => zeros.min(hole_at(store, content, size, offset)?),
        };
        if hole > 0 {
            offset += hole;
            continue;
        }
        let length = (size - offset).min(length as u64) as usize;
        let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
        source.read_at(offset, ours)?;
        match read_at(store, content, size, offset, theirs) {
            Ok(()) => {}
            // The stored bytes are gone.
            Err(amalgam_engine::Error::Purged { .. }) => return Ok((false, bytes)),
            Err(error) => return Err(error.into()),
        }
        offset += length as u64;
        bytes += length as u64;
        if ours != theirs {
            return Ok((false, bytes));
        }
    }
    Ok((true, bytes))
}
