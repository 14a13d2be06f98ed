//! Journal files: names, headers, record heads, and low-level writes.

use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use amalgam_engine::work::Segment;
use amalgam_engine::{DEPTH_MAX, Error as EngineError, NAME_BYTES_MAX};
use rustix::io::Errno;

use crate::encoding::{Reader, Writer, io_error, seal, unseal};
use crate::error::Result;

pub(super) const MAGIC: &[u8; 8] = b"AMVIEW1\n";
/// Header of a file: magic, predecessor, checksum.
pub(super) const HEADER_BYTES: usize = MAGIC.len() + 8 + 8 + 4;
/// Head of a record: length of the edit, checksum, time.
pub(super) const RECORD_HEAD_BYTES: usize = 4 + 4 + 8;
/// Limit of an encoded edit: two paths of maximal length, or one with an extended attribute, and their framing.
pub(super) const EDIT_BYTES_MAX: usize = 2 * DEPTH_MAX * (NAME_BYTES_MAX + 1) + (128 << 10);

/// Random identity of a journal, unique among all journals.
pub(super) type Identity = [u8; 16];

/// A journal file. The working tree reads file data from it.
pub(crate) struct JournalFile {
    pub(super) file: File,
    /// Length of a file that is no longer written and still has preallocated space behind it; 0 for any other file.
    finished_end: AtomicU64,
}

impl Segment for JournalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> amalgam_engine::Result<()> {
        let read = self.file.read_exact_at(buffer, offset);
        read.map_err(|source| EngineError::from_io("read the journal", &source))
    }
}

impl JournalFile {
    /// Creates a file with a header.
    pub(super) fn create(directory: &Path, number: u64, predecessor: Predecessor) -> Result<Arc<Self>> {
        let path = directory.join(file_name(number));
        let open = || -> std::io::Result<File> {
            let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
            file.write_all_at(&predecessor.encode(), 0)?;
            Ok(file)
        };
        Ok(Arc::new(Self::new(open().map_err(io_error("begin a journal"))?)))
    }

    pub(super) fn new(file: File) -> Self {
        Self { file, finished_end: AtomicU64::new(0) }
    }

    /// Records that nothing more is written behind an offset, so that the preallocated space there can be freed later.
    pub(super) fn finish(&self, end: u64) {
        self.finished_end.store(end, Ordering::Release);
    }

    /// Frees the preallocated space of a finished file. Returns whether it had any.
    pub(super) fn release_finished(&self) -> bool {
        let end = self.finished_end.swap(0, Ordering::AcqRel);
        // A file that cannot be changed keeps its space until it is removed.
        end > 0 && release_behind(&self.file, end).is_ok()
    }
}

/// Frees preallocated space behind the end of a file. Some file systems free it only when the end moves; a byte too many is no record,
/// and is overwritten.
pub(super) fn release_behind(file: &File, end: u64) -> std::io::Result<()> {
    file.set_len(end + 1)?;
    file.set_len(end)
}

/// The file that a file continues, and the length of that file. Zero for the first file of a journal, and if no file before it could
/// be replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Predecessor {
    pub(super) number: u64,
    pub(super) end: u64,
}

impl Predecessor {
    fn encode(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        Writer(&mut bytes).u64(self.number).u64(self.end);
        seal(bytes)
    }

    pub(super) fn decode(header: &[u8]) -> Option<Self> {
        let mut from = Reader(unseal(header)?.strip_prefix(MAGIC)?);
        Some(Self { number: from.u64()?, end: from.u64()? })
    }
}

/// Returns the checksum of a record: of its head after the checksum, the edit, and the data.
pub(super) fn checksum(rest: &[u8], data: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(rest);
    hasher.update(data);
    hasher.finalize()
}

/// Writes two buffers next to each other, in one system call where the kernel takes both.
pub(super) fn write_both(file: &File, head: &[u8], data: &[u8], offset: u64) -> std::io::Result<()> {
    let done = loop {
        match rustix::io::pwritev(file, &[IoSlice::new(head), IoSlice::new(data)], offset) {
            Ok(done) => break done,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    };
    if done < head.len() {
        file.write_all_at(&head[done..], offset + done as u64)?;
    }
    let skip = done.saturating_sub(head.len());
    file.write_all_at(&data[skip..], offset + (head.len() + skip) as u64)
}

pub(super) fn new_identity() -> Result<Identity> {
    let mut identity = Identity::default();
    match rustix::rand::getrandom(&mut identity, rustix::rand::GetRandomFlags::empty()) {
        Ok(_) => Ok(identity),
        Err(error) => Err(io_error("draw a random number")(error.into())),
    }
}

pub(super) fn file_name(number: u64) -> String {
    format!("{number}.journal")
}

/// Returns the numbers of the journal files in a directory, sorted.
pub(super) fn file_numbers(directory: &Path) -> Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(io_error("list the journal"))? {
        let name = entry.map_err(io_error("list the journal"))?.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".journal"));
        numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Removes the journal files whose numbers match.
pub(super) fn remove_files(directory: &Path, matches: impl Fn(u64) -> bool) -> Result<()> {
    for number in file_numbers(directory)?.into_iter().filter(|number| matches(*number)) {
        std::fs::remove_file(directory.join(file_name(number))).map_err(io_error("remove a journal"))?;
    }
    Ok(())
}
