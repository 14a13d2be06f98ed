//! Whether what lies under a name holds what an entry says, found by reading it: for stamps that say nothing.

use std::os::fd::BorrowedFd;

use amalgam_engine::content::{ByteSource, read_at};
use amalgam_engine::object::{Content, Node};
use amalgam_engine::{Entry, Name, Store};
use rustix::fs::FileType;

use crate::capture::{Opened, Source, other, with_file};
use crate::error::Result;
use crate::progress::Progress;
use crate::report::Why;
use crate::stamp::Stamp;

/// So much of a file is compared at once.
const BLOCK_BYTES: usize = 256 << 10;

/// How something on the host is to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Likeness {
    /// It holds what the entry says, as of this stamp.
    Equal(Stamp),
    Differs,
    Gone,
    /// It could not be read, or changed all the time.
    Unknown,
}

/// What a comparison came to.
pub(crate) struct Compared {
    pub(crate) likeness: Likeness,
    /// How many bytes of a file were read.
    pub(crate) read: Option<u64>,
    /// What is to be said of it.
    pub(crate) why: Option<Why>,
}

impl From<Likeness> for Compared {
    fn from(likeness: Likeness) -> Self {
        Self { likeness, read: None, why: None }
    }
}

/// Compares bytes, targets, devices and extended attributes; not what a stamp tells, which the caller has looked at.
pub(crate) fn compare(
    store: &Store,
    directory: BorrowedFd<'_>,
    name: &Name,
    entry: &Entry,
    stamp: Stamp,
    progress: &Progress,
) -> Result<Compared> {
    let (size, content) = match (&entry.node, stamp.kind()) {
        (Node::File { size, content }, FileType::RegularFile) => (*size, *content),
        (_, FileType::RegularFile) => return Ok(Likeness::Differs.into()),
        (node, _) => {
            let is_equal = matches!(other(directory, name, &stamp), Ok(Some(now)) if now == *node);
            return Ok(if is_equal { Likeness::Equal(stamp) } else { Likeness::Differs }.into());
        }
    };
    if size != stamp.size {
        return Ok(Likeness::Differs.into());
    }
    let opened = with_file(directory, name, progress, |source, _| is_equal(store, source, size, &content, progress))?;
    Ok(match opened {
        Opened::File { value: (is_equal, bytes), stamp, xattrs, is_changing } => {
            let is_equal = is_equal && store.xattrs(entry.xattrs())? == xattrs;
            let likeness = match (is_equal, is_changing) {
                (true, false) => Likeness::Equal(stamp),
                (true, true) => Likeness::Unknown,
                (false, _) => Likeness::Differs,
            };
            Compared { likeness, read: Some(bytes), why: is_changing.then_some(Why::Changing) }
        }
        Opened::Gone => Likeness::Gone.into(),
        Opened::Other => Likeness::Differs.into(),
        Opened::Failed(why) => Compared { likeness: Likeness::Unknown, read: None, why: Some(why) },
    })
}

/// Whether a file's bytes are those of a content, and how many were read to know it.
fn is_equal(
    store: &Store,
    source: &Source<'_>,
    size: u64,
    content: &Content,
    progress: &Progress,
) -> Result<(bool, u64)> {
    if source.length() != size {
        return Ok((false, 0));
    }
    let length = BLOCK_BYTES.min(usize::try_from(size).unwrap_or(BLOCK_BYTES));
    let (mut ours, mut theirs) = (vec![0; length], vec![0; length]);
    let mut offset = 0;
    while offset < size {
        progress.check()?;
        let length = (size - offset).min(length as u64) as usize;
        let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
        source.read_at(offset, ours)?;
        match read_at(store, content, size, offset, theirs) {
            Ok(()) => {}
            // What it was is not known any more.
            Err(amalgam_engine::Error::Purged { .. }) => return Ok((false, offset)),
            Err(error) => return Err(error.into()),
        }
        offset += length as u64;
        if ours != theirs {
            return Ok((false, offset));
        }
    }
    Ok((true, offset))
}
