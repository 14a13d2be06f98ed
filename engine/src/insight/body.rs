//! The contents of an entry as bytes in memory.

use bytes::Bytes;

use crate::content::read_at;
use crate::error::{Error, Result};
use crate::object::{Content, Entry, Node};
use crate::store::Store;

/// Number of leading bytes that are searched for a NUL, as Git does.
const BINARY_LOOK_BYTES: usize = 8_000;

/// Returns the size of an entry's contents in bytes: of a file, or of a symlink's target; 0 for other kinds.
pub(super) fn size(entry: &Entry) -> u64 {
    match &entry.node {
        Node::File { size, .. } => *size,
        Node::Symlink(target) => target.len() as u64,
        _ => 0,
    }
}

/// Returns the bytes of a file or of a symlink's target; empty for other kinds.
pub(crate) fn load(store: &Store, entry: &Entry) -> Result<Bytes> {
    match &entry.node {
        Node::File { size, content: Content::Chunk(id) } => store.chunk(*id, *size),
        Node::File { size, content } => {
            let what = "a file taken into memory";
            let length =
                usize::try_from(*size).map_err(|_| Error::TooLarge { what, value: *size, max: usize::MAX as u64 })?;
            let mut buffer = vec![0; length];
            read_at(store, content, *size, 0, &mut buffer)?;
            Ok(buffer.into())
        }
        Node::Symlink(target) => Ok(target.clone()),
        _ => Ok(Bytes::new()),
    }
}

/// Returns whether Git would treat the bytes as binary.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    memchr::memchr(0, &bytes[..bytes.len().min(BINARY_LOOK_BYTES)]).is_some()
}
