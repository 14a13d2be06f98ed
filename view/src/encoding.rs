//! Encoding of the small files beside the journal: numbers, byte strings, a checksum, and atomic replacement of a file.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use amalgam_engine::object::Owner;
use amalgam_engine::{Error as EngineError, TreePath};

use crate::error::{Error, Result};

/// Appends little-endian numbers and length-prefixed bytes.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn path(&mut self, path: &TreePath) -> &mut Self {
        self.bytes(path.as_bytes())
    }

    pub(crate) fn owner(&mut self, owner: Option<Owner>) -> &mut Self {
        match owner {
            None => self.u8(0),
            Some(Owner { uid, gid }) => self.u8(1).u32(uid).u32(gid),
        }
    }
}

/// Reads the output of [`Writer`]. Returns `None` at the end of the bytes and for invalid values.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take(8).map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    pub(crate) fn path(&mut self) -> Option<TreePath> {
        TreePath::new(self.bytes()?).ok()
    }

    pub(crate) fn owner(&mut self) -> Option<Option<Owner>> {
        match self.u8()? {
            0 => Some(None),
            1 => Some(Some(Owner { uid: self.u32()?, gid: self.u32()? })),
            _ => None,
        }
    }
}

/// Appends a checksum to bytes.
pub(crate) fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the bytes before their checksum, or `None` if it is wrong.
pub(crate) fn unseal(bytes: &[u8]) -> Option<&[u8]> {
    let (body, sum) = bytes.split_at_checked(bytes.len().checked_sub(4)?)?;
    (crc32fast::hash(body).to_le_bytes() == sum).then_some(body)
}

/// Replaces a file atomically and durably.
pub(crate) fn replace_file(directory: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let new = directory.join(format!("{name}.new"));
    let replace = || -> std::io::Result<()> {
        let file = File::create(&new)?;
        file.write_all_at(bytes, 0)?;
        file.sync_data()?;
        std::fs::rename(&new, directory.join(name))?;
        File::open(directory)?.sync_all()
    };
    // On a full disk the incomplete file would take space that others need.
    replace()
        .inspect_err(|_| std::fs::remove_file(&new).unwrap_or_default())
        .map_err(io_error("write the journal's base"))
}

/// Converts an I/O error, with the action that failed.
pub(crate) fn io_error(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Engine(EngineError::from_io(action, &source))
}
