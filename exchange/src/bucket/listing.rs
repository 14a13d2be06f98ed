//! A listing of a bucket, read once: which keys are paths, which objects changed, and which directories have objects. The changed
//! objects wait in a temporary file, so that a long listing takes little memory.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write};

use amalgam_engine::{Progress, Time, TreePath};

use super::index::{BucketIndex, ShortHash, short_hash, version};
use super::object::{BucketCounts, BucketSource, ListedObject};
use crate::error::{Error, Result};
use crate::report::Report;

const NOTE_NO_PATH: &str = "keys with `..`, `.` or nothing between slashes, or that no tree can hold, were left out";
const NOTE_ABOVE: &str = "objects that other objects lie below were left out";
const NOTE_TWICE: &str = "keys that were listed twice were left out the second time";
/// The longest key that is read back: S3 allows 1,024 bytes.
const KEY_BYTES_MAX: usize = 4_096;

/// Limits of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListingOptions {
    pub(super) objects_max: u64,
}

/// A listing that was read.
pub(super) struct Listing {
    /// The directories that have objects below them.
    directories: HashSet<ShortHash>,
    /// The files, by the hashes of their paths, sorted.
    files: Vec<ShortHash>,
    index: BucketIndex,
    /// Objects that have the version that is known.
    hits: usize,
    /// Whether an object that did not change is left out now.
    has_dropped: bool,
    changed: BufReader<File>,
    pub(super) counts: BucketCounts,
    pub(super) report: Report,
}

/// Converts a key to a path. Returns `None` if it is not a valid path. A key that ends with a slash is a directory.
fn path_of(key: &[u8]) -> Option<TreePath> {
    let plain = key.strip_suffix(b"/").unwrap_or(key);
    let is_path =
        !plain.is_empty() && plain.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
    is_path.then(|| TreePath::new(plain).ok()).flatten()
}

impl Listing {
    /// Reads a listing to its end.
    pub(super) fn read(
        source: &mut dyn BucketSource,
        known: Option<&BucketIndex>,
        options: ListingOptions,
        progress: &Progress,
    ) -> Result<Self> {
        let failed = |source: io::Error| Error::host("store the listing of the bucket", source);
        let mut changed = BufWriter::new(tempfile::tempfile().map_err(failed)?);
        let mut listing = ListingState::default();
        while let Some(page) = source.next_page()? {
            progress.check()?;
            for object in page {
                if listing.counts.total >= options.objects_max {
                    let what = "the number of objects below the prefix".to_owned();
                    return Err(Error::TooLarge { what, max: options.objects_max, hint: "follow a longer prefix" });
                }
                if listing.take(&object, known) {
                    write_object(&mut changed, &object).map_err(failed)?;
                }
            }
        }
        let mut changed = changed.into_inner().map_err(|error| failed(error.into_error()))?;
        changed.rewind().map_err(failed)?;
        let ListingState { directories, files, mut index, hits, mut counts, report } = listing;
        index.is_complete = true;
        // An object that is known, and that others lie below by now, is one no more.
        let dropped = index.drop_keys(|key| directories.contains(key));
        (counts.skipped, counts.left_out) = (counts.skipped - dropped, counts.left_out + dropped);
        let (mut files, changed): (Vec<_>, _) = (files.into_iter().collect(), BufReader::new(changed));
        files.sort_unstable();
        Ok(Self { directories, files, index, hits, has_dropped: dropped > 0, changed, counts, report })
    }

    /// Returns whether objects of the known tree may be missing from the listing.
    pub(super) fn may_have_vanished(&self, known: Option<&BucketIndex>) -> bool {
        self.has_dropped || known.is_none_or(|known| !known.is_complete || self.hits < known.len())
    }

    /// Removes and returns the records of the objects that did not change.
    pub(super) fn take_index(&mut self) -> BucketIndex {
        std::mem::replace(&mut self.index, BucketIndex::new())
    }

    pub(super) fn has_directory(&self, path: &TreePath) -> bool {
        self.directories.contains(&short_hash(path.as_bytes()))
    }

    /// Returns whether an object is listed at a path, and none below it.
    pub(super) fn has_file(&self, path: &TreePath) -> bool {
        let hash = short_hash(path.as_bytes());
        self.files.binary_search(&hash).is_ok() && !self.directories.contains(&hash)
    }

    /// Reads the next object that changed, with its path; `None` after the last one. Leaves out objects that others lie below.
    pub(super) fn next_changed(&mut self) -> Result<Option<(TreePath, ListedObject)>> {
        loop {
            let read = read_object(&mut self.changed);
            let read = read.map_err(|source| Error::host("read the listing of the bucket", source))?;
            let Some(object) = read else { return Ok(None) };
            let Some(path) = path_of(&object.key) else { continue };
            if !object.key.ends_with(b"/") && self.has_directory(&path) {
                self.report.note(NOTE_ABOVE, &object.key);
                self.counts.left_out += 1;
                continue;
            }
            return Ok(Some((path, object)));
        }
    }
}

/// A listing that is being read.
#[derive(Default)]
struct ListingState {
    directories: HashSet<ShortHash>,
    files: HashSet<ShortHash>,
    index: BucketIndex,
    hits: usize,
    counts: BucketCounts,
    report: Report,
}

impl ListingState {
    /// Adds an object to the listing. Returns whether it has to be read.
    fn take(&mut self, object: &ListedObject, known: Option<&BucketIndex>) -> bool {
        self.counts.total += 1;
        let path = path_of(&object.key).filter(|_| object.key.len() <= KEY_BYTES_MAX);
        let Some(path) = path else {
            self.leave_out(NOTE_NO_PATH, &object.key);
            return false;
        };
        let is_directory = object.key.ends_with(b"/");
        let hash = short_hash(path.as_bytes());
        let is_new = if is_directory { self.directories.insert(hash) } else { self.files.insert(hash) };
        if !is_new && !is_directory {
            self.leave_out(NOTE_TWICE, &object.key);
            return false;
        }
        // The directories above it; those above a known one are known.
        let mut here = path;
        while let Some((above, _)) = here.split_last() {
            if above.is_root() || !self.directories.insert(short_hash(above.as_bytes())) {
                break;
            }
            here = above;
        }
        let (key, version) = (short_hash(&object.key), version(object));
        if known.is_some_and(|known| known.has(&key, &version)) {
            self.hits += 1;
            self.counts.skipped += 1;
            self.index.record_hashes(key, version);
            return false;
        }
        true
    }

    fn leave_out(&mut self, why: &'static str, key: &[u8]) {
        self.report.note(why, key);
        self.counts.left_out += 1;
    }
}

fn write_object(out: &mut impl Write, object: &ListedObject) -> io::Result<()> {
    for part in [&object.key[..], object.etag.as_bytes()] {
        out.write_all(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes())?;
        out.write_all(part)?;
    }
    out.write_all(&object.size.to_le_bytes())?;
    out.write_all(&object.modified.0.to_le_bytes())
}

fn read_object(from: &mut impl Read) -> io::Result<Option<ListedObject>> {
    let Some(key) = read_part(from)? else { return Ok(None) };
    let etag = read_part(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let (mut size, mut modified) = ([0; 8], [0; 8]);
    from.read_exact(&mut size)?;
    from.read_exact(&mut modified)?;
    Ok(Some(ListedObject {
        key,
        etag: String::from_utf8_lossy(&etag).into_owned(),
        size: u64::from_le_bytes(size),
        modified: Time(i64::from_le_bytes(modified)),
    }))
}

/// Reads a text that follows its length. Returns `None` at the end of the input.
fn read_part(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}
