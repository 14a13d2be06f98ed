//! Reads the contents of versions into memory.

use amalgam_engine::content::read_at;
use amalgam_engine::object::Node;
use amalgam_engine::{Entry, Error, Result, Store};

/// Contents are read in steps of this many bytes, because the claimed length may be wrong.
const READ_BYTES_MAX: u64 = 4 << 20;

/// Returns all bytes of a file, or `None` for other kinds of entries, for larger files and for purged ones.
pub fn read_whole(store: &Store, entry: &Entry, bytes_max: u64) -> Result<Option<Vec<u8>>> {
    let Node::File { size, content } = entry.node else { return Ok(None) };
    if size > bytes_max {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < size {
        let done = bytes.len();
        bytes.resize(done + (size - done as u64).min(READ_BYTES_MAX) as usize, 0);
        match read_at(store, &content, size, done as u64, &mut bytes[done..]) {
            Ok(()) => {}
            Err(Error::Purged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(bytes))
}
