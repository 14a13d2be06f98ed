//! Storage for written bytes until they are frozen: append-only segments, in memory or in files, behind one trait.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};

/// Append-only bytes. Once written they never change.
pub trait Segment: Send + Sync {
    /// Fills the buffer from this offset.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;
}

/// A log that appends bytes to segments. All forks of a working tree share it.
pub trait SegmentLog: Send + Sync {
    /// Appends bytes contiguously and returns their location.
    fn append(&self, bytes: &[u8]) -> Result<SegmentRange>;

    /// Makes all appended bytes durable.
    fn sync(&self) -> Result<()>;
}

/// The start of a range of bytes in a segment.
#[derive(Clone)]
pub struct SegmentRange {
    /// The segment that holds the bytes.
    pub segment: Arc<dyn Segment>,
    /// The offset of the first byte in the segment.
    pub offset: u64,
}

const MEMORY_SEGMENT_BYTES: usize = 256 << 10;

/// Segments in memory. The memory is freed with the last tree that uses them.
#[derive(Default)]
pub struct MemorySegments {
    current: Mutex<Option<Arc<MemorySegment>>>,
}

struct MemorySegment {
    bytes: RwLock<Vec<u8>>,
}

impl SegmentLog for MemorySegments {
    fn append(&self, bytes: &[u8]) -> Result<SegmentRange> {
        if bytes.len() > MEMORY_SEGMENT_BYTES / 4 {
            let segment = Arc::new(MemorySegment { bytes: RwLock::new(bytes.to_vec()) });
            return Ok(SegmentRange { segment, offset: 0 });
        }
        let mut current = self.current.lock();
        let room = current.as_ref().filter(|segment| segment.bytes.read().len() + bytes.len() <= MEMORY_SEGMENT_BYTES);
        let segment = match room {
            Some(segment) => Arc::clone(segment),
            None => Arc::new(MemorySegment { bytes: RwLock::new(Vec::with_capacity(MEMORY_SEGMENT_BYTES)) }),
        };
        let offset = {
            let mut stored = segment.bytes.write();
            let offset = stored.len() as u64;
            stored.extend_from_slice(bytes);
            offset
        };
        *current = Some(Arc::clone(&segment));
        Ok(SegmentRange { segment, offset })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl Segment for MemorySegment {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).expect("an offset in memory");
        buffer.copy_from_slice(&self.bytes.read()[start..start + buffer.len()]);
        Ok(())
    }
}

const FILE_SEGMENT_BYTES: u64 = 64 << 20;
const SUFFIX: &str = "segment";

/// Segments in the files of one directory. A file is removed with the last tree that uses it. Files that a crash left behind are
/// removed when the directory is used again.
pub struct FileSegments {
    directory: PathBuf,
    current: Mutex<Current>,
}

struct Current {
    next_number: u64,
    segment: Option<Arc<FileSegment>>,
    end: u64,
}

struct FileSegment {
    file: File,
    path: PathBuf,
}

impl FileSegments {
    /// Creates the directory, which must not be shared, if it does not exist, and removes old segments from it.
    pub fn create(directory: &Path) -> Result<Self> {
        let action = "prepare the directory of segments";
        let io = |source: std::io::Error| Error::from_io(action, &source);
        std::fs::create_dir_all(directory).map_err(io)?;
        for entry in std::fs::read_dir(directory).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|suffix| suffix == SUFFIX) {
                std::fs::remove_file(path).map_err(io)?;
            }
        }
        let current = Mutex::new(Current { next_number: 0, segment: None, end: 0 });
        Ok(Self { directory: directory.to_owned(), current })
    }
}

impl SegmentLog for FileSegments {
    fn append(&self, bytes: &[u8]) -> Result<SegmentRange> {
        let io = |source: std::io::Error| Error::from_io("write to a segment", &source);
        let mut current = self.current.lock();
        let segment = match &current.segment {
            Some(segment) if current.end < FILE_SEGMENT_BYTES => Arc::clone(segment),
            full => {
                if let Some(full) = full {
                    // A later sync only syncs the new segment.
                    full.file.sync_data().map_err(io)?;
                }
                let path = self.directory.join(format!("{}.{SUFFIX}", current.next_number));
                let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(io)?;
                let segment = Arc::new(FileSegment { file, path });
                current.next_number += 1;
                current.segment = Some(Arc::clone(&segment));
                current.end = 0;
                segment
            }
        };
        let offset = current.end;
        // A failed write leaves bytes that no range refers to; the next write overwrites them.
        segment.file.write_all_at(bytes, offset).map_err(io)?;
        current.end += bytes.len() as u64;
        Ok(SegmentRange { segment, offset })
    }

    fn sync(&self) -> Result<()> {
        let segment = self.current.lock().segment.clone();
        let synced = segment.map_or(Ok(()), |segment| segment.file.sync_data());
        synced.map_err(|source| Error::from_io("sync a segment", &source))
    }
}

impl Segment for FileSegment {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|source| Error::from_io("read a segment", &source))
    }
}

impl Drop for FileSegment {
    fn drop(&mut self) {
        // A failed removal only wastes space until the directory is used again.
        std::fs::remove_file(&self.path).ok();
    }
}
