//! A reader of a range of a file, with a position of its own: several may read one file at once.

use std::borrow::Borrow;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

pub(crate) struct FileRange<F> {
    file: F,
    position: u64,
    end: u64,
}

impl<F: Borrow<File>> FileRange<F> {
    pub(crate) fn new(file: F, offset: u64, size: u64) -> Self {
        Self { file, position: offset, end: offset + size }
    }
}

impl<F: Borrow<File>> Read for FileRange<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = (self.end - self.position).min(buffer.len() as u64) as usize;
        let bytes = self.file.borrow().read_at(&mut buffer[..length], self.position)?;
        self.position += bytes as u64;
        Ok(bytes)
    }
}
