//! Writes the bytes of files, from another directory or from the store.

use std::fs::File;
use std::os::unix::fs::FileExt;

use amalgam_engine::TreePath;
use amalgam_engine::content;
use amalgam_engine::object::Content;
use bytes::Bytes;

use super::context::Context;
use super::recorder::Origin;
use super::source::Source;
use crate::error::{Error, Result};

/// Bytes of a large file that are read and written at once.
const BLOCK_BYTES: u64 = 1 << 20;
/// File systems keep holes in units of pages.
const PAGE_BYTES: usize = 4_096;

/// Writes bytes into new files.
pub(super) struct ContentWriter<'c> {
    cx: &'c Context<'c>,
    source: Option<Source<'c>>,
}

impl<'c> ContentWriter<'c> {
    pub(super) fn new(cx: &'c Context<'c>) -> Result<Self> {
        let source = match cx.options.source {
            Some((directory, index)) => {
                let root = index.root().map(|root| cx.store.root(root)).transpose()?;
                root.map(|root| Source::new(directory, index, root))
            }
            None => None,
        };
        Ok(Self { cx, source })
    }

    /// Returns whether most bytes come from the store, so that reading chunks ahead pays off.
    pub(super) fn reads_store(&self) -> bool {
        !self.source.as_ref().is_some_and(Source::is_used)
    }

    /// Writes a file's bytes; holes stay holes. `bytes` are those of a single chunk, if they were read ahead.
    pub(super) fn write(
        &self,
        file: &File,
        path: &TreePath,
        size: u64,
        content: &Content,
        bytes: Option<&Bytes>,
    ) -> Result<Origin> {
        let origin = match &self.source {
            Some(source) => source.copy_into(self.cx, file, path, size, content)?,
            None => Origin::Store,
        };
        if origin == Origin::Store {
            self.write_from_store(file, path, size, content, bytes)?;
        }
        Ok(origin)
    }

    fn write_from_store(
        &self,
        file: &File,
        path: &TreePath,
        size: u64,
        content: &Content,
        bytes: Option<&Bytes>,
    ) -> Result<()> {
        let store = self.cx.store;
        let failed = |source: std::io::Error| Error::host("write", path, source);
        let write = |bytes: &[u8], offset: u64| file.write_all_at(bytes, offset).map_err(failed);
        match (content, bytes) {
            (Content::Empty, _) => return Ok(()),
            (Content::Chunk(_), Some(bytes)) => return write(bytes, 0),
            (Content::Chunk(id), None) => return write(&store.chunk(*id, size)?, 0),
            (Content::Hole, _) => return file.set_len(size).map_err(failed),
            (Content::Rope(_), _) => {}
        }
        let mut buffer = vec![0; BLOCK_BYTES.min(size) as usize];
        let mut offset = 0;
        while offset < size {
            self.cx.check()?;
            let hole = content::hole_at(store, content, size, offset)?;
            if hole > 0 {
                offset += hole;
                continue;
            }
            let block = &mut buffer[..BLOCK_BYTES.min(size - offset) as usize];
            content::read_at(store, content, size, offset, block)?;
            let data = self.data_before_hole(block, content, size, offset)?;
            write(&block[..data], offset)?;
            offset += data as u64;
        }
        let written = file.metadata().map_err(failed)?.len();
        // The last part may be a hole.
        if written < size { file.set_len(size).map_err(failed) } else { Ok(()) }
    }

    /// Returns how many bytes of a block, which begins with data, lie before the next hole.
    fn data_before_hole(&self, block: &[u8], content: &Content, size: u64, offset: u64) -> Result<usize> {
        let mut at = 0;
        while at < block.len() {
            let page = &block[at..block.len().min(at + PAGE_BYTES)];
            let is_zero = page[0] == 0 && page.iter().all(|byte| *byte == 0);
            if at > 0 && is_zero && content::hole_at(self.cx.store, content, size, offset + at as u64)? > 0 {
                return Ok(at);
            }
            at += PAGE_BYTES;
        }
        Ok(block.len())
    }
}
